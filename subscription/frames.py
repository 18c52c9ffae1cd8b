"""The format of a journal on disk: frames, appended one by one, each with an event.

    subscriptions/<name>/journal-<number, 20 digits>

    frame SNAPSHOT | frame | frame | …                                appended one by one, never changed

    frame   0  "sub\\1"        4    magic; the last byte is the format version
            4  CRC-32C       u32    of the journal's number i64, this frame's position i64, and all behind this field
            8  length        u32    bytes of the body
           12  kind          u32    see `events.py`
           16  log end       i64    the partition's log end offset that was visible when the frame was written
           24  durable       i64    bytes of this file that were known to be durable then
           32  body          length

Integers are little-endian. Worked example: journal 0 of 180 bytes, its snapshot synced, and then the first frame: two
records leased (`events.py`), the log holding 40.

    180  73 75 62 01  xx xx xx xx  2d 00 00 00  02 00 00 00  28 00 …  b4 00 …  | 45 bytes of body

The checksum covers number and position, so that stale bytes of this file or an earlier one are not taken for frames
where they do not belong. The body is covered as it lies there; what it means is checked when it is applied.

*What may be torn.* The snapshot never: the file is published whole. Behind it a power cut may take any bytes that were
not synced, also in the middle, and a kill the end of the last write. A frame that fails its checks is torn if nothing
says otherwise, and everything from it on is cut, and reported: it was not durable, and nobody was promised otherwise
but under durability `os`. But where a whole frame behind it says that the place was durable already, bytes have rotted
that somebody relied on: CorruptFile. So of a journal that was closed (CLOSED is its last frame) every byte is proved;
of one that crashed, all but what was written since the last frame but one. That is what recovery of the log does with
its recovery point, and cutting loses no record: what was acked by a frame that is cut is delivered again.

Procedure for a change of the format: raise the version in the magic, keep reading the old one, keep a folder of it in
tests/golden. A kind more, at the end of the list, is no other version: a program that does not know it refuses the
journal (CorruptFile), and journals without it are what they were.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from afterlog.base.checksum import crc32c
from afterlog.subscription.events import Kind

MAGIC = b"sub\x01"
_FRAME = struct.Struct(
    "<"
    "4s"  # magic
    "I"  # CRC-32C
    "I"  # length of the body
    "I"  # kind
    "q"  # log end offset
    "q"  # durable bytes
)
HEADER_BYTES = 32
assert _FRAME.size == HEADER_BYTES
_SEED = struct.Struct("<qq")
_ONE_OFFSET = (
    "Q"  # maps: 1
    "I"  # the offset's bits from 32 on
    "I"  # cookie of a map without runs
    "I"  # containers: 1
    "H"  # the offset's bits from 16 to 31
    "H"  # offsets in the container, less 1
    "I"  # where the container lies in the map
    "H"  # the offset's lowest bits
)
"""A Roaring bitmap, portable and of 64 bits, of one offset."""
_ONE_LEASED = struct.Struct("<qqIIqqq" + _ONE_OFFSET)
"""What the checksum of a frame covers, from the number of its journal on."""
_ONE_ACKED = struct.Struct("<qqIIqq" + _ONE_OFFSET)
_ROARING_COOKIE, _CONTAINER_AT = 12346, 16
_LEASED, _ACKED = int(Kind.LEASED), int(Kind.ACKED)
_LEASED_BYTES = _ONE_LEASED.size - HEADER_BYTES - 8
_ACKED_BYTES = _ONE_ACKED.size - HEADER_BYTES - 8
assert (_LEASED_BYTES, _ACKED_BYTES) == (38, 30)
_COVERED = struct.Struct("<IIqq")
_COVERED_FROM = HEADER_BYTES - _COVERED.size


class Frame(NamedTuple):
    """A frame that passed its checks."""

    position: int
    kind: int
    log_end_offset: int
    durable: int
    body: memoryview

    @property
    def end(self) -> int:
        return self.position + HEADER_BYTES + len(self.body)


def encode_frame(number: int, position: int, kind: Kind, body: bytes, *, log_end_offset: int, durable: int) -> bytes:
    """A frame at `position` of journal `number`."""
    covered = _COVERED.pack(len(body), kind, log_end_offset, durable) + body
    return MAGIC + crc32c(_SEED.pack(number, position) + covered).to_bytes(4, "little") + covered


def encode_leased_one(
    number: int, position: int, upto: int, delivery_offset: int, log_end_offset: int, durable: int
) -> bytes:
    """`encode_frame` of LEASED, of one offset: read up to `upto`; the same bytes, without an event and a bitmap."""
    summed = _ONE_LEASED.pack(
        number, position, _LEASED_BYTES, _LEASED, log_end_offset, durable, upto,
        1, delivery_offset >> 32, _ROARING_COOKIE, 1, delivery_offset >> 16 & 0xFFFF, 0, _CONTAINER_AT,
        delivery_offset & 0xFFFF,
    )  # fmt: skip
    return MAGIC + crc32c(summed).to_bytes(4, "little") + summed[16:]


def encode_acked_one(number: int, position: int, delivery_offset: int, log_end_offset: int, durable: int) -> bytes:
    """`encode_frame` of ACKED, of one offset."""
    summed = _ONE_ACKED.pack(
        number, position, _ACKED_BYTES, _ACKED, log_end_offset, durable,
        1, delivery_offset >> 32, _ROARING_COOKIE, 1, delivery_offset >> 16 & 0xFFFF, 0, _CONTAINER_AT,
        delivery_offset & 0xFFFF,
    )  # fmt: skip
    return MAGIC + crc32c(summed).to_bytes(4, "little") + summed[16:]


def frame_at(data: memoryview, number: int, position: int) -> Frame | None:
    """The frame at `position` of journal `number`; None where there is no whole one."""
    if len(data) - position < HEADER_BYTES:
        return None
    magic, told, length, kind, log_end_offset, durable = _FRAME.unpack_from(data, position)
    end = position + HEADER_BYTES + length
    if magic != MAGIC or end > len(data):
        return None
    crc = crc32c(_SEED.pack(number, position))
    if told != crc32c(data[position + _COVERED_FROM : end], crc):
        return None
    return Frame(position, kind, log_end_offset, durable, data[position + HEADER_BYTES : end])


def proof_of_rot(data: bytes, number: int, position: int) -> Frame | None:
    """A whole frame behind `position` that says that the bytes there were durable."""
    view, at = memoryview(data), position
    while (at := data.find(MAGIC, at + 1)) >= 0:
        frame = frame_at(view, number, at)
        if frame is not None and frame.durable > position:
            return frame
    return None
