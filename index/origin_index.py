"""The replicated records of one partition: where each came from, and its offset there.

    (origin, origin offset) <──> offset        in either direction, of what is still in the log
    highest of each origin                     what is at or below it was appended here once, and is not again
    awaited of each origin                     what was cancelled elsewhere before it came, and is not to come

It grows with the log, under the append lock: after the write of an append and before the swap that makes it true. What
is interrupted in between has all of it made anew, from the file and from the log. Anybody reads it: a row counts as far
as the version that the reader holds.

Memory: 32 bytes for each stretch of records that follow each other in both logs. A topic that is written in one cluster
has one stretch in each other; where clusters write by turns, one for each turn.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from afterlog.index.growing_columns import GrowableColumns, Int64Array
from afterlog.index.origin_file import OriginFileMark, StoredOrigins
from afterlog.index.origin_rows import OriginRows

_NOTHING = np.empty(0, np.int64)
_NOTHING.flags.writeable = False


class OriginIndex:
    """Of one partition. One thread changes it."""

    __slots__ = ("_awaited", "_rows", "_upcoming", "changes", "file", "names", "stored")

    def __init__(self, known: StoredOrigins | None = None, file: OriginFileMark | None = None) -> None:
        self.names: tuple[str, ...] = ()
        self._upcoming = dict[str, int]()
        self._rows = GrowableColumns(4)
        self._awaited = dict[str, Int64Array]()
        self.file = file
        """The one that was durable last."""
        self.changes = 0
        """Grows with each stretch that is noted."""
        self.stored = 0
        """As of which `changes` the file tells."""
        if known is not None:
            self.names = tuple(known.upcoming)
            self._upcoming |= known.upcoming
            self._rows.append(*known.rows)
            self._awaited |= known.awaited

    def upcoming(self, origin: str) -> int:
        """The offset after the highest that was replicated from there; 0 where nothing was."""
        return self._upcoming.get(origin, 0)

    def highest(self) -> Mapping[str, int]:
        """The same of each origin."""
        return self._upcoming.copy()

    def note(self, origin: str, rows: OriginRows) -> None:
        """These were appended, all from there; they lie after all that are known."""
        if not rows:
            return
        if origin not in self._upcoming:
            self.names += (origin,)
        rows = rows._replace(origin=np.full(len(rows.offset), self.names.index(origin)))
        if self._goes_on(rows):
            self._rows.add_to_last(3, int(rows.records[0]))
            self._rows.append(*rows.where(slice(1, None)))
        else:
            self._rows.append(*rows)
        self._upcoming[origin] = int(rows.origin_offset[-1] + rows.records[-1])
        self.changes += 1

    def awaited(self, origin: str) -> Int64Array:
        """The offsets there of what is not to come, ascending, of what did not come yet."""
        known = self._awaited.get(origin, _NOTHING)
        return known[known.searchsorted(self.upcoming(origin)) :]

    def note_awaited(self, origin: str, origin_offset: Int64Array) -> None:
        """These are not to come."""
        self._awaited[origin] = np.union1d(self.awaited(origin), origin_offset)
        self.changes += 1

    def _goes_on(self, rows: OriginRows) -> bool:
        """Whether the first of them follows the last one that is known, there and here."""
        if not self._rows.count:
            return False
        origin, origin_offset, offset, records = (int(self._rows.column(number)[-1]) for number in range(4))
        behind = (origin, origin_offset + records, offset + records)
        return behind == (int(rows.origin[0]), int(rows.origin_offset[0]), int(rows.offset[0]))

    def rows(self, first: int = 0, end: int | None = None) -> OriginRows:
        """Those of offsets from `first` to `end`: rows are not cut. Views, not to be written to."""
        offset = self._rows.column(2)
        start = max(int(offset.searchsorted(first, side="right")) - 1, 0)
        stop = len(offset) if end is None else int(offset.searchsorted(end))
        return OriginRows(*(self._rows.column(number)[start:stop] for number in range(4)))

    def here(self, origin: str, origin_offsets: Int64Array) -> Int64Array:
        """The offsets of records of an origin; -1 where there is none here, or not yet. int64[n]."""
        if origin not in self._upcoming:
            return np.full(len(origin_offsets), -1)
        mine = self.rows().of(self.names.index(origin))
        if not mine:  # retention has taken all of it
            return np.full(len(origin_offsets), -1)
        row = mine.origin_offset.searchsorted(origin_offsets, side="right") - 1
        place = np.maximum(row, 0)
        into = origin_offsets - mine.origin_offset[place]
        return np.where((row >= 0) & (into < mine.records[place]), mine.offset[place] + into, -1)

    def origins(self, offsets: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(origin, origin offset) of records: the first counts in `names`, and is -1 where it was appended here first.

        int64[n] both; of those from here the second is the offset itself.
        """
        rows = self.rows()
        if not rows:
            return np.full(len(offsets), -1), offsets
        row = rows.offset.searchsorted(offsets, side="right") - 1
        place = np.maximum(row, 0)
        into = offsets - rows.offset[place]
        replicated = (row >= 0) & (into < rows.records[place])
        return (
            np.where(replicated, rows.origin[place], -1),
            np.where(replicated, rows.origin_offset[place] + into, offsets),
        )

    def own_from(self, offset: int) -> int:
        """The first offset at or after this one that was appended here first, were the log to go on for ever."""
        rows = self.rows(offset)
        behind = rows.offset + rows.records
        if not rows or not int(rows.offset[0]) <= offset < int(behind[0]):
            return offset
        apart = np.flatnonzero(rows.offset[1:] != behind[:-1])
        return int(behind[apart[0] if len(apart) else -1])

    def stored_from(self, log_start_offset: int) -> StoredOrigins:
        """What is to be kept: all names, and the rows that reach behind the start of the log, as few as can be."""
        rows = self.rows()
        awaited = {name: self.awaited(name) for name in self._awaited}
        return StoredOrigins(
            self._upcoming.copy(),
            rows.where(rows.offset + rows.records > log_start_offset).runs(),
            {name: offsets for name, offsets in awaited.items() if len(offsets)},
        )

    def check(self, end_offset: int) -> None:
        """AssertionError where an invariant does not hold. end_offset: of the log."""
        rows = self.rows()
        try:
            rows.check()
        except ValueError as error:
            raise AssertionError(str(error)) from error
        assert self.names == tuple(self._upcoming)
        assert not rows or int(rows.offset[-1] + rows.records[-1]) <= end_offset
        assert int(rows.origin.max(initial=-1)) < len(self.names)
        for number, name in enumerate(self.names):
            mine = rows.of(number)
            assert not mine or int(mine.origin_offset[-1] + mine.records[-1]) == self._upcoming[name]
