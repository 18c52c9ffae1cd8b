"""One direction of replication: what is appended to one cluster first is copied to another, partition by partition.

    topics of the source ──> made in the target ──> from behind what it has ──> slice ──> received ──> next slice

A link keeps no durable state: on restart it asks the target for its log ends and continues from there. In memory it
remembers how far it came, so as not to look again at entries that are not to be copied. A topic that cannot continue
(`failed`) holds up no other; a cluster that does not answer is the caller's to handle.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from afterlog.base.clock import Clock
from afterlog.base.errors import AfterlogError, AnswerLost, ServerUnavailable, StoreClosed
from afterlog.replication.cluster import Cluster, ReplicatedTopic

logger = logging.getLogger("afterlog.replication")

SLICE_BYTES = 4 << 20
"""Of a slice, about. Larger: fewer calls; more memory in both, and more that a lost answer sends again."""


class Lag(NamedTuple):
    """How far a partition of the target is behind."""

    topic: str
    partition: int
    records: int
    """Offsets of the source that were not looked at yet: at most so many records."""
    seconds: float
    """Since when there are any."""


class Link:
    """From `source` to `target`. topics: by name; None: all that the source has. One thread uses it."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        clock: Clock,
        *,
        topics: Collection[str] | None = None,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self.source = source
        self.target = target
        self.failed: Mapping[str, AfterlogError] = {}
        """Why topics do not go on. They are tried again each time."""
        self.records = 0
        """How many were appended to the target."""
        self._clock = clock
        self._topics = topics
        self._slice_bytes = slice_bytes
        self._links: dict[str, _TopicLink] = {}

    def step(self) -> bool:
        """Move a slice of each partition that is behind; whether anything is left to be moved, as far as was seen.

        Raises ServerUnavailable, AnswerLost and StoreClosed of either cluster.
        """
        found = self.source.topics()
        chosen = {name: topic for name, topic in found.items() if self._topics is None or name in self._topics}
        failed, is_behind = dict[str, AfterlogError](), False
        for name, topic in chosen.items():
            try:
                is_behind |= self._move(name, topic)
            except (ServerUnavailable, AnswerLost, StoreClosed):
                raise
            except AfterlogError as error:
                self._links.pop(name, None)
                failed[name] = error
                if repr(error) != repr(self.failed.get(name)):
                    logger.error("%s is not replicated from %s to %s: %s", name, *self._names, error)
        self._links = {name: link for name, link in self._links.items() if name in chosen}
        self.failed = failed
        return is_behind

    def lag(self) -> list[Lag]:
        """Of each partition, as of the last step."""
        now_s = self._clock.monotonic_s()
        return [
            Lag(name, number, end - position, 0.0 if since_s is None else now_s - since_s)
            for name, link in sorted(self._links.items())
            for number, (end, position, since_s) in enumerate(
                zip(link.topic.ends, link.positions, link.behind_since_s, strict=True)
            )
        ]

    @property
    def _names(self) -> tuple[str, str]:
        return self.source.name, self.target.name

    def _move(self, name: str, topic: ReplicatedTopic) -> bool:
        link = self._links.get(name)
        is_new = link is None
        if link is None or (link.topic.origin, len(link.positions)) != (topic.origin, len(topic.ends)):
            self.target.prepare(name, topic)
            positions = self.target.upcoming(name, topic.origin)[: len(topic.ends)]
            link = self._links[name] = _TopicLink(topic, [*positions], [None] * len(positions))
        link.topic = topic
        for number, end in enumerate(topic.ends):
            if link.positions[number] < end or is_new:  # then its target sees a source that was put back
                given = self.source.slice(name, number, link.positions[number], self._slice_bytes)
                self.records += self.target.receive(name, number, given)
                link.positions[number] = given.upto
        link.look(self._clock.monotonic_s())
        return link.is_behind


class _TopicLink:
    """How far a topic came, by partition."""

    def __init__(self, topic: ReplicatedTopic, positions: list[int], behind_since_s: list[float | None]) -> None:
        self.topic = topic
        self.positions = positions
        self.behind_since_s = behind_since_s

    @property
    def is_behind(self) -> bool:
        return any(since_s is not None for since_s in self.behind_since_s)

    def look(self, now_s: float) -> None:
        """Note which are behind, and since when."""
        for number, (end, position) in enumerate(zip(self.topic.ends, self.positions, strict=True)):
            if position >= end:
                self.behind_since_s[number] = None
            elif self.behind_since_s[number] is None:
                self.behind_since_s[number] = now_s
