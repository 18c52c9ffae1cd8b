from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index.offset_set import OffsetSet
from tests.index.support import INT64_MAX, int64

some_offsets = st.lists(st.one_of(st.integers(0, 30), st.sampled_from([65_535, 65_536, 2**32, INT64_MAX])), max_size=30)


@given(columns=st.lists(some_offsets, max_size=4), gone=some_offsets)
def test_is_like_a_set(columns: list[list[int]], gone: list[int]) -> None:
    offsets, model = OffsetSet(), set[int]()
    for column in columns:
        first = {offset: row for row, offset in reversed([*enumerate(column)]) if offset not in model}
        assert [first[offset] for offset in sorted(first)] == offsets.add_many(int64(*column)).tolist()
        model |= {*column}
    assert sorted(model) == offsets.column().tolist()
    offsets.remove_many(int64(*gone))
    model -= {*gone}
    for offset in (*gone, 7, 7):
        assert (offset not in model) == offsets.add(offset)
        model.add(offset)
    assert sorted(model) == offsets.column().tolist()
    assert len(model) == len(offsets)
    assert model == {offset for offset in (*range(-1, 31), 65_535, 65_536, 2**32, INT64_MAX) if offset in offsets}
    assert 2**63 not in offsets


def test_memory() -> None:
    offsets = OffsetSet()
    assert offsets.memory_bytes() < 300
    offsets.add_many(np.arange(1_000_000))
    assert offsets.memory_bytes() < 3_000
    offsets.remove_many(np.arange(0, 1_000_000, 2))
    assert 125_000 < offsets.memory_bytes() < 140_000
    offsets.add_many(np.arange(0, 1_000_000, 2))
    offsets.compact()
    assert offsets.memory_bytes() < 3_000
