from __future__ import annotations

import random
import tracemalloc
from unittest.mock import patch

import numpy as np
import pytest

from afterlog.base.clock import INT64_MAX, ManualClock
from afterlog.base.errors import ClockBehind, CorruptFile, OffsetOutOfRange
from afterlog.base.names import LOG, segment_file
from afterlog.fetch import timeline as timeline_module
from afterlog.fetch import verified
from afterlog.fetch.message import Message
from afterlog.fetch.record_id import RecordId
from afterlog.fetch.timeline import FEW, Timeline, empty_block
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Key
from afterlog.index.merge import Block, MergeIterator
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, drained, due_of, durable_frontier, flipped, killed, open_small, with_file

RECORDS = 400
SPAN_MS = 1_000


class Setting:
    """A partition with several segments, runs and a bucket, and what it must deliver: (due, offset) in order."""

    def __init__(self, records: int = RECORDS) -> None:
        self.disk = SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.store: Store = open_small(self.disk, self.clock, min_index_count_per_bucket=30, segment_bytes=8_192)
        self.partition = self.store.create_topic("t").partition(0)
        self.rows: list[Key] = []
        draw = random.Random(7)
        for offset in range(records):
            self.add(offset, draw.randrange(SPAN_MS))
        self.timeline = Timeline(self.partition.log)

    def add(self, offset: int, after_ms: int) -> None:
        self.store.send("t", b"%d" % offset, deliver_after=self.clock.now_ms() + after_ms)
        self.rows.append(Key(self.clock.now_ms() + after_ms, offset))

    def expected(self) -> list[int]:
        """Offsets of what is due, in delivery order."""
        return [key.offset for key in sorted(self.rows) if key.deliver_after <= self.clock.now_ms()]

    def read(self, position: int, timeline: Timeline | None = None) -> list[int]:
        """Offsets in one block from `position` on; the delivery offsets are asserted."""
        timeline = timeline or self.timeline
        block = timeline.read(position, timeline.advance())
        assert list(range(position, position + len(block))) == block.delivery_offset.tolist()
        assert position + len(block) == block.end_delivery_offset
        return block.offset.tolist()


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr(timeline_module, "BLOCK_ENTRIES", 16)
    monkeypatch.setattr(timeline_module, "CACHED_ENTRIES_MAX", 250)
    return Setting()


def test_the_high_watermark_counts_what_is_due_and_only_grows(setting: Setting) -> None:
    before = 0
    for step_ms in (0, 1, 250, -100, 500, 249, 10_000):
        setting.clock.advance(step_ms)
        reading = setting.timeline.advance()
        assert reading.clock_ms == max(setting.clock.now_ms(), NOW_MS + 251 if step_ms == -100 else 0)
        assert before <= reading.high_watermark
        assert len([key for key in setting.rows if key.deliver_after <= reading.clock_ms]) == reading.high_watermark
        before = reading.high_watermark


