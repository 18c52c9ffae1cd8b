"""Blocking calls of one store, made by tasks: threads that run them, of which one waits for everybody who waits.

    await run(call) ──> one of THREADS threads ──> back to the task
    await wait(pause) ──┐
    await wait(pause) ──┼─> one thread, on the condition that the store notifies, until the first of them is over
    await wait(pause) ──┘

Nobody waits in a thread for a record: a receive looks, and where nothing is due its task waits as a future, which costs
no thread. So thousands of blocked receives hold up nothing. When they are woken, those of one reader look one after the
other, and only as long as something is found. A call holds a thread for as long as the disk takes.

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


class Waiters:
    """All tasks of a store that wait. One thread waits for them, for as long as there are any."""

    def __init__(self, calls: Calls, clock: Clock, now_ms: Callable[[], int], changed: threading.Condition) -> None:
        """now_ms: what of the clock is not held back (`clock_jump_limit_ms`). That may change while somebody waits."""
        self._calls = calls
        self._clock = clock
        self._now_ms = now_ms
        self._changed = changed
        self._waiting: dict[Pause, set[asyncio.Future[None]]] = {}
        """By pauses whose `until_ms` is by `now_ms`."""
        self._running = False

    async def wait(self, pause: Pause, timeout_s: float | None) -> None:
        """Return when the pause may be over, or after `timeout_s`."""
        if self._calls.closed:
            return
        pause = self._unheld(pause)
        woken = asyncio.get_running_loop().create_future()
        if self._add(pause, woken):
            try:
                await asyncio.wait([woken], timeout=timeout_s)
            finally:
                self._remove(pause, woken)

    def over(self, pause: Pause) -> bool:
        """Whether it is worth while to look again."""
        return self._over(self._unheld(pause), self._now_ms())

    def _unheld(self, pause: Pause) -> Pause:
        return pause if pause.until_ms is None else pause._replace(until_ms=pause.until_ms - self._held_ms())

    def _held_ms(self) -> int:
        return self._clock.now_ms() - self._now_ms()

    def _add(self, pause: Pause, woken: asyncio.Future[None]) -> bool:
        """False where it is over already."""
        with self._changed:
            if self._over(pause, self._now_ms()):
                return False
            alike = self._waiting.setdefault(pause, set())
            alike.add(woken)
            if not self._running:
                self._running = True
                self._calls.begin(self._run)
            elif len(alike) == 1:
                self._changed.notify_all()  # it may be over before the others
            return True

    def _remove(self, pause: Pause, woken: asyncio.Future[None]) -> None:
        with self._changed:
            alike = self._waiting.get(pause, set())
            alike.discard(woken)
            if not alike and self._waiting.pop(pause, None) is not None:
                self._changed.notify_all()  # it may have been the last

    def _run(self) -> None:
        """Wake those whose pause is over, until nobody waits."""
        with self._changed:
            while self._waiting:
                now_ms = self._now_ms()
                for pause in [pause for pause in self._waiting if self._over(pause, now_ms)]:
                    _wake(self._waiting.pop(pause))
                if self._waiting:
                    times = [pause.until_ms for pause in self._waiting if pause.until_ms is not None]
                    self._clock.wait(self._changed, min(times) + self._held_ms() if times else None, None)
            self._running = False

    def _over(self, pause: Pause, now_ms: int) -> bool:
        if pause.until_ms is not None and pause.until_ms <= now_ms:
            return True
        waiting = next(iter(self._waiting.get(pause, ())), None)
        if waiting is not None and waiting.get_loop().is_closed():
            return True
        try:
            return pause.seen() != pause.was
        except AfterlogError:  # the store was closed, or the like: the task will find out
            return True


class Line:
    """The tasks that wait at one reader. When they are woken the first of them looks, and then the next.

    As soon as one finds nothing the others know that, too: a record that comes costs two looks, however many wait.
    """

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._turn = asyncio.Lock()
        self._pause: Pause | None = None

    async def found(self, look: Callable[[], Awaitable[Answer | Pause]], timeout_s: float | None) -> Answer | None:
        """What `look` finds when it is there; None where that takes longer than `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        found = await look()
        while isinstance(found, Pause):
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                return None
            await self._waiters.wait(found, left_s)
            found = await self._in_turn(look)
        return found

    async def _in_turn(self, look: Callable[[], Awaitable[Answer | Pause]]) -> Answer | Pause:
        async with self._turn:
            if self._pause is not None and not self._waiters.over(self._pause):
                return self._pause
            found = await look()
            self._pause = found if isinstance(found, Pause) else None
            return found


def _wake(woken: set[asyncio.Future[None]]) -> None:
    """From another thread than that of their loop."""

    def wake() -> None:
        for each in woken:
            if not each.done():
                each.set_result(None)

    loop = next(iter(woken)).get_loop()
    with contextlib.suppress(RuntimeError):  # the loop was closed over its tasks
        loop.call_soon_threadsafe(wake)
