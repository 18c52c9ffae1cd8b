"""A partition as a plain Kafka log: batches one after another, no prefixes, with the two sparse indexes of Kafka.

    append order      every batch that is in the log, at its offset
    delivery order    every batch up to a high watermark, at its delivery offset: what was committed here holds there

What is cancelled is left out, as compaction leaves records out: its offset is a gap. A batch of which all is left goes
byte for byte; base offset and leader epoch, which no checksum covers, are set. A time that all records of a batch have
stands in front of it here, and so is lost, unless `times` are asked for: then each record that has no header
`deliver-after` gets one, and its batch is made anew. A plain broker delivers at once whatever it has; a reader of those
headers need not (docs/kafka.md).

Of a Kafka broker's log (docs/decisions/0032) what transactions committed is there, and no longer transactional: it goes
without their markers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.files import File, Files
from afterlog.base.names import LOG, OFFSET_INDEX, TIME_INDEX, segment_file
from afterlog.fetch.partition import Partition
from afterlog.index.entries import Key
from afterlog.index.sparse import SparseIndexes
from afterlog.log.scan import steps
from afterlog.log.segment import SealedSegment
from afterlog.log.version import Version
from afterlog.records.batch import with_times, without_records
from afterlog.records.columns import Bools, Int64Array, view_of
from afterlog.records.header import CONTROL, HEADER_BYTES, TRANSACTIONAL, BatchHeader, with_crc

_CHUNK_BYTES = 8 << 20
"""Read and written at a time, about."""
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = bytes(4)


class _Batch(NamedTuple):
    data: memoryview
    offset: int
    """In the log that is made."""
    left_out: Sequence[int]
    """Records, by their place in the batch."""
    due_ms: int
    """When it is due, where a record does not say so itself; -1: that is not to be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    topic: str
    partition: int
    batches: int
    records: int
    log_bytes: int
    segments: int
    first_offset: int
    end_offset: int


def export(files: Files, partition: Partition, folder: Path, *, delivery_order: bool, times: bool = False) -> Exported:
    """Write a folder with the segments of a partition, durably.

    partition: a snapshot (`open_snapshot`), whose reading says what is due: delivery order goes up to there.
    times: have each record say when it is due here; a broker's own batches and those of a FIFO topic stay as they are.
    Raises FileExistsError where the folder is there, StorageFull with a part written, CorruptFile.
    """
    files.make_folder(folder)
    writer = _Writer(files, folder, partition)
    times = times and partition.log.delayed and not partition.log.read_only
    try:
        for batches in _by_delivery(partition, times) if delivery_order else _by_append(partition.log.pin(), times):
            writer.write(batches)
        writer.finish()
    finally:
        writer.close()
    files.sync_folder(folder)
    files.sync_folder(folder.parent)
    return Exported(
        topic=partition.topic,
        partition=partition.number,
        batches=writer.batches,
        records=writer.records,
        log_bytes=writer.log_bytes,
        segments=len(writer.bases),
        first_offset=writer.bases[0] if writer.bases else 0,
        end_offset=writer.end_offset,
    )


def _by_delivery(partition: Partition, times: bool) -> Iterator[list[_Batch]]:
    position, version = partition.log_start, partition.log.pin()
    while position < partition.high_watermark():
        found = partition.fetch(position, max_bytes=_CHUNK_BYTES)
        due_ms = np.full(len(found.batches), -1)
        if times:
            offsets = np.array([BatchHeader.read(data, 0).base_offset for data in found.batches], np.int64)
            due_ms = partition.log.find(offsets, version).deliver_after
        rows = zip(found.batches, found.delivery_offsets.tolist(), due_ms.tolist(), strict=True)
        yield [_batch(data, offset, found.cancelled, due) for data, offset, due in rows]
        position = found.next_position


def _by_append(version: Version, times: bool) -> Iterator[list[_Batch]]:
    visible, hidden, gone = version.readable(), np.sort(version.hidden.offsets()), version.log_start.key
    for segment in visible.segments:
        end = segment.size if isinstance(segment, SealedSegment) else visible.end.position
        taken = steps(
            segment.view(0, end),
            0,
            end,
            segment.base_offset,
            limit=4_096,
            foreign=segment.foreign,
            gaps=segment.has_gaps,
        )
        for found, fault, piece, start in taken:
            if fault:
                raise CorruptFile(fault, path=segment.path, position=found.stop)
            kept = found.attributes & CONTROL == 0
            if segment.foreign:  # nothing is gone; the index leaves out what came to nothing
                kept &= np.array([version.delayed_index.contains(offset) for offset in found.offset.tolist()], np.bool_)
            else:
                kept &= ~_up_to(gone, found.deliver_after, found.offset)
                kept &= ~version.delayed_index.acked.holds(found.deliver_after, found.offset, found.records)
            view, begin = view_of(piece), found.batch_position - start
            due_ms = found.deliver_after if times else np.full_like(found.offset, -1)
            size = found.size - (found.batch_position - found.position)
            yield [
                _batch(view[begin[row] : begin[row] + size[row]], int(found.offset[row]), hidden, int(due_ms[row]))
                for row in np.flatnonzero(kept).tolist()
            ]


