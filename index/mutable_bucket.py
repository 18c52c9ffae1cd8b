"""The mutable bucket: the newest entries, in memory. PIP-195 calls it LastMutableBucket.

Entries come in offset order, singly or in columns, and are read in delivery order while more come.

    one      ──► singles ──at `SINGLES`──┐
    columns ─────────────────────────────┴──► fresh ──when somebody reads──► sorted columns  (index/sorted_columns.py)

Singles are packed ints in a SortedList, `deliver_after << 32 | ordinal`, where the ordinal is the row in four side
arrays in order of arrival. What is fresh lies as it came: where nobody reads meanwhile it is sorted once, when the
bucket is sealed. All three are one value, and one assignment puts another in its place.

Invariants, proved by `check`: those of the columns; offsets ascend from each of their parts to the next, on to what is
fresh, and on to the singles; the packed ints and the side arrays hold the same entries.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedList

from afterlog.base.clock import INT64_MAX
from afterlog.index.entries import Entries, IndexEntry, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.sorted_columns import SortedColumns

SINGLES = 512
"""Singles at which they go into the columns. Larger: cheaper to add, dearer to count, in Python up to so many."""
FRESH = 64
"""Columns that lie as they came. Larger: more of them are sorted at once, and the first reader behind them waits."""
_ADDED_SINGLY = 32
"""Up to here, adding entries one by one costs less than sorting them into the columns."""
_FEW = 8
"""Up to here, singles are read one by one."""
_ORDINAL_BITS = 32
_ORDINAL_MASK = (1 << _ORDINAL_BITS) - 1
_BEFORE = Key(-1, -1)
_END = Key(INT64_MAX, INT64_MAX)


class Start(NamedTuple):
    """Where the mutable bucket begins: the active segment's base offset, the byte in it, and the offset."""

    segment: int = 0
    position: int = 0
    offset: int = 0


_BEGINNING = Start()


