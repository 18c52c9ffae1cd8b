"""The timeline: delivery order around the high watermark, merged once and shared by all readers of a partition.

    … merged blocks, cached …│ next_block ──> due, not yet merged │ pending
                             └ a merge iterator stands here       └ high watermark: counted, not merged

A block is an immutable stretch of delivery order. Readers that follow each other find the same blocks; a reader that
lags has an iterator of its own. Only blocks are held in memory, whatever is pending or behind.

Invariants:

1. The high watermark counts the records with key <= (reading, visible end); it only grows.
2. Everything below the high watermark has its final delivery offset: appends are stamped at or above the reading.
3. Before the high watermark grows by a reading, the durable frontier covers that reading (`PartitionLog.lease`).
4. A reader gets nothing at or beyond the high watermark of its own reading.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import NamedTuple

import numpy as np
from sortedcontainers import SortedDict

from afterlog.clock import INT64_MAX
from afterlog.errors import OffsetOutOfRange
from afterlog.index.delayed_index import DueCounter
from afterlog.index.entries import Key
from afterlog.index.merge import Block, MergeIterator
from afterlog.log.log_state import Visible
from afterlog.log.partition_log import PartitionLog

CACHED_ENTRIES_MAX = 262_144
"""Entries in cached blocks, at 40 bytes each."""
ITERATORS_MAX = 16
"""Readers far apart that keep a merge iterator; one more begins with a search."""
BLOCK_ENTRIES = 8_192
"""Entries that a merge is asked for, where the reader wants no more."""
BLOCK_ENTRIES_MAX = 65_536
"""Entries that it is asked for at most. Larger: cheaper entries for who reads many at once, more memory per reader."""
SEARCH_WAYS = 64
"""Instants that a search for a delivery offset counts at a time: one look at every run for six steps of a bisection."""


class Reading(NamedTuple):
    """One fetch's view of a partition: the clock reading, what is visible, and how many records are due."""

    clock_ms: int
    visible: Visible
    upto: Key
    high_watermark: int


