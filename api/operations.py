"""All that a server is asked: each operation once, with its path, parameters, answer and errors.

The server has an endpoint for each row (server/table.py), the client makes its requests by them
(client/store_steps.py), and the OpenAPI document says them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from afterlog.api.operation import NOTHING, HttpOperation, Scope
from afterlog.api.reader_json import READER
from afterlog.api.schema import (
    LEFT_OUT,
    ByName,
    Fields,
    Flag,
    Listing,
    Number,
    Shape,
    Text,
    Told,
    Whole,
    answer,
    rows_of,
)
from afterlog.api.shapes import (
    BYTES,
    COUNT,
    HEADERS,
    INSTANT,
    LEASED,
    MESSAGE,
    NAME_PATTERN,
    OFFSETS,
    PARTITION,
    PARTITIONS,
    POSITION_SCHEMA,
    RECEIPT,
    RECORD_ID,
    RECORDS_MAX,
    SCHEDULED,
    SENT,
    WAIT_MS,
    position,
)
from afterlog.base import errors
from afterlog.base.measures import LATENESS_EDGES_MS
from afterlog.fetch.message import RecordState
from afterlog.log.cancel_result import CancelResult
from afterlog.log.topic_settings import LEAST, TopicChanges

SLICE: Final = "application/vnd.afterlog.slice"


PARTITIONS_MAX: Final = 10_000
ANSWER_BYTES_MAX: Final = 64 << 20
"""Of one answer with records, but for its first batch, or entry."""
EPOCH_MAX: Final = 2**15 - 1
SEQUENCES: Final = 2**31
"""Of a producer in a partition, which then begins again at 0 (Kafka's batch header has 32 bits for it)."""

_TOPIC_PATH: Final = "/v1/topics/{topic}"
_SUBSCRIPTION_PATH: Final = f"{_TOPIC_PATH}/subscriptions/{{subscription}}"
_GROUP_PATH: Final = f"{_TOPIC_PATH}/groups/{{group}}"
_SCHEDULE_PATH: Final = "/v1/schedules/{schedule}"
_UNKNOWN: Final = (errors.UnknownTopic, errors.UnknownPartition)
_NAME: Final = {"type": "string", "pattern": NAME_PATTERN}
_NAMES: Final = {"type": "array", "items": {"type": "string"}}
_FORCE: Final[dict[str, Shape]] = {"force": Flag(default=False, about="with open readers, too, which are closed")}


# The store as a whole.

SHOW_STORE: Final = HttpOperation(
    method="GET", path="/v1/store", scope=Scope.LOOK, summary="What is served here", filters=True,
    answer=answer(
        {
            "version": {"type": "string"},
            "durability": answer({"kind": {"type": "string"}, "interval_ms": {"type": ["integer", "null"]}}),
            "now_ms": INSTANT,
            "topics": COUNT,
            "batch_bytes_max": COUNT,
            "clock_jumps": COUNT,
            "scopes": {
                "type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}},
                "description": "what who asks may do, each for the topics of these prefixes",
            },
        }
    ),
)  # fmt: skip
SYNC: Final = HttpOperation(
    method="POST", path="/v1/sync", scope=Scope.MANAGE, summary="Make everything durable that was appended so far",
    body=NOTHING,
)  # fmt: skip
ENFORCE_RETENTION: Final = HttpOperation(
    method="POST", path="/v1/retention", scope=Scope.MANAGE, summary="Apply the topics' retention now", body=NOTHING,
    answer=answer({"removed": COUNT}), repeatable=False,
)  # fmt: skip
OFFLOAD: Final = HttpOperation(
    method="POST", path="/v1/offload", scope=Scope.MANAGE, summary="Upload what is sealed now",
    body=Fields({"roll": Flag(default=False, about="seal what is being appended to first")}),
    answer=answer({"partitions": {"type": "object"}}), repeatable=False,
    errors=(errors.RemoteRefused, errors.RemoteUnavailable, errors.RemoteConflict),
)  # fmt: skip
RUN_SCHEDULES: Final = HttpOperation(
    method="POST", path="/v1/run-schedules", scope=Scope.MANAGE, summary="Append now what schedules have to append",
    body=NOTHING, answer=answer({"appended": COUNT}), repeatable=False,
)  # fmt: skip
CONFIRM_CLOCK: Final = HttpOperation(
    method="POST", path="/v1/confirm-clock", scope=Scope.MANAGE, summary="The wall clock is right after a jump",
    body=NOTHING,
)  # fmt: skip
BACKUP: Final = HttpOperation(
    method="POST", path="/v1/backup", scope=Scope.MANAGE, summary="Make a backup",
    body=Fields({"dest": Text(most=255, about="a folder in the one that the server was started with")}),
    answer=answer(
        {"path": {"type": "string"}, "number": COUNT, "at_ms": INSTANT, "files": COUNT, "copied_bytes": COUNT}
    ),
    repeatable=False, errors=(errors.NotServed, errors.InvalidArgument, errors.StoreLocked),
)  # fmt: skip


# Topics.


def _setting(name: str, kind: Any) -> Shape:
    """A setting of a topic in JSON, by its type in `TopicChanges`."""
    if kind is bool:
        return Flag(default=LEFT_OUT)
    if kind in (int, int | None):
        return Whole(LEAST.get(name, 0), null=kind is not int, default=LEFT_OUT)
    if get_origin(kind) is Literal:
        return Text(*get_args(kind), default=LEFT_OUT)
    assert kind == Sequence[str], f"{name}: {kind} has no shape here"
    return Listing(Text(), most=100, default=LEFT_OUT)


TOPIC_CHANGES: Final[dict[str, Shape]] = {
    name: _setting(name, kind) for name, kind in get_type_hints(TopicChanges).items()
}
_TOPIC: Final = answer({"name": _NAME, "partitions": COUNT, "delayed": {"type": "boolean"}})

LIST_TOPICS: Final = HttpOperation(
    method="GET", path="/v1/topics", scope=Scope.LOOK, summary="The topics, by name, with their settings",
    answer=answer({"topics": rows_of(_TOPIC)}), filters=True,
)  # fmt: skip
CREATE_TOPICS: Final = HttpOperation(
    method="POST", path="/v1/topics", scope=Scope.MANAGE, summary="Make topics, all or none",
    body=Fields(
        {
            "names": Listing(Text(most=249), least=1, most=100_000),
            "partitions": Whole(1, PARTITIONS_MAX, default=1),
            "delayed": Flag(default=True),
            **TOPIC_CHANGES,
        }
    ),
    answer=answer({"topics": rows_of(_TOPIC)}), filters=True,
    errors=(errors.InvalidTopic, errors.TopicExists, errors.RemoteConflict),
)  # fmt: skip
SHOW_TOPIC: Final = HttpOperation(
    method="GET", path=_TOPIC_PATH, scope=Scope.LOOK, summary="The settings of a topic", answer=_TOPIC, errors=_UNKNOWN,
)  # fmt: skip
ALTER_TOPIC: Final = HttpOperation(
    method="PATCH", path=_TOPIC_PATH, scope=Scope.MANAGE,
    summary="Give a topic other settings; what is left out stays",
    body=Fields({"partitions": Whole(1, PARTITIONS_MAX, default=None, null=True), **TOPIC_CHANGES}),
    answer=_TOPIC, errors=(*_UNKNOWN, errors.InvalidTopic),
)  # fmt: skip
DELETE_TOPIC: Final = HttpOperation(
    method="DELETE", path=_TOPIC_PATH, scope=Scope.MANAGE, summary="Delete a topic and all that is of it",
    parameters=_FORCE, repeatable=False, errors=(*_UNKNOWN, errors.TopicBusy),
)  # fmt: skip
PURGE: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/purge", scope=Scope.MANAGE,
    summary="Remove what is due before a position, and what is pending if asked for",
    body=Fields(
        {
            "upto": position(default="latest"),
            "pending": Flag(default=False),
            "partition": PARTITION,
            "force": Flag(default=False),
        }
    ),
    answer=answer({"removed": COUNT}), repeatable=False,
    errors=(*_UNKNOWN, errors.TopicBusy, errors.OffsetOutOfRange, errors.ClockBehind),
)  # fmt: skip
CLEAN: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/clean", scope=Scope.MANAGE,
    summary="Write segments anew with what is still to come", body=Fields({"partition": PARTITION}),
    answer=answer({"freed_bytes": COUNT}), repeatable=False, errors=_UNKNOWN,
)  # fmt: skip
TOPIC_STATS: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/stats", scope=Scope.LOOK, summary="How its partitions and subscriptions stand",
    answer=answer(
        {
            "topic": _NAME,
            "partitions": rows_of({"type": "object"}),
            "subscriptions": rows_of({"type": "object"}),
            "now_ms": COUNT,
        }
    ),
    errors=_UNKNOWN,
)  # fmt: skip
HELD_BYTES: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/held", scope=Scope.LOOK, summary="What holds the bytes of a partition",
    parameters={"partition": Whole(0, 2**31 - 1, default=0)},
    answer={"type": "object", "additionalProperties": COUNT}, errors=_UNKNOWN,
)  # fmt: skip
_PAUSED: Final = Fields({"subscription": Text(default=None, null=True, most=249, about="this one; else the topic")})
PAUSE: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/pause", scope=Scope.MANAGE, summary="Hand out nothing, until it is resumed",
    body=_PAUSED, errors=(*_UNKNOWN, errors.UnknownSubscription),
)  # fmt: skip
RESUME: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/resume", scope=Scope.MANAGE, summary="Hand out again", body=_PAUSED,
    errors=(*_UNKNOWN, errors.UnknownSubscription),
)  # fmt: skip
POSITIONS: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/positions", scope=Scope.LOOK,
    summary="The delivery offsets from which a reader goes on that is sent to a position",
    body=Fields({"position": position(), "partitions": PARTITIONS}), answer=answer({"positions": OFFSETS}),
    errors=(*_UNKNOWN, errors.OffsetOutOfRange, errors.ClockBehind),
)  # fmt: skip


