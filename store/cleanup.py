"""The retention pass: over every topic whose retention or segment age asks for it, also while it is closed.

    each partition ──┬── nobody has opened it ──> its checkpoints: may anything be to do yet? ── no ──> next one
                     └── open ──> ripe? seal the active segment ──> retention: what the rule lets go, goes
                                  by subscriptions: what they have acked, and their quota ──┘
                              ──> cleaning: segments of which little is left are written anew

A thread of the store does it every `retention_check_interval_ms`, `Store.enforce_retention` does it at once. A
partition that nobody has opened is opened when something may be to do in it, and not before: that is reckoned once,
from its checkpoints, since nothing happens to it as long as it is not open.

*Backlog.* What is due and not acked is measured in records, and in bytes by the mean size of the partition's records.
Beyond its quota either whoever appends is refused, until it is within again, or what has waited longest goes.

*Pace.* The thread lets whoever appends have the disk between the writes of a cleaning. No lock of the store is held
meanwhile, so topics are altered, purged and deleted beside it; who asks for a pass, or for a cleaning, waits for the
one that runs, which hurries on from then.

*Races.* From where the readers are asked until what they leave has gone, the log's lock of letting go is held: a
subscription that is new, a seek, and a commit that goes back wait for it. So each of them finds what it begins with, or
is told that it has gone; nothing goes of what it was given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import (
    AfterlogError,
    BacklogQuotaExceeded,
    ClockBehind,
    PartitionPoisoned,
    StoreClosed,
    TopicDeleted,
)
from afterlog.base.locks import Condition
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import AtTime
from afterlog.index.acked_ranges import RANGE_RECORDS_MIN, AckedRange
from afterlog.log.checkpoints import Checkpoints
from afterlog.log.cleaning import Cleaned
from afterlog.log.cleaning_plan import SLACK_BYTES_MIN
from afterlog.log.held import HeldBytes, held_bytes
from afterlog.log.partition_log import PartitionLog
from afterlog.log.retention import Floor, by_rule_alone, nothing_goes
from afterlog.log.topic_settings import TopicSettings
from afterlog.produce.topic import Topic
from afterlog.store.topics import OpenTopics
from afterlog.subscription.backlog import Backlogs

logger = logging.getLogger("afterlog.store.store")
RESTS_MS_MAX = 86_400_000
"""A partition that holds more than a cleaning would leave it is opened so long after the last record that it got."""
LOOKED_FOR_SHARE = 16
"""What is acked beyond what is not counts where it is one in so many of all records that are held, or more."""
CLEANED_BYTES_PER_S = 16 << 20
"""Of the thread. Larger: disk is freed sooner, appends wait longer."""


class Rest(NamedTuple):
    """What is known of a partition that nobody has opened, for as long as its topic has those settings."""

    settings: TopicSettings
    """The very object: a topic that was altered, or made anew, has another."""
    until_ms: int
    """When to look at it again."""


class Backlog(NamedTuple):
    """Of one partition at one instant."""

    acked: int
    """The delivery offset up to which all is acked by all."""
    records: int
    """Due and not acked by all."""
    size: int
    """Of those, bytes, about."""
    since_ms: int | None
    """When the oldest of them became due; None of none."""


class Cleanup:
    """Of one store. Thread-safe."""

    def __init__(self, topics: OpenTopics, backlogs: Backlogs) -> None:
        self._topics = topics
        self._backlogs = backlogs
        self._rests: dict[tuple[str, int], Rest] = {}
        """Of partitions that nobody has opened."""
        self._lock = threading.Lock()
        """A pass at a time, or a cleaning. Held while one paces itself: never wait for it with the store's lock."""
        self._condition = Condition()
        self._ending = False
        self._askers = set[object]()
        """Who waits for a pass, or is in one, that was asked for."""

    def end(self) -> None:
        """What is being cleaned is given up, and nothing begun. Returns at once."""
        with self._condition:
            self._ending = True
            self._condition.notify_all()

    def run(self, *, raising: bool = False) -> int:
        """Once over all of them; the number of segments that went.

        raising: what fails is raised, and ends the pass; else it is logged, and tried again the next time.
        """
        count = 0
        with self._hurried() if raising else self._lock:
            self._rests = {key: rest for key, rest in self._rests.items() if key[0] in self._topics.by_name}
            for topic in list(self._topics.by_name.values()):
                for number in range(topic.partition_count) if topic.settings.is_cleaned_up else ():
                    try:
                        if not self._may_rest(topic, number):
                            count += self._cleaned(topic, number)[0]
                    except (AfterlogError, OSError) as error:
                        if self._topics.by_name.get(topic.name) is not topic:
                            break  # it is being deleted
                        if raising:
                            raise
                        if not isinstance(error, StoreClosed | PartitionPoisoned):
                            logger.error("%s-%d: nothing is let go: %s", topic.name, number, error)
        return count

    def clean(self, topic: Topic, number: int) -> Cleaned:
        """Free what can be of one partition, whatever the budget. Raises as a pass does."""
        with self._hurried():
            _, done = self._cleaned(topic, number)  # which seals what is ripe
            topic.log(number).merge_buckets()  # of several runs a segment is not cleaned
            return done.plus(self._cleaned(topic, number, thorough=True)[1])

    def held(self, topic: Topic, number: int) -> HeldBytes:
        """What holds the bytes of a partition, by the rules of the pass.

        Raises CorruptFile, StorageError, TopicDeleted.

        One that nobody has opened is judged by its checkpoints: what is due of it, and goes by what its readers have
        acked, is their backlog until a pass has opened it.
        """
        try:
            return self._held(topic, number)
        except (AfterlogError, OSError) as error:
            if self._topics.by_name.get(topic.name) is not topic:
                raise TopicDeleted(f"{topic.name} was deleted meanwhile") from error
            raise

    def _held(self, topic: Topic, number: int) -> HeldBytes:
        log = topic.opened_logs.get(number)
        if log is not None:
            acked = self._backlogs.acked(log, durable=False) if topic.settings.retention_by_subscriptions else None
            return log.held(None if acked is None else self._floor(topic.partition(number), acked))
        known = self._topics.checkpoints_of(topic, number)
        lets_go = nothing_goes if topic.settings.retention_by_subscriptions else by_rule_alone
        return held_bytes(known.sealed, known.recovery.position, topic.settings, self._topics.now_ms(), lets_go)

    def backlog(self, partition: Partition, acked: int | None = None) -> Backlog | None:
        """What its readers have not acked; None where nobody has ever read. Raises CorruptFile.

        acked: the delivery offset up to which all have acked all, where it is known.
        """
        if acked is None:
            acked = self._backlogs.acked(partition.log)
        if acked is None:
            return None
        reading = partition.look()
        acked = max(acked, reading.log_start)
        records = max(reading.high_watermark - acked, 0)
        since_ms = None
        if records:
            columns, _ = partition.columns(acked, 1, 1, reading)
            since_ms = _due_ms(columns) if len(columns) else None
            if since_ms is not None and not partition.log.delayed:
                since_ms = min(since_ms, _appended_by(partition.log, acked))
        return Backlog(acked, records, int(records * _mean_bytes(partition.log)), since_ms)

    def _may_rest(self, topic: Topic, number: int) -> bool:
        """Whether nobody has the partition open, and nothing is to do in it yet."""
        if number in topic.opened_logs:
            return False
        key, settings = (topic.name, number), topic.settings
        rest = self._rests.get(key)
        if rest is None or rest.settings is not settings:
            rest = Rest(settings, rests_until_ms(self._topics.checkpoints_of(topic, number), settings))
            self._rests[key] = rest
        return self._topics.now_ms() < rest.until_ms

    @contextmanager
    def _hurried(self) -> Iterator[None]:
        """For whoever asks for a pass: the one that runs ends sooner, and this one does not pace itself."""
        asker = object()
        try:
            with self._condition:
                self._askers.add(asker)
                self._condition.notify_all()
            with self._lock:
                yield
        finally:
            with self._condition:
                self._askers.discard(asker)

    def _paced(self, size: int) -> None:
        """Behind each write of a cleaning: whoever appends has the disk, and the interpreter, if nobody waits."""
        with self._condition:
            if not self._ending and not self._askers:
                self._topics.clock.wait(self._condition, None, size / CLEANED_BYTES_PER_S)
            if self._ending:
                raise StoreClosed("the store is being closed; a cleaning is given up, and begins anew another time")

    def _cleaned(self, topic: Topic, number: int, *, thorough: bool = False) -> tuple[int, Cleaned]:
        """How many segments went, and what was written anew."""
        self._rests.pop((topic.name, number), None)
        log = topic.log(number)
        beyond = self._acked_beyond(topic, number, thorough=thorough)
        log.weigh(beyond)
        with log.letting_go:
            floor, acks = None, None
            if topic.settings.retention_by_subscriptions:
                acks = self._backlogs.acks(log)
                acked = None if acks is None else acks.mark_delete
                floor = None if acked is None else self._floor(topic.partition(number), acked)
                self._refuse(topic.partition(number), acked)
            if acks is None or topic.settings.remote_storage_enable:  # since a moment ago
                beyond = []
            beyond = [row for row in beyond if acks is not None and acks.holds(range(row.first, row.end))]
            started, before = _log_start(log), _base_offsets(log)
            if log.is_ripe(floor):
                log.roll()
            log.enforce_retention(floor)
            log.begin_cleaning(floor, beyond, thorough=thorough)
        if floor is not None and floor.evicted:
            self._tell(log, floor, started)
        count = len(before - _base_offsets(log))
        return count, log.clean(self._paced, thorough=thorough)

    def _acked_beyond(self, topic: Topic, number: int, *, thorough: bool) -> list[AckedRange]:
        """What all readers have acked beyond what one of them has not, where it is much, and goes by the rule.

        It is looked for, and not held: until it is out of reach a seek may come. Not in a topic that is in object
        storage: of its ranges a fresh machine would know nothing.
        """
        log, settings = topic.log(number), topic.settings
        if not (settings.retention_by_subscriptions and settings.delayed) or settings.remote_storage_enable:
            return []
        acks = self._backlogs.acks(log, durable=False)
        known = log.index.acked
        stretches = [] if acks is None else acks.stretches(RANGE_RECORDS_MIN)
        fresh = [each for each in stretches if not known.covers(each)]
        if sum(map(len, fresh)) < (1 if thorough else max(log.index.records // LOOKED_FOR_SHARE, 1)):
            return []
        try:
            return topic.partition(number).acked_ranges(known.worth_having(fresh), log.rule_upto())
        except ClockBehind:
            return []

    def _floor(self, partition: Partition, acked: int) -> Floor:
        """What its readers leave of it, who have acked so much, and its quota."""
        settings = partition.log.context.settings
        if settings.has_backlog_quota and settings.backlog_quota_policy == "consumer_backlog_eviction":
            backlog = self.backlog(partition, acked)
            assert backlog is not None, "somebody has read it"
            return Floor(backlog.acked, self._evicted(partition, backlog))
        return Floor(acked)

    def _refuse(self, partition: Partition, acked: int | None) -> None:
        """Who appends is refused from now on, where that is the policy and the backlog exceeds its quota."""
        settings, log = partition.log.context.settings, partition.log
        if not settings.has_backlog_quota or settings.backlog_quota_policy != "producer_exception":
            return
        backlog = None if acked is None else self.backlog(partition, acked)
        excess = None if backlog is None else excess_of(backlog, settings, log.context.now_ms())
        log.refused = None if excess is None else lambda: self._check(partition)

    def _check(self, partition: Partition) -> None:
        """For each append since the backlog was seen to be too large: raises where it is still."""
        backlog, log = self.backlog(partition), partition.log
        excess = None if backlog is None else excess_of(backlog, log.context.settings, log.context.now_ms())
        if excess is not None:
            raise BacklogQuotaExceeded(f"{log.path.name}: {excess}; let its readers ack, or raise the quota")
        log.refused = None

    def _evicted(self, partition: Partition, backlog: Backlog) -> int:
        """The delivery offset up to which the backlog has to go; 0 where it is within its quota."""
        settings, now_ms, upto = partition.log.context.settings, partition.log.context.now_ms(), 0
        if settings.backlog_quota_bytes is not None and backlog.size > settings.backlog_quota_bytes:
            kept = settings.backlog_quota_bytes / max(_mean_bytes(partition.log), 1)
            upto = backlog.acked + backlog.records - int(kept)
        quota_ms = settings.backlog_quota_ms
        if quota_ms is not None and backlog.since_ms is not None and backlog.since_ms < now_ms - quota_ms:
            upto = max(upto, partition.beginning(AtTime(now_ms - quota_ms)))
            if not partition.log.delayed:  # a record that tells of a time to come keeps none of those behind it
                upto = max(upto, _sealed_before(partition.log, now_ms - quota_ms))
        return upto

    def _tell(self, log: PartitionLog, floor: Floor, started: int) -> None:
        """How many were evicted that somebody had not acked, at most: of those behind it some may be acked."""
        evicted = _log_start(log) - max(floor.acked, started)
        if evicted > 0:
            log.evicted_records += evicted
            logger.warning("%s: %d records went that were not acked: the backlog's quota", log.path, evicted)


def rests_until_ms(known: Checkpoints, settings: TopicSettings) -> int:
    """When something may be to do in a partition of which that is known, and to which nothing happens; early at most.

    When the last of what the active segment holds came is known, and nothing of the sealed ones came later.
    """
    kept_ms = 0 if settings.retention_bytes is not None else settings.retention_ms or 0
    last_ms = known.recovery.stamp_ms
    times = [
        (mark.max_deliver_after if settings.delayed else min(mark.counted_from_ms, last_ms)) + kept_ms
        for mark in known.sealed
    ]
    times = times if settings.has_retention else []
    if times and settings.delayed and sum(mark.log_bytes for mark in known.sealed) > SLACK_BYTES_MIN:
        times.append(known.recovery.stamp_ms + kept_ms + RESTS_MS_MAX)  # by then some may have to be cleaned
    if known.recovery.position:
        ages_ms = [kept_ms] if settings.has_retention else []
        if settings.segment_age_ms is not None:
            ages_ms.append(settings.segment_age_ms)
        times.append(known.recovery.stamp_ms + min(ages_ms))
    return min(times, default=INT64_MAX)


def excess_of(backlog: Backlog, settings: TopicSettings, now_ms: int) -> str | None:
    """In what the backlog exceeds its quota; None where it does not."""
    bytes_max, ms_max = settings.backlog_quota_bytes, settings.backlog_quota_ms
    if bytes_max is not None and backlog.size > bytes_max:
        return f"{backlog.records} records, about {backlog.size} bytes, are not acked, above its quota of {bytes_max}"
    if ms_max is not None and backlog.since_ms is not None and now_ms - backlog.since_ms > ms_max:
        return f"the oldest that is not acked has been due for {now_ms - backlog.since_ms} ms, its quota is {ms_max}"
    return None


def _due_ms(columns: Columns) -> int:
    """Since when the first of them has been due; in a FIFO topic since when it is there, as far as it says so."""
    stamps = [int(column[0]) for column in (columns.due, columns.broker_timestamp, columns.timestamp)]
    return next((ms for ms in stamps if ms > 0), 0)


def _appended_by(log: PartitionLog, offset: int) -> int:
    """When the record of an offset was in a FIFO log at the latest, whatever it tells of itself."""
    told = (segment.mark.counted_from_ms for segment in log.version.sealed if offset < segment.end_offset)
    return min(next(told, INT64_MAX), log.context.now_ms())


def _sealed_before(log: PartitionLog, ms: int) -> int:
    """The offset up to which all of a FIFO log was appended before an instant, as far as its sealed segments tell."""
    older = takewhile(lambda segment: segment.mark.counted_from_ms < ms, log.version.sealed)
    return max((segment.end_offset for segment in older), default=0)


def _base_offsets(log: PartitionLog) -> set[int]:
    """Of its segments, sealed or not: what is no longer among them went, by a roll or behind it."""
    return {segment.base_offset for segment in log.version.segments}


def _log_start(log: PartitionLog) -> int:
    """Where delivery order begins: in a FIFO topic it is append order, of which the checkpoints tell nothing more."""
    return log.log_start.delivery_offset if log.delayed else log.log_start_offset


def _mean_bytes(log: PartitionLog) -> float:
    """Of a record, in all segments together."""
    version = log.version
    size = version.written.position + sum(segment.size for segment in version.sealed)
    records = version.written.offset - version.active.base_offset
    records += sum(segment.mark.records for segment in version.sealed)
    return size / records if records else 0.0
