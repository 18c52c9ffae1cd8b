"""The packed form of a chunk: entries in offset order, in blocks of 128, a few bits for each column.

    chunk     head | block table | bits of block 0 | bits of block 1 | …                        little-endian

    head      first_deliver_after i64 | unit i64 | first_offset u32 | 4 zeros                             24 bytes
              times count from the earliest, in units of the largest number that divides all these distances

    table     6 columns of one u32 per block, one after another                                    24 bytes a block
              gap_min, time_min, records_min       the least of the block: the bits tell what comes on top
              position_start, position_rise        a line through the block's positions, over its offsets
              widths                               4 x u8: bits of a gap, a time, a drift, a count of records

    bits      gaps | times | drifts | records      of one block: each entry `width` bits, the lowest first, and each of
              the four filled up to a whole byte with zeros. A width of 0 needs no bits, 32 is the most

    gap       offsets between the end of the entry before and this one; 0 for the first, which has first_offset
    time      (deliver_after - first_deliver_after) / unit
    records   1 at least
    position  a block's line starts with position_start at its first offset, and at each other has risen by
                  (position_rise << 32) / (last offset - first offset) * (offset - first offset) >> 32
              where the division rounds down. A drift says how far positions move away from it with this entry, as a
              zigzag number (0, -1, 1, -2, … are 0, 1, 2, 3, …): a position is the line and all drifts of the block up
              to its entry, modulo 2^32

Decoding unpacks and sorts by time, stably: that is delivery order. So neither order nor membership needs bits of its
own. Where all batches have one size the line hits every position; else a drift has the bits by which sizes vary. A
block in which positions fall, where a bucket goes on in the next segment, has a position_rise of 0.

The chunk is checked as a whole (its CRC-32C is in the run's directory) and may not be torn. Whatever passes the
checksum but is not of this form is refused, and nothing outside is read: widths, the size that they make, ends of the
value ranges. Not everything fits: times further apart than 2^32 units, more than 65,536 entries, entries that overlap.
Such a chunk is stored as raw columns, and so is one that packs badly.

Example. Four batches, in delivery order: offset 7 (2 records, position 700), due at 5000; offset 5 (1, 500) and offset
9 (3, 900) at 6000; offset 6 (1, 603) at 9000. It makes 53 bytes:

       0  5000, 1000 as i64; 5 as u32, zeros
      24  0, 0, 1, 500, 400 as u32; 0, 3, 3, 2 as u8
      48  21 02              times 1, 4, 0, 1 of the offsets 5, 6, 7, 9, with 3 bits each
      50  70 01              drifts 0, 3, -3, 0: the line gives 500, 600, 700, 900
      52  90                 records 1, 1, 2, 3, less one; the gaps are all 0

Below is the pure implementation, which works on all blocks of a chunk at once. `afterlog.index.packing` tells what the
functions promise, and takes the compiled ones where they are built.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from afterlog.base.files import Bytes
from afterlog.index.growing_columns import Int64Array, UInt32Array

BLOCK = 128
ENTRIES_MAX = 65_536
WIDTH_MAX = 32
FORM = "its widths and counts make another size than it has"
RANGE = "it holds values that a run cannot hold"
_UINT32_MAX = 2**32 - 1
_INT64_MAX = 2**63 - 1

HEAD = struct.Struct(
    "<"
    "q"  # first_deliver_after
    "q"  # unit
    "I"  # first_offset
    "4x"
)
TABLE_COLUMNS = 6
assert HEAD.size == 24
_WIDTH_SHIFTS = np.array([[0], [8], [16], [24]])
_SLACK = bytes(WIDTH_MAX * BLOCK // 8 + 8)
"""What may be read or written after the last block by loops that take each block for a full one."""

_Blocks = npt.NDArray[np.int64]
"""A column, or a row of each block: shape [blocks, 128], where the last entry is repeated to the end of its block."""


def pack(deliver_after: Int64Array, details: UInt32Array) -> Bytes | None:
    entries = len(deliver_after)
    if not 1 <= entries <= ENTRIES_MAX:
        return None
    rows = np.argsort(details[0])
    offset, position, records = details[:, rows].astype(np.int64)
    gap = np.diff(offset, prepend=offset[0])
    gap[1:] -= records[:-1]
    since = deliver_after[rows] - deliver_after[0]
    unit = max(int(np.gcd.reduce(since)), 1)
    positions, offsets = _blocks(position), _blocks(offset)
    rise = np.maximum(positions[:, -1] - positions[:, 0], 0)
    time = since // unit
    if gap.min() < 0 or records.min() < 1 or time.max() > _UINT32_MAX:
        return None
    (gap_bits, gap_min), (time_bits, time_min), (records_bits, records_min) = map(_above, (gap, time, records))
    bits = [gap_bits, time_bits, _drifts(positions - _line(offsets, rise)), records_bits]
    widths = np.array([_bit_lengths(column.max(axis=1)) for column in bits])
    packed_widths = (widths << _WIDTH_SHIFTS).sum(axis=0)
    table = np.array([gap_min, time_min, records_min, positions[:, 0], rise, packed_widths])
    head = HEAD.pack(int(deliver_after[0]), unit, int(offset[0]))
    return np.frombuffer(head + table.astype("<u4").tobytes() + _packed_bits(bits, widths, entries), np.uint8)


def unpack(data: Bytes, entries: int) -> tuple[Int64Array, UInt32Array]:
    blocks = -(-entries // BLOCK)
    behind_table = HEAD.size + 4 * TABLE_COLUMNS * blocks
    if not (1 <= entries <= ENTRIES_MAX and behind_table <= len(data)):
        raise ValueError(FORM)
    first_deliver_after, unit, first_offset = HEAD.unpack_from(data.data)
    table = data[HEAD.size : behind_table].view("<u4").reshape(TABLE_COLUMNS, blocks).astype(np.int64)
    gap_min, time_min, records_min, start, rise, packed_widths = table
    widths = packed_widths >> _WIDTH_SHIFTS & 0xFF
    starts, size = _places(widths, entries)
    if widths.max() > WIDTH_MAX or size != len(data) - behind_table:
        raise ValueError(FORM)
    bits = np.concatenate((data[behind_table:], np.frombuffer(_SLACK, np.uint8)))
    gap, time, drift, records = (_unpacked_bits(bits, *places) for places in zip(starts, widths, strict=True))
    gap, time, records = (
        (column + low[:, np.newaxis]).reshape(-1)[:entries]
        for column, low in ((gap, gap_min), (time, time_min), (records, records_min))
    )
    offset = first_offset + np.cumsum(gap + np.concatenate(([0], records[:-1])))
    drifted = np.cumsum((drift >> 1) ^ -(drift & 1), axis=1) + start[:, np.newaxis]
    position = ((_line(_blocks(offset), rise) + drifted) & _UINT32_MAX).reshape(-1)[:entries]
    if records.min() < 1 or max(records.max(), offset[-1], time.max()) > _UINT32_MAX:
        raise ValueError(RANGE)
    if first_deliver_after < 0 or unit < 1 or first_deliver_after + unit * int(time.max()) > _INT64_MAX:
        raise ValueError(RANGE)
    rows = np.argsort(time, kind="stable")
    details = np.array([offset, position, records], np.uint32)
    return first_deliver_after + unit * time[rows], details.take(rows, axis=1)


def _blocks(column: Int64Array) -> _Blocks:
    return np.pad(column, (0, -len(column) % BLOCK), "edge").reshape(-1, BLOCK)


def _above(column: Int64Array) -> tuple[_Blocks, Int64Array]:
    """How far each value lies above the least of its block, and that."""
    blocks = _blocks(column)
    low = blocks.min(axis=1)
    return blocks - low[:, np.newaxis], low


def _drifts(off_line: _Blocks) -> _Blocks:
    drift = np.diff(off_line, axis=1, prepend=off_line[:, :1])
    drift = ((drift + 2**31) & _UINT32_MAX) - 2**31  # the short way round
    return (drift << 1) ^ (drift >> 63)


def _line(offsets: _Blocks, rise: Int64Array) -> _Blocks:
    """How far each block's line has risen at each offset."""
    distance = (offsets - offsets[:, :1]).astype(np.uint64)
    slope = (rise.astype(np.uint64) << np.uint64(32)) // np.maximum(distance[:, -1], 1)
    return (slope[:, np.newaxis] * distance >> np.uint64(32)).astype(np.int64)


