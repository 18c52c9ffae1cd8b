from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index.offset_index import OffsetIndex
from tests.index.support import int64

BASE, INTERVAL = 1_000, 4_096
sizes = st.lists(st.integers(61, 9_000), max_size=60)


def places(batch_bytes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Positions and last offsets of batches of three records."""
    ends = np.cumsum(np.array(batch_bytes, np.int64))
    return ends - np.array(batch_bytes, np.int64), BASE + 2 + 3 * np.arange(len(batch_bytes))


def test_the_example_of_the_module() -> None:
    index = OffsetIndex(BASE, INTERVAL)
    index.add(int64(0, 4_103), int64(1_036, 1_041))
    assert bytes.fromhex("00000029 00001007") == index.to_bytes()


@given(sizes, st.lists(st.integers(0, 60)))
def test_does_not_depend_on_how_appends_were_cut_nor_on_reopening(batch_bytes: list[int], cuts: list[int]) -> None:
    positions, last_offsets = places(batch_bytes)
    whole, pieces, written = OffsetIndex(BASE, INTERVAL), OffsetIndex(BASE, INTERVAL), b""
    rows = whole.add(positions, last_offsets)
    bounds = [0, *sorted(cut for cut in cuts if cut <= len(batch_bytes)), len(batch_bytes)]
    for start, end in pairwise(bounds):
        count = pieces.count
        pieces.add(positions[start:end], last_offsets[start:end])
        written += pieces.since(count)
        pieces = OffsetIndex.from_bytes(pieces.to_bytes(), BASE, INTERVAL)
    assert whole.to_bytes() == pieces.to_bytes() == written
    assert whole.count == len(rows)
    whole.check()
    firsts = [row for row in range(1, len(positions)) if positions[row] // INTERVAL != positions[row - 1] // INTERVAL]
    assert firsts == rows.tolist()


@given(sizes, st.integers(-5, 200))
def test_floor_is_at_or_before_the_batch_and_near(batch_bytes: list[int], relative: int) -> None:
    positions, last_offsets = places(batch_bytes)
    index = OffsetIndex(BASE, INTERVAL)
    rows = index.add(positions, last_offsets)
    target = BASE + relative
    expected = max((int(positions[row]) for row in rows if last_offsets[row] <= target), default=0)
    assert expected == index.floor(target)
    holder = int(last_offsets.searchsorted(target))
    if holder < len(positions):
        assert index.floor(target) <= positions[holder]


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 7,
        b"\0" * 16,
        bytes.fromhex("0000000500001000 0000000500002000"),
        bytes.fromhex("0000000500001000 0000000600001000"),
        bytes.fromhex("fffffff000001000"),
        bytes.fromhex("0000000580000000"),
    ],
)
def test_refuses_what_was_not_written(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"whole number|not above|negative"):
        OffsetIndex.from_bytes(data, BASE, INTERVAL)


def test_refuses_what_does_not_fit_32_bits() -> None:
    index = OffsetIndex(BASE, INTERVAL)
    for positions, offsets in ((int64(2**31), int64(BASE)), (int64(5_000), int64(BASE + 2**31))):
        with pytest.raises(ValueError, match="roll the segment"):
            index.add(positions, offsets)
    assert index.count == 0
    index.add(int64(2**31 - 1), int64(BASE + 2**31 - 1))
    assert bytes.fromhex("7fffffff 7fffffff") == index.to_bytes()


@given(sizes, st.lists(st.integers(0, 200), max_size=20))
def test_spans_hold_their_batches(batch_bytes: list[int], relative: list[int]) -> None:
    positions, last_offsets = places(batch_bytes)
    index = OffsetIndex(BASE, INTERVAL)
    index.add(positions, last_offsets)
    end = sum(batch_bytes)
    offsets = np.array(sorted(BASE + one for one in relative if BASE + one < BASE + 3 * len(batch_bytes)), np.int64)
    start, stop = index.spans(offsets, end)
    starts = {0, end, *positions.tolist()}
    for offset, first, last in zip(offsets.tolist(), start.tolist(), stop.tolist(), strict=True):
        row = (offset - BASE) // 3
        assert {first, last} <= starts
        assert first <= positions[row] < positions[row] + batch_bytes[row] <= last
        assert first == index.floor(offset)


@given(sizes)
def test_a_batch_ends_at_the_next_indexed_one_or_before(batch_bytes: list[int]) -> None:
    positions, last_offsets = places(batch_bytes)
    index = OffsetIndex(BASE, INTERVAL)
    indexed = positions[index.add(positions, last_offsets)].tolist()
    end = sum(batch_bytes)
    found = index.next_indexed(positions, end)
    assert [
        min((each for each in indexed if each > begin), default=end) for begin in positions.tolist()
    ] == found.tolist()
    assert bool((positions + np.array(batch_bytes, np.int64) <= found).all())
