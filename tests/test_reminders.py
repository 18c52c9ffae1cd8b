"""The example `examples/reminders`: each of its processes is killed in turn, and every reminder is sent."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.support import PATIENCE_S

pytest.importorskip("fastapi")

POSTERS = 3


class Reminders:
    """The example, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.port = int(re.split("[:/]+", self._said.get(timeout=PATIENCE_S))[2])
        self.pids: dict[str, int] = {}

    def hear(self, count: int) -> None:
        """So many processes have been started."""
        for _ in range(count):
            name, pid = re.fullmatch(r"(.*) is process (\d+)", self._said.get(timeout=PATIENCE_S)).groups()  # type: ignore[union-attr]
            self.pids[name] = int(pid)

    def post(self, text: str, delay: float) -> bool:
        """Whether it was answered that it is there."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            body = json.dumps({"to": "ada", "text": text, "delay": delay})
            connection.request("POST", "/reminders", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            said = response.read()
            assert 201 == response.status, said
        except (OSError, HTTPException):  # its worker was killed
            return False
        finally:
            connection.close()
        return True

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line.strip())


@contextmanager
def running(folder: Path) -> Iterator[Reminders]:
    command = ["--port", "0", "--data", str(folder / "data"), "--outbox", str(folder / "outbox")]
    with subprocess.Popen(
        [sys.executable, "-m", "examples.reminders", *command], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            made = Reminders(process)
            made.hear(5)
            yield made
        finally:
            process.terminate()


def sent(outbox: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in outbox.read_text().splitlines()] if outbox.exists() else []


@pytest.mark.share(3)
def test_every_reminder_is_sent_whoever_is_killed(tmp_path: Path) -> None:
    answered: dict[str, int] = {}
    """When the reminder was asked to be due, at the earliest."""
    ended = threading.Event()

    def ask(reminders: Reminders, name: str) -> None:
        number = 0
        while not ended.is_set():
            text, delay = f"{name}.{number}", number % 4 * 0.1
            due_ms = time.time_ns() // 1_000_000 + int(delay * 1_000)
            if reminders.post(text, delay):
                answered[text] = due_ms
            number += 1

    with running(tmp_path) as reminders:
        posters = [threading.Thread(target=ask, args=(reminders, f"p{number}")) for number in range(POSTERS)]
        for poster in posters:
            poster.start()
        try:
            for name in [*reminders.pids]:
                before = len(answered)
                _until(lambda before=before: len(answered) > before + 5)  # type: ignore[misc]
                os.kill(reminders.pids[name], signal.SIGKILL)
                reminders.hear(1)
        finally:
            ended.set()
            for poster in posters:
                poster.join(PATIENCE_S)
        _until(lambda: answered.keys() <= {each["text"] for each in sent(tmp_path / "outbox")})
    times = Counter(str(each["text"]) for each in sent(tmp_path / "outbox"))
    assert answered
    for each in sent(tmp_path / "outbox"):
        assert each["due_ms"] <= each["sent_ms"]  # type: ignore[operator]
        assert answered.get(str(each["text"]), 0) <= each["sent_ms"]  # type: ignore[operator]
    again = {text: count - 1 for text, count in times.items() if count > 1}
    assert sum(again.values()) <= 1, f"only what the sender had when it was killed comes again: {again}"


def _until(there: object) -> None:
    waiting, until_s = threading.Event(), time.monotonic() + PATIENCE_S
    while not there():  # type: ignore[operator]
        assert time.monotonic() < until_s, "it does not come"
        waiting.wait(0.02)
