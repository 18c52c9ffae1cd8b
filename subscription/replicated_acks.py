"""What one subscription has acked of one partition, as other clusters know the records: by where they were appended
first. Looked at now and then, and so no cost for who acks.

    look   acks of the subscription ──less those of the look before──> append offsets ──> offsets by origin
    mark   0 … all acked …│ first append offset that is not: pending, leased, waiting for a retry

It is rebuilt when it is opened, by the first look, from the acks and from delivery order; nothing of it is on disk.

What is passed here is not acked elsewhere: what retention or a purge took before it was acked, and what a seek or a
reset stepped over, is handed out where it is still there. So the mark goes over what is not in the log any more only as
long as nothing was lost or sought. A seek back takes no ack back.
"""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

from afterlog.index.entries import Entries
from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import column_of
from afterlog.log.version import Version
from afterlog.subscription import bits
from afterlog.subscription.partition_subscription import PartitionSubscription

STEP_RECORDS = 1 << 18
"""Looked up at a time."""


class ReplicatedAcks:
    """One thread at a time."""

    def __init__(self, subscription: PartitionSubscription) -> None:
        self.subscription = subscription
        self._partition = subscription.partition
        self._position = self._partition.log_start
        self._unacked = BitMap64()
        self._first_lease = -1
        """All as of the last look."""
        self._done = BitMap64()
        """Append offsets that are acked, or that nobody ever gets."""
        self._hidden = -1
        """How many of these were known."""
        self._mark = 0
        self._is_passed = False
        """Whether the subscription stands behind something that it never acked."""
        self._gone_as_of: tuple[object, ...] = ()

    def look(self) -> dict[str, BitMap64]:
        """What was acked since the last look, by origin: offsets there. What another cluster has acked is left out: it
        tells that itself. Raises as a fetch does.
        """
        position, unacked, sought, self._is_passed, elsewhere, first_lease = self.subscription.acks()
        self._is_passed |= sought > 0
        if first_lease != self._first_lease:  # what was un-acked before the seek may be unread now, or passed
            self._position, self._unacked, self._first_lease = self._partition.log_start, BitMap64(), first_lease
        start = max(self._position, self._partition.log_start, sought)
        acked = self._unacked - unacked
        if position > start:
            read = BitMap64()
            read.add_range(start, position)
            acked |= read - unacked
        found: dict[str, BitMap64] = {}
        delivered = column_of(acked)
        delivered = delivered[delivered.searchsorted(max(self._partition.log_start, sought)) :]
        for first in range(0, len(delivered), STEP_RECORDS):
            offset = self._partition.offsets_at(delivered[first : first + STEP_RECORDS])
            self._note(np.sort(offset[offset >= 0]), found)
        self._position, self._unacked = max(position, self._position), unacked
        own = {origin: offsets - elsewhere.get(origin, BitMap64()) for origin, offsets in found.items()}
        return {origin: offsets for origin, offsets in own.items() if offsets}

    def mark_delete(self) -> int:
        """All records with append offsets below are acked, cancelled, or gone since they were, as of the last look."""
        version = self._partition.log.pin()
        hidden = version.cancellations.hidden
        if hidden.count != self._hidden:
            self._done |= bits.of_column(np.sort(hidden.offsets()))
            self._hidden = hidden.count
        as_of = version.log_start, version.log_start_offset, len(version.sealed), version.delayed_index.acked
        if not self._is_passed and as_of != self._gone_as_of:
            self._gone_as_of = as_of
            self._done |= _gone(version, delayed=self._partition.log.delayed)
        low, high = self._mark, version.visible.offset
        while low < high:  # the first that is missing
            middle = (low + high + 1) // 2
            if self._done.range_cardinality(self._mark, middle) == middle - self._mark:
                low = middle
            else:
                high = middle - 1
        self._mark = low
        return low

    def _note(self, offset: Int64Array, found: dict[str, BitMap64]) -> None:
        """Append offsets, ascending, that are acked."""
        log = self._partition.log
        self._done |= bits.of_column(offset)
        index, own = log.version.origins, log.context.settings.topic_id or ""
        if index is None:
            numbers, there = np.full(len(offset), -1), offset
        else:
            numbers, there = index.origins(offset)
        for number in np.unique(numbers).tolist():
            name = own if number < 0 or index is None else index.names[number]
            found.setdefault(name, BitMap64())
            found[name] |= bits.of_column(there[numbers == number])


def _gone(version: Version, *, delayed: bool) -> BitMap64:
    """Append offsets that are out of reach: of segments that are gone, before the log start in delivery order, and in
    ranges that all have acked.
    """
    if delayed and not any(run.remote for run in version.delayed_index.runs):
        entries = Entries.concatenate(
            [*(run.entries() for run in version.delayed_index.runs), version.delayed_index.bucket.entries()]
        )
        start = version.log_start.key
        due, first = entries.deliver_after, entries.offset
        later = (due > start.deliver_after) | ((due == start.deliver_after) & (first > start.offset))
        later &= ~version.delayed_index.acked.holds(due, first, entries.records)
        entries = entries.take(np.flatnonzero(later))
        order = np.argsort(entries.offset)
        starts, ends = entries.offset[order], (entries.offset + entries.records)[order]
    else:
        starts = np.array([segment.base_offset for segment in version.segments], np.int64)
        ends = np.array([*(segment.end_offset for segment in version.sealed), version.written.offset], np.int64)
    gone, ends = BitMap64(), np.concatenate([np.zeros(1, np.int64), ends])
    starts = np.concatenate([starts, [version.written.offset]])
    for row in np.flatnonzero(starts > ends).tolist():
        gone.add_range(int(ends[row]), int(starts[row]))
    return gone
