"""Histories of clusters, step by step: what a test says happens, in this order, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from afterlog.base.config import ALWAYS, Durability
from afterlog.base.errors import AnswerLost, ServerUnavailable
from tests.replication.simulation import NAME, TOPIC, Region, Simulation

Step = Callable[["Course"], None]


class Course(Simulation):
    """A history with no faults but those that are put in."""

    def __init__(self, clusters: int, durability: Durability = ALWAYS) -> None:
        super().__init__(0, clusters, durability)
        for link in self.links:
            link._slice_bytes = 1 << 20  # all that there is
            for wire in link.wires:
                wire.faults = False

    def go(self, steps: Sequence[Step]) -> None:
        for step in steps:
            step(self)
            self.check_nothing_is_skipped()
        self.settle()
        self.check()


def send(number: int, count: int = 1, delay: float | None = None) -> Step:
    def step(course: Course) -> None:
        region = course.regions[number]
        values = [f"{number}:{len(region.sent) + row}" for row in range(count)]
        offsets = region.store.send_many(TOPIC, [value.encode() for value in values], delay=delay, partition=0)
        region.sent |= zip(values, offsets.tolist(), strict=True)

    return step


def ack_last(number: int) -> Step:
    """The last of what is due there; what is before it stays as it is."""
    return lambda course: _work(course, number, lambda row, value, count: row == count - 1)


def ack(number: int, *values: str) -> Step:
    """These, of what is due there."""
    return lambda course: _work(course, number, lambda row, value, count: value in values)


def _work(course: Course, number: int, is_acked: Callable[[int, str, int], bool]) -> None:
    region: Region = course.regions[number]
    with region.store.subscribe(TOPIC, NAME, replicated=True) as reader:
        received = reader.receive(100, timeout=0) or ()
        for row, message in enumerate(received):
            value = (message.value or b"").decode()
            if is_acked(row, value, len(received)):
                reader.ack(message)
                course.acked.add(value)
            else:
                reader.release(message)


def tick(number: int) -> Step:
    def step(course: Course) -> None:
        course.regions[number].clock.advance(1_000)
        course.regions[number].cluster.tick()

    return step


def move(source: int, target: int) -> Step:
    def step(course: Course) -> None:
        [link] = [each for each in course.links if [way.region.number for way in each.wires] == [source, target]]
        with contextlib.suppress(ServerUnavailable, AnswerLost):
            link.step()

    return step


def retain(number: int) -> Step:
    """Retention takes there all that is due by now."""

    def step(course: Course) -> None:
        course.regions[number].clock.advance(10_000)
        course.let_go(course.regions[number])

    return step


def crash(number: int, power: bool) -> Step:
    def step(course: Course) -> None:
        course.regions[number].crash(course.random, power)

    return step


def lose(what: str) -> Step:
    """Of the next slice that is received anywhere."""

    def step(course: Course) -> None:
        for link in course.links:
            link.wires[1].loses = what

    return step
