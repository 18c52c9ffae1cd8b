"""Blank entries: what is left of a record that was cancelled, when its segment is cleaned. 98 bytes, as a rule.

    prefix │ header of the batch, 61 bytes │ one record: no key, no value, no headers, 7 bytes

Offset, due time, stamps, producer, sequence and origin stay, in prefix and header, so that indexes, ranks and all that
is made anew from the log are as before; what the record held is gone. Only entries of one record that are no control
batches become blank: of what the log says to itself nothing is taken. Both checksums are made anew, for all entries of
a call together: a step of the table for each byte of an entry, whatever their number.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from afterlog.base.files import Bytes
from afterlog.records.columns import Int64Array, Ragged, Scan
from afterlog.records.entry import CRC_FIELD
from afterlog.records.header import CODEC_BITS, CONTROL, CRC_END, CRC_START, HEADER_BYTES, LENGTH_END

_RECORD: Final = np.frombuffer(b"\x0c\x00\x00\x00\x01\x01\x00", np.uint8)
"""Length 6, no attributes, deltas of 0, no key, no value, no headers: as `afterlog.records.batch` has it."""
BLANK_BATCH_BYTES: Final = HEADER_BYTES + len(_RECORD)
_LENGTH, _ATTRIBUTES = slice(8, LENGTH_END), CRC_END + 1
"""In the header: the length, and the lower byte of the attributes."""
UInt8Columns = npt.NDArray[np.uint8]
Checksums = npt.NDArray[np.uint32]


def _table() -> Checksums:
    """CRC-32C of each byte, reflected."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_TABLE = _table()


def can_be_blank(found: Scan) -> npt.NDArray[np.bool_]:
    """Which entries have one record that is not the log's own, and more than a blank one would: bool[n]."""
    size = found.size - (found.batch_position - found.position)
    return np.asarray((found.attributes & CONTROL == 0) & (found.records == 1) & (size > BLANK_BATCH_BYTES))


def blank_entries(data: Bytes, position: Int64Array, batch_position: Int64Array) -> Ragged:
    """The entries of one record that begin at these bytes of `data`, made blank: in this order.

    Their prefixes and headers are intact.
    """
    prefix = batch_position - position
    ends = np.append(0, (prefix + BLANK_BATCH_BYTES).cumsum())
    made = np.empty(int(ends[-1]), np.uint8)
    for size in np.unique(prefix).tolist():
        rows = np.flatnonzero(prefix == size)
        columns = np.empty((len(rows), size + BLANK_BATCH_BYTES), np.uint8)
        columns[:, : size + HEADER_BYTES] = data[position[rows][:, None] + np.arange(size + HEADER_BYTES)]
        columns[:, size + HEADER_BYTES :] = _RECORD
        _finish(columns, size)
        made[ends[rows][:, None] + np.arange(columns.shape[1])] = columns
    return ends, made


def _finish(columns: UInt8Columns, prefix: int) -> None:
    """Length, attributes and checksums of blank entries whose prefix has so many bytes."""
    header = columns[:, prefix : prefix + HEADER_BYTES]
    header[:, _LENGTH] = np.frombuffer((BLANK_BATCH_BYTES - LENGTH_END).to_bytes(4, "big"), np.uint8)
    header[:, _ATTRIBUTES] &= 0xFF ^ CODEC_BITS
    body = _crc32c(columns[:, prefix + CRC_END :])
    header[:, CRC_START:CRC_END] = body.astype(">u4").view(np.uint8).reshape(-1, 4)
    if prefix:
        before = prefix - CRC_FIELD.size
        crc = _crc32c(np.concatenate([columns[:, :before], header], axis=1))
        columns[:, prefix - 4 : prefix] = crc.astype("<u4").view(np.uint8).reshape(-1, 4)


def _crc32c(columns: UInt8Columns) -> Checksums:
    """Of each row."""
    crc = np.full(len(columns), 0xFFFFFFFF, np.uint32)
    for column in columns.T:
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return ~crc