# Records in.

_ON_CONFLICT: Final = Text("raise", "keep", "replace", default="raise", about="where another one holds a unique key")
_SENDING: Final = (
    *_UNKNOWN, errors.InvalidRecord, errors.InvalidDeliverAfter, errors.RecordTooLarge, errors.InvalidTopic,
    errors.UniqueKeyConflict, errors.ProducerFenced, errors.OutOfOrderSequence,
    errors.BacklogQuotaExceeded, errors.TopicFull, errors.NotServed, errors.TopicDeleted,
)  # fmt: skip

SEND: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/records", scope=Scope.SEND,
    summary="Send records, all or none; answered when they are safe under the durability",
    body=Fields(
        {
            "records": Listing(Told(SENT)),
            "on_conflict": _ON_CONFLICT,
            "check_instants": Told(
                {"type": ["boolean", "null"]}, default=None, about="refuse instants that are surely wrong"
            ),
            "producer": Fields(
                {"id": Whole(), "epoch": Whole(0, EPOCH_MAX), "sequence": Whole(0, SEQUENCES - 1)},
                default=None, null=True, about="of an idempotent send: the same again gets the first answer",
            ),
            "partition": PARTITION,
        }
    ),
    arrow={
        "partition": PARTITION,
        "on_conflict": _ON_CONFLICT,
        "check_instants": Flag(default=None),
        "delay": Number(default=None, null=True, about="seconds, of all records"),
        "priority": Whole(default=None, null=True, about="of all records"),
        "producer_id": Whole(default=None, null=True),
        "producer_epoch": Whole(0, EPOCH_MAX, default=None, null=True),
        "sequence": Whole(0, SEQUENCES - 1, default=None, null=True),
    },
    answer=answer({"ids": rows_of(RECORD_ID)}), gives_arrow=True, repeatable=False, errors=_SENDING,
)  # fmt: skip
CANCEL: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/cancel", scope=Scope.SEND, summary="Cancel what is pending",
    body=Fields(
        {
            "ids": Listing(Told(RECORD_ID), default=None, null=True),
            "partition": PARTITION,
            "offsets": Listing(Told({"type": "integer", "minimum": 0}), default=None, null=True),
        }
    ),
    answer=answer({"results": rows_of({"enum": [each.name for each in CancelResult]})}),
    errors=(*_UNKNOWN, errors.InvalidRecord),
)  # fmt: skip
CANCEL_UNIQUE: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/cancel-unique", scope=Scope.SEND,
    summary="Cancel the pending record that holds a unique key",
    body=Fields({"unique_key": Told(BYTES), "partition": PARTITION}),
    answer=answer({"results": rows_of({"enum": [each.name for each in CancelResult]})}), repeatable=False,
    errors=(*_UNKNOWN, errors.InvalidRecord, errors.InvalidTopic),
)  # fmt: skip
RESCHEDULE: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/reschedule", scope=Scope.SEND, summary="Give a pending record another time",
    body=Fields(
        {
            "id": Told(RECORD_ID),
            "delay": Number(default=None, null=True, about="seconds from now"),
            "deliver_after": Told({"type": ["integer", "string", "null"]}, default=None),
        }
    ),
    answer=answer({"id": RECORD_ID}), repeatable=False, errors=(*_SENDING, errors.NotPending),
)  # fmt: skip

