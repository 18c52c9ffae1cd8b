"""Every way to have a store, as tests use them: blocking calls of one shape, and a clock that is turned by hand.

To add one, write a context manager that takes a folder, a clock and settings, and put it into WAYS.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import afterlog
from afterlog import aio
from afterlog.aio import opened
from afterlog.base.clock import Clock
from afterlog.sharing.aio_shared import open_shared as open_shared_asyncio
from afterlog.sharing.shared import open_shared
from afterlog.store.awaiting import Opening
from afterlog.store.store import Store, open_store
from afterlog.subscription.leased_message import LeasedMessage
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.client.serving import serving
from tests.support import PATH, PATIENCE_S, small


class Tasks:
    """An event loop in a thread, and in it a task for each thread that calls: what a task has is its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._mine = threading.local()
        self._working: list[Any] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, awaitable: Any) -> Any:
        """What it gives or raises, awaited by the task of this thread."""
        if not hasattr(self._mine, "work"):
            self._mine.work = asyncio.Queue()
            self._working.append(asyncio.run_coroutine_threadsafe(self._worked(self._mine.work), self._loop))
        answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._loop.call_soon_threadsafe(self._mine.work.put_nowait, (awaitable, answer))
        value, error = answer.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        for each in self._working:
            each.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _worked(self, work: asyncio.Queue[Any]) -> None:
        while True:
            awaitable, answer = await work.get()
            try:
                answer.put((await awaitable, None))
            except (Exception, StopAsyncIteration) as error:
                answer.put((None, error))


class Awaited:
    """What is awaited, as blocking calls."""

    def __init__(self, inner: Any, tasks: Tasks) -> None:
        self.inner = inner
        self._tasks = tasks

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not callable(value) or name in ("blocks", "clock"):
            return value

        def call(*args: Any, **options: Any) -> Any:
            return self._wrapped(value(*args, **options))

        return call

    def __repr__(self) -> str:
        return repr(self.inner)

    def __enter__(self) -> Awaited:
        self._tasks.run(self.inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._tasks.run(self.inner.__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
        iterator = aiter(self.inner)
        try:
            while True:
                try:
                    yield self._tasks.run(anext(iterator))
                except StopAsyncIteration:
                    return
        finally:
            self._tasks.run(iterator.aclose())

    def _wrapped(self, value: Any) -> Any:
        if inspect.isawaitable(value) and not isinstance(value, asyncio.Future):
            value = self._tasks.run(value)
        if isinstance(value, asyncio.Future):
            return _Promise(value, self._tasks)
        kinds = "AsyncStore AsyncConsumer AsyncProducer AsyncSubscription AsyncServedConsumer AsyncServedSubscription"
        return Awaited(value, self._tasks) if type(value).__name__ in kinds.split() else value


class _Promise:
    def __init__(self, future: asyncio.Future[Any], tasks: Tasks) -> None:
        self._future = future
        self._tasks = tasks

    def result(self, timeout: float | None = None) -> Any:
        return self._tasks.run(self._future)


class Setting:
    """A store, got in one of the ways. clock: the one that the log goes by."""

    def __init__(self, name: str, store: Any, clock: Any, tasks: Tasks | None = None) -> None:
        self.name = name
        self.store = store
        self.clock = clock
        self._tasks = tasks

    @property
    def served(self) -> bool:
        return "served" in self.name

    @contextmanager
    def handling(self, message: LeasedMessage) -> Iterator[LeasedMessage]:
        """The block of a message, which ends well, whatever is asserted in it."""
        self._enter(message)
        try:
            yield message
        finally:
            self.leave(message)

    def failing(self, message: LeasedMessage, error: BaseException) -> bool:
        """Its block, which raises; whether the error stays in it."""
        self._enter(message)
        return bool(self.leave(message, error))

    def leave(self, message: LeasedMessage, error: BaseException | None = None) -> Any:
        kind = None if error is None else type(error)
        if self._tasks is None:
            return message.__exit__(kind, error, None)
        return self._tasks.run(message.__aexit__(kind, error, None))

    def _enter(self, message: LeasedMessage) -> None:
        if self._tasks is None:
            message.__enter__()
        else:
            self._tasks.run(message.__aenter__())


def _embedded(clock: Clock, settings: dict[str, Any]) -> Store:
    return open_store(PATH, small(**settings), clock, SimulatedFiles(), background=False)


def _in(folder: Path, clock: Clock, settings: dict[str, Any]) -> Store:
    """Where a socket can be."""
    return open_store(folder, small(**settings), clock, None, background=False)


@contextmanager
def embedded(_: Path, clock: Clock, settings: dict[str, Any]) -> Iterator[Setting]:
    with _embedded(clock, settings) as store:
        yield Setting("embedded", store, clock)
        if not store._closed:
            store.check()


@contextmanager
def embedded_asyncio(_: Path, clock: Clock, settings: dict[str, Any]) -> Iterator[Setting]:
    with _tasks() as tasks:
        store = Awaited(tasks.run(opened(lambda: _embedded(clock, settings))), tasks)
        with store:
            yield Setting("embedded asyncio", store, clock, tasks)


@contextmanager
def served(folder: Path, clock: Clock, settings: dict[str, Any]) -> Iterator[Setting]:
    with (
        _in(folder, clock, settings) as store,
        serving(store) as address,
        afterlog.connect(address, timeout=PATIENCE_S, clock=clock) as client,
    ):
        yield Setting("served", client, clock)
        store.check()


@contextmanager
def served_asyncio(folder: Path, clock: Clock, settings: dict[str, Any]) -> Iterator[Setting]:
    async def connected(address: str) -> Any:
        return await aio.connect(address, timeout=PATIENCE_S, clock=clock)

    with _in(folder, clock, settings) as store, serving(store) as address, _tasks() as tasks:
        with Awaited(tasks.run(connected(address)), tasks) as client:
            yield Setting("served asyncio", client, clock, tasks)
        store.check()


@contextmanager
def shared(folder: Path, clock: Clock, settings: dict[str, Any]) -> Iterator[Setting]:
    with open_shared(folder, None, clock, None, PATIENCE_S, lambda: _in(folder, clock, settings)) as store:
        yield Setting("shared, served by this process", store, clock)


@contextmanager
def shared_asyncio(folder: Path, clock: Clock, settings: dict[str, Any]) -> Iterator[Setting]:
    async def joined() -> Any:
        return await open_shared_asyncio(folder, None, clock, None, PATIENCE_S, lambda: _in(folder, clock, settings))

    with _tasks() as tasks, Awaited(tasks.run(joined()), tasks) as store:
        yield Setting("shared asyncio, served by this process", store, clock, tasks)


@contextmanager
def _tasks() -> Iterator[Tasks]:
    tasks = Tasks()
    try:
        yield tasks
    finally:
        tasks.close()


Way = Callable[[Path, Clock, dict[str, Any]], AbstractContextManager[Setting]]
WAYS: dict[str, Way] = {
    "embedded": embedded,
    "embedded-asyncio": embedded_asyncio,
    "served": served,
    "served-asyncio": served_asyncio,
    "shared": shared,
    "shared-asyncio": shared_asyncio,
}
__all__ = ["WAYS", "Opening", "Setting", "Way"]
