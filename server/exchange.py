"""One request on a connection, and its answer, as ASGI has them: uvicorn's cycle, with less work per request.

    pieces of a body ──> receive      nothing is awaited for what is there
    head, body ──> send ──> one write

The application is ours, so its messages are not checked once more: it says a length, and answers with one body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

JOINED_BYTES: Final = 64 << 10
"""A body up to that is written with its head, copied; a larger one behind it."""
_STATUS: Final = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_CLOSE: Final = (b"connection", b"close")
_GONE: Final = {"type": "http.disconnect"}


class Exchange:
    """Of one connection. on_done: once the answer is written."""

    __slots__ = (
        "_body", "_expects", "_flow", "_loop", "_news", "_on_done", "_size", "_start", "_transport",
        "_waiting", "disconnected", "done", "is_whole", "keep_alive", "scope",
    )  # fmt: skip

    def __init__(
        self,
        scope: dict[str, Any],
        transport: asyncio.Transport,
        flow: FlowControl,
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[], None],
        *,
        keep_alive: bool,
        expects: bool,
    ) -> None:
        """expects: whether the client waits for word that its body is wanted (`Expect: 100-continue`)."""
        self.scope = scope
        self._transport = transport
        self._flow = flow
        self._loop = loop
        self._on_done = on_done
        self._expects = expects
        self._body: list[bytes] = []
        self._size = 0
        self.is_whole = False
        """Whether its body has come."""
        self._news = False
        self._waiting: asyncio.Future[None] | None = None
        self._start: dict[str, Any] | None = None
        self.keep_alive = keep_alive
        self.disconnected = False
        self.done = False

    def came(self, piece: bytes) -> None:
        """Of the body."""
        self._body.append(piece)
        self._size += len(piece)
        if self._size > HIGH_WATER_LIMIT:
            self._flow.pause_reading()
        self._stir()

    def ended(self) -> None:
        """The body has come."""
        self.is_whole = True
        self._stir()

    def disconnect(self) -> None:
        if not self.done:
            self.disconnected = True
        self._stir()

    async def receive(self) -> dict[str, Any]:
        if self._expects and not (self.done or self._transport.is_closing()):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects = False
        if not (self.disconnected or self.done):
            self._flow.resume_reading()
            if not self._news:
                self._waiting = self._loop.create_future()
                await self._waiting
            self._news = False
        if self.disconnected or self.done:
            return _GONE
        body, self._body, self._size = b"".join(self._body), [], 0
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    async def send(self, message: dict[str, Any]) -> None:
        """A start, which is kept until its body comes, and a body."""
        if self._start is None:
            self._start = message
            return
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if not self.disconnected:
            self._write(message["body"])

    def _write(self, body: bytes) -> None:
        assert self._start is not None, "a body has a start"
        status, headers = self._start["status"], self._start["headers"]
        if self._expects and not self.is_whole:  # the body was not asked for, and may not come
            self.keep_alive = False
        if _CLOSE in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            headers = [*headers, _CLOSE]
        head = b"%s%s\r\n" % (_STATUS[status], b"".join([b"%s: %s\r\n" % header for header in headers]))
        if self.scope["method"] == "HEAD" or not body:
            self._transport.write(head)
        elif len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        self.done = True
        self._stir()
        if not self.keep_alive:
            self._transport.close()
        self._on_done()

    def _stir(self) -> None:
        self._news = True
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            if not waiting.done():
                waiting.set_result(None)
