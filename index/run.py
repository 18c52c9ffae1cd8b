"""A run: index entries in delivery order, stored for good and read chunk by chunk. The format is in `run_format`.

Invariants, proved by `check`: keys strictly increase through the run; a chunk's row in the directory tells its keys,
entries and records; no two entries share an offset, and all lie in the covered offsets; the bitmap holds just these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes, Files
from afterlog.index.bucket_snapshot import BucketSnapshot, MappedSnapshot
from afterlog.index.entries import Entries, Key, is_delivery_order
from afterlog.index.growing_columns import Int64Array, UInt32Array
from afterlog.index.offset_bitmap import BitmapBuilder
from afterlog.index.packing import unpack
from afterlog.index.run_cursor import RunCursor
from afterlog.index.run_format import CODEC_RAW, Coverage, Directory, Identity, Metadata, raw_columns

__all__ = ["Coverage", "Identity", "Outline", "Run"]

_INT64_MAX = 2**63 - 1
_UINT32_MAX = 2**32 - 1


class Outline(NamedTuple):
    """What is known of a run without reading anything of it, for one whose bytes are far away.

    upto: a key not below any of the run's, and below every key of other runs that is not below all of the run's.
    """

    coverage: Coverage
    records: int
    upto: Key


class Run:
    """A run that is open. Any thread may read it; it needs no closing, the mapping goes with the last reader.

    What touches a chunk or bitmap for the first time may raise CorruptFile, or what the snapshot raises; with an
    outline that holds for whatever is not in the outline.
    """

    def __init__(self, snapshot: BucketSnapshot, outline: Outline | None = None) -> None:
        """Over its stored bytes. CorruptFile unless its metadata are as they were written.

        outline: what is known already. Then nothing is read before it is needed.
        """
        self.key = snapshot.key
        self.path = snapshot.path
        self.remote = outline is not None
        """Whether its bytes are far away: such a run is read, and never merged with others."""
        self.size = snapshot.length
        self._snapshot = snapshot
        self._outline = outline
        self._bitmap: BitMap | None = None
        self.loading: Callable[[], AbstractContextManager[object]] = nullcontext
        """Around the loading of a chunk: set by a storage that measures it."""
        self.mend: Callable[[Run], BucketSnapshot | None] | None = None
        """Gives the same bytes as they were written, where some are found that are not: set by a storage that can."""
        self._mending = threading.Lock()
        if outline is None:
            outline = self._told(self._metadata)
        self.coverage, self.records, self.last_key = outline

    @cached_property
    def _metadata(self) -> Metadata:
        metadata = self._snapshot.metadata()
        if self._outline is not None:
            coverage, records, last_key = self._told(metadata)
            if (coverage, records) != self._outline[:2] or last_key > self._outline.upto:
                raise CorruptFile("another run than was expected here", path=self.path)
        return metadata

    @staticmethod
    def _told(metadata: Metadata) -> Outline:
        directory = metadata.directory
        last_key = Key(int(directory.last_deliver_after[-1]), int(directory.last_offset[-1]))
        return Outline(metadata.coverage, int(directory.records_before[-1]), last_key)

    @property
    def directory(self) -> Directory:
        return self._metadata.directory

    @property
    def parts(self) -> Metadata:
        """Where everything lies, with its checksums."""
        return self._metadata

    @property
    def identity(self) -> Identity:
        return self._metadata.identity

    @cached_property
    def chunks(self) -> int:
        return len(self.directory.position)

    @cached_property
    def count(self) -> int:
        """Entries."""
        return int(self.directory.entries_before[-1])

    @cached_property
    def first_key(self) -> Key:
        return Key(int(self.directory.first_deliver_after[0]), int(self.directory.first_offset[0]))

    @staticmethod
    def open(files: Files, path: Path) -> Run:
        """Read footer and directory, map the rest. CorruptFile, FileNotFoundError."""
        return Run(MappedSnapshot.open(files, path))

    def columns(self, chunk: int) -> tuple[Int64Array, UInt32Array]:
        """A chunk, loaded: deliver_after; and relative offset, position, records as [3, n]. They are in delivery order
        and lie between the keys that the directory tells. About 20 ns an entry if it is packed, no copy if it is not.
        """
        with self.loading():
            return self._columns(chunk)

    def _columns(self, chunk: int) -> tuple[Int64Array, UInt32Array]:
        directory, stored = self.directory, self.stored(chunk)
        if directory.codec[chunk] == CODEC_RAW:
            deliver_after, details = raw_columns(stored)
            ordered = is_delivery_order(deliver_after, details[0])
        else:
            try:
                deliver_after, details = unpack(stored, directory.entries(chunk))
            except ValueError as error:
                raise self._corrupt(f"chunk {chunk}: {error}", directory.position[chunk]) from error
            ordered = True
        if not ordered or not self._is_between_its_keys(chunk, deliver_after, details[0]):
            raise self._corrupt(f"chunk {chunk} has other keys than its directory tells", directory.position[chunk])
        return deliver_after, details

    def stored(self, chunk: int) -> Bytes:
        """The bytes of a chunk as they are stored, which pass their checksum."""
        stored = self._intact(lambda snapshot: snapshot.segments(chunk, chunk)[0], int(self.directory.crc32c[chunk]))
        if stored is None:
            raise self._corrupt(f"chunk {chunk} fails its checksum", self.directory.position[chunk])
        return stored

    def _intact(self, part: Callable[[BucketSnapshot], Bytes], crc: int) -> Bytes | None:
        """A part of the snapshot that passes its checksum, if need be of one that was mended."""
        snapshot = self._snapshot
        stored = part(snapshot)
        if crc32c(stored.data) == crc:
            return stored
        with self._mending:
            if self._snapshot is snapshot and self.mend is not None:
                self._snapshot = self.mend(self) or snapshot
        stored = part(self._snapshot)
        return stored if crc32c(stored.data) == crc else None

    def chunk(self, chunk: int) -> Entries:
        """The entries of a chunk, with absolute offsets."""
        return self._absolute(*self.columns(chunk))

    def entries(self) -> Entries:
        """All entries, in delivery order."""
        return Entries.concatenate([self.chunk(chunk) for chunk in range(self.chunks)])

    def cursor(self, after: Key | None = None) -> RunCursor:
        """A cursor before the first entry whose key is > `after`."""
        cursor = RunCursor(self)
        if after is not None:
            cursor.seek(after)
        return cursor

    def records_up_to(self, key: Key) -> int:
        """Records of the entries with a key <= `key`. Reads one chunk at most."""
        return self.cursor(key).records_passed()

    def next_due(self, after: Key | None = None) -> int | None:
        """deliver_after of the first entry with a key > `after`. Reads one chunk at most."""
        return self.cursor(after).next_due

    def due_counts(self, edges: Int64Array) -> Int64Array:
        """For each edge, the records with deliver_after < edge. Reads the chunks that an edge falls into."""
        directory = self.directory
        whole = directory.last_deliver_after.searchsorted(edges, "left")
        counts = directory.records_before[whole]
        first = np.append(directory.first_deliver_after, _INT64_MAX)
        inside = first[whole] < edges
        for chunk in np.unique(whole[inside]).tolist():
            deliver_after, details = self.columns(chunk)
            records_before = np.concatenate(([0], np.cumsum(details[2], dtype=np.int64)))
            here = inside & (whole == chunk)
            counts[here] += records_before[deliver_after.searchsorted(edges[here], "left")]
        return counts

    def due_bounds(self, edges: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Bounds of `due_counts`, by the directory alone: no less, no more. An edge falls into one chunk at most."""
        directory = self.directory
        whole = directory.last_deliver_after.searchsorted(edges, "left")
        behind = directory.first_deliver_after.searchsorted(edges, "left")
        return directory.records_before[whole], directory.records_before[behind]

    def contains(self, offset: int) -> bool:
        """Whether an entry of the run holds `offset`: then a cursor yields it."""
        relative = offset - self.coverage.first_offset
        return 0 <= relative <= _UINT32_MAX and relative in self.offsets()

    def check(self) -> None:
        """Read everything and prove the invariants. CorruptFile where one does not hold."""
        directory, last, offsets = self.directory, Key(-1, -1), BitmapBuilder()
        for chunk in range(self.chunks):
            deliver_after, details = self.columns(chunk)
            entries, position = self._absolute(deliver_after, details), directory.position[chunk]
            totals = directory.entries_before[chunk : chunk + 2], directory.records_before[chunk : chunk + 2]
            if [len(entries), int(entries.records.sum())] != [int(before[1] - before[0]) for before in totals]:
                raise self._corrupt("the directory tells other counts than the chunk holds", position)
            if entries.key(0) <= last:
                raise self._corrupt("the entries are not in delivery order", position)
            if (
                int(entries.records.min()) < 1
                or int((entries.offset + entries.records).max()) > self.coverage.end_offset
            ):
                raise self._corrupt("an entry has no records, or some that the run does not cover", position)
            offsets.add(details[0], details[2])
            last = entries.key(-1)
        held = offsets.finish()
        if len(held) != self.records:
            raise self._corrupt("an offset is there twice", 0)
        if held != self.offsets():
            raise self._corrupt("the bitmap holds other offsets than the chunks", self._metadata.bitmap.position)

    def _absolute(self, deliver_after: Int64Array, details: UInt32Array) -> Entries:
        offset, position, records = details.astype(np.int64)
        offset += self.coverage.first_offset
        return Entries(deliver_after, offset, position, records)

    def _is_between_its_keys(self, chunk: int, deliver_after: Int64Array, offset: UInt32Array) -> bool:
        """Whether first and last entry are those that the directory tells."""
        directory, first_offset = self.directory, self.coverage.first_offset
        return bool(
            deliver_after[0] == directory.first_deliver_after[chunk]
            and deliver_after[-1] == directory.last_deliver_after[chunk]
            and int(offset[0]) + first_offset == directory.first_offset[chunk]
            and int(offset[-1]) + first_offset == directory.last_offset[chunk]
        )

    def offsets(self) -> BitMap:
        """The bitmap, loaded once: the offsets of all records, relative to the first that the run covers."""
        if self._bitmap is None:
            position, _, crc = self._metadata.bitmap
            stored = self._intact(lambda snapshot: snapshot.bitmap(), crc)
            if stored is None:
                raise self._corrupt("the bitmap fails its checksum", position)
            try:
                self._bitmap = BitMap.deserialize(stored.tobytes())
            except ValueError as error:
                raise self._corrupt(f"the bitmap: {error}", position) from error
        return self._bitmap

    def _corrupt(self, reason: str, position: int | np.int64) -> CorruptFile:
        return CorruptFile(reason, path=self.path, position=int(position))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.records} records, up to {self.last_key})"
