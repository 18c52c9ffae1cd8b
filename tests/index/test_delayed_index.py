from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from afterlog.errors import CorruptFile
from afterlog.index.bucket_snapshot import MappedSnapshot
from afterlog.index.delayed_index import DelayedIndex, DueCounter
from afterlog.index.entries import Key
from afterlog.index.mutable_bucket import MutableBucket
from afterlog.index.run import Run
from tests.index.support import INT64_MAX, Row, due_counts, entries_of, holds, make_run, next_due, records_up_to

ROWS: list[Row] = [(offset * 37 % 50, offset * 2, offset * 100, 2) for offset in range(90)]
PARTS = [ROWS[:30], ROWS[30:60], ROWS[60:]]


@pytest.fixture
def index(tmp_path: Path) -> DelayedIndex:
    """Two runs and a bucket."""
    index = DelayedIndex()
    for part in PARTS[:2]:
        index.replace((), [make_run(tmp_path, part, max_entries=7)])
    index.add(*PARTS[2][0])
    index.add_many(entries_of(PARTS[2][1:]))
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


def test_replacing_is_one_step_with_a_version(index: DelayedIndex, tmp_path: Path) -> None:
    before = index.snapshot()
    merged = make_run(tmp_path, PARTS[0] + PARTS[1])
    index.replace(index.runs, [merged])
    index.replace((), [make_run(tmp_path, PARTS[2])], MutableBucket())
    index.check()
    assert before.version + 2 == index.version
    assert merged is index.runs[0]
    assert (90, 180, 0) == (index.count, index.records, index.bucket.count)
    assert 2 == len(before.runs)
    assert 30 == before.bucket.count


def test_what_is_no_replacement_changes_nothing(index: DelayedIndex, tmp_path: Path) -> None:
    before = index.snapshot()
    with pytest.raises(ValueError, match="overlap"):
        index.replace((), [make_run(tmp_path, ROWS[20:40])])
    with pytest.raises(ValueError, match="not in the index"):
        index.replace([make_run(tmp_path, ROWS[:30])], ())
    assert before is index.snapshot()


def test_removed_records_keep_their_ranks(index: DelayedIndex) -> None:
    key = Key(49, INT64_MAX)
    counter = DueCounter(index)
    assert 180 == index.rank(key) == counter.advance(key)
    index.replace(index.runs[:1], ())
    assert (60, 120) == (index.removed_records, index.records_up_to(key))
    assert 180 == index.rank(key) == counter.advance(key)
    assert 7 == DelayedIndex(7).rank(key)


def test_a_counter_counts_what_the_index_counts_through_additions_and_seals(tmp_path: Path) -> None:
    index, rows = DelayedIndex(), list[Row]()
    counter, random = DueCounter(index), np.random.default_rng(5)
    assert counter.next_due() is None
    for now in range(0, 400, 3):
        offset = len(rows)
        fresh = [(now + int(delay), offset + row, 0, 1) for row, delay in enumerate(random.integers(0, 90, 40))]
        rows += fresh
        index.add_many(entries_of(fresh))
        if now % 4 == 0:
            sealed = rows[-index.bucket.count :]
            index.replace((), [make_run(tmp_path, sealed, max_entries=16)], MutableBucket())
        key = Key(now, len(rows) - 1)
        assert records_up_to(rows, key) == index.rank(key) == counter.advance(key)
        assert next_due(rows, key) == counter.next_due()
    assert counter.advance(Key(5, 0)) == counter.advance(key)


def test_a_counter_is_right_after_a_chunk_could_not_be_read(tmp_path: Path) -> None:
    path = make_run(tmp_path, PARTS[1], max_entries=7).path
    data = bytearray(path.read_bytes())
    index = DelayedIndex()
    for run in (make_run(tmp_path, PARTS[0], max_entries=7), Run(MappedSnapshot(path, np.frombuffer(data, np.uint8)))):
        index.replace((), [run])
    counter, rows = DueCounter(index), PARTS[0] + PARTS[1]
    position = int(index.runs[1].directory.position[2])
    assert records_up_to(rows, Key(2, 3)) == counter.advance(Key(2, 3))
    data[position] ^= 1
    for due in (30, 32):
        with pytest.raises(CorruptFile, match="chunk 2 fails its checksum"):
            counter.advance(Key(due, INT64_MAX))
    data[position] ^= 1
    key = Key(33, INT64_MAX)
    assert records_up_to(rows, key) == counter.advance(key)
    assert next_due(rows, key) == counter.next_due()
