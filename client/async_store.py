"""A store in another process, in asyncio: the names of `afterlog.aio`, over aiohttp.

    async with afterlog.aio.connect("/data") as store:
        await store.send("mail", b"remind me", delay=30)

Who waits costs a connection, and no thread. Leases of messages in handlers are kept by a thread all the same, with a
connection of its own: a handler may hold up its event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from afterlog.base.arguments import spelled_out
from afterlog.base.clock import Clock, SystemClock
from afterlog.base.errors import AfterlogError
from afterlog.client.address import address_there
from afterlog.client.async_pool import AsyncPool
from afterlog.client.async_readers import AsyncServedConsumer, AsyncServedSubscription
from afterlog.client.call import AnswerOf, Call, Steps, awaited
from afterlog.client.http_connection import fixed_headers, tls_context
from afterlog.client.pool import Pool
from afterlog.client.readers import Readers
from afterlog.client.served_store import checked_timeout, checked_token, connecting_to
from afterlog.client.server_time import ServerTime
from afterlog.client.store_steps import StoreSteps
from afterlog.fetch.positions import EARLIEST, Position
from afterlog.store.aio_calls import Calls
from afterlog.store.awaiting import AsyncProducer, Closing, Opening
from afterlog.subscription.reader_settings import ReaderOptions, ReaderSettings
from afterlog.surface import StoreSurface, presents

if TYPE_CHECKING:
    from afterlog.client.served_topic import ServedTopic


@presents(StoreSurface)
class AsyncServedStore(Closing):
    """A store that another process has open. `afterlog.aio.connect` makes it."""

    def __init__(self, pool: AsyncPool, blocking: Pool, clock: Clock, server_time: ServerTime, name: str) -> None:
        """blocking: for what threads ask."""
        self.clock = clock
        self._name = name
        self._server_time = server_time
        self._pool = pool
        self._drive: Any = pool.drive
        self._blocking = blocking
        self._drive_now: Callable[[Steps[Any]], Any] = blocking.drive
        self._steps = StoreSteps(clock, server_time)
        self._readers = Readers(clock, server_time, blocking.drive, pool.check_usable)
        self._calls = Calls()

    def __repr__(self) -> str:
        return f"<Store at {self._name}>"

    create_topic = awaited(StoreSteps.create_topic)
    create_topics = awaited(StoreSteps.create_topics)
    topic = awaited(StoreSteps.topic)
    topics = awaited(StoreSteps.topics)
    alter_topic = awaited(StoreSteps.alter_topic)
    delete_topic = awaited(StoreSteps.delete_topic)
    purge = awaited(StoreSteps.purge)
    clean = awaited(StoreSteps.clean)

    send = awaited(StoreSteps.send)
    send_many = awaited(StoreSteps.send_many)

    cancel = awaited(StoreSteps.cancel)
    cancel_many = awaited(StoreSteps.cancel_many)
    reschedule = awaited(StoreSteps.reschedule)
    pending = awaited(StoreSteps.pending)
    get = awaited(StoreSteps.get)
    get_unique = awaited(StoreSteps.get_unique)
    cancel_unique = awaited(StoreSteps.cancel_unique)
    adopt = awaited(StoreSteps.adopt)

    schedule = awaited(StoreSteps.schedule)
    schedules = awaited(StoreSteps.schedules)
    change_schedule = awaited(StoreSteps.change_schedule)
    pause_schedule = awaited(StoreSteps.pause_schedule)
    resume_schedule = awaited(StoreSteps.resume_schedule)
    send_schedule = awaited(StoreSteps.send_schedule)
    remove_schedule = awaited(StoreSteps.remove_schedule)
    run_schedules = awaited(StoreSteps.run_schedules)

    subscriptions = awaited(StoreSteps.subscriptions)
    groups = awaited(StoreSteps.groups)
    leased = awaited(StoreSteps.leased)
    pause = awaited(StoreSteps.pause)
    resume = awaited(StoreSteps.resume)
    delete_subscription = awaited(StoreSteps.delete_subscription)
    delete_group = awaited(StoreSteps.delete_group)
    reset_subscription = awaited(StoreSteps.reset_subscription)
    reset_group = awaited(StoreSteps.reset_group)
    dead_letters = awaited(StoreSteps.dead_letters)
    redrive = awaited(StoreSteps.redrive)
    discard_dead_letters = awaited(StoreSteps.discard_dead_letters)

    stats = awaited(StoreSteps.stats)
    info = awaited(StoreSteps.info)
    sync = awaited(StoreSteps.sync)
    enforce_retention = awaited(StoreSteps.enforce_retention)
    held_bytes = awaited(StoreSteps.held_bytes)
    offload = awaited(StoreSteps.offload)
    backup = awaited(StoreSteps.backup)
    confirm_clock = awaited(StoreSteps.confirm_clock)
    check = awaited(StoreSteps.check)

    async def ask(self, asked: Call[AnswerOf]) -> AnswerOf:
        """As of the blocking one."""
        return await self._pool.run(asked)

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
    ) -> Opening[AsyncProducer]:
        return Opening(self._producer(topic, linger_ms, batch_bytes, idempotent, producer_id, epoch))

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        partitions: Sequence[int] | None = None,
        start: Position = EARLIEST,
        auto_commit: bool = True,
    ) -> Opening[AsyncServedConsumer]:
        return Opening(self._consumer(topic, group, partitions, start, auto_commit))

    @spelled_out(ReaderOptions, ReaderSettings)
    def subscribe(self, topic: str, name: str, **options: Unpack[ReaderOptions]) -> Opening[AsyncServedSubscription]:
        return Opening(self._subscription(topic, name, options))

    async def close(self) -> None:
        """Close the readers, and the connections."""
        if self._pool.closed:
            return
        try:
            for reader in self._readers.all():
                with contextlib.suppress(AfterlogError):
                    await reader.close()
        finally:
            self._blocking.close()
            await self._calls.run(self._readers.stop)
            self._calls.close()
            await self._pool.close()

    async def _producer(self, topic: str, *options: Any) -> AsyncProducer:
        from afterlog.client.served_target import served_producer

        target: ServedTopic = await self.topic(topic)
        made = served_producer(target, self._drive_now, self.clock, self._server_time, *options)
        return AsyncProducer(made, self._calls)

    async def _consumer(
        self, topic: str, group: str, partitions: Sequence[int] | None, start: Position, auto_commit: bool
    ) -> AsyncServedConsumer:
        steps = await self._drive(self._readers.consumer(self._steps, topic, group, partitions, start, auto_commit))
        reader = AsyncServedConsumer(steps, self._pool)
        self._readers.add_consumer(reader, steps)
        return reader

    async def _subscription(self, topic: str, name: str, options: ReaderOptions) -> AsyncServedSubscription:
        steps = await self._drive(self._readers.subscription(topic, name, options))
        reader = AsyncServedSubscription(steps, self._pool, self._drive_now)
        self._readers.add_subscription(reader, steps)
        return reader


async def connect(
    url: str | PathLike[str],
    *,
    token: str | None,
    timeout: float,
    ca: str | PathLike[str] | None,
    clock: Clock | None,
) -> AsyncServedStore:
    """What `afterlog.aio.connect` does."""
    checked, timeout_s, address = checked_token(token), checked_timeout(timeout), address_there(url)
    clock = clock or SystemClock()
    server_time = ServerTime(clock)
    tls = tls_context(ca) if address.tls else None
    blocking = Pool(connecting_to(address, checked, ca), clock, server_time, timeout_s)
    pool = AsyncPool(address, fixed_headers(checked), tls, clock, server_time, timeout_s)
    return AsyncServedStore(pool, blocking, clock, server_time, str(address))
