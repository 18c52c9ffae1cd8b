"""The mutable bucket: the newest entries, in memory. PIP-195 calls it LastMutableBucket.

Entries come in offset order, singly or in columns, and are read in delivery order while more come.

- Singles go into a SortedList of packed ints, `deliver_after << 32 | ordinal`, where the ordinal is the row in three
  side arrays in order of arrival. At `SINGLES` of them they are made into a block.
- A block is a set of sorted columns. A new one is merged with the last while that is less than twice as large, so there
  are O(log n) blocks and an entry is merged O(log n) times.

Invariants, proved by `check`: the offsets of a block are all below those of the next, and those of the last below those
of the singles; each block is in delivery order and at least twice as large as the next; the packed ints and the side
arrays hold the same entries.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from sortedcontainers import SortedList

from afterlog.index.entries import Entries, Key, is_delivery_order
from afterlog.index.growing_columns import Int64Array

SINGLES = 512
"""Singles at which they become a block. Larger: cheaper to add, dearer to count, in Python up to so many."""
_ADDED_SINGLY = 32
"""Up to here, adding entries one by one costs less than making a block of them."""
_ORDINAL_BITS = 32
_ORDINAL_MASK = (1 << _ORDINAL_BITS) - 1


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
        self._blocks: list[_Block] = []
        self._singles = _Singles()
        self._last_offset = -1
        self.count = 0
        """Entries."""
        self.records = 0

    def add(self, deliver_after: int, offset: int, position: int, records: int) -> None:
        """Add one entry, behind all others in offset order; else ValueError. About 1 us."""
        with self._lock:
            self._check_offset(offset)
            self._add(deliver_after, offset, position, records)

    def add_many(self, entries: Entries) -> None:
        """Add entries that come in offset order and behind all others; else ValueError and nothing added."""
        if not len(entries):
            return
        if (entries.offset[1:] <= entries.offset[:-1]).any():
            raise ValueError("entries must be added in offset order")
        block = _Block(entries.sorted()) if len(entries) > _ADDED_SINGLY else None
        with self._lock:
            self._check_offset(int(entries.offset[0]))
            if block is None:
                for entry in entries:
                    self._add(*entry)
                return
            self._fold_singles()
            self._push(block)
            self._last_offset = int(entries.offset[-1])
            self.count += len(entries)
            self.records += block.records

    def records_up_to(self, key: Key) -> int:
        """Records of the entries with a key <= `key`."""
        with self._lock:
            return sum(block.records_up_to(key) for block in self._blocks) + self._singles.records_up_to(key)

    def next_due(self, after: Key | None = None) -> int | None:
        """deliver_after of the first entry with a key > `after`."""
        after = after or Key(-1, -1)
        with self._lock:
            following = [block.next_due(after) for block in self._blocks]
            following.append(self._singles.next_due(after))
        return min((due for due in following if due is not None), default=None)

    def between(self, after: Key, upto: Key, limit: int) -> Entries:
        """The first `limit` entries with after < key <= upto, in delivery order."""
        with self._lock:
            parts = [block.between(after, upto, limit) for block in self._blocks]
            parts.append(self._singles.between(after, upto, limit))
        return Entries.concatenate(parts).sorted()[:limit]

    def due_counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, the records with deliver_after < edge."""
        with self._lock:
            blocks = [*self._blocks, _Block(self._singles.entries())]
        counts = np.zeros(len(edges), np.int64)
        for block in blocks:
            counts += block.records_before[block.entries.deliver_after.searchsorted(edges, "left")]
        return counts

    def contains(self, offset: int) -> bool:
        """Whether an entry holds `offset`. One pass over the bucket."""
        return any(part.contains(offset) for part in self._parts())

    def entries(self) -> Entries:
        """All entries, in delivery order."""
        return Entries.concatenate(self._parts()).sorted()

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        with self._lock:
            parts = [*(block.entries for block in self._blocks), self._singles.entries()]
            sizes = [len(block.entries) for block in self._blocks]
            assert all(larger >= 2 * smaller for larger, smaller in pairwise(sizes)), sizes
            last_offset = -1
            for part in parts:
                assert is_delivery_order(part.deliver_after, part.offset)
                if len(part):
                    assert int(part.offset.min()) > last_offset
                    last_offset = int(part.offset.max())
            assert last_offset == self._last_offset
            assert self.count == sum(len(part) for part in parts)
            assert self.records == sum(int(part.records.sum()) for part in parts)
            self._singles.check()

    def _parts(self) -> list[Entries]:
        with self._lock:
            return [*(block.entries for block in self._blocks), self._singles.entries()]

    def _check_offset(self, offset: int) -> None:
        if offset <= self._last_offset:
            raise ValueError(
                f"offset {offset} does not follow {self._last_offset}: entries must be added in offset order"
            )

    def _add(self, deliver_after: int, offset: int, position: int, records: int) -> None:
        self._singles.add(deliver_after, offset, position, records)
        self._last_offset = offset
        self.count += 1
        self.records += records
        if len(self._singles) == SINGLES:
            self._fold_singles()

    def _fold_singles(self) -> None:
        if len(self._singles):
            self._push(_Block(self._singles.entries()))
            self._singles = _Singles()

    def _push(self, block: _Block) -> None:
        entries = block.entries
        while self._blocks and len(self._blocks[-1].entries) < 2 * len(entries):
            entries = Entries.concatenate([self._blocks.pop().entries, entries])
        self._blocks.append(block if entries is block.entries else _Block(entries.sorted()))


