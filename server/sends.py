"""Sends that arrive together share one append and one fdatasync: one queue per partition.

    request ──> line ──┐   while an append runs, others get in line; when it is done they are the next append
    request ──> line ──┴──> one append, in a thread ──> each its offsets, or its error

Nothing waits on purpose: who comes alone is appended at once, by the short way that one record has. What is in line is
taken by the thread when it begins, so what came while that woke up is in it. A request that
cannot be taken, or was appended before, touches no other (`Topic.append_together`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import AfterlogError
from afterlog.produce.numbered import AppendAnswer, AppendRequest
from afterlog.produce.topic import Topic
from afterlog.records.columns import Int64Array
from afterlog.records.single import SingleRecord
from afterlog.store.aio_calls import Calls

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
        self.counts = SendCounts()

    async def send(self, topic: Topic, number: int, request: AppendRequest) -> Int64Array:
        """Append what is asked for; the offsets of its records, int64[n]. Raises as `Topic.append`."""
        line = self._lines.get((topic, number))
        begins = line is None
        if line is None:
            line = self._lines[topic, number] = _SendLine(topic, number, asyncio.get_running_loop())
        sent = line.put(request)
        if begins:
            self._begin(line)
        return await sent

    def _begin(self, line: _SendLine) -> None:
        """The next append, of what is in the line when a thread takes it."""

        def append() -> None:
            taken = line.take()
            requests = [request for request, _ in taken]
            try:
                answers: Sequence[AppendAnswer | Exception] = appended(line, requests)
            except Exception as error:
                answers = [error] * len(taken)
            with contextlib.suppress(RuntimeError):  # the loop was closed over its tasks
                line.loop.call_soon_threadsafe(self._end, line, taken, answers)

        if self._calls.closed:
            append()
        else:
            self._calls.begin(append)

    def _end(self, line: _SendLine, taken: Sequence[_WaitingSend], answers: Sequence[AppendAnswer | Exception]) -> None:
        appends, asked, records = self.counts
        more = sum(_records(request) for request, _ in taken)
        self.counts = SendCounts(appends + 1, asked + len(taken), records + more)
        if line.waiting:
            self._begin(line)
        else:
            del self._lines[line.topic, line.number]
        for (_, sent), answer in zip(taken, answers, strict=True):
            if sent.done():  # whoever asked is gone; the record is sent
                continue
            if isinstance(answer, Exception):
                sent.set_exception(answer)
            else:
                sent.set_result(answer)


_WaitingSend = tuple[AppendRequest, "asyncio.Future[Int64Array]"]


class _SendLine:
    """What waits for one partition: the loop puts it there, and one thread at a time takes it."""

    __slots__ = ("loop", "number", "topic", "waiting")

    def __init__(self, topic: Topic, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.topic = topic
        self.number = number
        self.loop = loop
        self.waiting: deque[_WaitingSend] = deque()

    def put(self, request: AppendRequest) -> asyncio.Future[Int64Array]:
        sent: asyncio.Future[Int64Array] = self.loop.create_future()
        self.waiting.append((request, sent))
        return sent

    def take(self) -> list[_WaitingSend]:
        """The next append."""
        taken, records, size = [self.waiting.popleft()], 0, 0
        while self.waiting:
            last, request = taken[-1][0], self.waiting[0][0]
            records, size = records + _records(last), size + _bytes(last)
            if records + _records(request) > SHARED_RECORDS or size + _bytes(request) > SHARED_BYTES:
                break
            taken.append(self.waiting.popleft())
        return taken


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
