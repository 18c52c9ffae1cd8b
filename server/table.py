"""The table of endpoints: all that this server does. Routing, scopes, checks, the OpenAPI document and the tests of
security go by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from afterlog.api.operation import Scope
from afterlog.server import (
    fetch_api,
    records_api,
    replication_api,
    scheduled_api,
    search_api,
    store_api,
    subscriptions_api,
    topics_api,
)
from afterlog.server.endpoint import Endpoint
from afterlog.server.openapi import document
from afterlog.server.request import Reply, Request, json_bytes
from afterlog.server.served import Served

ENDPOINTS: tuple[Endpoint, ...] = (
    *store_api.ENDPOINTS,
    *topics_api.ENDPOINTS,
    *records_api.ENDPOINTS,
    *fetch_api.ENDPOINTS,
    *subscriptions_api.ENDPOINTS,
    *scheduled_api.ENDPOINTS,
    *search_api.ENDPOINTS,
    *replication_api.ENDPOINTS,
)


async def describe(served: Served, request: Request) -> Reply:
    """The OpenAPI document, made once."""
    if not _DESCRIBED:
        _DESCRIBED.append(json_bytes(document(ENDPOINTS)))
    return Reply(_DESCRIBED[0])


_DESCRIBED: Final[list[bytes]] = []
ENDPOINTS += (
    Endpoint(
        method="GET",
        path="/v1/openapi.json",
        scope=Scope.LOOK,
        summary="This description",
        handler=describe,
        answer={"type": "object"},
        filters=True,
    ),
)


KNOWN_PATHS: Final = 1_024
KNOWN_CHARACTERS: Final = 512
"""Paths that are remembered, and how long they may be: larger ones come from nobody who comes often."""


class Route(NamedTuple):
    """Where a path leads: the endpoints there by method, and the names in it."""

    methods: Mapping[str, Endpoint]
    names: Mapping[str, str]


class _Node:
    """A part of paths, and what comes behind it."""

    __slots__ = ("methods", "name", "named", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.named: _Node | None = None
        self.name = ""
        self.methods: dict[str, Endpoint] = {}


class Routes:
    """Paths to endpoints: a look-up a part, whatever there are."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root = _Node()
        self._known: dict[str, Route] = {}
        """Of paths that were looked for: who sends to a topic sends there again."""
        for endpoint in endpoints:
            node = self._root
            for part in endpoint.path.split("/")[1:]:
                node = self._behind(node, part)
            assert endpoint.method not in node.methods, endpoint
            node.methods[endpoint.method] = endpoint

    def find(self, raw_path: str) -> Route | None:
        """raw_path: as sent, percent-encoded: a name may have a / in it, and is then none that anybody has."""
        known = self._known.get(raw_path)
        if known is not None:
            return known
        node, names = self._root, dict[str, str]()
        for part in raw_path.split("/")[1:]:
            word = node.words.get(part)
            if word is not None:
                node = word
            elif node.named is not None and part:
                names[node.name] = unquote(part) if "%" in part else part
                node = node.named
            else:
                return None
        if not node.methods:
            return None
        route = Route(node.methods, names)
        if len(raw_path) <= KNOWN_CHARACTERS:
            if len(self._known) == KNOWN_PATHS:
                self._known.clear()
            self._known[raw_path] = route
        return route

    @staticmethod
    def _behind(node: _Node, part: str) -> _Node:
        if not part.startswith("{"):
            return node.words.setdefault(part, _Node())
        name = part.strip("{}")
        if node.named is None:
            node.named, node.name = _Node(), name
        assert node.name == name, part
        return node.named
