from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import CorruptFile, OffsetOutOfRange
from afterlog.base.names import LOG, segment_file
from afterlog.fetch import decoder, timeline
from afterlog.fetch.agenda import OVERLOOKED_S
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import Partition
from afterlog.index.entries import Key
from afterlog.records.batch import Record, encode_batch
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, SteppedClock, drained, open_small


class Setting:
    """A partition to cancel in: `append` puts a batch of values into it."""

    def __init__(self, **settings: object) -> None:
        self.disk = SimulatedFiles()
        self.clock = SteppedClock(NOW_MS)
        self.store: Store = open_small(self.disk, self.clock, **settings)
        self.partition: Partition = self.store.create_topic("t", retention_ms=1).partition(0)

    def append(self, after_ms: int, *values: bytes, codec: str = "none") -> int:
        records = [Record(value=value, key=value[:1], timestamp=NOW_MS) for value in values]
        return self.partition.append(encode_batch(records, codec), deliver_after=NOW_MS + after_ms)  # type: ignore[arg-type]

    def cancel(self, *offsets: int) -> None:
        assert not self.partition.cancel(np.array(offsets)).any()
        self.store.check()


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


def shown(columns: Columns) -> list[tuple[int, int, bytes | None]]:
    return [(one.delivery_offset, one.offset, one.value) for one in columns.to_messages()]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_single_records_of_a_batch(setting: Setting, codec: str) -> None:
    """They are cut out of columns; a batch comes whole, with the offsets told."""
    setting.append(5, *(b"%d" % row * 40 for row in range(4)), codec=codec)
    setting.append(5, b"4")
    setting.cancel(0, 2, 4)
    setting.clock.advance(5)
    columns, behind = setting.partition.columns(0, 100, 1 << 20)
    assert [(1, 1, b"1" * 40), (3, 3, b"3" * 40)] == shown(columns)
    assert 6 == behind == setting.partition.high_watermark()
    for position, expected in ((1, [1]), (2, [3]), (3, [3]), (4, []), (6, [])):
        columns, behind = setting.partition.columns(position, 1, 1 << 20)
        assert (expected, expected[-1] + 1 if expected == [1] else 6) == (columns.delivery_offset.tolist(), behind)
    result = setting.partition.fetch(0)
    assert (1, [0], [0, 2], 6) == (
        len(result.batches),
        result.delivery_offsets.tolist(),
        result.cancelled.tolist(),
        result.next_position,
    )
    assert [] == setting.partition.fetch(4).batches == setting.partition.fetch(6).batches
    assert 6 == setting.partition.fetch(4).next_position


def test_readers_step_over_what_is_hidden(setting: Setting) -> None:
    """However long it is, a poll that finds something due does not come back empty, nor wait."""
    with patch.object(timeline, "BLOCK_ENTRIES", 7), patch.object(timeline, "BLOCK_ENTRIES_MAX", 7):
        for number in range(100):
            setting.append(number, b"%d" % number)
        setting.cancel(*range(1, 99))
        setting.clock.advance(200)
        for max_records in (1, 2, 1_000):
            assert [(0, 0, b"0")] == shown(setting.partition.columns(0, max_records, 1)[0])[:1]
            columns, behind = setting.partition.columns(1, max_records, 1)
            assert ([(100, 99, b"99")], 101) == (shown(columns), behind)
            result = setting.partition.fetch(1, max_records=max_records, max_wait_ms=1_000)
            assert ([100], 101) == (result.delivery_offsets.tolist(), result.next_position)
        with setting.store.consumer("t", group="g") as consumer:
            assert [[b"0"], [b"99"]] == [[message.value for message in consumer.poll(2)] for _ in range(2)]
            assert ({0: 101}, 0) == (consumer.positions(), consumer.lag())
    assert [] == setting.clock.waits


def test_who_waits_waits_for_what_is_not_hidden(setting: Setting) -> None:
    for after_ms in (0, 10, 20, 30):
        setting.append(after_ms, b"%d" % after_ms)
    setting.cancel(1, 2)
    setting.clock.steps = [lambda: setting.clock.advance(20), lambda: setting.clock.advance(10)] * 2
    with setting.store.consumer("t", group="g") as consumer:
        assert [b"0"] == [message.value for message in consumer.poll()]
        assert [b"30"] == [message.value for message in consumer.poll(timeout=5.0)]
        assert [(NOW_MS + 30, 5.0)] * 2 == setting.clock.waits
        setting.append(40, b"40")
        setting.cancel(5)
        assert [] == consumer.poll(timeout=OVERLOOKED_S)
        assert ({0: 7}, 0) == (consumer.positions(), consumer.lag())
    result = setting.partition.fetch(5, max_wait_ms=5)
    assert (0, 7, 7) == (len(result.batches), result.next_position, result.high_watermark)


def test_the_schedule_without_what_is_cancelled(setting: Setting) -> None:
    for after_ms in (10, 20, 20, 30):
        setting.append(after_ms, b"%d" % after_ms)
    partition, edges = setting.partition, NOW_MS + np.array([0, 15, 25, 1_000])
    setting.cancel(0, 1)
    assert (2, NOW_MS + 20) == (partition.pending(), partition.next_due())
    assert [0, 1, 1] == partition.due_histogram(edges).tolist()
    assert [False, False, True, True, False] == [partition.is_pending(offset) for offset in range(5)]
    setting.clock.advance(15)
    assert (1, 2, NOW_MS + 20) == (partition.high_watermark(), partition.pending(), partition.next_due())
    setting.cancel(2, 3)
    assert (0, None) == (partition.pending(), partition.next_due())
    assert [0, 0, 0] == partition.due_histogram(edges).tolist()
    setting.clock.advance(15)
    assert (6, 0) == (partition.high_watermark(), partition.pending())
    assert [] == drained(partition)


