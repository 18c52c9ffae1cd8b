"""One life of a worker in its group: a consumer, a transactional producer, and the partitions that it has.

    poll ──> the partition of each record takes it ──> a tick later: one transaction
        begin │ what goes out of all partitions │ their rectangles: as offsets, and to the frontier topic │ commit
                └── it fails: abort, forget all partitions, and begin each with what is committed
                └── for good (fenced, the producer is lost): the session ends, and another one begins

Nothing of a partition changes while a transaction is open: it is assigned and taken away inside `poll`, and begun anew
between two transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import confluent_kafka as kafka
from confluent_kafka import KafkaError, KafkaException

from afterlog.base.clock import Clock
from afterlog.base.errors import AfterlogError, RelayStopped
from afterlog.relay.bounded_calls import BoundedCalls, CallLost
from afterlog.relay.carrying import carried_by, read_carried
from afterlog.relay.instruction import (
    Instruction,
    InstructionReader,
    KafkaHeaders,
    KafkaRecord,
    Refusal,
    ScheduledDelivery,
)
from afterlog.relay.kafka_cluster import ASK_S, Committed, InputPlace, RelayCluster
from afterlog.relay.pending_records import PendingRecords
from afterlog.relay.relay_measures import RelayMeasures
from afterlog.relay.relay_partition import DeliveryTurn, PartitionState, RelayPartition
from afterlog.relay.relay_settings import TRANSACTION_MS, RelaySettings
from afterlog.subscription.dead_letter_headers import PREFIX, REASON_CHARACTERS

logger = logging.getLogger("afterlog.relay")

ENDED_S: Final = TRANSACTION_MS / 1_000 + ASK_S
"""By then a transaction has ended, one way or the other."""
AT_ONCE: Final = 10_000
"""Records that are polled together."""
WAIT_S: Final = 0.5
"""A poll waits no longer."""
MOVED_S: Final = 0.5
"""So often it is committed that records were read, where nothing goes out."""
IDLE_S: Final = 5.0
"""So often that time went by."""
CARRIED_AT_ONCE: Final = 100
"""Each is looked for in the log."""
LOOK_S: Final = 1.0
"""So often it is asked what is old enough to be carried, and what can be trimmed."""
WARN_S: Final = 60.0
"""So often it is asked how long the inputs keep their records."""
SOON: Final = 0.8
"""Of an input's retention: what waits and is older is warned of."""
REFUSED_S: Final = 60.0
"""For so long a target that refused a record is not tried."""
LASTING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
        KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_TIMESTAMP,
    }
)  # fmt: skip
"""Errors of a record that will not be another time."""
FENCED: Final = frozenset(
    {
        KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH,
    }
)  # fmt: skip
"""Somebody else has the name, or the partitions."""
OF_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED}
)
"""Those of its topic."""

WorkerState: TypeAlias = PartitionState | Literal["assigned", "stopped"]


class SessionOver(Exception):
    """Another one has to begin."""


class StopsAt(Exception):
    """A partition stops (on_invalid=stop): where, and why."""

    def __init__(self, place: InputPlace, reason: str) -> None:
        super().__init__(reason)
        self.place = place


@dataclass(slots=True)
class Assigned:
    """A partition that this worker has. relayed: None before it is begun, or where it has stopped."""

    place: InputPlace
    topic_id: str = ""
    relayed: RelayPartition | None = None
    pending: PendingRecords | None = None
    stopped: str = ""
    """Why, in words."""
    is_paused: bool = False
    committed_s: float = 0.0
    begun_s: float = 0.0
    rebuilt_s: float | None = None
    """How long it took until it was live."""
    carry_before: int = 0
    goes_soon: bool = False
    """Whether what waits longest is near the end of its input's retention."""
    has_carried: bool = False
    """Whether something of it may be in the carry topic."""
    trimmed: int = 0
    end: int = -1
    """Of the partition, as it was heard last."""

    @property
    def state(self) -> WorkerState:
        if self.stopped:
            return "stopped"
        return "assigned" if self.relayed is None else self.relayed.state


