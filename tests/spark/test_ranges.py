"""Planning and reading of ranges, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidOption, OffsetOutOfRange, TopicDeleted, UnknownTopic
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.positions import LATEST, AtBrokerTime, AtTime
from afterlog.spark import ranges as ranges_module
from afterlog.spark.options import ReadOptions
from afterlog.spark.ranges import DeliveryRange, Places, RangePlanner, cut, limited, read_range
from afterlog.spark.readable import Readable
from afterlog.spark.stream_offset import StreamOffset
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, open_small

RECORDS = 300


class Setting:
    """A store with two partitions of records that become due one a millisecond, in no order."""

    def __init__(self, **topic: object) -> None:
        self.disk, self.clock = SimulatedFiles(), ManualClock(NOW_MS)
        self.store: Store = open_small(self.disk, self.clock)
        self.store.create_topic("t", 2, **topic)  # type: ignore[arg-type]
        self.delayed = self.store.topic("t").settings.delayed
        for _ in range(2):
            self.send(RECORDS)

    def send(self, count: int) -> None:
        due = [self.clock.now_ms() + 1 + number * 7_919 % 1_009 for number in range(count)]
        self.store.send_many("t", [b"v%d" % ms for ms in due], deliver_after=due if self.delayed else None)

    def planner(self, **options: object) -> RangePlanner:
        return RangePlanner(self.source(**options), self.options(**options))

    def source(self, **options: object) -> Readable:
        return Readable(self.disk, self.clock, self.options(**options), None, Path())

    def options(self, **options: object) -> ReadOptions:
        asked = {"partition_bytes": 2_000, "settle_ms": 0, **options}
        return ReadOptions(location=PATH, topic="t", **asked)  # type: ignore[arg-type]

    def checkpoint(self) -> None:
        for partition in self.store.topic("t").partitions:
            partition.log.checkpoint()

    def read(self, ranges: list[DeliveryRange], rows: int = 7, **options: object) -> list[tuple[int, int, int]]:
        """(partition, delivery offset, offset)."""
        found = []
        for piece in ranges:
            for columns in read_range(
                self.source(**options), "t", piece, rows, fails=self.options(**options).fail_on_data_loss
            ):
                assert len(columns)
                found += list(
                    zip(*(column.tolist() for column in (columns.partition, columns.delivery_offset, columns.offset)),
                        strict=True)
                )  # fmt: skip
        return found

    def delivered(self) -> list[tuple[int, int, int]]:
        """The same of what the store delivers by now."""
        found = []
        for partition in self.store.topic("t").partitions:
            position, end = partition.log_start, partition.high_watermark()
            while position < end:
                columns, position = partition.columns(position, 1_000, 1 << 20)
                found += [
                    (partition.number, *row)
                    for row in zip(columns.delivery_offset.tolist(), columns.offset.tolist(), strict=True)
                ]
        return found


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    setting.clock.advance(500)
    setting.checkpoint()
    yield setting
    setting.store.close()


def test_what_is_due_in_ranges_that_follow_each_other(setting: Setting) -> None:
    ranges = setting.planner().batch()
    assert len(ranges) > 6
    for number in (0, 1):
        own = [piece for piece in ranges if piece.partition == number]
        assert own == ranges[number * len(own) :][: len(own)]
        assert 0 == own[0].start
        assert all(before.end == piece.start for before, piece in pairwise(own))
    assert setting.delivered() == setting.read(ranges)


def test_a_range_is_the_same_whatever_happens(setting: Setting) -> None:
    ranges = setting.planner().batch()
    expected = setting.delivered()
    setting.clock.advance(100)
    setting.send(200)
    for partition in setting.store.topic("t").partitions:
        partition.log.roll()
        partition.log.merge_buckets()
    assert expected == setting.read(ranges)


def test_where_it_begins_and_ends(setting: Setting) -> None:
    whole = setting.delivered()
    high_watermarks = [sum(row[0] == number for row in whole) for number in (0, 1)]
    assert [row for row in whole if 10 <= row[1] < 50] == setting.read(setting.planner(start=10, end=50).batch())
    assert [] == setting.planner(start=LATEST).batch()
    assert [] == setting.planner(start=20, end=20).batch()
    assert [] == setting.planner(start=30, end=20).batch()
    with pytest.raises(OffsetOutOfRange):
        setting.planner(start=RECORDS * 2).batch()
    [first, second] = setting.planner(
        start=AtTime(NOW_MS + 200), end=AtTime(NOW_MS + 300), partition_bytes=1 << 20
    ).batch()
    for piece, partition in zip((first, second), setting.store.topic("t").partitions, strict=True):
        assert (partition.position(AtTime(NOW_MS + 200)), partition.position(AtTime(NOW_MS + 300))) == (
            piece.start, piece.end,
        )  # fmt: skip
    appended = setting.planner(start=AtBrokerTime(NOW_MS), partition_bytes=1 << 20).batch()
    assert high_watermarks == [piece.end - piece.start for piece in appended]
    assert [] == setting.planner(start=AtBrokerTime(setting.clock.now_ms() + 1)).batch()
    late = setting.planner(start=AtTime(NOW_MS + 10_000)).batch()
    assert [] == late
    assert high_watermarks == list(setting.planner().latest().values())


@pytest.mark.parametrize("due_only", [True, False])
def test_places_are_those_of_the_records(setting: Setting, due_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges_module, "PLACES_ENTRIES", 5)
    for number in (0, 1):
        setting.store.send_many("t", [b"x"] * 50, deliver_after=NOW_MS + 700, partition=number)  # one entry
        setting.store.cancel_many("t", number, np.arange(RECORDS, 2 * RECORDS + 50, 3))
    setting.clock.advance(250)
    setting.checkpoint()
    planned = setting.planner(due_only=due_only).batch()
    names = ("topic", "partition", "offset", "delivery_offset", "due")

    def rows(columns: tuple[str, ...]) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for piece in planned:
            for part in read_range(setting.source(due_only=due_only), "t", piece, 7, columns=columns):
                assert len(part)
                assert isinstance(part, Places if columns == names else Columns)
                found += zip(*(getattr(part, name).tolist() for name in names[1:]), strict=True)
        return found

    expected = rows((*names, "value"))
    assert len(expected) > 200
    assert expected == rows(names)
    if due_only:
        assert setting.delivered() == [(number, delivered, offset) for number, offset, delivered, _ in expected]


def test_each_partition_where_it_was_told(setting: Setting) -> None:
    planner = setting.planner(start={0: 10, 1: LATEST}, end={0: 50, 1: LATEST})
    assert [row for row in setting.delivered() if row[0] == 0 and 10 <= row[1] < 50] == setting.read(planner.batch())
    for start in ({0: 1}, {0: 1, 1: 1, 2: 1}, {}):
        with pytest.raises(InvalidOption, match="a position for each partition of t is needed, which are 0 to 1"):
            setting.planner(start=start).batch()
    latest = setting.planner().latest()
    assert {"0": 7, "1": latest["1"]} == setting.planner(start={0: 7, 1: LATEST}).initial().positions


def test_so_many_partitions_of_spark(setting: Setting) -> None:
    usual = setting.planner(partition_bytes=1 << 20).batch()
    for least in (1, 2, 9, 10_000):
        ranges = setting.planner(partition_bytes=1 << 20, min_partitions=least).batch()
        assert len(ranges) >= min(least - 1, len(setting.delivered())) >= len(usual) - 2
        assert setting.delivered() == setting.read(ranges)


def test_pending_records_come_as_they_were_when_it_was_planned(setting: Setting) -> None:
    asked = {"due_only": False}
    ranges = setting.planner(**asked).batch()
    setting.send(100)
    setting.checkpoint()
    rows = setting.read(ranges, **asked)
    assert 2 * RECORDS == len(rows) == len(set(rows))
    assert {RECORDS - 1} == {max(row[2] for row in rows if row[0] == number) for number in (0, 1)}
    setting.clock.advance(2_000)
    order = [(number, offset) for number, _, offset in setting.delivered() if offset < RECORDS]
    assert order == [(number, offset) for number, _, offset in rows]


def test_pending_records_between_two_times(setting: Setting) -> None:
    asked = {"due_only": False, "start": AtTime(NOW_MS + 700), "end": AtTime(NOW_MS + 800), "partition_bytes": 300}
    rows = setting.read(setting.planner(**asked).batch(), **asked)
    setting.clock.advance(2_000)
    columns = [setting.store.topic("t").partition(number).columns(0, 1_000, 1 << 20)[0] for number in (0, 1)]
    expected = [
        (number, offset)
        for number in (0, 1)
        for due, offset in zip(columns[number].due.tolist(), columns[number].offset.tolist(), strict=True)
        if NOW_MS + 700 <= due < NOW_MS + 800
    ]
    assert expected == [(number, offset) for number, _, offset in rows]
    assert expected


def test_cancelled_records_do_not_come_and_shift_nothing(setting: Setting) -> None:
    for partition in setting.store.topic("t").partitions:
        partition.log.cancel(np.arange(0, RECORDS, 3))
    setting.clock.advance(2_000)
    setting.checkpoint()
    ranges = setting.planner().batch()
    rows = setting.read(ranges)
    assert setting.delivered() == rows
    assert len(rows) < 2 * RECORDS
    assert 2 * RECORDS < sum(piece.end - piece.start for piece in ranges)  # control records have places, too


def test_retention_takes_a_range_away() -> None:
    setting = Setting(retention_ms=100)
    setting.clock.advance(1_500)
    setting.checkpoint()
    ranges = setting.planner().batch()
    for partition in setting.store.topic("t").partitions:
        partition.log.roll()
    with pytest.raises(OffsetOutOfRange):
        setting.read(ranges)
    assert setting.delivered() == setting.read(setting.planner().batch())
    setting.store.close()


def test_an_older_copy_of_the_store_is_not_read_as_if_nothing_were_there(setting: Setting) -> None:
    [piece, *_] = setting.planner(partition_bytes=1 << 20).batch()
    beyond = DeliveryRange(partition=0, settings=piece.settings, start=0, end=RECORDS + 1)
    with pytest.raises(OffsetOutOfRange):
        setting.read([beyond])


def test_a_fifo_topic() -> None:
    setting = Setting(delayed=False)
    setting.checkpoint()
    for options in ({}, {"due_only": False}):
        assert setting.delivered() == setting.read(setting.planner(**options).batch())
    setting.store.close()


def test_what_is_not_there(setting: Setting) -> None:
    with pytest.raises(UnknownTopic):
        planned(setting, ReadOptions(location=PATH, topic="u"))
    with pytest.raises(FileNotFoundError):
        planned(setting, ReadOptions(location=Path("/nowhere"), topic="t"))


def planned(setting: Setting, options: ReadOptions) -> RangePlanner:
    return RangePlanner(Readable(setting.disk, setting.clock, options, None, Path()), options)


class TestStreams:
    def test_micro_batches_make_the_whole(self, setting: Setting) -> None:
        planner, rows = setting.planner(), []
        position = planner.initial()
        assert {"0": 0, "1": 0} == position.positions
        while (end := planner.advanced(position, None, 50)) != position:
            ahead = sum(end.positions.values()) - sum(position.positions.values())
            assert 50 <= ahead <= 51 or end.positions == planner.latest()
            rows += setting.read(planner.between(position, end))
            position = end
        assert setting.delivered() == sorted(rows)
        setting.clock.advance(100)
        assert all(behind > position.positions[name] for name, behind in setting.planner().latest().items())

    def test_it_begins_where_it_was_told(self, setting: Setting) -> None:
        assert {"0": 20, "1": 20} == setting.planner(start=20).initial().positions
        assert setting.planner().latest() == setting.planner(start=LATEST).initial().positions

    def test_not_beyond_what_was_available_when_it_began(self, setting: Setting) -> None:
        until = setting.planner().latest()
        setting.clock.advance(100)
        planner = setting.planner()
        assert until == planner.advanced(planner.initial(), until, None).positions

    @pytest.mark.parametrize("delayed", [True, False])
    def test_an_offset_says_the_same_where_nothing_moved(self, delayed: bool) -> None:
        setting = Setting(delayed=delayed)
        setting.clock.advance(500)
        setting.checkpoint()
        end = setting.planner().advanced(setting.planner().initial(), None, None)
        assert {"0", "1"} == end.seen.keys()
        assert end.topic_id == setting.store.topic("t").settings.topic_id
        again = StreamOffset.of_row(json.loads(json.dumps(end.to_row())))
        setting.store.purge("t")  # what was seen lies before the log start now, and cannot be looked up
        setting.checkpoint()
        assert end == again == setting.planner().advanced(again, None, None)
        setting.store.close()

    def test_a_checkpoint_of_before(self, setting: Setting) -> None:
        """A position for each partition, and no more."""
        before = StreamOffset.of_row({"0": 10, "1": 20})
        end = setting.planner().advanced(before, None, None)
        rows = setting.read(setting.planner().between(before, end))
        assert [row for row in setting.delivered() if row[1] >= (10, 20)[row[0]]] == rows
        for other in ({"0": 0, "1": 0, "2": 0}, {"a": 1}, {"0": None}, {"positions": 3}):
            with pytest.raises(InvalidOption, match="checkpoint"):
                setting.planner().advanced(StreamOffset.of_row(other), None, None)

    def test_partitions_that_came_since_are_read_from_their_beginning(self, setting: Setting) -> None:
        position = setting.planner().advanced(setting.planner().initial(), None, None)
        setting.store.alter_topic("t", partitions=4)
        setting.store.send_many("t", [b"new"] * 30, keys=[b"%d" % number for number in range(30)])
        setting.clock.advance(100)
        setting.checkpoint()
        end = setting.planner().advanced(position, None, None)
        rows = setting.read(setting.planner().between(position, end))
        mine = position.positions
        assert [row for row in setting.delivered() if row[1] >= mine.get(str(row[0]), 0)] == rows
        assert {0, 1, 2, 3} == {row[0] for row in rows}


class TestWhatIsLost:
    """It is an error that names the way on, and a warning where somebody has taken that."""

    def stream(self, setting: Setting, start: StreamOffset, **options: object) -> list[tuple[int, int, int]]:
        """What one micro-batch reads."""
        end = setting.planner(**options).advanced(start, None, None)
        return setting.read(setting.planner(**options).between(start, end), **options)

    def fails(self, setting: Setting, start: StreamOffset, kind: type[Exception], told: str) -> None:
        with pytest.raises(kind, match=f"{told}.*failOnDataLoss to false"):
            self.stream(setting, start)

    def read_to_the_end(self, setting: Setting) -> StreamOffset:
        setting.checkpoint()
        return setting.planner().advanced(setting.planner().initial(), None, None)

    @pytest.mark.parametrize("delayed", [True, False])
    def test_a_topic_that_was_deleted_and_made_again(self, delayed: bool) -> None:
        setting = Setting(delayed=delayed)
        setting.clock.advance(2_000)
        start = self.read_to_the_end(setting)
        setting.store.delete_topic("t")
        setting.store.create_topic("t", 2, delayed=delayed)
        for _ in range(2):
            setting.send(RECORDS + 50)
        setting.clock.advance(2_000)
        setting.checkpoint()
        self.fails(setting, start, TopicDeleted, "deleted since the checkpoint")
        rows = self.stream(setting, start, fail_on_data_loss=False)
        assert setting.delivered() == rows
        assert 2 * (RECORDS + 50) == len(rows)
        setting.store.close()

    @pytest.mark.parametrize("delayed", [True, False])
    @pytest.mark.parametrize("sent", [0, 20, RECORDS])
    def test_a_store_that_was_restored_from_an_older_backup(self, delayed: bool, sent: int) -> None:
        """As long as the log was, and longer, and not: the stream is ahead, or other records lie before it."""
        setting = Setting(delayed=delayed)
        setting.clock.advance(2_000)
        setting.checkpoint()
        setting.store.sync()
        backup = SimulatedFiles(setting.disk.image())
        setting.send(100)
        setting.send(100)
        setting.clock.advance(2_000)
        start = self.read_to_the_end(setting)
        setting.store.close()
        setting.disk = backup
        setting.store = open_small(backup, setting.clock)
        setting.clock.advance(60_000)
        for _ in range(2):
            setting.send(sent)
        setting.clock.advance(2_000)
        setting.checkpoint()
        self.fails(setting, start, OffsetOutOfRange, "another history")
        assert [] == self.stream(setting, start, fail_on_data_loss=False)
        behind = setting.planner(fail_on_data_loss=False).advanced(start, None, None)
        assert setting.planner().latest() == behind.positions
        setting.send(10)
        setting.clock.advance(2_000)
        setting.checkpoint()
        assert 10 == len(self.stream(setting, behind))
        setting.store.close()

    @pytest.mark.parametrize("position", [25, 26, 100, 280, 300])
    def test_what_all_have_acked_is_stepped_over(self, position: int) -> None:
        """From wherever the stream had come to, before it went from behind what is not acked, or within, or behind."""
        setting = Setting(retention_by_subscriptions=True)
        setting.clock.advance(1_500)
        setting.checkpoint()
        start = setting.planner().advanced(setting.planner().initial(), {"0": position, "1": position}, None)
        assert {"0": position, "1": position} == start.positions
        with setting.store.subscribe("t", "s") as subscription:
            received = subscription.receive(3 * RECORDS)
            subscription.ack_many([message for message in received if message.delivery_offset != 25])
        setting.clock.advance(100_000_000)
        setting.store.enforce_retention()
        setting.store.clean("t")
        for partition in setting.store.topic("t").partitions:
            [row] = partition.log.index.acked.rows
            assert (26, RECORDS, RECORDS - 26) == (row.first, row.end, row.removed)
        rows = self.stream(setting, start)
        assert [(number, 25) for number in (0, 1) if position <= 25] == [row[:2] for row in rows]

    @pytest.mark.parametrize("taken", ["retention", "purge"])
    def test_what_was_taken_before_it_was_read(self, taken: str) -> None:
        setting = Setting(retention_ms=100 if taken == "retention" else None)
        start = setting.planner().initial()
        setting.clock.advance(1_500)
        if taken == "purge":
            setting.store.purge("t", 100)
        else:
            for partition in setting.store.topic("t").partitions:
                partition.log.roll()
            setting.store.enforce_retention()
        setting.checkpoint()
        self.fails(setting, start, OffsetOutOfRange, "retention or a purge took them")
        assert setting.delivered() == self.stream(setting, start, fail_on_data_loss=False)
        setting.store.close()

    def test_a_topic_that_goes_between_plan_and_read(self, setting: Setting) -> None:
        ranges = setting.planner().batch()
        setting.store.delete_topic("t")
        with pytest.raises(TopicDeleted, match="was deleted, or its store was"):
            setting.read(ranges)
        setting.store.create_topic("t", 2)
        for _ in range(2):
            setting.send(RECORDS)
        setting.clock.advance(2_000)
        setting.checkpoint()
        with pytest.raises(TopicDeleted, match="and made again"):
            setting.read(ranges)
        assert [] == setting.read(ranges, fail_on_data_loss=False)

    def test_a_batch_that_was_planned_on_a_topic_before(self, setting: Setting) -> None:
        start = setting.planner().initial()
        end = setting.planner().advanced(start, None, None)
        setting.store.delete_topic("t")
        setting.store.create_topic("t", 2)
        with pytest.raises(TopicDeleted, match="planned on was deleted"):
            setting.planner().between(start, end)
        assert [] == setting.planner(fail_on_data_loss=False).between(start, end)

    def test_a_clock_that_went_back_loses_nothing(self, setting: Setting) -> None:
        start = self.read_to_the_end(setting)
        setting.clock.step(-200)
        assert start == setting.planner().advanced(start, None, None)


@pytest.mark.parametrize(
    ("start", "end", "piece_bytes", "record_bytes", "expected"),
    [
        (5, 5, 10, 1, []),
        (7, 5, 10, 1, []),
        (0, 10, 100, 1, [0, 10]),
        (0, 10, 5, 1, [0, 5, 10]),
        (3, 13, 3, 1, [3, 6, 9, 13]),
        (0, 3, 1, 1_000, [0, 1, 2, 3]),
        (0, 3, 100, 0.0, [0, 3]),
    ],
)
def test_bounds(start: int, end: int, piece_bytes: int, record_bytes: float, expected: list[int]) -> None:
    assert expected == cut(start, end, piece_bytes, record_bytes)


@pytest.mark.parametrize(
    ("latest", "limit", "expected"),
    [
        ((10, 20), None, (10, 20)),
        ((10, 20), 30, (10, 20)),
        ((10, 20), 15, (5, 10)),
        ((10, 20), 1, (1, 1)),
        ((0, 20), 7, (0, 7)),
        ((-5, 20), 5, (0, 5)),
        ((0, 0), 5, (0, 0)),
    ],
)
def test_limits(latest: tuple[int, int], limit: int | None, expected: tuple[int, int]) -> None:
    names = ("0", "1")
    found = limited(dict.fromkeys(names, 0), dict(zip(names, latest, strict=True)), limit)
    assert dict(zip(names, expected, strict=True)) == found
