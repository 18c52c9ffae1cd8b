"""What is known of a recurring schedule, and as what it is in the journal (`schedule_journal`).

    {"name":"weekly","id":"0123456789abcdef0123456789abcdef","topic":"report","partition":0,
     "cron":"0 8 * * 1","timezone":"Europe/Zurich","every_ms":null,"anchor_ms":0,
     "value":"aGVsbG8=","key":null,"headers":[["kind","d2Vla2x5"]],"missed":"one",
     "paused":false,"removed":false,"upto_ms":1700467200000,"stale":null,"stale_due_ms":0,"delivered_ms":0,
     "occurrence":{"due_ms":1700467200000,"log_end_offset":40,"offset":40}}

- `id`: of this schedule; one that is made later under the same name has another. Bytes are base64.
- `upto_ms`: all that came up to then is dealt with: appended, or skipped on purpose. The next is the first one later.
- `occurrence`: the last one that was appended, or is about to be: it is written with offset null before the append, and
  with the offset behind it. So after a crash an offset that is null means: look from `log_end_offset` on.
- `stale`: the offset of a pending record that is to be cancelled, since the schedule was changed or paused;
  `stale_due_ms`: when it is due. Where that was before it could be done, it becomes `delivered_ms`: it has come.
- `removed`: nothing of it is appended any more; what is pending is to be cancelled, and the document to go.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from afterlog.base.document import well_typed, whole
from afterlog.base.errors import CorruptFile
from afterlog.base.recurrence import Cron, Every, Recurrence
from afterlog.fetch.record_id import RecordId
from afterlog.records.batch import Headers

POLICIES = ("skip", "one", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One record of a schedule, in the log or about to be."""

    due_ms: int
    log_end_offset: int
    """It is nowhere before."""
    offset: int | None = None
    """None: it may be there or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDocument:
    """All that is durable of it."""

    name: str
    id: str
    topic: str
    partition: int
    cron: str | None
    timezone: str
    every_ms: int | None
    anchor_ms: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    missed: str
    paused: bool = False
    removed: bool = False
    upto_ms: int
    stale: int | None = None
    stale_due_ms: int = 0
    delivered_ms: int = 0
    occurrence: Occurrence | None = None

    @property
    def recurrence(self) -> Recurrence:
        if self.every_ms is not None:
            return Every(self.every_ms, self.anchor_ms)
        assert self.cron is not None
        return Cron(self.cron, self.timezone)

    def next_due(self, now_ms: int) -> int | None:
        """When the next one comes; None where it is paused, or none does."""
        if self.paused:
            return None
        if self.occurrence is not None and self.occurrence.due_ms > now_ms:
            return self.occurrence.due_ms
        try:
            return self.recurrence.after(max(self.upto_ms, now_ms))
        except ImportError:  # looking needs nothing that may not be here
            return None

    def to_json(self, before: ScheduleDocument | None = None) -> dict[str, Any]:
        """Its name, and all that is not as it was before."""
        row: dict[str, Any] = {"name": self.name}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if before is None or value != getattr(before, name):
                row[name] = _TO_JSON[name](value) if name in _TO_JSON else value
        return row

    @staticmethod
    def of_json(body: dict[str, Any], path: Path) -> ScheduleDocument:
        """Raises CorruptFile where the object is not what `to_json` makes."""
        try:
            occurrence = body["occurrence"]
            made = ScheduleDocument(
                **body
                | {
                    "value": _bytes(body["value"]),
                    "key": _bytes(body["key"]),
                    "headers": tuple((str(name), _bytes(value)) for name, value in body["headers"]),
                    "occurrence": None if occurrence is None else well_typed(Occurrence(**occurrence)),
                }
            )
            well_typed(made)
            for number in (made.every_ms, made.stale, made.occurrence and made.occurrence.offset):
                whole(0 if number is None else number)
            if made.missed not in POLICIES or (made.cron is None) == (made.every_ms is None):
                raise ValueError("neither cron nor interval")
            if not isinstance(made.cron, str | None) or made.every_ms == 0:
                raise TypeError(f"cron cannot be {made.cron!r:.40}")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(f"holds no schedule: {error}", path=path) from error
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A recurring schedule as it stands."""

    name: str
    topic: str
    partition: int
    cron: str | None
    timezone: str
    every: timedelta | None
    value: bytes | None
    key: bytes | None
    headers: Headers
    missed: str
    """`skip`, `one` or `all`: what becomes of what came while nobody had the store open."""
    paused: bool
    next_due: int | None
    """Ms since the epoch; None where it is paused, or never comes again."""
    record: RecordId | None
    """The one that is pending, or was appended last."""
    fault: str | None
    """Why it could not be looked after; it is tried again."""

    def upcoming(self, count: int = 10) -> list[int]:
        """When the next so many come, ms since the epoch; the first is `next_due`. Cron needs the extra `schedules`.

        None where it is paused; of one that is changed meanwhile what was known.
        """
        if self.next_due is None:
            return []
        every, found = self.every, [self.next_due]
        recurrence: Recurrence = (
            Cron(self.cron or "", self.timezone) if every is None else Every(_ms(every), self.next_due - _ms(every))
        )
        while len(found) < count and (later := recurrence.after(found[-1])) is not None:
            found.append(later)
        return found[:count]

    @staticmethod
    def of(document: ScheduleDocument, now_ms: int, fault: str | None) -> Schedule:
        """What a document says of it."""
        occurrence = document.occurrence
        offset = None if occurrence is None else occurrence.offset
        return Schedule(
            name=document.name,
            topic=document.topic,
            partition=document.partition,
            cron=document.cron,
            timezone=document.timezone,
            every=None if document.every_ms is None else timedelta(milliseconds=document.every_ms),
            value=document.value,
            key=document.key,
            headers=document.headers,
            missed=document.missed,
            paused=document.paused,
            next_due=document.next_due(now_ms),
            record=None if offset is None else RecordId(document.topic, document.partition, offset),
            fault=fault,
        )


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _pairs(headers: Headers) -> list[list[str | None]]:
    return [[name, _text(value)] for name, value in headers]


def _fields(occurrence: Occurrence | None) -> dict[str, int | None] | None:
    if occurrence is None:
        return None
    return {
        "due_ms": occurrence.due_ms,
        "log_end_offset": occurrence.log_end_offset,
        "offset": occurrence.offset,
    }


_TO_JSON: dict[str, Callable[[Any], Any]] = {"value": _text, "key": _text, "headers": _pairs, "occurrence": _fields}
"""Fields that JSON has in another way."""
