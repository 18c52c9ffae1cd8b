"""Large Roaring bitmaps of offsets, changed a little at a time without a walk through all of them.

Roaring's own `-=` and `|=` go through every container of the large set: 2.5 ms where a million offsets lie in 150,000
of them (pyroaring 1.2), and `len` and `min` 0.4 ms. So few offsets are put in and taken out one by one, and a range as
a range, at 0.2 to 0.6 us each; `&` jumps, and costs what the smaller set does.

A range put into a bitmap makes a run, and single offsets taken out of runs make more of them, up to a memmove of
100 KB each: whoever takes out singles calls `run_optimize` now and then (`AckSet`).

pyroaring 1.2 never frees an iterator that has nothing before it, 216 bytes: nobody iterates over an empty bitmap, or
asks for the `next_set_bit` after the last.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from pyroaring import BitMap64

from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import bitmap_of, column_of
from afterlog.records.columns import Bools

FEW = 64
"""Up to here one by one."""


def of_column(ascending: Int64Array) -> BitMap64:
    """A bitmap of a sorted column; at once where it is a range."""
    count = len(ascending)
    if count and int(ascending[-1]) - int(ascending[0]) == count - 1:
        return of_range(int(ascending[0]), int(ascending[-1]) + 1)
    return bitmap_of(ascending)


def of_range(first: int, end: int) -> BitMap64:
    bits = BitMap64()
    bits.add_range(first, end)
    return bits


def of_one(offset: int) -> BitMap64:
    """At half the cost of a bitmap of a sequence."""
    bits = BitMap64()
    bits.add(offset)
    return bits


def first(bits: BitMap64) -> int | None:
    """The smallest offset; None of an empty set."""
    return bits.next_set_bit(0) if bits else None


def as_range(bits: BitMap64, count: int) -> tuple[int, int] | None:
    """(first, end) where these `count` offsets follow each other.

    Not by `contains_range`: of {65535, 131072} that of pyroaring 1.2 says that 65535 and 65536 are there.
    """
    low = bits.next_set_bit(0)
    return (low, low + count) if bits.range_cardinality(low, low + count) == count else None


def insert(held: BitMap64, offsets: BitMap64) -> None:
    """`held |= offsets`."""
    count = len(offsets)
    if not count:
        return
    if count == 1:
        held.add(offsets.min())
        return
    span = as_range(offsets, count)
    if span is not None:
        held.add_range(*span)
    elif count <= FEW:
        deque(map(held.add, offsets), maxlen=0)
    else:
        held |= offsets


def remove(held: BitMap64, offsets: BitMap64) -> None:
    """`held -= offsets`."""
    count = len(offsets)
    if not count:
        return
    if count == 1:
        held.discard(offsets.min())
        return
    span = as_range(offsets, count)
    if span is not None:
        held.remove_range(*span)
    elif count <= FEW:
        deque(map(held.discard, offsets), maxlen=0)
    else:
        held -= offsets


def rows_in(ascending: Int64Array, found: BitMap64) -> Bools:
    """Which rows of a sorted column are in `found`, a subset of it."""
    count = len(found)
    if count == len(ascending):
        return np.ones(count, np.bool_)
    rows = np.zeros(len(ascending), np.bool_)
    if count:
        rows[ascending.searchsorted(column_of(found))] = True
    return rows
