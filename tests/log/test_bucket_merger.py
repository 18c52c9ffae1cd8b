"""Merging the runs of a partition: by hand, so that what happens in between can be chosen, and by the thread."""

from __future__ import annotations

import errno
import logging
import threading

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile, PartitionPoisoned, StorageFull, StoreClosed
from afterlog.base.names import BUCKETS, DELIVER_AFTER_INDEX, LOG
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST
from afterlog.log.checkpointer import merge_crowded
from afterlog.store.store import Store, open_store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import (
    NOW_MS,
    PATH,
    Background,
    Calls,
    HeldFiles,
    drained,
    eventually,
    flipped,
    killed,
    open_small,
    small,
)

FOLDER = PATH / "t-0"
LATER_MS = NOW_MS + 1_000


class Setting:
    """Runs of 8 entries in the active segment, and sealed segments that are rolled by hand."""

    def __init__(self, limit: int = 1, **settings: int) -> None:
        self.calls = Calls()
        self.disk = SimulatedFiles()
        self.files = HeldFiles(self.disk, self.calls)
        self.clock = ManualClock(NOW_MS)
        self.limit = limit
        self.store: Store = open_small(self.files, self.clock, max_num_buckets=limit, segment_bytes=1 << 20)
        self.partition: Partition = self.store.create_topic("t", **settings).partition(0)
        self.log = self.partition.log
        self.count = 0

    def send(self, count: int, delay_ms: int = 0) -> None:
        for _ in range(count):
            value = b"%d" % self.count
            self.store.send("t", value, deliver_after=NOW_MS + delay_ms + self.count * 7 % 10)
            self.count += 1

    def segments(self, *delays_ms: int) -> None:
        for delay_ms in delays_ms:
            self.send(3, delay_ms)
            self.log.roll()

    def counts(self) -> tuple[int, int]:
        """Runs of sealed segments, and of the active one."""
        active = self.log.version.active.base_offset
        sealed = [run for run in self.log.index.runs if run.coverage.first_offset < active]
        return len(sealed), len(self.log.index.runs) - len(sealed)

    def stored(self) -> list[str]:
        return [name for name in self.disk.names(FOLDER) if DELIVER_AFTER_INDEX in name] + self.disk.names(
            FOLDER / BUCKETS
        )

    def check(self) -> None:
        """All is there in order, now and after a kill; nothing is stored that is not in use, nothing made anew."""
        self.store.check()
        assert sorted(run.path.name for run in self.log.index.runs) == sorted(self.stored())
        self.clock.set(LATER_MS)
        values = drained(self.partition)
        assert self.count - self.partition.log_start == len(values)
        disk = killed(self.disk)
        again = open_small(disk, self.clock, max_num_buckets=self.limit, segment_bytes=1 << 20)
        again.check()
        assert values == drained(again.topic("t").partition(0))
        assert self.stored() == [
            *(name for name in disk.names(FOLDER) if DELIVER_AFTER_INDEX in name),
            *disk.names(FOLDER / BUCKETS),
        ]


@pytest.fixture(autouse=True)
def nothing_is_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    yield  # type: ignore[misc]
    assert "made anew" not in caplog.text


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_each_group_is_merged_by_itself(limit: int) -> None:
    setting = Setting(limit)
    for _ in range(5):
        setting.segments(0)
        setting.send(20)
        setting.log.merge_buckets()
        setting.check()
        assert max(setting.counts()) <= limit
    assert setting.counts()[1]
    assert 0 == setting.log.merge_buckets()


def test_without_a_limit_nothing_is_merged() -> None:
    setting = Setting(-1)
    setting.segments(0, 0)
    setting.send(30)
    assert (0, False) == (setting.log.merge_buckets(), setting.log.crowded)
    assert (2, 3) == setting.counts()


def test_no_run_reaches_beyond_the_recovery_point() -> None:
    """Recovery would not use it: where there is no room for the checkpoint, the run that it would name goes again."""
    setting = Setting()
    setting.send(15)
    setting.calls.fail("append", "checkpoints.tmp", OSError(errno.ENOSPC, "full"))
    setting.send(1)
    assert ((0, 1), 1) == (setting.counts(), len(setting.stored()))
    assert 0 == setting.log.merge_buckets()
    setting.log.checkpoint()
    setting.send(8)
    assert 1 == setting.log.merge_buckets()
    setting.check()


def test_appends_polls_and_a_seal_while_runs_are_merged() -> None:
    setting = Setting()
    setting.send(16)
    gate = setting.files.hold("sync", DELIVER_AFTER_INDEX + ".tmp")
    merging = Background(setting.log.merge_buckets)
    gate.came()
    setting.files.hold("", "")
    setting.send(9)
    setting.clock.set(LATER_MS)
    assert 25 == len(drained(setting.partition))
    assert (0, 3) == setting.counts()
    gate.open()
    assert 2 == merging.answer()
    setting.check()


