"""Rows of an index by hash: which records hold a key, as three columns of one length, sorted by hash.

    hashed      offset   due              24 bytes a row, int64
    -8033…21    1042     1700000060000    due: the effective deliver_after, so that who looks knows without the log
    -8033…21    2207     1700000090000    whether the record is still pending

A hash is no key: two keys may have the same, so a row found is a candidate, and the log has the last word.

Invariant (`check`): rows ascend by hash, and where hashes are equal by offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from afterlog.index.growing_columns import Int64Array


class KeyRows(NamedTuple):
    """int64 columns of one length."""

    hashed: Int64Array
    offset: Int64Array
    due: Int64Array

    @staticmethod
    def empty() -> KeyRows:
        return _EMPTY

    @staticmethod
    def concatenate(parts: list[KeyRows]) -> KeyRows:
        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else _EMPTY
        return KeyRows(
            np.concatenate([part.hashed for part in parts]),
            np.concatenate([part.offset for part in parts]),
            np.concatenate([part.due for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.hashed)

    def sorted(self) -> KeyRows:
        """The same in order, of rows of which equal hashes come in offset order."""
        return self.take(np.argsort(self.hashed, kind="stable"))

    def take(self, rows: Int64Array | npt.NDArray[np.bool_] | slice) -> KeyRows:
        """Those at `rows`, in that order, or where that is true."""
        return KeyRows(self.hashed[rows], self.offset[rows], self.due[rows])

    def where(self, kept: npt.NDArray[np.bool_]) -> KeyRows:
        """Those where that is true; all of them without a copy."""
        return self if bool(kept.all()) else self.take(kept)

    def matching_one(self, hashed: int) -> list[tuple[int, int]]:
        """(offset, due) of those with this hash."""
        first = int(self.hashed.searchsorted(hashed))
        if first == len(self.hashed) or self.hashed[first] != hashed:  # as a rule
            return []
        rows = slice(first, int(self.hashed.searchsorted(hashed, "right")))
        return list(zip(self.offset[rows].tolist(), self.due[rows].tolist(), strict=True))

    def matching(self, hashes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Pairs of equal hashes: the row among `hashes`, and the row here. Quicker where `hashes` ascend."""
        first = self.hashed.searchsorted(hashes, "left")
        count = self.hashed.searchsorted(hashes, "right") - first
        hit = np.flatnonzero(count)
        which = np.repeat(hit, count[hit])
        within = np.arange(len(which)) - np.repeat(np.cumsum(count[hit]) - count[hit], count[hit])
        return which, first[which] + within

    @staticmethod
    def merged(parts: list[KeyRows], chunk_rows: int) -> Iterator[KeyRows]:
        """All rows of sorted parts, each of which lies after those before it in offset order: a chunk at a time."""
        if not parts:
            return
        edges = np.unique(max(parts, key=len).hashed[chunk_rows::chunk_rows]).tolist()
        starts = [0] * len(parts)
        for edge in [*edges, None]:
            stops = [len(each) if edge is None else int(each.hashed.searchsorted(edge)) for each in parts]
            yield KeyRows.concatenate(
                [each.take(slice(*rows)) for each, *rows in zip(parts, starts, stops, strict=True)]
            ).sorted()
            starts = stops

    def check(self) -> None:
        """ValueError where the invariant does not hold, or a number cannot be."""
        same = self.hashed[1:] == self.hashed[:-1]
        if bool((self.hashed[1:] < self.hashed[:-1]).any()) or bool((self.offset[1:] < self.offset[:-1])[same].any()):
            raise ValueError("rows are not in the order of their hashes and offsets")
        if int(self.offset.min(initial=0)) < 0 or int(self.due.min(initial=0)) < 0:
            raise ValueError("an offset or a time is negative")


_NONE = np.empty(0, np.int64)
_NONE.flags.writeable = False
_EMPTY = KeyRows(_NONE, _NONE, _NONE)
