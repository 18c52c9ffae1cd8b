"""A slice of one log, for another cluster's: what was appended to it first, in order, from one offset up to another.

    head | name x names | target x targets | entries                            all little-endian

    head, 64 bytes:    magic u32 = "AFSL" | version u16 = 1 | names u16 | first i64 | upto i64 | end i64 |
                       targets i64 | bytes of entries i64 | gone upto i64 |
                       CRC-32C u32 of names and targets | CRC-32C u32 of all of the head before
    name:              bytes u16 | the name, ASCII
    target:            offset i64 | name i64 | offset there i64

The first name is the log's own, that topic's id (`afterlog.records.entry_origin`). Entries lie as in the log, with
their own checksums, and have their offsets there: what came from elsewhere, or is not to be read any more, is a gap.
Control batches are among them. Where one of their targets came from elsewhere, a row of the targets says from where.
Who was given what went since knows of it: before `gone upto` some are not given that nobody cancelled.

The other cluster makes batches of the entries: without their prefixes, which are the first log's own, with the time
that was asked for. A slice is checked as recovery checks a log, and its batches as a broker checks those of a producer:
what one cluster took another cannot be made to hold that its readers could not read.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.errors import InvalidBatch
from afterlog.base.files import Bytes
from afterlog.index.growing_columns import Int64Array
from afterlog.records import kernels
from afterlog.records.batch import decompressed
from afterlog.records.columns import FAULTS, Scan, view_of
from afterlog.records.encode import EncodedBatches, take_ragged
from afterlog.records.entry_origin import ORIGIN_BYTES_MAX
from afterlog.records.header import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from afterlog.records.producer_sequence import producers_of
from afterlog.records.times import AS_SOON_AS_POSSIBLE

NOT_OF_CLIENTS: Final = CONTROL | TRANSACTIONAL | LOG_APPEND_TIME

_MAGIC: Final = int.from_bytes(b"AFSL", "little")
_VERSION: Final = 1
_HEAD: Final = struct.Struct(
    "<"
    "I"  # magic
    "H"  # version
    "H"  # names
    "q"  # first
    "q"  # upto
    "q"  # end
    "q"  # targets
    "q"  # bytes of entries
    "q"  # gone upto
    "I"  # CRC-32C of names and targets
)
_NAME: Final = struct.Struct("<H")
_CRC: Final = struct.Struct("<I")
HEAD_BYTES: Final = _HEAD.size + _CRC.size
_TARGET_BYTES: Final = 24


def entries_of(data: Bytes) -> Scan:
    """The entries that lie one after another in `data`, all of it; offsets rise, and may leave gaps. InvalidBatch."""
    found = kernels.scan_entries(data, 0, len(data), -1, True)
    if found.fault:
        raise InvalidBatch(f"an entry of a slice, at byte {found.stop}: {FAULTS[found.fault]}")
    if bool((found.offset[1:] < found.offset[:-1] + found.records[:-1]).any()):
        raise InvalidBatch("the entries of a slice are not in the order of their offsets")
    return found


def batches_of(data: Bytes, found: Scan, rows: Int64Array, limit_bytes: int) -> EncodedBatches:
    """The batches of some of the entries in `data`, none of them a control batch, checked down to their records.

    limit_bytes: of each, decompressed. Raises InvalidBatch, UnsupportedCodec.
    """
    if bool((found.attributes[rows] & NOT_OF_CLIENTS).any()):
        raise InvalidBatch("a batch of a slice has attributes that no producer may send")
    start, end = found.batch_position[rows], found.position[rows] + found.size[rows]
    records, attributes = found.records[rows], found.attributes[rows]
    which = np.zeros(len(rows), np.int32)
    kernels.decode_records(*decompressed([data], which, start, end - start, attributes, limit_bytes), records)
    # Prefix, batch, prefix, batch: every second item of what lies there.
    bounds = np.append(np.stack([found.position, found.batch_position], axis=1).ravel(), found.stop)
    positions, batches = take_ragged((bounds, data), 2 * rows + 1)
    return EncodedBatches(
        positions, records, _asked(data, found, rows), found.max_timestamp[rows], batches,
        producers=producers_of(batches, positions[:-1]),
    )  # fmt: skip


def _asked(data: Bytes, found: Scan, rows: Int64Array) -> Int64Array:
    """What their producers asked for: where that log stamped its own time, as soon as possible."""
    which = np.zeros(len(rows), np.int32)
    checked = kernels.check_entries([data], which, found.position[rows], found.offset[rows], found.records[rows], None)
    at_once = (checked.asked == checked.broker_timestamp) | (checked.asked < 0)
    return np.where(at_once, AS_SOON_AS_POSSIBLE, checked.asked)


class Targets(NamedTuple):
    """What control batches of a slice have cancelled that came from elsewhere. int64 columns of one length."""

    offset: Int64Array
    """In the log of the slice."""
    name: Int64Array
    """Where it came from: counts in the names of the slice."""
    origin_offset: Int64Array
    """And its offset there."""


NO_TARGETS: Final = Targets(*(np.empty(0, np.int64),) * 3)


class OriginSlice(NamedTuple):
    """From `first` up to `upto`, where the next one begins."""

    names: tuple[str, ...]
    """The log's own first, then those that `targets` need."""
    first: int
    upto: int
    end: int
    """Of that log, as far as it is safe: so much is there to be had."""
    targets: Targets
    entries: Bytes
    gone_upto: int = 0
    """Of what lies before this offset some may be gone, by retention or a purge, from `first` on. 0: nothing is."""

    @property
    def origin(self) -> str:
        """The log's own name."""
        return self.names[0]

    def to_bytes(self) -> list[Bytes | bytes]:
        """Parts that are to be joined."""
        names = b"".join(_NAME.pack(len(name)) + name.encode("ascii") for name in self.names)
        said = names + np.stack(self.targets, axis=1).astype("<i8").tobytes()
        head = _HEAD.pack(
            _MAGIC, _VERSION, len(self.names), self.first, self.upto, self.end,
            len(self.targets.offset), len(self.entries), self.gone_upto, crc32c(said),
        )  # fmt: skip
        return [head + _CRC.pack(crc32c(head)) + said, self.entries]

    @staticmethod
    def of_bytes(data: Bytes) -> OriginSlice:
        """What `to_bytes` gave; its entries are not looked at. InvalidBatch where it cannot be that."""
        view = view_of(data)
        if len(view) < HEAD_BYTES:
            raise InvalidBatch(f"{len(view)} bytes are no slice of a log")
        magic, version, names, first, upto, end, targets, size, gone_upto, crc = _HEAD.unpack_from(view)
        intact = (crc32c(view[: _HEAD.size]),) == _CRC.unpack_from(view, _HEAD.size)
        if (magic, version) != (_MAGIC, _VERSION) or not intact:
            raise InvalidBatch("the head of a slice is not one that is known here, or broken")
        start = len(view) - size
        is_sane = 0 <= first <= upto <= end and 0 <= gone_upto <= upto
        if not names or not is_sane or targets < 0 or not HEAD_BYTES <= start <= len(view):
            raise InvalidBatch("the head of a slice contradicts itself")
        if crc32c(view[HEAD_BYTES:start]) != crc:
            raise InvalidBatch("names and targets of a slice are broken")
        found, position = _read_names(view[:start], names)
        if start - position != targets * _TARGET_BYTES:
            raise InvalidBatch("the targets of a slice are cut off")
        rows = data[position:start].view("<i8").reshape(-1, 3).T.astype(np.int64, order="C")
        if int(rows.min(initial=0)) < 0 or int(rows[1].max(initial=0)) >= names:
            raise InvalidBatch("a target of a slice has no place")
        return OriginSlice(found, first, upto, end, Targets(*rows), data[start:], gone_upto)


def _read_names(view: memoryview, count: int) -> tuple[tuple[str, ...], int]:
    """The names, and where they end. InvalidBatch."""
    names, position = list[str](), HEAD_BYTES
    for _ in range(count):
        if position + _NAME.size > len(view):
            raise InvalidBatch("the names of a slice are cut off")
        [size] = _NAME.unpack_from(view, position)
        position += _NAME.size + size
        name = view[position - size : position].tobytes()
        if position > len(view) or not 0 < size <= ORIGIN_BYTES_MAX or not name.isascii():
            raise InvalidBatch(f"{name!r:.100} names no origin")
        names.append(name.decode("ascii"))
    return (*names,), position
