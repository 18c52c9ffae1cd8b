"""A served store, as what its methods ask: the same for the blocking client and that for asyncio (`call.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from afterlog.api import operations
from afterlog.api.byte_text import text_or_base64
from afterlog.api.position_text import position_text
from afterlog.api.record_json import scheduled_of, stored_of
from afterlog.base.arguments import KEEP, flag, whole
from afterlog.base.clock import Clock
from afterlog.base.errors import (
    InvalidArgument,
    InvalidTopic,
    NotServed,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
    WrongType,
)
from afterlog.base.names import NamedList, check_name
from afterlog.client import answer_rows as rows
from afterlog.client.call import (
    Call,
    HttpRequest,
    Sending,
    Steps,
    asking,
    json_of,
    nothing,
    with_sequence,
)
from afterlog.client.sent import item, pairs, records_request, seconds_of, sent_record
from afterlog.client.served_topic import ServedTopic
from afterlog.client.server_time import ServerTime
from afterlog.fetch.positions import LATEST, Position
from afterlog.fetch.record_id import RecordId
from afterlog.log.cancel_result import CancelResult
from afterlog.records.expiry import expiring
from afterlog.records.times import check_one_time, delay_ms, instant_ms

if TYPE_CHECKING:
    from os import PathLike

    from afterlog.fetch.message import ScheduledRecord, StoredRecord
    from afterlog.log.cancellation import Int8Array
    from afterlog.log.held import HeldBytes
    from afterlog.log.topic_settings import TopicChanges
    from afterlog.records.batch import Headers
    from afterlog.records.columns import Int64Array
    from afterlog.records.producer_sequence import ProducerSequence
    from afterlog.records.time_columns import DelayColumn, InstantColumn
    from afterlog.records.times import Delay, Instant
    from afterlog.records.unique_key import OnConflict
    from afterlog.store.backup import Backup
    from afterlog.store.schedule_document import Schedule
    from afterlog.subscription.answers import RedriveResult
    from afterlog.subscription.leased_record import LeasedRecord
    from afterlog.subscription.redrive import DeadLetterMessage
    from afterlog.tier.offload import Offloaded

EachAnswer = TypeVar("EachAnswer")

BACKUP_S = 86_400.0
"""A backup may take so long."""
TOPIC_S = 10.0
"""How long it is believed how many partitions a topic has: whoever adds some has all clients send there after that."""


class StoreSteps:
    """What the methods of a store ask; what they do is said at `StoreSurface`. Thread-safe."""

    def __init__(self, clock: Clock, server_time: ServerTime) -> None:
        self.clock = clock
        self.server_time = server_time
        self._known: dict[str, tuple[ServedTopic, float]] = {}
        """Topics, and when they were asked for."""

    # Topics.

    def create_topic(
        self, name: str, partitions: int = 1, delayed: bool = True, **settings: Unpack[TopicChanges]
    ) -> Steps[ServedTopic]:
        [topic] = yield from self.create_topics([name], partitions, delayed, **settings)
        return topic

    def create_topics(
        self, names: Iterable[str], partitions: int = 1, delayed: bool = True, **settings: Unpack[TopicChanges]
    ) -> Steps[list[ServedTopic]]:
        from afterlog.log.topic_settings import asked_settings

        chosen = [check_name(name) for name in _listed(names)]
        asked = asked_settings(partitions, delayed, settings)
        body = {"names": chosen, "partitions": asked.partitions, "delayed": asked.delayed, **settings}
        topics: list[ServedTopic] = yield asking(operations.CREATE_TOPICS, _topics, _plain(body))
        return topics

    def topic(self, name: str) -> Steps[ServedTopic]:
        if not isinstance(name, str) or not name:
            raise UnknownTopic(f"no topic {name!r} here; create it with store.create_topic({name!r})")
        topic: ServedTopic = yield asking(operations.SHOW_TOPIC, ServedTopic, topic=name)
        self._known[name] = topic, self.clock.monotonic_s()
        return topic

    def topics(self) -> Steps[NamedList[ServedTopic]]:
        topics: list[ServedTopic] = yield asking(operations.LIST_TOPICS, _topics)
        return NamedList(topics)

    def alter_topic(
        self, name: str, *, partitions: int | None = None, **settings: Unpack[TopicChanges]
    ) -> Steps[ServedTopic]:
        from afterlog.log.topic_settings import altered

        changes: dict[str, Any] = dict(settings)
        if partitions is not None:
            changes["partitions"] = partitions = whole("partitions", partitions, 1)
        there = yield from self.topic(name)
        altered(there.settings, settings, partitions)
        topic: ServedTopic = yield asking(operations.ALTER_TOPIC, ServedTopic, _plain(changes), topic=name)
        self._known[name] = topic, self.clock.monotonic_s()
        return topic

    def delete_topic(self, name: str, *, force: bool = False) -> Steps[None]:
        yield asking(operations.DELETE_TOPIC, nothing, query={"force": flag("force", force)}, topic=name)
        self._known.pop(name, None)

    def purge(
        self,
        topic: str,
        upto: Position = LATEST,
        *,
        pending: bool = False,
        partition: int | None = None,
        force: bool = False,
    ) -> Steps[int]:
        body = {"upto": position_text(upto), "pending": flag("pending", pending), "force": flag("force", force)}
        if partition is not None:
            body["partition"] = _partition(partition)
        removed: int = yield asking(operations.PURGE, _field("removed"), body, topic=topic)
        return removed

    def clean(self, topic: str, *, partition: int | None = None) -> Steps[int]:
        body = {} if partition is None else {"partition": _partition(partition)}
        freed: int = yield asking(operations.CLEAN, _field("freed_bytes"), body, topic=topic)
        return freed

    # Sending.

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        delay: Delay | None = None,
        deliver_after: Instant | None = None,
        partition: int | None = None,
        check_instants: bool | None = None,
        expires_after: Delay | None = None,
        priority: int | None = None,
        unique_key: bytes | None = None,
        on_conflict: OnConflict = "raise",
        sequence: ProducerSequence | None = None,
    ) -> Steps[RecordId]:
        record = sent_record(value, key, expiring(headers, expires_after), delay, deliver_after, unique_key)
        check = None if check_instants is None else flag("check_instants", check_instants)
        chosen = None if partition is None else _partition(partition, priority)
        if unique_key is not None or on_conflict != "raise":
            _check_unnumbered(sequence)
            row = record._replace(priority=priority).to_row()
            return (yield from self._unique(topic, row, partition, check, on_conflict))
        row = record.to_row()
        if sequence is not None:
            numbered = self._sending(topic, _numbered(sequence, chosen), [row], check)
            [sent] = yield with_sequence(numbered, sequence)
            one: RecordId = sent
            return one
        for last in (False, True):
            target = yield from self._target(topic)
            number = target.partition_of(record.key, priority) if chosen is None else chosen
            try:
                [sent] = yield self._sending(target.name, number, [row], check)
            except (UnknownPartition, UnknownTopic):
                if self._known.pop(topic, None) is None or last or chosen is not None:
                    raise
            else:
                done: RecordId = sent
                return done
        raise AssertionError("the last try returns or raises")

    def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Headers = (),
        delay: DelayColumn | None = None,
        deliver_after: InstantColumn | None = None,
        timestamps: Int64Array | None = None,
        partition: int | None = None,
        check_instants: bool | None = None,
        expires_after: Delay | None = None,
        priority: int | None = None,
        unique_keys: Any = None,
        on_conflict: OnConflict = "raise",
        sequence: ProducerSequence | None = None,
    ) -> Steps[Int64Array]:
        from afterlog.client.sent_columns import Columnar

        if unique_keys is None and on_conflict != "raise":
            raise InvalidArgument("on_conflict says what becomes of a record with a unique key: give some")
        columns = Columnar.of(
            values, keys, pairs(expiring(headers, expires_after)), delay, deliver_after, timestamps, unique_keys,
            self.server_time.now_ms(),
        )  # fmt: skip
        check = None if check_instants is None else flag("check_instants", check_instants)
        chosen = None if partition is None else _partition(partition, priority)
        if sequence is not None:
            _check_unnumbered(sequence if unique_keys is not None else None)
            _numbered(sequence, chosen)
        if unique_keys is not None:
            _check_way(on_conflict)
            asked = columns.unique_call(topic, chosen, check, on_conflict, priority)
            offsets: Int64Array = yield asked
            return offsets
        target = yield from self._target(topic)
        if not len(columns):
            return columns.no_offsets()
        return (yield from columns.sends(target, chosen, check, sequence, priority))

    # What is scheduled.

    def cancel(self, record: RecordId | str) -> Steps[CancelResult]:
        record = RecordId.of(record)
        [result] = yield asking(operations.CANCEL, _results(1), {"ids": [str(record)]}, topic=record.topic)
        answer: CancelResult = result
        return answer

    def cancel_many(self, topic: str, partition: int, offsets: Int64Array) -> Steps[Int8Array]:
        import numpy as np

        from afterlog.records.encode import offset_column

        wanted = offset_column(offsets).tolist()
        body = {"partition": _partition(partition), "offsets": wanted}
        results: list[CancelResult] = yield asking(operations.CANCEL, _results(len(wanted)), body, topic=topic)
        return np.array(results, np.int8)

    def reschedule(
        self, record: RecordId | str, *, delay: Delay | None = None, deliver_after: Instant | None = None
    ) -> Steps[RecordId]:
        record = RecordId.of(record)
        check_one_time(delay, deliver_after)
        body: dict[str, Any] = {"id": str(record)}
        if delay is not None:
            body["delay"] = seconds_of(delay_ms(delay))
        if deliver_after is not None:
            body["deliver_after"] = instant_ms(deliver_after)
        moved: str = yield asking(operations.RESCHEDULE, _field("id"), body, topic=record.topic)
        return RecordId.parse(moved)

    def pending(
        self,
        topic: str,
        *,
        limit: int = 100,
        key: bytes | None = None,
        partition: int | None = None,
        after: Instant | None = None,
        before: Instant | None = None,
    ) -> Steps[list[ScheduledRecord]]:
        query = {
            "limit": whole("limit", limit),
            "key": _key_text(item(key, "keys")),
            "partition": None if partition is None else _partition(partition),
            "after": None if after is None else instant_ms(after),
            "before": None if before is None else instant_ms(before),
        }
        found: list[ScheduledRecord] = yield asking(
            operations.PENDING, lambda row: [*map(scheduled_of, row["records"])], query=query, topic=topic
        )
        return found

    def get(self, record: RecordId | str) -> Steps[StoredRecord | None]:
        record = RecordId.of(record)
        try:
            found: StoredRecord = yield asking(
                operations.SHOW_RECORD, stored_of, query={"id": str(record)}, topic=record.topic
            )
        except OffsetOutOfRange:
            return None
        return found

    def get_unique(self, topic: str, unique_key: bytes, *, partition: int | None = None) -> Steps[StoredRecord | None]:
        if unique_key is None:
            raise WrongType("a unique key is looked up by its bytes, not None")
        query = {
            "unique_key": _key_text(item(unique_key, "unique keys")),
            "partition": None if partition is None else _partition(partition),
        }
        found: StoredRecord | None = yield asking(operations.SHOW_RECORD, _stored, query=query, topic=topic)
        return found

    def cancel_unique(self, topic: str, unique_key: bytes, *, partition: int | None = None) -> Steps[CancelResult]:
        if unique_key is None:
            raise WrongType("a unique key is looked up by its bytes, not None")
        body = {
            "unique_key": text_or_base64(item(unique_key, "unique keys")),
            "partition": None if partition is None else _partition(partition),
        }
        [answer] = yield asking(operations.CANCEL_UNIQUE, _results(1), body, topic=topic)
        cancelled: CancelResult = answer
        return cancelled

    def schedule(
        self,
        topic: str,
        *,
        name: str,
        cron: str | None = None,
        timezone: str = "UTC",
        every: timedelta | None = None,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        missed: Literal["skip", "one", "all"] = "one",
    ) -> Steps[Schedule]:
        body: dict[str, Any] = {
            "topic": topic,
            "name": name,
            "cron": cron,
            "timezone": timezone,
            "partition": partition,
        }
        body |= _schedule_body(every=every, value=value, key=key, headers=headers, missed=missed)
        body = {each: given for each, given in body.items() if given is not None}
        body["value"] = text_or_base64(item(value, "values"))
        made: Schedule = yield asking(operations.CREATE_SCHEDULE, rows.schedule_of, _plain(body))
        return made

    def schedules(self, topic: str | None = None) -> Steps[list[Schedule]]:
        found: list[Schedule] = yield asking(
            operations.LIST_SCHEDULES, lambda row: [*map(rows.schedule_of, row["schedules"])], query={"topic": topic}
        )
        return found

    def change_schedule(
        self,
        name: str,
        *,
        cron: str = KEEP,
        timezone: str = KEEP,
        every: timedelta = KEEP,
        value: bytes | None = KEEP,
        key: bytes | None = KEEP,
        headers: Headers = KEEP,
        missed: Literal["skip", "one", "all"] = KEEP,
    ) -> Steps[Schedule]:
        given = {"cron": cron, "timezone": timezone}
        body = {each: text for each, text in given.items() if text is not KEEP}
        body |= _schedule_body(every=every, value=value, key=key, headers=headers, missed=missed)
        changed: Schedule = yield asking(operations.CHANGE_SCHEDULE, rows.schedule_of, _plain(body), schedule=name)
        return changed

    def pause_schedule(self, name: str) -> Steps[Schedule]:
        paused: Schedule = yield asking(operations.PAUSE_SCHEDULE, rows.schedule_of, schedule=name)
        return paused

    def resume_schedule(self, name: str) -> Steps[Schedule]:
        resumed: Schedule = yield asking(operations.RESUME_SCHEDULE, rows.schedule_of, schedule=name)
        return resumed

    def send_schedule(self, name: str) -> Steps[RecordId]:
        sent: RecordId = yield asking(
            operations.SEND_SCHEDULE, lambda row: RecordId.parse(row["id"]), {}, schedule=name
        )
        return sent

    def remove_schedule(self, name: str) -> Steps[None]:
        yield asking(operations.REMOVE_SCHEDULE, nothing, schedule=name)

    def run_schedules(self) -> Steps[int]:
        appended: int = yield asking(operations.RUN_SCHEDULES, _field("appended"))
        return appended

    # Readers.

    def subscriptions(self, topic: str) -> Steps[list[str]]:
        names: list[str] = yield asking(operations.LIST_SUBSCRIPTIONS, _field("subscriptions"), topic=topic)
        return names

    def groups(self, topic: str) -> Steps[list[str]]:
        names: list[str] = yield asking(operations.LIST_GROUPS, _field("groups"), topic=topic)
        return names

    def leased(self, topic: str, subscription: str, *, limit: int = 100) -> Steps[list[LeasedRecord]]:
        query = {"limit": whole("limit", limit)}
        found: list[LeasedRecord] = yield asking(
            operations.LEASED_RECORDS, lambda row: [*map(rows.leased_record, row["leased"])], query=query, topic=topic,
            subscription=subscription,
        )  # fmt: skip
        return found

    def pause(self, topic: str, subscription: str | None = None) -> Steps[None]:
        yield asking(operations.PAUSE, nothing, _paused(subscription), topic=topic)

    def resume(self, topic: str, subscription: str | None = None) -> Steps[None]:
        yield asking(operations.RESUME, nothing, _paused(subscription), topic=topic)

    def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> Steps[None]:
        query = {"force": flag("force", force)}
        yield asking(operations.DELETE_SUBSCRIPTION, nothing, query=query, topic=topic, subscription=name)

    def delete_group(self, topic: str, group: str, *, force: bool = False) -> Steps[None]:
        query = {"force": flag("force", force)}
        yield asking(operations.DELETE_GROUP, nothing, query=query, topic=topic, group=group)

    def reset_subscription(
        self, topic: str, name: str, position: Position | datetime, *, delay_ms: int = 0
    ) -> Steps[None]:
        body = {"position": position_text(position), "delay_ms": _number(delay_ms)}
        yield asking(operations.RESET_SUBSCRIPTION, nothing, body, topic=topic, subscription=name)

    def reset_group(self, topic: str, group: str, position: Position | datetime) -> Steps[None]:
        body = {"position": position_text(position)}
        yield asking(operations.RESET_GROUP, nothing, body, topic=topic, group=group)

    def dead_letters(
        self, topic: str, *, limit: int = 100, subscription: str | None = None, reason: str | None = None
    ) -> Steps[list[DeadLetterMessage]]:
        query = {"limit": whole("limit", limit), **_letters(topic, None, subscription, reason)}
        found: list[DeadLetterMessage] = yield asking(
            operations.DEAD_LETTERS, lambda row: [*map(rows.dead_letter, row["dead_letters"])], query=query, topic=topic
        )
        return found

    def redrive(
        self,
        topic: str,
        *,
        limit: int | None = None,
        target: str | None = None,
        records: Sequence[RecordId | str] | None = None,
        subscription: str | None = None,
        reason: str | None = None,
        value: bytes | None = KEEP,
        rate: float | None = None,
    ) -> Steps[RedriveResult]:
        body: dict[str, Any] = _letters(topic, records, subscription, reason)
        if limit is not None:
            body["limit"] = whole("limit", limit)
        if target is not None:
            body["target"] = check_name(target, "topic")
        if value is not KEEP:
            body["value"] = text_or_base64(item(value, "values"))
        if rate is not None:
            body["rate"] = rate
        done: RedriveResult = yield asking(operations.REDRIVE, rows.redrive_result, _plain(body), topic=topic)
        return done

    def discard_dead_letters(
        self,
        topic: str,
        *,
        limit: int | None = None,
        records: Sequence[RecordId | str] | None = None,
        subscription: str | None = None,
        reason: str | None = None,
    ) -> Steps[int]:
        body: dict[str, Any] = _letters(topic, records, subscription, reason)
        if limit is not None:
            body["limit"] = whole("limit", limit)
        count: int = yield asking(operations.DISCARD_DEAD_LETTERS, _field("discarded"), body, topic=topic)
        return count

    # Keeping.

    def stats(self, topic: str) -> Steps[dict[str, Any]]:
        """How a topic stands: its partitions and subscriptions, as the server tells. Raises UnknownTopic."""
        told: dict[str, Any] = yield asking(operations.TOPIC_STATS, dict, topic=topic)
        return told

    def info(self) -> Steps[dict[str, Any]]:
        """What the server says of the store: version, durability, now_ms, how many topics."""
        told: dict[str, Any] = yield asking(operations.SHOW_STORE, dict)
        self.server_time.saw(told)
        return told

    def sync(self) -> Steps[None]:
        yield asking(operations.SYNC, nothing)

    def enforce_retention(self) -> Steps[int]:
        removed: int = yield asking(operations.ENFORCE_RETENTION, _field("removed"))
        return removed

    def held_bytes(self, topic: str, partition: int = 0) -> Steps[HeldBytes]:
        query = {"partition": _partition(partition)}
        held: HeldBytes = yield asking(operations.HELD_BYTES, rows.held_bytes, query=query, topic=topic)
        return held

    def backup(self, dest: str | PathLike[str]) -> Steps[Backup]:
        body = {"dest": str(dest)}
        made: Backup = yield asking(operations.BACKUP, rows.backup_of, body, wait_s=BACKUP_S)
        return made

    def offload(self, *, roll: bool = False) -> Steps[dict[str, Offloaded]]:
        done: dict[str, Offloaded] = yield asking(operations.OFFLOAD, _offloaded, {"roll": roll} if roll else None)
        return done

    def confirm_clock(self) -> Steps[None]:
        yield asking(operations.CONFIRM_CLOCK, nothing)

    def adopt(self, prepared: object = None) -> Steps[list[Any]]:
        """Raises NotServed: what jobs prepared is adopted by who has the folder."""
        yield from ()
        raise NotServed("adopt() is for the process that has the store open, beside which jobs prepared something")

    def check(self) -> Steps[None]:
        """Raises NotServed."""
        yield from ()
        raise NotServed("check() is for the process that has the store open; `afterlog verify` is for a folder")

    # Inside.

    def _target(self, name: str) -> Steps[ServedTopic]:
        """The topic as it was a few seconds ago at most."""
        known = self._known.get(name) if isinstance(name, str) else None
        if known is not None and self.clock.monotonic_s() - known[1] < TOPIC_S:
            return known[0]
        return (yield from self.topic(name))

    def _sending(
        self, topic: str, number: int, records: list[dict[str, Any]], check: bool | None
    ) -> Call[list[RecordId]]:
        return Call(
            request=HttpRequest(operations.SEND.method, operations.SEND.path_of(topic=topic)),
            read=lambda reply: _ids(json_of(reply), len(records)),
            sending=Sending(
                topic,
                number,
                len(records),
                lambda sequence: records_request(topic, records, sequence, partition=number, check_instants=check),
            ),
        )

    def _unique(
        self, topic: str, row: dict[str, Any], partition: int | None, check: bool | None, on_conflict: OnConflict
    ) -> Steps[RecordId]:
        if "unique_key" not in row:
            raise InvalidArgument("on_conflict says what becomes of a record with a unique key: give one")
        _check_way(on_conflict)
        if partition is not None:
            row["partition"] = _partition(partition)
        request = records_request(topic, [row], None, check_instants=check, on_conflict=on_conflict)
        [sent] = yield Call(request=request, read=lambda reply: _ids(json_of(reply), 1), again=False)
        done: RecordId = sent
        return done


def _numbered(sequence: Any, partition: int | None) -> int:
    """The partition that a sequence is of. Raises InvalidArgument, WrongType."""
    from afterlog.records.producer_sequence import checked_sequence

    checked_sequence(sequence)
    if partition is None:
        raise InvalidArgument("a sequence counts the records of one partition: give `partition`, too")
    return partition


def _check_unnumbered(sequence: object) -> None:
    if sequence is not None:
        raise InvalidArgument("a sequence or a unique key, not both: a conflict would be a gap in the sequence")


def _check_way(on_conflict: Any) -> None:
    if on_conflict not in ("raise", "keep", "replace"):
        raise InvalidArgument(f'on_conflict is "raise", "keep" or "replace", not {on_conflict!r:.100}')


def _ids(row: Any, count: int) -> list[RecordId]:
    return _all_of(count, [*map(RecordId.parse, row["ids"])])


def _topics(row: Any) -> list[ServedTopic]:
    return [*map(ServedTopic, row["topics"])]


def _results(count: int) -> Callable[[Any], list[CancelResult]]:
    return lambda row: _all_of(count, [CancelResult[name] for name in row["results"]])


def _all_of(count: int, found: list[EachAnswer]) -> list[EachAnswer]:
    """ValueError where they are not so many."""
    if len(found) != count:
        raise ValueError(f"{len(found)} answers, not {count}")
    return found


def _offloaded(row: Any) -> dict[str, Offloaded]:
    return {name: rows.offloaded(each) for name, each in row["partitions"].items()}


def _field(name: str) -> Any:
    """What reads it of an answer."""
    return lambda row: row[name]


def _schedule_body(*, every: Any, value: Any, key: Any, headers: Any, missed: Any) -> dict[str, Any]:
    """Of what is given."""
    body: dict[str, Any] = {}
    if every is not KEEP:
        if not isinstance(every, timedelta | None):
            raise WrongType(f"every must be a timedelta, not {every!r:.100}")
        body["every_s"] = None if every is None else every.total_seconds()
    if value is not KEEP:
        body["value"] = text_or_base64(item(value, "values"))
    if key is not KEEP:
        body["key"] = text_or_base64(item(key, "keys"))
    if headers is not KEEP:
        body["headers"] = [[name, text_or_base64(each)] for name, each in pairs(headers)]
    if missed is not KEEP:
        body["missed"] = missed
    return body


def _stored(row: dict[str, Any]) -> StoredRecord | None:
    return None if row["record"] is None else stored_of(row)


def _key_text(key: bytes | None) -> str | None:
    """As a query has it."""
    text = text_or_base64(key)
    if text is None or (isinstance(text, str) and not text.startswith("base64:")):
        return text
    import base64

    return "base64:" + base64.b64encode(key or b"").decode()


def _listed(names: Iterable[str]) -> list[str]:
    try:
        if not isinstance(names, str | bytes):
            return list(names)
    except TypeError:
        pass
    raise WrongType(f"create_topics takes a list of names, not {names!r:.100}; create_topic makes one topic")


def _letters(
    topic: str, records: Sequence[RecordId | str] | None, subscription: str | None, reason: str | None
) -> dict[str, Any]:
    """Which are meant, as JSON has it. Raises as `ChosenLetters.of`."""
    from afterlog.subscription.chosen_letters import ChosenLetters

    chosen = ChosenLetters.of(topic, records, subscription, reason)
    named = None if chosen.records is None else sorted(map(str, chosen.records))
    said = {"records": named, "subscription": chosen.subscription, "reason": chosen.reason}
    return {name: value for name, value in said.items() if value is not None}


def _paused(subscription: str | None) -> dict[str, str]:
    return {} if subscription is None else {"subscription": check_name(subscription, "subscription")}


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """What JSON can say of settings; InvalidTopic, or what the server says, for the rest."""
    import json

    try:
        json.dumps(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTopic(f"settings are numbers, text, True, False and None: {error}") from None
    return body


def _number(value: Any) -> Any:
    """An integer of numpy's as one of Python's; the server judges the rest."""
    import operator

    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _partition(number: Any, priority: int | None = None) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 31:
        raise UnknownPartition(f"partitions are numbered from 0; there is none {number!r:.100}")
    if priority is not None:
        raise InvalidArgument("a partition or a priority, not both: what is in a partition is of one priority")
    return number


def chosen_partitions(numbers: Sequence[int] | None) -> list[int] | None:
    """Those that a reader wants, each once. Raises WrongType, UnknownPartition."""
    if numbers is None:
        return None
    try:
        chosen = sorted({_partition(number) for number in numbers})
    except TypeError as error:
        raise WrongType(f"partitions must be a list of their numbers, not {numbers!r:.100}") from error
    if not chosen:
        raise UnknownPartition("no partition to read: name one, or leave `partitions` out for all")
    return chosen
