"""What has waited for long is appended to the carry topic, and read from there: so its input need not keep it.

    a turn of an input ──> cancels that found nothing here │ what is carried ──> the carry topic, same partition number
    a turn of the carry topic ──> the same, at its end

A record is carried in the transaction that counts it as gone from where it was, so it waits in one place. A cancel that
finds nothing in its input goes after what may have been carried: it is behind it, since the same owner of the partition
has sent both. What is in the carry topic may be carried again while the cancel is on its way, and be behind it then; so
there a cancel that finds nothing is said once more; and what is read last under an id need not be the newest, so that
each says where it was in its input. In a turn cancels go first: what it carries was there when they
were read, and they did not mean it.

    key, value, headers                     those of the record
    afterlog-carried-deliver-after          when, ms
    afterlog-carried-deliver-to             where to
    afterlog-carried-timestamp              its timestamp, ms
    afterlog-carried-id                     SHA-256 of (input, id), where it has one: several inputs share the topic
    afterlog-carried-origin                 the offset that it had in its input; of one id the newer has the higher
    afterlog-carried-cancel                 of a cancel: the id; it does not mean what has a higher origin
    afterlog-carried-again                  of one that is said once more
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from afterlog.relay.instruction import (
    Cancellation,
    Instruction,
    KafkaHeaders,
    KafkaRecord,
    Refusal,
    ScheduledDelivery,
)
from afterlog.relay.relay_partition import DeliveryTurn

_PREFIX: Final = "afterlog-carried-"
DUE: Final = f"{_PREFIX}deliver-after"
TARGET: Final = f"{_PREFIX}deliver-to"
TIMESTAMP: Final = f"{_PREFIX}timestamp"
ID: Final = f"{_PREFIX}id"
CANCEL: Final = f"{_PREFIX}cancel"
ORIGIN: Final = f"{_PREFIX}origin"
AGAIN: Final = f"{_PREFIX}again"


class CarriedRecord(NamedTuple):
    """To be appended to the carry topic. offset: of the record that it stands for."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: KafkaHeaders


def carried_by(turn: DeliveryTurn, topic: str, *, is_carry: bool, has_carried: bool) -> Iterator[CarriedRecord]:
    """What a turn appends to the carry topic. has_carried: something of this partition may be there."""
    for cancel in turn.cancels:
        if is_carry and not cancel.is_final:
            yield _cancel(cancel, cancel.id, (AGAIN, b""))
        elif not is_carry and has_carried:
            yield _cancel(cancel, _id_of(topic, cancel.id))
    for each in turn.carried:
        headers: list[tuple[str, bytes | None]] = [
            *each.headers, (DUE, b"%d" % each.due_ms), (TARGET, each.target.encode()),
            (TIMESTAMP, b"%d" % each.timestamp_ms), (ORIGIN, b"%d" % each.order),
        ]  # fmt: skip
        if each.id:
            headers.append((ID, each.id if is_carry else _id_of(topic, each.id)))
        yield CarriedRecord(each.offset, each.key, each.value, headers)


def read_carried(record: KafkaRecord) -> Instruction:
    """What a record of the carry topic asks for. Nobody else writes there; what is no such record is refused."""
    said = {name: value or b"" for name, value in record.headers if name.startswith(_PREFIX)}
    try:
        if CANCEL in said:
            return Cancellation(record.offset, said[CANCEL], AGAIN in said, int(said[ORIGIN]))
        due_ms, timestamp_ms, target = int(said[DUE]), int(said[TIMESTAMP]), said[TARGET].decode()
        origin = int(said[ORIGIN])
    except (KeyError, ValueError) as error:
        return Refusal(record, f"nothing that a relay has carried: {error!r}")
    others = tuple((name, value) for name, value in record.headers if not name.startswith(_PREFIX))
    return ScheduledDelivery(
        record.offset, due_ms, target, record.key, record.value, others, timestamp_ms, said.get(ID, b""),
        origin,
    )  # fmt: skip


def _cancel(cancel: Cancellation, schedule_id: bytes, *more: tuple[str, bytes]) -> CarriedRecord:
    said = ((CANCEL, schedule_id), (ORIGIN, b"%d" % cancel.order), *more)
    return CarriedRecord(cancel.offset, None, b"", said)


def _id_of(topic: str, schedule_id: bytes) -> bytes:
    return sha256(topic.encode() + b"\0" + schedule_id).digest()
