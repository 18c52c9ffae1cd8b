from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import OffsetOutOfRange
from afterlog.base.names import CHECKPOINTS, LOG, parse_segment_file
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtTime
from afterlog.log import retention
from afterlog.log.checkpoints import SealedMark
from afterlog.log.facts import NO_FILE
from afterlog.log.partition_log import PartitionLog
from afterlog.log.segment import ActiveSegment, SealedSegment
from afterlog.log.topic_settings import TopicSettings
from afterlog.offline.locked_store import OfflineStore
from afterlog.records.batch import Record, encode_batch
from afterlog.records.entry import AppendBrokerTimestamp
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, drained, durable_frontier, killed, open_small

FOLDER = PATH / "t-0"
FAR_MS = NOW_MS + 1_000_000_000


class Setting:
    """A topic whose segments are rolled by hand."""

    def __init__(self, *, delayed: bool = True, **settings: int) -> None:
        self.disk = SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.store: Store = open_small(self.disk, self.clock)
        self.partition: Partition = self.store.create_topic("t", delayed=delayed, **settings).partition(0)

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def segment(self, *delays_ms: int, size: int = 10) -> None:
        """A sealed segment with a record for each delay, whose value says so."""
        for delay_ms in delays_ms:
            value = b"%d" % delay_ms
            self.store.send(
                "t",
                value.ljust(size) if size > 10 else value,
                deliver_after=NOW_MS + delay_ms if self.log.delayed else None,
            )
        self.log.roll()
        self.store.check()

    def enforce(self, at_ms: int) -> int:
        self.clock.set(NOW_MS + at_ms)
        self.partition.high_watermark()
        removed = self.log.enforce_retention()
        self.store.check()
        return removed

    def bases(self) -> list[int]:
        segments = map(parse_segment_file, self.disk.names(FOLDER))
        return sorted({segment[0] for segment in segments if segment and segment[1] == LOG})

    def reopen(self) -> None:
        self.store.close()
        self.store = open_small(self.disk, self.clock)
        self.partition = self.store.topic("t").partition(0)
        self.store.check()

    def values(self, position: int | None = None) -> list[int]:
        return [int(value or b"") for value in drained(self.partition, position)]


def test_time_counts_from_the_effective_deliver_after() -> None:
    setting = Setting(retention_ms=1_000)
    setting.segment(0, 100)
    setting.segment(50)
    assert 0 == setting.enforce(1_049)
    assert 1 == setting.enforce(1_050)
    assert [0, 3] == setting.bases()
    assert [100] == setting.values()
    assert 1 == setting.enforce(1_100)
    assert ([3], []) == (setting.bases(), setting.values())
    assert (3, 3) == (setting.partition.log_start, setting.partition.log_start_offset)


def test_a_far_future_record_keeps_its_own_segment_and_no_other() -> None:
    setting = Setting(retention_ms=1_000)
    setting.segment(0, FAR_MS - NOW_MS)
    setting.segment(1, 2)
    setting.segment(3)
    assert 2 == setting.enforce(10_000)
    assert [0, 5] == setting.bases()
    assert (4, []) == (setting.partition.log_start, setting.values())
    assert 1 == setting.partition.pending()
    setting.clock.set(FAR_MS)
    assert [FAR_MS - NOW_MS] == setting.values()
    assert 5 == setting.partition.high_watermark()


def test_size_takes_what_was_due_longest_ago_first() -> None:
    setting = Setting(retention_bytes=500)
    setting.segment(20, size=300)
    setting.segment(10, size=300)
    setting.segment(30, size=300)
    assert 0 == setting.enforce(9)
    assert 1 == setting.enforce(10)
    assert [0, 2, 3] == setting.bases()
    assert 1 == setting.enforce(30)
    assert [2, 3] == setting.bases()
    assert [30] == setting.values()


