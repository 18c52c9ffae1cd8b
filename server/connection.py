"""One connection: who is at the other end, how large heads may be and how long they may take, in which order requests
are answered, and answers that nobody takes.

    bytes ──> known heads ──────────────────┐
          └─> httptools ──> head, body ──> Exchange ──> the application, in a task ──> one write

*No request is read where another ends.* A client may offer to change the protocol (`Upgrade`: Java's client and curl do
with every first request): what is not taken is ignored (RFC 9110, 7.8), and the body belongs to the request. The parser
gives up there, so another one goes on after the head, told how long the body is. What comes behind a body in chunks is
not of the head. A body that a client held back until it was wanted, and that was not, may never come: the connection
ends with the answer. What follows a CONNECT is no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import httptools

from afterlog.api.problem import MEDIA_TYPE, problem_of
from afterlog.base.environment import user_id
from afterlog.base.errors import InvalidRequest
from afterlog.base.listeners import hold, is_unix, let_go, peer_user
from afterlog.server.exchange import Exchange, Flow, HttpExchange, Peer, RequestHead
from afterlog.server.heads import KnownHeads
from afterlog.server.limits import Limits

logger = logging.getLogger("afterlog.server")

Application = Callable[[HttpExchange], Coroutine[Any, Any, None]]
"""Answers a request, whatever it is."""

_FRAMING: Final = (b"connection", b"content-length", b"transfer-encoding", b"upgrade")
"""What says where a request ends, and whether another follows."""


class Connections:
    """Of one server: which are there, how many each client has, and the requests that are under way."""

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
        self.open = set[Connection]()
        self.tasks = set[asyncio.Task[None]]()
        self.heads = KnownHeads()

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


class Connection(asyncio.Protocol):
    """Of one client, from `connection_made` on."""

    def __init__(self, application: Application, connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._application = application
        self._connections = connections
        self._loop = loop
        self._parser = _parser(self)
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._lines = 0
        """Of these, as they came."""
        self._head_bytes = 0
        self._in_head = False
        self._first: bytes | None = None
        """What came last, where a request begins with it, and its head is not known yet."""
        self._begun = 0
        """Requests, in what came last."""
        self._exchange: Exchange | None = None
        """The last one that has begun; those behind it, pipelined; and that of which the body comes."""
        self._queued: deque[Exchange] = deque()
        self._coming: Exchange | None = None
        self._upgrade: _Upgrade | None = None
        self._is_deaf = False
        """What comes is no request any more."""
        self._patience = Patience(loop)
        self._taking_deadline: asyncio.TimerHandle | None = None
        self._counted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._flow = Flow(transport, self._loop)
        self._peer = peer_of(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        hold(self._descriptor)
        self._connections.open.add(self)
        self._counted = self._connections.add(self._peer)
        if self._counted:
            self._await_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        let_go(self._descriptor)
        self._connections.open.discard(self)
        self._patience.close()
        if self._taking_deadline is not None:
            self._taking_deadline.cancel()
        if self._counted:
            self._connections.remove(self._peer)
            self._counted = False
        for exchange in (self._exchange, *self._queued):
            if exchange is not None:
                exchange.disconnect()
        self._flow.resume_writing()
        self._exchange = self._coming = None  # who answers has it; together they would be a cycle
        self._queued.clear()
        del self._parser

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._is_deaf:
            return
        coming, answered = self._coming, self._exchange
        in_body = coming is not None and not coming.is_whole
        at_start = not (self._in_head or in_body)
        if at_start and (answered is None or answered.done) and self._upgrade is None:
            known = self._connections.heads.read(data)
            if known is not None:
                self._patience.end()
                self._coming = exchange = self._exchange_of(known[0], known[1])
                self._begin(exchange)
                return
        goes_on, self._begun, self._first = not at_start, 0, data if at_start else None
        self._feed(data)
        self._first = None
        # Where all of it is of one head; of one behind others that end in it, what comes next is counted.
        if self._in_head and goes_on + self._begun == 1:
            self._head_bytes += len(data)
            if self._head_bytes > self._connections.limits.head_bytes:
                self._refuse("the head of the request is too large")

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:  # after the head, whose body it takes for something else
                data = data[stopped.args[0] :]
                upgrade, self._upgrade = self._upgrade, None
                assert upgrade is not None, "it has told of a head"
                if upgrade.method == b"CONNECT":
                    self._is_deaf = True
                    self.on_message_complete()
                    return
                self._parser = _parser(upgrade)
                try:
                    self._parser.feed_data(upgrade.head)
                except httptools.HttpParserError as error:
                    self._refuse(f"no HTTP request: {error}")
                    return
                upgrade.protocol = self
                if upgrade.is_whole:
                    self.on_message_complete()
            except httptools.HttpParserError:
                self._refuse("Invalid HTTP request received.")
                return

    def shutdown(self, *, wait_for_body: bool = True) -> None:
        """Closed, or else once its answer is out; one that has no whole request yet may not get one."""
        if self._exchange is None or self._exchange.done or not (wait_for_body or self._exchange.is_whole):
            self.transport.close()
        else:
            self._exchange.keep_alive = False

    # What the parser tells.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._lines = b"", {}, 0
        self._in_head, self._head_bytes = True, 0
        self._begun += 1
        self._await_head()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._head_bytes += len(name) + len(value)
        if self._in_head:
            self._headers[name] = value
            self._lines += 1
        elif name in _FRAMING and self._coming is not None:
            self._coming.keep_alive = False  # behind a body in chunks: the parser may heed it, we do not
        if self._head_bytes > 2 * self._connections.limits.head_bytes:  # those of a piece are counted twice
            raise ValueError("the head of the request is too large")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._patience.end()
        parser, version, method = self._parser, self._parser.get_http_version(), self._parser.get_method()
        path, query = _target(self._url)
        head = RequestHead(
            method.decode("ascii"),
            path.decode("latin-1"),
            query,
            self._headers,
            keep_alive=version != "1.0" and method != b"CONNECT" and parser.should_keep_alive(),
            expects=version != "1.0" and self._headers.get(b"expect", b"").lower() == b"100-continue",
        )
        first, self._first = self._first, None
        if parser.should_upgrade():
            self._upgrade = _Upgrade(method, version, self._headers)
        elif first is not None:
            self._connections.heads.keep(first, head, self._lines)
        exchange = self._coming = self._exchange_of(head)
        if self._exchange is None or self._exchange.done:
            self._begin(exchange)
            self._await_body()
        else:  # pipelined: answers come in the order of the requests
            self._flow.pause_reading()
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
        coming.ended()

    def _answered(self) -> None:
        """The last one that has begun is."""
        if self.transport.is_closing():
            return
        self._flow.resume_reading()
        if self._queued:
            self._begin(self._queued.popleft())
            if self._exchange is not None and not self._exchange.is_whole:
                self._await_body()
        elif not self._in_head:
            self._await_next()

    def pause_writing(self) -> None:
        self._flow.pause_writing()
        self._taking_deadline = self._loop.call_later(self._connections.limits.answer_s, self._give_up)

    def resume_writing(self) -> None:
        self._flow.resume_writing()
        if self._taking_deadline is not None:
            self._taking_deadline.cancel()

    def _refuse(self, reason: str) -> None:
        """What is no request; behind requests that are not answered yet the connection ends with them."""
        logger.warning("peer=%s status=400 error=InvalidRequest: %s", self._peer.name, reason)
        self._is_deaf = True
        pending = [each for each in (self._exchange, *self._queued) if each is not None and not each.done]
        if pending and not pending[-1].is_whole:  # of that one it is said
            pending.pop().disconnect()
        if pending:
            pending[-1].keep_alive = False
            return
        body = json.dumps(problem_of(InvalidRequest(reason))).encode()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _exchange_of(self, head: RequestHead, whole: bytes | None = None) -> Exchange:
        return Exchange(head, self._peer, self.transport, self._flow, self._loop, self._answered, whole)

    def _begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
        task = self._loop.create_task(self._application(exchange))
        self._connections.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("peer=%s: a request failed", self._peer.name, exc_info=error)
        if error is not None or task.cancelled():  # nobody will answer
            self.transport.close()

    def _await_head(self) -> None:
        """The head that is to come, or has begun, is there in time, or never."""
        self._patience.begin(self._connections.limits.body_s, self._give_up)

    def _await_body(self) -> None:
        """So is the body of the request that has begun."""
        seconds = self._connections.limits.body_s
        self._patience.begin(seconds, lambda: self._refuse(f"the body did not come within {seconds:g} s"))

    def _await_next(self) -> None:
        self._patience.begin(self._connections.limits.idle_s, self.transport.close)

    def _give_up(self) -> None:
        logger.warning("peer=%s refused: too slow", self._peer.name)
        self.transport.abort()


def _parser(told: Any) -> Any:
    parser = httptools.HttpRequestParser(told)
    with contextlib.suppress(AttributeError):  # behind a request that says it is the last another may have come
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class _Upgrade:
    """What a parser is told in place of a connection that goes on behind a head: the same, without the offer."""

    def __init__(self, method: bytes, version: str, headers: Mapping[bytes, bytes]) -> None:
        self.method = method
        framing = [header for header in headers.items() if header[0] in (b"content-length", b"transfer-encoding")]
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


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Who is at the other end. On a socket in a folder it is trusted where it is this user, or root."""
    connection: Any = transport.get_extra_info("socket")
    if connection is not None and is_unix(connection):
        user = peer_user(connection)
        return Peer(f"user {user}", trusted=user in (user_id(), 0) or user is None, tcp=False)
    address = transport.get_extra_info("peername")
    host = str(address[0]) if isinstance(address, tuple) and address else "unknown"
    return Peer(host, trusted=False, tcp=True)
