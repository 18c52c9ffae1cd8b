"""Sorted columns that grow: blocks of rows in delivery order, each at least twice as large as the next.

    4,000 | 1,200 | 300   and 200 more:   4,000 | 1,200 | 500      300 are less than twice as many as 200
    4,000 | 1,200 | 500   and 500 more:   6,200                    so are 500, 1,200 and 4,000, of 500, 1,000 and 2,200

New rows are sorted together with the last blocks while those are less than twice as many. So there are O(log n) blocks,
and a row is sorted O(log n) times. Whatever is asked is asked of each block, by bisection.

It is a value: what adds rows, or leaves some out, makes another one, which shares the blocks that stay. So a reader
goes on with the one it has, and a change that is interrupted has changed nothing. Rows are `Keys` or `Entries`; an
entry counts for its records, a key for one.

Invariants, proved by `check`: each block is in delivery order and has rows left; when they were made, each was at least
twice as large as the next; its columns hold at most twice the rows that are left.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from afterlog.index.entries import Key, Keys, is_delivery_order, rank
from afterlog.index.growing_columns import Int64Array

Rows = TypeVar("Rows", bound=Keys)


class SortedColumns(Generic[Rows]):
    """Immutable, made with nothing in it."""

    __slots__ = ("_blocks", "_first_due", "count")

    def __init__(self, blocks: tuple[_Block[Rows], ...] = ()) -> None:
        self._blocks: tuple[_Block[Rows], ...] = blocks
        self.count = sum(len(block.rows) for block in blocks)
        """Rows."""
        self._first_due = min([block.first_due for block in blocks], default=None)

    def including(self, rows: Rows) -> SortedColumns[Rows]:
        """And these: keys in any order, entries in offset order and behind those that are there."""
        if not len(rows):
            return self
        blocks, parts, count = [*self._blocks], [rows], len(rows)
        while blocks and len(blocks[-1].rows) < 2 * count:
            parts.append(blocks.pop().rows)
            count += len(parts[-1])
        parts.reverse()
        blocks.append(_Block(type(rows).concatenate(parts).sorted(), count, count))
        return SortedColumns(tuple(blocks))

    def behind(self, key: Key) -> SortedColumns[Rows]:
        """Those with a key > `key`."""
        blocks = (block.behind(block.row(key)) for block in self._blocks)
        return SortedColumns(tuple(block for block in blocks if block is not None))

    def rank(self, key: Key) -> int:
        """What those with a key <= `key` count for."""
        count = 0
        for block in self._blocks:
            count += block.before(block.row(key))
        return count

    def counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, what those with deliver_after < edge count for."""
        counts = np.zeros(len(edges), np.int64)
        for block in self._blocks:
            rows = block.rows.deliver_after.searchsorted(edges, "left")
            counts += rows if block.counted is None else block.counted[rows]
        return counts

    def next_due(self, after: Key | None = None) -> int | None:
        """deliver_after of the first with a key > `after`."""
        if after is None:
            return self._first_due
        dues = [block.next_due(after) for block in self._blocks]
        return min((due for due in dues if due is not None), default=None)

    def between(self, after: Key | None, upto: Key, limit: int | None = None) -> list[Rows]:
        """Of each block that has any, the first `limit` rows with after < key <= upto."""
        found = []
        for block in self._blocks:
            start = 0 if after is None else block.row(after)
            stop = block.row(upto)
            if start < stop:
                found.append(block.rows[start : stop if limit is None else min(stop, start + limit)])
        return found

    def parts(self) -> list[Rows]:
        """All rows, in delivery order within each part. Entries of a part lie behind those of the parts before."""
        return [block.rows for block in self._blocks]

    def held(self) -> int:
        """Rows that there is memory for."""
        return sum(block.held for block in self._blocks)

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        for block in self._blocks:
            assert is_delivery_order(block.rows.deliver_after, block.rows.offset)
            assert 0 < len(block.rows) <= block.held <= min(2 * len(block.rows), block.made)
        assert all(larger.made >= 2 * smaller.made for larger, smaller in pairwise(self._blocks))


class _Block(Generic[Rows]):
    """Rows in delivery order, never changed."""

    __slots__ = ("counted", "first_due", "held", "last_due", "made", "rows")

    def __init__(self, rows: Rows, made: int, held: int) -> None:
        self.rows: Rows = rows
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

    def behind(self, row: int) -> _Block[Rows] | None:
        """From a row on; None without any. Copied where that lets go of more than is kept."""
        if row in (0, len(self.rows)):
            return None if row else self
        rows, held = self.rows[row:], self.held
        if 2 * len(rows) < held:
            rows = rows.take(np.arange(len(rows)))
            held = len(rows)
        return _Block(rows, self.made, held)
