"""The time index of a segment: from a record timestamp to the offset where a scan for it begins. Kafka's own format.

    +---------------+---------------------+
    | timestamp i64 | relative offset i32 |   12 bytes an entry, big-endian, entries one after another
    +---------------+---------------------+

An entry says: no record up to base_offset + relative offset is later than `timestamp`, and the batch that ends there
has a record of just that time. Example, segment 00000000000000001000: the latest record so far is of 1700000000123, in
the batch that ends with offset 1041: `0000018bcfe5687b 00000029`.

Sparse: looked at where the offset index gets an entry; one is made if the latest timestamp so far is above the last
entry's. `finish` makes one for what came since, at a roll, so that a finished index knows the segment's maximum.

There is no checksum, as in Kafka. Invariants, proved by `check`: timestamps and relative offsets strictly increase,
and the offsets fit int32.
"""

from __future__ import annotations

import numpy as np

from afterlog.index.growing_columns import GrowableColumns, Int64Array
from afterlog.index.offset_index import INT32_MAX

_STORED = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
assert _STORED.itemsize == 12
_NOTHING = (-1, -1)


class TimeIndex:
    """In memory; the caller writes `since(n)` to the file. One thread adds, any thread searches."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.latest = _NOTHING
        """The largest timestamp so far and the last offset of its batch; `finish` makes an entry of it."""
        self._columns = GrowableColumns(2)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> TimeIndex:
        """What `to_bytes` gave; `latest` is its last entry. ValueError with the reason where it cannot be that."""
        if len(data) % _STORED.itemsize:
            raise ValueError(f"{len(data)} bytes are no whole number of {_STORED.itemsize}-byte entries")
        stored = np.frombuffer(data, _STORED)
        index = cls(base_offset)
        index._columns.append(
            stored["timestamp"].astype(np.int64), stored["relative_offset"].astype(np.int64) + base_offset
        )
        index.check()
        if index.count:
            index.latest = int(index._columns.column(0)[-1]), int(index._columns.column(1)[-1])
        return index

    @property
    def count(self) -> int:
        """Entries."""
        return self._columns.count

    def add(self, max_timestamps: Int64Array, last_offsets: Int64Array, rows: Int64Array) -> None:
        """Note batches that were appended; `rows` are those that the offset index gave an entry."""
        if not len(rows):
            self._note_latest(max_timestamps, last_offsets)
            return
        latest = np.maximum.accumulate(max_timestamps)
        noted = np.append(rows, len(latest) - 1)
        holder = latest.searchsorted(latest[noted])  # where each was reached first
        risen = latest[noted] > self.latest[0]
        timestamps = np.where(risen, latest[noted], self.latest[0])
        offsets = np.where(risen, last_offsets[holder], self.latest[1])
        self._append(timestamps[:-1], offsets[:-1])
        self.latest = int(timestamps[-1]), int(offsets[-1])

    def _note_latest(self, max_timestamps: Int64Array, last_offsets: Int64Array) -> None:
        if len(max_timestamps):
            row = int(max_timestamps.argmax())
            if max_timestamps[row] > self.latest[0]:
                self.latest = int(max_timestamps[row]), int(last_offsets[row])

    def finish(self) -> None:
        """Make the entry for what came since the last one, if that raised the maximum."""
        self._append(np.array(self.latest[:1]), np.array(self.latest[1:]))

    def floor(self, timestamp: int) -> int:
        """The offset from which to scan for the first record of `timestamp` or later: all before it are earlier."""
        row = int(self._columns.column(0).searchsorted(timestamp, "left"))
        return int(self._columns.column(1)[row - 1]) + 1 if row else self.base_offset

    def to_bytes(self) -> bytes:
        return self.since(0)

    def since(self, count: int) -> bytes:
        """The entries after the first `count`, to be appended to the file."""
        timestamps = self._columns.column(0)[count:]
        stored = np.empty(len(timestamps), _STORED)
        stored["timestamp"] = timestamps
        stored["relative_offset"] = self._columns.column(1)[count:][: len(stored)] - self.base_offset
        return stored.tobytes()

    def check_against(self, max_timestamps: Int64Array, first_offsets: Int64Array, last_offsets: Int64Array) -> None:
        """ValueError where an entry is not true of a log of these batches, whoever chose which ones to index."""
        if not self.count:
            return
        timestamp, offset = self._columns.column(0), self._columns.column(1)
        holder = np.minimum(last_offsets.searchsorted(offset), len(last_offsets) - 1)
        true = (first_offsets[holder] <= offset) & (offset <= last_offsets[holder])
        true &= (max_timestamps[holder] == timestamp) & (np.maximum.accumulate(max_timestamps)[holder] == timestamp)
        if not true.all():
            raise ValueError(f"entry {int(true.argmin())} is not true: not the latest time up to its offset")

    def check(self) -> None:
        """ValueError where an invariant does not hold."""
        relative = self._columns.column(1) - self.base_offset
        for name, column in (("timestamp", self._columns.column(0)), ("relative offset", relative)):
            if len(column) and int(column[0]) < 0:
                raise ValueError(f"the first {name} is negative")
            falls = np.flatnonzero(column[1:] <= column[:-1])
            if len(falls):
                raise ValueError(f"the {name} of entry {int(falls[0]) + 1} is not above the one before it")
        if len(relative) and int(relative[-1]) > INT32_MAX:
            raise ValueError("a relative offset is beyond int32")

    def _append(self, latest: Int64Array, offsets: Int64Array) -> None:
        """Those that rise above the last entry; `latest` never falls."""
        indexed = self._columns.column(0)
        last = int(indexed[-1]) if len(indexed) else _NOTHING[0]
        rises = latest > np.concatenate(([last], latest[:-1]))
        self._columns.append(latest[rises], offsets[rises])
