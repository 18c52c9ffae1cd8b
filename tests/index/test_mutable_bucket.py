from __future__ import annotations

import threading
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index.entries import Entries, Key
from afterlog.index.mutable_bucket import SINGLES, MutableBucket, Start
from afterlog.index.sorted_columns import SortedColumns
from tests.index.support import (
    INT64_MAX,
    Row,
    due_counts,
    dues,
    entries_of,
    holds,
    next_due,
    records_up_to,
    rows_in_offset_order,
    rows_of,
)


@given(
    rows=rows_in_offset_order(max_size=60),
    pieces=st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans())),
    due=dues,
    offset=st.sampled_from([-1, 0, 5, 100_002, INT64_MAX]),
    limit=st.integers(0, 70),
)
@patch("afterlog.index.mutable_bucket.SINGLES", 9)
@patch("afterlog.index.mutable_bucket._ADDED_SINGLY", 2)
@patch("afterlog.index.mutable_bucket.FRESH", 3)
def test_answers_like_a_list(
    rows: list[Row], pieces: list[tuple[int, bool, bool]], due: int, offset: int, limit: int
) -> None:
    bucket, key, start = MutableBucket(), Key(due, offset), 0
    for end, singly, read in [*sorted(pieces), (len(rows), False, False)]:
        piece = rows[start:end]
        if singly:
            for row in piece:
                bucket.add(*row)
        else:
            bucket.add_many(entries_of(piece))
        bucket.check()
        start += len(piece)
        if read:
            assert records_up_to(rows[:start], key) == bucket.records_up_to(key)
    assert (len(rows), sum(row[3] for row in rows)) == (bucket.count, bucket.records)
    assert sorted(rows) == rows_of(bucket.entries())
    for row in rows[:3]:
        split = Start(0, row[2], row[1])
        assert sorted(each for each in rows if each[1] < split.offset) == rows_of(bucket.entries(split.offset))
        rest = bucket.behind(split)
        rest.check()
        assert sorted(each for each in rows if each[1] >= split.offset) == rows_of(rest.entries())
        assert split == rest.start
    assert next_due(rows, Key(-1, -1)) == bucket.next_due()
    for probe in (key, *(Key(*row[:2]) for row in rows[:4]), *(Key(row[0], offset) for row in rows[:4])):
        assert records_up_to(rows, probe) == bucket.records_up_to(probe)
        assert next_due(rows, probe) == bucket.next_due(probe)
        expected = [row for row in sorted(rows) if key < row[:2] <= probe][:limit]
        assert expected == rows_of(bucket.between(key, probe, limit))
    edges = [0, due, INT64_MAX]
    assert due_counts(rows, edges) == bucket.due_counts(np.array(edges, np.int64)).tolist()
    for probed in (offset, *range(12)):
        assert holds(rows, probed) == bucket.contains(probed)


def test_singles_become_blocks_and_blocks_stay_few() -> None:
    bucket, rows = MutableBucket(), []
    for offset in range(5 * SINGLES + 7):
        rows.append((offset * 7_919 % 1_000, offset, offset * 10, 1))
        bucket.add(*rows[-1])
    for first in range(rows[-1][1] + 1, 40_000, 9):
        more: list[Row] = [(offset % 97, offset, 0, 1) for offset in range(first, first + 9)]
        rows += more
        bucket.add_many(entries_of(more))
    bucket.check()
    assert len(bucket._held[0].parts()) <= 16
    assert sorted(rows) == rows_of(bucket.entries())


def test_what_is_added_while_a_reader_sorts_is_there() -> None:
    bucket, rows = MutableBucket(), [(7 * offset % 100, offset, offset, 1) for offset in range(160)]
    including, added = SortedColumns.including, iter([rows[40:80], rows[80:81]])

    def slowly(columns: SortedColumns[Entries], fresh: Entries) -> SortedColumns[Entries]:
        bucket.add_many(entries_of(next(added)))
        return including(columns, fresh)

    bucket.add_many(entries_of(rows[:40]))
    with patch.object(SortedColumns, "including", slowly):
        assert (40, 80) == (bucket.records_up_to(Key(INT64_MAX, INT64_MAX)), bucket.count)
        assert (81, 81) == (bucket.records_up_to(Key(INT64_MAX, INT64_MAX)), bucket.count)
    bucket.check()
    bucket.add_many(entries_of(rows[81:]))
    bucket.check()
    assert sorted(rows) == rows_of(bucket.entries())
    assert 160 == bucket.records == bucket.count


def test_offsets_must_follow() -> None:
    bucket = MutableBucket()
    bucket.add(5, 10, 0, 1)
    for rows in ([(5, 10, 0, 1)], [(5, 9, 0, 1)] * 20, [(5, 12, 0, 1), (5, 11, 0, 1)]):
        with pytest.raises(ValueError, match="offset order"):
            bucket.add_many(entries_of(rows))
    with pytest.raises(ValueError, match="offset order"):
        bucket.add(9, 3, 0, 1)
    assert bucket.count == 1
    bucket.check()


def test_reads_while_another_thread_adds() -> None:
    bucket, stop, failures = MutableBucket(), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            before = bucket.count
            rows = rows_of(bucket.between(Key(-1, -1), Key(INT64_MAX, INT64_MAX), 10**6))
            after = bucket.count
            if not before <= len(rows) <= after or rows != sorted(rows):
                failures.append((before, len(rows), after))

    reader = threading.Thread(target=read)
    reader.start()
    for offset in range(0, 6_000, 20):
        bucket.add(offset % 13, offset, 0, 1)
        bucket.add_many(entries_of([(one % 11, one, 0, 1) for one in range(offset + 1, offset + 20)]))
    stop.set()
    reader.join()
    assert failures == []
    assert bucket.count == 6_000
