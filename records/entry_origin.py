"""Where a replicated entry comes from: two fields of its broker entry metadata (`afterlog.records.entry`).

    19 origin         bytes      the log that it was appended to first: that topic's id, ASCII
    20 origin_shift   sfixed64   the offset of its first record there, less the offset here

They stand right in front of header_crc32c, behind what interceptors add; so they are found without a walk over all
fields. Entries that follow each other there and here have the same two, and are written with columns, as one append.
What the producer made is the same in every cluster, byte for byte but for the base offset; what the log stamps is each
one's own (PIP-70). The partition is that of the same number.

Example: offset 40 of `3f2a9c`, appended here at offset 7:

    9A 01 06 33 66 32 61 39 63              19 origin = 3f2a9c
    A1 01 21 00 x 7                         20 origin_shift = 33
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from afterlog.base.errors import InvalidBatch
from afterlog.base.files import Bytes
from afterlog.index.origin_rows import OriginRows
from afterlog.records.awaited import Awaited
from afterlog.records.columns import Scan, view_of
from afterlog.records.entry import CRC_FIELD, PREFIX_HEAD, metadata_fields, protobuf_field

ORIGIN: Final = 19
ORIGIN_SHIFT: Final = 20
ORIGIN_BYTES_MAX: Final = 128
"""Of a name. Larger: longer names of clusters; each replicated entry has it."""
ORIGIN_FIELDS_BYTES_MAX: Final = ORIGIN_BYTES_MAX + 16
"""Both fields take no more."""
_SHIFT: Final = struct.Struct(
    "<"
    "2s"  # tag of field 20, wire type fixed64: A1 01
    "q"  # origin_shift
)
_SHIFT_TAG: Final = b"\xa1\x01"
_FIXED64, _BYTES = 1, 2
_ALIKE_BYTES: Final = 24
"""So many bytes before the shift are compared to tell one origin from another without reading it."""


class Origins(NamedTuple):
    """What some entries say of where they come from."""

    names: tuple[str, ...]
    rows: OriginRows
    """`origin` counts in `names`; neighbours that follow each other are one."""
    awaited: tuple[Awaited, ...] = ()
    """And what of records that were cancelled elsewhere before they came."""


NO_ORIGINS: Final = Origins((), OriginRows.empty())


def origin_fields(origin: str, shift: int) -> bytes:
    """The two fields, of entries whose offsets there are `shift` above those here."""
    return protobuf_field(ORIGIN, origin.encode("ascii")) + _SHIFT.pack(_SHIFT_TAG, shift)


def read_origin(data: Bytes, position: int, batch_position: int) -> tuple[str, int] | None:
    """(origin, shift) of the entry there; None where it was appended to this log first. InvalidBatch."""
    view = view_of(data)
    origin: bytes | None = None
    shift: int | None = None
    for field in metadata_fields(view, position + PREFIX_HEAD.size, batch_position - CRC_FIELD.size):
        content = bytes(view[field.content : field.end])
        if (field.number, field.wire_type) == (ORIGIN, _BYTES):
            origin = content
        elif (field.number, field.wire_type) == (ORIGIN_SHIFT, _FIXED64):
            shift = int.from_bytes(content, "little", signed=True)
    if origin is None or shift is None:
        return None
    if not origin.isascii() or not 0 < len(origin) <= ORIGIN_BYTES_MAX:
        raise InvalidBatch(f"field {ORIGIN} names no origin: {origin!r:.100}")
    return origin.decode("ascii"), shift


def origins_in(data: Bytes, scan: Scan) -> Origins:
    """Of the entries that a scan of `data` found. InvalidBatch where one names what is no origin."""
    at = scan.batch_position - CRC_FIELD.size - _SHIFT.size
    room = at - scan.position > PREFIX_HEAD.size  # a bare batch has none, and nothing in front of it may be ours
    row = np.flatnonzero(room)
    row = row[(data[at[row]] == _SHIFT_TAG[0]) & (data[at[row] + 1] == _SHIFT_TAG[1])]
    if not len(row):
        return NO_ORIGINS
    place = at[row]
    shift = data[place[:, None] + np.arange(2, 10)].view("<i8")[:, 0].astype(np.int64)
    alike = data[np.maximum(place[:, None] - np.arange(1, _ALIKE_BYTES + 1), 0)]
    new = np.append(True, (shift[1:] != shift[:-1]) | (alike[1:] != alike[:-1]).any(axis=1) | (np.diff(row) != 1))
    number, names = np.full(len(row), -1), dict[str, int]()
    first = np.flatnonzero(new)
    for start, stop in zip(first.tolist(), [*first[1:].tolist(), len(row)], strict=True):
        said = read_origin(data, int(scan.position[row[start]]), int(scan.batch_position[row[start]]))
        if said is not None:  # else what lies there only looks like it
            number[start:stop] = names.setdefault(said[0], len(names))
    row, shift, number = row[number >= 0], shift[number >= 0], number[number >= 0]
    rows = OriginRows(number, scan.offset[row] + shift, scan.offset[row], scan.records[row])
    return Origins((*names,), rows.runs())
