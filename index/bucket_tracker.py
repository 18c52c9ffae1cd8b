"""The bucket tracker (PIP-195): its entries are on disk, in runs, and hardly any of them in memory.

    add ──► mutable bucket ──sealed at min_index_count──► run ─┬─merged above max_num_buckets──► run
                 │                                        run ─┘    │
                 └──────────── merge iterator ──────────────────────┴──► ready ──► due: given out

These are the parts that serve a partition of a log; there the log feeds them and is the truth, here the owner is. In
memory are the mutable bucket, a chunk of each run that is being read, and some entries that are ready.

Offsets come in ascending order, as a log hands them out: `add` answers False to one that is held, and refuses any other
that does not lie behind the last with ValueError. A time before that of the last entry given out becomes that time (the
stamping rule), so what was given out is just what lies at or before the key `after`.

Restart. Runs are durable; the owner keeps `after`, and feeds again the entries from `end_offset` on that lie behind it,
with the times that the tracker gave them. A run goes when all its entries were given out. Where a call raises
StorageFull or another error of the storage, what was held is held, and the same call again goes on where it stopped.

Invariants, proved by `check`: those of `Buckets`; runs and bucket hold as many entries behind `after` as are counted;
`ready` are the first of these, and the merge goes on behind them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

import numpy as np

from afterlog.clock import INT64_MAX
from afterlog.index import buckets
from afterlog.index.bucket_storage import BucketSnapshotStorage
from afterlog.index.buckets import Buckets
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries, Key, is_delivery_order
from afterlog.index.growing_columns import Int64Array
from afterlog.index.merge import MergeIterator, merged
from afterlog.index.mutable_bucket import MutableBucket, Start
from afterlog.index.offset_set import OffsetSet
from afterlog.index.run import Run
from afterlog.index.tracker import Due, check_columns, check_entry, check_limit

_READY = 1_024
"""Entries to merge at a time, at least. Larger: single ones cost less, more memory."""
_SPAN_MAX = 2**32 - 1
"""Offsets that one run may span."""
_BEGINNING = Key(-1, -1)
_ENTRY_BYTES = 40
"""Of an entry in memory: four columns, and in the mutable bucket the records before it."""
_RUN_BYTES = 5_000
"""Of a run that is open, apart from the chunks that are being read; measured."""


class BucketTracker:
    """A `DelayedDeliveryTracker`. One thread at a time; sealing and merging happen in the `add` that makes them due."""

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        runs: Collection[Run] = (),
        after: Key = _BEGINNING,
        *,
        min_index_count: int = 50_000,
        max_num_buckets: int = 16,
    ) -> None:
        """Goes on with the `runs` of a storage, whose entries up to `after` were given out.

        Larger `min_index_count`: fewer runs, more memory. Larger `max_num_buckets`: fewer merges, more runs to read.
        """
        if min_index_count < 1:
            raise ValueError(f"min_index_count must be at least 1, not {min_index_count}")
        self.index = DelayedIndex.of(runs)
        self.after = after
        """The key of the last entry that was given out."""
        self._buckets = Buckets(storage, max_num_buckets=max_num_buckets)
        self._min_index_count = min_index_count
        self._last_offset = self.end_offset - 1
        self._begin_bucket(self.end_offset)
        self._ready: Entries
        self._seek(self.index.rank(after))
        self._taken: OffsetSet | None = None
        """What was given out of the runs and the bucket; None until somebody asks."""
        self._forget()

    @property
    def end_offset(self) -> int:
        """Entries from this offset on are in memory only."""
        runs = self.index.runs
        return runs[-1].coverage.end_offset if runs else 0

    def __len__(self) -> int:
        return self.index.removed_records + self.index.records - self._given_out

    def add(self, deliver_after: int, offset: int) -> bool:
        check_entry(deliver_after, offset)
        return self._add(np.array([deliver_after]), np.array([offset])) > 0

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> int:
        """The rows may come in any order; of their offsets, those that are new lie behind all that were there."""
        check_columns(deliver_after, offset)
        rows = OffsetSet().add_many(offset)
        return self._add(deliver_after[rows], offset[rows])

    def has_due(self, now_ms: int) -> bool:
        next_due = self.next_due()
        return next_due is not None and next_due <= now_ms

    def due(self, now_ms: int, limit: int) -> Due:
        check_limit(limit)
        if len(self._ready) < limit:
            self._forget()
            block = self._merge.next_block(self.index, Key(now_ms, INT64_MAX), max(limit, _READY))
            entries = Entries(block.deliver_after, block.offset, block.position, block.records)
            self._ready = Entries.concatenate([self._ready, entries])
        rows = min(int(self._ready.deliver_after.searchsorted(now_ms, "right")), limit)
        taken, self._ready = self._ready[:rows], self._ready[rows:]
        if rows:
            self.after = taken.key(-1)
            if self._taken is not None:
                self._taken.add_many(taken.offset)
        return Due(taken.deliver_after, taken.offset)

    def contains(self, offset: int) -> bool:
        """The first call reads all that was given out and whose run is still there."""
        if self._taken is None:
            self._taken = OffsetSet()
            for block in merged(self.index.runs, self.index.bucket):
                if block.key(0) > self.after:
                    break
                self._taken.add_many(block.offset[: block.rank(self.after)])
        return self.index.contains(offset) and offset not in self._taken

    def next_due(self) -> int | None:
        return int(self._ready.deliver_after[0]) if len(self._ready) else self._merge.next_due(self.index)

    def memory_bytes(self) -> int:
        """An estimate: entries in memory, what the runs told when they were opened, and the chunks being read."""
        entries = _ENTRY_BYTES * (self.index.bucket.count + len(self._ready))
        runs = _RUN_BYTES * len(self.index.runs) + self._merge.memory_bytes()
        return sys.getsizeof(self) + entries + runs + (0 if self._taken is None else self._taken.memory_bytes())

    def check(self) -> None:
        """Reads every run."""
        buckets.check(self.index)
        held = Entries.concatenate([*merged(self.index.runs, self.index.bucket, after=self.after)])
        ready = self._ready
        assert len(held) == len(self)
        assert is_delivery_order(held.deliver_after, held.offset)
        assert np.array_equal(held.deliver_after[: len(ready)], ready.deliver_after)
        assert np.array_equal(held.offset[: len(ready)], ready.offset)
        assert self._merge.next_due(self.index) == next(iter(held.deliver_after[len(ready) :].tolist()), None)

    @property
    def _given_out(self) -> int:
        """Entries that were, ever since this tracker was opened, and those of the runs that it was opened with."""
        return self._merge.delivery_offset - len(self._ready)

    def _seek(self, given_out: int) -> None:
        """Merge from `after` on, which so many entries lie up to."""
        self._merge = MergeIterator(self.after, given_out)
        self._ready = Entries.empty()

    def _add(self, deliver_after: Int64Array, offset: Int64Array) -> int:
        """Add columns in offset order; how many were new."""
        known = int(offset.searchsorted(self._last_offset, "right"))
        for one in offset[:known].tolist():
            if not self.contains(one):
                raise ValueError(f"offset {one} is not held and does not follow {self._last_offset}")
        offset = offset[known:]
        deliver_after = np.maximum(deliver_after[known:], self.after.deliver_after)
        if not len(offset):
            return 0
        if int(offset[-1]) == INT64_MAX:
            check_entry(0, INT64_MAX + 1)  # a run ends behind its last offset
        if not ((deliver_after > self.after.deliver_after) | (offset > self.after.offset)).all():
            raise ValueError(f"entries up to {self.after} were given out before")
        if len(self._ready) and int(deliver_after.min()) < int(self._ready.deliver_after[-1]):
            self._seek(self._given_out)
        entries = Entries(deliver_after, offset, np.zeros_like(offset), np.ones_like(offset))
        row = 0
        while row < len(entries):
            stop = row + self._room(offset[row:])
            self.index.bucket.add_many(entries[row:stop])
            self._last_offset = int(offset[stop - 1])
            row = stop
        return len(entries)

    def _room(self, offset: Int64Array) -> int:
        """How many of the next offsets go into the mutable bucket. One that has no room for the first is sealed."""
        bucket, first = self.index.bucket, int(offset[0])
        if bucket.count and (bucket.count >= self._min_index_count or first - self._first_offset > _SPAN_MAX):
            self._seal()
        if not self.index.bucket.count:
            self._begin_bucket(first)
        room = self._min_index_count - self.index.bucket.count
        return min(room, int(offset.searchsorted(self._first_offset + _SPAN_MAX, "right")))

    def _begin_bucket(self, first_offset: int) -> None:
        """The mutable bucket is empty: its run will begin here, and be like that of a segment of its own."""
        self.index = self.index.replacing([], [], MutableBucket(Start(first_offset, 0, first_offset)))
        self._first_offset = first_offset

    def _seal(self) -> None:
        self._turn_to(self._buckets.seal_segment(self.index, self._last_offset + 1, 0))
        self._forget()
        while sources := self._buckets.to_merge(self.index.sealed_runs):
            run = self._buckets.merge(sources, after=self.after)
            self._turn_to(self.index.replacing(sources, [run]))

    def _forget(self) -> None:
        """Delete the runs whose entries were all given out."""
        before = self.index.runs
        self._turn_to(buckets.without(self.index, self.after))
        if self._taken is not None:
            for run in before:
                if run not in self.index.runs:
                    self._taken.remove_range(run.coverage.first_offset, run.coverage.end_offset)

    def _turn_to(self, index: DelayedIndex) -> None:
        before, self.index = self.index, index
        self._buckets.delete_replaced(before, index)
