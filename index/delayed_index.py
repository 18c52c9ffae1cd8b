"""The delayed index of a partition: its runs and the mutable bucket, as one set of entries in delivery order.

The runs are an immutable tuple in offset order, replaced as a whole together with the bucket; `version` counts the
replacements, so that whoever keeps a place in the runs sees that it must find it anew. Entries added to the bucket
change no version: the log stamps them behind everything that has been delivered.

Invariants, proved by `check`: the runs cover disjoint offsets, in order; the bucket's offsets lie behind all of them;
those of every run and of the bucket.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from afterlog.clock import INT64_MAX
from afterlog.index.entries import Entries, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.mutable_bucket import MutableBucket
from afterlog.index.run import Run
from afterlog.index.run_cursor import Cursors

_STALE = -1


class Snapshot(NamedTuple):
    """What the index consisted of at one instant. The bucket goes on growing until it is replaced."""

    version: int
    runs: tuple[Run, ...]
    bucket: MutableBucket
    removed_records: int


class DelayedIndex:
    """Thread-safe. Queries see one snapshot each."""

    def __init__(
        self, removed_records: int = 0, *, runs: Collection[Run] = (), bucket: MutableBucket | None = None
    ) -> None:
        """An index, empty as a rule, of a log that has had so many records more than the index holds."""
        self._lock = threading.Lock()
        self._snapshot = Snapshot(0, _in_offset_order(runs), bucket or MutableBucket(), removed_records)

    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def version(self) -> int:
        return self._snapshot.version

    @property
    def runs(self) -> tuple[Run, ...]:
        """In offset order."""
        return self._snapshot.runs

    @property
    def bucket(self) -> MutableBucket:
        return self._snapshot.bucket

    @property
    def count(self) -> int:
        """Entries."""
        snapshot = self._snapshot
        return sum(run.count for run in snapshot.runs) + snapshot.bucket.count

    @property
    def removed_records(self) -> int:
        """Records that were in the log and are not in the index any more: they have delivery offsets still."""
        return self._snapshot.removed_records

    @property
    def records(self) -> int:
        """Records that are there."""
        snapshot = self._snapshot
        return sum(run.records for run in snapshot.runs) + snapshot.bucket.records

    def add(self, deliver_after: int, offset: int, position: int, records: int) -> None:
        """Add an entry behind all others in offset order."""
        with self._lock:
            self._snapshot.bucket.add(deliver_after, offset, position, records)

    def add_many(self, entries: Entries) -> None:
        """Add entries that come in offset order and behind all others."""
        with self._lock:
            self._snapshot.bucket.add_many(entries)

    def replace(self, remove: Collection[Run], add: Collection[Run], bucket: MutableBucket | None = None) -> None:
        """Take out some runs, put in others, set another bucket, in one step.

        Sealing puts in a run of the bucket's entries and an empty bucket; the caller sees to it that none is added
        between reading and replacing them. Merging puts in one run for several, retention takes runs out: the records
        of what is taken out and not put in again count as removed. ValueError, and nothing changed, where a run to
        remove is not there or the runs' offsets would overlap.
        """
        with self._lock:
            version, runs, current, removed_records = self._snapshot
            kept = [run for run in runs if run not in remove]
            if len(kept) != len(runs) - len(remove):
                raise ValueError("a run to remove is not in the index")
            fresh = current if bucket is None else bucket
            if remove:
                taken_out = sum(run.records for run in remove) + current.records
                removed_records += taken_out - sum(run.records for run in add) - fresh.records
            self._snapshot = Snapshot(version + 1, _in_offset_order([*kept, *add]), fresh, removed_records)

    def records_up_to(self, key: Key) -> int:
        """Records that are there with a key <= `key`. Touches one chunk per run."""
        return _records_up_to(self._snapshot, key)

    def rank(self, key: Key) -> int:
        """The delivery offset behind `key`: `records_up_to` and all that were removed. `key` is not below those."""
        snapshot = self._snapshot
        return _records_up_to(snapshot, key) + snapshot.removed_records

    def next_due(self, after: Key | None = None) -> int | None:
        """deliver_after of the first entry with a key > `after`."""
        _, runs, bucket, _ = self._snapshot
        following = [run.next_due(after) for run in runs if after is None or run.last_key > after]
        following.append(bucket.next_due(after))
        return min((due for due in following if due is not None), default=None)

    def due_counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, the records with deliver_after < edge."""
        _, runs, bucket, _ = self._snapshot
        counts = bucket.due_counts(edges)
        earliest = int(edges.min(initial=INT64_MAX))
        for run in runs:
            counts += run.records if run.last_key.deliver_after < earliest else run.due_counts(edges)
        return counts

    @property
    def last_far_ms(self) -> int:
        """The latest deliver_after in runs in object storage; -1 without any."""
        return max((run.last_key.deliver_after for run in self._snapshot.runs if run.remote), default=-1)

    def due_bounds(self, edges: Int64Array, *, far: bool) -> tuple[Int64Array, Int64Array]:
        """Bounds of `due_counts`, by the directories alone: no less, no more.

        far: read the directories of runs in object storage, too; otherwise, by what is known of these anyway.
        """
        _, runs, bucket, _ = self._snapshot
        least = bucket.due_counts(edges)
        most = least.copy()
        earliest = int(edges.min(initial=INT64_MAX))
        for run in runs:
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
        _, runs, bucket, _ = self._snapshot
        behind = bisect_right(runs, offset, key=lambda run: run.coverage.first_offset)
        if behind and offset < runs[behind - 1].coverage.end_offset:
            return runs[behind - 1].contains(offset)
        return bucket.contains(offset)

    def check(self) -> None:
        """Prove the invariants, reading every run. CorruptFile or AssertionError where one does not hold."""
        _, runs, bucket, _ = self._snapshot
        _in_offset_order(runs)
        for run in runs:
            run.check()
        bucket.check()
        entries = bucket.entries()
        assert not runs or not len(entries) or int(entries.offset.min()) >= runs[-1].coverage.end_offset


