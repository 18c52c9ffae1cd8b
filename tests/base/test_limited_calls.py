from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from afterlog.base.errors import InvalidArgument
from afterlog.base.limited_calls import CallFailed, CallProcess, TimeLimits
from afterlog.fetch.message import Message
from tests import worker_calls
from tests.support import PATIENCE_S, Background, eventually


class TestInAThread:
    def test_what_it_gives_and_raises(self) -> None:
        limits = TimeLimits(time.monotonic)
        assert 5 == limits.call(lambda: 5, PATIENCE_S)
        with pytest.raises(LookupError):
            limits.call(lambda: {}[1], PATIENCE_S)
        eventually(lambda: limits._thread is None or not limits._running)

    def test_one_that_takes_too_long_is_struck(self) -> None:
        """Whatever it catches of what is an error."""
        caught = list[BaseException]()

        def spin() -> None:
            while True:
                try:
                    sum(range(1_000))
                except Exception as error:
                    caught.append(error)

        limits = TimeLimits(time.monotonic)
        with pytest.raises(TimeoutError, match=r"it had 0\.02 s"):
            limits.call(spin, 0.02)
        assert not caught
        assert 5 == limits.call(lambda: 5, PATIENCE_S), "nothing strikes later"

    def test_the_one_whose_time_is_up_and_no_other(self) -> None:
        limits, going_on = TimeLimits(time.monotonic), threading.Event()
        others = [Background(lambda: limits.call(lambda: going_on.wait(PATIENCE_S), PATIENCE_S)) for _ in range(3)]
        with pytest.raises(TimeoutError):
            limits.call(_spin, 0.02)
        going_on.set()
        assert [True] * 3 == [each.answer() for each in others]

    def test_one_that_ends_as_its_time_is_up(self) -> None:
        """It gives what it gives, or has timed out, and nothing strikes behind it: many, each at another instant."""
        limits, ended = TimeLimits(time.monotonic), {"well": 0, "late": 0}
        for number in range(300):
            until_s = time.monotonic() + 0.001 + number % 30 / 30_000

            def spin(until_s: float = until_s) -> int:
                while time.monotonic() < until_s:
                    pass
                return 1

            try:
                ended["well"] += limits.call(spin, 0.0015)
            except TimeoutError:
                ended["late"] += 1
            for _ in range(50):  # where something were on its way, it would strike here
                sum(range(10))
        assert 300 == sum(ended.values())
        assert ended["late"]


def _spin() -> None:
    while True:
        pass


@pytest.fixture
def process() -> Iterator[CallProcess]:
    made = CallProcess(worker_calls.handle)
    yield made
    made.close()


def saying(text: str) -> Any:
    return Message(
        topic="t", partition=0, offset=0, delivery_offset=0, key=None, value=text.encode(), headers=(), timestamp=0,
        broker_timestamp=0, deliver_after=0, due=0,
    )  # fmt: skip


class TestInAProcess:
    def test_call_after_call_in_one_process(self, process: CallProcess, tmp_path: Path) -> None:
        for _ in range(3):
            process.run(saying(f"write {tmp_path / 'told'}"), PATIENCE_S)
        assert 1 == len(set((tmp_path / "told").read_text().split()))

    def test_what_it_raises(self, process: CallProcess) -> None:
        with pytest.raises(LookupError, match="no such address") as caught:
            process.run(saying("raise"))
        assert "worker_calls.py" in "".join(caught.value.__notes__)
        with pytest.raises(CallFailed, match="Unspeakable: 1 and 2"):
            process.run(saying("unspeakable"))
        with pytest.raises(SystemExit):
            process.run(saying("exit"))

    def test_one_that_takes_too_long_is_killed(self, process: CallProcess, tmp_path: Path) -> None:
        with pytest.raises(TimeoutError, match=r"it had 0\.2 s"):
            process.run(saying("spin"), 0.2)
        process.run(saying(f"write {tmp_path / 'told'}"), PATIENCE_S)
        assert (tmp_path / "told").exists(), "the next one has another process"

    def test_one_that_dies(self, process: CallProcess, tmp_path: Path) -> None:
        with pytest.raises(CallFailed, match="exit code 7"):
            process.run(saying("die"))
        process.run(saying(f"write {tmp_path / 'told'}"))

    def test_closed_by_another_thread(self, process: CallProcess, tmp_path: Path) -> None:
        running = Background(lambda: process.run(saying(f"sleep {tmp_path / 'begun'}")))
        eventually((tmp_path / "begun").exists)
        process.close()
        with pytest.raises(CancelledError):
            running.answer()
        with pytest.raises(CancelledError):
            process.run(saying("raise"))

    def test_what_cannot_be_found_by_its_name(self) -> None:
        with pytest.raises(InvalidArgument, match="imported by its name"):
            CallProcess(lambda _: None)
