"""Recurring schedules of a store: each has one record pending, and gets the next when that becomes due.

    journal: from offset o on there may be one ──> append, sync ──> journal: it has offset n
       └── a crash, a full disk: look from o on for a record that names schedule and occurrence; none? append

So an occurrence is in the log once, wherever a crash strikes: what is not known to be there is looked for before it is
appended. (Only where a crash comes between, and retention has removed the record meanwhile, it comes again.) A thread
of the store, `afterlog-schedules`, does it when the next one is due; it begins with the first schedule. Those that are
due together, up to TOGETHER_MAX, share all of it: a frame and a note of the journal (`schedule_journal`), for each
partition an append and a sync.

*Missed* is what came while nobody had the store open. `skip`: nothing of it is appended; `one`: the first of it, due at
once; `all`: each, due at once, one after the other, of very many the latest MISSED_MAX. What was appended before is
pending in the log, and never missed.

*Paused, changed, removed*: the journal first, then what is pending is cancelled: the document says which offset is
stale before that is cancelled, and cancelling it again does nothing. Where it was due before it could be cancelled, its
occurrence has come, and does not come again.

*Occurrences.* Three headers, after those that the schedule has of its own, say where a record comes from:

    afterlog-schedule       weekly
    afterlog-occurrence     1700467200000       when it came, ms since the epoch, whenever it was appended
    afterlog-schedule-id    32 hex digits, of this schedule and no other of its name

Invariants: a schedule that is not paused or removed has one occurrence that is not due yet, once it was looked after;
of an occurrence there is one record. The journal is written before memory is changed; where an exception strikes
between the two the dirty flag stays set, and whoever comes next reads it anew.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from afterlog.fetch.record_id import RecordId
from afterlog.log.cancel_result import CancelResult
from afterlog.log.dirty_flag import DirtyFlag
from afterlog.produce.topic import Topic
from afterlog.records.batch import Headers, own_headers
from afterlog.records.single import SingleRecord, byte_string, columns_of, header_section
from afterlog.store.schedule_document import POLICIES, Occurrence, Schedule, ScheduleDocument
from afterlog.store.schedule_journal import ScheduleJournal

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
TOGETHER_MAX = 2_048
"""So many are looked after at a time. Larger: fewer syncs, whoever changes a schedule meanwhile waits longer."""
FAULTS = (AfterlogError, OSError, ImportError)
"""What may be in the way of a schedule; ImportError: of a cron expression without cronsim."""
Faults = dict[str, Exception]
"""By schedules' names."""


class Turned(NamedTuple):
    """What came of it to look after some."""

    appended: int
    faults: Faults


class AppendedOccurrence(NamedTuple):
    """A record of a schedule."""

    id: str
    due_ms: int
    offset: int


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


def occurrence_of(headers: Headers) -> tuple[str, int] | None:
    """The id of the schedule and the occurrence that the record is, by its last headers; None of one that is none."""
    *_, (name, value), (last, identity) = (("", b""), ("", b""), *headers)
    if last != _ID or name != _OCCURRENCE or identity is None or value is None or not value.isdigit():
        return None
    return identity.decode(errors="replace"), int(value)