class _Block:
    """Entries in delivery order, never changed, with the records in front of each row."""

    __slots__ = ("entries", "records_before")

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.records_before = np.zeros(len(entries) + 1, np.int64)
        np.cumsum(entries.records, out=self.records_before[1:])

    @property
    def records(self) -> int:
        return int(self.records_before[-1])

    def records_up_to(self, key: Key) -> int:
        return int(self.records_before[self.entries.rank(key)])

    def next_due(self, after: Key) -> int | None:
        row = self.entries.rank(after)
        return int(self.entries.deliver_after[row]) if row < len(self.entries) else None

    def between(self, after: Key, upto: Key, limit: int) -> Entries:
        start = self.entries.rank(after)
        return self.entries[start : min(self.entries.rank(upto), start + limit)]


class _Singles:
    """Entries that came one by one: packed ints in delivery order, and their columns in order of arrival."""

    __slots__ = ("_offsets", "_packed", "_positions", "_records", "_total")

    def __init__(self) -> None:
        self._packed = SortedList()
        self._offsets, self._positions, self._records = array("q"), array("q"), array("q")
        self._total = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, deliver_after: int, offset: int, position: int, records: int) -> None:
        self._packed.add(deliver_after << _ORDINAL_BITS | len(self._offsets))
        self._offsets.append(offset)
        self._positions.append(position)
        self._records.append(records)
        self._total += records

    def records_up_to(self, key: Key) -> int:
        rank = self._rank(key)
        if self._total == len(self):  # one record each, as a rule
            return rank
        return sum(self._records[packed & _ORDINAL_MASK] for packed in self._packed.islice(0, rank))

    def next_due(self, after: Key) -> int | None:
        row = self._rank(after)
        return int(self._packed[row]) >> _ORDINAL_BITS if row < len(self) else None

    def between(self, after: Key, upto: Key, limit: int) -> Entries:
        start = self._rank(after)
        return self._columns(self._packed.islice(start, min(self._rank(upto), start + limit)))

    def entries(self) -> Entries:
        return self._columns(iter(self._packed))

    def check(self) -> None:
        assert [packed & _ORDINAL_MASK for packed in sorted(self._packed, key=lambda one: one & _ORDINAL_MASK)] == list(
            range(len(self))
        )
        assert len(self) == len(self._positions) == len(self._records) < SINGLES
        assert self._total == sum(self._records)

    def _rank(self, key: Key) -> int:
        """Singles with a key <= `key`. Ordinals grow with offsets, so the key has its own packed int."""
        ordinal = bisect_right(self._offsets, key.offset)
        return int(self._packed.bisect_left(key.deliver_after << _ORDINAL_BITS | ordinal))

    def _columns(self, packed: Iterator[int]) -> Entries:
        chosen = list(packed)
        if not chosen:
            return Entries.empty()
        rows = [one & _ORDINAL_MASK for one in chosen]
        return Entries(
            np.array([one >> _ORDINAL_BITS for one in chosen], np.int64),
            np.array(self._offsets, np.int64)[rows],
            np.array(self._positions, np.int64)[rows],
            np.array(self._records, np.int64)[rows],
        )
