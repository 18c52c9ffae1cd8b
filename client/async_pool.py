"""The asyncio client's connections, by aiohttp: as many as tasks that wait, kept alive for the next call.

A lane (`lanes.py`) is for sends alone, and not tied to a connection: which one a request takes does not matter, where
one request at a time is under way on the lane.

*Cancellation.* The connection of a call that is cancelled is closed; what was to be done may have been. What a receive
was leased goes back (`AsyncWait`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, Generic

from afterlog.api.operation import JSON
from afterlog.base import sockets
from afterlog.base.clock import Clock
from afterlog.base.environment import process_id
from afterlog.base.errors import (
    AfterlogError,
    AnswerLost,
    NotAllowed,
    ServerNotTrusted,
    ServerUnavailable,
    StoreClosed,
    StoreForked,
)
from afterlog.base.extras import missing
from afterlog.client.address import Address
from afterlog.client.call import AnswerOf, Call, HttpReply, HttpRequest, Pause, Steps
from afterlog.client.lanes import Lane
from afterlog.client.polls import Polls
from afterlog.client.retry import Attempts
from afterlog.client.server_time import ServerTime

try:
    import aiohttp
    from aiohttp.connector import Connection
except ImportError as error:
    raise missing(error, "asyncio with a server, or with a store that is shared,", "client") from error

LANES = 64
"""Sends at a time; more wait for one of them. Larger: more share an append at the server, more producers there."""
HANG_UP_S = 1.0
"""Larger: a slow server has longer to say what it had answered, a dead one holds up for longer."""


class AsyncWait(Generic[AnswerOf]):
    """A long poll, and how the client ends it without losing an answer. Used in its event loop.

        ended ──> nothing more is said on its connection ──> the server takes nothing for it (`polls.py`)
                                                        ├─> or has answered: that is read, and given back
                                                        └─> neither, for HANG_UP_S: the connection is closed

    aiohttp tells of no connection before the head of the answer is there: its response does, when it begins to wait.
    TLS, as Python has it, closes both ways or none: there the connection is closed, and a lease that was on its way
    runs to its end.
    """

    def __init__(self, asking: Coroutine[Any, Any, AnswerOf]) -> None:
        self._connection: Connection | None = None
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._asking = asyncio.ensure_future(self._in_context(asking))

    async def answer(self, polls: Polls) -> AnswerOf:
        """Raises what asking does; AnswerLost where the polls ended it. Cancelled it goes on until it is answered."""
        number = polls.add(self._end_soon)
        try:
            return await asyncio.shield(self._asking)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._asking.cancelled() and (task is None or not task.cancelling()):
                raise AnswerLost("the wait was ended from here") from None
            self._end()
            with contextlib.suppress(Exception, asyncio.CancelledError):  # answered or not: who asked is gone
                await self._asking
            raise
        finally:
            polls.remove(number)
            self._asking.cancel()

    def begins(self, connection: Connection) -> None:
        """The request was sent, and its answer will come by this."""
        self._connection = connection
        if self._ended:
            self._hang_up(connection)

    def _end_soon(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._ended or self._asking.done():
            return
        self._ended = True
        self._loop.call_later(HANG_UP_S, self._asking.cancel)
        if self._connection is not None:
            self._hang_up(self._connection)

    def _hang_up(self, connection: Connection) -> None:
        transport, protocol = connection.transport, connection.protocol
        if transport is None or protocol is None or transport.is_closing():  # the answer is there
            return
        if isinstance(transport, asyncio.Transport) and transport.can_write_eof():
            protocol.force_close()  # nobody asks anything by it again
            transport.write_eof()
        else:
            self._asking.cancel()

    async def _in_context(self, asking: Coroutine[Any, Any, AnswerOf]) -> AnswerOf:
        _CURRENT.set(self)
        return await asking


class WaitingResponse(aiohttp.ClientResponse):
    """What tells its wait by which connection it comes."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        wait = _CURRENT.get()
        if wait is not None:
            wait.begins(connection)
        return await super().start(connection)


_CURRENT: ContextVar[AsyncWait[Any] | None] = ContextVar("afterlog_wait", default=None)
"""Of the task that asks."""


