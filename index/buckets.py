"""The buckets of a partition: how runs are sealed, merged and removed. Numbers only.

    entries ──> mutable bucket ──seal──> run ──┐
                       │                 run ──┴─merge──> run over both ──> … ──forget──> gone
                       └───all of a segment, when it rolls──> run of the segment

The runs are in two groups, those of sealed segments and those of the active one, which become one when it rolls. A
merge keeps to one group. Where somebody merges in the background a segment that rolls keeps the runs that it has, and
they become one behind that (`in_parts`). Where a group has more than `max_num_buckets` runs, adjacent ones are merged
(`cheapest`).

Every change is a value: a run that is stored, and the index that has it. Nothing is true before the caller puts that
index in the place of the one before, and only then may what it replaced be deleted (`delete_replaced`). A merge reads
sources that never change, without any lock; a roll or retention may have taken them meanwhile, and then it was for
nothing. A merge leaves out what lies at or before the key `after`, which nobody may read any more.

Invariants (`check`):

1. A run is durable before it is in the index; it is deleted only when it is there no more. So whenever a crash comes,
   the runs that are stored hold every entry that those in the index held.
2. No run lies on both sides of the start of the active segment.
3. The runs of the active segment and the mutable bucket follow each other without a gap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby

import numpy as np

from afterlog.base.names import bucket_key, run_key
from afterlog.index.bucket_storage import BucketSnapshotStorage
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.merge import merged
from afterlog.index.mutable_bucket import MutableBucket, Start
from afterlog.index.run import Coverage, Run

_SPAN_MAX = 2**32
"""A run has its offsets relative to its first one, in 32 bits."""


class Buckets:
    """Makes the runs of one partition, in a storage, and deletes them. It knows of no run itself.

    Where a method raises StorageFull, CorruptFile or OSError, nothing is stored that was not there before.
    """

    def __init__(self, storage: BucketSnapshotStorage, *, max_num_buckets: int = -1) -> None:
        self.max_num_buckets = max_num_buckets
        self._storage = storage

    def seal(self, index: DelayedIndex, end_offset: int, end_position: int) -> DelayedIndex:
        """With a run of the mutable bucket, whose entries end there in the active segment, and an empty one behind."""
        return with_sealed(index, self.store(index.bucket, end_offset, end_position))

    def store(self, bucket: MutableBucket, end_offset: int, end_position: int) -> Run:
        """A run of a mutable bucket's entries up to there in the active segment. More may be added meanwhile."""
        segment, position, offset = bucket.start
        coverage = Coverage(offset, end_offset, segment, position, segment, end_position)
        return self._storage.create(bucket_key(offset, end_offset), [bucket.entries(end_offset)], coverage)

    def seal_segment(self, index: DelayedIndex, end_offset: int, end_position: int) -> DelayedIndex:
        """With one run of the whole active segment, which ends there; the next segment begins behind it."""
        segment, replaced = index.bucket.start.segment, index.active_runs
        coverage = Coverage(segment, end_offset, segment, 0, segment, end_position)
        run = self._storage.create(run_key(segment), merged(replaced, index.bucket), coverage)
        return index.replacing(replaced, [run], MutableBucket(Start(end_offset, 0, end_offset)))

    def seal_parts(self, index: DelayedIndex, end_offset: int, end_position: int) -> DelayedIndex:
        """The same, with the runs of the segment as they are, and one of the rest: `merge_parts` makes them one."""
        if index.bucket.count:
            index = self.seal(index, end_offset, end_position)
        return index.replacing([], [], MutableBucket(Start(end_offset, 0, end_offset)))

    def merge_parts(self, parts: Sequence[Run], proceed: Callable[[], object] = lambda: None) -> Run:
        """Store one run of all runs of a sealed segment. Raises as `merge`."""
        first, last = parts[0].coverage, parts[-1].coverage
        segment = first.start_segment
        coverage = Coverage(segment, last.end_offset, segment, 0, segment, last.end_position)
        return self._merged(run_key(segment), parts, coverage, None, proceed)

    def delete_replaced(self, before: DelayedIndex, now: DelayedIndex) -> None:
        """Delete what is stored for an index and not for the one in its place. Where it fails, the next open does it.

        Who has a run open goes on reading: it is mapped.
        """
        left = set(now.runs)
        for run in before.runs:
            if run not in left and not run.remote:
                self._storage.delete(run.key)
        if now.bucket is not before.bucket:
            for key in before.bucket.stale:
                self._storage.delete(key)

    # Merging.

    def crowded(self, index: DelayedIndex) -> bool:
        """Whether a group may have more runs than it should, or a sealed segment more than one."""
        return 0 <= self.max_num_buckets < _local(index.runs) or bool(in_parts(index))

    def to_merge(self, group: Sequence[Run]) -> Sequence[Run]:
        """The runs of a group that should be merged next; none where it has no more than `max_num_buckets`.

        Those in object storage do not count, and are left as they are.
        """
        return cheapest(group) if 0 <= self.max_num_buckets < _local(group) else ()

    def merge(
        self,
        sources: Sequence[Run],
        *,
        after: Key | None = None,
        generation: int = 0,
        proceed: Callable[[], object] = lambda: None,
    ) -> Run:
        """Store one run of adjacent ones of a group. generation: the last cleaning of the partition.

        At least one entry must lie behind `after`. `proceed` is called for every block; what it raises ends the merge.
        """
        first, last = sources[0].coverage, sources[-1].coverage
        coverage = Coverage(
            first.first_offset,
            last.end_offset,
            first.start_segment,
            first.start_position,
            last.end_segment,
            last.end_position,
        )
        key = bucket_key(coverage.first_offset, coverage.end_offset, generation)
        return self._merged(key, sources, coverage, after, proceed)

    def part(self, run: Run, key: str, coverage: Coverage, after: Key, proceed: Callable[[], object]) -> Run | None:
        """Store what a run holds behind `after` of a part of its offsets, as a run of its own; None: nothing."""

        def blocks() -> Iterator[Entries]:
            for block in merged([run], after=after):
                here = (block.offset >= coverage.first_offset) & (block.offset < coverage.end_offset)
                if bool(here.any()):
                    yield block.take(np.flatnonzero(here))

        found = blocks()
        first = next(found, None)
        return None if first is None else self.create(key, chain([first], found), coverage, proceed)

    def _merged(
        self, key: str, sources: Sequence[Run], coverage: Coverage, after: Key | None, proceed: Callable[[], object]
    ) -> Run:
        return self.create(key, merged(sources, after=after), coverage, proceed)

    def create(self, key: str, blocks: Iterable[Entries], coverage: Coverage, proceed: Callable[[], object]) -> Run:
        """Store a run of blocks in delivery order, of which there is one at least. Raises as `merge`."""
        try:
            return self._storage.create(key, _watched(blocks, proceed), coverage)
        except BaseException:
            with contextlib.suppress(OSError):  # it may be there, if only its folder could not be synced
                self._storage.delete(key)
            raise

    def delete(self, run: Run) -> None:
        """Delete a run that no index has."""
        self._storage.delete(run.key)


