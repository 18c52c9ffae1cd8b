"""Where a dead letter comes from: six headers, after those that the record had.

    afterlog-dead-letter-topic             mail
    afterlog-dead-letter-partition         0
    afterlog-dead-letter-offset            1042             in append order: with the two above the record's id
    afterlog-dead-letter-subscription      sender
    afterlog-dead-letter-reason            ConnectionRefusedError: [Errno 111] Connection refused
    afterlog-dead-letter-redelivery-count  8                deliveries that failed

All are ASCII; of the reason the first REASON_CHARACTERS, anything else in it escaped as Python does. Only the last six
headers count: a dead letter that dies again, in a subscription of the dead letters, has two origins one after another.
"""

from __future__ import annotations

from dataclasses import dataclass

from afterlog.fetch.record_id import RecordId
from afterlog.records.batch import Headers

REASON_CHARACTERS = 1_000
PREFIX = "afterlog-dead-letter-"
_NAMES = tuple(PREFIX + name for name in ("topic", "partition", "offset", "subscription", "reason", "redelivery-count"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which record of which subscription died, of what, and after how many failed deliveries."""

    record: RecordId
    subscription: str
    reason: str
    """As `ascii_of` makes it."""
    redelivery_count: int

    @property
    def identity(self) -> tuple[RecordId, str]:
        """By which it is found again."""
        return self.record, self.subscription

    def to_headers(self) -> tuple[tuple[str, bytes | None], ...]:
        record = self.record
        count = self.redelivery_count
        texts = (record.topic, record.partition, record.offset, self.subscription, self.reason, count)
        return tuple((name, str(text).encode("ascii")) for name, text in zip(_NAMES, texts, strict=True))


def ascii_of(reason: str) -> str:
    """The reason as headers have it: one line of ASCII, not too long."""
    return reason[:REASON_CHARACTERS].encode("unicode_escape").decode("ascii")[:REASON_CHARACTERS]


def origin_of(headers: Headers) -> tuple[Headers, Origin | None]:
    """The headers that a dead letter had before, and its origin; None where the record is no dead letter."""
    own, ours = headers[: -len(_NAMES)], headers[-len(_NAMES) :]
    if tuple(name for name, _ in ours) != _NAMES:
        return headers, None
    try:
        topic, partition, offset, subscription, reason, count = ((value or b"").decode("ascii") for _, value in ours)
        record = RecordId(topic, int(partition), int(offset))
        return own, Origin(record=record, subscription=subscription, reason=reason, redelivery_count=int(count))
    except ValueError:  # somebody else's
        return headers, None
