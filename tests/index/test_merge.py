from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from afterlog.base.errors import CorruptFile
from afterlog.index.bucket_snapshot import MappedSnapshot
from afterlog.index.delayed_index import DelayedIndex, DueCounter
from afterlog.index.entries import Entries, Key
from afterlog.index.merge import AHEAD_PER_RUN, MERGED_ENTRIES, Block, MergeIterator, merged
from afterlog.index.mutable_bucket import MutableBucket
from afterlog.index.run import Run
from tests import campaigns
from tests.index.support import (
    INT64_MAX,
    Row,
    entries_of,
    holds,
    make_run,
    next_due,
    records_up_to,
    rows_in_offset_order,
    rows_of,
)

END = Key(INT64_MAX, INT64_MAX)


def rows_of_block(block: Block) -> list[Row]:
    columns = (block.deliver_after, block.offset, block.position, block.records)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def drained(merge: MergeIterator, index: DelayedIndex, upto: Key, want: int) -> list[Row]:
    rows: list[Row] = []
    while True:
        position = merge.delivery_offset
        block = merge.next_block(index, upto, want)
        ends = block.delivery_offset + block.records
        assert [position, *ends.tolist()] == [*block.delivery_offset.tolist(), block.end_delivery_offset]
        assert merge.delivery_offset == block.end_delivery_offset
        assert len(block) <= 2 * want
        rows += rows_of_block(block)
        if len(block) < want:
            return rows


def index_of(folder: Path, rows: list[Row], cuts: list[int], max_entries: int = 7) -> DelayedIndex:
    """Runs of the rows between the cuts, the rest in the bucket."""
    index, start = DelayedIndex(), 0
    for cut in sorted(set(cuts)):
        if start < cut <= len(rows):
            index = index.replacing((), [make_run(folder, rows[start:cut], max_entries)])
            start = cut
    index.bucket.add_many(entries_of(rows[start:]))
    return index


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@given(
    rows=rows_in_offset_order(max_size=60),
    cuts=st.lists(st.integers(1, 60), max_size=6),
    want=st.sampled_from([1, 2, 3, 10, 1_000]),
    first=st.integers(0, 60),
    until=st.integers(0, 60),
)
def test_yields_delivery_order_from_any_key_to_any_key(
    folder: Path, rows: list[Row], cuts: list[int], want: int, first: int, until: int
) -> None:
    index, ordered = index_of(folder, rows, cuts), sorted(rows)
    assert ordered == drained(MergeIterator(), index, END, want)
    if first < len(rows):
        after = Key(*ordered[first][:2])
        merge = MergeIterator(after, 500)
        upto = Key(*ordered[min(until, len(rows) - 1)][:2])
        middle = drained(merge, index, upto, want)
        assert [row for row in ordered if after < row[:2] <= upto] == middle
        assert ordered[first + 1 :] == middle + drained(merge, index, END, want)


@pytest.mark.parametrize("due", [0, 1_700_000_000_000, INT64_MAX])
@pytest.mark.parametrize("want", [1, 3, 50])
def test_one_instant_comes_in_slices(folder: Path, due: int, want: int) -> None:
    rows: list[Row] = [(due, offset, 0, 1) for offset in range(3_000)]
    index = index_of(folder, rows, [900, 1_000, 2_500], max_entries=100)
    merge = MergeIterator()
    if want == 1:
        assert rows[:20] == [row for _ in range(20) for row in rows_of_block(merge.next_block(index, END, want))][:20]
    else:
        assert rows == drained(merge, index, END, want)


@pytest.mark.parametrize("cuts", [[], [60_000], [3, 1_000, 30_000], [20_000, 60_000]])
def test_runs_and_a_bucket_are_merged_block_by_block(folder: Path, cuts: list[int]) -> None:
    rows: list[Row] = [(offset * 7_919 % 40_000, offset, 0, 1) for offset in range(60_000)]
    index = index_of(folder, rows, cuts, max_entries=500)
    blocks = list(merged(index.runs, index.bucket))
    assert sorted(rows) == rows_of(Entries.concatenate(blocks))
    assert 2 * MERGED_ENTRIES >= max(len(block) for block in blocks)
    assert [] == list(merged((), MutableBucket()))


def test_what_is_ahead_stays_small_whatever_is_pending(folder: Path) -> None:
    for due in (lambda offset: 5, lambda offset: offset // 1_000, lambda offset: offset * 7_919 % 40_000):
        rows: list[Row] = [(due(offset), offset, 0, 1) for offset in range(40_000)]
        index = index_of(folder, rows, [10_000, 20_000, 30_000, 40_000], max_entries=500)
        merge = MergeIterator()
        got: list[Row] = []
        while block := merge.next_block(index, END, 100):
            got += rows_of_block(block)
            assert len(merge._ahead) <= 2 * 4 * AHEAD_PER_RUN
        assert sorted(rows) == got


def test_bursts_and_silence_in_turn(folder: Path) -> None:
    hour = 3_600_000
    rows: list[Row] = [(offset * 2_654_435_761 % 12 * hour + offset % 3, offset, 0, 1) for offset in range(20_000)]
    index = index_of(folder, rows, [*range(0, 20_000, 1_500), 20_000], max_entries=100)
    assert sorted(rows) == drained(MergeIterator(), index, END, 700)


def test_an_idle_call_reads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Run, "columns")
    index = index_of(folder, [(1_000 + offset, offset, 0, 1) for offset in range(100)], [50, 100])
    merge = MergeIterator()
    block = merge.next_block(index, Key(999, INT64_MAX), 10)
    assert (0, 0, None, None) == (len(block), block.end_delivery_offset, block.last_key, merge.after)
    with pytest.raises(ValueError, match="want_entries"):
        merge.next_block(index, END, 0)


