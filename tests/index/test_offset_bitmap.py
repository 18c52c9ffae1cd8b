from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index.offset_bitmap import BitmapBuilder

entries = st.tuples(st.integers(0, 3), st.one_of(st.integers(1, 3), st.integers(1, 300)))
"""The gap in front of an entry, and its records."""


@given(
    steps=st.lists(entries, min_size=1, max_size=20),
    first=st.sampled_from([0, 65_500, 2**31 - 50]),
    parts=st.integers(1, 4),
    random=st.randoms(use_true_random=False),
)
def test_holds_each_record_of_each_entry(steps: list[tuple[int, int]], first: int, parts: int, random: Random) -> None:
    rows, expected = list[tuple[int, int]](), set[int]()
    for gap, records in steps:
        rows.append((first + gap, records))
        expected.update(range(first + gap, first + gap + records))
        first += gap + records
    random.shuffle(rows)
    builder = BitmapBuilder()
    for part in (rows[start::parts] for start in range(min(parts, len(rows)))):
        builder.add(*np.array(part, np.uint32).T)
    assert expected == set(builder.finish())


def test_the_last_offset_of_all() -> None:
    builder = BitmapBuilder()
    builder.add(np.array([2**32 - 1], np.uint32), np.array([1], np.uint32))
    builder.add(np.array([0], np.uint32), np.array([2**32 - 1], np.uint32))
    assert 2**32 == len(builder.finish())
