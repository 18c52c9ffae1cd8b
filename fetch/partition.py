"""One partition as its users see it: an ordinary log in delivery order, whose high watermark is driven by the clock.

    append ──> PartitionLog ──> runs, bucket ──> Timeline (or AppendOrder) ──> fetch: whole batches, no copy
                                                                          └──> columns: decoded by kernels

A fetch is three steps: take a reading, take a stretch of delivery order, verify its entries where they lie.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from afterlog.base.arguments import INT64_MAX, whole
from afterlog.base.clock import Clock
from afterlog.base.errors import (
    ClockBehind,
    InvalidDeliverAfter,
    NotPending,
    OffsetOutOfRange,
    PositionPending,
    WrongType,
)
from afterlog.fetch import verified
from afterlog.fetch.agenda import Agenda
from afterlog.fetch.append_order import AppendOrder, segment_of
from afterlog.fetch.decoder import Decoder, cancelled_within, without_cancelled
from afterlog.fetch.lateness import Lateness
from afterlog.fetch.message import RecordState, StoredRecord
from afterlog.fetch.message_columns import Columns, MadeMessage
from afterlog.fetch.objects import section_of
from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtBrokerTime, AtTime, Edge, Position
from afterlog.fetch.ranks import acked_ranges, entries_at, hidden_between, offsets_at
from afterlog.fetch.timeline import Reading, Timeline
from afterlog.fetch.verified import Fetched, Located
from afterlog.index.acked_ranges import AckedRange
from afterlog.index.entries import Entries, Key
from afterlog.index.merge import Block
from afterlog.log.broker_time import offset_at_broker_time
from afterlog.log.cancel_result import CancelResult
from afterlog.log.cancellation import Int8Array
from afterlog.log.lookup import EntryPlace, find_one
from afterlog.log.notifier import NEVER_MS
from afterlog.log.partition_log import PartitionLog
from afterlog.log.scan import walk
from afterlog.log.segment import SealedSegment, Segment
from afterlog.log.version import Version, Visible
from afterlog.records import kernels
from afterlog.records.columns import Int64Array
from afterlog.records.encode import RecordColumns, encode, offset_column, parse
from afterlog.records.single import SingleRecord
from afterlog.records.times import AS_SOON_AS_POSSIBLE, Instant, check_instant_column, check_timestamps, instant_ms

APPENDED_RECORDS = 1_000
"""Looked at in one go, where somebody looks through what was appended."""
CANCELLED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """What one fetch found.

    batches: record batches (Kafka v2) in delivery order, memoryviews of the log, no copy; next_position: where to fetch
    next; high_watermark, log_end_offset: as of this fetch; clock_ms: the reading that decided what is due. The first
    batch may hold records before the position that was asked for, as in Kafka; delivery_offsets says where each begins.
    Batches of which all is cancelled, and control batches, are left out; cancelled: the offsets of cancelled records in
    the batches that are there, ascending, since a batch is never written anew (as Kafka tells of aborted transactions).
    """

    batches: list[memoryview]
    delivery_offsets: Int64Array
    next_position: int
    high_watermark: int
    log_end_offset: int
    clock_ms: int
    cancelled: Int64Array


SingleRead = tuple[bytes | None, bytes | None, bytes, int, int, int]
"""What `kernels.read_single` gives."""
ONE_BYTES_MAX = 256 << 10
"""Of a batch of which one record is read. Larger: fewer are read by their columns, more is checked for one."""


class PartitionCounts(NamedTuple):
    """What `pending`, `due`, `high_watermark`, `next_due` and `log_end_offset` say."""

    pending: int
    due: int
    high_watermark: int
    next_due: int | None
    log_end_offset: int


class Partition:
    """A partition, open for appends and fetches. Thread-safe."""

    def __init__(self, topic: str, number: int, log: PartitionLog) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        timeline = Timeline(log) if log.delayed else None
        self._order = AppendOrder(log) if timeline is None else timeline
        self._decoder = Decoder(topic, number, log)
        self.lateness = None if timeline is None else Lateness(timeline.opened_at)
        """How late records were handed out; nothing is ever late in a FIFO topic."""

    # The log.

    def append(self, batch: bytes | bytearray | memoryview, *, deliver_after: Instant | None = None) -> int:
        """Append record batches (Kafka v2, base offset 0) byte for byte; the offset of the first record.

        `deliver_after` speaks for all of them; None takes the `deliver-after` record headers, which foreign producers
        and `encode_batch` write. (A batch that was fetched from a topic has its time in the log, not in itself: state
        it.) Returns when they are safe under the durability. Raises InvalidBatch, InvalidDeliverAfter, InvalidRecord,
        RecordTooLarge, StorageFull.
        """
        self.log.commit.usable()
        asked_ms = None if deliver_after is None else instant_ms(deliver_after)
        batches = parse(batch, asked_ms, self.log.context.config)
        self.log.check_batches(batches)
        if self.log.context.settings.check_instants:
            now_ms = self.log.context.now_ms()
            check_instant_column(batches.deliver_after, now_ms)
            check_timestamps(batches.max_timestamp, now_ms)
        return self.log.append(batches)

    def cancel(self, offsets: Int64Array) -> Int8Array:
        """Cancel what is pending of the records of these append offsets: int8[n], each a `CancelResult`.

        A cancelled record is never delivered. Returns when that is safe under the durability. Of equal offsets the
        first counts; the others are told that it is cancelled. In a FIFO topic nothing is ever pending. Raises
        StorageFull, with a part of a large call done, and CorruptFile.
        """
        offsets = offset_column(offsets)
        if len(offsets) == 1:
            return self.log.cancel(offsets)
        distinct, first, which = np.unique(offsets, return_index=True, return_inverse=True)
        answers = self.log.cancel(distinct)[which]
        again = np.ones(len(offsets), np.bool_)
        again[first] = False
        answers[again & (answers == CancelResult.CANCELLED)] = CancelResult.ALREADY_CANCELLED
        return answers

    def reschedule(self, offset: int, asked_ms: int) -> int:
        """Append the pending record of an append offset again for another time, and cancel it: the new offset.

        Both or neither, at any crash. Key, value, headers and timestamp stay. Raises NotPending, and as `send` does.
        """
        asked_ms = whole("asked_ms", asked_ms, AS_SOON_AS_POSSIBLE)
        offset = whole("offset", offset, -INT64_MAX)
        version = self.look().version  # which a forked child has none of
        place = find_one(version.all_written(), offset) if self.log.delayed else None
        single = None if place is None else _single(place, offset)
        if place is None or single is None:
            again = self._again(offset, asked_ms)
        else:
            key, value, headers, timestamp, *_ = single
            record = SingleRecord(value, key, headers, timestamp, asked_ms)
            if self.log.takes_one(record):
                return self.log.reschedule(offset, record, place.entries())
            again = record.columns()
        [follower], _ = encode(again, self.log.context.config)
        return self.log.reschedule(offset, follower)

    def _again(self, offset: int, asked_ms: int) -> RecordColumns:
        """The record of an append offset, to be sent again for another time. Raises NotPending, CorruptFile."""
        try:
            return self.records_at(np.array([offset]), np.array([-1])).again(asked_ms)
        except OffsetOutOfRange:
            answer = CancelResult.UNKNOWN
            raise NotPending(f"no record of offset {offset} is in the log", answer=answer) from None

    def purge(self, upto: Position = LATEST) -> int:
        """Put all that is due before a position out of reach for good; how many records that were not before.

        A batch that goes on after the position stays. Their segments go where they hold nothing else; of a FIFO topic
        only whole segments go. Returns when it is durable. Raises ReadOnlyTopic, ClockBehind, StorageFull, and as
        `beginning` does.
        """
        found = self.beginning(upto)
        reading = self.reading()
        found = self._order.batch_around(min(found, reading.high_watermark), reading).start
        if found <= reading.log_start:
            return 0
        return self.log.purge(self._order.key_before(found, reading))

    def cancel_pending(self) -> int:
        """Cancel all that is pending; how many records. Those sent meanwhile may stay.

        Returns when that is safe under the durability. Raises as `cancel` does, with a part of it done.
        """
        first, end = self.log_start_offset, self.log_end_offset
        answers = (
            self.log.cancel(np.arange(start, min(start + CANCELLED_AT_ONCE, end)))
            for start in range(first, end if self.log.delayed else first, CANCELLED_AT_ONCE)
        )
        return sum(int(np.count_nonzero(each == CancelResult.CANCELLED)) for each in answers)

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
        return self._order.log_start(self.log.versions.current)

    # The schedule. None of these reads a record.

    def high_watermark(self) -> int:
        """The number of records that are due: the delivery offset after the last of them. Cancelled ones count."""
        return self.look().high_watermark

    def pending(self) -> int:
        """The number of records that are not due yet, and not cancelled."""
        return self._pending(self.look())

    def _pending(self, reading: Reading) -> int:
        hidden = reading.hidden.count - reading.hidden.rank(reading.upto)
        return reading.end_offset - reading.high_watermark - hidden

    def counts(self) -> PartitionCounts:
        """All of one reading."""
        reading = self.look()
        due, next_due = self._due(reading.log_start, reading), self.next_due(reading)
        return PartitionCounts(self._pending(reading), due, reading.high_watermark, next_due, self.log_end_offset)

    def due(self, position: int | None = None) -> int:
        """The number of records that are due from a delivery offset on, by default all in the log; none is hidden."""
        reading = self.look()
        return self._due(reading.log_start if position is None else position, reading)

    def _due(self, position: int, reading: Reading) -> int:
        start = max(position, reading.log_start)
        if start >= reading.high_watermark:
            return 0
        return reading.high_watermark - start - self.hidden_between(start, reading.upto, reading)

    def next_due(self, reading: Reading | None = None) -> int | None:
        """When the next pending record is due, ms since the epoch; None where nothing is pending."""
        return self._order.next_due(reading or self.look())

    def scheduled(
        self,
        limit: int,
        key: bytes | None = None,
        *,
        behind: Key | None = None,
        before_ms: int | None = None,
        max_bytes: int = INT64_MAX,
    ) -> Columns:
        """The next `limit` pending records, next due first, of one key where that is given; nothing is delivered.

        behind: only those that come after this place in delivery order; before_ms: that are due before. max_bytes: none
        after those whose values fill it. `delivery_offset` is -1 in all of them: their ranks are not final.
        """
        limit, max_bytes = whole("limit", limit), whole("max_bytes", max_bytes)
        if not isinstance(key, bytes | None):
            raise WrongType(f"a key must be bytes, not {key!r:.100}")
        if not isinstance(behind, Key | None):
            raise WrongType(f"a place in delivery order is a Key, not {behind!r:.100}")
        reading = self.look()
        start = self._entry_start(behind, reading)
        within = 0 if behind is None or start is None else behind.offset - start.offset
        blocks = self._order.pending(reading, start)
        if before_ms is not None:
            blocks = _due_before(blocks, whole("before_ms", before_ms, -INT64_MAX))
        columns = self._decoder.first(blocks, limit + within, key, reading, max_bytes)
        if behind is not None and within:
            columns = columns.take(
                np.flatnonzero((columns.due > behind.deliver_after) | (columns.offset > behind.offset))
            )
        columns = columns[:limit]
        return replace(columns, delivery_offset=np.full(len(columns), -1))

    def _entry_start(self, behind: Key | None, reading: Reading) -> Key | None:
        """The key before the entry that holds a record, so that those behind it in its batch are found."""
        if behind is None or not 0 <= behind.offset < reading.end_offset:
            return behind
        found = self.log.find(np.array([behind.offset]), reading.version).entry(0)
        held = found.records and found.deliver_after == behind.deliver_after
        return Key(behind.deliver_after, found.offset - 1) if held and found.records > 1 else behind

    def due_histogram(self, edges: Int64Array) -> Int64Array:
        """Records with edges[i] <= effective deliver_after < edges[i+1], due or not: int64[len(edges) - 1].

        Those from the log start on that are not cancelled. `edges`: epoch ms, not decreasing. Without reading a record,
        by the indexes alone.
        """
        try:
            edges = np.ascontiguousarray(edges, np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidDeliverAfter(f"edges must be a column of instants in ms: {error}") from None
        if edges.ndim != 1 or len(edges) < 2 or bool((np.diff(edges) < 0).any()):
            raise InvalidDeliverAfter("edges must be at least two instants in ms, not decreasing")
        reading = self.look()
        index, out_of_reach = reading.version.delayed_index, reading.version.log_start.key
        counts = np.maximum(index.due_counts(edges), index.records_up_to(out_of_reach)) - reading.hidden.counts(edges)
        for row in index.acked.rows:  # nobody gets what lies in one: up to an edge within it comes what does before it
            within = (edges > row.after_ms) & (edges <= row.upto_ms)
            if bool(within.any()):
                counts[within] = index.records_up_to(row.after) - reading.hidden.still_there(row.after)
        return np.diff(counts)

    def is_pending(self, offset: int) -> bool:
        """Whether the record of this append offset is still to come: it is not due, and not cancelled."""
        offset = whole("offset", offset, -INT64_MAX)
        reading = self.look()
        found = self.log.find(np.array([offset]), reading.version).entry(0)
        if not found.records or found.deliver_after <= reading.clock_ms:
            return False
        key = Key(found.deliver_after, offset)
        return not len(reading.hidden.between(Key(key.deliver_after, offset - 1), key))

    def stored(self, offset: int) -> StoredRecord | None:
        """The record of an append offset, and whether it is still to come. Raises CorruptFile.

        None where the log has none, or a marker, and where it lies before the log start. A cleaning leaves of what was
        cancelled no key and no value.
        """
        reading = self.look()
        try:
            columns = self.records_at(np.array([whole("offset", offset, -INT64_MAX)]), np.array([-1]), reading)
        except OffsetOutOfRange:
            return None
        cancellations, due = reading.version.cancellations, int(columns.due[0])
        is_gone = self.log.delayed and Key(due, offset) <= reading.version.log_start.key
        if is_gone or bool(cancellations.controls.holds(columns.due, columns.offset)[0]):
            return None
        state: RecordState = "pending" if due > reading.clock_ms else "due"
        if bool(cancellations.targets.holds(columns.due, columns.offset)[0]):
            state = "cancelled"
        [record] = columns.to_scheduled()
        return StoredRecord(**asdict(record), state=state)

    def offset_at_broker_time(self, ms: int) -> int:
        """The first offset in append order that was appended at or after `ms`; the log end where there is none.

        By prefixes alone, no record is decoded. Raises InvalidTopic where the log has no broker timestamps.
        """
        return offset_at_broker_time(self.log.pin().readable(), whole("ms", ms, -INT64_MAX))

    @property
    def bucket_total(self) -> int:
        """The buckets of the delayed index: its runs, and the mutable one. None where there is no index."""
        return len(self.log.index.runs) + 1 if self.log.delayed else 0

    @property
    def index_bytes(self) -> int:
        """Bytes of the stored runs."""
        return sum(run.size for run in self.log.index.runs)

    def loaded_entries(self) -> int:
        """Index entries in memory: the mutable bucket, and what readers hold, each for itself."""
        return self.log.index.bucket.count + self._order.loaded_entries()

    def position(self, position: Position, reading: Reading | None = None) -> int:
        """The delivery offset that `position` names, as of a reading. Raises OffsetOutOfRange outside [log start, end].

        The indexes count what is written and not visible yet, too: among what is pending no rank is final.
        """
        if position is LATEST:
            return (reading or self.look()).high_watermark
        if isinstance(position, AtBrokerTime):
            reading = reading or self.look()
            found = self._order.position_at_broker_time(instant_ms(position.instant), reading)
            return min(max(found, reading.log_start), reading.version.visible.offset)
        version = self.log.pin() if reading is None else reading.version
        log_start, end = self._order.log_start(version), version.visible.offset
        if position is EARLIEST:
            return log_start
        if isinstance(position, AtTime):
            return min(self._order.position_at(instant_ms(position.instant), version), end)
        if isinstance(position, AfterOffset):
            offset = whole("offset", position.offset, -INT64_MAX)  # outside the log it is out of range
            return self._checked(min(self._order.position_after(offset, version), end), log_start, end)
        try:
            delivery_offset = operator.index(position)
        except TypeError:
            raise WrongType(
                "a position is a delivery offset, EARLIEST, LATEST, AtTime, AtBrokerTime or AfterOffset, "
                f"not {position!r}"
            ) from None
        return self._checked(delivery_offset, log_start, end)

    def beginning(self, position: Position) -> int:
        """The delivery offset from which a reader goes on that is sent to `position`: it misses nothing sent later.

        So it is no rank among what is pending, nor after a record that is. (An instant may be: whatever is due from
        it on lies behind its position, also what is sent later.) Raises PositionPending, and as `position` does.
        """
        found = self.position(position)
        if isinstance(position, AtTime | AtBrokerTime | Edge):
            return found
        latest = self.look().high_watermark
        if found > latest and found > (settled := self._order.settled()):
            raise PositionPending(
                f"position {found} of {self.topic}-{self.number} lies among what is pending; what is sent later may "
                f"come before it: seek to LATEST ({latest} now), behind which all of that lies, or to an instant",
                position=found, log_start=self.log_start, log_end=settled,
            )  # fmt: skip
        return found

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
        it waits up to `max_wait_ms`, woken by the next due time or an append. Raises CorruptFile where the first batch
        cannot be read: those before one that cannot come first; and OffsetOutOfRange, ClockBehind, StoreClosed.
        """
        context = self.log.context
        max_bytes = whole("max_bytes", max_bytes)
        max_records = None if max_records is None else whole("max_records", max_records)
        deadline_s = context.clock.monotonic_s() + whole("max_wait_ms", max_wait_ms, -INT64_MAX) / 1000
        wanted = self.position(position)
        agenda = self.agenda() if max_wait_ms > 0 else None
        while True:
            now_ms, stirs = context.now_ms(), 0 if agenda is None else agenda.stirs[0]
            reading = self.reading()
            visible = reading.visible
            located = self._locate(wanted, reading, visible, max_records, max_bytes, whole=True)
            fetched = self._decoder.batches(located, visible, max_bytes)
            wanted = fetched.block.end_delivery_offset if not len(fetched.block) else wanted
            left_s = deadline_s - context.clock.monotonic_s()
            if len(fetched.block) or agenda is None or left_s <= 0:
                if self.lateness is not None:
                    self.lateness.batches(fetched.block, reading.clock_ms)
                return self._result(fetched, reading)
            agenda.rest(0, stirs, self.rest_ms(reading, now_ms))
            agenda.wait(left_s)

    def columns(
        self, position: int, max_records: int, max_bytes: int, reading: Reading | None = None
    ) -> tuple[Columns, int]:
        """Up to `max_records` decoded records from `position` on, and the position behind them: by a reading of now,
        or one that is given.

        Cancelled ones are stepped over: where there are no others, the position is after those that are due. Raises
        CorruptFile where the first of them cannot be read: those before one that cannot come first.
        """
        reading = reading or self.reading()
        visible = reading.visible
        while True:
            located = self._locate(position, reading, visible, max_records, max_bytes, whole=False)
            if not len(located.block):
                return Columns.empty(self.topic), located.block.end_delivery_offset
            block, columns = self._decoder.some(located, visible, max_bytes)
            columns = columns[int(columns.delivery_offset.searchsorted(position)) :]  # its batch may begin before it
            columns = without_cancelled(columns, block, reading.hidden)
            if len(columns) > max_records:
                columns = columns[:max_records]
                return columns, int(columns.delivery_offset[-1]) + 1
            position = block.end_delivery_offset
            if len(columns):
                return columns, position

    def is_free(self) -> bool:
        """Whether `one` waits for nobody and for no disk, as far as is known, but for pages that are not in memory."""
        return self._order.is_free()

    def one(self, position: int, reading: Reading, kind: type[MadeMessage]) -> MadeMessage | None:
        """The record at `position`, where it is one of a few that became due last; None: ask `columns`.

        Slots that `kind` has and `Message` has not are left empty.
        """
        place = self._order.one(position, reading)
        if place is None:
            return None
        (entry, row), version = place, reading.version
        if entry.offset < version.active.base_offset:
            sealed = segment_of(version.sealed, entry.offset)
            data = sealed.pread(entry.position, sealed.size)
        else:
            data = version.active.pread(entry.position, version.visible.position)
        found = kernels.read_single(data, entry.offset, entry.deliver_after, row, entry.records)
        return None if found is None else self._message(found, entry.offset + row, entry.deliver_after, position, kind)

    def one_at(
        self, offset: int, delivery_offset: int, reading: Reading, kind: type[MadeMessage]
    ) -> MadeMessage | None:
        """The record of an append offset that was delivered at that position, where its batch is plain, not large, and
        here, and it is shown; None: ask `records_at`. As `one` gives it. Raises CorruptFile.
        """
        if not self.log.delayed:
            return None
        place = find_one(reading.version.all_written(), offset)
        if place is None or reading.hidden.holds_one(place.entry.deliver_after, offset):
            return None
        found = _single(place, offset)
        if found is None:
            return None
        return self._message(found, offset, place.entry.deliver_after, delivery_offset, kind)

    def _message(
        self, found: SingleRead, offset: int, due_ms: int, position: int, kind: type[MadeMessage]
    ) -> MadeMessage:
        key, value, headers, timestamp, deliver_after, broker_timestamp = found
        message, put = object.__new__(kind), object.__setattr__
        put(message, "topic", self.topic)
        put(message, "partition", self.number)
        put(message, "offset", offset)
        put(message, "delivery_offset", position)
        put(message, "key", key)
        put(message, "value", value)
        put(message, "headers", section_of(headers))
        put(message, "timestamp", timestamp)
        put(message, "broker_timestamp", broker_timestamp)
        put(message, "deliver_after", deliver_after)
        put(message, "due", due_ms)
        return message

    def handed_out(self, delivery_offset: Int64Array, due: Int64Array, behind: int, *, delay_ms: int = 0) -> None:
        """Records that `columns` gave reach a reader, who goes on at `behind`: note how late they are.

        delay_ms: of a reader who wants them that much later than they are due.
        """
        if self.lateness is not None:
            self.lateness.records(delivery_offset, due, behind, self.log.frontier_ms - delay_ms)

    def handed_out_one(self, due_ms: int, behind: int, *, delay_ms: int = 0) -> None:
        """`handed_out` of one record."""
        if self.lateness is not None:
            self.lateness.one(due_ms, behind, self.log.frontier_ms - delay_ms)

    def records_at(self, offsets: Int64Array, delivery_offsets: Int64Array, reading: Reading | None = None) -> Columns:
        """The records at these append offsets, int64[n], decoded, in the order given, with these delivery offsets.

        Where a delivery offset is not known, or not final, -1; where they are, and lie close together, that is faster.
        Whether they are due, or cancelled, is not asked. Raises OffsetOutOfRange where one is not in the log.
        """
        reading = reading or self.look()
        visible = reading.version.all_written()
        found = entries_at(self._order, delivery_offsets, offsets, reading) or self._found(offsets, reading.version)
        return replace(self._decoder.at(found, offsets, visible), delivery_offset=delivery_offsets)

    def appended(self, start: int, end: int) -> Iterator[Columns]:
        """The records of append offsets from `start` to `end`, ascending, in chunks; delivery offsets are -1.

        Holes that retention and cleanings left are stepped over. Whether they are due or cancelled is not asked;
        control records are among them. Raises CorruptFile.
        """
        version = self.look().version
        ends = [*(segment.end_offset for segment in version.sealed), version.written.offset]
        for segment, behind in zip(version.segments, ends, strict=True):
            for offsets in _offsets_in(segment, max(start, segment.base_offset), min(end, behind)):
                found = self.log.find(offsets, version)  # a repair may have left holes, too
                offsets = offsets[found.records > 0]
                found = found.take(np.flatnonzero(found.records))
                yield replace(
                    self._decoder.at(found, offsets, version.all_written()), delivery_offset=np.full(len(offsets), -1)
                )

    def offsets_at(self, delivery_offsets: Int64Array, reading: Reading | None = None) -> Int64Array:
        """The append offsets of delivered records, by ascending delivery offset; -1 where one is not due, or hidden."""
        return offsets_at(self._order, delivery_offsets, reading or self.look())

    def acked_ranges(self, stretches: Sequence[range], upto_ms: int) -> list[AckedRange]:
        """Stretches of delivery offsets as ranges of whole entries, as far as these were due by an instant, and by now.

        Those that have enough records. Raises ClockBehind.
        """
        reading = self.reading()
        if not isinstance(self._order, Timeline):
            return []
        end = self._order.position_at(min(upto_ms, reading.clock_ms) + 1, reading.version)
        return acked_ranges(self._order, (range(each.start, min(each.stop, end)) for each in stretches), reading)

    def hidden_between(self, position: int, upto: Key, reading: Reading) -> int:
        """How many delivery offsets from `position` up to the key are cancelled or control records."""
        return hidden_between(self._order, position, upto, reading)

    def reading(self) -> Reading:
        """A reading of the clock to deliver by. Raises ClockBehind, StoreClosed."""
        return self._order.advance()

    def look(self) -> Reading:
        """A reading for questions that deliver nothing: these are answered also while the clock is far behind."""
        try:
            return self._order.advance()
        except ClockBehind:
            return self._order.standing()

    @property
    def is_paused(self) -> bool:
        """Whether its topic is: then nothing is handed out."""
        return self.log.context.settings.paused

    def agenda(self) -> Agenda:
        """Of a reader of this partition alone."""
        return agenda_of([self], self.log.context.clock)

    def rest_ms(self, reading: Reading, now_ms: int) -> int:
        """Until when nothing more is handed out than at `reading`, but for what comes. now_ms: from before it."""
        next_due_ms = None if self.log.context.settings.paused else self.next_due(reading)
        return NEVER_MS if next_due_ms is None else self.rest_until(next_due_ms, now_ms)

    def rest_until(self, ms: int, now_ms: int, *, delay_ms: int = 0) -> int:
        """When to look again for what is due at `ms`, and was not at a reading from behind `now_ms`.

        Time brings it, or the end of an append in flight. delay_ms: by which the reader wants everything later.
        """
        if ms > now_ms:
            return ms
        return NEVER_MS if self.log.versions.held_back(ms, ms - delay_ms) else now_ms

    def check(self) -> None:
        """Prove the invariants of the log and its indexes."""
        self.log.check()

    def _checked(self, position: int, log_start: int, log_end: int) -> int:
        if not log_start <= position <= log_end:
            where = "below the log start (retention removed it)" if position < log_start else "beyond the log end"
            raise OffsetOutOfRange(
                f"position {position} of {self.topic}-{self.number} is {where}; seek within [{log_start}, {log_end}]",
                position=position, log_start=log_start, log_end=log_end,
            )  # fmt: skip
        return position

    def _found(self, offsets: Int64Array, version: Version) -> Entries:
        found = self.log.find(offsets, version)
        missing = offsets[found.records == 0]
        if len(missing):
            raise OffsetOutOfRange(
                f"no record of offset {int(missing[0])} is in the log of {self.topic}-{self.number}",
                position=int(missing[0]), log_start=version.log_start_offset, log_end=version.visible.offset,
            )  # fmt: skip
        return found

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
            log_end_offset=reading.end_offset,
            clock_ms=reading.clock_ms,
            cancelled=cancelled_within(fetched.block, reading.hidden),
        )

    def _locate(
        self,
        position: int,
        reading: Reading,
        visible: Visible,
        max_records: int | None,
        max_bytes: int,
        *,
        whole: bool,
    ) -> Located:
        """Entries from `position` on, cut at `max_records` but for the first.

        whole: only batches that fit into `max_records`, or else also the one in which they end.
        """
        self._checked(position, reading.log_start, reading.version.visible.offset)
        block = self._order.read(position, reading, max_records or 0)
        if max_records is not None and len(block) > 1:
            block = block[: max(max_records, 1)]  # each has a record
            start = block.delivery_offset[:1]
            behind = np.cumsum(block.records) - np.maximum(position - start, 0)
            begin = behind if whole else behind - block.records + 1
            block = block[: max(int(begin.searchsorted(max_records, side="right")), 1)]
        return verified.locate(block, visible, max_bytes)


