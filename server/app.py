"""The server as an application: what becomes of a request on its way to the handler, and back.

    who asks, from where ──> which endpoint ──> may they? ──> is there room? ──> parameters, body ──> handler ──> answer
         401, 403               404, 405          403            429                400, 413             problem

Whatever is raised is told as a problem (`wire.problem`). What is not an error of ours is logged with its traceback, and
told as ServerFailed, without it. Where a client was gone before its answer was sent, what it was leased goes back.

There is no framework in between: the table routes, checks and describes, and a request costs half (decision 0054).
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from afterlog.api.operation import ARROW, JSON, NOTHING
from afterlog.api.problem import MEDIA_TYPE, problem_of
from afterlog.api.schema import NEEDED
from afterlog.base import errors
from afterlog.base.errors import AfterlogError, InvalidRequest, NotServed, ServerBusy, ServerFailed, ServerUnavailable
from afterlog.server.access import Caller, OriginGuard, RequestHeaders, allowed_prefixes, check_named
from afterlog.server.endpoint import Endpoint
from afterlog.server.exchange import ClientGone, HttpExchange, Peer, RequestHead
from afterlog.server.limits import Limits
from afterlog.server.page_files import PAGE
from afterlog.server.request import Bodies, Reply, Request, json_of
from afterlog.server.served import Served
from afterlog.server.table import ENDPOINTS, Routes

logger = logging.getLogger("afterlog.server")


_ARROW: Final = ARROW.encode()
_JSON: Final = JSON.encode()
LONG_JSON_BYTES: Final = 64 << 10
"""Some ms: more is read in a thread, so that nobody else waits for all of it."""
DATED_S: Final = 0.2
"""For which a date is good: an answer's is late by no more."""
Authenticate = Callable[[Peer, RequestHeaders], Caller]
"""Who asks. Raises NotAuthenticated."""

_REFUSALS: Final = (errors.NotAllowed, errors.ServerBusy, errors.InvalidRequest)


