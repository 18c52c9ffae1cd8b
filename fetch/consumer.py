"""A consumer: reads partitions in delivery order and commits one position to each.

    committed <= processed <= handed <= high watermark

- handed: after the last record given to the caller.
- processed: what the caller is known to be done with: everything handed before it asked for more.
- committed: durable; where the next consumer of the group begins. `commit` writes `handed`; the automatic commit writes
  `processed`, so a record whose processing raised comes again (at least once).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import numpy as np

from afterlog.base.arguments import seconds, whole
from afterlog.base.clock import Clock
from afterlog.base.errors import CorruptFile, StoreClosed, UnknownPartition, WrongType
from afterlog.base.files import PROCESS
from afterlog.fetch.agenda import in_turn
from afterlog.fetch.group import GroupPosition
from afterlog.fetch.message import Message
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import Partition, agenda_of
from afterlog.fetch.positions import EARLIEST, Position
from afterlog.surface import ConsumerSurface

POLL_BYTES = 16 << 20
"""A poll reads no more than this of one partition, but for the first batch."""
READ_AHEAD_RECORDS = 500
"""The iterator, and polls for a few records each, decode so many at a time."""
FEW_RECORDS = READ_AHEAD_RECORDS // 4
"""Polls for up to so many are served from what was read ahead."""
AUTO_COMMIT_INTERVAL_S = 1.0

Looked = TypeVar("Looked")


class Consumer(ConsumerSurface):
    """Reads the given partitions for one group. Not thread-safe, but for `close`.

    >>> with store.consumer("mail", group="g") as consumer:   # doctest: +SKIP
    ...     for message in consumer:                          # blocks until a record is due
    ...         send(message.value)
    """

    def __init__(
        self,
        topic: str,
        partitions: Sequence[Partition],
        positions: Sequence[GroupPosition],
        *,
        clock: Clock,
        start: Position = EARLIEST,
        auto_commit: bool = True,
    ) -> None:
        self.topic = topic
        self._partitions = tuple(partitions)
        self._context = partitions[0].log.context
        self._positions = tuple(positions)
        self._clock = clock
        self.agenda = agenda_of(partitions, clock)
        """What it has to look at, and so how long there is nothing."""
        self._auto_commit = auto_commit
        self._handed = [
            partition.beginning(start) if position.committed is None else position.committed
            for partition, position in zip(partitions, positions, strict=True)
        ]
        self._processed = list(self._handed)
        self._ahead: deque[tuple[int, list[Message]]] = deque()
        """What was read ahead: of each row, the rows in turn, the last message first."""
        self._handing = False
        """Whether a call is about to hand something out, or was when an exception struck: nobody got that."""
        self._turn = 0
        self._committed_s = clock.monotonic_s()
        self._closed = False
        self._owner = PROCESS.id
        self.is_reading = True
        """Whether its partitions are its own: until its last commit is done."""
        self._lock = threading.Lock()
        """Held over every commit, and over the closing."""
        self._reader = threading.get_ident()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(processed=kind is None and self._reader == threading.get_ident())

    def __repr__(self) -> str:
        numbers = ", ".join(str(partition.number) for partition in self._partitions)
        return f"<Consumer of {self.topic}, partitions {numbers}{', closed' if self._closed else ''}>"

    def __iter__(self) -> Iterator[Message]:
        while not self._closed:
            message = self.pop()
            if message is not None:
                yield message
            elif not self.fill():
                self.agenda.wait(None)

    def poll(self, max_records: int = 500, timeout: float | None = 0.0) -> list[Message]:
        self._check_open()
        max_records, timeout = whole("max_records", max_records, 1), seconds("timeout", timeout)
        self._came_back()
        take = self._take if max_records <= FEW_RECORDS else self._take_many
        return self._found(lambda: take(max_records), timeout) or []

    def poll_columns(self, max_records: int = 65_536, timeout: float | None = 0.0) -> Columns:
        self._check_open()
        max_records, timeout = whole("max_records", max_records, 1), seconds("timeout", timeout)
        self._came_back()
        self._handing = True
        columns = self._columns(max_records, timeout)
        self._handing = False
        return columns

    def seek(self, position: Position, partition: int | None = None) -> None:
        rows = range(len(self._partitions)) if partition is None else [self._row(partition)]
        moved = {row: self._partitions[row].beginning(position) for row in rows}
        self._ahead.clear()
        for row, target in moved.items():
            self._handed[row] = self._processed[row] = target
            self.agenda.stir(row)

    def commit(self) -> None:
        PROCESS.check_is(self._owner)
        with self._lock:
            self._check_open()
            self._settle()
            self._write()

    def commit_at(self, positions: Mapping[int, int]) -> None:
        """Make durable that all before these delivery offsets is processed, by partition: for who reads elsewhere.

        Raises OffsetOutOfRange, of that PositionPending where what is sent later may come before it, UnknownPartition,
        StoreClosed, StorageFull; then nothing is moved.
        """
        if not isinstance(positions, Mapping):
            raise WrongType(f"positions are a mapping from partitions to delivery offsets, not {positions!r:.100}")
        rows = {self._row(number): whole("position", position) for number, position in positions.items()}
        for row, position in rows.items():
            partition = self._partitions[row]
            if position > partition.log_start:  # a reader may be behind what retention has taken meanwhile
                partition.beginning(position)
        PROCESS.check_is(self._owner)
        with self._lock:
            self._check_open()
            for row, position in rows.items():
                self._handed[row] = self._processed[row] = position
            self._write()

    def positions(self) -> dict[int, int]:
        return {part.number: handed for part, handed in zip(self._partitions, self._handed, strict=True)}

    def committed(self) -> dict[int, int | None]:
        return {part.number: row.committed for part, row in zip(self._partitions, self._positions, strict=True)}

    def lag(self) -> int:
        return sum(part.due(handed) for part, handed in zip(self._partitions, self._handed, strict=True))

    def close(self) -> None:
        """Commit what is processed and let the partitions go. From another thread it ends the iteration.

        What was handed out last is processed if the thread that took it closes; another thread cannot know.
        """
        self.end(processed=self._reader == threading.get_ident())

    # The steps of the above, none of which waits: for who must not block.

    @property
    def closed(self) -> bool:
        return self._closed

    def pop(self) -> Message | None:
        """The next message that was read ahead, with no I/O; None where it is time to `fill`."""
        self._came_back()
        if not self._ahead or self._commit_is_due() or self._context.settings.paused:
            return None
        self._handing = True
        row, messages = self._ahead[0]
        message = messages.pop()
        if not messages:
            self._ahead.popleft()
        self._handed[row] = message.delivery_offset + 1
        self._handing = False
        return message

    def fill(self) -> bool:
        """Read ahead what is due; False where nothing is: the agenda tells how long. Commit, when that is due."""
        PROCESS.check_is(self._owner)
        if self._ahead and self._context.settings.paused:  # it is read again
            for row, _ in self._ahead:
                self.agenda.stir(row)
            self._ahead.clear()
        if self._ahead:
            self._commit_when_due()
            return True
        self._handing = True
        found = None if self._one() else self._look(READ_AHEAD_RECORDS)
        if found is not None:
            self._ahead = deque(self._by_row(found))
            for row, messages in self._ahead:
                self._handed[row] = messages[-1].delivery_offset
                self.agenda.stir(row)
        self._handing = False
        return found is not None or bool(self._ahead)

    def _one(self) -> bool:
        """Read ahead the one record that has become due, where it is one, of one partition on the agenda."""
        rows = self.agenda.rows()
        if self._closed or len(rows) != 1 or self._context.settings.paused:
            return False
        self._commit_when_due()
        partition, position = self._partitions[rows[0]], self._handed[rows[0]]
        reading = partition.reading()
        message = partition.one(position, reading, Message) if reading.high_watermark == position + 1 else None
        if message is None:
            return False
        partition.handed_out_one(message.due, position + 1)
        self._ahead.append((rows[0], [message]))
        return True

    def look(self, max_records: int) -> Columns | None:
        """Hand out what is due now; None where nothing is: the agenda tells how long. Commit, when that is due.

        Empty once it is closed.
        """
        PROCESS.check_is(self._owner)
        self._handing = True
        found = self._look(max_records)
        self._handing = False
        return found

    def _look(self, max_records: int) -> Columns | None:
        if self._closed:
            return Columns.empty(self.topic)
        self._commit_when_due()
        return self._sweep(max_records)

    def take_back(self, columns: Columns) -> None:
        """What was handed out last did not reach the caller, or is handed out one by one."""
        for row, partition in enumerate(self._partitions):
            mine = columns.delivery_offset[columns.partition == partition.number]
            if len(mine):
                self._handed[row] = int(mine[0])
                self.agenda.stir(row)

    def end(self, processed: bool) -> None:
        """`close`, by who knows whether all that was handed out is processed. In a forked child it only forgets."""
        if PROCESS.id != self._owner:
            self._closed = True
            return
        with self._lock:
            if not self.is_reading:
                return
            self._closed = True
            try:
                if self._auto_commit:
                    if processed:
                        self._settle()
                    self._write()
            finally:
                self.is_reading = False
                self.agenda.close()

    def _columns(self, max_records: int, timeout: float | None) -> Columns:
        self._ahead.clear()
        found = self._found(lambda: self._look(max_records), timeout)
        return Columns.empty(self.topic) if found is None else found

    def _take(self, max_records: int) -> list[Message] | None:
        """Hand out what was read ahead, of the partitions in turn, so that a busy one starves nobody."""
        if (not self._ahead or self._commit_is_due() or self._context.settings.paused) and not self.fill():
            return None
        self._handing = True
        taken: list[Message] = []
        while self._ahead and len(taken) < max_records:
            row, messages = self._ahead.popleft()
            rest = len(taken) - max_records
            part = messages[: rest - 1 : -1]
            del messages[rest:]
            self._handed[row] = part[-1].delivery_offset + 1
            taken += part
            if messages:
                self._ahead.append((row, messages))
        self._handing = False
        return taken

    def _take_many(self, max_records: int) -> list[Message] | None:
        """The same of more than were read ahead; or of the one record that has become due."""
        self._ahead.clear()
        self._handing = True
        found = None if self._one() else self._look(max_records)
        messages = None if found is None else found.to_messages()
        self._handing = False
        return self._take(max_records) if self._ahead else messages

    def _found(self, look: Callable[[], Looked | None], timeout: float | None) -> Looked | None:
        """What `look` finds as soon as there is something, or None after `timeout` seconds."""
        deadline_s = None if timeout is None or timeout == 0 else self._clock.monotonic_s() + timeout
        while not self._closed:
            found = look()
            if found is not None or timeout == 0:
                return found
            left_s = None if deadline_s is None else deadline_s - self._clock.monotonic_s()
            if left_s is not None and left_s <= 0:
                break
            self.agenda.wait(left_s)
        return None

    def _by_row(self, columns: Columns) -> Iterator[tuple[int, list[Message]]]:
        """The messages of each partition, the last first; they lie together."""
        messages, numbers = columns.to_messages(), columns.partition
        if len(self._partitions) == 1:
            if messages:
                messages.reverse()
                yield 0, messages
            return
        starts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])[: len(messages)]).tolist()
        for start, end in itertools.pairwise([*starts, len(messages)]):
            yield self._row(messages[start].partition), messages[start:end][::-1]

    def _sweep(self, max_records: int) -> Columns | None:
        """Due records of the partitions on the agenda; None where there are none."""
        parts, left, moved = list[Columns](), max_records, list(self._handed)
        for row in in_turn(self.agenda.rows(), self._turn):
            partition, stirs = self._partitions[row], self.agenda.stirs[row]
            now_ms = partition.log.context.now_ms()
            reading = partition.reading()
            try:
                if self._context.settings.paused:
                    columns = Columns.empty(self.topic)
                else:
                    columns, moved[row] = partition.columns(moved[row], left, POLL_BYTES, reading)
            except CorruptFile:
                if parts:  # which come first; then it is told
                    break
                raise
            if len(columns):
                partition.handed_out(columns.delivery_offset, columns.due, moved[row])
                parts.append(columns)
                left -= len(columns)
                if left <= 0:
                    break
            else:
                self.agenda.rest(row, stirs, partition.rest_ms(reading, now_ms))
        self._handed = moved  # not before: where one partition raises, what the others gave was not handed out
        self._turn = (self._turn + 1) % len(moved)
        return Columns.concatenate(parts) if parts else None

    def _row(self, number: int) -> int:
        for row, partition in enumerate(self._partitions):
            if isinstance(number, int) and partition.number == number:
                return row
        raise UnknownPartition(f"this consumer does not read partition {number!r} of {self.topic}")

    def _came_back(self) -> None:
        """The caller came back for more: what it has is processed."""
        self._reader = threading.get_ident()
        self._settle()

    def _settle(self) -> None:
        """What was handed out is processed. What an interrupted call would have handed out, comes again."""
        if self._handing:
            self._handed = list(self._processed)
            self._ahead.clear()
            self.agenda.stir_all()
            self._handing = False
        self._processed[:] = self._handed

    def _commit_is_due(self) -> bool:
        return self._auto_commit and self._clock.monotonic_s() - self._committed_s >= AUTO_COMMIT_INTERVAL_S

    def _commit_when_due(self) -> None:
        if self._commit_is_due():
            with self._lock:
                if not self._closed:
                    self._write()

    def _write(self) -> None:
        """Commit what is processed. Once the store is closed its folder may be another's: StoreClosed."""
        rows = zip(self._partitions, self._positions, self._processed, strict=True)
        for partition, position, processed in rows:
            if processed != position.committed:
                goes_on = position.committed is not None and position.committed < processed
                with (
                    contextlib.nullcontext() if goes_on else partition.log.letting_go
                ):  # else it holds more than it did
                    partition.log.commit.make_delivered_durable()
                    with partition.log.commit.poisoning():
                        position.commit(processed)
        self._committed_s = self._clock.monotonic_s()

    def _check_open(self) -> None:
        PROCESS.check_is(self._owner)
        if self._closed:
            raise StoreClosed("the consumer is closed; make another with store.consumer(topic, group=...)")