class MutableBucket:
    """Thread-safe: one thread adds, any thread reads."""

    def __init__(self, start: Start = _BEGINNING, *, stale: tuple[str, ...] = ()) -> None:
        """`stale`: keys of stored runs whose entries are in here again; they go once it is sealed."""
        self.start = start
        self.stale = stale
        self._lock = threading.Lock()
        """Held while singles are added or read, and while `_held` is changed."""
        self._held = _Contents(SortedColumns(), (), 0, _Singles())

    @property
    def count(self) -> int:
        """Entries."""
        columns, _, fresh_count, singles = self._held
        return columns.count + fresh_count + singles.count

    @property
    def records(self) -> int:
        columns, singles = self._settled()
        return columns.rank(_END) + singles.records

    def add(self, deliver_after: int, offset: int, position: int, records: int) -> None:
        """Add one entry, behind all others in offset order; else ValueError. About 1 us."""
        singles = self._held.singles
        with self._lock:
            singles.add(deliver_after, offset, position, records)
        if singles.count == SINGLES:
            self._add(singles.entries())

    def add_many(self, entries: Entries) -> None:
        """Add entries that come in offset order and behind all others; else ValueError and nothing added."""
        if not len(entries):
            return
        if (entries.offset[1:] <= entries.offset[:-1]).any():
            raise ValueError("entries must be added in offset order")
        if len(entries) <= _ADDED_SINGLY:
            for entry in entries:
                self.add(*entry)
            return
        singles = self._held.singles
        singles.check_next(int(entries.offset[0]))
        self._add(Entries.concatenate([singles.entries(), entries]))

    def _add(self, entries: Entries) -> None:
        """In the place of the singles, which are among them."""
        if len(self._held.fresh) == FRESH:
            self._settled()
        with self._lock:
            columns, fresh, fresh_count, _ = self._held
            singles = _Singles(int(entries.offset[-1]))
            self._held = _Contents(columns, (*fresh, entries), fresh_count + len(entries), singles)

    def records_up_to(self, key: Key) -> int:
        """Records of the entries with a key <= `key`."""
        columns, singles = self._settled()
        with self._lock:
            records = singles.records_up_to(key)
        return records + columns.rank(key)

    def next_due(self, after: Key | None = None) -> int | None:
        """deliver_after of the first entry with a key > `after`."""
        columns, singles = self._settled()
        with self._lock:
            due = singles.next_due(after or _BEFORE)
        in_columns = columns.next_due(after)
        return due if in_columns is None or (due is not None and due < in_columns) else in_columns

    def few(self, after: Key, upto: Key, limit: int) -> list[IndexEntry]:
        """`between` of a few, in no order, and no more than `limit` of each part; each by itself, with no columns."""
        columns, singles = self._settled()
        with self._lock:
            found = singles.few(after, upto, limit)
        for part in columns.between(after, upto, limit):
            found += map(part.entry, range(len(part)))
        return found

    def between(self, after: Key, upto: Key, limit: int) -> Entries:
        """The first `limit` entries with after < key <= upto, in delivery order."""
        columns, singles = self._settled()
        with self._lock:
            last = singles.between(after, upto, limit)
        found = columns.between(after, upto, limit)
        return Entries.concatenate([*found, last]).sorted()[:limit] if found else last

    def due_counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, the records with deliver_after < edge."""
        columns, singles = self._columns()
        singles = singles.sorted()
        return columns.counts(edges) + singles.records_before()[singles.deliver_after.searchsorted(edges, "left")]

    def contains(self, offset: int) -> bool:
        """Whether an entry holds `offset`. One pass over the bucket."""
        columns, singles = self._columns()
        return any(part.contains(offset) for part in (*columns.parts(), singles))

    def entries(self, end_offset: int = INT64_MAX) -> Entries:
        """All entries below an offset, in delivery order."""
        parts = [_where(part, part.offset < end_offset) for part in self._parts()]
        return Entries.concatenate(parts).sorted()

    def behind(self, start: Start) -> MutableBucket:
        """Another one that begins there, with all entries from that offset on. Nothing is added meanwhile."""
        left = Entries.concatenate([_where(part, part.offset >= start.offset) for part in self._parts()])
        bucket = MutableBucket(start)
        bucket.add_many(left.take(left.offset.argsort()))
        return bucket

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        held = self._held
        held.columns.check()
        assert held.fresh_count == sum(map(len, held.fresh))
        assert len(held.fresh) <= FRESH
        parts = self._parts()
        last_offset = -1
        for part in parts:
            if len(part):
                assert int(part.offset.min()) > last_offset
                last_offset = int(part.offset.max())
        assert last_offset == held.singles.last_offset
        assert self.count == sum(map(len, parts))
        assert self.records == sum(int(part.records.sum()) for part in parts)
        held.singles.check()

    def _parts(self) -> list[Entries]:
        """All entries, the singles in offset order."""
        held = self._held
        with self._lock:
            return [*held.columns.parts(), *held.fresh, held.singles.entries()]

    def _columns(self) -> tuple[SortedColumns[Entries], Entries]:
        """All entries; the singles in offset order."""
        columns, singles = self._settled()
        with self._lock:
            return columns, singles.entries()

    def _settled(self) -> tuple[SortedColumns[Entries], _Singles]:
        """With nothing that is fresh: it is sorted into the columns. Who adds meanwhile adds to what is there then."""
        held = self._held
        if not held.fresh:
            return held.columns, held.singles
        columns = held.columns.including(Entries.concatenate(held.fresh))
        with self._lock:
            now = self._held
            if now.columns is held.columns:
                fresh = now.fresh[len(held.fresh) :]
                self._held = _Contents(columns, fresh, now.fresh_count - held.fresh_count, now.singles)
        return columns, held.singles


def _where(entries: Entries, wanted: npt.NDArray[np.bool_]) -> Entries:
    return entries if wanted.all() else entries.take(np.flatnonzero(wanted))


class _Contents(NamedTuple):
    """What is in the bucket."""

    columns: SortedColumns[Entries]
    fresh: tuple[Entries, ...]
    """In offset order each, and one after another."""
    fresh_count: int
    """Entries in these."""
    singles: _Singles


class _Singles:
    """Entries that came one by one: packed ints in delivery order, and their columns in order of arrival."""

    __slots__ = ("_columns", "_packed", "count", "last_offset", "records")

    def __init__(self, last_offset: int = -1) -> None:
        """`last_offset`: of what was added before."""
        self.last_offset = last_offset
        self.count = 0
        self.records = 0
        self._packed = SortedList()
        self._columns = array("q"), array("q"), array("q"), array("q")

    def check_next(self, offset: int) -> None:
        if offset <= self.last_offset:
            raise ValueError(
                f"offset {offset} does not follow {self.last_offset}: entries must be added in offset order"
            )

    def add(self, deliver_after: int, offset: int, position: int, records: int) -> None:
        self.check_next(offset)
        dues, offsets, positions, counts = self._columns
        dues.append(deliver_after)
        offsets.append(offset)
        positions.append(position)
        counts.append(records)
        self._packed.add(deliver_after << _ORDINAL_BITS | self.count)
        self.count += 1
        self.records += records
        self.last_offset = offset

    def records_up_to(self, key: Key) -> int:
        rank = self._rank(key)
        if self.records == self.count:  # one record each, as a rule
            return rank
        return sum(self._columns[3][packed & _ORDINAL_MASK] for packed in self._packed.islice(0, rank))

    def next_due(self, after: Key) -> int | None:
        row = self._rank(after)
        return int(self._packed[row]) >> _ORDINAL_BITS if row < self.count else None

    def few(self, after: Key, upto: Key, limit: int) -> list[IndexEntry]:
        found, dues, offsets, positions, counts = list[IndexEntry](), *self._columns
        for packed in self._packed.islice(self._rank(after)):
            row = packed & _ORDINAL_MASK
            if len(found) == limit or (dues[row], offsets[row]) > upto:
                break
            found.append(IndexEntry(dues[row], offsets[row], positions[row], counts[row]))
        return found

    def between(self, after: Key, upto: Key, limit: int) -> Entries:
        start = self._rank(after)
        chosen = self._packed.islice(start, min(self._rank(upto), start + limit))
        rows = [packed & _ORDINAL_MASK for packed in chosen]
        if len(rows) <= _FEW:
            return Entries(*(np.array([column[row] for row in rows], np.int64) for column in self._columns))
        return self.entries().take(np.array(rows))

    def entries(self) -> Entries:
        """All of them, in offset order."""
        return Entries(*map(np.array, self._columns))

    def check(self) -> None:
        ordinals = [packed & _ORDINAL_MASK for packed in self._packed]
        assert self.count < SINGLES
        assert all(self.count == len(column) for column in self._columns)
        assert sorted(ordinals) == [*range(self.count)]
        assert all(packed >> _ORDINAL_BITS == self._columns[0][packed & _ORDINAL_MASK] for packed in self._packed)
        assert self.records == sum(self._columns[3])

    def _rank(self, key: Key) -> int:
        """Singles with a key <= `key`. Ordinals grow with offsets, so the key has its own packed int."""
        ordinal = bisect_right(self._columns[1], key.offset)
        return int(self._packed.bisect_left(key.deliver_after << _ORDINAL_BITS | ordinal))
