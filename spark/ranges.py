"""What the data source reads, cut into ranges of delivery order: a Spark partition each. No Spark here.

    snapshot of each partition ── from .. to ──> ranges, in delivery order ──> a snapshot of then ──> columns

What is due has its delivery offset for good, so a range of delivery offsets names the same records whenever and
wherever it is read: a task that is tried again, or a micro-batch that is read again, gets the same rows, whatever the
store does meanwhile.

What is pending has none: its ranges are cut by keys, and of what was appended since, nothing is taken.

*What can be lost*, and is said unless `failOnDataLoss` is false (as of Spark's Kafka source), when the reader goes on:

    OffsetOutOfRange    retention or a purge took what was not read yet      goes on behind it
    OffsetOutOfRange    the store is an older copy: its log ends before      goes on with what becomes due from now on
                        what the stream has read, or has others there
    TopicDeleted        another topic has the name now                       reads that from its start
    TopicDeleted        the topic went between plan and read                 reads nothing of it

Partitions that a topic was given since are read from their beginning.

*Places.* Where nothing is asked for but topic, partition, offset, delivery_offset and due, the indexes say it all: no
record is read (`Places`). Of FIFO topics and Kafka logs the log itself is the index.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import AfterlogError, InvalidOption, OffsetOutOfRange, TopicDeleted
from afterlog.fetch.decoder import cancelled_within
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import Position
from afterlog.fetch.timeline import Timeline
from afterlog.index.entries import Key
from afterlog.index.growing_columns import Int64Array
from afterlog.log.snapshot import ALL_MS
from afterlog.log.topic_settings import TopicSettings
from afterlog.spark.options import DEFAULT_COLUMNS, ReadOptions
from afterlog.spark.readable import Readable
from afterlog.spark.stream_offset import Seen, StreamOffset

logger = logging.getLogger("afterlog.spark")

ROWS = 65_536
"""Records in a batch for Spark, at most. Fewer cost a call each, more do not fit the processor's cache."""
ROWS_BYTES = 8 << 20
"""Bytes of log in such a batch, but for the first record batch in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRange:
    """A stretch of one partition's delivery order."""

    partition: int
    settings: TopicSettings
    start: int
    end: int
    """Delivery offsets [start, end): for good where `keys` is None, else as they were when it was planned."""
    keys: tuple[Key, Key] | None = None
    """After the one, up to the other."""
    end_offset: int | None = None
    """With `keys`: records from this append offset on are newer than the plan."""


PLACES = frozenset({"topic", "partition", "offset", "delivery_offset", "due"})
"""Columns that a delayed index has."""
PLACES_ENTRIES = 65_536
"""Index entries to read at a time, about. Larger: more memory, fewer calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where records are, and when they are due: the columns PLACES, int64[n] but for the topic."""

    topic: str
    partition: Int64Array
    offset: Int64Array
    delivery_offset: Int64Array
    due: Int64Array

    def __len__(self) -> int:
        return len(self.offset)


class ReadSpan(NamedTuple):
    """What is read of a partition: delivery offsets [start, end)."""

    partition: Partition
    start: int
    end: int


