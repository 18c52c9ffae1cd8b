"""Threads that make calls: no more than are needed, and what was begun is done."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from afterlog.store.aio_calls import WorkerThreads
from tests.support import PATIENCE_S, Gate, eventually

ENDING = """
import threading
from afterlog.store.aio_calls import WorkerThreads
begun = threading.Event()
def job():
    begun.set()
    threading.Event().wait(0.05)
    print("done", flush=True)
threads = WorkerThreads(2, "t")
threads.begin(job)
begun.wait()
"""


def test_one_that_is_free_is_taken_before_another_is_started() -> None:
    threads, there = WorkerThreads(3, "t"), list[int]()
    for count in range(1, 6):
        threads.begin(lambda: there.append(threading.get_ident()))
        eventually(lambda count=count: len(there) == count and len(threads._free) == 1)  # type: ignore[misc]
    assert 1 == len({*there})
    threads.end()
    threads.join()


def test_as_many_as_are_allowed_and_the_others_queue() -> None:
    threads, gates, done = WorkerThreads(2, "t"), [Gate() for _ in range(3)], list[int]()

    def job(number: int) -> None:
        gates[number].passing()
        done.append(number)

    for number in range(3):
        threads.begin(lambda number=number: job(number))  # type: ignore[misc]
    gates[0].came()
    gates[1].came()
    assert 2 == len(threads._threads)
    for gate in gates:
        gate.open()
    threads.end()
    threads.join()
    assert [0, 1, 2] == sorted(done), "what was begun is done after the end, too"
    with pytest.raises(RuntimeError, match="no calls any more"):
        threads.begin(lambda: None)


def test_one_that_fails_takes_no_thread_with_it(caplog: pytest.LogCaptureFixture) -> None:
    threads, done = WorkerThreads(1, "t"), threading.Event()
    threads.begin(lambda: 1 // 0)
    threads.begin(done.set)
    assert done.wait(PATIENCE_S)
    assert "ZeroDivisionError" in caplog.text
    threads.end()
    threads.join()


def test_nothing_of_a_job_is_kept_and_nobody_has_to_end_them() -> None:
    class Held:
        pass

    threads, held = WorkerThreads(1, "t"), Held()
    known = weakref.ref(held)
    threads.begin(lambda held=held: held)  # type: ignore[misc]
    del held
    eventually(lambda: known() is None)
    [thread] = threads._threads
    del threads
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_an_ordinary_end_of_the_process_waits_for_what_was_begun() -> None:
    ran = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ("done\n", "") == (ran.stdout, ran.stderr)
