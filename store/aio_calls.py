"""Blocking calls of one store made by tasks: a pool of threads, and one timer for all who wait.

    await run(call) ──> one of THREADS threads ──> back to the task
    await wait(agenda) ──┐
    await wait(agenda) ──┼─> woken by what comes for its reader, or by the timer, when it is time
    await wait(agenda) ──┘

Nobody waits in a thread for a record: a receive looks, and where nothing is due its task waits as a future, which costs
no thread. So thousands of blocked receives hold up nothing, and what comes for one reader wakes no other's. When they
are woken, those of one reader look one after the other, and only as long as something is on its agenda. A call holds
a thread for as long as the disk takes.

The threads are started when needed, and kept. An executor makes a future, a condition and a work item for each call,
which nobody looks at where the loop is told by the call itself: 15 us of CPU of 41.

A call that has begun is done to its end, also where the process ends in the ordinary way meanwhile: a file cannot be
half written because a task was cancelled. What it gave to a task that is gone is taken back, before the cancellation
goes on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from operator import itemgetter
from queue import SimpleQueue
from typing import Generic, TypeVar
from weakref import WeakMethod, WeakSet

from sortedcontainers import SortedList

from afterlog.base.clock import Clock
from afterlog.base.environment import at_exit
from afterlog.base.errors import AfterlogError
from afterlog.base.locks import Thread
from afterlog.fetch.agenda import OVERLOOKED_S, Agenda
from afterlog.log.notifier import NEVER_MS

logger = logging.getLogger("afterlog")

ThreadJob = Callable[[], object]
"""Whoever began it hears from itself what came of it."""

THREADS = 16
"""Calls at a time. Larger: more callers share an fdatasync, more threads contend for the interpreter."""


class WorkerThreads:
    """Up to `most` of them. Begun from one thread, that of the loop."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._queue: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self._free: deque[None] = deque()
        """As many as there are threads that wait for a job which nobody has begun yet."""
        self._threads: list[Thread] = []
        self._ended = False
        _there.add(self)

    def begin(self, job: ThreadJob) -> None:
        """To be called in a thread. Raises RuntimeError once they have ended."""
        if self._ended:
            raise RuntimeError("no calls any more: the store is closed, or the process ends")
        self._queue.put(job)
        if self._free:
            self._free.pop()
        elif len(self._threads) < self._most:
            number = len(self._threads)
            work = (self._queue, self._free)
            thread = Thread(target=_work, args=work, name=f"{self._name}_{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """No more jobs; those that were begun are done."""
        if not self._ended:
            self._ended = True
            for _ in self._threads:
                self._queue.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def __del__(self) -> None:
        self.end()


def _work(queue: SimpleQueue[ThreadJob | None], free: deque[None]) -> None:
    """Not a method: a thread keeps nobody alive who has forgotten to end it."""
    while (job := queue.get()) is not None:
        try:
            job()
        except BaseException:
            logger.exception("a call in a thread has failed, and nobody waits for it")
        del job  # and what it holds
        free.append(None)


_there: WeakSet[WorkerThreads] = WeakSet()


def _end_all() -> None:
    threads = [*_there]
    for each in threads:
        each.end()
    for each in threads:
        each.join()


at_exit(_end_all)


Answer = TypeVar("Answer")


class Calling(Generic[Answer]):
    """A call in one thread, awaited in another. One wake-up: half of what a chain of two futures and a shield cost."""

    __slots__ = ("_call", "_ended", "_error", "_given", "_loop")

    def __init__(self, call: Callable[[], Answer], loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop
        self._ended = loop.create_future()
        self._given: list[Answer] = []
        self._error: BaseException | None = None

    def __call__(self) -> None:
        """Make it, in a thread."""
        try:
            self._given.append(self._call())
        except BaseException as error:
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop was closed over its tasks
            self._loop.call_soon_threadsafe(self._end)

    async def answer(self) -> Answer:
        """What the call returns or raises; asked again where the await was cancelled."""
        if self._ended.cancelled():
            self._ended = self._loop.create_future()
            if self._given or self._error is not None:
                self._end()
        await self._ended
        if self._error is not None:
            raise self._error
        return self._given[0]

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class Calls:
    """Of one store. Used by the tasks of one event loop."""

    def __init__(self) -> None:
        self._threads = WorkerThreads(THREADS + 1, "afterlog-aio")
        self._closed = False

    async def run(self, call: Callable[[], Answer], undo: Callable[[Answer], object] | None = None) -> Answer:
        """What `call` returns or raises. Where the await is cancelled it is done all the same, and then undone.

        Once the calls are closed, so is their store: then nothing blocks any more, and nobody else is asked.
        """
        if self._closed:
            return call()
        calling = Calling(call, asyncio.get_running_loop())
        self._threads.begin(calling)
        try:
            return await calling.answer()
        except asyncio.CancelledError:
            if undo is not None:
                await asyncio.shield(asyncio.ensure_future(self._undone(calling, undo)))
            raise

    def begin(self, call: Callable[[], object]) -> None:
        """Make a call that nobody awaits, and that holds up none of the others. Raises RuntimeError once closed."""
        self._threads.begin(call)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """No more calls; those that are under way end by themselves."""
        self._closed = True
        self._threads.end()

    async def _undone(self, calling: Calling[Answer], undo: Callable[[Answer], object]) -> None:
        with contextlib.suppress(AfterlogError):  # nobody is there to hear it; a lease ends by itself
            answer = await calling.answer()
            await self.run(lambda: undo(answer))


class Waiters:
    """All tasks of a store that wait, in one event loop: one timer of it watches the time for them.

    Everything is done by the loop; what other threads tell comes to it by one call.
    """

    def __init__(self, calls: Calls, clock: Clock, now_ms: Callable[[], int]) -> None:
        """now_ms: what of the clock is not held back (`clock_jump_limit_ms`)."""
        self._calls = calls
        self._clock = clock
        self._now_ms = now_ms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[Agenda, set[asyncio.Future[None]]] = {}
        self._times: dict[Agenda, int] = {}
        """When the agendas have something to look at, of those that are waited for and know."""
        self._in_order: SortedList[tuple[int, int, Agenda]] = SortedList(key=itemgetter(0, 1))
        """The same: (time, identity, agenda)."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        """The first of the times, for which it is set."""
        self._unwatch: Callable[[], object] | None = None
        """The clock is watched while there is a time to wait for."""

    async def wait(self, agenda: Agenda, timeout_s: float | None) -> None:
        """Return when there may be something to look at, or after `timeout_s`. May return early: callers loop."""
        if self._calls.closed:
            return
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._move(loop)
        woken = loop.create_future()
        patience_s = OVERLOOKED_S if timeout_s is None else min(timeout_s, OVERLOOKED_S)
        patience = loop.call_later(patience_s, _end, woken)
        try:
            self._add(agenda, woken)
            if not agenda.due():
                await woken
        finally:
            patience.cancel()
            self._remove(agenda, woken)

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Into this loop."""
        assert self._loop is None or self._loop.is_closed(), "a store is used by the tasks of one event loop"
        self._forget()
        self._loop = loop

    def _forget(self) -> None:
        """All who waited: the loop was closed over them."""
        self._waiting.clear()
        self._times.clear()
        self._in_order.clear()
        self._set_timer(NEVER_MS)

    def _add(self, agenda: Agenda, woken: asyncio.Future[None]) -> None:
        self._waiting.setdefault(agenda, set()).add(woken)
        agenda.listen(self._stirred)  # from now on it is told
        self._set(agenda, agenda.first_ms())

    def _remove(self, agenda: Agenda, woken: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(agenda, set())
        waiting.discard(woken)
        if not waiting:
            self._waiting.pop(agenda, None)
            self._set(agenda, NEVER_MS)

    def _set(self, agenda: Agenda, ms: int) -> None:
        """The time of an agenda."""
        before_ms = self._times.pop(agenda, None)
        if before_ms is not None:
            self._in_order.remove((before_ms, id(agenda), agenda))
        if ms != NEVER_MS:
            self._times[agenda] = ms
            self._in_order.add((ms, id(agenda), agenda))
        first_ms = self._in_order[0][0] if self._in_order else NEVER_MS
        if first_ms != self._timer_ms:
            self._set_timer(first_ms)

    def _set_timer(self, first_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ms = None, first_ms
        if first_ms == NEVER_MS:
            if self._unwatch is not None:
                self._unwatch()
                self._unwatch = None
            return
        if self._unwatch is None:
            stepped = WeakMethod(self._stepped)  # a clock may be there for ever
            self._unwatch = self._clock.watch(lambda: (call := stepped()) is not None and call())
        seconds = self._clock.seconds_until(first_ms + self._clock.now_ms() - self._now_ms())
        if seconds < math.inf and self._loop is not None:
            self._timer = self._loop.call_later(min(seconds, OVERLOOKED_S), self._ring)

    def _ring(self) -> None:
        """Wake those for whom it is time."""
        now_ms, self._timer_ms = self._now_ms(), NEVER_MS
        while self._in_order and self._in_order[0][0] <= now_ms:
            _, _, agenda = self._in_order[0]
            self._in_order.pop(0)
            del self._times[agenda]
            self._wake(agenda)
        self._set_timer(self._in_order[0][0] if self._in_order else NEVER_MS)

    def _wake(self, agenda: Agenda) -> None:
        for woken in self._waiting.get(agenda, ()):
            _end(woken)

    # From any thread.

    def _stirred(self, agenda: Agenda) -> None:
        """There may be something earlier than was known: who waits for it looks."""
        if agenda in self._waiting:
            self._soon(self._wake, agenda)

    def _stepped(self) -> None:
        """The clock was set."""
        self._soon(self._ring)

    def _soon(self, call: Callable[..., object], *arguments: Agenda) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:  # it is closed, and nobody does anything in it any more
                self._forget()


class Line:
    """The tasks that wait at one reader. When they are woken the first of them looks, and then the next.

    They look as long as something is on its agenda: a record that comes costs two looks, however many wait.
    """

    def __init__(self, waiters: Waiters, agenda: Agenda) -> None:
        self._waiters = waiters
        self._agenda = agenda
        self._turn = asyncio.Lock()

    async def found(self, look: Callable[[], Awaitable[Answer]], timeout_s: float | None) -> Answer | None:
        """What `look` finds when that is neither None nor False; None where it takes longer than `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        found = await look()
        while found is None or found is False:
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                return None
            await self._waiters.wait(self._agenda, left_s)
            async with self._turn:
                if self._agenda.due():
                    found = await look()
        return found


def _end(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
