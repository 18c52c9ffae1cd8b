"""Who is at the other end of a connection within this machine."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from afterlog.base.listeners import peer_user


class MacConnection:
    """What getsockopt gives on macOS, whose headers call it struct xucred."""

    def __init__(self, user: int, version: int = 0, error: OSError | None = None) -> None:
        self._told = struct.pack("=IIhxx16I", version, user, 1, *[20] * 16)
        self._error = error

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (0, 1, len(self._told)) == (level, option, size)
        if self._error is not None:
            raise self._error
        return self._told


def test_here_it_is_this_user() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert os.geteuid() == peer_user(one)


@pytest.mark.parametrize(
    ("connection", "user"),
    [
        (MacConnection(501), 501),
        (MacConnection(0), 0),
        (MacConnection(501, version=1), None),
        (MacConnection(501, error=OSError(57, "Socket is not connected")), None),
    ],
)
def test_on_macos(monkeypatch: pytest.MonkeyPatch, connection: MacConnection, user: int | None) -> None:
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    monkeypatch.setattr(socket, "LOCAL_PEERCRED", 1, raising=False)
    assert user == peer_user(connection)


def test_where_no_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SO_PEERCRED", "LOCAL_PEERCRED"):
        monkeypatch.delattr(socket, name, raising=False)
    assert peer_user(MacConnection(501)) is None