_PRODUCER: Final[dict[str, Shape]] = {
    "partition": Whole(), "producer_id": Whole(), "producer_epoch": Whole(0, EPOCH_MAX),
}  # fmt: skip
_PRODUCING: Final = (*_UNKNOWN, errors.ProducerFenced, errors.TopicDeleted)
NEXT_SEQUENCE: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/next-sequence", scope=Scope.SEND,
    summary="What a producer appends next to a partition", parameters=_PRODUCER,
    answer=answer({"sequence": COUNT}), errors=_PRODUCING,
)  # fmt: skip
APPENDED: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/appended", scope=Scope.SEND,
    summary="Where those records of an idempotent send are that are there",
    parameters={**_PRODUCER, "sequence": Whole(0, SEQUENCES - 1), "records": Whole(1, RECORDS_MAX, default=1)},
    answer=answer({"offsets": rows_of(COUNT)}), errors=(*_PRODUCING, errors.OutOfOrderSequence),
)  # fmt: skip


# What is scheduled, and what came of it.

_LIMIT: Final = Whole(0, RECORDS_MAX, default=100)
_SCHEDULE: Final = answer({"name": {"type": "string"}, "topic": {"type": "string"}, "paused": {"type": "boolean"}})
_SCHEDULING: Final = (
    *_UNKNOWN, errors.InvalidSchedule, errors.ScheduleExists, errors.InvalidRecord, errors.RecordTooLarge,
    errors.InvalidTopic, errors.UnknownSchedule, errors.NotServed,
)  # fmt: skip
_SCHEDULE_CHANGES: Final[dict[str, Shape]] = {
    "cron": Text(default=LEFT_OUT),
    "timezone": Text(default=LEFT_OUT),
    "every_s": Number(default=LEFT_OUT),
    "value": Told(BYTES, default=LEFT_OUT),
    "key": Told(BYTES, default=LEFT_OUT),
    "headers": Told(HEADERS, default=LEFT_OUT),
    "missed": Text("skip", "one", "all", default=LEFT_OUT),
}

