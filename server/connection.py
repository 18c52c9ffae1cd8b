"""One connection, as uvicorn's HTTP protocol has it, and what that leaves open: who is at the other end, how large
heads may be and how long they may take, and answers that nobody takes.

*No request is read where another ends.* A client may offer to change the protocol (`Upgrade`: Java's client and curl do
with every first request): what is not taken is ignored (RFC 9110, 7.8), and the body belongs to the request. The parser
gives up there, so another one goes on after the head, told how long the body is. What comes behind a body in chunks is
not of the head. A body that a client held back until it was wanted, and that was not, may never come: the connection
ends with the answer. What follows a CONNECT is no HTTP.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from afterlog.api.problem import MEDIA_TYPE, problem_of
from afterlog.base.environment import descriptors, user_id
from afterlog.base.errors import InvalidRequest
from afterlog.base.listeners import hold, is_unix, let_go, peer_user
from afterlog.server.access import Peer
from afterlog.server.app import GONE, PEER
from afterlog.server.limits import Limits

logger = logging.getLogger("afterlog.server")

JOINED_BYTES: Final = 64 << 10
"""A body up to that is written with its head, copied; a larger one behind it."""
_STATUS: Final = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_CLOSE: Final = (b"connection", b"close")
_GONE: Final = {"type": "http.disconnect"}

_FRAMING = (b"connection", b"content-length", b"transfer-encoding", b"upgrade")
"""What says where a request ends, and whether another follows."""


class Exchange:
    """One request on a connection, and its answer, as ASGI has them: uvicorn's cycle, with less work per request.

        pieces of a body ──> receive      nothing is awaited for what is there
        head, body ──> send ──> one write

    The application is ours, so its messages are not checked once more: it says a length, and answers with one body.
    on_done: once the answer is written.
    """

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


class Connections:
    """Of one server: how many each client has."""

    def __init__(self, limits: Limits, descriptors: int | None = None) -> None:
        """descriptors: that the process may have. A quarter is left for the store's files; else connections, of which
        nobody knows yet who they are, could take all of them, and the log that they fill be closed."""
        self.limits = limits
        most = limits.connections if descriptors is None else min(limits.connections, descriptors * 3 // 4)
        if most < limits.connections:
            logger.info(
                "%d connections at most, of the %d files that this process may have open: raise `ulimit -n`",
                most, descriptors,
            )  # fmt: skip
        self.most = most
        self.most_of_one = min(limits.client_connections, max(most * 4 // 5, 1))
        self.by_name: Counter[str] = Counter()
        self.total = 0

    def add(self, peer: Peer) -> bool:
        """False where it is one too many, and is not counted."""
        if self.total >= self.most or self.by_name[peer.name] >= self.most_of_one:
            logger.warning(
                "peer=%s refused: it has %d of %d connections", peer.name, self.by_name[peer.name], self.total
            )
            return False
        self.by_name[peer.name] += 1
        self.total += 1
        return True

    def remove(self, peer: Peer) -> None:
        self.total -= 1
        self.by_name[peer.name] -= 1
        if not self.by_name[peer.name]:
            del self.by_name[peer.name]


class Connection(HttpToolsProtocol):
    """Made by `connection_class` for the connections of one server."""

    open_connections: Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._in_head = False
        self._begun = 0
        """Requests, in what came last."""
        self._exchange: Exchange | None = None
        """The last one that has begun; those behind it, pipelined; and that of which the body comes."""
        self._queued: deque[Exchange] = deque()
        self._coming: Exchange | None = None
        self._upgrade: _Upgrade | None = None
        self._is_deaf = False
        """What comes is no request any more."""
        self._patience = Patience(self.loop)
        self._taking_deadline: asyncio.TimerHandle | None = None
        self._peer = peer_of(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        hold(self._descriptor)
        self._scope = {
            "type": "http", "asgi": {"version": self.asgi_version, "spec_version": "2.3"}, "http_version": "1.1",
            "server": self.server, "client": self.client, "scheme": self.scheme, "root_path": "",
            PEER: self._peer, GONE: transport.is_closing,
        }  # fmt: skip
        """What all requests have."""
        self._counted = self.open_connections.add(self._peer)
        if self._counted:
            self._await_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        let_go(self._descriptor)
        self._patience.close()
        if self._taking_deadline is not None:
            self._taking_deadline.cancel()
        if self._counted:
            self.open_connections.remove(self._peer)
            self._counted = False
        for exchange in (self._exchange, *self._queued):
            if exchange is not None:
                exchange.disconnect()
        self._exchange = self._coming = None  # who answers has it; together they would be a cycle
        self._queued.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._is_deaf:
            return
        goes_on, self._begun = self._in_head or (self._coming is not None and not self._coming.is_whole), 0
        self._feed(data)
        if (
            self._in_head and goes_on + self._begun == 1
        ):  # all of it is of one head; where others end in it, the next is
            self._head_bytes += len(data)
            if self._head_bytes > self.open_connections.limits.head_bytes:
                self.send_400_response("the head of the request is too large")

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:  # after the head, whose body it takes for something else
                data = data[stopped.args[0] :]
                upgrade, self._upgrade = self._upgrade, None
                assert upgrade is not None, "it has told of a head"
                if upgrade.method == b"CONNECT":
                    self._is_deaf = True
                    self.on_message_complete()
                    return
                self.parser = httptools.HttpRequestParser(upgrade)
                try:
                    self.parser.feed_data(upgrade.head)
                except httptools.HttpParserError as error:
                    self.send_400_response(f"no HTTP request: {error}")
                    return
                upgrade.protocol = self
                if upgrade.is_whole:
                    self.on_message_complete()
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def shutdown(self, *, wait_for_body: bool = True) -> None:
        """Closed, or else once its answer is out; one that has no whole request yet may not get one."""
        if self._exchange is None or self._exchange.done or not (wait_for_body or self._exchange.is_whole):
            self.transport.close()
        else:
            self._exchange.keep_alive = False

    # What the parser tells.

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_head, self._head_bytes = True, 0
        self._begun += 1
        self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._head_bytes += len(name) + len(value)
        if self._in_head:
            self.headers.append((name, value))
        elif (
            name in _FRAMING and self._coming is not None
        ):  # behind a body in chunks: the parser may heed it, we do not
            self._coming.keep_alive = False
        if self._head_bytes > 2 * self.open_connections.limits.head_bytes:  # those of a piece are counted twice
            raise ValueError("the head of the request is too large")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._patience.end()
        parser, version, method = self.parser, self.parser.get_http_version(), self.parser.get_method()
        path, query = _target(self.url)
        scope: dict[str, Any] = {
            **self._scope, "http_version": version, "method": method.decode("ascii"),
            "path": unquote(path.decode("ascii")), "raw_path": path, "query_string": query, "headers": self.headers,
        }  # fmt: skip
        exchange = self._coming = Exchange(
            scope,
            self.transport,
            self.flow,
            self.loop,
            self.on_response_complete,
            keep_alive=version != "1.0" and method != b"CONNECT" and parser.should_keep_alive(),
            expects=self.expect_100_continue and version != "1.0",
        )
        if parser.should_upgrade():
            self._upgrade = _Upgrade(method, version, self.headers)
        if self._exchange is None or self._exchange.done:
            self._begin(exchange)
            self._await_body()
        else:  # pipelined: answers come in the order of the requests
            self.flow.pause_reading()
            self._queued.append(exchange)

    def on_body(self, body: bytes) -> None:
        if self._coming is not None and not self._coming.done:
            self._coming.came(body)

    def on_message_complete(self) -> None:
        if self._upgrade is not None:  # the parser thinks that there is no body
            return
        coming = self._coming
        if coming is None:
            return
        if coming is self._exchange:
            self._patience.end()
        if coming.done:  # it was answered before its body had come
            self._await_next()
        else:
            coming.ended()

    def on_response_complete(self) -> None:
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._queued:
            self._begin(self._queued.popleft())
            if self._exchange is not None and not self._exchange.is_whole:
                self._await_body()
        elif not self._in_head:
            self._await_next()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking_deadline = self.loop.call_later(self.open_connections.limits.answer_s, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking_deadline is not None:
            self._taking_deadline.cancel()

    def send_400_response(self, msg: str) -> None:
        """In place of uvicorn's plain text; behind requests that are not answered yet the connection ends with them."""
        logger.warning("peer=%s status=400 error=InvalidRequest: %s", self._peer.name, msg)
        self._is_deaf = True
        pending = [each for each in (self._exchange, *self._queued) if each is not None and not each.done]
        if pending and not pending[-1].is_whole:  # of that one it is said
            pending.pop().disconnect()
        if pending:
            pending[-1].keep_alive = False
            return
        body = json.dumps(problem_of(InvalidRequest(msg))).encode()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.tasks.add(self.loop.create_task(self._answered(exchange)))

    async def _answered(self, exchange: Exchange) -> None:
        try:
            await self.app(exchange.scope, exchange.receive, exchange.send)
        except BaseException:
            self.transport.close()
            raise
        finally:
            task = asyncio.current_task()
            if task is not None:
                self.tasks.discard(task)

    def _await_head(self) -> None:
        """The head that is to come, or has begun, is there in time, or never."""
        self._patience.begin(self.open_connections.limits.body_s, self._give_up)

    def _await_body(self) -> None:
        """So is the body of the request that has begun."""
        seconds = self.open_connections.limits.body_s
        self._patience.begin(seconds, lambda: self.send_400_response(f"the body did not come within {seconds:g} s"))

    def _await_next(self) -> None:
        self._patience.begin(self.open_connections.limits.idle_s, self.transport.close)

    def _give_up(self) -> None:
        logger.warning("peer=%s refused: too slow", self._peer.name)
        self.transport.abort()


