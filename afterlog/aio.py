"""The asyncio facade: the names of the synchronous API, awaited.

    async with afterlog.aio.open("data") as store:
        await store.send("mail", b"remind me", delay=30)
        async with store.subscribe("mail", "sender", lease_ms=30_000) as subscription:
            async for message in subscription:      # due order in each partition, leased to this reader
                async with message:                 # acked when the block ends well, nacked when it raises
                    await deliver(message.value)

What they do, answer and raise is what the synchronous ones say; every method is to be awaited. `open`, `subscribe`,
`consumer` and `producer` are entered with `async with`, or awaited where somebody else closes what they give.

A store belongs to one event loop. Its blocking calls run in threads of its own, a few, in which nobody waits for a
record (`aio_calls.py`): however many tasks wait, a send is not held up. Iterating takes a thread's help once for each
lot that is leased, or read, ahead.

*Cancellation.* A call that has begun is done to its end, also where its await is cancelled: a send may have been made,
an ack counts. What a `receive` or `poll` had taken for a task that was cancelled goes back before the cancellation goes
on, and so counts as no failure. In the block of a message it gives the message back.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, TypeVar, overload

from afterlog.base.arguments import flag, seconds
from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.environment import folder_of
from afterlog.base.errors import InvalidArgument
from afterlog.fetch.consumer import Consumer as BlockingConsumer
from afterlog.fetch.message import Message
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.record_id import RecordId
from afterlog.produce.producer import Producer as BlockingProducer
from afterlog.store.aio_calls import Answer, Calls, Line, Waiters
from afterlog.store.awaited_receiver import AwaitedReceiver
from afterlog.store.awaiting import AsyncProducer, Closing, Opened, Opening, Parameters, awaited
from afterlog.store.store import Store as BlockingStore
from afterlog.store.store import open_store
from afterlog.subscription.awaited_draining import AsyncDraining, all_ended
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.received import Received
from afterlog.subscription.subscription import Subscription as BlockingSubscription
from afterlog.surface import ConsumerSurface, StoreSurface, SubscriptionSurface, presents
from afterlog.tier.remote_store import RemoteStore

if TYPE_CHECKING:
    from afterlog.client.async_store import AsyncServedStore
    from afterlog.sharing.aio_shared import AsyncSharedStore

Blocking = TypeVar("Blocking", BlockingConsumer, BlockingProducer[RecordId], BlockingSubscription)


def _opening(
    method: Callable[Concatenate[Any, Parameters], Blocking], made: Callable[[Blocking, Calls, Waiters], Opened]
) -> Callable[Concatenate[Any, Parameters], Opening[Opened]]:
    """A method of the synchronous store that opens something."""

    async def opened(self: AsyncStore, call: Callable[[], Blocking]) -> Opened:
        return made(await self._calls.run(call, lambda opened: opened.close()), self._calls, self._waiters)

    @functools.wraps(method)
    def opening(self: Any, /, *args: Parameters.args, **options: Parameters.kwargs) -> Opening[Opened]:
        return Opening(opened(self, functools.partial(method, self._blocking, *args, **options)))

    return opening


@presents(ConsumerSurface)
class AsyncConsumer(Closing):
    """Made by `store.consumer`. Its calls are made one after the other.

    What was handed out last is processed if the task that took it closes the consumer, or leaves its block without an
    exception: another task cannot know.
    """

    def __init__(self, consumer: BlockingConsumer, calls: Calls, waiters: Waiters) -> None:
        self._blocking = consumer
        self._calls = calls
        self._line = Line(waiters, consumer.agenda)
        self._lock = threading.Lock()
        self._reader = asyncio.current_task()

    @property
    def topic(self) -> str:
        return self._blocking.topic

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(processed=kind is None and self._reader is asyncio.current_task())

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages in due order, waiting for each until it is due; ends when the consumer is closed."""
        while not self._blocking.closed:
            self._reader = asyncio.current_task()
            message = self._pop()
            if message is not None:
                yield message
            else:
                await self._line.found(lambda: self._run(self._blocking.fill), None)

    async def poll(self, max_records: int = 500, timeout: float | None = 0.0) -> list[Message]:
        return (await self.poll_columns(max_records, timeout)).to_messages()

    async def poll_columns(self, max_records: int = 65_536, timeout: float | None = 0.0) -> Columns:
        timeout = seconds("timeout", timeout)
        self._reader = asyncio.current_task()
        columns = await self._run(lambda: self._blocking.poll_columns(max_records), self._take_back)
        if len(columns) or timeout == 0:
            return columns

        def look() -> Coroutine[Any, Any, Columns | None]:
            return self._run(lambda: self._blocking.look(max_records), self._take_back)

        found = await self._line.found(look, timeout)
        return columns if found is None else found

    seek = awaited(BlockingConsumer.seek)
    commit = awaited(BlockingConsumer.commit)
    commit_at = awaited(BlockingConsumer.commit_at)
    positions = awaited(BlockingConsumer.positions)
    committed = awaited(BlockingConsumer.committed)
    lag = awaited(BlockingConsumer.lag)

    async def close(self) -> None:
        """Commit what is processed and let the partitions go. An iteration in another task ends."""
        await self._end(processed=self._reader is asyncio.current_task())

    async def _end(self, processed: bool) -> None:
        await self._run(lambda: self._blocking.end(processed))

    async def _run(self, call: Callable[[], Answer], undo: Callable[[Answer], object] | None = None) -> Answer:
        return await self._calls.run(self._alone(call), undo)

    def _alone(self, call: Callable[[], Answer]) -> Callable[[], Answer]:
        """Threads take turns, also with a call whose task is gone."""

        def alone() -> Answer:
            with self._lock:
                return call()

        return alone

    def _pop(self) -> Message | None:
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._blocking.pop()
        finally:
            self._lock.release()

    def _take_back(self, found: Columns | None) -> None:
        if found is not None:
            self._blocking.take_back(found)


