"""A store in another process, whose calls block: the names, types and errors of `afterlog.Store`.

    with afterlog.connect("/data") as store:         # or unix:/data/server.sock, http://host:7654, https://host
        store.send("mail", b"remind me", delay=30)
        with store.subscribe("mail", "sender") as subscription:
            for message in subscription:
                with message:
                    deliver(message.value)

Thread-safe; each thread that waits has a connection of its own. What the server does not answer is asked again
(`retry.py`) for as long as `timeout` says; a restart of the server is a pause. Only what needs no repeating raises
AnswerLost, where nobody knows whether it was done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from afterlog.base.arguments import seconds, spelled_out
from afterlog.base.clock import Clock, SystemClock
from afterlog.base.errors import AfterlogError, InvalidArgument, StoreClosed, StoreForked, WrongType
from afterlog.client.address import Address, address_there
from afterlog.client.call import AnswerOf, Call, Connecting, Steps, blocking
from afterlog.client.http_connection import HttpConnection, fixed_headers, tls_context
from afterlog.client.pool import Pool
from afterlog.client.readers import Readers
from afterlog.client.served_consumer import ServedConsumer, ServedSubscription
from afterlog.client.server_time import ServerTime
from afterlog.client.store_steps import StoreSteps
from afterlog.fetch.positions import EARLIEST, Position
from afterlog.subscription.reader_settings import ReaderOptions, ReaderSettings
from afterlog.surface import StoreSurface, presents

if TYPE_CHECKING:
    from afterlog.fetch.record_id import RecordId
    from afterlog.produce.producer import Producer


@presents(StoreSurface)
class ServedStore:
    """A store that another process has open. `afterlog.connect` makes it; a context manager, or `close` it."""

    def __init__(self, connecting: Connecting, *, clock: Clock, timeout_s: float, name: str) -> None:
        """name: where it is, for people."""
        self.clock = clock
        self._name = name
        self._server_time = ServerTime(clock)
        self._pool = Pool(connecting, clock, self._server_time, timeout_s)
        self._drive: Callable[[Steps[Any]], Any] = self._pool.drive
        self._steps = StoreSteps(clock, self._server_time)
        self._readers = Readers(clock, self._server_time, self._drive, self._pool.check_usable)

    def __enter__(self) -> ServedStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store at {self._name}>"

    create_topic = blocking(StoreSteps.create_topic)
    create_topics = blocking(StoreSteps.create_topics)
    topic = blocking(StoreSteps.topic)
    topics = blocking(StoreSteps.topics)
    alter_topic = blocking(StoreSteps.alter_topic)
    delete_topic = blocking(StoreSteps.delete_topic)
    purge = blocking(StoreSteps.purge)
    clean = blocking(StoreSteps.clean)

    send = blocking(StoreSteps.send)
    send_many = blocking(StoreSteps.send_many)

    cancel = blocking(StoreSteps.cancel)
    cancel_many = blocking(StoreSteps.cancel_many)
    reschedule = blocking(StoreSteps.reschedule)
    pending = blocking(StoreSteps.pending)
    get = blocking(StoreSteps.get)
    get_unique = blocking(StoreSteps.get_unique)
    cancel_unique = blocking(StoreSteps.cancel_unique)
    adopt = blocking(StoreSteps.adopt)

    schedule = blocking(StoreSteps.schedule)
    schedules = blocking(StoreSteps.schedules)
    change_schedule = blocking(StoreSteps.change_schedule)
    pause_schedule = blocking(StoreSteps.pause_schedule)
    resume_schedule = blocking(StoreSteps.resume_schedule)
    send_schedule = blocking(StoreSteps.send_schedule)
    remove_schedule = blocking(StoreSteps.remove_schedule)
    run_schedules = blocking(StoreSteps.run_schedules)

    subscriptions = blocking(StoreSteps.subscriptions)
    groups = blocking(StoreSteps.groups)
    leased = blocking(StoreSteps.leased)
    pause = blocking(StoreSteps.pause)
    resume = blocking(StoreSteps.resume)
    delete_subscription = blocking(StoreSteps.delete_subscription)
    delete_group = blocking(StoreSteps.delete_group)
    reset_subscription = blocking(StoreSteps.reset_subscription)
    reset_group = blocking(StoreSteps.reset_group)
    dead_letters = blocking(StoreSteps.dead_letters)
    redrive = blocking(StoreSteps.redrive)
    discard_dead_letters = blocking(StoreSteps.discard_dead_letters)

    stats = blocking(StoreSteps.stats)
    info = blocking(StoreSteps.info)
    sync = blocking(StoreSteps.sync)
    enforce_retention = blocking(StoreSteps.enforce_retention)
    held_bytes = blocking(StoreSteps.held_bytes)
    offload = blocking(StoreSteps.offload)
    backup = blocking(StoreSteps.backup)
    confirm_clock = blocking(StoreSteps.confirm_clock)
    check = blocking(StoreSteps.check)

    def ask(self, asked: Call[AnswerOf]) -> AnswerOf:
        """A call of the API for which there is no method. Raises what the server says."""
        return self._pool.run(asked)

    def now_ms(self) -> int:
        return self._server_time.now_ms()

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
        from afterlog.client.served_target import served_producer

        return served_producer(
            self.topic(topic), self._drive, self.clock, self._server_time, linger_ms, batch_bytes,
            idempotent, producer_id, epoch,
        )  # fmt: skip

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        partitions: Sequence[int] | None = None,
        start: Position = EARLIEST,
        auto_commit: bool = True,
    ) -> ServedConsumer:
        steps = self._drive(self._readers.consumer(self._steps, topic, group, partitions, start, auto_commit))
        reader = ServedConsumer(steps, self._pool)
        self._readers.add_consumer(reader, steps)
        return reader

    @spelled_out(ReaderOptions, ReaderSettings)
    def subscribe(self, topic: str, name: str, **options: Unpack[ReaderOptions]) -> ServedSubscription:
        steps = self._drive(self._readers.subscription(topic, name, options))
        reader = ServedSubscription(steps, self._pool, self.clock)
        self._readers.add_subscription(reader, steps)
        return reader

    def close(self) -> None:
        """Close the readers, and the connections. In a forked child it only forgets."""
        try:
            self._pool.check_usable()
        except StoreClosed:
            return
        except StoreForked:
            self._pool.close()
            return
        try:
            for reader in self._readers.all():
                with contextlib.suppress(AfterlogError):
                    reader.close()
        finally:
            self._readers.stop()
            self._pool.close()


def connecting_to(address: Address, token: str | None, ca: str | PathLike[str] | None) -> Connecting:
    """What makes connections over HTTP. Raises InvalidArgument."""
    headers = fixed_headers(token)
    tls = tls_context(ca) if address.tls else None
    return lambda: HttpConnection(address, headers, tls)


def checked_timeout(timeout: Any) -> float:
    timeout_s = seconds("timeout", timeout)
    if timeout_s is None or timeout_s <= 0:
        raise InvalidArgument(f"timeout must be more than 0 seconds, not {timeout!r}")
    return timeout_s


def checked_token(token: Any) -> str | None:
    if token is None:
        return None
    if not isinstance(token, str):
        raise WrongType(f"a token is text, not {type(token).__name__}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument("a token is one word of ASCII, as `afterlog tokens add` has shown it")
    return token


def connect(
    url: str | PathLike[str],
    *,
    token: str | None,
    timeout: float,
    ca: str | PathLike[str] | None,
    clock: Clock | None,
) -> ServedStore:
    """What `afterlog.connect` does."""
    checked, timeout_s, address = checked_token(token), checked_timeout(timeout), address_there(url)
    return ServedStore(
        connecting_to(address, checked, ca),
        clock=clock or SystemClock(),
        timeout_s=timeout_s,
        name=str(address),
    )


if TYPE_CHECKING:
    from afterlog.surface import StoreSurface

    def _has_the_surface(store: ServedStore) -> StoreSurface:
        return store
