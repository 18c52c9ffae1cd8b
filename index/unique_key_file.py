"""A file of unique keys: which records of a stretch of the log hold which, by hash, for good.

    header | hashed i64 x rows | offset i64 x rows | due i64 x rows | CRC-32C u32      all little-endian

    header, 40 bytes:  magic u32 = "AFUK" | version u16 = 1 | 0 u16
                       first offset i64 | end offset i64 | rows i64 | latest due i64

It covers the offsets [first, end): each record in there that held a unique key, and was pending and not cancelled when
the file was made, has a row. Rows are sorted (`index/key_rows.py`), so a key is found by bisection of a mapping. The
checksum covers all before it, and is in the checkpoints, too: a file of another life is known as such. It is written
aside and renamed, so a crash leaves it whole or not at all; it is never changed, and goes when its rows are in another
one, or all of them are due. What is missing or rotten is made anew from the log.

Example: of the offsets 0 to 8, one record, of offset 7, whose key has the hash 5, due at 1700000060000 ms:

    41 46 55 4B  01 00  00 00  00 x 8  09 00 x 7  01 00 x 7  60 52 E6 CF 8B 01 00 00
    05 00 x 7    07 00 x 7    60 52 E6 CF 8B 01 00 00    CRC

Procedure for a change of the format: raise VERSION; a file of another version counts as missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes, Data, Files, lost, map_file, publishing
from afterlog.index.key_rows import KeyRows

HEADER: Final = struct.Struct(
    "<"
    "4s"  # magic
    "H"  # version
    "H"  # 0
    "q"  # first offset
    "q"  # end offset
    "q"  # rows
    "q"  # latest due
)
_CRC: Final = struct.Struct("<I")
MAGIC: Final = b"AFUK"
VERSION: Final = 1
ROW_BYTES: Final = 24

assert HEADER.size == 40


class KeyFileMark(NamedTuple):
    """What is known of a file without opening it: a row of the checkpoints."""

    first: int
    """It covers the offsets from there on"""
    end: int
    """and up to here."""
    rows: int
    latest_due: int
    """When all of its rows are due."""
    crc: int


Chunks = Callable[[], Iterable[KeyRows]]
"""Sorted rows, in chunks; called again for each column, and gives the same again."""


def content(first: int, end: int, chunks: Chunks) -> Iterator[Data]:
    """The parts of a file of these rows; none, where there are none. Memory: a chunk."""
    facts = [(len(rows), int(rows.due.max(initial=0))) for rows in chunks()]
    count, latest_due = sum(rows for rows, _ in facts), max((due for _, due in facts), default=0)
    if not count:
        return
    crc = 0
    for part in _without_checksum(HEADER.pack(MAGIC, VERSION, 0, first, end, count, latest_due), chunks):
        crc = crc32c(part, crc)
        yield part
    yield _CRC.pack(crc)


def _without_checksum(header: bytes, chunks: Chunks) -> Iterator[Data]:
    yield header
    for column in KeyRows._fields:
        for rows in chunks():
            yield np.ascontiguousarray(getattr(rows, column), "<i8").view(np.uint8)


def mark_of(header: bytes, end: bytes) -> KeyFileMark:
    """Of a file with this first and this last part."""
    _, _, _, first_offset, end_offset, count, latest_due = HEADER.unpack(header)
    return KeyFileMark(first_offset, end_offset, count, latest_due, *_CRC.unpack(end))


def write_keys(files: Files, path: Path, first: int, end: int, chunks: Chunks) -> KeyFileMark | None:
    """Publish a file that covers the offsets from `first` to `end`; None, and no file, where there are no rows."""
    parts = content(first, end, chunks)
    header = part = next(parts, b"")
    if not len(header):
        return None
    with publishing(files, path) as file:
        file.append([header])
        for part in parts:
            file.append([part])
    return mark_of(bytes(header), bytes(part))


def decoded(data: Bytes) -> tuple[KeyFileMark, KeyRows]:
    """What `content` made, as views. ValueError with the reason where it cannot be that."""
    if len(data) < HEADER.size + _CRC.size:
        raise ValueError("shorter than a header")
    magic, version, zero, first, end, count, latest_due = HEADER.unpack(data[: HEADER.size].tobytes())
    if (magic, version, zero) != (MAGIC, VERSION, 0):
        raise ValueError("no file of unique keys of a version that is known here")
    if count < 1 or len(data) != HEADER.size + count * ROW_BYTES + _CRC.size:
        raise ValueError(f"{len(data)} bytes cannot be {count} rows")
    (crc,) = _CRC.unpack(data[-_CRC.size :].tobytes())
    if crc32c(data[: -_CRC.size]) != crc:
        raise ValueError("fails its checksum")
    columns = data[HEADER.size : -_CRC.size].view("<i8").reshape(3, count)
    rows = KeyRows(columns[0], columns[1], columns[2])
    rows.check()
    if not first <= int(rows.offset.min()) <= int(rows.offset.max()) < end or int(rows.due.max()) != latest_due:
        raise ValueError("its rows are not what the header says")
    return KeyFileMark(first, end, count, latest_due, crc), rows


class UniqueKeyFile:
    """One file, mapped and checked when somebody first looks into it."""

    __slots__ = ("_data", "_files", "_rows", "mark", "path")

    def __init__(self, files: Files, path: Path, mark: KeyFileMark) -> None:
        self.path = path
        self.mark = mark
        self._files = files
        self._data: Bytes | None = None
        self._rows = KeyRows.empty()

    def rows(self) -> KeyRows:
        """All of them. Raises CorruptFile where the file is gone, or not the one that the mark is of."""
        if self._data is None or lost(self._data).pages:
            try:
                data = map_file(self._files, self.path)
                mark, rows = decoded(data)
            except FileNotFoundError:
                raise CorruptFile("the file is gone", path=self.path) from None
            except ValueError as error:
                raise CorruptFile(str(error), path=self.path) from error
            if mark != self.mark:
                raise CorruptFile("not the file that the checkpoints name", path=self.path)
            if lost(data).pages:
                raise CorruptFile("the disk does not give it", path=self.path)
            self._rows, self._data = rows, data
        return self._rows

    def check_there(self) -> None:
        """Behind a look at the rows: CorruptFile where the disk did not give some of them, which read as zeros."""
        if self._data is not None and lost(self._data).pages:
            raise CorruptFile("the disk does not give it", path=self.path)
