"""Decodes a server's JSON answers into what the API returns. Raises LookupError, TypeError, ValueError where it says
less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afterlog.api.byte_text import bytes_of, headers_of
from afterlog.fetch.record_id import RecordId
from afterlog.subscription.answers import AckResult, PartitionStats, ReceiptResult, RedriveResult, SubscriptionStats

if TYPE_CHECKING:
    from afterlog.log.held import HeldBytes
    from afterlog.store.backup import Backup
    from afterlog.store.schedule_document import Schedule
    from afterlog.subscription.leased_record import LeasedRecord
    from afterlog.subscription.redrive import DeadLetterMessage
    from afterlog.tier.offload import Offloaded

_OUTCOMES = {
    "acked": AckResult(acked=1),
    "already": AckResult(acked=0, already=1),
    "unknown": AckResult(acked=0, unknown=1),
}
_PARTITION_COUNTS = tuple(field.name for field in fields(PartitionStats))


def ack_result(row: Mapping[str, Any]) -> AckResult:
    return AckResult(acked=row["acked"], already=row["already"], unknown=row["unknown"])


def ack_results(row: Mapping[str, Any], count: int) -> list[AckResult]:
    """What came of each of some receipts."""
    outcomes = row.get("outcomes", ["acked"] * row["acked"])
    if len(outcomes) != count:
        raise ValueError(f"{count} receipts have as many outcomes, not {len(outcomes)}")
    return [_OUTCOMES[word] for word in outcomes]


def receipt_result(row: Mapping[str, Any]) -> ReceiptResult:
    return ReceiptResult(done=row["done"], stale=row["stale"], deadline_ms=row.get("deadline_ms") or 0)


def subscription_stats(row: Mapping[str, Any], numbers: frozenset[int] | None) -> SubscriptionStats:
    """Of these partitions; None: of all."""
    partitions = {
        int(number): PartitionStats(**{name: each[name] for name in _PARTITION_COUNTS})
        for number, each in row["partitions"].items()
        if numbers is None or int(number) in numbers
    }
    return SubscriptionStats.of(partitions)


def numbers_of(row: Mapping[str, Any]) -> dict[int, Any]:
    """By the number of the partition, which JSON has as text."""
    return {int(number): value for number, value in row.items()}


def schedule_of(row: Mapping[str, Any]) -> Schedule:
    from afterlog.store.schedule_document import Schedule

    every_s, record = row["every_s"], row["record"]
    return Schedule(
        name=row["name"],
        topic=row["topic"],
        partition=row["partition"],
        cron=row["cron"],
        timezone=row["timezone"],
        every=None if every_s is None else timedelta(seconds=every_s),
        value=bytes_of(row["value"]),
        key=bytes_of(row["key"]),
        headers=headers_of(row["headers"]),
        missed=row["missed"],
        paused=row["paused"],
        next_due=row["next_due"],
        record=None if record is None else RecordId.parse(record),
        fault=row.get("fault"),
    )


def held_bytes(row: Mapping[str, Any]) -> HeldBytes:
    from afterlog.log.held import HeldBytes

    return HeldBytes(**{field.name: row[field.name] for field in fields(HeldBytes)})


def redrive_result(row: Mapping[str, Any]) -> RedriveResult:
    return RedriveResult(redriven=row["redriven"], left=dict(row["left"]))


def dead_letter(row: Mapping[str, Any]) -> DeadLetterMessage:
    """Where it comes from stands in its headers."""
    from afterlog.api.record_json import message_of
    from afterlog.subscription.dead_letter_headers import origin_of
    from afterlog.subscription.redrive import DeadLetterMessage

    message = message_of(row["message"])
    origin = origin_of(message.headers)[1]
    if origin is None:
        raise ValueError("a dead letter that says nothing of where it comes from")
    return DeadLetterMessage(message, origin)


def leased_record(row: Mapping[str, Any]) -> LeasedRecord:
    """What a reader has."""
    from afterlog.api.receipt import Receipt
    from afterlog.api.record_json import message_fields
    from afterlog.subscription.leased_record import LeasedRecord

    receipt = Receipt.parse(row["receipt"])
    return LeasedRecord(
        delivery_offset=receipt.delivery_offset, lease_number=receipt.lease_number,
        deadline_ms=int(row["deadline_ms"]), **message_fields(row),
    )  # fmt: skip


def offloaded(row: Mapping[str, Any]) -> Offloaded:
    from afterlog.tier.offload import Offloaded

    return Offloaded(**{field.name: row[field.name] for field in fields(Offloaded)})


def backup_of(row: Mapping[str, Any]) -> Backup:
    from afterlog.store.backup import Backup

    return Backup(**({field.name: row[field.name] for field in fields(Backup)} | {"path": Path(row["path"])}))
