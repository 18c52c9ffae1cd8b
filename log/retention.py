"""Retention: which sealed segments may go, and where delivery order begins behind them.

Retention takes a prefix of *delivery order*. A segment goes when every record in it is due and satisfies the rule:

    retention_ms      the last of its records became due more than this long ago
    retention_bytes   the log is larger; segments that were delivered out longest ago go first

With `retention_by_subscriptions` it does not go before all subscriptions have acked it, or their backlog is evicted: a
`Floor` says up to which delivery offset they have. Without another setting it goes then, at once.

The log start moves behind the largest key that went. Records of other segments with smaller keys satisfy the rule as
well; they are out of reach from then on. So a far-future record keeps its own segment and no other (promise D13).
A FIFO topic loses a prefix of append order. There the time is when the last of a segment's records was appended, where
the interceptor `AppendBrokerTimestamp` has stamped it (PIP-70); else the latest that a record itself tells.

Local retention (KIP-405) is the same rule over the segments that are in the folder and were uploaded: their files go,
they themselves stay in the log, and the log start where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Key
from afterlog.log.checkpoints import Checkpoints, LogStart, SealedMark
from afterlog.log.segment import SealedSegment
from afterlog.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX


class Rule(NamedTuple):
    """What may stay, by time and by bytes; None: anything."""

    ms: int | None
    bytes: int | None


ANYTHING = Rule(None, None)


class Floor(NamedTuple):
    """What the subscriptions to a partition leave of it, in delivery offsets."""

    acked: int = 0
    """All of them have acked all below."""
    evicted: int = 0
    """All below goes, whoever has not acked it: their backlog is larger than its quota."""

    def lets_go(self, behind: int, by_rule: bool) -> bool:
        """Whether what ends before the delivery offset `behind` may go; by_rule: whether it might without us."""
        return behind <= self.evicted or (by_rule and behind <= self.acked)


LetsGo = Callable[[SealedSegment, bool], bool]
"""Whether a segment may go that, by the rule alone, may or may not."""


def by_rule_alone(_: SealedSegment, by_rule: bool) -> bool:
    """Where subscriptions have no say."""
    return by_rule


def removable(
    sealed: Sequence[SealedSegment],
    active_bytes: int,
    rule: Rule,
    frontier_ms: int,
    *,
    delayed: bool,
    lets_go: LetsGo = by_rule_alone,
) -> list[SealedSegment]:
    """The segments that the rule lets go. `frontier_ms`: for a delayed topic what is due, for a FIFO one the clock."""
    if delayed:
        candidates = sorted((s for s in sealed if s.mark.max_deliver_after <= frontier_ms), key=_last_due_ms)
    else:
        candidates = list(sealed)
    excess_bytes = active_bytes + sum(segment.size for segment in sealed)
    excess_bytes -= excess_bytes if rule.bytes is None else rule.bytes
    removed = []
    for segment in candidates:
        last_ms = segment.mark.max_deliver_after if delayed else segment.mark.counted_from_ms
        expired = rule.ms is not None and last_ms <= frontier_ms - rule.ms
        if not lets_go(segment, expired or excess_bytes > 0):
            break
        removed.append(segment)
        excess_bytes -= segment.size
    return removed


def checkpoints_without(
    removed: Sequence[SealedSegment], known: Checkpoints, index: DelayedIndex, upto: Key | None = None
) -> dict[str, LogStart | int | tuple[SealedMark, ...] | tuple[str, ...]]:
    """What the checkpoints must say once the segments are gone, while the index, empty for FIFO, counts them still.

    upto: what lies up to this key goes, too.

    The log start is made of the segments' marks.
    """
    log_start, gone = known.log_start, {segment.mark for segment in removed}
    if index.records:
        key = max([log_start.key, *(mark.last_key for mark in gone), *([] if upto is None else [upto])])
        log_start = LogStart(delivery_offset=index.rank(key), deliver_after=key.deliver_after, offset=key.offset)
    uploaded = tuple(mark.remote.attempt for mark in known.sealed if mark in gone and mark.remote is not None)
    return {
        "log_start": log_start,
        "removed_records": known.removed_records + sum(mark.end_offset - mark.base_offset for mark in gone),
        "sealed": tuple(mark for mark in known.sealed if mark not in gone),
        "removals": (*known.removals, *uploaded),
    }


def files_of(segment: SealedSegment, *, kept: Collection[str] = ()) -> list[Path]:
    """The files of a segment but for some suffixes, in the order in which they go: without the log the others mean
    nothing.
    """
    suffixes = (LOG, OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX, CANCEL_INDEX)
    return [segment.path.with_suffix(suffix) for suffix in suffixes if suffix not in kept]


def _last_due_ms(segment: SealedSegment) -> int:
    return segment.mark.max_deliver_after
