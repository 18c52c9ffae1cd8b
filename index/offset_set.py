"""A set of offsets: a 64-bit Roaring bitmap that takes and gives columns.

Consecutive offsets cost next to nothing, scattered ones two bytes each, and never more than a bit for each offset
between the first and the last, apart from some hundred bytes for every 65,536 of them.
"""

from __future__ import annotations

from array import array

import numpy as np
from pyroaring import BitMap64

from afterlog.base.clock import INT64_MAX
from afterlog.index.entries import sort_by_due
from afterlog.index.growing_columns import Int64Array

_BITMAP_BYTES = 280
"""What the allocator gives for a BitMap64, apart from its containers; measured with pyroaring 1.2."""
_CONTAINER_BYTES = 105
"""And for a container, which holds offsets that agree in all but their low 16 bits, apart from their bytes."""
_CONTAINER_BITS = 16


class OffsetSet:
    """Offsets, 0 to 2^63-1. One thread at a time."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits = BitMap64()

    def __len__(self) -> int:
        return len(self._bits)

    def __contains__(self, offset: int) -> bool:
        return 0 <= offset <= INT64_MAX and offset in self._bits

    def add(self, offset: int) -> bool:
        """Whether it is new."""
        if offset in self:
            return False
        self._bits.add(offset)
        return True

    def add_many(self, offset: Int64Array) -> Int64Array:
        """Add a column; the rows of those that were new, in offset order. Of equal ones the first counts."""
        if len(offset) == 1:
            return np.zeros(int(self.add(int(offset[0]))), np.int64)
        ordered, rows = sort_by_due(offset)
        first = np.ones(len(ordered), np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        bits = bitmap_of(ordered)
        if not bits.isdisjoint(self._bits):
            first[ordered.searchsorted(column_of(bits & self._bits))] = False
        self._bits |= bits
        return rows if first.all() else rows[first]

    def remove_many(self, offset: Int64Array) -> None:
        """Those that are not there do not matter."""
        self._bits -= bitmap_of(np.sort(offset))

    def column(self) -> Int64Array:
        """All of them, ascending."""
        return column_of(self._bits)

    def compact(self) -> None:
        """Give back what runs of consecutive offsets do not need. One pass over the set."""
        compact(self._bits)

    def memory_bytes(self) -> int:
        return bitmap_bytes(self._bits)


def bitmap_of(ascending: Int64Array) -> BitMap64:
    """A bitmap of a sorted column, run-optimised. By way of an array.array: four times as fast as from numpy."""
    values = array("Q")
    values.frombytes(ascending.view(np.uint8).data)
    return BitMap64(values)


def column_of(bits: BitMap64) -> Int64Array:
    """The offsets in a bitmap, ascending; a copy."""
    return np.frombuffer(bits.to_array(), np.int64)


def compact(bits: BitMap64) -> None:
    """Runs where they are smaller, and no spare room."""
    bits.run_optimize()
    bits.shrink_to_fit()


def bitmap_bytes(bits: BitMap64) -> int:
    """Memory of a bitmap; spare room in arrays that grow is not seen."""
    told = bits.get_statistics()
    stored = told["n_bytes_array_containers"] + told["n_bytes_run_containers"] + told["n_bytes_bitset_containers"]
    return _BITMAP_BYTES + _CONTAINER_BYTES * told["n_containers"] + stored


def bitmap_bytes_at_most(first: int, last: int, count: int) -> int:
    """Memory of a bitmap of so many offsets between these two, were they spread evenly and none consecutive."""
    containers = (last >> _CONTAINER_BITS) - (first >> _CONTAINER_BITS) + 1
    return _BITMAP_BYTES + _CONTAINER_BYTES * min(containers, count) + 2 * count
