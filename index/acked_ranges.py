"""Ranges of delivery order that all readers acked beyond what they have not: out of reach, as before the log start.

    delivery offsets   … acked, gone │ 7 │ 8 ········· 400 │ 401 │ 402 ···· 900 │ 901 …
                                       │   acked by all       │   acked by all
                          log start ───┘ un-acked            └ un-acked

A reader steps over a range as over records that are cancelled. What comes behind it keeps its delivery offsets whatever
of it is still in the log: a range knows its own, and how many of its records are not in the index any more.

The idea is Pulsar's individually deleted messages, which hold their ledgers there (docs/decisions/0078).

Invariants, proved by `check`: ranges are ascending, and apart by a record at least; `removed <= end - first`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from afterlog.index.entries import Key, Keys, bisected
from afterlog.index.growing_columns import Int64Array

RANGES_MAX = 1_024
"""Of a partition; the checkpoints hold a row of 70 bytes for each. Larger: more is freed where many are un-acked."""
RANGE_RECORDS_MIN = 64
"""A range of fewer is not worth a row."""


class AckedRange(NamedTuple):
    """Whole entries that follow each other."""

    after_ms: int
    after_offset: int
    """The key of the record before it, or any between the two."""
    upto_ms: int
    upto_offset: int
    """The key of its last record."""
    first: int
    end: int
    """Its delivery offsets, [first, end)."""
    removed: int = 0
    """Of its records, how many are not in the index any more."""

    @property
    def after(self) -> Key:
        return Key(self.after_ms, self.after_offset)

    @property
    def upto(self) -> Key:
        return Key(self.upto_ms, self.upto_offset)

    @property
    def records(self) -> int:
        return self.end - self.first


class AckedRanges:
    """Of one partition, immutable: rows, and the same as columns, int64[n] each."""

    __slots__ = ("_after", "_end", "_first", "_records", "_removed", "_upto", "rows")

    def __init__(self, rows: tuple[AckedRange, ...] = ()) -> None:
        self.rows = rows
        columns = np.array(rows, np.int64).reshape(-1, len(AckedRange._fields)).T.copy()
        after_ms, after_offset, upto_ms, upto_offset, self._first, self._end, removed = columns
        self._after = Keys(after_ms, after_offset)
        self._upto = Keys(upto_ms, upto_offset)
        self._records = np.append(0, (self._end - self._first).cumsum())
        """int64[n + 1]: in the ranges before each."""
        self._removed = np.append(0, removed.cumsum())
        """The same, of what is not in the index any more."""

    def __len__(self) -> int:
        return len(self.rows)

    # Up to a key.

    @property
    def records(self) -> int:
        """In all of them, whether they are in the index still or not."""
        return int(self._records[-1])

    @property
    def removed(self) -> int:
        """Of these, how many are not in the index any more."""
        return int(self._removed[-1])

    def records_up_to(self, key: Key) -> int:
        """In those that end at or before a key."""
        return int(self._records[self._upto.rank(key)])

    def removed_up_to(self, key: Key) -> int:
        """The same, of what was removed of them."""
        return int(self._removed[self._upto.rank(key)])

    def last_up_to(self, key: Key) -> AckedRange | None:
        """The last one that ends at or before a key."""
        count = self._upto.rank(key)
        return self.rows[count - 1] if count else None

    def removed_before(self, edges: Int64Array) -> Int64Array:
        """For each edge, how many records were removed of ranges that end before that instant: int64[n]."""
        removed: Int64Array = self._removed[self._upto.deliver_after.searchsorted(edges, "left")]
        return removed

    def records_before(self, edges: Int64Array) -> Int64Array:
        """The same of all their records that are still in the index."""
        count = self._upto.deliver_after.searchsorted(edges, "left")
        left: Int64Array = self._records[count] - self._removed[count]
        return left

    # Of entries.

    def removed_in_front(self, deliver_after: Int64Array, offset: Int64Array) -> Int64Array:
        """For each key, how many records were removed of ranges that end before it: int64[n]."""
        return self._removed[_below(self._upto, deliver_after, offset)]

    def holds(
        self, deliver_after: Int64Array, offset: Int64Array, records: Int64Array | int = 1
    ) -> npt.NDArray[np.bool_]:
        """Which entries lie in one of them: bool[n]."""
        if not self.rows:
            return np.zeros(len(offset), np.bool_)
        row = self.which(deliver_after, offset)
        upto_ms, upto_offset = self._upto.deliver_after[row], self._upto.offset[row]
        ends = (deliver_after < upto_ms) | ((deliver_after == upto_ms) & (offset + records - 1 <= upto_offset))
        return np.asarray((row >= 0) & ends)

    def which(self, deliver_after: Int64Array, offset: Int64Array) -> Int64Array:
        """Of entries that `holds` says yes to, which range each is in: int64[n]; of others one before, or -1."""
        return _below(self._after, deliver_after, offset) - 1

    # By delivery offsets.

    def last_before(self, position: int) -> AckedRange | None:
        """The last one that ends at or before a delivery offset."""
        count = int(self._end.searchsorted(position, "right"))
        return self.rows[count - 1] if count else None

    def covers(self, stretch: range) -> bool:
        """Whether one of them has all of these delivery offsets."""
        row = int(self._first.searchsorted(stretch.start, "right")) - 1
        return row >= 0 and stretch.stop <= self.rows[row].end

    def passed(self, position: int) -> int:
        """How many delivery offsets of a range lie before a position within it."""
        row = int(self._first.searchsorted(position, "right")) - 1
        return position - self.rows[row].first if row >= 0 and position < self.rows[row].end else 0

    def worth_having(self, stretches: Iterable[range]) -> list[range]:
        """Of stretches that are acked, ascending: those that one of these would become, and as many more as there is
        room for, the largest.
        """
        grown, fresh = list[range](), list[range]()
        for each in stretches:
            low, high = self._first.searchsorted([each.start, each.stop])
            (grown if high > low else fresh).append(each)
        fresh.sort(key=len, reverse=True)
        return sorted(grown + fresh[: max(RANGES_MAX - len(self.rows), 0)], key=lambda each: each.start)

    # Others.

    def passed_by(self, key: Key, rank: int) -> Key:
        """Where a log start goes that would lie in a range, or in front of one: at its end. rank: of the key."""
        ahead = (row.upto for row in self.rows if row.upto > key and (row.after < key or row.first == rank))
        return next(ahead, key)

    def spans_like(self, other: AckedRanges) -> bool:
        """Whether these are the same ranges, whatever was removed of them."""
        return len(self.rows) == len(other.rows) and all(
            row[:-1] == known[:-1] for row, known in zip(self.rows, other.rows, strict=True)
        )

    def behind(self, key: Key) -> AckedRanges:
        """Those that end behind a key."""
        count = self._upto.rank(key)
        return AckedRanges(self.rows[count:]) if count else self

    def less(self, removed: Int64Array) -> AckedRanges:
        """The same where more of them is not in the index any more: int64[n], by range."""
        return AckedRanges(
            tuple(
                row._replace(removed=row.removed + more) for row, more in zip(self.rows, removed.tolist(), strict=True)
            )
        )

    def including(self, found: Iterable[AckedRange]) -> AckedRanges:
        """And others, in any order: those that touch, or have something in common, become one."""
        rows = list[AckedRange]()
        for row in sorted((*self.rows, *found), key=lambda row: (row.first, -row.end)):
            if not rows or row.first > rows[-1].end:
                rows.append(row)
                continue
            last = rows[-1]
            upto = max(row.upto, last.upto)
            rows[-1] = last._replace(
                upto_ms=upto.deliver_after,
                upto_offset=upto.offset,
                end=max(last.end, row.end),
                removed=last.removed + row.removed,
            )
        return AckedRanges(tuple(rows))

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        for row in self.rows:
            assert 0 <= row.removed <= row.records
            assert row.after < row.upto
        for row, following in pairwise(self.rows):
            assert row.end < following.first
            assert row.upto <= following.after


def _below(keys: Keys, deliver_after: Int64Array, offset: Int64Array) -> Int64Array:
    """For each of some keys, how many of these, in delivery order, are smaller: int64[n]."""
    due = keys.deliver_after
    return bisected(
        keys.offset, due.searchsorted(deliver_after, "left"), due.searchsorted(deliver_after, "right"), offset
    )


NOTHING_ACKED = AckedRanges()