class RangePlanner:
    """Decides what is read, on the driver."""

    def __init__(self, source: Readable, options: ReadOptions) -> None:
        """Raises as `Readable.settings` does."""
        self._source = source
        self._options = options
        self._settings = source.settings()
        self._opened: list[Partition] = []

    def batch(self) -> list[DeliveryRange]:
        """All that the options ask for."""
        spans: list[ReadSpan] = []
        for partition in self._partitions():
            high_watermark = partition.high_watermark()
            start = min(self._position(partition, self._options.start), high_watermark)
            spans.append(ReadSpan(partition, start, min(self._position(partition, self._options.end), high_watermark)))
        self._tell()
        return self._cut(spans)

    def initial(self) -> StreamOffset:
        """Where a new stream begins."""
        positions = {
            str(partition.number): min(self._position(partition, self._options.start), partition.high_watermark())
            for partition in self._partitions()
        }
        return self._offset(positions, None)

    def latest(self) -> dict[str, int]:
        """After what is due now, by the number of the partition."""
        return {str(partition.number): partition.high_watermark() for partition in self._partitions()}

    def at(self, positions: Mapping[str, int]) -> StreamOffset:
        """The offset of these positions."""
        return self._offset(positions, None)

    def advanced(self, start: StreamOffset, until: Mapping[str, int] | None, max_records: int | None) -> StreamOffset:
        """How far the micro-batch goes that begins at an offset: `start` itself where there is nothing to read.

        until: not further than these. Raises what the head of the module says, InvalidOption.
        """
        begin = self._begin(start)
        latest = self.latest() if until is None else {name: until.get(name, 0) for name in begin}
        return self._offset(limited(begin, latest, max_records), start)

    def between(self, start: StreamOffset, end: StreamOffset) -> list[DeliveryRange]:
        """The ranges of one micro-batch: the same, whenever they are asked for.

        Raises what the head of the module says, InvalidOption.
        """
        if self._is_another(end):
            self._lost(TopicDeleted(f"the topic that this batch was planned on was deleted: {self._another()}"))
            return []
        begin, spans = self._begin(start), list[ReadSpan]()
        for partition in self._partitions():
            name = str(partition.number)
            behind = end.positions.get(name, 0)
            if self._is_there(partition, behind, end.seen.get(name)):
                spans.append(ReadSpan(partition, begin[name], behind))
        self._tell()
        return self._cut(spans)

    def _position(self, partition: Partition, asked: Position | Mapping[int, Position]) -> int:
        """Where a reader is to begin or end in a partition. InvalidOption unless all partitions are named, or none."""
        if not isinstance(asked, Mapping):
            return partition.position(asked)
        numbers = range(self._settings.partitions)
        if asked.keys() != set(numbers):
            raise InvalidOption(
                f"a position for each partition of {self._options.topic} is needed, which are {numbers.start} to "
                f"{numbers.stop - 1}, not for {', '.join(map(str, sorted(asked))) or 'none'}"
            )
        return partition.position(asked[partition.number])

    def _begin(self, start: StreamOffset) -> dict[str, int]:
        """Where an offset is, in each partition that there is now."""
        numbers = [str(number) for number in range(self._settings.partitions)]
        positions = start.positions
        if self._is_another(start):
            self._lost(TopicDeleted(f"the topic was deleted since the checkpoint: {self._another()}"))
            positions = {}
        elif not positions.keys() <= set(numbers):
            raise InvalidOption(f"the checkpoint is of a topic with other partitions: it names {', '.join(positions)}")
        begin: dict[str, int] = {}
        for name, partition in zip(numbers, self._partitions(), strict=True):
            position = positions.get(name, 0)
            if position < partition.log_start:
                if positions:  # else nothing of the topic that there is now was ever read, nor lost
                    self._lost(_gone(partition, position))
                position = partition.log_start
            elif not self._is_there(partition, position, start.seen.get(name)):
                position = partition.high_watermark()
            begin[name] = position
        return begin

    def _is_there(self, partition: Partition, position: int, seen: Seen | None) -> bool:
        """Whether a position lies in this history of the partition; OffsetOutOfRange where it does not."""
        if position <= partition.log_start or partition.log.index.acked.passed(position):
            return True  # what lies before it is gone, or maybe
        if position > partition.high_watermark():  # a snapshot sees what is due by a clock that may be behind
            partition = self._source.partition(partition.number, self._settings, at_ms=ALL_MS)
        end = partition.high_watermark()
        if position <= end and seen in (None, seen_before(partition, position)):
            return True
        what = f"the log ends at {end}" if position > end else f"another record than {seen} lies before it"
        told = (
            f"position {position} of {partition.topic}-{partition.number} is of another history of the topic: {what}. "
            "Was the store restored from an older backup?"
        )
        self._lost(OffsetOutOfRange(told, position=position, log_start=partition.log_start, log_end=end))
        return False

    def _offset(self, positions: Mapping[str, int], start: StreamOffset | None) -> StreamOffset:
        """What was seen at positions that are those of `start` is as it says."""
        known: Mapping[str, Seen] = {}
        kept = dict[str, int]()
        if start is not None and (start.topic_id or start.seen) and not self._is_another(start):
            known, kept = start.seen, dict(start.positions)
        seen = {name: known[name] for name in positions if name in known and kept.get(name) == positions[name]}
        for partition in self._partitions():
            name = str(partition.number)
            if kept.get(name) != positions[name]:
                found = seen_before(partition, positions[name])
                if found is not None:
                    seen[name] = found
        return StreamOffset(positions=positions, topic_id=self._settings.topic_id, seen=seen)

    def _is_another(self, offset: StreamOffset) -> bool:
        """Whether it is of another topic of the name."""
        return None not in (offset.topic_id, self._settings.topic_id) and offset.topic_id != self._settings.topic_id

    def _another(self) -> str:
        return f"{self._options.topic} is another one now ({self._settings.topic_id})"

    def _lost(self, error: OffsetOutOfRange | TopicDeleted) -> None:
        lost(error, self._options.fail_on_data_loss)

    def _partitions(self) -> list[Partition]:
        """One snapshot of each, for all that is asked of this planner."""
        if not self._opened:
            at_ms = None if self._options.due_only else ALL_MS
            self._opened = [
                self._source.partition(number, self._settings, at_ms=at_ms, settle_ms=self._options.settle_ms)
                for number in range(self._settings.partitions)
            ]
        return self._opened

    def _tell(self) -> None:
        held_back = sum(self._source.held_back.values())
        if held_back:
            logger.warning(
                "%s: %d records in object storage are due by the clock and not read: what was not uploaded may come "
                "before them. Read beside the store's folder, or with dueOnly=false",
                self._options.topic, held_back,
            )  # fmt: skip

    def _cut(self, spans: Sequence[ReadSpan]) -> list[DeliveryRange]:
        """Pieces of about `partition_bytes` of log, or of less where there would be fewer than `min_partitions`."""
        total = sum(max(span.end - span.start, 0) * _record_bytes(span.partition) for span in spans)
        piece_bytes = min(self._options.partition_bytes, max(int(total / self._options.min_partitions), 1))
        return [piece for span in spans for piece in self._pieces(span.partition, span.start, span.end, piece_bytes)]

    def _pieces(self, partition: Partition, start: int, end: int, piece_bytes: int) -> list[DeliveryRange]:
        bounds = cut(start, end, piece_bytes, _record_bytes(partition))
        pieces = [
            DeliveryRange(partition=partition.number, settings=self._settings, start=first, end=behind)
            for first, behind in pairwise(bounds)
        ]
        if self._options.due_only or not self._settings.delayed:
            return pieces
        timeline = Timeline(partition.log)
        reading = timeline.advance()
        keys = [timeline.key_before(bound, reading) for bound in bounds]
        end_offset = partition.log_end_offset
        return [
            replace(piece, keys=keys_of_it, end_offset=end_offset)
            for piece, keys_of_it in zip(pieces, pairwise(keys), strict=True)
        ]