PENDING: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/pending", scope=Scope.LOOK, summary="What is due next, of all or of one key",
    parameters={
        "limit": _LIMIT,
        "key": Text(default=None, null=True, most=4_000, about="text, or base64:…"),
        "partition": PARTITION,
        "after": Whole(default=None, null=True, about="due at or after, ms since the epoch"),
        "before": Whole(default=None, null=True, about="due before, ms since the epoch"),
    },
    answer=answer({"records": rows_of(SCHEDULED), "now_ms": INSTANT}), errors=_UNKNOWN,
)  # fmt: skip
HISTOGRAM: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/histogram", scope=Scope.LOOK, summary="What is pending by when it is due",
    parameters={
        "bars": Whole(1, 1_000, default=20),
        "from": Whole(default=None, null=True, about="ms since the epoch"),
        "to": Whole(default=None, null=True, about="ms since the epoch"),
    },
    answer=answer({"bars": rows_of({**rows_of(COUNT), "minItems": 3, "maxItems": 3}), "now_ms": INSTANT}),
    errors=_UNKNOWN,
)  # fmt: skip
_LETTERS: Final[dict[str, Shape]] = {
    "subscription": Text(default=None, null=True, most=249, about="only what this one gave up"),
    "reason": Text(default=None, null=True, most=1_000, about="only where the reason has this in it"),
}
_NAMED_LETTERS: Final[dict[str, Shape]] = {
    "limit": Whole(default=None, null=True),
    "records": Listing(Told(RECORD_ID), default=None, null=True, about="only these, by their own ids"),
    **_LETTERS,
}
DEAD_LETTERS: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/dead-letters", scope=Scope.LOOK, summary="Dead letters that were not sent back",
    parameters={"limit": _LIMIT, **_LETTERS},
    answer=answer({"dead_letters": rows_of(answer({"message": MESSAGE, "origin": {"type": "object"}}))}),
    errors=(*_UNKNOWN, errors.ClockBehind),
)  # fmt: skip
REDRIVE: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/redrive", scope=Scope.MANAGE, summary="Send dead letters back",
    body=Fields(
        {
            **_NAMED_LETTERS,
            "target": Text(default=None, null=True, most=249),
            "value": Told(BYTES, default=LEFT_OUT, about="of one, in place of its own"),
            "rate": Number(default=None, null=True, about="records a second"),
        }
    ),
    answer=answer({"redriven": COUNT, "left": {"type": "object"}}), repeatable=False,
    errors=(*_UNKNOWN, errors.InvalidTopic, errors.ClockBehind, errors.InvalidArgument, errors.InvalidRecord),
)  # fmt: skip
DISCARD_DEAD_LETTERS: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/discard-dead-letters", scope=Scope.MANAGE, summary="Let dead letters go",
    body=Fields(_NAMED_LETTERS), answer=answer({"discarded": COUNT}), repeatable=False,
    errors=(*_UNKNOWN, errors.ClockBehind, errors.InvalidRecord),
)  # fmt: skip
LIST_SCHEDULES: Final = HttpOperation(
    method="GET", path="/v1/schedules", scope=Scope.LOOK, summary="Recurring schedules, by name", filters=True,
    parameters={"topic": Text(default=None, null=True, most=249)}, answer=answer({"schedules": rows_of(_SCHEDULE)}),
    errors=_UNKNOWN,
)  # fmt: skip
CREATE_SCHEDULE: Final = HttpOperation(
    method="POST", path="/v1/schedules", scope=Scope.SEND, summary="Send a record again and again", filters=True,
    body=Fields({"topic": Text(most=249), "name": Text(most=249), **_SCHEDULE_CHANGES, "partition": PARTITION}),
    answer=_SCHEDULE, errors=_SCHEDULING,
)  # fmt: skip
CHANGE_SCHEDULE: Final = HttpOperation(
    method="PATCH", path=_SCHEDULE_PATH, scope=Scope.SEND, summary="Give a schedule other settings", filters=True,
    body=Fields(_SCHEDULE_CHANGES), answer=_SCHEDULE, errors=_SCHEDULING,
)  # fmt: skip
PAUSE_SCHEDULE: Final = HttpOperation(
    method="POST", path=f"{_SCHEDULE_PATH}/pause", scope=Scope.SEND, summary="Cancel its record, and append no other",
    filters=True, answer=_SCHEDULE, errors=_SCHEDULING,
)  # fmt: skip
RESUME_SCHEDULE: Final = HttpOperation(
    method="POST", path=f"{_SCHEDULE_PATH}/resume", scope=Scope.SEND, summary="Go on with what comes after now",
    filters=True, answer=_SCHEDULE, errors=_SCHEDULING,
)  # fmt: skip
SEND_SCHEDULE: Final = HttpOperation(
    method="POST", path=f"{_SCHEDULE_PATH}/send", scope=Scope.SEND, summary="Send a record of it now", filters=True,
    body=NOTHING, answer=answer({"id": RECORD_ID}), repeatable=False, errors=(*_SCHEDULING, *_SENDING),
)  # fmt: skip
REMOVE_SCHEDULE: Final = HttpOperation(
    method="DELETE", path=_SCHEDULE_PATH, scope=Scope.SEND, summary="Cancel its record, and forget it", filters=True,
    repeatable=False, errors=_SCHEDULING,
)  # fmt: skip


