"""Any `RemoteStore`, with chosen calls that fail, lie, do things twice, wait, or never return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import TypeVar

from afterlog.base.errors import RemoteUnavailable
from afterlog.base.files import Bytes, Data
from afterlog.base.names import LOG
from afterlog.tier.remote_store import GAP_BYTES, RemoteObject, RemoteStore
from tests.support import Gate

Answer = TypeVar("Answer")


class Fault(Enum):
    BEFORE = auto()
    """RemoteUnavailable, and nothing was done."""
    AFTER = auto()
    """RemoteUnavailable, and it was done."""
    TWICE = auto()
    """It is done twice, as by a client that repeats a request; the second answer comes."""
    TRUNCATED = auto()
    """The last byte of what is written or read is lost, and nobody says so."""
    CRASH_BEFORE = auto()
    """The process dies before the call."""
    CRASH_AFTER = auto()
    """The process dies before the answer."""


class Crashed(BaseException):
    """The process that made the call is no more: this call and all later ones raise it."""


Plan = Callable[[str, int], "Fault | Gate | None"]
"""Asked before each call: (name of the method, number of the call from 1). A gate: wait there, then go on."""


def fault_at(call: int, fault: Fault) -> Plan:
    """The `call`-th call has that fault, and no other."""
    return lambda operation, at: fault if at == call else None


def hold(operation: str, gate: Gate, number: int = 1) -> Plan:
    """The `number`-th call of `operation` waits at the gate."""
    made: list[int] = []

    def plan(made_operation: str, at: int) -> Gate | None:
        if made_operation == operation:
            made.append(at)
        return gate if made_operation == operation and len(made) == number else None

    return plan


class FaultyRemoteStore:
    """A store with faults. `calls` counts."""

    def __init__(self, remote: RemoteStore, plan: Plan) -> None:
        self.calls = 0
        self._remote = remote
        self._plan = plan
        self._crashed = False
        self._lock = threading.Lock()

    def put(self, key: str, data: Data) -> None:
        self._call("put", lambda lost: self._remote.put(key, memoryview(data)[: len(data) - lost]))

    def put_if(self, key: str, data: Data, version: str | None) -> str:
        return self._call(
            "put_if", lambda lost: self._remote.put_if(key, memoryview(data)[: len(data) - lost], version)
        )

    def get(self, key: str, size_max: int) -> tuple[bytes, str]:
        def call(lost: int) -> tuple[bytes, str]:
            data, version = self._remote.get(key, size_max)
            return data[: len(data) - lost], version

        return self._call("get", call)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES) -> list[Bytes]:
        def call(lost: int) -> list[Bytes]:
            return [part[: len(part) - lost] for part in self._remote.get_ranges(key, ranges, gap)]

        return self._call("get_ranges", call)

    def head(self, key: str) -> RemoteObject:
        def call(lost: int) -> RemoteObject:
            found = self._remote.head(key)
            return RemoteObject(found.key, found.size - lost)

        return self._call("head", call)

    def list_objects(self, folder: str = "") -> Iterator[RemoteObject]:
        found = self._call("list_objects", lambda lost: [*self._remote.list_objects(folder)])
        return iter(found)

    def delete(self, key: str) -> None:
        self._call("delete", lambda lost: self._remote.delete(key))

    def _call(self, operation: str, call: Callable[[int], Answer]) -> Answer:
        with self._lock:
            self.calls += 1
            fault = self._plan(operation, self.calls)
            self._crashed |= fault == Fault.CRASH_BEFORE
            if self._crashed:
                raise Crashed
        if isinstance(fault, Gate):
            fault.passing()
        if fault == Fault.BEFORE:
            raise RemoteUnavailable("nothing was done", path=operation)
        answer = call(int(fault == Fault.TRUNCATED))
        if fault == Fault.TWICE:
            answer = call(0)
        if fault == Fault.AFTER:
            raise RemoteUnavailable("it was done", path=operation)
        if fault == Fault.CRASH_AFTER:
            self._crashed = True
            raise Crashed
        return answer


class HeldLogs(FaultyRemoteStore):
    """Who reads bytes of a log waits at a gate, until it is opened."""

    def __init__(self, remote: RemoteStore, gate: Gate) -> None:
        super().__init__(remote, lambda operation, call: None)
        self._gate = gate

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES) -> list[Bytes]:
        if key.endswith(LOG):
            self._gate.passing()
        return super().get_ranges(key, ranges, gap)
