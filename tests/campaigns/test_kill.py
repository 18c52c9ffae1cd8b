"""A real process on a real folder, killed with SIGKILL again and again: what it said on the pipe is true afterwards.

After every kill a copy of the folder is opened an hour later, when everything is due, and drained: what comes of the
subscription must be, to the record, what was sent and neither acked nor cancelled nor dead (D3, D4, D9), and have
failed as often as can be counted (D5, D10). Of the one call that the kill interrupted, either all happened or nothing.
The next worker goes on with the folder itself.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from afterlog import EARLIEST, CancelResult, ManualClock
from afterlog.store.store import Store, open_store
from tests import campaigns
from tests.campaigns.crashes import contents
from tests.campaigns.killed_worker import ATTEMPTS, CONFIG, wall_ms
from tests.campaigns.workers import Workers

CYCLES = 80 if campaigns.WHOLE else 15
CYCLES_MAX = 50
"""Until a planted bug is seen."""
LINES_MAX = 80
HOUR_MS = 3_600_000


class Oracle:
    """What the workers said, in the order in which they said it, and what follows. Records go by their offsets."""

    def __init__(self) -> None:
        self.trying: list[Any] = []
        """The call that has not returned."""
        self.log: list[str | None] = []
        """Values in append order; None of a control record."""
        self.ranks: dict[int, tuple[int, str]] = {}
        """(offset, value) by delivery offset."""
        self.committed = 0
        self.cancelled = set[int]()
        self.acked = set[int]()
        self.dead = set[int]()
        self.leases: dict[int, int] = {}
        self.failures: dict[int, int] = {}
        self.not_before_ms: dict[int, int] = {}
        self.unsure = set[int]()
        """Leased or released, perhaps, in a call that did not return: one failure more, or not."""
        self.redelivered = 0

    def hear(self, word: str, *said: Any) -> None:
        match word:
            case "sent":
                self.appended(self.trying[1], said[0])
            case "cancelled":
                self.answered(self.trying[1], CancelResult(said[0]))
            case "rescheduled":
                self.rescheduled(self.trying[1], said[0])
            case "received":
                for row in said[1]:
                    self.received(said[0], *row)
            case "acked":
                self.settled(self.trying[1], said[0])
            case "nacked" | "released":
                self.returned(*self.trying, *said)
            case "consumed":
                for row in said[0]:
                    self.shown(*row)
            case "committed":
                self.committed = said[0]
            case _:
                assert not self.trying
                self.trying = [word, *said]
                return
        self.trying = []

    # The log.

    def appended(self, values: list[str | None], offsets: list[int]) -> None:
        assert [*range(len(self.log), len(self.log) + len(values))] == offsets
        self.log += values

    def answered(self, offset: int, answer: CancelResult) -> None:
        if answer == CancelResult.CANCELLED:
            self.hide(offset)
            self.log.append(None)
        elif answer == CancelResult.ALREADY_CANCELLED:
            assert offset in self.cancelled

    def hide(self, offset: int) -> None:
        assert offset not in {shown for shown, _ in self.ranks.values()}, f"{offset} was delivered"
        assert offset not in self.cancelled, f"{offset} is cancelled twice"
        self.cancelled.add(offset)

    def rescheduled(self, offset: int, again: int | None) -> None:
        if again is not None:
            self.hide(offset)
            self.appended([None, self.log[offset]], [again - 1, again])

    def shown(self, rank: int, offset: int, value: str) -> None:
        assert (offset, value) == self.ranks.setdefault(rank, (offset, value)), f"D8: {rank} is another record"
        assert value == self.log[offset], f"D12: {offset} has another value"
        assert offset not in self.cancelled, f"{offset} was cancelled"

    # The subscription.

    def received(self, now_ms: int, rank: int, offset: int, value: str, count: int, deadline_ms: int) -> None:
        self.shown(rank, offset, value)
        assert offset not in self.acked | self.dead, f"D9: {offset} comes again"
        if offset in self.leases:
            assert now_ms >= self.leases[offset], f"D5: {offset} is leased already"
            self.fail(offset)
        assert now_ms >= self.not_before_ms.pop(offset, 0), f"D10: {offset} comes too early"
        self.failed(offset, count)
        assert count < ATTEMPTS
        self.redelivered += count > 0
        self.leases[offset] = deadline_ms

    def fail(self, offset: int) -> None:
        del self.leases[offset]
        self.failures[offset] = self.failures.get(offset, 0) + 1

    def failed(self, offset: int, count: int) -> None:
        """It is said to have failed so often: for each time there is a reason."""
        known = self.failures.get(offset, 0)
        assert known <= count <= known + (offset in self.unsure), f"D5, D10: {offset} failed {known} times, not {count}"
        self.failures[offset] = count
        self.unsure.discard(offset)

    def settled(self, offsets: list[int], newly: int) -> None:
        left = set(offsets) - self.acked - self.dead
        if newly == len(left):
            self.acked |= left
        else:  # its lease had ended once too often
            assert (0, 1) == (newly, len(left))
            self.dead |= left
            self.fail(offsets[0])
        self.leases = {offset: ms for offset, ms in self.leases.items() if offset not in offsets}

    def returned(self, how: str, offset: int, count: int, not_before_ms: int, now_ms: int, done: int) -> None:
        good = offset in self.leases and count == self.failures.get(offset, 0)
        assert done == good or (not done and now_ms >= self.leases[offset]), f"the receipt of {offset} was good"
        if not done:
            return
        if how == "release":
            del self.leases[offset]
            return
        self.fail(offset)
        if count + 1 >= ATTEMPTS:
            self.dead.add(offset)
        else:
            self.not_before_ms[offset] = not_before_ms

    # The kill, and what it left.

    def killed(self) -> None:
        """What was leased has failed. The call that was interrupted may have leased something, or released it."""
        if self.trying[:1] == ["receive"]:
            self.unsure = set(range(len(self.log)))
        elif self.trying[:1] == ["release"] and self.trying[1] in self.leases:
            del self.leases[self.trying[1]]
            self.unsure.add(self.trying[1])
        for offset in list(self.leases):
            self.fail(offset)

    def verify(self, store: Store) -> None:
        partition = store.create_topic("mail").partition(0)
        may_be_gone = self.resolve([value_of(record) for record in contents(partition)])
        with store.subscribe("mail", "sender", lease_ms=HOUR_MS) as subscription:
            came = [message for messages in iter(lambda: [*subscription.receive(1_000)], []) for message in messages]
        self.buried(store)
        offsets = {message.offset for message in came}
        assert len(offsets) == len(came), "D5: twice in one drain"
        live = {offset for offset, value in enumerate(self.log) if value is not None}
        live -= self.acked | self.dead | self.cancelled
        assert not offsets - live, f"D9: {offsets - live} come again, or were cancelled"
        assert live - offsets <= may_be_gone, f"D3, D4: {live - offsets - may_be_gone} are lost"
        for message in came:
            assert (message.value or b"").decode() == self.log[message.offset]
            self.failed(message.offset, message.redelivery_count)
        if self.trying[:1] == ["ack"]:
            self.acked |= live - offsets
        else:
            self.cancelled |= live - offsets
        self.consumed(store)
        store.check()
        self.trying, self.unsure = [], set()

    def resolve(self, found: list[str | None]) -> set[int]:
        """What the interrupted call left in the log; the records that it may have taken from the subscription."""
        known = len(self.log)
        assert self.log == found[:known], "D3, D8"
        tail = found[known:]
        match self.trying:
            case ["send", values]:
                assert values[: len(tail)] == tail
            case ["cancel", offset] if tail:
                assert [None] == tail
                self.hide(offset)
            case ["reschedule", offset] if tail:
                assert [None, self.log[offset]] == tail, "both or neither"
                self.hide(offset)
            case _:
                assert not tail
        self.log += tail
        return set(self.trying[1]) if self.trying[:1] == ["ack"] else set()

    def buried(self, store: Store) -> None:
        """Each dead letter is there once, and failed as often as it says."""
        store.create_topic("dead")
        letters = [letter.origin for letter in store.dead_letters("dead", limit=1 << 20)]
        assert len(letters) == len({letter and letter.record for letter in letters}), "a dead letter is there twice"
        for letter in letters:
            assert letter is not None
            offset = letter.record.offset
            assert offset not in self.acked | self.cancelled
            assert letter.redelivery_count >= ATTEMPTS
            self.failed(offset, letter.redelivery_count)
        buried = {letter.record.offset for letter in letters if letter}
        assert self.dead <= buried, f"{self.dead - buried} are not among the dead letters"
        self.dead = buried

    def consumed(self, store: Store) -> None:
        """By a consumer group, which knows nothing of the subscription."""
        with store.consumer("mail", group="group", auto_commit=False) as consumer:
            if self.trying[:1] == ["commit"]:
                self.committed = consumer.committed()[0] or self.committed
            assert self.committed == (consumer.committed()[0] or 0)
            consumer.seek(EARLIEST)
            shown = [message for messages in iter(consumer.poll, []) for message in messages]
        for message in shown:
            said = self.ranks.get(message.delivery_offset, (message.offset, self.log[message.offset]))
            assert said == (message.offset, (message.value or b"").decode())
        expected = {offset for offset, value in enumerate(self.log) if value is not None} - self.cancelled
        assert expected == {message.offset for message in shown}, "D2"


def value_of(record: tuple[bytes, int] | None) -> str | None:
    """None of a control record, whose value is binary and begins with a zero."""
    return None if record is None or record[0][:1] == b"\0" else record[0].decode()


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers("tests.campaigns.killed_worker") as made:
        yield made


def kill_again_and_again(
    workers: Workers, folder: Path, cycles: int, bug: str = "nothing_planted", seed: int = campaigns.SEED
) -> Oracle:
    """The same seed makes the same lives and lengths; where in a call they end is chance."""
    chance, oracle = random.Random(seed), Oracle()
    (folder / "store").mkdir()
    unsynced = patch.multiple(os, fsync=lambda descriptor: None, fdatasync=lambda descriptor: None)  # of the copy
    for cycle in range(cycles):
        with workers.life(folder / "store", f"{seed}.{cycle}", chance.randrange(LINES_MAX), bug) as said:
            for line in said:
                oracle.hear(*line)
        oracle.killed()
        campaigns.count("kills of a process")
        shutil.copytree(folder / "store", folder / "copy")
        clock = ManualClock(wall_ms() + HOUR_MS)
        with unsynced, open_store(folder / "copy", CONFIG, clock, None) as store:
            oracle.verify(store)
        shutil.rmtree(folder / "copy")
    return oracle


def test_killed_again_and_again(workers: Workers, tmp_path: Path) -> None:
    oracle = kill_again_and_again(workers, tmp_path, CYCLES)
    counts = [len(oracle.log), len(oracle.acked), len(oracle.dead), len(oracle.cancelled), oracle.redelivered]
    print("sent, acked, dead, cancelled, redelivered:", counts)
    assert min(counts) > CYCLES // 10


@pytest.mark.parametrize(
    ("bug", "seen"),
    [
        ("ack_stays_in_memory", "D9"),
        ("crash_is_not_counted", "D5"),
        ("dead_letter_twice", "a dead letter is there twice"),
    ],
)
def test_planted_bug_is_caught(bug: str, seen: str, workers: Workers, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=seen):
        kill_again_and_again(workers, tmp_path, CYCLES_MAX, bug, seed=1)
