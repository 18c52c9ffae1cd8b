"""What the tests of the client share: a server that says what it is told to, and time that passes by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from afterlog.api.operation import JSON
from afterlog.api.problem import MEDIA_TYPE, problem_of
from afterlog.base.clock import ManualClock
from afterlog.base.errors import AfterlogError
from afterlog.base.locks import Condition
from afterlog.client.call import HttpReply, HttpRequest
from afterlog.client.pool import Pool
from afterlog.client.served_store import ServedStore
from afterlog.client.server_time import ServerTime
from tests.support import NOW_MS

Said = HttpReply | AfterlogError | Callable[[HttpRequest], HttpReply]


class PassingClock(ManualClock):
    """Who waits for some seconds has waited."""

    def __init__(self) -> None:
        super().__init__(NOW_MS)
        self.passed_s = 0.0
        self.pauses_s: list[float] = []

    def monotonic_s(self) -> float:
        return self.passed_s

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        assert timeout_s is not None
        self.pauses_s.append(timeout_s)
        self.passed_s += timeout_s


class FakeServer:
    """Says one thing after the other, the last again and again; each exchange takes a while."""

    def __init__(self, *says: Said, takes_s: float = 0.0) -> None:
        self.says = list(says)
        self.clock = PassingClock()
        self.requests: list[HttpRequest] = []
        self.patience_s: list[float] = []
        self.connections = 0
        self.closed = 0
        self._takes_s = takes_s

    def connecting(self) -> FakeConnection:
        self.connections += 1
        return FakeConnection(self)

    def pool(self, timeout_s: float = 30.0) -> Pool:
        return Pool(self.connecting, self.clock, ServerTime(self.clock), timeout_s)

    def store(self, timeout_s: float = 30.0) -> ServedStore:
        return ServedStore(self.connecting, clock=self.clock, timeout_s=timeout_s, name="fake")

    def paths(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.requests]

    def bodies(self) -> list[Any]:
        return [json.loads(request.body) if request.body else None for request in self.requests]


class FakeConnection:
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def connect(self, timeout_s: float) -> None:
        """Somebody answers; what `exchange` raises may be ServerUnavailable all the same."""

    def exchange(self, request: HttpRequest, timeout_s: float) -> HttpReply:
        server = self._server
        server.requests.append(request)
        server.patience_s.append(timeout_s)
        server.clock.passed_s += server._takes_s
        said = server.says.pop(0) if len(server.says) > 1 else server.says[0]
        if isinstance(said, AfterlogError):
            raise said
        return said if isinstance(said, HttpReply) else said(request)

    def hang_up(self) -> None:
        """Nobody waits here."""

    def close(self) -> None:
        self._server.closed += 1


def ok(body: Any = None) -> HttpReply:
    return HttpReply(200, JSON, json.dumps({} if body is None else body).encode())


def refusing(error: AfterlogError) -> HttpReply:
    problem = problem_of(error)
    return HttpReply(problem["status"], MEDIA_TYPE, json.dumps(problem).encode())


def topic(name: str = "mail", partitions: int = 1) -> HttpReply:
    return ok({"name": name, "partitions": partitions, "delayed": True})


def sent(*ids: str) -> HttpReply:
    return ok({"ids": list(ids)})


def producers(bodies: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Of the sends among them."""
    found = [body["producer"] for body in bodies if body and "producer" in body]
    return [(each["id"], each["epoch"], each["sequence"]) for each in found]
