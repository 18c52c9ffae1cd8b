"""What a subscription has handed out and nobody has settled, as an operator sees it: until when, and how often.

Of one that is open its timers tell, of one at rest its journal: there is leased what outlives the process (held).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterlog.fetch.message import Message
from afterlog.subscription.lease_number import deliveries, failures

if TYPE_CHECKING:  # who asks a server needs no numpy
    from pyroaring import BitMap64

    from afterlog.fetch.partition import Partition
    from afterlog.fetch.timeline import Reading
    from afterlog.subscription.state import SubscriptionState


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedRecord(Message):
    """A record that a reader has until `deadline_ms`, by the log's clock; no receipt of it is made by looking.

    lease_number: which lease of it this is; with partition and delivery offset it is the receipt (`Receipts`) by which
    an operator can release what a reader that is gone has.
    """

    lease_number: int
    deadline_ms: int

    @property
    def redelivery_count(self) -> int:
        """Earlier deliveries of it that failed."""
        return failures(self.lease_number)

    @property
    def delivery_count(self) -> int:
        """How often it was handed out since the last seek, this time included."""
        return deliveries(self.lease_number)


def leased_records(
    partition: Partition, state: SubscriptionState, ends: Iterable[tuple[int, BitMap64]], reading: Reading, limit: int
) -> list[LeasedRecord]:
    """Up to `limit` records that are leased beyond the reading, by what ends when: the first to end first.

    Raises CorruptFile.
    """
    import numpy as np

    from afterlog.fetch.objects import Same
    from afterlog.index.offset_set import column_of
    from afterlog.subscription.redeliveries import UNKNOWN

    found = list[LeasedRecord]()
    for until_ms, offsets in sorted(ends, key=lambda end: end[0]):
        if until_ms <= reading.clock_ms or len(found) >= limit:
            continue
        leased = column_of(state.leased_among(offsets))
        leased = leased[leased.searchsorted(reading.log_start) :][: limit - len(found)]
        offset = state.redeliveries.find(leased).offset
        unknown = np.flatnonzero(offset == UNKNOWN)
        offset[unknown] = partition.offsets_at(leased[unknown], reading)
        known = np.flatnonzero(offset != UNKNOWN)
        records = partition.records_at(offset[known], leased[known], reading)
        numbers = state.redeliveries.lease_numbers(leased[known])
        found += records.each(LeasedRecord, lease_number=numbers, deadline_ms=Same(until_ms))
    return found