class App:
    """Of one open store, in one event loop."""

    def __init__(
        self,
        served: Served,
        authenticate: Authenticate,
        *,
        guard: OriginGuard | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.served = served
        self.limits = limits or Limits()
        self._authenticate = authenticate
        self._guard = guard or OriginGuard()
        self._routes = Routes((*ENDPOINTS, *PAGE))
        self._bodies = Bodies(self.limits)
        self._under_way: dict[str, int] = {}
        """Requests by who asks."""
        self._clock = served.store.clock
        self._date, self._dated_s = b"", -math.inf
        self.stopping = False
        served.under_way = lambda: sum(self._under_way.values())

    def stop(self) -> None:
        """No new work from now on; who waits is answered."""
        self.stopping = True
        self.served.waits.end()

    async def __call__(self, exchange: HttpExchange) -> None:
        asked = _Asked(exchange, self._clock.monotonic_s())
        try:
            answer = await self._answered(asked)
        except ClientGone:
            self._log(asked, 499, None)
            return
        except AfterlogError as error:
            answer = _problem(error, asked)
        except Exception as error:
            logger.exception("method=%s path=%.200s failed", asked.head.method, asked.head.path)
            answer = _problem(
                ServerFailed(f"{type(error).__name__}, unexpected: the log of the server says how"), asked
            )
        if answer.unsent is not None and exchange.is_gone:  # no await until all of it is sent
            await answer.unsent()
            self._log(asked, 499, None)
            return
        fields = b"%s%s" % (_fields(answer), self._now(asked.started_s))
        await exchange.answer(answer.status, fields, answer.body, closes=asked.closing or self.stopping)
        self._log(asked, answer.status, answer)

    async def _answered(self, asked: _Asked) -> Reply:
        head, peer = asked.head, asked.exchange.peer
        if self.stopping:
            asked.closing = True
            raise ServerUnavailable("the server is stopping; come back when it is there again")
        self._guard.check(peer, head.method, head.headers)
        route = self._routes.find(head.path)
        endpoint = None if route is None else route.methods.get(head.method)
        if endpoint is None or endpoint.scope is not None:
            asked.caller = caller = self._authenticate(peer, head.headers)
        else:
            caller = Caller(peer.name, {})
        if route is None:
            asked.status = 404
            raise InvalidRequest(f"there is no {head.path:.200} here; see /v1/openapi.json")
        if endpoint is None:
            asked.status, asked.allow = 405, ", ".join(sorted(route.methods))
            raise InvalidRequest(f"{head.method} is not for {head.path:.200}; {asked.allow} is")
        asked.endpoint = endpoint
        prefixes = allowed_prefixes(caller, endpoint, route.names.get("topic"))
        name, counts = caller.name, self._under_way
        count = counts.get(name, 0)
        if count >= self.limits.requests:
            raise ServerBusy(f"{name} has {self.limits.requests} requests under way")
        counts[name] = count + 1
        try:
            if head.target is None:
                head.target = _target(endpoint, route.names, head)
            return await self._handled(asked, endpoint, head.target, prefixes)
        finally:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    async def _handled(
        self, asked: _Asked, endpoint: Endpoint, target: RequestTarget, prefixes: tuple[str, ...]
    ) -> Reply:
        head, exchange = asked.head, asked.exchange
        scopes = {} if asked.caller is None else asked.caller.scopes
        local = exchange.peer.trusted and not exchange.peer.tcp and b"authorization" not in head.headers
        if endpoint.method == "GET":
            request = Request(target.arguments, {}, None, target.wants_arrow, prefixes, exchange, scopes, local)
            return await self._replied(asked, request)
        data = await self._bodies.read(exchange, self.limits.body_bytes if target.is_arrow else self.limits.json_bytes)
        self.served.counts.received_bytes += len(data)
        try:
            if target.is_arrow:
                body = target.parameters
            elif len(data) > LONG_JSON_BYTES:
                body = await self.served.run(lambda: _json_body(endpoint, data, target.media_type))
            else:
                body = _json_body(endpoint, data, target.media_type)
            check_named(body, endpoint, prefixes)
            raw = data if target.is_arrow else None
            request = Request(target.arguments, body, raw, target.wants_arrow, prefixes, exchange, scopes, local)
            return await self._replied(asked, request)
        finally:
            self._bodies.free(data)

    async def _replied(self, asked: _Asked, request: Request) -> Reply:
        assert asked.endpoint is not None, "it was found"
        try:
            reply = await asked.endpoint.handler(self.served, request)
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "pyarrow":
                raise
            raise NotServed("this server has no pyarrow (pip install 'afterlog[arrow]'): speak JSON to it") from None
        if request.body.get("wait_ms") or request.arguments.get("wait_ms"):
            await self._check_still_allowed(asked, request, reply)
        return reply

    async def _check_still_allowed(self, asked: _Asked, request: Request, reply: Reply) -> None:
        """What was waited for is for who may have it by now: a token may have been taken away meanwhile."""
        assert asked.endpoint is not None, "it was found"
        try:
            caller = self._authenticate(asked.exchange.peer, asked.head.headers)
            allowed_prefixes(caller, asked.endpoint, request.arguments.get("topic"))
        except AfterlogError:
            if reply.unsent is not None:
                await reply.unsent()
            raise

    def _now(self, monotonic_s: float) -> bytes:
        """The line of the header `Date`, made now and then."""
        if not 0 <= monotonic_s - self._dated_s < DATED_S:
            with contextlib.suppress(OverflowError, ValueError, OSError):
                self._date = f"date: {formatdate(self._clock.now_ms() // 1_000, usegmt=True)}\r\n".encode()
                self._dated_s = monotonic_s
        return self._date

    def _log(self, asked: _Asked, status: int, answer: Reply | None) -> None:
        seconds, sent_bytes = self._clock.monotonic_s() - asked.started_s, 0 if answer is None else len(answer.body)
        path, head = "" if asked.endpoint is None else asked.endpoint.path, asked.head
        self.served.counts.add(head.method, path, status, seconds, sent_bytes)
        refused = isinstance(asked.error, _REFUSALS)
        if not refused and not logger.isEnabledFor(logging.DEBUG):
            return
        logger.log(
            logging.WARNING if refused else logging.DEBUG,
            "method=%s path=%.200s status=%d caller=%s ms=%.1f bytes=%d error=%s",
            head.method,
            head.path,
            status,
            asked.exchange.peer.name if asked.caller is None else asked.caller.name,
            seconds * 1_000,
            sent_bytes,
            f"{type(asked.error).__name__}: {asked.error}" if refused else type(asked.error).__name__,
        )


class _Asked:
    """What is known of a request on its way, and what its answer needs besides."""

    __slots__ = ("allow", "caller", "closing", "endpoint", "error", "exchange", "head", "started_s", "status")

    def __init__(self, exchange: HttpExchange, started_s: float) -> None:
        self.exchange = exchange
        self.head = exchange.head
        self.started_s = started_s
        self.caller: Caller | None = None
        self.endpoint: Endpoint | None = None
        self.error: AfterlogError | None = None
        self.status: int | None = None
        self.allow = ""
        self.closing = False


class RequestTarget(NamedTuple):
    """What a head says of its request besides where it goes, checked. Nobody changes anything in it.

    arguments: the names in the path, and the parameters of the query; parameters: those of an Arrow stream.
    """

    arguments: Mapping[str, Any]
    parameters: Mapping[str, Any]
    media_type: bytes
    is_arrow: bool
    wants_arrow: bool


def _target(endpoint: Endpoint, names: Mapping[str, str], head: RequestHead) -> RequestTarget:
    """Raises InvalidRequest."""
    media_type = head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    is_arrow = endpoint.arrow is not None and media_type == endpoint.data_type.encode()
    wants_arrow = endpoint.gives_arrow and _ARROW in head.headers.get(b"accept", b"")
    query = _query(head.query_string)
    arguments: Mapping[str, Any] = names
    if not is_arrow and (query or endpoint.parameters):
        arguments = {**names, **_parameters(endpoint.parameters, query)}
    parameters = _parameters(endpoint.arrow or {}, query) if is_arrow and endpoint.method != "GET" else {}
    return RequestTarget(arguments, parameters, media_type, is_arrow, wants_arrow)


def _query(text: bytes) -> dict[str, str]:
    """Raises InvalidRequest."""
    if not text:
        return {}
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="strict")
    except ValueError as error:
        raise InvalidRequest(f"the query cannot be read: {error}") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidRequest("a parameter is given twice")
    return found


