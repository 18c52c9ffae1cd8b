from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterlog.index.entries import Entries, Key, Keys, is_delivery_order, sort_by_due
from tests.index.support import INT64_MAX, Row, dues, entries_of, holds, rows_in_offset_order, rows_of


@given(rows_in_offset_order())
@example([(INT64_MAX, 0, 0, 1), (0, 1, 9, 1)])
def test_sorted_is_delivery_order(rows: list[Row]) -> None:
    entries = entries_of(rows).sorted()
    assert sorted(rows) == rows_of(entries)
    assert is_delivery_order(entries.deliver_after, entries.offset)
    assert entries.deliver_after.flags.c_contiguous


@given(st.lists(st.integers(-(2**63), INT64_MAX), max_size=30))
def test_the_sort_is_stable_at_any_width(values: list[int]) -> None:
    expected = sorted(range(len(values)), key=lambda row: (values[row], row))
    column = np.array(values, np.int64)
    in_order, rows = sort_by_due(column)
    assert (sorted(values), expected, values) == (in_order.tolist(), rows.tolist(), column.tolist())


@given(rows_in_offset_order(), dues, st.sampled_from([-1, 0, 3, 100_001, INT64_MAX]))
def test_rank_counts_keys_up_to(rows: list[Row], due: int, offset: int) -> None:
    entries = entries_of(sorted(rows))
    assert sum(row[:2] <= (due, offset) for row in rows) == entries.rank(Key(due, offset))


@given(rows_in_offset_order(), st.integers(-1, 60))
def test_contains_looks_inside_batches(rows: list[Row], offset: int) -> None:
    assert holds(rows, offset) == entries_of(rows).contains(offset)


def test_concatenate_copies_only_where_it_must() -> None:
    part = entries_of([(1, 2, 3, 4)])
    assert Entries.concatenate([Entries.empty(), part]) is part
    assert len(Entries.concatenate([])) == 0
    assert [(1, 2, 3, 4)] * 2 == rows_of(Entries.concatenate([part, part]))


def test_delivery_order_is_strict() -> None:
    assert is_delivery_order(np.array([1, 1, 2]), np.array([5, 6, 0]))
    assert not is_delivery_order(np.array([1, 1]), np.array([5, 5]))
    assert not is_delivery_order(np.array([2, 1]), np.array([5, 6]))


def test_a_search_does_not_copy_the_column() -> None:
    """A query of another type than the column's makes numpy convert all of it: some 10 ms here, against 2 us."""
    count = 10_000_000
    column = np.arange(count)
    entries = Entries(column, column, column, column)
    seconds = []
    for turn in range(15):
        start = perf_counter()
        entries.rank(Key(turn * 500_000, turn))
        seconds.append(perf_counter() - start)
    assert min(seconds) < 0.001


@pytest.mark.parametrize("count", [0, 1, 5, 256, 257, 3_000])
@pytest.mark.parametrize("spread", [1, 1_000, 2**62])
@pytest.mark.parametrize("offsets", [1, 2**40, 2**62])
def test_keys_are_sorted_from_whatever_order(count: int, spread: int, offsets: int) -> None:
    """Packed where both fit 63 bits, by lexsort where they do not, or are few."""
    random = np.random.default_rng(count)
    offset = random.permutation(count) * max(offsets // max(count, 1), 1)
    keys = Keys(random.integers(0, spread, count), offset)
    expected = sorted(zip(keys.deliver_after.tolist(), keys.offset.tolist(), strict=True))
    in_order = keys.sorted()
    assert expected == list(zip(in_order.deliver_after.tolist(), in_order.offset.tolist(), strict=True))
    again = in_order.sorted()
    assert expected == list(zip(again.deliver_after.tolist(), again.offset.tolist(), strict=True))
