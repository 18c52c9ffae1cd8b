from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index.entries import Entries, Key, Keys
from afterlog.index.sorted_columns import HELD_MAX, SortedColumns
from tests.index.support import (
    INT64_MAX,
    Row,
    due_counts,
    dues,
    entries_of,
    int64,
    next_due,
    records_up_to,
    rows_in_offset_order,
    rows_of,
)

END = Key(INT64_MAX, INT64_MAX)
probes = st.builds(Key, dues | st.just(-1), st.sampled_from([-1, 0, 5, 100_002, INT64_MAX]))
pairs_of_ints = st.tuples(dues, st.integers(0, 40) | st.sampled_from([2**33, INT64_MAX]))


def keys_of(pairs: list[tuple[int, int]]) -> Keys:
    return Keys(*np.array(pairs, np.int64).reshape(len(pairs), 2).T.copy())


def pairs_of(keys: Keys) -> list[tuple[int, int]]:
    return list(zip(keys.deliver_after.tolist(), keys.offset.tolist(), strict=True))


def check_between(
    columns: SortedColumns[Keys], model: list[tuple[int, int]], after: Key, upto: Key, limit: int
) -> None:
    """Sorted together, the parts begin with what is asked for."""
    parts = columns.between(after, upto, limit)
    assert all(0 < len(part) <= limit for part in parts)
    expected = [pair for pair in sorted(model) if after < pair <= upto]
    assert expected[:limit] == sorted(pair for part in parts for pair in pairs_of(part))[:limit]
    assert expected == sorted(pair for part in columns.between(after, upto) for pair in pairs_of(part))


@given(
    groups=st.lists(st.lists(pairs_of_ints, max_size=20), max_size=8),
    cuts=st.lists(probes, max_size=8),
    low=probes,
    high=probes,
    limit=st.integers(1, 30),
)
def test_keys_in_any_order_are_like_a_list(
    groups: list[list[tuple[int, int]]], cuts: list[Key], low: Key, high: Key, limit: int
) -> None:
    columns, model = SortedColumns[Keys](), list[tuple[int, int]]()
    for number, group in enumerate(groups):
        fresh = [pair for pair in dict.fromkeys(group) if pair not in model]
        before, pairs_before = columns, sorted(pair for part in columns.parts() for pair in pairs_of(part))
        columns = columns.including(keys_of(fresh))
        model += fresh
        if number < len(cuts):
            columns = columns.behind(cuts[number])
            model = [pair for pair in model if pair > cuts[number]]
        columns.check()
        assert pairs_before == sorted(pair for part in before.parts() for pair in pairs_of(part)), "a value"
        assert len(model) == columns.count <= columns.held() <= HELD_MAX * columns.count
        assert sorted(model) == sorted(pair for part in columns.parts() for pair in pairs_of(part))
    edges = [0, 3, low.deliver_after, INT64_MAX]
    assert [sum(due < edge for due, _ in model) for edge in edges] == columns.counts(int64(*edges)).tolist()
    assert min((due for due, _ in model), default=None) == columns.next_due()
    for key in (low, high):
        assert sum(pair <= key for pair in model) == columns.rank(key)
        assert min((due for due, offset in model if (due, offset) > key), default=None) == columns.next_due(key)
    check_between(columns, model, low, high, limit)
    assert columns.rank(high) == sum(map(len, columns.between(None, high)))


@given(rows=rows_in_offset_order(max_size=60), ends=st.lists(st.integers(0, 60), max_size=6), probe=probes)
def test_entries_count_for_their_records(rows: list[Row], ends: list[int], probe: Key) -> None:
    columns, start = SortedColumns[Entries](), 0
    for end in [*sorted(ends), len(rows)]:
        columns = columns.including(entries_of(rows[start:end]))
        columns.check()
        start = max(start, min(end, len(rows)))
    assert len(rows) == columns.count
    assert sorted(rows) == sorted(row for part in columns.parts() for row in rows_of(part))
    for key in (probe, END, *(Key(*row[:2]) for row in rows[:5])):
        assert records_up_to(rows, key) == columns.rank(key)
        assert next_due(rows, key) == columns.next_due(key)
        behind = columns.behind(key)
        behind.check()
        assert sum(row[3] for row in rows) - records_up_to(rows, key) == behind.rank(END)
    edges = [0, probe.deliver_after, INT64_MAX]
    assert due_counts(rows, edges) == columns.counts(int64(*edges)).tolist()


@pytest.mark.parametrize("piece", [1, 7, 512])
def test_few_levels_each_at_least_twice_as_large_as_the_next(piece: int) -> None:
    columns = SortedColumns[Keys]()
    for first in range(0, 1_000 * piece, piece):
        offset = np.arange(first, first + piece)
        columns = columns.including(Keys(offset * 7_919 % 1_000, offset))
    columns.check()
    sizes = [len(part) for part in columns.parts()]
    assert all(larger >= 2 * smaller for larger, smaller in pairwise(sizes))
    assert len(sizes) <= 10


def test_what_was_left_out_is_let_go_of() -> None:
    """Step by step, so that none of the steps leaves out much."""
    columns = SortedColumns[Keys]().including(Keys(np.arange(100_000), np.arange(100_000)))
    for due in range(0, 99_990, 10):
        columns = columns.behind(Key(due, INT64_MAX))
        assert columns.held() <= HELD_MAX * columns.count
    [part] = columns.parts()
    assert part.offset.base is None or len(part.offset.base) <= HELD_MAX * len(part)
    assert columns.behind(END).parts() == []


def test_levels_that_stay_are_shared() -> None:
    columns = SortedColumns[Keys]().including(Keys(np.arange(1_000), np.arange(1_000)))
    more = columns.including(Keys(int64(5), int64(1_000)))
    assert more.parts()[0] is columns.parts()[0]
    assert columns.including(Keys.empty()) is columns
    assert columns.behind(Key(-1, 0)).parts()[0] is columns.parts()[0]
