from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config, Durability
from afterlog.base.errors import (
    ClockBehind,
    CorruptFile,
    InvalidBatch,
    InvalidDeliverAfter,
    OffsetOutOfRange,
    PositionPending,
    RecordTooLarge,
    StoreClosed,
)
from afterlog.base.names import LOG
from afterlog.fetch import verified
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtTime
from afterlog.fetch.timeline import Reading
from afterlog.index.merge import Block
from afterlog.log import segment
from afterlog.records.batch import Record, decode_batch, encode_batch
from afterlog.store.store import Store, open_store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import (
    NOW_MS,
    PATH,
    Background,
    SteppedClock,
    content,
    drained,
    flipped,
    killed,
    open_small,
    small,
    with_file,
)

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Setting:
    def __init__(self, *, delayed: bool = True, **settings: object) -> None:
        self.disk = SimulatedFiles()
        self.clock = SteppedClock(NOW_MS)
        self.store: Store = open_small(self.disk, self.clock, **settings)
        self.partition: Partition = self.store.create_topic("t", delayed=delayed).partition(0)

    def send(self, value: bytes, after_ms: int | None = None) -> int:
        deliver_after = None if after_ms is None else NOW_MS + after_ms
        return self.store.send("t", value, deliver_after=deliver_after).offset


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.close()


def batch_of(*values: bytes, codec: str = "none") -> bytes:
    return encode_batch([Record(value=value, timestamp=NOW_MS) for value in values], codec)  # type: ignore[arg-type]


def values_in(batches: list[memoryview]) -> list[list[bytes | None]]:
    return [[record.value for record in decode_batch(batch, limit_bytes=1 << 20)] for batch in batches]


# --- Appending


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_comes_back_byte_for_byte(setting: Setting, codec: str) -> None:
    batch = batch_of(b"a" * 300, b"b" * 300, codec=codec)
    assert 0 == setting.partition.append(batch)
    assert 2 == setting.partition.append(bytearray(batch), deliver_after=NOW_MS + 5)
    assert 4 == setting.partition.append(memoryview(batch + batch), deliver_after=NOW_MS)
    setting.clock.advance(5)
    found = [bytes(view) for view in setting.partition.fetch(0).batches]
    for base, view in zip((0, 4, 6, 2), found, strict=True):
        assert base.to_bytes(8, "big") + batch[8:] == view


@pytest.mark.parametrize(
    ("error", "batch", "deliver_after"),
    [
        (InvalidBatch, b"", None),
        (InvalidBatch, batch_of(b"a")[:-1], None),
        (InvalidDeliverAfter, batch_of(b"a"), -1),
        (RecordTooLarge, batch_of(bytes(3_000)), None),
    ],
)
def test_a_bad_batch_is_refused(
    setting: Setting, error: type[Exception], batch: bytes, deliver_after: int | None
) -> None:
    before = setting.disk.image()
    with pytest.raises(error):
        setting.partition.append(batch, deliver_after=deliver_after)
    assert before == setting.disk.image()


# --- The schedule


def test_the_schedule_is_known_without_reading_a_record(setting: Setting) -> None:
    for after_ms in (10, 0, 20, 10):
        setting.send(b"", after_ms)
    partition = setting.partition
    assert (1, 3, NOW_MS + 10) == (partition.high_watermark(), partition.pending(), partition.next_due())
    assert [True, False, True, True, False] == [partition.is_pending(offset) for offset in range(5)]
    edges = NOW_MS + np.array([0, 1, 10, 11, 20])
    assert [1, 0, 2, 0] == partition.due_histogram(edges).tolist()
    setting.clock.advance(10)
    assert (3, 1, NOW_MS + 20) == (partition.high_watermark(), partition.pending(), partition.next_due())
    assert [1, 0, 2, 0] == partition.due_histogram(edges).tolist()
    setting.clock.advance(10)
    assert (4, 0, None) == (partition.high_watermark(), partition.pending(), partition.next_due())
    assert (0, 4, 0) == (partition.log_start_offset, partition.log_end_offset, partition.log_start)


@pytest.mark.parametrize("edges", [[], [1], [2, 1], [[1, 2]], 5])
def test_a_histogram_needs_edges(setting: Setting, edges: object) -> None:
    with pytest.raises(InvalidDeliverAfter):
        setting.partition.due_histogram(np.array(edges))


