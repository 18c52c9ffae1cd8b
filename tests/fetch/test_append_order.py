from __future__ import annotations

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile, OffsetOutOfRange, StoreClosed
from afterlog.base.names import OFFSET_INDEX, segment_file
from afterlog.fetch import append_order
from afterlog.fetch.append_order import AppendOrder, next_base, segment_of
from afterlog.fetch.partition import Partition
from afterlog.log import segment
from afterlog.records.batch import Record, encode_batch
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, content, drained, flipped, open_small, with_file

TIMES = [5, 3, 9, 9, 1, 12, 12, 12, 20, 15] * 12
"""Record timestamps less NOW_MS, which need not rise; a batch is of 1, 2 or 3 records."""


def fill(partition: Partition) -> None:
    first, number = 0, 0
    while first < len(TIMES):
        records = TIMES[first : first + number % 3 + 1]
        partition.append(
            encode_batch([Record(value=b"%d" % (first + row), timestamp=NOW_MS + ms) for row, ms in enumerate(records)])
        )
        first, number = first + len(records), number + 1


class Setting:
    def __init__(self, **settings: object) -> None:
        self.disk = SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.store: Store = open_small(self.disk, self.clock, segment_bytes=4_096, **settings)
        self.partition = self.store.create_topic("t", delayed=False).partition(0)
        fill(self.partition)
        self.order = AppendOrder(self.partition.log)


@pytest.fixture(params=[0, 700, 1 << 20])
def setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """With the active segment read through a mapping, by pread, or partly so."""
    monkeypatch.setattr(segment, "REMAP_BYTES", request.param)
    monkeypatch.setattr(append_order, "BLOCK_ENTRIES", 5)
    return Setting()


def test_delivery_order_is_append_order(setting: Setting) -> None:
    assert 1 < len(setting.partition.log.version.segments)
    assert [b"%d" % number for number in range(len(TIMES))] == drained(setting.partition)
    assert (None, 0, len(TIMES)) == (
        setting.partition.next_due(), setting.partition.pending(), setting.partition.high_watermark()
    )  # fmt: skip


def test_any_position(setting: Setting) -> None:
    reading = setting.order.advance()
    for position in (*range(len(TIMES)), *reversed(range(len(TIMES)))):
        block = setting.order.read(position, reading)
        first, records = int(block.delivery_offset[0]), int(block.records[0])
        assert first <= position < first + records
        assert block.offset.tolist() == block.delivery_offset.tolist()
    for position in (len(TIMES), len(TIMES) + 5):
        assert 0 == len(setting.order.read(position, reading))


def test_following_the_end(setting: Setting) -> None:
    position = len(TIMES)
    for number in range(100):
        setting.store.send("t", b"%d" % number)
        result = setting.partition.fetch(position)
        assert (1, position + 1) == (len(result.batches), result.next_position)
        position = result.next_position


def test_a_reading_gets_nothing_behind_its_end(setting: Setting) -> None:
    older = setting.order.advance()
    setting.store.send("t", b"later")
    assert len(TIMES) == older.high_watermark == setting.order.standing().high_watermark - 1
    assert 0 == len(setting.order.read(len(TIMES), older))
    assert len(TIMES) == setting.order.read(len(TIMES) - 1, older).end_delivery_offset


def test_no_offset_index_is_fine_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """More batches in an interval of the index than a scan takes at a time."""
    monkeypatch.setattr(append_order, "BLOCK_ENTRIES", 2)
    setting = Setting(index_interval_bytes=1 << 20)
    assert [b"%d" % number for number in range(len(TIMES))] == drained(setting.partition)


def test_positions_by_time(setting: Setting) -> None:
    """The batch that holds the first record of the time or later, as far as it goes."""
    for ms in range(-1, 22):
        position = setting.order.position_at(NOW_MS + ms, setting.partition.log.version)
        exact = next((offset for offset, time in enumerate(TIMES) if time >= ms), len(TIMES))
        assert exact - 2 <= position <= exact
        if exact < len(TIMES):
            block = setting.order.read(position, setting.order.advance())
            assert position <= exact < position + int(block.records[0])


def test_positions_by_offset(setting: Setting) -> None:
    assert [1, 60, len(TIMES)] == [
        setting.order.position_after(offset, setting.partition.log.version) for offset in (0, 59, len(TIMES) - 1)
    ]
    for offset in (-1, len(TIMES)):
        with pytest.raises(OffsetOutOfRange):
            setting.order.position_after(offset, setting.partition.log.version)


def test_reopened(setting: Setting) -> None:
    setting.store.close()
    with pytest.raises(StoreClosed):
        setting.order.advance()
    store = open_small(setting.disk, setting.clock)
    assert [b"%d" % number for number in range(len(TIMES))] == drained(store.topic("t").partition(0))
    store.check()


def test_a_rotten_entry_is_told(setting: Setting) -> None:
    path = setting.partition.log.version.segments[0].path
    setting.store.close()
    disk = with_file(setting.disk, path, flipped(content(setting.disk, path), 1_000))
    order = AppendOrder(open_small(disk, setting.clock).topic("t").partition(0).log)
    with pytest.raises(CorruptFile) as raised:
        _ = [order.read(position, order.advance()) for position in range(len(TIMES))]
    assert path == raised.value.path
    assert 0 < (raised.value.position or 0) <= 1_000


def test_an_offset_index_that_points_too_far_is_told(setting: Setting) -> None:
    order, sealed = setting.order, setting.partition.log.version.segments[0]
    with pytest.raises(CorruptFile, match="no batch holds offset 0"):
        order._scan(sealed, sealed.sparse.offsets.floor(30), sealed.size, 0)


def test_a_gap_between_segments_is_stepped_over(setting: Setting) -> None:
    setting.partition.log.roll()
    setting.store.send("t", b"after the gap")
    reading = setting.order.advance()
    first, second, third, *_ = reading.version.segments
    without = reading._replace(version=reading.version._replace(sealed=(first, *reading.version.sealed[2:])))
    base = third.base_offset
    assert base == int(setting.order.read(second.base_offset, without).delivery_offset[0])
    assert base == next_base(without.visible.segments, second.base_offset)
    assert first is segment_of(without.visible.segments, second.base_offset)


def test_segment_of(setting: Setting) -> None:
    segments = setting.partition.log.version.segments
    for one, following in zip(segments, [*(later.base_offset for later in segments[1:]), len(TIMES)], strict=True):
        assert one is segment_of(segments, one.base_offset) is segment_of(segments, following - 1)


def test_without_the_offset_index(setting: Setting) -> None:
    setting.store.close()
    disk = with_file(setting.disk, PATH / "t-0" / segment_file(0, OFFSET_INDEX), None)
    store = open_small(disk, setting.clock)
    assert [b"%d" % number for number in range(len(TIMES))] == drained(store.topic("t").partition(0))