def appended_occurrences(partition: Partition, start: int, end: int) -> Iterator[AppendedOccurrence]:
    """Those of all schedules, from one append offset to another. Raises CorruptFile."""
    from afterlog.subscription.dead_letters import own_headers

    for records in partition.appended(max(start, partition.log_start_offset), end):
        for offset, headers in zip(records.offset.tolist(), own_headers(records), strict=True):
            found = occurrence_of(headers)
            if found is not None:
                yield AppendedOccurrence(*found, offset)


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
        self._changes = 0
        """Counts what may make another time the next."""
        self._next_wake: tuple[int, int | None] = (-1, None)
        """When there is something to do next, and behind how many changes that was so."""
        self.read_anew()

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
            self._check_intact()
            there = self._documents.get(name)
            if there is not None and not there.removed:
                if partition not in (None, there.partition) or settings_of(there) != settings_of(wanted):
                    raise ScheduleExists(f"{name} is there with other settings: {self._told(there)}")
                return self._told(there)
            if there is not None:
                self._end(there)
            wanted = replace(wanted, partition=target.partition_of(wanted.key) if partition is None else partition)
            self._check(wanted)
            made = self._told(self._turn_one(wanted))
        self._woken()
        return made

    def change(self, name: str, **changes: Any) -> Schedule:
        """Other settings from now on; what is pending goes, and the next one is of the new settings."""
        with self.lock, self._mending():
            document, now_ms = self._known(name), self._now_ms()
            changed = changed_schedule(self._all_known(document), now_ms, **changes)
            self._check(changed)
            try:
                return self._told(self._turn_one(_without_pending(changed, now_ms)))
            finally:  # what is left half done is for the thread, too
                self._woken()

    def pause(self, name: str) -> Schedule:
        """Nothing comes until `resume`: what is pending is cancelled."""
        with self.lock, self._mending():
            document, now_ms = self._known(name), self._now_ms()
            try:
                if not document.paused:
                    document = replace(_without_pending(self._all_known(document), now_ms), paused=True)
                return self._told(self._turn_one(document))  # its record may be pending, for an exception before
            finally:
                self._woken()

    def resume(self, name: str) -> Schedule:
        """Go on; what came while it was paused does not come any more."""
        with self.lock, self._mending():
            document = self._known(name)
            if document.paused:
                document = self._turn_one(replace(document, paused=False, upto_ms=self._now_ms()))
            told = self._told(document)
        self._woken()
        return told

    def send_now(self, name: str) -> RecordId:
        """A record as its own are, due at once: none of those that come, whose headers it has not."""
        with self.lock:
            document = self._known(name)
        now_ms = self._now_ms()
        record = SingleRecord(document.value, document.key, header_section(document.headers), now_ms, now_ms)
        offset = self._topic_of(document.topic).append_one(document.partition, record)
        return RecordId(document.topic, document.partition, offset)

    def remove(self, name: str) -> None:
        """Nothing comes any more: what is pending is cancelled."""
        with self.lock, self._mending():
            document = self._known(name)
            document = replace(_without_pending(self._all_known(document), self._now_ms()), removed=True)
            self._write([document])
            self._end(document)

    def read_anew(self) -> None:
        """Somebody who holds the lock may have written what is not known here."""
        self._journal = ScheduleJournal(self._files, self._path)
        self._changes += 1
        if self._journal.damage is not None:
            logger.error("%s: the schedules stand still", self._journal.damage)

    def all(self, topic: str | None = None) -> list[Schedule]:
        """By name. Raises CorruptFile where they cannot be read."""
        with self.lock, self._mending():
            self._check_intact()
            found = [each for _, each in sorted(self._documents.items()) if not each.removed]
            return [self._told(each) for each in found if topic is None or each.topic == topic]

    # What is done when the time comes.

    def left_ms(self) -> int | None:
        """How long until there is something to do; None: never, as it is."""
        changes, wakes_ms = self._next_wake
        if changes != self._changes:
            changes = self._changes
            wakes = map(self._wakes_ms, list(self._documents.values()))
            wakes_ms = min((ms for ms in wakes if ms is not None), default=None)
            self._next_wake = changes, wakes_ms
        return None if wakes_ms is None else wakes_ms - self._now_ms()

    def run(self, *, raising: bool = False) -> int:
        """Append what is due to be appended; how many records were.

        raising: what fails is raised, and ends it; else it is logged, and tried again after RETRY_MS.
        """
        count = 0
        while names := self._due_names():
            for first in range(0, len(names), TOGETHER_MAX):
                some = names[first : first + TOGETHER_MAX]
                with self.lock, self._mending():
                    try:
                        turned = self._turn([self._documents[name] for name in some if name in self._documents])
                    except (StoreClosed, StoreForked):
                        return count
                    except FAULTS as error:
                        turned = Turned(0, dict.fromkeys(some, error))
                    count += turned.appended
                    if not raising:
                        self._note(some, turned.faults)
                if raising and turned.faults:
                    raise next(iter(turned.faults.values()))
        return count

    def settle(self) -> None:
        """When the store is opened: what a crash left half done is looked up, and what is stale cancelled."""
        unsettled, faults = [each for each in self._documents.values() if not _is_settled(each)], Faults()
        with self.lock, self._mending():
            with _noting(faults, unsettled):
                self._settled(unsettled, faults)
            self._note([each.name for each in unsettled], faults)

    # Inside, under the lock.

    @property
    def _documents(self) -> dict[str, ScheduleDocument]:
        return self._journal.documents

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

    def _note(self, names: Iterable[str], faults: Faults) -> None:
        """What was in the way of some of them: each is tried again."""
        for name in names:
            if name not in faults:
                self._faults.pop(name, None)
                continue
            told = str(faults[name])
            self._not_before_ms[name] = self._now_ms() + RETRY_MS
            if self._faults.get(name) != told:
                logger.error("schedule %s: nothing is appended for now: %s", name, told)
            self._faults[name] = told
        self._changes += 1

    def _turn_one(self, document: ScheduleDocument) -> ScheduleDocument:
        """`_turn` of one of them, as it is from now on; what it comes to. Raises what is in its way."""
        faults = self._turn([document]).faults
        if faults:
            raise faults[document.name]
        return self._documents[document.name]

    def _turn(self, documents: Sequence[ScheduleDocument]) -> Turned:
        """Look after some of them, as they are from now on.

        What they come to is one frame of the journal before anything is appended, and a note behind it; each log is
        synced once. Raises what is in the way of all.
        """
        now_ms, faults, coming = self._now_ms(), Faults(), list[ScheduleDocument]()
        for document in self._settled(documents, faults):
            with _noting(faults, [document]):
                self._not_before_ms.pop(document.name, None)
                coming.append(self._next(document, now_ms))
        self._write(coming)
        appended = list[ScheduleDocument]()
        for some in _by_log(filter(_is_unknown, coming)):
            with _noting(faults, some):
                appended += self._append(some)
        self._journal.note(appended)
        self._changes += 1
        return Turned(len(appended), faults)

    def _settled(self, documents: Sequence[ScheduleDocument], faults: Faults) -> list[ScheduleDocument]:
        """Those with which nothing was in the way: nothing is stale, removed, or may be in the log or not."""
        self._write(each for each in documents if not _is_settled(each))
        known = list[ScheduleDocument]()
        for document in documents:
            with _noting(faults, [document]):
                known += self._mended(document)
        for some in _by_log(filter(_is_unknown, known)):
            with _noting(faults, some):
                known += self._looked_up(some)
        return list({each.name: each for each in known if each.name not in faults}.values())

    def _mended(self, document: ScheduleDocument) -> list[ScheduleDocument]:
        """Without what is stale; nothing of one that is removed."""
        if document.removed:
            self._end(document)
            return []
        return [document if document.stale is None else self._cancelled(document)]

    def _next(self, document: ScheduleDocument, now_ms: int) -> ScheduleDocument:
        """With the occurrence that is to be appended, of one of which all is known, if it is time for one."""
        occurrence = document.occurrence
        if document.paused or _is_unknown(document):
            return document
        if occurrence is not None and occurrence.due_ms > now_ms:
            self._is_bounded.discard(document.name)
            return document
        topic, bounded = self._topic_of(document.topic), self._bounded(document, now_ms)
        due_ms, upto_ms = next_of(bounded.recurrence, bounded.upto_ms, now_ms, bounded.missed)
        if due_ms is not None and due_ms == bounded.delivered_ms:  # by its former settings
            bounded = replace(bounded, upto_ms=upto_ms, delivered_ms=0)
            due_ms, upto_ms = next_of(bounded.recurrence, upto_ms, now_ms, bounded.missed)
        if due_ms is None:
            self._not_before_ms[document.name] = 2**63 - 1
            return document
        limit_ms = topic.settings.max_delay_ms
        if limit_ms is not None and due_ms - limit_ms > now_ms:
            self._not_before_ms[document.name] = due_ms - limit_ms
            return document
        coming = Occurrence(due_ms=due_ms, log_end_offset=topic.log(document.partition).written)
        return replace(bounded, upto_ms=upto_ms, occurrence=coming)

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

    def _append(self, documents: Sequence[ScheduleDocument]) -> list[ScheduleDocument]:
        """What comes of some in one partition, with its offsets. It is written that it may be in the log by now."""
        topic, number = self._topic_of(documents[0].topic), documents[0].partition
        records = [self._record(each, _last(each).due_ms) for each in documents]
        if len(records) == 1:
            offsets = [topic.append_one(number, records[0])]
        else:
            offsets = topic.append(number, columns_of(records)).tolist()
        log = topic.log(number)
        if log.context.config.durability.kind != "always":
            log.commit.sync()
        return [_found(each, offset) for each, offset in zip(documents, offsets, strict=True)]

    def _all_known(self, document: ScheduleDocument) -> ScheduleDocument:
        """With what the log says of its last occurrence."""
        if _is_unknown(document):
            [document] = self._looked_up([document])
        return document

    def _looked_up(self, documents: Sequence[ScheduleDocument]) -> list[ScheduleDocument]:
        """Of one partition, whose last occurrence may be in its log: what is not stands with where to look from now."""
        topic, number = self._topic_of(documents[0].topic), documents[0].partition
        log = topic.log(number)
        log.commit.sync()  # what nobody waits for any more is looked through, too
        end = log.written
        start = min(_last(each).log_end_offset for each in documents)
        there = appended_occurrences(topic.partition(number), start, end)
        offsets = {(each.id, each.due_ms): each.offset for each in there}
        looked_up = [_found(each, offsets.get((each.id, _last(each).due_ms)), end) for each in documents]
        self._write(looked_up)
        return looked_up

    def _cancelled(self, document: ScheduleDocument) -> ScheduleDocument:
        """Without what is stale."""
        assert document.stale is not None
        log = self._topic_of(document.topic).log(document.partition)
        [answer] = log.cancel(np.array([document.stale])).tolist()
        log.commit.sync()
        delivered_ms = document.stale_due_ms if answer == CancelResult.ALREADY_DELIVERED else document.delivered_ms
        document = replace(document, stale=None, stale_due_ms=0, delivered_ms=delivered_ms)
        self._write([document])
        return document

    def _end(self, document: ScheduleDocument) -> None:
        """Of one that is removed: what is pending goes, and then the document."""
        if document.stale is not None and self._has_topic(document):
            self._cancelled(document)
        self._write([], [document.name])
        self._faults.pop(document.name, None)

    def _has_topic(self, document: ScheduleDocument) -> bool:
        try:
            return document.partition < self._topic_of(document.topic).partition_count
        except LookupError:
            return False

    def _write(self, documents: Iterable[ScheduleDocument], gone: Iterable[str] = ()) -> None:
        self._journal.write(documents, gone)
        self._changes += 1

    def _record(self, document: ScheduleDocument, due_ms: int) -> SingleRecord:
        headers = (*document.headers, *headers_of_occurrence(document.name, document.id, due_ms))
        return SingleRecord(document.value, document.key, header_section(headers), self._now_ms(), due_ms)

    def _check(self, document: ScheduleDocument) -> None:
        """Raises what an append of a record of it would."""
        now_ms = self._now_ms()
        self._topic_of(document.topic).check_record(document.partition, self._record(document, now_ms))

    def _check_intact(self) -> None:
        if self._journal.damage is not None:
            raise self._journal.damage

    def _known(self, name: str) -> ScheduleDocument:
        check_name(name, "schedule")
        self._check_intact()
        document = self._documents.get(name)
        if document is None or document.removed:
            raise UnknownSchedule(f"no schedule {name!r} here; store.schedules() lists those that are")
        return document

    def _told(self, document: ScheduleDocument) -> Schedule:
        return Schedule.of(document, self._now_ms(), self._faults.get(document.name))

    def _mending(self) -> Any:
        """The block changes documents; where one was interrupted before, they are read anew first."""
        if self._dirty.is_set:
            self.read_anew()
        return self._dirty.guard(AfterlogError)


