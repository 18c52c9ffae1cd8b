"""What a program sends to a relay: the record that asks for a later delivery, a cancel, another time. For any client.

    later = Scheduler("later")
    producer.produce(**later.send("mail", b"hello", delay=3_600))                      # confluent-kafka
    await producer.send_and_wait(**later.send("mail", b"hello", delay=3_600))          # aiokafka
    producer.produce(**later.send("mail", b"hello", delay=3_600, schedule_id="order-17"))
    producer.produce(**later.send("mail", b"hello", delay=7_200, schedule_id="order-17"))   # another time instead
    producer.produce(**later.cancel("order-17"))

What is known by an id goes to the partition of that id, since a relay looks for it there alone: it is the key of the
input, and the key of the target goes along in a header. All that send under one id must partition alike: Java's clients
and aiokafka do; confluent-kafka does with `"partitioner": "murmur2_random"`.
"""

from __future__ import annotations

from typing import TypedDict

from afterlog.base.clock import Clock, SystemClock
from afterlog.base.errors import InvalidArgument, InvalidRecord
from afterlog.records.times import Delay, Instant, asked_ms
from afterlog.relay.instruction import ID_BYTES_MAX, KNOWN_NAMES, HeaderNames, KafkaHeaders


class Sendable(TypedDict):
    """The keywords of a client's send."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]


class Scheduler:
    """Of one input. It has no state, and asks nobody."""

    def __init__(self, topic: str, *, names: HeaderNames = KNOWN_NAMES["afterlog"], clock: Clock | None = None) -> None:
        """names: as the relay has them. Raises InvalidArgument where these have no ids in headers."""
        if names.identity != "header":
            raise InvalidArgument("where a record is known by its key, send it with that key: there is nothing to add")
        self.topic = topic
        self._names = names
        self._clock = SystemClock() if clock is None else clock

    def send(
        self,
        target: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: KafkaHeaders = (),
        delay: Delay | None = None,
        deliver_after: Instant | None = None,
        schedule_id: str | bytes | None = None,
    ) -> Sendable:
        """To be delivered to `target`. delay: seconds or timedelta from now; deliver_after: epoch ms, an aware
        datetime, ISO 8601; neither: at once. schedule_id: what waits under it already is not delivered, but this.

        Raises InvalidDeliverAfter, InvalidRecord.
        """
        names = self._names
        now_ms = self._clock.now_ms()
        due_ms = asked_ms(now_ms, delay, deliver_after)
        taken = {name for name, _ in headers} & {*names.all()}
        if taken:
            raise InvalidRecord(f"the relay reads the headers {', '.join(sorted(taken))}: give others")
        asked: list[tuple[str, bytes | None]] = [
            *headers, (names.deliver_to, target.encode()),
            (names.deliver_after, str(now_ms if due_ms < 0 else due_ms).encode()),
        ]  # fmt: skip
        if schedule_id is None:
            return Sendable(topic=self.topic, value=value, key=key, headers=asked)
        known = _checked(schedule_id)
        asked += [(names.schedule_id, known), (names.deliver_key, key)]
        return Sendable(topic=self.topic, value=value, key=known, headers=asked)

    def cancel(self, schedule_id: str | bytes) -> Sendable:
        """What waits under this id is not to be delivered. Raises InvalidRecord."""
        known = _checked(schedule_id)
        return Sendable(topic=self.topic, value=None, key=known, headers=[(self._names.cancel, known)])


def _checked(schedule_id: str | bytes) -> bytes:
    known = schedule_id.encode() if isinstance(schedule_id, str) else schedule_id
    if not isinstance(known, bytes) or not 0 < len(known) <= ID_BYTES_MAX:
        raise InvalidRecord(f"an id has 1 to {ID_BYTES_MAX} bytes, as text or bytes, not {schedule_id!r:.100}")
    return known
