from __future__ import annotations

import errno
from collections.abc import Iterator

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS
from afterlog.base.errors import CorruptFile, InvalidDeliverAfter, InvalidTopic, RecordTooLarge, StorageFull
from afterlog.base.files import read_file
from afterlog.base.names import BUCKETS, DELIVER_AFTER_INDEX, FRONTIER, LOG, bucket_file, segment_file
from afterlog.index.bucket_snapshot import MappedSnapshot
from afterlog.index.entries import Entries
from afterlog.index.mutable_bucket import MutableBucket
from afterlog.index.run import Run
from afterlog.log.checkpoints import FrontierLease
from afterlog.log.partition_log import PartitionLog
from afterlog.records.batch import Record, encode_batch
from afterlog.records.encode import EncodedBatches, parse
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, Calls, HeldFiles, drained, durable_frontier, killed, open_small, small

FOLDER = PATH / "t-0"


class Setting:
    def __init__(self, **settings: object) -> None:
        self.calls = Calls()
        self.disk = SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.store = open_small(HeldFiles(self.disk, self.calls), self.clock, **settings)
        self.partition = self.store.create_topic("t", max_delay_ms=1_000_000).partition(0)
        self.log: PartitionLog = self.partition.log

    def send(self, count: int = 1, size: int = 10) -> None:
        for _ in range(count):
            self.store.send("t", bytes(size), delay=self.log.written % 5)
            self.store.check()

    def names(self) -> list[str]:
        return [name for name in self.disk.names(FOLDER) if name.endswith(LOG)]

    def buckets(self) -> list[str]:
        return self.disk.names(FOLDER / BUCKETS)


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


def batch_of(count: int, **fields: int) -> bytes:
    return encode_batch([Record(value=b"v", timestamp=NOW_MS, **fields) for _ in range(count)])


def test_append_returns_the_first_offset_and_keeps_whole_batches(setting: Setting) -> None:
    batches = parse(batch_of(3) + batch_of(2), None, small())
    assert [0, 5, 10] == [setting.log.append(batches) for _ in range(3)]
    assert (15, 0) == (setting.log.log_end_offset, setting.log.log_start_offset)
    assert [3, 2] * 3 == setting.log.index.bucket.entries().records.tolist()
    setting.store.check()


def test_append_of_nothing_is_nothing(setting: Setting) -> None:
    batches = parse(batch_of(1), None, small())
    before = setting.disk.image()
    setting.log.append(EncodedBatches(batches.positions[:1], *(np.empty(0, np.int64),) * 3, np.empty(0, np.uint8)))
    assert (0, before) == (setting.log.log_end_offset, setting.disk.image())


def test_the_effective_time_is_never_before_the_stamp(setting: Setting) -> None:
    setting.log.append(parse(batch_of(1), NOW_MS - 500, small()))
    setting.log.append(parse(batch_of(1), None, small()))
    setting.log.append(parse(batch_of(1), NOW_MS + 500, small()))
    assert [NOW_MS, NOW_MS, NOW_MS + 500] == setting.log.index.bucket.entries().deliver_after.tolist()


@pytest.mark.parametrize(
    ("error", "deliver_after", "count"), [(InvalidDeliverAfter, NOW_MS + 1_000_001, 2), (RecordTooLarge, None, 300)]
)
def test_what_cannot_be_taken_writes_nothing(
    setting: Setting, error: type[Exception], deliver_after: int | None, count: int
) -> None:
    before = setting.disk.image()
    with pytest.raises(error):
        setting.log.check_batches(parse(batch_of(1) + batch_of(count), deliver_after, small()))
    assert before == setting.disk.image()
    setting.log.append(parse(batch_of(1), NOW_MS + 1_000_000, small()))


def test_a_fifo_log_takes_no_times(setting: Setting) -> None:
    log = setting.store.create_topic("fifo", delayed=False).partition(0).log
    with pytest.raises(InvalidTopic, match="delayed=False"):
        log.check_batches(parse(batch_of(1), NOW_MS, small()))
    assert 0 == log.append(parse(batch_of(2), None, small()))
    log.check()


