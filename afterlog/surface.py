"""What can be asked of a store, whoever has the folder: what each call does, answers and raises is said here, once.

    def remind(store: StoreSurface) -> None: ...       of afterlog.open, shared or not, and of afterlog.connect

`Store`, `Consumer` and `Subscription` are these protocols; what asks a server (client/), and what awaits either
(`afterlog.aio`), has their names, and presents their signatures and docstrings as its own. One suite of tests runs on
all of them (tests/conformance). The engine stands above this module, which names its types for type checkers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, TypeVar, Unpack

from afterlog.base.arguments import KEEP
from afterlog.fetch.positions import EARLIEST, LATEST

if TYPE_CHECKING:
    from concurrent.futures import Future
    from datetime import datetime, timedelta
    from os import PathLike

    from afterlog.base.clock import Clock
    from afterlog.fetch.message import Message, ScheduledRecord, StoredRecord
    from afterlog.fetch.message_columns import Columns
    from afterlog.fetch.positions import Position
    from afterlog.fetch.record_id import RecordId
    from afterlog.log.cancel_result import CancelResult
    from afterlog.log.cancellation import Int8Array
    from afterlog.log.held import HeldBytes
    from afterlog.log.topic_settings import TopicChanges, TopicSettings
    from afterlog.records.batch import Headers
    from afterlog.records.columns import Int64Array
    from afterlog.records.producer_sequence import ProducerSequence
    from afterlog.records.time_columns import DelayColumn, InstantColumn
    from afterlog.records.times import Delay, Instant
    from afterlog.records.unique_key import OnConflict
    from afterlog.store.backup import Backup
    from afterlog.store.schedule_document import Schedule
    from afterlog.subscription.answers import AckResult, ReceiptResult, RedriveResult, SubscriptionStats
    from afterlog.subscription.draining import Draining
    from afterlog.subscription.leased_message import LeasedMessage
    from afterlog.subscription.leased_record import LeasedRecord
    from afterlog.subscription.reader_settings import ReaderOptions
    from afterlog.subscription.received import Receipts, Received
    from afterlog.subscription.redrive import DeadLetterMessage
    from afterlog.tier.offload import Offloaded

    MessagesToSettle: TypeAlias = LeasedMessage | Sequence[LeasedMessage] | Receipts

Presenting = TypeVar("Presenting", bound=type)


def presents(surface: type) -> Callable[[Presenting], Presenting]:
    """A decorator of a class that has its methods made of others: to `help` they are those of a protocol."""

    def presented(cls: Presenting) -> Presenting:
        for name, made in vars(cls).items():
            said = getattr(surface, name, None)
            if isinstance(made, FunctionType) and isinstance(said, FunctionType) and said.__module__ == __name__:
                made.__doc__ = said.__doc__ or made.__doc__
                made.__wrapped__ = said  # type: ignore[attr-defined]  # whose signature it shows
        return cls

    return presented


class Closable(Protocol):
    """A block closes it, and so does `close`, as often as it is called."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def close(self) -> None: ...


class TopicSurface(Protocol):
    """What `store.topic(name)` gives; what it answers is said at `Topic`."""

    name: str

    @property
    def settings(self) -> TopicSettings: ...
    @property
    def partition_count(self) -> int: ...
    @property
    def check_instants(self) -> bool: ...
    def partition_of(self, key: bytes | None, priority: int | None = None) -> int: ...
    def priority_of(self, partition: int) -> int: ...
    def checked_partition(self, number: int, priority: int | None = None) -> int: ...


class ProducerSurface(Closable, Protocol):
    """What `store.producer` gives: a `Producer`, wherever the store is."""

    def send(
        self,
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
    ) -> Future[RecordId]: ...
    def flush(self) -> None: ...


