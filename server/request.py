"""One request as a handler has it, how its body is read within the limits, and what it answers.

That a body comes in time is for the connection to see to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from afterlog.api.operation import JSON
from afterlog.base.errors import InvalidRequest, RequestTooLarge, ServerBusy
from afterlog.server.limits import Limits

Receive = Callable[[], Awaitable[dict[str, Any]]]
"""ASGI's: what comes next of a request; http.disconnect once the client is gone."""

_encode = json.JSONEncoder(separators=(",", ":")).encode
DISCARDED_S = 2.0
"""For so long a client may go on sending what is not taken, so that it reads why."""


class ClientGone(Exception):
    """Nobody is there any more to take an answer."""


class Request(NamedTuple):
    """arguments: of the path and the query, checked; body: the JSON, checked; data: an Arrow stream."""

    arguments: dict[str, Any]
    body: dict[str, Any]
    data: bytes | None
    wants_arrow: bool
    prefixes: tuple[str, ...]
    """Of the topics that who asks may see; "" of all."""
    receive: Receive
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

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes], most: int) -> bytes:
        """A body of up to `most` bytes; its bytes are the caller's to `free`.

        Raises InvalidRequest, RequestTooLarge, ServerBusy, ClientGone.
        """
        said = headers.get(b"content-length", b"0")
        length = int(said) if said.isdigit() and len(said) <= 18 else 0
        if length > most:
            await self._refuse(receive, most)
        self._check_room(length)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message["body"]
        if message["more_body"]:
            body = await self._rest(receive, body, most)
        elif len(body) > most:
            raise RequestTooLarge(f"a body of {len(body)} bytes; {most} are taken")
        self.held_bytes += len(body)
        return body

    def free(self, body: bytes) -> None:
        self.held_bytes -= len(body)

    async def _rest(self, receive: Receive, first: bytes, most: int) -> bytes:
        parts, size = [first], len(first)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message["body"])
            size += len(parts[-1])
            if size > most:
                await self._refuse(receive, most)
            self._check_room(size)
            if not message["more_body"]:
                return b"".join(parts)

    def _check_room(self, size: int) -> None:
        if self.held_bytes + size > self._limits.bodies_bytes:
            raise ServerBusy(f"bodies of {self.held_bytes} bytes are under way; wait for some of it")

    async def _refuse(self, receive: Receive, most: int) -> NoReturn:
        try:
            async with asyncio.timeout(DISCARDED_S):
                while (await receive()).get("more_body"):
                    pass
        except TimeoutError:
            pass
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
