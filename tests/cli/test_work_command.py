"""`afterlog work` as a process: what it imports, what signals do, and that SIGHUP loads the program anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pytest

import afterlog
from tests.architecture import ROOT
from tests.support import PATIENCE_S

PROGRAM = "from afterlog.cli.main import main; main()"
JOBS = """
import threading

import afterlog

store = afterlog.open("data")
store.create_topic("jobs")
worker = afterlog.Worker(store)


@worker.handle("jobs", partitions=[0])
def handle(message):
    print("began", message.value.decode(), flush=True)
    {inside}
    print("ended", message.value.decode(), flush=True)
"""
AT_ONCE = JOBS.format(inside="pass")
UNTIL_TOLD = JOBS.format(inside="input()")
FOR_EVER = JOBS.format(inside="threading.Event().wait()")


class Working:
    """The command in a process of its own, in a folder with a module `jobs`."""

    def __init__(self, folder: Path, *options: str, stdin: int = subprocess.PIPE) -> None:
        command = [sys.executable, "-W", "error", "-c", PROGRAM, "work", "jobs:worker", *options]
        self.process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        self._watchdog.start()

    def reads(self, *expected: str) -> None:
        """The next lines of its output."""
        for each in expected:
            assert each == cast(IO[str], self.process.stdout).readline().strip()

    def says(self, text: str) -> None:
        """Some later line of what it tells its log has this."""
        told = ""
        while text not in told:
            line = cast(IO[str], self.process.stderr).readline()
            assert line, told
            told += line

    def ended(self) -> tuple[int, str, str]:
        """Its exit code, and the rest of its output and its log."""
        output, log = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output, log

    def close(self) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


@contextmanager
def working(folder: Path, *options: str, stdin: int = subprocess.PIPE) -> Iterator[Working]:
    """It has begun to work."""
    process = Working(folder, *options, stdin=stdin)
    try:
        process.says("working: jobs as worker")
        yield process
    finally:
        process.close()


def module(folder: Path, text: str, *values: str) -> None:
    """The module, and a store with these records."""
    (folder / "jobs.py").write_text(text)
    with afterlog.open(folder / "data") as store:
        store.create_topic("jobs")
        for value in values:
            store.send("jobs", value.encode())


def left(folder: Path) -> list[tuple[bytes | None, int]]:
    """What would be handled next, and how often that has failed."""
    with afterlog.open(folder / "data") as store, store.subscribe("jobs", "worker") as reader:
        return [(each.value, each.redelivery_count) for each in reader.receive()]


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_the_first_one_lets_handlers_end_and_takes_nothing_more(
        self, tmp_path: Path, number: signal.Signals
    ) -> None:
        module(tmp_path, UNTIL_TOLD, "a", "b")
        with working(tmp_path) as process:
            process.reads("began a")
            process.process.send_signal(number)
            process.says("stopping")
            print(file=process.process.stdin, flush=True)
            process.reads("ended a")
            assert (0, "") == process.ended()[:2]
        assert [(b"b", 0)] == left(tmp_path)

    def test_handlers_that_take_too_long_are_an_exit_code(self, tmp_path: Path) -> None:
        module(tmp_path, FOR_EVER, "a")
        with working(tmp_path, "--drain", "10ms") as process:
            process.reads("began a")
            process.process.send_signal(signal.SIGTERM)
            assert 1 == process.ended()[0]

    def test_a_second_one_ends_it_at_once(self, tmp_path: Path) -> None:
        module(tmp_path, FOR_EVER, "a")
        with working(tmp_path, "--drain", "1h") as process:
            process.reads("began a")
            while process.process.poll() is None:
                process.process.send_signal(signal.SIGTERM)
            assert -signal.SIGTERM == process.ended()[0]


class TestReload:
    def test_sighup_drains_and_runs_the_program_as_it_is_now(self, tmp_path: Path) -> None:
        module(tmp_path, UNTIL_TOLD, "a", "b")
        with working(tmp_path) as process:
            process.reads("began a")
            (tmp_path / "jobs.py").write_text(AT_ONCE.replace("began", "newly began"))
            for _ in range(3):  # one reload: nobody is lost to the others
                process.process.send_signal(signal.SIGHUP)
            process.says("stopping")
            print(file=process.process.stdin, flush=True)
            process.reads("ended a", "newly began b", "ended b")
            process.says("loading anew")
            process.says("working: jobs as worker")
            process.process.send_signal(signal.SIGTERM)
            assert (0, "") == process.ended()[:2]
        assert [] == left(tmp_path)

    def test_an_end_that_is_asked_for_beside_it_is_the_end(self, tmp_path: Path) -> None:
        module(tmp_path, UNTIL_TOLD, "a", "b")
        with working(tmp_path) as process:
            process.reads("began a")
            process.process.send_signal(signal.SIGHUP)
            process.process.send_signal(signal.SIGTERM)
            process.says("stopping")
            print(file=process.process.stdin, flush=True)
            process.reads("ended a")
            assert (0, "") == process.ended()[:2]
        assert [(b"b", 0)] == left(tmp_path)

    def test_a_program_that_is_broken_ends_it(self, tmp_path: Path) -> None:
        module(tmp_path, AT_ONCE)
        with working(tmp_path) as process:
            (tmp_path / "jobs.py").write_text("raise RuntimeError('half edited')")
            process.process.send_signal(signal.SIGHUP)
            code, _, log = process.ended()
        assert 1 == code
        assert "half edited" in log

    def test_the_end_of_a_terminal_ends_it(self, tmp_path: Path) -> None:
        module(tmp_path, AT_ONCE)
        outside, inside = os.openpty()
        try:
            with working(tmp_path, stdin=inside) as process:
                process.process.send_signal(signal.SIGHUP)
                code, _, log = process.ended()
        finally:
            os.close(outside)
            os.close(inside)
        assert 0 == code
        assert "anew" not in log


class TestModules:
    @pytest.mark.parametrize(
        ("target", "said"),
        [
            ("jobs", "no MODULE:WORKER"), (":worker", "no MODULE:WORKER"), ("jobs:", "no MODULE:WORKER"),
            ("nobody:worker", "there is no module nobody here"), ("nobody.jobs:worker", "there is no module nobody"),
            ("jobs:wrong", "wrong of jobs is no afterlog.Worker: 'text'"),
            ("jobs:missing", "missing of jobs is no afterlog.Worker: None"),
        ],
    )  # fmt: skip
    def test_what_is_none(self, tmp_path: Path, target: str, said: str) -> None:
        (tmp_path / "jobs.py").write_text("wrong = 'text'")
        ran = run(tmp_path, target)
        assert 2 == ran.returncode
        assert said in ran.stderr
        assert "Traceback" not in ran.stderr

    def test_what_a_module_misses_is_shown_where_it_does(self, tmp_path: Path) -> None:
        (tmp_path / "jobs.py").write_text("import missing_by_jobs")
        ran = run(tmp_path, "jobs:worker")
        assert 1 == ran.returncode
        assert "jobs.py" in ran.stderr
        assert "missing_by_jobs" in ran.stderr

    def test_a_store_that_is_open_elsewhere(self, tmp_path: Path) -> None:
        module(tmp_path, AT_ONCE)
        with afterlog.open(tmp_path / "data"):
            assert 4 == run(tmp_path, "jobs:worker").returncode


def run(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "work", target], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
