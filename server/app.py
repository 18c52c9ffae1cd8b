"""The server as an ASGI application: what becomes of a request on its way to the handler, and back.

    who asks, from where ──> which endpoint ──> may they? ──> is there room? ──> parameters, body ──> handler ──> answer
         401, 403               404, 405          403            429                400, 413             problem

Whatever is raised is told as a problem (`wire.problem`). What is not an error of ours is logged with its traceback, and
told as ServerFailed, without it. Where a client was gone before its answer was sent, what it was leased goes back.

There is no framework in between: the table routes, checks and describes, and a request costs half (decision 0054).
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import parse_qsl

from afterlog.api.operation import ARROW, JSON, NOTHING
from afterlog.api.problem import MEDIA_TYPE, problem_of
from afterlog.api.schema import NEEDED
from afterlog.base import errors
from afterlog.base.errors import AfterlogError, InvalidRequest, NotServed, ServerBusy, ServerFailed, ServerUnavailable
from afterlog.server.access import Caller, OriginGuard, Peer, RequestHeaders, allowed_prefixes, check_named
from afterlog.server.endpoint import Endpoint
from afterlog.server.limits import Limits
from afterlog.server.page_files import PAGE
from afterlog.server.request import Bodies, ClientGone, Receive, Reply, Request, json_of
from afterlog.server.served import Served
from afterlog.server.table import ENDPOINTS, Routes

logger = logging.getLogger("afterlog.server")


_ARROW: Final = ARROW.encode()
_JSON: Final = JSON.encode()
LONG_JSON_BYTES: Final = 64 << 10
"""Some ms: more is read in a thread, so that nobody else waits for all of it."""
PEER: Final = "afterlog.peer"
"""Where the scope of a request has its peer."""
DATED_S: Final = 0.2
"""For which a date is good: an answer's is late by no more."""
GONE: Final = "afterlog.gone"
"""Where it has what tells whether its client has gone: from then on nothing that is sent goes anywhere."""

AsgiScope = MutableMapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Authenticate = Callable[[Peer, RequestHeaders], Caller]
"""Who asks. Raises NotAuthenticated."""

