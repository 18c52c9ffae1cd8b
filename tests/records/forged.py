"""Entries that nobody would write, with their header_crc32c right, so that what lies behind it is tested."""

import struct

from crc32c import crc32c

from afterlog.records.entry import protobuf_field


def forged_entry(fields: bytes, batch: bytes, tail: bytes | None = None) -> bytes:
    """A batch behind a prefix of any metadata; `tail` takes the place of field 17."""
    covered = struct.pack(">HI", 0x0E02, len(fields) + 6) + fields
    crc = crc32c(batch[:61], crc32c(covered))
    return covered + (b"\x8d\x01" + struct.pack("<I", crc) if tail is None else tail) + batch


MALFORMED_METADATA = [
    b"\x08",  # a tag without its value
    b"\x08\xff",  # a varint without its end
    b"\x0d\0\0\0\0",  # broker_timestamp as fixed32
    b"\x08" + b"\xff" * 9 + b"\x01",  # broker_timestamp of 2^64-1
    b"\x00\x00",  # field 0
    b"\x80\x80\x80\x80\x10\x00",  # field 2^29
    b"\x0b",  # a group
    b"\x4a\x05abc",  # a length beyond the end
    b"\x4a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01abc",
    b"\x29" + bytes(7),  # a fixed64 cut off
    b"\x35" + bytes(3),  # a fixed32 cut off
    protobuf_field(17, 3),
    b"\x8d\x01" + bytes(4),  # header_crc32c twice
    protobuf_field(2, 8),  # an index that is not the batch's last offset, which is 7
]
