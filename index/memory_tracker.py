"""The tracker in memory: sorted columns, exact to the millisecond, 16 bytes an entry. Nothing is on disk.

    singles   a sorted list of (deliver_after, offset); made into a block at 512
    blocks    sorted columns and the row up to which they were taken; a new one is merged with the last while that has
              less than twice as many rows left, so there are O(log n) and an entry is merged O(log n) times

Due entries are taken from the heads of all of them. It is the plainest of the trackers, and what the others are held
against; retries take it where they are many at scattered times, and else the time bucket tracker, which needs less
memory where many share a bucket.

Invariants, proved by `check`: each block is in delivery order and has rows left; blocks and singles hold each offset in
`_held` once, and no other.
"""

from __future__ import annotations

import sys
from bisect import bisect_right

import numpy as np
from sortedcontainers import SortedList

from afterlog.index.entries import Key, is_delivery_order, rank, sort_by_due
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import OffsetSet
from afterlog.index.tracker import Due, check_columns, check_entry, check_limit

_SINGLES = 512
"""Singles at which they become a block. Larger: cheaper to add, dearer to take."""
_SINGLE_BYTES = 130
"""A tuple of two ints and its place in the list."""


class MemoryTracker:
    """A `DelayedDeliveryTracker`. One thread at a time."""

    def __init__(self) -> None:
        self._held = OffsetSet()
        self._blocks: list[_Block] = []
        self._singles = SortedList()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, deliver_after: int, offset: int) -> bool:
        check_entry(deliver_after, offset)
        if not self._held.add(offset):
            return False
        self._singles.add(Key(deliver_after, offset))
        if len(self._singles) == _SINGLES:
            self._push(_columns(self._singles))
            self._singles.clear()
        return True

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> int:
        check_columns(deliver_after, offset)
        rows = self._held.add_many(offset)
        if len(rows):
            self._push(Due(deliver_after[rows], offset[rows]))
        return len(rows)

    def has_due(self, now_ms: int) -> bool:
        next_due = self.next_due()
        return next_due is not None and next_due <= now_ms

    def due(self, now_ms: int, limit: int) -> Due:
        check_limit(limit)
        heads = [block.head(now_ms, limit) for block in self._blocks]
        ready = min(bisect_right(self._singles, now_ms, key=_deliver_after), limit)
        heads.append(_columns(self._singles[:ready]))
        taken = in_delivery_order(heads)
        taken = Due(taken.deliver_after[:limit], taken.offset[:limit])
        if len(taken):
            self._drop(Key(int(taken.deliver_after[-1]), int(taken.offset[-1])))
            self._held.remove_many(taken.offset)
        return taken

    def contains(self, offset: int) -> bool:
        return offset in self._held

    def next_due(self) -> int | None:
        dues = [block.next_due for block in self._blocks]
        if self._singles:
            dues.append(self._singles[0].deliver_after)
        return min(dues, default=None)

    def memory_bytes(self) -> int:
        blocks = sum(block.memory_bytes() for block in self._blocks)
        return sys.getsizeof(self) + blocks + len(self._singles) * _SINGLE_BYTES + self._held.memory_bytes()

    def check(self) -> None:
        held = OffsetSet()
        for part in (*(block.rest() for block in self._blocks), _columns(self._singles)):
            assert is_delivery_order(part.deliver_after, part.offset)
            assert len(part) == len(held.add_many(part.offset))
        assert all(len(block) for block in self._blocks)
        assert np.array_equal(held.column(), self._held.column())

    def _push(self, entries: Due) -> None:
        parts = [entries]
        while self._blocks and len(self._blocks[-1]) < 2 * sum(map(len, parts)):
            parts.append(self._blocks.pop().rest())
        self._blocks.append(_Block(in_delivery_order(parts)))

    def _drop(self, upto: Key) -> None:
        """Step over what was taken."""
        for block in self._blocks:
            block.skip(upto)
        self._blocks = [block for block in self._blocks if len(block)]
        del self._singles[: self._singles.bisect_right(upto)]


class _Block:
    """Entries in delivery order, and how far they were taken."""

    __slots__ = ("_entries", "_row", "next_due")

    def __init__(self, entries: Due) -> None:
        self._entries = entries
        self._row = 0
        self.next_due = int(entries.deliver_after[0])

    def __len__(self) -> int:
        return len(self._entries) - self._row

    def head(self, now_ms: int, limit: int) -> Due:
        """The first entries that are left and due."""
        stop = int(self._entries.deliver_after.searchsorted(now_ms, "right"))
        rows = slice(self._row, min(max(stop, self._row), self._row + limit))
        return Due(self._entries.deliver_after[rows], self._entries.offset[rows])

    def rest(self) -> Due:
        """What is left."""
        return Due(self._entries.deliver_after[self._row :], self._entries.offset[self._row :])

    def skip(self, upto: Key) -> None:
        """Step over the entries with a key <= `upto`."""
        self._row = max(rank(self._entries.deliver_after, self._entries.offset, upto), self._row)
        if len(self):
            self.next_due = int(self._entries.deliver_after[self._row])

    def memory_bytes(self) -> int:
        return sys.getsizeof(self) + self._entries.deliver_after.nbytes + self._entries.offset.nbytes


def in_delivery_order(parts: list[Due]) -> Due:
    """All of them, in the order of (deliver_after, offset)."""
    deliver_after, offset = parts[0].deliver_after, parts[0].offset
    if len(parts) > 1:
        deliver_after = np.concatenate([part.deliver_after for part in parts])
        offset = np.concatenate([part.offset for part in parts])
    if is_delivery_order(deliver_after, offset):
        return Due(deliver_after, offset)
    offset, rows = sort_by_due(offset)
    deliver_after, order = sort_by_due(deliver_after[rows])
    return Due(deliver_after, offset[order])


def _columns(singles: SortedList) -> Due:
    columns = np.array(singles, np.int64).reshape(len(singles), 2)
    return Due(np.ascontiguousarray(columns[:, 0]), np.ascontiguousarray(columns[:, 1]))


def _deliver_after(single: Key) -> int:
    return single.deliver_after
