"""Retention: which sealed segments may be removed, and where delivery order begins after them.

Retention takes a prefix of *delivery order*. A segment goes when every record in it is due and satisfies the rule:

    retention_ms      the last of its records became due more than this long ago
    retention_bytes   the log is larger; segments that were delivered out longest ago go first

With `retention_by_subscriptions` it does not go before all subscriptions have acked it, or their backlog is evicted: a
`Floor` says up to which delivery offset they have. Without another setting it goes then, at once.

The log start moves after the largest key that went. Records of other segments with smaller keys satisfy the rule as
well; they are out of reach from then on. So a far-future record keeps its own segment and no other (promise D13).
A FIFO topic loses a prefix of append order. There the time is when the last of a segment's records was appended, where
the interceptor `AppendBrokerTimestamp` has stamped it (PIP-70); else the latest that a record itself tells, and no
later than it was sealed: a record that tells of the year 58059 would hold all behind it for ever (docs/decisions/0064).

One function judges every segment (`judged`): retention takes what nothing holds, and who asks what holds the rest
(`afterlog.log.held`) is told by the same rules.

Local retention (KIP-405) is the same rule over the segments that are in the folder and were uploaded: their files go,
they themselves stay in the log, and the log start where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from afterlog.base.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX
from afterlog.index.acked_ranges import AckedRange
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Key
from afterlog.log.checkpoints import Checkpoints, LogStart, SealedMark
from afterlog.log.segment import SealedSegment


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


class Holder(StrEnum):
    """What holds a segment."""

    PENDING = "pending"
    """One of its records is not due yet."""
    RETENTION = "retention"
    """All of it is due, and the rule says that it stays, or that one stays which goes before it."""
    BACKLOG = "backlog"
    """By the rule it might go, but some reader has not acked all of it."""


LetsGo = Callable[[SealedMark, bool], bool]
"""Whether a segment may go that, by the rule alone, may or may not."""


def by_rule_alone(_: SealedMark, by_rule: bool) -> bool:
    """Where subscriptions have no say."""
    return by_rule


def nothing_goes(_: SealedMark, by_rule: bool) -> bool:
    """Where they have, and nobody has ever read."""
    return False


def judged(
    marks: Iterable[SealedMark],
    active_bytes: int,
    rule: Rule,
    frontier_ms: int,
    *,
    delayed: bool,
    lets_go: LetsGo = by_rule_alone,
    at_once: bool = False,
) -> Iterator[tuple[SealedMark, Holder | None]]:
    """Each segment, in the order in which they would go, and what holds it; None: it goes.

    `frontier_ms`: for a delayed topic what is due, for a FIFO one the clock. at_once: by the rule all that is due goes.
    """
    known = list(marks)
    candidates = known
    if delayed:
        candidates = sorted((mark for mark in known if mark.max_deliver_after <= frontier_ms), key=_last_due_ms)
    excess_bytes = active_bytes + sum(mark.log_bytes for mark in known)
    excess_bytes -= excess_bytes if rule.bytes is None else rule.bytes
    holder: Holder | None = None
    for mark in candidates:
        last_ms = mark.max_deliver_after if delayed else mark.counted_from_ms
        by_rule = at_once or (rule.ms is not None and last_ms <= frontier_ms - rule.ms) or excess_bytes > 0
        if holder is None and lets_go(mark, by_rule):
            excess_bytes -= mark.log_bytes
            yield mark, None
        else:  # a prefix goes: once one stays, all behind it do
            holder = Holder.BACKLOG if by_rule else Holder.RETENTION
            yield mark, holder
    if delayed:
        yield from ((mark, Holder.PENDING) for mark in known if mark.max_deliver_after > frontier_ms)


def removable(
    sealed: Sequence[SealedSegment],
    active_bytes: int,
    rule: Rule,
    frontier_ms: int,
    *,
    delayed: bool,
    lets_go: LetsGo = by_rule_alone,
    at_once: bool = False,
) -> list[SealedSegment]:
    """The segments that the rule lets go, in the order in which they do. As of `judged`."""
    by_offset = {segment.base_offset: segment for segment in sealed}
    verdicts = judged(
        (segment.mark for segment in sealed),
        active_bytes,
        rule,
        frontier_ms,
        delayed=delayed,
        lets_go=lets_go,
        at_once=at_once,
    )
    return [by_offset[mark.base_offset] for mark, holder in verdicts if holder is None]


def checkpoints_without(
    removed: Sequence[SealedSegment], known: Checkpoints, index: DelayedIndex, upto: Key | None = None
) -> dict[str, LogStart | int | tuple[SealedMark, ...] | tuple[str, ...] | tuple[AckedRange, ...]]:
    """What the checkpoints must say once the segments are gone, while the index, empty for FIFO, counts them still.

    upto: what lies up to this key goes, too.

    The log start is made of the segments' marks. It lies in no range that all readers have acked: what such a range has
    left goes with its beginning.
    """
    log_start, gone = known.log_start, {segment.mark for segment in removed}
    if index.records:
        key = max([log_start.key, *(mark.last_key for mark in gone), *([] if upto is None else [upto])])
        key = index.acked.passed_by(key, index.rank(key))
        log_start = LogStart(delivery_offset=index.rank(key), deliver_after=key.deliver_after, offset=key.offset)
    uploaded = tuple(mark.remote.attempt for mark in known.sealed if mark in gone and mark.remote is not None)
    return {
        "log_start": log_start,
        "removed_records": known.removed_records + sum(mark.records for mark in gone),
        "sealed": tuple(mark for mark in known.sealed if mark not in gone),
        "removals": (*known.removals, *uploaded),
        "acked": index.acked.behind(log_start.key).rows,
    }


def files_of(segment: SealedSegment, *, kept: Collection[str] = ()) -> list[Path]:
    """The files of a segment but for some suffixes, in the order in which they go: without the log the others mean
    nothing.
    """
    suffixes = (LOG, OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX, CANCEL_INDEX)
    return [segment.path.with_suffix(suffix) for suffix in suffixes if suffix not in kept]


def _last_due_ms(mark: SealedMark) -> int:
    return mark.max_deliver_after
