"""The seam to a server: how a request gets there and a reply back. Over HTTP (`http_connection`), or otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from afterlog.client.call import HttpReply, HttpRequest


class ServerConnection(Protocol):
    """One request at a time. Connects itself, and again where the connection was closed."""

    def exchange(self, request: HttpRequest, timeout_s: float) -> HttpReply:
        """Raises ServerUnavailable where nothing was sent, AnswerLost where the answer did not come in time, or at all.

        Behind an error it connects anew.
        """

    def hang_up(self) -> None:
        """Whoever waits for a reply gets it soon, or AnswerLost. From any thread."""

    def close(self) -> None: ...


Connecting: TypeAlias = Callable[[], ServerConnection]
"""Makes a connection; the first exchange connects it."""
