"""A broker for Dramatiq: what is due later waits in the log, and a worker has nothing of it before.

    dramatiq.set_broker(AfterlogBroker("afterlog:///srv/data"))

    send, send_with_options(delay=…) ──> before_enqueue ──> the topic of the queue, due then
    a retry (Retries, with its backoff) ──> the same
    a worker's consumer ──> leased, as many as it prefetches ──> ack: done    nack, or unreadable ──> the dead letters
                                └── renewed until one of these, so that what is slow is not run twice;
                                    after a kill of the worker it comes again when the lease has ended

A queue is a topic, `dramatiq.QUEUE`, and what is given up `dramatiq.QUEUE.XQ`. There is no delay queue: Dramatiq's own
brokers hand a worker what is due later, a thousand messages for each of its threads, to keep in its memory.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, cast

from dramatiq import Broker, Consumer, Message, MessageProxy, Middleware
from dramatiq.common import q_name, xq_name
from dramatiq.errors import BrokerConnectionError, ConnectionClosed, ConnectionFailed, QueueJoinTimeout, QueueNotFound

from afterlog.base.environment import process_id
from afterlog.base.errors import AfterlogError, StoreClosed
from afterlog.base.locks import Condition
from afterlog.integrations.places import StoreHandle, made
from afterlog.log.cancel_result import CancelResult
from afterlog.subscription.policy import RetryPolicy

if TYPE_CHECKING:
    from afterlog.subscription.leased_message import LeasedMessage
    from afterlog.surface import StoreSurface, SubscriptionSurface

logger = logging.getLogger("afterlog.integrations")

DAY_MS: Final = 86_400_000
SUBSCRIPTION: Final = "dramatiq"
RECORD_ID: Final = "afterlog_id"
"""The option of a message that names its record: of what `enqueue` has answered, and of what a worker has."""
FOR_EVER: Final = RetryPolicy(attempts=None)
"""Dramatiq counts attempts itself (`Retries`); where a lease ended a worker died, and the message did not fail."""


class AfterlogBroker(Broker):
    """Dramatiq's broker interface over a store.

    store: ``afterlog:///FOLDER``, ``afterlog+unix:///SOCKET`` or ``afterlog+http(s)://host:port``
    (`afterlog.integrations.places`), or a store that is open. A store of a URL is opened in each process when it is
    first used, also behind a fork. token: for a server's port. middleware: as Dramatiq's brokers have it.

    prefix: of the topics, so that other topics of the store are left alone. lease_ms: so long after the death of its
    worker a message comes again; while the worker lives it is renewed, up to max_lease_ms. dead_message_ttl: so many ms
    what was given up stays.
    """

    def __init__(
        self,
        store: str | PathLike[str] | StoreSurface,
        *,
        token: str | None = None,
        middleware: list[Middleware] | None = None,
        prefix: str = "dramatiq.",
        lease_ms: int = 30_000,
        max_lease_ms: int = 7 * DAY_MS,
        dead_message_ttl: int = 7 * DAY_MS,
    ) -> None:
        """Opens nothing. Raises InvalidArgument, WrongType."""
        super().__init__(middleware=middleware)
        self.queues: dict[str, str] = {}
        """Declared ones, and the topics that they are."""
        self.prefix = prefix
        self._handle = StoreHandle(store, token)
        self._lease_ms, self._max_lease_ms, self._dead_ms = lease_ms, max_lease_ms, dead_message_ttl
        self._process = process_id()
        self._lock = Condition()
        self._made: set[str] = set()
        """Queues whose topics are known to be there, in this process."""
        self._readers: dict[str, SubscriptionSurface] = {}
        """One for each queue that this process consumes. It outlives consumers, which come and go with errors."""

    # What Dramatiq asks of a broker.

    def declare_queue(self, queue_name: str) -> None:
        """Nothing is opened, or made, before the queue is used."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = self.prefix + queue_name
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """It is durable when this returns, and due after `delay` ms; the answer names its record, for `cancel`.

        Raises as `store.send` does, and BrokerConnectionError where the store cannot be reached.
        """
        message = message.copy(queue_name=q_name(message.queue_name))  # of a delay queue of an earlier broker
        message.options.pop(RECORD_ID, None)
        self.declare_queue(message.queue_name)
        self.emit_before("enqueue", message, delay)
        with _connection_errors(ConnectionFailed):
            topic = self._topic(message.queue_name)
            sent = self._store().send(topic, message.encode(), delay=None if delay is None else max(delay, 0) / 1_000)
        self.emit_after("enqueue", message, delay)
        return message.copy(options={RECORD_ID: str(sent)})

    def cancel(self, message: Message[Any]) -> bool:
        """Take back what `enqueue`, or an actor's `send_with_options`, has answered, so that it never runs.

        False where it is due already, or was cancelled. Raises ValueError of a message that was not enqueued here.
        """
        record_id = message.options.get(RECORD_ID)
        if record_id is None:
            raise ValueError(f"{message} was not enqueued by this broker: take what send_with_options has answered")
        with _connection_errors(ConnectionFailed):
            return self._store().cancel(record_id) is CancelResult.CANCELLED

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        """Raises QueueNotFound, and BrokerConnectionError where the store cannot be reached."""
        self._check_declared(queue_name)
        with _connection_errors(ConnectionFailed):
            return _AfterlogConsumer(self, queue_name, self._reader(queue_name), prefetch, timeout / 1_000)

    def flush(self, queue_name: str) -> None:
        """Drop what is due and what is not. What a worker has is run to its end. Raises QueueNotFound.

        Readers of the queue are closed: consumers get a connection error, and begin anew.
        """
        self._check_declared(queue_name)
        with _connection_errors(ConnectionFailed):
            self._store().purge(self._topic(queue_name), pending=True, force=True)
        with self._lock:
            self._readers.pop(queue_name, None)

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until nothing of a queue is left, what is due later included; for tests.

        It is looked at every `interval` ms. Raises QueueNotFound, QueueJoinTimeout.
        """
        self._check_declared(queue_name)
        clock = self._store().clock
        deadline_s = None if timeout is None else clock.monotonic_s() + timeout / 1_000
        while self._left(queue_name):
            if deadline_s is not None and clock.monotonic_s() >= deadline_s:
                raise QueueJoinTimeout(queue_name)  # type: ignore[no-untyped-call]
            with self._lock:
                self._lock.wait(interval / 1_000)

    def close(self) -> None:
        """What this process has leased and not begun goes back."""
        with self._lock:
            readers = [*self._readers.values()] if self._process == process_id() else []
            self._readers, self._made = {}, set()
        for reader in readers:
            reader.close()
        self._handle.close()

    # Inside.

    def _store(self) -> StoreSurface:
        """Of this process: readers of the one that was forked are not this one's."""
        if self._process != process_id():
            self._process, self._lock = process_id(), Condition()
            self._readers, self._made = {}, set()
        return self._handle.get()

    def _check_declared(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)  # type: ignore[no-untyped-call]

    def _topic(self, queue_name: str) -> str:
        """Of a queue, made where it is missing. What no worker has acked stays, also where there never was one."""
        topic = self.queues[queue_name]
        store = self._store()
        if queue_name not in self._made:
            made(store, topic, retention_by_subscriptions=True)
            made(store, xq_name(topic), retention_ms=self._dead_ms)
            self._made.add(queue_name)
        return topic

    def _reader(self, queue_name: str) -> SubscriptionSurface:
        topic = self._topic(queue_name)
        with self._lock:
            found = self._readers.get(queue_name)
            if found is None:
                found = self._readers[queue_name] = self._store().subscribe(
                    topic, SUBSCRIPTION, dead_letter=xq_name(topic), retry=FOR_EVER, lease_ms=self._lease_ms,
                    max_lease_ms=self._max_lease_ms, durable_leases=True,
                )  # fmt: skip
            return found

    def _lost(self, queue_name: str, reader: SubscriptionSurface) -> None:
        """It was closed: the next consumer gets another one."""
        with self._lock:
            if self._readers.get(queue_name) is reader:
                del self._readers[queue_name]

    def _left(self, queue_name: str) -> int:
        """Messages that are due, due later, or with a worker."""
        with _connection_errors(ConnectionFailed):
            stats = self._reader(queue_name).stats()
        return stats.pending + stats.due + stats.leased + stats.retrying


