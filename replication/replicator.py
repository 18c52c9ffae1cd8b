"""Replication between several clusters: a link for each direction, each in its own thread.

    replicator = Replicator([StoreCluster(here, "eu"), ServedCluster("https://us…", "us")], topics=["mail"])
    with replicator: …

Each cluster gives what was appended to it first, and gets what was appended to the others first: three in a ring do not
loop, and one that is away holds up only its own two directions. It may run anywhere, beside a cluster or between them,
and twice: nothing is appended twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from itertools import permutations
from types import TracebackType
from typing import Self

from afterlog.base.clock import Clock, SystemClock
from afterlog.base.environment import random_bits
from afterlog.base.errors import AfterlogError, AnswerLost, InvalidArgument, ServerUnavailable, StoreClosed
from afterlog.log.background import Background
from afterlog.replication.cluster import Cluster
from afterlog.replication.link import Link

logger = logging.getLogger("afterlog.replication")

INTERVAL_MS = 100
"""How often a link looks whether there is more. Smaller: less lag; more is asked of idle clusters."""
FIRST_PAUSE_S = 0.2
PAUSE_S_MAX = 30.0
"""For a cluster that does not answer. Larger: less asked of it, and later found when it is there again."""
TICK_MS = 250
"""How often clusters tell what was acked. Larger: fewer markers; more comes twice where one is lost."""


def random_share() -> float:
    """Of [0, 1)."""
    return random_bits(53) / (1 << 53)


class Replicator:
    """Of two clusters or more. topics: by name; None: all that any of them has."""

    def __init__(
        self,
        clusters: Sequence[Cluster],
        *,
        topics: Collection[str] | None = None,
        interval_ms: int = INTERVAL_MS,
        clock: Clock | None = None,
        share: Callable[[], float] = random_share,
    ) -> None:
        """share: of [0, 1), by which pauses are shortened by up to a half. Raises InvalidArgument."""
        if len(clusters) < 2 or len({cluster.name for cluster in clusters}) < len(clusters):
            names = [cluster.name for cluster in clusters]
            raise InvalidArgument(f"a replicator takes two clusters or more, each with a name of its own, not {names}")
        clock = clock or SystemClock()
        self.links = [Link(source, target, clock, topics=topics) for source, target in permutations(clusters, 2)]
        """All directions."""
        self._clusters = clusters
        self._runs = [_LinkRun(link, clock, share) for link in self.links]
        works = [*((run.turn, interval_ms) for run in self._runs), *((_Ticks(each).turn, TICK_MS) for each in clusters)]
        self._threads = [
            Background(f"afterlog-replicate-{number}", work, clock=clock, interval_ms=each_ms)
            for number, (work, each_ms) in enumerate(works)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin, in threads."""
        for thread in self._threads:
            thread.wake()

    def stop(self) -> None:
        """Return when no link moves anything any more. Clusters are closed by whoever opened them."""
        for run in self._runs:
            run.stopped = True
        for thread in self._threads:
            thread.stop()
        for cluster in self._clusters:
            cluster.end()

    def step(self) -> bool:
        """A turn of each link in this thread, in place of `start`: whether anything is left to be moved.

        Raises as `Link.step`.
        """
        return sum(link.step() for link in self.links) > 0  # all of them: none waits for the next time

    def settle(self) -> None:
        """Until all clusters have what there is now, acks too, in this thread. Raises as `step`, and as they do."""
        for cluster in self._clusters:
            cluster.tick()
        while self.step():
            pass


class _Ticks:
    """Of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._failed = ""

    def turn(self) -> None:
        try:
            self._cluster.tick()
        except AfterlogError as error:
            if self._failed != repr(error):
                logger.warning("%s does not tell what was acked: %s; it is tried again", self._cluster.name, error)
            self._failed = repr(error)
        else:
            self._failed = ""


class _LinkRun:
    """Of one link: its turns, and a pause where a cluster does not answer."""

    def __init__(self, link: Link, clock: Clock, share: Callable[[], float]) -> None:
        self.stopped = False
        self._link = link
        self._clock = clock
        self._share = share
        self._failures = 0
        self._again_s = 0.0

    def turn(self) -> None:
        """Move all that there is."""
        if self._failures and self._clock.monotonic_s() < self._again_s:
            return
        names = self._link.source.name, self._link.target.name
        try:
            while not self.stopped and self._link.step():
                pass
        except (ServerUnavailable, AnswerLost, StoreClosed) as error:
            pause_s = min(FIRST_PAUSE_S * 2 ** min(self._failures, 16), PAUSE_S_MAX) * (1 - self._share() / 2)
            self._again_s = self._clock.monotonic_s() + pause_s
            if not self._failures:
                logger.warning("from %s to %s: %s; it is tried again", *names, error)
            self._failures += 1
        else:
            if self._failures:
                logger.warning("from %s to %s: they answer again, after %d tries", *names, self._failures)
            self._failures = 0
