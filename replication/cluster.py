"""A cluster, as replication sees it: a store that gives slices of its logs and takes those of others. In process
(`store_cluster.py`), or served (`served_cluster.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from afterlog.log.topic_settings import TopicSettings, checked
from afterlog.records.origin_slice import OriginSlice


class ReplicatedTopic(NamedTuple):
    """A topic, as it stands in one cluster."""

    settings: TopicSettings
    ends: tuple[int, ...]
    """Of its partitions, the offsets after what was appended last."""

    @staticmethod
    def of(settings: Mapping[str, Any], ends: tuple[int, ...]) -> ReplicatedTopic:
        """With settings by their names. Raises InvalidTopic."""
        return ReplicatedTopic(checked(TopicSettings(**settings)), ends)

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
        """By partition, the offset after the highest that is here of an origin."""
        ...

    def slice(self, topic: str, partition: int, first: int, max_bytes: int) -> OriginSlice:
        """What was appended here first, from an offset on, as `afterlog.fetch.origin_slices` gives it."""
        ...

    def receive(self, topic: str, partition: int, given: OriginSlice) -> int:
        """Append what is not here; how many records. As `afterlog.produce.received_slices`."""
        ...

    def tick(self) -> None:
        """Tell what was acked of replicated subscriptions, and how far logs go together. To be called now and then."""
        ...

    def end(self) -> None:
        """Nothing more is asked: let go of what is kept for it."""
        ...
