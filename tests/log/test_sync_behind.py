from __future__ import annotations

import errno
import threading

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import Durability
from afterlog.base.errors import PartitionPoisoned
from afterlog.base.locks import Condition
from afterlog.base.names import LOG
from afterlog.log.background import Background
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, Calls, HeldFiles, drained, eventually, open_small, power_cut

OFTEN = Durability.interval(1)


class Turns(ManualClock):
    """Lets the thread take a turn for each `turn`, however long its interval."""

    def __init__(self) -> None:
        super().__init__(NOW_MS)
        self.seconds = 0.0
        self.waiting = threading.Semaphore(0)
        self._condition: Condition | None = None

    def monotonic_s(self) -> float:
        return self.seconds

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        self._condition = condition
        self.waiting.release()
        condition.wait(5)

    def turn(self, seconds: float) -> None:
        assert self.waiting.acquire(timeout=5)
        assert self._condition is not None
        with self._condition:
            self.seconds += seconds
            self._condition.notify_all()


class Asked:
    """How often it was the thread's turn."""

    def __init__(self) -> None:
        self.turns = 0

    def __call__(self) -> None:
        self.turns += 1


def test_a_turn_comes_after_the_interval_and_not_before() -> None:
    clock, asked = Turns(), Asked()
    sync = Background("x", asked, clock=clock, interval_ms=1_000)
    sync.begin()
    clock.turn(0.9)
    assert clock.waiting.acquire(timeout=5)
    assert 0 == asked.turns
    clock.waiting.release()
    clock.turn(0.2)
    assert clock.waiting.acquire(timeout=5)
    assert 1 == asked.turns
    sync.stop()
    assert 1 == asked.turns


def test_stop_does_not_wait_for_the_interval() -> None:
    sync = Background("x", list, clock=ManualClock(), interval_ms=3_600_000)
    sync.begin()
    sync.stop()
    assert sync._thread is not None
    assert not sync._thread.is_alive()


def test_what_is_appended_becomes_visible_and_durable_by_itself() -> None:
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS), durability=OFTEN) as store:
        partitions = store.create_topic("t", partitions=2).partitions
        for number in range(2):
            store.send("t", b"a", partition=number)
        eventually(lambda: all(partition.log_end_offset == 1 for partition in partitions))
        again = open_small(power_cut(disk), ManualClock(NOW_MS))
        assert [[b"a"], [b"a"]] == [drained(partition) for partition in again.topic("t").partitions]


def test_a_partition_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()
    store = open_small(HeldFiles(SimulatedFiles(), calls), ManualClock(NOW_MS), durability=OFTEN)
    bad, good = store.create_topic("t", partitions=2).partitions
    calls.fail("sync", LOG, OSError(errno.EIO, "bad disk"))
    store.send("t", b"lost", partition=0)
    eventually(lambda: bad.log.commit.poisoned)
    with pytest.raises(PartitionPoisoned):
        store.send("t", b"more", partition=0)
    store.send("t", b"kept", partition=1)
    eventually(lambda: good.log_end_offset == 1)
    eventually(lambda: "not synced" in caplog.text)
    store.close()
