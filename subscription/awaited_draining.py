"""Draining on a signal in asyncio: the block of `draining.py`, with a wait that holds no thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from afterlog.subscription.active_handlers import ActiveHandlers
from afterlog.subscription.draining import Draining


class AwaitedDrainable(Protocol):
    """What takes, and can be told to stop, by a task."""

    async def drain(self, timeout: float | None) -> bool: ...


class AsyncDraining:
    """The same block for tasks: made by `subscription.draining_on` of `afterlog.aio`."""

    def __init__(self, subscription: AwaitedDrainable, draining: Draining, timeout: float | None) -> None:
        self._subscription = subscription
        self._draining = draining
        self._timeout = timeout

    async def __aenter__(self) -> Draining:
        self._draining.begin()
        return self._draining

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draining.end()
        if self._draining.signalled and kind is None:
            self._draining.drained = await self._subscription.drain(self._timeout)


async def all_ended(blocks: ActiveHandlers[Any], is_idle: Callable[[], bool], timeout: float | None) -> bool:
    """Wait up to `timeout` seconds until no handler is at work; whether none is. No thread waits."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(ended.set)

    blocks.listen(tell)
    try:
        async with asyncio.timeout(timeout):
            while not is_idle():
                await ended.wait()
                ended.clear()
    except TimeoutError:
        return is_idle()
    finally:
        blocks.leave(tell)
    return True
