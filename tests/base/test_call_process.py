from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from afterlog.base.call_process import CallFailed, CallProcess
from tests import worker_calls
from tests.support import PATIENCE_S, Background, eventually


@pytest.fixture
def process() -> Iterator[CallProcess]:
    made = CallProcess(worker_calls.serve, "one", "other")
    yield made
    made.close()


def saying(text: str) -> bytes:
    return text.encode()


def test_call_after_call_in_one_process(process: CallProcess, tmp_path: Path) -> None:
    for _ in range(3):
        process.run(saying(f"write {tmp_path / 'told'}"), PATIENCE_S)
    assert 1 == len(set((tmp_path / "told").read_text().split()))


def test_what_it_raises(process: CallProcess) -> None:
    for text, name, said in (
        ("raise", "LookupError", "no such address"),
        ("unspeakable", "Unspeakable", "1 and 2"),
        ("exit", "SystemExit", "3"),
    ):
        with pytest.raises(CallFailed, match=said) as caught:
            process.run(saying(text))
        assert name == type(caught.value).__name__
        assert "worker_calls.py" in "".join(caught.value.__notes__)


def test_one_that_takes_too_long_is_killed(process: CallProcess, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"it had 0\.2 s"):
        process.run(saying("spin"), 0.2)
    process.run(saying(f"write {tmp_path / 'told'}"), PATIENCE_S)
    assert (tmp_path / "told").exists(), "the next one has another process"


def test_one_that_dies(process: CallProcess, tmp_path: Path) -> None:
    with pytest.raises(CallFailed, match="exit code 7"):
        process.run(saying("die"))
    process.run(saying(f"write {tmp_path / 'told'}"))


def test_closed_by_another_thread(process: CallProcess, tmp_path: Path) -> None:
    running = Background(lambda: process.run(saying(f"sleep {tmp_path / 'begun'}")))
    eventually((tmp_path / "begun").exists)
    process.close()
    with pytest.raises(CancelledError):
        running.answer()
    with pytest.raises(CancelledError):
        process.run(saying("raise"))