def test_what_is_scheduled(setting: Setting) -> None:
    setting.append(0, b"due")
    setting.append(30, b"c3", b"x3")
    setting.append(10, b"a1", b"b1", b"a2")
    setting.append(20, b"a" * 900)
    setting.cancel(4, 1)
    with patch.object(decoder, "PIECE_BYTES", 100), patch.object(timeline, "PENDING_ENTRIES", 1):
        for limit in range(6):
            found = setting.partition.scheduled(limit)
            assert [b"a1", b"a2", b"a" * 900, b"x3"][:limit] == [one.value for one in found.to_messages()]
            of_key = setting.partition.scheduled(limit, b"a")
            assert [b"a1", b"a2", b"a" * 900][:limit] == [one.value for one in of_key.to_messages()]
    assert [] == shown(setting.partition.scheduled(10, b"ab")) == shown(setting.partition.scheduled(10, b""))
    assert [b"due"] == drained(setting.partition)


def test_records_by_their_offsets(setting: Setting) -> None:
    setting.append(30, b"a0", b"b1")
    setting.append(10, b"c2")
    setting.append(20, b"d3", b"e4", b"f5", codec="gzip")
    setting.partition.log.roll()
    setting.append(0, b"g6")
    offsets, ranks = np.array([6, 1, 4, 1, 0, 5]), np.array([9, 8, 7, 6, 5, 4])
    with patch.object(decoder, "PIECE_BYTES", 1):
        columns = setting.partition.records_at(offsets, ranks)
    assert [(9, 6, b"g6"), (8, 1, b"b1"), (7, 4, b"e4"), (6, 1, b"b1"), (5, 0, b"a0"), (4, 5, b"f5")] == shown(columns)
    assert [NOW_MS + due for due in (0, 30, 20, 30, 30, 20)] == columns.due.tolist()
    assert [] == shown(setting.partition.records_at(offsets[:0], ranks[:0]))
    for gone in (-1, 7):
        with pytest.raises(OffsetOutOfRange):
            setting.partition.records_at(np.array([0, gone]), ranks[:2])


def test_records_that_retention_takes(setting: Setting) -> None:
    setting.append(0, b"a")
    setting.partition.log.roll()
    setting.append(0, b"b")
    setting.clock.advance(10)
    assert [b"a", b"b"] == drained(setting.partition)
    visible = setting.partition.log.version.all_written()
    assert 1 == setting.partition.log.enforce_retention()
    with pytest.raises(OffsetOutOfRange):
        setting.partition.records_at(np.array([0]), np.array([0]))
    again = setting.store.topic("t").partition(0)
    assert visible.segments[0].base_offset == 0
    with pytest.raises(OffsetOutOfRange, match="offset 0"):
        again.records_at(np.array([1, 0]), np.array([1, 0]))


def test_records_in_a_file_that_is_gone() -> None:
    setting = Setting()
    setting.append(1_000, b"a")
    setting.partition.log.roll()
    setting.store.close()
    disk = SimulatedFiles(setting.disk.image())
    store = open_small(disk, setting.clock)
    disk.unlink(PATH / "t-0" / segment_file(0, LOG))
    with pytest.raises(CorruptFile):
        store.topic("t").partition(0).records_at(np.array([0]), np.array([0]))


def test_what_is_scheduled_behind_a_place(setting: Setting) -> None:
    setting.append(10, b"a0", b"b1", b"c2", b"d3")
    setting.append(5, b"e4")
    setting.append(10, b"f5")
    setting.append(20, b"g6")
    setting.cancel(2)
    scheduled, due = setting.partition.scheduled, NOW_MS + 10
    order = [(NOW_MS + 5, 4), (due, 0), (due, 1), (due, 3), (due, 5), (NOW_MS + 20, 6)]
    values = [b"e4", b"a0", b"b1", b"d3", b"f5", b"g6"]
    for limit in (1, 2, 6):
        for row, (ms, offset) in enumerate(order):
            found = scheduled(limit, behind=Key(ms, offset))
            assert values[row + 1 : row + 1 + limit] == [one.value for one in found.to_messages()]
    assert values[3:] == [one.value for one in scheduled(9, behind=Key(due, 2)).to_messages()]
    assert values[1:] == [one.value for one in scheduled(9, behind=Key(due - 1, INT64_MAX)).to_messages()]
    assert values[5:] == [one.value for one in scheduled(9, behind=Key(due, INT64_MAX)).to_messages()]
    assert values == [one.value for one in scheduled(9, behind=Key(0, -1)).to_messages()]
    assert [] == shown(scheduled(9, behind=Key(NOW_MS + 20, 6)))
    setting.clock.advance(10)
    assert [b"g6"] == [one.value for one in scheduled(9, behind=Key(0, -1)).to_messages()]


def test_what_is_scheduled_within_bytes(setting: Setting) -> None:
    for after_ms in range(1, 5):
        setting.append(after_ms, b"x" * 100)
    with patch.object(decoder, "PIECE_BYTES", 100), patch.object(timeline, "PENDING_ENTRIES", 1):
        assert [1, 1, 2, 4] == [len(setting.partition.scheduled(9, max_bytes=most)) for most in (1, 100, 101, 400)]
        assert 0 == len(setting.partition.scheduled(9, max_bytes=0))