class AsyncPool:
    """Of one event loop."""

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None,
        clock: Clock,
        server_time: ServerTime,
        timeout_s: float,
    ) -> None:
        self._address = address
        self._clock = clock
        self._server_time = server_time
        self._timeout_s = timeout_s
        self._lanes = [Lane() for _ in range(LANES)]
        self._free = asyncio.Semaphore(LANES)
        self._owner = process_id()
        self._stack = contextlib.ExitStack()
        self._session = aiohttp.ClientSession(
            connector=self._connector(tls),
            headers=headers,
            timeout=aiohttp.ClientTimeout(),
            auto_decompress=False,
            response_class=WaitingResponse,
        )
        self._url = address.prefix if address.socket is None else "http://localhost" + address.prefix
        if address.socket is None:
            self._url = f"{'https' if address.tls else 'http'}://{address.netloc}{address.prefix}"
        self.closed = False

    async def drive(self, steps: Steps[AnswerOf]) -> AnswerOf:
        """Ask what the steps ask, one after the other, and return what they return."""
        try:
            asked = next(steps)
            while True:
                try:
                    answer = await (self.run(asked) if isinstance(asked, Call) else self._pause(asked))
                except BaseException as error:
                    asked = steps.throw(error)
                else:
                    asked = steps.send(answer)
        except StopIteration as end:
            answered: AnswerOf = end.value
            return answered

    async def run(self, asked: Call[AnswerOf]) -> AnswerOf:
        """Raises what the server says; ServerUnavailable, AnswerLost, StoreClosed, StoreForked."""
        self.check_usable()
        if asked.sending is None:
            return await self._tried(asked, Lane())
        async with self._free:
            lane = self._lanes.pop()
            try:
                return await self._tried(asked, lane)
            finally:
                lane.left()
                self._lanes.append(lane)

    def check_usable(self) -> None:
        """Raises StoreClosed, StoreForked."""
        if self.closed:
            raise StoreClosed("the connection to the store is closed; make another with afterlog.aio.connect(url)")
        if process_id() != self._owner:
            raise StoreForked("this is a forked child, the connection belongs to its parent: connect after the fork")

    async def close(self) -> None:
        """Calls that are under way are cut off."""
        self.closed = True
        await self._session.close()
        self._stack.close()

    async def _tried(self, asked: Call[AnswerOf], lane: Lane) -> AnswerOf:
        attempts, forgotten = Attempts(asked, self._clock, self._timeout_s), False
        while True:
            try:
                answer = await self._once(asked, lane.request(asked), attempts)
                lane.settled(asked)
                return answer
            except AfterlogError as error:
                if attempts.is_refused(error):
                    if lane.refused(error) and not forgotten:
                        forgotten = True
                        continue
                    raise
                if asked.polls is not None and asked.polls.ended:
                    raise
                pause_s = attempts.pause_s(error)
            await asyncio.sleep(pause_s)
            self.check_usable()

    async def _once(self, asked: Call[AnswerOf], request: HttpRequest, attempts: Attempts) -> AnswerOf:
        async def answered() -> AnswerOf:
            return asked.answer(await self._exchange(request, attempts.patience_s()))

        if asked.polls is None:
            return await answered()
        return await AsyncWait(answered()).answer(asked.polls)

    async def _exchange(self, request: HttpRequest, timeout_s: float) -> HttpReply:
        headers = {"Accept": request.accept}
        if request.body:
            headers["Content-Type"] = request.kind
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.request(
                    request.method, self._target(request.path), data=request.body or None, headers=headers
                ) as response:
                    return HttpReply(response.status, response.content_type or JSON, await response.read())
        except aiohttp.ClientConnectorCertificateError as error:
            raise ServerNotTrusted(f"{self._address} is not trusted: {error.certificate_error}") from error
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, PermissionError):
                raise NotAllowed(f"{self._address} is another user's, and lets nobody else in: {error}") from error
            raise ServerUnavailable(f"nobody answers at {self._address}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.check_usable()
            raise AnswerLost(f"no answer from {self._address}: {error!r}") from error

    def _target(self, path: str) -> Any:
        from yarl import URL

        return URL(self._url + path, encoded=True)

    def _connector(self, tls: ssl.SSLContext | None) -> aiohttp.BaseConnector:
        if self._address.socket is not None:
            path = self._stack.enter_context(sockets.short_path(self._address.socket))
            return aiohttp.UnixConnector(path, limit=0)
        return aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)

    async def _pause(self, pause: Pause) -> Any:
        loop, woken, waking = asyncio.get_running_loop(), asyncio.Event(), pause.waking

        def wake() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

        left_s = max(pause.until_ms - self._server_time.now_ms(), 0) / 1_000
        waking.listen(wake)
        try:
            if waking.version == pause.version:
                async with asyncio.timeout(min(left_s, pause.seconds)):
                    await woken.wait()
        except TimeoutError:
            pass
        finally:
            waking.leave(wake)
