"""Kafka's five codecs, by the number that a batch's attributes carry.

    0 none     1 gzip     2 snappy     3 lz4     4 zstd

gzip and zstd are streams of any number of members or frames. The other two have a shape that Java clients insist on:

    snappy    82 'SNAPPY' 00 | version i32 | compatible i32 | (size i32 | raw snappy block of up to 32 KiB)*
              big-endian. Written so; a single raw snappy block, as some clients send it, is read too.
    lz4       04 22 4D 18 | FLG 60 | BD 40 | HC 82 | (size u32 | block of up to 64 KiB)* | 00 00 00 00
              little-endian; blocks are independent, because Kafka's own reader refuses linked ones; the top bit of a
              size marks a block that is stored as it is.

Decompression writes into a buffer of the size that the caller allows and fails where that is full: a bomb costs its
limit and no more. (The library of zstd asks for a frame's window besides, up to 128 MiB, and touches what it fills.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import cramjam
import numpy as np

from afterlog.base.config import Codec
from afterlog.base.errors import InvalidBatch, UnsupportedCodec
from afterlog.base.files import Data
from afterlog.records.columns import view_of

CODECS: Final[tuple[Codec, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")
"""The codecs' names; the place is the number."""

_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3

_ROOM_RATIO = 16
_ROOM_BYTES = 4096

_SNAPPY_MAGIC = b"\x82SNAPPY\0"
_SNAPPY_HEADER = _SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK_BYTES = 32 << 10
_SNAPPY_SIZE = struct.Struct(">I")

_LZ4_HEADER = bytes.fromhex("04224D18 60 40 82")
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_SIZE = struct.Struct("<I")
_LZ4_STORED = 1 << 31
_LZ4_END = bytes(4)


def codec_id(codec: Codec) -> int:
    """The number of a codec. UnsupportedCodec where Kafka has none of that name."""
    try:
        return CODECS.index(codec)
    except ValueError:
        raise UnsupportedCodec(f"{codec!r} is not one of {', '.join(CODECS)}") from None


def compress(codec_id: int, data: Data) -> bytes:
    """`data` as the codec writes it."""
    view = view_of(data)
    match codec_id:
        case 0:
            return view.tobytes()
        case 1:
            return bytes(cramjam.gzip.compress(view, level=_GZIP_LEVEL))
        case 2:
            return _compress_snappy(view)
        case 3:
            return _compress_lz4(view)
        case 4:
            return bytes(cramjam.zstd.compress(view, level=_ZSTD_LEVEL))
    raise UnsupportedCodec(f"codec {codec_id} is not one of Kafka's, 0 to 4")


def decompress(codec_id: int, data: Data, limit_bytes: int) -> bytes:
    """What `data` holds. InvalidBatch where it is malformed or holds more than `limit_bytes`."""
    view = view_of(data)
    match codec_id:
        case 0:
            if len(view) > limit_bytes:
                raise InvalidBatch(f"{len(view)} bytes, beyond the limit of {limit_bytes}")
            return view.tobytes()
        case 1:
            return _decompress_into(cramjam.gzip.decompress_into, "gzip", view, limit_bytes)
        case 2:
            return _decompress_into(_decompress_snappy_into, "snappy", view, limit_bytes)
        case 3:
            return _decompress_into(cramjam.lz4.decompress_into, "lz4", view, limit_bytes)
        case 4:
            return _decompress_into(cramjam.zstd.decompress_into, "zstd", view, limit_bytes)
    raise UnsupportedCodec(f"codec {codec_id} is not one of Kafka's, 0 to 4")


def _decompress_into(
    decompress_into: Callable[[memoryview, memoryview], int], name: str, view: memoryview, limit: int
) -> bytes:
    """Try the room that most batches need first: to touch a fresh large buffer costs more than to decompress them."""
    for room in sorted({min(_ROOM_RATIO * len(view) + _ROOM_BYTES, limit), limit}):
        output = view_of(np.empty(room, np.uint8))
        try:
            return output[: decompress_into(view, output)].tobytes()
        except cramjam.DecompressionError as error:
            reason = error
    raise InvalidBatch(f"{name} data is malformed or holds more than {limit} bytes (decompressed_bytes_max): {reason}")


def _compress_snappy(view: memoryview) -> bytes:
    parts = [_SNAPPY_HEADER]
    for start in range(0, len(view), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _SNAPPY_BLOCK_BYTES]))
        parts += (_SNAPPY_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy_into(view: memoryview, output: memoryview) -> int:
    """Framed or raw. The frame's version numbers are not looked at: some clients write them little-endian."""
    if view[: len(_SNAPPY_MAGIC)] != _SNAPPY_MAGIC:
        return int(cramjam.snappy.decompress_raw_into(view, output))
    read = len(_SNAPPY_HEADER)
    written = 0
    while read < len(view):
        if len(view) - read < _SNAPPY_SIZE.size:
            raise InvalidBatch("snappy data ends inside the size of a block")
        (size,) = _SNAPPY_SIZE.unpack_from(view, read)
        read += _SNAPPY_SIZE.size
        if size > len(view) - read:
            raise InvalidBatch(f"a snappy block of {size} bytes does not fit into the {len(view) - read} that are left")
        written += cramjam.snappy.decompress_raw_into(view[read : read + size], output[written:])
        read += size
    return written


def _compress_lz4(view: memoryview) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        raw = view[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(raw, store_size=False))
        if len(block) < len(raw):
            parts += (_LZ4_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_SIZE.pack(len(raw) | _LZ4_STORED), raw.tobytes())
    return b"".join((*parts, _LZ4_END))