# Records out, by position.

_FETCHED: Final = answer(
    {"records": rows_of(MESSAGE), "positions": OFFSETS, "high_watermarks": OFFSETS, "now_ms": INSTANT}
)
_FETCHING: Final = (*_UNKNOWN, errors.OffsetOutOfRange, errors.ClockBehind)
_FETCH_MAX: Final = Whole(1, RECORDS_MAX, default=500)

FETCH: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/fetch", scope=Scope.LOOK,
    summary="Due records from delivery offsets on, in due order; waits where nothing is due",
    body=Fields(
        {
            "positions": ByName(Whole(), names="^[0-9]{1,10}$", about="delivery offsets by partition, as text"),
            "max_records": _FETCH_MAX,
            "max_bytes": Whole(1, ANSWER_BYTES_MAX, default=16 << 20),
            "wait_ms": WAIT_MS,
        }
    ),
    answer=_FETCHED, gives_arrow=True, errors=_FETCHING,
)  # fmt: skip
RECORDS: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/records", scope=Scope.LOOK,
    summary="Due records of one partition, from a position on",
    parameters={
        "partition": Whole(0, 2**31 - 1, default=0),
        "position": Text(default="earliest", about=POSITION_SCHEMA["description"]),
        "max_records": _FETCH_MAX,
        "wait_ms": WAIT_MS,
    },
    answer=_FETCHED, gives_arrow=True, errors=_FETCHING,
)  # fmt: skip


# Consumer groups.

_CLAIM: Final = Text(most=64, about="random, by the client: what tells its claim from others")
_COMMITTED: Final = {"type": "object", "additionalProperties": {"type": ["integer", "null"]}}

LIST_GROUPS: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/groups", scope=Scope.LOOK, summary="The groups that have committed a position",
    answer=answer({"groups": _NAMES}), errors=_UNKNOWN,
)  # fmt: skip
SHOW_GROUP: Final = HttpOperation(
    method="GET", path=_GROUP_PATH, scope=Scope.LOOK, summary="Where a group stands",
    answer=answer({"committed": _COMMITTED, "high_watermarks": OFFSETS, "lag": COUNT}),
    errors=(*_UNKNOWN, errors.UnknownGroup),
)  # fmt: skip
CLAIM: Final = HttpOperation(
    method="PUT", path=f"{_GROUP_PATH}/claim", scope=Scope.RECEIVE, summary="Read partitions for a group, for a while",
    body=Fields({"claim": _CLAIM, "partitions": PARTITIONS, "ttl_ms": Whole(1_000, 3_600_000, default=45_000)}),
    answer=answer({"committed": _COMMITTED, "ttl_ms": COUNT}),
    errors=(*_UNKNOWN, errors.GroupBusy, errors.NameTaken, errors.InvalidTopic),
)  # fmt: skip
RELEASE_CLAIM: Final = HttpOperation(
    method="DELETE", path=f"{_GROUP_PATH}/claim", scope=Scope.RECEIVE, summary="Read for it no more",
    parameters={"claim": Text(most=64)}, errors=_UNKNOWN,
)  # fmt: skip
COMMIT: Final = HttpOperation(
    method="POST", path=f"{_GROUP_PATH}/commit", scope=Scope.RECEIVE, summary="Commit positions, and renew the claim",
    body=Fields({"claim": _CLAIM, "positions": ByName(Whole(), names="^[0-9]{1,10}$")}),
    errors=(*_UNKNOWN, errors.GroupBusy, errors.OffsetOutOfRange),
)  # fmt: skip
RESET_GROUP: Final = HttpOperation(
    method="POST", path=f"{_GROUP_PATH}/reset", scope=Scope.MANAGE, summary="Let a group go on at a position",
    body=Fields({"position": position()}),
    errors=(*_UNKNOWN, errors.UnknownGroup, errors.GroupBusy, errors.OffsetOutOfRange),
)  # fmt: skip
DELETE_GROUP: Final = HttpOperation(
    method="DELETE", path=_GROUP_PATH, scope=Scope.MANAGE, summary="Delete a group's positions", parameters=_FORCE,
    repeatable=False, errors=(*_UNKNOWN, errors.UnknownGroup, errors.GroupBusy),
)  # fmt: skip


