"""Every order in which a small history can happen, over the real code, with a crash or a loss at every point of it.

Two clusters send, one of them acks, both tell, records and markers move: all merges of what each does by itself. After
every step no cluster takes for done what nobody has acked; in the end all have the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests import campaigns
from tests.replication.courses import Course, Step, ack_last, crash, lose, move, send, tick

pytestmark = pytest.mark.usefixtures("quiet")


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
    ("actors", "clusters", "of", "whole"), [(TWO, 2, 300, 3), (THREE, 3, 18_000, 400)], ids=["two", "three"]
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
