"""Dead letters: listed, sent back to the topic they come from, or let go.

    mail.dead ──subscription "afterlog-redrive"──> append to mail, without our headers, due at once ──> ack

A dead letter that was sent back, or let go, is acked in that one subscription, and so no longer listed; the topic keeps
it as long as its retention says, for which this subscription does not count: what it left holds no disk, and refuses
nobody. At least once: a crash between the append and the ack sends it back again.

Who looks changes nothing: the letters are read by position, and what was sent back is known from the subscription that
is open, or from its journal as it lies. A subscription that a look had made would hold the topic's disk, and with a
quota of its backlog refuse whoever dies next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from afterlog.base.arguments import KEEP
from afterlog.base.errors import InvalidArgument, InvalidTopic, UnknownPartition, UnknownTopic
from afterlog.base.names import REDRIVE, subscription_folder
from afterlog.fetch.message import Message
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import Partition
from afterlog.index.growing_columns import Int64Array
from afterlog.produce.topic import Topic
from afterlog.records.batch import Headers, encode_headers
from afterlog.records.columns import Bools
from afterlog.records.encode import RecordColumns, ragged
from afterlog.records.times import AS_SOON_AS_POSSIBLE
from afterlog.subscription.answers import RedriveResult
from afterlog.subscription.chosen_letters import ChosenLetters
from afterlog.subscription.dead_letter_headers import Origin, origin_of
from afterlog.subscription.dead_letters import own_headers, record_columns
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.partition_subscription import RECEIVE_BYTES, PartitionSubscription
from afterlog.subscription.received import Received
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner
from afterlog.subscription.subscription import Subscription

SUBSCRIPTION = REDRIVE
OwnOrigin = tuple[Headers, Origin | None]
"""The headers that a record had before it died, and where it comes from; None where it is no dead letter."""
BATCH_RECORDS = 1_000
"""Looked at, and sent back, at a time."""


@dataclass(frozen=True, slots=True)
class DeadLetterMessage:
    """A record of a dead-letter topic, and where it comes from."""

    message: Message
    origin: Origin


def dead_letters(
    partitions: Sequence[Partition], opened: Iterable[PartitionSubscription], limit: int, chosen: ChosenLetters
) -> list[DeadLetterMessage]:
    """Up to `limit` of the chosen dead letters that were not sent back, in due order by partition.

    Nothing is leased, nor written. opened: subscriptions that are, of any topic. Raises CorruptFile.
    """
    found: list[DeadLetterMessage] = []
    ours = {each.partition.number: each for each in opened if _is_ours(each, partitions)}
    for partition in partitions:
        subscription = ours.get(partition.number)
        sent_back = _sent_back(partition) if subscription is None else subscription.acked
        for message in _left(partition, sent_back):
            origin = origin_of(message.headers)[1]
            if origin is None or not chosen.takes(message.id, origin):  # somebody sent it here
                continue
            if len(found) == limit:
                return found
            found.append(DeadLetterMessage(message, origin))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBack:
    """How dead letters are sent back. target: to this topic, and not to where they come from; value: with this one, and
    not their own (KEEP); rate: so many a second, the first at once; now_ms: by which that is counted."""

    target: Topic | None = None
    value: bytes | None = KEEP
    rate: float | None = None
    now_ms: int = 0

    def check(self, chosen: ChosenLetters) -> None:
        """Raises InvalidArgument where a rate is none, or a value is for more than one letter."""
        rate = self.rate
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e12):
            raise InvalidArgument(f"rate is records a second, more than 0, or None, not {rate!r:.100}")
        if self.value is not KEEP and (chosen.records is None or len(chosen.records) != 1):
            raise InvalidArgument("another value is for one dead letter: name it, with records=[its id]")

    def columns(self, records: Columns, sections: Sequence[bytes], before: int) -> RecordColumns:
        """To be appended, behind so many."""
        columns = record_columns(records, sections)
        if self.rate is not None:
            delay_ms = ((before + np.arange(len(records))) * 1_000 / self.rate).astype(np.int64)
            columns = replace(
                columns, deliver_after=np.where(delay_ms > 0, self.now_ms + delay_ms, AS_SOON_AS_POSSIBLE)
            )
        if self.value is not KEEP:
            values, valid = ragged([self.value] * len(records))
            columns = replace(columns, values=values, value_valid=valid)
        return columns


def redrive(
    subscription: Subscription,
    topic_of: Callable[[str], Topic],
    limit: int | None,
    chosen: ChosenLetters,
    how: SentBack,
) -> RedriveResult:
    """Send up to `limit` of the chosen dead letters back, or to another topic; those of a topic or partition that is
    gone stay.

    Raises InvalidArgument, InvalidTopic, StorageFull, and as `Subscription.receive` does: what was sent back by then is
    acked.
    """
    how.check(chosen)
    count, left = 0, Counter[str]()
    with closing(_chosen(subscription, limit, chosen)) as found:
        for letters in found:
            for to, rows in _by_partition(letters.origins, letters.rows, topic_of, how.target):
                if isinstance(to, str):
                    left[to] += len(rows)
                    continue
                topic, number = to
                if how.rate is not None and not topic.settings.delayed:
                    raise InvalidTopic(f"{topic.name} was made with delayed=False: leave rate out, or take another")
                sections = [encode_headers(letters.origins[row][0]) for row in rows.tolist()]
                columns = how.columns(letters.received.columns.take(rows), sections, count)
                topic.append(number, columns, any_size=True)
                letters.done(rows.tolist())
                count += len(rows)
    return RedriveResult(redriven=count, left=dict(left))


def discard(subscription: Subscription, limit: int | None, chosen: ChosenLetters) -> int:
    """Be done with up to `limit` of the chosen dead letters; how many. Raises as `redrive` does."""
    count = 0
    with closing(_chosen(subscription, limit, chosen)) as found:
        for letters in found:
            letters.done(letters.rows)
            count += len(letters.rows)
    return count


@dataclass(frozen=True, slots=True)
class _Letters:
    """Dead letters that were received: the origin of each, and the rows of those that are chosen."""

    subscription: Subscription
    received: Received
    origins: list[OwnOrigin]
    rows: list[int]

    def done(self, rows: list[int]) -> None:
        """These need not be looked at again."""
        self.subscription.ack_many([self.received[row] for row in rows])


def _chosen(subscription: Subscription, limit: int | None, chosen: ChosenLetters) -> Generator[_Letters, None, None]:
    """Dead letters, some at a time, until so many are done with, or all that were named were seen. What is not done
    with goes back in the end."""
    done, seen, kept = 0, 0, list[LeasedMessage]()
    try:
        while (limit is None or done < limit) and (chosen.records is None or seen < len(chosen.records)):
            room = BATCH_RECORDS if limit is None else limit - done
            received = subscription.receive(min(BATCH_RECORDS, room) if chosen.is_all else BATCH_RECORDS)
            if not len(received):
                break
            origins = [origin_of(headers) for headers in own_headers(received.columns)]
            rows = [
                row
                for row, (message, (_, origin)) in enumerate(zip(received, origins, strict=True))
                if origin is not None and chosen.takes(message.id, origin)
            ]
            letters = _Letters(subscription, received, origins, rows[:room])
            seen += len(letters.rows)
            try:
                yield letters
            finally:
                done += sum(received[row].settled for row in letters.rows)
                kept += [message for message in received if not message.settled]
    finally:
        subscription.release(kept)


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
    origins: list[OwnOrigin], rows: list[int], topic_of: Callable[[str], Topic], target: Topic | None
) -> Iterator[tuple[tuple[Topic, int] | str, Int64Array]]:
    """Where to, or why nowhere, and the rows of which that is so."""
    by_partition: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        _, origin = origins[row]
        assert origin is not None, "it is chosen"
        by_partition.setdefault((origin.record.topic, origin.record.partition), []).append(row)
    for partition, mine in by_partition.items():
        yield _target(*partition, topic_of, target), np.array(mine, np.int64)


def _target(name: str, number: int, topic_of: Callable[[str], Topic], target: Topic | None) -> tuple[Topic, int] | str:
    if target is not None:
        return target, number % target.partition_count
    try:
        topic = topic_of(name)
        return topic, topic.checked_partition(number)
    except UnknownTopic:
        return f"there is no topic {name!r} any more"
    except UnknownPartition:
        return f"{name} has no partition {number} any more"