@presents(SubscriptionSurface)
class AsyncSubscription(Closing):
    """Made by `store.subscribe`. Any number of tasks may use it; each iteration is for one."""

    def __init__(self, subscription: BlockingSubscription, calls: Calls, waiters: Waiters) -> None:
        self._blocking = subscription
        self._blocking.background = calls.run
        self._run = calls.run
        self._awaited = AwaitedReceiver(subscription, calls, waiters)

    @property
    def topic(self) -> str:
        return self._blocking.topic

    @property
    def name(self) -> str:
        return self._blocking.name

    @property
    def cut_bytes(self) -> dict[int, int]:
        return self._blocking.cut_bytes

    def __repr__(self) -> str:
        return repr(self._blocking)

    async def __aiter__(self) -> AsyncIterator[LeasedMessage]:
        """Messages as they become due, each leased; waits for the next, and ends when the subscription is closed.

        A few are leased ahead. What was not handed out goes back, uncounted, when the iteration ends; where it is left
        by a `break`, the event loop ends it soon after.
        """
        receiver = self._blocking.receiver
        ahead = receiver.begin()
        try:
            while not receiver.ended:
                message = receiver.pop(ahead)
                if message is not None:
                    yield message
                else:
                    await self._awaited.fill(ahead)
        finally:
            await self._run(lambda: receiver.end(ahead))

    async def receive(self, max_records: int = 100, timeout: float | None = 0.0) -> Received:
        timeout = seconds("timeout", timeout)
        found = None if self._blocking.ended else await self._awaited.receive(max_records, timeout)
        if found is None:
            return await self._run(lambda: self._blocking.receive(max_records), self._give_back)
        return found

    async def drain(self, timeout: float | None = None) -> bool:
        timeout, blocking = seconds("timeout", timeout), self._blocking
        await self._run(lambda: blocking.drain(0.0))  # what waits goes back, whatever the timeout
        is_over = await all_ended(blocking.blocks, blocking.receiver.is_idle, timeout)
        await self._run(blocking.flush_acks)
        return is_over

    def draining_on(self, signal: int, *, timeout: float | None = None) -> AsyncDraining:
        return AsyncDraining(self, self._blocking.draining_on(signal, timeout=timeout), timeout)

    ack = awaited(BlockingSubscription.ack)
    ack_many = awaited(BlockingSubscription.ack_many)
    nack = awaited(BlockingSubscription.nack)
    reject = awaited(BlockingSubscription.reject)
    release = awaited(BlockingSubscription.release)
    extend = awaited(BlockingSubscription.extend)
    seek = awaited(BlockingSubscription.seek)
    stats = awaited(BlockingSubscription.stats)
    close = awaited(BlockingSubscription.close)

    def _give_back(self, found: Received | None) -> None:
        if found is not None:
            self._blocking.release(found)


