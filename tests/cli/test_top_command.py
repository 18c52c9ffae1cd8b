from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import afterlog
from afterlog.cli.main import cli
from tests.architecture import ROOT
from tests.support import PATIENCE_S, Background, eventually

PROGRAM = """
import signal
from afterlog.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
"""Who is started in the background of a shell has SIGINT ignored, and so have its children."""


def run(*arguments: str, code: int = 0) -> str:
    ran = CliRunner().invoke(cli, ["top", *arguments, "--interval", "20ms"])
    assert code == ran.exit_code, ran.output + repr(ran.exception)
    return ran.output


def fill(store: afterlog.Store) -> None:
    store.create_topics(["mail", "calls"])
    store.send("mail", b"later", delay=3_600)
    store.send("mail", b"now")


@pytest.fixture(params=["free", "served"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a store that no process has open, and of one that this one serves."""
    path = tmp_path / "store"
    if request.param == "free":
        with afterlog.open(path) as store:
            fill(store)
        yield str(path)
    else:
        with afterlog.open(path, serve=True) as store:
            fill(store)
            yield str(path)


class TestOnce:
    def test_a_table(self, folder: str) -> None:
        [line, headings, *rows] = run(folder, "--once").splitlines()
        assert line.endswith("2 topics")
        assert ["TOPIC", "SENT/S", "DUE/S", "OUT/S"] == headings.split()[:4]
        assert [["all", "1"], ["mail", "1"], ["calls", "0"]] == [[row.split()[0], row.split()[5]] for row in rows]
        assert "in 59m" in rows[1]

    def test_lines_of_json(self, folder: str) -> None:
        rows = {row["topic"]: row for row in map(json.loads, run(folder, "--once", "--json").splitlines())}
        assert {"*", "mail", "calls"} == {*rows}
        assert (1, None) == (rows["mail"]["pending"], rows["mail"]["late_ms"])

    def test_one_topic(self, folder: str) -> None:
        assert ["mail"] == [json.loads(row)["topic"] for row in run(folder, "mail", "--once", "--json").splitlines()]

    def test_a_topic_that_is_not_there(self, folder: str) -> None:
        assert "nobody" in run(folder, "nobody", "--once", code=3)


def test_an_interval_that_is_too_short(tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["top", str(tmp_path), "--interval", "1ms"])
    assert 2 == ran.exit_code


@contextmanager
def process(folder: str, stdin: int, stdout: int) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, "top", folder, "--interval", "20ms"],
        stdin=stdin, stdout=stdout, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120", "LINES": "30"},
    )  # fmt: skip
    try:
        yield started
    finally:
        started.kill()
        started.wait(PATIENCE_S)


def read_all(descriptor: int, shown: bytearray) -> None:
    """Of a terminal, until nobody has its other end."""
    with contextlib.suppress(OSError):
        while text := os.read(descriptor, 65_536):
            shown += text


@pytest.mark.share(2)
class TestOnAndOn:
    def test_without_a_terminal_a_table_for_each_look_until_ctrl_c(self, folder: str) -> None:
        with process(folder, subprocess.DEVNULL, subprocess.PIPE) as running:
            assert running.stdout is not None
            lines = [running.stdout.readline() for _ in range(5)]
            while lines[-1].split()[1:2] != ["0.0"]:  # a server counts once a second
                lines.append(running.stdout.readline())
                assert lines[-1]
            running.send_signal(signal.SIGINT)
            assert 0 == running.wait(PATIENCE_S)
            running.stdout.close()
        assert lines[1].startswith("TOPIC")
        assert ["mail", "-"] == lines[3].split()[:2]
        assert 2 <= sum(line.startswith("TOPIC") for line in lines)

    @pytest.mark.parametrize("key", [b"q", b"\x03", b"\x04"], ids=["q", "Ctrl-C", "Ctrl-D"])
    def test_at_a_terminal_the_screen_until_a_key(self, folder: str, key: bytes) -> None:
        outside, inside = os.openpty()
        before = termios.tcgetattr(inside)
        try:
            with process(folder, inside, inside) as running:
                shown = bytearray()
                reading = Background(lambda: read_all(outside, shown))
                eventually(lambda: b"calls" in shown and b"0.0" in shown)
                os.write(outside, b"x" + key)
                if key == b"\x03":  # a terminal that controls the process makes a signal of it; this one does not
                    running.send_signal(signal.SIGINT)
                assert 0 == running.wait(PATIENCE_S)
            assert before == termios.tcgetattr(inside)
        finally:
            os.close(inside)  # nobody has it any more: the reader comes to its end
            reading.answer()
            os.close(outside)
        assert b"\x1b[?1049h" in shown  # the other screen of the terminal
