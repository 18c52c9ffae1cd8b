"""Endpoints of replication: which topics there are to be had, slices of their logs given and received."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from afterlog.api.schema import Fields, Flag, Text, Whole, answer
from afterlog.api.shapes import COUNT, NAME_PATTERN
from afterlog.api.slices import SLICE
from afterlog.base import errors
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.cluster import COPIED, ReplicatedTopic
from afterlog.replication.store_cluster import StoreCluster
from afterlog.server.endpoint import Endpoint, Scope
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
from afterlog.server.served import Served
from afterlog.server.topics_api import CHANGES, PARTITIONS_MAX

SLICE_BYTES_MAX: Final = 64 << 20
_ENDS: Final = {"type": "array", "items": COUNT}
_TOPIC: Final = {
    "name": {"type": "string", "pattern": NAME_PATTERN}, "ends": _ENDS, "settings": {"type": "object"},
}  # fmt: skip
PREPARED: Final = Fields(
    {
        "partitions": Whole(1, PARTITIONS_MAX),
        "delayed": Flag(),
        "topic_id": Text(most=64),
        **{name: CHANGES[name] for name in COPIED},
    }
)


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


_PARTITION: Final = Whole()
_ERRORS: Final = (errors.UnknownTopic, errors.UnknownPartition, errors.InvalidTopic, errors.TopicDeleted)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(method="GET", path="/v1/replication/topics", scope=Scope.REPLICATE,
             summary="The topics that can be replicated, and where they end", handler=topics,
             answer=answer({"topics": {"type": "array", "items": answer(_TOPIC)}}), filters=True),
    Endpoint(method="GET", path="/v1/replication/standing", scope=Scope.LOOK,
             summary="How far this cluster is behind others, and what became of its snapshots", handler=standing,
             answer=answer({"behind": {"type": "array"}, "snapshots": {"type": "array"}}), filters=True),
    Endpoint(method="POST", path="/v1/replication/tick", scope=Scope.REPLICATE,
             summary="Tell other clusters what was acked of replicated subscriptions", handler=tick, body=Fields({})),
    Endpoint(method="POST", path="/v1/topics/{topic}/prepare", scope=Scope.REPLICATE,
             summary="Make the topic as another cluster has it, or give it as many partitions", handler=prepare,
             body=PREPARED, answer=answer(_TOPIC), errors=_ERRORS),
    Endpoint(method="GET", path="/v1/topics/{topic}/replicated", scope=Scope.REPLICATE,
             summary="By partition, the offset behind the highest that is here of an origin", handler=upcoming,
             parameters={"origin": Text(most=128)}, answer=answer({"upcoming": _ENDS}), errors=_ERRORS),
    Endpoint(method="GET", path="/v1/topics/{topic}/slice", scope=Scope.REPLICATE,
             summary="What was appended here first, from an offset on", handler=give,
             parameters={"partition": _PARTITION, "first": Whole(), "max_bytes": Whole(1, SLICE_BYTES_MAX)},
             answer={"type": "string", "format": "binary"}, media_type=SLICE, errors=_ERRORS),
    Endpoint(method="POST", path="/v1/topics/{topic}/slice", scope=Scope.REPLICATE,
             summary="Append what is not here of a slice of another cluster's log", handler=receive,
             arrow={"partition": _PARTITION}, data_type=SLICE, body=Fields({}),
             answer=answer({"records": COUNT}),
             errors=(*_ERRORS, errors.InvalidBatch, errors.ReplicationDiverged, errors.RecordTooLarge,
                     errors.UnsupportedCodec)),
)  # fmt: skip