def test_a_full_bucket_is_sealed_into_a_run(setting: Setting) -> None:
    setting.send(8)
    assert (8, 0) == (sum(run.count for run in setting.log.index.runs), setting.log.index.bucket.count)
    assert [bucket_file(0, 8)] == setting.buckets()
    assert 8 == setting.log.checkpoints.current.recovery.offset
    setting.send(9)
    assert [bucket_file(0, 8), bucket_file(8, 16)] == setting.buckets()
    assert 1 == setting.log.index.bucket.count


def test_the_recovery_point_moves_with_the_bytes_too() -> None:
    setting = Setting(recovery_bytes=500, min_index_count_per_bucket=1_000)
    setting.send(2)
    assert 0 == setting.log.checkpoints.current.recovery.offset
    setting.send(1, size=600)
    assert 3 == setting.log.checkpoints.current.recovery.offset


def test_a_full_segment_is_rolled_and_its_runs_merged(setting: Setting) -> None:
    setting.send(40)
    first, second = setting.log.version.segments[:2]
    assert second.base_offset == setting.log.checkpoints.current.sealed[0].end_offset
    run = setting.log.index.runs[0]
    assert FOLDER / segment_file(0, DELIVER_AFTER_INDEX) == run.path
    assert (0, second.base_offset, first.size) == (
        run.coverage.first_offset, run.coverage.end_offset, run.coverage.end_position
    )  # fmt: skip
    assert all(int(name[:20]) >= second.base_offset for name in setting.buckets())
    setting.clock.advance(10_000)
    assert 40 == len(drained(setting.partition))


def test_a_roll_merges_the_runs_and_the_bucket(setting: Setting) -> None:
    setting.send(20)
    index = setting.log.index
    assert ([8, 8], 4) == ([run.count for run in index.runs], index.bucket.count)
    expected = Entries.concatenate([*(run.entries() for run in index.runs), index.bucket.entries()]).sorted()
    setting.log.roll()
    [run] = setting.log.index.runs
    assert list(expected) == list(run.entries())
    setting.store.check()


def test_a_roll_over_a_rotten_run_is_refused_and_leaves_the_log_as_it_was(setting: Setting) -> None:
    setting.send(9)
    [run] = setting.log.index.runs
    data = bytearray(read_file(setting.disk, run.path))
    rotten = Run(MappedSnapshot(run.path, np.frombuffer(data, np.uint8)))
    data[int(run.directory.position[1])] ^= 1
    setting.log.versions.swap(setting.log.version, delayed_index=setting.log.index.replacing([run], [rotten]))
    with pytest.raises(CorruptFile, match="chunk 1 fails its checksum"):
        setting.log.roll()
    assert [] == [name for name in setting.disk.names(FOLDER) if DELIVER_AFTER_INDEX in name]
    setting.log.versions.swap(setting.log.version, delayed_index=setting.log.index.replacing([rotten], [run]))
    setting.send()
    setting.log.roll()
    assert [10] == [run.count for run in setting.log.index.runs]
    setting.store.check()


def test_rolling_by_hand(setting: Setting) -> None:
    setting.log.roll()
    assert [segment_file(0, LOG)] == setting.names()
    setting.send()
    setting.log.roll()
    setting.log.roll()
    assert [segment_file(0, LOG), segment_file(1, LOG)] == setting.names()
    setting.store.check()


def test_a_roll_closes_the_file_once_nobody_reads_it(setting: Setting) -> None:
    closed: list[bool] = []
    setting.send()
    reader = setting.log.version.readable()
    file = reader.segments[-1]._file
    setting.log.roll()
    view = reader.segments[-1].view(0, reader.end.position)
    assert reader.end.position == len(view[0][1])
    closed.append(file._closed)
    del reader, view
    closed.append(file._closed)
    assert [False, True] == closed


