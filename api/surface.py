"""What a store is, whoever has the folder: this process (`Store`), or another one that is asked (`ServedStore`).

A program that is written for these runs on both; one suite of tests runs on both (tests/conformance). mypy proves,
where each of the classes ends, that it has them; that the asyncio ones have the same names and parameters, a test does.
What the methods do, answer and raise is said at `Store`, `Consumer`, `Producer` and `Subscription`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, Unpack

from afterlog.base.keywords import spelled_out
from afterlog.subscription.reader_settings import ReaderOptions, ReaderSettings

if TYPE_CHECKING:
    from os import PathLike

    from afterlog.base.clock import Clock
    from afterlog.fetch.message import Message, ScheduledRecord
    from afterlog.fetch.message_columns import Columns
    from afterlog.fetch.positions import Position
    from afterlog.fetch.record_id import RecordId
    from afterlog.log.cancel_result import CancelResult
    from afterlog.log.cancellation import Int8Array
    from afterlog.log.held import HeldBytes
    from afterlog.log.topic_settings import TopicChanges, TopicSettings
    from afterlog.records.batch import Headers
    from afterlog.records.columns import Int64Array
    from afterlog.records.deliver_after import DelayColumn
    from afterlog.records.instants import InstantColumn
    from afterlog.records.moments import Delay, Instant
    from afterlog.records.unique_key import OnConflict
    from afterlog.store.backup import Backup
    from afterlog.store.schedule_document import Schedule
    from afterlog.subscription.answers import AckResult, ReceiptResult, RedriveResult, SubscriptionStats
    from afterlog.subscription.draining import Draining
    from afterlog.subscription.leased_message import LeasedMessage
    from afterlog.subscription.received import Receipts, Received
    from afterlog.subscription.redrive import DeadLetterMessage
    from afterlog.tier.offload import Offloaded

    MessagesToSettle: TypeAlias = LeasedMessage | Sequence[LeasedMessage] | Receipts


class Closable(Protocol):
    """A block closes it, and so does `close`, as often as it is called."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def close(self) -> None: ...


class TopicSurface(Protocol):
    """What `store.topic(name)` gives."""

    name: str

    @property
    def settings(self) -> TopicSettings: ...
    @property
    def partition_count(self) -> int: ...
    @property
    def check_instants(self) -> bool: ...
    def partition_of(self, key: bytes | None) -> int: ...
    def checked_partition(self, number: int) -> int: ...


class ProducerSurface(Closable, Protocol):
    """What `store.producer` gives."""

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
    ) -> Future[RecordId]: ...
    def flush(self) -> None: ...


class ConsumerSurface(Closable, Protocol):
    """What `store.consumer` gives."""

    topic: str

    def __iter__(self) -> Iterator[Message]: ...
    def poll(self, max_records: int = 500, timeout: float | None = 0.0) -> list[Message]: ...
    def poll_columns(self, max_records: int = 65_536, timeout: float | None = 0.0) -> Columns: ...
    def seek(self, position: Position, partition: int | None = None) -> None: ...
    def commit(self) -> None: ...
    def positions(self) -> dict[int, int]: ...
    def committed(self) -> dict[int, int | None]: ...
    def lag(self) -> int: ...
    @property
    def closed(self) -> bool: ...


class SubscriptionSurface(Closable, Protocol):
    """What `store.subscribe` gives."""

    topic: str
    name: str

    def __iter__(self) -> Iterator[LeasedMessage]: ...
    def receive(self, max_records: int = 100, timeout: float | None = 0.0) -> Received: ...
    def ack(self, message: LeasedMessage) -> AckResult: ...
    def ack_many(self, messages: MessagesToSettle) -> AckResult: ...
    def nack(self, messages: MessagesToSettle, *, delay: Delay | None = None, reason: str = "") -> ReceiptResult: ...
    def reject(self, messages: MessagesToSettle, reason: str = "") -> ReceiptResult: ...
    def release(self, messages: MessagesToSettle) -> ReceiptResult: ...
    def extend(self, messages: MessagesToSettle, *, lease_ms: int | None = None) -> ReceiptResult: ...
    def seek(self, position: Position | datetime, partition: int | None = None) -> None: ...
    def stats(self) -> SubscriptionStats: ...
    def drain(self, timeout: float | None = None) -> bool: ...
    def draining_on(self, signal: int, *, timeout: float | None = None) -> Draining: ...


