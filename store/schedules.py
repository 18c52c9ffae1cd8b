"""Recurring schedules of a store: each has one record pending, and gets the next when that becomes due.

    document: from offset o on there may be one ──> append, sync ──> document: it has offset n
       └── a crash, a full disk: look from o on for a record that names schedule and occurrence; none? append

So an occurrence is in the log once, wherever a crash strikes: what is not known to be there is looked for before it is
appended. (Only where a crash comes between, and retention has removed the record meanwhile, it comes again.) A thread
of the store, `afterlog-schedules`, does it when the next one is due; it begins with the first schedule.

*Missed* is what came while nobody had the store open. `skip`: nothing of it is appended; `one`: the first of it, due at
once; `all`: each, due at once, one after the other, of very many the latest MISSED_MAX. What was appended before is
pending in the log, and never missed.

*Paused, changed, removed*: the document first, then what is pending is cancelled: the document says which offset is
stale before that is cancelled, and cancelling it again does nothing. Where it was due before it could be cancelled, its
occurrence has come, and does not come again.

*Occurrences.* Three headers, after those that the schedule has of its own, say where a record comes from:

    afterlog-schedule       weekly
    afterlog-occurrence     1700467200000       when it came, ms since the epoch, whenever it was appended
    afterlog-schedule-id    32 hex digits, of this schedule and no other of its name

Invariants: a schedule that is not paused or removed has one occurrence that is not due yet, once it was looked after;
of an occurrence there is one record. Documents are written before memory is changed; where an exception strikes between
the two the dirty flag stays set, and whoever comes next reads them anew.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from afterlog.base.arguments import KEEP
from afterlog.base.errors import (
    AfterlogError,
    InvalidArgument,
    InvalidSchedule,
    ScheduleExists,
    StoreClosed,
    StoreForked,
    UnknownSchedule,
    WrongType,
)
from afterlog.base.files import Files, unused_name
from afterlog.base.names import check_name
from afterlog.base.recurrence import EVERY_MS_MIN, Every, Recurrence, cron_of, every_ms_of
from afterlog.log.cancel_result import CancelResult
from afterlog.log.dirty_flag import DirtyFlag
from afterlog.produce.topic import Topic
from afterlog.records.batch import Headers, own_headers
from afterlog.records.single import SingleRecord, byte_string, header_section
from afterlog.store.schedule_document import (
    POLICIES,
    Occurrence,
    Schedule,
    ScheduleDocument,
    read_schedules,
    remove_schedule,
    write_schedule,
)

if TYPE_CHECKING:
    from afterlog.fetch.partition import Partition


logger = logging.getLogger("afterlog.store.schedules")

_NAME, _OCCURRENCE, _ID = "afterlog-schedule", "afterlog-occurrence", "afterlog-schedule-id"


MISSED_MAX = 1_000
"""Of what was missed so many are appended, the latest: each costs some syncs, and the schedule stands until then."""

NAME_MAX = 240
_SETTINGS = ("topic", "cron", "every_ms", "timezone", "value", "key", "headers", "missed")
_ONE_OF_THEM = "give cron, an expression, or every, a timedelta: one of them"
RETRY_MS = 10_000
"""A schedule that could not be looked after is tried again after this long."""


def kept_of_missed(recurrence: Recurrence, due_ms: int, now_ms: int) -> tuple[int, int]:
    """Of the occurrences from one on up to now, the first that is kept by `missed="all"`, and how many come before."""
    if isinstance(recurrence, Every):
        left_out = max((now_ms - due_ms) // recurrence.every_ms + 1 - MISSED_MAX, 0)
        return due_ms + left_out * recurrence.every_ms, left_out
    kept, count = deque[int](maxlen=MISSED_MAX), 0
    after: int | None = due_ms
    while after is not None and after <= now_ms:
        kept.append(after)
        count += 1
        after = recurrence.after(after)
    return kept[0], count - len(kept)


def next_of(recurrence: Recurrence, upto_ms: int, now_ms: int, missed: str) -> tuple[int | None, int]:
    """The occurrence that is appended next, and up to when all is dealt with once it is."""
    due_ms = recurrence.after(upto_ms)
    if due_ms is None or due_ms > now_ms or missed == "all":
        return due_ms, upto_ms if due_ms is None else due_ms
    if missed == "one":
        return due_ms, now_ms
    due_ms = recurrence.after(now_ms)
    return due_ms, now_ms if due_ms is None else due_ms


def headers_of_occurrence(name: str, identity: str, due_ms: int) -> tuple[tuple[str, bytes | None], ...]:
    return (_NAME, name.encode()), (_OCCURRENCE, b"%d" % due_ms), (_ID, identity.encode())


def occurrence_of(headers: Headers, identity: str) -> int | None:
    """Which occurrence of the schedule the record is, by its last three headers; None of a record that is none."""
    *_, (name, value), (_, found) = (("", b""), ("", b""), *headers)
    if found != identity.encode() or name != _OCCURRENCE or value is None or not value.isdigit():
        return None
    return int(value)


def appended_occurrences(partition: Partition, identity: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(occurrence, offset) of the records of a schedule, from one append offset to another. Raises CorruptFile."""
    from afterlog.subscription.dead_letters import own_headers

    for records in partition.appended(max(start, partition.log_start_offset), end):
        for offset, headers in zip(records.offset.tolist(), own_headers(records), strict=True):
            due_ms = occurrence_of(headers, identity)
            if due_ms is not None:
                yield due_ms, offset


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


