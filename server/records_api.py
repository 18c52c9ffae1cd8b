"""Endpoints that send one record or many, as JSON or Arrow, and those that cancel or reschedule."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from afterlog.api import operations
from afterlog.api.byte_text import bytes_of
from afterlog.api.record_json import SentRecord, sent_record
from afterlog.api.schema import Whole
from afterlog.base import errors
from afterlog.fetch.record_id import RecordId
from afterlog.log.cancel_result import CancelResult
from afterlog.produce.numbered import AppendRequest
from afterlog.produce.topic import Topic
from afterlog.records.columns import Int64Array
from afterlog.records.encode import RecordColumns
from afterlog.records.producer_sequence import ProducerSequence
from afterlog.records.single import SingleRecord, columns_of, header_section
from afterlog.records.times import asked_ms
from afterlog.records.unique_key import OnConflict, checked_key, with_unique_key
from afterlog.server.endpoint import endpoints
from afterlog.server.request import Reply, Request, as_json
from afterlog.server.served import Served

FEW_ROWS: Final = 256
"""Of JSON that the event loop reads: some ms; of more a thread does."""
FEW_PLACES: Final = 4_096
"""Of an answer to columns that the event loop writes: 50 us; of more a thread does."""


_NOWHERE: Final = np.empty(0, np.int64)


class SentPlaces(NamedTuple):
    """Where records are, in the order in which they were sent: int64[n] each."""

    partition: Int64Array
    offset: Int64Array

    def ids(self, topic: str) -> list[str]:
        rows = zip(self.partition.tolist(), self.offset.tolist(), strict=True)
        return [f"{topic}-{partition}@{offset}" for partition, offset in rows]


async def send(served: Served, request: Request) -> Reply:
    topic = served.store.topic(request.topic)
    if request.data is not None:
        return await _send_arrow(served, request, topic, request.data)
    body = request.body
    rows, partition = body["records"], body["partition"]
    sequence = _sequence(body["producer"], partition)
    check = topic.checks_instants(body["check_instants"])
    sent = await served.aside(len(rows) > FEW_ROWS, lambda: [sent_record(row) for row in rows])
    if len(sent) == 1 and sent[0].unique_key is None:
        now_ms = topic.log_now_ms(served.store.now_ms())
        number, record = _single(topic, sent[0], now_ms, partition, check)
        offsets = await served.sends.send(topic, number, AppendRequest(record, sequence))
        if not request.wants_arrow:
            return Reply(f'{{"ids":["{topic.name}-{number}@{offsets.item()}"]}}'.encode())
        return _placed(request, topic, SentPlaces(np.array([number]), offsets))
    placed = await _send_rows(served, topic, sent, partition, body["on_conflict"], check, sequence)
    return await served.aside(len(rows) > FEW_ROWS, lambda: _placed(request, topic, placed))


async def cancel(served: Served, request: Request) -> Reply:
    body = request.body
    ids, offsets = body["ids"], body["offsets"]
    if (ids is None) == (offsets is None) or (offsets is not None and body["partition"] is None):
        raise errors.InvalidRequest("name records by ids, or by partition and offsets")
    topic = served.store.topic(request.topic)
    if ids is None:
        places = [(body["partition"], Whole().checked(offset, "an offset") or 0) for offset in offsets]
    else:
        places = [_place(topic, text) for text in ids]
    found = await served.run(lambda: _cancelled(topic, places))
    return as_json({"results": [CancelResult(each).name for each in found]})


async def cancel_unique(served: Served, request: Request) -> Reply:
    body = request.body
    try:
        key = bytes_of(body["unique_key"])
    except ValueError as error:
        raise errors.InvalidRequest(str(error)) from None
    if key is None:
        raise errors.InvalidRequest("a unique key is text or bytes, and not null")
    answer = await served.run(lambda: served.store.cancel_unique(request.topic, key, partition=body["partition"]))
    return as_json({"results": [answer.name]})


async def reschedule(served: Served, request: Request) -> Reply:
    body, topic = request.body, served.store.topic(request.topic)
    partition, offset = _place(topic, body["id"])
    record = RecordId(topic.name, partition, offset)
    made = await served.run(
        lambda: served.store.reschedule(record, delay=body["delay"], deliver_after=body["deliver_after"])
    )
    return as_json({"id": str(made)})


def _single(
    topic: Topic, sent: SentRecord, now_ms: int, partition: int | None, check: bool
) -> tuple[int, SingleRecord]:
    """One record, and where it goes. Raises as `store.send` does."""
    number = _named(sent.partition, partition)
    if number is None:
        number = topic.partition_of(sent.key, sent.priority)
    else:
        topic.checked_partition(number, sent.priority)
    asked = asked_ms(now_ms, sent.delay, sent.deliver_after, check_instants=check)
    return number, SingleRecord(sent.value, sent.key, header_section(sent.headers), now_ms, asked)


def _named(own: int | None, of_all: int | None) -> int | None:
    if own is not None and of_all is not None and own != of_all:
        raise errors.InvalidRequest(f"partition {own} of a record, and {of_all} of the call: name one")
    return of_all if own is None else own


async def _send_rows(
    served: Served,
    topic: Topic,
    rows: Sequence[SentRecord],
    partition: int | None,
    on_conflict: str,
    check: bool,
    sequence: ProducerSequence | None,
) -> SentPlaces:
    """Records of one call: all that go to one partition in one append, and checked everywhere before any is written."""
    now_ms = topic.log_now_ms(served.store.now_ms())
    unique = any(row.unique_key is not None for row in rows)
    turns = dict[int | None, int]()
    """By priority."""

    def each() -> list[tuple[int, SingleRecord]]:
        placed = []
        for row in rows:
            named = _named(row.partition, partition)
            if named is None and row.key is None:
                if row.priority not in turns:
                    turns[row.priority] = topic.partition_of(None, row.priority)
                named, row = turns[row.priority], row._replace(priority=None)
            placed.append(_single(topic, row, now_ms, named, check))
        return placed

    is_long = len(rows) > FEW_ROWS
    placed = await served.aside(is_long, each)
    records = [record for _, record in placed]
    if unique:
        _check_unnumbered(sequence)
        return await _send_unique(served, topic, rows, records, partition, on_conflict)
    columns = await served.aside(is_long, lambda: columns_of(records) if records else None)
    return await _send_columns(served, topic, columns, np.array([number for number, _ in placed], np.int64), sequence)


async def _send_unique(
    served: Served, topic: Topic, rows: Sequence[SentRecord], records: Sequence[SingleRecord],
    partition: int | None, on_conflict: str,
) -> SentPlaces:  # fmt: skip
    """With unique keys: each goes by its own, where no partition is named for all of them."""
    named = {(_named(row.partition, partition), row.priority) for row in rows}
    if len(named) > 1:
        raise errors.InvalidRequest(
            "records with unique keys go to one partition that is named, or all by their keys and of one priority"
        )
    [(number, priority)] = named
    keys = [None if row.unique_key is None else checked_key(row.unique_key) for row in rows]
    columns = columns_of(
        [
            record if key is None else record._replace(headers=with_unique_key(record.headers, key))
            for record, key in zip(records, keys, strict=True)
        ]
    )
    return await served.run(lambda: _sent_unique(topic, columns, keys, on_conflict, number, priority))


async def _send_arrow(served: Served, request: Request, topic: Topic, data: bytes) -> Reply:
    from afterlog.api.arrow_stream import SentColumns, sent_columns

    asked = request.body
    names = {"id": "producer_id", "epoch": "producer_epoch", "sequence": "sequence"}
    producer = {name: asked[given] for name, given in names.items()}
    sequence = _sequence(None if all(each is None for each in producer.values()) else producer, asked["partition"])
    check, now_ms = topic.checks_instants(asked["check_instants"]), topic.log_now_ms(served.store.now_ms())
    partition, priority = asked["partition"], asked["priority"]

    def read() -> tuple[SentColumns, Int64Array]:
        sent = sent_columns(data, now_ms, delay=asked["delay"], check=check)
        by_unique_key = sent.unique_keys is not None
        numbers = _NOWHERE if by_unique_key else _numbers(topic, sent.records, sent.partition, partition, priority)
        return sent, numbers

    sent, numbers = await served.run(read)
    if sent.unique_keys is not None:
        _check_unnumbered(sequence)
        if sent.partition is not None:
            raise errors.InvalidRequest("records with unique keys go to the partition of the call, or by their keys")
        keys, way = sent.unique_keys, asked["on_conflict"]
        placed = await served.run(lambda: _sent_unique(topic, sent.records, keys, way, partition, priority))
    else:
        placed = await _send_columns(served, topic, sent.records, numbers, sequence)
    return await served.aside(len(placed.offset) > FEW_PLACES, lambda: _placed(request, topic, placed))


def _numbers(
    topic: Topic, records: RecordColumns, named: Int64Array | None, of_all: int | None, priority: int | None
) -> Int64Array:
    """The partition of each record: as named, else by its key, else one for all that have none; of a priority."""
    count = len(records)
    if of_all is not None:
        if named is not None and bool(((named != of_all) & (named != -1)).any()):
            raise errors.InvalidRequest(f"partition {of_all} of the call, and others of records: name one")
        return np.full(count, topic.checked_partition(of_all, priority))
    numbers = np.full(count, topic.partition_of(None, priority) if count else 0)
    if records.keys is not None and topic.partition_count > 1:
        valid = np.ones(count, np.bool_) if records.key_valid is None else records.key_valid
        numbers[valid] = topic.partitions_of(records.take(np.flatnonzero(valid)), priority) if bool(valid.any()) else 0
    if named is not None:
        for number in np.unique(named[named != -1]).tolist():
            topic.checked_partition(number)
        numbers = np.where(named == -1, numbers, named)
    return numbers


async def _send_columns(
    served: Served,
    topic: Topic,
    records: RecordColumns | None,
    numbers: Int64Array,
    sequence: ProducerSequence | None,
) -> SentPlaces:
    """Each record to its partition."""
    if records is None or not len(records):
        return SentPlaces(_NOWHERE, _NOWHERE)
    present = np.unique(numbers).tolist()
    if len(present) == 1:
        return SentPlaces(numbers, await served.sends.send(topic, present[0], AppendRequest(records, sequence)))
    if sequence is not None:
        raise errors.InvalidRequest("a producer counts the records of one partition: send the others by themselves")
    rows_of = {number: np.flatnonzero(numbers == number) for number in present}

    def checked() -> dict[int, RecordColumns]:
        parts = {number: records.take(rows) for number, rows in rows_of.items()}
        for number, part in parts.items():
            topic.check_columns(number, part)
        return parts

    parts = await served.run(checked)
    offsets = np.empty(len(records), np.int64)
    sends = [served.sends.send(topic, number, AppendRequest(part)) for number, part in parts.items()]
    answers = await asyncio.gather(*sends, return_exceptions=True)  # none is left behind
    for rows, found in zip(rows_of.values(), answers, strict=True):
        if isinstance(found, BaseException):
            raise found
        offsets[rows] = found
    return SentPlaces(numbers, offsets)


def _sent_unique(
    topic: Topic, columns: RecordColumns, keys: list[bytes | None], on_conflict: OnConflict | Any, number: int | None,
    priority: int | None,
) -> SentPlaces:  # fmt: skip
    if number is not None:
        topic.checked_partition(number, priority)
    offsets = topic.append_unique(columns, keys, on_conflict, number, priority)
    if number is not None or topic.partition_count == 1:
        return SentPlaces(np.full(len(offsets), number or 0), offsets)
    return SentPlaces(topic.partitions_of_unique(columns, keys, priority), offsets)


def _placed(request: Request, topic: Topic, placed: SentPlaces) -> Reply:
    if request.wants_arrow:
        from afterlog.api.arrow_message import MEDIA_TYPE
        from afterlog.api.arrow_stream import placed_stream

        return Reply(placed_stream(placed.partition, placed.offset), media_type=MEDIA_TYPE)
    return as_json({"ids": placed.ids(topic.name)})


def _sequence(producer: dict[str, Any] | None, partition: int | None) -> ProducerSequence | None:
    """Which of its producer's records the first one is. Raises InvalidRequest."""
    if producer is None:
        return None
    if partition is None or None in producer.values():
        raise errors.InvalidRequest(
            "of an idempotent send say the producer's id, epoch and sequence, and the partition"
        )
    return ProducerSequence(producer["id"], producer["epoch"], producer["sequence"])


