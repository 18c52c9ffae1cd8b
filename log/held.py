"""What keeps the bytes of a partition on the local disk: for each segment, the rule of retention that holds it.

    sealed ──> judged ──┬── pending, retention, backlog      what holds it; of first and last, what is dead is worn
                        ├── nothing ──> removable            the next pass takes it
                        └── only here by local retention ──> tier   it waits for its copy, or for object storage to tell
    active ──> active                                        sealed by its size or its age, and then judged
    gone from the log, and somebody still reads it ──> pinned

Told are the bytes of logs (`.log`). What lies in object storage alone takes none. Indexes are a few percent more; runs
are told of by themselves (`Partition.index_bytes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields

from afterlog.base.errors import AfterlogError, RemoteMissing, RemoteRefused, RemoteUnavailable
from afterlog.log.checkpoints import SealedMark
from afterlog.log.retention import ANYTHING, Holder, LetsGo, Rule, judged
from afterlog.log.topic_settings import TopicSettings

_NO_ANSWER: tuple[type[AfterlogError], ...] = (RemoteUnavailable, RemoteRefused, RemoteMissing)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Of one partition, on the local disk, at one instant: bytes of logs by what holds them."""

    pending: int = 0
    """In sealed segments with a record that is not due yet."""
    worn: int = 0
    """In the same, and in those of the backlog, of records that are out of reach, or may be: cleaning frees them where
    they are more than all else, and `cleaning_slack_bytes`; `Store.clean` at once."""
    retention: int = 0
    """In those that are due, and that the topic's retention keeps."""
    backlog: int = 0
    """In those that would go, had every subscription and group acked them."""
    tier: int = 0
    """In those whose local files would go, were their copy in object storage, or would that answer."""
    removable: int = 0
    """In those that the next pass takes. What stays here is not taken: the log says why."""
    pinned: int = 0
    """Of segments that are gone from the log, and that somebody still reads."""
    active: int = 0
    """Of the segment that is appended to."""

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def held_bytes(
    marks: Collection[SealedMark],
    active_bytes: int,
    settings: TopicSettings,
    frontier_ms: int,
    lets_go: LetsGo,
    *,
    pinned_bytes: int = 0,
    dead_bytes: Callable[[SealedMark], int] = lambda mark: 0,
) -> HeldBytes:
    """As retention would judge these segments now. `frontier_ms`: as of `judged`.

    lets_go: what the subscriptions leave, where the topic's retention goes by them. dead_bytes: of a segment with
    something pending, or not acked, what is worn.
    """
    tiered = waiting_for_tier(marks, active_bytes, settings, frontier_ms)
    sizes: Counter[str] = Counter()
    for mark, holder in _verdicts(marks, active_bytes, settings, frontier_ms, lets_go):
        if mark.local:
            if holder is not None and mark.base_offset in tiered:
                holder = "tier"
            worn = dead_bytes(mark) if holder in (Holder.PENDING.value, Holder.BACKLOG.value) else 0
            sizes[holder or "removable"] += mark.log_bytes - worn
            sizes["worn"] += worn
    return HeldBytes(**sizes, pinned=pinned_bytes, active=active_bytes)


def waiting_for_tier(
    marks: Collection[SealedMark], active_bytes: int, settings: TopicSettings, frontier_ms: int
) -> set[int]:
    """Base offsets of those whose local files would go by the local retention, were they listed in object storage."""
    rule = Rule(settings.local_retention_ms, settings.local_retention_bytes)
    if rule == ANYTHING:
        return set()
    local = [mark for mark in marks if mark.local]
    verdicts = judged(local, active_bytes, rule, frontier_ms, delayed=settings.delayed)
    return {mark.base_offset for mark, holder in verdicts if holder is None}


def _verdicts(
    marks: Collection[SealedMark], active_bytes: int, settings: TopicSettings, frontier_ms: int, lets_go: LetsGo
) -> list[tuple[SealedMark, str | None]]:
    """What holds each; None: nothing. Where ranks lie in object storage, and it does not answer, that does."""
    rule, at_once = Rule(settings.retention_ms, settings.retention_bytes), settings.lets_go_at_once
    found: list[tuple[SealedMark, str | None]] = []
    try:
        for mark, holder in judged(
            marks, active_bytes, rule, frontier_ms, delayed=settings.delayed, lets_go=lets_go, at_once=at_once
        ):
            found.append((mark, None if holder is None else holder.value))
    except _NO_ANSWER:
        judged_already = {mark.base_offset for mark, _ in found}
        found += [
            (mark, "tier" if mark.max_deliver_after <= frontier_ms else Holder.PENDING.value)
            for mark in marks
            if mark.base_offset not in judged_already
        ]
    return found
