"""The buckets of a partition: how its runs come to be, how they become fewer, and how they go. Numbers only.

    entries ──> mutable bucket ──seal──> run ──┐
                       │                 run ──┴─merge──> run over both ──> … ──forget──> gone
                       └───all of a segment, when it rolls──> run of the segment

The runs are in two groups, those of sealed segments and those of the active one, which become one when it rolls. A
merge keeps to one group. Where a group has more than `max_num_buckets` runs, adjacent ones are merged (`cheapest`).

A merge reads sources that never change, without any lock, and writes a run that nobody knows yet. Then, under the
writer's lock, one replacement in the index puts it in their place, if all of them are still there: a roll or retention
may have taken them meanwhile, and then it was for nothing. Readers keep the runs that they hold. A merge leaves out
what lies at or before the key `after`, which nobody may read any more: a partition does not carry what was removed.

Invariants (`check`):

1. A run is durable before it is in the index; it is deleted only when it is there no more. So whenever a crash comes,
   the runs that are stored hold every entry that those in the index held.
2. No run lies on both sides of the start of the active segment.
3. The runs of the active segment and the mutable bucket follow each other without a gap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from afterlog.index.bucket_storage import BucketSnapshotStorage
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.merge import merged
from afterlog.index.mutable_bucket import MutableBucket
from afterlog.index.run import Coverage, Run
from afterlog.names import bucket_key, run_key

_SPAN_MAX = 2**32
"""A run has its offsets relative to its first one, in 32 bits."""


class Start(NamedTuple):
    """Where the mutable bucket begins: the active segment's base offset, the byte in it, and the offset."""

    segment: int = 0
    position: int = 0
    offset: int = 0


_BEGINNING = Start()


class Buckets:
    """The runs of one partition in a storage, and the index over them.

    All methods but `merge` and `to_merge` belong to the writer: one thread at a time calls them, under a lock that it
    hands to `merge` too. Where a method raises StorageFull, CorruptFile or OSError, the index is what it was.
    """

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        index: DelayedIndex,
        *,
        max_num_buckets: int = -1,
        start: Start = _BEGINNING,
        stale: Iterable[str] = (),
    ) -> None:
        """`stale`: keys of runs whose entries are in the mutable bucket again; they go once it is sealed."""
        self.index = index
        self.max_num_buckets = max_num_buckets
        self._storage = storage
        self._start = start
        self._stale = tuple(stale)

    @property
    def sealed(self) -> tuple[Run, ...]:
        """The runs of sealed segments."""
        return tuple(run for run in self.index.runs if run.coverage.end_offset <= self._start.segment)

    @property
    def active(self) -> tuple[Run, ...]:
        """The runs of the active segment."""
        return tuple(run for run in self.index.runs if run.coverage.first_offset >= self._start.segment)

    # The writer's.

    def seal(self, end_offset: int, end_position: int) -> None:
        """Make a run of the mutable bucket, whose entries end there in the active segment, and begin an empty one."""
        segment, position, offset = self._start
        coverage = Coverage(offset, end_offset, segment, position, segment, end_position)
        run = self._storage.create(bucket_key(offset, end_offset), [self.index.bucket.entries()], coverage)
        self.index.replace(remove=(), add=[run], bucket=MutableBucket())
        self._start = Start(segment, end_position, end_offset)

    def write_segment(self, end_offset: int, end_position: int) -> Run:
        """Store the run of the whole active segment. It is not used before `begin_segment`."""
        segment = self._start.segment
        coverage = Coverage(segment, end_offset, segment, 0, segment, end_position)
        return self._storage.create(run_key(segment), merged(self.active, self.index.bucket), coverage)

    def begin_segment(self, run: Run) -> tuple[Run, ...]:
        """Put the run of the active segment, which is sealed now, in the place of those that are returned: delete them.

        The next segment begins behind it.
        """
        replaced = self.active
        self.index.replace(remove=replaced, add=[run], bucket=MutableBucket())
        self._start = Start(run.coverage.end_offset, 0, run.coverage.end_offset)
        return replaced

    def forget(self, upto: Key) -> None:
        """Delete the runs of sealed segments that hold nothing behind `upto`."""
        gone = [run for run in self.sealed if run.last_key <= upto]
        if gone:
            self.index.replace(remove=gone, add=())
            self.delete(gone)

    def let_go(self, local: Run, remote: Collection[Run]) -> None:
        """Put the runs that object storage has of some sealed segments in the place of the one here; delete that."""
        self.index.replace(remove=[local], add=remote)
        self.delete([local])

    def delete(self, runs: Iterable[Run]) -> None:
        """Delete runs that the index does not hold. Where it fails, the next open does it."""
        for run in runs:
            self._storage.delete(run.key)

    def delete_stale(self) -> None:
        """Delete the runs whose entries were in the mutable bucket again, which is sealed and durable now."""
        for key in self._stale:
            self._storage.delete(key)
        self._stale = ()

    # Merging.

    @property
    def crowded(self) -> bool:
        """Whether a group may have more runs than it should."""
        return 0 <= self.max_num_buckets < _local(self.index.runs)

    def to_merge(self, group: Sequence[Run]) -> Sequence[Run]:
        """The runs of a group that should be merged next; none where it has no more than `max_num_buckets`.

        Those in object storage do not count, and are left as they are.
        """
        return cheapest(group) if 0 <= self.max_num_buckets < _local(group) else ()

    def merge(
        self,
        sources: Sequence[Run],
        lock: contextlib.AbstractContextManager[object],
        *,
        after: Key | None = None,
        proceed: Callable[[], object] = lambda: None,
    ) -> bool:
        """Put one run in the place of adjacent ones of a group; False where some were no longer there in the end.

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
        key = bucket_key(coverage.first_offset, coverage.end_offset)
        try:
            run = self._storage.create(key, _watched(merged(sources, after=after), proceed), coverage)
        except BaseException:
            with contextlib.suppress(OSError):  # it may be there, if only its folder could not be synced
                self._storage.delete(key)
            raise
        with lock:
            there = set(sources) <= set(self.index.runs)
            if there:
                self.index.replace(remove=sources, add=[run])
        self.delete(sources if there else [run])
        return there

    def check(self) -> None:
        """Prove the invariants, reading every run. CorruptFile or AssertionError where one does not hold."""
        self.index.check()
        active = self.active
        assert len(self.index.runs) == len(self.sealed) + len(active)
        ends = [self._start.segment, *(run.coverage.end_offset for run in active)]
        starts = [*(run.coverage.first_offset for run in active), self._start.offset]
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