def _check_unnumbered(sequence: ProducerSequence | None) -> None:
    if sequence is not None:
        raise errors.InvalidRequest("a producer or unique keys, not both: a conflict would be a gap in the sequence")


def _place(topic: Topic, text: object) -> tuple[int, int]:
    """(partition, offset) of a record of the topic. Raises InvalidRecord, UnknownPartition."""
    if not isinstance(text, str):
        raise errors.InvalidRequest(f"a record is named by its id, as in mail-0@1042, not {text!r:.60}")
    record = RecordId.parse(text)
    if record.topic != topic.name:
        raise errors.InvalidRequest(f"{text!r:.100} is of another topic than {topic.name}")
    return topic.checked_partition(record.partition), record.offset


def _cancelled(topic: Topic, places: Sequence[tuple[int, int]]) -> list[int]:
    """The answer of each, by one call for each partition."""
    found = [0] * len(places)
    for number in sorted({partition for partition, _ in places}):
        rows = [row for row, (partition, _) in enumerate(places) if partition == number]
        offsets = np.array([places[row][1] for row in rows], np.int64)
        for row, each in zip(rows, topic.partition(number).cancel(offsets).tolist(), strict=True):
            found[row] = each
    return found


async def next_sequence(served: Served, request: Request) -> Reply:
    asked = request.arguments

    def ask() -> Reply:
        topic = served.store.topic(request.topic)
        number = topic.checked_partition(asked["partition"])
        return as_json({"sequence": topic.next_sequence(number, asked["producer_id"], asked["producer_epoch"])})

    return await served.run(ask)


async def appended(served: Served, request: Request) -> Reply:
    asked = request.arguments
    sent = ProducerSequence(asked["producer_id"], asked["producer_epoch"], asked["sequence"])

    def ask() -> Reply:
        topic = served.store.topic(request.topic)
        number = topic.checked_partition(asked["partition"])
        return as_json({"offsets": topic.held_of(number, sent, asked["records"]).tolist()})

    return await served.run(ask)


ENDPOINTS: Final = endpoints(
    {
        operations.SEND: send,
        operations.CANCEL: cancel,
        operations.CANCEL_UNIQUE: cancel_unique,
        operations.RESCHEDULE: reschedule,
        operations.NEXT_SEQUENCE: next_sequence,
        operations.APPENDED: appended,
    }
)
