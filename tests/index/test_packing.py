"""The packed chunk: promises held by both implementations, and the two held against each other on whatever bytes."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterlog.base.files import Bytes
from afterlog.index import _packing, packed_chunk, packing
from afterlog.index.growing_columns import Int64Array, UInt32Array
from afterlog.index.packed_chunk import BLOCK, ENTRIES_MAX, HEAD, TABLE_COLUMNS
from tests.index.support import INT64_MAX, Row

Columns = tuple[Int64Array, UInt32Array]
IMPLEMENTATIONS = [packed_chunk, _packing]
both = pytest.mark.parametrize("kernel", IMPLEMENTATIONS, ids=["pure", "compiled"])
UINT32_MAX = 2**32 - 1
EXAMPLE: list[Row] = [(5_000, 7, 700, 2), (6_000, 5, 500, 1), (6_000, 9, 900, 3), (9_000, 6, 603, 1)]


def columns_of(rows: list[Row]) -> Columns:
    columns = np.array(sorted(rows), np.int64).reshape(len(rows), 4)
    return np.ascontiguousarray(columns[:, 0]), np.ascontiguousarray(columns[:, 1:].T.astype(np.uint32))


def seeded(seed: int, count: int, span: int, unit: int, sizes: int, records_max: int, spread: int = 5) -> Columns:
    """Entries as a log has them: `spread` offsets apart on average, due within `span` units."""
    random = np.random.default_rng(seed)
    records = random.integers(1, records_max + 1, count)
    ends = np.cumsum(records + random.integers(0, 2 * spread, count))
    position = np.cumsum(random.integers(100, 101 + sizes, count))
    due = 1_700_000_000_000 + unit * random.integers(0, span + 1, count)
    rows = np.lexsort((ends, due))
    return due[rows], np.array([ends - records, position, records], np.uint32).take(rows, axis=1)


def packed(columns: Columns) -> Bytes | None:
    """What both implementations make of the columns, which must be the same."""
    plain, compiled = (kernel.pack(*columns) for kernel in IMPLEMENTATIONS)
    assert (plain is None) == (compiled is None)
    if plain is not None:
        assert plain.tobytes() == compiled.tobytes()
    return plain


def unpacked(data: Bytes, entries: int) -> Columns | str:
    """What both implementations find in the bytes, or why they refuse them, which must be the same."""
    outcomes: list[Columns | str] = []
    for kernel in IMPLEMENTATIONS:
        try:
            outcomes.append(kernel.unpack(data, entries))
        except ValueError as error:
            outcomes.append(str(error))
    plain, compiled = outcomes
    if isinstance(plain, str) or isinstance(compiled, str):
        assert plain == compiled
    else:
        assert same(plain, compiled)
    return plain


def same(one: Columns, other: Columns) -> bool:
    types = [(column.dtype, column.shape, column.flags.c_contiguous) for column in (*one, *other)]
    return types[:2] == types[2:] and all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def test_the_compiled_one_is_taken() -> None:
    assert (_packing.pack, _packing.unpack) == (packing.pack, packing.unpack)


@both
def test_the_example_of_the_form(kernel: ModuleType) -> None:
    data = kernel.pack(*columns_of(EXAMPLE))
    assert (5_000, 1_000, 5) == HEAD.unpack_from(data)
    assert [0, 0, 1, 500, 400] == data[24:44].view("<u4").tolist()
    assert [0, 3, 3, 2] == data[44:48].tolist()
    assert bytes.fromhex("2102 7001 90") == data[48:].tobytes()
    assert same(columns_of(EXAMPLE), kernel.unpack(data, 4))


@given(
    seed=st.integers(0, 2**32),
    count=st.one_of(st.integers(1, 300), st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 1_000])),
    span=st.sampled_from([0, 1, 40, 50_000, UINT32_MAX]),
    unit=st.sampled_from([1, 7, 1_000]),
    sizes=st.sampled_from([0, 1, 1_000]),
    records_max=st.sampled_from([1, 5, 100_000]),
    spread=st.sampled_from([1, 1_000]),
)
def test_what_was_packed_is_unpacked(
    seed: int, count: int, span: int, unit: int, sizes: int, records_max: int, spread: int
) -> None:
    columns = seeded(seed, count, span, unit, sizes, records_max, spread)
    data = packed(columns)
    assert data is not None
    assert same(columns, unpacked(data, count))


wild = st.one_of(st.integers(0, 3), st.integers(0, UINT32_MAX), st.sampled_from([2**31, UINT32_MAX]))


@given(
    rows=st.lists(
        st.tuples(st.one_of(st.integers(0, 9), st.integers(0, INT64_MAX)), wild, wild, st.one_of(st.just(1), wild)),
        min_size=1,
        max_size=6,
        unique_by=lambda row: row[1],
    )
)
@example(rows=[(0, 0, 0, 1), (UINT32_MAX, 1, 0, 1)])
@example(rows=[(0, 0, 0, 1), (UINT32_MAX + 1, 1, 0, 1)])
@example(rows=[(0, 0, 0, 1), (INT64_MAX, 1, 0, 1)])
@example(rows=[(INT64_MAX, 0, 0, 1)])
@example(rows=[(5, 0, UINT32_MAX, UINT32_MAX), (5, UINT32_MAX, 0, UINT32_MAX)])
@example(rows=[(5, 0, 0, 1), (5, 1, UINT32_MAX, 1), (5, UINT32_MAX, 1, 1)])
@example(rows=[(5, 0, 0, 2), (5, 1, 0, 1)])
@example(rows=[(5, 0, 0, 0)])
def test_whatever_cannot_be_packed_is_none_and_the_rest_comes_back(rows: list[Row]) -> None:
    columns = columns_of(rows)
    data = packed(columns)
    in_order = sorted(row[1:] for row in rows)
    overlap = any(one[0] + one[2] > other[0] for one, other in pairwise(in_order))
    if data is not None:
        assert same(columns, unpacked(data, len(rows)))
        assert not overlap
    elif not overlap and all(row[3] for row in rows):
        dues = [row[0] for row in rows]
        assert max(dues) - min(dues) > UINT32_MAX


@both
def test_limits(kernel: ModuleType) -> None:
    row = np.arange(ENTRIES_MAX + 1, dtype=np.int64)
    details = np.array([row, row * 9, np.ones(len(row))], np.uint32)
    data = kernel.pack(row[:-1], np.ascontiguousarray(details[:, :-1]))
    assert same((row[:-1], details[:, :-1].copy()), kernel.unpack(data, ENTRIES_MAX))
    assert kernel.pack(row, details) is None
    assert kernel.pack(row[:0], np.ascontiguousarray(details[:, :0])) is None
    for entries in (-1, 0, 1, ENTRIES_MAX - BLOCK, ENTRIES_MAX + 1, 2**62):
        with pytest.raises(ValueError, match="another size"):
            kernel.unpack(data, entries)


@both
def test_columns_may_be_read_only_and_bytes_lie_anywhere(kernel: ModuleType) -> None:
    deliver_after, details = columns_of(EXAMPLE)
    deliver_after.flags.writeable = details.flags.writeable = False
    data = kernel.pack(deliver_after, details)
    shifted = np.concatenate((np.zeros(1, np.uint8), data))[1:]
    shifted.flags.writeable = False
    assert same((deliver_after, details), kernel.unpack(shifted, 4))


@pytest.mark.parametrize(
    ("sizes", "bytes_an_entry"),
    [(0, 0.2), (40, 1.0), (900, 1.5)],
)
def test_entries_in_a_row_with_one_time_take_hardly_more_than_their_positions(
    sizes: int, bytes_an_entry: float
) -> None:
    count = 5_000
    row = np.arange(count)
    position = np.cumsum(np.random.default_rng(1).integers(100, 101 + sizes, count))
    data = packed((np.full(count, 10**12), np.array([row, position, np.ones(count)], np.uint32)))
    assert data is not None
    assert len(data) <= bytes_an_entry * count


def test_no_bytes_are_read_as_what_cannot_be() -> None:
    """Every bit of a chunk flipped, and every cut: refused, or values in range; both implementations agree."""
    columns = seeded(3, 140, 50, 1_000, 10, 3)
    data = packed(columns)
    assert data is not None
    reasons = set()
    for position in range(len(data)):
        assert isinstance(unpacked(data[:position], 140), str)
        if position > 120 and position % 7:  # beyond the tables all bytes are alike
            continue
        for bit in range(8):
            bad = data.copy()
            bad[position] ^= 1 << bit
            found = unpacked(bad, 140)
            if isinstance(found, str):
                reasons.add(found)
            else:
                deliver_after, (offset, _, records) = found
                assert (np.diff(deliver_after) >= 0).all()
                assert deliver_after[0] >= 0
                assert len(set(offset.tolist())) == 140
                assert records.min() >= 1
    assert {packed_chunk.FORM, packed_chunk.RANGE} == reasons


@given(
    entries=st.integers(1, 3 * BLOCK),
    head=st.tuples(st.integers(-(2**63), INT64_MAX), st.integers(-(2**63), INT64_MAX), st.integers(0, UINT32_MAX)),
    widths=st.lists(st.lists(st.integers(0, 33), min_size=4, max_size=4), min_size=3, max_size=3),
    seed=st.integers(0, 2**32),
    small=st.booleans(),
)
def test_noise_behind_a_head_is_refused_or_read_by_both_alike(
    entries: int, head: tuple[int, int, int], widths: list[list[int]], seed: int, small: bool
) -> None:
    random, blocks = np.random.default_rng(seed), -(-entries // BLOCK)
    table = random.integers(0, 9 if small else 2**32, (TABLE_COLUMNS, blocks)).astype("<u4")
    table[5] = np.array(widths[:blocks], np.uint8).view("<u4").reshape(-1)
    counts = np.minimum(entries - np.arange(0, entries, BLOCK), BLOCK)
    size = int(((np.array(widths[:blocks]).T * counts + 7) // 8).sum())
    start = (abs(head[0]) // 2, 1 + abs(head[1]) % 1_000, 0) if small else head
    noise = random.integers(0, 256, size).astype(np.uint8).tobytes()
    unpacked(np.frombuffer(HEAD.pack(*start) + table.tobytes() + noise, np.uint8), entries)
