"""Blocking calls of one store, made by tasks: threads that run them, of which one waits for everybody who waits.

    await run(call) ──> one of THREADS threads ──> back to the task
    await wait(pause) ──┐
    await wait(pause) ──┼─> one thread, on the condition that the store notifies, until the first of them is over
    await wait(pause) ──┘

Nobody waits in a thread for a record: a receive looks, and where nothing is due its task waits as a future, which costs
no thread. So ten thousand blocked receives hold up nothing. A call holds a thread for as long as the disk takes.

A call that has begun is done to its end: a file cannot be half written because a task was cancelled. What it gave to a
task that is gone is taken back, before the cancellation goes on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from afterlog.clock import Clock
from afterlog.errors import AfterlogError
from afterlog.fetch.pause import Pause

THREADS = 16
"""Calls at a time. Larger: more callers share an fdatasync, more threads contend for the interpreter."""

Answer = TypeVar("Answer")


class Calls:
    """Of one store. Used by the tasks of one event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS + 1, "afterlog-aio")
        self._closed = False

    async def run(self, call: Callable[[], Answer], undo: Callable[[Answer], object] | None = None) -> Answer:
        """What `call` returns or raises. Where the await is cancelled it is done all the same, and then undone.

        Once the calls are closed, so is their store: then nothing blocks any more, and nobody else is asked.
        """
        if self._closed:
            return call()
        calling = asyncio.get_running_loop().run_in_executor(self._executor, call)
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            if undo is not None:
                await asyncio.shield(asyncio.ensure_future(self._undone(calling, undo)))
            raise

    def begin(self, call: Callable[[], object]) -> None:
        """Make a call that nobody awaits, and that holds up none of the others."""
        self._executor.submit(call)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """No more calls; those that are under way end by themselves."""
        self._closed = True
        self._executor.shutdown(wait=False)

    async def _undone(self, calling: asyncio.Future[Answer], undo: Callable[[Answer], object]) -> None:
        with contextlib.suppress(AfterlogError):  # nobody is there to hear it; a lease ends by itself
            answer = await calling
            await self.run(lambda: undo(answer))


class Waiter:
    """A task that waits."""

    def __init__(self, pause: Pause, due_ms: int | None) -> None:
        """due_ms: when the pause is over, by the clock that the store delivers by."""
        self.pause = pause
        self.due_ms = due_ms
        self.loop = asyncio.get_running_loop()
        self.woken = self.loop.create_future()

    def over(self, now_ms: int) -> bool:
        if self.loop.is_closed() or (self.due_ms is not None and self.due_ms <= now_ms):
            return True
        try:
            return self.pause.over()
        except AfterlogError:  # the store was closed, or the like: the task will find out
            return True

    def wake(self) -> None:
        """From another thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed over its tasks
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Waiters:
    """All tasks of a store that wait. One thread waits for them, for as long as there are any."""

    def __init__(self, calls: Calls, clock: Clock, now_ms: Callable[[], int], changed: threading.Condition) -> None:
        """now_ms: what of the clock is not held back (`clock_jump_limit_ms`). That may change while somebody waits."""
        self._calls = calls
        self._clock = clock
        self._now_ms = now_ms
        self._changed = changed
        self._waiting: set[Waiter] = set()
        self._running = False

    async def wait(self, pause: Pause, timeout_s: float | None) -> None:
        """Return when the pause may be over, or after `timeout_s`."""
        if self._calls.closed:
            return
        waiter = Waiter(pause, None if pause.until_ms is None else pause.until_ms - self._held_ms())
        self._add(waiter)
        try:
            await asyncio.wait([waiter.woken], timeout=timeout_s)
        finally:
            self._remove(waiter)

    async def found(self, look: Callable[[], Awaitable[Answer | Pause]], timeout_s: float | None) -> Answer | None:
        """What `look` finds when it is there; None where that takes longer than `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        while isinstance(found := await look(), Pause):
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                return None
            await self.wait(found, left_s)
        return found

    def _add(self, waiter: Waiter) -> None:
        with self._changed:
            self._waiting.add(waiter)
            if self._running:
                self._changed.notify_all()
            else:
                self._running = True
                self._calls.begin(self._run)

    def _remove(self, waiter: Waiter) -> None:
        with self._changed:
            self._waiting.discard(waiter)
            if not self._waiting:
                self._changed.notify_all()

    def _run(self) -> None:
        """Wake those whose pause is over, until nobody waits."""
        with self._changed:
            while self._waiting:
                now_ms = self._now_ms()
                for waiter in [waiter for waiter in self._waiting if waiter.over(now_ms)]:
                    self._waiting.discard(waiter)
                    waiter.wake()
                if self._waiting:
                    dues = [waiter.due_ms for waiter in self._waiting if waiter.due_ms is not None]
                    until_ms = min(dues) + self._held_ms() if dues else None
                    self._clock.wait(self._changed, until_ms, None)
            self._running = False

    def _held_ms(self) -> int:
        return self._clock.now_ms() - self._now_ms()
