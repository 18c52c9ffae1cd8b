"""An exception at every line of every operation on a log, Ctrl-C for one: nothing acknowledged is lost, nothing is made
up, and the log goes on. What a user's program catches and steps over must not cost it its records.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from afterlog.clock import ManualClock
from afterlog.config import ALWAYS, OS, Durability
from afterlog.fetch.partition import Partition
from afterlog.log import append
from afterlog.store import Store
from tests import campaigns
from tests.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, drained, killed, open_small

FOLDERS = tuple(str(Path(append.__file__).parent.parent / name) for name in ("log", "index"))


class Struck(KeyboardInterrupt):
    """The exception that strikes."""


@contextmanager
def strike(line: int, error: BaseException) -> Iterator[list[str]]:
    """Raise `error` before the n-th line that is run in log/ or index/; where that was, once it has."""
    left, where = [line], list[str]()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDERS):
            return None
        if event == "line" and not where and not _leaves_a_block(frame):
            if not left[0]:
                where.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                raise error
            left[0] -= 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield where
    finally:
        sys.settrace(before)


def _leaves_a_block(frame: FrameType) -> bool:
    """Whether no signal is heeded here, and no handler is in force: between a block and its `__exit__`, which counts as
    the line of the `with`; and at the `try` itself.
    """
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(("with ", "try:"))


@dataclass
class Life:
    """A log, what it was asked to hold, and what it has said that it holds."""

    durability: Durability = ALWAYS
    disk: SimulatedFiles = field(default_factory=SimulatedFiles)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    asked: list[bytes] = field(default_factory=list)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)

    def open(self) -> Life:
        self.store: Store = open_small(self.disk, self.clock, durability=self.durability, max_num_buckets=1)
        self.partition: Partition = self.store.create_topic("t", retention_ms=1_000).partition(0)
        for number in range(6):
            self.send(b"before %d" % number, number * 700)
        self.partition.log.roll()
        for number in range(5):
            self.send(b"after the roll %d" % number, 20_000 + number)
        self.clock.advance(2_500)
        return self

    def send(self, value: bytes, delay_ms: int = 0) -> None:
        self.asked.append(value)
        self.acknowledged[self.store.send("t", value, deliver_after=self.clock.now_ms() + delay_ms).offset] = value

    def send_many(self) -> None:
        values = [b"many %d" % number for number in range(9)]
        self.asked += values
        offsets = self.store.send_many("t", values, deliver_after=[self.clock.now_ms() + n % 3 for n in range(9)])
        self.acknowledged.update(zip(offsets.tolist(), values, strict=True))

    def cancel(self) -> None:
        self.cancelled.add(10)
        self.partition.cancel(np.array([10]))

    def verify(self, store: Store) -> None:
        """All that was acknowledged is there, at its offset, and nothing that nobody asked for."""
        store.check()
        partition = store.topic("t").partition(0)
        self.clock.set(NOW_MS + 1_000_000)
        found, position = dict[int, bytes | None](), partition.log_start
        while len(columns := partition.columns(position, 10_000, 1 << 20)[0]):
            found |= {message.offset: message.value for message in columns.to_messages()}
            position = int(columns.delivery_offset[-1]) + 1
        assert set(found.values()) <= set(self.asked)
        assert len(found) == len(set(found.values()))
        start = partition.log.log_start.key
        for offset, value in self.acknowledged.items():
            reached = value.startswith(b"before") and start.deliver_after >= 0
            assert reached or offset in self.cancelled or value == found.get(offset), (offset, value)


OPERATIONS: dict[str, Callable[[Life], object]] = {
    "send": lambda life: life.send(b"struck", 5),
    "send many": Life.send_many,
    "roll": lambda life: life.partition.log.roll(),
    "checkpoint": lambda life: life.partition.log.checkpoint(),
    "merge": lambda life: life.partition.log.merge_buckets(),
    "retention": lambda life: life.store.enforce_retention(),
    "cancel": Life.cancel,
}


def lines_of(operation: Callable[[Life], object]) -> int:
    """How many lines it takes."""
    life, count = Life().open(), [0]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDERS):
            return None
        count[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        operation(life)
    finally:
        sys.settrace(before)
    return count[0]


def struck(operation: Callable[[Life], object], line: int, durability: Durability) -> None:
    """One life in which it strikes there: more work behind it, then a reader, a kill, and a clean life."""
    life = Life(durability).open()
    where: list[str] = []
    try:
        with strike(line, Struck()) as where:
            operation(life)
    except Struck:
        pass
    if line % 3 == 0:  # somebody reads first
        drained(life.partition, life.partition.log_start)
    for number in range(5):
        life.send(b"more %d" % number, number)
    try:
        left = killed(life.disk)
        again = open_small(left, life.clock)
        life.verify(again)
        again.close()
        life.verify(life.store)
        life.store.close()
        last = open_small(life.disk, life.clock)
        life.verify(last)
        last.close()
    except BaseException as error:
        error.add_note(f"struck at {where}, line {line}")
        raise


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("durability", [ALWAYS, OS], ids=["always", "os"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_struck_at_every_line(name: str, durability: Durability) -> None:
    operation = OPERATIONS[name]
    for line in campaigns.share(range(lines_of(operation) + 1), 40):
        struck(operation, line, durability)
        campaigns.count("interrupts")
