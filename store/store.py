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
from afterlog.base.arguments import KEEP, flag, whole
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
from afterlog.base.keywords import spelled_out
from afterlog.base.names import ADOPTED, ADOPTION, LOCK, SCHEDULES, NamedList, check_name, parse_backup_folder
from afterlog.fetch.positions import EARLIEST, LATEST, AtTime, Position
from afterlog.fetch.record_id import RecordId
from afterlog.log.background import Background
from afterlog.log.bucket_merger import merge_crowded
from afterlog.log.cancel_result import CancelResult
from afterlog.log.cancellation import Int8Array
from afterlog.log.checkpointer import DueCheckpoints, checkpoint_behind
from afterlog.log.commit import Commit, sync_behind
from afterlog.log.partition_log import PartitionLog
from afterlog.log.store_frontier import StoreFrontier
from afterlog.log.topic_settings import TopicChanges, TopicSettings, asked_settings
from afterlog.produce.topic import Topic
from afterlog.produce.unique_asked import claim, claims, unasked
from afterlog.records.batch import Headers
from afterlog.records.columns import Int64Array, Ragged
from afterlog.records.deliver_after import AS_SOON_AS_POSSIBLE, Delay, DelayColumn, asked_column, asked_ms
from afterlog.records.encode import RecordColumns, offset_column, ragged, same_headers, timestamp_column
from afterlog.records.instants import Instant, InstantColumn
from afterlog.records.single import SingleRecord, byte_string, header_section
from afterlog.records.window import check_timestamps
from afterlog.store.deletions import Deletions
from afterlog.store.topics import OpenTopics
from afterlog.subscription.open_subscriptions import OpenSubscriptions, check_no_group, check_no_subscription
from afterlog.subscription.reader_settings import ReaderOptions, ReaderSettings

# Who reads, has subscriptions, adopts, or has object storage imports what does that where it begins: what opens a store
# and sends is a third of it all, and a program that only sends should not wait for the rest (tests/test_package.py).
if TYPE_CHECKING:
    from os import PathLike

    from afterlog.fetch.consumer import Consumer
    from afterlog.fetch.message import ScheduledRecord
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
    from afterlog.subscription.partition_subscription import PartitionSubscription
    from afterlog.subscription.policy import Random
    from afterlog.subscription.redrive import DeadLetterMessage
    from afterlog.subscription.subscription import Subscription
    from afterlog.tier.offload import Offloaded
    from afterlog.tier.remote_store import RemoteStore
    from afterlog.tier.tiering import Tiering

logger = logging.getLogger("afterlog.store.store")