def _bit_lengths(values: Int64Array) -> Int64Array:
    """Of values below 2^32, all of which float64 holds exactly."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def _places(widths: Int64Array, entries: int) -> tuple[Int64Array, int]:
    """Where each column of each block starts, in bytes behind the table, and where the last ends."""
    counts = np.minimum(entries - np.arange(0, entries, BLOCK), BLOCK)
    sizes = (widths * counts + 7) // 8
    ends = np.cumsum(sizes.T).reshape(-1, 4).T
    return ends - sizes, int(ends[-1, -1])


def _packed_bits(columns: list[_Blocks], widths: Int64Array, entries: int) -> bytes:
    starts, size = _places(widths, entries)
    packed = np.zeros(size + len(_SLACK), np.uint8)
    for column, column_starts, column_widths in zip(columns, starts, widths, strict=True):
        column.reshape(-1)[entries:] = 0
        for width in np.unique(column_widths).tolist():
            blocks = np.flatnonzero(column_widths == width)
            bits = (column[blocks, :, np.newaxis] >> np.arange(width) & 1).astype(np.uint8)
            # After the end of the last block go zeros, as if it were full; the next column overwrites them.
            places = column_starts[blocks, np.newaxis] + np.arange(width * BLOCK // 8)
            packed[places] = np.packbits(bits.reshape(len(blocks), -1), axis=1, bitorder="little")
    return packed[:size].tobytes()


def _unpacked_bits(data: Bytes, starts: Int64Array, widths: Int64Array) -> _Blocks:
    """The bits of one column. What stands after the end of the last block is no value."""
    bit = starts[:, np.newaxis] * 8 + widths[:, np.newaxis] * np.arange(BLOCK)
    byte = bit >> 3
    word = np.zeros(bit.shape, np.int64)
    for number in range(5):  # 32 bits and 7 in front of them
        word |= data[byte + number].astype(np.int64) << 8 * number
    return word >> (bit & 7) & ((1 << widths[:, np.newaxis]) - 1)
