"""Columns that grow: several int64 columns of one length, appended to by one thread and read by any.

Readers take no lock. A row is written before `count` includes it, and a full buffer is replaced, never resized, so what
a reader holds keeps its values, but for the last row where somebody adds to it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]

_CAPACITY = 64


class GrowableColumns:
    """`width` columns; appending is amortised constant, reading a column copies nothing."""

    __slots__ = ("_buffer", "count")

    def __init__(self, width: int) -> None:
        self._buffer: Int64Array = np.empty((width, _CAPACITY), np.int64)
        self.count = 0

    def append(self, *columns: Int64Array) -> None:
        """Append rows: one array per column, all of one length."""
        count = self.count + len(columns[0])
        if count > self._buffer.shape[1]:
            grown = np.empty((len(columns), max(count, 2 * self._buffer.shape[1])), np.int64)
            grown[:, : self.count] = self._buffer[:, : self.count]
            self._buffer = grown
        for number, column in enumerate(columns):
            self._buffer[number, self.count : count] = column
        self.count = count

    def add_to_last(self, number: int, value: int) -> None:
        """Make a number of the last row larger, which readers see at any time."""
        self._buffer[number, self.count - 1] += value

    def column(self, number: int) -> Int64Array:
        """A contiguous view of the rows that are there now; not to be written to."""
        count = self.count  # before the buffer: a newer buffer holds these rows too, an older one may not
        return self._buffer[number, :count]
