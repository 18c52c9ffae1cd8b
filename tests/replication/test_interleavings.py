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


def faults_of(clusters: int) -> list[Step]:
    crashes = [crash(number, power) for number in range(clusters) for power in (False, True)]
    return [*crashes, lose("request"), lose("answer")]


def histories_of(steps: Sequence[Step], clusters: int) -> int:
    """How many: the steps, and with one fault at each point."""
    return 1 + (len(steps) - 1) * len(faults_of(clusters))


def history(ways: Sequence[list[Step]], number: int, clusters: int) -> list[Step]:
    """That one of all orders, each as it is and with one fault at each point."""
    way, rest = divmod(number, histories_of(ways[0], clusters))
    if not rest:
        return ways[way]
    faults = faults_of(clusters)
    place, fault = divmod(rest - 1, len(faults))
    return [*ways[way][: place + 1], faults[fault], *ways[way][place + 1 :]]


@pytest.mark.parametrize(
    ("actors", "clusters", "of", "whole"), [(TWO, 2, 300, 3), (THREE, 3, 18_000, 400)], ids=["two", "three"]
)
def test_every_interleaving(actors: Sequence[Sequence[Step]], clusters: int, of: int, whole: int) -> None:
    ways = list(merges(actors))
    for number in campaigns.share(range(len(ways) * histories_of(ways[0], clusters)), of, whole=whole):
        steps = history(ways, number, clusters)
        try:
            Course(clusters).go(steps)
        except BaseException as error:
            error.add_note(f"history {number} of {clusters} clusters")
            raise
        campaigns.count("interleavings of small histories")


def test_how_many_there_are() -> None:
    assert 420 == sum(1 for _ in merges(TWO))
    assert 15_120 == sum(1 for _ in merges(THREE))