def _parameters(shapes: Mapping[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """Those of a query, checked, and the defaults of the others."""
    found = {name: shape.default for name, shape in shapes.items()}
    for name, text in query.items():
        shape = shapes.get(name)
        if shape is None:
            raise InvalidRequest(f"there is no parameter {name!r:.60} here; {', '.join(shapes) or 'none'} there is")
        found[name] = shape.of_text(text, name)
    for name, value in found.items():
        if value is NEEDED:
            raise InvalidRequest(f"the parameter {name} is missing")
    return found


def _json_body(endpoint: Endpoint, data: bytes, media_type: bytes) -> dict[str, Any]:
    shape = endpoint.body or NOTHING
    if not data:
        return shape.checked({}, "the body") or {}
    if media_type != _JSON:
        takes = f"{JSON} or {ARROW}" if endpoint.arrow is not None else JSON
        raise InvalidRequest(f"Content-Type is {takes}, not {media_type.decode('latin-1')!r:.60}")
    return shape.checked(json_of(data), "the body") or {}


@functools.lru_cache(64)
def _of_kind(status: int, media_type: str) -> bytes:
    """Lines of all answers of a kind."""
    kind = b"" if status == 204 else b"content-type: %s\r\n" % media_type.encode()
    return b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n%s" % kind


def _fields(answer: Reply) -> bytes:
    """The lines of its headers, but for the date."""
    lines = _of_kind(answer.status, answer.media_type)
    if answer.status != 204:
        lines = b"%scontent-length: %d\r\n" % (lines, len(answer.body))
    for name, value in answer.headers:
        lines += b"%s: %s\r\n" % (name, value)
    return lines


def _problem(error: AfterlogError, asked: _Asked) -> Reply:
    asked.error = error
    problem = problem_of(error)
    headers: list[tuple[bytes, bytes]] = []
    if asked.status is not None:
        problem["status"] = asked.status
    if asked.allow:
        headers.append((b"allow", asked.allow.encode()))
    if isinstance(error, errors.NotAuthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if error.retriable:
        headers.append((b"retry-after", b"1"))
    if isinstance(error, errors.RequestTooLarge | errors.ServerUnavailable):
        asked.closing = True
    return Reply(json.dumps(problem).encode(), problem["status"], MEDIA_TYPE, tuple(headers))
