"""Variable-length integers: seven bits a byte, lowest first, the top bit set on all but the last byte.

    300 = 0b10_0101100           varint              AC 02
    -1 -> 1, 1 -> 2, -2 -> 3     zig-zag, for signed numbers: Kafka's varint and varlong, small both ways

Protobuf writes plain varints, Kafka's records zig-zag ones. A reader takes what is longer than need be, and refuses
what does not end in time or does not fit: InvalidBatch.
"""

from __future__ import annotations

from afterlog.base.errors import InvalidBatch
from afterlog.records.columns import REASONS, VARINT

_INT32_BYTES = 5
_INT64_BYTES = 10


def varint(value: int) -> bytes:
    """A number from 0 to 2^64-1."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """A signed number of at most 64 bits."""
    return varint((value << 1) ^ (value >> 63))


def read_varint(data: memoryview, position: int, end: int, bits: int = 64) -> tuple[int, int]:
    """(the number, the position behind it)."""
    value = 0
    for place, byte in enumerate(data[position : min(end, position + (_INT32_BYTES if bits == 32 else _INT64_BYTES))]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value >> bits:
                break
            return value, position + place + 1
    raise InvalidBatch(REASONS[VARINT])


def read_zigzag(data: memoryview, position: int, end: int, bits: int = 64) -> tuple[int, int]:
    """(the signed number, the position behind it)."""
    value, position = read_varint(data, position, end, bits)
    return (value >> 1) ^ -(value & 1), position
