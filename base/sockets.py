"""The seam to the network, for clients: connections to a listening socket. What is said over them is another matter.

A socket in a folder has its path for an address, of which the system takes 107 bytes or fewer. A longer one is reached
by way of its folder, opened: /proc/self/fd/9/server.sock (Linux); elsewhere by a link to the folder, which is short.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from afterlog.base.errors import InvalidArgument

PATH_BYTES_MAX = 107 if sys.platform == "linux" else 103
"""Of a Unix socket's address: macOS and the BSDs take 103."""
_OPEN_FILES = Path("/proc/self/fd")


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """An address for a socket at `path`, for as long as the block. Raises InvalidArgument where there is none."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    with (_by_descriptor if _OPEN_FILES.exists() else _by_link)(path) as address:
        if len(os.fsencode(address)) > PATH_BYTES_MAX:
            raise InvalidArgument(f"the path of the socket is too long here: {path}; use a shorter one, or TCP")
        yield address


@contextlib.contextmanager
def _by_descriptor(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"{_OPEN_FILES}/{folder}/{path.name}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def _by_link(path: Path) -> Iterator[str]:
    from tempfile import TemporaryDirectory  # which comes with `shutil`, `random` and more

    with TemporaryDirectory(prefix="afterlog-") as name:
        link = Path(name) / "f"
        link.symlink_to(path.parent.absolute())
        yield str(link / path.name)


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


class Wire:
    """A connection to who answers. One thread at a time writes and reads; any may cut it.

    The system keeps the time, not a poll in front of each call: half of the system calls of a request.
    """

    def __init__(self, connection: socket.socket) -> None:
        """connection: a socket, or one with TLS around it."""
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._is_plain = type(connection) is socket.socket
        self._patience_s = -1.0
        self.read = connection.recv
        """Up to so many bytes; b"" at the end. Raises BlockingIOError or TimeoutError where it is time, OSError."""
        self.write = connection.sendall
        """All of some bytes. Raises as `read`."""

    def wait_for(self, seconds: float) -> None:
        """How long a read or a write may take: a tenth of a second longer at most, and never for ever."""
        patience_s = max(math.ceil(seconds * 10), 1) / 10  # to the system 0 is no limit
        if patience_s == self._patience_s:
            return
        self._patience_s = -1.0
        if self._is_plain:
            self._connection.settimeout(None)
            whole = int(patience_s)
            time = struct.pack("@ll", whole, round((patience_s - whole) * 1_000_000))
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time)
        else:
            self._connection.settimeout(patience_s)
        self._patience_s = patience_s

    def is_over(self, timeout_s: float = 0.0) -> bool:
        """Whether the other end has closed it, being idle, or does so within that time, or it was cut from here.

        Nothing is to be read of one that is alive.
        """
        return bool(self._poll.poll(timeout_s * 1_000))

    def cut(self) -> None:
        """Neither end says or hears more. From any thread."""
        with contextlib.suppress(OSError):  # it is closed by now
            self._connection.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Say no more: the other end reads an end, and what it has said is read to its own. From any thread."""
        with contextlib.suppress(OSError):  # it is closed by now
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._connection.close()
