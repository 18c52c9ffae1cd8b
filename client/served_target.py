"""What a producer appends to, of a served store: one topic, in parts that are there once (`lanes.py`).

The producer itself is the embedded one (`produce/producer.py`): it buffers, and appends to whatever it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from afterlog.api import operations
from afterlog.base.arguments import whole
from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.errors import InvalidDeliverAfter, InvalidTopic
from afterlog.client.call import Steps, asking, one
from afterlog.client.sent_columns import Columnar
from afterlog.client.served_topic import ServedTopic
from afterlog.client.server_time import ServerTime
from afterlog.fetch.record_id import RecordId
from afterlog.produce.numbering import numbering_of
from afterlog.produce.producer import Producer
from afterlog.records.columns import Int64Array
from afterlog.records.encode import RecordColumns
from afterlog.records.producer_sequence import ProducerSequence
from afterlog.records.times import AS_SOON_AS_POSSIBLE
from afterlog.records.unique_key import OnConflict

HELD_RECORDS = 65_536
"""Of so many at most a server tells at a time."""


class ServedTarget:
    """Thread-safe. `Target` of a producer."""

    def __init__(self, topic: ServedTopic, drive: Callable[[Steps[Any]], Any], server_time: ServerTime) -> None:
        self._topic = topic
        self._drive = drive
        self._server_time = server_time
        settings = topic.settings
        self._delayed = settings.delayed
        self._max_delay_ms = settings.max_delay_ms

    @property
    def partition_count(self) -> int:
        return self._topic.partition_count

    def checks_instants(self, asked: bool | None) -> bool:
        return self._topic.checks_instants(asked)

    def partition_of(self, key: bytes | None, priority: int | None = None) -> int:
        return self._topic.partition_of(key, priority)

    def checked_partition(self, number: int, priority: int | None = None) -> int:
        return self._topic.checked_partition(number, priority)

    def record_ids(self, number: int, offsets: Int64Array) -> list[RecordId]:
        return [RecordId(self._topic.name, number, offset) for offset in offsets.tolist()]

    def check_asked(self, deliver_after: int) -> None:
        """As far as the settings tell. Raises InvalidTopic, InvalidDeliverAfter."""
        if deliver_after == AS_SOON_AS_POSSIBLE:
            return
        if not self._delayed:
            raise InvalidTopic("the topic was made with delayed=False: send without delay or deliver_after")
        limit_ms = self._max_delay_ms
        if limit_ms is not None and deliver_after > self._server_time.now_ms() + limit_ms:
            raise InvalidDeliverAfter(f"deliver_after {deliver_after} lies more than max_delay_ms ({limit_ms}) ahead")

    def check_unique_keys(self) -> None:
        """Raises InvalidTopic where it can have none."""
        self._topic.settings.check_unique_keys()

    def append_unique(
        self, columns: RecordColumns, keys: list[bytes | None], on_conflict: OnConflict, partition: int | None
    ) -> Int64Array:
        """Of which the unique keys are in the headers, too. Raises what the server says; AnswerLost."""
        asked = Columnar.of_records(columns, keys).unique_call(self._topic.name, partition, False, on_conflict)
        offsets: Int64Array = self._drive(one(asked))
        return offsets

    def append(self, number: int, columns: RecordColumns, *, sequence: ProducerSequence | None = None) -> Int64Array:
        """Raises what the server says; AnswerLost."""
        offsets: Int64Array = self._drive(Columnar.of_records(columns).sends(self._topic, number, False, sequence))
        return offsets

    def next_sequence(self, number: int, producer_id: int, epoch: int) -> int:
        """What a producer appends next. Raises ProducerFenced, and what the server says."""
        query = {"partition": number, "producer_id": producer_id, "producer_epoch": epoch}
        asked = asking(operations.NEXT_SEQUENCE, lambda row: int(row["sequence"]), query=query, topic=self._topic.name)
        sequence: int = self._drive(one(asked))
        return sequence

    def held_of(self, number: int, sequence: ProducerSequence, records: int) -> Int64Array:
        """The offsets of those of so many records that are there. Raises ProducerFenced, OutOfOrderSequence."""
        found: list[int] = []
        for start in range(0, records, HELD_RECORDS):
            asked, at = min(records - start, HELD_RECORDS), sequence.after(start)
            query = {
                "partition": number, "producer_id": at.producer_id, "producer_epoch": at.epoch,
                "sequence": at.sequence, "records": asked,
            }  # fmt: skip
            asking_for = asking(operations.APPENDED, lambda row: row["offsets"], query=query, topic=self._topic.name)
            part: list[int] = self._drive(one(asking_for))
            found += part
            if len(part) < asked:
                break
        return np.array(found, np.int64)


def served_producer(
    topic: ServedTopic,
    drive: Callable[[Steps[Any]], Any],
    clock: Clock,
    server_time: ServerTime,
    linger_ms: int | None,
    batch_bytes: int | None,
    idempotent: bool,
    producer_id: int | None,
    epoch: int | None,
) -> Producer[RecordId]:
    """A producer to it. None: as the defaults of `Config` are. Raises WrongType, InvalidArgument."""
    config, target = Config(), ServedTarget(topic, drive, server_time)
    return Producer(
        target,
        clock=clock,
        now_ms=server_time.now_ms,
        linger_ms=config.linger_ms if linger_ms is None else whole("linger_ms", linger_ms),
        batch_bytes=config.batch_bytes if batch_bytes is None else whole("batch_bytes", batch_bytes, 1),
        batch_bytes_max=config.batch_bytes_max,
        numbering=numbering_of(target, idempotent, producer_id, epoch, remote=True),
    )