def _due_before(blocks: Iterator[Block], ms: int) -> Iterator[Block]:
    """What is due before, of blocks in due order."""
    for block in blocks:
        yield block.where(block.deliver_after < ms)
        if len(block) and int(block.deliver_after[-1]) >= ms:
            return


def _offsets_in(segment: Segment, start: int, end: int) -> Iterator[Int64Array]:
    """The offsets from one to another that a segment may hold, in chunks."""
    if not segment.has_gaps:
        for first in range(start, end, APPENDED_RECORDS):
            yield np.arange(first, min(first + APPENDED_RECORDS, end))
        return
    assert isinstance(segment, SealedSegment), "no other is cleaned"
    for found in walk(segment, 0, segment.size, bodies=False, limit=APPENDED_RECORDS):
        before = found.records.cumsum() - found.records
        offsets = np.repeat(found.offset - before, found.records) + np.arange(int(found.records.sum()))
        offsets = offsets[(offsets >= start) & (offsets < end)]
        if len(offsets):
            yield offsets


def agenda_of(partitions: Sequence[Partition], clock: Clock, *, delay_ms: int = 0) -> Agenda:
    """Of a reader of these, who wants everything `delay_ms` later: a row for each."""
    agenda = Agenda(len(partitions), clock, partitions[0].log.context.now_ms)
    for row, partition in enumerate(partitions):
        agenda.follow(row, partition.log.versions.notifier, delay_ms)
    return agenda


def _single(place: EntryPlace, offset: int) -> SingleRead | None:
    """One record of an entry; None: it is larger, or not plain, or what is wrong with it the columns' way tells."""
    segment, entry, stop = place
    size = stop - entry.position
    if size > ONE_BYTES_MAX:
        return None
    data = segment.pread(entry.position, stop, size)
    return kernels.read_single(data, entry.offset, entry.deliver_after, offset - entry.offset, entry.records)
