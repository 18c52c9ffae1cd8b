"""One request on a connection, and its answer.

    pieces of a body ──> came, ended ──> body        nothing is awaited for what is there
    status, fields, body ──> answer ──> one write

The application is ours: it answers once, with one body, and says its length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

HELD_BYTES: Final = 64 << 10
"""Of a body, beyond which no more is read until somebody has taken it."""
JOINED_BYTES: Final = 64 << 10
"""A body up to that is written with its head, copied; a larger one behind it."""
_STATUS: Final = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}


class ClientGone(Exception):
    """Nobody is there any more to take an answer."""


class Peer(NamedTuple):
    """The other end of a connection. name: for the log and the limits. trusted: it needs no token.

    tcp: whether it came by a network, where a browser may be behind it.
    """

    name: str
    trusted: bool
    tcp: bool


class RequestHead:
    """What a request line says, and the headers behind it: those of one name are one, the last.

    Kept for the next that says the same (`heads.py`), with what the application makes of it.
    """

    __slots__ = ("expects", "headers", "keep_alive", "method", "path", "query_string", "target")

    def __init__(
        self,
        method: str,
        path: str,
        query_string: bytes,
        headers: Mapping[bytes, bytes],
        *,
        keep_alive: bool = True,
        expects: bool = False,
    ) -> None:
        """path: as sent, percent-encoded; headers: names in lower case. expects: whether the client waits for word that
        its body is wanted (`Expect: 100-continue`)."""
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = headers
        self.keep_alive = keep_alive
        """Whether another request may follow."""
        self.expects = expects
        self.target: Any = None
        """What the application keeps of it."""


class Flow:
    """What is held back on a connection, in either direction."""

    __slots__ = ("_loop", "_transport", "_writable", "is_read_paused")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._writable: asyncio.Future[None] | None = None
        """While nothing more is to be written."""
        self.is_read_paused = False

    def pause_reading(self) -> None:
        if not self.is_read_paused:
            self.is_read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_read_paused:
            self.is_read_paused = False
            self._transport.resume_reading()

    @property
    def is_write_paused(self) -> bool:
        return self._writable is not None

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            writable, self._writable = self._writable, None
            writable.set_result(None)

    async def drained(self) -> None:
        """Return once more may be written."""
        while self._writable is not None:
            await asyncio.shield(self._writable)


class HttpExchange(Protocol):
    """An exchange, as the application has it."""

    head: RequestHead
    peer: Peer

    @property
    def is_gone(self) -> bool:
        """Whether the client is: then nothing that is sent goes anywhere."""

    @property
    def is_whole(self) -> bool:
        """Whether the body has come."""

    async def body(self) -> bytes:
        """What has come of it since; with `is_whole` that is all. Raises ClientGone."""

    def when_gone(self, call: Callable[[], object] | None) -> None:
        """Call this, soon after the client is gone, from now on; None: nobody wants to know."""

    async def answer(self, status: int, fields: bytes, body: bytes, *, closes: bool) -> None:
        """fields: lines, each with its end. closes: no other request is answered here."""


class Exchange:
    """On a connection. on_done: once the answer is written."""

    __slots__ = (
        "_body", "_expects", "_flow", "_loop", "_on_done", "_on_gone", "_size", "_transport", "_waiting",
        "disconnected", "done", "head", "is_whole", "keep_alive", "peer",
    )  # fmt: skip

    def __init__(
        self,
        head: RequestHead,
        peer: Peer,
        transport: asyncio.Transport,
        flow: Flow,
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[], None],
        whole: bytes | None = None,
    ) -> None:
        """whole: the body, where that has come."""
        self.head = head
        self.peer = peer
        self._transport = transport
        self._flow = flow
        self._loop = loop
        self._on_done = on_done
        self._on_gone: Callable[[], object] | None = None
        self._expects = head.expects
        self._body: list[bytes] = [] if whole is None else [whole]
        self._size = 0
        self.is_whole = whole is not None
        self._waiting: asyncio.Future[None] | None = None
        self.keep_alive = head.keep_alive
        self.disconnected = False
        self.done = False

    # What the connection tells.

    def came(self, piece: bytes) -> None:
        """Of the body."""
        self._body.append(piece)
        self._size += len(piece)
        if self._size > HELD_BYTES:
            self._flow.pause_reading()
        self._stir()

    def ended(self) -> None:
        """The body has come."""
        self.is_whole = True
        self._stir()

    def disconnect(self) -> None:
        if not self.done:
            self.disconnected = True
            if self._on_gone is not None:
                self._loop.call_soon(self._on_gone)
        self._stir()

    # What the application asks.

    @property
    def is_gone(self) -> bool:
        return self._transport.is_closing()

    async def body(self) -> bytes:
        if self._expects and not (self.done or self._transport.is_closing()):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects = False
        while not (self._body or self.is_whole or self.disconnected):
            self._flow.resume_reading()
            self._waiting = self._loop.create_future()
            await self._waiting
        if self.disconnected:
            raise ClientGone
        body, self._body, self._size = b"".join(self._body), [], 0
        self._flow.resume_reading()
        return body

    def when_gone(self, call: Callable[[], object] | None) -> None:
        self._on_gone = call
        if call is not None:
            self._flow.resume_reading()  # so that it is noticed
            if self.disconnected:
                self._loop.call_soon(call)

    async def answer(self, status: int, fields: bytes, body: bytes, *, closes: bool) -> None:
        if self._flow.is_write_paused and not self.disconnected:
            await self._flow.drained()
        if self.disconnected:
            return
        if closes or (self._expects and not self.is_whole):  # a body that was not asked for may not come
            self.keep_alive = False
        if not self.keep_alive:
            fields += b"connection: close\r\n"
        head = b"%s%s\r\n" % (_STATUS[status], fields)
        if self.head.method == "HEAD" or not body:
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
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            if not waiting.done():
                waiting.set_result(None)
