"""A cluster whose store is open in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from afterlog.api.operations import COPIED
from afterlog.base.errors import InvalidTopic, UnknownTopic
from afterlog.base.files import unused_name
from afterlog.fetch.origin_slices import read_slice
from afterlog.log.topic_settings import TopicChanges
from afterlog.produce.received_slices import receive_slice, upcoming_of
from afterlog.produce.topic import Topic
from afterlog.records.control import Note
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.behind import ReplicationStanding, snapshot_row
from afterlog.replication.cluster import ReplicatedTopic
from afterlog.replication.subscriptions import ReplicatedSubscriptions
from afterlog.store.store import Store


class StoreCluster:
    """A `Cluster`."""

    def __init__(self, store: Store, name: str = "", make_id: Callable[[], str] = unused_name) -> None:
        """make_id: names for snapshots, each another one."""
        self.store = store
        self.name = name or str(store.path)
        self.subscriptions = ReplicatedSubscriptions(store, make_id)
        self.standing = ReplicationStanding()
        self._lock = threading.Lock()
        """Links from several clusters come in by several threads."""

    def topics(self) -> Mapping[str, ReplicatedTopic]:
        return {topic.name: _facts(topic) for topic in self.store.topics() if topic.settings.is_replicable}

    def prepare(self, topic: str, like: ReplicatedTopic) -> ReplicatedTopic:
        wanted = like.settings
        try:
            found = self.store.topic(topic)
        except UnknownTopic:
            options: TopicChanges = {name: getattr(wanted, name) for name in COPIED}  # type: ignore[assignment]
            made = self.store.create_topic(topic, wanted.partitions, wanted.delayed, **options)
            self._meet(topic, like)
            return _facts(made)
        if found.settings.delayed != wanted.delayed or not found.settings.is_replicable:
            raise InvalidTopic(
                f"{topic} is another kind of topic in {self.name}: delayed={found.settings.delayed} here,"
                f" {wanted.delayed} there; replicate it under a name of its own, or delete one of them"
            )
        if found.partition_count < wanted.partitions:
            found = self.store.alter_topic(topic, partitions=wanted.partitions)
        self._meet(topic, like)
        return _facts(found)

    def upcoming(self, topic: str, origin: str) -> tuple[int, ...]:
        return tuple(upcoming_of(log, origin) for log in self.store.topic(topic).logs)

    def slice(self, topic: str, partition: int, first: int, max_bytes: int) -> OriginSlice:
        found = self.store.topic(topic)
        return read_slice(found.log(partition), found.origin, first, max_bytes)

    def receive(self, topic: str, partition: int, given: OriginSlice) -> int:
        found = self.store.topic(topic)

        def heard(note: Note) -> None:
            with self._lock:
                self.subscriptions.hear(topic, partition, given.origin, note)

        with self._lock:
            self.subscriptions.coming(topic, partition, given)
        records = receive_slice(found.log(partition), found.origin, given, heard)
        with self._lock:
            self.subscriptions.came(topic, partition, given)
            self.standing.received(topic, partition, given, self.store.clock.monotonic_s())
        return records

    def snapshots(self) -> list[dict[str, Any]]:
        """A row for each partition that has replicated subscriptions."""
        with self._lock:
            return [snapshot_row(*each) for each in self.subscriptions.counts()]

    def tick(self) -> None:
        with self._lock:
            self.subscriptions.tick()

    def end(self) -> None:
        with self._lock:
            self.subscriptions.close()

    def _meet(self, topic: str, like: ReplicatedTopic) -> None:
        with self._lock:
            self.subscriptions.meet(topic, like.origin)


def _facts(topic: Topic) -> ReplicatedTopic:
    return ReplicatedTopic(topic.settings, tuple(log.written for log in topic.logs))