def test_a_chunk_that_cannot_be_read_moves_nothing(folder: Path) -> None:
    rows: list[Row] = [(offset * 7 % 5_000, offset, 0, 1) for offset in range(5_000)]
    path = make_run(folder, rows[2_000:4_000], 100).path
    data = bytearray(path.read_bytes())
    bad, index = Run(MappedSnapshot(path, np.frombuffer(data, np.uint8))), DelayedIndex()
    index = index.replacing((), [make_run(folder, rows[:2_000], 100), bad])
    index.bucket.add_many(entries_of(rows[4_000:]))
    merge, got = MergeIterator(), list[Row]()
    position = int(bad.directory.position[10])
    data[position] ^= 1
    while len(got) < 1_500:
        got += rows_of_block(merge.next_block(index, END, 100))
    for want in (4_000, 3_000, 4_000):
        with pytest.raises(CorruptFile, match="chunk 10 fails its checksum"):
            merge.next_block(index, END, want)
    data[position] ^= 1
    assert sorted(rows) == got + drained(merge, index, END, 3_000)


def test_a_slice_of_a_block_knows_where_it_ends() -> None:
    column = np.arange(4)
    block = Block(column * 3 + 10, column, column + 50, column, np.full(4, 3), 22)
    part = block[1:3]
    assert ([13, 16], 19, Key(2, 52)) == (part.delivery_offset.tolist(), part.end_delivery_offset, part.last_key)
    assert (22, 22) == (block[2:].end_delivery_offset, block[4:].end_delivery_offset)
    for nothing in (block[1:1], block[1:0]):
        assert (0, 13, None) == (len(nothing), nothing.end_delivery_offset, nothing.last_key)


class LiveMerge(RuleBasedStateMachine):
    """A log that appends, seals, merges runs and is read by two readers, against a sorted list."""

    @initialize(start=st.sampled_from([0, 1_700_000_000_000, INT64_MAX - 60]))
    def begin(self, start: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.index, self.rows, self.now, self.end = DelayedIndex(), list[Row](), start, 0
        self.sealed = 0
        self.readers = [(MergeIterator(), list[Row]()) for _ in range(2)]
        self.counter = DueCounter()

    @rule(delays=st.lists(st.integers(0, 30), min_size=1, max_size=30), singly=st.booleans(), records=st.integers(1, 3))
    def append(self, delays: list[int], singly: bool, records: int) -> None:
        fresh: list[Row] = []
        for delay in delays:
            fresh.append((min(self.now + delay, INT64_MAX), self.end, self.end * 10, records))
            self.end += records
        self.rows += fresh
        if singly:
            for row in fresh:
                self.index.bucket.add(*row)
        else:
            self.index.bucket.add_many(entries_of(fresh))

    @rule(milliseconds=st.integers(0, 20))
    def advance(self, milliseconds: int) -> None:
        self.now = min(self.now + milliseconds, INT64_MAX)

    @rule(max_entries=st.integers(1, 20))
    def seal(self, max_entries: int) -> None:
        if self.sealed < len(self.rows):
            run = make_run(self.folder, self.rows[self.sealed :], max_entries)
            self.index = self.index.replacing((), [run], MutableBucket())
            self.sealed = len(self.rows)

    @rule(which=st.integers(0, 10))
    def merge_two_runs(self, which: int) -> None:
        runs = self.index.runs
        if len(runs) > 1:
            pair = runs[which % (len(runs) - 1) :][:2]
            first, end = pair[0].coverage.first_offset, pair[1].coverage.end_offset
            run = make_run(self.folder, [row for row in self.rows if first <= row[1] < end], 9)
            self.index = self.index.replacing(pair, [run])

    @rule(reader=st.integers(0, 1), want=st.sampled_from([1, 2, 3, 10, 100]), drain=st.booleans())
    def read(self, reader: int, want: int, drain: bool) -> None:
        merge, got = self.readers[reader]
        upto = Key(self.now, self.end - 1)
        due = sorted(row for row in self.rows if row[:2] <= upto)
        if drain:
            got += drained(merge, self.index, upto, want)
            assert due == got
        else:
            block = rows_of_block(merge.next_block(self.index, upto, want))
            assert min(want, len(due) - len(got)) <= len(block) <= 2 * want
            got += block
            assert due[: len(got)] == got
        assert sum(row[3] for row in got) == merge.delivery_offset
        assert next_due(self.rows, merge.after or Key(-1, -1)) == merge.next_due(self.index)

    @rule(reader=st.integers(0, 1))
    def resume(self, reader: int) -> None:
        merge, got = self.readers[reader]
        self.readers[reader] = (MergeIterator(merge.after, merge.delivery_offset), got)

    @rule(offset=st.integers(0, 300))
    def look_up(self, offset: int) -> None:
        assert holds(self.rows, offset) == self.index.contains(offset)

    @invariant()
    def counts(self) -> None:
        campaigns.count("steps of a model")
        if hasattr(self, "index"):
            key = Key(self.now, self.end - 1)
            assert records_up_to(self.rows, key) == self.counter.advance(self.index, key) == self.index.rank(key)
            self.index.check()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestLiveMerge = LiveMerge.TestCase
TestLiveMerge.settings = settings(max_examples=campaigns.examples(30), stateful_step_count=25, deadline=None)
