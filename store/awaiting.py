"""Building blocks of the asyncio facades, for a store in this process or another: open, close, await, buffer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from afterlog.fetch.record_id import RecordId
from afterlog.produce.producer import Producer
from afterlog.store.aio_calls import Answer, Calls

Parameters = ParamSpec("Parameters")


class Closing:
    """What is open, and closed at the end of its block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        raise NotImplementedError


Opened = TypeVar("Opened", bound=Closing)


class Opening(Generic[Opened]):
    """What is being opened: enter it with `async with`, or await it and close what that gives."""

    def __init__(self, opening: Coroutine[Any, Any, Opened]) -> None:
        self._opening = opening

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._opening.__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)


def awaited(
    method: Callable[Concatenate[Any, Parameters], Answer],
) -> Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Answer]]:
    """A method of the synchronous API, to be awaited: its parameters, and what it says of itself."""

    @functools.wraps(method)
    async def awaited(self: Any, /, *args: Parameters.args, **options: Parameters.kwargs) -> Answer:
        run: Callable[[Callable[[], Answer]], Coroutine[Any, Any, Answer]] = self._run
        return await run(functools.partial(method, self._blocking, *args, **options))

    return awaited


def buffered(
    method: Callable[Concatenate[Any, Parameters], Future[Answer]],
) -> Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, asyncio.Future[Answer]]]:
    """The same of a method that gives a future."""
    taken = awaited(method)

    @functools.wraps(method)
    async def wrapped(self: Any, /, *args: Parameters.args, **options: Parameters.kwargs) -> asyncio.Future[Answer]:
        return asyncio.wrap_future(await taken(self, *args, **options))

    return wrapped


class AsyncProducer(Closing):
    """Made by `store.producer`. `send` is awaited twice: for a place in the buffer, and for the append."""

    def __init__(self, producer: Producer[RecordId], calls: Calls) -> None:
        self._blocking = producer
        self._run = calls.run

    send = buffered(Producer[RecordId].send)
    flush = awaited(Producer.flush)
    close = awaited(Producer.close)
