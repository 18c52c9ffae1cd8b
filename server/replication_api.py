"""Endpoints of replication: list the topics of a cluster, read slices of their logs, append slices of others."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from afterlog.api import operations
from afterlog.api.operations import COPIED, SLICE
from afterlog.base import errors
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.cluster import ReplicatedTopic
from afterlog.replication.store_cluster import StoreCluster
from afterlog.server.endpoint import endpoints
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
from afterlog.server.served import Served


def topic_row(name: str, topic: ReplicatedTopic) -> dict[str, Any]:
    settings = {each: getattr(topic.settings, each) for each in ("partitions", "delayed", "topic_id", *COPIED)}
    return {"name": name, "ends": [*topic.ends], "settings": settings}


async def topics(served: Served, request: Request) -> Reply:
    found = await served.run(_cluster(served).topics)
    rows = [topic_row(name, topic) for name, topic in found.items() if name.startswith(request.prefixes)]
    return as_json({"topics": rows})


async def prepare(served: Served, request: Request) -> Reply:
    like = ReplicatedTopic.of(request.body, ())
    found = await served.run(lambda: _cluster(served).prepare(request.topic, like))
    return as_json(topic_row(request.topic, found))


async def upcoming(served: Served, request: Request) -> Reply:
    origin = request.arguments["origin"]
    return as_json({"upcoming": await served.run(lambda: _cluster(served).upcoming(request.topic, origin))})


async def give(served: Served, request: Request) -> Reply:
    asked = request.arguments
    given = await served.run(
        lambda: _cluster(served).slice(request.topic, asked["partition"], asked["first"], asked["max_bytes"])
    )
    return Reply(b"".join(given.to_bytes()), media_type=SLICE)


async def receive(served: Served, request: Request) -> Reply:
    data = request.data
    if data is None:
        raise errors.InvalidRequest(f"Content-Type is {SLICE}, and the body a slice of a log")
    partition = request.body["partition"]

    def receive_slice() -> int:
        given = OriginSlice.of_bytes(np.frombuffer(data, np.uint8))
        return _cluster(served).receive(request.topic, partition, given)

    return as_json({"records": await served.run(receive_slice)})


async def standing(served: Served, request: Request) -> Reply:
    cluster, behind, snapshots = served.cluster, list[dict[str, Any]](), list[dict[str, Any]]()
    if cluster is not None:
        behind = [each._asdict() for each in cluster.standing.behind(served.store.clock.monotonic_s())]
        snapshots = await served.run(cluster.snapshots)
    return as_json({
        "behind": [row for row in behind if row["topic"].startswith(request.prefixes)],
        "snapshots": [row for row in snapshots if row["topic"].startswith(request.prefixes)],
    })  # fmt: skip


async def tick(served: Served, request: Request) -> Reply:
    await served.run(_cluster(served).tick)
    return NO_CONTENT


def _cluster(served: Served) -> StoreCluster:
    """Made with the first use; there is one in a server."""
    if served.cluster is None:
        served.cluster = StoreCluster(served.store)
    return served.cluster


ENDPOINTS: Final = endpoints(
    {
        operations.REPLICABLE_TOPICS: topics,
        operations.REPLICATION_STANDING: standing,
        operations.REPLICATION_TICK: tick,
        operations.PREPARE_TOPIC: prepare,
        operations.UPCOMING: upcoming,
        operations.GIVE_SLICE: give,
        operations.TAKE_SLICE: receive,
    }
)
