"""One record as a consumer sees it, and as a look at the schedule does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from afterlog.base.payload import object_of
from afterlog.fetch.record_id import RecordId

RecordState: TypeAlias = Literal["pending", "due", "cancelled"]
"""Whether a record is still to come, may have been delivered, or never will be.

"cancelled" from the answer to the cancel on. Lists and counts of what is pending leave it out once that is synced,
which with a durability of an interval is later.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRecord:
    """A pending record, as `store.pending` shows it. The fields are those of `Message`; its rank is not final yet."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    broker_timestamp: int
    deliver_after: int
    due: int

    @property
    def id(self) -> RecordId:
        return RecordId(self.topic, self.partition, self.offset)

    def json(self) -> Any:
        """What the value says, where it is JSON; None where the record has no value. Raises InvalidRecord."""
        return object_of(self.value, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord(ScheduledRecord):
    """A record of the log, as `store.get` finds it."""

    state: RecordState


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A delivered record.

    offset: place in append order, the record's identity; delivery_offset: rank in delivery order; timestamp: the
    producer's, ms; broker_timestamp: when the log appended it, ms (-1 where a FIFO topic has none); deliver_after: as
    asked, ms (the time of the append where none was asked); due: the effective deliver_after, ms.
    """

    topic: str
    partition: int
    offset: int
    delivery_offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    broker_timestamp: int
    deliver_after: int
    due: int

    @property
    def id(self) -> RecordId:
        return RecordId(self.topic, self.partition, self.offset)

    def json(self) -> Any:
        """What the value says, where it is JSON; None where the record has no value. Raises InvalidRecord."""
        return object_of(self.value, self.id)