def test_nothing_that_is_pending_goes_for_its_size() -> None:
    setting = Setting(retention_bytes=0)
    setting.segment(0, 1_000)
    assert 0 == setting.enforce(999)
    assert 1 == setting.enforce(1_000)


def test_the_active_segment_stays() -> None:
    setting = Setting(retention_ms=0, retention_bytes=0)
    setting.store.send("t", b"0")
    assert 0 == setting.enforce(1_000)
    assert [0] == setting.values()


def test_without_rules_all_stays() -> None:
    setting = Setting()
    setting.segment(0)
    assert 0 == setting.enforce(FAR_MS)


def test_it_is_applied_at_a_roll() -> None:
    setting = Setting(retention_ms=10)
    setting.segment(0)
    setting.clock.advance(100)
    setting.partition.high_watermark()
    setting.segment(100)
    assert [1, 2] == setting.bases()


def test_ranks_stay_after_removal_and_after_a_reopen() -> None:
    setting = Setting(retention_ms=1_000)
    setting.segment(0, 400, 800)
    setting.segment(100, 200)
    setting.segment(300, 900, 50_000)
    setting.clock.set(NOW_MS + 1_000)
    ranks = {
        message.offset: message.delivery_offset
        for message in setting.partition.columns(0, 100, 1 << 20)[0].to_messages()
    }
    assert 1 == setting.enforce(1_200)
    for _ in range(2):
        assert 3 == setting.partition.log_start
        messages = setting.partition.columns(3, 100, 1 << 20)[0].to_messages()
        assert [300, 400, 800, 900] == [int(message.value or b"") for message in messages]
        assert [ranks[message.offset] for message in messages] == [message.delivery_offset for message in messages]
        assert (7, 1, 8) == (
            setting.partition.high_watermark(), setting.partition.pending(), setting.partition.log_end_offset
        )  # fmt: skip
        setting.reopen()


def test_positions_below_the_log_start() -> None:
    setting = Setting(retention_ms=1_000)
    setting.segment(0, 201, 5_000)
    setting.segment(100, 200)
    assert 1 == setting.enforce(1_200)
    partition = setting.partition
    assert 3 == partition.log_start == partition.position(EARLIEST) == partition.position(AtTime(NOW_MS))
    assert 4 == partition.position(LATEST)
    for position in (0, 2, -1, AfterOffset(0), AfterOffset(3)):
        with pytest.raises(OffsetOutOfRange, match="retention removed") as raised:
            partition.fetch(position)
        assert setting.log.log_end_offset == raised.value.log_end
    assert [4, 5] == [partition.position(AfterOffset(offset)) for offset in (1, 2)]


def test_a_consumer_that_stayed_away_too_long() -> None:
    setting = Setting(retention_ms=1_000)
    setting.segment(0, 1)
    setting.segment(2, 5_000)
    setting.clock.advance(1)
    with setting.store.consumer("t", group="g") as consumer:
        assert 1 == len(consumer.poll(max_records=1))
    assert 1 == setting.enforce(2_000)
    with setting.store.consumer("t", group="g", auto_commit=False) as consumer:
        with pytest.raises(OffsetOutOfRange):
            consumer.poll()
        consumer.seek(EARLIEST)
        assert [b"2"] == [message.value for message in consumer.poll()]


def test_what_lies_below_the_log_start_in_other_segments_is_out_of_reach() -> None:
    setting = Setting(retention_ms=0)
    setting.segment(0, 2)
    setting.segment(1, 5_000)
    assert 1 == setting.enforce(2_000)
    assert 3 == setting.partition.log_start
    assert [] == setting.values()
    setting.reopen()
    assert (3, []) == (setting.partition.log_start, setting.values())


