"""The delayed index of a partition: its runs and the mutable bucket, as one set of entries in delivery order.

An immutable value. What replaces runs, or the bucket, makes another one (`replacing`), and whoever has pinned a version
of the partition goes on with the index of that: its runs are mapped, and stay readable when their files are gone. Only
the mutable bucket grows at its end until it is replaced; the log stamps what is added after all that was delivered.

What was removed lies in front of all that is left, but for what was removed of ranges that all readers have acked: that
counts from the end of each of these on. The rank of a key within one is anything from its first to its last.

Invariants, proved by `check`: the runs cover disjoint offsets, in order; the bucket's offsets lie behind all of them;
those of every run and of the bucket, and of the ranges, of which no more was removed than at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from afterlog.base.clock import INT64_MAX
from afterlog.index.acked_ranges import NOTHING_ACKED, AckedRanges
from afterlog.index.entries import Entries, IndexEntry, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.mutable_bucket import MutableBucket
from afterlog.index.run import Run
from afterlog.index.run_cursor import Cursors, RunCursor

MOVED_MAX = 8
"""Runs of which it is known that they had something due last."""


@dataclass(frozen=True, slots=True, eq=False)
class DelayedIndex:
    """`DelayedIndex.of` makes one of runs in any order. Thread-safe: nothing changes but the bucket's end."""

    runs: tuple[Run, ...] = ()
    """In offset order."""
    bucket: MutableBucket = field(default_factory=MutableBucket)
    removed_records: int = 0
    """Records that were in the log and are not in the index any more: they have delivery offsets still."""
    cleanings: int = 0
    """Of the partition: where entries lie is as of the last one. Before and behind it they lie elsewhere."""
    acked: AckedRanges = NOTHING_ACKED
    """By all readers, beyond what they have not acked: no reader gets what lies in these."""

    @staticmethod
    def of(
        runs: Collection[Run],
        bucket: MutableBucket | None = None,
        removed_records: int = 0,
        cleanings: int = 0,
        acked: AckedRanges = NOTHING_ACKED,
    ) -> DelayedIndex:
        """ValueError where the runs' offsets would overlap."""
        bucket = MutableBucket() if bucket is None else bucket
        return DelayedIndex(_in_offset_order(runs), bucket, removed_records, cleanings, acked)

    @property
    def sealed_runs(self) -> tuple[Run, ...]:
        """The runs of sealed segments."""
        return tuple(run for run in self.runs if run.coverage.end_offset <= self.bucket.start.segment)

    @property
    def active_runs(self) -> tuple[Run, ...]:
        """The runs of the active segment."""
        return tuple(run for run in self.runs if run.coverage.first_offset >= self.bucket.start.segment)

    @property
    def count(self) -> int:
        """Entries."""
        return sum(run.count for run in self.runs) + self.bucket.count

    @property
    def records(self) -> int:
        """Records that are there."""
        return sum(run.records for run in self.runs) + self.bucket.records

    def replacing(
        self,
        remove: Collection[Run],
        add: Collection[Run],
        bucket: MutableBucket | None = None,
        *,
        cleanings: int | None = None,
        acked: AckedRanges | None = None,
    ) -> DelayedIndex:
        """The index without some runs, with others, and with another bucket, cleaning, or ranges, where one is given.

        Sealing puts in a run of the bucket's entries and an empty bucket; the caller sees to it that none is added
        meanwhile. Merging puts in one run for several, retention takes runs out: the records of what is taken out and
        not put in again count as removed. ValueError where a run to remove is not there or the runs' offsets would
        overlap.
        """
        kept = [run for run in self.runs if run not in remove]
        if len(kept) != len(self.runs) - len(remove):
            raise ValueError("a run to remove is not in the index")
        fresh, removed_records = self.bucket if bucket is None else bucket, self.removed_records
        if remove:
            taken_out = sum(run.records for run in remove) + self.bucket.records
            removed_records += taken_out - sum(run.records for run in add) - fresh.records
        cleanings = self.cleanings if cleanings is None else cleanings
        acked = self.acked if acked is None else acked
        return DelayedIndex(_in_offset_order([*kept, *add]), fresh, removed_records, cleanings, acked)

    def records_up_to(self, key: Key) -> int:
        """Records that are there with a key <= `key`. Touches one chunk per run."""
        count = self.bucket.records_up_to(key)
        for run in self.runs if key.deliver_after >= 0 else ():
            if run.last_key <= key:
                count += run.records
            elif run.first_key <= key:
                count += run.records_up_to(key)
        return count

    def rank(self, key: Key) -> int:
        """The delivery offset behind `key`: `records_up_to` and all that were removed before. `key` is not below those
        that were removed in front of all.
        """
        return self.records_up_to(key) + (self.removed_up_to(key) if self.acked.rows else self.removed_records)

    def removed_up_to(self, key: Key) -> int:
        """Records that are not in the index any more, and have delivery offsets before the one behind `key`."""
        return self.removed_records - self.acked.removed + self.acked.removed_up_to(key)

    def removed_before(self, edges: Int64Array) -> Int64Array:
        """The same of instants: int64[n]."""
        return self.removed_records - self.acked.removed + self.acked.removed_before(edges)

    def next_due(self, after: Key | None = None) -> int | None:
        """deliver_after of the first entry with a key > `after`."""
        following = [run.next_due(after) for run in self.runs if after is None or run.last_key > after]
        following.append(self.bucket.next_due(after))
        return min((due for due in following if due is not None), default=None)

    def due_counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, the records with deliver_after < edge."""
        counts = self.bucket.due_counts(edges)
        earliest = int(edges.min(initial=INT64_MAX))
        for run in self.runs:
            counts += run.records if run.last_key.deliver_after < earliest else run.due_counts(edges)
        return counts

    @property
    def last_far_ms(self) -> int:
        """The latest deliver_after in runs in object storage; -1 without any."""
        return max((run.last_key.deliver_after for run in self.runs if run.remote), default=-1)

    def due_bounds(self, edges: Int64Array, *, far: bool) -> tuple[Int64Array, Int64Array]:
        """Bounds of `due_counts`, by the directories alone: no less, no more.

        far: read the directories of runs in object storage, too; otherwise, by what is known of these anyway.
        """
        least = self.bucket.due_counts(edges)
        most = least.copy()
        earliest = int(edges.min(initial=INT64_MAX))
        for run in self.runs:
            last_ms = run.last_key.deliver_after
            if last_ms < earliest:
                least += run.records
                most += run.records
            elif run.remote and not far:
                least += np.where(edges > last_ms, run.records, 0)
                most += run.records
            else:
                run_least, run_most = run.due_bounds(edges)
                least += run_least
                most += run_most
        return least, most

    def contains(self, offset: int) -> bool:
        """Whether an entry holds `offset`: then a merge yields it."""
        behind = bisect_right(self.runs, offset, key=lambda run: run.coverage.first_offset)
        if behind and offset < self.runs[behind - 1].coverage.end_offset:
            return self.runs[behind - 1].contains(offset)
        return self.bucket.contains(offset)

    def check(self) -> None:
        """Prove the invariants, reading every run. CorruptFile or AssertionError where one does not hold."""
        _in_offset_order(self.runs)
        for run in self.runs:
            run.check()
        self.bucket.check()
        self.acked.check()
        assert self.acked.removed <= self.removed_records
        if self.acked.rows:
            _check_acked(self)
        entries = self.bucket.entries()
        assert not self.runs or not len(entries) or int(entries.offset.min()) >= self.runs[-1].coverage.end_offset


def _check_acked(index: DelayedIndex) -> None:
    """Each range has as many records as it says, those that were removed with the others."""
    entries = Entries.concatenate([*(run.entries() for run in index.runs), index.bucket.entries()])
    held = entries.take(np.flatnonzero(index.acked.holds(entries.deliver_after, entries.offset, entries.records)))
    left = np.zeros(len(index.acked), np.int64)
    np.add.at(left, index.acked.which(held.deliver_after, held.offset), held.records)
    assert left.tolist() == [row.records - row.removed for row in index.acked.rows]
    assert all(index.rank(row.upto) == row.end for row in index.acked.rows)


class DueCounter:
    """The rank of a key that only grows: the high watermark, if the key is the log clock's. Removed records count.

    It is told the index each time, and finds its place anew where that has other runs than the last one. A call touches
    the runs that have something new, and the bucket. Entries added in front of the key are not counted right; the log
    adds none. One thread at a time.
    """

    def __init__(self) -> None:
        self.key = Key(-1, -1)
        """The last, which is the largest."""
        self._index: DelayedIndex | None = None
        self._run_records = 0
        self._moved: list[RunCursor] = []
        """By the last calls, until somebody asks for a few."""
        self._cursors = Cursors([])  # in no run before the first key is known: runs below it are not read at all

    def advance(self, index: DelayedIndex, key: Key) -> int:
        """`index.rank(key)`. A smaller key than before counts as the one before."""
        self.key = max(self.key, key)
        self._turn_to(index)
        self._index = None  # where an exception strikes, it finds its place again
        moved = self._cursors.due(self.key.deliver_after)
        for cursor in moved:
            self._run_records += cursor.skip(self.key)
        self._cursors.moved(self.key.deliver_after)
        self._index = index
        if moved:
            self._moved = [*self._moved, *moved][-MOVED_MAX:]
        removed = index.removed_up_to(self.key) if index.acked.rows else index.removed_records
        return removed + self._run_records + index.bucket.records_up_to(self.key)

    def few(self, index: DelayedIndex, after: Key, limit: int) -> list[IndexEntry]:
        """Entries with after < key <= the one that it stands at, in delivery order: all, where these are no more than
        `limit`, or fewer. What lies at the end of a chunk of a run, or in runs that are others by now, is not found.
        """
        found = index.bucket.few(after, self.key, limit)
        if self._moved and index is self._index:
            for cursor in dict.fromkeys(self._moved):
                found += cursor.few_before(after, limit)
        self._moved = []
        return sorted(found) if len(found) > 1 else found

    def next_due(self, index: DelayedIndex) -> int | None:
        """deliver_after of the first entry after the key."""
        self._turn_to(index)
        in_runs, in_bucket = self._cursors.earliest(), index.bucket.next_due(self.key)
        return min((due for due in (in_runs, in_bucket) if due is not None), default=None)

    def loaded_entries(self) -> int:
        """In the chunks that it holds."""
        return self._cursors.loaded_entries()

    def _turn_to(self, index: DelayedIndex) -> None:
        """With a cursor in each run that has something after the key."""
        if index is self._index:
            return
        self._index, self._moved = None, []
        cursors = [run.cursor(self.key) for run in index.runs if run.last_key > self.key]
        self._run_records = sum(run.records for run in index.runs if run.last_key <= self.key)
        self._run_records += sum(cursor.records_passed() for cursor in cursors)
        self._cursors = Cursors(cursors)
        self._index = index


def _in_offset_order(runs: Collection[Run]) -> tuple[Run, ...]:
    ordered = tuple(sorted(runs, key=lambda run: run.coverage.first_offset))
    for earlier, later in pairwise(ordered):
        if earlier.coverage.end_offset > later.coverage.first_offset:
            raise ValueError(f"runs overlap: {earlier} and {later}")
    return ordered
