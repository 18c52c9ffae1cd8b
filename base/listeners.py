"""The seam to the network, for servers: listening sockets, and who the peer of a connection is.

A socket in a folder takes nobody before it is its owner's alone: it is bound, its mode set, and only then listens.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any

from afterlog.base.errors import DiskFailed, FileTaken, InvalidArgument
from afterlog.base.files import failed_call
from afterlog.base.sockets import short_path

OWNERS_ALONE = 0o600
_HELD: set[int] = set()
"""Descriptors of sockets that end with this process, and not with the last of its forked children."""
_CREDENTIALS = struct.Struct("=iII")
"""ucred of Linux: process, user, group."""
_SOL_LOCAL = 0
_XUCRED_BYTES = 76
_XUCRED = struct.Struct("=II")
"""The head of the xucred of macOS and FreeBSD: version, which is 0, and user."""


def listening_at_path(path: Path, backlog: int) -> socket.socket:
    """A socket in a folder that is the caller's, for its owner alone. What is left of an earlier one goes.

    Raises DiskFailed and its like, InvalidArgument where the path is too long for this system.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        remove_socket(path)
        with short_path(path) as address:
            listener.bind(address)
        os.chmod(path, OWNERS_ALONE)
        mode = os.stat(path, follow_symlinks=False).st_mode
        if not stat.S_ISSOCK(mode) or stat.S_IMODE(mode) != OWNERS_ALONE:
            raise DiskFailed("the socket cannot be made its owner's alone", path=path)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise FileTaken("something that is no socket lies where the server's should", path=path) from None
        raise failed_call("bind", error, path) from error
    except BaseException:
        listener.close()
        raise
    return listener


def hold(descriptor: int) -> None:
    """A socket on which this process answers. A child that it forks lets go of it at once.

    Else who waits at the other end would not hear of it when this process is killed, for as long as the child lives.
    """
    _HELD.add(descriptor)


def let_go(descriptor: int) -> None:
    """Before it is closed."""
    _HELD.discard(descriptor)


def _let_go_in_child() -> None:
    """The number stays taken, by nothing, since objects that were inherited may close it."""
    if _HELD:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in _HELD:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        _HELD.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


def remove_socket(path: Path) -> None:
    """What is at the path goes, if it is a socket."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode):
            os.unlink(path)


def listening_at_host(host: str, port: int, backlog: int) -> socket.socket:
    """Over TCP; port 0: any that is free. Raises InvalidArgument."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(backlog)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise InvalidArgument(f"cannot listen on {host}:{port}: {error}") from error
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    host = str(listener.getsockname()[0])
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


def is_unix(connection: Any) -> bool:
    return bool(connection.family == socket.AF_UNIX)


def peer_user(connection: Any) -> int | None:
    """The user at the other end of a connection within this machine; None where the system does not tell."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return int(_CREDENTIALS.unpack(told)[1])
        option = getattr(socket, "LOCAL_PEERCRED", None)
        if option is not None:
            version, user = _XUCRED.unpack_from(connection.getsockopt(_SOL_LOCAL, option, _XUCRED_BYTES))
            return int(user) if version == 0 else None
    except OSError:
        pass
    return None
