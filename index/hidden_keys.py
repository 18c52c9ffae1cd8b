"""The keys of records that no reader sees: cancelled ones, and the control records that say so.

Sorted columns of (deliver_after, offset), 16 bytes a record, in blocks each at least twice as large as the next: there
are O(log n) of them, and a key is sorted anew O(log n) times. Hidden keys never change: adding gives another object, so
a reader counts by the one that belongs to its reading.

Invariants, proved by `check`: each block is in delivery order and at least twice as large as the next; no offset is in
two.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from afterlog.index.entries import Key, is_delivery_order, rank, sort_by_due
from afterlog.index.growing_columns import Int64Array
from afterlog.index.merge import Block

_Columns = tuple[Int64Array, Int64Array]


class HiddenKeys:
    """Immutable. `NOTHING_HIDDEN` is the empty one."""

    __slots__ = ("_blocks", "count")

    def __init__(self, blocks: tuple[_Columns, ...] = ()) -> None:
        self._blocks = blocks
        self.count = sum(len(offset) for _, offset in blocks)

    def including(self, deliver_after: Int64Array, offset: Int64Array) -> HiddenKeys:
        """These keys and others, in any order; none of them may be there already."""
        blocks, last = list(self._blocks), (deliver_after, offset)
        while blocks and len(blocks[-1][1]) < 2 * len(last[1]):
            due, offsets = blocks.pop()
            last = np.concatenate([due, last[0]]), np.concatenate([offsets, last[1]])
        by_offset = np.argsort(last[1], kind="stable")
        due, by_due = sort_by_due(last[0][by_offset])
        return HiddenKeys((*blocks, (due, last[1][by_offset][by_due])))

    def behind(self, key: Key) -> HiddenKeys:
        """Those with a key > `key`."""
        parts = [(due[row:].copy(), offset[row:].copy()) for (due, offset), row in self._ranked(key) if row < len(due)]
        behind = HiddenKeys()
        for part in sorted(parts, key=lambda part: -len(part[1])):
            behind = behind.including(*part)
        return behind

    def rank(self, key: Key) -> int:
        """How many have a key <= `key`."""
        return sum(row for _, row in self._ranked(key))

    def holds(self, deliver_after: Int64Array, offset: Int64Array) -> npt.NDArray[np.bool_]:
        """Which of some keys are there: bool[n]."""
        found = np.zeros(len(offset), np.bool_)
        for due, offsets in self._blocks:
            low, high = due.searchsorted(deliver_after, "left"), due.searchsorted(deliver_after, "right")
            row = _last_up_to(offsets, low, high, offset)
            found |= (row < high) & (offsets[np.minimum(row, len(offsets) - 1)] == offset)
        return found

    def counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, how many have deliver_after < edge."""
        counts = np.zeros(len(edges), np.int64)
        for deliver_after, _ in self._blocks:
            counts += deliver_after.searchsorted(edges, "left")
        return counts

    def between(self, after: Key, upto: Key) -> Int64Array:
        """The offsets of those with after < key <= upto, ascending."""
        return _sorted_offsets(self._between(after, upto))

    def within(self, block: Block) -> Int64Array:
        """The hidden offsets in a stretch of delivery order, ascending."""
        return _sorted_offsets(self._within(block))

    def shown(self, block: Block) -> Block:
        """The stretch without the entries of which every record is hidden. It ends where it did."""
        parts = self._within(block)
        if not parts:
            return block
        hidden = sum(np.bincount(_rows(block, due, offset), minlength=len(block)) for due, offset in parts)
        return block.where(hidden < block.records)

    def offsets(self) -> Int64Array:
        """All of them, ascending."""
        return np.sort(np.concatenate([_NONE, *(offset for _, offset in self._blocks)]))

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        sizes = [len(offset) for _, offset in self._blocks]
        assert all(larger >= 2 * smaller > 0 for larger, smaller in pairwise(sizes)), sizes
        for deliver_after, offset in self._blocks:
            assert is_delivery_order(deliver_after, offset)
        assert self.count == len(np.unique(self.offsets()))

    def _within(self, block: Block) -> list[_Columns]:
        if not self._blocks or not len(block):
            return []
        last = int(block.offset[-1]) + int(block.records[-1]) - 1
        before = Key(int(block.deliver_after[0]), int(block.offset[0]) - 1)
        return self._between(before, Key(int(block.deliver_after[-1]), last))

    def _between(self, after: Key, upto: Key) -> list[_Columns]:
        rows = zip(self._ranked(after), self._ranked(upto), strict=True)
        return [(due[start:stop], offset[start:stop]) for ((due, offset), start), (_, stop) in rows if start < stop]

    def _ranked(self, key: Key) -> list[tuple[_Columns, int]]:
        return [((due, offset), rank(due, offset, key)) for due, offset in self._blocks]


def _sorted_offsets(parts: list[_Columns]) -> Int64Array:
    return np.sort(np.concatenate([offset for _, offset in parts])) if parts else _NONE


def _rows(block: Block, due: Int64Array, offset: Int64Array) -> Int64Array:
    """Which entry of a stretch of delivery order holds each of some records in it."""
    low, high = block.deliver_after.searchsorted(due, "left"), block.deliver_after.searchsorted(due, "right")
    return _last_up_to(block.offset, low, high, offset)


def _last_up_to(column: Int64Array, low: Int64Array, high: Int64Array, value: Int64Array) -> Int64Array:
    """For each value the last row from `low` on and below `high` of a column that ascends there which is not above it.

    `low`, where there is none. One bisection for all.
    """
    while bool((high - low > 1).any()):
        middle = (low + high) >> 1
        beyond = column[np.minimum(middle, len(column) - 1)] > value
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return low


_NONE = np.empty(0, np.int64)
_NONE.flags.writeable = False
NOTHING_HIDDEN = HiddenKeys()