def test_reading_through_gives_delivery_order(setting: Setting) -> None:
    setting.clock.advance(SPAN_MS // 2)
    expected = setting.expected()
    found: list[int] = []
    while block := setting.read(len(found)):
        found += block
    assert expected == found
    assert 100 < len(found) < RECORDS


@pytest.mark.parametrize("limit", [1, 3])
def test_what_becomes_due_one_by_one_is_found_by_itself(setting: Setting, limit: int) -> None:
    """By readers that follow each other, one of them more closely; beside rolls, seals, and what is due in between."""
    draw, alone = random.Random(limit), 0
    found: list[list[int]] = [[], [], []]
    for step in range(1_500):
        setting.add(RECORDS + step, draw.choice([0, 0, 0, 5, 40]))
        setting.clock.advance(draw.choice([0, 1, 1, 2, 10]))
        reading = setting.timeline.advance()
        for reader, offsets in enumerate(found):
            while len(offsets) < reading.high_watermark and step % (1 + 7 * reader) == 0:
                place = setting.timeline.one(len(offsets), reading)
                if place is not None:
                    alone += 1
                    entry, row = place
                    offsets.append(entry.offset + row)
                    assert (
                        entry.position
                        == setting.partition.log.find(np.array([entry.offset]), reading.version).position[0]
                    )
                else:
                    offsets += setting.timeline.read(len(offsets), reading, limit).offset.tolist()
    expected = setting.expected()
    assert all(offsets == expected[: len(offsets)] for offsets in found)
    assert len(expected) == len(found[0])
    assert alone > 300


def test_a_few_that_became_due_last_are_found_wherever_they_lie(setting: Setting) -> None:
    """In runs and sealed segments, which were written long before, in shared batches, and beside what is cancelled."""
    draw, found, batched = random.Random(3), set[str](), list[int]()
    for _ in range(60):
        batched += [setting.partition.log_end_offset, setting.partition.log_end_offset + 1]
        due_ms = setting.clock.now_ms() + draw.randrange(SPAN_MS)
        setting.store.send_many("t", [b"a", b"b"], deliver_after=due_ms)
    cancelled = {*draw.sample(range(RECORDS), RECORDS // 8), *draw.sample(batched, 30)}
    for offset in cancelled:
        setting.store.cancel(RecordId("t", 0, offset))
    before = setting.partition.reading()
    for _ in range(SPAN_MS):
        setting.clock.advance(1)
        if draw.random() < 0.02:
            setting.add(setting.partition.log_end_offset, draw.randrange(50))
        reading = setting.partition.reading()
        positions = np.arange(before.high_watermark, reading.high_watermark)
        for position, offset in zip(positions.tolist(), setting.partition.offsets_at(positions).tolist(), strict=True):
            message = setting.partition.one(position, reading, Message)
            if message is None:
                continue
            assert reading.high_watermark - position <= FEW
            assert offset == message.offset
            assert offset not in cancelled
            [same] = setting.partition.records_at(np.array([offset]), np.array([position])).to_messages()
            assert same == message
            where = "sealed" if offset < reading.version.active.base_offset else "active"
            found |= {where, f"{len(positions)}, of a batch" if offset in batched else f"{len(positions)}"}
            if {offset - 1, offset + 1} & cancelled & {*batched} and offset in batched:
                found.add("beside a cancelled one")
        before = reading
    assert {"sealed", "active", "1", "2", "2, of a batch", "3", "3, of a batch", "beside a cancelled one"} <= found


def test_what_was_removed_is_not_found_by_itself(setting: Setting) -> None:
    """Nor looked for in a segment that is gone."""
    setting.clock.advance(SPAN_MS)
    setting.partition.reading()
    setting.add(RECORDS, 5)
    setting.clock.advance(10)
    reading = setting.partition.reading()
    position = reading.high_watermark - 1
    assert setting.partition.one(position, reading, Message) is not None
    setting.partition.log.roll()
    setting.store.purge("t", force=True)
    reading = setting.partition.reading()
    assert (position + 1, ()) == (reading.log_start, reading.version.sealed)
    assert setting.partition.one(position, reading, Message) is None


def test_what_is_cancelled_is_not_found_by_itself(setting: Setting) -> None:
    setting.clock.advance(SPAN_MS)
    found: list[int] = []
    while block := setting.read(len(found)):
        found += block
    setting.add(RECORDS, 10)
    setting.add(RECORDS + 1, 20)
    setting.store.cancel(RecordId("t", 0, RECORDS))
    for _ in range(2):
        setting.clock.advance(10)
        reading = setting.timeline.advance()
        place = setting.timeline.one(reading.high_watermark - 1, reading)
        assert place is None or place.entry.offset != RECORDS


def test_it_follows_the_clock_with_appends_in_between(setting: Setting) -> None:
    found: list[int] = []
    for step in range(60):
        setting.clock.advance(20)
        setting.add(RECORDS + step, (step * 37) % 50)
        while block := setting.read(len(found)):
            found += block
        assert setting.expected() == found
    assert len(found) > RECORDS


def test_nothing_at_or_behind_the_high_watermark(setting: Setting) -> None:
    setting.clock.advance(SPAN_MS // 2)
    reading = setting.timeline.advance()
    for position in (reading.high_watermark, reading.high_watermark + 1, RECORDS):
        block = setting.timeline.read(position, reading)
        assert (0, position) == (len(block), block.end_delivery_offset)


def test_a_reading_gets_nothing_that_a_later_one_found(setting: Setting) -> None:
    """Invariant 4: the block in the cache reaches further than the older reading may see."""
    setting.clock.advance(SPAN_MS // 2)
    older = setting.timeline.advance()
    start = older.high_watermark - 3
    setting.clock.advance(SPAN_MS // 4)
    later = setting.timeline.advance()
    assert len(setting.timeline.read(start, later)) > 3
    block = setting.timeline.read(start, older)
    assert (3, older.high_watermark) == (len(block), block.end_delivery_offset)
    assert 0 == len(setting.timeline.read(older.high_watermark, older))


def test_readers_that_follow_each_other_share_blocks(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[int] = []
    original = MergeIterator.next_block

    def counted(self: MergeIterator, index: DelayedIndex, upto: Key, want_entries: int) -> object:
        merged.append(want_entries)
        return original(self, index, upto, want_entries)

    monkeypatch.setattr(MergeIterator, "next_block", counted)
    setting.clock.advance(100)
    due = len(setting.expected())
    for _ in range(5):
        position = 0
        while block := setting.read(position):
            position += len(block)
        assert due == position
    assert len(merged) <= due // 16 + 1


def test_the_cache_is_bounded(setting: Setting) -> None:
    setting.clock.advance(SPAN_MS)
    for position in range(0, RECORDS, 5):
        setting.read(position)
        held = sum(len(block) + 20 for block in setting.timeline._blocks.values())
        assert held == setting.timeline._cached_entries
        assert held <= 250
        assert len(setting.timeline._blocks) == len(setting.timeline._block_starts)


def test_blocks_of_one_record_count_for_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends and receives all day would else keep 800 bytes for each of the last 262,144 records."""
    monkeypatch.setattr(timeline_module, "CACHED_ENTRIES_MAX", 5_000)
    setting = Setting()
    setting.clock.advance(SPAN_MS)
    position = setting.timeline.advance().high_watermark
    tracemalloc.start()
    try:
        for step in range(1_000):
            setting.add(RECORDS + step, 1)
            setting.clock.advance(1)
            position += len(setting.read(position))
        held = tracemalloc.get_traced_memory()[0]
        setting.timeline._forget(0)
        held -= tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert RECORDS + 1_000 == position
    assert 100_000 < held < 5_000 * 40 * 1.25, "1,000 blocks are four times as much"


def test_who_comes_behind_a_live_reader_finds_its_blocks_joined() -> None:
    """Each was of one record: it took as many reads as records, 107 us each. What is cancelled lies in between."""
    setting = Setting(records=0)
    for number in range(RECORDS):
        setting.add(number, number)
    for number in range(3, RECORDS, 7):
        setting.store.cancel(RecordId("t", 0, number))
    timeline, position = setting.timeline, 0

    def read(timeline: Timeline, position: int) -> tuple[list[int], int]:
        """Offsets from there on, and how many reads that took."""
        reading, reads, found = timeline.advance(), 0, list[int]()
        while position < reading.high_watermark:
            block = timeline.read(position, reading, 500)
            found += block.offset.tolist()
            position, reads = block.end_delivery_offset, reads + 1
        return found, reads

    for _ in range(RECORDS):
        while position < (reading := timeline.advance()).high_watermark:
            position = timeline.read(position, reading, 500).end_delivery_offset
        setting.clock.advance(1)
    assert RECORDS < position
    assert len(timeline._blocks) > RECORDS * 3 // 4
    for start in (0, 4, 150, position - 2):
        expected, _ = read(Timeline(setting.partition.log), start)
        found, reads = read(timeline, start)
        assert expected == found
        assert reads <= 3
    assert len(timeline._blocks) == len(timeline._block_starts) <= 3
    assert sum(len(block) + 20 for block in timeline._blocks.values()) == timeline._cached_entries
    reading = timeline.advance()
    assert 12 == timeline.read(10, reading._replace(high_watermark=12), 500).end_delivery_offset


def test_an_interrupt_while_blocks_are_joined_costs_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(records=0)
    for number in range(40):
        setting.add(number, number)
    timeline, position = setting.timeline, 0
    for _ in range(40):
        position = timeline.read(position, timeline.advance()).end_delivery_offset
        setting.clock.advance(1)

    def struck(blocks: object) -> Block:
        raise KeyboardInterrupt

    reading = timeline.advance()
    with monkeypatch.context() as patching:
        patching.setattr(Block, "joined", struck)
        with pytest.raises(KeyboardInterrupt):
            timeline.read(0, reading, 500)
    assert [*range(40)] == timeline.read(0, timeline.advance(), 500).offset.tolist()
    assert len(timeline._blocks) == len(timeline._block_starts)


def test_more_lagging_readers_than_iterators(setting: Setting) -> None:
    setting.clock.advance(SPAN_MS)
    expected = setting.expected()
    readers = [number * 13 for number in range(25)]
    for _ in range(4):
        for number, position in enumerate(readers):
            block = setting.read(position)
            assert expected[position : position + len(block)] == block
            assert block or position == RECORDS
            readers[number] += len(block)
            assert len(setting.timeline._iterators) <= timeline_module.ITERATORS_MAX


def test_jumps_back_and_forth(setting: Setting) -> None:
    setting.clock.advance(SPAN_MS)
    expected = setting.expected()
    draw = random.Random(3)
    for _ in range(200):
        position = draw.randrange(RECORDS)
        block = setting.read(position)
        assert block
        assert expected[position : position + len(block)] == block


def test_many_records_of_one_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "BLOCK_ENTRIES", 8)
    setting = Setting(records=0)
    for offset in range(200):
        setting.add(offset, 500 if offset % 10 else offset)
    setting.clock.advance(501)
    expected = setting.expected()
    for position in (190, 100, 20, 0, 150):
        block = setting.read(position)
        assert block
        assert expected[position : position + len(block)] == block


def test_a_position_inside_a_batch_begins_with_the_batch() -> None:
    setting = Setting(records=0)
    setting.store.send_many("t", [b"a", b"b", b"c"])
    setting.store.send_many("t", [b"d", b"e"])
    reading = setting.timeline.advance()
    for position, starts in ((0, [0, 3]), (1, [0, 3]), (2, [0, 3]), (3, [3]), (4, [3])):
        assert starts == setting.timeline.read(position, reading).delivery_offset.tolist()


def test_a_position_inside_a_pending_batch_stays() -> None:
    setting = Setting(records=0)
    setting.store.send_many("t", [b"a", b"b", b"c"], delay=1)
    block = setting.timeline.read(2, setting.timeline.advance())
    assert (0, 2) == (len(block), block.end_delivery_offset)


def test_next_due(setting: Setting) -> None:
    for step_ms in (0, 300, 300, 399, 1):
        setting.clock.advance(step_ms)
        reading = setting.timeline.advance()
        pending = [key.deliver_after for key in setting.rows if key.deliver_after > setting.clock.now_ms()]
        assert min(pending, default=None) == setting.timeline.next_due(reading)


def test_positions_by_time(setting: Setting) -> None:
    rows = sorted(setting.rows)
    version = setting.partition.log.version
    for ms in (0, NOW_MS, NOW_MS + 1, rows[77].deliver_after, NOW_MS + SPAN_MS, INT64_MAX):
        assert len([key for key in rows if key.deliver_after < ms]) == setting.timeline.position_at(ms, version)


def test_positions_by_offset(setting: Setting) -> None:
    ranks = {key.offset: rank for rank, key in enumerate(sorted(setting.rows))}
    for offset in range(0, RECORDS, 7):
        assert ranks[offset] + 1 == setting.timeline.position_after(offset, setting.partition.log.version)
    for offset in (-1, RECORDS, INT64_MAX):
        with pytest.raises(OffsetOutOfRange, match="not appended yet" if offset > 0 else "no record"):
            setting.timeline.position_after(offset, setting.partition.log.version)


def test_positions_by_offset_inside_a_batch() -> None:
    setting = Setting(records=0)
    setting.store.send_many("t", [b"a", b"b", b"c"], delay=2)
    setting.store.send_many("t", [b"d", b"e"], delay=1)
    assert [3, 4, 5, 1, 2] == [
        setting.timeline.position_after(offset, setting.partition.log.version) for offset in range(5)
    ]


def test_seals_and_rolls_change_nothing_that_is_read(setting: Setting) -> None:
    setting.clock.advance(SPAN_MS // 2)
    expected = setting.expected()
    found = setting.read(0)
    for change in (setting.partition.log.checkpoint, setting.partition.log.roll, setting.store.check):
        change()
        found += setting.read(len(found))
        assert expected[: len(found)] == found
    while block := setting.read(len(found)):
        found += block
    assert expected == found


def test_the_frontier_is_durable_before_the_high_watermark_grows(setting: Setting) -> None:
    setting.clock.advance(100)
    first = setting.timeline.advance()
    frontier = durable_frontier(setting.disk, setting.partition.log)
    assert frontier.used_ms <= first.clock_ms <= frontier.lease_ms
    crashed = open_small(killed(setting.disk), ManualClock(NOW_MS))
    after_crash = crashed.topic("t").partition(0)
    crashed.send("t", b"late", deliver_after=0)
    due = due_of(after_crash, RECORDS)
    assert due is not None
    assert due >= frontier.lease_ms
    assert first.high_watermark == after_crash.high_watermark()


def test_a_clock_far_behind_can_be_looked_at_only(setting: Setting) -> None:
    setting.clock.advance(100)
    high_watermark = setting.timeline.advance().high_watermark
    setting.store.close()
    store = open_small(setting.disk, ManualClock(NOW_MS - 4_000_000))
    timeline = Timeline(store.topic("t").partition(0).log)
    with pytest.raises(ClockBehind):
        timeline.advance()
    standing = timeline.standing()
    assert (NOW_MS + 100, high_watermark) == (standing.clock_ms, standing.high_watermark)


def test_corruption_is_told_and_forgotten(setting: Setting) -> None:
    """A run is rotten, and so is what it was made of: reading there fails each time; elsewhere all is well."""
    setting.store.close()
    [first, *_] = [path for path in setting.disk.image().contents if path.endswith("0.deliverafterindex")]
    path = setting.store.path / first.removeprefix(f"{setting.store.path}/")
    data = setting.disk.image().contents[first]
    disk = with_file(setting.disk, path, flipped(data, 70))
    log = setting.store.path / "t-0" / segment_file(0, LOG)
    disk = with_file(disk, log, flipped(setting.disk.image().contents[str(log)], 100))
    timeline = Timeline(open_small(disk, ManualClock(NOW_MS + SPAN_MS)).topic("t").partition(0).log)
    for _ in range(2):
        with pytest.raises(CorruptFile) as raised:
            timeline.read(0, timeline.advance())
        assert path == raised.value.path
    assert RECORDS > len(timeline._blocks)


class Retention:
    """Two segments, of which retention takes the first in the middle of something."""

    def __init__(self) -> None:
        self.setting = Setting(records=0)
        self.store = self.setting.store
        self.partition = self.store.create_topic("r", retention_ms=0).partition(0)
        for number in range(40):
            if number == 20:
                self.partition.log.roll()
            self.store.send("r", b"%d" % number, deliver_after=NOW_MS + number % 20 * 2 + number // 20)
        self.setting.clock.advance(39)
        self.timeline = Timeline(self.partition.log)
        self.reading = self.timeline.advance()
        self.removed = False

    def remove(self) -> None:
        if not self.removed:
            self.removed = True
            assert 1 == self.partition.log.enforce_retention()

    def during(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        """Retention comes just before the merge iterator does this."""
        original = getattr(MergeIterator, method)

        def racing(iterator: MergeIterator, *arguments: object) -> object:
            self.remove()
            return original(iterator, *arguments)

        monkeypatch.setattr(MergeIterator, method, racing)


@pytest.mark.parametrize("method", ["next_block", "__init__", "_turn_to"])
@pytest.mark.parametrize("position", [0, 10, 38])
def test_retention_in_the_middle_of_a_read(monkeypatch: pytest.MonkeyPatch, method: str, position: int) -> None:
    """Who has pinned a version reads all of it, by its own ranks; who comes later does not."""
    monkeypatch.setattr(timeline_module, "BLOCK_ENTRIES", 4)
    race = Retention()
    race.during(monkeypatch, method)
    found: list[int] = []
    while block := race.timeline.read(position + len(found), race.reading):
        assert position + len(found) == block.delivery_offset[0]
        found += block.offset.tolist()
    assert race.removed
    assert sorted(range(40), key=lambda number: number % 20 * 2 + number // 20)[position:] == found
    later = race.timeline.advance()
    assert (0, 39) == (race.timeline.log_start(race.reading.version), race.timeline.log_start(later.version))
    assert [39] == race.timeline.read(39, later).offset.tolist()


def test_files_go_when_the_last_version_that_names_them_does() -> None:
    race = Retention()
    disk, path = race.setting.disk, race.partition.log.sealed[0].path
    race.remove()
    block, visible = race.timeline.read(0, race.reading), race.reading.visible
    assert len(block) == len(verified.batches(verified.locate(block, visible, 1 << 20), visible, True, 1 << 20).block)
    race.partition.log.enforce_retention()
    assert disk.exists(path)
    del race.reading, visible
    race.partition.log.enforce_retention()
    assert not disk.exists(path)


def test_an_iterator_from_before_the_log_start_goes_on_for_who_has_pinned_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "BLOCK_ENTRIES", 4)
    race = Retention()
    assert 4 <= len(race.timeline.read(0, race.reading))
    race.remove()
    end = next(iter(race.timeline._iterators))
    assert end == race.timeline.read(end, race.reading).delivery_offset[0]
    with pytest.raises(OffsetOutOfRange):
        race.partition.fetch(end)
    assert [b"39"] == drained(race.partition)


def test_empty_block() -> None:
    block = empty_block(7)
    assert (0, 7, None) == (len(block), block.end_delivery_offset, block.last_key)
    assert np.dtype(np.int64) == block.offset.dtype


def test_what_is_due_next_behind_cancelled_ones_is_not_looked_for_twice() -> None:
    setting = Setting(records=200)
    keys = sorted(setting.rows)
    setting.partition.cancel(np.array([key.offset for key in keys[:120]]))
    merges = 0

    class Merging(MergeIterator):
        def next_block(self, *arguments: object) -> Block:
            nonlocal merges
            merges += 1
            return super().next_block(*arguments)  # type: ignore[arg-type]

    with patch.object(timeline_module, "MergeIterator", Merging):
        for _ in range(3):
            assert keys[120].deliver_after == setting.partition.next_due()
        setting.store.send("t", b"", deliver_after=keys[-1].deliver_after + 1)
        setting.partition.log.checkpoint()
        setting.clock.set(keys[60].deliver_after)
        assert keys[120].deliver_after == setting.partition.next_due()
        assert 1 == merges
        between = setting.store.send("t", b"", deliver_after=keys[100].deliver_after)
        assert keys[100].deliver_after == setting.partition.next_due() == setting.partition.next_due()
        assert 2 == merges
        setting.store.cancel(between)
        assert keys[120].deliver_after == setting.partition.next_due()
        setting.clock.set(keys[120].deliver_after)
        assert keys[121].deliver_after == setting.partition.next_due()
