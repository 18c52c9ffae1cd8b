"""The file format of a run: index entries in delivery order. The `.deliverafterindex` of a segment, or a bucket.

    file      header | chunk | chunk | … | bitmap | directory | footer
              little-endian; every part starts at a multiple of 64 and zeros fill the gaps, so that the int64 columns
              of a mapped file are aligned

    header    magic 8s "AFTERRUN" | version u8 = 2 | 55 zeros                                              64 bytes

    chunk     n entries that follow each other in delivery order. An offset is relative to the run's first_offset
      codec 0   deliver_after i64[n] | relative offset u32[n] | position u32[n] | records u32[n]        20 n bytes
      codec 1   as `packed_chunk` draws it                                                     from 0.2 n bytes on

    bitmap    the relative offsets of all records of all entries, a 32-bit Roaring bitmap in the portable format

    directory 10 columns of one i64 per chunk, one after another                               80 bytes a chunk
              first_deliver_after, first_offset        key of the first entry (offsets here are absolute)
              last_deliver_after, last_offset          key of the last entry
              entries_before, records_before           what the run holds in front of the chunk
              position, size, codec, crc32c            the chunk in the file

    footer    first_offset i64 | end_offset i64                     the log that the run covers: offsets [first, end),
              start_segment i64 | start_position i64                from a byte of the segment with that base offset
              end_segment i64 | end_position i64                    to a byte of that one (exclusive)
              entries i64 | records i64 | chunks i64 | directory_position i64 | file size i64
              bitmap_position i64 | bitmap_size i64 | bitmap_crc32c u32
              8 zeros | crc32c u32 | magic 8s "AFTERRUN"                                                 128 bytes

A chunk ends at `max_entries`, or where deliver_after lies more than `max_step_ms` above its first once it is a tenth
full, so that a sparse schedule does not end in chunks of one entry. It is loaded and checked as one piece, and stored
with the codec that makes it smaller. The bitmap costs next to nothing where the run holds every record of its part of
the log, or hardly any, and a bit for each record at most.

Checksums. The footer's CRC-32C covers header, directory and footer up to the CRC itself; these are read when the run
is opened. Chunks have theirs in the directory, the bitmap in the footer; they are checked when they are loaded, so that
opening a large run does not read it. The magic at the end is compared, the zeros between the parts are never read. A
run is published by rename: after a crash it is there whole or not at all, and whatever else is found is corrupt and to
be rebuilt.

Example. Segment 1000 holds three batches: offsets 1000-1001 at byte 0, due at 9000; offset 1002 at byte 180, due at
5000; offsets 1003-1005 at byte 290, due at 9000; it ends at byte 520. The columns of three entries would be 60 bytes,
packed they are 52. The file has 448 bytes:

       0  41 46 54 45 52 52 55 4e 02, zeros
      64  the packed chunk of (9000 0 0 2), (5000 2 180 1), (9000 3 290 3): 52 bytes, 12 zeros
     128  the bitmap {0, …, 5}: 15 bytes, 49 zeros
     192  directory, one chunk: 5000 1002 9000 1003 0 0 64 52 1 crc: 80 bytes, 48 zeros
     320  footer: 1000 1006 1000 0 1000 520 3 6 1 192 448, 128 15 crc, zeros, crc, magic

Versions. Version 1 had no codec 1, and a bitmap for each chunk of the first offsets of its entries. It is refused, and
the run made anew from the log.

To change the format: give the new one the next version; `parse` goes on reading every version it has read, or
refuses it as corrupt, which means that it is rebuilt from the log; add a file of the new version to the test data and
leave the old ones there; describe both versions above until the old one is no longer read. A new codec for chunks is
no new version: a reader that does not know it refuses the run, and rebuilds it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes
from afterlog.index.growing_columns import Int64Array, UInt32Array

VERSION = 2
_MAGIC = b"AFTERRUN"
CODEC_RAW = 0
CODEC_PACKED = 1
ENTRY_SIZE = 20
ALIGNMENT = 64

_HEADER = struct.Struct(
    "<"
    "8s"  # magic
    "B"  # version
    "55x"
)
_FOOTER = struct.Struct(
    "<"
    "q"  # first_offset
    "q"  # end_offset
    "q"  # start_segment
    "q"  # start_position
    "q"  # end_segment
    "q"  # end_position
    "q"  # entries
    "q"  # records
    "q"  # chunks
    "q"  # directory_position
    "q"  # file size
    "q"  # bitmap_position
    "q"  # bitmap_size
    "I"  # bitmap_crc32c
    "8x"
)
_SEAL = struct.Struct(
    "<"
    "I"  # crc32c of header, directory and footer up to here
    "8s"  # magic
)
_FOOTER_SIZE = _FOOTER.size + _SEAL.size
assert (_HEADER.size, _FOOTER_SIZE) == (64, 128)
HEADER = _HEADER.pack(_MAGIC, VERSION)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The log that a run covers: offsets [first_offset, end_offset), and where their bytes begin and end."""

    first_offset: int
    end_offset: int
    start_segment: int
    start_position: int
    end_segment: int
    end_position: int


class Identity(NamedTuple):
    """What tells one run file from another of its name: to be kept in a manifest."""

    size: int
    crc32c: int


@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """The columns, as drawn. `entries_before` and `records_before` have the run's totals behind their last row."""

    first_deliver_after: Int64Array
    first_offset: Int64Array
    last_deliver_after: Int64Array
    last_offset: Int64Array
    entries_before: Int64Array
    records_before: Int64Array
    position: Int64Array
    size: Int64Array
    codec: Int64Array
    crc32c: Int64Array

    WIDTH = 10

    def entries(self, chunk: int) -> int:
        """In a chunk."""
        return int(self.entries_before[chunk + 1]) - int(self.entries_before[chunk])


