"""The keys of records that no reader sees: cancelled ones, the control records that say so, and ranges that all acked.

Sorted columns of 16 bytes a record (`index/sorted_columns.py`), and beside them a few keys as they came, which the
first who looks sorts in: so one that is added costs a few microseconds. Hidden keys never change: adding gives another
object, so a reader counts by the one that belongs to its reading.

Ranges (`index/acked_ranges.py`) count with all their delivery offsets; none of the keys lies in one. Of the records in
these what is told by offsets (`offsets`, `between`, `within`) says nothing.

Invariants, proved by `check`: those of the columns; no offset is there twice; each is among those that were seen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from afterlog.index.acked_ranges import NOTHING_ACKED, AckedRanges
from afterlog.index.entries import Key, Keys, bisected
from afterlog.index.growing_columns import Int64Array
from afterlog.index.merge import Block
from afterlog.index.sorted_columns import SortedColumns

FRESH_MAX = 512
"""Keys that lie as they came. Larger: cheaper to add, dearer to look at behind each that was added."""
_FEW = 8
"""So many are added, or looked for, one by one."""


class _Arrivals:
    """Keys as they came, of one version after another: each of these knows how many of them it has."""

    __slots__ = ("is_asked", "keys", "seen")

    def __init__(self, keys: list[tuple[int, int]], seen: BitMap64 | None) -> None:
        self.keys = keys
        """(deliver_after, offset)"""
        self.seen = seen
        """Offsets: all that any of them has, and maybe more. Changed by who adds alone; None until somebody asked."""
        self.is_asked = False


class HiddenKeys:
    """Immutable. `NOTHING_HIDDEN` is the empty one."""

    __slots__ = ("_arrivals", "_base", "_fresh", "_settled", "acked", "count")

    def __init__(
        self,
        base: SortedColumns[Keys],
        arrivals: _Arrivals | None = None,
        fresh: int = 0,
        acked: AckedRanges = NOTHING_ACKED,
    ) -> None:
        """arrivals: of which the first `fresh` are there, too."""
        self.acked = acked
        self._base = base
        self._arrivals = arrivals
        self._fresh = fresh
        self._settled: SortedColumns[Keys] | None = None if fresh else base
        self.count = base.count + fresh + (acked.records if acked.rows else 0)
        """Delivery offsets."""

    @property
    def _keys(self) -> SortedColumns[Keys]:
        """With what is fresh sorted in: by the first who looks."""
        settled = self._settled
        if settled is None:
            assert self._arrivals is not None, "it has what is fresh"
            rows = np.array(self._arrivals.keys[: self._fresh], np.int64).T.copy()
            settled = self._settled = self._base.including(Keys(rows[0], rows[1]))
        return settled

    def including(self, deliver_after: Int64Array, offset: Int64Array) -> HiddenKeys:
        """These keys and others, in any order; none of them may be there already."""
        if len(offset) > _FEW:
            return self._including(deliver_after, offset)
        base, arrivals, fresh = self._base, self._arrivals, self._fresh
        if arrivals is None or len(arrivals.keys) != fresh:  # another one was made of this version before
            arrivals = _Arrivals([], None) if arrivals is None else _Arrivals(arrivals.keys[:fresh], arrivals.seen)
        if fresh + len(offset) > FRESH_MAX:
            base, arrivals, fresh = self._keys, _Arrivals([], arrivals.seen), 0
        added = offset.tolist()
        if arrivals.seen is None and arrivals.is_asked:
            arrivals.seen = BitMap64(self.offsets().tolist())
        if arrivals.seen is not None:
            arrivals.seen.update(added)
        arrivals.keys += zip(deliver_after.tolist(), added, strict=True)
        return HiddenKeys(base, arrivals, fresh + len(added), self.acked)

    def _including(self, deliver_after: Int64Array, offset: Int64Array) -> HiddenKeys:
        seen = None if self._arrivals is None else self._arrivals.seen
        if seen is not None:
            seen.update(offset.tolist())
        return HiddenKeys(self._keys.including(Keys(deliver_after, offset)), _Arrivals([], seen), acked=self.acked)

    def behind(self, key: Key) -> HiddenKeys:
        """Those with a key > `key`."""
        arrivals = _Arrivals([], None if self._arrivals is None else self._arrivals.seen)
        return HiddenKeys(self._keys.behind(key), arrivals, acked=self.acked.behind(key))

    def outside(self, acked: AckedRanges) -> HiddenKeys:
        """Without the keys that lie in these ranges."""
        before = self._keys.parts()
        parts = [part.take(np.flatnonzero(~acked.holds(part.deliver_after, part.offset))) for part in before]
        if sum(map(len, parts)) == sum(map(len, before)):
            return self
        return HiddenKeys(SortedColumns[Keys]().including(Keys.concatenate(parts)), acked=self.acked)

    def with_acked(self, acked: AckedRanges) -> HiddenKeys:
        """The same with these ranges, in which none of the keys lies, instead."""
        return HiddenKeys(self._base, self._arrivals, self._fresh, acked)

    def rank(self, key: Key) -> int:
        """How many delivery offsets are hidden up to a key that is in no range, or ends one."""
        return self._keys.rank(key) + (self.acked.records_up_to(key) if self.acked.rows else 0)

    def still_there(self, key: Key) -> int:
        """The same, of those that are in the index still."""
        return self.rank(key) - self.acked.removed_up_to(key)

    def holds(self, deliver_after: Int64Array, offset: Int64Array) -> npt.NDArray[np.bool_]:
        """Which of some keys are there: bool[n]."""
        found = self.acked.holds(deliver_after, offset) if self.acked.rows else np.zeros(len(offset), np.bool_)
        if len(offset) <= _FEW and not self._may_hold(offset):
            return found
        for keys in self._keys.parts():
            low = keys.deliver_after.searchsorted(deliver_after, "left")
            high = keys.deliver_after.searchsorted(deliver_after, "right")
            row = _last_up_to(keys.offset, low, high, offset)
            found |= (row < high) & (keys.offset[np.minimum(row, len(keys) - 1)] == offset)
        return found

    def holds_one(self, deliver_after: int, offset: int) -> bool:
        """`holds` of one."""
        return bool(self.holds(np.array([deliver_after]), np.array([offset]))[0]) if self.count else False

    def _may_hold(self, offset: Int64Array) -> bool:
        """Whether one of a few offsets may be there: who cancels one after the other asks each time."""
        if not self.count:
            return False
        arrivals = self._arrivals
        seen = None if arrivals is None else arrivals.seen
        if seen is None:
            if arrivals is not None:
                arrivals.is_asked = True
            return True
        return any(each >= 0 and each in seen for each in offset.tolist())

    def counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, how many records have deliver_after < edge, of those that are in the index still.

        Of a range that goes on behind an edge none.
        """
        return self._keys.counts(edges) + self.acked.records_before(edges)

    def between(self, after: Key, upto: Key) -> Int64Array:
        """The offsets of those with after < key <= upto, ascending."""
        return _offsets(self._keys.between(after, upto))

    def within(self, block: Block) -> Int64Array:
        """The hidden offsets in a stretch of delivery order, ascending."""
        return _offsets(self._within(block))

    def shown(self, block: Block) -> Block:
        """The stretch without the entries of which every record is hidden. It ends where it did."""
        if self.acked.rows and len(block):
            block = block.where(~self.acked.holds(block.deliver_after, block.offset, block.records))
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
        self.acked.check()
        offsets = self.offsets()
        assert self.count == len(np.unique(offsets)) + self.acked.records
        assert not any(bool(self.acked.holds(part.deliver_after, part.offset).any()) for part in self._keys.parts())
        if self._arrivals is not None and self._arrivals.seen is not None:
            assert all(offset in self._arrivals.seen for offset in offsets.tolist())

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

    `low`, where there is none.
    """
    return np.maximum(bisected(column, low, high, value + 1) - 1, low)


NOTHING_HIDDEN = HiddenKeys(SortedColumns())
