"""The Kafka cluster of a relay: its topics, and what was committed of each partition that it reads."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from afterlog.base.clock import Clock
from afterlog.base.errors import RelayStopped
from afterlog.base.extras import missing
from afterlog.relay.rectangle import Rectangle
from afterlog.relay.relay_settings import RelaySettings

try:
    import confluent_kafka as kafka
    from confluent_kafka import admin
    from confluent_kafka.admin._config import ConfigResource
    from confluent_kafka.admin._resource import ResourceType
    from confluent_kafka.cimpl import NewTopic
except ImportError as error:
    raise missing(error, "a relay", "kafka") from error

if TYPE_CHECKING:
    from confluent_kafka import Consumer

logger = logging.getLogger("afterlog.relay")

ASK_S: Final = 10.0
"""A question to the cluster takes no longer."""
KNOWN_S: Final = 2.0
"""For so long it is believed that a topic is not there."""
NOT_MADE: Final = frozenset(
    {
        kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        kafka.KafkaError.POLICY_VIOLATION, kafka.KafkaError.INVALID_CONFIG, kafka.KafkaError.TOPIC_EXCEPTION,
    }
)  # fmt: skip
"""Errors of a new topic that need somebody; the others pass."""
FRONTIER_CONFIG: Final = {
    "cleanup.policy": "compact", "segment.ms": "600000", "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1", "delete.retention.ms": "86400000",
}  # fmt: skip

InputPlace = tuple[str, int]
"""(topic, partition)"""


@dataclass(frozen=True, slots=True)
class Committed:
    """Of a partition. end: behind what there is of it now."""

    topic_id: str
    rectangle: Rectangle
    end: int


class RelayCluster:
    """What a relay asks of its cluster beside reading and delivering. For one thread."""

    def __init__(self, settings: RelaySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._admin = admin.AdminClient(settings.client("admin"))
        self._topics: dict[str, int] = {}
        """Those that there are, and how many partitions each has."""
        self._asked_s = -KNOWN_S

    def prepare(self) -> None:
        """Make the relay's own topics where they are missing. Raises RelayStopped, KafkaException."""
        settings = self._settings
        self.ask_topics()
        absent = [name for name in settings.inputs if name not in self._topics]
        if absent:
            raise RelayStopped(f"the cluster has no topic {', '.join(absent)}: make it, or mend `inputs`")
        partitions = max(self._topics[name] for name in settings.inputs)
        wanted = {settings.frontier_topic: (1, FRONTIER_CONFIG)}
        if settings.on_invalid == "dead_letter":
            wanted[settings.dead_letter_topic] = (partitions, {})
        if settings.carry_after_ms is not None:
            wanted[settings.carry_topic] = (partitions, {"retention.ms": "-1"})
            if self._topics.get(settings.carry_topic, partitions) < partitions:
                raise RelayStopped(
                    f"{settings.carry_topic} has fewer partitions than an input, {partitions}: give it as many"
                )
        new = [
            NewTopic(name, num_partitions=count, config=config)
            for name, (count, config) in wanted.items()
            if name not in self._topics
        ]
        for name, made in (self._admin.create_topics(new) if new else {}).items():
            try:
                made.result(ASK_S)
            except kafka.KafkaException as error:
                code = error.args[0].code()
                if code in NOT_MADE:
                    raise RelayStopped(f"{name} cannot be made: {error.args[0].str()}") from error
                if code != kafka.KafkaError.TOPIC_ALREADY_EXISTS:  # a broker is just being started, say
                    raise
        self.ask_topics()

    def has_topic(self, name: str) -> bool:
        """Whether a record can be delivered there, as far as is known."""
        if name not in self._topics and self._clock.monotonic_s() - self._asked_s >= KNOWN_S:
            self.ask_topics()
        return name in self._topics

    def doubt(self) -> None:
        """A transaction failed: perhaps a topic is not there any more. It is asked before the next."""
        self._topics, self._asked_s = {}, -KNOWN_S

    def partitions_of(self, topic: str) -> int:
        return self._topics.get(topic, 0)

    def topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        """Raises KafkaException."""
        asked = self._admin.describe_topics(kafka.TopicCollection([*names]), request_timeout=ASK_S)
        return {name: str(told.result(ASK_S).topic_id) for name, told in asked.items()}

    def retention_ms(self, names: Sequence[str]) -> dict[str, int]:
        """Of the topics from which Kafka removes records by their age. Raises KafkaException."""
        kind = ResourceType.TOPIC
        asked = self._admin.describe_configs([ConfigResource(kind, name) for name in names], request_timeout=ASK_S)
        found = {}
        for resource, told in asked.items():
            settings = {name: entry.value for name, entry in told.result(ASK_S).items()}
            retention_ms = int(settings.get("retention.ms") or -1)
            if "delete" in (settings.get("cleanup.policy") or "delete") and retention_ms >= 0:
                found[resource.name] = retention_ms
        return found

    def committed(self, consumer: Consumer, places: Sequence[InputPlace]) -> dict[InputPlace, Committed | RelayStopped]:
        """What each partition goes on with, or why it does not. Waits for transactions that somebody has left open.

        Raises KafkaException.
        """
        settings = self._settings
        told = consumer.committed([kafka.TopicPartition(*place) for place in places], ASK_S)
        ids = self.topic_ids([*{topic for topic, _ in places}])
        lost = [(each.topic, each.partition) for each in told if each.offset < 0]
        told_beside = self.frontiers() if lost else {}
        found: dict[InputPlace, Committed | RelayStopped] = {}
        for each in told:
            if each.error is not None:
                raise kafka.KafkaException(each.error)
            place = (each.topic, each.partition)
            low, high = consumer.get_watermark_offsets(kafka.TopicPartition(*place), ASK_S)
            said = told_beside.get(place) if each.offset < 0 else Rectangle.parse(each.offset, each.metadata)
            is_earliest = settings.start == "earliest" or each.topic == settings.carry_topic
            beginning = Rectangle.beginning(low if is_earliest else high)
            if said is None and each.offset >= 0:
                found[place] = RelayStopped(
                    f"{settings.group} has committed {each.offset} of {each.topic}-{each.partition} without a frontier:"
                    " another program or a tool did. Delete the group's offsets of this partition (then"
                    f" {settings.frontier_topic} is asked), or take another group, which begins anew"
                )
            elif said is None:
                found[place] = Committed(ids[each.topic], beginning, high)
            elif said[0] != ids[each.topic]:
                logger.warning("%s is another topic than what was committed of it: it begins anew", each.topic)
                found[place] = Committed(ids[each.topic], Rectangle.beginning(low), high)
            else:
                found[place] = self._checked(place, said[0], said[1], low, high)
        return found

    def frontiers(self) -> dict[InputPlace, tuple[str, Rectangle]]:
        """What the compacted topic says of all partitions. Raises KafkaException."""
        topic, found = self._settings.frontier_topic, dict[InputPlace, tuple[str, Rectangle]]()
        consumer = kafka.Consumer(
            {
                **self._settings.client("consumer"), "group.id": f"{self._settings.group}.frontiers",
                "enable.auto.commit": False, "auto.offset.reset": "earliest", "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )  # fmt: skip
        try:
            partitions = self._admin.list_topics(topic, ASK_S).topics[topic]
            if partitions.error is not None:  # else all would seem to be new
                raise kafka.KafkaException(partitions.error)
            left = {*partitions.partitions}
            consumer.assign([kafka.TopicPartition(topic, each, kafka.OFFSET_BEGINNING) for each in left])
            until_s = self._clock.monotonic_s() + 6 * ASK_S
            while left and self._clock.monotonic_s() < until_s:
                for message in consumer.consume(10_000, 0.5):
                    error = message.error()
                    if error is None:
                        self._tell(message, found)
                    elif error.code() == kafka.KafkaError._PARTITION_EOF:
                        left.discard(message.partition())
                    else:
                        raise kafka.KafkaException(error)
            if left:
                raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT, f"{topic} was not read"))
        finally:
            consumer.close()
        return found

    def delete_before(self, offsets: Mapping[InputPlace, int]) -> None:
        """Let Kafka delete what is before these. A hint: what fails is logged."""
        asked = [kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        for place, done in self._admin.delete_records(asked, request_timeout=ASK_S).items():
            try:
                done.result(ASK_S)
            except kafka.KafkaException as error:
                logger.warning("%s was not trimmed: %s", place, error)

    def _tell(self, message: Any, found: dict[InputPlace, tuple[str, Rectangle]]) -> None:
        try:
            topic, _, number = message.key().decode().rpartition("/")
            offset, _, metadata = message.value().decode().partition(" ")
            said = Rectangle.parse(int(offset), metadata)
        except (AttributeError, ValueError) as error:
            logger.warning("%s has what is no frontier: %r", self._settings.frontier_topic, error)
            return
        if said is not None:
            found[topic, int(number)] = said

    def _checked(
        self, place: InputPlace, topic_id: str, rectangle: Rectangle, low: int, high: int
    ) -> Committed | RelayStopped:
        """Whether Kafka still has what is to be read."""
        name = f"{place[0]}-{place[1]}"
        if rectangle.next_offset > high:
            return RelayStopped(
                f"{name} ends at {high}, before what was read, {rectangle.next_offset}: Kafka has lost records. Take"
                " another group, which begins anew"
            )
        if low <= rectangle.lowest:
            return Committed(topic_id, rectangle, high)
        if self._settings.on_loss == "stop":
            return RelayStopped(
                f"Kafka has removed {name} up to {low}, where what waits begins at {rectangle.lowest}: raise its"
                " retention, or let the relay carry (`carry_after`). To go on without what is lost: on_loss=continue"
            )
        logger.error("%s: what was to be delivered from %d to %d is lost", name, rectangle.lowest, low)
        next_offset = max(rectangle.next_offset, low)
        return Committed(topic_id, Rectangle(next_offset, rectangle.frontier, min(low, next_offset)), high)

    def ask_topics(self) -> None:
        """Which there are. Raises KafkaException."""
        told = self._admin.list_topics(timeout=ASK_S).topics
        self._topics = {name: len(topic.partitions) for name, topic in told.items() if topic.error is None}
        self._asked_s = self._clock.monotonic_s()
