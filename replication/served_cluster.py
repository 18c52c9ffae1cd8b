"""A cluster whose store another process has: over its server, with a token that has the scope `replicate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from afterlog.api import operations
from afterlog.api.operations import COPIED, SLICE
from afterlog.base.errors import InvalidBatch, ServerFailed
from afterlog.client.call import Call, HttpReply, HttpRequest, asking, json_of, nothing
from afterlog.client.served_store import ServedStore
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.cluster import ReplicatedTopic


class ServedCluster:
    """A `Cluster`. store: of `afterlog.connect`."""

    def __init__(self, store: ServedStore, name: str = "") -> None:
        self.store = store
        self.name = name or repr(store)

    def topics(self) -> Mapping[str, ReplicatedTopic]:
        return self.store.ask(asking(operations.REPLICABLE_TOPICS, _topics))

    def prepare(self, topic: str, like: ReplicatedTopic) -> ReplicatedTopic:
        settings = {name: getattr(like.settings, name) for name in ("partitions", "delayed", "topic_id", *COPIED)}
        return self.store.ask(asking(operations.PREPARE_TOPIC, _topic, settings, topic=topic))

    def upcoming(self, topic: str, origin: str) -> tuple[int, ...]:
        return self.store.ask(asking(operations.UPCOMING, _upcoming, query={"origin": origin}, topic=topic))

    def slice(self, topic: str, partition: int, first: int, max_bytes: int) -> OriginSlice:
        query = {"partition": partition, "first": first, "max_bytes": max_bytes}
        path = operations.GIVE_SLICE.path_of(query, topic=topic)
        return self.store.ask(Call(HttpRequest("GET", path, accept=SLICE), _slice))

    def receive(self, topic: str, partition: int, given: OriginSlice) -> int:
        path = operations.TAKE_SLICE.path_of({"partition": partition}, topic=topic)
        return self.store.ask(Call(HttpRequest("POST", path, b"".join(given.to_bytes()), SLICE), _records))

    def tick(self) -> None:
        self.store.ask(asking(operations.REPLICATION_TICK, nothing, {}))

    def end(self) -> None:
        """The server sees to that."""


def _topics(answer: Any) -> dict[str, ReplicatedTopic]:
    return {row["name"]: _topic(row) for row in answer["topics"]}


def _topic(row: Any) -> ReplicatedTopic:
    return ReplicatedTopic.of(row["settings"], tuple(map(int, row["ends"])))


def _upcoming(answer: Any) -> tuple[int, ...]:
    return tuple(map(int, answer["upcoming"]))


def _slice(reply: HttpReply) -> OriginSlice:
    try:
        return OriginSlice.of_bytes(np.frombuffer(reply.body, np.uint8))
    except InvalidBatch as error:
        raise ServerFailed(f"the server gave no slice of a log: {error}") from error


def _records(reply: HttpReply) -> int:
    return int(json_of(reply)["records"])
