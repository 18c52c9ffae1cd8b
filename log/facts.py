"""Facts of a sealed segment that are known without opening its files: one value, in checkpoints and manifest.

SegmentFacts ──┬── SealedMark       a row of the checkpoints: and where it lies in object storage
               └── RemoteSegment    a row of the manifest: and the attempt to upload it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from afterlog.base.checksum import crc32c
from afterlog.base.files import Data
from afterlog.base.names import CANCEL_INDEX, OFFSET_INDEX, TIME_INDEX, segment_file
from afterlog.index.entries import Key
from afterlog.index.run import Coverage


class FileMark(NamedTuple):
    """What tells whether a file is whole: its bytes, and their CRC-32C."""

    size: int
    crc: int

    @staticmethod
    def of(content: Data) -> FileMark:
        return FileMark(len(content), crc32c(content))


NO_FILE = FileMark(0, 0)
"""Of a file that a segment does not have, or that is empty."""
UNKNOWN = FileMark(-1, 0)
"""Of an index that whoever opens the log next makes anew: no file is like that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """The offsets [base_offset, end_offset), the size of their log, and what tells whether its indexes are whole."""

    base_offset: int
    end_offset: int
    log_bytes: int
    max_deliver_after: int
    """0 in a FIFO topic."""
    max_timestamp: int
    """Of its records, as they say."""
    index: FileMark
    time_index: FileMark
    cancel_index: FileMark = NO_FILE
    """Of a segment without control batches: there is no file."""
    last_stamp_ms: int = -1
    """When the last of its entries was appended, in a FIFO topic; or at the latest, where that one does not say and the
    records tell of a later time. -1: as they say, or nobody asked."""
    generation: int = 0
    """The cleaning of the partition that wrote its files, which are named by it; 0: it is as it was sealed."""
    held_records: int = -1
    """How many records a cleaning left of it; -1: as many as it has offsets."""

    @property
    def kept(self) -> int:
        """How many records are in its log."""
        return self.end_offset - self.base_offset if self.held_records < 0 else self.held_records

    @property
    def has_gaps(self) -> bool:
        """Whether offsets may be missing in between: it was cleaned."""
        return self.held_records >= 0

    def file(self, suffix: str) -> str:
        """The name of its file, in its partition's folder."""
        return segment_file(self.base_offset, suffix, self.generation)

    @property
    def counted_from_ms(self) -> int:
        """The time that retention counts from in a FIFO topic. Stamps never fall, so the last bounds them all."""
        return self.max_timestamp if self.last_stamp_ms < 0 else self.last_stamp_ms

    @property
    def last_key(self) -> Key:
        """At or after the key of its last record in delivery order; no other segment has a record in between.

        That one would be due with the last record and follow it in offset order, and so be in the segment.
        """
        return Key(self.max_deliver_after, self.end_offset - 1)

    @property
    def coverage(self) -> Coverage:
        """Of a run that holds just this segment."""
        return Coverage(self.base_offset, self.end_offset, self.base_offset, 0, self.base_offset, self.log_bytes)

    @property
    def indexes(self) -> dict[str, FileMark]:
        """Its index files by suffix, but for the run, which carries checksums of its own."""
        marks = {OFFSET_INDEX: self.index, TIME_INDEX: self.time_index}
        return {**marks, CANCEL_INDEX: self.cancel_index} if self.cancel_index.size else marks

    def facts(self) -> dict[str, Any]:
        """All of this by name, to make another value of it that knows more."""
        return {name: getattr(self, name) for name in SegmentFacts.__slots__}
