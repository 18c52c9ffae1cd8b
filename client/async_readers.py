"""The readers of a served store in asyncio: the names of `afterlog.aio`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from afterlog.base.errors import StoreClosed, StoreForked
from afterlog.client.call import Steps, awaited
from afterlog.client.consumer_steps import ConsumerSteps
from afterlog.client.subscription_steps import SubscriptionSteps
from afterlog.fetch.message import Message
from afterlog.store.awaiting import Closing
from afterlog.subscription.awaited_draining import AsyncDraining, all_ended
from afterlog.subscription.draining import Draining
from afterlog.subscription.flow_control import FlowControl
from afterlog.subscription.leased_message import LeasedMessage, Settling
from afterlog.surface import ConsumerSurface, SubscriptionSurface, presents

if TYPE_CHECKING:
    from afterlog.client.async_pool import AsyncPool
    from afterlog.fetch.message_columns import Columns


@presents(SubscriptionSurface)
class AsyncServedSubscription(Closing):
    """Made by `store.subscribe`. Any number of tasks may use it; each iteration is for one."""

    def __init__(self, steps: SubscriptionSteps, pool: AsyncPool, drive_now: Callable[[Steps[Any]], Any]) -> None:
        """drive_now: what takes steps in a thread."""
        self._steps = steps
        self._drive: Any = pool.drive
        self._drive_now = drive_now
        self.topic = steps.topic
        self.name = steps.name
        self.blocks = steps.blocks
        self.flow: FlowControl | None = steps.leased
        self.group = steps.group
        steps.owner = cast(Settling, self)  # of which messages call nothing but what `background` awaits

    def __repr__(self) -> str:
        return repr(self._steps)

    async def background(self, ending: Callable[[], object]) -> None:
        """What a message does at the end of its block."""
        with contextlib.suppress(StoreClosed, StoreForked):
            ended = ending()
            if asyncio.iscoroutine(ended):
                await ended

    async def __aiter__(self) -> AsyncIterator[LeasedMessage]:
        """Messages as they become due, each leased; waits for the next, and ends when the subscription is closed.

        As of `afterlog.aio`.
        """
        steps = self._steps
        ahead = steps.begin()
        try:
            while not steps.ended:
                message = steps.pop(ahead)
                if message is not None:
                    yield message
                else:
                    await self._drive(steps.fill(ahead))
        finally:
            await self._drive(steps.end(ahead))

    receive = awaited(SubscriptionSteps.receive)
    ack = awaited(SubscriptionSteps.ack)
    ack_many = awaited(SubscriptionSteps.ack_many)
    nack = awaited(SubscriptionSteps.nack)
    reject = awaited(SubscriptionSteps.reject)
    release = awaited(SubscriptionSteps.release)
    extend = awaited(SubscriptionSteps.extend)
    seek = awaited(SubscriptionSteps.seek)
    stats = awaited(SubscriptionSteps.stats)
    close = awaited(SubscriptionSteps.close)

    async def drain(self, timeout: float | None = None) -> bool:
        timeout = self._steps.check_drainable(timeout)
        await self._drive(self._steps.stop_taking())
        is_over = await all_ended(self.blocks, self._steps.is_idle, timeout)
        await self._drive(self._steps.flush())
        return is_over

    def draining_on(self, signal: int, *, timeout: float | None = None) -> AsyncDraining:
        return AsyncDraining(self, Draining(_StoppedInThread(self._steps, self._drive_now), signal, timeout), timeout)


class _StoppedInThread:
    """What the thread of a `Draining` stops."""

    def __init__(self, steps: SubscriptionSteps, drive_now: Callable[[Steps[Any]], Any]) -> None:
        self._steps = steps
        self._drive_now = drive_now

    def halt(self) -> None:
        self._steps.halt()

    def stop_taking(self) -> None:
        self._drive_now(self._steps.stop_taking())

    def drain(self, timeout: float | None) -> bool:
        raise AssertionError("the end of the block drains, and awaits it")


@presents(ConsumerSurface)
class AsyncServedConsumer(Closing):
    """Made by `store.consumer`. Its calls are made one after the other."""

    def __init__(self, steps: ConsumerSteps, pool: AsyncPool) -> None:
        self._steps = steps
        self._pool_drive: Any = pool.drive
        self._turn = asyncio.Lock()
        self.topic = steps.topic
        steps.reader = asyncio.current_task()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(processed=kind is None and self._is_mine())

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages in due order, waiting for each until it is due; ends when the consumer is closed."""
        steps = self._steps
        while not steps.closed:
            steps.reader = asyncio.current_task()
            message = None if self._turn.locked() else steps.next()
            if message is not None:
                yield message
            else:
                await self._drive(steps.fill())

    async def poll(self, max_records: int = 500, timeout: float | None = 0.0) -> list[Message]:
        self._steps.reader = asyncio.current_task()
        found: list[Message] = await self._drive(self._steps.poll(max_records, timeout))
        return found

    async def poll_columns(self, max_records: int = 65_536, timeout: float | None = 0.0) -> Columns:
        self._steps.reader = asyncio.current_task()
        found: Columns = await self._drive(self._steps.poll_columns(max_records, timeout))
        return found

    seek = awaited(ConsumerSteps.seek)
    commit = awaited(ConsumerSteps.commit)
    positions = awaited(ConsumerSteps.positions)
    committed = awaited(ConsumerSteps.committed)
    lag = awaited(ConsumerSteps.lag)

    async def close(self) -> None:
        """Commit what is processed and let the partitions go. An iteration in another task ends."""
        await self._end(processed=self._is_mine())

    def _is_mine(self) -> bool:
        return self._steps.reader is asyncio.current_task()

    async def _end(self, processed: bool) -> None:
        await self._pool_drive(self._steps.end(processed))

    async def _drive(self, steps: Steps[Any]) -> Any:
        async with self._turn:
            return await self._pool_drive(steps)
