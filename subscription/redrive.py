"""Dead letters, to be looked at and to be sent back to where they come from.

    mail.dead ──subscription "afterlog-redrive"──> append to mail, without our headers, due at once ──> ack

A dead letter that was sent back is acked in that one subscription, and so no longer listed; the topic keeps it as long
as its retention says. At least once: a crash between the append and the ack sends it back again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from afterlog.errors import UnknownPartition, UnknownTopic
from afterlog.fetch.message import Message
from afterlog.index.growing_columns import Int64Array
from afterlog.produce.topic import Topic
from afterlog.records.batch import Headers, encode_headers
from afterlog.subscription.dead_letters import own_headers, record_columns
from afterlog.subscription.origin import Origin, origin_of
from afterlog.subscription.partition_subscription import RECEIVE_BYTES, PartitionSubscription
from afterlog.subscription.received import Received
from afterlog.subscription.subscription import Subscription

SUBSCRIPTION = "afterlog-redrive"
BATCH_RECORDS = 1_000
"""Looked at, and sent back, at a time."""


@dataclass(frozen=True, slots=True)
class DeadLetterMessage:
    """A record of a dead-letter topic, and where it comes from; None where somebody else put it there."""

    message: Message
    origin: Origin | None


def dead_letters(subscriptions: Sequence[PartitionSubscription], limit: int) -> list[DeadLetterMessage]:
    """Up to `limit` dead letters that were not sent back, in due order by partition. Nothing is leased."""
    found: list[DeadLetterMessage] = []
    for subscription in subscriptions:
        for message in _unacked(subscription):
            if len(found) == limit:
                return found
            found.append(DeadLetterMessage(message, origin_of(message.headers)[1]))
    return found


def redrive(subscription: Subscription, topic_of: Callable[[str], Topic], limit: int | None) -> int:
    """Send up to `limit` dead letters back; how many were. Those of nobody, or of a topic that is gone, stay.

    Raises StorageFull, and as `Subscription.receive` does: what was sent back by then is acked.
    """
    count, kept = 0, []
    try:
        while limit is None or count < limit:
            received = subscription.receive(BATCH_RECORDS if limit is None else min(BATCH_RECORDS, limit - count))
            if not len(received):
                break
            origins = [origin_of(headers) for headers in own_headers(received.columns)]
            for target, rows in _targets(origins, topic_of):
                if target is None:
                    kept += [received[row] for row in rows.tolist()]
                else:
                    _append(*target, received, rows, origins)
                    subscription.ack_many([received[row] for row in rows.tolist()])
                    count += len(rows)
    finally:
        subscription.release(kept)
    return count


def _unacked(subscription: PartitionSubscription) -> Iterator[Message]:
    partition = subscription.partition
    position = partition.log_start
    while True:
        columns, position = partition.columns(position, BATCH_RECORDS, RECEIVE_BYTES)
        if not len(columns):
            return
        yield from columns.take(np.flatnonzero(~subscription.acked(columns.delivery_offset))).to_messages()


def _targets(
    origins: list[tuple[Headers, Origin | None]], topic_of: Callable[[str], Topic]
) -> Iterator[tuple[tuple[Topic, int] | None, Int64Array]]:
    """Where to, and the rows that go there; None for those that have nowhere to go."""
    by_partition: dict[tuple[str, int] | None, list[int]] = {}
    for row, (_, origin) in enumerate(origins):
        partition = None if origin is None else (origin.record.topic, origin.record.partition)
        by_partition.setdefault(partition, []).append(row)
    for partition, rows in by_partition.items():
        target = None
        if partition is not None:
            try:
                topic = topic_of(partition[0])
                target = topic, topic.checked_partition(partition[1])
            except (UnknownTopic, UnknownPartition):
                pass
        yield target, np.array(rows, np.int64)


def _append(
    topic: Topic, number: int, received: Received, rows: Int64Array, origins: list[tuple[Headers, Origin | None]]
) -> None:
    sections = [encode_headers(origins[row][0]) for row in rows.tolist()]
    topic.append(number, record_columns(received.columns.take(rows), sections), any_size=True)
