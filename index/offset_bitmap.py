"""Which records a run holds: a Roaring bitmap of their offsets, relative to the run's first_offset.

It says of an offset whether an entry of the run has it, without loading a chunk. It is built while the entries come in
delivery order, and is in memory as a whole: a bit for each record at most, and nearly nothing for stretches that are
all there.
"""

from __future__ import annotations

import array
from collections.abc import Iterator

import numpy as np
from pyroaring import BitMap

from afterlog.index.growing_columns import UInt32Array

_PENDING_MAX = 32_768
"""Records that are added at once. Larger: cheaper, as each time touches every part of the bitmap; more memory."""
_AS_RANGES = 16
"""Records of an entry on average from which on ranges are cheaper."""
_LOW_HALF = 2**32 - 1


class BitmapBuilder:
    """A bitmap in the making."""

    def __init__(self) -> None:
        self._bitmap = BitMap()
        self._pending: list[UInt32Array] = []
        self._count = 0

    def add(self, offset: UInt32Array, records: UInt32Array) -> None:
        """Add the offsets [offset, offset + records) of each entry, all below 2^32.

        About 20 ns a record; where entries are large, 0.4 us for each of them, or for each stretch without a gap.
        """
        if int(records.sum(dtype=np.int64)) >= _AS_RANGES * len(records):
            for start, end in _stretches(offset, records):
                self._bitmap.add_range(start, end)
            return
        numbers = _numbers(offset, records)
        self._pending.append(numbers)
        self._count += len(numbers)
        if self._count >= _PENDING_MAX:
            self._add_pending()

    def add_all(self, offsets: BitMap) -> None:
        """Add what another bitmap holds."""
        self._bitmap |= offsets

    def finish(self) -> BitMap:
        """The bitmap of all that were added, run-optimised."""
        self._add_pending()
        self._bitmap.run_optimize()
        return self._bitmap

    def _add_pending(self) -> None:
        if self._pending:
            numbers = array.array("I")  # six times as fast as from numpy
            numbers.frombytes(np.sort(np.concatenate(self._pending)).tobytes())
            self._bitmap |= BitMap(numbers, optimize=False)
            self._pending, self._count = [], 0


def _stretches(offset: UInt32Array, records: UInt32Array) -> Iterator[tuple[int, int]]:
    """Start and end of what is in one piece, where entries follow each other."""
    entries = np.sort(offset.astype(np.uint64) << 32 | records)
    starts = entries >> 32
    ends = starts + (entries & _LOW_HALF)
    apart = starts[1:] != ends[:-1]
    return zip(starts[np.append(True, apart)].tolist(), ends[np.append(apart, True)].tolist(), strict=True)


def _numbers(offset: UInt32Array, records: UInt32Array) -> UInt32Array:
    """The offset of each record."""
    counts = records.astype(np.int64)
    ends = np.cumsum(counts)
    if ends[-1] == len(offset):
        return offset
    return np.repeat(offset - (ends - counts), counts).astype(np.uint32) + np.arange(ends[-1], dtype=np.uint32)