class _LeasedProxy(MessageProxy):
    """A message that a worker has, and its lease."""

    def __init__(self, message: Message[Any], leased: LeasedMessage, consumer: _AfterlogConsumer) -> None:
        super().__init__(message)
        self.leased = leased
        self.consumer = consumer
        """Which counts it among what it has fetched."""

    @property
    def reason(self) -> str:
        """Why it is given up."""
        error = self._exception
        return "" if error is None else f"{type(error).__name__}: {error}"


class _AfterlogConsumer(Consumer):
    """Of one thread, but for `ack` and `nack`, which come from those of the workers, also of messages that an earlier
    consumer of the queue gave, by a reader that is closed since: so all is settled by the one that is open.
    """

    def __init__(
        self,
        broker: AfterlogBroker,
        queue_name: str,
        reader: SubscriptionSurface,
        prefetch: int,
        timeout_s: float,
    ) -> None:
        self._broker = broker
        self._queue_name = queue_name
        self._reader = reader
        self._prefetch = max(prefetch, 1)
        self._timeout_s = timeout_s
        self._ahead: deque[LeasedMessage] = deque()
        """Leased, and not handed out."""
        self._changed = Condition()
        self._given = 0
        """Handed out, and not settled."""

    def __next__(self) -> MessageProxy | None:
        while True:
            if not self._ahead and not self._fetch():
                return None
            leased = self._ahead.popleft()
            try:
                message = Message.decode(leased.value or b"")
            except Exception as error:  # whatever the encoder raises; it would come again, and again be unreadable
                logger.error("%s of %s is no message: to the dead letters", leased.id, self._queue_name, exc_info=error)
                with self._errors(), leased:
                    leased.reject(f"{type(error).__name__}: {error}")
                continue
            message.options[RECORD_ID] = str(leased.id)
            with self._changed:
                self._given += 1
            return _LeasedProxy(message, leased, self)

    def ack(self, message: MessageProxy) -> None:
        mine = cast(_LeasedProxy, message)
        with self._errors():
            self._reader.ack(mine.leased)
        self._settled(mine)

    def nack(self, message: MessageProxy) -> None:
        """It is given up: to the dead letters, with the error."""
        mine = cast(_LeasedProxy, message)
        with self._errors():
            self._reader.reject(mine.leased, mine.reason)
        self._settled(mine)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """They go out again at once; it counts as no failure."""
        for message in messages:
            mine = cast(_LeasedProxy, message)
            with self._errors():
                self._reader.release(mine.leased)
            self._settled(mine)

    def close(self) -> None:
        """What was not handed out goes back."""
        while self._ahead:
            leased = self._ahead.popleft()
            with contextlib.suppress(AfterlogError), leased:
                leased.subscription.release(leased)

    def _fetch(self) -> bool:
        """Lease what there is room for; whether there was anything within the timeout."""
        with self._changed:
            if self._given >= self._prefetch:
                self._changed.wait(self._timeout_s)
            room = self._prefetch - self._given
        if room <= 0:
            return False
        with self._errors():
            received = self._reader.receive(room, timeout=self._timeout_s)
        for leased in received or ():
            leased.__enter__()  # from here on its lease is renewed
            self._ahead.append(leased)
        return bool(self._ahead)

    def _settled(self, mine: _LeasedProxy) -> None:
        """Its lease is not renewed any more, and there is room for another."""
        mine.leased.__exit__(None, None, None)
        consumer = mine.consumer
        with consumer._changed:
            consumer._given -= 1
            consumer._changed.notify_all()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with _connection_errors(ConnectionClosed):
                yield
        except ConnectionClosed as error:
            if isinstance(error.__cause__, StoreClosed):
                self._broker._lost(self._queue_name, self._reader)
            raise


@contextlib.contextmanager
def _connection_errors(kind: type[BrokerConnectionError]) -> Iterator[None]:
    """What may go better later is what Dramatiq waits for: other errors go on their way."""
    try:
        yield
    except AfterlogError as error:
        if error.retriable or isinstance(error, StoreClosed):
            raise kind(str(error)) from error
        raise
