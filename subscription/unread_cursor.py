"""The cursor of a subscription over records it has not read yet, as they become due to it: `delay_ms` later than to
others.

    0 … read …│ position … due here …│ due to others, not here yet │ pending
                                     └ own high watermark          └ the partition's

What is due cannot be cancelled any more, so some records are decoded ahead: reading one record of a batch costs about
what reading all of it does.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from afterlog.base.errors import CorruptFile
from afterlog.fetch.message_columns import Columns, MadeMessage
from afterlog.fetch.partition import Partition
from afterlog.fetch.timeline import Reading
from afterlog.index.delayed_index import DueCounter
from afterlog.index.entries import Key

READ_AHEAD_RECORDS = 4_096
"""Decoded at a time where fewer are wanted: a multiple of that, since what would be left is decoded again. Larger:
fewer fetches, a longer first one."""
READ_AHEAD_BYTES = 1 << 20
"""About so many of these, by the size of those before. Larger: more memory for each partition."""
RECORD_BYTES = 1_024
"""Taken for the size of a record where none is known."""


class UnreadCursor:
    """Of one partition, for one subscription. One thread at a time."""

    def __init__(self, partition: Partition, delay_ms: int) -> None:
        self._partition = partition
        self._delay_ms = delay_ms
        self._counter = DueCounter() if delay_ms else None
        self._nothing = self._ahead = Columns.empty(partition.topic)
        self._start = self._end = -1
        """The read-ahead holds all records with delivery offsets from the one to the other."""
        self._record_bytes = RECORD_BYTES
        """As it was in the last of it."""
        self._messages: list[Any] = []
        """The same as messages: made when one is wanted by itself, and None where it was handed out."""
        self._places: list[int] = []
        """Their delivery offsets, and the end."""
        self._row = 0
        """Where the next that is wanted lies, as a rule."""

    def upto(self, reading: Reading) -> Key:
        """The key up to which records are due here."""
        return Key(reading.upto.deliver_after - self._delay_ms, reading.upto.offset)

    def high_watermark(self, reading: Reading) -> int:
        """How many records are due here."""
        if self._counter is None:
            return reading.high_watermark
        return self._counter.advance(reading.version.delayed_index, self.upto(reading))

    def next_due_ms(self, reading: Reading) -> int | None:
        """When the next record is due here that is not yet; None where nothing is pending."""
        if self._counter is None:
            due_ms = self._partition.next_due(reading)
        else:
            due_ms = self._counter.next_due(reading.version.delayed_index)
        return None if due_ms is None else due_ms + self._delay_ms

    def read(
        self, position: int, high_watermark: int, max_records: int, max_bytes: int, reading: Reading
    ) -> tuple[Columns, int]:
        """Up to `max_records` due records from `position` on, and the position behind them.

        Cancelled ones are stepped over. Raises OffsetOutOfRange, CorruptFile.
        """
        if position >= high_watermark:
            return self._nothing, position
        left = len(self._ahead) - int(self._ahead.delivery_offset.searchsorted(position))  # without cancelled ones
        short = self._end < high_watermark and left < max_records
        if short or not self._start <= position < self._end:
            self._read_ahead(position, high_watermark, max_records, max_bytes, reading)
        first = int(self._ahead.delivery_offset.searchsorted(position))
        if not first and len(self._ahead) <= max_records:
            return self._ahead, self._end
        columns = self._ahead[first : first + max_records]
        if first + len(columns) < len(self._ahead):
            return columns, int(self._ahead.delivery_offset[first + len(columns)])
        return columns, self._end

    def has(self, position: int) -> bool:
        """Whether the record there was read ahead, with others perhaps."""
        return self._start <= position < self._end

    def one(self, position: int, kind: type[MadeMessage], reading: Reading | None) -> tuple[MadeMessage, int] | None:
        """The first record from `position` on as a message, and the position behind it.

        None where `read` is to be asked: none was read ahead, or it was handed out before, and it is not one of a few
        that have become due since. reading: where it was not read ahead. Slots that `kind` has and `Message` has not
        are empty. Raises CorruptFile.
        """
        if reading is not None:
            only = self._partition.one(position, reading, kind) if self._counter is None else None
            return None if only is None else (only, position + 1)
        if not self._messages:
            self._messages = self._ahead.each(kind)
            self._places = [*self._ahead.delivery_offset.tolist(), self._end]
        row = self._row
        if not (row < len(self._messages) and self._places[row] == position):
            row = bisect_left(self._places, position, hi=len(self._messages))
        if row == len(self._messages) or type(self._messages[row]) is not kind:
            return None
        message, self._messages[row] = self._messages[row], None
        self._row = row + 1
        return message, self._places[row + 1]

    def few(self, position: int, max_records: int, kind: type[MadeMessage], reading: Reading) -> list[MadeMessage]:
        """Up to so many messages from `position` on, of a few that became due last; none: `read` is to be asked.

        Each as by `one`. Raises CorruptFile.
        """
        found, end = list[MadeMessage](), min(position + max_records, reading.high_watermark)
        while self._counter is None and position < end:
            message = self._partition.one(position, reading, kind)
            if message is None:
                break
            found.append(message)
            position += 1
        return found

    def _read_ahead(
        self, position: int, high_watermark: int, max_records: int, max_bytes: int, reading: Reading
    ) -> None:
        times = min(READ_AHEAD_RECORDS, READ_AHEAD_BYTES // self._record_bytes) // max_records
        parts, end, wanted, size = [Columns.empty(self._partition.topic)], position, max_records * max(times, 1), 0
        while end < high_watermark and wanted > 0 and size < max_bytes:
            try:
                columns, end = self._partition.columns(
                    end, min(wanted, high_watermark - end), max_bytes - size, reading
                )
            except CorruptFile:
                if end > position:  # what is intact comes first
                    break
                raise
            if end > high_watermark:  # it stepped over cancelled ones, up to what is due to others but not here yet
                columns = columns[: int(columns.delivery_offset.searchsorted(high_watermark))]
                end = high_watermark
            parts.append(columns)
            wanted -= len(columns)
            size += sum(int(places[-1] - places[0]) for places, _ in (columns.key, columns.value, columns.headers))
        self._ahead = parts[-1] if len(parts) <= 2 else Columns.concatenate(parts)
        self._record_bytes = max(size // max(len(self._ahead), 1), 1)
        self._messages, self._row = [], 0
        self._start, self._end = position, end
