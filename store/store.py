"""A store: one folder, its lock, its topics. The front door of the embedded engine.

open ──> lock ──> topics document ──> recover what is not at rest ──> appends, fetches ──> close: checkpoint, unlock
                                      each other partition at its first use ──^
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack
from weakref import WeakValueDictionary

import numpy as np

from afterlog._version import __version__
from afterlog.base.arguments import KEEP, flag, spelled_out, whole
from afterlog.base.clock import Clock, JumpGuard, SystemClock
from afterlog.base.compiled import kernels
from afterlog.base.config import Config
from afterlog.base.environment import random_generator
from afterlog.base.errors import (
    GroupBusy,
    InvalidArgument,
    InvalidRecord,
    InvalidSubscription,
    InvalidTopic,
    NameTaken,
    RemoteRefused,
    StoreClosed,
    TopicDeleted,
    UnknownPartition,
    UnknownTopic,
    WrongType,
)
from afterlog.base.files import PROCESS, Files, OsFiles, OwnFiles
from afterlog.base.kept_config import keep_config, kept_config
from afterlog.base.names import ADOPTED, ADOPTION, LOCK, SCHEDULES, NamedList, check_name, parse_backup_folder
from afterlog.fetch.positions import EARLIEST, LATEST, AtTime, Position
from afterlog.fetch.record_id import RecordId
from afterlog.log.background import Background
from afterlog.log.cancel_result import CancelResult
from afterlog.log.cancellation import Int8Array
from afterlog.log.checkpointer import DueCheckpoints, checkpoint_behind, merge_crowded
from afterlog.log.commit import Commit, sync_behind
from afterlog.log.partition_log import PartitionLog
from afterlog.log.store_frontier import StoreFrontier
from afterlog.log.topic_settings import TopicChanges, TopicSettings, asked_settings
from afterlog.produce.topic import Topic
from afterlog.produce.unique_asked import claim, claims, looked_up, unasked
from afterlog.records.batch import Headers
from afterlog.records.columns import Int64Array, Ragged
from afterlog.records.encode import RecordColumns, offset_column, ragged, same_headers, timestamp_column
from afterlog.records.expiry import expiring
from afterlog.records.single import SingleRecord, byte_string, header_section
from afterlog.records.time_columns import DelayColumn, InstantColumn, asked_column
from afterlog.records.times import Delay, Instant, asked_ms, check_timestamps, instant_ms
from afterlog.store.deletions import Deletions
from afterlog.store.room import StoreRoom
from afterlog.store.topics import OpenTopics
from afterlog.subscription.open_subscriptions import OpenSubscriptions, check_no_group, check_no_subscription
from afterlog.subscription.reader_settings import ReaderOptions, ReaderSettings
from afterlog.surface import StoreSurface

# Who reads, has subscriptions, adopts, or has object storage imports what does that where it begins: what opens a store
# and sends is a third of it all, and a program that only sends should not wait for the rest (tests/test_package.py).
if TYPE_CHECKING:
    from os import PathLike

    from afterlog.fetch.consumer import Consumer
    from afterlog.fetch.message import ScheduledRecord, StoredRecord
    from afterlog.fetch.partition import Partition
    from afterlog.log.held import HeldBytes
    from afterlog.produce.adoption import Adopted, Adoptions
    from afterlog.produce.prepared import Prepared
    from afterlog.produce.producer import Producer
    from afterlog.records.producer_sequence import ProducerSequence
    from afterlog.records.unique_key import OnConflict
    from afterlog.store.administration import Administration
    from afterlog.store.backup import Backup
    from afterlog.store.cleanup import Cleanup
    from afterlog.store.schedule_document import Schedule
    from afterlog.store.schedules import Schedules
    from afterlog.subscription.answers import RedriveResult
    from afterlog.subscription.leased_record import LeasedRecord
    from afterlog.subscription.partition_subscription import PartitionSubscription
    from afterlog.subscription.policy import Random
    from afterlog.subscription.redrive import DeadLetterMessage
    from afterlog.subscription.subscription import Subscription
    from afterlog.tier.offload import Offloaded
    from afterlog.tier.remote_store import RemoteStore
    from afterlog.tier.tiering import Tiering

logger = logging.getLogger("afterlog.store.store")


class Store(StoreSurface):
    """An open store. `afterlog.open` makes it; use it as a context manager, or `close` it. Thread-safe.

    What its methods do, answer and raise is said at `StoreSurface`.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        clock: Clock,
        files: Files,
        remote: RemoteStore | None = None,
        *,
        background: bool = True,
        partial: bool = False,
        serves: bool = False,
    ) -> None:
        """`background`: checkpoint, merge runs and upload in threads; else only `merge_buckets` of a log, `offload`.

        `partial`: restore what object storage has also where segments are missing between others. `serves`: who finds
        it locked is told that it is to be served.
        """
        self.path = path
        self.config = config
        self.clock = clock
        self._files = files
        self._guard = JumpGuard(clock, config.clock_jump_limit_ms)
        self._lock = threading.RLock()
        self._consumers: WeakValueDictionary[tuple[str, int, str], Consumer] = WeakValueDictionary()
        self._subscriptions = OpenSubscriptions(
            self._made_topic, clock=clock, usable=self._usable, background=background
        )
        self._random: Random | None = None
        self._owner = PROCESS.id
        self._closed = False
        self._closing = threading.RLock()
        self._before_close: list[Callable[[], object]] = []
        self._backing_up = threading.Lock()
        """Held while a backup is made: nothing is deleted meanwhile. Taken before the store's own."""
        self._is_recovered = False
        self._is_held = True
        """Whether the folder is, and all that is open in it."""
        self._sync: Background | None = None
        self._merger: Background | None = None
        self._checkpointer: Background | None = None
        self._due_checkpoints: DueCheckpoints | None = None
        self._cleanup: Cleanup | None = None
        self._cleaner: Background | None = None
        self._schedules: Schedules | None = None
        self._scheduler: Background | None = None
        self._works_behind = background
        if background:
            self._due_checkpoints = DueCheckpoints()
            weakref.finalize(self, self._due_checkpoints.end).atexit = False
            self._merger = Background("afterlog-merge", lambda: merge_crowded(self._topics.logs()))
        self.tiering: Tiering | None = None
        """Object storage, where the store was opened with it."""
        if parse_backup_folder(path.parent.name) is not None:
            from afterlog.store.backup import check_no_backup

            check_no_backup(files, path)
        _make_folders(files, path)
        self._folder_lock = files.lock(path / LOCK)
        try:
            if serves:
                self._folder_lock.serves()
            files = self._files = OwnFiles(files, self._folder_lock)
            if remote is not None:
                from afterlog.tier.tiering import Tiering

                self.tiering = Tiering(remote, files, path, config, clock, background=background, partial=partial)
            frontier = StoreFrontier(files, path, config.frontier_lease_ms)
            self._topics = OpenTopics(
                files=files,
                path=path,
                config=config,
                clock=clock,
                now_ms=self._guard.now_ms,
                leapt_ms=self._leapt_ms,
                on_merge_needed=self._crowded,
                checkpoint_queue=None if self._due_checkpoints is None else self._due_checkpoints.add,
                usable=self._usable,
                room=StoreRoom(files, path, config, clock),
                frontier=frontier,
                deletions=Deletions(files=files, path=path, frontier=frontier, tiering=self.tiering),
                tiering=self.tiering,
            )
        except BaseException:
            self._folder_lock.release()
            raise
        try:
            self._topics.recover()
            self._is_recovered = True
            self._adoptions: Adoptions | None = None
            if any(files.exists(path / name) for name in (ADOPTED, ADOPTION)):
                self._recovered_adoptions()
            if files.exists(path / SCHEDULES):
                self._scheduling()
            if config.durability.kind == "interval":
                self._sync = Background.weakly(
                    "afterlog-sync",
                    self,
                    lambda store: sync_behind(store._commits()),
                    clock=clock,
                    interval_ms=config.durability.interval_ms,
                )
            if background and config.checkpoint_ms is not None:
                self._checkpointer = Background.weakly(
                    "afterlog-checkpoint",
                    self._topics,
                    lambda topics: checkpoint_behind(topics.logs()),
                    clock=clock,
                    interval_ms=config.checkpoint_ms,
                )
            self._keep_clean(topic.settings for topic in self._topics.by_name.values())
            if logger.isEnabledFor(logging.INFO):
                self._tell_opened()
        except BaseException:
            self._let_go()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Topics.

    def create_topic(
        self, name: str, partitions: int = 1, delayed: bool = True, **settings: Unpack[TopicChanges]
    ) -> Topic:
        [topic] = self.create_topics([name], partitions, delayed, **settings)
        return topic

    def create_topics(
        self, names: Iterable[str], partitions: int = 1, delayed: bool = True, **settings: Unpack[TopicChanges]
    ) -> list[Topic]:
        chosen = [check_name(name) for name in _listed(names)]
        asked = asked_settings(partitions, delayed, settings)
        self._usable()
        with self._lock:
            self._usable()
            self._topics.settle()
            made = self._topics.create(chosen, asked)
            self._keep_clean([asked])
            return made

    def __repr__(self) -> str:
        return f"<Store at {self.path}{', closed' if self._closed else ''}>"

    def topic(self, name: str) -> Topic:
        self._usable()
        try:
            return self._topics.by_name[name]
        except (KeyError, TypeError, ValueError):  # what has no hash names no topic
            if self._settled() and isinstance(name, str) and name in self._topics.by_name:
                return self._topics.by_name[name]
            raise UnknownTopic(f"no topic {name!r} here; create it with store.create_topic({name!r})") from None

    def topics(self) -> NamedList[Topic]:
        self._usable()
        self._settled()
        return NamedList(topic for _, topic in sorted(self._topics.by_name.items()))

    def _settled(self) -> bool:
        """Where a deletion was interrupted, and nobody is at one: what is on disk says whether it happened."""
        if not self._topics.leaving or not self._lock.acquire(blocking=False):
            return False
        try:
            self._topics.settle()
        finally:
            self._lock.release()
        return True

    def alter_topic(self, name: str, *, partitions: int | None = None, **settings: Unpack[TopicChanges]) -> Topic:
        self._usable()
        if partitions is not None:
            partitions = whole("partitions", partitions, 1)
        topic = self._administration().alter(name, partitions, settings)
        self._keep_clean([topic.settings])
        return topic

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        self._usable()
        self._administration().delete(name, force=flag("force", force))

    def purge(
        self,
        topic: str,
        upto: Position = LATEST,
        *,
        pending: bool = False,
        partition: int | None = None,
        force: bool = False,
    ) -> int:
        self._usable()
        return self._administration().purge(
            topic, upto, pending=flag("pending", pending), partition=partition, force=flag("force", force)
        )

    def clean(self, topic: str, *, partition: int | None = None) -> int:
        self._usable()
        return self._administration().clean(topic, partition)

    # Sending.

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        delay: Delay | None = None,
        deliver_after: Instant | None = None,
        partition: int | None = None,
        check_instants: bool | None = None,
        expires_after: Delay | None = None,
        priority: int | None = None,
        unique_key: bytes | None = None,
        on_conflict: OnConflict = "raise",
        sequence: ProducerSequence | None = None,
    ) -> RecordId:
        target = self.topic(topic)
        now_ms = target.log_now_ms(self._guard.now_ms())
        check = target.checks_instants(check_instants)
        asked = None if unasked(unique_key, on_conflict) else claim(unique_key, on_conflict)
        by = _key(key) if asked is None else asked[0]
        if partition is None:
            number = target.partition_of(by, priority)
        else:
            number = target.checked_partition(partition, priority)
        record = SingleRecord(
            byte_string(value),
            byte_string(key, "keys"),
            header_section(headers if expires_after is None else expiring(headers, expires_after)),
            now_ms,
            asked_ms(now_ms, delay, deliver_after, check_instants=check),
        )
        if sequence is not None:
            _check_numbered(sequence, partition, asked)
            return target.record_id(number, target.append_one(number, record, sequence))
        if asked is not None:
            return target.record_id(number, target.append_one_unique(number, record, *asked))
        return target.record_id(number, target.append_one(number, record))

    def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Headers = (),
        delay: DelayColumn | None = None,
        deliver_after: InstantColumn | None = None,
        timestamps: Int64Array | None = None,
        partition: int | None = None,
        check_instants: bool | None = None,
        expires_after: Delay | None = None,
        priority: int | None = None,
        unique_keys: Any = None,
        on_conflict: OnConflict = "raise",
        sequence: ProducerSequence | None = None,
    ) -> Int64Array:
        target = self.topic(topic)
        now_ms = target.log_now_ms(self._guard.now_ms())
        check = target.checks_instants(check_instants)
        if expires_after is not None:
            headers = expiring(headers, expires_after)
        value_column, value_valid = ragged(values)
        count = len(value_column[0]) - 1
        key_column, key_valid = (None, None) if keys is None else ragged(keys, "keys")
        if key_column is not None and len(key_column[0]) - 1 != count:
            raise InvalidRecord(f"{count} values but {len(key_column[0]) - 1} keys")
        unique = None
        if not unasked(unique_keys, on_conflict):
            unique, on_conflict = claims(unique_keys, on_conflict)
        columns = RecordColumns(
            values=value_column,
            value_valid=value_valid,
            keys=key_column,
            key_valid=key_valid,
            headers=same_headers(headers, count) if unique is None else _sections(headers, unique, count),
            timestamps=np.full(count, now_ms) if timestamps is None else _told(timestamps, count, now_ms, check),
            deliver_after=asked_column(count, now_ms, delay, deliver_after, check_instants=check),
        )
        if sequence is not None:
            _check_numbered(sequence, partition, unique)
        if count == 0:
            return np.empty(0, np.int64)
        number = None if partition is None else target.checked_partition(partition, priority)
        if unique is not None:
            return target.append_unique(columns, unique, on_conflict, number, priority)
        if number is None and keys is not None and target.partition_count > 1:
            return target.append_by_key(columns, priority)
        number = target.partition_of(None, priority) if number is None else number
        return target.append(number, columns, sequence=sequence)

    def producer(
        self,
        topic: str,
        *,
        linger_ms: int | None = None,
        batch_bytes: int | None = None,
        idempotent: bool = False,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> Producer[RecordId]:
        from afterlog.produce.numbering import numbering_of
        from afterlog.produce.producer import Producer

        target = self.topic(topic)
        return Producer(
            target,
            clock=self.clock,
            now_ms=lambda: target.log_now_ms(self._guard.now_ms()),
            linger_ms=self.config.linger_ms if linger_ms is None else whole("linger_ms", linger_ms),
            batch_bytes=self.config.batch_bytes if batch_bytes is None else whole("batch_bytes", batch_bytes, 1),
            batch_bytes_max=self.config.batch_bytes_max,
            numbering=numbering_of(target, idempotent, producer_id, epoch),
        )

    # What is scheduled.

    def cancel(self, record: RecordId | str) -> CancelResult:
        record = RecordId.of(record)
        return CancelResult(int(self.cancel_many(record.topic, record.partition, np.array([record.offset]))[0]))

    def cancel_many(self, topic: str, partition: int, offsets: Int64Array) -> Int8Array:
        return self.topic(topic).partition(partition).cancel(offset_column(offsets))

    def reschedule(
        self, record: RecordId | str, *, delay: Delay | None = None, deliver_after: Instant | None = None
    ) -> RecordId:
        record = RecordId.of(record)
        target = self.topic(record.topic)
        now_ms = target.log_now_ms(self._guard.now_ms())
        asked = asked_ms(now_ms, delay, deliver_after, check_instants=target.check_instants)
        return target.record_id(record.partition, target.partition(record.partition).reschedule(record.offset, asked))

    def pending(
        self,
        topic: str,
        *,
        limit: int = 100,
        key: bytes | None = None,
        partition: int | None = None,
        after: Instant | None = None,
        before: Instant | None = None,
    ) -> list[ScheduledRecord]:
        target = self.topic(topic)
        numbers = range(target.partition_count) if partition is None else [partition]
        span = None if after is None else instant_ms(after), None if before is None else instant_ms(before)
        return target.pending(whole("limit", limit), _key(key), numbers, *span)

    def get(self, record: RecordId | str) -> StoredRecord | None:
        record = RecordId.of(record)
        return self.topic(record.topic).partition(record.partition).stored(record.offset)

    def get_unique(self, topic: str, unique_key: bytes, *, partition: int | None = None) -> StoredRecord | None:
        target, key = self.topic(topic), looked_up(unique_key)
        numbers = target.partitions_for(key) if partition is None else [target.checked_partition(partition)]
        return target.holder(key, numbers)

    def cancel_unique(self, topic: str, unique_key: bytes, *, partition: int | None = None) -> CancelResult:
        while True:
            found = self.get_unique(topic, unique_key, partition=partition)
            answer = CancelResult.UNKNOWN if found is None else self.cancel(found.id)
            if answer != CancelResult.ALREADY_CANCELLED:  # else somebody did, and another may hold the key by now
                return answer

    def schedule(
        self,
        topic: str,
        *,
        name: str,
        cron: str | None = None,
        timezone: str = "UTC",
        every: timedelta | None = None,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        missed: Literal["skip", "one", "all"] = "one",
    ) -> Schedule:
        self._usable()
        return self._scheduling().add(
            topic, name, cron=cron, timezone=timezone, every=every, value=value, key=key, headers=headers,
            partition=partition, missed=missed,
        )  # fmt: skip

    def schedules(self, topic: str | None = None) -> list[Schedule]:
        self._usable()
        return self._scheduling().all(None if topic is None else self.topic(topic).name)

    def change_schedule(
        self,
        name: str,
        *,
        cron: str = KEEP,
        timezone: str = KEEP,
        every: timedelta = KEEP,
        value: bytes | None = KEEP,
        key: bytes | None = KEEP,
        headers: Headers = KEEP,
        missed: Literal["skip", "one", "all"] = KEEP,
    ) -> Schedule:
        self._usable()
        return self._scheduling().change(
            name, cron=cron, timezone=timezone, every=every, value=value, key=key, headers=headers, missed=missed
        )

    def pause_schedule(self, name: str) -> Schedule:
        self._usable()
        return self._scheduling().pause(name)

    def resume_schedule(self, name: str) -> Schedule:
        self._usable()
        return self._scheduling().resume(name)

    def send_schedule(self, name: str) -> RecordId:
        self._usable()
        return self._scheduling().send_now(name)

    def remove_schedule(self, name: str) -> None:
        self._usable()
        self._scheduling().remove(name)

    def run_schedules(self) -> int:
        self._usable()
        return self._scheduling().run(raising=True)

    def adopt(self, prepared: Prepared | None = None) -> list[Adopted]:
        """Append what jobs prepared beside the store and handed over, each whole or not at all, and once.

        For Spark jobs that write with adopt=false, since the store is open here (docs/spark.md); a commit that opens
        it by itself hands in what it `prepared`. What came of each. Raises CorruptFile, PartitionPoisoned, and as
        `send` does.
        """
        from afterlog.produce.prepared import Prepared

        self._usable()
        if not isinstance(prepared, Prepared | None):
            raise WrongType(
                f"adopt takes what a job has Prepared, or nothing for what was handed over: {prepared!r:.100}"
            )
        return self._recovered_adoptions().adopt(prepared)

    # Reading.

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        partitions: Sequence[int] | None = None,
        start: Position = EARLIEST,
        auto_commit: bool = True,
    ) -> Consumer:
        from afterlog.fetch.consumer import Consumer
        from afterlog.fetch.group import GroupPosition

        target = self.topic(topic)
        check_name(group, "group")
        chosen = _chosen(target, partitions)
        with self._lock:
            self._check_there(target, group)
            check_no_subscription(target.partitions, group)
            taken = [partition.number for partition in chosen if self._reads(topic, partition.number, group)]
            if taken:
                raise GroupBusy(f"group {group!r} reads partition {taken[0]} of {topic} in another open consumer")
            consumer = Consumer(
                topic,
                chosen,
                [GroupPosition(self._files, partition.log.context.folder, group) for partition in chosen],
                clock=self.clock,
                start=start,
                auto_commit=flag("auto_commit", auto_commit),
            )
            self._consumers.update({(topic, partition.number, group): consumer for partition in chosen})
            return consumer

    @spelled_out(ReaderOptions, ReaderSettings)
    def subscribe(self, topic: str, name: str, **options: Unpack[ReaderOptions]) -> Subscription:
        target = self.topic(topic)
        check_name(name, "subscription")
        asked = ReaderSettings.of(options)
        settings = replace(
            asked,
            random=self._jitter() if asked.random is None else asked.random,
            durable_leases=asked.durable_leases is True,
        )
        if settings.dead_letter == topic:
            raise InvalidSubscription("the dead letters of a topic need another topic")
        if settings.dead_letter is not None:
            self._made_topic(settings.dead_letter).check_own()
        chosen = _chosen(target, settings.partitions)
        with self._lock:
            self._usable()
            self._check_there(target, name)
            if any(self._reads(topic, partition.number, name) for partition in target.partitions):
                raise NameTaken(f"{name!r} is a consumer group that reads {topic}; take another name")
            check_no_group(target.partitions, name)
            return self._subscriptions.subscribe(topic, name, chosen, settings)

    def subscriptions(self, topic: str) -> list[str]:
        self._usable()
        return self._administration().subscription_names(topic)

    def replicated_subscriptions(self, topic: str) -> list[str]:
        """The names of those that other clusters have, too. Raises UnknownTopic."""
        self._usable()
        return self._administration().replicated_names(topic)

    def newly_replicated(self) -> list[tuple[str, str]]:
        """(topic, name) of those that somebody has said it of since the store was opened. For who replicates them."""
        self._usable()
        return sorted(self._subscriptions.replicated)

    def groups(self, topic: str) -> list[str]:
        self._usable()
        return self._administration().groups(topic)

    def leased(self, topic: str, subscription: str, *, limit: int = 100) -> list[LeasedRecord]:
        self._usable()
        return self._administration().leased(topic, subscription, whole("limit", limit))

    def pause(self, topic: str, subscription: str | None = None) -> None:
        self._usable()
        self._administration().pause(topic, subscription, paused=True)

    def resume(self, topic: str, subscription: str | None = None) -> None:
        self._usable()
        self._administration().pause(topic, subscription, paused=False)

    def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        self._usable()
        self._administration().delete_subscription(topic, name, force=flag("force", force))

    def delete_group(self, topic: str, group: str, *, force: bool = False) -> None:
        self._usable()
        self._administration().delete_group(topic, group, force=flag("force", force))

    def reset_subscription(self, topic: str, name: str, position: Position | datetime, *, delay_ms: int = 0) -> None:
        self._usable()
        self._administration().reset_subscription(topic, name, _named(position), delay_ms=delay_ms)

    def reset_group(self, topic: str, group: str, position: Position | datetime) -> None:
        self._usable()
        self._administration().reset_group(topic, group, _named(position))

    def dead_letters(
        self, topic: str, *, limit: int = 100, subscription: str | None = None, reason: str | None = None
    ) -> list[DeadLetterMessage]:
        from afterlog.subscription import redrive
        from afterlog.subscription.chosen_letters import ChosenLetters

        partitions = self.topic(topic).partitions
        chosen = ChosenLetters.of(topic, None, subscription, reason)
        return redrive.dead_letters(partitions, list(self._subscriptions), whole("limit", limit), chosen)

    def redrive(
        self,
        topic: str,
        *,
        limit: int | None = None,
        target: str | None = None,
        records: Sequence[RecordId | str] | None = None,
        subscription: str | None = None,
        reason: str | None = None,
        value: bytes | None = KEEP,
        rate: float | None = None,
    ) -> RedriveResult:
        from afterlog.subscription import redrive
        from afterlog.subscription.chosen_letters import ChosenLetters

        chosen = ChosenLetters.of(topic, records, subscription, reason)
        to = None if target is None else self._redrive_target(topic, target)
        how = redrive.SentBack(
            target=to, value=value if value is KEEP else byte_string(value, "value"), rate=rate, now_ms=self.now_ms()
        )
        with self.subscribe(topic, redrive.SUBSCRIPTION) as reader:
            return redrive.redrive(reader, self.topic, None if limit is None else whole("limit", limit), chosen, how)

    def discard_dead_letters(
        self,
        topic: str,
        *,
        limit: int | None = None,
        records: Sequence[RecordId | str] | None = None,
        subscription: str | None = None,
        reason: str | None = None,
    ) -> int:
        from afterlog.subscription import redrive
        from afterlog.subscription.chosen_letters import ChosenLetters

        chosen = ChosenLetters.of(topic, records, subscription, reason)
        with self.subscribe(topic, redrive.SUBSCRIPTION) as reader:
            return redrive.discard(reader, None if limit is None else whole("limit", limit), chosen)

    def _redrive_target(self, topic: str, target: str) -> Topic:
        if isinstance(target, str) and target == topic:
            raise InvalidTopic(f"{topic} is where the dead letters are: name another target")
        return self.topic(target)

    def open_subscriptions(self) -> list[PartitionSubscription]:
        """Each partition of each subscription that has a reader: what all its readers share."""
        return list(self._subscriptions)

    # Keeping.

    def sync(self) -> None:
        self._usable()
        for commit in self._commits():
            # By another thread since they were asked for: a subscription that its last reader closes is durable.
            with contextlib.suppress(TopicDeleted, StoreClosed):
                commit.sync()
        self._usable()

    def enforce_retention(self) -> int:
        self._usable()
        return self._look_after(raising=True)

    def held_bytes(self, topic: str, partition: int = 0) -> HeldBytes:
        target = self.topic(topic)
        return self._cleaning_up().held(target, target.checked_partition(partition))

    def backup(self, dest: str | PathLike[str]) -> Backup:
        from afterlog.store.backup import Backups
        from afterlog.store.store_image import StoreImage

        self._usable()
        try:
            folder = Path(dest).absolute()
        except TypeError as error:
            raise WrongType(f"dest must name a folder, as text or pathlib.Path: {error}") from None
        image = StoreImage(
            files=self._files,
            path=self.path,
            topics=self._topics,
            lock=self._lock,
            documents=lambda: (self._scheduling().lock, self._recovered_adoptions().lock),
            usable=self._usable,
        )
        with self._backing_up:
            return Backups(image=image, now_ms=self.clock.now_ms).make(folder)

    def offload(self, *, roll: bool = False) -> dict[str, Offloaded]:
        self._usable()
        if self.tiering is None:
            raise RemoteRefused(
                "opened without object storage: afterlog.open(path, remote=…), afterlog serve --remote URL",
                path=self.path,
            )
        return self.tiering.offload(roll=flag("roll", roll))

    def confirm_clock(self) -> None:
        self._guard.confirm()
        for log in self._topics.logs():
            log.versions.notifier.notify()

    def now_ms(self) -> int:
        return self._guard.now_ms()

    def _leapt_ms(self) -> int:
        return self._guard.leapt_ms

    @property
    def clock_jumps(self) -> int:
        """Forward jumps of the wall clock seen since the store was opened."""
        return self._guard.jumps

    @property
    def cut_bytes(self) -> dict[tuple[str, int], int]:
        """Torn tails that recovery cut when the store was opened: bytes by (topic, partition).

        What is opened later has none: all that a crash left behind is recovered when the store is opened.
        """
        return {
            (topic.name, number): log.cut_bytes
            for topic in list(self._topics.used.values())
            for number, log in topic.opened_logs.items()
            if log.cut_bytes
        }

    def check(self) -> None:
        """Prove the invariants of every partition. Raises CorruptFile where one cannot be opened."""
        for topic in self.topics():
            for partition in topic.partitions:
                partition.check()
        self._subscriptions.check()

    def close(self) -> None:
        """Make everything durable and let the folder go. In a forked child it only forgets.

        Where it was interrupted, another call ends it.
        """
        if PROCESS.id != self._owner:
            self._closed = True
            return
        with self._closing:
            while self._before_close:
                self._before_close[-1]()
                self._before_close.pop()
        with self._lock:
            self._closed = True
        with self._closing:
            if self._is_held:
                self._let_go()
                self._is_held = False

    def before_close(self, call: Callable[[], object]) -> None:
        """Something that uses the store has to end first: `call` waits until it has."""
        self._before_close.append(call)

    # Inside.

    def _tell_opened(self) -> None:
        """To the log: what it is that was opened, and what recovery found."""
        cut = ", ".join(f"{name}-{number} {count:,}" for (name, number), count in self.cut_bytes.items())
        logger.info(
            "%s: opened by afterlog %s, %s, durability %s; topics: %d, partitions recovered: %d, bytes cut: %s",
            self.path, __version__, kernels(), self.config.durability, len(self._topics.by_name),
            sum(1 for _ in self._topics.logs()), cut or "none",
        )  # fmt: skip

    def _let_go(self) -> None:
        if self._cleanup is not None:
            self._cleanup.end()
        for background in (self._sync, self._checkpointer, self._due_checkpoints, self._cleaner, self._scheduler):
            if background is not None:
                background.stop()
        try:
            with contextlib.ExitStack() as stack:
                if self._is_recovered:  # else it is not known which partitions there are
                    stack.callback(self._topics.end_frontier)  # last of all
                for log in self._topics.last_logs():
                    stack.callback(log.close)
                stack.callback(self._subscriptions.close)  # first of all
        finally:
            if self._merger is not None:
                self._merger.stop()
            if self.tiering is not None:
                self.tiering.close()
            self._folder_lock.release()

    def _reads(self, topic: str, partition: int, group: str) -> bool:
        """Whether an open consumer of the group reads the partition. One that nobody holds any more does not."""
        consumer = self._consumers.get((topic, partition, group))
        return consumer is not None and consumer.is_reading

    def _log_of(self, topic: str, partition: int) -> PartitionLog:
        return self.topic(topic).log(partition)

    def _recovered_adoptions(self) -> Adoptions:
        """Made when the store is opened, where a job may have left something, or with the first use."""
        from afterlog.produce.adoption import Adoptions

        with self._lock:
            if self._adoptions is None:
                adoptions = Adoptions(self._files, self.path, self._log_of, self._guard.now_ms)
                adoptions.recover()
                self._adoptions = adoptions
            return self._adoptions

    def _scheduling(self) -> Schedules:
        """Made when the store is opened, where there are any, or with the first use."""
        from afterlog.store.schedules import Schedules

        with self._lock:
            if self._schedules is None:
                schedules = Schedules(self._files, self.path, self.topic, self._guard.now_ms, self._wake_scheduler)
                schedules.settle()
                self._schedules = schedules
                if schedules.left_ms() is not None:
                    self._wake_scheduler()
            return self._schedules

    def _wake_scheduler(self) -> None:
        """There is a schedule, or another. The first time a thread begins."""
        from afterlog.store.schedules import Schedules

        with self._lock:
            if self._scheduler is None and self._schedules is not None and self._works_behind and not self._closed:
                self._scheduler = Background.weakly(
                    "afterlog-schedules", self._schedules, Schedules.run, clock=self.clock, left_ms=Schedules.left_ms
                )
        if self._scheduler is not None:
            self._scheduler.wake()

    def _keep_clean(self, settings: Iterable[TopicSettings]) -> None:
        """Where one of these topics needs it: a thread looks after it, and all others, from now on."""
        interval_ms = self.config.retention_check_interval_ms
        if not self._works_behind or self._cleaner is not None or interval_ms is None:
            return
        if any(each.is_looked_after for each in settings):
            self._cleaner = Background.weakly(
                "afterlog-retention",
                self,
                lambda store: store._look_after(raising=False),
                clock=self.clock,
                interval_ms=interval_ms,
            )

    def _look_after(self, *, raising: bool) -> int:
        """A pass: subscriptions that have expired go first, for they may hold what retention lets go."""
        self._administration().expire_subscriptions(raising=raising)
        return self._cleaning_up().run(raising=raising)

    def _cleaning_up(self) -> Cleanup:
        """Made with the first use: who only sends imports nothing that reads."""
        from afterlog.store.cleanup import Cleanup
        from afterlog.subscription.backlog import Backlogs

        with self._lock:
            if self._cleanup is None:
                self._cleanup = Cleanup(self._topics, Backlogs(self._subscriptions.shared))
            return self._cleanup

    def _administration(self) -> Administration:
        from afterlog.store.administration import Administration

        return Administration(
            files=self._files,
            topics=self._topics,
            topic_of=self.topic,
            consumers=self._consumers,
            subscriptions=self._subscriptions,
            subscribe=self.subscribe,
            backing_up=self._backing_up,
            lock=self._lock,
            schedules=self._scheduling,
            adoptions=self._recovered_adoptions,
            cleanup=self._cleaning_up,
        )

    def _check_there(self, topic: Topic, reader: str) -> None:
        """Under the lock: raises where the topic was deleted meanwhile. What is left of an earlier reader goes."""
        if self._topics.by_name.get(topic.name) is not topic:
            raise TopicDeleted(f"the topic {topic.name} was deleted")
        self._topics.deletions.settle(topic.name, reader)

    def _commits(self) -> Iterator[Commit]:
        yield from (log.commit for log in self._topics.logs())
        yield from (journal.commit for journal in self._subscriptions.journals())

    def _jitter(self) -> Random:
        """For readers that bring none of their own; made when one is needed, which not every open does."""
        if self._random is None:
            self._random = random_generator()
        return self._random

    def _made_topic(self, name: str) -> Topic:
        """The topic, made with one partition where it is missing."""
        with self._lock:
            return self._topics.by_name.get(name) or self.create_topic(name)

    def _crowded(self) -> None:
        if self._merger is not None:
            self._merger.wake()

    def _usable(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed; open it again with afterlog.open(path)")
        PROCESS.check_is(self._owner)


def open_store(
    path: Path,
    config: Config | None,
    clock: Clock | None,
    files: Files | None,
    remote: RemoteStore | str | None = None,
    *,
    background: bool = True,
    partial: bool = False,
    serves: bool = False,
    keeps: bool = False,
) -> Store:
    """What `afterlog.open` does, with the disk as an argument too. serves: whoever opens it is going to serve it.

    keeps: settings that are given are kept with the store, where none are.
    """
    files = files or OsFiles()
    if not isinstance(config, Config | None):
        raise WrongType(f"config must be an afterlog.Config, not {config!r:.100}")
    if not isinstance(clock, Clock | None):
        raise WrongType(f"clock must be a clock, as afterlog.SystemClock(), not {clock!r:.100}")
    store = Store(
        path,
        config or kept_config(files, path),
        clock or SystemClock(),
        files,
        None if remote is None else _opened_remote(remote, files),
        background=background,
        partial=partial,
        serves=serves,
    )
    if keeps and config is not None:
        try:
            keep_config(files, path, config)
        except BaseException:
            store.close()
            raise
    return store


def _opened_remote(remote: RemoteStore | str, files: Files) -> RemoteStore:
    from afterlog.tier.remote_store import RemoteStore
    from afterlog.tier.remote_url import open_remote

    if not isinstance(remote, str | RemoteStore):
        raise WrongType(f"remote must be a URL or a RemoteStore, not {remote!r:.100}")
    return open_remote(remote, files=files) if isinstance(remote, str) else remote


def _make_folders(files: Files, path: Path) -> None:
    missing = []
    while not files.exists(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            files.make_folder(folder)
        files.sync_folder(folder.parent)


def _chosen(topic: Topic, numbers: Sequence[int] | None) -> list[Partition]:
    if numbers is None:
        return list(topic.partitions)
    try:
        chosen = {number: topic.partition(number) for number in numbers}
    except TypeError as error:
        raise WrongType(f"partitions must be a list of their numbers, not {numbers!r:.100}") from error
    if not chosen:
        raise UnknownPartition("no partition to read: name one, or leave `partitions` out for all")
    return [partition for _, partition in sorted(chosen.items())]


def _listed(names: Iterable[str]) -> list[str]:
    try:
        if not isinstance(names, str | bytes):
            return list(names)
    except TypeError:
        pass
    raise WrongType(f"create_topics takes a list of names, not {names!r:.100}; create_topic makes one topic")


def _named(position: Position | datetime) -> Position:
    return AtTime(position) if isinstance(position, datetime) else position


def _check_numbered(sequence: Any, partition: int | None, claim: object) -> None:
    """Raises InvalidArgument where a send that its producer numbers is not one."""
    from afterlog.records.producer_sequence import checked_sequence

    checked_sequence(sequence)
    if partition is None:
        raise InvalidArgument("a sequence counts the records of one partition: give `partition`, too")
    if claim is not None:
        raise InvalidArgument("a sequence or a unique key, not both: a conflict would be a gap in the sequence")


def _told(timestamps: Any, count: int, now_ms: int, check: bool) -> Int64Array:
    """The times that records tell of themselves, ms: int64[count]. check: refuse those that are surely wrong."""
    column = timestamp_column(timestamps, count)
    if check:
        check_timestamps(column, now_ms)
    return column


def _sections(headers: Headers, unique_keys: list[bytes | None], count: int) -> Ragged:
    from afterlog.records.unique_key import sections

    if len(unique_keys) != count:
        raise InvalidRecord(f"{count} values but {len(unique_keys)} unique keys")
    return sections(header_section(headers), unique_keys)


def _key(key: Any) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if not isinstance(key, bytearray | memoryview):
        raise InvalidRecord(f"a key must be bytes, not {type(key).__name__}")
    return bytes(key)
