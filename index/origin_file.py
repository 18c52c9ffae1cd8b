"""A file of origins: what of one partition was replicated from where, as of one offset.

    header | name x origins | awaited name x awaited | row x rows | CRC-32C u32     all little-endian

    header, 40 bytes:  magic u32 = "AFOR" | version u16 = 1 | 0 u16 | offset i64 | origins i64 | awaited i64 | rows i64
    name:              upcoming offset i64 | bytes u16 | the name, ASCII
    awaited name:      offsets i64 | bytes u16 | the name, ASCII | offset there i64 x offsets
    row:               of `origin_rows.py`, whose `origin` counts in the names

The upcoming offset is the one after the highest that was replicated, also where retention has taken all of it here.
The checksum covers all before it, and is in the checkpoints, too, with the offset: a file of another life is known as
such. It is written aside and renamed, so a crash leaves it whole or not at all; it is never changed, and goes when
another one has its place. What is missing or rotten is made anew from the log.

Procedure for a change of the format: raise VERSION; a file of another version counts as missing.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, publish, read_file
from afterlog.index.growing_columns import Int64Array
from afterlog.index.origin_rows import ROW_BYTES, OriginRows

HEADER: Final = struct.Struct(
    "<"
    "4s"  # magic
    "H"  # version
    "H"  # 0
    "q"  # offset
    "q"  # origins
    "q"  # awaited
    "q"  # rows
)
_NAME: Final = struct.Struct(
    "<"
    "q"  # upcoming offset, or how many offsets
    "H"  # bytes
)
_CRC: Final = struct.Struct("<I")
MAGIC: Final = b"AFOR"
VERSION: Final = 1


class OriginFileMark(NamedTuple):
    """What is known of a file without opening it: a row of the checkpoints."""

    offset: int
    """It tells of all below."""
    crc: int


class StoredOrigins(NamedTuple):
    """What a file says."""

    upcoming: dict[str, int]
    """Names, in the order in which the rows count them, and the offset after the highest of each."""
    rows: OriginRows
    awaited: dict[str, Int64Array]
    """What is not to come, of those of which anything is: offsets there, ascending."""


def write_origins(files: Files, path: Path, offset: int, origins: StoredOrigins) -> OriginFileMark:
    """Publish a file."""
    rows = origins.rows.to_bytes()
    counts = (len(origins.upcoming), len(origins.awaited), len(rows) // ROW_BYTES)
    parts = [HEADER.pack(MAGIC, VERSION, 0, offset, *counts)]
    for name, upcoming in origins.upcoming.items():
        text = name.encode("ascii")
        parts += (_NAME.pack(upcoming, len(text)), text)
    for name, awaited in origins.awaited.items():
        text = name.encode("ascii")
        parts += (_NAME.pack(len(awaited), len(text)), text, awaited.astype("<i8").tobytes())
    body = b"".join((*parts, rows))
    crc = crc32c(body)
    publish(files, path, [body, _CRC.pack(crc)])
    return OriginFileMark(offset, crc)


def read_origins(files: Files, path: Path, mark: OriginFileMark) -> StoredOrigins:
    """Raises CorruptFile where the file is gone, or not the one that the mark is of."""
    try:
        data = read_file(files, path)
        return _decoded(data, mark)
    except FileNotFoundError:
        raise CorruptFile("the file is gone", path=path) from None
    except (ValueError, struct.error) as error:
        raise CorruptFile(str(error), path=path) from error


def _decoded(data: bytes, mark: OriginFileMark) -> StoredOrigins:
    magic, version, zero, offset, origins, awaiting, rows = HEADER.unpack_from(data)
    if (magic, version, zero) != (MAGIC, VERSION, 0):
        raise ValueError("no file of origins of a version that is known here")
    end = len(data) - _CRC.size
    if (offset, *_CRC.unpack_from(data, end)) != mark:
        raise ValueError("not the file that the checkpoints name")
    if crc32c(memoryview(data)[:end]) != mark.crc:
        raise ValueError("fails its checksum")
    upcoming, at = dict[str, int](), HEADER.size
    for _ in range(origins):
        behind, size = _NAME.unpack_from(data, at)
        at += _NAME.size + size
        upcoming[data[at - size : at].decode("ascii")] = behind
    awaited = dict[str, Int64Array]()
    for _ in range(awaiting):
        count, size = _NAME.unpack_from(data, at)
        at += _NAME.size + size
        awaited[data[at - size : at].decode("ascii")] = np.frombuffer(data, "<i8", count, at).astype(np.int64)
        at += 8 * count
    if at + rows * ROW_BYTES != end:
        raise ValueError("its rows do not end where it does")
    return StoredOrigins(upcoming, OriginRows.from_bytes(data[at:end]), awaited)
