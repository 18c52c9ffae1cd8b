"""Every order in which a small history can happen, over the real code, with a crash or a loss at every point of it.

Two clusters send, one of them acks, both tell, records and markers move: all merges of what each does by itself. After
every step no cluster takes for done what nobody has acked; in the end all have the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from afterlog.config import ALWAYS
from afterlog.errors import AnswerLost, ServerUnavailable
from tests import campaigns
from tests.replication.simulation import NAME, TOPIC, Region, Simulation

pytestmark = pytest.mark.usefixtures("quiet")

Step = Callable[["Course"], None]


class Course(Simulation):
    """A history with no faults but those that are put in."""

    def __init__(self, clusters: int) -> None:
        super().__init__(0, clusters, ALWAYS)
        for link in self.links:
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

    def step(course: Course) -> None:
        region: Region = course.regions[number]
        with region.store.subscribe(TOPIC, NAME, replicated=True) as reader:
            received = reader.receive(100, timeout=0) or ()
            for message in received[:-1]:
                reader.release(message)
            for message in received[-1:]:
                reader.ack(message)
                course.acked.add((message.value or b"").decode())

    return step


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


def merges(actors: Sequence[Sequence[Step]]) -> Iterator[list[Step]]:
    """All orders that keep that of each actor."""
    if not any(actors):
        yield []
        return
    for number, steps in enumerate(actors):
        if steps:
            for rest in merges([*actors[:number], steps[1:], *actors[number + 1 :]]):
                yield [steps[0], *rest]


TWO: Sequence[Sequence[Step]] = (
    (send(0, 2), ack_last(0), tick(0)),
    (send(1),),
    (move(0, 1), move(0, 1)),
    (move(1, 0),),
)
THREE: Sequence[Sequence[Step]] = (
    (send(0), ack_last(0), tick(0)),
    (send(1),),
    (send(2), ack_last(2)),
    (move(0, 1), move(1, 2)),
    (move(2, 0),),
)


def histories(actors: Sequence[Sequence[Step]], clusters: int) -> Iterator[list[Step]]:
    """All orders, and each with one fault at each point."""
    faults = [crash(number, power) for number in range(clusters) for power in (False, True)]
    faults += [lose("request"), lose("answer")]
    for steps in merges(actors):
        yield steps
        for place in range(1, len(steps)):
            for fault in faults:
                yield [*steps[:place], fault, *steps[place:]]


@pytest.mark.parametrize(
    ("actors", "clusters", "of", "whole"), [(TWO, 2, 300, 1), (THREE, 3, 18_000, 60)], ids=["two", "three"]
)
def test_every_interleaving(actors: Sequence[Sequence[Step]], clusters: int, of: int, whole: int) -> None:
    for number, steps in enumerate(histories(actors, clusters)):
        if not campaigns.is_chosen(number, of, whole=whole):
            continue
        try:
            Course(clusters).go(steps)
        except BaseException as error:
            error.add_note(f"history {number} of {clusters} clusters")
            raise
        campaigns.count("interleavings of small histories")


def test_how_many_there_are() -> None:
    assert 420 == sum(1 for _ in merges(TWO))
    assert 15_120 == sum(1 for _ in merges(THREE))
