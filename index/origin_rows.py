"""Rows of an origin index: which records of a log were replicated, and which offsets they have where they come from.

    origin i64 | origin offset i64 | offset i64 | records i64    32 bytes a row, little-endian, in the order of the log

A row is records that follow each other there and here. `origin` counts in a list of names that is kept elsewhere. Of
one origin both offsets rise from row to row, so either is found by the other in a search.

Example: records 40 to 42 of origin 0 are the records 7 to 9 here:

    00 x 8   28 00 x 7   07 00 x 7   03 00 x 7
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from afterlog.index.growing_columns import Int64Array

ROW_BYTES: Final = 32


class OriginRows(NamedTuple):
    """int64 columns of one length."""

    origin: Int64Array
    origin_offset: Int64Array
    offset: Int64Array
    records: Int64Array

    @staticmethod
    def empty() -> OriginRows:
        return _NONE

    @staticmethod
    def concatenate(parts: Iterable[OriginRows]) -> OriginRows:
        parts = [part for part in parts if part]
        if len(parts) < 2:
            return parts[0] if parts else _NONE
        return OriginRows(*map(np.concatenate, zip(*parts, strict=True)))

    @staticmethod
    def from_bytes(data: bytes) -> OriginRows:
        """What `to_bytes` gave. ValueError with the reason where it cannot be that."""
        if len(data) % ROW_BYTES:
            raise ValueError(f"{len(data)} bytes are no whole number of {ROW_BYTES}-byte rows")
        rows = OriginRows(*np.frombuffer(data, "<i8").reshape(-1, 4).T.astype(np.int64, order="C"))
        rows.check()
        return rows

    def to_bytes(self) -> bytes:
        return np.stack(self, axis=1).astype("<i8").tobytes()

    def __bool__(self) -> bool:
        return len(self.offset) > 0

    def where(self, rows: slice | Int64Array | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> OriginRows:
        """Those that a slice, a mask or an index chooses."""
        return OriginRows(*(column[rows] for column in self))

    def runs(self) -> OriginRows:
        """The same, with neighbours as one that follow each other there and here."""
        if len(self.offset) < 2:
            return self
        new = (
            (self.origin[1:] != self.origin[:-1])
            | (self.offset[1:] != self.offset[:-1] + self.records[:-1])
            | (self.origin_offset[1:] != self.origin_offset[:-1] + self.records[:-1])
        )
        first = np.append(0, np.flatnonzero(new) + 1)
        return self.where(first)._replace(records=np.add.reduceat(self.records, first))

    def of(self, origin: int) -> OriginRows:
        """Those of one origin."""
        return self.where(self.origin == origin)

    def check(self) -> None:
        """ValueError where an invariant does not hold."""
        if int(self.records.min(initial=1)) < 1 or int(self.origin.min(initial=0)) < 0:
            raise ValueError("a row has no records, or no origin")
        if bool((self.offset[1:] < self.offset[:-1] + self.records[:-1]).any()) or int(self.offset.min(initial=0)) < 0:
            raise ValueError("rows overlap, or are not in offset order")
        for origin in np.unique(self.origin).tolist():
            mine = self.of(origin)
            behind = mine.origin_offset[:-1] + mine.records[:-1]
            if bool((mine.origin_offset[1:] < behind).any()) or int(mine.origin_offset.min(initial=0)) < 0:
                raise ValueError("the offsets of an origin do not rise")


_NO_ROWS = np.empty(0, np.int64)
_NO_ROWS.flags.writeable = False
_NONE = OriginRows(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS)