def test_a_clock_far_behind_answers_questions_and_delivers_nothing(setting: Setting) -> None:
    setting.send(b"a", 0)
    setting.send(b"b", 1_000)
    assert 1 == setting.partition.high_watermark()
    setting.store.close()
    store = open_small(setting.disk, SteppedClock(NOW_MS - 4_000_000))
    partition = store.topic("t").partition(0)
    assert (1, 1, NOW_MS + 1_000) == (partition.high_watermark(), partition.pending(), partition.next_due())
    assert [False, True] == [partition.is_pending(offset) for offset in range(2)]
    for call in (lambda: partition.fetch(0), lambda: partition.columns(0, 1, 1)):
        with pytest.raises(ClockBehind):
            call()
    store.send("t", b"stamped at the frontier")
    assert 3 == partition.log_end_offset


# --- Positions


def test_positions(setting: Setting) -> None:
    for after_ms in (10, 0, 20):
        setting.send(b"", after_ms)
    partition = setting.partition
    for position, expected in (
        (0, 0), (3, 3), (np.int64(2), 2), (EARLIEST, 0), (LATEST, 1), (AtTime(NOW_MS + 1), 1), (AtTime(0), 0),
        (AtTime(NOW_MS + 99), 3), (AfterOffset(0), 2), (AfterOffset(1), 1),
    ):  # fmt: skip
        assert expected == partition.position(position)  # type: ignore[arg-type]
    for position in (-1, 4, AfterOffset(3), AfterOffset(-1)):
        with pytest.raises(OffsetOutOfRange) as raised:
            partition.position(position)
        assert 3 == raised.value.log_end
    for wrong in (1.0, "0", None):
        with pytest.raises(TypeError, match="a position is"):
            partition.position(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidDeliverAfter):
        partition.position(AtTime(-1))


class TestBeginning:
    """Where a reader may be sent: nothing that is sent later, and due earlier, may be skipped."""

    def test_no_rank_among_what_is_pending(self, setting: Setting) -> None:
        setting.send(b"due")
        pending = setting.send(b"pending", after_ms=60_000)
        for position in (2, np.int64(2), AfterOffset(pending)):
            with pytest.raises(PositionPending, match=r"seek to LATEST \(1 now\)") as caught:
                setting.partition.beginning(position)  # type: ignore[arg-type]
            assert (2, 0, 1) == (caught.value.position, caught.value.log_start, caught.value.log_end)
        assert [0, 1, 1, 1, 0] == [
            setting.partition.beginning(each) for each in (0, 1, LATEST, AfterOffset(0), EARLIEST)
        ]
        with pytest.raises(OffsetOutOfRange, match="beyond the log end"):
            setting.partition.beginning(3)
        setting.clock.advance(60_000)
        assert 2 == setting.partition.beginning(2)

    def test_an_instant_skips_only_what_is_due_before_it(self, setting: Setting) -> None:
        setting.send(b"pending", after_ms=60_000)
        position = setting.partition.beginning(AtTime(NOW_MS + 60_001))
        assert 1 == position
        setting.send(b"earlier", after_ms=1)
        setting.send(b"later", after_ms=60_002)
        setting.clock.advance(60_002)
        found = setting.partition.fetch(position)
        assert [[b"pending"], [b"later"]] == values_in(found.batches)

    def test_what_a_life_that_crashed_may_have_delivered_is_final(self, setting: Setting) -> None:
        setting.send(b"a")
        setting.send(b"b", after_ms=500)
        assert 1 == setting.partition.fetch(0).next_position
        setting.clock.advance(500)
        assert 2 == setting.partition.fetch(1).next_position
        clock = SteppedClock(NOW_MS)  # it stepped back by half a second, which the lease of the frontier covers
        with open_small(killed(setting.disk), clock) as store:
            partition = store.topic("t").partition(0)
            assert 1 == partition.high_watermark()
            assert 2 == partition.beginning(2)
            store.send("t", b"c")
            store.send("t", b"d", delay=60)
            assert 3 == partition.beginning(3)  # stamped above the lease, as all that comes later
            with pytest.raises(PositionPending):
                partition.beginning(4)
            clock.advance(2_000)
            assert [[b"c"]] == values_in(partition.fetch(2).batches)

    def test_in_a_fifo_topic_every_position_is_final(self) -> None:
        fifo = Setting(delayed=False)
        fifo.send(b"a")
        assert 1 == fifo.partition.beginning(1)
        fifo.store.close()


# --- Fetching