def test_a_crash_after_the_checkpoint_leaves_files_that_the_next_open_removes() -> None:
    setting = Setting(retention_ms=0)
    setting.segment(10)
    whole = setting.disk.image()
    setting.segment(11)
    assert 2 == setting.enforce(1_000)
    contents = {path: data for path, data in whole.contents.items() if "0" * 20 in path}
    after = setting.disk.image()
    disk = SimulatedFiles(type(after)(after.folders, {**contents, **after.contents}))
    assert len(setting.disk.names(FOLDER)) < len(disk.names(FOLDER))
    store = open_small(disk, setting.clock)
    store.check()
    assert setting.disk.names(FOLDER) == disk.names(FOLDER)


def test_a_crash_and_a_step_back_of_the_clock_leave_what_was_removed_removed() -> None:
    setting = Setting(retention_ms=0)
    setting.segment(100, 5_000)
    setting.segment(900)
    assert 0 == setting.enforce(100)
    assert 1 == setting.enforce(1_000)
    assert NOW_MS + 100 == durable_frontier(setting.disk, setting.log).used_ms
    clock = ManualClock(NOW_MS - 50)
    store = open_small(killed(setting.disk), clock)
    store.check()
    partition = store.topic("t").partition(0)
    assert 2 == partition.log_start == partition.high_watermark() == partition.fetch(EARLIEST).next_position
    assert 2 == partition.fetch(LATEST).next_position
    store.send("t", b"after what was delivered")
    clock.set(NOW_MS + 10_000)
    assert [b"after what was delivered", b"5000"] == drained(partition)


def test_fifo_removes_a_prefix_of_append_order() -> None:
    setting = Setting(delayed=False, retention_ms=1_000)
    setting.segment(0)
    setting.clock.advance(500)
    setting.segment(1, 2)
    setting.clock.advance(499)
    setting.segment(3)
    assert 1 == setting.enforce(1_000)
    assert (1, 1) == (setting.partition.log_start, setting.partition.log_start_offset)
    assert [1, 2, 3] == setting.values()
    with pytest.raises(OffsetOutOfRange):
        setting.partition.fetch(0)
    setting.reopen()
    assert 2 == setting.enforce(10_000)
    assert (4, []) == (setting.partition.log_start, setting.values())


def test_fifo_by_size() -> None:
    setting = Setting(delayed=False, retention_bytes=500)
    for number in range(4):
        setting.segment(number, size=300)
    assert [3, 4] == setting.bases()


# --- The time of a FIFO topic


class Stamped(Setting):
    """A FIFO topic that keeps records for a second, in a store that stamps them, or does not."""

    def __init__(self, *, stamps: bool = True) -> None:
        super().__init__(delayed=False, retention_ms=1_000)
        self.open(stamps)

    def open(self, stamps: bool) -> None:
        self.store.close()
        interceptors = (AppendBrokerTimestamp(),) if stamps else ()
        settings = {"broker_entry_metadata_interceptors": interceptors, "segment_bytes": 1 << 20}
        self.store = open_small(self.disk, self.clock, **settings)
        self.partition = self.store.topic("t").partition(0)

    def append(self, *said_ms: int) -> None:
        """A sealed segment of records that say of themselves that they are so old."""
        for timestamp_ms in said_ms:
            self.partition.append(encode_batch([Record(value=b"0", timestamp=timestamp_ms)]))
        self.log.roll()

    @property
    def start(self) -> int:
        return self.partition.log_start_offset


def test_the_append_counts_where_it_is_stamped_and_not_what_a_producer_says() -> None:
    """One whose clock is off neither has its records removed at once, nor kept for ever."""
    stamped, plain = Stamped(), Stamped(stamps=False)
    for setting in (stamped, plain):
        setting.append(NOW_MS - 5_000, NOW_MS - 6_000)
    assert (0, 2) == (stamped.start, plain.start)
    for setting in (stamped, plain):
        setting.append(NOW_MS + 5_000)
        setting.enforce(999)
    assert (0, 2) == (stamped.start, plain.start)
    for setting in (stamped, plain):
        setting.enforce(1_000)
    assert (3, 3) == (stamped.start, plain.start)


