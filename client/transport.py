"""The seam to a server: how a request gets there and a reply back. Over HTTP (`http_connection`), or otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from afterlog.client.call import HttpReply, HttpRequest


class ServerConnection(Protocol):
    """One request at a time: connect, exchange. Behind an error, or where it was closed, it connects anew."""

    def connect(self, timeout_s: float) -> None:
        """Where it is not connected. Raises ServerUnavailable, NotAllowed."""

    def exchange(self, request: HttpRequest, timeout_s: float) -> HttpReply:
        """Raises AnswerLost where the answer did not come in time, or at all."""

    def hang_up(self) -> None:
        """Whoever waits for a reply, or is about to, gets it soon, or AnswerLost. From any thread, once connected."""

    def close(self) -> None: ...


Connecting: TypeAlias = Callable[[], ServerConnection]
"""Makes a connection, not connected yet."""
