"""The tracker in memory: sorted columns, exact to the millisecond, 16 bytes an entry. Nothing is on disk.

    singles   a heap of (deliver_after, offset); put into the columns at 512, or when some are to be taken
    columns   index/sorted_columns.py

It is the plainest of the trackers, and what the others are held against; retries take it where they are many at
scattered times, and else the time bucket tracker, which needs less memory where many share a bucket.

Invariants, proved by `check`: those of the columns; they hold each offset in `_held` once, and no other.
"""

from __future__ import annotations

import sys
from heapq import heappush

import numpy as np

from afterlog.base.clock import INT64_MAX
from afterlog.index.entries import Key, Keys
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import OffsetSet
from afterlog.index.sorted_columns import SortedColumns
from afterlog.index.tracker import DelayedDeliveryTracker, check_columns, check_entry, check_limit

_SINGLES = 512
"""Singles at which they are put into the columns. Larger: more memory."""
_ENTRY_BYTES = 16


class MemoryTracker(DelayedDeliveryTracker):
    """One thread at a time."""

    def __init__(self) -> None:
        self._held = OffsetSet()
        self._columns: SortedColumns[Keys] = SortedColumns()
        self._singles: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._held)

    def add(self, deliver_after: int, offset: int) -> bool:
        check_entry(deliver_after, offset)
        if not self._held.add(offset):
            return False
        heappush(self._singles, (deliver_after, offset))
        if len(self._singles) == _SINGLES:
            self._all()
        return True

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> int:
        check_columns(deliver_after, offset)
        rows = self._held.add_many(offset)
        self._columns = self._columns.including(Keys(deliver_after[rows], offset[rows]))
        return len(rows)

    def due(self, now_ms: int, limit: int) -> Keys:
        check_limit(limit)
        parts = self._all().between(None, Key(now_ms, INT64_MAX), limit)
        taken = parts[0] if len(parts) == 1 else Keys.concatenate(parts).sorted()[:limit]
        if len(taken):
            self._columns = self._columns.behind(taken.key(-1))
            self._held.remove_many(taken.offset)
        return taken

    def contains(self, offset: int) -> bool:
        return offset in self._held

    def next_due(self) -> int | None:
        due = self._columns.next_due()
        return due if not self._singles or (due is not None and due <= self._singles[0][0]) else self._singles[0][0]

    def clear(self) -> None:
        self._held, self._columns, self._singles = OffsetSet(), SortedColumns(), []

    def memory_bytes(self) -> int:
        return sys.getsizeof(self) + _ENTRY_BYTES * self._all().held() + self._held.memory_bytes()

    def check(self) -> None:
        self._all().check()
        held = OffsetSet()
        for part in self._columns.parts():
            assert len(part) == len(held.add_many(part.offset))
        assert np.array_equal(held.column(), self._held.column())

    def _all(self) -> SortedColumns[Keys]:
        """The columns, singles put in."""
        if self._singles:
            due, offset = np.array(self._singles, np.int64).T.copy()
            self._columns, self._singles = self._columns.including(Keys(due, offset)), []
        return self._columns
