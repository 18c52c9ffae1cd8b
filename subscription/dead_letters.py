"""Into the dead letters: from a subscription of one partition to its dead-letter topic, each record once.

    leased ──intent, durable──> dying ──append, durable──> in the dead-letter topic ──done──> acked
                                  └── a crash, a full disk: `resume` looks behind where the topic ended at the intent,
                                      and appends what is not there

A dead letter has the key, value, headers and timestamp of the record, is due at once, and says in six more headers
where it comes from (`origin.py`). It goes to the partition of the same number, or, where the topic has fewer, around.
With these headers it may be larger than `batch_bytes_max`: that is for producers, and a record has to end somewhere.

The intent and the append are made durable whatever the durability of the store: dead letters are rare, and under `os`
and `interval` a power cut could else keep one file and lose the other. What comes after needs no such care: an intent
that is not known to be done is looked into. Only where retention has removed the copy meanwhile is it appended again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from afterlog.fetch.message_columns import Columns
from afterlog.fetch.objects import OwnHeaders, sections_of
from afterlog.fetch.record_id import RecordId
from afterlog.index.growing_columns import Int64Array
from afterlog.produce.topic import Topic
from afterlog.records.batch import encode_headers
from afterlog.records.encode import RecordColumns, ragged, take_ragged
from afterlog.records.times import AS_SOON_AS_POSSIBLE
from afterlog.subscription.dead_letter_headers import Origin, ascii_of, origin_of
from afterlog.subscription.events import DeadLetter
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.received import Receipts

logger = logging.getLogger("afterlog.subscription")


class DeadLetters:
    """Of one partition of one subscription, for all its readers. Thread-safe."""

    def __init__(self, subscription: PartitionSubscription, topic_of: Callable[[str], Topic]) -> None:
        """topic_of: the topic of a name, made where it is missing."""
        self._subscription = subscription
        self._topic_of = topic_of
        self._lock = threading.Lock()
        """Held while letters are under way, so that those which nobody is working on are known."""

    def dead_letter(self, topic: str, receipts: Receipts, failures: Int64Array, reason: str) -> int:
        """Move leased records to the dead letters. How many were.

        Stale receipts do nothing. Raises StorageFull, SubscriptionPoisoned, PartitionPoisoned, StoreClosed; what was
        intended by then is for `resume`.
        """
        with self._lock:
            target = self._topic_of(topic)
            partition = target.partition(self._subscription.partition.number % target.partition_count)
            letters = [
                DeadLetter(
                    delivery_offset=delivery_offset,
                    offset=offset,
                    topic=topic,
                    partition=partition.number,
                    log_end_offset=partition.log_end_offset,
                    failures=count,
                    reason=ascii_of(reason),
                )
                for delivery_offset, offset, count in zip(
                    receipts.delivery_offset.tolist(), receipts.offset.tolist(), failures.tolist(), strict=True
                )
            ]
            intended = self._subscription.intend_dead_letters(letters, receipts.lease_number)
            self._append(target, partition.number, intended)
            return len(intended)

    def resume(self) -> None:
        """Bring to an end what was intended, in this life or one before. Raises as `dead_letter` does."""
        if not self._subscription.unfinished_dead_letters():
            return
        with self._lock:
            by_partition: dict[tuple[str, int], list[DeadLetter]] = {}
            for letter in self._subscription.unfinished_dead_letters():
                by_partition.setdefault((letter.topic, letter.partition), []).append(letter)
            for (name, number), letters in by_partition.items():
                topic = self._topic_of(name)
                topic.partition(number).log.commit.sync()  # what nobody waits for any more is looked through, too
                appended = set(_origins(topic, number, min(letter.log_end_offset for letter in letters)))
                found = [letter for letter in letters if self._origin(letter).identity in appended]
                self._subscription.finish_dead_letters([letter.delivery_offset for letter in found])
                self._append(topic, number, self._left_by_retention([each for each in letters if each not in found]))
                logger.info("%s: of %d dead letters %d were there already", name, len(letters), len(found))

    def _append(self, topic: Topic, number: int, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        topic.append(number, self._columns(letters), any_size=True)
        log = topic.partition(number).log
        if log.context.config.durability.kind != "always":
            log.commit.sync()
        self._subscription.finish_dead_letters([letter.delivery_offset for letter in letters])

    def _left_by_retention(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Those whose records are in the log; that the others are not, the next `receive` finds out."""
        log_start = self._subscription.partition.log_start
        return [letter for letter in letters if letter.delivery_offset >= log_start]

    def _columns(self, letters: Sequence[DeadLetter]) -> RecordColumns:
        """The records, with the headers that say where they come from."""
        offsets = np.array([letter.offset for letter in letters], np.int64)
        delivery_offsets = np.array([letter.delivery_offset for letter in letters], np.int64)
        records = self._subscription.partition.records_at(offsets, delivery_offsets)
        sections = [
            encode_headers((*own, *self._origin(letter).to_headers()))
            for own, letter in zip(own_headers(records), letters, strict=True)
        ]
        return record_columns(records, sections)

    def _origin(self, letter: DeadLetter) -> Origin:
        partition = self._subscription.partition
        return Origin(
            record=RecordId(partition.topic, partition.number, letter.offset),
            subscription=self._subscription.name,
            reason=letter.reason,
            redelivery_count=letter.failures,
        )


def own_headers(records: Columns) -> list[OwnHeaders]:
    """The headers of each record."""
    return sections_of(*records.headers)


def record_columns(records: Columns, sections: Sequence[bytes]) -> RecordColumns:
    """Delivered records, to be appended again at once with other headers, encoded."""
    rows = np.arange(len(records))
    return RecordColumns(
        values=take_ragged(records.value, rows),
        value_valid=records.value_valid,
        keys=take_ragged(records.key, rows),
        key_valid=records.key_valid,
        headers=ragged(sections)[0],
        timestamps=records.timestamp,
        deliver_after=np.full(len(records), AS_SOON_AS_POSSIBLE),
    )


def _origins(topic: Topic, number: int, offset: int) -> Iterator[tuple[RecordId, str]]:
    """Whose dead letters lie in a partition from an append offset on."""
    partition = topic.partition(number)
    for records in partition.appended(max(offset, partition.log_start_offset), partition.log_end_offset):
        for headers in own_headers(records):
            _, origin = origin_of(headers)
            if origin is not None:
                yield origin.identity
