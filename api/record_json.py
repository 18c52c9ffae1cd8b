"""Records in JSON: what is sent, and what is received.

    {"value": "water the plants", "key": "u-1", "headers": {"a": "b"}, "delay": 30}
    {"value": {"base64": "/wA="}, "deliver_after": "2030-01-31T08:00:00Z", "partition": 1}

    {"id": "mail-0@3", "topic": "mail", "partition": 0, "offset": 3, "delivery_offset": 2, "key": "u-1",
     "value": "water the plants", "headers": [["a", "b"]], "timestamp": …, "broker_timestamp": …, "deliver_after": …,
     "due": …}

Bytes are as `byte_text` has them. Sent: all but `value` can be left out; delay in seconds, deliver_after in epoch ms or
ISO 8601 with a zone, neither for as soon as possible; expires_after in seconds from when it is due. Received: instants
in epoch ms; a leased record has `receipt`, `redelivery_count`, `delivery_count` and `deadline_ms` beside. No numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from afterlog.api.byte_text import bytes_of, headers_of, text_or_base64
from afterlog.api.receipt import Receipt
from afterlog.base.errors import InvalidRecord
from afterlog.fetch.message import Message, RecordState, ScheduledRecord, StoredRecord
from afterlog.records.expiry import expiring

if TYPE_CHECKING:
    from afterlog.records.batch import Headers

_SENT = frozenset(
    ("value", "key", "headers", "delay", "deliver_after", "partition", "unique_key", "expires_after", "priority")
)
OURS = "afterlog-"
"""So names of headers begin that the store writes itself."""
_NUMBERS = ("partition", "offset", "timestamp", "broker_timestamp", "deliver_after", "due")
_BYTES = ("key", "value")


class SentRecord(NamedTuple):
    """A record as a client sends it. delay: seconds; deliver_after: epoch ms or ISO 8601."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    delay: float | None = None
    deliver_after: int | str | None = None
    partition: int | None = None
    unique_key: bytes | None = None
    priority: int | None = None

    def to_row(self) -> dict[str, Any]:
        """As JSON has it."""
        row: dict[str, Any] = {"value": text_or_base64(self.value)}
        if self.key is not None:
            row["key"] = text_or_base64(self.key)
        if self.headers:
            row["headers"] = _headers(self.headers)
        if self.unique_key is not None:
            row["unique_key"] = text_or_base64(self.unique_key)
        for name in ("delay", "deliver_after", "partition", "priority"):
            if (value := getattr(self, name)) is not None:
                row[name] = value
        return row


def clients_headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """These, which somebody else wants to have sent. ValueError where one says what only the store may say: by such
    headers it knows again what has died, and which occurrences of a schedule are in the log.
    """
    for name, _ in headers:
        if name.startswith(OURS):
            raise ValueError(f"the header {name!r:.60} is not for clients: leave out those that begin with {OURS}")
    return tuple(headers)


def sent_record(row: object) -> SentRecord:
    """Raises InvalidRecord where JSON has no record here. What the times say is checked where they are read."""
    try:
        if not isinstance(row, dict) or not row.keys() <= _SENT or "value" not in row:
            raise ValueError(f"a record is an object with value, and of {', '.join(sorted(_SENT))} only")
        return SentRecord(
            value=bytes_of(row["value"]),
            key=bytes_of(row.get("key")),
            headers=_expiring(clients_headers(headers_of(headers)) if (headers := row.get("headers")) else (), row),
            delay=_typed(row, "delay", int | float),
            deliver_after=_typed(row, "deliver_after", int | str),
            partition=_typed(row, "partition", int),
            unique_key=bytes_of(row.get("unique_key")),
            priority=_typed(row, "priority", int),
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRecord(str(error)) from None


def _expiring(
    headers: tuple[tuple[str, bytes | None], ...], row: dict[str, Any]
) -> tuple[tuple[str, bytes | None], ...]:
    expires_after = _typed(row, "expires_after", int | float)
    return headers if expires_after is None else tuple(expiring(headers, expires_after))


def message_row(message: Message | ScheduledRecord) -> dict[str, Any]:
    """A record as JSON has it; of a leased one its receipt, too."""
    row: dict[str, Any] = {"id": str(message.id), "topic": message.topic}
    row |= {name: getattr(message, name) for name in _NUMBERS}
    row |= {name: text_or_base64(getattr(message, name)) for name in _BYTES}
    row["headers"] = _headers(message.headers)
    if isinstance(message, Message):
        row["delivery_offset"] = message.delivery_offset
        number = getattr(message, "lease_number", None)
        if number is not None:
            row["receipt"] = str(Receipt(message.partition, message.offset, message.delivery_offset, number))
            row |= {name: getattr(message, name) for name in ("redelivery_count", "delivery_count", "deadline_ms")}
    return row


def message_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ScheduledRecord`, by name. ValueError, KeyError, TypeError where the row is no record."""
    fields: dict[str, Any] = {name: _whole(row, name) for name in _NUMBERS}
    fields |= {name: bytes_of(row[name]) for name in _BYTES}
    return {"topic": str(row["topic"]), "headers": headers_of(row["headers"]), **fields}


def message_of(row: Mapping[str, Any]) -> Message:
    """A delivered record. Raises as `message_fields`."""
    return Message(delivery_offset=_whole(row, "delivery_offset"), **message_fields(row))


def stored_of(row: Mapping[str, Any]) -> StoredRecord:
    """A record and its state. Raises as `message_fields`."""
    if row["state"] not in get_args(RecordState):
        raise ValueError(f"{row['state']!r:.100} is no state of a record")
    return StoredRecord(state=row["state"], **message_fields(row["record"]))


def scheduled_of(row: Mapping[str, Any]) -> ScheduledRecord:
    """A pending record. Raises as `message_fields`."""
    return ScheduledRecord(**message_fields(row))


def _headers(headers: tuple[tuple[str, bytes | None], ...]) -> list[list[Any]]:
    return [[name, text_or_base64(value)] for name, value in headers]


def _whole(row: Mapping[str, Any], name: str) -> int:
    value = row[name]
    if type(value) is not int:
        raise ValueError(f"{name} is a whole number, not {value!r:.60}")
    return value


def _typed(row: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = row.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        raise ValueError(f"{name} cannot be {value!r:.60}")
    return value
