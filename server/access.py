"""Authorisation: the peer of a connection, and the scopes of its token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from afterlog.api.operation import Scope
from afterlog.base.errors import NotAllowed
from afterlog.server.endpoint import Endpoint

ALL: Final = ("",)


class Peer(NamedTuple):
    """The other end of a connection. name: for the log and the limits. trusted: it needs no token.

    tcp: whether it came by a network, where a browser may be behind it.
    """

    name: str
    trusted: bool
    tcp: bool


class Caller(NamedTuple):
    """Who asks, as far as is known. scopes: topic prefixes, by scope; "" stands for all topics."""

    name: str
    scopes: Mapping[Scope, tuple[str, ...]]


TRUSTED_SCOPES: Final = dict.fromkeys(Scope, ALL)


def allowed_prefixes(caller: Caller, endpoint: Endpoint, topic: str | None) -> tuple[str, ...]:
    """The prefixes of the topics that the caller may name there. Raises NotAllowed.

    What has no topic in its path needs the scope for all topics, but where it filters by itself.
    """
    if endpoint.scope is None:
        return ALL
    prefixes = caller.scopes.get(endpoint.scope, ())
    if topic is not None:
        may = topic.startswith(prefixes) if prefixes else False
    else:
        may = bool(prefixes) and (endpoint.filters or "" in prefixes)
    if not may:
        where = "all topics" if topic is None else f"the topic {topic!r:.100}"
        raise NotAllowed(f"{endpoint.method} {endpoint.path} needs the scope {endpoint.scope.value} for {where}")
    return prefixes


def check_named(body: Mapping[str, Any], endpoint: Endpoint, prefixes: tuple[str, ...]) -> None:
    """The topics that a body names, besides that of the path: where dead letters go. Raises NotAllowed."""
    reader = body.get("reader")
    for topic in (reader.get("dead_letter") if isinstance(reader, Mapping) else None, body.get("target")):
        if topic is not None and not topic.startswith(prefixes):
            assert endpoint.scope is not None, "who may name a topic has a scope"
            raise NotAllowed(
                f"{endpoint.method} {endpoint.path} needs the scope {endpoint.scope.value} for the topic "
                f"{topic!r:.100}, too, to which dead letters would go"
            )
