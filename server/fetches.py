"""Long-polling fetches: waiters at the end of a partition share one agenda and cost one task each.

A record that comes costs each of them a look, one after the other, and the log nothing more.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from afterlog.fetch.agenda import Agenda
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import Partition, agenda_of
from afterlog.produce.topic import Topic
from afterlog.store.aio_calls import Calls, Line, Waiters
from afterlog.store.store import Store


class Fetch(NamedTuple):
    """What one fetch gave. positions: where to go on, by partition."""

    columns: Columns
    positions: dict[int, int]
    high_watermarks: dict[int, int]
    now_ms: int


class _SharedAgenda:
    """Of some partitions, for all who wait at their ends."""

    __slots__ = ("agenda", "line", "partitions", "users")

    def __init__(self, partitions: tuple[Partition, ...], agenda: Agenda, waiters: Waiters) -> None:
        self.partitions = partitions
        self.agenda = agenda
        self.line = Line(waiters, agenda)
        self.users = 0


class Fetches:
    """Of one server, in its event loop."""

    def __init__(self, store: Store, calls: Calls, waiters: Waiters) -> None:
        self._store = store
        self._calls = calls
        self._waiters = waiters
        self._shared: dict[tuple[Topic, tuple[int, ...]], _SharedAgenda] = {}

    async def fetch(
        self, topic: Topic, positions: Mapping[int, int], max_records: int, max_bytes: int, wait_s: float
    ) -> Fetch:
        """Due records from these positions on, of the partitions in the order given; waits so long for the first.

        Raises UnknownPartition, OffsetOutOfRange, ClockBehind, CorruptFile, StoreClosed.
        """
        numbers = tuple(sorted(positions))

        def look(agenda: Agenda | None) -> Fetch:
            partitions = [topic.partition(number) for number in numbers]
            return _looked(topic.name, partitions, positions, max_records, max_bytes, agenda)

        if wait_s <= 0:
            return await self._calls.run(lambda: look(None))
        async with self._lent(topic, numbers) as shared:
            last: list[Fetch] = []

            async def found() -> Fetch | None:
                last[:] = [await self._calls.run(lambda: look(shared.agenda))]
                return last[0] if len(last[0].columns) else None

            return await shared.line.found(found, wait_s) or last[0]

    @contextlib.asynccontextmanager
    async def _lent(self, topic: Topic, numbers: tuple[int, ...]) -> AsyncIterator[_SharedAgenda]:
        key = (topic, numbers)
        shared = self._shared.get(key)
        if shared is None:
            partitions = await self._calls.run(lambda: tuple(map(topic.partition, numbers)))
            shared = self._shared.get(key)
            if shared is None:
                agenda = agenda_of(partitions, self._store.clock)
                shared = self._shared[key] = _SharedAgenda(partitions, agenda, self._waiters)
        shared.users += 1
        try:
            yield shared
        finally:
            shared.users -= 1
            if not shared.users:
                self._shared.pop(key, None)
                shared.agenda.close()


def _looked(
    topic: str,
    partitions: list[Partition],
    positions: Mapping[int, int],
    max_records: int,
    max_bytes: int,
    agenda: Agenda | None,
) -> Fetch:
    """One look at all of them, in the order in which they are named. What finds nothing rests on the agenda."""
    parts, moved, marks, now_ms = list[Columns](), dict(positions), dict[int, int](), 0
    rows = {partition.number: row for row, partition in enumerate(partitions)}
    for row in map(rows.__getitem__, positions):
        partition = partitions[row]
        stirs = 0 if agenda is None else agenda.stirs[row]
        now_ms = partition.log.context.now_ms()
        reading = partition.reading()
        marks[partition.number] = reading.high_watermark
        if max_records <= 0 or max_bytes <= 0:
            continue
        columns, behind = Columns.empty(topic), positions[partition.number]
        if not partition.is_paused:
            columns, behind = partition.columns(behind, max_records, max_bytes, reading)
        moved[partition.number] = behind
        if len(columns):
            partition.handed_out(columns.delivery_offset, columns.due, behind)
            parts.append(columns)
            max_records -= len(columns)
            max_bytes -= _size(columns)
        elif agenda is not None:
            agenda.rest(row, stirs, partition.rest_ms(reading, now_ms))
    return Fetch(Columns.concatenate([Columns.empty(topic), *parts]), moved, marks, now_ms)


def _size(columns: Columns) -> int:
    return sum(int(offsets[-1] - offsets[0]) for offsets, _ in (columns.key, columns.value, columns.headers))
