"""JSON Schemas that several endpoints share: names, instants, positions, records, receipts, readers."""

from __future__ import annotations

from typing import Any, Final

from afterlog.api.schema import Fields, Listing, Number, Shape, Told, Whole

RECORDS_MAX: Final = 65_536
"""That one answer has."""
WAIT_MS_MAX: Final = 600_000
NAME_PATTERN: Final = "^(?!-)[a-zA-Z0-9._-]{1,249}$"

BYTES: Final[dict[str, Any]] = {
    "oneOf": [
        {"type": "string"},
        {"type": "object", "properties": {"base64": {"type": "string", "format": "byte"}}, "required": ["base64"],
         "additionalProperties": False},
        {"type": "null"},
    ],
    "description": "text where it is UTF-8, else base64",
}  # fmt: skip
INSTANT: Final[dict[str, Any]] = {"type": "integer", "description": "ms since the epoch, UTC"}
COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0}
OFFSETS: Final[dict[str, Any]] = {
    "type": "object", "additionalProperties": COUNT, "description": "delivery offsets by partition, as text"
}  # fmt: skip
RECORD_ID: Final[dict[str, Any]] = {"type": "string", "description": "as in mail-0@1042"}
HEADERS: Final[dict[str, Any]] = {
    "description": "an object, or a list of pairs where a name is there twice",
    "oneOf": [
        {"type": "object", "additionalProperties": BYTES},
        {"type": "array", "items": {"type": "array", "prefixItems": [{"type": "string"}, BYTES],
                                    "minItems": 2, "maxItems": 2}},
    ],
}  # fmt: skip
SENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "value": BYTES, "key": BYTES, "headers": HEADERS,
        "delay": {"type": ["number", "null"], "minimum": 0, "description": "seconds from now"},
        "deliver_after": {"type": ["integer", "string", "null"], "description": "epoch ms, or ISO 8601 with a zone"},
        "partition": {"type": ["integer", "null"], "minimum": 0}, "unique_key": BYTES,
        "expires_after": {"type": ["number", "null"], "description": "seconds from when it is due"},
        "priority": {"type": ["integer", "null"], "minimum": 0, "description": "of those that the topic has"},
    },
    "required": ["value"],
    "additionalProperties": False,
}  # fmt: skip
SCHEDULED: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": RECORD_ID, "topic": {"type": "string"}, "partition": COUNT, "offset": COUNT, "key": BYTES, "value": BYTES,
        "headers": {"type": "array", "items": {"type": "array"}}, "timestamp": INSTANT, "broker_timestamp": INSTANT,
        "deliver_after": INSTANT, "due": INSTANT,
    },
    "required": ["id", "topic", "partition", "offset", "key", "value", "headers", "due"],
}  # fmt: skip
MESSAGE: Final[dict[str, Any]] = {
    **SCHEDULED, "properties": {**SCHEDULED["properties"], "delivery_offset": COUNT}
}  # fmt: skip
RECEIPT: Final[dict[str, Any]] = {
    "type": "string", "pattern": r"^[0-9]{1,10}\.(-1|[0-9]{1,19})\.[0-9]{1,19}\.[0-9]{1,19}$",
    "description": "as receive gave it",
}  # fmt: skip
LEASED: Final[dict[str, Any]] = {
    **MESSAGE,
    "properties": {
        **MESSAGE["properties"],
        "receipt": RECEIPT,
        "redelivery_count": COUNT,
        "delivery_count": COUNT,
        "deadline_ms": INSTANT,
    },
}
POSITION_SCHEMA: Final[dict[str, Any]] = {
    "type": ["integer", "string"],
    "description": "earliest, latest, a delivery offset, time:…, broker-time:… or after:…",
}


def position(**more: Any) -> Shape:
    """As `position_text` has it."""
    return Told(POSITION_SCHEMA, **more)


WAIT_MS: Final = Whole(0, WAIT_MS_MAX, default=0, about="how long to wait where nothing is due")
PARTITION: Final = Whole(0, 2**31 - 1, default=None, null=True)
PARTITIONS: Final = Listing(Whole(0, 2**31 - 1), least=1, most=100_000, default=None, null=True)
RETRY: Final = Fields(
    {
        "first_ms": Whole(default=1_000),
        "factor": Number(default=2.0),
        "max_ms": Whole(default=600_000),
        "jitter": Number(default=0.1),
        "attempts": Whole(1, default=16, null=True),
    },
    default=None,
    null=True,
    about="exponential backoff of what failed",
)
