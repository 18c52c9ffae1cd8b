"""One request as a handler has it, how its body is read within the limits, and what it answers.

That a body comes in time is for the connection to see to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from afterlog.api.operation import JSON
from afterlog.base.errors import InvalidRequest, RequestTooLarge, ServerBusy
from afterlog.server.exchange import ClientGone, HttpExchange
from afterlog.server.limits import Limits

_encode = json.JSONEncoder(separators=(",", ":")).encode
DISCARDED_S = 2.0
"""For so long a client may go on sending what is not taken, so that it reads why."""


class Request(NamedTuple):
    """arguments: of the path and the query, checked; body: the JSON, checked; data: an Arrow stream."""

    arguments: Mapping[str, Any]
    body: Mapping[str, Any]
    data: bytes | None
    wants_arrow: bool
    prefixes: tuple[str, ...]
    """Of the topics that who asks may see; "" of all."""
    exchange: HttpExchange
    scopes: Mapping[Any, tuple[str, ...]]
    """Topic prefixes by `Scope`: all that who asks may do."""
    local: bool = False
    """Whether it is the server's own user, on its machine, who could write its files anyway."""

    @property
    def topic(self) -> str:
        topic: str = self.arguments["topic"]
        return topic


class Reply(NamedTuple):
    """unsent: what is to be done where the client was gone before it was sent."""

    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    unsent: Callable[[], Awaitable[object]] | None = None


NO_CONTENT = Reply(b"", 204)


def as_json(value: Mapping[str, Any], status: int = 200) -> Reply:
    return Reply(_encode(value).encode(), status)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    return _encode(value).encode()


class Bodies:
    """The bodies that are under way in one server: how many bytes all may have."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held_bytes = 0

    async def read(self, exchange: HttpExchange, most: int) -> bytes:
        """A body of up to `most` bytes; its bytes are the caller's to `free`.

        Raises InvalidRequest, RequestTooLarge, ServerBusy, ClientGone.
        """
        said = exchange.head.headers.get(b"content-length", b"0")
        length = int(said) if said.isdigit() and len(said) <= 18 else 0
        if length > most:
            await self._refuse(exchange, most)
        if self.held_bytes + length > self._limits.bodies_bytes:
            self._refuse_more()
        body = await exchange.body()
        if not exchange.is_whole:
            body = await self._rest(exchange, body, most)
        elif len(body) > most:
            raise RequestTooLarge(f"a body of {len(body)} bytes; {most} are taken")
        self.held_bytes += len(body)
        return body

    def free(self, body: bytes) -> None:
        self.held_bytes -= len(body)

    async def _rest(self, exchange: HttpExchange, first: bytes, most: int) -> bytes:
        parts, size = [first], len(first)
        while not exchange.is_whole:
            parts.append(await exchange.body())
            size += len(parts[-1])
            if size > most:
                await self._refuse(exchange, most)
            if self.held_bytes + size > self._limits.bodies_bytes:
                self._refuse_more()
        return b"".join(parts)

    def _refuse_more(self) -> NoReturn:
        raise ServerBusy(f"bodies of {self.held_bytes} bytes are under way; wait for some of it")

    async def _refuse(self, exchange: HttpExchange, most: int) -> NoReturn:
        with contextlib.suppress(TimeoutError, ClientGone):
            async with asyncio.timeout(DISCARDED_S):
                while not exchange.is_whole:
                    await exchange.body()
        raise RequestTooLarge(f"a body of more than {most} bytes, which is all that is taken")


def json_of(body: bytes) -> Any:
    """Raises InvalidRequest."""
    try:
        return _decode(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


_decode = json.JSONDecoder(parse_constant=_no_number).decode
"""Kept: `json.loads` makes one for each call that wants more than the usual."""
