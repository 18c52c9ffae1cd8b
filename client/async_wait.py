"""A long poll in asyncio: how it is ended by the client without losing an answer.

    ended ──> nothing more is said on its connection ──> the server takes nothing for it (`polls.py`)
                                                    ├─> or has answered: that is read, and given back
                                                    └─> neither, for HANG_UP_S: the connection is closed

aiohttp tells of no connection before the head of the answer is there: its response does, when it begins to wait.
TLS, as Python has it, closes both ways or none: there the connection is closed, and a lease that was on its way runs
to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Generic

import aiohttp
from aiohttp.connector import Connection

from afterlog.base.errors import AnswerLost
from afterlog.client.call import AnswerOf
from afterlog.client.polls import Polls

HANG_UP_S = 1.0
"""Larger: a slow server has longer to say what it had answered, a dead one holds up for longer."""


class AsyncWait(Generic[AnswerOf]):
    """Of one request. Used in its event loop."""

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
