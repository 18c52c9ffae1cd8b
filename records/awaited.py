"""The body of CANCEL_AWAITED (`afterlog.records.control`): records of another log that must not be copied to this one.

    bytes u16 | the name of the origin, ASCII | offset there i64 *                     big-endian, offsets ascend

Three clusters: a record of the first has reached the second, which cancels it; the third hears of the cancel first.

Example: records 7 and 9 of `1f`:

    00 02   31 66   00 00 00 00 00 00 00 07   00 00 00 00 00 00 00 09
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from afterlog.base.errors import InvalidBatch
from afterlog.index.growing_columns import Int64Array

_BYTES: Final = struct.Struct(">H")
_OFFSET_BYTES: Final = 8


class Awaited(NamedTuple):
    """Records of one origin, int64[n]."""

    origin: str
    origin_offset: Int64Array

    def to_bytes(self) -> bytes:
        name = self.origin.encode("ascii")
        return _BYTES.pack(len(name)) + name + self.origin_offset.astype(">i8").tobytes()

    @staticmethod
    def of_bytes(value: bytes) -> Awaited:
        """Raises InvalidBatch."""
        if len(value) < _BYTES.size:
            raise InvalidBatch("a CANCEL_AWAITED names no origin")
        start = _BYTES.size + _BYTES.unpack_from(value)[0]
        name, offsets = value[_BYTES.size : start], value[start:]
        if start == _BYTES.size or not name.isascii() or len(offsets) % _OFFSET_BYTES or not offsets:
            raise InvalidBatch(f"a CANCEL_AWAITED of {name!r:.100} is cut off")
        return Awaited(name.decode("ascii"), np.frombuffer(offsets, ">i8").astype(np.int64))
