"""A file of producers: what each of them appended last to one partition, as of one offset.

    header | row x producers | CRC-32C u32                              all little-endian

    header, 24 bytes:  magic u32 = "AFPS" | version u16 = 1 | 0 u16 | offset i64 | producers i64
    row:               producer id i64 | state
    state:             last ms i64 | next sequence i32 | epoch i16 | ranges u16 | range x ranges
    range, 12 bytes:   records i32 | base offset i64

A range is records that follow each other in offsets and sequence. The ranges of a row follow each other in sequence,
the oldest first, and the last one ends before `next sequence`: so each record in them is known by its sequence. Rows
ascend by producer id. `last ms` is the log's clock at the last append.

The checksum covers all before it, and is in the checkpoints, too, with the offset and the number of producers: a file
of another life is known as such. It is written aside and renamed, so a crash leaves it whole or not at all; it is never
changed, and goes when another one has its place. What is missing or rotten is made anew from the log.

Example: as of offset 9, producer 7 of epoch 0, which appended its records 0 and 1 at the offsets 3 and 4, the last at
1700000000000 ms:

    41 46 50 53  01 00  00 00   09 00 x 7   01 00 x 7
    07 00 x 7    00 68 E5 CF 8B 01 00 00  02 00 00 00  00 00  01 00    02 00 00 00  03 00 x 7    CRC

Procedure for a change of the format: raise VERSION; a file of another version counts as missing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, publish, read_file

HEADER: Final = struct.Struct(
    "<"
    "4s"  # magic
    "H"  # version
    "H"  # 0
    "q"  # offset
    "q"  # producers
)
ID: Final = struct.Struct("<q")
STATE: Final = struct.Struct(
    "<"
    "q"  # last ms
    "i"  # next sequence
    "h"  # epoch
    "H"  # ranges
)
RANGE: Final = struct.Struct(
    "<"
    "i"  # records
    "q"  # base offset
)
_CRC: Final = struct.Struct("<I")
MAGIC: Final = b"AFPS"
VERSION: Final = 1
RANGES_MAX: Final = 5
"""Of a producer. Larger: it may have more appends in flight that it has to send again, and takes more memory."""
RECORDS_MAX: Final = 1 << 30
"""In all ranges of a producer: half of the sequence numbers that there are, so each of them means one record."""

assert (HEADER.size, STATE.size, RANGE.size) == (24, 16, 12)


class ProducerFileMark(NamedTuple):
    """What is known of a file without opening it: a row of the checkpoints."""

    offset: int
    """It tells of all below."""
    producers: int
    crc: int


def content(offset: int, states: Mapping[int, bytes]) -> bytes:
    """A file of these states, by producer id."""
    parts = [HEADER.pack(MAGIC, VERSION, 0, offset, len(states))]
    for producer_id in sorted(states):
        parts += (ID.pack(producer_id), states[producer_id])
    body = b"".join(parts)
    return body + _CRC.pack(crc32c(body))


def write_producers(files: Files, path: Path, offset: int, states: Mapping[int, bytes]) -> ProducerFileMark:
    """Publish a file of these states."""
    data = content(offset, states)
    publish(files, path, [data])
    return mark_of(data)


def mark_of(data: bytes) -> ProducerFileMark:
    _, _, _, offset, producers = HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    return ProducerFileMark(offset, producers, crc)


def decoded(data: bytes) -> tuple[ProducerFileMark, dict[int, bytes]]:
    """What `content` made. ValueError with the reason where it cannot be that."""
    if len(data) < HEADER.size + _CRC.size:
        raise ValueError("shorter than a header")
    magic, version, zero, _, producers = HEADER.unpack_from(data)
    if (magic, version, zero) != (MAGIC, VERSION, 0):
        raise ValueError("no file of producers of a version that is known here")
    end = len(data) - _CRC.size
    if crc32c(memoryview(data)[:end]) != _CRC.unpack_from(data, end)[0]:
        raise ValueError("fails its checksum")
    mark, states, at, before = mark_of(data), dict[int, bytes](), HEADER.size, -1
    while at + ID.size + STATE.size <= end:
        (producer_id,) = ID.unpack_from(data, at)
        start = at + ID.size
        _, _, _, count = STATE.unpack_from(data, start)
        at = start + STATE.size + RANGE.size * count
        if at > end or producer_id <= before:
            raise ValueError("its rows do not ascend, or run past its end")
        states[producer_id] = state = data[start:at]
        check_state(state, mark.offset)
        before = producer_id
    if at != end or producers != len(states):
        raise ValueError(f"{len(states)} rows, and not the {producers} that the header says")
    return mark, states


def check_state(state: bytes, end_offset: int) -> None:
    """ValueError where it cannot be a producer's, of which nothing lies behind an offset."""
    _, upcoming, epoch, count = STATE.unpack_from(state)
    if upcoming < 0 or epoch < 0 or not 1 <= count <= RANGES_MAX:
        raise ValueError(f"no state of a producer: next sequence {upcoming}, epoch {epoch}, {count} ranges")
    records, behind = 0, 0
    for number, offset in RANGE.iter_unpack(memoryview(state)[STATE.size :]):
        if number < 1 or offset < behind:
            raise ValueError("the ranges of a producer overlap, or one has no records")
        records, behind = records + number, offset + number
    if records > RECORDS_MAX or behind > end_offset:
        raise ValueError("the ranges of a producer are too long, or lie behind what the file is of")


def read_producers(files: Files, path: Path, mark: ProducerFileMark) -> dict[int, bytes]:
    """The states, by producer id. Raises CorruptFile where the file is gone, or not the one that the mark is of."""
    try:
        found, states = decoded(read_file(files, path))
    except FileNotFoundError:
        raise CorruptFile("the file is gone", path=path) from None
    except ValueError as error:
        raise CorruptFile(str(error), path=path) from error
    if found != mark:
        raise CorruptFile("not the file that the checkpoints name", path=path)
    return states
