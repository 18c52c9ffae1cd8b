"""Sends that arrive together share one append and one fdatasync: a line for each partition.

    request ──> line ──┐   while an append runs, others get in line; when it is done they are the next append
    request ──> line ──┴──> one append, in a thread ──> each its offsets

Nothing waits on purpose: who comes alone is appended at once. A request of which the records cannot be taken fails by
itself: where an append is refused before anything is written, its parts are tried one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from afterlog.aio_calls import Calls
from afterlog.errors import AfterlogError, InvalidRecord, InvalidTopic
from afterlog.produce.topic import Topic
from afterlog.records.columns import Bools, Int64Array, Ragged
from afterlog.records.encode import RecordColumns, join_ragged, ragged
from afterlog.records.single import SingleRecord

SHARED_RECORDS = 1 << 16
SHARED_BYTES = 16 << 20
"""One append takes no more, but for its first part. Larger: more share it, and all of them wait for it."""

SentOffsets = int | Int64Array
SentPart = SingleRecord | RecordColumns
"""What one request sends to one partition: a record, or some."""


class SendCounts(NamedTuple):
    """Since the server began. records per append: how well sends share."""

    appends: int = 0
    parts: int = 0
    records: int = 0


class Sends:
    """Of one server, in its event loop."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._lines: dict[tuple[Topic, int], _SendLine] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.counts = SendCounts()

    async def send(self, topic: Topic, number: int, part: SentPart) -> SentOffsets:
        """Append it; its offset, or those of its records, int64[n]. Raises as `Topic.append`."""
        line = self._lines.get((topic, number))
        if line is None:
            line = self._lines[topic, number] = _SendLine(topic, number)
            sent = line.put(part)
            running = asyncio.ensure_future(self._run(line))
            self._running.add(running)
            running.add_done_callback(self._running.discard)
            return await sent
        return await line.put(part)

    async def _run(self, line: _SendLine) -> None:
        while line.waiting:
            parts, sent = line.take()
            try:
                answers = await self._calls.run(lambda parts=parts: appended(line.topic, line.number, parts))  # type: ignore[misc]
            except BaseException as error:
                line.fail(sent, error)
                if not isinstance(error, Exception):
                    self._lines.pop((line.topic, line.number), None)
                    raise
                continue
            count = sum(1 if isinstance(part, SingleRecord) else len(part) for part in parts)
            self.counts = SendCounts(
                self.counts.appends + 1, self.counts.parts + len(parts), self.counts.records + count
            )
            for future, answer in zip(sent, answers, strict=True):
                if future.done():  # whoever asked is gone; the record is sent
                    continue
                if isinstance(answer, AfterlogError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        del self._lines[line.topic, line.number]


class _SendLine:
    """What waits for one partition."""

    __slots__ = ("number", "topic", "waiting")

    def __init__(self, topic: Topic, number: int) -> None:
        self.topic = topic
        self.number = number
        self.waiting: list[tuple[SentPart, asyncio.Future[SentOffsets]]] = []

    def put(self, part: SentPart) -> asyncio.Future[SentOffsets]:
        sent: asyncio.Future[SentOffsets] = asyncio.get_running_loop().create_future()
        self.waiting.append((part, sent))
        return sent

    def take(self) -> tuple[list[SentPart], list[asyncio.Future[SentOffsets]]]:
        """The next append."""
        records = size = taken = 0
        for part, _ in self.waiting:
            more, more_bytes = _size(part)
            if taken and (records + more > SHARED_RECORDS or size + more_bytes > SHARED_BYTES):
                break
            records, size, taken = records + more, size + more_bytes, taken + 1
        rows, self.waiting = self.waiting[:taken], self.waiting[taken:]
        return [part for part, _ in rows], [sent for _, sent in rows]

    def fail(self, sent: Sequence[asyncio.Future[SentOffsets]], error: BaseException) -> None:
        for future in sent:
            if not future.done():
                if isinstance(error, Exception):
                    future.set_exception(error)
                else:
                    future.cancel()


def appended(topic: Topic, number: int, parts: Sequence[SentPart]) -> list[SentOffsets | AfterlogError]:
    """Append all parts at once; of each its offsets, or why it cannot be taken. Blocks."""
    if len(parts) > 1:
        try:
            offsets = topic.append(number, joined(parts))
        except (InvalidRecord, InvalidTopic):  # one of them, at least; nothing was written
            return [_alone(topic, number, part) for part in parts]
        ends = np.cumsum([1 if isinstance(part, SingleRecord) else len(part) for part in parts])
        rows = np.split(offsets, ends[:-1])
        return [
            int(each[0]) if isinstance(part, SingleRecord) else each for part, each in zip(parts, rows, strict=True)
        ]
    return [_alone(topic, number, part) for part in parts]


def _alone(topic: Topic, number: int, part: SentPart) -> SentOffsets | AfterlogError:
    try:
        if isinstance(part, SingleRecord):
            return topic.append_one(number, part)
        return topic.append(number, part)
    except (InvalidRecord, InvalidTopic) as error:
        return error


def joined(parts: Sequence[SentPart]) -> RecordColumns:
    """The records of all parts, one behind another."""
    if all(isinstance(part, SingleRecord) for part in parts):
        return _columns([part for part in parts if isinstance(part, SingleRecord)])
    columns: list[RecordColumns] = []
    single: list[SingleRecord] = []
    for part in parts:
        if isinstance(part, SingleRecord):
            single.append(part)
            continue
        if single:
            columns.append(_columns(single))
            single = []
        columns.append(part)
    if single:
        columns.append(_columns(single))
    return concatenated(columns)


def concatenated(parts: Sequence[RecordColumns]) -> RecordColumns:
    """Columns one behind another; what one has and another has not is null there, or no headers."""
    has_keys = any(part.keys is not None for part in parts)
    has_headers = any(part.headers is not None for part in parts)
    return RecordColumns(
        values=join_ragged([part.values for part in parts]),
        value_valid=_valid([part.value_valid for part in parts], parts),
        keys=join_ragged([_items(part.keys, part) for part in parts]) if has_keys else None,
        key_valid=_valid(
            [np.zeros(len(part), np.bool_) if part.keys is None else part.key_valid for part in parts], parts
        )
        if has_keys
        else None,
        headers=join_ragged([_items(part.headers, part) for part in parts]) if has_headers else None,
        timestamps=np.concatenate([part.timestamps for part in parts]),
        deliver_after=np.concatenate([part.deliver_after for part in parts]),
    )


def _columns(records: Sequence[SingleRecord]) -> RecordColumns:
    values, keys, headers, timestamps, deliver_after = zip(*records, strict=True)
    value_column, value_valid = ragged(values)
    key_column, key_valid = ragged(keys) if any(key is not None for key in keys) else (None, None)
    return RecordColumns(
        values=value_column,
        value_valid=value_valid,
        keys=key_column,
        key_valid=key_valid,
        headers=ragged(headers)[0] if any(headers) else None,
        timestamps=np.array(timestamps, np.int64),
        deliver_after=np.array(deliver_after, np.int64),
    )


def _items(column: Ragged | None, part: RecordColumns) -> Ragged:
    return (np.zeros(len(part) + 1, np.int64), np.empty(0, np.uint8)) if column is None else column


def _valid(columns: Sequence[Bools | None], parts: Sequence[RecordColumns]) -> Bools | None:
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.ones(len(part), np.bool_) if column is None else column
            for column, part in zip(columns, parts, strict=True)
        ]
    )


def _size(part: SentPart) -> tuple[int, int]:
    """(records, bytes), about."""
    if isinstance(part, SingleRecord):
        return 1, part.batch_bytes_max
    return len(part), int(part.values[0][-1] - part.values[0][0])
