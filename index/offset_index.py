"""The offset index of a segment: from an offset to the byte position where a scan for it begins. Kafka's own format.

    +--------------------+----------------+
    | relative offset i32 | position i32  |   8 bytes an entry, big-endian, entries one after another
    +--------------------+----------------+

An entry says: the batch that starts at `position` ends with the offset base_offset + relative offset. Example, segment
00000000000000001000: a batch of offsets 1037 to 1041 that starts at byte 4103 is the entry `00000029 00001007`.

Sparse: the segment is cut into pages of `interval_bytes`, and the first batch that starts in a page has an entry, but
for page 0, whose scan begins at 0 anyway. Which batches are indexed is thus a function of their positions alone,
however the appends were cut, and an index that was read back goes on where it stopped.

There is no checksum, as in Kafka: the index is rebuilt from the log wherever it cannot be trusted. `from_bytes` sees
a torn tail and preallocated zeros.

Invariants, proved by `check`: relative offsets and positions fit int32 and strictly increase.
"""

from __future__ import annotations

import numpy as np

from afterlog.index.growing_columns import GrowableColumns, Int64Array

INT32_MAX = 2**31 - 1
_STORED = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
assert _STORED.itemsize == 8
_NO_ROWS = np.empty(0, np.int64)


class OffsetIndex:
    """In memory; the caller writes `since(n)` to the file. One thread adds, any thread searches."""

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self._columns = GrowableColumns(2)
        self.next_page = interval_bytes
        """A batch that starts before this position gets no entry."""

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int, interval_bytes: int) -> OffsetIndex:
        """What `to_bytes` gave. ValueError with the reason where it cannot be that."""
        if len(data) % _STORED.itemsize:
            raise ValueError(f"{len(data)} bytes are no whole number of {_STORED.itemsize}-byte entries")
        stored = np.frombuffer(data, _STORED)
        index = cls(base_offset, interval_bytes)
        index._columns.append(
            stored["relative_offset"].astype(np.int64) + base_offset, stored["position"].astype(np.int64)
        )
        index.check()
        index._turn_page()
        return index

    @property
    def count(self) -> int:
        """Entries."""
        return self._columns.count

    def add(self, positions: Int64Array, last_offsets: Int64Array) -> Int64Array:
        """Note batches that were appended: where each starts, and its last offset. The rows that got an entry.

        ValueError, and nothing noted, where one of them does not fit int32: the segment should have been rolled.
        """
        if not len(positions):
            return _NO_ROWS
        if int(positions[-1]) > INT32_MAX or int(last_offsets[-1]) - self.base_offset > INT32_MAX:
            raise ValueError("a position or relative offset beyond int32: roll the segment first")
        if int(positions[-1]) < self.next_page:  # what a small append nearly always meets
            return _NO_ROWS
        pages = np.arange(self.next_page, int(positions[-1]) + 1, self.interval_bytes)
        rows: Int64Array = positions.searchsorted(pages)
        rows = rows[np.append(True, rows[1:] != rows[:-1])]  # a batch may leap over pages
        self._columns.append(last_offsets[rows], positions[rows])
        self._turn_page()
        return rows

    def _turn_page(self) -> None:
        indexed = self._columns.column(1)
        page = int(indexed[-1]) // self.interval_bytes if len(indexed) else 0
        self.next_page = (page + 1) * self.interval_bytes

    def floor(self, offset: int) -> int:
        """The position to scan from for `offset`: where the last indexed batch ending at or before it starts, or 0."""
        row = int(self._columns.column(0).searchsorted(offset, "right"))
        return int(self._columns.column(1)[row - 1]) if row else 0

    def spans(self, offsets: Int64Array, end: int) -> tuple[Int64Array, Int64Array]:
        """For each of some ascending offsets the bytes from one batch to another that hold its batch: (start, stop).

        `end`: of the log. Two pages as a rule: an indexed batch whose last offset lies beyond may begin before it.
        """
        last_offsets, position = self._columns.column(0), self._columns.column(1)
        count = len(last_offsets)
        row = last_offsets.searchsorted(offsets, "right")
        if not count:
            return row, np.full_like(row, end)
        start = np.where(row > 0, position[np.maximum(row, 1) - 1], 0)
        stop = np.where(row + 1 < count, position[np.minimum(row + 1, count - 1)], end)
        return start, np.minimum(stop, end)

    def span(self, offset: int, end: int) -> tuple[int, int]:
        """`spans` of one."""
        last_offsets, position = self._columns.column(0), self._columns.column(1)
        row, count = int(last_offsets.searchsorted(offset, "right")), len(last_offsets)
        start = int(position[row - 1]) if row else 0
        return start, min(int(position[row + 1]), end) if row + 1 < count else end

    def next_indexed(self, positions: Int64Array, end: int) -> Int64Array:
        """For each position where the first indexed batch behind it starts; `end`, of the log, where there is none.

        A batch that starts at the position ends there or before: the page behind it has its first batch indexed.
        """
        indexed = self._columns.column(1)
        found: Int64Array = np.append(indexed, end)[indexed.searchsorted(positions, "right")]
        return np.minimum(found, end)

    def last_offset_at(self, position: int) -> int | None:
        """The last offset of the indexed batch that starts at `position`; None where no such batch is indexed."""
        row = int(self._columns.column(1).searchsorted(position, "left"))
        found = row < self._columns.count and int(self._columns.column(1)[row]) == position
        return int(self._columns.column(0)[row]) if found else None

    def to_bytes(self) -> bytes:
        return self.since(0)

    def since(self, count: int) -> bytes:
        """The entries after the first `count`, to be appended to the file."""
        last_offsets = self._columns.column(0)[count:]
        stored = np.empty(len(last_offsets), _STORED)
        stored["relative_offset"] = last_offsets - self.base_offset
        stored["position"] = self._columns.column(1)[count:][: len(stored)]
        return stored.tobytes()

    def check_against(self, positions: Int64Array, first_offsets: Int64Array, last_offsets: Int64Array) -> None:
        """ValueError where an entry is not true of a log of these batches, whoever chose which ones to index.

        A scan from its position must meet its offset, and all behind it. A Kafka broker gives one entry to batches that
        came together: the position is that of the first, the offset that of a record in any of them.
        """
        if not self.count:
            return
        offset, position = self._columns.column(0), self._columns.column(1)
        row = np.minimum(positions.searchsorted(position), len(positions) - 1)
        holder = np.minimum(last_offsets.searchsorted(offset), len(last_offsets) - 1)
        true = (positions[row] == position) & (offset >= first_offsets[row])
        true &= (first_offsets[holder] <= offset) & (offset <= last_offsets[holder])
        if not true.all():
            raise ValueError(f"entry {int(true.argmin())} is not true: no batch starts there, or not of that offset")

    def check(self) -> None:
        """ValueError where an invariant does not hold."""
        relative, positions = self._columns.column(0) - self.base_offset, self._columns.column(1)
        for name, column in (("relative offset", relative), ("position", positions)):
            if len(column) and int(column[0]) < 0:
                raise ValueError(f"the first {name} is negative")
            if len(column) and int(column[-1]) > INT32_MAX:
                raise ValueError(f"a {name} is beyond int32")
            falls = np.flatnonzero(column[1:] <= column[:-1])
            if len(falls):
                raise ValueError(f"the {name} of entry {int(falls[0]) + 1} is not above the one before it")
