"""What is known of records that came back: where they lie in the log, when they go out again, how often they failed.

    delivery_offset   int64   the key
    offset            int64   append offset, by which the log finds the record at once; -1 where it is to be looked up
    retry_ms          int64   when it is, or was, to go out again
    lease_number      int64   of its next lease, or the one it has: `lease_number.py`

32 bytes a record: sorted columns, and in front of them a dict of up to RECENT records, folded into the columns when it
is full. A record that fails again is changed where it is. One that has been acked stays until `keep` drops it.

Invariants, proved by `check`: the columns are sorted by key, no key is there twice, also not in the dict.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from afterlog.base.clock import INT64_MAX
from afterlog.index.growing_columns import Int64Array
from afterlog.records.columns import Bools

RECENT = 8_192
"""Records in the dict: 300 bytes each. Larger: fewer folds, each of which copies all columns."""
UNKNOWN = -1


class Rows(NamedTuple):
    """Columns of records that came back, by ascending delivery offset."""

    delivery_offset: Int64Array
    offset: Int64Array
    retry_ms: Int64Array
    lease_number: Int64Array

    def at(self, rows: Bools | Int64Array) -> Rows:
        return Rows(*(column[rows] for column in self))


class Redeliveries:
    """A table by delivery offset. One thread at a time."""

    def __init__(self, rows: Rows | None = None, first: int = 0) -> None:
        """first: the number of the first lease of a record."""
        nothing = np.empty(0, np.int64)
        self.first = first
        self._rows = rows or Rows(nothing, nothing, nothing, nothing)
        self._recent: dict[int, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._rows.delivery_offset) + len(self._recent)

    def put(self, rows: Rows) -> None:
        """Note records, ascending and none twice, or what is new of them."""
        many = len(rows.delivery_offset) > RECENT
        if many:
            self._fold()
        place, known = self._places(rows.delivery_offset)
        if known.any():
            place = place[known]
            for held, new in zip(self._rows[1:], rows[1:], strict=True):
                held[place] = new[known]
            if known.all():
                return
            rows = rows.at(~known)
        if many:
            self._insert(rows)
            return
        keys, *columns = (column.tolist() for column in rows)
        self._recent.update(zip(keys, zip(*columns, strict=True), strict=True))
        if len(self._recent) > RECENT:
            self._fold()

    def put_one(self, delivery_offset: int, offset: int, retry_ms: int, lease_number: int) -> None:
        """The same of one."""
        place = self._place(delivery_offset)
        if place is None:
            self._recent[delivery_offset] = offset, retry_ms, lease_number
            if len(self._recent) > RECENT:
                self._fold()
        else:
            for held, new in zip(self._rows[1:], (offset, retry_ms, lease_number), strict=True):
                held[place] = new

    def find(self, delivery_offset: Int64Array) -> Rows:
        """What is known of these, ascending: UNKNOWN offset and the first lease where they never came back."""
        place, known = self._places(delivery_offset)
        rows = Rows(
            delivery_offset,
            np.full(len(delivery_offset), UNKNOWN),
            np.zeros(len(delivery_offset), np.int64),
            np.full(len(delivery_offset), self.first),
        )
        if known.any():
            place = place[known]
            for row, held in zip(rows[1:], self._rows[1:], strict=True):
                row[known] = held[place]
        if self._recent and not known.all():
            unknown = np.flatnonzero(~known)
            nothing = (UNKNOWN, 0, self.first)
            found = [self._recent.get(key, nothing) for key in delivery_offset[unknown].tolist()]
            rows.offset[unknown], rows.retry_ms[unknown], rows.lease_number[unknown] = np.array(found, np.int64).T
        return rows

    def lease_numbers(self, delivery_offset: Int64Array) -> Int64Array:
        """Of these, ascending."""
        if not len(self):
            return np.full(len(delivery_offset), self.first)
        if len(delivery_offset) == 1:
            return np.array([self.lease_number_of(int(delivery_offset[0]))])
        return self.find(delivery_offset).lease_number

    def lease_number_of(self, delivery_offset: int) -> int:
        """The same of one."""
        return self.of_one(delivery_offset)[1]

    def of_one(self, delivery_offset: int) -> tuple[int, int]:
        """The append offset, or UNKNOWN, and the lease number of one."""
        recent = self._recent.get(delivery_offset)
        if recent is not None:
            return recent[0], recent[2]
        place = self._place(delivery_offset)
        if place is None:
            return UNKNOWN, self.first
        return int(self._rows.offset[place]), int(self._rows.lease_number[place])

    def keep(self, held: Int64Array) -> None:
        """Drop what is not among these, ascending."""
        self._fold()
        if not np.array_equal(held, self._rows.delivery_offset):
            place, known = self._places(held)
            self._rows = self._rows.at(place[known])

    def later(self, ms: int) -> None:
        """All go out again by so much later."""
        self._fold()
        self._rows = self._rows._replace(retry_ms=np.minimum(self._rows.retry_ms, INT64_MAX - ms) + ms)

    def rows(self) -> Rows:
        """All of them; views that the next change may write to."""
        self._fold()
        return self._rows

    def memory_bytes(self) -> int:
        """Of the columns, and an estimate of the dict."""
        return sum(column.nbytes for column in self._rows) + 300 * len(self._recent)

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        keys = self._rows.delivery_offset
        assert (keys[1:] > keys[:-1]).all()
        assert {len(keys)} == {len(column) for column in self._rows}
        assert not self._recent or not set(self._recent) & set(keys.tolist())

    def _place(self, key: int) -> int | None:
        """Where this key lies in the columns."""
        held = self._rows.delivery_offset
        place = int(held.searchsorted(key)) if len(held) else 0
        return place if place < len(held) and held[place] == key else None

    def _places(self, keys: Int64Array) -> tuple[Int64Array, Bools]:
        """Where these keys lie in the columns, and which of them do."""
        held = self._rows.delivery_offset
        if not len(held):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        place = held.searchsorted(keys)
        return place, held[np.minimum(place, len(held) - 1)] == keys

    def _fold(self) -> None:
        """The dict into the columns."""
        if not self._recent:
            return
        keys = np.fromiter(self._recent, np.int64, len(self._recent))
        order = np.argsort(keys)
        self._insert(Rows(keys[order], *np.array([*self._recent.values()], np.int64)[order].T))
        self._recent.clear()

    def _insert(self, rows: Rows) -> None:
        """New rows into the columns. `np.insert` would do it at three times the cost."""
        keys = self._rows.delivery_offset
        place = keys.searchsorted(rows.delivery_offset)
        behind = int(place[0]) == len(keys)  # all others: so come the first failures of what is read in order
        place += np.arange(len(place))
        held = np.ones(len(keys) + len(place), np.bool_)
        held[place] = False

        def merged(column: Int64Array, new: Int64Array) -> Int64Array:
            if behind:
                return np.concatenate([column, new])
            both = np.empty(len(held), np.int64)
            both[held], both[place] = column, new
            return both

        self._rows = Rows(*map(merged, self._rows, rows))
