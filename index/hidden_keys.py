"""The keys of records that no reader sees: cancelled ones, and the control records that say so.

Sorted columns of 16 bytes a record (`index/sorted_columns.py`). Hidden keys never change: adding gives another object,
so a reader counts by the one that belongs to its reading.

Invariants, proved by `check`: those of the columns; no offset is there twice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from afterlog.index.entries import Key, Keys
from afterlog.index.growing_columns import Int64Array
from afterlog.index.merge import Block
from afterlog.index.sorted_columns import SortedColumns


class HiddenKeys:
    """Immutable. `NOTHING_HIDDEN` is the empty one."""

    __slots__ = ("_keys", "count")

    def __init__(self, keys: SortedColumns[Keys]) -> None:
        self._keys = keys
        self.count = keys.count

    def including(self, deliver_after: Int64Array, offset: Int64Array) -> HiddenKeys:
        """These keys and others, in any order; none of them may be there already."""
        return HiddenKeys(self._keys.including(Keys(deliver_after, offset)))

    def behind(self, key: Key) -> HiddenKeys:
        """Those with a key > `key`."""
        return HiddenKeys(self._keys.behind(key))

    def rank(self, key: Key) -> int:
        """How many have a key <= `key`."""
        return self._keys.rank(key)

    def holds(self, deliver_after: Int64Array, offset: Int64Array) -> npt.NDArray[np.bool_]:
        """Which of some keys are there: bool[n]."""
        found = np.zeros(len(offset), np.bool_)
        for keys in self._keys.parts():
            low = keys.deliver_after.searchsorted(deliver_after, "left")
            high = keys.deliver_after.searchsorted(deliver_after, "right")
            row = _last_up_to(keys.offset, low, high, offset)
            found |= (row < high) & (keys.offset[np.minimum(row, len(keys) - 1)] == offset)
        return found

    def counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, how many have deliver_after < edge."""
        return self._keys.counts(edges)

    def between(self, after: Key, upto: Key) -> Int64Array:
        """The offsets of those with after < key <= upto, ascending."""
        return _offsets(self._keys.between(after, upto))

    def within(self, block: Block) -> Int64Array:
        """The hidden offsets in a stretch of delivery order, ascending."""
        return _offsets(self._within(block))

    def shown(self, block: Block) -> Block:
        """The stretch without the entries of which every record is hidden. It ends where it did."""
        parts = self._within(block)
        if not parts:
            return block
        hidden = sum(np.bincount(_rows(block, part), minlength=len(block)) for part in parts)
        return block.where(hidden < block.records)

    def offsets(self) -> Int64Array:
        """All of them, ascending."""
        return _offsets(self._keys.parts())

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        self._keys.check()
        assert self.count == len(np.unique(self.offsets()))

    def _within(self, block: Block) -> list[Keys]:
        if not self.count or not len(block):
            return []
        last = int(block.offset[-1]) + int(block.records[-1]) - 1
        before = Key(int(block.deliver_after[0]), int(block.offset[0]) - 1)
        return self._keys.between(before, Key(int(block.deliver_after[-1]), last))


def _offsets(parts: list[Keys]) -> Int64Array:
    return np.sort(np.concatenate([part.offset for part in parts])) if parts else Keys.empty().offset


def _rows(block: Block, keys: Keys) -> Int64Array:
    """Which entry of a stretch of delivery order holds each of some records in it."""
    low = block.deliver_after.searchsorted(keys.deliver_after, "left")
    high = block.deliver_after.searchsorted(keys.deliver_after, "right")
    return _last_up_to(block.offset, low, high, keys.offset)


def _last_up_to(column: Int64Array, low: Int64Array, high: Int64Array, value: Int64Array) -> Int64Array:
    """For each value the last row from `low` on and below `high` of a column that ascends there which is not above it.

    `low`, where there is none. One bisection for all.
    """
    while bool((high - low > 1).any()):
        middle = (low + high) >> 1
        beyond = column[np.minimum(middle, len(column) - 1)] > value
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return low


NOTHING_HIDDEN = HiddenKeys(SortedColumns())