# Subscriptions.

_RECEIPTS: Final = Listing(Told(RECEIPT))
_REASON: Final = Text(default="", most=4_000)
_DONE: Final = answer({"done": COUNT, "stale": COUNT, "deadline_ms": COUNT, "now_ms": INSTANT})
_OPENING: Final = (
    *_UNKNOWN, errors.InvalidSubscription, errors.InvalidTopic, errors.NameTaken, errors.OffsetOutOfRange,
    errors.ClockBehind, errors.TopicDeleted,
)  # fmt: skip

LIST_SUBSCRIPTIONS: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/subscriptions", scope=Scope.LOOK, summary="The subscriptions to a topic",
    answer=answer({"subscriptions": _NAMES}), errors=(errors.UnknownTopic,),
)  # fmt: skip
SHOW_SUBSCRIPTION: Final = HttpOperation(
    method="GET", path=_SUBSCRIPTION_PATH, scope=Scope.LOOK, summary="How a subscription stands",
    answer=answer(
        {
            **dict.fromkeys(("pending", "due", "leased", "retrying", "acked"), COUNT),
            "paused": {"type": "boolean"},
            "partitions": {"type": "object"},
            "now_ms": INSTANT,
        }
    ),
    errors=(errors.UnknownTopic, errors.UnknownSubscription),
)  # fmt: skip
LEASED_RECORDS: Final = HttpOperation(
    method="GET", path=f"{_SUBSCRIPTION_PATH}/leased", scope=Scope.LOOK, summary="What its readers have",
    parameters={"limit": _LIMIT}, answer=answer({"leased": rows_of(LEASED), "now_ms": INSTANT}),
    errors=(*_UNKNOWN, errors.UnknownSubscription),
)  # fmt: skip
OPEN_SUBSCRIPTION: Final = HttpOperation(
    method="PUT", path=_SUBSCRIPTION_PATH, scope=Scope.RECEIVE, summary="Make a subscription, where it is new",
    body=Fields({"reader": READER}), answer=answer({"partitions": rows_of(COUNT), "now_ms": INSTANT}), errors=_OPENING,
)  # fmt: skip
RECEIVE: Final = HttpOperation(
    method="POST", path=f"{_SUBSCRIPTION_PATH}/receive", scope=Scope.RECEIVE,
    summary="Lease due records; waits where nothing is due. Makes the subscription where it is new",
    body=Fields({"max_records": Whole(1, RECORDS_MAX, default=100), "wait_ms": WAIT_MS, "reader": READER}),
    answer=answer({"messages": rows_of(LEASED), "now_ms": INSTANT}), gives_arrow=True, repeatable=False,
    errors=_OPENING,
)  # fmt: skip


_OUTCOMES: Final = {
    "type": "array", "items": {"enum": ["acked", "already", "unknown"]},
    "description": "of each of a few receipts, where they are not all acked",
}  # fmt: skip


def _settling(word: str, summary: str, said: dict[str, Any] = _DONE, **more: Shape) -> HttpOperation:
    """Of leases, by their receipts, which may come as columns."""
    beside = {**more, "reader": READER}
    return HttpOperation(
        method="POST", path=f"{_SUBSCRIPTION_PATH}/{word}", scope=Scope.RECEIVE, summary=summary,
        body=Fields({"receipts": _RECEIPTS, **beside}), arrow=beside, answer=said,
        errors=(*_OPENING, errors.UnknownSubscription, errors.InvalidReceipt),
    )  # fmt: skip


