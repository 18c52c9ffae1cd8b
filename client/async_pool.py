"""The asyncio client's connections, by aiohttp: as many as tasks that wait, kept alive for the next call.

A lane (`lanes.py`) is for sends alone, and not tied to a connection: which one a request takes does not matter, where
one request at a time is under way on the lane.

*Cancellation.* The connection of a call that is cancelled is closed; what was to be done may have been. What a receive
was leased goes back (`async_wait.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Any

from afterlog.api.operation import JSON
from afterlog.base.extras import missing

try:
    import aiohttp
except ImportError as error:
    raise missing(error, "asyncio with a server, or with a store that is shared,", "client") from error

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
from afterlog.client.address import Address
from afterlog.client.async_wait import AsyncWait, WaitingResponse
from afterlog.client.attempts import Attempts
from afterlog.client.call import AnswerOf, Call, HttpReply, HttpRequest, Pause, Steps
from afterlog.client.lanes import Lane
from afterlog.client.server_time import ServerTime

LANES = 64
"""Sends at a time; more wait for one of them. Larger: more share an append at the server, more producers there."""


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
