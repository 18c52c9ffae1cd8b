"""How a group of workers stands, asked of Kafka: what is committed of each partition. Nobody joins for it."""

from __future__ import annotations

from dataclasses import dataclass

import confluent_kafka as kafka

from afterlog.base.clock import Clock
from afterlog.base.errors import RelayStopped
from afterlog.relay.kafka_cluster import ASK_S, InputPlace, RelayCluster
from afterlog.relay.relay_settings import RelaySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedStatus:
    """Of one partition. In ms since the epoch; None where there is none."""

    topic: str
    partition: int
    next_offset: int
    intake_lag: int
    """Offsets that were not read yet, those of markers among them."""
    span: int
    """Offsets from the lowest that waits to the next one: so much is read for a rebuild."""
    frontier_ms: int | None
    """Up to when all that was read is delivered."""
    lowest_ms: int | None
    """The timestamp of the record that waits longest: its input has to keep it."""
    error: str
    """Why it cannot go on; empty where it can."""


def group_status(settings: RelaySettings, clock: Clock) -> list[CommittedStatus]:
    """Of all partitions of the inputs. Raises RelayStopped where no relay of the group has run; KafkaException."""
    cluster = RelayCluster(settings, clock)
    consumer = kafka.Consumer(
        {
            **settings.client("consumer"), "group.id": settings.group, "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "error",
        }
    )  # fmt: skip
    try:
        if not cluster.has_topic(settings.frontier_topic):
            raise RelayStopped(
                f"no relay of {settings.group} has run on this cluster: it has no {settings.frontier_topic}"
            )
        places = [(name, number) for name in settings.read_topics for number in range(cluster.partitions_of(name))]
        found = cluster.committed(consumer, places)
        return [_status(consumer, place, found[place]) for place in places]
    finally:
        consumer.close()


def _status(consumer: kafka.Consumer, place: InputPlace, found: object) -> CommittedStatus:
    topic, number = place
    if isinstance(found, RelayStopped):
        return CommittedStatus(
            topic=topic, partition=number, next_offset=0, intake_lag=0, span=0, frontier_ms=None, lowest_ms=None,
            error=str(found),
        )  # fmt: skip
    next_offset, frontier, lowest = found.rectangle  # type: ignore[attr-defined]
    _, high = consumer.get_watermark_offsets(kafka.TopicPartition(*place), ASK_S)
    return CommittedStatus(
        topic=topic, partition=number, next_offset=next_offset, intake_lag=max(high - next_offset, 0),
        span=next_offset - lowest, frontier_ms=None if frontier.due_ms < 0 else frontier.due_ms,
        lowest_ms=_timestamp_at(consumer, place, lowest) if lowest < next_offset else None, error="",
    )  # fmt: skip


def _timestamp_at(consumer: kafka.Consumer, place: InputPlace, offset: int) -> int | None:
    consumer.assign([kafka.TopicPartition(*place, offset)])
    message = consumer.poll(ASK_S)
    consumer.unassign()
    return None if message is None or message.error() is not None else message.timestamp()[1]