def test_a_roll_takes_the_sources() -> None:
    setting = Setting()
    setting.send(16)
    gate = setting.files.hold("sync", DELIVER_AFTER_INDEX + ".tmp")
    merging = Background(setting.log.merge_buckets)
    gate.came()
    setting.files.hold("", "")
    setting.log.roll()
    gate.open()
    assert 0 == merging.answer()
    assert (1, 0) == setting.counts()
    setting.check()


def test_retention_takes_a_source() -> None:
    setting = Setting(retention_ms=10)
    setting.segments(0, 500, 600)
    gate = setting.files.hold("sync", DELIVER_AFTER_INDEX + ".tmp")
    merging = Background(setting.log.merge_buckets)
    gate.came()
    setting.files.hold("", "")
    setting.clock.set(NOW_MS + 100)
    assert 1 == setting.store.enforce_retention()
    gate.open()
    assert 1 == merging.answer()
    assert 1 == setting.counts()[0]
    setting.check()


def test_a_merged_run_outlives_some_of_its_segments() -> None:
    setting = Setting(retention_ms=200)
    setting.segments(0, 850, 900)
    setting.log.merge_buckets()
    assert 1 == setting.counts()[0]
    setting.clock.set(NOW_MS + 300)
    assert 1 == setting.store.enforce_retention()
    setting.check()
    assert (3, 9) == (setting.partition.log_start, setting.partition.high_watermark())
    assert 3 == setting.partition.fetch(EARLIEST).delivery_offsets[0]
    assert [6] == setting.partition.due_histogram([NOW_MS, LATER_MS]).tolist()  # type: ignore[arg-type]
    setting.segments(10_000)
    assert 1 == setting.log.merge_buckets()
    assert (3, 9) == (setting.log.index.removed_records, setting.log.index.count)
    setting.clock.set(NOW_MS + 20_000)
    assert 3 == setting.store.enforce_retention()
    assert [] == setting.stored()
    assert (12, []) == (setting.partition.log_start, drained(setting.partition))


def test_a_segment_that_is_out_of_reach_needs_no_run() -> None:
    setting = Setting(retention_bytes=1)
    setting.send(1, 50)
    setting.log.roll()
    setting.clock.set(NOW_MS + 50)
    setting.send(1, 50 - setting.count * 7 % 10)  # due at the same time, and so last
    setting.log.roll()
    setting.check()
    setting.store.enforce_retention()
    setting.check()


@pytest.mark.parametrize("operation", ["create", "append", "sync", "sync_folder"])
def test_a_merge_that_fails_harms_nothing(operation: str) -> None:
    setting = Setting()
    setting.send(16)
    setting.calls.fail(operation, "", OSError(errno.ENOSPC if operation != "sync" else errno.EIO, "failed"))
    with pytest.raises((StorageFull, OSError)):
        setting.log.merge_buckets()
    assert (0, 2) == setting.counts()
    setting.send(9)
    setting.log.merge_buckets()
    setting.check()


def test_sources_that_cannot_be_deleted_go_at_the_next_open() -> None:
    setting = Setting()
    setting.send(16)
    stored = setting.stored()
    setting.calls.fail("unlink", stored[0], OSError(errno.EIO, "failed"))
    with pytest.raises(OSError, match="failed"):
        setting.log.merge_buckets()
    assert (0, 1) == setting.counts()
    assert 3 == len(setting.stored())
    disk = killed(setting.disk)
    open_small(disk, setting.clock, max_num_buckets=1, segment_bytes=1 << 20).check()
    assert 1 == len(disk.names(FOLDER / BUCKETS))
    setting.send(1)


def test_closing_ends_a_merge() -> None:
    setting = Setting()
    setting.send(16)
    gate = setting.files.hold("create", DELIVER_AFTER_INDEX + ".tmp")
    merging = Background(setting.log.merge_buckets)
    gate.came()
    setting.files.hold("", "")
    closing = Background(setting.store.close)
    eventually(lambda: setting.log._closing)
    gate.open()
    with pytest.raises(StoreClosed, match="is being closed"):
        merging.answer()
    closing.answer()
    assert 2 == len(setting.stored())
    with pytest.raises(StoreClosed):
        setting.log.merge_buckets()


def test_a_poisoned_partition_merges_nothing() -> None:
    setting = Setting()
    setting.send(16)
    setting.calls.fail("sync", LOG, OSError(errno.EIO, "failed"))
    with pytest.raises(PartitionPoisoned):
        setting.store.sync()
    with pytest.raises(PartitionPoisoned):
        setting.log.merge_buckets()


# --- The thread


