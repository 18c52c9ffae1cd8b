"""Real processes with handlers at work, stopped by SIGTERM and killed by SIGKILL: what comes twice, and what is lost.

A SIGTERM costs no duplicate: no handler begins a record a second time, and no record has failed. A SIGKILL costs those
that were in handlers, and no other. Nothing is lost to either: what no handler began is there at the end.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterlog.store.store import open_store
from tests import campaigns
from tests.campaigns.killed_worker import CONFIG
from tests.campaigns.workers import Workers

LIVES = 100 if campaigns.WHOLE else 6
LIVES_MAX = 40
"""Until a planted bug is seen."""
LINES_MAX = 200


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers("tests.campaigns.stopped_worker") as made:
        yield made


class Handled:
    """What the handlers said."""

    def __init__(self) -> None:
        self.sent = set[str]()
        self.begun = set[str]()
        self.acked = set[str]()
        self.interrupted = set[str]()
        """In a handler when its process was killed."""
        self.sending = set[str]()
        """What the process said last that it sends."""
        self.unsure = set[str]()
        """Said to be sent by a process that was killed before it said more."""
        self.duplicates = 0

    def hear(self, word: str, value: str | list[str], failures: int = 0) -> None:
        match word:
            case "send":
                self.sending = {*value}
                self.sent |= self.sending
            case "begin":
                assert isinstance(value, str)
                if value in self.begun:
                    assert value in self.interrupted, f"{value} comes twice"
                    self.duplicates += 1
                self.interrupted.discard(value)
                self.begun.add(value)
            case "acked":
                assert isinstance(value, str)
                self.acked.add(value)

    def ended(self, number: signal.Signals) -> None:
        """A process has. Its last words may be lost to a kill, not to a drain."""
        if number == signal.SIGKILL:
            self.interrupted = self.begun - self.acked
            self.unsure |= self.sending
        self.sending = set()

    def verify(self, folder: Path) -> None:
        """What no handler began is there, and nothing else but what was interrupted."""
        with (
            open_store(folder, CONFIG, None, None) as store,
            store.subscribe("mail", "sender", lease_ms=600_000) as subscription,
        ):
            lots = iter(lambda: [*subscription.receive(1_000)], [])
            left = {(message.value or b"").decode() for messages in lots for message in messages}
            store.check()
        assert left | self.begun <= self.sent
        lost = self.sent - self.begun - left - self.unsure
        assert not lost, f"{sorted(lost)[:5]} are lost"
        assert left & self.begun <= self.interrupted, "what was acked is there again"


def stopped(
    workers: Workers, folder: Path, number: signal.Signals, lives: int, bug: str = "nothing_planted"
) -> Handled:
    chance, handled = random.Random(campaigns.SEED), Handled()
    for life in range(lives):
        with workers.life(folder / "store", f"{life}", chance.randrange(1, LINES_MAX), bug, number) as said:
            for line in said:
                handled.hear(*line)
        handled.ended(number)
        campaigns.count("stops of a process" if number == signal.SIGTERM else "kills of a process")
        handled.verify(folder / "store")
    return handled


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_again_and_again(workers: Workers, tmp_path: Path, number: signal.Signals) -> None:
    handled = stopped(workers, tmp_path, number, LIVES)
    counts = len(handled.sent), len(handled.begun), handled.duplicates
    print(f"{LIVES} of {number.name}: sent, handled, twice:", *counts)
    assert len(handled.begun) > LIVES
    if number == signal.SIGTERM:
        assert 0 == handled.duplicates


@pytest.mark.parametrize("bug", ["what_waits_is_acked", "handlers_are_not_waited_for"])
def test_planted_bug_is_caught(workers: Workers, tmp_path: Path, bug: str) -> None:
    with pytest.raises(AssertionError, match=r"are lost|comes twice|died by itself|there again"):
        stopped(workers, tmp_path, signal.SIGTERM, LIVES_MAX, bug)
