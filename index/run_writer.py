"""Writing a run: entries in delivery order go in block by block, chunks go out to the file as they fill up.

    add(block) ──> rest: less than a chunk ──> chunk, packed ──> file, a MiB at a time
                                               bitmap, row of the directory: kept to the end, after the chunks

However the entries are cut into blocks, the file is the same. Where somebody else has sorted and packed a stretch of
delivery order, as a run of its own, its chunks are copied as they are (`add_run`): nothing in a chunk depends on where
it stands, and its offsets are relative to the same one. In memory are the last blocks, a MiB of output, and what
belongs after the chunks: the bitmap, a bit for each record of the log at most, and the 10 numbers a chunk of the
directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.files import Data, File, Files, publishing
from afterlog.index.entries import Entries, Key, is_delivery_order
from afterlog.index.growing_columns import Int64Array, UInt32Array
from afterlog.index.offset_bitmap import BitmapBuilder
from afterlog.index.packing import pack
from afterlog.index.run import Run
from afterlog.index.run_format import (
    ALIGNMENT,
    CODEC_PACKED,
    CODEC_RAW,
    ENTRY_SIZE,
    HEADER,
    Coverage,
    FilePart,
    encode_directory,
    encode_footer,
)

_WRITE_BYTES = 1 << 20
"""Output is handed to the file in pieces of about this size. Larger: fewer writes, more memory."""
UNLIMITED_LEAST = 500
"""Entries of a chunk, at least, where their number has no limit. Larger: smaller directory, more memory."""
_UINT32_MAX = 2**32 - 1
_INT64_MAX = 2**63 - 1


def write_run(
    files: Files, path: Path, blocks: Iterable[Entries], coverage: Coverage, *, max_entries: int, max_step_ms: int
) -> None:
    """Publish a run of the entries of all blocks, which follow each other in delivery order, under `path`.

    ValueError where they are none, or not what a run may hold: that is a fault of the caller.
    """
    with publishing(files, path) as file:
        writer = RunWriter(file, coverage, max_entries=max_entries, max_step_ms=max_step_ms)
        for block in blocks:
            writer.add(block)
        writer.finish()


class RunWriter:
    """A run in the making."""

    def __init__(self, file: File, coverage: Coverage, *, max_entries: int, max_step_ms: int) -> None:
        self._coverage = coverage
        self._max_entries = max_entries
        self._max_step_ms = max_step_ms
        self._output = _Output(file)
        self._rest = Entries.empty()
        self._last_key = Key(-1, -1)
        self._entries, self._records = 0, 0
        self._rows: list[tuple[int, ...]] = []
        self._bitmap = BitmapBuilder()
        self._output.add([HEADER])

    def add(self, block: Entries) -> None:
        """Add the entries that follow in delivery order. The columns are kept for a while: they must not change."""
        entries = Entries.concatenate([self._rest, block])
        bounds = chunk_bounds(entries.deliver_after, self._max_entries, self._max_step_ms)
        for start, end in pairwise(bounds[:-1]):
            self._add_chunk(entries[start:end])
        self._rest = entries[bounds[-2] :] if len(entries) else entries  # what comes next may belong to its chunk

    def add_run(self, run: Run) -> None:
        """Add the entries of a run, which follow in delivery order, without unpacking them: a checksum and a copy.

        The run has the first_offset that is ours. CorruptFile where its bytes are not as they were written.
        """
        self._end_chunk()
        covered, ours, directory = run.coverage, self._coverage, run.directory
        if covered.first_offset != ours.first_offset or covered.end_offset > ours.end_offset:
            raise ValueError("the run is relative to another offset, or covers more")
        if run.first_key <= self._last_key:
            raise ValueError("the entries are not in delivery order")
        keys = (
            directory.first_deliver_after,
            directory.first_offset,
            directory.last_deliver_after,
            directory.last_offset,
        )
        before = directory.entries_before + self._entries, directory.records_before + self._records
        for chunk in range(run.chunks):
            part = self._output.add([run.stored(chunk).data])
            row = (*(column[chunk] for column in (*keys, *before)), part.position, part.size, directory.codec[chunk])
            self._rows.append((*map(int, row), part.crc32c))
        self._bitmap.add_all(run.offsets())
        self._last_key = run.last_key
        self._entries, self._records = int(before[0][-1]), int(before[1][-1])

    def finish(self) -> None:
        """Write the last chunk and all that stands after the chunks."""
        self._end_chunk()
        if not self._rows:
            raise ValueError("a run holds at least one entry")
        offsets = self._bitmap.finish()
        if len(offsets) != self._records:
            raise ValueError("two entries share an offset")
        bitmap = self._output.add([offsets.serialize()])
        directory = encode_directory(self._rows)
        position = self._output.add([directory]).position
        footer = encode_footer(self._coverage, self._entries, self._records, bitmap, directory, position)
        self._output.add([footer])
        self._output.flush()

    def _end_chunk(self) -> None:
        """Write the chunk that is not full, if there is one."""
        if len(self._rest):
            self._add_chunk(self._rest)
            self._rest = Entries.empty()

    def _add_chunk(self, chunk: Entries) -> None:
        first_key, last_key = chunk.key(0), chunk.key(-1)
        if first_key <= self._last_key or not is_delivery_order(chunk.deliver_after, chunk.offset):
            raise ValueError("the entries are not in delivery order")
        if int(chunk.records.min()) < 1 or int((chunk.offset + chunk.records).max()) > self._coverage.end_offset:
            raise ValueError("an entry has no records, or some that the run does not cover")
        relative = chunk.offset - self._coverage.first_offset
        last = relative + chunk.records - 1
        # The bits of all numbers together: negative if one of them is.
        bits_set = int(np.bitwise_or.reduce(relative | last | chunk.position | chunk.records))
        if not 0 <= bits_set <= _UINT32_MAX:
            raise ValueError("an offset, position or count does not fit 32 bits from the start of the run")
        details = np.stack([relative, chunk.position, chunk.records], dtype="<u4", casting="unsafe")
        codec, stored = _stored(chunk.deliver_after.astype("<i8", copy=False), details)
        part = self._output.add(stored)
        self._rows.append(
            (*first_key, *last_key, self._entries, self._records, part.position, part.size, codec, part.crc32c)
        )
        self._bitmap.add(details[0], details[2])
        self._last_key = last_key
        self._entries += len(chunk)
        self._records += int(chunk.records.sum())


def stored_chunk(chunk: Entries, first_offset: int) -> bytes:
    """The bytes of a chunk of these entries, which a run has held, in a run that begins with `first_offset`."""
    relative = chunk.offset - first_offset
    details = np.stack([relative, chunk.position, chunk.records], dtype="<u4", casting="unsafe")
    return b"".join(bytes(part) for part in _stored(chunk.deliver_after.astype("<i8", copy=False), details)[1])


def _stored(deliver_after: Int64Array, details: UInt32Array) -> tuple[int, Sequence[bytes | memoryview]]:
    """A chunk with the codec that makes it smaller."""
    packed = pack(deliver_after, details)
    if packed is not None and len(packed) < ENTRY_SIZE * len(deliver_after):
        return CODEC_PACKED, [packed.data]
    return CODEC_RAW, [_bytes(deliver_after), _bytes(details)]


def chunk_bounds(deliver_after: Int64Array, max_entries: int, max_step_ms: int) -> list[int]:
    """The rows at which chunks begin, and the end: at `max_entries`, or at the time step once a tenth of that is in.

    max_entries -1: at the time step alone, once UNLIMITED_LEAST are in.
    """
    least = max(max_entries // 10, 1) if max_entries > 0 else UNLIMITED_LEAST
    most = max_entries if max_entries > 0 else len(deliver_after)
    bounds = [0]
    while bounds[-1] < len(deliver_after):
        start = bounds[-1]
        step = min(int(deliver_after[start]) + max_step_ms, _INT64_MAX)
        within_step = int(deliver_after.searchsorted(step, "right"))
        bounds.append(min(max(within_step, start + least), start + most, len(deliver_after)))
    return bounds


class _Output:
    """The parts of a file one after another, each filled up to the alignment."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._buffers: list[Data] = []
        self._position = 0
        self._written = 0

    def add(self, buffers: Sequence[bytes | memoryview]) -> FilePart:
        """The part that `buffers` make together."""
        position, size, crc = self._position, 0, 0
        for buffer in buffers:
            crc = crc32c(buffer, crc)
            size += len(buffer)
        padding = bytes(-size % ALIGNMENT)
        self._buffers += [*buffers, padding]
        self._position += size + len(padding)
        if self._position - self._written >= _WRITE_BYTES:
            self.flush()
        return FilePart(position, size, crc)

    def flush(self) -> None:
        """Hand to the file what it does not have yet."""
        self._file.append(self._buffers)
        self._buffers, self._written = [], self._position


def _bytes(columns: Int64Array | UInt32Array) -> memoryview:
    return columns.reshape(-1).view(np.uint8).data