def cut(start: int, end: int, piece_bytes: int, record_bytes: float) -> list[int]:
    """Bounds of equal pieces of about `piece_bytes`; none where there is nothing between start and end."""
    if start >= end:
        return []
    count = min(max(round((end - start) * record_bytes / piece_bytes), 1), end - start)
    return [start + (end - start) * number // count for number in range(count + 1)]


def limited(start: Mapping[str, int], latest: Mapping[str, int], max_records: int | None) -> dict[str, int]:
    """How far a micro-batch goes: every partition in proportion to what it has, and each that has any at least one.

    Never behind `start`, even where a clock has gone back meanwhile.
    """
    ahead = {name: max(latest[name] - start[name], 0) for name in start}
    total = sum(ahead.values())
    if max_records is None or total <= max_records:
        return {name: start[name] + ahead[name] for name in start}
    return {name: start[name] + min(ahead[name], -(-ahead[name] * max_records // total)) for name in start}


def lost(error: OffsetOutOfRange | TopicDeleted, fails: bool) -> None:
    """Raise it, with the way on; or tell of it and go on, where somebody has chosen that."""
    if not fails:
        logger.warning("%s; going on, since failOnDataLoss is false", error)
        return
    error.args = (f"{error}. To go on all the same set the option failOnDataLoss to false",)
    raise error


def seen_before(partition: Partition, position: int) -> Seen | None:
    """What lies before a position that is due; None where nothing does, or nothing that somebody reads."""
    if not partition.log_start < position <= partition.high_watermark():
        return None
    if partition.log.delayed:
        timeline = Timeline(partition.log)
        key = timeline.key_before(position, timeline.advance())
        return int(key.deliver_after), int(key.offset)
    columns, _ = partition.columns(position - 1, 1, ROWS_BYTES)
    if len(columns) and int(columns.delivery_offset[0]) == position - 1:
        return int(columns.timestamp[0]), int(columns.offset[0])
    return None


def read_range(
    source: Readable,
    topic: str,
    piece: DeliveryRange,
    rows: int = ROWS,
    *,
    columns: Collection[str] = DEFAULT_COLUMNS,
    fails: bool = True,
) -> Iterator[Columns | Places]:
    """The records of a range, in delivery order, or their places where no more `columns` are asked for.

    CorruptFile; OffsetOutOfRange where some are gone and TopicDeleted where all are, unless they may be (`fails` is
    false).
    """
    is_indexed = piece.settings.delayed and not piece.settings.foreign and PLACES.issuperset(columns)
    try:
        source.check_same(piece.settings)
        if is_indexed:
            yield from _places_of(source, topic, piece, fails)
        else:
            yield from _columns_of(source, topic, piece, rows, fails)
    except TopicDeleted as error:
        lost(error, fails)
    except (AfterlogError, OSError):
        try:
            source.check_same(piece.settings)  # what goes under a reader reads as corrupt, or not there
        except TopicDeleted as deleted:
            lost(deleted, fails)
        else:
            raise


def _columns_of(source: Readable, topic: str, piece: DeliveryRange, rows: int, fails: bool) -> Iterator[Columns]:
    partition, position, end = _opened(source, piece)
    while position < end:
        if position < partition.log_start:
            lost(_gone(partition, position), fails)
            position = partition.log_start
            continue
        columns, behind = partition.columns(position, min(rows, end - position), ROWS_BYTES)
        _check_ahead(partition, position, behind)
        position = behind
        columns = columns[: int(columns.delivery_offset.searchsorted(end))]  # those that are cancelled do not count
        if piece.end_offset is not None and bool((columns.offset >= piece.end_offset).any()):
            columns = columns.take(np.flatnonzero(columns.offset < piece.end_offset))
        if len(columns):
            yield columns


def _places_of(source: Readable, topic: str, piece: DeliveryRange, fails: bool) -> Iterator[Places]:
    partition, position, end = _opened(source, piece)
    timeline = Timeline(partition.log)
    reading = timeline.advance()
    while position < end:
        if position < partition.log_start:
            lost(_gone(partition, position), fails)
            position = partition.log_start
            continue
        block = timeline.read(position, reading, PLACES_ENTRIES)
        _check_ahead(partition, position, block.end_delivery_offset)
        entry = np.repeat(np.arange(len(block)), block.records)
        within = np.arange(len(entry)) - np.repeat(np.cumsum(block.records) - block.records, block.records)
        offset, delivery_offset = block.offset[entry] + within, block.delivery_offset[entry] + within
        shown = (delivery_offset >= position) & (delivery_offset < end)
        if piece.end_offset is not None:
            shown &= offset < piece.end_offset
        shown &= ~np.isin(offset, cancelled_within(block, reading.hidden))
        position = block.end_delivery_offset
        rows = np.flatnonzero(shown)
        if len(rows):
            yield Places(
                topic=topic,
                partition=np.full(len(rows), piece.partition, np.int64),
                offset=offset[rows],
                delivery_offset=delivery_offset[rows],
                due=block.deliver_after[entry[rows]],
            )


def _opened(source: Readable, piece: DeliveryRange) -> tuple[Partition, int, int]:
    """A snapshot of a range's partition, and the delivery offsets [start, end) that the range has there."""
    partition = source.partition(piece.partition, piece.settings, at_ms=ALL_MS)
    if piece.keys is None:
        return partition, piece.start, piece.end
    start, end = (partition.log.index.rank(key) for key in piece.keys)
    return partition, start, end


def _check_ahead(partition: Partition, position: int, behind: int) -> None:
    """OffsetOutOfRange where a read from a position came no further."""
    if behind == position:
        raise OffsetOutOfRange(
            f"position {position} of {partition.topic}-{partition.number} is not there: an older copy of the store?",
            position=position, log_start=partition.log_start, log_end=partition.log_end_offset,
        )  # fmt: skip


def _gone(partition: Partition, position: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"the records of {partition.topic}-{partition.number} from {position} to {partition.log_start} were not read, "
        "and are gone: retention or a purge took them",
        position=position, log_start=partition.log_start, log_end=partition.log_end_offset,
    )  # fmt: skip


def _record_bytes(partition: Partition) -> float:
    version = partition.log.version
    size = sum(segment.size for segment in version.segments)
    return size / max(version.visible.offset - version.log_start_offset, 1)