@presents(StoreSurface)
class AsyncStore(Closing):
    """An open store. `afterlog.aio.open` makes it."""

    def __init__(self, store: BlockingStore, calls: Calls) -> None:
        self._blocking = store
        self._calls = calls
        self._run = calls.run
        self._waiters = Waiters(calls, store.clock, store.now_ms)

    create_topic = awaited(BlockingStore.create_topic)
    create_topics = awaited(BlockingStore.create_topics)
    topic = awaited(BlockingStore.topic)
    topics = awaited(BlockingStore.topics)
    alter_topic = awaited(BlockingStore.alter_topic)
    delete_topic = awaited(BlockingStore.delete_topic)
    purge = awaited(BlockingStore.purge)

    send = awaited(BlockingStore.send)
    send_many = awaited(BlockingStore.send_many)
    producer = _opening(BlockingStore.producer, lambda producer, calls, _: AsyncProducer(producer, calls))

    cancel = awaited(BlockingStore.cancel)
    cancel_many = awaited(BlockingStore.cancel_many)
    reschedule = awaited(BlockingStore.reschedule)
    pending = awaited(BlockingStore.pending)
    get = awaited(BlockingStore.get)
    get_unique = awaited(BlockingStore.get_unique)
    cancel_unique = awaited(BlockingStore.cancel_unique)
    adopt = awaited(BlockingStore.adopt)

    schedule = awaited(BlockingStore.schedule)
    schedules = awaited(BlockingStore.schedules)
    change_schedule = awaited(BlockingStore.change_schedule)
    pause_schedule = awaited(BlockingStore.pause_schedule)
    resume_schedule = awaited(BlockingStore.resume_schedule)
    send_schedule = awaited(BlockingStore.send_schedule)
    remove_schedule = awaited(BlockingStore.remove_schedule)
    run_schedules = awaited(BlockingStore.run_schedules)

    consumer = _opening(BlockingStore.consumer, AsyncConsumer)
    subscribe = _opening(BlockingStore.subscribe, AsyncSubscription)
    subscriptions = awaited(BlockingStore.subscriptions)
    groups = awaited(BlockingStore.groups)
    leased = awaited(BlockingStore.leased)
    pause = awaited(BlockingStore.pause)
    resume = awaited(BlockingStore.resume)
    delete_subscription = awaited(BlockingStore.delete_subscription)
    delete_group = awaited(BlockingStore.delete_group)
    reset_subscription = awaited(BlockingStore.reset_subscription)
    reset_group = awaited(BlockingStore.reset_group)
    dead_letters = awaited(BlockingStore.dead_letters)
    redrive = awaited(BlockingStore.redrive)
    discard_dead_letters = awaited(BlockingStore.discard_dead_letters)

    sync = awaited(BlockingStore.sync)
    enforce_retention = awaited(BlockingStore.enforce_retention)
    clean = awaited(BlockingStore.clean)
    held_bytes = awaited(BlockingStore.held_bytes)
    offload = awaited(BlockingStore.offload)
    backup = awaited(BlockingStore.backup)
    confirm_clock = awaited(BlockingStore.confirm_clock)
    check = awaited(BlockingStore.check)

    def now_ms(self) -> int:
        return self._blocking.now_ms()

    @property
    def path(self) -> Path:
        return self._blocking.path

    @property
    def config(self) -> Config:
        return self._blocking.config

    @property
    def clock(self) -> Clock:
        return self._blocking.clock

    @property
    def clock_jumps(self) -> int:
        return self._blocking.clock_jumps

    @property
    def cut_bytes(self) -> dict[tuple[str, int], int]:
        return self._blocking.cut_bytes

    async def close(self) -> None:
        """Make everything durable and let the folder go. Tasks that wait are woken, as those of a closed store."""
        try:
            await self._run(self._blocking.close)
        finally:
            self._calls.close()


@overload
def open(
    path: str | PathLike[str],
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    remote: str | RemoteStore | None = None,
    serve: bool = False,
    shared: Literal[False] = False,
    timeout: float = 30.0,
) -> Opening[AsyncStore]: ...
@overload
def open(
    path: str | PathLike[str],
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    remote: str | RemoteStore | None = None,
    shared: Literal[True],
    timeout: float = 30.0,
) -> Opening[AsyncSharedStore]: ...
def open(
    path: str | PathLike[str],
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    remote: str | RemoteStore | None = None,
    serve: bool = False,
    shared: bool = False,
    timeout: float = 30.0,
) -> Opening[AsyncStore] | Opening[AsyncSharedStore]:
    """Open the store in the folder `path`, as `afterlog.open` does. shared=True needs ``afterlog[server,client]``."""
    folder, serve, shared = folder_of(path), flag("serve", serve), flag("shared", shared)
    if shared and serve:
        raise InvalidArgument("a store that is shared is served already: leave `serve` out")
    if shared:
        from afterlog.sharing.aio_shared import open_shared

        return Opening(open_shared(folder, config, clock, remote, timeout))

    def opening() -> BlockingStore:
        store = open_store(folder, config, clock, None, remote, serves=serve, keeps=True)
        if serve:
            from afterlog.server.running import serve_beside

            serve_beside(store)
        return store

    return Opening(opened(opening))


def connect(
    url: str | PathLike[str],
    *,
    token: str | None = None,
    timeout: float = 30.0,
    ca: str | PathLike[str] | None = None,
    clock: Clock | None = None,
) -> Opening[AsyncServedStore]:
    """Connect to the server of a store, as `afterlog.connect` does. Needs ``afterlog[client]``."""
    from afterlog.client.async_store import connect as connected

    return Opening(connected(url, token=token, timeout=timeout, ca=ca, clock=clock))


async def opened(opening: Callable[[], BlockingStore]) -> AsyncStore:
    """The store that a call opens."""
    calls = Calls()
    try:
        return AsyncStore(await calls.run(opening, undo=BlockingStore.close), calls)
    except BaseException:
        calls.close()
        raise


Store, Consumer, Producer, Subscription = AsyncStore, AsyncConsumer, AsyncProducer, AsyncSubscription
"""The names of the synchronous API, here too: `afterlog.aio.Store`."""
