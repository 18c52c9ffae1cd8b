from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from afterlog.base.errors import CorruptFile
from afterlog.index.bucket_snapshot import MappedSnapshot
from afterlog.index.delayed_index import DelayedIndex, DueCounter
from afterlog.index.entries import Key
from afterlog.index.mutable_bucket import MutableBucket, Start
from afterlog.index.run import Run
from tests.index.support import INT64_MAX, Row, due_counts, entries_of, holds, make_run, next_due, records_up_to

ROWS: list[Row] = [(offset * 37 % 50, offset * 2, offset * 100, 2) for offset in range(90)]
PARTS = [ROWS[:30], ROWS[30:60], ROWS[60:]]


@pytest.fixture
def index(tmp_path: Path) -> DelayedIndex:
    """Two runs and a bucket."""
    index = DelayedIndex()
    for part in PARTS[:2]:
        index = index.replacing((), [make_run(tmp_path, part, max_entries=7)])
    index.bucket.add(*PARTS[2][0])
    index.bucket.add_many(entries_of(PARTS[2][1:]))
    return index


def test_answers_like_a_list(index: DelayedIndex) -> None:
    index.check()
    assert (90, 180) == (index.count, index.records)
    assert next_due(ROWS, Key(-1, -1)) == index.next_due()
    for due in range(-1, 52):
        for key in (Key(due, -1), Key(due, 77), Key(due, INT64_MAX)):
            assert records_up_to(ROWS, key) == index.records_up_to(key) == index.rank(key)
            assert next_due(ROWS, key) == index.next_due(key)
    edges = list(range(52))
    assert due_counts(ROWS, edges) == index.due_counts(np.array(edges)).tolist()
    for offset in range(-1, 182):
        assert holds(ROWS, offset) == index.contains(offset)


def test_replacing_makes_another_and_leaves_the_one_before(index: DelayedIndex, tmp_path: Path) -> None:
    merged = make_run(tmp_path, PARTS[0] + PARTS[1])
    after = index.replacing(index.runs, [merged]).replacing((), [make_run(tmp_path, PARTS[2])], MutableBucket())
    after.check()
    assert merged is after.runs[0]
    assert (90, 180, 0) == (after.count, after.records, after.bucket.count)
    assert (2, 30, 90) == (len(index.runs), index.bucket.count, index.count)
    index.check()


def test_what_is_no_replacement_is_refused(index: DelayedIndex, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="overlap"):
        index.replacing((), [make_run(tmp_path, ROWS[20:40])])
    with pytest.raises(ValueError, match="overlap"):
        DelayedIndex.of([*index.runs, make_run(tmp_path, ROWS[20:40])])
    with pytest.raises(ValueError, match="not in the index"):
        index.replacing([make_run(tmp_path, ROWS[:30])], ())


def test_runs_are_in_two_groups_by_where_the_bucket_begins(index: DelayedIndex) -> None:
    first, second = index.runs
    assert ((), index.runs) == (index.sealed_runs, index.active_runs)
    bucket = MutableBucket(Start(second.coverage.first_offset, 0, second.coverage.end_offset))
    index = DelayedIndex.of(index.runs, bucket)
    assert ((first,), (second,)) == (index.sealed_runs, index.active_runs)


def test_removed_records_keep_their_ranks(index: DelayedIndex) -> None:
    key = Key(49, INT64_MAX)
    counter = DueCounter()
    assert 180 == index.rank(key) == counter.advance(index, key)
    after = index.replacing(index.runs[:1], ())
    assert (60, 120) == (after.removed_records, after.records_up_to(key))
    assert 180 == after.rank(key) == counter.advance(after, key) == counter.advance(index, key)
    assert 7 == DelayedIndex(removed_records=7).rank(key)


def test_a_counter_counts_what_the_index_counts_through_additions_and_seals(tmp_path: Path) -> None:
    index, rows = DelayedIndex(), list[Row]()
    counter, random = DueCounter(), np.random.default_rng(5)
    assert counter.next_due(index) is None
    for now in range(0, 400, 3):
        offset = len(rows)
        fresh = [(now + int(delay), offset + row, 0, 1) for row, delay in enumerate(random.integers(0, 90, 40))]
        rows += fresh
        index.bucket.add_many(entries_of(fresh))
        if now % 4 == 0:
            sealed = rows[-index.bucket.count :]
            index = index.replacing((), [make_run(tmp_path, sealed, max_entries=16)], MutableBucket())
        key = Key(now, len(rows) - 1)
        assert records_up_to(rows, key) == index.rank(key) == counter.advance(index, key)
        assert next_due(rows, key) == counter.next_due(index)
    assert counter.advance(index, Key(5, 0)) == counter.advance(index, key)


def test_a_counter_is_right_after_a_chunk_could_not_be_read(tmp_path: Path) -> None:
    path = make_run(tmp_path, PARTS[1], max_entries=7).path
    data = bytearray(path.read_bytes())
    index = DelayedIndex()
    for run in (make_run(tmp_path, PARTS[0], max_entries=7), Run(MappedSnapshot(path, np.frombuffer(data, np.uint8)))):
        index = index.replacing((), [run])
    counter, rows = DueCounter(), PARTS[0] + PARTS[1]
    position = int(index.runs[1].directory.position[2])
    assert records_up_to(rows, Key(2, 3)) == counter.advance(index, Key(2, 3))
    data[position] ^= 1
    for due in (30, 32):
        with pytest.raises(CorruptFile, match="chunk 2 fails its checksum"):
            counter.advance(index, Key(due, INT64_MAX))
    data[position] ^= 1
    key = Key(33, INT64_MAX)
    assert records_up_to(rows, key) == counter.advance(index, key)
    assert next_due(rows, key) == counter.next_due(index)
