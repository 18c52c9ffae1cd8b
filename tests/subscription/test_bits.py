from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from afterlog.subscription import bits

OFFSETS = st.one_of(
    st.sets(st.integers(0, 300), max_size=150),
    st.sets(st.integers(0, 2**62), max_size=5),
    st.integers(0, 200).map(lambda first: set(range(first, first + 80))),
)


@given(held=OFFSETS, change=OFFSETS)
def test_like_sets(held: set[int], change: set[int]) -> None:
    grown, shrunk = BitMap64(held), BitMap64(held)
    bits.insert(grown, BitMap64(change))
    bits.remove(shrunk, BitMap64(change))
    assert held | change == set(grown)
    assert held - change == set(shrunk)
    assert min(held, default=None) == bits.first(BitMap64(held))


@given(held=OFFSETS, column=OFFSETS)
def test_columns(held: set[int], column: set[int]) -> None:
    ascending = np.array(sorted(column), np.int64)
    assert column == set(bits.of_column(ascending))
    rows = bits.rows_in(ascending, BitMap64(held & column))
    assert [offset in held for offset in sorted(column)] == rows.tolist()
