"""Endpoints of topics: list, describe, create, alter, purge, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from afterlog.api import operations
from afterlog.api.position_text import position_of
from afterlog.api.statistics import partition_stats, subscription_stats
from afterlog.base import errors
from afterlog.log.topic_settings import TopicSettings
from afterlog.produce.topic import Topic
from afterlog.server.endpoint import endpoints
from afterlog.server.request import NO_CONTENT, Reply, Request, as_json
from afterlog.server.served import Served


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


async def clean_topic(served: Served, request: Request) -> Reply:
    freed = await served.run(lambda: served.store.clean(request.topic, partition=request.body["partition"]))
    return as_json({"freed_bytes": freed})


async def pause(served: Served, request: Request) -> Reply:
    await served.run(lambda: served.store.pause(request.topic, request.body["subscription"]))
    return NO_CONTENT


async def resume(served: Served, request: Request) -> Reply:
    await served.run(lambda: served.store.resume(request.topic, request.body["subscription"]))
    return NO_CONTENT


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


ENDPOINTS: Final = endpoints(
    {
        operations.LIST_TOPICS: list_topics,
        operations.CREATE_TOPICS: make_topics,
        operations.SHOW_TOPIC: show_topic,
        operations.ALTER_TOPIC: alter_topic,
        operations.DELETE_TOPIC: delete_topic,
        operations.PURGE: purge_topic,
        operations.CLEAN: clean_topic,
        operations.PAUSE: pause,
        operations.RESUME: resume,
        operations.TOPIC_STATS: topic_stats,
        operations.HELD_BYTES: held_bytes,
        operations.POSITIONS: positions,
    }
)
