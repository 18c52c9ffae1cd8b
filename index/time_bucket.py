"""One time bucket: the offsets that are due at one time, in the form that is smallest.

    array ──a bitmap pays──► bitmap ──has stopped growing──► bitmap, run-optimised

A few offsets, or ones that lie far apart, are an array of 4 bytes each (8 once one is beyond 2^32); a bitmap costs 280
bytes, 105 for each 65,536 offsets that it spans, and 2 an offset at most. So a bucket of 1,024 consecutive offsets
shrinks from 4 KiB to 400 bytes, and a bucket of a hundred from all over a day stays an array of 500 where a bitmap
would have 11,000. An array asks whether a bitmap pays at 64 offsets, and whenever it has doubled since.
"""

from __future__ import annotations

import sys
from array import array

import numpy as np
from pyroaring import BitMap64

from afterlog.index.entries import is_sorted
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import bitmap_bytes, bitmap_bytes_at_most, bitmap_of, column_of, compact

_ASKED_FIRST = 64
_ROUNDS = 2
"""Rounds that end until a bucket has stopped growing: that of its last addition, and one without any."""
_UINT32_MAX = 2**32 - 1


class TimeBucket:
    """Offsets, none twice: the caller sees to that. One thread at a time."""

    __slots__ = ("_ask_at", "_offsets", "_rounds")

    def __init__(self) -> None:
        self._offsets: array[int] | BitMap64 = array("I")
        self._ask_at = _ASKED_FIRST
        self._rounds = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int) -> None:
        self._rounds = _ROUNDS
        if isinstance(self._offsets, BitMap64):
            self._offsets.add(offset)
        else:
            self._array_for(offset).append(offset)
            self._ask()

    def add_many(self, ascending: Int64Array) -> None:
        """Add a sorted column."""
        self._rounds = _ROUNDS
        if isinstance(self._offsets, BitMap64):
            self._offsets |= bitmap_of(ascending)
        else:
            self._extend(ascending)
            self._ask()

    def take(self, limit: int) -> Int64Array:
        """Take out the lowest `limit` offsets, ascending."""
        offsets = self._offsets
        if isinstance(offsets, BitMap64) and limit < len(offsets):
            lowest = offsets[:limit]
            offsets -= lowest
            return column_of(lowest)
        column = self.column()
        if not is_sorted(column):
            column.sort()
        self._offsets = array("I")
        if limit < len(column):
            self._extend(column[limit:])
        return column[:limit]

    def end_round(self) -> None:
        """Of additions to all buckets. At the end of the first that brought nothing here, become as small as can be."""
        if self._rounds:
            self._rounds -= 1
            if not self._rounds and isinstance(self._offsets, BitMap64):
                compact(self._offsets)

    def column(self) -> Int64Array:
        """All offsets, a copy, in no particular order."""
        offsets = self._offsets
        return column_of(offsets) if isinstance(offsets, BitMap64) else np.array(offsets).astype(np.int64)

    def memory_bytes(self) -> int:
        offsets = self._offsets
        stored = bitmap_bytes(offsets) if isinstance(offsets, BitMap64) else sys.getsizeof(offsets)
        return stored + sys.getsizeof(self)

    def check(self) -> None:
        """AssertionError unless it holds something, and nothing twice."""
        column = np.sort(self.column())
        assert len(column)
        assert (column[1:] > column[:-1]).all()

    def _array_for(self, largest: int) -> array[int]:
        """The array, wide enough for an offset."""
        assert isinstance(self._offsets, array)
        if largest > _UINT32_MAX and self._offsets.typecode == "I":
            self._offsets = array("Q", self._offsets)
        return self._offsets

    def _extend(self, ascending: Int64Array) -> None:
        values = self._array_for(int(ascending[-1]))
        values.frombytes(ascending.astype(values.typecode).view(np.uint8).data)

    def _ask(self) -> None:
        """Become a bitmap where that pays."""
        if len(self._offsets) < self._ask_at:
            return
        column = self.column()
        if bitmap_bytes_at_most(int(column.min()), int(column.max()), len(column)) < sys.getsizeof(self._offsets):
            column.sort()
            self._offsets = bitmap_of(column)
        else:
            self._ask_at = 2 * len(column)
