"""Results of a subscription's calls: leased records, what an ack or a nack did, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from afterlog.subscription.lease_number import failures

if TYPE_CHECKING:  # who only has messages needs no numpy
    from pyroaring import BitMap64

    from afterlog.fetch.message_columns import Columns
    from afterlog.index.growing_columns import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lease:
    """Records leased to one reader until `deadline_ms`, by the time at which they became due to this subscription.

    lease_number: int64[n], see `lease_number.py`. With the delivery offset it is the receipt that nack, extend and
    release ask for: once this lease has ended, however it did, it is stale.

    exhausted: records that failed as often as the policy allows, leased as well, for the dead letters and no reader;
    exhausted_number: their lease numbers. lapsed: records that have expired, leased as well, to be dropped, or for the
    dead letters; lapsed_number: their lease numbers.
    """

    columns: Columns
    lease_number: Int64Array
    exhausted: Columns
    exhausted_number: Int64Array
    lapsed: Columns
    lapsed_number: Int64Array
    deadline_ms: int

    @staticmethod
    def nothing(none: Columns, deadline_ms: int) -> Lease:
        """none: no records."""
        number = none.offset
        return Lease(
            columns=none, lease_number=number, exhausted=none, exhausted_number=number, lapsed=none,
            lapsed_number=number, deadline_ms=deadline_ms,
        )  # fmt: skip

    @property
    def redelivery_count(self) -> Int64Array:
        """int64[n], earlier deliveries of each that failed."""
        return failures(self.lease_number)

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class AckResult:
    """How many delivery offsets an ack acked, found acked already, and found never delivered."""

    acked: int
    already: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptResult:
    """How many receipts of a nack, release or extend were good. The stale ones did nothing: acked, or another's now."""

    done: int
    stale: int = 0
    deadline_ms: int = 0
    """Of extend: the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveResult:
    """How many dead letters were sent back; and why others stay, and how many: `redrive(…, target=…)` takes them."""

    redriven: int
    left: dict[str, int]


class Acks(NamedTuple):
    """What a subscription has acked of one partition, at one instant, durable or not."""

    position: int
    unacked: BitMap64
    """All else below the position counts as acked."""
    sought: int
    """What lies before this delivery offset a seek, or its beginning there, may have passed, unread or un-acked."""
    lost: bool
    """Whether retention, or a purge, took something that was not acked."""
    elsewhere: Mapping[str, BitMap64]
    """What other clusters have acked, by origin: offsets there."""
    first_lease: int
    """Another one behind each seek."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """One partition of one subscription at one instant; all counts are exact.

    pending: not due to this subscription yet; due: due, and never delivered; leased: with a reader, or on their way to
    the dead letters; retrying: came back, and wait for their retry or for a reader. These four are all that is to be
    done. The rest counts what happened, ever: acked, dead, lapsed (expired before anybody got it, and dropped), why
    records came back (expired: a lease ended), and how often one went out again. paused: nothing is handed out, as the
    subscription is paused, or its topic. Of one that is ordered by key what waits for its turn is due.
    """

    pending: int
    due: int
    leased: int
    retrying: int
    acked: int
    dead: int
    nacked: int
    expired: int
    crashed: int
    released: int
    redelivered: int
    stepped_over: int
    removed: int
    lapsed: int
    position: int
    mark_delete: int
    high_watermark: int
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStats:
    """A subscription over all partitions that a reader has, and each by itself; see `PartitionStats`. Exact.

    paused: in one of them at least.
    """

    pending: int
    due: int
    leased: int
    retrying: int
    acked: int
    dead: int
    nacked: int
    expired: int
    crashed: int
    released: int
    redelivered: int
    lapsed: int
    paused: bool
    partitions: dict[int, PartitionStats]

    @classmethod
    def of(cls, partitions: dict[int, PartitionStats]) -> SubscriptionStats:
        """Of each by its number, over all."""
        names = [each.name for each in fields(cls) if each.name not in ("paused", "partitions")]
        total = {name: sum(getattr(each, name) for each in partitions.values()) for name in names}
        return cls(**total, paused=any(each.paused for each in partitions.values()), partitions=partitions)
