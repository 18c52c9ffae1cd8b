"""A transport for kombu, and so a broker for Celery: what has an `eta` waits in the log, whatever the delay.

    import afterlog.integrations.celery
    app = Celery(broker="afterlog:///srv/data")          or afterlog+unix:///SOCKET, afterlog+http://host:port
    app.conf.broker_transport_options = {"lease_ms": 30_000, "max_lease_ms": …, "prefix": "celery", "token": …}

    apply_async(countdown=…, eta=…), retry ──> `eta` taken out of the headers ──> the topic of the queue, due then
    revoke ──> one that waits is cancelled, by the task's id, its unique key until it is due
    a worker's consumer ──> a thread for each queue leases what there is credit for ──> drain_events hands it out
        ──> ack: done     reject: to the dead letters     requeue: again at once     closed, or killed: it comes again

Celery gives a worker every task that has an `eta` at once, to keep in its memory until then; over Redis it comes back
to another one after a visibility timeout, so that a longer delay is run twice, and a killed worker's tasks come late.
Here a task is with no worker before it is due, and its lease is renewed for as long as a worker has it.

    PREFIX.QUEUE                 a queue; PREFIX.QUEUE.dead what was rejected from it
    PREFIX-fanout.EXCHANGE       a fanout exchange: each queue that is bound to it is a subscription, from then on
    PREFIX-bindings              who is bound to the other exchanges, in all processes: records that are due when the
                                 binding expires, with the binding as their unique key
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from queue import Empty
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from afterlog.base.errors import AfterlogError, InvalidTopic, ServerUnavailable, StoreClosed, UnknownTopic
from afterlog.base.locks import Condition, Thread
from afterlog.fetch.positions import LATEST
from afterlog.integrations.places import Priorities, StoreHandle, made
from afterlog.integrations.queue_names import NAME_MAX, topic_of
from afterlog.log.topic_settings import PRIORITIES_MAX
from afterlog.records.unique_key import KEY_BYTES_MAX
from afterlog.subscription.policy import RetryPolicy

if TYPE_CHECKING:
    from afterlog.subscription.leased_message import LeasedMessage
    from afterlog.surface import StoreSurface, SubscriptionSurface

logger = logging.getLogger("afterlog.integrations")

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
SUBSCRIPTION: Final = "celery"
CONTROL: Final = ".pidbox"
EVENTS: Final = "celeryev"
"""What workers say of themselves."""
PATIENCE_S: Final = 5.0
"""For so long a call is tried again while nobody serves the store; then Celery has its own ways. A worker that is to
end waits for each of its last calls."""
"""So end the names of the exchanges by which workers are told something."""
DEAD: Final = ".dead"
ETA: Final = "afterlog-eta"
"""The header that keeps what `eta` said."""
AHEAD: Final = 100
"""Of a queue, where a consumer sets no limit (`prefetch_count=0`)."""
TICKS_S: Final = 0.05
"""A few ticks of a store."""
LOOK_S: Final = 1.0
"""So often a thread looks whether it is to end, and the bindings of other processes are read."""
BINDING_DAYS: Final = 3_650.0
REPLY_BINDING_DAYS: Final = 1.0
"""Of queues that go with their connection, as those of replies do."""


class Handed(NamedTuple):
    """A message that a thread has leased, on its way to the consumer."""

    channel: Channel
    queue: str
    leased: LeasedMessage
    message: dict[str, Any]

    @property
    def tag(self) -> str:
        tag: str = self.message["properties"]["delivery_tag"]
        return tag

    @property
    def priority(self) -> int:
        """As with RabbitMQ the highest first."""
        return _priority(self.message)


class QoS(virtual.QoS):  # type: ignore[misc]
    """What a channel has been given and not settled. A lease takes the place of restoring by sending again."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self.leased: dict[str, LeasedMessage] = {}
        """By delivery tag."""

    def ack(self, delivery_tag: str) -> None:
        leased = self.leased.get(delivery_tag)
        if leased is not None:
            leased.subscription.ack(leased)
        self._settled(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """requeue: again at once, and redelivered; else to the dead letters."""
        leased = self.leased.get(delivery_tag)
        if leased is not None and requeue:
            leased.subscription.nack(leased, delay=0, reason="requeued")
            self.channel.requeued()
        elif leased is not None:
            leased.subscription.reject(leased, "rejected")
        self._settled(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """They go back, to whoever comes first; that counts as no failure."""
        self._flush()
        for tag in [*self._delivered]:
            leased = self.leased.get(tag)
            if leased is not None:
                give_back(leased)
            self._settled(tag)
        self._flush()
        return []

    def _settled(self, delivery_tag: str) -> None:
        leased = self.leased.pop(delivery_tag, None)
        if leased is not None:
            leased.__exit__(None, None, None)
        super().ack(delivery_tag)
        self.channel.credit_changed()


def give_back(leased: LeasedMessage) -> None:
    """Without an error: where it cannot be told it comes again when its lease ends."""
    try:
        leased.subscription.release(leased)
    except AfterlogError as error:
        logger.info("%s comes again when its lease ends: %s", leased.id, error)
    leased.__exit__(None, None, None)


class QueueConsumer:
    """A thread that leases what is due of a queue, as far as its channel has credit."""

    def __init__(self, channel: Channel, queue: str, no_ack: bool) -> None:
        self.channel, self.queue, self.no_ack = channel, queue, no_ack
        self.reader = channel.reader(queue)
        self.buffered = 0
        """Leased, and not handed out yet."""
        self.looks = 0
        """How often it has asked, or waited for credit."""
        self.is_stopping = False
        self._thread = Thread(target=self._run, name=f"afterlog-celery-{queue}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.is_stopping = True
        self.channel.credit_changed()
        self.reader.close()  # which wakes who waits in it

    def _run(self) -> None:
        transport = self.channel.connection
        try:
            while not self.is_stopping:
                room = self._room()
                received = self.reader.receive(room, timeout=LOOK_S) if room else ()
                self.looks += 1
                if received:
                    transport.hand(self, [*self.channel.read(self.queue, received)])
        except Exception as error:
            if not self.is_stopping:
                transport.fail(error)

    def _room(self) -> int:
        changed = self.channel.connection.changed
        with changed:
            room = self.channel.room(self)
            if room <= 0:
                changed.wait(LOOK_S)
                room = self.channel.room(self)
        return max(room, 0)


class Channel(virtual.Channel):  # type: ignore[misc]
    """Of one connection."""

    QoS = QoS
    supports_fanout = True
    prefix = "celery"
    lease_ms = 30_000
    max_lease_ms = 7 * DAY_MS
    from_transport_options = (
        *virtual.Channel.from_transport_options, "prefix", "lease_ms", "max_lease_ms",
    )  # fmt: skip

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self.consumers: dict[str, QueueConsumer] = {}
        """By queue."""
        self._readers: dict[str, SubscriptionSurface] = {}
        """For `basic_get`, and to count."""
        self._wait_s = 0.0
        """That the next `basic_get` waits."""
        self._made: set[str] = set()
        self._priorities = Priorities()
        self._tables: dict[str, tuple[float, list[Any]]] = {}
        """Bindings of an exchange in all processes, and when they were read."""

    # Sending.

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        due, message = _taken_out(message)
        topic = self._queue_topic(queue)
        asked: dict[str, Any] = {"deliver_after": due, "expires_after": self._use(message, due)}
        priority = _priority(message)
        if priority > 0 and (most := self._priorities.of(self._store(), topic) - 1):
            asked["priority"] = min(priority, most)
        task_id = message.get("headers", {}).get("id")
        if due is not None and isinstance(task_id, str) and task_id:  # by which a revoke finds it, while it waits
            asked |= {"unique_key": _task_key(task_id), "on_conflict": "keep"}
        self._send(topic, _to_bytes(message), **asked)

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> Any:
        """An event is dropped where nobody has the store. It would be tried again for ever, under the lock that the end
        of the worker waits for."""
        try:
            return super().basic_publish(message, exchange, routing_key, **options)
        except ServerUnavailable as error:
            if exchange != EVENTS:
                raise
            logger.info("an event is dropped: %s", error)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **options: Any) -> None:
        self._send(self._fanout_topic(exchange), _to_bytes(message))
        if exchange.endswith(CONTROL):
            for task_id in self._revoked(message):
                self._cancel(task_id)

    def _use(self, message: dict[str, Any], due: datetime | None) -> timedelta | None:
        """How long after it is due it is of use, where it says when it expires."""
        expiration = message["properties"].get("expiration")
        if expiration is None:
            return None
        now = datetime.fromtimestamp(self._store().clock.now_ms() / 1_000, UTC)
        waits = timedelta() if due is None else max(due - now, timedelta())
        return max(timedelta(milliseconds=int(expiration)) - waits, timedelta(milliseconds=1))

    def _revoked(self, message: dict[str, Any]) -> list[str]:
        """The tasks that a broadcast revokes, with all workers."""
        try:
            said = self.message_to_python(message).payload
            found = said["arguments"]["task_id"] if said["method"] == "revoke" and not said.get("destination") else []
            return [found] if isinstance(found, str) else [each for each in found if isinstance(each, str)]
        except Exception as error:  # of whoever speaks otherwise: workers read it all the same
            logger.info("a broadcast that this transport does not read: %s", error)
            return []

    def _cancel(self, task_id: str) -> None:
        """A task that waits, in whichever queue, is nobody's any more."""
        store, start = self._store(), f"{self.prefix}."
        for name in [topic.name for topic in store.topics()]:
            if name.startswith(start) and not name.endswith(DEAD):
                with suppress(UnknownTopic, InvalidTopic):  # deleted meanwhile; one that uploads has no unique keys
                    held = store.get_unique(name, _task_key(task_id))
                    if held is not None:
                        store.cancel(held.id)

    def _send(self, topic: str, value: bytes, **options: Any) -> None:
        try:
            self._store().send(topic, value, **options)
        except UnknownTopic:  # deleted by somebody since
            self._made.discard(topic)
            raise

    # Receiving.

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if queue not in self.consumers:
            self.consumers[queue] = QueueConsumer(self, queue, no_ack)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._end(queue)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.credit_changed()

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """One message at once; Empty where none is due."""
        if queue not in self.connection.fanout and not self._is_there(self._name(queue)):
            raise Empty
        timeout_s, self._wait_s = self._wait_s, 0.0
        while received := self._reader(queue).receive(1, timeout=timeout_s):
            for handed in self.read(queue, received):
                return self.given(handed)
        raise Empty

    def given(self, handed: Handed) -> dict[str, Any]:
        """To a consumer, who settles it by its tag."""
        self.qos.leased[handed.tag] = handed.leased
        return handed.message

    def read(self, queue: str, received: Iterable[LeasedMessage]) -> Iterator[Handed]:
        """Those that are messages. From here on their leases are renewed."""
        for leased in received:
            leased.__enter__()
            message = self._read(leased)
            if message is not None:
                yield Handed(self, queue, leased, message)

    def _read(self, leased: LeasedMessage) -> dict[str, Any] | None:
        """As kombu has it. None of what cannot be read: then it is settled."""
        try:
            message: dict[str, Any] = json.loads(leased.value or b"")
            properties = message["properties"]
        except Exception as error:  # also of JSON that is too deep; it would come again, and again be unreadable
            logger.error("%s is no message: to the dead letters", leased.id, exc_info=error)
            with leased:
                leased.reject(f"{type(error).__name__}: {error}")
            return None
        # Another one each time: that of an earlier delivery settles nothing any more.
        tag = f"{leased.id}/{leased.lease_number}"
        info = properties.get("delivery_info") or {}
        message["properties"] = {
            **properties, "delivery_tag": tag, "delivery_info": {**info, "redelivered": leased.redelivery_count > 0},
        }  # fmt: skip
        return message

    def room(self, consumer: QueueConsumer) -> int:
        """How many more of a queue may be leased."""
        estimate = self.qos.can_consume_max_estimate()
        limit = AHEAD if estimate is None else min(estimate, AHEAD)
        return int(limit) - consumer.buffered

    def requeued(self) -> None:
        """It is due by the next tick, for which who asks at once would not wait."""
        self._wait_s = TICKS_S

    def credit_changed(self) -> None:
        if self.connection is not None:
            with self.connection.changed:
                self.connection.changed.notify_all()

    # Queues and exchanges.

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """A queue's own options as RabbitMQ has them: its `max_priority` as `x-max-priority`."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **options)
        return prepared

    def _new_queue(self, queue: str, **options: Any) -> None:
        if options.get("auto_delete") or options.get("exclusive"):
            self.connection.passing.add(queue)
        most = (options.get("arguments") or {}).get("x-max-priority")
        if isinstance(most, int) and most > 0:
            self.connection.max_priorities[queue] = min(most, PRIORITIES_MAX - 1)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return queue in self.connection.fanout or self._is_there(self._name(queue))

    def _size(self, queue: str) -> int:
        if queue not in self.connection.fanout and not self._is_there(self._name(queue)):
            return 0
        stats = self._reader(queue).stats()
        return stats.due + stats.retrying

    def _purge(self, queue: str) -> int:
        """What is due and what is not; what consumers have stays with them, and they connect anew."""
        if queue in self.connection.fanout or not self._is_there(self._name(queue)):
            return 0
        reader = self._readers.pop(queue, None)
        if reader is not None:
            reader.close()
        return self._store().purge(self._name(queue), pending=True, force=True)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        store = self._store()
        if self.typeof(exchange).type == "fanout":
            topic = self.connection.fanout[queue] = self._fanout_topic(exchange)
            store.subscribe(topic, topic_of("", queue), start=LATEST).close()
            return
        self._tables.pop(exchange, None)
        said = [routing_key or "", pattern or "", queue]
        days = REPLY_BINDING_DAYS if queue in self.connection.passing else BINDING_DAYS
        store.send(
            self._bindings_topic(), _to_bytes(said), key=exchange.encode(), delay=days * 86_400,
            unique_key=_binding(exchange, said), on_conflict="keep",
        )  # fmt: skip

    def get_table(self, exchange: str) -> list[Any]:
        """The bindings of all processes, at most a second old, and of this one."""
        own = [tuple(meta) for meta in self.state.exchanges.get(exchange, {}).get("table", ())]
        now_s = self._store().clock.monotonic_s()
        read_s, table = self._tables.get(exchange, (-LOOK_S, []))
        if now_s - read_s >= LOOK_S:
            found = self._store().pending(self._bindings_topic(), key=exchange.encode(), limit=65_536)
            table = [tuple(json.loads(record.value or b"[]")) for record in found]
            self._tables[exchange] = now_s, table
        return [*table, *(meta for meta in own if meta not in table)]

    def _delete(self, queue: str, exchange: str = "", *meta: Any, **options: Any) -> None:
        store = self._store()
        self._end(queue)
        if queue in self.connection.fanout:
            store.delete_subscription(self.connection.fanout.pop(queue), topic_of("", queue), force=True)
            return
        held = store.get_unique(self._bindings_topic(), _binding(exchange, [*(each or "" for each in meta)]))
        if held is not None:
            store.cancel(held.id)
        self._tables.pop(exchange, None)
        for name in (self._name(queue), self._dead(queue)):
            self._made.discard(name)
            if self._is_there(name):
                store.delete_topic(name, force=True)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        if if_empty and self._size(queue):
            return
        is_bound = any(True for _ in self.state.queue_bindings(queue))
        super().queue_delete(queue, if_unused, False, **options)
        if not is_bound:
            self._delete(queue)

    def close(self) -> None:
        """What was leased and not handed out goes back, and what was handed out and not settled."""
        if not self.closed:
            for queue in [*self.consumers, *self._readers]:
                self._end(queue)
        super().close()

    # Inside.

    def reader(self, queue: str) -> SubscriptionSurface:
        """A new one."""
        name = SUBSCRIPTION if queue not in self.connection.fanout else topic_of("", queue)
        topic = self.connection.fanout.get(queue) or self._queue_topic(queue)
        dead = None if queue in self.connection.fanout else self._topic(self._dead(queue), retention_ms=7 * DAY_MS)
        return self._store().subscribe(
            topic, name, dead_letter=dead, retry=RetryPolicy(attempts=None), lease_ms=self.lease_ms,
            max_lease_ms=self.max_lease_ms, durable_leases=True,
        )  # fmt: skip

    def _reader(self, queue: str) -> SubscriptionSurface:
        if queue not in self._readers:
            self._readers[queue] = self.reader(queue)
        return self._readers[queue]

    def _end(self, queue: str) -> None:
        """Nobody consumes it here any more."""
        consumer = self.consumers.pop(queue, None)
        if consumer is not None:
            consumer.is_stopping = True  # so that its thread hands over nothing behind what is taken back
            self.connection.take_back(consumer)
            consumer.stop()
        reader = self._readers.pop(queue, None)
        if reader is not None:
            reader.close()

    def _store(self) -> StoreSurface:
        store: StoreSurface = self.connection.store()
        return store

    def _name(self, queue: str) -> str:
        return topic_of(f"{self.prefix}.", queue)

    def _dead(self, queue: str) -> str:
        return f"{self._name(queue)[: NAME_MAX - len(DEAD)]}{DEAD}"

    def _queue_topic(self, queue: str) -> str:
        if queue in self.connection.passing:
            return self._topic(self._name(queue), retention_ms=HOUR_MS)
        priorities = self.connection.max_priorities.get(queue, 0) + 1
        return self._topic(self._name(queue), retention_by_subscriptions=True, priorities=priorities)

    def _fanout_topic(self, exchange: str) -> str:
        return self._topic(
            topic_of(f"{self.prefix}-fanout.", exchange), retention_ms=HOUR_MS, subscription_expiration_ms=HOUR_MS
        )

    def _bindings_topic(self) -> str:
        return self._topic(f"{self.prefix}-bindings", retention_ms=HOUR_MS)

    def _is_there(self, name: str) -> bool:
        if name in self._made:
            return True
        try:
            self._store().topic(name)
        except UnknownTopic:
            return False
        return True

    def _topic(self, name: str, **settings: Any) -> str:
        if name not in self._made:
            self._made.add(made(self._store(), name, **settings))
        return name


class Transport(virtual.Transport):  # type: ignore[misc]
    """kombu's, without an event loop: a worker waits in `drain_events`, and is woken by what is due."""

    Channel = Channel
    can_parse_url = True
    driver_type = "afterlog"
    driver_name = "afterlog"
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )
    connection_errors = (*virtual.Transport.connection_errors, ServerUnavailable, StoreClosed)

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.changed = Condition()
        self.fanout: dict[str, str] = {}
        """Queues that are bound to a fanout exchange, and its topic."""
        self.passing: set[str] = set()
        """Queues that go with their connection."""
        self.max_priorities: dict[str, int] = {}
        """Of the queues that are declared with `x-max-priority`."""
        self._handed: list[Handed] = []
        self._error: Exception | None = None
        options = client.transport_options
        timeout_s = options.get("timeout", PATIENCE_S)
        self._handle = StoreHandle(options.get("store") or _place(client), options.get("token"), timeout_s)

    def driver_version(self) -> str:
        from afterlog import __version__

        return __version__

    def store(self) -> StoreSurface:
        return self._handle.get()

    def establish_connection(self) -> Any:
        """The store is asked, so that a wrong place is told here, and another one tried where there is one."""
        try:
            self.store().topics()
        except AfterlogError as error:
            raise ServerUnavailable(str(error)) from error
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self._handle.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Hand out what is there, as far as there is credit. TimeoutError where nothing came for so many seconds."""
        clock = self.store().clock
        end_s = None if timeout is None else clock.monotonic_s() + timeout
        has_given = False
        while True:
            with self.changed:
                handed = self._next()
                if handed is None:
                    if has_given:
                        return
                    left_s = LOOK_S if end_s is None else end_s - clock.monotonic_s()
                    if left_s <= 0:
                        raise TimeoutError
                    self.changed.wait(min(left_s, LOOK_S))
                    continue
            has_given = True
            message = handed.channel.given(handed)
            consumer = handed.channel.consumers.get(handed.queue)
            if consumer is not None and consumer.no_ack:
                handed.channel.qos.ack(handed.tag)
            self._deliver(message, handed.queue)

    # Of the threads of consumers.

    def hand(self, consumer: QueueConsumer, handed: list[Handed]) -> None:
        """Of what waits the highest priority is next, and of the same who came first."""
        with self.changed:
            if not consumer.is_stopping:
                consumer.buffered += len(handed)
                self._handed = sorted([*self._handed, *handed], key=lambda each: -each.priority)
                self.changed.notify_all()
                return
        for each in handed:
            give_back(each.leased)

    def fail(self, error: Exception) -> None:
        """A reader did: `drain_events` raises it."""
        with self.changed:
            self._error = error
            self.changed.notify_all()

    def take_back(self, consumer: QueueConsumer) -> None:
        """What it has leased, and nobody was handed."""
        with self.changed:
            mine = [each for each in self._handed if (each.channel, each.queue) == (consumer.channel, consumer.queue)]
            for each in mine:
                self._handed.remove(each)
        for each in mine:
            give_back(each.leased)

    def _next(self) -> Handed | None:
        """What the first channel that may have more is given; within the lock."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        for handed in self._handed:
            if handed.channel.qos.can_consume():
                self._handed.remove(handed)
                consumer = handed.channel.consumers.get(handed.queue)
                if consumer is not None:
                    consumer.buffered -= 1
                    self.changed.notify_all()
                return handed
        return None


def _place(client: Any) -> str:
    """What kombu made of the URL: it cuts off what is before a plus, and takes those of a fail-over apart."""
    url: str = client.hostname or ""
    if url.startswith(("unix:", "http://", "https://")):
        return f"afterlog+{url}"
    return url or f"afterlog:///{(client.virtual_host or '').lstrip('/')}"


def _taken_out(message: dict[str, Any]) -> tuple[datetime | None, dict[str, Any]]:
    """When it is due, and the message without that: the caller's own stays as it is."""
    headers = message.get("headers") or {}
    eta = headers.get("eta")
    if not eta:
        return None, message
    due = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    return due, {**message, "headers": {**headers, "eta": None, ETA: due.isoformat()}}


def _task_key(task_id: str) -> bytes:
    """The unique key of a task that waits."""
    return task_id.encode()[:KEY_BYTES_MAX]


def _to_bytes(said: Any) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def _priority(message: dict[str, Any]) -> int:
    priority = message["properties"].get("priority")
    return priority if isinstance(priority, int) else 0


def _binding(exchange: str, said: Iterable[Any]) -> bytes:
    """Its unique key."""
    return sha256(_to_bytes([exchange, *said])).digest()


TRANSPORT_ALIASES["afterlog"] = "afterlog.integrations.celery:Transport"
