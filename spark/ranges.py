"""What the data source reads, cut into ranges of delivery order: a Spark partition each. No Spark here.

    snapshot of each partition ── from .. to ──> ranges, in delivery order ──> a snapshot of then ──> columns

What is due has its delivery offset for good, so a range of delivery offsets names the same records whenever and
wherever it is read: a task that is tried again, or a micro-batch that is read again, gets the same rows, whatever the
store does meanwhile. Retention alone can take them away, and that is OffsetOutOfRange.

What is pending has none: its ranges are cut by keys, and of what was appended since, nothing is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from afterlog.base.errors import InvalidOption, OffsetOutOfRange
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import Partition
from afterlog.fetch.timeline import Timeline
from afterlog.index.entries import Key
from afterlog.log.snapshot import ALL_MS
from afterlog.log.topic_settings import TopicSettings
from afterlog.spark.options import ReadOptions
from afterlog.spark.readable import Readable

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


class RangePlanner:
    """Decides what is read, on the driver."""

    def __init__(self, source: Readable, options: ReadOptions) -> None:
        """Raises as `Readable.settings` does."""
        self._source = source
        self._options = options
        self._settings = source.settings()

    def batch(self) -> list[DeliveryRange]:
        """All that the options ask for."""
        ranges: list[DeliveryRange] = []
        for partition in self._partitions():
            high_watermark = partition.high_watermark()
            start = min(partition.position(self._options.start), high_watermark)
            end = min(partition.position(self._options.end), high_watermark)
            ranges += self._cut(partition, start, end)
        self._tell()
        return ranges

    def initial(self) -> dict[str, int]:
        """Where a new stream begins: a position for each partition, by its number."""
        return {
            str(partition.number): min(partition.position(self._options.start), partition.high_watermark())
            for partition in self._partitions()
        }

    def latest(self) -> dict[str, int]:
        """Behind what is due now."""
        return {str(partition.number): partition.high_watermark() for partition in self._partitions()}

    def between(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[DeliveryRange]:
        """The ranges of one micro-batch. InvalidOption where these are offsets of another topic."""
        check_partitions(start, map(str, range(self._settings.partitions)))
        ranges: list[DeliveryRange] = []
        for partition in self._partitions():
            name = str(partition.number)
            ranges += self._cut(partition, start[name], end[name])
        self._tell()
        return ranges

    def _partitions(self) -> Iterator[Partition]:
        options = self._options
        for number in range(self._settings.partitions):
            at_ms = None if options.due_only else ALL_MS
            yield self._source.partition(number, self._settings, at_ms=at_ms, settle_ms=options.settle_ms)

    def _tell(self) -> None:
        held_back = sum(self._source.held_back.values())
        if held_back:
            logger.warning(
                "%s: %d records in object storage are due by the clock and not read: what was not uploaded may come "
                "before them. Read beside the store's folder, or with dueOnly=false",
                self._options.topic, held_back,
            )  # fmt: skip

    def _cut(self, partition: Partition, start: int, end: int) -> list[DeliveryRange]:
        """[start, end) in pieces of about `partition_bytes` of log."""
        bounds = cut(start, end, self._options.partition_bytes, _record_bytes(partition))
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

    Never behind `start`, even where a clock has gone back meanwhile. InvalidOption where it is of another topic.
    """
    check_partitions(start, latest)
    ahead = {name: max(latest[name] - start[name], 0) for name in start}
    total = sum(ahead.values())
    if max_records is None or total <= max_records:
        return {name: start[name] + ahead[name] for name in start}
    return {name: start[name] + min(ahead[name], -(-ahead[name] * max_records // total)) for name in start}


def check_partitions(start: Mapping[str, int], names: Iterable[str]) -> None:
    """InvalidOption where a stream's offset does not name just these partitions."""
    if set(start) != set(names):
        raise InvalidOption(
            f"the checkpoint is of a topic with other partitions: it names {', '.join(start) or 'none'}"
        )


def read_range(source: Readable, topic: str, piece: DeliveryRange, rows: int = ROWS) -> Iterator[Columns]:
    """The records of a range, in delivery order. OffsetOutOfRange where some are gone, CorruptFile."""
    partition = source.partition(piece.partition, piece.settings, at_ms=ALL_MS)
    position, end = piece.start, piece.end
    if piece.keys is not None:
        position, end = (partition.log.index.rank(key) for key in piece.keys)
    while position < end:
        columns, behind = partition.columns(position, min(rows, end - position), ROWS_BYTES)
        if behind == position:
            raise OffsetOutOfRange(
                f"position {position} of {topic}-{piece.partition} is not there: an older copy of the store?",
                position=position, log_start=partition.log_start, log_end=partition.log_end_offset,
            )  # fmt: skip
        position = behind
        columns = columns[: int(columns.delivery_offset.searchsorted(end))]  # those that are cancelled do not count
        if piece.end_offset is not None and bool((columns.offset >= piece.end_offset).any()):
            columns = columns.take(np.flatnonzero(columns.offset < piece.end_offset))
        if len(columns):
            yield columns


def _record_bytes(partition: Partition) -> float:
    version = partition.log.version
    size = sum(segment.size for segment in version.segments)
    return size / max(version.visible.offset - version.log_start_offset, 1)