def test_a_fetch_returns_whole_batches_and_where_to_go_on(setting: Setting) -> None:
    setting.partition.append(batch_of(b"a", b"b"), deliver_after=NOW_MS + 2)
    setting.partition.append(batch_of(b"c"), deliver_after=NOW_MS + 1)
    setting.partition.append(batch_of(b"d"), deliver_after=NOW_MS + 99)
    setting.clock.advance(2)
    result = setting.partition.fetch(0)
    assert [[b"c"], [b"a", b"b"]] == values_in(result.batches)
    assert ([0, 1], 3, 3, 4, NOW_MS + 2) == (
        result.delivery_offsets.tolist(), result.next_position, result.high_watermark, result.log_end_offset,
        result.clock_ms,
    )  # fmt: skip
    inside = setting.partition.fetch(2)
    assert ([1], 3) == (inside.delivery_offsets.tolist(), inside.next_position)
    assert [[b"a", b"b"]] == values_in(inside.batches)


@pytest.mark.parametrize("position", [1, 2, 3])
def test_where_nothing_is_due_the_position_stays(setting: Setting, position: int) -> None:
    setting.send(b"due")
    setting.partition.append(batch_of(b"a", b"b"), deliver_after=NOW_MS + 2)
    result = setting.partition.fetch(position)
    assert ([], position, 1) == (result.batches, result.next_position, result.high_watermark)