def crowded_store(files: SimulatedFiles | HeldFiles, sends: int = 40) -> Store:
    """No segment has more than one run when it rolls: those would be merged as well."""
    config = small(max_num_buckets=2, segment_bytes=1 << 20, min_index_count_per_bucket=64)
    store = open_store(PATH, config, ManualClock(NOW_MS), files)
    partition = store.create_topic("t").partition(0)
    for number in range(sends):
        partition.log.roll() if number % 10 == 9 else store.send("t", b"%d" % number)
    return store


def is_merged(store: Store) -> bool:
    log = store.topic("t").partition(0).log
    active = log.version.active.base_offset
    return sum(run.coverage.first_offset < active for run in log.index.runs) <= 2


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "afterlog-merge"]


def is_merging() -> bool:
    """Whether this is the thread of the merges; the one that seals runs writes beside them."""
    return threading.current_thread() in threads()


def test_the_thread_begins_when_it_is_needed_and_ends_with_the_store() -> None:
    store = crowded_store(SimulatedFiles(), 20)
    assert [] == threads()
    for _ in range(3):
        store.send("t", b"more")
        store.topic("t").partition(0).log.roll()
    assert 1 == len(threads())
    eventually(lambda: is_merged(store))
    store.check()
    store.close()
    assert [] == threads()


def test_it_begins_with_what_it_finds() -> None:
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS), segment_bytes=1 << 20) as store:
        store.create_topic("t")
        for _ in range(5):
            store.send("t", b"record")
            store.topic("t").partition(0).log.roll()
    store = crowded_store(disk, 0)
    eventually(lambda: is_merged(store))
    store.close()


def test_what_fails_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()
    store = crowded_store(HeldFiles(SimulatedFiles(), calls), 20)
    log = store.topic("t").partition(0).log
    for number, said in ((errno.ENOSPC, "no room to merge runs"), (errno.EIO, "runs not merged")):
        caplog.clear()
        failing = [OSError(number, "failed")]
        calls.failing = lambda made, path, failing=failing: (  # type: ignore[misc]
            failing.pop() if failing and made == "append" and path.parent.name == BUCKETS and is_merging() else None
        )
        for _ in range(3):  # crowded, whatever a later turn than the one that failed has merged meanwhile
            store.send("t", b"more")
            log.roll()
        eventually(lambda said=said: said in caplog.text)  # type: ignore[misc]
    store.send("t", b"more")
    log.roll()
    eventually(lambda: is_merged(store))
    store.check()
    store.close()


def test_a_rotten_source_stays_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting(2)
    setting.segments(0, 0, 0)
    path = setting.log.index.runs[1].path
    image = setting.disk.image()
    log_path = path.with_suffix(LOG)  # what it could be made anew of
    rotten = {str(each): flipped(image.contents[str(each)], 64) for each in (path, log_path)}
    disk = SimulatedFiles(type(image)(image.folders, image.contents | rotten))
    store = crowded_store(disk, 0)
    eventually(lambda: str(path) in caplog.text)
    log = store.topic("t").partition(0).log
    with pytest.raises(CorruptFile, match="checksum"):
        log.merge_buckets()
    assert 3 == len(log.index.runs)
    store.close()


def test_a_partition_that_is_closed_or_poisoned_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    closed, poisoned, well = Setting(), Setting(), Setting()
    for setting in (closed, poisoned, well):
        setting.send(16)
    closed.store.close()
    poisoned.log.commit.poison(OSError("failed"))
    caplog.clear()
    merge_crowded([closed.log, poisoned.log, well.log])
    assert (False, "") == (well.log.crowded, caplog.text)


def test_appends_fetches_and_merges_at_once() -> None:
    """Many merges between sends and polls; every poll is in order, and all is there in the end."""
    disk, clock = SimulatedFiles(), ManualClock(NOW_MS)
    store = open_store(PATH, small(max_num_buckets=2, segment_bytes=8_192), clock, disk)
    partition, count = store.create_topic("t").partition(0), 200

    def send() -> None:
        for number in range(count):
            store.send("t", b"%d" % number, deliver_after=clock.now_ms() + number * 7 % 10)
            clock.advance(1)

    sending, position, keys = Background(send), 0, []
    while sending.is_alive() or position < partition.high_watermark():
        columns, position = partition.columns(position, 50, 1 << 20)
        keys += list(zip(columns.due.tolist(), columns.offset.tolist(), strict=True))
    sending.answer()
    eventually(lambda: len(partition.log.index.runs) <= 5)
    clock.advance(100)
    columns, _ = partition.columns(position, count, 1 << 20)
    keys += list(zip(columns.due.tolist(), columns.offset.tolist(), strict=True))
    assert sorted(keys) == keys
    assert [*range(count)] == sorted(offset for _, offset in keys)
    store.check()
    store.close()
