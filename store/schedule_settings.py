"""What a schedule is asked to be: checked, before anything is written.

wanted_schedule   what `store.schedule` was given ──────────┐
changed_schedule  one that is there, and what is to change ─┴──> ScheduleDocument, with nothing appended of it yet
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from afterlog.base.arguments import KEEP
from afterlog.base.errors import InvalidArgument, InvalidSchedule, WrongType
from afterlog.base.files import unused_name
from afterlog.base.names import check_name
from afterlog.base.recurrence import cron_of, every_ms_of
from afterlog.records.batch import own_headers
from afterlog.records.single import byte_string
from afterlog.store.schedule_document import POLICIES, ScheduleDocument

NAME_MAX = 240
_SETTINGS = ("topic", "cron", "every_ms", "timezone", "value", "key", "headers", "missed")
_ONE_OF_THEM = "give cron, an expression, or every, a timedelta: one of them"


def wanted_schedule(
    topic: str,
    name: str,
    now_ms: int,
    *,
    cron: Any,
    timezone: Any,
    every: Any,
    value: Any,
    key: Any,
    headers: Any,
    missed: Any,
) -> ScheduleDocument:
    """A new one, in partition 0 so far. Raises InvalidTopic, InvalidSchedule, InvalidRecord, InvalidArgument."""
    check_name(name, "schedule")
    if len(name) > NAME_MAX:
        raise InvalidSchedule(f"a schedule's name has {NAME_MAX} characters at most, not {len(name)}")
    if (cron is None) == (every is None):
        raise InvalidSchedule(_ONE_OF_THEM)
    return ScheduleDocument(
        name=name,
        id=unused_name(),
        topic=topic,
        partition=0,
        cron=None if cron is None else cron_of(cron, timezone).expression,
        timezone=timezone if cron is not None else "UTC",
        every_ms=None if every is None else every_ms_of(every),
        anchor_ms=now_ms,
        value=byte_string(value),
        key=byte_string(key, "keys"),
        headers=tuple(own_headers(headers)),
        missed=_policy(missed),
        upto_ms=now_ms,
    )


def changed_schedule(
    document: ScheduleDocument,
    now_ms: int,
    *,
    cron: Any,
    timezone: Any,
    every: Any,
    value: Any,
    key: Any,
    headers: Any,
    missed: Any,
) -> ScheduleDocument:
    """With what is given in place of what it was; KEEP: as it is. Raises as `wanted_schedule` does."""
    if cron is not KEEP and every is not KEEP:
        raise InvalidSchedule(_ONE_OF_THEM)
    changed = document
    if cron is not KEEP or (timezone is not KEEP and every is KEEP):
        if cron is KEEP and document.cron is None:
            raise InvalidSchedule(f"{document.name} comes at intervals, which have no time zone")
        made = cron_of(document.cron if cron is KEEP else cron, document.timezone if timezone is KEEP else timezone)
        changed = replace(changed, cron=made.expression, timezone=made.timezone, every_ms=None)
    if every is not KEEP:
        changed = replace(changed, cron=None, timezone="UTC", every_ms=every_ms_of(every), anchor_ms=now_ms)
    if value is not KEEP:
        changed = replace(changed, value=byte_string(value))
    if key is not KEEP:
        changed = replace(changed, key=byte_string(key, "keys"))
    if headers is not KEEP:
        changed = replace(changed, headers=tuple(own_headers(headers)))
    return changed if missed is KEEP else replace(changed, missed=_policy(missed))


def settings_of(document: ScheduleDocument) -> tuple[object, ...]:
    """By which two that have the same are the same to who makes them."""
    return tuple(getattr(document, name) for name in _SETTINGS)


def _policy(missed: object) -> str:
    if not isinstance(missed, str):
        raise WrongType(f"missed must be skip, one or all, not {missed!r:.100}")
    if missed not in POLICIES:
        raise InvalidArgument(f"missed must be skip, one or all, not {missed!r:.100}")
    return missed
