"""Where a server is, as people write it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import afterlog
import afterlog.aio
from afterlog.base.errors import InvalidArgument, ServerUnavailable, WrongType
from afterlog.client.address import address_of, address_there
from afterlog.client.served_store import checked_timeout, checked_token


@pytest.mark.parametrize(
    ("url", "socket", "text"),
    [
        ("/data", Path("/data/server.sock"), "unix:/data/server.sock"),
        (Path("/data"), Path("/data/server.sock"), "unix:/data/server.sock"),
        ("unix:/run/x.sock", Path("/run/x.sock"), "unix:/run/x.sock"),
        ("unix:///run/x.sock", Path("/run/x.sock"), "unix:/run/x.sock"),
    ],
)
def test_sockets(url: str | Path, socket: Path, text: str) -> None:
    address = address_of(url)
    assert (socket, "localhost", text) == (address.socket, address.netloc, str(address))


def test_a_relative_path_is_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tmp_path / "data" / "server.sock" == address_of("data").socket


@pytest.mark.parametrize(
    ("url", "netloc", "port", "tls", "prefix"),
    [
        ("http://host", "host", 80, False, ""),
        ("http://host:7654/", "host:7654", 7654, False, ""),
        ("https://host/a/b/", "host", 443, True, "/a/b"),
        ("https://host:80", "host:80", 80, True, ""),
        ("http://[::1]:1", "[::1]:1", 1, False, ""),
    ],
)
def test_hosts(url: str, netloc: str, port: int, tls: bool, prefix: str) -> None:
    address = address_of(url)
    assert (netloc, port, tls, prefix) == (address.netloc, address.port, address.tls, address.prefix)
    assert url.rstrip("/") == str(address)


@pytest.mark.parametrize(
    "url",
    ["ftp://host", "http://", "http://host:port", "http://host:99999", "http://a?b=c", "http://u:p@h", "tcp://h:1"],
)
def test_what_is_none(url: str) -> None:
    with pytest.raises(InvalidArgument):
        afterlog.connect(url)


def test_what_else_cannot_be() -> None:
    for timeout in (0, -1, None, float("nan")):
        with pytest.raises(InvalidArgument):
            checked_timeout(timeout)
    for token in ("two words", "ü", "a\r\nHost: b"):
        with pytest.raises(InvalidArgument):
            checked_token(token)
    with pytest.raises(WrongType):
        afterlog.connect(3)  # type: ignore[arg-type]
    with pytest.raises(WrongType):
        afterlog.connect("/data", token=b"x")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        afterlog.connect("https://host", ca="/nowhere/ca.pem")


async def connected(url: str | Path) -> None:
    async with afterlog.aio.connect(url):
        pass


def test_where_no_server_can_be_nobody_waits(tmp_path: Path) -> None:
    for url in (tmp_path / "typo", str(tmp_path / "typo"), f"unix:{tmp_path}/typo/server.sock"):
        with pytest.raises(ServerUnavailable, match=r"there is no folder .*typo: look at the path"):
            address_there(url)
        with pytest.raises(ServerUnavailable, match="typo"):
            afterlog.connect(url)
        with pytest.raises(ServerUnavailable, match="typo"):
            asyncio.run(connected(url))
    assert tmp_path / "server.sock" == address_there(tmp_path).socket
    assert "localhost" == address_there("http://localhost:7654").host