@pytest.mark.parametrize("delayed", [True, False])
def test_the_limits_of_a_fetch(delayed: bool) -> None:
    setting = Setting(delayed=delayed)
    for _ in range(5):
        setting.partition.append(batch_of(b"a", b"b"))
    size = len(batch_of(b"a", b"b"))
    for max_bytes, batches in ((0, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (99 * size, 5)):
        assert batches == len(setting.partition.fetch(0, max_bytes=max_bytes).batches)
    for max_records, batches in ((0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (99, 5)):
        assert batches == len(setting.partition.fetch(0, max_records=max_records).batches)
    assert 1 == len(setting.partition.fetch(1, max_records=2).batches)
    assert 2 == len(setting.partition.fetch(1, max_records=3).batches)


def test_many_batches_are_verified_in_steps(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "FIRST_ENTRIES", 2)
    for number in range(20):
        setting.send(b"%d" % number)
    for limit in range(20):
        result = setting.partition.fetch(0, max_bytes=72 * limit)
        assert [[b"%d" % number] for number in range(result.next_position)] == values_in(result.batches)
        assert abs(max(limit, 1) - result.next_position) <= 1


@pytest.mark.parametrize("remap_bytes", [0, 500, 1 << 20])
@pytest.mark.parametrize("delayed", [True, False])
def test_batches_from_sealed_segments_the_mapping_and_the_tail(
    delayed: bool, remap_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "REMAP_BYTES", remap_bytes)
    setting = Setting(delayed=delayed)
    expected = []
    for number in range(120):
        after_ms = number * 7 % 10 if delayed else None
        setting.send(b"%d" % number, after_ms)
        expected.append((after_ms or 0, number))
        setting.partition.fetch(0)
    setting.clock.advance(10)
    assert 1 < len(setting.partition.log.version.segments)
    assert [b"%d" % number for _, number in sorted(expected)] == drained(setting.partition)


@pytest.mark.parametrize("position", [-1, 2])
def test_positions_outside(setting: Setting, position: int) -> None:
    setting.send(b"a")
    with pytest.raises(OffsetOutOfRange, match=r"within \[0, 1\]"):
        setting.partition.fetch(position)


def test_closed(setting: Setting) -> None:
    setting.store.close()
    with pytest.raises(StoreClosed):
        setting.partition.fetch(0)


@pytest.mark.parametrize("delayed", [True, False])
@pytest.mark.parametrize("back", [1, 30, 70, 300])
def test_rotten_bytes_reach_nobody(delayed: bool, back: int) -> None:
    setting = Setting(delayed=delayed)
    for number in range(5):
        setting.send(b"%d" % number)
    setting.store.close()
    path = setting.partition.log.version.active.path
    data = content(setting.disk, path)
    disk = with_file(setting.disk, path, flipped(data, len(data) - back))
    partition = open_small(disk, setting.clock).topic("t").partition(0)

    def columns() -> None:
        position = 0
        while position < 5:
            _, position = partition.columns(position, 10, 1 << 20)

    def batches() -> None:
        position = 0
        while position < 5:
            position = partition.fetch(position).next_position

    for call in (batches, columns):
        with pytest.raises(CorruptFile) as raised:
            call()
        assert path == raised.value.path
        assert raised.value.position is not None
        assert raised.value.position < len(data)


@pytest.mark.parametrize("read", [verified.batches, partial(verified.records, limit_bytes=1 << 20)])
def test_an_index_that_names_another_entry_is_seen(setting: Setting, read: Callable[..., object]) -> None:
    for number in range(3):
        setting.send(b"%d" % number)
    block = setting.partition._order.read(0, setting.partition._order.advance())
    shifted = dataclasses.replace(block, position=np.roll(block.position, 1))
    visible = setting.partition.log.version.readable()
    with pytest.raises(CorruptFile, match="index names, in the entry of offset 0"):
        read(verified.locate(shifted, visible, 1 << 20), visible, delayed=True, max_bytes=1 << 20)


@pytest.mark.parametrize("delayed", [True, False])
def test_a_segment_that_retention_takes_in_the_middle_of_a_fetch(
    delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(delayed=delayed)
    partition = setting.store.create_topic("r", delayed=delayed, retention_ms=0).partition(0)
    setting.store.send("r", b"a")
    partition.log.roll()
    setting.clock.advance(1)
    read = partition._order.read

    def racing(position: int, reading: Reading) -> Block:
        assert 1 == setting.store.enforce_retention()
        return read(position, reading)

    monkeypatch.setattr(partition._order, "read", racing)
    with pytest.raises(OffsetOutOfRange):
        partition.fetch(0)


def test_a_segment_that_is_just_gone_is_corruption(setting: Setting) -> None:
    setting.send(b"a")
    setting.partition.log.roll()
    [path, *_] = [PATH / "t-0" / name for name in setting.disk.names(PATH / "t-0") if name.endswith(LOG)]
    setting.disk.unlink(path)
    with pytest.raises(CorruptFile, match="gone"):
        setting.partition.fetch(0)


# --- Waiting


def test_a_fetch_waits_for_the_next_due_time(setting: Setting) -> None:
    setting.send(b"a", 50)
    setting.clock.steps = [lambda: setting.clock.advance(49), lambda: setting.clock.advance(1)]
    assert [[b"a"]] == values_in(setting.partition.fetch(0, max_wait_ms=1_000).batches)
    assert [(NOW_MS + 50, 1.0)] * 2 == setting.clock.waits


def test_a_fetch_waits_for_an_append(setting: Setting) -> None:
    setting.clock.steps = [lambda: setting.send(b"a")]
    assert [[b"a"]] == values_in(setting.partition.fetch(0, max_wait_ms=1_000).batches)
    assert [(None, 1.0)] == setting.clock.waits


def test_a_fetch_waits_no_longer_than_it_may(setting: Setting) -> None:
    setting.send(b"a", 5_000)
    result = setting.partition.fetch(0, max_wait_ms=1_500)
    assert ([], 1.5) == (result.batches, setting.clock.patience_s)
    setting.partition.fetch(0)
    assert 1.5 == setting.clock.patience_s


def test_what_becomes_due_between_looking_and_waiting_is_not_slept_through(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.send(b"a", 50)
    setting.send(b"b", 500)
    original = verified.batches
    looks = []

    def look(*arguments: object, **keywords: object) -> object:
        looks.append(original(*arguments, **keywords))  # type: ignore[arg-type]
        if len(looks) == 1:
            setting.clock.advance(50)
        return looks[-1]

    monkeypatch.setattr(verified, "batches", look)
    assert [[b"a"]] == values_in(setting.partition.fetch(0, max_wait_ms=1_000).batches)
    assert [] == setting.clock.waits


@pytest.mark.parametrize("after_ms", [0, 3_600_000])
def test_what_an_append_in_flight_holds_back_is_waited_for_without_spinning(after_ms: int) -> None:
    """The time has come, but only the sync of the append, which notifies, lets it be decided: whenever that is due."""
    setting = Setting(durability=Durability.interval(3_600_000))
    setting.send(b"a", 50)
    setting.store.sync()
    setting.send(b"in flight", after_ms)
    setting.clock.advance(60)
    setting.clock.steps = [setting.store.sync]
    result = setting.partition.fetch(0, max_wait_ms=1_000)
    assert [b"a"] == values_in(result.batches)[-1]
    assert [(None, 1.0)] == setting.clock.waits
    setting.store.close()


def test_a_jump_that_is_held_back_is_waited_for_without_spinning() -> None:
    class Jumping(SteppedClock):
        slept_ms = 0

        def boot_ms(self) -> int:
            return self.slept_ms

        def pass_ms(self, ms: int) -> None:
            self.slept_ms += ms
            self.advance(ms)

    clock = Jumping(NOW_MS)
    store = open_store(PATH, small(clock_jump_limit_ms=1_000), clock, SimulatedFiles())
    partition = store.create_topic("t").partition(0)
    store.send("t", b"a", deliver_after=NOW_MS + 500)
    clock.advance(60_000)
    assert 0 == partition.high_watermark()
    clock.steps = [lambda: clock.pass_ms(500)]
    assert [[b"a"]] == values_in(partition.fetch(0, max_wait_ms=1_000).batches)
    assert [(NOW_MS + 60_500, 1.0)] == clock.waits


def test_closing_wakes_a_fetch(setting: Setting) -> None:
    setting.clock.steps = [setting.store.close]
    with pytest.raises(StoreClosed):
        setting.partition.fetch(0, max_wait_ms=1_000)


def test_threads_are_woken_by_appends_and_by_the_clock() -> None:
    clock = ManualClock(NOW_MS)
    store = open_small(SimulatedFiles(), clock)
    partition = store.create_topic("t").partition(0)
    fetching = [Background(lambda: partition.fetch(0, max_wait_ms=5_000)) for _ in range(3)]
    store.send("t", b"a", delay=10)
    clock.advance(10_000)
    assert [[[b"a"]]] * 3 == [values_in(each.answer().batches) for each in fetching]
    fetching = [Background(lambda: partition.fetch(1, max_wait_ms=5_000)) for _ in range(3)]
    store.send("t", b"b")
    assert [[[b"b"]]] * 3 == [values_in(each.answer().batches) for each in fetching]
    closing = Background(lambda: partition.fetch(2, max_wait_ms=5_000))
    store.close()
    with pytest.raises(StoreClosed):
        closing.answer()


# --- Columns


@pytest.mark.parametrize("codec", CODECS)
def test_columns(setting: Setting, codec: str) -> None:
    records = [
        Record(value=b"a", key=b"k", headers=[("h", b"1")], timestamp=NOW_MS + 5, deliver_after=NOW_MS + 1),
        Record(value=None, timestamp=NOW_MS + 6, deliver_after=NOW_MS + 3),
    ]
    setting.partition.append(encode_batch(records, codec))  # type: ignore[arg-type]
    setting.send(b"x" * 200, 2)
    setting.clock.advance(3)
    columns, behind = setting.partition.columns(0, 10, 1 << 20)
    assert (3, 3) == (len(columns), behind)
    x, a, none = columns.to_messages()
    assert (b"x" * 200, 2, 0, NOW_MS + 2, NOW_MS + 2) == (x.value, x.offset, x.delivery_offset, x.due, x.deliver_after)
    assert (b"a", b"k", (("h", b"1"),), 0, 1, NOW_MS + 5, NOW_MS + 3, NOW_MS + 1) == (
        a.value, a.key, tuple(header for header in a.headers if header[0] == "h"), a.offset, a.delivery_offset,
        a.timestamp, a.due, a.deliver_after,
    )  # fmt: skip
    assert (None, None, 1, 2, NOW_MS + 6, NOW_MS + 3, NOW_MS + 3) == (
        none.value, none.key, none.offset, none.delivery_offset, none.timestamp, none.due, none.deliver_after
    )  # fmt: skip


def test_columns_begin_at_the_position_and_end_at_the_limit(setting: Setting) -> None:
    for _ in range(3):
        setting.partition.append(batch_of(b"a", b"b", b"c"))
    for position in range(9):
        for limit in range(1, 10):
            columns, behind = setting.partition.columns(position, limit, 1 << 20)
            expected = list(range(position, min(position + limit, 9)))
            assert (expected, expected[-1] + 1) == (columns.delivery_offset.tolist(), behind)
    columns, behind = setting.partition.columns(9, 5, 1 << 20)
    assert (0, 9) == (len(columns), behind)


def test_a_batch_that_unpacks_to_more_than_allowed_is_an_error(setting: Setting) -> None:
    setting.partition.append(batch_of(b"a" * 1_000, b"b" * 1_000, codec="zstd"))
    setting.store.close()
    store = open_store(PATH, Config(decompressed_bytes_max=1_000), setting.clock, setting.disk)
    partition = store.topic("t").partition(0)
    with pytest.raises(CorruptFile, match=r"more than 1000 bytes \(decompressed_bytes_max\).*offset 0 ") as raised:
        partition.columns(0, 10, 1 << 20)
    assert (partition.log.version.active.path, 0) == (raised.value.path, raised.value.position)
