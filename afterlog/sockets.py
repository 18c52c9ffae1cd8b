"""The seam to the network: connections that somebody else accepts. What is said over them is another matter.

A socket in a folder has its path for an address, of which the system takes 107 bytes. A longer one is reached by way of
its folder, opened: /proc/self/fd/9/server.sock (Linux).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

from afterlog.errors import InvalidArgument

PATH_BYTES_MAX = 107
"""Of a Unix socket's address, on Linux; macOS takes 103."""


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """An address for a socket at `path`, for as long as the block. Raises InvalidArgument where there is none."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    if not Path("/proc/self/fd").exists():
        raise InvalidArgument(f"the path of the socket is too long for this system: {path}; use a shorter one, or TCP")
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def to_path(path: Path, timeout_s: float | None) -> socket.socket:
    """A connection to the socket at `path`. Raises OSError, InvalidArgument."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with short_path(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def to_host(host: str, port: int, timeout_s: float | None) -> socket.socket:
    """A connection over TCP. Raises OSError."""
    connection = socket.create_connection((host, port), timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def is_over(connection: socket.socket, timeout_s: float = 0.0) -> bool:
    """Whether the other end has closed an idle connection, or does so within that time, or it was cut from here.

    Nothing is to be read of one that is alive.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(timeout_s * 1_000))


def cut(connection: socket.socket) -> None:
    """Neither end says or hears more. From any thread."""
    with contextlib.suppress(OSError):  # it is closed by now
        connection.shutdown(socket.SHUT_RDWR)


def hang_up(connection: socket.socket) -> None:
    """Say no more: the other end reads an end, and what it has said is read to its own. From any thread."""
    with contextlib.suppress(OSError):  # it is closed by now
        connection.shutdown(socket.SHUT_WR)