class Schedules:
    """Of one store. Thread-safe."""

    def __init__(
        self,
        files: Files,
        path: Path,
        topic_of: Callable[[str], Topic],
        now_ms: Callable[[], int],
        woken: Callable[[], object],
    ) -> None:
        """topic_of: the topic of a name; raises UnknownTopic, StoreClosed. woken: is told of what may come earlier."""
        self._files = files
        self._path = path
        self._topic_of = topic_of
        self._now_ms = now_ms
        self.lock = threading.Lock()
        """Held while any of them is looked after or changed: without it documents and logs may not agree."""
        self._dirty = DirtyFlag()
        self._woken = woken
        self._not_before_ms: dict[str, int] = {}
        """Where there is a reason to wait longer than for the last occurrence."""
        self._faults: dict[str, str] = {}
        self._is_bounded: set[str] = set()
        """Of these it was looked how many were missed: since they were behind last."""
        self._documents, self.damaged = read_schedules(files, path)
        for error in self.damaged.values():
            logger.error("%s: the schedule stands still; remove it, and make it anew", error)

    # What users ask for.

    def add(
        self,
        topic: str,
        name: str,
        *,
        cron: Any,
        timezone: Any,
        every: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        missed: Any,
    ) -> Schedule:
        """Make it, and append its first record; the one that is there, where it has the same settings."""
        wanted = wanted_schedule(
            topic, name, self._now_ms(), cron=cron, timezone=timezone, every=every, value=value, key=key,
            headers=headers, missed=missed,
        )  # fmt: skip
        target = self._topic_of(topic)
        if partition is not None:
            partition = target.checked_partition(partition)
        with self.lock, self._mending():
            self._check_intact(name)
            there = self._documents.get(name)
            if there is not None and not there.removed:
                if partition not in (None, there.partition) or settings_of(there) != settings_of(wanted):
                    raise ScheduleExists(f"{name} is there with other settings: {self._told(there)}")
                return self._told(there)
            if there is not None:
                self._end(there)
            wanted = replace(wanted, partition=target.partition_of(wanted.key) if partition is None else partition)
            self._check(wanted)
            self._write(wanted)
            self._turn(name, self._now_ms())
            made = self._told(self._documents[name])
        self._woken()
        return made

    def change(self, name: str, **changes: Any) -> Schedule:
        """Other settings from now on; what is pending goes, and the next one is of the new settings."""
        with self.lock, self._mending():
            document, now_ms = self._known(name), self._now_ms()
            changed = changed_schedule(self._looked_up(document), now_ms, **changes)
            self._check(changed)
            try:
                self._write(_without_pending(changed, now_ms))
                self._turn(name, now_ms)
            finally:  # what is left half done is for the thread, too
                self._woken()
            return self._told(self._documents[name])

    def pause(self, name: str) -> Schedule:
        """Nothing comes until `resume`: what is pending is cancelled."""
        with self.lock, self._mending():
            document, now_ms = self._known(name), self._now_ms()
            try:
                if not document.paused:
                    self._write(replace(_without_pending(self._looked_up(document), now_ms), paused=True))
                self._turn(name, now_ms)  # also of one that is paused: its record may be pending, for an exception
            finally:
                self._woken()
            return self._told(self._documents[name])

    def resume(self, name: str) -> Schedule:
        """Go on; what came while it was paused does not come any more."""
        with self.lock, self._mending():
            document, now_ms = self._known(name), self._now_ms()
            if document.paused:
                self._write(replace(document, paused=False, upto_ms=now_ms))
                self._turn(name, now_ms)
            told = self._told(self._documents[name])
        self._woken()
        return told

    def remove(self, name: str) -> None:
        """Nothing comes any more: what is pending is cancelled. One whose document cannot be read goes, too."""
        check_name(name, "schedule")
        with self.lock, self._mending():
            if name in self.damaged:
                remove_schedule(self._files, self._path, name)
                del self.damaged[name]
                return
            document = self._known(name)
            self._write(replace(_without_pending(self._looked_up(document), self._now_ms()), removed=True))
            self._end(self._documents[name])

    def read_anew(self) -> None:
        """Somebody who holds the lock has changed documents."""
        self._documents, self.damaged = read_schedules(self._files, self._path)

    def all(self, topic: str | None = None) -> list[Schedule]:
        """By name. Raises CorruptFile where one cannot be read."""
        with self.lock, self._mending():
            for error in self.damaged.values():
                raise error
            found = [each for _, each in sorted(self._documents.items()) if not each.removed]
            return [self._told(each) for each in found if topic is None or each.topic == topic]

    # What is done when the time comes.

    def left_ms(self) -> int | None:
        """How long until there is something to do; None: never, as it is."""
        wakes = map(self._wakes_ms, list(self._documents.values()))
        due_ms = min((ms for ms in wakes if ms is not None), default=None)
        return None if due_ms is None else due_ms - self._now_ms()

    def run(self, *, raising: bool = False) -> int:
        """Append what is due to be appended; how many records were.

        raising: what fails is raised, and ends it; else it is logged, and tried again after RETRY_MS.
        """
        count = 0
        while names := self._due_names():
            for name in names:
                with self.lock, self._mending():
                    try:
                        count += self._turn(name, self._now_ms())
                        self._faults.pop(name, None)
                    except (StoreClosed, StoreForked):
                        return count
                    except (AfterlogError, OSError, ImportError) as error:
                        if raising:
                            raise
                        self._not_before_ms[name] = self._now_ms() + RETRY_MS
                        if self._faults.get(name) != str(error):
                            logger.error("schedule %s: nothing is appended for now: %s", name, error)
                        self._faults[name] = str(error)
        return count

    def settle(self) -> None:
        """When the store is opened: what a crash left half done is looked up, or tried again by `run`."""
        unsettled = [each.name for each in self._documents.values() if not _is_settled(each)]
        for name in unsettled:
            with self.lock, self._mending():
                try:
                    self._turn(name, self._now_ms())
                except (AfterlogError, OSError, ImportError) as error:
                    logger.error("schedule %s: nothing is appended for now: %s", name, error)
                    self._faults[name] = str(error)
                    self._not_before_ms[name] = self._now_ms() + RETRY_MS

    # Inside, under the lock.

    def _due_names(self) -> list[str]:
        now_ms = self._now_ms()
        wakes = [(self._wakes_ms(each), name) for name, each in list(self._documents.items())]
        return [name for ms, name in sorted((ms, name) for ms, name in wakes if ms is not None and ms <= now_ms)]

    def _wakes_ms(self, document: ScheduleDocument) -> int | None:
        not_before_ms = self._not_before_ms.get(document.name, 0)
        if not _is_settled(document):
            return not_before_ms
        if document.paused:
            return None
        due_ms = document.occurrence.due_ms if document.occurrence is not None else 0
        return max(due_ms, not_before_ms)

    def _turn(self, name: str, now_ms: int) -> int:
        """Look after one of them; how many records were appended."""
        document = self._documents.get(name)
        if document is None:
            return 0
        if document.removed:
            self._end(document)
            return 0
        self._not_before_ms.pop(name, None)
        if document.stale is not None:
            document = self._cancelled(document)
        document = self._looked_up(document)
        if document.paused:
            return 0
        occurrence = document.occurrence
        if occurrence is not None and occurrence.offset is None:
            self._append(document, occurrence)
            return 1
        if occurrence is not None and occurrence.due_ms > now_ms:
            self._is_bounded.discard(name)
            return 0
        document = self._bounded(document, now_ms)
        due_ms, upto_ms = next_of(document.recurrence, document.upto_ms, now_ms, document.missed)
        if due_ms is not None and due_ms == document.delivered_ms:  # by its former settings
            document = replace(document, upto_ms=upto_ms, delivered_ms=0)
            due_ms, upto_ms = next_of(document.recurrence, upto_ms, now_ms, document.missed)
        if due_ms is None:
            self._not_before_ms[name] = 2**63 - 1
            return 0
        limit_ms = self._topic_of(document.topic).settings.max_delay_ms
        if limit_ms is not None and due_ms - limit_ms > now_ms:
            self._not_before_ms[name] = due_ms - limit_ms
            return 0
        end = self._topic_of(document.topic).log(document.partition).written
        coming = Occurrence(due_ms=due_ms, log_end_offset=end)
        document = replace(document, upto_ms=upto_ms, occurrence=coming)
        self._write(document)
        self._append(document, coming)
        return 1

    def _bounded(self, document: ScheduleDocument, now_ms: int) -> ScheduleDocument:
        """With no more than MISSED_MAX to append that were missed."""
        if document.missed != "all" or now_ms - document.upto_ms < MISSED_MAX * EVERY_MS_MIN:
            return document
        if document.name in self._is_bounded:  # it catches up
            return document
        self._is_bounded.add(document.name)
        due_ms = document.recurrence.after(document.upto_ms)
        if due_ms is None or due_ms > now_ms:
            return document
        kept_ms, left_out = kept_of_missed(document.recurrence, due_ms, now_ms)
        if not left_out:
            return document
        logger.warning(
            "schedule %s: %d occurrences were missed, of which the latest %d are appended",
            document.name, left_out + MISSED_MAX, MISSED_MAX,
        )  # fmt: skip
        return replace(document, upto_ms=kept_ms - 1)

    def _append(self, document: ScheduleDocument, occurrence: Occurrence) -> None:
        """It is written that it may be in the log from now on."""
        topic = self._topic_of(document.topic)
        offset = topic.append_one(document.partition, self._record(document, occurrence.due_ms))
        log = topic.log(document.partition)
        if log.context.config.durability.kind != "always":
            log.commit.sync()
        self._write(replace(document, occurrence=replace(occurrence, offset=offset)))

    def _looked_up(self, document: ScheduleDocument) -> ScheduleDocument:
        """With what the log says of its last occurrence. One that is not there stands with where to look from now."""
        occurrence = document.occurrence
        if document.settled and (occurrence is None or occurrence.offset is not None):
            return document
        log = self._topic_of(document.topic).log(document.partition)
        log.commit.sync()  # what nobody waits for any more is looked through, too
        end = log.written
        if not document.settled:
            document = replace(document, settled=True, occurrence=self._last(document, end) or occurrence)
            occurrence = document.occurrence
            if occurrence is not None:
                document = replace(document, upto_ms=max(document.upto_ms, occurrence.due_ms))
        if occurrence is not None and occurrence.offset is None:
            found = dict(self._appended(document, occurrence.log_end_offset, end))
            offset = found.get(occurrence.due_ms)
            document = replace(document, occurrence=replace(occurrence, log_end_offset=end, offset=offset))
        self._write(document)
        return document

    def _last(self, document: ScheduleDocument, end: int) -> Occurrence | None:
        """The last one in the log, of a document that may be older than that."""
        occurrence = document.occurrence
        start = 0 if occurrence is None else occurrence.log_end_offset
        last = max(self._appended(document, start, end), default=None, key=lambda pair: pair[1])
        return None if last is None else Occurrence(due_ms=last[0], log_end_offset=last[1], offset=last[1])

    def _appended(self, document: ScheduleDocument, start: int, end: int) -> Iterable[tuple[int, int]]:
        """(occurrence, offset) of its records from one offset to another."""
        partition = self._topic_of(document.topic).partition(document.partition)
        return appended_occurrences(partition, document.id, start, end)

    def _cancelled(self, document: ScheduleDocument) -> ScheduleDocument:
        """Without what is stale."""
        assert document.stale is not None
        log = self._topic_of(document.topic).log(document.partition)
        [answer] = log.cancel(np.array([document.stale])).tolist()
        log.commit.sync()
        delivered_ms = document.stale_due_ms if answer == CancelResult.ALREADY_DELIVERED else document.delivered_ms
        document = replace(document, stale=None, stale_due_ms=0, delivered_ms=delivered_ms)
        self._write(document)
        return document

    def _end(self, document: ScheduleDocument) -> None:
        """Of one that is removed: what is pending goes, and then the document."""
        if document.stale is not None and self._has_topic(document):
            self._cancelled(document)
        remove_schedule(self._files, self._path, document.name)
        del self._documents[document.name]
        self._faults.pop(document.name, None)

    def _has_topic(self, document: ScheduleDocument) -> bool:
        try:
            return document.partition < self._topic_of(document.topic).partition_count
        except LookupError:
            return False

    def _write(self, document: ScheduleDocument) -> None:
        if document != self._documents.get(document.name):
            write_schedule(self._files, self._path, document)
            self._documents[document.name] = document

    def _record(self, document: ScheduleDocument, due_ms: int) -> SingleRecord:
        headers = (*document.headers, *headers_of_occurrence(document.name, document.id, due_ms))
        return SingleRecord(document.value, document.key, header_section(headers), self._now_ms(), due_ms)

    def _check(self, document: ScheduleDocument) -> None:
        """Raises what an append of a record of it would."""
        now_ms = self._now_ms()
        self._topic_of(document.topic).check_record(document.partition, self._record(document, now_ms))

    def _check_intact(self, name: str) -> None:
        if name in self.damaged:
            raise self.damaged[name]

    def _known(self, name: str) -> ScheduleDocument:
        check_name(name, "schedule")
        self._check_intact(name)
        document = self._documents.get(name)
        if document is None or document.removed:
            raise UnknownSchedule(f"no schedule {name!r} here; store.schedules() lists those that are")
        return document

    def _told(self, document: ScheduleDocument) -> Schedule:
        return Schedule.of(document, self._now_ms(), self._faults.get(document.name))

    def _mending(self) -> Any:
        """The block changes documents; where one was interrupted before, they are read anew first."""
        if self._dirty.is_set:
            self._documents, self.damaged = read_schedules(self._files, self._path)
        return self._dirty.guard(AfterlogError)


def _without_pending(document: ScheduleDocument, now_ms: int) -> ScheduleDocument:
    """What is pending is stale; what comes next comes after now."""
    occurrence = document.occurrence
    if occurrence is not None and occurrence.offset is not None and occurrence.due_ms > now_ms:
        document = replace(document, stale=occurrence.offset, stale_due_ms=occurrence.due_ms)
    return replace(document, occurrence=None, upto_ms=now_ms)


def _is_settled(document: ScheduleDocument) -> bool:
    """Whether nothing is half done."""
    occurrence = document.occurrence
    is_known = occurrence is None or occurrence.offset is not None
    return document.settled and is_known and document.stale is None and not document.removed
