"""The 61 bytes in front of every Kafka RecordBatch v2 (magic 2), all big-endian.

      0 base_offset i64            8 length i32       12 partition_leader_epoch i32     16 magic i8 = 2   17 crc u32
     21 attributes i16            23 last_offset_delta i32             27 base_timestamp i64
     35 max_timestamp i64         43 producer_id i64  51 producer_epoch i16
     53 base_sequence i32         57 records i32      61 the records, see `afterlog.records.batch`

`length` counts the bytes behind itself: the batch's size less 12. `records` is last_offset_delta + 1 here, since
nothing compacts our logs. Producer id, epoch and sequence are -1 where the producer is not idempotent.

Attributes: bits 0-2 codec, 3 timestamp type (1 = log append time), 4 transactional, 5 control, 6 delete horizon.

`crc` is CRC-32C over everything from `attributes` to the end of the batch. What stands before it is outside, so that a
broker can stamp base_offset and partition_leader_epoch without reading the batch again; the header_crc32c of an entry
(`afterlog.records.entry`) covers those too.

Example: the header of a batch with one record, `hello` at 1700000000000 ms, 73 bytes in all:

    00 00 00 00 00 00 00 00   00 00 00 3D   00 00 00 00   02   E6 41 A4 4B     length = 73 - 12 = 61
    00 00   00 00 00 00   00 00 01 8B CF E5 68 00   00 00 01 8B CF E5 68 00    both timestamps
    FF FF FF FF FF FF FF FF   FF FF   FF FF FF FF   00 00 00 01                no producer, one record
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from afterlog.base.checksum import crc32c

HEADER: Final = struct.Struct(
    ">"
    "q"  # base_offset
    "i"  # length
    "i"  # partition_leader_epoch
    "b"  # magic
    "I"  # crc
    "h"  # attributes
    "i"  # last_offset_delta
    "q"  # base_timestamp
    "q"  # max_timestamp
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # base_sequence
    "i"  # records
)
HEADER_BYTES: Final = 61
assert HEADER.size == HEADER_BYTES

LENGTH_END: Final = 12
"""`length` counts from here."""
CRC_START: Final = 17
CRC_END: Final = 21
"""The CRC covers from here."""
MAGIC_2: Final = 2

CODEC_BITS: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40


class BatchHeader(NamedTuple):
    """The fields, in the order of the bytes."""

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @classmethod
    def read(cls, data: memoryview, position: int) -> BatchHeader:
        """The header at `position`; 61 bytes must be there."""
        return cls._make(HEADER.unpack_from(data, position))

    def encode(self) -> bytes:
        return HEADER.pack(*self)

    @property
    def size(self) -> int:
        """Of the whole batch, bytes."""
        return self.length + LENGTH_END

    @property
    def lengths_fit(self) -> bool:
        """The length can hold a header, and the count says the same as the last offset delta."""
        return self.size >= HEADER_BYTES and self.records > 0 and self.records == self.last_offset_delta + 1


def with_crc(header: BatchHeader, body: bytes) -> bytes:
    """A batch of the header with its CRC set, and the body."""
    crc = crc32c(body, crc32c(header.encode()[CRC_END:]))
    return header._replace(crc=crc).encode() + body
