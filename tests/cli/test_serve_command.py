"""`afterlog serve` as a process: how it begins, what signals do, and tokens."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import afterlog
from afterlog.base.files import OsFiles
from afterlog.cli.main import cli
from afterlog.server.tokens import TokenFile, hashed
from tests.server.test_running import UnixConnection, ask
from tests.support import PATIENCE_S, Background, eventually

PROGRAM = "from afterlog.cli.main import main; main()"


def run(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert code == result.exit_code, result.output + repr(result.exception)
    return result


@contextmanager
def served(data: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which has begun to serve."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, "serve", str(data), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = ""
        while "serving" not in said:  # what was opened is told before
            line = process.stderr.readline()
            assert line, said
            said += line
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stderr.close()


def connected(data: Path) -> UnixConnection:
    return UnixConnection(data / "server.sock")


class TestSignals:
    def test_sigterm_ends_it_in_order(self, tmp_path: Path) -> None:
        """What is under way is done, who waits is told to come back, the store is closed, and its socket is gone."""
        data = tmp_path / "data"
        with served(data) as process:
            connection = connected(data)
            assert 200 == ask(connection, "POST", "/v1/topics", {"names": ["mail"]})[0]
            assert 200 == ask(connection, "POST", "/v1/topics/mail/records", {"records": [{"value": "a"}]})[0]
            waiter = connected(data)
            path = "/v1/topics/mail/subscriptions/s/receive"
            assert ["a"] == [each["value"] for each in ask(waiter, "POST", path, {})[1]["messages"]]
            waiting = Background(lambda: ask(waiter, "POST", path, {"wait_ms": 600_000}))
            eventually(lambda: _waiting(connection) == 1)
            process.send_signal(signal.SIGTERM)
            status, said = waiting.answer()
            assert (200, []) == (status, said["messages"])
            assert 0 == process.wait(PATIENCE_S)
            assert not (data / "server.sock").exists()
            waiter.close()
            connection.close()
        with afterlog.open(data) as store:
            assert ["s"] == store.subscriptions("mail")

    def test_so_does_ctrl_c(self, tmp_path: Path) -> None:
        with served(tmp_path / "data") as process:
            process.send_signal(signal.SIGINT)
            assert 0 == process.wait(PATIENCE_S)

    def test_a_second_one_is_quicker(self, tmp_path: Path) -> None:
        """A client that is in the middle of a body is not waited for."""
        data = tmp_path / "data"
        with served(data) as process:
            connection = connected(data)
            assert 200 == ask(connection, "POST", "/v1/topics", {"names": ["mail"]})[0]
            slow = connected(data)
            slow.putrequest("POST", "/v1/topics/mail/records")
            slow.putheader("Content-Type", "application/json")
            slow.putheader("Content-Length", "1000")
            slow.endheaders()
            slow.send(b'{"records"')
            eventually(lambda: _gauge(connection, "afterlog_server_in_flight") == 2)
            process.send_signal(signal.SIGTERM)
            eventually(lambda: not (data / "server.sock").exists())
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(PATIENCE_S / 3)
            slow.close()
            connection.close()

    def test_a_killed_one_leaves_nothing_that_the_next_one_minds(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        for _ in range(2):
            with served(data) as process:
                connection = connected(data)
                assert 200 == ask(connection, "GET", "/readyz")[0]
                connection.close()
                process.kill()
                process.wait(PATIENCE_S)
            assert (data / "server.sock").exists()


def _gauge(connection: UnixConnection, name: str) -> float:
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def _waiting(connection: UnixConnection) -> float:
    return _gauge(connection, "afterlog_server_waiting")


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "what"),
        [
            (("--listen", "127.0.0.1:0"), "wants tokens"),
            (("--listen", "0.0.0.0:0", "--no-auth"), "127.0.0.1"),
            (("--listen", "127.0.0.1:0", "--no-auth", "--tokens", "t"), "either tokens"),
            (("--listen", "7654"), "no HOST:PORT"),
            (("--listen", "a:b"), "no HOST:PORT"),
            (("--listen", "localhost:99999"), "no HOST:PORT"),
            (("--listen", "256.0.0.1:80", "--tokens", "t"), "cannot listen on"),
        ],
    )
    def test_what_is_not_done(self, tmp_path: Path, options: tuple[str, ...], what: str) -> None:
        assert what in run("serve", tmp_path / "data", *options, code=2).output
        assert not (tmp_path / "data" / "server.sock").exists()

    def test_certificate_without_a_key(self, tmp_path: Path) -> None:
        certificate = tmp_path / "cert.pem"
        certificate.write_text("")
        assert "and its key" in run("serve", tmp_path / "data", "--tls-cert", certificate, code=2).output

    def test_a_store_that_is_open(self, tmp_path: Path) -> None:
        with afterlog.open(tmp_path / "data"):
            run("serve", tmp_path / "data", code=4)


class TestTokens:
    def test_made_listed_removed(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        text = run(
            "tokens", "add", file, "worker", "--scope", "receive", "--scope", "look", "--topic", "mail"
        ).output.strip()
        run("tokens", "add", file, "boss", "--scope", "manage")
        assert [hashed(text)] == [token.sha256 for token in TokenFile(OsFiles(), file).read() if token.name == "worker"]
        assert text not in file.read_text()
        assert 0o600 == file.stat().st_mode & 0o777
        listed = run("tokens", "list", file).output
        assert "worker" in listed
        assert "receive:mail look:mail" in listed
        assert "manage:*" in listed
        rows: list[Any] = [json.loads(line) for line in run("tokens", "list", file, "--json").output.splitlines()]
        assert [
            {"name": "boss", "scopes": {"manage": [""]}, "expires_ms": None},
            {"name": "worker", "scopes": {"receive": ["mail"], "look": ["mail"]}, "expires_ms": None},
        ] == rows
        again = run("tokens", "rotate", file, "worker").output.strip()
        assert [hashed(again)] == [
            token.sha256 for token in TokenFile(OsFiles(), file).read() if token.name == "worker"
        ]
        assert text != again
        assert listed == run("tokens", "list", file).output
        run("tokens", "add", file, "guest", "--scope", "look", "--expires-in", "1h")
        [guest] = [token for token in TokenFile(OsFiles(), file).read() if token.name == "guest"]
        assert guest.expires_ms is not None
        assert "EXPIRES" in run("tokens", "list", file).output
        run("tokens", "remove", file, "boss")
        assert "boss" not in run("tokens", "list", file).output

    def test_what_cannot_be(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        run("tokens", "add", file, "worker", code=2)
        run("tokens", "add", file, "worker", "--scope", "fly", code=2)
        run("tokens", "add", file, "no name", "--scope", "look", code=2)
        for command in ("remove", "rotate"):
            run("tokens", command, file, "worker", code=2)
        run("tokens", "add", tmp_path / "no" / "folder", "worker", "--scope", "look", code=3)
        file.write_text("not tokens")
        run("tokens", "list", file, code=5)
