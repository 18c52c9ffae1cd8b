"""What one subscription has acked of one partition, as other clusters know the records: by where they were appended
first. Looked at now and then, and so no cost for who acks.

    look   acks of the subscription ──less those of the look before──> append offsets ──> offsets by origin
    mark   0 … all acked …│ first append offset that is not: pending, leased, waiting for a retry

It is rebuilt when it is opened, by the first look, from the acks and from delivery order; nothing of it is on disk.
A seek forward acks, as mark_delete moves with it (PIP-33); a seek back takes no ack back.
"""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import column_of
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
        """Both as of the last look."""
        self._done = BitMap64()
        """Append offsets that are acked, or that nobody ever gets."""
        self._hidden = -1
        """How many of these were known."""
        self._mark = 0

    def look(self) -> dict[str, BitMap64]:
        """What was acked since the last look, by origin: offsets there. Raises as a fetch does."""
        position, unacked = self.subscription.acks()
        start = max(self._position, self._partition.log_start)
        acked = self._unacked - unacked
        if position > start:
            read = BitMap64()
            read.add_range(start, position)
            acked |= read - unacked
        found: dict[str, BitMap64] = {}
        delivered = column_of(acked)
        delivered = delivered[delivered.searchsorted(self._partition.log_start) :]
        for first in range(0, len(delivered), STEP_RECORDS):
            offset = self._partition.offsets_at(delivered[first : first + STEP_RECORDS])
            self._note(np.sort(offset[offset >= 0]), found)
        self._position, self._unacked = max(position, self._position), unacked
        return found

    def mark_delete(self) -> int:
        """All records with append offsets below are acked, cancelled, or gone."""
        version = self._partition.log.pin()
        hidden = version.cancellations.hidden
        if hidden.count != self._hidden:
            self._done |= bits.of_column(np.sort(hidden.offsets()))
            self._hidden = hidden.count
        self._mark = max(self._mark, version.log_start_offset)
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