class _Upgrade:
    """What a parser is told in place of a connection that goes on behind a head: the same, without the offer."""

    def __init__(self, method: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.method = method
        framing = [header for header in headers if header[0] in (b"content-length", b"transfer-encoding")]
        lines = b"".join(b"%s: %s\r\n" % header for header in framing)
        self.head = b"%s / HTTP/%s\r\n%s\r\n" % (method, version.encode(), lines)
        self.protocol: Connection | None = None
        """From when on it is told: the head is known."""
        self.is_whole = False
        """No body follows."""

    def on_message_begin(self) -> None:
        if self.protocol is not None:
            self.protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self.protocol is not None:
            self.protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.protocol is not None:
            self.protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.protocol is not None:
            self.protocol.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.protocol is not None:
            self.protocol.on_body(body)

    def on_message_complete(self) -> None:
        if self.protocol is None:
            self.is_whole = True
        else:
            self.protocol.on_message_complete()


class Patience:
    """How long a connection waits for what comes next; one timer for many requests, since most of them never ring."""

    __slots__ = ("_deadline_s", "_give_up", "_loop", "_rings_s", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = self._deadline_s = math.inf
        self._give_up: Callable[[], object] = _nothing

    def begin(self, seconds: float, give_up: Callable[[], object]) -> None:
        """give_up: called once so many seconds are over, unless it ends, or begins again, before."""
        self._deadline_s, self._give_up = self._loop.time() + seconds, give_up
        if self._deadline_s < self._rings_s:
            self._set()

    def end(self) -> None:
        """It waits for nothing; the timer that rings later finds nothing to do."""
        self._deadline_s, self._give_up = math.inf, _nothing

    def close(self) -> None:
        self.end()
        if self._timer is not None:
            self._timer.cancel()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_s = self._deadline_s
        self._timer = self._loop.call_at(self._rings_s, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_s = None, math.inf
        if self._loop.time() >= self._deadline_s:
            give_up = self._give_up
            self.end()
            give_up()
        elif self._deadline_s < math.inf:
            self._set()


def _nothing() -> None:
    pass


def _target(url: bytes) -> tuple[bytes, bytes]:
    """(path, query) of a request line. Raises httptools' error of a URL that is none."""
    if url[:1] == b"/" and b"#" not in url:  # what all clients say
        path, _, query = url.partition(b"?")
        return path, query
    parsed = httptools.parse_url(url)
    return parsed.path or b"/", parsed.query or b""


def connection_class(limits: Limits) -> type[Connection]:
    """What uvicorn makes for each connection of one server."""
    return type("ServerConnection", (Connection,), {"open_connections": Connections(limits, descriptors())})


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Who is at the other end. On a socket in a folder it is trusted where it is this user, or root."""
    connection: Any = transport.get_extra_info("socket")
    if connection is not None and is_unix(connection):
        user = peer_user(connection)
        return Peer(f"user {user}", trusted=user in (user_id(), 0) or user is None, tcp=False)
    address = transport.get_extra_info("peername")
    host = str(address[0]) if isinstance(address, tuple) and address else "unknown"
    return Peer(host, trusted=False, tcp=True)
