"""Dead letters: listed, and sent back to the topic they come from.

    mail.dead ──subscription "afterlog-redrive"──> append to mail, without our headers, due at once ──> ack

A dead letter that was sent back is acked in that one subscription, and so no longer listed; the topic keeps it as long
as its retention says, for which this subscription does not count: what it left holds no disk, and refuses nobody. At
least once: a crash between the append and the ack sends it back again.

Who looks changes nothing: the letters are read by position, and what was sent back is known from the subscription that
is open, or from its journal as it lies. A subscription that a look had made would hold the topic's disk, and with a
quota of its backlog refuse whoever dies next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from afterlog.base.errors import UnknownPartition, UnknownTopic
from afterlog.base.names import REDRIVE, subscription_folder
from afterlog.fetch.message import Message
from afterlog.fetch.partition import Partition
from afterlog.index.growing_columns import Int64Array
from afterlog.produce.topic import Topic
from afterlog.records.batch import Headers, encode_headers
from afterlog.records.columns import Bools
from afterlog.subscription.answers import RedriveResult
from afterlog.subscription.dead_letter_headers import Origin, origin_of
from afterlog.subscription.dead_letters import own_headers, record_columns
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.partition_subscription import RECEIVE_BYTES, PartitionSubscription
from afterlog.subscription.received import Received
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner
from afterlog.subscription.subscription import Subscription

SUBSCRIPTION = REDRIVE
NO_LETTER = "somebody sent it to this topic"
BATCH_RECORDS = 1_000
"""Looked at, and sent back, at a time."""


@dataclass(frozen=True, slots=True)
class DeadLetterMessage:
    """A record of a dead-letter topic, and where it comes from."""

    message: Message
    origin: Origin


def dead_letters(
    partitions: Sequence[Partition], opened: Iterable[PartitionSubscription], limit: int
) -> list[DeadLetterMessage]:
    """Up to `limit` dead letters that were not sent back, in due order by partition. Nothing is leased, nor written.

    opened: subscriptions that are, of any topic. Raises CorruptFile.
    """
    found: list[DeadLetterMessage] = []
    ours = {each.partition.number: each for each in opened if _is_ours(each, partitions)}
    for partition in partitions:
        subscription = ours.get(partition.number)
        sent_back = _sent_back(partition) if subscription is None else subscription.acked
        for message in _left(partition, sent_back):
            origin = origin_of(message.headers)[1]
            if origin is None:  # somebody sent it here
                continue
            if len(found) == limit:
                return found
            found.append(DeadLetterMessage(message, origin))
    return found


def redrive(
    subscription: Subscription, topic_of: Callable[[str], Topic], limit: int | None, target: Topic | None = None
) -> RedriveResult:
    """Send up to `limit` dead letters back, or to another topic; those of a topic or partition that is gone stay.

    Raises StorageFull, and as `Subscription.receive` does: what was sent back by then is acked.
    """
    count, kept, left = 0, list[LeasedMessage](), Counter[str]()
    try:
        while limit is None or count < limit:
            received = subscription.receive(BATCH_RECORDS if limit is None else min(BATCH_RECORDS, limit - count))
            if not len(received):
                break
            origins = [origin_of(headers) for headers in own_headers(received.columns)]
            for to, rows in _by_partition(origins, topic_of, target):
                if isinstance(to, str):
                    kept += [received[row] for row in rows.tolist()]
                    if to != NO_LETTER:
                        left[to] += len(rows)
                else:
                    _append(*to, received, rows, origins)
                    subscription.ack_many([received[row] for row in rows.tolist()])
                    count += len(rows)
    finally:
        subscription.release(kept)
    return RedriveResult(redriven=count, left=dict(left))


def _is_ours(subscription: PartitionSubscription, partitions: Sequence[Partition]) -> bool:
    return subscription.name == SUBSCRIPTION and subscription.partition.topic == partitions[0].topic


def _sent_back(partition: Partition) -> Callable[[Int64Array], Bools]:
    """Which delivery offsets were, by the journal of a subscription that nobody has open; none where there is none."""
    context = partition.log.context
    folder, owner = subscription_folder(context.folder, SUBSCRIPTION), Owner(context.folder.name, SUBSCRIPTION)
    there = context.files.exists(folder)
    replayed = replay(context.files, folder, owner, partition.log_end_offset) if there else None
    if replayed is None:
        return lambda delivery_offset: np.zeros(len(delivery_offset), np.bool_)
    acks = replayed.state.acks
    return lambda delivery_offset: np.fromiter(map(acks.__contains__, delivery_offset.tolist()), np.bool_)


def _left(partition: Partition, sent_back: Callable[[Int64Array], Bools]) -> Iterator[Message]:
    position = partition.log_start
    while True:
        columns, position = partition.columns(position, BATCH_RECORDS, RECEIVE_BYTES)
        if not len(columns):
            return
        yield from columns.take(np.flatnonzero(~sent_back(columns.delivery_offset))).to_messages()


def _by_partition(
    origins: list[tuple[Headers, Origin | None]], topic_of: Callable[[str], Topic], target: Topic | None
) -> Iterator[tuple[tuple[Topic, int] | str, Int64Array]]:
    """Where to, or why nowhere, and the rows of which that is so."""
    by_partition: dict[tuple[str, int] | None, list[int]] = {}
    for row, (_, origin) in enumerate(origins):
        partition = None if origin is None else (origin.record.topic, origin.record.partition)
        by_partition.setdefault(partition, []).append(row)
    for partition, rows in by_partition.items():
        yield _target(partition, topic_of, target), np.array(rows, np.int64)


def _target(
    partition: tuple[str, int] | None, topic_of: Callable[[str], Topic], target: Topic | None
) -> tuple[Topic, int] | str:
    if partition is None:
        return NO_LETTER
    name, number = partition
    if target is not None:
        return target, number % target.partition_count
    try:
        topic = topic_of(name)
        return topic, topic.checked_partition(number)
    except UnknownTopic:
        return f"there is no topic {name!r} any more"
    except UnknownPartition:
        return f"{name} has no partition {number} any more"


def _append(
    topic: Topic, number: int, received: Received, rows: Int64Array, origins: list[tuple[Headers, Origin | None]]
) -> None:
    sections = [encode_headers(origins[row][0]) for row in rows.tolist()]
    topic.append(number, record_columns(received.columns.take(rows), sections), any_size=True)
