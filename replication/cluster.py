"""A cluster, as replication has it: a store, whoever has its folder, that gives slices of its logs and takes those of
others. In process (`store_cluster.py`), or served (`served_cluster.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from afterlog.log.topic_settings import TopicSettings
from afterlog.records.origin_slice import OriginSlice


class ReplicatedTopic(NamedTuple):
    """A topic, as it stands in one cluster."""

    settings: TopicSettings
    ends: tuple[int, ...]
    """Of its partitions, the offsets behind what was appended last."""

    @property
    def origin(self) -> str:
        """What its logs call themselves in others: the topic's id, which no other topic has anywhere."""
        return self.settings.topic_id or ""


class Cluster(Protocol):
    """Raises as the store's own methods do; ServerUnavailable and AnswerLost where another process has it.

    All can be asked again: nothing is appended twice.
    """

    name: str
    """For people: logs, metrics, errors."""

    def topics(self) -> Mapping[str, ReplicatedTopic]:
        """Those that can be replicated, by name."""
        ...

    def prepare(self, topic: str, like: ReplicatedTopic) -> ReplicatedTopic:
        """Make a topic as another cluster has it, or give it as many partitions. InvalidTopic where it is another kind
        of topic here.
        """
        ...

    def upcoming(self, topic: str, origin: str) -> tuple[int, ...]:
        """By partition, the offset behind the highest that is here of an origin."""
        ...

    def slice(self, topic: str, partition: int, first: int, max_bytes: int) -> OriginSlice:
        """What was appended here first, from an offset on, as `afterlog.fetch.origin_slices` gives it."""
        ...

    def receive(self, topic: str, partition: int, given: OriginSlice) -> int:
        """Append what is not here; how many records. As `afterlog.produce.received_slices`."""
        ...
