"""What it costs a server that clients wait, and that nobody is there: memory, threads, CPU.

Those that wait here are bare connections, each with one request to receive for ten minutes: what they are made of in
their own process is not what is asked, and ten thousand clients in one process would not fit beside the server.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from pathlib import Path

from bench.rivals.ours import TOPIC
from bench.rivals.usage import memory_bytes, used_s
from bench.served.clients import Figures
from bench.served.contestants import Contestant, metric

_SPARE = 200
"""Descriptors that this process needs for itself."""
_WAIT_MS = 600_000
_PATIENCE_S = 120.0
_SETTLE_S = 1.0


def idle(contestant: Contestant, seconds: float) -> Figures:
    """CPU of a server that has a store and no client."""
    contestant.open()
    time.sleep(_SETTLE_S)
    before_s = used_s(contestant.processes())
    time.sleep(seconds)
    cpu_s = used_s(contestant.processes()) - before_s
    contestant.close()
    return {"server_cpu_s": cpu_s, "wall_s": seconds, "core_percent": 100 * cpu_s / seconds}


def waiting(contestant: Contestant, clients: int, seconds: float) -> Figures:
    """Memory of the server for each client that waits, beyond that with ten of them; its CPU; what of that memory is
    still there when they are gone, and how much more it takes when as many come again: an allocator keeps what it has,
    and a leak grows.
    """
    contestant.open()
    fitting = min(clients, descriptors() - _SPARE)
    few = _waiting(contestant, min(10, fitting))
    before = _memory(contestant)
    many = _waiting(contestant, fitting - len(few), already=len(few))
    used = _memory(contestant) - before
    busy_s = used_s(contestant.processes())
    time.sleep(seconds)
    busy_s = used_s(contestant.processes()) - busy_s
    threads = len(os.listdir(f"/proc/{contestant.processes()[0]}/task"))
    for each in many:
        each.close()
    _until(contestant, len(few))
    left = _memory(contestant) - before
    again = _waiting(contestant, len(many), already=len(few))
    more = _memory(contestant) - before - used
    for each in [*few, *again]:
        each.close()
    contestant.close()
    return {
        "clients": fitting, "bytes_each": used / max(len(many), 1), "bytes_left": left, "bytes_more": more,
        "threads": threads, "server_cpu_s": busy_s, "wall_s": seconds,
        "core_percent": 100 * busy_s / seconds,
    }  # fmt: skip


def asking(folder: Path, topic: str) -> socket.socket:
    """A connection that waits for a record of a topic."""
    body = json.dumps({"max_records": 1, "wait_ms": _WAIT_MS}).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.fspath(folder / "server.sock"))
    path = f"/v1/topics/{topic}/subscriptions/waiting/receive"
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return connection


def descriptors() -> int:
    """How many this process may have, which is raised as far as it may be."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _waiting(contestant: Contestant, count: int, already: int = 0) -> list[socket.socket]:
    """So many more, once the server says that they wait."""
    connections = [asking(contestant.folder, TOPIC) for _ in range(count)]
    _until(contestant, already + count)
    return connections


def _until(contestant: Contestant, count: int) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while (now := metric(contestant.folder, "afterlog_server_waiting")) != count:
        if time.monotonic() > end_s:
            raise RuntimeError(f"{now:.0f} clients wait and not {count}")
        time.sleep(0.05)
    time.sleep(_SETTLE_S)


def _memory(contestant: Contestant) -> int:
    return memory_bytes(contestant.processes())["private"]