def test_a_roll_without_room_leaves_the_log_as_it_was(setting: Setting) -> None:
    setting.send(5)
    for operation, suffix in (
        ("append", DELIVER_AFTER_INDEX + ".tmp"),
        ("create", segment_file(5, LOG)),
        ("append", "checkpoints.tmp"),
    ):
        setting.calls.fail(operation, suffix, OSError(errno.ENOSPC, "full"))
        with pytest.raises(StorageFull):
            setting.log.roll()
        setting.store.check()
        setting.clock.advance(10_000)
        assert 5 == len(drained(setting.partition))
        again = open_small(killed(setting.disk), setting.clock)
        again.check()
        assert 5 == again.topic("t").partition(0).log_end_offset
    setting.send()
    setting.log.roll()
    setting.store.check()
    disk = killed(setting.disk)
    again = open_small(disk, setting.clock)
    again.check()
    assert 6 == again.topic("t").partition(0).log_end_offset
    assert [segment_file(0, LOG), segment_file(6, LOG)] == [name for name in disk.names(FOLDER) if LOG in name]


def test_an_append_does_not_fail_for_want_of_a_checkpoint(setting: Setting) -> None:
    setting.send(7)
    setting.calls.fail("append", "checkpoints.tmp", OSError(errno.ENOSPC, "full"))
    setting.send()
    assert (8, 0) == (setting.log.log_end_offset, setting.log.checkpoints.current.recovery.offset)
    again = open_small(killed(setting.disk), setting.clock)
    again.check()
    assert 8 == again.topic("t").partition(0).log_end_offset
    setting.log.checkpoint()
    assert 8 == setting.log.checkpoints.current.recovery.offset
    setting.store.check()


def test_a_lease_is_written_ahead_and_only_when_it_ends(setting: Setting) -> None:
    setting.send()
    writes = setting.calls.count("append", "checkpoints.tmp")
    assert FrontierLease() == durable_frontier(setting.disk, setting.log)
    assert 1 == setting.partition.high_watermark()
    lease = FrontierLease(used_ms=NOW_MS, lease_ms=NOW_MS + 1_000)
    assert lease == durable_frontier(setting.disk, setting.log)
    setting.send(3)
    setting.clock.advance(1_000)
    assert 2 == setting.partition.high_watermark()
    assert lease == durable_frontier(setting.disk, setting.log)
    assert 1 == setting.calls.count("append", f"{FRONTIER}.tmp")
    setting.clock.advance(1_000)
    assert 3 == setting.partition.high_watermark()
    assert NOW_MS + 3_000 == durable_frontier(setting.disk, setting.log).lease_ms
    assert (2, writes) == tuple(setting.calls.count("append", f"{name}.tmp") for name in (FRONTIER, "checkpoints"))


def test_closing_makes_the_end_durable_and_takes_the_lease_back(setting: Setting) -> None:
    setting.send(3)
    setting.partition.high_watermark()
    setting.clock.advance(500)
    setting.partition.high_watermark()
    setting.store.close()
    setting.log.close()
    checkpoints = open_small(killed(setting.disk), setting.clock).topic("t").partition(0).log.checkpoints.current
    assert FrontierLease(used_ms=NOW_MS + 500, lease_ms=NOW_MS + 500) == checkpoints.frontier
    assert 3 == checkpoints.recovery.offset
    assert [bucket_file(0, 3)] == setting.buckets()


def test_always_syncs_the_log_before_what_speaks_of_it() -> None:
    setting = Setting(durability=ALWAYS)
    setting.send(7)
    order: list[str] = []
    fail = setting.calls.failing

    def noted(operation: str, path: object) -> OSError | int | None:
        order.append(f"{operation} {getattr(path, 'suffix', '')}")
        return fail(operation, path)  # type: ignore[arg-type]

    setting.calls.failing = noted
    setting.send()
    assert order.index("sync .log") < order.index("create .tmp")


def test_check_sees_an_entry_that_is_in_no_run(setting: Setting) -> None:
    setting.send(3)
    setting.log.versions.swap(setting.log.version, delayed_index=setting.log.index.replacing((), (), MutableBucket()))
    with pytest.raises(AssertionError):
        setting.log.check()


def test_check_sees_a_recovery_point_beyond_the_end(setting: Setting) -> None:
    setting.send(3)
    recovery = setting.log.checkpoints.current.recovery
    setting.log.checkpoints.update(recovery=type(recovery)(segment=0, position=0, offset=4))
    with pytest.raises(AssertionError):
        setting.log.check()
