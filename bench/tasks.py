"""Tasks that are due later, over this log and over what frameworks have else; and workers that are killed.

    python -m bench.tasks [--tasks 3000] [--wait 12] [--threads 8]

Dramatiq, the same actor and worker each time, over Redis (AOF, `appendfsync everysec` and `always`), over a folder that
worker and sender share (the store is in one of them), and over `afterlog serve` beside them; an fdatasync each send.

    one instant   enqueue so many tasks that are due at one time; memory of the worker before, and while all wait; how
                  fast they run then, and how late they are
    killed        200 tasks, due in 6 s; the worker is killed with -9 after 2 s, and another one started; of how many it
                  is known 10 s after their time that they ran, and how often
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from afterlog.base.files import temporary_folder
from bench.harness import machine
from bench.rivals.server import Server, program
from bench.rivals.usage import memory_bytes

RAN: Final = struct.Struct("<qq")
"""Of each task that ran: its number, and how many us after its time."""
KINDS: Final = ("redis everysec", "redis always", "afterlog shared", "afterlog served")


def broker_of(url: str) -> Any:
    """With Dramatiq's own middleware; as the broker of this process."""
    import dramatiq

    made: Any
    if url.startswith("unix:"):
        from dramatiq.brokers.redis import RedisBroker

        made = RedisBroker(url=url)
    else:
        from afterlog.integrations.dramatiq import AfterlogBroker

        made = AfterlogBroker(url)
    dramatiq.set_broker(made)
    return made


def actor_of(path: str) -> Any:
    """It appends to a file that it ran."""
    import dramatiq

    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @dramatiq.actor
    def ran(number: int, due_us: int) -> None:
        os.write(descriptor, RAN.pack(number, time.time_ns() // 1_000 - due_us))

    return ran


def work(url: str, path: str, threads: int) -> None:
    """The process of a worker, until its input ends."""
    import dramatiq

    broker = broker_of(url)
    actor_of(path)
    worker = dramatiq.Worker(broker, worker_threads=threads)
    worker.start()
    print("started", flush=True)
    sys.stdin.read()
    worker.stop()
    broker.close()


@contextlib.contextmanager
def worker_process(url: str, path: Path, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bench.tasks", "--worker", url, str(path), "--threads", str(threads)]
    with (path.parent / "worker.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        if process.stdout.readline() != b"started\n":
            raise RuntimeError(f"the worker did not start: {(path.parent / 'worker.log').read_text()}")
        yield process
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


@contextlib.contextmanager
def place(kind: str, folder: Path) -> Iterator[tuple[str, Server | None]]:
    """The URL of a broker, and what serves it."""
    if kind == "afterlog shared":
        yield f"afterlog://{folder}/store", None
        return
    if kind == "afterlog served":
        server = Server([sys.executable, "-m", "afterlog", "serve", f"{folder}/store"], folder)
        socket = folder / "store" / "server.sock"
        url = f"afterlog+unix://{socket}"
    else:
        socket = folder / "socket"
        server = Server(
            [
                program("redis-server") or "redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "",
                "--dir", str(folder), "--appendonly", "yes", "--appendfsync", kind.split()[1],
            ],
            folder,
        )  # fmt: skip
        url = f"unix://{socket}"
    try:
        server.ready(lambda: socket.stat())
        yield url, server
    finally:
        server.stop()


def rows(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Number and lateness of each run: int64[n, 2]."""
    return np.frombuffer(path.read_bytes() if path.exists() else b"", np.int64).reshape(-1, 2)


def enqueue(path: Path, url: str, count: int, wait_s: float) -> tuple[float, int]:
    """Tasks that are due together, after `wait_s`; seconds that it took, and when they are due, in us."""
    broker = broker_of(url)
    actor = actor_of(str(path))
    begun_s, due_us = time.perf_counter(), time.time_ns() // 1_000 + int(wait_s * 1e6)
    for number in range(count):
        delay = max(-(-(due_us - time.time_ns() // 1_000) // 1_000), 0)
        actor.send_with_options(args=(number, due_us), delay=delay)
    took_s = time.perf_counter() - begun_s
    broker.close()
    return took_s, due_us


def sleep_until(us: int) -> None:
    time.sleep(max(us / 1e6 - time.time(), 0))


def one_instant(kind: str, count: int, wait_s: float, threads: int) -> dict[str, Any]:
    with temporary_folder() as folder, place(kind, folder) as (url, server):
        path = folder / "ran"
        with worker_process(url, path, threads) as worker:
            time.sleep(0.5)
            before = memory_bytes([worker.pid])
            took_s, due_us = enqueue(path, url, count, wait_s)
            if time.time_ns() // 1_000 > due_us:
                raise RuntimeError(f"{kind}: {count} took {took_s:.1f} s to enqueue: give a longer --wait")
            sleep_until(due_us - 200_000)
            waiting = memory_bytes([worker.pid])
            served = memory_bytes([] if server is None else server.processes())
            end_s = time.monotonic() + 120
            while len(rows(path)) < count and time.monotonic() < end_s:
                time.sleep(0.05)
            late = rows(path)[:, 1] / 1_000
        return {
            "enqueued_per_s": round(count / took_s), "ran": len(late), "ran_once": len({*rows(path)[:, 0].tolist()}),
            "worker_mib": [round(each["private"] / 2**20, 1) for each in (before, waiting)],
            "server_mib": round(served["private"] / 2**20, 1) if server is not None else None,
            "per_s_when_due": round(len(late) / (late.max() / 1_000)), "late_ms_p50": round(float(np.median(late)), 1),
            "late_ms_p99": round(float(np.percentile(late, 99)), 1), "earliest_ms": round(float(late.min()), 2),
        }  # fmt: skip


def killed(kind: str, threads: int, count: int = 200, wait_s: float = 6.0, watch_s: float = 10.0) -> dict[str, Any]:
    with temporary_folder() as folder, place(kind, folder) as (url, _):
        path = folder / "ran"
        with worker_process(url, path, threads) as worker:
            _, due_us = enqueue(path, url, count, wait_s)
            sleep_until(due_us - int(wait_s / 1.5 * 1e6))
            worker.send_signal(signal.SIGKILL)
        with worker_process(url, path, threads):
            sleep_until(due_us + int(watch_s * 1e6))
            runs = Counter(rows(path)[:, 0].tolist())
            late = rows(path)[:, 1] / 1_000
        return {
            "tasks": count, "ran": len(runs), "ran_again": sum(runs.values()) - len(runs),
            "latest_ms": round(float(late.max(initial=0)), 1),
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=3_000)
    parser.add_argument("--wait", type=float, default=12.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        work(*asked.worker, asked.threads)
        return {}
    figures: dict[str, Any] = {"machine": machine(), "tasks": asked.tasks}
    for kind in asked.only.split(","):
        figures[kind] = {
            "one_instant": one_instant(kind, asked.tasks, asked.wait, asked.threads),
            "killed": killed(kind, asked.threads),
        }
        print(kind, json.dumps(figures[kind]), flush=True)
    return figures


if __name__ == "__main__":
    main()
