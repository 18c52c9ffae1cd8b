"""The examples of sites: each is one command, and what it promises holds while its processes are killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.support import PATIENCE_S, eventually

pytest.importorskip("celery")
pytest.importorskip("django_tasks")


@pytest.mark.share(2)
def test_celery(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("w") as out:  # no pipe: what a killed worker has forked may hold its end
        command = [sys.executable, "-m", "examples.celery", "--tasks", "30", "--kills", "1"]
        subprocess.run(command, stdout=out, stderr=out, check=True, timeout=4 * PATIENCE_S)
    lines = said.read_text()
    assert "30 of 30 tasks ran" in lines
    assert re.search(r"^0 early; half at most \d+ ms late$", lines, re.MULTILINE)
    assert 1 == lines.count(" killed\n")


class Page:
    """Of the Django site, as somebody at it sees it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def asked(self, method: str, path: str, **form: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            given = {"csrfmiddlewaretoken": self.cookie.partition("=")[2], **form}
            headers = {"Cookie": self.cookie, "Content-Type": "application/x-www-form-urlencoded"}
            connection.request(method, path, urlencode(given) if method == "POST" else None, headers)
            answer = connection.getresponse()
            self.cookie = (answer.getheader("Set-Cookie") or self.cookie).partition(";")[0]
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def is_there(self) -> bool:
        try:
            return 200 == self.asked("GET", "/")[0]
        except (OSError, HTTPException):
            return False

    def line(self, text: str) -> str:
        found = re.search(rf"<li>{text}: .*?</li>", self.asked("GET", "/")[1], re.DOTALL)
        return found[0] if found else ""


@contextmanager
def site(tmp_path: Path, port: int) -> Iterator[Path]:
    """Running; the file in which it says what it has started."""
    said = tmp_path / "said"
    with said.open("w") as out:
        command = [sys.executable, "-m", "examples.django", "--port", str(port), "--data", str(tmp_path / "site")]
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            yield said
        finally:
            process.terminate()
            assert 0 == process.wait(PATIENCE_S)


@pytest.mark.share(2)
def test_django(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = Page(port)
    with site(tmp_path, port) as said:
        eventually(page.is_there)
        for text, seconds in (("tea", "1"), ("cake", "900")):
            assert 302 == page.asked("POST", "/remind", text=text, seconds=seconds)[0]
        os.kill(int(re.findall(r"worker is process (\d+)", said.read_text())[-1]), signal.SIGKILL)
        eventually(lambda: "sent" in page.line("tea"))
        [number] = re.findall(r"/cancel/(\d+)", page.line("cake"))
        assert 302 == page.asked("POST", f"/cancel/{number}")[0]
        assert "" == page.line("cake")
        assert 404 == page.asked("POST", f"/cancel/{number}")[0]
