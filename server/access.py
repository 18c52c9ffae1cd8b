"""Authorisation: the peer of a connection, the scopes of its token, and the pages that may use it.

Requests that a web page in somebody's browser makes are refused. Over TCP `Host` has to name this server, so that a
name which an attacker points here does not serve (DNS rebinding); an `Origin` has to be this server's own. Whatever
changes anything has a header that no form of another page can set: `Content-Type` of JSON or Arrow, or `X-Afterlog`. No
page of elsewhere is ever told that it may (there is no CORS).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from afterlog.api.operation import Scope
from afterlog.base.errors import NotAllowed
from afterlog.server.endpoint import Endpoint
from afterlog.server.exchange import Peer

ALL: Final = ("",)


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


RequestHeaders = Mapping[bytes, bytes]

_TYPES: Final = (b"application/json", b"application/vnd.apache.arrow.stream")


class OriginGuard:
    """Protection of one server against other pages.

    names: by which it is reached, besides localhost and IP addresses, which nobody can rebind.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = {"localhost", *(name.lower() for name in names)}

    def check(self, peer: Peer, method: str, headers: RequestHeaders) -> None:
        """Raises NotAllowed."""
        host, origin = "", headers.get(b"origin")
        if peer.tcp or origin is not None:
            host = headers.get(b"host", b"").decode("latin-1").lower()
        if peer.tcp and not self._is_ours(host):
            raise NotAllowed(f"Host is {host!r:.100}; start the server with --name for a name that is its own")
        if origin is not None and origin.decode("latin-1").lower() not in (f"http://{host}", f"https://{host}"):
            raise NotAllowed(f"a page of {origin.decode('latin-1')!r:.100} may not use this server")
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin") and not _is_visit(method, headers):
            raise NotAllowed("a page of elsewhere may not use this server")
        if method not in ("GET", "HEAD") and not is_deliberate(headers):
            raise NotAllowed("send Content-Type: application/json, or X-Afterlog: 1 where there is no body")

    def _is_ours(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") and host.count(":") else host
        if name in self._names:
            return True
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _is_visit(method: str, headers: RequestHeaders) -> bool:
    """Whether somebody follows a link to here: what is answered, the page with the link does not see."""
    return method == "GET" and headers.get(b"sec-fetch-dest") == b"document"


def is_deliberate(headers: RequestHeaders) -> bool:
    """Whether it has a header that no form can set."""
    if b"x-afterlog" in headers:
        return True
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower() in _TYPES