ACK: Final = _settling(
    "ack", "They are done with",
    answer(
        {"acked": COUNT, "already": COUNT, "unknown": COUNT, "now_ms": INSTANT, "outcomes": _OUTCOMES},
        needed=("acked", "already", "unknown", "now_ms"),
    ),
)  # fmt: skip
NACK: Final = _settling(
    "nack", "They failed, and come again, or go to the dead letters",
    delay=Number(default=None, null=True, about="seconds; by default the retry policy's"), reason=_REASON,
)  # fmt: skip
REJECT: Final = _settling("reject", "They can never be worked off: to the dead letters", reason=_REASON)
RELEASE: Final = _settling("release", "Give them back, to go out again at once, uncounted")
EXTEND: Final = _settling("extend", "Lease them for longer", lease_ms=Whole(1, default=None, null=True))
SEEK: Final = HttpOperation(
    method="POST", path=f"{_SUBSCRIPTION_PATH}/seek", scope=Scope.RECEIVE,
    summary="Read on from a position, for all readers",
    body=Fields({"position": position(), "partition": PARTITION, "reader": READER}),
    errors=(*_OPENING, errors.UnknownSubscription),
)  # fmt: skip
RESET_SUBSCRIPTION: Final = HttpOperation(
    method="POST", path=f"{_SUBSCRIPTION_PATH}/reset", scope=Scope.MANAGE,
    summary="The same of a subscription at rest", body=Fields({"position": position(), "delay_ms": Whole(default=0)}),
    errors=(*_OPENING, errors.UnknownSubscription),
)  # fmt: skip
DELETE_SUBSCRIPTION: Final = HttpOperation(
    method="DELETE", path=_SUBSCRIPTION_PATH, scope=Scope.MANAGE, summary="Delete a subscription and all that it knows",
    parameters=_FORCE, repeatable=False, errors=(errors.UnknownTopic, errors.UnknownSubscription, errors.TopicBusy),
)  # fmt: skip


# What the page and `afterlog top` look at.

SORTS: Final = ("name", "pending", "next_due", "due", "lag", "retrying", "dead", "sent", "bytes")
_PAGE_ROWS: Final = Whole(1, 500, default=50)
_COUNTS: Final = {
    "next_due": {"type": ["integer", "null"]},
    "lateness_up_to": {
        "type": "array", "items": COUNT, "minItems": len(LATENESS_EDGES_MS) + 1,
        "description": "how many records were handed out no later than each edge; last, how many there were",
    },
    **dict.fromkeys(("pending", "due", "sent", "became_due", "handed_out", "bytes", "segments"), COUNT),
    **{name: {**COUNT, "description": "of subscriptions with a reader"} for name in ("leased", "retrying", "dead")},
}  # fmt: skip
_OVERVIEW_ROW: Final = answer(
    {
        "topic": {"type": "string"},
        "partitions": COUNT,
        "delayed": {"type": "boolean"},
        "paused": {"type": "boolean"},
        "lag": {"type": ["integer", "null"]},
        "unreadable": {"type": ["string", "null"]},
        **_COUNTS,
    }
)

LIVE: Final = HttpOperation(
    method="GET", path="/livez", scope=None, summary="It runs", answer=answer({"live": {"type": "boolean"}}),
)  # fmt: skip
READY: Final = HttpOperation(
    method="GET", path="/readyz", scope=None, summary="It takes work", answer=answer({"ready": {"type": "boolean"}}),
    errors=(errors.StoreClosed,),
)  # fmt: skip
METRICS: Final = HttpOperation(
    method="GET", path="/metrics", scope=Scope.LOOK, summary="Metrics for Prometheus",
    parameters={"detail": Text("topic", "partition", default="topic", about="how much of each topic")},
    answer={"type": "string"}, media_type="text/plain; version=0.0.4; charset=utf-8", errors=(errors.NotServed,),
)  # fmt: skip
OVERVIEW: Final = HttpOperation(
    method="GET", path="/v1/overview", scope=Scope.LOOK, summary="How all topics stand, a page at a time", filters=True,
    parameters={
        "filter": Text(default="", most=249, about="only topics whose name has it"),
        "topic": Text(default=None, null=True, most=249, about="only this one"),
        "sort": Text(*SORTS, default="name"),
        "descending": Flag(default=False),
        "offset": Whole(default=0),
        "limit": _PAGE_ROWS,
    },
    answer=answer(
        {
            "now_ms": INSTANT,
            "all": COUNT,
            "matching": COUNT,
            "totals": answer(_COUNTS),
            "lateness_edges_ms": rows_of(COUNT),
            "topics": rows_of(_OVERVIEW_ROW),
        }
    ),
    errors=(errors.UnknownTopic,),
)  # fmt: skip
FIND: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/find", scope=Scope.LOOK,
    summary="Records that are pending or due, by key or time, a page at a time, with values cut",
    parameters={
        "state": Text("pending", "due", default="pending"),
        "key": Text(default=None, null=True, most=4_000, about="text, or base64:…"),
        "from": Whole(default=None, null=True, about="due at or after, ms since the epoch"),
        "partition": PARTITION,
        "after": Text(default=None, null=True, most=64, about="as the page before gave it"),
        "limit": _PAGE_ROWS,
    },
    answer=answer(
        {
            "records": rows_of(
                answer(
                    {
                        "id": RECORD_ID,
                        "partition": COUNT,
                        "offset": COUNT,
                        "due": INSTANT,
                        "key": BYTES,
                        "value": BYTES,
                        "value_bytes": {
                            "type": ["integer", "null"], "description": "of the whole value, which is cut here"
                        },
                    }
                )
            ),
            "after": {"type": ["string", "null"]},
            "looked_at": COUNT,
            "now_ms": INSTANT,
        }
    ),
    errors=(*_UNKNOWN, errors.InvalidArgument, errors.OffsetOutOfRange),
)  # fmt: skip
SHOW_RECORD: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/record", scope=Scope.LOOK,
    summary="One record, whole, and its state: that of an id, or the pending one that holds a unique key",
    parameters={
        "id": Text(default=None, null=True, most=300),
        "unique_key": Text(default=None, null=True, most=2_000, about="text, or base64:…"),
        "partition": PARTITION,
    },
    answer=answer(
        {"record": {"anyOf": [SCHEDULED, {"type": "null"}]}, "state": {"enum": [*get_args(RecordState), None]},
         "now_ms": INSTANT}
    ),
    errors=(*_UNKNOWN, errors.InvalidRecord, errors.InvalidTopic, errors.OffsetOutOfRange),
)  # fmt: skip


