"""Sorted columns that grow: levels of rows in delivery order, each at least twice as large as the next.

    4,000 | 1,200 | 300   and 200 more:   4,000 | 1,200 | 500      300 are less than twice as many as 200
    4,000 | 1,200 | 500   and 500 more:   6,200                    so are 500, 1,200 and 4,000, of 500, 1,000 and 2,200

New rows are sorted together with the last levels while those are less than twice as many. So there are O(log n) levels,
and a row is sorted O(log n) times. Whatever is asked is asked of each level, by bisection.

It is a value: what adds rows, or leaves some out, makes another one, which shares the levels that stay. So a reader
goes on with the one it has, and a change that is interrupted has changed nothing. Rows are `Keys` or `Entries`; an
entry counts for its records, a key for one.

Invariants, proved by `check`: each level is in delivery order and has rows left; when they were made, each was at least
twice as large as the next; its columns hold at most `HELD_MAX` times the rows that are left.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from afterlog.index.entries import Key, Keys, is_delivery_order, rank
from afterlog.index.growing_columns import Int64Array

HELD_MAX = 8
"""Rows that there may be memory for, for each that is left. Larger: more memory, less copying, less of both at once."""

KeysT = TypeVar("KeysT", bound=Keys)


class SortedColumns(Generic[KeysT]):
    """Immutable, made with nothing in it."""

    __slots__ = ("_first_due", "_levels", "count")

    def __init__(self, levels: tuple[_Level[KeysT], ...] = ()) -> None:
        self._levels: tuple[_Level[KeysT], ...] = levels
        self.count = sum(len(level.rows) for level in levels)
        """Rows."""
        self._first_due = min([level.first_due for level in levels], default=None)

    def including(self, rows: KeysT) -> SortedColumns[KeysT]:
        """And these: keys in any order, entries in offset order and after those that are there."""
        if not len(rows):
            return self
        levels, parts, count = [*self._levels], [rows], len(rows)
        while levels and len(levels[-1].rows) < 2 * count:
            parts.append(levels.pop().rows)
            count += len(parts[-1])
        parts.reverse()
        levels.append(_Level(type(rows).concatenate(parts).sorted(), count, count))
        return SortedColumns(tuple(levels))

    def behind(self, key: Key) -> SortedColumns[KeysT]:
        """Those with a key > `key`."""
        levels = (level.behind(level.row(key)) for level in self._levels)
        return SortedColumns(tuple(level for level in levels if level is not None))

    def rank(self, key: Key) -> int:
        """What those with a key <= `key` count for."""
        count = 0
        for level in self._levels:
            count += level.before(level.row(key))
        return count

    def counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, what those with deliver_after < edge count for."""
        counts = np.zeros(len(edges), np.int64)
        for level in self._levels:
            rows = level.rows.deliver_after.searchsorted(edges, "left")
            counts += rows if level.counted is None else level.counted[rows]
        return counts

    def next_due(self, after: Key | None = None) -> int | None:
        """deliver_after of the first with a key > `after`."""
        if after is None:
            return self._first_due
        dues = [level.next_due(after) for level in self._levels]
        return min((due for due in dues if due is not None), default=None)

    def between(self, after: Key | None, upto: Key, limit: int | None = None) -> list[KeysT]:
        """Of each level that has any, the first `limit` rows with after < key <= upto."""
        found = []
        for level in self._levels:
            start = 0 if after is None else level.row(after)
            stop = level.row(upto)
            if start < stop:
                found.append(level.rows[start : stop if limit is None else min(stop, start + limit)])
        return found

    def parts(self) -> list[KeysT]:
        """All rows, in delivery order within each part. Entries of a part lie after those of the parts before."""
        return [level.rows for level in self._levels]

    def held(self) -> int:
        """Rows that there is memory for."""
        return sum(level.held for level in self._levels)

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        for level in self._levels:
            assert is_delivery_order(level.rows.deliver_after, level.rows.offset)
            assert 0 < len(level.rows) <= level.held <= min(HELD_MAX * len(level.rows), level.made)
        assert all(larger.made >= 2 * smaller.made for larger, smaller in pairwise(self._levels))


class _Level(Generic[KeysT]):
    """Rows in delivery order, never changed."""

    __slots__ = ("counted", "first_due", "held", "last_due", "made", "rows")

    def __init__(self, rows: KeysT, made: int, held: int) -> None:
        self.rows: KeysT = rows
        self.made = made
        """Rows when it was made."""
        self.held = held
        """Rows in its columns; some of them were left out since."""
        self.counted: Int64Array | None = rows.records_before()
        self.first_due, self.last_due = int(rows.deliver_after[0]), int(rows.deliver_after[-1])

    def row(self, key: Key) -> int:
        """Rows with a key <= `key`."""
        if key.deliver_after < self.first_due:
            return 0
        if key.deliver_after > self.last_due:
            return len(self.rows)
        return rank(self.rows.deliver_after, self.rows.offset, key)

    def before(self, row: int) -> int:
        """What the rows before this one count for."""
        return row if self.counted is None else int(self.counted[row])

    def next_due(self, after: Key) -> int | None:
        row = self.row(after)
        return int(self.rows.deliver_after[row]) if row < len(self.rows) else None

    def behind(self, row: int) -> _Level[KeysT] | None:
        """From a row on; None without any. Copied where few are left of those that are held."""
        if row in (0, len(self.rows)):
            return None if row else self
        rows, held = self.rows[row:], self.held
        if HELD_MAX * len(rows) < held:
            rows = rows.take(np.arange(len(rows)))
            held = len(rows)
        return _Level(rows, self.made, held)
