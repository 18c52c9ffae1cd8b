"""The server as a process has it: sockets, and how it ends."""

from __future__ import annotations

import http.client
import json
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import afterlog
from afterlog.base.errors import InvalidArgument
from afterlog.base.names import SERVER_SOCKET
from afterlog.server.running import Options, Serving
from afterlog.store.store import Store
from tests.support import PATIENCE_S, Background, eventually


class UnixConnection(http.client.HTTPConnection):
    """http.client, over the socket in a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    data = answer.read()
    return answer.status, json.loads(data) if data else None


def waits(connection: http.client.HTTPConnection) -> float:
    """How many requests wait for a record."""
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("afterlog_server_waiting "))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with afterlog.open(tmp_path / "data") as opened:
        opened.create_topic("mail")
        yield opened


@pytest.fixture
def serving(store: Store) -> Iterator[Serving]:
    made = Serving(store)
    made.start()
    yield made
    made.stop()
    assert made.join(PATIENCE_S)


class TestSocket:
    def test_it_is_its_owners_alone_and_goes_with_the_server(self, store: Store) -> None:
        path = store.path / SERVER_SOCKET
        serving = Serving(store)
        serving.start()
        assert [f"unix:{path}"] == serving.addresses
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)
        connection = UnixConnection(path)
        assert (200, {"ids": ["mail-0@0"]}) == ask(
            connection, "POST", "/v1/topics/mail/records", {"records": [{"value": "a"}]}
        )
        status, said = ask(connection, "POST", "/v1/topics/mail/subscriptions/s/receive", {"wait_ms": 1_000})
        assert (200, ["a"]) == (status, [message["value"] for message in said["messages"]])
        serving.stop()
        assert serving.join(PATIENCE_S)
        assert not path.exists()
        connection.close()
        assert "mail-0@1" == str(store.send("mail", b"still open"))

    def test_what_a_killed_server_left_is_replaced(self, store: Store) -> None:
        path = store.path / SERVER_SOCKET
        left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        left.bind(str(path))
        left.close()
        serving = Serving(store)
        serving.start()
        connection = UnixConnection(path)
        assert 200 == ask(connection, "GET", "/livez")[0]
        connection.close()
        serving.stop()
        assert serving.join(PATIENCE_S)

    def test_a_folder_with_a_path_too_long_for_an_address(self, tmp_path: Path) -> None:
        with afterlog.open(tmp_path / ("a" * 90) / ("b" * 90)) as store:
            serving = Serving(store)
            serving.start()
            assert (store.path / SERVER_SOCKET).is_socket()
            serving.stop()
            assert serving.join(PATIENCE_S)
            assert not (store.path / SERVER_SOCKET).exists()

    def test_a_file_in_its_place_is_left_alone(self, store: Store) -> None:
        (store.path / SERVER_SOCKET).write_text("mine")
        with pytest.raises(afterlog.FileTaken):
            Serving(store)
        assert "mine" == (store.path / SERVER_SOCKET).read_text()


class TestStopping:
    def test_who_waits_is_told_to_come_back(self, store: Store, serving: Serving) -> None:
        connection = UnixConnection(store.path / SERVER_SOCKET)
        path = "/v1/topics/mail/subscriptions/s/receive"
        waiting = Background(lambda: ask(connection, "POST", path, {"wait_ms": 600_000}))
        app = serving.app
        assert app is not None
        eventually(lambda: len(app.served.waits) == 1)
        serving.stop()
        status, said = waiting.answer()
        assert (200, []) == (status, said["messages"])
        assert serving.join(PATIENCE_S)
        connection.close()

    def test_before_it_was_started(self, store: Store) -> None:
        serving = Serving(store)
        serving.stop()
        serving.start()
        assert serving.join(PATIENCE_S)


class TestBeside:
    def test_open_serves_until_it_is_closed(self, tmp_path: Path) -> None:
        with afterlog.open(tmp_path / "data", serve=True) as store:
            connection = UnixConnection(store.path / SERVER_SOCKET)
            assert 200 == ask(connection, "POST", "/v1/topics", {"names": ["mail"]})[0]
            store.send("mail", b"from here")
            path = "/v1/topics/mail/subscriptions/s/receive"
            assert ["from here"] == [each["value"] for each in ask(connection, "POST", path, {})[1]["messages"]]
            waiting = Background(lambda: ask(connection, "POST", path, {"wait_ms": 600_000}))
            other = UnixConnection(store.path / SERVER_SOCKET)
            eventually(lambda: waits(other) == 1)
            other.close()
            thread = next(each for each in threading.enumerate() if each.name == "afterlog-server")
        assert [] == waiting.answer()[1]["messages"]
        assert not thread.is_alive()
        assert not (tmp_path / "data" / SERVER_SOCKET).exists()
        connection.close()

    def test_where_it_cannot_be_served_it_is_closed(self, tmp_path: Path) -> None:
        (tmp_path / SERVER_SOCKET).write_text("mine")
        with pytest.raises(afterlog.FileTaken):
            afterlog.open(tmp_path, serve=True)
        afterlog.open(tmp_path).close()


class TestTcp:
    def test_without_tokens_only_for_this_machine_and_only_when_asked_for(self, store: Store) -> None:
        with pytest.raises(InvalidArgument, match="tokens"):
            Options(listen=("127.0.0.1", 0))
        with pytest.raises(InvalidArgument, match=r"127\.0\.0\.1"):
            Serving(store, Options(listen=("0.0.0.0", 0), no_auth=True))
        serving = Serving(store, Options(socket=False, listen=("127.0.0.1", 0), no_auth=True))
        [address] = serving.addresses
        serving.start()
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
        assert (200, {"ids": ["mail-0@0"]}) == ask(
            connection, "POST", "/v1/topics/mail/records", {"records": [{"value": "a"}]}
        )
        connection.close()
        serving.stop()
        assert serving.join(PATIENCE_S)