def with_sealed(index: DelayedIndex, run: Run) -> DelayedIndex:
    """The index with a run of what its mutable bucket begins with, and a bucket of the rest."""
    end = run.coverage
    bucket = index.bucket.behind(Start(index.bucket.start.segment, end.end_position, end.end_offset))
    return index.replacing([], [run], bucket)


def without(index: DelayedIndex, upto: Key) -> DelayedIndex:
    """The index without the runs of sealed segments that hold nothing behind `upto`; parts of one go together."""
    kept = {run for parts in in_parts(index) for run in parts if any(each.last_key > upto for each in parts)}
    gone = [run for run in index.sealed_runs if run.last_key <= upto and run not in kept]
    return index.replacing(gone, []) if gone else index


def in_parts(index: DelayedIndex) -> list[tuple[Run, ...]]:
    """The runs of each sealed segment that has more than one, since they were not merged yet."""
    runs = [run for run in index.sealed_runs if run.coverage.start_segment == run.coverage.end_segment]
    segments = (tuple(parts) for _, parts in groupby(runs, key=lambda run: run.coverage.start_segment))
    return [parts for parts in segments if len(parts) > 1]


def check(index: DelayedIndex) -> None:
    """Prove the invariants, reading every run. CorruptFile or AssertionError where one does not hold."""
    index.check()
    active, start = index.active_runs, index.bucket.start
    assert len(index.runs) == len(index.sealed_runs) + len(active)
    ends = [start.segment, *(run.coverage.end_offset for run in active)]
    starts = [*(run.coverage.first_offset for run in active), start.offset]
    assert ends == starts, (starts, ends)


def cheapest(runs: Sequence[Run]) -> Sequence[Run]:
    """The adjacent runs to merge: those with the fewest entries for the square of the number of runs that go.

    By the fewest entries alone it would be two small ones each time, and what they become again and again; the square
    prefers wide merges of small runs, after which there is room for many more (docs/decisions/0012). None where a run
    over any two of them could not hold their offsets, or one of any two is in object storage.
    """
    first_offset = _column(run.coverage.first_offset for run in runs)
    end_offset = _column(run.coverage.end_offset for run in runs)
    remote_before = np.append(0, np.cumsum(_column(run.remote for run in runs)))
    entries_before = np.append(0, np.cumsum(_column(0 if run.remote else run.count for run in runs)))
    least, chosen = np.inf, slice(0)
    for width in range(2, len(runs) + 1):
        entries = entries_before[width:] - entries_before[:-width]
        too_long = end_offset[width - 1 :] - first_offset[: 1 - width] > _SPAN_MAX
        some_remote = remote_before[width:] > remote_before[:-width]
        cost = np.where(too_long | some_remote, np.inf, entries / (width - 1) ** 2)
        row = int(cost.argmin())
        if cost[row] < least:
            least, chosen = cost[row], slice(row, row + width)
    return runs[chosen]


def _local(runs: Iterable[Run]) -> int:
    return sum(not run.remote for run in runs)


def _watched(blocks: Iterable[Entries], proceed: Callable[[], object]) -> Iterator[Entries]:
    for block in blocks:
        proceed()
        yield block


def _column(numbers: Iterable[int]) -> Int64Array:
    return np.fromiter(numbers, np.int64)