class DueCounter:
    """The rank of a key that only grows: the high watermark, if the key is the log clock's. Removed records count.

    A call touches the runs that have something new, and the bucket. Entries added in front of the key are not counted
    right; the log adds none. One thread at a time.
    """

    def __init__(self, index: DelayedIndex) -> None:
        self._index = index
        self._key = Key(-1, -1)
        self._version = _STALE
        self._run_records = 0
        self._cursors = Cursors([])  # in no run before the first key is known: runs below it are not read at all

    def advance(self, key: Key) -> int:
        """`DelayedIndex.rank(key)`. A smaller key than before counts as the one before."""
        self._key = max(self._key, key)
        snapshot = self._turned()
        try:
            for cursor in self._cursors.due(self._key.deliver_after):
                self._run_records += cursor.skip(self._key)
        except BaseException:
            self._version = _STALE
            raise
        self._cursors.moved(self._key.deliver_after)
        return snapshot.removed_records + self._run_records + snapshot.bucket.records_up_to(self._key)

    def next_due(self) -> int | None:
        """deliver_after of the first entry behind the key."""
        snapshot = self._turned()
        in_runs, in_bucket = self._cursors.earliest(), snapshot.bucket.next_due(self._key)
        return min((due for due in (in_runs, in_bucket) if due is not None), default=None)

    def loaded_entries(self) -> int:
        """In the chunks that it holds."""
        return self._cursors.loaded_entries()

    def _turned(self) -> Snapshot:
        """The index as it is now, with a cursor in each run that has something behind the key."""
        snapshot = self._index.snapshot()
        if snapshot.version != self._version:
            cursors = [run.cursor(self._key) for run in snapshot.runs if run.last_key > self._key]
            self._run_records = sum(run.records for run in snapshot.runs if run.last_key <= self._key)
            self._run_records += sum(cursor.records_passed() for cursor in cursors)
            self._cursors = Cursors(cursors)
            self._version = snapshot.version
        return snapshot


def _records_up_to(snapshot: Snapshot, key: Key) -> int:
    count = snapshot.bucket.records_up_to(key)
    for run in snapshot.runs if key.deliver_after >= 0 else ():
        if run.last_key <= key:
            count += run.records
        elif run.first_key <= key:
            count += run.records_up_to(key)
    return count


def _in_offset_order(runs: Collection[Run]) -> tuple[Run, ...]:
    ordered = tuple(sorted(runs, key=lambda run: run.coverage.first_offset))
    for earlier, later in pairwise(ordered):
        if earlier.coverage.end_offset > later.coverage.first_offset:
            raise ValueError(f"runs overlap: {earlier} and {later}")
    return ordered
