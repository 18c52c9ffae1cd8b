"""Checkpoints by time: by hand, so that each call to the disk is seen, and by the thread."""

from __future__ import annotations

import errno
import logging

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import DiskFailed
from afterlog.log.checkpointer import checkpoint_behind
from afterlog.log.partition_log import PartitionLog
from afterlog.store.store import Store, open_store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, eventually, open_small, small


class TurnedClock(ManualClock):
    """All of its time, the monotonic one too, stands still until it is turned."""

    def monotonic_s(self) -> float:
        return self.now_ms() / 1_000


def logs_of(store: Store) -> list[PartitionLog]:
    return [partition.log for partition in store.topic("t").partitions]


def recovered(store: Store) -> list[int]:
    return [log.checkpoints.current.recovery.offset for log in logs_of(store)]


@pytest.mark.parametrize("delayed", [True, False])
def test_only_what_was_appended_to_costs_a_call_to_the_disk(delayed: bool) -> None:
    disk = SimulatedFiles()
    store = open_small(disk, ManualClock(NOW_MS))
    store.create_topic("t", 3, delayed=delayed)
    store.send("t", b"a", partition=1)
    assert [False, True, False] == [log.behind for log in logs_of(store)]
    before = len(disk.operations)
    checkpoint_behind(logs_of(store))
    touched = {str(operation.path) for operation in disk.operations[before:] if hasattr(operation, "path")}
    assert touched
    assert all("t-1" in path for path in touched), touched
    assert [0, 1, 0] == recovered(store)
    before = len(disk.operations)
    checkpoint_behind(logs_of(store))
    assert before == len(disk.operations)
    store.check()


def test_what_fails_is_told_and_tried_again(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_small(SimulatedFiles(), ManualClock(NOW_MS))
    store.create_topic("t", 2)
    for number in range(2):
        store.send("t", b"a", partition=number)
    failing = logs_of(store)[0]

    def fails() -> None:
        raise DiskFailed("no", path=failing.path, number=errno.EIO)

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(failing, "checkpoint", fails)
        checkpoint_behind(logs_of(store))
    assert "no checkpoint" in caplog.text
    assert [0, 1] == recovered(store)
    checkpoint_behind(logs_of(store))
    assert [1, 1] == recovered(store)


def test_a_log_that_is_closed_or_poisoned_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    store = open_small(SimulatedFiles(), ManualClock(NOW_MS))
    store.create_topic("t", 2)
    for number in range(2):
        store.send("t", b"a", partition=number)
    poisoned, closed = logs_of(store)
    poisoned.commit.poison(RuntimeError("found in a test"))
    closed.let_go()
    caplog.clear()
    checkpoint_behind([poisoned, closed])
    assert ([0, 0], "") == (recovered(store), caplog.text)


def test_a_store_that_is_quiet_checkpoints_when_the_time_has_come() -> None:
    clock = TurnedClock(NOW_MS)
    with open_store(PATH, small(checkpoint_ms=5_000), clock, SimulatedFiles()) as store:
        store.create_topic("t", 2)
        store.send("t", b"a", partition=0)
        clock.advance(4_999)
        assert [0, 0] == recovered(store)
        clock.advance(1)
        eventually(lambda: recovered(store) == [1, 0])
        store.send("t", b"b", partition=1)
        clock.advance(5_000)
        eventually(lambda: recovered(store) == [1, 1])


def test_without_it_only_a_close_does() -> None:
    clock = TurnedClock(NOW_MS)
    with open_store(PATH, small(checkpoint_ms=None), clock, SimulatedFiles()) as store:
        store.create_topic("t")
        store.send("t", b"a")
        clock.advance(10_000_000)
        assert store._checkpointer is None
        [log] = logs_of(store)
        assert log.behind
    assert not log.behind
