"""Retention: which sealed segments may go, and where delivery order begins behind them.

Retention takes a prefix of *delivery order*. A segment goes when every record in it is due and satisfies the rule:

    retention_ms      the last of its records became due more than this long ago
    retention_bytes   the log is larger; segments that were delivered out longest ago go first

The log start moves behind the largest key that went. Records of other segments with smaller keys satisfy the rule as
well; they are out of reach from then on. So a far-future record keeps its own segment and no other (promise D13).
A FIFO topic loses a prefix of append order; there the times are the records' own timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.run import Run
from afterlog.log.checkpoints import LogStart
from afterlog.log.place import TopicSettings
from afterlog.log.segment import ActiveSegment, SealedSegment
from afterlog.names import DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX


def removable(
    sealed: Sequence[SealedSegment], active: ActiveSegment, settings: TopicSettings, frontier_ms: int
) -> list[SealedSegment]:
    """The segments that the rules let go. `frontier_ms`: for a delayed topic what is due, for a FIFO one the clock."""
    if settings.delayed:
        candidates = sorted((s for s in sealed if s.mark.max_deliver_after <= frontier_ms), key=_last_due_ms)
    else:
        candidates = list(sealed)
    excess_bytes = active.size + sum(segment.size for segment in sealed)
    excess_bytes -= excess_bytes if settings.retention_bytes is None else settings.retention_bytes
    removed = []
    for segment in candidates:
        last_ms = segment.mark.max_deliver_after if settings.delayed else segment.mark.max_timestamp
        expired = settings.retention_ms is not None and last_ms <= frontier_ms - settings.retention_ms
        if not expired and excess_bytes <= 0:
            break
        removed.append(segment)
        excess_bytes -= segment.size
    return removed


def log_start(removed: Sequence[Run], index: DelayedIndex, before: LogStart) -> LogStart:
    """The log start behind the runs that go, while `index` still holds them."""
    if not removed:
        return before
    key = max(before.key, *(run.last_key for run in removed))
    return LogStart(delivery_offset=index.rank(key), deliver_after=key.deliver_after, offset=key.offset)


def files_of(segment: SealedSegment) -> list[Path]:
    """The segment's files, the log first: without it the others mean nothing."""
    return [segment.path.with_suffix(suffix) for suffix in (DELIVER_AFTER_INDEX, TIME_INDEX, OFFSET_INDEX, LOG)]


def _last_due_ms(segment: SealedSegment) -> int:
    return segment.mark.max_deliver_after
