"""The unique keys of one partition: which pending records hold which, the newest in memory, the others in files.

    add ──> singles (a dict) ──> levels (sorted columns) ──checkpoint, roll──> file ──merge──> larger file
            SINGLES_MAX          each twice as large as the next               rows that are not pending any more go

What is in memory grows, as the mutable bucket does: rows are added after the write of their records and before the
swap that makes these true, and an append that was interrupted has the whole of it made anew from the log. Where a row
is there twice nothing is wrong; that one is missing must never be.

A row whose record is due, or cancelled, stays until a file is made: who looks asks whether it is pending.

Invariants (`check`): files cover stretches that follow each other, up to `upto`; rows in memory lie from there on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from afterlog.index.growing_columns import Int64Array
from afterlog.index.key_rows import KeyRows
from afterlog.index.unique_key_file import KeyFileMark, UniqueKeyFile

SINGLES_MAX = 4_096
"""Rows in the dict, about 200 bytes each. Larger: fewer sorts, more memory."""

FEW = 16
"""Rows that go into the dict one by one."""


class RecentKeys:
    """Rows in memory. Not thread-safe: the log calls it under its append lock."""

    __slots__ = ("_levels", "_single_count", "_singles")

    def __init__(self, levels: tuple[KeyRows, ...] = ()) -> None:
        self._singles: dict[int, tuple[tuple[int, int], ...]] = {}
        """Hash to (offset, due) of its records."""
        self._single_count = 0
        self._levels = levels

    @property
    def count(self) -> int:
        return self._single_count + sum(map(len, self._levels))

    def add_one(self, hashed: int, offset: int, due: int) -> None:
        self._singles[hashed] = (*self._singles.get(hashed, ()), (offset, due))
        self._single_count += 1
        if self._single_count >= SINGLES_MAX:
            self._fold()

    def add(self, rows: KeyRows) -> None:
        """Rows in offset order, after those that are there."""
        if len(rows) > FEW:
            self._fold()
            self._levels = _including(self._levels, rows)
            return
        for row in zip(rows.hashed.tolist(), rows.offset.tolist(), rows.due.tolist(), strict=True):
            self.add_one(*row)

    def find_one(self, hashed: int) -> list[tuple[int, int]]:
        """(offset, due) of the rows with this hash."""
        found = [*self._singles.get(hashed, ())]
        for level in self._levels:
            found += level.matching_one(hashed)
        return found

    def forget(self, hashed: int, offsets: set[int]) -> None:
        """Rows that are not pending any more: a key that is given to one record after another has few rows."""
        rows = self._singles.get(hashed)
        if rows is None:
            return
        left = tuple(row for row in rows if row[0] not in offsets)
        if len(left) < len(rows):
            self._single_count -= len(rows) - len(left)
            if left:
                self._singles[hashed] = left
            else:
                del self._singles[hashed]

    def levels(self) -> tuple[KeyRows, ...]:
        """All rows, in parts that do not change any more: sorted, the rows of each after those of the one before."""
        self._fold()
        return self._levels

    def behind(self, offset: int) -> RecentKeys:
        """Those from an offset on."""
        levels = (level.where(level.offset >= offset) for level in self.levels())
        return RecentKeys(tuple(level for level in levels if len(level)))

    def _fold(self) -> None:
        if self._singles:
            rows = [(hashed, *row) for hashed, held in self._singles.items() for row in held]
            columns = np.array(sorted(rows, key=_offset_of), np.int64).T.copy()
            self._levels = _including(self._levels, KeyRows(columns[0], columns[1], columns[2]))
        self._singles, self._single_count = {}, 0


def _offset_of(row: tuple[int, int, int]) -> int:
    return row[1]


def _including(levels: tuple[KeyRows, ...], rows: KeyRows) -> tuple[KeyRows, ...]:
    """Levels with more rows, which lie behind them: those that are less than twice as many are sorted with them."""
    kept, parts, count = [*levels], [rows], len(rows)
    while kept and len(kept[-1]) < 2 * count:
        parts.append(kept.pop())
        count += len(parts[-1])
    parts.reverse()
    return (*kept, KeyRows.concatenate(parts).sorted())


class UniqueKeyIndex(NamedTuple):
    """Of one partition at one instant; `recent` grows, and counts as far as the log does."""

    files: tuple[UniqueKeyFile, ...]
    """In offset order."""
    recent: RecentKeys
    upto: int
    """The files tell of the offsets below."""

    def find_one(self, hashed: int) -> list[tuple[int, int]]:
        """(offset, due) of the rows with this hash, whether these are pending or not. Raises CorruptFile."""
        found = self.recent.find_one(hashed)
        for file in self.files:
            found += file.rows().matching_one(hashed)
            file.check_there()
        return found

    def find(self, hashes: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """The same for many: which hash, offset, due, of each row found. Raises CorruptFile."""
        order = np.argsort(hashes)
        ordered = hashes[order]
        which, parts = [order[:0]], [KeyRows.empty()]
        for rows in (*self.recent.levels(), *(file.rows() for file in self.files)):
            row, at = rows.matching(ordered)
            which.append(order[row])
            parts.append(rows.take(at))
        for file in self.files:
            file.check_there()
        found = KeyRows.concatenate(parts)
        return np.concatenate(which), found.offset, found.due

    def check(self, end_offset: int) -> None:
        """AssertionError where an invariant does not hold. end_offset: of the log."""
        at = 0
        for file in self.files:
            assert at <= file.mark.first < file.mark.end <= self.upto
            at = file.mark.end
            file.rows().check()
        for rows in self.recent.levels():
            rows.check()
            assert self.upto <= int(rows.offset.min(initial=end_offset))
            assert int(rows.offset.max(initial=-1)) < end_offset


def to_merge(files: tuple[KeyFileMark, ...]) -> tuple[KeyFileMark, ...]:
    """The last files, where they should be one: each has fewer than twice the rows of those behind it together.

    So there are O(log n) files, and a row is written O(log n) times.
    """
    first, rows = len(files), 0
    while first and (first == len(files) or files[first - 1].rows < 2 * rows):
        first -= 1
        rows += files[first].rows
    return files[first:] if len(files) - first > 1 else ()
