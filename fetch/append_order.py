"""Delivery order of a FIFO topic (``delayed=False``): append order itself. Delivery offset = offset, as in Kafka.

The same surface as `Timeline`, so that a fetch need not know which it reads. The high watermark is the visible end; no
clock decides anything, and nothing is ever pending.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from afterlog.base.errors import CorruptFile, OffsetOutOfRange
from afterlog.fetch.timeline import BLOCK_ENTRIES, Reading, empty_block
from afterlog.index.entries import Key
from afterlog.index.merge import Block
from afterlog.log.broker_time import offset_at_broker_time
from afterlog.log.partition_log import PartitionLog
from afterlog.log.scan import walk
from afterlog.log.segment import SealedSegment, Segment
from afterlog.log.version import Version
from afterlog.records.columns import Scan

SegmentT = TypeVar("SegmentT", bound=Segment)


class AppendOrder:
    """Append order of one FIFO partition. Thread-safe: it has no state."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def log_start(self, version: Version) -> int:
        """The first offset that can be read."""
        return version.log_start_offset

    def advance(self) -> Reading:
        """What is visible now. Raises StoreClosed."""
        version = self._log.pin()
        end = version.visible.offset
        return Reading(self._log.context.now_ms(), version, Key(0, end - 1), end, version.log_start_offset)

    def standing(self) -> Reading:
        """The same: no clock decides anything here."""
        return self.advance()

    def settled(self) -> int:
        """The end: append order is final."""
        return self._log.log_end_offset

    def next_due(self, reading: Reading) -> int | None:
        """Nothing is pending."""
        return None

    def pending(self, reading: Reading, behind: Key | None = None) -> Iterator[Block]:
        """Nothing is."""
        return iter(())

    def is_free(self) -> bool:
        """It has no short way for one record."""
        return False

    def one(self, position: int, reading: Reading) -> None:
        """`read` is to be asked."""

    def batch_around(self, position: int, reading: Reading) -> range:
        """Only whole segments are asked for."""
        return range(position, position)

    def key_before(self, position: int, reading: Reading) -> Key:
        """Of the record before `position`: nothing but its offset tells records apart here."""
        return Key(0, position - 1)

    def read(self, position: int, reading: Reading, want_entries: int = 0) -> Block:
        """Entries from the one that holds `position` on, up to the end of its segment; BLOCK_ENTRIES at most."""
        if position >= reading.high_watermark:
            return empty_block(position)
        visible = reading.visible
        segment = segment_of(visible.segments, position)
        end = segment.size if isinstance(segment, SealedSegment) else visible.end.position
        scan = self._scan(segment, segment.sparse.offsets.floor(position), end, position)
        if scan is None:  # in a gap that a repair left after the segment: go on where the next one begins
            return self.read(next_base(visible.segments, position), reading)
        behind = scan.offset + scan.records
        first = int(behind.searchsorted(position, side="right"))
        due = np.maximum(scan.broker_timestamp, scan.max_timestamp)
        block = Block(scan.offset, due, scan.offset, scan.position, scan.records, int(behind[-1]))
        return block[first:]

    def loaded_entries(self) -> int:
        """There is no index."""
        return 0

    def position_at(self, ms: int, version: Version) -> int:
        """The offset of the first record whose timestamp is at or after `ms` (Kafka's offsetsForTimes)."""
        visible = version.readable()
        for segment in visible.segments:
            end, end_offset = visible.end.position, visible.end.offset
            if isinstance(segment, SealedSegment):
                end, end_offset = segment.size, segment.end_offset
            offset = segment.sparse.times.floor(ms)
            while offset < end_offset:
                scan = self._scan(segment, segment.sparse.offsets.floor(offset), end, offset)
                if scan is None:
                    break
                rows = np.flatnonzero((scan.max_timestamp >= ms) & (scan.offset + scan.records > offset))
                if len(rows):
                    return int(scan.offset[rows[0]])
                offset = scan.end_offset
        return visible.end.offset

    def position_at_broker_time(self, ms: int, reading: Reading) -> int:
        """The first offset that was appended at or after `ms`. InvalidTopic where entries have no broker timestamp."""
        return offset_at_broker_time(reading.visible, ms)

    def position_after(self, offset: int, version: Version) -> int:
        """The offset behind it."""
        start, end = version.log_start_offset, version.visible.offset
        if not start <= offset < end:
            raise OffsetOutOfRange(
                f"no record of offset {offset} is in the log", position=offset, log_start=start, log_end=end
            )
        return offset + 1

    def _scan(self, segment: Segment, start: int, end: int, offset: int) -> Scan | None:
        """Entries up to one or more behind `offset`; None where the segment ends before it.

        `start`: a byte of which the offset index says that a batch at or before `offset` begins there. It comes alone:
        where batches are large the index names each of them, and one is enough for a fetch.
        """
        for found in walk(segment, start, end, first=1 if start else None, limit=BLOCK_ENTRIES):
            if int(found.offset[0]) > offset:
                raise CorruptFile(f"no batch holds offset {offset}", path=segment.path, position=start)
            if found.end_offset > offset:
                return found
        return None


def segment_of(segments: tuple[SegmentT, ...], offset: int) -> SegmentT:
    """The segment that holds `offset`."""
    low, high = 0, len(segments)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if segments[middle].base_offset <= offset else (low, middle)
    return segments[low]


def next_base(segments: tuple[Segment, ...], offset: int) -> int:
    """Base offset of the first segment that begins behind `offset`."""
    return next(segment.base_offset for segment in segments if segment.base_offset > offset)
