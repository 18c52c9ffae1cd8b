"""A cluster whose store is open in this process."""

from __future__ import annotations

from collections.abc import Mapping

from afterlog.errors import InvalidTopic, UnknownTopic
from afterlog.fetch.origin_slices import read_slice
from afterlog.log.topic_settings import TopicOptions
from afterlog.produce.received_slices import receive_slice, upcoming_of
from afterlog.produce.topic import Topic
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.cluster import COPIED, ReplicatedTopic
from afterlog.store import Store


class StoreCluster:
    """A `Cluster`."""

    def __init__(self, store: Store, name: str = "") -> None:
        self.store = store
        self.name = name or str(store.path)

    def topics(self) -> Mapping[str, ReplicatedTopic]:
        return {topic.name: _facts(topic) for topic in self.store.topics() if topic.settings.is_replicable}

    def prepare(self, topic: str, like: ReplicatedTopic) -> ReplicatedTopic:
        wanted = like.settings
        try:
            found = self.store.topic(topic)
        except UnknownTopic:
            options: TopicOptions = {name: getattr(wanted, name) for name in COPIED}  # type: ignore[assignment]
            return _facts(self.store.create_topic(topic, wanted.partitions, wanted.delayed, **options))
        if found.settings.delayed != wanted.delayed or not found.settings.is_replicable:
            raise InvalidTopic(
                f"{topic} is another kind of topic in {self.name}: delayed={found.settings.delayed} here,"
                f" {wanted.delayed} there; replicate it under a name of its own, or delete one of them"
            )
        if found.partition_count < wanted.partitions:
            found = self.store.alter_topic(topic, partitions=wanted.partitions)
        return _facts(found)

    def upcoming(self, topic: str, origin: str) -> tuple[int, ...]:
        return tuple(upcoming_of(log, origin) for log in self.store.topic(topic).logs)

    def slice(self, topic: str, partition: int, first: int, max_bytes: int) -> OriginSlice:
        found = self.store.topic(topic)
        return read_slice(found.log(partition), found.origin, first, max_bytes)

    def receive(self, topic: str, partition: int, given: OriginSlice) -> int:
        found = self.store.topic(topic)
        return receive_slice(found.log(partition), found.origin, given)


def _facts(topic: Topic) -> ReplicatedTopic:
    return ReplicatedTopic(topic.settings, tuple(log.written for log in topic.logs))