class ConsumerSurface(Closable, Protocol):
    """What `store.consumer` gives."""

    topic: str

    def __iter__(self) -> Iterator[Message]:
        """Messages in due order, waiting for each until it is due; ends when the consumer is closed."""

    def poll(self, max_records: int = 500, timeout: float | None = 0.0) -> list[Message]:
        """Up to `max_records` due messages; waits up to `timeout` seconds for the first (None: as long as it takes)."""

    def poll_columns(self, max_records: int = 65_536, timeout: float | None = 0.0) -> Columns:
        """`poll` as columns, with no Python object per record. Through a server it needs ``afterlog[arrow]``."""

    def seek(self, position: Position, partition: int | None = None) -> None:
        """Read on from `position` in one partition, or in all.

        Raises OffsetOutOfRange, of that PositionPending where a rank among what is pending is asked for; then nothing
        is moved.
        """

    def commit(self) -> None:
        """Make durable that everything handed out so far is processed. Raises StoreClosed, StorageFull.

        Through a server GroupBusy, too.
        """

    def positions(self) -> dict[int, int]:
        """The next delivery offset of each partition."""

    def committed(self) -> dict[int, int | None]:
        """The committed delivery offset of each partition; None before the first commit."""

    def lag(self) -> int:
        """How many due records, over all partitions, were not handed out yet: none that is cancelled, or a marker."""

    @property
    def closed(self) -> bool: ...


class SubscriptionSurface(Closable, Protocol):
    """What `store.subscribe` gives."""

    topic: str
    name: str

    def __iter__(self) -> Iterator[LeasedMessage]:
        """Messages as they become due, each leased; waits for the next, and ends when the subscription is closed, or
        drained.

        A few are leased ahead (`read_ahead.py`). What was not handed out goes back, uncounted, when the iteration ends.
        """

    def receive(self, max_records: int = 100, timeout: float | None = 0.0) -> Received:
        """Lease up to `max_records` due records; waits up to `timeout` seconds for the first (None: for ever).

        None where it drains. With `rate` or `max_in_flight` no more than these have room for.
        Raises ClockBehind, CorruptFile, StorageFull, SubscriptionPoisoned, StoreClosed, StoreForked.

        Through a server ServerUnavailable, too.
        """

    def ack(self, message: LeasedMessage) -> AckResult:
        """It is done with; also where its lease has ended meanwhile, and whoever has it now."""

    def ack_many(self, messages: MessagesToSettle) -> AckResult:
        """The same of many. A `Received` is acked by its columns, with nothing done record by record.

        Here, and wherever many can be settled, `Receipts` do as well: those of a `Received`, or numbers that somebody
        kept, in another process or an earlier life of this one. Raises UnknownPartition where one is of a partition
        that this reader does not have; then nothing is acked.
        """

    def nack(self, messages: MessagesToSettle, *, delay: Delay | None = None, reason: str = "") -> ReceiptResult:
        """One or many failed. They go out again after `delay` (seconds, timedelta), by default the policy's.

        What has failed as often as the policy allows goes to the dead letters instead, with the reason. Stale receipts,
        of leases that have ended, do nothing.

        Through a server: made twice, for a lost answer, it says `stale` of what it did itself.
        """

    def reject(self, messages: MessagesToSettle, reason: str = "") -> ReceiptResult:
        """One or many can never be worked off: to the dead letters at once, whatever the policy says.

        Stale receipts do nothing. Raises NoDeadLetterTopic where this reader has none, and what a nack that gives up
        does; what was not moved then is still leased.

        Through a server as `nack`.
        """

    def release(self, messages: MessagesToSettle) -> ReceiptResult:
        """Give one or many back, to go out again at once; that counts as no failure. Through a server as `nack`."""

    def extend(self, messages: MessagesToSettle, *, lease_ms: int | None = None) -> ReceiptResult:
        """Lease one or many for `lease_ms` from now, by default as long as at first; `deadline_ms` says until when."""

    def seek(self, position: Position | datetime, partition: int | None = None) -> None:
        """Read on from `position` in one partition, or in all: for all readers of the subscription.

        All before it counts as acked, all behind it as never delivered. A time (aware datetime, `AtTime`) is the time
        at which records become due to this subscription. Raises OffsetOutOfRange, of that PositionPending where
        a rank among what is pending is asked for; then nothing is moved.
        """

    def stats(self) -> SubscriptionStats:
        """How things stand, for all readers together."""

    def drain(self, timeout: float | None = None) -> bool:
        """Take nothing more, give back what was leased ahead, and wait up to `timeout` seconds for the handlers.

        Iterations end behind the message that they have handed out, `receive` comes back with nothing. A handler is
        a block that is open (`with message:`), or what an iteration has handed out and nobody has settled. What a
        `receive` gave is its caller's, to be settled before `close`. True where all have ended; else call it again, or
        `close`. From any thread but that of a handler, which would wait for itself; in asyncio from any task but that
        of a handler, and no thread waits.
        """

    def draining_on(self, signal: int, *, timeout: float | None = None) -> Draining:
        """A block in which the signal drains; its end waits up to `timeout` seconds for the handlers.

            with store.subscribe("mail", "sender") as subscription, subscription.draining_on(signal.SIGTERM):
                for message in subscription:
                    with message:
                        deliver(message.value)

        The second signal is the previous handler's, which is back at the end of the block. For the main thread alone
        (NotInMainThread); handlers may be in any. In asyncio it is entered with `async with`, by the event loop of the
        main thread. Raises InvalidArgument, WrongType.
        """