class Timeline:
    """Delivery order of one delayed partition. Thread-safe."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._counter = DueCounter(log.index)
        self._blocks: SortedDict = SortedDict()
        self._block_starts: deque[int] = deque()
        self._cached_entries = 0
        self._iterators: OrderedDict[int, MergeIterator] = OrderedDict()
        self._high_watermark = self._counter.advance(Key(log.frontier_ms, log.log_end_offset - 1))
        self._lock = threading.Lock()

    @property
    def log_start(self) -> int:
        """The first delivery offset that can be read."""
        return self._log.log_start.delivery_offset

    def advance(self) -> Reading:
        """Take a reading of the clock and move the high watermark. Raises ClockBehind, StoreClosed, StorageFull."""
        with self._lock:
            clock_ms, visible = self._log.state.due_reading()
            upto = Key(clock_ms, visible.end.offset - 1)
            high_watermark = self._counter.advance(upto)
            if high_watermark > self._high_watermark:
                self._log.lease(clock_ms)
                self._high_watermark = high_watermark
            return Reading(clock_ms, visible, upto, self._high_watermark)

    def standing(self) -> Reading:
        """The reading that was taken last, for looks while the clock cannot be trusted: nothing becomes due by it."""
        with self._lock:
            visible, frontier_ms = self._log.state.visible(), self._log.frontier_ms
            return Reading(frontier_ms, visible, Key(frontier_ms, visible.end.offset - 1), self._high_watermark)

    def next_due(self) -> int | None:
        """When the next pending record is due, ms; None where nothing is pending."""
        with self._lock:
            return self._counter.next_due()

    def read(self, position: int, reading: Reading, want_entries: int = 0) -> Block:
        """Entries from the one that holds `position` on, below the reading's high watermark; none if it is not due.

        `want_entries` tells how many the reader could use; they may be fewer or more.
        Raises OffsetOutOfRange where retention has taken the position since it was checked.
        """
        if position >= reading.high_watermark:
            return empty_block(position)
        with self._lock:
            block = self._cached(position)
            if block is None:
                block = self._merged(position, reading.upto, want_entries)
        first = int(block.delivery_offset.searchsorted(position, side="right")) - 1
        last = int(block.delivery_offset.searchsorted(reading.high_watermark))
        block = block[max(first, 0) : last]
        return block if len(block) else empty_block(position)

    def position_at(self, ms: int) -> int:
        """The delivery offset of the first record due at or after `ms`."""
        return max(self._log.index.rank(Key(ms - 1, INT64_MAX)), self.log_start)

    def position_after(self, offset: int) -> int:
        """The delivery offset behind the record of append offset `offset`."""
        found = self._log.index.find(offset)
        if found is None:
            end = self._log.log_end_offset
            why = "retention removed it" if offset < end else "it was not appended yet"
            raise OffsetOutOfRange(
                f"no record of offset {offset} is in the log: {why}",
                position=offset, log_start=self._log.log_start_offset, log_end=end,
            )  # fmt: skip
        key = Key(found.deliver_after, found.offset)
        if key < self._log.log_start.key:
            raise OffsetOutOfRange(
                f"retention removed records behind that of offset {offset}; seek to {self.log_start} or beyond",
                position=offset, log_start=self._log.log_start_offset, log_end=self._log.log_end_offset,
            )  # fmt: skip
        behind = self._log.index.rank(key)
        return behind - (found.records - 1 - (offset - found.offset))

    def _cached(self, position: int) -> Block | None:
        row = self._blocks.bisect_right(position) - 1
        if row < 0:
            return None
        block: Block = self._blocks.peekitem(row)[1]
        return block if position < block.end_delivery_offset else None

    def _merged(self, position: int, upto: Key, want_entries: int) -> Block:
        """The block that holds `position`, merged anew; empty where `position` is not due."""
        iterator = self._iterators.pop(position, None) or self._iterator_before(position, upto)
        start = iterator.delivery_offset
        while True:
            block = iterator.next_block(upto, min(max(want_entries, BLOCK_ENTRIES), BLOCK_ENTRIES_MAX))
            if len(block) == 0 or block.end_delivery_offset > position:
                break
        if min(start, position) < self.log_start:  # moved meanwhile: what was removed is not counted from below it
            return self._merged(self._not_removed(position), upto, want_entries)
        self._iterators[block.end_delivery_offset] = iterator
        while len(self._iterators) > ITERATORS_MAX:
            self._iterators.popitem(last=False)
        if len(block):
            self._cache(block)
        return block

    def _not_removed(self, position: int) -> int:
        if position < self.log_start:
            raise OffsetOutOfRange(
                f"retention has just removed position {position}; seek to {self.log_start} or beyond",
                position=position, log_start=self.log_start, log_end=self._log.log_end_offset,
            )  # fmt: skip
        return position

    def _cache(self, block: Block) -> None:
        start = int(block.delivery_offset[0])
        if start in self._blocks:
            self._cached_entries -= len(self._blocks[start])
            self._block_starts.remove(start)
        self._blocks[start] = block
        self._block_starts.append(start)
        self._cached_entries += len(block)
        while self._cached_entries > CACHED_ENTRIES_MAX and len(self._block_starts) > 1:
            self._cached_entries -= len(self._blocks.pop(self._block_starts.popleft()))

    def _iterator_before(self, position: int, upto: Key) -> MergeIterator:
        """An iterator at or shortly before `position`, found by counting what is due before some instants."""
        index, start = self._log.index, self._log.log_start
        low, high = start.deliver_after, upto.deliver_after + 1
        while high - low > 1:
            step = -((low - high) // SEARCH_WAYS)
            edges = np.arange(low + step, high, step, dtype=np.int64)
            ranks = index.due_counts(edges) + index.removed_records
            row = int(ranks.searchsorted(position, side="right"))
            low, high = int(edges[row - 1]) if row else low, int(edges[row]) if row < len(edges) else high
            if row and position - int(ranks[row - 1]) <= BLOCK_ENTRIES:
                break
        key = max(start.key, Key(low - 1, INT64_MAX))
        return MergeIterator(index, key, index.rank(key))


def empty_block(position: int) -> Block:
    """A block of no entries at `position`."""
    nothing = np.empty(0, np.int64)
    return Block(nothing, nothing, nothing, nothing, nothing, position)
