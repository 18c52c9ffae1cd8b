"""Reading runs from front to back: a cursor per run, many cursors with their next times in one column, a gatherer.

A cursor stands before an entry of its run and holds the chunk of that entry, and for a while a later one into which it
had to look. It loads a chunk when it needs what is inside; the directory tells when a chunk begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from afterlog.index.entries import Entries, IndexEntry, Key, rank
from afterlog.index.growing_columns import Int64Array, UInt32Array

if TYPE_CHECKING:
    from afterlog.index.run import Run

_UINT32_MAX = 2**32 - 1

ChunkColumns = tuple[Int64Array, UInt32Array]
"""A chunk, loaded: deliver_after; and relative offset, position, records as [3, n]."""


class RunCursor:
    """A place in a run. `next_due` is the deliver_after of the entry behind it, None at the end."""

    __slots__ = ("_ahead", "_columns", "_last_due", "chunk", "next_due", "row", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self._ahead: tuple[int, ChunkColumns] | None = None
        self._enter(0)

    def _enter(self, chunk: int) -> None:
        """Stand before the first entry of a chunk, or at the end."""
        directory = self.run.directory
        self.chunk, self.row = chunk, 0
        self._columns: ChunkColumns | None = None
        self.next_due: int | None = None
        if chunk < self.run.chunks:
            self.next_due = int(directory.first_deliver_after[chunk])
            self._last_due = int(directory.last_deliver_after[chunk])

    def _load(self) -> ChunkColumns:
        if self._columns is None:
            if self._ahead is not None and self._ahead[0] == self.chunk:
                (_, self._columns), self._ahead = self._ahead, None
            else:
                self._columns = self.run.columns(self.chunk)
        return self._columns

    def _look_ahead(self, chunk: int) -> ChunkColumns:
        """A later chunk: who counts what is in it will soon take that."""
        if self._ahead is None or self._ahead[0] != chunk:
            self._ahead = chunk, self.run.columns(chunk)
        return self._ahead[1]

    def seek(self, after: Key) -> None:
        """Stand before the first entry whose key is > `after`."""
        directory = self.run.directory
        chunk = rank(directory.last_deliver_after, directory.last_offset, after)
        if chunk != self.chunk:
            self._enter(chunk)
        if chunk == self.run.chunks:
            return
        self.row = 0
        if after >= (int(directory.first_deliver_after[chunk]), int(directory.first_offset[chunk])):
            self.row = self._row_behind(after)
            self.next_due = int(self._load()[0][self.row])
        else:
            self.next_due = int(directory.first_deliver_after[chunk])

    def skip(self, upto: Key) -> int:
        """Step over the entries with a key <= `upto`, which lies after the cursor; their records."""
        if self.chunk < self.run.chunks and upto.deliver_after < self._last_due:
            deliver_after, details = self._load()
            start, self.row = self.row, self._row_behind(upto)
            self.next_due = int(deliver_after[self.row])
            return int(details[2, start : self.row].sum(dtype=np.int64))
        before = self.records_passed()
        self.seek(upto)
        return self.records_passed() - before

    def _row_behind(self, key: Key) -> int:
        """The first row of the chunk whose key is > `key`."""
        deliver_after, details = self._load()
        high = int(deliver_after.searchsorted(key.deliver_after, "right"))
        if not high or deliver_after[high - 1] < key.deliver_after:
            return high
        low = int(deliver_after.searchsorted(key.deliver_after, "left"))
        relative = key.offset - self.run.coverage.first_offset
        if relative < 0:
            return low
        # A query of the column's own type: any other makes numpy convert the column.
        return low + int(details[0, low:high].searchsorted(np.uint32(min(relative, _UINT32_MAX)), "right"))

    def few_before(self, after: Key, limit: int) -> list[IndexEntry]:
        """Up to so many entries in front of the cursor with a key > `after`, the last one first, of the chunk in which
        it stands: there may be more of an earlier one."""
        found, row = list[IndexEntry](), self.row
        if row:
            deliver_after, details = self._load()
            first_offset = self.run.coverage.first_offset
            while row and len(found) < limit:
                row -= 1
                offset, position, records = details[:, row].tolist()
                entry = IndexEntry(int(deliver_after[row]), first_offset + offset, position, records)
                if (entry.deliver_after, entry.offset) <= after:
                    break
                found.append(entry)
        return found

    def records_passed(self) -> int:
        """Records in the run in front of the cursor."""
        records = int(self.run.directory.records_before[self.chunk])
        if self.row:
            records += int(self._load()[1][2, : self.row].sum(dtype=np.int64))
        return records

    def entries_until(self, deliver_after: int, limit: int) -> int:
        """Entries after the cursor due at `deliver_after` or before; if more than `limit`, any number above it."""
        if self.chunk < self.run.chunks and deliver_after < self._last_due:
            return int(self._load()[0].searchsorted(deliver_after, "right")) - self.row
        directory = self.run.directory
        chunk = int(directory.last_deliver_after.searchsorted(deliver_after, "right"))
        count = int(directory.entries_before[chunk]) - int(directory.entries_before[self.chunk]) - self.row
        if count <= limit and chunk < self.run.chunks and directory.first_deliver_after[chunk] <= deliver_after:
            count += int(self._look_ahead(chunk)[0].searchsorted(deliver_after, "right"))
        return count

    def take(self, count: int, into: Gatherer) -> None:
        """Step over `count` entries, which must be there, and hand them to `into`."""
        while count:
            deliver_after, details = self._load()
            stop = min(self.row + count, len(deliver_after))
            into.add(self.run.coverage.first_offset, deliver_after[self.row : stop], details[:, self.row : stop])
            count -= stop - self.row
            if stop == len(deliver_after):
                self._enter(self.chunk + 1)
            else:
                self.row = stop
                self.next_due = int(deliver_after[stop])

    def memory_bytes(self) -> int:
        """Of the chunks that it holds."""
        return sum(deliver_after.nbytes + details.nbytes for deliver_after, details in self._held())

    def loaded_entries(self) -> int:
        """In the chunks that it holds."""
        return sum(len(deliver_after) for deliver_after, _ in self._held())

    def _held(self) -> Iterable[ChunkColumns]:
        return filter(None, [self._columns, None if self._ahead is None else self._ahead[1]])


class Gatherer:
    """Collects slices of chunks without a copy, and makes entries of all of them at once."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[int, Int64Array, UInt32Array]] = []

    def add(self, first_offset: int, deliver_after: Int64Array, details: UInt32Array) -> None:
        self._parts.append((first_offset, deliver_after, details))

    def entries(self) -> Entries:
        """In the order in which they came, with absolute offsets."""
        if not self._parts:
            return Entries.empty()
        first_offsets, deliver_after, details = zip(*self._parts, strict=True)
        offset, position, records = np.concatenate(details, axis=1).astype(np.int64)
        offset += np.repeat(np.array(first_offsets, np.int64), [len(part) for part in deliver_after])
        return Entries(np.concatenate(deliver_after), offset, position, records)