def _up_to(key: Key, deliver_after: Int64Array, offset: Int64Array) -> Bools:
    """Of entries in append order which lie before the log start, or at it: they are gone for readers."""
    at: Bools = (deliver_after == key.deliver_after) & (offset <= key.offset)
    return np.asarray(at | (deliver_after < key.deliver_after))


def _batch(data: memoryview, offset: int, hidden: Int64Array, due_ms: int) -> _Batch:
    """hidden: append offsets, ascending."""
    if not len(hidden):
        return _Batch(data, offset, (), due_ms)
    header = BatchHeader.read(data, 0)
    first, last = hidden.searchsorted([header.base_offset, header.base_offset + header.records])
    return _Batch(data, offset, (hidden[first:last] - header.base_offset).tolist(), due_ms)


@dataclass
class _Writer:
    """Segments in the making: a log file, and the entries of its indexes."""

    files: Files
    folder: Path
    partition: Partition
    bases: list[int] = field(default_factory=list)
    batches: int = 0
    records: int = 0
    log_bytes: int = 0
    end_offset: int = 0

    def __post_init__(self) -> None:
        self._config = self.partition.log.context.config
        self._file: File | None = None
        self._size = 0

    def write(self, batches: list[_Batch]) -> None:
        parts: list[bytes] = []
        limit_bytes = self._config.decompressed_bytes_max
        for batch in batches:
            data: bytes | memoryview = batch.data
            if batch.left_out:
                data = without_records(batch.data, batch.left_out, limit_bytes=limit_bytes)
            if batch.due_ms >= 0:
                data = with_times(data, batch.due_ms, limit_bytes=limit_bytes)
            header = BatchHeader.read(memoryview(data), 0)
            if not header.records:
                continue
            if header.attributes & TRANSACTIONAL:  # it is committed, and no marker comes with it
                header = header._replace(attributes=header.attributes & ~TRANSACTIONAL)
                data = with_crc(header, bytes(data[HEADER_BYTES:]))
            if not self.bases or self._is_full(header, batch.offset):
                self._append(parts)
                self._roll(batch.offset)
                parts = []
            parts.append(_BASE_OFFSET.pack(batch.offset) + data[8:12] + _LEADER_EPOCH + data[16:])
            last_offset = batch.offset + header.last_offset_delta
            self._noted.append((self._size, last_offset, header.max_timestamp))
            self._size += header.size
            self.log_bytes += header.size
            self.batches += 1
            self.records += header.records
            self.end_offset = last_offset + 1
        self._append(parts)

    def finish(self) -> None:
        """Make the last segment durable."""
        if self._file is None:
            return
        self._file.sync()
        self.close()
        self._sparse.finish()
        for suffix, content in zip((OFFSET_INDEX, TIME_INDEX), self._sparse.to_bytes(), strict=True):
            file = self.files.create(self.folder / segment_file(self.bases[-1], suffix))
            file.append([content])
            file.sync()
            file.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_full(self, header: BatchHeader, offset: int) -> bool:
        beyond = offset + header.last_offset_delta - self.bases[-1] > 2**31 - 1
        return beyond or self._size + header.size > self._config.segment_bytes

    def _roll(self, base_offset: int) -> None:
        self.finish()
        self.bases.append(base_offset)
        self._size = 0
        self._noted: list[tuple[int, int, int]] = []
        self._file = self.files.create(self.folder / segment_file(base_offset, LOG))
        self._sparse = SparseIndexes(base_offset, self._config.index_interval_bytes)

    def _append(self, parts: list[bytes]) -> None:
        if parts:
            assert self._file is not None, "a batch begins a segment"
            self._file.append([b"".join(parts)])
            self._sparse.add(*np.array(self._noted, np.int64).reshape(-1, 3).T.copy())
            self._noted = []
