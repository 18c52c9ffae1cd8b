"""One partition as its users see it: an ordinary log in delivery order, whose high watermark is driven by the clock.

    append ──> PartitionLog ──> runs, bucket ──> Timeline (or AppendOrder) ──> fetch: whole batches, no copy
                                                                          └──> columns: decoded by kernels

A fetch is three steps: take a reading, take a stretch of delivery order, verify its entries where they lie.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np

from afterlog.errors import ClockBehind, CorruptFile, InvalidDeliverAfter, OffsetOutOfRange
from afterlog.fetch import verified
from afterlog.fetch.append_order import AppendOrder
from afterlog.fetch.columns import Columns
from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtTime, Position
from afterlog.fetch.timeline import Reading, Timeline
from afterlog.fetch.verified import Fetched, Located
from afterlog.index.merge import Block
from afterlog.log.batches import parse
from afterlog.log.broker_time import offset_at_broker_time
from afterlog.log.columns import Decoded, Int64Array
from afterlog.log.deliver_after import Instant, instant_ms
from afterlog.log.partition_log import PartitionLog


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """What one fetch found.

    batches: record batches (Kafka v2) in delivery order, memoryviews of the log, no copy; next_position: where to fetch
    next; high_watermark, log_end_offset: as of this fetch; clock_ms: the reading that decided what is due. The first
    batch may hold records before the position that was asked for, as in Kafka; delivery_offsets says where each begins.
    """

    batches: list[memoryview]
    delivery_offsets: Int64Array
    next_position: int
    high_watermark: int
    log_end_offset: int
    clock_ms: int


class Partition:
    """A partition, open for appends and fetches. Thread-safe."""

    def __init__(self, topic: str, number: int, log: PartitionLog) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self._order = Timeline(log) if log.delayed else AppendOrder(log)

    # The log.

    def append(self, batch: bytes | bytearray | memoryview, *, deliver_after: Instant | None = None) -> int:
        """Append record batches (Kafka v2, base offset 0) byte for byte; the offset of the first record.

        `deliver_after` speaks for all of them; None takes the `deliver-after` record headers, which foreign producers
        and `encode_batch` write. (A batch that was fetched from a topic has its time in the log, not in itself: state
        it.) Returns when they are safe under the durability. Raises InvalidBatch, InvalidDeliverAfter, RecordTooLarge,
        StorageFull.
        """
        asked_ms = None if deliver_after is None else instant_ms(deliver_after)
        return self.log.append(parse(batch, asked_ms, self.log.place.config))

    @property
    def log_start_offset(self) -> int:
        """Offset of the first record still in the log, in append order."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record, in append order; also the number of records ever appended."""
        return self.log.log_end_offset

    @property
    def log_start(self) -> int:
        """The first delivery offset that can be fetched."""
        return self._order.log_start

    # The schedule. None of these reads a record.

    def high_watermark(self) -> int:
        """The number of records that are due: the delivery offset behind the last of them."""
        return self._look().high_watermark

    def pending(self) -> int:
        """The number of records that are not due yet."""
        reading = self._look()
        return reading.visible.end.offset - reading.high_watermark

    def next_due(self) -> int | None:
        """When the next pending record is due, ms since the epoch; None where nothing is pending."""
        self._look()
        return self._order.next_due()

    def due_histogram(self, edges: Int64Array) -> Int64Array:
        """Records with edges[i] <= effective deliver_after < edges[i+1], due or not: int64[len(edges) - 1].

        `edges`: epoch ms, not decreasing. Without reading a record, by the indexes alone.
        """
        edges = np.ascontiguousarray(edges, np.int64)
        if edges.ndim != 1 or len(edges) < 2 or bool((np.diff(edges) < 0).any()):
            raise InvalidDeliverAfter("edges must be at least two instants in ms, not decreasing")
        return np.diff(self.log.index.due_counts(edges))

    def is_pending(self, offset: int) -> bool:
        """Whether the record of this append offset is still to come."""
        found = self.log.index.find(offset)
        return found is not None and found.deliver_after > self._look().clock_ms

    def offset_at_broker_time(self, ms: int) -> int:
        """The first offset in append order that was appended at or after `ms`; the log end where there is none.

        By prefixes alone, no record is decoded. Raises InvalidTopic where the log has no broker timestamps.
        """
        return offset_at_broker_time(self.log.state.visible_or_closed(), ms)

    def position(self, position: Position) -> int:
        """The delivery offset that `position` names. Raises OffsetOutOfRange outside [log start, log end]."""
        if position is EARLIEST:
            return self._order.log_start
        if position is LATEST:
            return self.high_watermark()
        if isinstance(position, AtTime | AfterOffset):
            return self._sought(position)
        try:
            delivery_offset = operator.index(position)
        except TypeError:
            raise TypeError(
                f"a position is a delivery offset, EARLIEST, LATEST, AtTime or AfterOffset, not {position!r}"
            ) from None
        return self._checked(delivery_offset, self.log_end_offset)

    def _sought(self, position: AtTime | AfterOffset) -> int:
        """The indexes count what is written and not visible yet, too: among what is pending no rank is final."""
        end = self.log_end_offset
        if isinstance(position, AtTime):
            return min(self._order.position_at(instant_ms(position.instant)), end)
        return self._checked(min(self._order.position_after(position.offset), end), end)

    # Fetching.

    def fetch(
        self,
        position: Position,
        *,
        max_bytes: int = 1 << 20,
        max_records: int | None = None,
        max_wait_ms: int = 0,
    ) -> FetchResult:
        """Whole batches from `position` on, in delivery order, as far as they are due.

        The first batch comes whatever its size; further ones within `max_bytes` and `max_records`. Where nothing is due
        it waits up to `max_wait_ms`, woken by the next due time or an append. Raises OffsetOutOfRange, CorruptFile,
        ClockBehind, StoreClosed.
        """
        place = self.log.place
        deadline_s = place.clock.monotonic_s() + max_wait_ms / 1000
        wanted = self.position(position)
        while True:
            reading = self._order.advance()
            located = self._locate(wanted, reading, max_records, whole=True)
            fetched = verified.batches(located, reading.visible, self.log.delayed, max_bytes)
            left_s = deadline_s - place.clock.monotonic_s()
            if len(fetched.block) or left_s <= 0:
                return self._result(fetched, reading)
            self.wait(reading, left_s)

    def columns(self, position: int, max_records: int, max_bytes: int) -> tuple[Columns, int]:
        """Up to `max_records` decoded records from `position` on, and the position behind them."""
        reading = self._order.advance()
        located = self._locate(position, reading, max_records, whole=False)
        if not len(located.block):
            return Columns.empty(self.topic), position
        limit_bytes = self.log.place.config.decompressed_bytes_max
        block, decoded = verified.records(located, reading.visible, self.log.delayed, max_bytes, limit_bytes)
        columns = self._columns(block, decoded)
        first = max(position - int(block.delivery_offset[0]), 0)
        columns = columns[first : first + max_records]
        return columns, int(columns.delivery_offset[-1]) + 1

    def wait(self, reading: Reading, timeout_s: float) -> None:
        """Wait until something may have become due or visible since `reading`, at most `timeout_s`."""
        place = self.log.place
        until_ms = self.wake_ms()
        if self.high_watermark() > reading.high_watermark:  # due since, and so no longer the next to be due
            return
        with place.changed:
            if self.log.state.visible().end.offset == reading.visible.end.offset:
                place.clock.wait(place.changed, until_ms, timeout_s)

    def wake_ms(self) -> int | None:
        """When by the clock of `wait` the next pending record may be due; None where only a notification can tell."""
        place = self.log.place
        now_ms = place.now_ms()
        next_due_ms = self.next_due()
        if next_due_ms is None or next_due_ms <= now_ms:  # held back by an append in flight, which notifies
            return None
        return next_due_ms + place.clock.now_ms() - now_ms  # later than next_due_ms where a jump is held back

    def check(self) -> None:
        """Prove the invariants of the log and its indexes."""
        self.log.check()

    def _look(self) -> Reading:
        """A reading for questions that deliver nothing: these are answered also while the clock is far behind."""
        try:
            return self._order.advance()
        except ClockBehind:
            return self._order.standing()

    def _checked(self, position: int, log_end: int) -> int:
        log_start = self._order.log_start
        if not log_start <= position <= log_end:
            where = "below the log start (retention removed it)" if position < log_start else "beyond the log end"
            raise OffsetOutOfRange(
                f"position {position} of {self.topic}-{self.number} is {where}; seek within [{log_start}, {log_end}]",
                position=position, log_start=log_start, log_end=log_end,
            )  # fmt: skip
        return position

    def _result(self, fetched: Fetched, reading: Reading) -> FetchResult:
        views = [memoryview(buffer) for buffer in fetched.buffers]
        places = zip(
            fetched.which.tolist(), fetched.batch_positions.tolist(), fetched.batch_sizes.tolist(), strict=True
        )
        return FetchResult(
            batches=[views[which][start : start + size] for which, start, size in places],
            delivery_offsets=fetched.block.delivery_offset,
            next_position=fetched.block.end_delivery_offset,
            high_watermark=reading.high_watermark,
            log_end_offset=reading.visible.end.offset,
            clock_ms=reading.clock_ms,
        )

    def _locate(self, position: int, reading: Reading, max_records: int | None, *, whole: bool) -> Located:
        """Entries from `position` on, cut at `max_records` but for the first.

        whole: only batches that fit into `max_records`, or else also the one in which they end.
        """
        end = reading.visible.end.offset
        try:
            block = self._order.read(self._checked(position, end), reading, max_records or 0)
            if max_records is not None:
                limit = position + max_records
                ends = int(block.delivery_offset.searchsorted(limit))
                if whole and block[:ends].end_delivery_offset > limit:
                    ends -= 1
                block = block[: max(ends, 1)]
            return verified.locate(block, reading.visible)
        except CorruptFile:
            self._checked(position, end)  # retention may have removed the segment meanwhile
            raise

    def _columns(self, block: Block, decoded: Decoded) -> Columns:
        if bool((block.records == 1).all()):
            offset, delivery_offset, due = block.offset, block.delivery_offset, block.deliver_after
        else:
            first = np.cumsum(block.records) - block.records
            within = np.arange(int(block.records.sum())) - np.repeat(first, block.records)
            offset = np.repeat(block.offset, block.records) + within
            delivery_offset = np.repeat(block.delivery_offset, block.records) + within
            due = np.repeat(block.deliver_after, block.records)
        return Columns(
            topic=self.topic,
            partition=np.full(len(offset), self.number, np.int64),
            offset=offset,
            delivery_offset=delivery_offset,
            due=due,
            deliver_after=decoded.deliver_after,
            timestamp=decoded.timestamp,
            key=decoded.key,
            key_valid=decoded.key_valid,
            value=decoded.value,
            value_valid=decoded.value_valid,
            headers=decoded.headers,
        )