class Cursors:
    """Cursors of runs in offset order, with the `next_due` of each in one column; those at their end drop out."""

    def __init__(self, cursors: Iterable[RunCursor]) -> None:
        self._hold(cursors)

    def _hold(self, cursors: Iterable[RunCursor]) -> None:
        self._cursors = [cursor for cursor in cursors if cursor.next_due is not None]
        self._next_due = np.array([cursor.next_due for cursor in self._cursors], np.int64)
        self._earliest = int(self._next_due.min()) if self._cursors else None

    def __len__(self) -> int:
        return len(self._cursors)

    def memory_bytes(self) -> int:
        """Of the chunks that they hold."""
        return sum(cursor.memory_bytes() for cursor in self._cursors)

    def loaded_entries(self) -> int:
        """In the chunks that they hold."""
        return sum(cursor.loaded_entries() for cursor in self._cursors)

    def earliest(self) -> int | None:
        """The smallest `next_due`, None without cursors."""
        return self._earliest

    def due(self, deliver_after: int) -> list[RunCursor]:
        """Those that stand before an entry of this time or an earlier one, in the runs' order."""
        if self._earliest is None or self._earliest > deliver_after:
            return []
        cursors = self._cursors
        return [cursors[row] for row in np.flatnonzero(self._next_due <= deliver_after).tolist()]

    def moved(self, deliver_after: int) -> None:
        """Those that were `due` at this time have moved: note where they stand."""
        if self._earliest is None or self._earliest > deliver_after:
            return
        rows = np.flatnonzero(self._next_due <= deliver_after).tolist()
        next_dues = [due for row in rows if (due := self._cursors[row].next_due) is not None]
        if len(next_dues) < len(rows):
            self._hold(self._cursors)
        else:
            self._next_due[rows] = next_dues
            self._earliest = int(self._next_due.min())
