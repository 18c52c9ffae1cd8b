"""One request as a handler has it, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from afterlog.api.operation import JSON

Receive = Callable[[], Awaitable[dict[str, Any]]]
"""ASGI's: what comes next of a request; http.disconnect once the client is gone."""


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


_encode = json.JSONEncoder(separators=(",", ":")).encode
NO_CONTENT = Reply(b"", 204)


def as_json(value: Mapping[str, Any], status: int = 200) -> Reply:
    return Reply(_encode(value).encode(), status)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    return _encode(value).encode()
