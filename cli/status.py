"""The state of a store as rows to print, whether it is open here or served elsewhere (`afterlog.api.statistics`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from afterlog.api import operations
from afterlog.client.call import Call, HttpReply, HttpRequest, asking
from afterlog.client.served_store import ServedStore
from afterlog.store.store import Store

OpenStore = Store | ServedStore
TOPICS_MAX = 500
"""Of an overview: what a server tells at once."""


class TopicStatus(NamedTuple):
    """Of one topic. bars: (from_ms, to_ms, records), by when they are due."""

    topic: str
    partitions: list[dict[str, Any]]
    subscriptions: list[dict[str, Any]]
    bars: Sequence[Sequence[int]]
    now_ms: int


def standing(store: OpenStore, topic: str, bars_max: int) -> TopicStatus:
    """Raises UnknownTopic."""
    if isinstance(store, ServedStore):
        told = store.stats(topic)
        bars = store.ask(asking(operations.HISTOGRAM, dict, query={"bars": bars_max}, topic=topic))["bars"]
        return TopicStatus(topic, told["partitions"], told["subscriptions"], bars, told["now_ms"])
    from afterlog.api.statistics import due_histogram, partition_stats, subscription_stats

    found, now_ms = store.topic(topic), store.now_ms()
    rows = [partition_stats(store, partition) for partition in found.partitions]
    return TopicStatus(topic, rows, subscription_stats(store, found), due_histogram(found, now_ms, bars_max), now_ms)


def overview(store: OpenStore, topic: str | None) -> dict[str, Any]:
    """As `/v1/overview` answers: one topic, or the `TOPICS_MAX` with most pending. Raises UnknownTopic."""
    wanted: dict[str, Any] = {"topic": topic, "sort": "pending", "descending": True, "limit": TOPICS_MAX}
    if isinstance(store, ServedStore):
        return store.ask(asking(operations.OVERVIEW, dict, query=wanted))
    from afterlog.server.overview import Overview

    return Overview(store).page(may_look=lambda _: True, **wanted)


def exposition(store: OpenStore, detail: Literal["topic", "partition"]) -> str:
    """Metrics as text. Raises ImportError, NotServed."""
    if isinstance(store, ServedStore):
        path = operations.METRICS.path_of({"detail": detail})
        return store.ask(Call(request=HttpRequest("GET", path), read=_text))
    from afterlog.metrics import exposition as own

    return own(store, detail)


def replication(store: OpenStore) -> list[dict[str, Any]]:
    """How far a served store is behind other clusters: a row for each of its partitions and each of these."""
    if not isinstance(store, ServedStore):
        return []
    rows: list[dict[str, Any]] = store.ask(asking(operations.REPLICATION_STANDING, dict))["behind"]
    return rows


def held(store: OpenStore, topic: str, partition: int | None = None) -> tuple[int, int]:
    """(pending, due) records. Raises UnknownTopic, UnknownPartition."""
    if partition is not None:
        store.topic(topic).checked_partition(partition)
    if isinstance(store, ServedStore):
        rows = store.stats(topic)["partitions"]
    else:
        rows = [
            {"partition": each.number, "pending": each.pending(), "due": each.high_watermark() - each.log_start}
            for each in store.topic(topic).partitions
        ]
    chosen = [row for row in rows if partition in (None, row["partition"])]
    return sum(row["pending"] for row in chosen), sum(row["due"] for row in chosen)


def _text(reply: HttpReply) -> str:
    return reply.body.decode()
