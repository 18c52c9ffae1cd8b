from __future__ import annotations

import numpy as np
import pytest

from afterlog.index.time_bucket_tracker import TimeBucket

ARRAY_BYTES, BITMAP_BYTES = 200, 400
"""What an array and a bitmap take at least."""


EVEN_THEN_ODD = np.concatenate([np.arange(0, 2_000, 2), np.arange(1, 2_000, 2)])
"""Consecutive in the end, and no runs on the way."""


def bucket_of(offset: np.ndarray, singly: bool) -> TimeBucket:
    bucket = TimeBucket()
    if singly:
        for one in offset.tolist():
            bucket.add(one)
    else:
        bucket.add_many(offset)
    bucket.check()
    return bucket


@pytest.mark.parametrize("singly", [True, False])
@pytest.mark.parametrize("step", [1, 3, 70_000])
@pytest.mark.parametrize("first", [0, 2**32 - 500, 2**62])
def test_offsets_come_out_ascending_in_any_form(first: int, step: int, singly: bool) -> None:
    offset = first + np.arange(1_000) * step
    bucket = bucket_of(np.concatenate([offset[500:], offset[:500]]) if singly else offset, singly)
    assert 1_000 == len(bucket)
    expected = offset.tolist()
    taken = [part for limit in (1, 2, 3, 800) for part in bucket.take(limit).tolist()]
    bucket.check()
    bucket.add(first)
    assert [*expected, first][:806] == taken
    assert [first, *expected[806:]] == bucket.take(10_000).tolist()
    assert 0 == len(bucket)


@pytest.mark.parametrize("singly", [True, False])
def test_few_or_scattered_offsets_stay_an_array_and_many_become_a_bitmap(singly: bool) -> None:
    assert bucket_of(np.arange(10), singly).memory_bytes() < ARRAY_BYTES + 4 * 10
    assert bucket_of(np.arange(1_000) * 70_000 // 64, singly).memory_bytes() < ARRAY_BYTES + 4.6 * 1_000
    assert bucket_of(np.arange(1_000) * 65_536, singly).memory_bytes() < ARRAY_BYTES + 8.6 * 1_000
    assert bucket_of(np.arange(0, 2_000, 2), singly).memory_bytes() < BITMAP_BYTES + 2.2 * 1_000
    assert bucket_of(np.arange(100_000), singly).memory_bytes() < BITMAP_BYTES + 2 * 8_300


def test_a_bitmap_is_compacted_at_the_end_of_a_round_that_brought_nothing() -> None:
    bucket = bucket_of(EVEN_THEN_ODD, singly=True)
    grown = bucket.memory_bytes()
    bucket.end_round()
    assert grown == bucket.memory_bytes() > 4_000
    bucket.add(2_000)
    bucket.end_round()
    assert bucket.memory_bytes() > 4_000
    bucket.end_round()
    assert bucket.memory_bytes() < BITMAP_BYTES + 100
    assert [*range(2_001)] == bucket.take(5_000).tolist()
