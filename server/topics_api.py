"""Endpoints of topics: list, describe, create, alter, purge, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from afterlog.api.position_text import position_of
from afterlog.api.schema import LEFT_OUT, Fields, Flag, Listing, Shape, Text, Whole, answer
from afterlog.api.shapes import COUNT, NAME_PATTERN, OFFSETS, PARTITION, PARTITIONS, position
from afterlog.api.statistics import partition_stats, subscription_stats
from afterlog.base import errors
from afterlog.log.topic_settings import TopicSettings
from afterlog.produce.topic import Topic
from afterlog.server.endpoint import Endpoint, Scope
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
from afterlog.server.served import Served

_MAYBE: Final[dict[str, Any]] = {"null": True, "default": LEFT_OUT}
CHANGES: Final[dict[str, Shape]] = {
    "max_delay_ms": Whole(**_MAYBE),
    "retention_ms": Whole(**_MAYBE),
    "retention_bytes": Whole(**_MAYBE),
    "remote_storage_enable": Flag(default=LEFT_OUT),
    "local_retention_ms": Whole(**_MAYBE),
    "local_retention_bytes": Whole(**_MAYBE),
    "check_instants": Flag(default=LEFT_OUT),
    "segment_ms": Whole(1, **_MAYBE),
    "retention_by_subscriptions": Flag(default=LEFT_OUT),
    "backlog_quota_bytes": Whole(**_MAYBE),
    "backlog_quota_ms": Whole(**_MAYBE),
    "backlog_quota_policy": Text("producer_exception", "consumer_backlog_eviction", default=LEFT_OUT),
    "interceptors": Listing(Text(), most=100, default=LEFT_OUT),
}
"""As `TopicChanges` has them."""
PARTITIONS_MAX: Final = 10_000
NEW_TOPICS: Final = Fields(
    {
        "names": Listing(Text(most=249), least=1, most=100_000),
        "partitions": Whole(1, PARTITIONS_MAX, default=1),
        "delayed": Flag(default=True),
        **CHANGES,
    }
)
ALTERED: Final = Fields({"partitions": Whole(1, PARTITIONS_MAX, default=None, null=True), **CHANGES})
PURGE: Final = Fields(
    {
        "upto": position(default="latest"),
        "pending": Flag(default=False),
        "partition": PARTITION,
        "force": Flag(default=False),
    }
)
_NAME = {"type": "string", "pattern": NAME_PATTERN}
TOPIC: Final = answer({"name": _NAME, "partitions": COUNT, "delayed": {"type": "boolean"}})
TOPICS: Final = answer({"topics": {"type": "array", "items": TOPIC}})
FORCE: Final[dict[str, Shape]] = {"force": Flag(default=False, about="with open readers, too, which are closed")}


def settings_row(topic: Topic) -> dict[str, Any]:
    settings: TopicSettings = topic.settings
    return {"name": topic.name, **asdict(settings)}


async def list_topics(served: Served, request: Request) -> Reply:
    topics = [topic for topic in served.store.topics() if topic.name.startswith(request.prefixes)]
    return as_json({"topics": [settings_row(topic) for topic in topics]})


async def make_topics(served: Served, request: Request) -> Reply:
    asked = dict(request.body)
    names = asked.pop("names")
    for name in names:
        if not name.startswith(request.prefixes):
            raise errors.NotAllowed(f"the token has the scope manage for other topics than {name!r}")
    made = await served.run(lambda: served.store.create_topics(names, **asked))
    return as_json({"topics": [settings_row(topic) for topic in made]})


async def show_topic(served: Served, request: Request) -> Reply:
    return as_json(settings_row(served.store.topic(request.topic)))


async def alter_topic(served: Served, request: Request) -> Reply:
    altered = await served.run(lambda: served.store.alter_topic(request.topic, **request.body))
    return as_json(settings_row(altered))


async def delete_topic(served: Served, request: Request) -> Reply:
    await served.readers.let_go(request.topic)
    await served.run(lambda: served.store.delete_topic(request.topic, force=request.arguments["force"]))
    return NO_CONTENT


async def purge_topic(served: Served, request: Request) -> Reply:
    asked = dict(request.body)
    upto = position_of(asked.pop("upto"))
    await served.readers.let_go(request.topic)
    return as_json({"removed": await served.run(lambda: served.store.purge(request.topic, upto, **asked))})


async def topic_stats(served: Served, request: Request) -> Reply:
    def ask() -> dict[str, Any]:
        topic = served.store.topic(request.topic)
        return {
            "topic": topic.name,
            "partitions": [partition_stats(served.store, partition) for partition in topic.partitions],
            "subscriptions": subscription_stats(served.store, topic),
            "now_ms": served.store.now_ms(),
        }

    return as_json(await served.run(ask))


async def held_bytes(served: Served, request: Request) -> Reply:
    number = request.arguments["partition"]
    return as_json(asdict(await served.run(lambda: served.store.held_bytes(request.topic, number))))


async def positions(served: Served, request: Request) -> Reply:
    wanted = position_of(request.body["position"])

    def ask() -> dict[str, int]:
        topic = served.store.topic(request.topic)
        numbers = request.body["partitions"]
        chosen = range(topic.partition_count) if numbers is None else numbers
        return {str(number): topic.partition(number).beginning(wanted) for number in chosen}

    return as_json({"positions": await served.run(ask)})


_STATS = answer(
    {
        "topic": _NAME,
        "partitions": {"type": "array", "items": {"type": "object"}},
        "subscriptions": {"type": "array", "items": {"type": "object"}},
        "now_ms": COUNT,
    }
)
_T = "/v1/topics/{topic}"
_UNKNOWN = (errors.UnknownTopic, errors.UnknownPartition)

ENDPOINTS: Final = (
    Endpoint(method="GET", path="/v1/topics", scope=Scope.LOOK, summary="The topics, by name, with their settings",
             handler=list_topics, answer=TOPICS, filters=True),
    Endpoint(method="POST", path="/v1/topics", scope=Scope.MANAGE, summary="Make topics, all or none",
             handler=make_topics, body=NEW_TOPICS, answer=TOPICS, filters=True,
             errors=(errors.InvalidTopic, errors.TopicExists, errors.RemoteConflict)),
    Endpoint(method="GET", path=_T, scope=Scope.LOOK, summary="The settings of a topic",
             handler=show_topic, answer=TOPIC, errors=_UNKNOWN),
    Endpoint(method="PATCH", path=_T, scope=Scope.MANAGE, summary="Give a topic other settings; what is left out stays",
             handler=alter_topic, body=ALTERED, answer=TOPIC, errors=(*_UNKNOWN, errors.InvalidTopic)),
    Endpoint(method="DELETE", path=_T, scope=Scope.MANAGE, summary="Delete a topic and all that is of it",
             handler=delete_topic, parameters=FORCE, errors=(*_UNKNOWN, errors.TopicBusy), repeatable=False),
    Endpoint(method="POST", path=f"{_T}/purge", scope=Scope.MANAGE,
             summary="Remove what is due before a position, and what is pending if asked for",
             handler=purge_topic, body=PURGE, answer=answer({"removed": COUNT}),
             errors=(*_UNKNOWN, errors.TopicBusy, errors.OffsetOutOfRange, errors.ClockBehind)),
    Endpoint(method="GET", path=f"{_T}/stats", scope=Scope.LOOK, summary="How its partitions and subscriptions stand",
             handler=topic_stats, answer=_STATS, errors=_UNKNOWN),
    Endpoint(method="GET", path=f"{_T}/held", scope=Scope.LOOK, summary="What holds the bytes of a partition",
             handler=held_bytes, parameters={"partition": Whole(0, 2**31 - 1, default=0)},
             answer={"type": "object", "additionalProperties": COUNT}, errors=_UNKNOWN),
    Endpoint(method="POST", path=f"{_T}/positions", scope=Scope.LOOK,
             summary="The delivery offsets from which a reader goes on that is sent to a position",
             handler=positions, body=Fields({"position": position(), "partitions": PARTITIONS}),
             answer=answer({"positions": OFFSETS}),
             errors=(*_UNKNOWN, errors.OffsetOutOfRange, errors.ClockBehind)),
)  # fmt: skip