class StoreSurface(Closable, Protocol):
    """What `afterlog.open` and `afterlog.connect` give."""

    clock: Clock

    def create_topic(
        self, name: str, partitions: int = 1, delayed: bool = True, **settings: Unpack[TopicChanges]
    ) -> TopicSurface: ...
    def create_topics(
        self, names: Iterable[str], partitions: int = 1, delayed: bool = True, **settings: Unpack[TopicChanges]
    ) -> Sequence[TopicSurface]: ...
    def topic(self, name: str) -> TopicSurface: ...
    def topics(self) -> Sequence[TopicSurface]: ...
    def alter_topic(
        self, name: str, *, partitions: int | None = None, **settings: Unpack[TopicChanges]
    ) -> TopicSurface: ...
    def delete_topic(self, name: str, *, force: bool = False) -> None: ...
    def purge(
        self,
        topic: str,
        upto: Position = ...,
        *,
        pending: bool = False,
        partition: int | None = None,
        force: bool = False,
    ) -> int: ...

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
    ) -> RecordId: ...
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
    ) -> Int64Array: ...
    def producer(
        self,
        topic: str,
        *,
        linger_ms: int | None = None,
        batch_bytes: int | None = None,
        idempotent: bool = False,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> ProducerSurface: ...

    def cancel(self, record: RecordId | str) -> CancelResult: ...
    def cancel_many(self, topic: str, partition: int, offsets: Int64Array) -> Int8Array: ...
    def reschedule(
        self, record: RecordId | str, *, delay: Delay | None = None, deliver_after: Instant | None = None
    ) -> RecordId: ...
    def pending(
        self, topic: str, *, limit: int = 100, key: bytes | None = None, partition: int | None = None
    ) -> list[ScheduledRecord]: ...

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
    ) -> Schedule: ...
    def schedules(self, topic: str | None = None) -> list[Schedule]: ...
    def change_schedule(
        self,
        name: str,
        *,
        cron: str = ...,
        timezone: str = ...,
        every: timedelta = ...,
        value: bytes | None = ...,
        key: bytes | None = ...,
        headers: Headers = ...,
        missed: Literal["skip", "one", "all"] = ...,
    ) -> Schedule: ...
    def pause_schedule(self, name: str) -> Schedule: ...
    def resume_schedule(self, name: str) -> Schedule: ...
    def remove_schedule(self, name: str) -> None: ...
    def run_schedules(self) -> int: ...

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        partitions: Sequence[int] | None = None,
        start: Position = ...,
        auto_commit: bool = True,
    ) -> ConsumerSurface: ...
    @spelled_out(ReaderOptions, ReaderSettings)
    def subscribe(self, topic: str, name: str, **options: Unpack[ReaderOptions]) -> SubscriptionSurface: ...
    def subscriptions(self, topic: str) -> list[str]: ...
    def groups(self, topic: str) -> list[str]: ...
    def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None: ...
    def delete_group(self, topic: str, group: str, *, force: bool = False) -> None: ...
    def reset_subscription(
        self, topic: str, name: str, position: Position | datetime, *, delay_ms: int = 0
    ) -> None: ...
    def reset_group(self, topic: str, group: str, position: Position | datetime) -> None: ...
    def dead_letters(self, topic: str, *, limit: int = 100) -> list[DeadLetterMessage]: ...
    def redrive(self, topic: str, *, limit: int | None = None, target: str | None = None) -> RedriveResult: ...

    def sync(self) -> None: ...
    def enforce_retention(self) -> int: ...
    def held_bytes(self, topic: str, partition: int = 0) -> HeldBytes: ...
    def offload(self) -> dict[str, Offloaded]: ...
    def backup(self, dest: str | PathLike[str]) -> Backup: ...
    def confirm_clock(self) -> None: ...
    def now_ms(self) -> int: ...


if TYPE_CHECKING:
    from afterlog.store.store import Store

    def _has_it(store: Store) -> StoreSurface:
        """That the embedded engine has all of it is what mypy proves here; the client proves it of itself."""
        return store