def test_a_segment_that_is_stamped_in_its_beginning_goes_by_what_its_records_say() -> None:
    setting = Stamped()
    setting.partition.append(encode_batch([Record(value=b"0", timestamp=NOW_MS - 300)]))
    setting.open(stamps=False)
    setting.append(NOW_MS - 200)
    assert (0, 0) == (setting.enforce(799), setting.start)
    assert (1, 2) == (setting.enforce(800), setting.start)


MICROSECONDS = NOW_MS * 1_000


def test_a_record_that_tells_of_a_time_to_come_stays_no_longer_than_one_of_now() -> None:
    setting = Setting(delayed=False, retention_ms=1_000, check_instants=False)
    for timestamp_ms in (MICROSECONDS, NOW_MS):
        setting.store.send_many("t", [b"0"], timestamps=np.array([timestamp_ms]))
        setting.log.roll()
        setting.clock.advance(100)
    assert [NOW_MS, NOW_MS] == [segment.mark.counted_from_ms for segment in setting.log.sealed]
    assert (0, 0) == (setting.enforce(999), setting.partition.log_start)
    assert (2, 2) == (setting.enforce(1_000), setting.partition.log_start)


def test_one_in_the_active_segment_keeps_it_from_being_sealed_no_longer() -> None:
    setting = Setting(delayed=False, retention_ms=1_000, check_instants=False)
    setting.store.send_many("t", [b"0"], timestamps=np.array([MICROSECONDS]))
    setting.clock.advance(999)
    assert not setting.log.is_ripe()
    setting.clock.advance(1)
    assert setting.log.is_ripe()
    aged = Setting(delayed=False, segment_ms=1_000, check_instants=False)
    aged.store.send_many("t", [b"0"], timestamps=np.array([MICROSECONDS]))
    assert not aged.log.is_ripe()
    aged.clock.advance(1_000)
    assert aged.log.is_ripe()


@pytest.mark.parametrize("opened", [True, False])
def test_those_that_were_sealed_when_any_record_was_believed_go_too(opened: bool) -> None:
    """A pass notes once, durably, that they were appended by then; it is not moved by later passes, nor appends."""
    setting = Setting(delayed=False, retention_ms=1_000, check_instants=False)
    setting.store.send_many("t", [b"0"], timestamps=np.array([MICROSECONDS]))
    setting.log.roll()
    setting.segment(1)
    believed = {each.base_offset: replace(each.mark, last_stamp_ms=-1) for each in setting.log.sealed}
    with setting.log._append_lock, setting.log._writing():
        setting.log._maintenance._mark(believed)
    setting.store.close()
    setting.clock.set(NOW_MS + 5_000)
    setting.store = open_small(setting.disk, setting.clock)
    if opened:
        setting.partition = setting.store.topic("t").partition(0)
    assert 0 == setting.store.enforce_retention()
    setting.partition = setting.store.topic("t").partition(0)
    assert [NOW_MS + 5_000, NOW_MS] == [each.mark.counted_from_ms for each in setting.log.sealed]
    setting.store.close()
    setting.clock.set(NOW_MS + 5_999)
    setting.store = open_small(setting.disk, setting.clock)
    setting.store.send("t", b"2")
    assert 0 == setting.store.enforce_retention()
    setting.clock.set(NOW_MS + 6_000)
    assert 2 == setting.store.enforce_retention()


def test_a_clock_that_was_set_back_makes_no_time_earlier_than_the_append() -> None:
    """What was appended in 2026 stays its time, though a machine begins in 2000, and is right again an hour later."""
    setting = Setting(delayed=False, retention_ms=1_000)
    setting.segment(0)
    setting.segment(1)
    setting.store.close()
    for now_ms in (10**12, NOW_MS + 999):
        setting.clock.set(now_ms)
        setting.store = open_small(setting.disk, setting.clock)
        assert 0 == setting.store.enforce_retention()
        setting.partition = setting.store.topic("t").partition(0)
        assert [NOW_MS, NOW_MS] == [each.mark.counted_from_ms for each in setting.log.sealed]
        setting.store.close()