# Other clusters.

COPIED: Final = (
    "max_delay_ms", "retention_ms", "retention_bytes", "check_instants", "segment_ms", "retention_by_subscriptions",
    "backlog_quota_bytes", "backlog_quota_ms", "backlog_quota_policy", "max_pending", "max_bytes",
    "expires_after_ms", "on_expiry", "priorities", "subscription_expiration_ms",
)  # fmt: skip
"""What a topic is made with that comes from elsewhere; from then on it is each cluster's own. Where its segments lie,
and what interceptors there are, is so from the beginning."""
_REPLICATED_TOPIC: Final = answer({"name": _NAME, "ends": rows_of(COUNT), "settings": {"type": "object"}})
_REPLICATING: Final = (*_UNKNOWN, errors.InvalidTopic, errors.TopicDeleted)

REPLICABLE_TOPICS: Final = HttpOperation(
    method="GET", path="/v1/replication/topics", scope=Scope.REPLICATE,
    summary="The topics that can be replicated, and where they end", filters=True,
    answer=answer({"topics": rows_of(_REPLICATED_TOPIC)}),
)  # fmt: skip
REPLICATION_STANDING: Final = HttpOperation(
    method="GET", path="/v1/replication/standing", scope=Scope.LOOK, filters=True,
    summary="How far this cluster is behind others, and what became of its snapshots",
    answer=answer({"behind": {"type": "array"}, "snapshots": {"type": "array"}}),
)  # fmt: skip
REPLICATION_TICK: Final = HttpOperation(
    method="POST", path="/v1/replication/tick", scope=Scope.REPLICATE, body=NOTHING,
    summary="Tell other clusters what was acked of replicated subscriptions",
)  # fmt: skip
PREPARE_TOPIC: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/prepare", scope=Scope.REPLICATE,
    summary="Make the topic as another cluster has it, or give it as many partitions",
    body=Fields(
        {
            "partitions": Whole(1, PARTITIONS_MAX),
            "delayed": Flag(),
            "topic_id": Text(most=64),
            **{name: TOPIC_CHANGES[name] for name in COPIED},
        }
    ),
    answer=_REPLICATED_TOPIC, errors=_REPLICATING,
)  # fmt: skip
UPCOMING: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/replicated", scope=Scope.REPLICATE,
    summary="By partition, the offset after the highest that is here of an origin",
    parameters={"origin": Text(most=128)}, answer=answer({"upcoming": rows_of(COUNT)}), errors=_REPLICATING,
)  # fmt: skip
GIVE_SLICE: Final = HttpOperation(
    method="GET", path=f"{_TOPIC_PATH}/slice", scope=Scope.REPLICATE,
    summary="What was appended here first, from an offset on",
    parameters={"partition": Whole(), "first": Whole(), "max_bytes": Whole(1, ANSWER_BYTES_MAX)},
    answer={"type": "string", "format": "binary"}, media_type=SLICE, errors=_REPLICATING,
)  # fmt: skip
TAKE_SLICE: Final = HttpOperation(
    method="POST", path=f"{_TOPIC_PATH}/slice", scope=Scope.REPLICATE,
    summary="Append what is not here of a slice of another cluster's log",
    body=NOTHING, arrow={"partition": Whole()}, data_type=SLICE, answer=answer({"records": COUNT}),
    errors=(
        *_REPLICATING, errors.InvalidBatch, errors.ReplicationDiverged, errors.RecordTooLarge, errors.UnsupportedCodec,
    ),
)  # fmt: skip
