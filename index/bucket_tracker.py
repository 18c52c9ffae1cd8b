"""The bucket tracker (PIP-195): its entries are on disk, in runs, and hardly any of them in memory.

    add ──► delayed index: mutable bucket and runs ──merge iterator──► ready ──► due: given out

It is a face of the index that a partition of a log has (`delayed_index.py`), its buckets and its merges. There the log
feeds them and is the truth; here the owner is. In memory are the mutable bucket, a chunk of each run that is being
read, and some entries that are ready.

Offsets come in ascending order, as a log hands them out: `add` answers False to one that is held, and refuses any other
that does not lie after the last with ValueError. A time before that of the last entry given out becomes that time (the
stamping rule), so what was given out is just what lies at or before the key `after`.

Restart. Runs are durable; the owner keeps `after`, and feeds again the entries from `end_offset` on that lie behind it,
with the times that the tracker gave them. A run goes when all its entries were given out. Where a call raises
StorageFull or another error of the storage, what was held is held, and the same call again goes on where it stopped.

Invariants, proved by `check`: those of `buckets.check`; runs and bucket hold as many entries behind `after` as are
counted; `ready` are the first of these, and the merge goes on behind them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from afterlog.base.clock import INT64_MAX
from afterlog.index import buckets
from afterlog.index.bucket_storage import BucketSnapshotStorage
from afterlog.index.buckets import Buckets
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries, Key, Keys
from afterlog.index.growing_columns import Int64Array
from afterlog.index.merge import MergeIterator, merged
from afterlog.index.mutable_bucket import MutableBucket, Start
from afterlog.index.offset_set import OffsetSet
from afterlog.index.run import Run
from afterlog.index.tracker import DelayedDeliveryTracker, check_columns, check_entry, check_limit

_READY = 1_024
"""Entries to merge at a time, at least. Larger: single ones cost less, more memory."""
_SPAN_MAX = 2**32 - 1
"""Offsets that one run may span."""
_BEGINNING = Key(-1, -1)
_ENTRY_BYTES = 40
"""Of an entry in the mutable bucket: four columns, and the records before it."""
_RUN_BYTES = 5_000
"""Of a run that is open, apart from the chunks that are being read; measured."""


class BucketTracker(DelayedDeliveryTracker):
    """One thread at a time; sealing and merging happen in the `add` that makes them due."""

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        stored: Iterable[str] = (),
        after: Key = _BEGINNING,
        *,
        min_index_count: int = 50_000,
        max_num_buckets: int = 16,
    ) -> None:
        """Goes on with the runs that a storage has under the keys `stored`, whose entries up to `after` were given out.

        Larger `min_index_count`: fewer runs, more memory. Larger `max_num_buckets`: fewer merges, more runs to read.
        """
        if min_index_count < 1:
            raise ValueError(f"min_index_count must be at least 1, not {min_index_count}")
        self._buckets = Buckets(storage, max_num_buckets=max_num_buckets)
        self._min_index_count = min_index_count
        self.after = after
        """The key of the last entry that was given out."""
        self.index = _recovered(storage, stored)
        self._next_offset = self.end_offset
        self._count = self.index.records - self.index.records_up_to(after)
        self._merge = MergeIterator(after)
        self._ready = Keys.empty()
        """What the merge gave that is not given out yet."""
        self._forget()

    @property
    def end_offset(self) -> int:
        """Entries from this offset on are in memory only."""
        return self.index.bucket.start.offset

    def __len__(self) -> int:
        return self._count

    def add(self, deliver_after: int, offset: int) -> bool:
        check_entry(deliver_after, offset)
        return self._add(np.array([deliver_after]), np.array([offset])) > 0

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> int:
        """The rows may come in any order; of their offsets, those that are new lie after all that were there."""
        check_columns(deliver_after, offset)
        rows = OffsetSet().add_many(offset)
        return self._add(deliver_after[rows], offset[rows])

    def due(self, now_ms: int, limit: int) -> Keys:
        check_limit(limit)
        if len(self._ready) < limit:
            self._forget()
            block = self._merge.next_block(self.index, Key(now_ms, INT64_MAX), max(limit, _READY))
            self._ready = Keys.concatenate([self._ready, Keys(block.deliver_after, block.offset)])
        rows = min(self._ready.rank(Key(now_ms, INT64_MAX)), limit)
        taken, self._ready = self._ready[:rows], self._ready[rows:]
        if rows:
            self.after = taken.key(-1)
            self._count -= rows
        return taken

    def contains(self, offset: int) -> bool:
        """Reads what was given out of the run that holds the offset."""
        return bool(self._holds(np.array([offset]))[0])

    def next_due(self) -> int | None:
        return int(self._ready.deliver_after[0]) if len(self._ready) else self._merge.next_due(self.index)

    def clear(self) -> None:
        """Deletes all runs; it is as if it was new."""
        self.after = _BEGINNING
        self._merge, self._ready, self._count = MergeIterator(self.after), Keys.empty(), 0
        self._turn_to(self.index.replacing(self.index.runs, [], MutableBucket()))
        self._next_offset = 0

    def memory_bytes(self) -> int:
        """An estimate: entries in memory, what the runs told when they were opened, and the chunks being read."""
        entries = _ENTRY_BYTES * (self.index.bucket.count + len(self._ready))
        return sys.getsizeof(self) + entries + _RUN_BYTES * len(self.index.runs) + self._merge.memory_bytes()

    def check(self) -> None:
        """Reads every run."""
        buckets.check(self.index)
        held = Entries.concatenate([*merged(self.index.runs, self.index.bucket, after=self.after)])
        ready = len(self._ready)
        assert len(held) == self._count
        assert np.array_equal(held.deliver_after[:ready], self._ready.deliver_after)
        assert np.array_equal(held.offset[:ready], self._ready.offset)
        assert self._merge.next_due(self.index) == next(iter(held.deliver_after[ready:].tolist()), None)

    def _holds(self, offset: Int64Array) -> npt.NDArray[np.bool_]:
        """Which of these ascending offsets are held. Reads what was given out of the runs that they lie in."""
        first, last = int(offset[0]), int(offset[-1])
        runs = [run for run in self.index.runs if run.coverage.first_offset <= last and first < run.coverage.end_offset]
        given_out = Entries.concatenate([*merged(runs, self.index.bucket, upto=self.after)])
        there = np.array([self.index.contains(one) for one in offset.tolist()])
        return there & ~np.isin(offset, given_out.offset)

    def _add(self, deliver_after: Int64Array, offset: Int64Array) -> int:
        """Add columns in offset order; how many were new."""
        known = int(offset.searchsorted(self._next_offset))
        if known and not (held := self._holds(offset[:known])).all():
            raise ValueError(f"offset {offset[held.argmin()]} is not held and does not follow {self._next_offset - 1}")
        offset = offset[known:]
        deliver_after = np.maximum(deliver_after[known:], self.after.deliver_after)
        if not len(offset):
            return 0
        if int(offset[-1]) == INT64_MAX:
            check_entry(0, INT64_MAX + 1)  # a run ends after its last offset
        if not ((deliver_after > self.after.deliver_after) | (offset > self.after.offset)).all():
            raise ValueError(f"entries up to {self.after} were given out before")
        if len(self._ready) and int(deliver_after.min()) < int(self._ready.deliver_after[-1]):
            self._merge, self._ready = MergeIterator(self.after), Keys.empty()
        left = Entries(deliver_after, offset, np.zeros_like(offset), np.ones_like(offset))
        while len(left):
            room = self._room(left.offset)
            self.index.bucket.add_many(left[:room])
            self._next_offset = int(left.offset[room - 1]) + 1
            self._count += room
            left = left[room:]
        return len(offset)

    def _room(self, offset: Int64Array) -> int:
        """How many of the next offsets go into the mutable bucket. One that has no room for the first is sealed."""
        first, full = int(offset[0]), self.index.bucket.count >= self._min_index_count
        if full or (self.index.bucket.count and first - self.end_offset > _SPAN_MAX):
            self._seal()
        if not self.index.bucket.count:  # its run will begin here, and be like that of a segment of its own
            self._turn_to(self.index.replacing([], [], MutableBucket(Start(first, 0, first))))
        within = int((offset - self.end_offset).searchsorted(_SPAN_MAX, "right"))
        return min(self._min_index_count - self.index.bucket.count, within)

    def _seal(self) -> None:
        self._turn_to(self._buckets.seal_segment(self.index, self._next_offset, 0))
        self._forget()
        while sources := self._buckets.to_merge(self.index.sealed_runs):
            self._turn_to(self.index.replacing(sources, [self._buckets.merge(sources, after=self.after)]))

    def _forget(self) -> None:
        """Delete the runs whose entries were all given out."""
        self._turn_to(buckets.without(self.index, self.after))

    def _turn_to(self, index: DelayedIndex) -> None:
        before, self.index = self.index, index
        self._buckets.delete_replaced(before, index)


def _recovered(storage: BucketSnapshotStorage, stored: Iterable[str]) -> DelayedIndex:
    """Of the runs that are stored. One that another covers goes: a merge was cut short before its sources went."""
    runs = list[Run]()
    for run in sorted(map(storage.open, stored), key=lambda run: (run.coverage.first_offset, -run.coverage.end_offset)):
        if runs and run.coverage.end_offset <= runs[-1].coverage.end_offset:
            storage.delete(run.key)
        else:
            runs.append(run)
    end_offset = runs[-1].coverage.end_offset if runs else 0
    return DelayedIndex.of(runs, MutableBucket(Start(end_offset, 0, end_offset)))
