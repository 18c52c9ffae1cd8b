"""The merge iterator: all runs of a partition and its mutable bucket as one sequence in delivery order.

A k-way merge in numpy, with no Python statement per entry. It works ahead in rounds:

    runs     ──┬── due at or before T ──┬──►  ahead: entries in delivery order, before any that is left in a run
               └── later, left there    │       │
    bucket   ───────────────────────────┼───────┴──►  block: cut at a key or a size, then what the bucket holds
                                        │             up to that key, asked for anew each time
       T = earliest next due + span ────┘

A round takes from every run the entries up to the time T and sorts them. Touching a run costs a few microseconds, so a
round aims at `AHEAD_PER_RUN` entries for each run or at what is wanted, whichever is more; the span grows and shrinks
with what it gives, and entries are counted before they are gathered. Where a single instant holds more than a round
may, it is shared out: runs hold disjoint offsets and come in offset order, so within an instant they may be emptied one
after the other. Memory is that of a round: O(wanted + runs), whatever is pending.

What is ahead may lie in the future, since a run does not change. The bucket does: it is asked up to the key of each
block, and the log never adds an entry in front of a key that was delivered. A merge is told the index each time: where
that has other runs than the last one, it drops what is ahead and finds its place again by the last key.

Readers merge all that a partition has; what makes one run of several merges those (`merged`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afterlog.index.acked_ranges import AckedRanges
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries, IndexEntry, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.mutable_bucket import MutableBucket
from afterlog.index.run import Run
from afterlog.index.run_cursor import Cursors, Gatherer, RunCursor

AHEAD_PER_RUN = 128
"""Entries that a round takes from a run on average. Larger: cheaper entries with many runs, more memory."""
MERGED_ENTRIES = 16_384
"""Entries in a block of `merged`: a few of its columns stay in the cache. Larger: more memory."""
_INT64_MAX = 2**63 - 1
_BEGINNING = Key(-1, -1)
END = Key(_INT64_MAX, _INT64_MAX)
"""Behind every entry."""
_WIDEN_MAX = 1024

_Plan = list[tuple[RunCursor, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Entries in delivery order: int64 columns of one length, which may be 0."""

    delivery_offset: Int64Array
    """Of the first record of each entry."""
    deliver_after: Int64Array
    offset: Int64Array
    position: Int64Array
    records: Int64Array
    end_delivery_offset: int
    """After the last record."""

    @property
    def last_key(self) -> Key | None:
        """Of the last entry; None in an empty block."""
        return Key(int(self.deliver_after[-1]), int(self.offset[-1])) if len(self) else None

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, rows: slice) -> Block:
        """A view of the rows from one to another."""
        start, stop, _ = rows.indices(len(self))
        stop = max(start, stop)
        rows = slice(start, stop)
        end = int(self.delivery_offset[stop]) if stop < len(self) else self.end_delivery_offset
        return Block(
            self.delivery_offset[rows],
            self.deliver_after[rows],
            self.offset[rows],
            self.position[rows],
            self.records[rows],
            end,
        )

    @staticmethod
    def joined(blocks: Sequence[Block]) -> Block:
        """One of several that follow each other."""
        return Block(
            np.concatenate([block.delivery_offset for block in blocks]),
            np.concatenate([block.deliver_after for block in blocks]),
            np.concatenate([block.offset for block in blocks]),
            np.concatenate([block.position for block in blocks]),
            np.concatenate([block.records for block in blocks]),
            blocks[-1].end_delivery_offset,
        )

    def entry(self, row: int) -> IndexEntry:
        return IndexEntry(
            int(self.deliver_after[row]), int(self.offset[row]), int(self.position[row]), int(self.records[row])
        )

    def where(self, kept: npt.NDArray[np.bool_]) -> Block:
        """The entries that a mask keeps. It ends where it did."""
        return Block(
            self.delivery_offset[kept],
            self.deliver_after[kept],
            self.offset[kept],
            self.position[kept],
            self.records[kept],
            self.end_delivery_offset,
        )


def merged(
    runs: Collection[Run], bucket: MutableBucket | None = None, *, after: Key | None = None, upto: Key = END
) -> Iterator[Entries]:
    """The entries behind `after`, up to `upto`, of these runs and of a bucket in delivery order, block by block: to
    write one run.
    """
    index = DelayedIndex.of(runs, bucket)
    merge = MergeIterator(after)
    while block := merge.next_block(index, upto, MERGED_ENTRIES):
        yield Entries(block.deliver_after, block.offset, block.position, block.records)