_REFUSALS: Final = (errors.NotAllowed, errors.ServerBusy, errors.InvalidRequest)
_NOBODY: Final = Peer("unknown", trusted=False, tcp=True)


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
        self._date, self._dated_s = (b"date", b""), -math.inf
        self.stopping = False
        served.under_way = lambda: sum(self._under_way.values())

    def stop(self) -> None:
        """No new work from now on; who waits is answered."""
        self.stopping = True
        self.served.waits.end()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        asked = _Asked(scope, self._clock.monotonic_s())
        try:
            answer = await self._answered(asked, receive)
        except ClientGone:
            self._log(asked, 499, None)
            return
        except AfterlogError as error:
            answer = _problem(error, asked)
        except Exception as error:
            logger.exception("method=%s path=%.200s failed", asked.method, asked.path)
            answer = _problem(
                ServerFailed(f"{type(error).__name__}, unexpected: the log of the server says how"), asked
            )
        if answer.unsent is not None and scope.get(GONE, _still_there)():  # no await until all of it is sent
            await answer.unsent()
            self._log(asked, 499, None)
            return
        await self._send(answer, send, asked)
        self._log(asked, answer.status, answer)

    async def _answered(self, asked: _Asked, receive: Receive) -> Reply:
        if self.stopping:
            asked.closing = True
            raise ServerUnavailable("the server is stopping; come back when it is there again")
        self._guard.check(asked.peer, asked.method, asked.headers)
        route = self._routes.find(asked.path)
        endpoint = None if route is None else route.methods.get(asked.method)
        if endpoint is None or endpoint.scope is not None:
            asked.caller = caller = self._authenticate(asked.peer, asked.headers)
        else:
            caller = Caller(asked.peer.name, {})
        if route is None:
            asked.status = 404
            raise InvalidRequest(f"there is no {asked.path:.200} here; see /v1/openapi.json")
        if endpoint is None:
            asked.status, asked.allow = 405, ", ".join(sorted(route.methods))
            raise InvalidRequest(f"{asked.method} is not for {asked.path:.200}; {asked.allow} is")
        asked.endpoint = endpoint
        prefixes = allowed_prefixes(caller, endpoint, route.names.get("topic"))
        name, counts = caller.name, self._under_way
        count = counts.get(name, 0)
        if count >= self.limits.requests:
            raise ServerBusy(f"{name} has {self.limits.requests} requests under way")
        counts[name] = count + 1
        try:
            return await self._handled(asked, endpoint, route.names, prefixes, receive)
        finally:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    async def _handled(
        self, asked: _Asked, endpoint: Endpoint, names: dict[str, str], prefixes: tuple[str, ...], receive: Receive
    ) -> Reply:
        is_arrow = endpoint.arrow is not None and asked.media_type == endpoint.data_type.encode()
        query = asked.query
        wants_arrow = endpoint.gives_arrow and _ARROW in asked.headers.get(b"accept", b"")
        arguments: dict[str, Any] = names
        if not is_arrow and (query or endpoint.parameters):
            arguments |= _parameters(endpoint.parameters, query)
        scopes = {} if asked.caller is None else asked.caller.scopes
        local = asked.peer.trusted and not asked.peer.tcp and b"authorization" not in asked.headers
        if endpoint.method == "GET":
            request = Request(arguments, {}, None, wants_arrow, prefixes, receive, scopes, local)
            reply = await _with_arrow(endpoint.handler(self.served, request))
            return await self._still_allowed(asked, request, reply)
        most = self.limits.body_bytes if is_arrow else self.limits.json_bytes
        data = await self._bodies.read(receive, asked.headers, most)
        self.served.counts.received_bytes += len(data)
        try:
            if is_arrow:
                body = _parameters(endpoint.arrow or {}, query)
            else:
                is_long = len(data) > LONG_JSON_BYTES
                body = await self.served.aside(is_long, lambda: _json_body(endpoint, data, asked.media_type))
            check_named(body, endpoint, prefixes)
            request = Request(
                arguments, body, data if is_arrow else None, wants_arrow, prefixes, receive, scopes, local
            )
            reply = await _with_arrow(endpoint.handler(self.served, request))
            return await self._still_allowed(asked, request, reply)
        finally:
            self._bodies.free(data)

    async def _still_allowed(self, asked: _Asked, request: Request, reply: Reply) -> Reply:
        """What was waited for is for who may have it by now: a token may have been taken away meanwhile."""
        if not (request.body.get("wait_ms") or request.arguments.get("wait_ms")) or asked.endpoint is None:
            return reply
        try:
            allowed_prefixes(
                self._authenticate(asked.peer, asked.headers), asked.endpoint, request.arguments.get("topic")
            )
        except AfterlogError:
            if reply.unsent is not None:
                await reply.unsent()
            raise
        return reply

    async def _send(self, answer: Reply, send: Send, asked: _Asked) -> None:
        headers = [*_FIXED, self._now(asked.started_s), *answer.headers]
        if answer.status != 204:
            headers += [
                (b"content-type", answer.media_type.encode()), (b"content-length", b"%d" % len(answer.body))
            ]  # fmt: skip
        if asked.closing or self.stopping:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def _now(self, monotonic_s: float) -> tuple[bytes, bytes]:
        """The header `Date`, made now and then."""
        if not 0 <= monotonic_s - self._dated_s < DATED_S:
            with contextlib.suppress(OverflowError, ValueError, OSError):
                self._date = b"date", formatdate(self._clock.now_ms() // 1_000, usegmt=True).encode()
                self._dated_s = monotonic_s
        return self._date

    def _log(self, asked: _Asked, status: int, answer: Reply | None) -> None:
        seconds, sent_bytes = self._clock.monotonic_s() - asked.started_s, 0 if answer is None else len(answer.body)
        path = "" if asked.endpoint is None else asked.endpoint.path
        self.served.counts.add(asked.method, path, status, seconds, sent_bytes)
        refused = isinstance(asked.error, _REFUSALS)
        if not refused and not logger.isEnabledFor(logging.DEBUG):
            return
        logger.log(
            logging.WARNING if refused else logging.DEBUG,
            "method=%s path=%.200s status=%d caller=%s ms=%.1f bytes=%d error=%s",
            asked.method,
            asked.path,
            status,
            asked.peer.name if asked.caller is None else asked.caller.name,
            seconds * 1_000,
            sent_bytes,
            f"{type(asked.error).__name__}: {asked.error}" if refused else type(asked.error).__name__,
        )


_FIXED: Final = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


class _Asked:
    """What is known of a request on its way, and what its answer needs besides."""

    __slots__ = (
        "allow", "caller", "closing", "endpoint", "error", "headers", "method", "path", "peer", "query_string",
        "started_s", "status",
    )  # fmt: skip

    def __init__(self, scope: AsgiScope, started_s: float) -> None:
        self.method: str = scope["method"]
        raw = scope.get("raw_path")
        self.path: str = scope["path"] if raw is None else raw.partition(b"?")[0].decode("latin-1")
        self.query_string: bytes = scope["query_string"]
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.peer: Peer = scope.get(PEER, _NOBODY)
        self.started_s = started_s
        self.caller: Caller | None = None
        self.endpoint: Endpoint | None = None
        self.error: AfterlogError | None = None
        self.status: int | None = None
        self.allow = ""
        self.closing = False

    @property
    def media_type(self) -> bytes:
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    @property
    def query(self) -> dict[str, str]:
        """Raises InvalidRequest."""
        if not self.query_string:
            return {}
        try:
            pairs = parse_qsl(
                self.query_string.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="strict"
            )
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


async def _with_arrow(answering: Awaitable[Reply]) -> Reply:
    try:
        return await answering
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise NotServed("this server has no pyarrow (pip install 'afterlog[arrow]'): speak JSON to it") from None


def _still_there() -> bool:
    return False


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