class Store:
    """An open store. `afterlog.open` makes it; use it as a context manager, or `close` it. Thread-safe."""

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
                crowded=self._crowded,
                aside=None if self._due_checkpoints is None else self._due_checkpoints.add,
                usable=self._usable,
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
        """Make a topic; the one that is there, where it has the same settings.

        delayed=False makes an ordinary FIFO log. The other settings: max_delay_ms (None) bounds how far ahead
        deliver_after may lie; retention_ms (None) counts from the effective deliver_after, in a FIFO log from the
        append where the interceptor `AppendBrokerTimestamp` stamps it, else from the record's own timestamp, and from
        when its segment was sealed at the latest; retention_bytes (None) bounds each partition. Neither removes what
        is pending.

        remote_storage_enable (False): sealed segments are uploaded to the store's object storage
        (`afterlog.open(…, remote=)`). Once a segment is there, and all of it is due, its local files go by
        local_retention_ms and local_retention_bytes, which count as the other two do; None: they stay as long as the
        segment.

        check_instants=False takes any deliver_after and timestamp. Else, one before 2001-09-09 or over a century ahead
        is refused, since a mistaken unit leads there (`afterlog.records.window`); 0 is always taken.

        interceptors: what adds to the metadata of each entry, behind those of the store's config, by the names
        registered (`afterlog.log.interceptors`): "AppendBrokerTimestamp", "AppendIndex", or of an installed package.
        Raises InvalidTopic, TopicExists, and RemoteConflict where object storage has another topic of that name.
        """
        [topic] = self.create_topics([name], partitions, delayed, **settings)
        return topic

    def create_topics(
        self, names: Iterable[str], partitions: int = 1, delayed: bool = True, **settings: Unpack[TopicChanges]
    ) -> list[Topic]:
        """Make many topics of the same settings, all or none of them, and faster than one by one; in the order given.

        Those that are there with the same settings stay. Settings and errors are those of `create_topic`; where one of
        the topics cannot be made, none is. Thousands of topics belong in one call, since what several are named in is
        written anew as a whole.
        """
        chosen = [check_name(name) for name in _listed(names)]
        asked = asked_settings(partitions, delayed, settings)
        self._usable()
        with self._lock:
            self._usable()
            self._topics.settle()
            made = self._topics.create(chosen, asked)
            self._keep_clean([asked])
            return made

    def topic(self, name: str) -> Topic:
        """Raises UnknownTopic."""
        self._usable()
        try:
            return self._topics.by_name[name]
        except (KeyError, TypeError, ValueError):  # what has no hash names no topic
            if self._settled() and isinstance(name, str) and name in self._topics.by_name:
                return self._topics.by_name[name]
            raise UnknownTopic(f"no topic {name!r} here; create it with store.create_topic({name!r})") from None

    def topics(self) -> NamedList[Topic]:
        """All topics, by name: a list, in which names can be looked for ("mail" in store.topics())."""
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
        """Give a topic other settings, from now on; what is left out stays. Readers and producers go on.

        What was appended stays as it is: a smaller max_delay_ms holds for what comes, a retention for all.
        remote_storage_enable can be set, and not taken back. interceptors: all that there are to be; entries that are
        there keep what they have. partitions: more of them; a key may belong to another one
        from then on, so that the order of its records holds within each only. Raises UnknownTopic, InvalidTopic,
        RemoteConflict, StorageFull.
        """
        self._usable()
        if partitions is not None:
            partitions = whole("partitions", partitions, 1)
        topic = self._administration().alter(name, partitions, settings)
        self._keep_clean([topic.settings])
        return topic

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic and all that is of it: records, pending or not, subscriptions, groups, schedules, and what it
        has in object storage. Its name is free then.

        It has happened, or not, whatever crashes. Waits for a backup that is being made. force: with open readers, too,
        which are closed. Who has it still, a producer for one, gets TopicDeleted. Raises UnknownTopic, TopicBusy,
        StorageFull, PartitionPoisoned; RemoteUnavailable and RemoteRefused where it is gone but for what is in object
        storage, which goes when the store is next opened with it, or when the name is used again.
        """
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
        """Remove what is due before a position, of all partitions or one; how many records.

        They are out of reach at once, for every reader; disk is freed by whole segments. pending: all that is pending
        is cancelled, too, wherever `upto` is; it takes its disk until it would have been due. With `upto` left out
        nothing stays of what was sent before the call, also what falls due meanwhile; behind a delivery offset that
        stays, like all that is due there. Each partition is purged as a whole or not at all, but for what is pending,
        which goes in parts. Closed groups and subscriptions go on behind what went. force: with open readers, too, of
        which a consumer may have to seek (OffsetOutOfRange). Raises UnknownTopic, UnknownPartition, TopicBusy,
        OffsetOutOfRange, ClockBehind, StorageFull, ReadOnlyTopic.
        """
        self._usable()
        return self._administration().purge(
            topic, upto, pending=flag("pending", pending), partition=partition, force=flag("force", force)
        )

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
        unique_key: bytes | None = None,
        on_conflict: OnConflict = "raise",
        sequence: ProducerSequence | None = None,
    ) -> RecordId:
        """Append one record; its id. Returns when it is safe under the store's durability.

        delay: seconds or timedelta from now; deliver_after: epoch ms, aware datetime or ISO 8601; neither: as soon as
        possible. check_instants: whether a deliver_after that is surely wrong is refused; None: as the topic says.

        unique_key: of 1 to 1,024 bytes; while the record is pending, no other of the topic has it, or, where
        `partition` is given, of that partition; else the unique key decides the partition, and not `key`. Where
        another one holds it: on_conflict="raise" raises UniqueKeyConflict, "keep" appends nothing and returns the id
        of that one, "replace" cancels that one and appends this, both or neither. Once a record is due or cancelled
        its key is free; a reschedule takes it along. It is the record's first header, `unique-key`.

        sequence: which of its producer's records in `partition`, which must be given, this is. Sent again it is not
        appended again, and the answer is the first one, whatever else differs (docs/guarantees.md, D11). Not together
        with a unique key.

        Raises InvalidDeliverAfter, InvalidRecord, RecordTooLarge, UnknownTopic, UnknownPartition, StorageFull; with a
        unique key also InvalidTopic, where the topic is FIFO or uploads its segments, InvalidArgument, CorruptFile;
        with a sequence ProducerFenced, OutOfOrderSequence, InvalidArgument.
        """
        target = self.topic(topic)
        now_ms = target.log_now_ms(self._guard.now_ms())
        check = target.checks_instants(check_instants)
        asked = None if unasked(unique_key, on_conflict) else claim(unique_key, on_conflict)
        by = _key(key) if asked is None else asked[0]
        number = target.partition_of(by) if partition is None else target.checked_partition(partition)
        record = SingleRecord(
            byte_string(value),
            byte_string(key, "keys"),
            header_section(headers),
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
        unique_keys: Any = None,
        on_conflict: OnConflict = "raise",
        sequence: ProducerSequence | None = None,
    ) -> Int64Array:
        """Append many records as columns; their offsets, int64[n], in the order given.

        values, keys: a sequence of bytes, an (int64 offsets[n+1], data) pair, or a pyarrow binary column. delay,
        deliver_after: one for all or a column, of datetimes also a Series of pandas or polars or an Arrow array (see
        `afterlog.records.instants`). check_instants: as in `send`. headers: the same for every record.
        timestamps: int64[n] ms, now by default; judged as deliver_after is. All go to `partition`; without one, by the
        hash of their keys, or, without keys, to one partition, another with each call.

        unique_keys: a column as keys are, None for a record without one; on_conflict: as in `send`. A record that is
        kept out has the offset of the one that holds its key, also of one before it in the call; of those that replace
        each other within the call the last is appended, and all have its offset. Without `partition` each goes by its
        unique key, those without one by their keys. With "raise" nothing is written on a conflict, but where another
        thread takes a key meanwhile and the call spans partitions.

        sequence: as in `send`, of the first record; the others follow it. What a call that failed left in the log is
        not appended again, and all of the offsets are the answer. With `deliver_after_spread_ms` records are numbered
        by their times: send the same again.

        Raises as `send` does. Nothing is written where a record cannot be taken. Where the disk runs full in a call
        of more than 2^20 records, or one that spans segments or partitions, the parts before that stay.
        """
        target = self.topic(topic)
        now_ms = target.log_now_ms(self._guard.now_ms())
        check = target.checks_instants(check_instants)
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
        if unique is not None:
            number = None if partition is None else target.checked_partition(partition)
            return target.append_unique(columns, unique, on_conflict, number)
        if partition is None and keys is not None and target.partition_count > 1:
            return target.append_by_key(columns)
        number = target.partition_of(None) if partition is None else partition
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
        """A buffered, thread-safe producer to one topic; `send` gives futures of RecordId.

        idempotent: it numbers what it appends, so whatever interrupts an append, each record is there once, and its
        future tells whether it is. producer_id: to go on as a known producer; None: as a new one, of a random id.
        epoch (0): under a higher one than before whoever is the same producer still gets ProducerFenced. Both are for
        an idempotent one. Raises UnknownTopic, InvalidArgument.
        """
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
        """Cancel a pending record: it is never delivered. `record`: what `send` returned, `message.id`, or its text.

        Returns when that is safe under the store's durability. Whoever gets ALREADY_DELIVERED was too late.
        Raises UnknownTopic, UnknownPartition, StorageFull.
        """
        record = RecordId.of(record)
        return CancelResult(int(self.cancel_many(record.topic, record.partition, np.array([record.offset]))[0]))

    def cancel_many(self, topic: str, partition: int, offsets: Int64Array) -> Int8Array:
        """Cancel many records of a partition by their offsets: int8[n], each the number of a `CancelResult`."""
        return self.topic(topic).partition(partition).cancel(offset_column(offsets))

    def reschedule(
        self, record: RecordId | str, *, delay: Delay | None = None, deliver_after: Instant | None = None
    ) -> RecordId:
        """Give a pending record another time; its new id. Key, value, headers and timestamp stay.

        It is cancelled and appended again, both or neither, whatever crashes. The time is given as in `send`.
        Raises NotPending, whose `answer` is the `CancelResult` that says why, and as `send` does.
        """
        record = RecordId.of(record)
        target = self.topic(record.topic)
        now_ms = target.log_now_ms(self._guard.now_ms())
        asked = asked_ms(now_ms, delay, deliver_after, check_instants=target.check_instants)
        return target.record_id(record.partition, target.partition(record.partition).reschedule(record.offset, asked))

    def pending(
        self, topic: str, *, limit: int = 100, key: bytes | None = None, partition: int | None = None
    ) -> list[ScheduledRecord]:
        """The next `limit` records that are not due yet, ordered by (due, partition, offset). Delivers nothing.

        key: only those of this key, for which the records before the last one found are read. Cancelled ones are left
        out. Raises UnknownTopic, UnknownPartition, CorruptFile.
        """
        target = self.topic(topic)
        numbers = range(target.partition_count) if partition is None else [partition]
        return target.pending(whole("limit", limit), _key(key), numbers)

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
        """Send a record again and again, by a cron expression in a time zone, or every timedelta from now on.

        One record is pending at a time; the next one is appended when that becomes due, once, whatever crashes. name:
        of the schedule, one in a store; where it is there with the same settings nothing is done. missed: what becomes
        of what came while nobody had the store open: nothing, the first of it, or all, due at once.

        cron needs the extra `schedules`: ImportError. Raises InvalidSchedule, ScheduleExists, UnknownTopic,
        UnknownPartition, InvalidRecord, RecordTooLarge, InvalidTopic of a FIFO topic, StorageFull, CorruptFile.
        """
        self._usable()
        return self._scheduling().add(
            topic, name, cron=cron, timezone=timezone, every=every, value=value, key=key, headers=headers,
            partition=partition, missed=missed,
        )  # fmt: skip

    def schedules(self, topic: str | None = None) -> list[Schedule]:
        """The recurring schedules of the store, or of one topic, by name. Raises CorruptFile, UnknownTopic."""
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
        """Give it other settings; what is left out stays. The pending record is cancelled, the next one is made anew.

        Raises UnknownSchedule, and as `schedule` does.
        """
        self._usable()
        return self._scheduling().change(
            name, cron=cron, timezone=timezone, every=every, value=value, key=key, headers=headers, missed=missed
        )

    def pause_schedule(self, name: str) -> Schedule:
        """Cancel its pending record, and append no other. Raises UnknownSchedule, StorageFull, CorruptFile."""
        self._usable()
        return self._scheduling().pause(name)

    def resume_schedule(self, name: str) -> Schedule:
        """Let it go on with what comes after now. Raises UnknownSchedule, StorageFull, CorruptFile."""
        self._usable()
        return self._scheduling().resume(name)

    def remove_schedule(self, name: str) -> None:
        """Cancel its pending record, and forget it. Raises UnknownSchedule, StorageFull."""
        self._usable()
        self._scheduling().remove(name)

    def run_schedules(self) -> int:
        """Append now what schedules have to append, as a thread does anyway; how many records were.

        What fails is raised, and ends it. Raises StorageFull, UnknownTopic of one whose topic is gone, CorruptFile.
        """
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
        """A consumer of the topic's partitions (all by default) for `group`, which begins where the group committed.

        `start` is for a group that never committed. A partition has one open consumer of a group at a time: GroupBusy.
        """
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
        """A reader of the subscription `name`, which begins at `start` when it is new: leases, acks, retries.

        Many readers share a subscription; subscriptions to a topic see everything independently of each other. A
        consumer group cannot have the same name (NameTaken).

        retry, lease_ms, dead_letter (a topic, made where it is missing), random (for the jitter of retries, where the
        store is open in this process) are this reader's own, and so are these. auto_extend: while the block of a
        message is open it stays leased, for at most max_lease_ms since its delivery. rate: it takes so many records a
        second (`subscription/intake.py`); max_in_flight: it has so many at a time that are leased and not settled.
        durable_leases: a lease outlives the process that has the store: its restart, a close, too, leaves it until its
        deadline, with its receipt (`Receipts`), and does not count as a failure. None: it does where the reader is in
        another process.

        delay_ms: the subscription sees each record that much later, for all readers the same. replicated: other
        clusters have the subscription, too, from now on, and what is acked in one is acked in all, half a second later
        (docs/replication.md); not with delay_ms. False: they do not, and this one neither tells nor heeds what they
        have acked; None: as it is.
        Raises InvalidSubscription, InvalidTopic, UnknownTopic, UnknownPartition, OffsetOutOfRange, CorruptFile.
        """
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
            self._made_topic(settings.dead_letter).check_asked(AS_SOON_AS_POSSIBLE)
        chosen = _chosen(target, settings.partitions)
        with self._lock:
            self._usable()
            self._check_there(target, name)
            if any(self._reads(topic, partition.number, name) for partition in target.partitions):
                raise NameTaken(f"{name!r} is a consumer group that reads {topic}; take another name")
            check_no_group(target.partitions, name)
            return self._subscriptions.subscribe(topic, name, chosen, settings)

    def subscriptions(self, topic: str) -> list[str]:
        """The names of all subscriptions to a topic, whether somebody reads them or not. Raises UnknownTopic."""
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
        """The names of all consumer groups that have committed a position in a topic. Raises UnknownTopic."""
        self._usable()
        return self._administration().groups(topic)

    def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        """Delete a subscription and all that it knows, in all partitions; one made later under its name begins anew.

        It has happened, or not, whatever crashes. force: with open readers, too, which are closed. Raises UnknownTopic,
        UnknownSubscription, TopicBusy, StorageFull.
        """
        self._usable()
        self._administration().delete_subscription(topic, name, force=flag("force", force))

    def delete_group(self, topic: str, group: str, *, force: bool = False) -> None:
        """Delete a consumer group's positions, in all partitions. Raises UnknownTopic, UnknownGroup, GroupBusy,
        StorageFull; force, and crashes, as in `delete_subscription`.
        """
        self._usable()
        self._administration().delete_group(topic, group, force=flag("force", force))

    def reset_subscription(self, topic: str, name: str, position: Position | datetime, *, delay_ms: int = 0) -> None:
        """Let a subscription go on at a position or time, in all partitions, for all its readers, as its `seek` does.

        delay_ms: as it is subscribed with. Raises UnknownTopic, UnknownSubscription, InvalidSubscription,
        OffsetOutOfRange, StorageFull.
        """
        self._usable()
        self._administration().reset_subscription(topic, name, _named(position), delay_ms=delay_ms)

    def reset_group(self, topic: str, group: str, position: Position | datetime) -> None:
        """Let a consumer group go on at a position or time, in all partitions; no consumer of it is open.

        Raises UnknownTopic, UnknownGroup, GroupBusy, OffsetOutOfRange, StorageFull.
        """
        self._usable()
        self._administration().reset_group(topic, group, _named(position))

    def dead_letters(self, topic: str, *, limit: int = 100) -> list[DeadLetterMessage]:
        """The oldest `limit` records of a dead-letter topic that were not sent back, and where they come from.

        A look: nothing is leased, and no reader comes of it. Raises UnknownTopic, CorruptFile.
        """
        from afterlog.subscription import redrive

        partitions = self.topic(topic).partitions
        return redrive.dead_letters(partitions, list(self._subscriptions), whole("limit", limit))

    def redrive(self, topic: str, *, limit: int | None = None, target: str | None = None) -> RedriveResult:
        """Send dead letters back to where they come from, without our headers, due at once.

        target: a topic to send them to instead, of the same partition number, or around where it has fewer. Returns how
        many were, and why others stay. Raises UnknownTopic, InvalidTopic where the target is the topic, StorageFull.
        """
        from afterlog.subscription import redrive

        limit = None if limit is None else whole("limit", limit)
        to = None if target is None else self._redrive_target(topic, target)
        with self.subscribe(topic, redrive.SUBSCRIPTION) as subscription:
            return redrive.redrive(subscription, self.topic, limit, to)

    def _redrive_target(self, topic: str, target: str) -> Topic:
        if isinstance(target, str) and target == topic:
            raise InvalidTopic(f"{topic} is where the dead letters are: name another target")
        return self.topic(target)

    def open_subscriptions(self) -> list[PartitionSubscription]:
        """Each partition of each subscription that has a reader: what all its readers share."""
        return list(self._subscriptions)

    # Keeping.

    def sync(self) -> None:
        """Make everything appended so far durable, whatever the durability."""
        self._usable()
        for commit in self._commits():
            # By another thread since they were asked for: a subscription that its last reader closes is durable.
            with contextlib.suppress(TopicDeleted, StoreClosed):
                commit.sync()
        self._usable()

    def enforce_retention(self) -> int:
        """Apply the topics' retention now, and seal what is old enough; the number of segments removed.

        A thread does it every `retention_check_interval_ms`, and a roll does what needs no subscription. Raises
        CorruptFile, StorageFull, PartitionPoisoned.
        """
        self._usable()
        return self._cleaning_up().run(raising=True)

    def held_bytes(self, topic: str, partition: int = 0) -> HeldBytes:
        """What holds the bytes of a partition on the disk: why they are not free, by the rules by which they go.

        Asked anew with each call; a partition that nobody has opened stays closed, and is judged by its checkpoints.
        docs/operations.md says what each means. Raises UnknownTopic, UnknownPartition, CorruptFile, PartitionPoisoned.
        """
        target = self.topic(topic)
        return self._cleaning_up().held(target, target.checked_partition(partition))

    def backup(self, dest: str | PathLike[str]) -> Backup:
        """Make a backup of the store in the folder `dest`, beside those that are there, while it is used.

        Sealed files are linked where `dest` is in the same file system, and from the backup before where it is not, so
        a second one costs what is new. All that was sent before the call is in it. To restore, copy the folder that the
        answer names, and open the copy. A kill in the middle leaves the backups of before.

        Raises InvalidArgument where `dest` holds anything else, or lies in the store, StoreLocked where another backup
        is being made there, StorageFull, DiskFailed, CorruptFile, PartitionPoisoned.
        """
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

    def offload(self) -> dict[str, Offloaded]:
        """Upload what is sealed and apply local retention now (a thread does it too): what was done, by partition.

        For the topics with remote_storage_enable. What fails ends it, with all before that done. Raises
        RemoteUnavailable, RemoteConflict, CorruptFile, StorageFull, and RemoteRefused, which a store without object
        storage does, too.
        """
        self._usable()
        if self.tiering is None:
            raise RemoteRefused(
                "opened without object storage: afterlog.open(path, remote=…), afterlog serve --remote URL",
                path=self.path,
            )
        return self.tiering.offload()

    def confirm_clock(self) -> None:
        """The wall clock is right after a jump that `clock_jump_limit_ms` holds back."""
        self._guard.confirm()
        for log in self._topics.logs():
            log.versions.notifier.notify()

    def now_ms(self) -> int:
        """The clock, less what `clock_jump_limit_ms` holds back."""
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
        if any(each.is_cleaned_up for each in settings):
            self._cleaner = Background.weakly(
                "afterlog-retention",
                self,
                lambda store: store._cleaning_up().run(),
                clock=self.clock,
                interval_ms=interval_ms,
            )

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
) -> Store:
    """What `afterlog.open` does, with the disk as an argument too. serves: whoever opens it is going to serve it."""
    files = files or OsFiles()
    if not isinstance(config, Config | None):
        raise WrongType(f"config must be an afterlog.Config, not {config!r:.100}")
    if not isinstance(clock, Clock | None):
        raise WrongType(f"clock must be a clock, as afterlog.SystemClock(), not {clock!r:.100}")
    return Store(
        path,
        config or Config(),
        clock or SystemClock(),
        files,
        None if remote is None else _opened_remote(remote, files),
        background=background,
        partial=partial,
        serves=serves,
    )


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
