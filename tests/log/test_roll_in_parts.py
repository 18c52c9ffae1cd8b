"""A roll that leaves a segment's runs as they are: they are merged behind it, at the close, or after a crash."""

from __future__ import annotations

import logging

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.files import Files
from afterlog.base.names import BUCKETS, run_key
from afterlog.fetch.partition import Partition
from afterlog.index import buckets
from afterlog.log.snapshot import open_snapshot
from afterlog.offline.locked_store import OfflineStore
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, drained, killed, open_small

FOLDER = PATH / "t-0"
VALUES = [b"%d" % number for number in range(120)]


def rolled(disk: Files, clock: ManualClock) -> Store:
    """Sealed segments of several runs each, and an active one."""
    store = open_small(disk, clock, max_num_buckets=4)
    log = store.create_topic("t").log(0)
    object.__setattr__(log.context, "checkpoint_queue", lambda *_: None)  # as where a thread merges
    for number, value in enumerate(VALUES):
        store.send("t", value, deliver_after=NOW_MS + number * 37 % 120)
        if number % 15 == 14:
            log.checkpoint()
        if number in (50, 100):
            log.roll()
    return store


def parts(partition: Partition) -> list[int]:
    return [len(each) for each in buckets.in_parts(partition.log.index)]


def expected() -> list[bytes]:
    return [VALUES[number] for number in sorted(range(120), key=lambda number: (number * 37 % 120, number))]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


def test_parts_become_one_run(clock: ManualClock) -> None:
    disk = SimulatedFiles()
    with rolled(disk, clock) as store:
        partition = store.topic("t").partition(0)
        assert 2 <= len(parts(partition))
        assert not disk.exists(FOLDER / run_key(0))
        assert partition.log.crowded
        store.check()
        assert 2 <= partition.log.merge_buckets()
        assert [] == parts(partition)
        assert disk.exists(FOLDER / run_key(0))
        clock.advance(1_000)
        assert expected() == drained(partition)
        store.check()


def test_a_close_leaves_whole_runs(clock: ManualClock) -> None:
    disk = SimulatedFiles()
    rolled(disk, clock).close()
    assert disk.exists(FOLDER / run_key(0))
    assert disk.exists(FOLDER / run_key(51))
    assert [] == [name for name in disk.names(FOLDER / BUCKETS) if int(name[:20]) < 101]


def test_a_crash_before_they_are_merged(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is read again that a run holds, and nothing is wrong with such a store."""
    disk = SimulatedFiles()
    rolled(disk, clock)
    left = killed(disk)
    with OfflineStore(PATH, killed(disk), clock) as offline:
        assert [] == list(offline.verify())
    with caplog.at_level(logging.WARNING), open_small(left, clock) as store:
        partition = store.topic("t").partition(0)
        assert 2 <= len(parts(partition))
        clock.advance(1_000)
        assert expected() == drained(partition)
        store.check()
    assert "made anew" not in caplog.text


def test_who_looks_from_outside_sees_all(clock: ManualClock) -> None:
    disk = SimulatedFiles()
    with rolled(disk, clock) as store:
        store.topic("t").log(0).checkpoint()
        context = store.topic("t").log(0).context
        clock.advance(1_000)
        log = open_snapshot(context, at_ms=NOW_MS + 1_000)
        assert len(VALUES) == log.index.records


def test_a_part_that_is_gone_is_made_anew(clock: ManualClock) -> None:
    disk = SimulatedFiles()
    rolled(disk, clock)
    left = killed(disk)
    left.unlink(FOLDER / BUCKETS / left.names(FOLDER / BUCKETS)[1])
    with open_small(left, clock) as store:
        partition = store.topic("t").partition(0)
        clock.advance(1_000)
        assert expected() == drained(partition)
        store.check()


def test_retention_takes_the_parts_of_a_segment_together(clock: ManualClock) -> None:
    disk = SimulatedFiles()
    with rolled(disk, clock) as store:
        partition = store.topic("t").partition(0)
        clock.advance(1_000)
        assert 60 <= store.purge("t", 119)
        store.check()
        partition.log.merge_buckets()
        assert expected()[partition.log_start :] == drained(partition)
        store.check()
    with open_small(disk, clock) as store:
        assert expected()[119:] == drained(store.topic("t").partition(0))
