"""The time bucket tracker: offsets in buckets of time, in memory, for leases and retries.

    deliver_after ──rounded up to precision_ms──► time bucket ──► its offsets: an array, or a Roaring bitmap
                                                  a sorted map    (`TimeBucket`)
    all offsets that are held: one Roaring bitmap

Rounding is up: late by less than `precision_ms`, never early. A time that would round beyond the largest int64 stays
there. Pulsar's tracker (PR 23611) keeps a map ledger -> bitmap in each bucket instead; with delays spread over a day
that takes 180 bytes an entry, since hardly two entries share a bitmap. One offset for the partition and arrays for
sparse buckets make it about 10 (docs/memory.md; why arrays: docs/decisions/0016).

A bucket has stopped growing when a whole round of additions went by without one for it. A round is 65,536 additions,
or an eighth of what is held if that is more, so that looking at every bucket once a round costs little for each entry.

Invariants, proved by `check`: every bucket holds an offset, and its time is a multiple of the precision, or the largest
int64; no offset is in two buckets; `_held` is just the offsets in the buckets.
"""

from __future__ import annotations

import sys
from array import array

import numpy as np
from pyroaring import BitMap64
from sortedcontainers import SortedDict

from afterlog.base.clock import INT64_MAX
from afterlog.index.entries import Keys, is_sorted, sort_by_due
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import OffsetSet, bitmap_bytes, bitmap_bytes_at_most, bitmap_of, column_of, compact
from afterlog.index.tracker import DelayedDeliveryTracker, check_columns, check_entry, check_limit

_ASKED_FIRST = 64
_ROUNDS = 2
"""Rounds that end until a bucket has stopped growing: that of its last addition, and one without any."""
_UINT32_MAX = 2**32 - 1

_ROUND = 65_536
"""Additions in a round, at least. Larger: buckets stay longer as they grew, sweeps cost less."""
_ROUND_SHARE = 8
"""A round has at least one addition for so many entries that are held."""
_MAP_ENTRY_BYTES = 150
"""Of a sorted map, for each key: its int, its place in the dict and in the list of keys; measured."""


class TimeBucket:
    """The offsets that are due at one time, in the form that is smallest. None twice: the caller sees to that.

        array ──a bitmap pays──► bitmap ──has stopped growing──► bitmap, run-optimised

    A few offsets, or ones that lie far apart, are an array of 4 bytes each (8 once one is beyond 2^32); a bitmap costs
    280 bytes, 105 for each 65,536 offsets that it spans, and 2 an offset at most. So a bucket of 1,024 consecutive
    offsets shrinks from 4 KiB to 400 bytes, and a bucket of a hundred from all over a day stays an array of 500 where
    a bitmap would have 11,000. An array asks whether a bitmap pays at 64 offsets, and whenever it has doubled since.

    One thread at a time.
    """

    __slots__ = ("_ask_at", "_offsets", "_rounds")

    def __init__(self) -> None:
        self._offsets: array[int] | BitMap64 = array("I")
        self._ask_at = _ASKED_FIRST
        self._rounds = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int) -> None:
        self._rounds = _ROUNDS
        if isinstance(self._offsets, BitMap64):
            self._offsets.add(offset)
        else:
            self._array_for(offset).append(offset)
            self._ask()

    def add_many(self, ascending: Int64Array) -> None:
        """Add a sorted column."""
        self._rounds = _ROUNDS
        if isinstance(self._offsets, BitMap64):
            self._offsets |= bitmap_of(ascending)
        else:
            self._extend(ascending)
            self._ask()

    def take(self, limit: int) -> Int64Array:
        """Take out the lowest `limit` offsets, ascending."""
        offsets = self._offsets
        if isinstance(offsets, BitMap64) and limit < len(offsets):
            lowest = offsets[:limit]
            offsets -= lowest
            return column_of(lowest)
        column = self.column()
        if not is_sorted(column):
            column.sort()
        self._offsets = array("I")
        if limit < len(column):
            self._extend(column[limit:])
        return column[:limit]

    def end_round(self) -> None:
        """Of additions to all buckets. At the end of the first that brought nothing here, become as small as can be."""
        if self._rounds:
            self._rounds -= 1
            if not self._rounds and isinstance(self._offsets, BitMap64):
                compact(self._offsets)

    def column(self) -> Int64Array:
        """All offsets, a copy, in no particular order."""
        offsets = self._offsets
        return column_of(offsets) if isinstance(offsets, BitMap64) else np.array(offsets).astype(np.int64)

    def memory_bytes(self) -> int:
        offsets = self._offsets
        stored = bitmap_bytes(offsets) if isinstance(offsets, BitMap64) else sys.getsizeof(offsets)
        return stored + sys.getsizeof(self)

    def check(self) -> None:
        """AssertionError unless it holds something, and nothing twice."""
        column = np.sort(self.column())
        assert len(column)
        assert (column[1:] > column[:-1]).all()

    def _array_for(self, largest: int) -> array[int]:
        """The array, wide enough for an offset."""
        assert isinstance(self._offsets, array)
        if largest > _UINT32_MAX and self._offsets.typecode == "I":
            self._offsets = array("Q", self._offsets)
        return self._offsets

    def _extend(self, ascending: Int64Array) -> None:
        values = self._array_for(int(ascending[-1]))
        values.frombytes(ascending.astype(values.typecode).view(np.uint8).data)

    def _ask(self) -> None:
        """Become a bitmap where that pays."""
        if len(self._offsets) < self._ask_at:
            return
        column = self.column()
        if bitmap_bytes_at_most(int(column.min()), int(column.max()), len(column)) < sys.getsizeof(self._offsets):
            column.sort()
            self._offsets = bitmap_of(column)
        else:
            self._ask_at = 2 * len(column)


