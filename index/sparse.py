"""The two sparse indexes of a segment as one thing to add to, to save and to load."""

from __future__ import annotations

import numpy as np

from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_index import OffsetIndex
from afterlog.index.time_index import TimeIndex


class SparseIndexes:
    """The offset index and the time index, which has its entries at the same batches."""

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.offsets = OffsetIndex(base_offset, interval_bytes)
        self.times = TimeIndex(base_offset)

    @classmethod
    def from_bytes(cls, offsets: bytes, times: bytes, base_offset: int, interval_bytes: int) -> SparseIndexes:
        """The contents of the two files. ValueError with the reason where one of them is not what was written."""
        sparse = cls(base_offset, interval_bytes)
        sparse.offsets = OffsetIndex.from_bytes(offsets, base_offset, interval_bytes)
        sparse.times = TimeIndex.from_bytes(times, base_offset)
        return sparse

    @property
    def interval_bytes(self) -> int:
        return self.offsets.interval_bytes

    @property
    def latest(self) -> tuple[int, int]:
        """The largest record timestamp so far and the last offset of its batch, (-1, -1) without any.

        The time index may not hold it yet: who goes on with an index that was read back before `finish` sets it.
        """
        return self.times.latest

    @latest.setter
    def latest(self, latest: tuple[int, int]) -> None:
        self.times.latest = latest

    def add(self, positions: Int64Array, last_offsets: Int64Array, max_timestamps: Int64Array) -> None:
        """Note batches that were appended: where each starts, its last offset, its largest record timestamp."""
        rows = self.offsets.add(positions, last_offsets)
        self.times.add(max_timestamps, last_offsets, rows)

    def add_one(self, position: int, last_offset: int, max_timestamp: int) -> None:
        """`add` of one batch."""
        if position >= self.offsets.next_page:
            self.add(np.array([position]), np.array([last_offset]), np.array([max_timestamp]))
        elif max_timestamp > self.times.latest[0]:
            self.times.latest = max_timestamp, last_offset

    def finish(self) -> None:
        """At a roll: the time index learns the segment's maximum."""
        self.times.finish()

    def to_bytes(self) -> tuple[bytes, bytes]:
        """The contents of the two files."""
        return self.since(0, 0)

    def since(self, offsets_count: int, times_count: int) -> tuple[bytes, bytes]:
        """What to append to two files that hold so many entries."""
        return self.offsets.since(offsets_count), self.times.since(times_count)

    def check(self) -> None:
        """ValueError where an invariant of either does not hold."""
        self.offsets.check()
        self.times.check()