@dataclass(slots=True)
class _Refused:
    """What a broker would not take."""

    records: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """By place and offset of the input, until it is a dead letter."""
    for_good: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """Not even as a dead letter."""
    topics: dict[str, tuple[str, float]] = field(default_factory=dict)
    """And until when they are not tried."""
    apart: dict[str, float] = field(default_factory=dict)
    """Topics that refused a batch, and until when their records go one by one: to see which it was."""


class RelaySession:
    """See the head. For one thread, but for `assigned`, which another may look at."""

    def __init__(
        self, settings: RelaySettings, cluster: RelayCluster, clock: Clock, cache: Path, measures: RelayMeasures
    ) -> None:
        """Raises KafkaException, RelayStopped."""
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._cache = cache
        self._measures = measures
        self.assigned: dict[InputPlace, Assigned] = {}
        self._unbegun: set[InputPlace] = set()
        self._refused = _Refused()
        self._apart_next: dict[str, float] = {}
        """From the next transaction on."""
        self._turned_s = self._looked_s = 0.0
        self._warned_s = clock.monotonic_s() - WARN_S
        self._calls = BoundedCalls("afterlog-relay-transaction")
        self._dead_letters = 0
        """Of the transaction that is open."""
        self._is_busy = False
        """Whether something came with the last poll."""
        self._is_lost = False
        """Whether a call of the producer did not come back."""
        self._reader = InstructionReader(
            settings.names, default_target=settings.default_target, allowed_targets=settings.allowed_targets,
            forbidden_targets=settings.own_topics, max_delay_ms=settings.max_delay_ms,
        )  # fmt: skip
        self._producer = kafka.Producer(
            {
                "linger.ms": 5, "compression.type": "lz4", "partitioner": "murmur2_random",
                "queue.buffering.max.messages": max(100_000, 2 * settings.batch),
                **settings.client("producer"), "delivery.report.only.error": True, "enable.idempotence": True,
                "transactional.id": f"{settings.group}-{settings.worker}", "transaction.timeout.ms": TRANSACTION_MS,
            }
        )  # fmt: skip
        self._producer.init_transactions(ENDED_S)
        self._consumer = kafka.Consumer(
            {
                "queued.max.messages.kbytes": 16_384, "fetch.wait.max.ms": 100,
                **self._strategy(settings.client("consumer")), "group.id": settings.group, "enable.auto.commit": False,
                "enable.auto.offset.store": False, "isolation.level": "read_committed", "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )  # fmt: skip
        self._consumer.subscribe(
            settings.read_topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Until it is to stop, or the session is over. Raises SessionOver, KafkaException."""
        while not is_stopping():
            self._poll(self._wait_s())
            self._begin_unbegun()
            now_s = self._clock.monotonic_s()
            if now_s - self._looked_s >= LOOK_S:
                self._looked_s = now_s
                self._look_around()
            if now_s - self._turned_s >= self._settings.tick_ms / 1_000:
                self._turned_s = now_s
                self._transact(is_last=False)
        self._transact(is_last=True)

    def close(self) -> None:
        """Leave the group; what waits is kept as a cache where it is that of what was committed."""
        try:
            self._consumer.close()
            if not self._is_lost:  # else it waits for what does not come
                self._producer.flush(0.0)
        except (KafkaException, RuntimeError) as error:
            logger.info("at the end: %s", error)
        self._calls.end()
        for each in [*self.assigned]:
            self._give_up(each)

    # Partitions come and go, inside `poll`.

    def _on_assign(self, consumer: kafka.Consumer, partitions: list[kafka.TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        for place in places:
            self.assigned[place] = Assigned(place)
        begun = self._begun(places)
        starts = [kafka.TopicPartition(*place, begun.get(place, kafka.OFFSET_END)) for place in places]
        consumer.incremental_assign(starts)
        consumer.resume([kafka.TopicPartition(*place) for place in begun])
        self._unbegun |= {place for place in places if place not in begun and not self.assigned[place].stopped}
        self._pause([place for place in places if place not in begun])

    def _on_revoke(self, consumer: kafka.Consumer, partitions: list[kafka.TopicPartition]) -> None:
        for each in partitions:
            self._give_up((each.topic, each.partition))
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: kafka.Consumer, partitions: list[kafka.TopicPartition]) -> None:
        self._measures.lost += len(partitions)
        self._on_revoke(consumer, partitions)

    def _begin_unbegun(self) -> None:
        """Those of which it could not be asked what is committed, or whose turn has failed."""
        if self._unbegun:
            begun = self._begun([*self._unbegun])
            for place, offset in begun.items():
                self._consumer.incremental_unassign([kafka.TopicPartition(*place)])
                self._consumer.incremental_assign([kafka.TopicPartition(*place, offset)])
                self._consumer.resume([kafka.TopicPartition(*place)])  # a pause outlives an assignment
            self._unbegun -= {place for place in self._unbegun if place in begun or self.assigned[place].stopped}

    def _begun(self, places: Sequence[InputPlace]) -> dict[InputPlace, int]:
        """Begin these with what is committed; where each is read from."""
        try:
            found = self._cluster.committed(self._consumer, places)
        except KafkaException as error:
            logger.warning("it could not be asked what was committed: %s", error)
            return {}
        starts: dict[InputPlace, int] = {}
        for place, committed in found.items():
            if isinstance(committed, RelayStopped):
                self._stop(place, str(committed))
            else:
                starts[place] = self._begin(self.assigned[place], committed)
        return starts

    def _begin(self, assigned: Assigned, committed: Committed) -> int:
        folder = self._cache / f"{assigned.place[0]}-{assigned.place[1]}"
        pending = PendingRecords.cached(folder, committed.topic_id, committed.rectangle)
        carries = self._settings.carry_after_ms is not None
        relayed = RelayPartition(
            committed.rectangle, pending, end=committed.end, is_cached=pending.is_cached, carries=carries
        )
        assigned.topic_id, assigned.pending, assigned.relayed = committed.topic_id, pending, relayed
        assigned.begun_s = assigned.committed_s = self._clock.monotonic_s()
        assigned.rebuilt_s = None
        assigned.is_paused = False
        if carries:
            carry = kafka.TopicPartition(self._settings.carry_topic, assigned.place[1])
            assigned.has_carried = self._consumer.get_watermark_offsets(carry, ASK_S)[1] > 0
        return relayed.next_offset

    def _give_up(self, place: InputPlace) -> None:
        """Somebody else has it, or nobody."""
        assigned = self.assigned.pop(place, None)
        self._unbegun.discard(place)
        if assigned is None or assigned.pending is None or assigned.relayed is None:
            return
        try:
            if assigned.relayed.is_settled:
                assigned.pending.save(assigned.topic_id, assigned.relayed.rectangle)
            else:
                assigned.pending.close()
        except (AfterlogError, OSError) as error:
            logger.warning("no cache is left of %s: %s", place, error)

    def _forget(self, place: InputPlace) -> None:
        """Begin it anew with what is committed: what was taken out of what waits may not have gone out."""
        assigned = self.assigned[place]
        if assigned.pending is not None:
            assigned.pending.close()
        assigned.pending = assigned.relayed = None
        self._pause([place])
        self._unbegun.add(place)
        self._measures.rebuilds += 1

    def _stop(self, place: InputPlace, reason: str) -> None:
        """It does not go on here; the others do."""
        logger.error("%s-%d stops: %s", *place, reason)
        assigned = self.assigned[place]
        if assigned.pending is not None:
            assigned.pending.close()
        assigned.pending = assigned.relayed = None
        assigned.stopped = reason
        self._unbegun.discard(place)

    def _pause(self, places: Sequence[InputPlace]) -> None:
        if places:
            self._consumer.pause([kafka.TopicPartition(*place) for place in places])
            for place in places:
                self.assigned[place].is_paused = True

    # Records in.

    def _wait_s(self) -> float:
        """Until something may have to be done."""
        if self._unbegun:
            return 0.1
        now_ms, tick_s = self._clock.now_ms(), self._settings.tick_ms / 1_000
        wait_s = WAIT_S
        for each in self._live():
            assert each.relayed is not None
            if each.relayed.has_something(now_ms):
                return max(self._turned_s + tick_s - self._clock.monotonic_s(), 0.0)
            next_ms = each.relayed.pending.next_due_ms()
            if next_ms is not None:
                wait_s = min(wait_s, max((next_ms - now_ms) / 1_000, 0.0))
        return wait_s

    def _poll(self, wait_s: float) -> None:
        """Take what comes. Where something does it is gathered until the next tick: each look costs as much as several
        records. Where nothing did, the first that comes ends the wait."""
        if self._is_busy:
            messages = self._consumer.consume(AT_ONCE, min(wait_s, self._settings.tick_ms / 1_000))
        else:
            first = self._consumer.poll(wait_s)
            messages = [] if first is None else [first, *self._consumer.consume(AT_ONCE, 0.0)]
        self._is_busy = bool(messages)
        for message in messages:
            error = message.error()
            if error is not None:
                self._heard(message, error)
                continue
            assigned = self.assigned.get(_place(message))
            if assigned is None or assigned.relayed is None:
                continue
            self._take(assigned, assigned.relayed, _record(message))

    def _take(self, assigned: Assigned, relayed: RelayPartition, record: KafkaRecord) -> None:
        instruction = self._instruction(assigned.place, record)
        if isinstance(instruction, Refusal) and self._settings.on_invalid == "stop":
            if record.offset >= relayed.rectangle.next_offset:
                self._stop(assigned.place, f"offset {record.offset}: {instruction.reason} (on_invalid=stop)")
            return
        was_rebuilding = relayed.state == "rebuilding"
        relayed.take(instruction)
        if was_rebuilding:
            self._note_rebuilt(assigned, relayed)

    def _instruction(self, place: InputPlace, record: KafkaRecord) -> Instruction:
        is_carry = place[0] == self._settings.carry_topic
        return read_carried(record) if is_carry else self._reader.read(record)

    def _heard(self, message: kafka.Message, error: KafkaError) -> None:
        """Not a record."""
        topic, number = message.topic(), message.partition()
        assigned = None if topic is None or number is None else self.assigned.get((topic, number))
        if error.code() == KafkaError._PARTITION_EOF:
            if assigned is not None and assigned.relayed is not None:
                assigned.end = message.offset() or 0
                was_rebuilding = assigned.relayed.state == "rebuilding"
                assigned.relayed.reached(assigned.end)
                if was_rebuilding:
                    self._note_rebuilt(assigned, assigned.relayed)
        elif assigned is not None and error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._forget(assigned.place)  # what was removed meanwhile is judged anew
        elif error.fatal():
            raise KafkaException(error)
        else:
            logger.warning("%s", error.str())

    def _note_rebuilt(self, assigned: Assigned, relayed: RelayPartition) -> None:
        if relayed.state != "rebuilding":
            assigned.rebuilt_s = self._clock.monotonic_s() - assigned.begun_s
            logger.info("%s-%d is live again: %d wait", *assigned.place, len(relayed.pending))

    # Records out.

    def _live(self) -> list[Assigned]:
        return [
            each for each in self.assigned.values() if each.relayed is not None and each.relayed.state != "rebuilding"
        ]

    def _transact(self, *, is_last: bool) -> None:
        """One transaction, where there is something for it."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        live = self._live()
        turns: list[tuple[Assigned, RelayPartition, DeliveryTurn]] = []
        most = max(self._settings.batch // max(len(live), 1), 1)
        for each in live:
            assert each.relayed is not None
            if self._has_turn(each, each.relayed, now_ms, now_s, is_last=is_last):
                turn = each.relayed.turn(now_ms, most, carry_before=each.carry_before, carry_most=CARRIED_AT_ONCE)
                turns.append((each, each.relayed, turn))
        if not turns:
            return
        begun_s = self._clock.monotonic_s()
        try:
            self._producer.begin_transaction()
            self._dead_letters = 0
            for assigned, _, turn in turns:
                self._send(assigned, turn)
            offsets = [
                kafka.TopicPartition(
                    *assigned.place, turn.rectangle.next_offset, turn.rectangle.metadata(assigned.topic_id)
                )
                for assigned, _, turn in turns
            ]
            metadata = self._consumer.consumer_group_metadata()
            sending = partial(self._producer.send_offsets_to_transaction, offsets, metadata, ASK_S)
            self._calls.run(sending, 2 * ASK_S)
            self._calls.run(self._commit, 2 * ENDED_S)
        except CallLost as error:
            self._is_lost = True
            raise SessionOver(str(error)) from error
        except (KafkaException, StopsAt) as error:
            self._abort(error, [assigned.place for assigned, _, _ in turns])
            if isinstance(error, StopsAt):
                self._stop(error.place, str(error))
            return
        self._committed(turns, begun_s)

    def _has_turn(
        self, assigned: Assigned, relayed: RelayPartition, now_ms: int, now_s: float, *, is_last: bool
    ) -> bool:
        if relayed.has_something(now_ms):
            return True
        since_s = now_s - assigned.committed_s
        has_moved = relayed.next_offset != relayed.rectangle.next_offset
        lowest = relayed.pending.lowest()
        is_old = lowest is not None and lowest < assigned.carry_before
        return is_old or since_s >= IDLE_S or (has_moved and (is_last or since_s >= MOVED_S))

    def _send(self, assigned: Assigned, turn: DeliveryTurn) -> None:
        place, settings = assigned.place, self._settings
        keeps = settings.timestamps == "record"
        for each in (*turn.late, *turn.due):
            reason = self._refusal_of(place, each)
            if reason is None:
                timestamp_ms = each.timestamp_ms if keeps and each.timestamp_ms >= 0 else 0
                self._produce(place, each.offset, each.target, each.key, each.value, each.headers, timestamp_ms)
            else:
                self._refuse(place, each.offset, each.key, each.value, each.headers, reason)
        for refused in turn.refused:
            record = refused.record
            self._refuse(place, record.offset, record.key, record.value, record.headers, refused.reason)
        if settings.carry_after_ms is not None:
            self._carry(assigned, turn)
        rectangle = turn.rectangle
        value = f"{rectangle.next_offset} {rectangle.metadata(assigned.topic_id)}".encode()
        self._producer.produce(settings.frontier_topic, value, f"{place[0]}/{place[1]}".encode())

    def _produce(
        self,
        place: InputPlace,
        offset: int,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: KafkaHeaders,
        timestamp_ms: int = 0,
        partition: int = -1,
    ) -> None:
        """To the transaction. What is refused at once fails it, as what is refused later."""
        told = partial(self._told, place, offset, topic)
        while True:
            try:
                self._producer.produce(topic, value, key, partition, told, timestamp=timestamp_ms, headers=[*headers])
                break
            except BufferError:  # as much as it holds is on its way
                self._producer.poll(0.05)
            except KafkaException as error:
                if error.args[0].code() in LASTING:
                    self._refused_record(place, offset, topic, error.args[0].str())
                raise
        if self._goes_apart(topic):
            self._producer.flush(ASK_S)

    def _told(self, place: InputPlace, offset: int, topic: str, error: KafkaError | None, _: object) -> None:
        """Of a record that was not taken."""
        if error is None or error.code() not in LASTING:
            return
        until_s = self._clock.monotonic_s() + REFUSED_S
        if error.code() in OF_TOPIC:
            self._refused.topics[topic] = (error.str(), until_s)
        elif self._goes_apart(topic):
            self._refused_record(place, offset, topic, error.str())
        else:
            self._apart_next[topic] = until_s

    def _refused_record(self, place: InputPlace, offset: int, topic: str, reason: str) -> None:
        if topic == self._settings.dead_letter_topic:
            self._refused.for_good[(*place, offset)] = reason
        else:
            self._refused.records[(*place, offset)] = reason

    def _goes_apart(self, topic: str) -> bool:
        until_s = self._refused.apart.get(topic)
        return until_s is not None and self._clock.monotonic_s() < until_s

    def _refusal_of(self, place: InputPlace, record: ScheduledDelivery) -> str | None:
        """Why its target does not take it, as far as is known."""
        refused = self._refused.records.get((*place, record.offset))
        if refused is not None:
            return refused
        if record.target in self._refused.topics:
            reason, until_s = self._refused.topics[record.target]
            if self._clock.monotonic_s() < until_s:
                return reason
            del self._refused.topics[record.target]
        return None if self._cluster.has_topic(record.target) else f"there is no topic {record.target}"

    def _refuse(
        self,
        place: InputPlace,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: KafkaHeaders,
        reason: str,
    ) -> None:
        """A dead letter, where such are wanted."""
        refused = self._refused.for_good.get((*place, offset))
        if refused is not None:
            raise StopsAt(place, f"offset {offset}: {self._settings.dead_letter_topic} does not take it: {refused}")
        if self._settings.on_invalid == "stop":
            raise StopsAt(place, f"offset {offset}: {reason} (on_invalid=stop)")
        self._dead_letters += 1
        if self._settings.on_invalid == "drop":
            return
        told = {"topic": place[0], "partition": place[1], "offset": offset, "reason": reason[:REASON_CHARACTERS]}
        added = [(f"{PREFIX}{name}", str(each).encode()) for name, each in told.items()]
        self._produce(place, offset, self._settings.dead_letter_topic, key, value, [*headers, *added])

    def _carry(self, assigned: Assigned, turn: DeliveryTurn) -> None:
        """What has waited for long, and cancels of what may have been carried, to the partition of the same number."""
        topic, number = assigned.place
        carry_topic = self._settings.carry_topic
        has_carried, is_carry = assigned.has_carried, topic == carry_topic
        for offset, key, value, headers in carried_by(turn, topic, is_carry=is_carry, has_carried=has_carried):
            self._produce(assigned.place, offset, carry_topic, key, value, headers, 0, number)
        assigned.has_carried = has_carried or bool(turn.carried)

    def _commit(self) -> None:
        """Until it is known what became of it. Raises KafkaException."""
        until_s = self._clock.monotonic_s() + ENDED_S
        while True:
            try:
                self._producer.commit_transaction(ASK_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self._clock.monotonic_s() > until_s:
                    raise

    def _abort(self, error: Exception, places: Iterable[InputPlace]) -> None:
        """Raises SessionOver where there is no way on with this producer."""
        logger.warning("a transaction failed: %s", error)
        self._measures.aborted += 1
        self._cluster.doubt()
        self._refused.apart |= self._apart_next
        self._apart_next = {}
        for place in places:
            if place in self.assigned:
                self._forget(place)
        cause = error.args[0] if isinstance(error, KafkaException) else None
        if isinstance(cause, KafkaError) and cause.code() in FENCED:
            self._measures.fenced += 1
        if isinstance(cause, KafkaError) and cause.fatal():
            raise SessionOver(str(error)) from error
        try:
            self._calls.run(partial(self._producer.abort_transaction, ASK_S), 2 * ASK_S)
        except (KafkaException, CallLost) as failed:
            self._is_lost = isinstance(failed, CallLost)
            raise SessionOver(str(failed)) from failed

    def _committed(self, turns: Sequence[tuple[Assigned, RelayPartition, DeliveryTurn]], begun_s: float) -> None:
        now_s, then_ms = self._clock.monotonic_s(), self._clock.now_ms()
        self._measures.transaction(now_s - begun_s)
        self._measures.dead_letters += self._dead_letters
        for assigned, relayed, turn in turns:
            relayed.committed(turn)
            assigned.committed_s = now_s
            self._measures.delivered(turn, then_ms)
            for each in (*turn.late, *turn.due):
                if self._refused.records:
                    self._refused.records.pop((*assigned.place, each.offset), None)
            if turn.is_full != assigned.is_paused:
                place = kafka.TopicPartition(*assigned.place)
                (self._consumer.pause if turn.is_full else self._consumer.resume)([place])
                assigned.is_paused = turn.is_full

    # What is old.

    def _look_around(self) -> None:
        if self._settings.carry_after_ms is not None:
            self._look_what_is_old(self._settings.carry_after_ms)
        self._trim()
        now_s = self._clock.monotonic_s()
        if now_s - self._warned_s >= WARN_S:
            self._warned_s = now_s
            self._look_what_goes_soon()

    def _look_what_is_old(self, age_ms: int) -> None:
        waiting = {each.place: age_ms for each in self._live() if _lowest(each) is not None}
        for assigned, before in self._older(waiting):
            assigned.carry_before = before

    def _look_what_goes_soon(self) -> None:
        """Warn of what waits and will be removed by the retention of its input, long before that."""
        try:
            retention_ms = self._cluster.retention_ms(self._settings.read_topics)
        except KafkaException as error:
            logger.warning("it could not be asked how long the inputs keep records: %s", error)
            return
        waiting = {
            each.place: int(retention_ms[each.place[0]] * SOON)
            for each in self._live()
            if _lowest(each) is not None and each.place[0] in retention_ms
        }
        for each in self.assigned.values():
            each.goes_soon = False
        for assigned, before in self._older(waiting):
            lowest = _lowest(assigned)
            assigned.goes_soon = lowest is not None and lowest < before
            if assigned.goes_soon:
                name, number = assigned.place
                logger.warning(
                    "%s-%d: the record at %d waits, and is older than four fifths of retention.ms of its input: raise"
                    " it, or let the relay carry (carry_after)", name, number, lowest,
                )  # fmt: skip

    def _older(self, age_ms: Mapping[InputPlace, int]) -> list[tuple[Assigned, int]]:
        """Of partitions, the offset before which records are older than that."""
        now_ms, found = self._clock.now_ms(), list[tuple[Assigned, int]]()
        asked = [kafka.TopicPartition(*place, max(now_ms - age, 0)) for place, age in age_ms.items()]
        try:
            for told in self._consumer.offsets_for_times(asked, ASK_S) if asked else ():
                assigned = self.assigned.get((told.topic, told.partition))
                if assigned is not None and assigned.relayed is not None and told.error is None:
                    end = assigned.relayed.rectangle.next_offset
                    found.append((assigned, min(told.offset, end) if told.offset >= 0 else end))
        except KafkaException as error:
            logger.warning("it could not be asked what is old: %s", error)
        return found

    def _trim(self) -> None:
        offsets = {
            each.place: each.relayed.rectangle.lowest
            for each in self._live()
            if self._is_trimmed(each.place[0])
            and each.relayed is not None
            and each.relayed.rectangle.lowest > each.trimmed
        }
        if offsets:
            self._cluster.delete_before(offsets)
            for place, offset in offsets.items():
                self.assigned[place].trimmed = offset

    def _is_trimmed(self, topic: str) -> bool:
        """The carry topic keeps what it is given for ever: nobody else writes to it, or reads it."""
        return self._settings.trim_inputs or topic == self._settings.carry_topic

    def _strategy(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Partitions come and go one by one, in both protocols of groups."""
        if asked.get("group.protocol") == "consumer":
            return asked
        return {**asked, "partition.assignment.strategy": "cooperative-sticky"}


def _lowest(assigned: Assigned) -> int | None:
    return None if assigned.relayed is None else assigned.relayed.pending.lowest()


def _place(message: kafka.Message) -> InputPlace:
    return cast("str", message.topic()), cast("int", message.partition())


def _record(message: kafka.Message) -> KafkaRecord:
    kind, ms = message.timestamp()
    timestamp_ms = -1 if kind == kafka.TIMESTAMP_NOT_AVAILABLE else ms
    headers = cast("KafkaHeaders", message.headers() or ())
    return KafkaRecord(cast("int", message.offset()), timestamp_ms, message.key(), message.value(), headers)
