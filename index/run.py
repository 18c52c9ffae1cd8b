"""A run: index entries in delivery order, in an immutable file that is mapped. The format is in `run_format`.

Invariants, proved by `check`: keys strictly increase through the run; a chunk's row in the directory tells its keys,
entries and records; its bitmap holds just its offsets; no offset is there twice; all lie in the covered offsets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from crc32c import crc32c
from pyroaring import BitMap

from afterlog.errors import CorruptFile
from afterlog.files import Bytes, Files, map_file
from afterlog.index.columns import Int64Array, UInt32Array
from afterlog.index.entries import Entries, Entry, Key, is_delivery_order
from afterlog.index.run_cursor import RunCursor
from afterlog.index.run_format import ENTRY_SIZE, Coverage, Identity, bitmap_of, parse

__all__ = ["Coverage", "Identity", "Run"]

_INT64_MAX = 2**63 - 1


class Run:
    """A run that is open. Any thread may read it; it needs no closing, the mapping goes with the last reader.

    What touches a chunk or bitmap for the first time may raise CorruptFile.
    """

    def __init__(self, path: Path, data: Bytes) -> None:
        """Over the bytes of a run file. CorruptFile unless what `parse` looks at is as it was written."""
        coverage, directory, identity = parse(path, data)
        self.path = path
        self.coverage = coverage
        self.directory = directory
        self.identity = identity
        self.chunks = len(directory.position)
        self.count = int(directory.entries_before[-1])
        self.records = int(directory.records_before[-1])
        self.first_key = Key(int(directory.first_deliver_after[0]), int(directory.first_offset[0]))
        self.last_key = Key(int(directory.last_deliver_after[-1]), int(directory.last_offset[-1]))
        self._data = data
        self._chunk_checked = np.zeros(self.chunks, np.bool_)
        self._bitmap_checked = np.zeros(self.chunks, np.bool_)

    @staticmethod
    def open(files: Files, path: Path) -> Run:
        """Read footer and directory, map the rest. CorruptFile, FileNotFoundError."""
        return Run(path, map_file(files, path))

    def columns(self, chunk: int) -> tuple[Int64Array, UInt32Array]:
        """A chunk as it is stored, without a copy: deliver_after; and relative offset, position, records as [3, n]."""
        stored = self._checked("chunk", chunk, self.directory.position, self.directory.size, self.directory.crc32c)
        entries = len(stored) // ENTRY_SIZE
        return stored[: 8 * entries].view("<i8"), stored[8 * entries :].view("<u4").reshape(3, entries)

    def chunk(self, chunk: int) -> Entries:
        """The entries of a chunk, with absolute offsets."""
        deliver_after, details = self.columns(chunk)
        offset, position, records = details.astype(np.int64)
        offset += self.coverage.first_offset
        return Entries(deliver_after, offset, position, records)

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

    def find(self, offset: int) -> Entry | None:
        """The entry whose batch holds `offset`. Looks into the bitmap of every chunk and reads one chunk.

        It is the batch with the largest base offset <= `offset`, if that one reaches so far.
        """
        relative = offset - self.coverage.first_offset
        if not 0 <= relative < self.coverage.end_offset - self.coverage.first_offset:
            return None
        base, holder = -1, -1
        for chunk in range(self.chunks):
            bitmap = self._bitmap(chunk)
            rank = bitmap.rank(relative)
            if rank and bitmap[rank - 1] > base:
                base, holder = bitmap[rank - 1], chunk
        if holder < 0:
            return None
        deliver_after, details = self.columns(holder)
        rows = np.flatnonzero(details[0] == np.uint32(base))
        if len(rows) != 1:
            raise self._corrupt(
                "the bitmap names an offset that the chunk does not hold", self.directory.position[holder]
            )
        position, records = int(details[1, rows[0]]), int(details[2, rows[0]])
        if relative >= base + records:
            return None
        return Entry(int(deliver_after[rows[0]]), base + self.coverage.first_offset, position, records)

    def contains(self, offset: int) -> bool:
        """Whether an entry of the run holds `offset`: then `find` returns it and a cursor yields it."""
        return self.find(offset) is not None

    def check(self) -> None:
        """Read everything and prove the invariants. CorruptFile where one does not hold."""
        directory, last, offsets = self.directory, Key(-1, -1), BitMap()
        for chunk in range(self.chunks):
            entries, position = self.chunk(chunk), directory.position[chunk]
            first_key = Key(int(directory.first_deliver_after[chunk]), int(directory.first_offset[chunk]))
            last_key = Key(int(directory.last_deliver_after[chunk]), int(directory.last_offset[chunk]))
            totals = directory.entries_before[chunk : chunk + 2], directory.records_before[chunk : chunk + 2]
            if (first_key, last_key) != (entries.key(0), entries.key(-1)):
                raise self._corrupt("the directory tells other keys than the chunk holds", position)
            if [len(entries), int(entries.records.sum())] != [int(before[1] - before[0]) for before in totals]:
                raise self._corrupt("the directory tells other counts than the chunk holds", position)
            if first_key <= last or not is_delivery_order(entries.deliver_after, entries.offset):
                raise self._corrupt("the entries are not in delivery order", position)
            if (
                int(entries.records.min()) < 1
                or int((entries.offset + entries.records).max()) > self.coverage.end_offset
            ):
                raise self._corrupt("an entry has no records, or some that the run does not cover", position)
            bitmap = self._bitmap(chunk)
            if bitmap != bitmap_of(entries.offset - self.coverage.first_offset):
                raise self._corrupt("the bitmap holds other offsets than the chunk", directory.bitmap_position[chunk])
            offsets |= bitmap
            last = last_key
        if len(offsets) != self.count:
            raise self._corrupt("an offset is there twice", 0)

    def _bitmap(self, chunk: int) -> BitMap:
        directory = self.directory
        stored = self._checked(
            "bitmap", chunk, directory.bitmap_position, directory.bitmap_size, directory.bitmap_crc32c
        )
        try:
            return BitMap.deserialize(stored.tobytes())
        except ValueError as error:
            raise self._corrupt(f"bitmap {chunk}: {error}", directory.bitmap_position[chunk]) from error

    def _checked(self, what: str, chunk: int, position: Int64Array, size: Int64Array, crc: Int64Array) -> Bytes:
        """The bytes of a part; what was found intact once is not checked again."""
        start = int(position[chunk])
        stored = self._data[start : start + int(size[chunk])]
        checked = self._chunk_checked if what == "chunk" else self._bitmap_checked
        if not checked[chunk]:
            if crc32c(stored.data) != crc[chunk]:
                raise self._corrupt(f"{what} {chunk} fails its checksum", start)
            checked[chunk] = True
        return stored

    def _corrupt(self, reason: str, position: int | np.int64) -> CorruptFile:
        return CorruptFile(reason, path=self.path, position=int(position))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.count} entries, {self.first_key} to {self.last_key})"
