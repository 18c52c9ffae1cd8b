"""Sends that arrive together share one append and one fdatasync: a line for each partition.

    request ──> line ──┐   while an append runs, others get in line; when it is done they are the next append
    request ──> line ──┴──> one append, in a thread ──> each its offsets, or its error

Nothing waits on purpose: who comes alone is appended at once, by the short way that one record has. A request that
cannot be taken, or was appended before, touches no other (`Topic.append_together`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from afterlog.aio_calls import Calls
from afterlog.errors import AfterlogError
from afterlog.produce.numbered import AppendAnswer, AppendRequest
from afterlog.produce.topic import Topic
from afterlog.records.columns import Int64Array
from afterlog.records.single import SingleRecord

SHARED_RECORDS = 1 << 16
SHARED_BYTES = 16 << 20
"""One append takes no more, but for its first request. Larger: more share it, and all of them wait for it."""


class SendCounts(NamedTuple):
    """Since the server began. records per append: how well sends share."""

    appends: int = 0
    requests: int = 0
    records: int = 0


class Sends:
    """Of one server, in its event loop."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._lines: dict[tuple[Topic, int], _SendLine] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.counts = SendCounts()

    async def send(self, topic: Topic, number: int, request: AppendRequest) -> Int64Array:
        """Append what is asked for; the offsets of its records, int64[n]. Raises as `Topic.append`."""
        line = self._lines.get((topic, number))
        if line is not None:
            return await line.put(request)
        line = self._lines[topic, number] = _SendLine(topic, number)
        sent = line.put(request)
        running = asyncio.ensure_future(self._run(line))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await sent

    async def _run(self, line: _SendLine) -> None:
        try:
            while line.waiting:
                requests, sent = line.take()
                count = sum(map(_records, requests))
                appends, asked, records = self.counts
                self.counts = SendCounts(appends + 1, asked + len(requests), records + count)
                try:
                    answers = await self._calls.run(lambda requests=requests: appended(line, requests))  # type: ignore[misc]
                except Exception as error:
                    answers = [error] * len(requests)
                for future, answer in zip(sent, answers, strict=True):
                    if future.done():  # whoever asked is gone; the record is sent
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            del self._lines[line.topic, line.number]
            for _, future in line.waiting:  # the server ends
                future.cancel()


class _SendLine:
    """What waits for one partition."""

    __slots__ = ("number", "topic", "waiting")

    def __init__(self, topic: Topic, number: int) -> None:
        self.topic = topic
        self.number = number
        self.waiting: list[tuple[AppendRequest, asyncio.Future[Int64Array]]] = []

    def put(self, request: AppendRequest) -> asyncio.Future[Int64Array]:
        sent: asyncio.Future[Int64Array] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, sent))
        return sent

    def take(self) -> tuple[list[AppendRequest], list[asyncio.Future[Int64Array]]]:
        """The next append."""
        records = size = taken = 0
        for request, _ in self.waiting:
            more, more_bytes = _records(request), _bytes(request)
            if taken and (records + more > SHARED_RECORDS or size + more_bytes > SHARED_BYTES):
                break
            records, size, taken = records + more, size + more_bytes, taken + 1
        rows, self.waiting = self.waiting[:taken], self.waiting[taken:]
        return [request for request, _ in rows], [sent for _, sent in rows]


def appended(line: _SendLine, requests: Sequence[AppendRequest]) -> Sequence[AppendAnswer | Exception]:
    """The offsets of each, or why it was not appended. Blocks."""
    if len(requests) > 1:
        return line.topic.append_together(line.number, requests)
    [(records, sequence)] = requests
    try:
        if isinstance(records, SingleRecord):
            return [np.array([line.topic.append_one(line.number, records, sequence)])]
        return [line.topic.append(line.number, records, sequence=sequence)]
    except AfterlogError as error:
        return [error]


def _records(request: AppendRequest) -> int:
    return 1 if isinstance(request.records, SingleRecord) else len(request.records)


def _bytes(request: AppendRequest) -> int:
    """About."""
    records = request.records
    if isinstance(records, SingleRecord):
        return records.batch_bytes_max
    return int(records.values[0][-1] - records.values[0][0])
