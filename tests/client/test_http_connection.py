"""What a connection makes of a server that is cut off: an answer is there as a whole, or it is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from afterlog.base import sockets
from afterlog.base.errors import AnswerLost, NotAllowed, ServerUnavailable
from afterlog.client.address import Address
from afterlog.client.call import HttpReply, HttpRequest
from afterlog.client.http_connection import HttpConnection, fixed_headers
from tests.support import PATIENCE_S

ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-any: 1\r\ncontent-length: 12\r\n\r\n"
    b'{"ids": [1]}'
)  # fmt: skip
ASKED = HttpRequest("GET", "/livez")


@contextmanager
def answering(path: Path, *answers: bytes) -> Iterator[HttpConnection]:
    """A connection to who reads one request after another, each on a new connection, and says no more than that."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(PATIENCE_S)

        def run() -> None:
            for answer in answers:
                there, _ = listener.accept()
                with there:
                    there.recv(65_536)
                    there.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        connection = HttpConnection(Address(socket=path), fixed_headers(None), None)
        try:
            yield connection
        finally:
            connection.close()
            thread.join(PATIENCE_S)


def asked(connection: HttpConnection) -> HttpReply:
    connection.connect(PATIENCE_S)
    return connection.exchange(ASKED, PATIENCE_S)


def test_an_answer(tmp_path: Path) -> None:
    with answering(tmp_path / "socket", ANSWER) as connection:
        reply = asked(connection)
        assert (200, "application/json", b'{"ids": [1]}') == reply


def test_one_that_is_cut_off_anywhere_is_lost(tmp_path: Path) -> None:
    cut = [ANSWER[:size] for size in range(len(ANSWER))]
    with answering(tmp_path / "socket", *cut) as connection:
        for _ in cut:
            with pytest.raises(AnswerLost):
                asked(connection)


def test_nobody_there(tmp_path: Path) -> None:
    connection = HttpConnection(Address(socket=tmp_path / "none"), fixed_headers(None), None)
    with pytest.raises(ServerUnavailable, match="nobody answers"):
        asked(connection)


def test_somebody_elses_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("afterlog.client.http_connection.sockets.to_path", refused)
    connection = HttpConnection(Address(socket=tmp_path / "theirs"), fixed_headers(None), None)
    with pytest.raises(NotAllowed, match="another user's"):
        asked(connection)


def test_its_end_is_heard_of_while_nothing_is_asked(tmp_path: Path) -> None:
    with answering(tmp_path / "socket", ANSWER) as connection:
        asked(connection)
        assert connection.is_over(PATIENCE_S)


def test_who_waits_for_its_end_can_be_told_from_here(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        connection = HttpConnection(Address(socket=tmp_path / "socket"), fixed_headers(None), None)
        connection.connect(PATIENCE_S)
        assert not connection.is_over(0.0)
        connection.cut()
        assert connection.is_over(PATIENCE_S)
        connection.close()


def test_no_time_is_no_time_without_an_end() -> None:
    """To the system a limit of 0 is none."""
    ours, theirs = socket.socketpair()
    with theirs:
        wire = sockets.Wire(ours)
        wire.wait_for(0.0)
        with pytest.raises(BlockingIOError):
            wire.read(1)
        wire.close()
