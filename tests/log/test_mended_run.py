"""A run that rots while it is read is made anew from the log, as it was; where it cannot be, the error stays."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile
from afterlog.base.names import DELIVER_AFTER_INDEX, LOG
from afterlog.fetch.partition import Partition
from afterlog.log.snapshot import ALL_MS, open_snapshot
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.store.test_store import Setting
from tests.support import NOW_MS, Calls, HeldFiles, content, drained, flipped, killed, open_small, with_file


def filled() -> Setting:
    """A merged bucket over several segments, a run of a segment, runs of the active one."""
    setting = Setting(max_num_buckets=2)
    partition = setting.store.create_topic("t").partition(0)
    chance = np.random.default_rng(2)
    for row in range(160):
        due = NOW_MS + int(chance.integers(0, 100)) * 10
        setting.store.send_many("t", [b"%d" % row * 10] * (1 + row % 3), deliver_after=due)
        if row % 40 == 39:
            partition.log.roll()
        if row in (110, 150):
            partition.log.merge_buckets()
    for row in range(20):
        setting.store.send("t", b"active %d" % row, deliver_after=NOW_MS + row)
    partition.log.checkpoint()
    return setting


@pytest.fixture(scope="module")
def whole() -> tuple[SimulatedFiles, list[bytes | None], list[Path]]:
    """The disk, what is delivered when all is due, and the files of the runs."""
    setting = filled()
    disk = killed(setting.disk)
    setting.clock.advance(10_000)
    partition = setting.store.topic("t").partition(0)
    return disk, drained(partition), [run.path for run in partition.log.index.runs]


Whole = tuple[SimulatedFiles, list[bytes | None], list[Path]]


def opened(disk: SimulatedFiles, calls: Calls | None = None) -> Store:
    return open_small(HeldFiles(disk, calls or Calls()), ManualClock(NOW_MS + 10_000), max_num_buckets=2)


def mends(store: Store) -> tuple[int, int]:
    counts = store.topic("t").partition(0).log.context.operations.mend.counts()
    return counts.succeeded, counts.failed


def test_every_kind_of_byte_of_every_run(whole: Whole) -> None:
    disk, values, paths = whole
    assert len(paths) > 2
    mended = 0
    for path in paths:
        data = content(disk, path)
        for position in range(path.name.count("-"), len(data), 101):
            rotten = with_file(disk, path, flipped(data, position))
            store = opened(rotten)
            assert values == drained(store.topic("t").partition(0)), (path, position)
            store.check()
            if mends(store) == (1, 0):
                mended += 1
                assert data == content(rotten, path)
            store.close()
    assert mended > 3


def test_it_is_said(whole: Whole, caplog: pytest.LogCaptureFixture) -> None:
    disk, values, paths = whole
    store = opened(with_file(disk, paths[0], flipped(content(disk, paths[0]), 70)))
    with caplog.at_level(logging.WARNING):
        assert values == drained(store.topic("t").partition(0))
    assert [f"{paths[0]}: rotten; made anew from the log, as it was"] == caplog.messages
    assert (1, 0) == mends(store)
    store.close()


def test_a_full_disk_mends_in_memory(whole: Whole, caplog: pytest.LogCaptureFixture) -> None:
    disk, values, paths = whole
    rotten, calls = with_file(disk, paths[0], flipped(content(disk, paths[0]), 70)), Calls()
    store = opened(rotten, calls)
    calls.fail("append", DELIVER_AFTER_INDEX + ".tmp", OSError(errno.ENOSPC, "full"))
    assert values == drained(store.topic("t").partition(0))
    assert "in memory only" in caplog.text
    assert content(rotten, paths[0]) != content(disk, paths[0])
    store.close()
    store = opened(killed(rotten))
    assert values == drained(store.topic("t").partition(0))
    store.close()


def test_where_the_log_rots_too_the_error_names_the_run(whole: Whole, caplog: pytest.LogCaptureFixture) -> None:
    disk, _, paths = whole
    logs = sorted(Path(name) for name in disk.image().contents if name.endswith(LOG))
    rotten = with_file(disk, paths[0], flipped(content(disk, paths[0]), 70))
    rotten = with_file(rotten, logs[0], flipped(content(disk, logs[0]), 100))
    store = opened(rotten)
    with pytest.raises(CorruptFile) as raised:
        drained(store.topic("t").partition(0))
    assert paths[0] == raised.value.path
    assert "cannot be made anew" in caplog.text
    assert (0, 1) == mends(store)
    store.close()


def test_a_merge_mends_what_it_reads(whole: Whole) -> None:
    disk, values, paths = whole
    rotten = with_file(disk, paths[-1], flipped(content(disk, paths[-1]), 70))
    store = open_small(HeldFiles(rotten, Calls()), ManualClock(NOW_MS + 10_000), max_num_buckets=1)
    partition = store.topic("t").partition(0)
    partition.log.merge_buckets()
    assert values == drained(partition)
    store.close()


def test_who_only_looks_mends_nothing(whole: Whole) -> None:
    disk, _, paths = whole
    rotten = with_file(disk, paths[0], flipped(content(disk, paths[0]), 70))
    store = opened(rotten)
    context = store.topic("t").partition(0).log.context
    with pytest.raises(CorruptFile):
        drained(Partition("t", 0, open_snapshot(context, at_ms=ALL_MS)))
    assert content(rotten, paths[0]) != content(disk, paths[0])
    store.close()
