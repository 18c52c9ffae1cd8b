"""One connection, as uvicorn's HTTP protocol has it, and what that leaves open: who is at the other end, how large
heads may be and how long they may take, and answers that nobody takes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from afterlog.environment import user_id
from afterlog.errors import InvalidRequest
from afterlog.listeners import hold, is_unix, let_go, peer_user
from afterlog.server.access import Peer
from afterlog.server.app import GONE, PEER
from afterlog.server.limits import Limits
from afterlog.wire.problem import MEDIA_TYPE, problem_of

logger = logging.getLogger("afterlog.server")


class Connections:
    """Of one server: how many each client has."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.by_name: Counter[str] = Counter()
        self.total = 0

    def add(self, peer: Peer) -> bool:
        """False where it is one too many, and is not counted."""
        limits = self.limits
        if self.total >= limits.connections or self.by_name[peer.name] >= limits.client_connections:
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
        self._head_deadline: asyncio.TimerHandle | None = None
        self._taking_deadline: asyncio.TimerHandle | None = None
        self._peer = peer_of(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        hold(self._descriptor)
        self._counted = self.open_connections.add(self._peer)
        if self._counted:
            self._await_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        let_go(self._descriptor)
        for deadline in (self._head_deadline, self._taking_deadline):
            if deadline is not None:
                deadline.cancel()
        if self._counted:
            self.open_connections.remove(self._peer)
            self._counted = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.open_connections.limits.head_bytes:
                self.send_400_response("the head of the request is too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[PEER] = self._peer  # type: ignore[typeddict-unknown-key]
        self.scope[GONE] = self.transport.is_closing  # type: ignore[typeddict-unknown-key]
        self._in_head, self._head_bytes = True, 0
        self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > 2 * self.open_connections.limits.head_bytes:  # those of a piece are counted twice
            raise ValueError("the head of the request is too large")

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_deadline is not None:
            self._head_deadline.cancel()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking_deadline = self.loop.call_later(self.open_connections.limits.answer_s, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking_deadline is not None:
            self._taking_deadline.cancel()

    def send_400_response(self, msg: str) -> None:
        """In place of uvicorn's plain text."""
        logger.warning("peer=%s status=400 error=InvalidRequest: %s", self._peer.name, msg)
        body = json.dumps(problem_of(InvalidRequest(msg))).encode()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _await_head(self) -> None:
        """The head that is to come, or has begun, is there in time, or never."""
        if self._head_deadline is not None:
            self._head_deadline.cancel()
        self._head_deadline = self.loop.call_later(self.open_connections.limits.body_s, self._give_up)

    def _give_up(self) -> None:
        logger.warning("peer=%s refused: too slow", self._peer.name)
        self.transport.abort()


def connection_class(limits: Limits) -> type[Connection]:
    """What uvicorn makes for each connection of one server."""
    return type("ServerConnection", (Connection,), {"open_connections": Connections(limits)})


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Who is at the other end. On a socket in a folder it is trusted where it is this user, or root."""
    connection: Any = transport.get_extra_info("socket")
    if connection is not None and is_unix(connection):
        user = peer_user(connection)
        return Peer(f"user {user}", trusted=user in (user_id(), 0) or user is None, tcp=False)
    address = transport.get_extra_info("peername")
    host = str(address[0]) if isinstance(address, tuple) and address else "unknown"
    return Peer(host, trusted=False, tcp=True)