def _without_pending(document: ScheduleDocument, now_ms: int) -> ScheduleDocument:
    """What is pending is stale; what comes next comes after now."""
    occurrence = document.occurrence
    if occurrence is not None and occurrence.offset is not None and occurrence.due_ms > now_ms:
        document = replace(document, stale=occurrence.offset, stale_due_ms=occurrence.due_ms)
    return replace(document, occurrence=None, upto_ms=now_ms)


def _is_settled(document: ScheduleDocument) -> bool:
    """Whether nothing is half done."""
    return not _is_unknown(document) and document.stale is None and not document.removed


def _is_unknown(document: ScheduleDocument) -> bool:
    """Whether its last occurrence may be in the log or not."""
    return document.occurrence is not None and document.occurrence.offset is None


def _last(document: ScheduleDocument) -> Occurrence:
    assert document.occurrence is not None, "of one that has none nothing is appended, or looked for"
    return document.occurrence


def _found(document: ScheduleDocument, offset: int | None, end: int | None = None) -> ScheduleDocument:
    """Its last occurrence lies there; None: nowhere before the end."""
    occurrence = _last(document)
    end = occurrence.log_end_offset if end is None else end
    return replace(document, occurrence=replace(occurrence, log_end_offset=end, offset=offset))


def _by_log(documents: Iterable[ScheduleDocument]) -> list[list[ScheduleDocument]]:
    """Those of each partition together."""
    found: dict[tuple[str, int], list[ScheduleDocument]] = {}
    for document in documents:
        found.setdefault((document.topic, document.partition), []).append(document)
    return list(found.values())


@contextmanager
def _noting(faults: Faults, documents: Sequence[ScheduleDocument]) -> Iterator[None]:
    """What fails in the block is in the way of these, and of no others, but where the store is closed."""
    try:
        yield
    except (StoreClosed, StoreForked):
        raise
    except FAULTS as error:
        faults |= {document.name: error for document in documents}