class StoreSurface(Closable, Protocol):
    """What `afterlog.open` and `afterlog.connect` give."""

    clock: Clock

    def create_topic(
        self, name: str, partitions: int = 1, delayed: bool = True, **settings: Unpack[TopicChanges]
    ) -> TopicSurface:
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

        expires_after_ms (None): subscriptions hand out no record later than so long after it was due; of a record that
        says less itself (`send`), that counts. on_expiry: what becomes of it then, "drop", where it is counted as
        lapsed, or "dead_letter", where its reader has dead letters. Nothing looks for what has expired: it is judged
        when its turn comes.

        subscription_expiration_ms (None): a subscription that nobody has read for so long, while the store was open, is
        deleted by the next pass of retention, as by `delete_subscription`; one that is replicated, or paused, is not.

        priorities (1, up to 16): each record has one, from 0 on (`send`), and each has as many partitions, for which
        `partitions` is rounded up. Where a subscription has due records of several, it hands out those of the highest
        first; of sixteen one is of a lower one, so that none waits for ever. What comes back for a retry keeps its
        priority. Order, positions and lag of a partition are what they are elsewhere, and so is what a consumer reads.

        check_instants=False takes any deliver_after and timestamp. Else, one before 2001-09-09 or over a century ahead
        is refused, since a mistaken unit leads there (`afterlog.records.times`); 0 is always taken.

        interceptors: what adds to the metadata of each entry, after those of the store's config, by the names
        registered (`afterlog.log.interceptors`): "AppendBrokerTimestamp", "AppendIndex", or of an installed package.
        Raises InvalidTopic, TopicExists, and RemoteConflict where object storage has another topic of that name.
        """

    def create_topics(
        self, names: Iterable[str], partitions: int = 1, delayed: bool = True, **settings: Unpack[TopicChanges]
    ) -> Sequence[TopicSurface]:
        """Make many topics of the same settings, all or none of them, and faster than one by one; in the order given.

        Those that are there with the same settings stay. Settings and errors are those of `create_topic`; where one of
        the topics cannot be made, none is. Thousands of topics belong in one call, since what several are named in is
        written anew as a whole.
        """

    def topic(self, name: str) -> TopicSurface:
        """Raises UnknownTopic."""

    def topics(self) -> Sequence[TopicSurface]:
        """All topics, by name: a list, in which names can be looked for ("mail" in store.topics()).

        Through a server those that the token may see.
        """

    def alter_topic(
        self, name: str, *, partitions: int | None = None, **settings: Unpack[TopicChanges]
    ) -> TopicSurface:
        """Give a topic other settings, from now on; what is left out stays. Readers and producers go on.

        What was appended stays as it is: a smaller max_delay_ms holds for what comes, a retention for all.
        remote_storage_enable can be set, and not taken back. interceptors: all that there are to be; entries that are
        there keep what they have. partitions: more of them; a key may belong to another one
        from then on, so that the order of its records holds within each only. Raises UnknownTopic, InvalidTopic,
        RemoteConflict, StorageFull.

        Other clients of a server send to more partitions a few seconds later.
        """

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic and all that is of it: records, pending or not, subscriptions, groups, schedules, and what it
        has in object storage. Its name is free then.

        It has happened, or not, whatever crashes. Waits for a backup that is being made. force: with open readers, too,
        which are closed. Who has it still, a producer for one, gets TopicDeleted. Raises UnknownTopic, TopicBusy,
        StorageFull, PartitionPoisoned; RemoteUnavailable and RemoteRefused where it is gone but for what is in object
        storage, which goes when the store is next opened with it, or when the name is used again.

        Through a server AnswerLost, too: look whether it is there.
        """

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
        is cancelled, too, wherever `upto` is; it takes its disk until `clean`, or it would have been due. With `upto`
        left out nothing stays of what was sent before the call, also what falls due meanwhile; behind a delivery offset
        that stays, like all that is due there. Each partition is purged as a whole or not at all, but for what is
        pending, which goes in parts. Closed groups and subscriptions go on after what went. force: with open readers,
        too, of which a consumer may have to seek (OffsetOutOfRange). Raises UnknownTopic, UnknownPartition, TopicBusy,
        OffsetOutOfRange, ClockBehind, StorageFull, ReadOnlyTopic.

        Through a server AnswerLost, too.
        """

    def clean(self, topic: str, *, partition: int | None = None) -> int:
        """Write the topic's segments anew with what is still to come, now, whatever they hold; how many bytes went.

        A thread does it where a partition holds more than twice what is to come and `cleaning_slack_bytes`. What the
        topic's retention lets go is out of reach behind it, as after a purge, also where its segment would have stayed
        longer; without retention only what was purged. Of what was cancelled 98 bytes a record stay. Raises
        UnknownTopic, UnknownPartition, CorruptFile, StorageFull, PartitionPoisoned.

        Through a server AnswerLost, too.
        """

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
        """Append one record; its id. Returns when it is safe under the store's durability.

        delay: seconds or timedelta from now; deliver_after: epoch ms, aware datetime or ISO 8601; neither: as soon as
        possible. check_instants: whether a deliver_after that is surely wrong is refused; None: as the topic says.

        expires_after: seconds or timedelta from when it is due, in which it is of use: a subscription hands it out no
        later, and drops and counts it then, or moves it to the dead letters, as the topic says (`on_expiry`). It is the
        record's last header, `expires-after`, and goes along with a reschedule. Consumers read it all the same.

        priority: of a topic that has some (`create_topic`), from 0, the default, up; a subscription hands out what is
        due of a higher one first. It decides the partition together with the key, and so stays with the record; where
        `partition` is given, that says it.

        unique_key: of 1 to 1,024 bytes; while the record is pending, no other of the topic and its priority has it, or,
        where `partition` is given, of that partition; else the unique key decides the partition, and not `key`. Where
        another one holds it: on_conflict="raise" raises UniqueKeyConflict, "keep" appends nothing and returns the id
        of that one, "replace" cancels that one and appends this, both or neither. Once a record is due or cancelled
        its key is free; a reschedule takes it along. It is the record's first header, `unique-key`.

        sequence: which of its producer's records in `partition`, which must be given, this is. Sent again it is not
        appended again, and the answer is the first one, whatever else differs (docs/guarantees.md, D11). Not together
        with a unique key.

        Raises InvalidDeliverAfter, InvalidRecord, RecordTooLarge, UnknownTopic, UnknownPartition, StorageFull; with a
        unique key also InvalidTopic, where the topic is FIFO or uploads its segments, InvalidArgument, CorruptFile;
        with a sequence ProducerFenced, OutOfOrderSequence, InvalidArgument.

        Through a server `delay` counts from when it has the record, which is sent again where the answer was lost, and
        is there once (promise D11). With a unique key it is not sent again: AnswerLost, then.
        """

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
        """Append many records as columns; their offsets, int64[n], in the order given.

        values, keys: a sequence of bytes, an (int64 offsets[n+1], data) pair, or a pyarrow binary column. delay,
        deliver_after: one for all or a column, of datetimes also a Series of pandas or polars or an Arrow array (see
        `afterlog.records.time_columns`). check_instants: as in `send`. headers, expires_after, priority: the same for
        every record. timestamps: int64[n] ms, now by default; judged as deliver_after is. All go to `partition`;
        without one, by the hash of their keys, or, without keys, to one partition, another with each call.

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

        Through a server it needs ``afterlog[arrow]``, and is sent again as `send` is; of a call that spans partitions,
        or is larger than a server takes at a time, the parts before one that is refused stay.
        """

    def producer(
        self,
        topic: str,
        *,
        linger_ms: int | None = None,
        batch_bytes: int | None = None,
        idempotent: bool = False,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> ProducerSurface:
        """A buffered, thread-safe producer to one topic; `send` gives futures of RecordId.

        idempotent: it numbers what it appends, so whatever interrupts an append, each record is there once, and its
        future tells whether it is. producer_id: to go on as a known producer; None: as a new one, of a random id.
        epoch (0): under a higher one than before whoever is the same producer still gets ProducerFenced. Both are for
        an idempotent one. Raises UnknownTopic, InvalidArgument.

        Through a server a record is there once without `idempotent`, too, as one of `send` is; where an idempotent one
        lost an answer for good it goes on under a higher epoch in that partition. It needs numpy.
        """

    def cancel(self, record: RecordId | str) -> CancelResult:
        """Cancel a pending record: it is never delivered. `record`: what `send` returned, `message.id`, or its text.

        Returns when that is safe under the store's durability. Whoever gets ALREADY_DELIVERED was too late.
        Raises UnknownTopic, UnknownPartition, StorageFull.

        Through a server ALREADY_CANCELLED also of its own, where the first answer was lost.
        """

    def cancel_many(self, topic: str, partition: int, offsets: Int64Array) -> Int8Array:
        """Cancel many records of a partition by their offsets: int8[n], each the number of a `CancelResult`."""

    def reschedule(
        self, record: RecordId | str, *, delay: Delay | None = None, deliver_after: Instant | None = None
    ) -> RecordId:
        """Give a pending record another time; its new id. Key, value, headers and timestamp stay.

        It is cancelled and appended again, both or neither, whatever crashes. The time is given as in `send`.
        Raises NotPending, whose `answer` is the `CancelResult` that says why, and as `send` does.

        Through a server AnswerLost, too: `pending` shows what became of it.
        """

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
        """The next `limit` records that are not due yet, ordered by (due, partition, offset). Delivers nothing.

        key: only those of this key, for which the records before the last one found are read. after, before: only those
        due at or after, and before, which are found by the index. Cancelled ones are left out. Raises UnknownTopic,
        UnknownPartition, InvalidDeliverAfter, CorruptFile.
        """

    def get(self, record: RecordId | str) -> StoredRecord | None:
        """One record by its id, and whether it is pending, due or cancelled; None where it is not in the log.

        It is found by its place, and delivered to nobody. What retention or a purge let go of is gone; of what was
        cancelled a cleaning leaves no key and no value. Whether what is due was acked, a subscription knows. Raises
        UnknownTopic, UnknownPartition, InvalidRecord where the text is no id, CorruptFile.
        """

    def get_unique(self, topic: str, unique_key: bytes, *, partition: int | None = None) -> StoredRecord | None:
        """The pending record that holds a unique key; None where none does.

        As `send` has it: the key decides the partition, unless one is given; of several priorities that of the highest.
        Found by the index of unique keys, of which nothing grows in memory. Raises UnknownTopic, UnknownPartition,
        InvalidTopic where the topic has no unique keys, InvalidRecord, CorruptFile.
        """

    def cancel_unique(self, topic: str, unique_key: bytes, *, partition: int | None = None) -> CancelResult:
        """Cancel the pending record that holds a unique key; UNKNOWN where none does. As `get_unique`, and `cancel`.

        Raises UnknownTopic, UnknownPartition, InvalidTopic where the topic has no unique keys, InvalidRecord,
        StorageFull, CorruptFile.

        Through a server AnswerLost, too.
        """

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

    def schedules(self, topic: str | None = None) -> list[Schedule]:
        """The recurring schedules of the store, or of one topic, by name. Raises CorruptFile, UnknownTopic."""

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

    def pause_schedule(self, name: str) -> Schedule:
        """Cancel its pending record, and append no other. Raises UnknownSchedule, StorageFull, CorruptFile."""

    def resume_schedule(self, name: str) -> Schedule:
        """Let it go on with what comes after now. Raises UnknownSchedule, StorageFull, CorruptFile."""

    def send_schedule(self, name: str) -> RecordId:
        """Send a record of a schedule now, beside those that come, which stay as they are; also of one that is paused.

        Raises UnknownSchedule, UnknownTopic of one whose topic is gone, StorageFull, CorruptFile.

        Through a server AnswerLost, too.
        """

    def remove_schedule(self, name: str) -> None:
        """Cancel its pending record, and forget it. Raises UnknownSchedule, StorageFull.

        Through a server AnswerLost, too.
        """

    def run_schedules(self) -> int:
        """Append now what schedules have to append, as a thread does anyway; how many records were.

        What fails is raised, and ends it. Raises StorageFull, UnknownTopic of one whose topic is gone, CorruptFile.

        Through a server AnswerLost, too.
        """

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        partitions: Sequence[int] | None = None,
        start: Position = EARLIEST,
        auto_commit: bool = True,
    ) -> ConsumerSurface:
        """A consumer of the topic's partitions (all by default) for `group`, which begins where the group committed.

        `start` is for a group that never committed. A partition has one open consumer of a group at a time: GroupBusy.

        Through a server its partitions are claimed as long as this process lives, and 45 s longer where it was killed.
        """

    def subscribe(self, topic: str, name: str, **options: Unpack[ReaderOptions]) -> SubscriptionSurface:
        """A reader of the subscription `name`, which begins at `start` when it is new: leases, acks, retries.

        Many readers share a subscription; subscriptions to a topic see everything independently of each other. A
        consumer group cannot have the same name (NameTaken).

        retry, lease_ms, dead_letter (a topic, made where it is missing), random (for the jitter of retries, where the
        store is open in this process) are this reader's own, and so are these. auto_extend: while the block of a
        message is open it stays leased, for at most max_lease_ms since its delivery. ack_group_ms: the end of a block
        leaves its ack to a thread, which sends those of so many ms together (Pulsar's acknowledgmentsGroupTime); who
        dies before has not acked them, and they come again. 0, the default: it acks before the block is left. rate: it
        takes so many records a second (`subscription/flow_control.py`); max_in_flight: it has so many at a time that
        are leased and not settled. durable_leases: a lease outlives the process that has the store: its restart, a
        close, too, leaves it until its deadline, with its receipt (`Receipts`), and does not count as a failure. None:
        it does where the reader is in another process.

        ordered_by: with "key" the records of a key are handed out one after the other, in delivery order, among all
        readers, across restarts: while one is leased, or waits for its retry, the others of its key wait, and nobody
        else. Records without a key wait for none. It is so for good, from a beginning at which nothing is on its way
        (InvalidSubscription); None: as it is. By partition: records of a key that were sent to several, by number or
        priority, have no order among each other. Not with replicated.

        delay_ms: the subscription sees each record that much later, for all readers the same. replicated: other
        clusters have the subscription, too, from now on, and what is acked in one is acked in all, half a second later
        (docs/replication.md); not with delay_ms. False: they do not, and this one neither tells nor heeds what they
        have acked; None: as it is.
        Raises InvalidSubscription, InvalidTopic, UnknownTopic, UnknownPartition, OffsetOutOfRange, CorruptFile.

        Through a server what it has leased goes back when it is closed; `random` cannot be given (InvalidArgument).
        """

    def subscriptions(self, topic: str) -> list[str]:
        """The names of all subscriptions to a topic, whether somebody reads them or not. Raises UnknownTopic."""

    def groups(self, topic: str) -> list[str]:
        """The names of all consumer groups that have committed a position in a topic. Raises UnknownTopic."""

    def leased(self, topic: str, subscription: str, *, limit: int = 100) -> list[LeasedRecord]:
        """Up to `limit` records that readers of a subscription have and nobody has settled, the first to end first.

        A look, whether somebody reads it or not: nothing is leased. Raises UnknownTopic, UnknownSubscription,
        CorruptFile.
        """

    def pause(self, topic: str, subscription: str | None = None) -> None:
        """Hand out nothing to a subscription, or nothing of a topic, until `resume`. What is sent is taken, as before.

        What is leased stays so, and is acked, comes back, or ends, as ever; what an iteration has leased ahead goes
        back. Of a topic its consumers get nothing either, nor does `redrive`; what looks (`pending`, `get`), Spark and
        other clusters go on. It outlives the store, and a paused subscription does not expire. Paused twice it is
        paused once. Raises UnknownTopic, UnknownSubscription, StorageFull.

        Through a server an iteration hands out what it has leased ahead, 256 at most; a consumer what it has read.
        """

    def resume(self, topic: str, subscription: str | None = None) -> None:
        """Go on with a subscription, or with a topic: that one is paused by itself is another matter. Raises as
        `pause`."""

    def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        """Delete a subscription and all that it knows, in all partitions; one made later under its name begins anew.

        It has happened, or not, whatever crashes. force: with open readers, too, which are closed. Raises UnknownTopic,
        UnknownSubscription, TopicBusy, StorageFull.

        Through a server AnswerLost, too.
        """

    def delete_group(self, topic: str, group: str, *, force: bool = False) -> None:
        """Delete a consumer group's positions, in all partitions. Raises UnknownTopic, UnknownGroup, GroupBusy,
        StorageFull; force, and crashes, as in `delete_subscription`.

        Through a server AnswerLost, too.
        """

    def reset_subscription(self, topic: str, name: str, position: Position | datetime, *, delay_ms: int = 0) -> None:
        """Let a subscription go on at a position or time, in all partitions, for all its readers, as its `seek` does.

        delay_ms: as it is subscribed with. Raises UnknownTopic, UnknownSubscription, InvalidSubscription,
        OffsetOutOfRange, StorageFull.
        """

    def reset_group(self, topic: str, group: str, position: Position | datetime) -> None:
        """Let a consumer group go on at a position or time, in all partitions; no consumer of it is open.

        Raises UnknownTopic, UnknownGroup, GroupBusy, OffsetOutOfRange, StorageFull.
        """

    def dead_letters(
        self, topic: str, *, limit: int = 100, subscription: str | None = None, reason: str | None = None
    ) -> list[DeadLetterMessage]:
        """The oldest `limit` records of a dead-letter topic that were not sent back, and where they come from.

        subscription: only what that one gave up; reason: only where the reason has this text in it. A look: nothing is
        leased, and no reader comes of it. Raises UnknownTopic, CorruptFile.
        """

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
        """Send dead letters back to where they come from, without our headers, due at once.

        Of all, or of those that are all of what is given: records, by their ids in this topic (`message.id`);
        subscription, reason, as of `dead_letters`. target: a topic to send them to instead, of the same partition
        number, or around where it has fewer. value: of one letter, named by records, in place of its own. rate: so many
        become due a second, the first at once. Returns how many were, and why others stay. Raises UnknownTopic,
        InvalidTopic where the target is the topic, or has delayed=False and there is a rate, InvalidArgument,
        InvalidRecord, StorageFull.

        Through a server AnswerLost, too.
        """

    def discard_dead_letters(
        self,
        topic: str,
        *,
        limit: int | None = None,
        records: Sequence[RecordId | str] | None = None,
        subscription: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Let dead letters go: they are not listed any more, nor sent back. Which, as of `redrive`; how many.

        Their disk is freed by the retention of the topic. Raises UnknownTopic, InvalidRecord, StorageFull.

        Through a server AnswerLost, too.
        """

    def sync(self) -> None:
        """Make everything appended so far durable, whatever the durability."""

    def enforce_retention(self) -> int:
        """Apply the topics' retention now, and seal what is old enough; the number of segments removed.

        A thread does it every `retention_check_interval_ms`, and a roll does what needs no subscription. Raises
        CorruptFile, StorageFull, PartitionPoisoned.

        Through a server AnswerLost, too.
        """

    def held_bytes(self, topic: str, partition: int = 0) -> HeldBytes:
        """What holds the bytes of a partition on the disk: why they are not free, by the rules by which they go.

        Asked anew with each call; a partition that nobody has opened stays closed, and is judged by its checkpoints.
        docs/operations.md says what each means. Raises UnknownTopic, UnknownPartition, CorruptFile, PartitionPoisoned.
        """

    def offload(self, *, roll: bool = False) -> dict[str, Offloaded]:
        """Upload what is sealed and apply local retention now (a thread does it too): what was done, by partition.

        `roll`: seal what is being appended to first, so that everything goes up; each time a segment more, however
        small. For the topics with remote_storage_enable. What fails ends it, with all before that done. Raises
        RemoteUnavailable, RemoteConflict, CorruptFile, StorageFull, and RemoteRefused, which a store without object
        storage does, too.

        Through a server AnswerLost, too.
        """

    def backup(self, dest: str | PathLike[str]) -> Backup:
        """Make a backup of the store in the folder `dest`, beside those that are there, while it is used.

        Sealed files are linked where `dest` is in the same file system, and from the backup before where it is not, so
        a second one costs what is new. All that was sent before the call is in it. To restore, copy the folder that the
        answer names, and open the copy. A kill in the middle leaves the backups of before.

        Raises InvalidArgument where `dest` holds anything else, or lies in the store, StoreLocked where another backup
        is being made there, StorageFull, DiskFailed, CorruptFile, PartitionPoisoned.

        Through a server it is made on the server's machine. Over the socket of this user's server `dest` may be the
        path of any folder, from the root; else it is the name of one in the folder that the server was started with
        (`--backups`), and so is the answer's path. AnswerLost, too.
        """

    def confirm_clock(self) -> None:
        """The wall clock is right after a jump that `clock_jump_limit_ms` holds back."""

    def now_ms(self) -> int:
        """The clock, less what `clock_jump_limit_ms` holds back; not awaited in asyncio.

        Through a server that of the server, as far as its answers have told.
        """