def test_the_stamp_outlives_a_reopen_and_a_repair_of_the_checkpoints() -> None:
    setting = Stamped()
    setting.append(NOW_MS - 5_000)
    setting.append(NOW_MS - 5_000)
    setting.open(stamps=False)
    marks = [segment.mark for segment in setting.log.sealed]
    assert [NOW_MS, NOW_MS] == [mark.last_stamp_ms for mark in marks] == [mark.counted_from_ms for mark in marks]
    setting.store.close()
    setting.disk.unlink(FOLDER / CHECKPOINTS)
    with OfflineStore(PATH, setting.disk, setting.clock) as store:
        store.apply(store.plan())
    setting.store = open_small(setting.disk, setting.clock)
    setting.partition = setting.store.topic("t").partition(0)
    assert (0, 0) == (setting.enforce(999), setting.start)
    assert NOW_MS in [segment.mark.last_stamp_ms for segment in setting.log.sealed]


# --- The rule itself


def segments(*rows: tuple[int, int, int]) -> list[SealedSegment]:
    """(max_deliver_after, max_timestamp, log_bytes) of each."""
    return [
        SealedSegment(
            SimulatedFiles(),
            Path("/"),
            SealedMark(
                base_offset=base,
                end_offset=base + 1,
                log_bytes=size,
                max_deliver_after=due,
                max_timestamp=timestamp,
                index=NO_FILE,
                time_index=NO_FILE,
            ),
            4_096,
        )
        for base, (due, timestamp, size) in enumerate(rows)
    ]


def active(size: int) -> ActiveSegment:
    files = SimulatedFiles()
    segment = ActiveSegment.create(files, Path("/"), 99, 4_096)
    segment.append(np.zeros(size, np.uint8))
    return segment


@pytest.mark.parametrize(
    ("settings", "frontier_ms", "expected"),
    [
        (TopicSettings(), 100, []),
        (TopicSettings(retention_ms=0), 29, [1, 2]),
        (TopicSettings(retention_ms=0), 30, [1, 2, 0]),
        (TopicSettings(retention_ms=10), 30, [1, 2]),
        (TopicSettings(retention_ms=11), 30, [1]),
        (TopicSettings(retention_bytes=0), 15, [1]),
        (TopicSettings(retention_bytes=36), 100, []),
        (TopicSettings(retention_bytes=35), 100, [1]),
        (TopicSettings(retention_bytes=25), 100, [1, 2]),
        (TopicSettings(retention_ms=90, retention_bytes=35), 100, [1]),
        (TopicSettings(retention_ms=80, retention_bytes=35), 100, [1, 2]),
        (TopicSettings(retention_ms=0, delayed=False), 6, [0, 1]),
        (TopicSettings(retention_bytes=10, delayed=False), 0, [0, 1]),
    ],
)
def test_removable(settings: TopicSettings, frontier_ms: int, expected: list[int]) -> None:
    sealed = segments((30, 5, 20), (10, 6, 10), (20, 7, 5))
    removed = retention.removable(
        sealed,
        1,
        retention.Rule(settings.retention_ms, settings.retention_bytes),
        frontier_ms,
        delayed=settings.delayed,
    )
    assert expected == [segment.base_offset for segment in removed]


def test_a_topic_that_nobody_reads_is_trimmed_too() -> None:
    setting = Setting(retention_ms=1_000)
    setting.segment(0, 100)
    setting.clock.set(NOW_MS + 5_000)
    assert 1 == setting.store.enforce_retention()
    setting.store.check()
    clock = ManualClock(NOW_MS)
    store = open_small(killed(setting.disk), clock)
    store.send("t", b"after what was removed")
    clock.set(NOW_MS + 5_000)
    assert [b"after what was removed"] == drained(store.topic("t").partition(0))