class TimeBucketTracker(DelayedDeliveryTracker):
    """One thread at a time."""

    def __init__(self, precision_ms: int = 1_000) -> None:
        """Larger precision: fewer buckets and less memory, later delivery."""
        if not 1 <= precision_ms <= INT64_MAX:
            raise ValueError(f"precision_ms must be 1 to 2^63-1, not {precision_ms}")
        self.precision_ms = precision_ms
        self._buckets = SortedDict()
        self._held = OffsetSet()
        self._round_left = _ROUND

    def __len__(self) -> int:
        return len(self._held)

    def add(self, deliver_after: int, offset: int) -> bool:
        check_entry(deliver_after, offset)
        if not self._held.add(offset):
            return False
        self._bucket(self._rounded(deliver_after)).add(offset)
        self._grown(1)
        return True

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> int:
        """Costs a Python call for each time bucket that is touched, and none for an entry."""
        check_columns(deliver_after, offset)
        if not len(offset):
            return 0
        rows = self._held.add_many(offset)
        if not len(rows):
            return 0
        time, order = sort_by_due(self.rounded(deliver_after[rows]))
        offset = offset[rows[order]]
        bounds = np.flatnonzero(time[1:] != time[:-1]) + 1
        starts, ends = [0, *bounds.tolist()], [*bounds.tolist(), len(time)]
        for due, start, end in zip(time[starts].tolist(), starts, ends, strict=True):
            self._bucket(due).add_many(offset[start:end])
        self._grown(len(rows))
        return len(rows)

    def due(self, now_ms: int, limit: int) -> Keys:
        check_limit(limit)
        times: list[int] = []
        offsets: list[Int64Array] = []
        while limit > 0 and self.has_due(now_ms):
            time, bucket = self._buckets.peekitem(0)
            offsets.append(bucket.take(limit))
            times.append(time)
            limit -= len(offsets[-1])
            if not len(bucket):
                del self._buckets[time]
        if not times:
            return Keys.empty()
        offset = np.concatenate(offsets)
        self._held.remove_many(offset)
        return Keys(np.repeat(np.array(times, np.int64), [len(part) for part in offsets]), offset)

    def contains(self, offset: int) -> bool:
        return offset in self._held

    def next_due(self) -> int | None:
        return int(self._buckets.peekitem(0)[0]) if self._buckets else None

    def clear(self) -> None:
        self._buckets, self._held, self._round_left = SortedDict(), OffsetSet(), _ROUND

    def rounded(self, deliver_after: Int64Array) -> Int64Array:
        """The tracker's times of a column."""
        precision_ms = self.precision_ms
        number = deliver_after // precision_ms
        number += number * precision_ms < deliver_after
        beyond = number > INT64_MAX // precision_ms
        number *= precision_ms
        number[beyond] = INT64_MAX
        return number

    def memory_bytes(self) -> int:
        """Looks at every bucket: for metrics, not for each entry."""
        buckets: int = sum(bucket.memory_bytes() for bucket in self._buckets.values())
        in_map = sys.getsizeof(self._buckets) + _MAP_ENTRY_BYTES * len(self._buckets)
        return in_map + buckets + self._held.memory_bytes()

    def check(self) -> None:
        held = OffsetSet()
        for time, bucket in self._buckets.items():
            bucket.check()
            assert time % self.precision_ms == 0 or time == INT64_MAX
            assert len(bucket) == len(held.add_many(bucket.column()))
        assert np.array_equal(held.column(), self._held.column())

    def _bucket(self, time: int) -> TimeBucket:
        bucket: TimeBucket | None = self._buckets.get(time)
        if bucket is None:
            bucket = self._buckets[time] = TimeBucket()
        return bucket

    def _rounded(self, deliver_after: int) -> int:
        return min(-(-deliver_after // self.precision_ms) * self.precision_ms, INT64_MAX)

    def _grown(self, count: int) -> None:
        """Note additions; at the end of a round tell the buckets."""
        self._round_left -= count
        if self._round_left > 0:
            return
        self._round_left = max(_ROUND, len(self) // _ROUND_SHARE)
        for bucket in self._buckets.values():
            bucket.end_round()
        self._held.compact()
