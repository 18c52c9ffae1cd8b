from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index.key_rows import KeyRows
from tests.index.support import int64

hashes = st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), max_size=40)


def rows(column: list[int]) -> KeyRows:
    return KeyRows(int64(*column), np.arange(len(column)), np.arange(len(column)) * 10)


@given(hashes, hashes)
def test_matching_is_what_a_loop_finds(column: list[int], asked: list[int]) -> None:
    held = rows(column).sorted()
    held.check()
    which, at = held.matching(int64(*sorted(asked)))
    pairs = sorted(zip(which.tolist(), held.offset[at].tolist(), strict=True))
    expected = [
        (row, offset) for row, each in enumerate(sorted(asked)) for offset, there in enumerate(column) if each == there
    ]
    assert sorted(expected) == pairs
    for each in asked:
        expected = [(offset, offset * 10) for offset, there in enumerate(column) if there == each]
        assert expected == held.matching_one(each)


@given(st.lists(hashes, max_size=4), st.integers(1, 9))
def test_merged_a_few_at_a_time(columns: list[list[int]], chunk_rows: int) -> None:
    parts, offset = list[KeyRows](), 0
    for column in columns:
        parts.append(KeyRows(int64(*column), np.arange(offset, offset + len(column)), int64(*column) * 0).sorted())
        offset += len(column)
    expected = KeyRows.concatenate(parts).sorted()
    merged = KeyRows.concatenate([*KeyRows.merged(parts, chunk_rows)])
    merged.check()
    assert (expected.hashed.tolist(), expected.offset.tolist()) == (merged.hashed.tolist(), merged.offset.tolist())


def test_what_cannot_be() -> None:
    for wrong in (
        KeyRows(int64(2, 1), int64(0, 1), int64(0, 0)),
        KeyRows(int64(1, 1), int64(1, 0), int64(0, 0)),
        KeyRows(int64(1), int64(-1), int64(0)),
        KeyRows(int64(1), int64(0), int64(-1)),
    ):
        with pytest.raises(ValueError, match=r"order|negative"):
            wrong.check()
    KeyRows.empty().check()
    assert KeyRows.empty() is KeyRows.concatenate([KeyRows.empty()])