class FilePart(NamedTuple):
    """A part of the file: a chunk, the bitmap."""

    position: int
    size: int
    crc32c: int


class Metadata(NamedTuple):
    """What a run tells about itself, checked."""

    coverage: Coverage
    directory: Directory
    bitmap: FilePart
    identity: Identity


def raw_columns(chunk: Bytes) -> tuple[Int64Array, UInt32Array]:
    """The columns of codec 0, without a copy: deliver_after; and relative offset, position, records as [3, n]."""
    entries = len(chunk) // ENTRY_SIZE
    return chunk[: 8 * entries].view("<i8"), chunk[8 * entries :].view("<u4").reshape(3, entries)


def encode_directory(rows: Sequence[tuple[int, ...]]) -> bytes:
    """The directory of chunks whose rows are these, column by column."""
    return np.array(rows, "<i8").reshape(len(rows), Directory.WIDTH).T.tobytes()


def encode_footer(
    coverage: Coverage, entries: int, records: int, bitmap: FilePart, directory: bytes, directory_position: int
) -> bytes:
    """The footer that belongs behind the padded directory; its CRC covers header and directory too."""
    footer_position = directory_position + len(directory) + -len(directory) % ALIGNMENT
    chunks = len(directory) // (8 * Directory.WIDTH)
    footer = _FOOTER.pack(
        *astuple(coverage), entries, records, chunks, directory_position, footer_position + _FOOTER_SIZE, *bitmap
    )
    return footer + _SEAL.pack(crc32c(footer, crc32c(directory, crc32c(HEADER))), _MAGIC)


ReadRanges = Callable[[Sequence[tuple[int, int]]], Sequence[Bytes]]
"""Gives the bytes [start, end) of each range of a file. It is asked for nothing outside of the file."""


class _Malformed(Exception):
    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


def parse(path: Path, data: Bytes) -> Metadata:
    """Header, directory and footer of a run file. CorruptFile unless they are as they were written.

    They are copied: what passed its checksum stays, whatever the disk does.
    """
    return read_metadata(path, len(data), lambda ranges: [data[start:end].copy() for start, end in ranges])


def read_metadata(path: Path, size: int, read: ReadRanges) -> Metadata:
    """The same of a file of `size` bytes that is read in parts: first both ends of it, then the directory."""
    try:
        return _read_metadata(size, read)
    except _Malformed as error:
        raise CorruptFile(error.reason, path=path, position=error.position) from None


def _read_metadata(size: int, read: ReadRanges) -> Metadata:
    footer_position = size - _FOOTER_SIZE
    if footer_position < _HEADER.size:
        raise _Malformed(f"{size} bytes are too few for a run", 0)
    header, footer = read([(0, _HEADER.size), (footer_position, size)])
    magic, version = _HEADER.unpack_from(header.data)
    crc, end_magic = _SEAL.unpack_from(footer.data, _FOOTER.size)
    if magic != _MAGIC or end_magic != _MAGIC:
        raise _Malformed("no run: the magic is missing", 0 if magic != _MAGIC else size - _SEAL.size)
    if version != VERSION:
        raise _Malformed(f"version {version} of runs is not known here", 8)
    *covered, entries, records, chunks, position, told_size, bitmap_position, bitmap_size, bitmap_crc = (
        _FOOTER.unpack_from(footer.data)
    )
    if told_size != size:
        raise _Malformed(f"{size} bytes of a run of {told_size}", footer_position)
    if (
        chunks < 1
        or position < _HEADER.size
        or position % 8
        or position + 8 * Directory.WIDTH * chunks > footer_position
    ):
        raise _Malformed("the directory does not fit into the file", footer_position)
    [stored] = read([(position, position + 8 * Directory.WIDTH * chunks)])
    if crc32c(footer.data[: _FOOTER.size], crc32c(stored.data, crc32c(header.data))) != crc:
        raise _Malformed("header, directory and footer fail their checksum", footer_position)
    columns = list(stored.view("<i8").reshape(Directory.WIDTH, chunks))
    columns[4] = np.append(columns[4], entries)
    columns[5] = np.append(columns[5], records)
    directory, bitmap = Directory(*columns), FilePart(bitmap_position, bitmap_size, bitmap_crc)
    _check_places(directory, bitmap, position)
    return Metadata(Coverage(*covered), directory, bitmap, Identity(size, crc))


def _check_places(directory: Directory, bitmap: FilePart, end: int) -> None:
    """Chunks and bitmap lie in front of the directory, and a chunk has a size that its entries can have."""
    raw, packed = directory.codec == CODEC_RAW, directory.codec == CODEC_PACKED
    if not (raw | packed).all():
        raise _Malformed("a chunk has a codec that is not known here", end)
    for before in (directory.entries_before, directory.records_before):
        # Compared, not subtracted: the difference of two numbers may be beyond int64.
        if before[0] or (before[1:] <= before[:-1]).any():
            raise _Malformed("the directory counts wrongly", end)
    counts = np.diff(directory.entries_before)
    if (raw & ((counts > end) | (directory.size != counts * ENTRY_SIZE))).any():
        raise _Malformed("a chunk has another size than its entries need", end)
    position, size = np.append(directory.position, bitmap.position), np.append(directory.size, bitmap.size)
    if (position < 0).any() or (position % 8).any() or (size < 1).any() or (position > end - size).any():
        raise _Malformed("a chunk or bitmap does not fit into the file", end)