class MergeIterator:
    """The entries behind `after` in delivery order; the first has the delivery offset `delivery_offset`.

    One thread at a time. Where a call raises CorruptFile, the merge stands where it stood before.
    """

    def __init__(self, after: Key | None = None, delivery_offset: int = 0) -> None:
        self.after = after
        self.delivery_offset = delivery_offset
        self._index: DelayedIndex | None = None
        self._span_ms = 1
        self._cursors = Cursors([])
        self._last_due = 0
        self._ahead, self._row = Entries.empty(), 0

    def next_block(self, index: DelayedIndex, upto: Key, want_entries: int) -> Block:
        """The next entries with a key <= `upto`: at least `want_entries`, or all; at most twice as many."""
        if want_entries < 1:
            raise ValueError(f"want_entries must be at least 1, not {want_entries}")
        self._turn_to(index)
        self._index = None  # where an exception strikes, it finds its place again
        entries = self._take(index.bucket, upto, want_entries)
        self._index = index
        ends, before = self.delivery_offset + np.cumsum(entries.records), self.after or _BEGINNING
        if index.acked.rows:
            ends += index.acked.removed_in_front(entries.deliver_after, entries.offset)
            ends -= index.acked.removed_up_to(before)
        if len(entries):
            self.after, self.delivery_offset = entries.key(-1), int(ends[-1])
        if index.acked.rows:
            self._step_over_removed(index.acked, before, entries, upto if len(entries) < want_entries else self.after)
        return Block(
            ends - entries.records,
            entries.deliver_after,
            entries.offset,
            entries.position,
            entries.records,
            self.delivery_offset,
        )

    def _step_over_removed(self, acked: AckedRanges, before: Key, entries: Entries, upto: Key | None) -> None:
        """Of ranges that end with the last of some entries, where it stands, or behind it, up to a key."""
        if upto is None:
            return
        counted = acked.removed_up_to(before)
        if len(entries):
            counted = int(acked.removed_in_front(entries.deliver_after[-1:], entries.offset[-1:])[0])
        self.delivery_offset += acked.removed_up_to(upto) - counted
        last = acked.last_up_to(upto)
        if last is not None and (self.after is None or last.upto > self.after):
            self.after = last.upto

    def next_due(self, index: DelayedIndex) -> int | None:
        """deliver_after of the entry that the next block begins with."""
        self._turn_to(index)
        ahead = self._row < len(self._ahead)
        in_runs = int(self._ahead.deliver_after[self._row]) if ahead else self._cursors.earliest()
        in_bucket = index.bucket.next_due(self.after)
        return min((due for due in (in_runs, in_bucket) if due is not None), default=None)

    def memory_bytes(self) -> int:
        """Of the chunks that are being read and of what is ahead."""
        return self._cursors.memory_bytes() + 32 * len(self._ahead)

    def loaded_entries(self) -> int:
        """In the same."""
        return self._cursors.loaded_entries() + len(self._ahead)

    def _turn_to(self, index: DelayedIndex) -> None:
        """Go on in the runs of `index`, after the last key."""
        if index is self._index:
            return
        after, self._index = self.after or _BEGINNING, None
        self._cursors = Cursors(run.cursor(after) for run in index.runs if run.last_key > after)
        self._last_due = max((run.last_key.deliver_after for run in index.runs), default=0)
        self._ahead, self._row = Entries.empty(), 0
        self._index = index

    def _take(self, bucket: MutableBucket, upto: Key, want: int) -> Entries:
        parts: list[Entries] = []
        after = self.after or _BEGINNING
        earliest = self._cursors.earliest()
        if self._row == len(self._ahead) and (earliest is None or earliest > upto.deliver_after):
            return bucket.between(after, upto, want)  # as where records become due soon after they came
        while want > 0:
            earliest = self._cursors.earliest()
            if self._row == len(self._ahead):
                if earliest is not None and earliest <= upto.deliver_after:
                    self._ahead, self._row = self._round(earliest, want), 0
                elif parts:  # and the bucket gave all that it has
                    break
            part = self._merge(bucket, after, upto, want)
            if not len(part):
                break
            parts.append(part)
            after = part.key(-1)
            want -= len(part)
        return Entries.concatenate(parts)

    def _merge(self, bucket: MutableBucket, after: Key, upto: Key, want: int) -> Entries:
        """From what is ahead and from the bucket, up to `want` of each: all up to some key, in delivery order."""
        ahead, row = self._ahead, self._row
        stop = max(min(ahead.rank(upto), row + want), row)
        fresh = bucket.between(after, min(upto, self._not_before(stop)), want)
        if len(fresh) == want:
            stop = min(stop, ahead.rank(fresh.key(-1)))
        self._row = stop
        return Entries.concatenate([ahead[row:stop], fresh]).sorted()

    def _not_before(self, row: int) -> Key:
        """Nothing from this row ahead on, or left in the runs, lies before this key, which the bucket never has."""
        if row < len(self._ahead):
            return self._ahead.key(row)
        earliest = self._cursors.earliest()
        return END if earliest is None else Key(earliest, -1)

    def _round(self, earliest: int, want: int) -> Entries:
        """The next entries of the runs, at least one and about as many as the round aims at."""
        plan = self._plan(earliest, max(want, AHEAD_PER_RUN * len(self._cursors)))
        gatherer = Gatherer()
        for cursor, count in plan:
            cursor.take(count, gatherer)
        self._cursors.moved(min(earliest + self._span_ms, _INT64_MAX))
        return gatherer.entries().sorted()

    def _plan(self, earliest: int, target: int) -> _Plan:
        """How many entries to take from which run, and the span that gives them: from half the target to twice."""
        plan = self._count(earliest + self._span_ms, 2 * target)
        while plan is None and self._span_ms:
            self._span_ms //= 4
            plan = self._count(earliest + self._span_ms, 2 * target)
        if plan is None:
            return self._share(earliest, target)
        while (total := sum(count for _, count in plan)) < target // 2 and earliest + self._span_ms < self._last_due:
            span_ms = max(self._span_ms, 1) * min(target // total, _WIDEN_MAX)
            wider = self._count(earliest + span_ms, 2 * target)
            if wider is None:
                break
            plan, self._span_ms = wider, span_ms
        return plan

    def _count(self, deliver_after: int, limit: int) -> _Plan | None:
        """How many entries each run has up to a time, None where they are more than `limit` together."""
        deliver_after = min(deliver_after, _INT64_MAX)
        plan: _Plan = []
        for cursor in self._cursors.due(deliver_after):
            count = cursor.entries_until(deliver_after, limit)
            limit -= count
            if limit < 0:
                return None
            plan.append((cursor, count))
        return plan

    def _share(self, instant: int, target: int) -> _Plan:
        """The first `target` entries of an instant that holds more, run by run."""
        plan: _Plan = []
        for cursor in self._cursors.due(instant):
            count = min(cursor.entries_until(instant, target), target)
            plan.append((cursor, count))
            target -= count
            if not target:
                break
        return plan
