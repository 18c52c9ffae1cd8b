"""Columns of records and entries: the types that both kernels take and return, their fault codes and their checks.

A bulk path never holds a Python object per record. It holds columns:

    Ragged       variable-length bytes: item r is data[offsets[r]:offsets[r + 1]]; offsets[0] need not be 0
    valid        bool per item, False where a ragged item is null (Kafka's length -1), its slice is then empty
    Scan         what a walk over a log found, one row per entry
    Decoded      records taken out of batches, one row per record

Fault codes say why an entry was not taken. They are plain ints, since columns of them cross the kernel's boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from afterlog.base.errors import InvalidBatch, InvalidDeliverAfter
from afterlog.base.files import Bytes, Data
from afterlog.index.growing_columns import Int64Array as Int64Array
from afterlog.records.header import HEADER_BYTES

Int32Array = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Ragged = tuple[Int64Array, Bytes]

EXTRA_BYTES_MAX: Final = 1 << 10
"""What interceptors may add to the metadata of an entry."""

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

OK: Final = 0
SHORT: Final = 1
MAGIC: Final = 2
LENGTH: Final = 3
HEADER_CRC: Final = 4
BODY_CRC: Final = 5
OFFSET: Final = 6
EPOCH: Final = 7
PREFIX: Final = 8
INDEX: Final = 9
LOST: Final = 10

FAULTS: Final = (
    "whole",
    "the bytes end before the entry does",
    "neither an entry prefix nor a batch of magic 2",
    "an impossible length or record count",
    "the header's CRC does not match",
    "the body's CRC does not match",
    "the base offset is not the one expected",
    "the partition leader epoch is not 0",
    "the broker entry metadata is malformed",
    "the entry is not the one that the index names",
    "the disk does not give it",
)
"""What each fault code means, to put into messages: `FAULTS[fault]`."""

VARINT: Final = 1
BOUNDS: Final = 2
OFFSET_DELTA: Final = 3
LEFT_OVER: Final = 4
COMPRESSED: Final = 5
PLACE: Final = 6
COUNT: Final = 7
DELIVER_AFTER: Final = 8

REASONS: Final = (
    "well-formed",
    "a varint is cut off or too long",
    "a length is negative or runs past its end",
    "an offset delta is not the record's place in the batch",
    "bytes are left over",
    "it is compressed",
    "it does not lie in its buffer",
    "it cannot hold so many records",
    "a deliver-after header is neither 8 bytes nor decimal digits, or out of range",
)
"""Why the records of a batch could not be decoded, by the kernels' codes."""


class Producers(NamedTuple):
    """Who sent each of some batches, as their headers have it: int64[batches], -1 in all three where nobody says."""

    producer_id: Int64Array
    epoch: Int64Array
    base_sequence: Int64Array

    def of(self, batch: int) -> tuple[int, int, int]:
        return int(self.producer_id[batch]), int(self.epoch[batch]), int(self.base_sequence[batch])

    def rows(self, rows: slice) -> Producers:
        """Of the batches from one row to another, as views."""
        return Producers(self.producer_id[rows], self.epoch[rows], self.base_sequence[rows])


class Scan(NamedTuple):
    """The entries that a walk found, and where and why it stopped. All columns are int64[entries]."""

    position: Int64Array
    """Where the entry starts, its prefix first."""
    size: Int64Array
    """Prefix and batch, bytes."""
    batch_position: Int64Array
    offset: Int64Array
    """Of the first record."""
    records: Int64Array
    deliver_after: Int64Array
    """Effective; -1 where no prefix says."""
    broker_timestamp: Int64Array
    """-1 where no prefix says."""
    max_timestamp: Int64Array
    attributes: Int64Array
    stop: int
    """Where the first entry starts that was not taken."""
    fault: int
    """Why it was not; OK at the end, or after `limit` entries."""

    @property
    def end_offset(self) -> int:
        """The offset after the last entry, of which there must be one."""
        return int(self.offset[-1] + self.records[-1])

    def first(self, rows: int, fault: int) -> Scan:
        """The first rows, and why the next one is not taken."""
        columns = {name: getattr(self, name)[:rows] for name in self._fields if name not in ("stop", "fault")}
        return self._replace(**columns, stop=int(self.position[rows]), fault=fault)

    def moved(self, by: int) -> Scan:
        """With other positions, as in bytes that begin so much earlier."""
        if not by:
            return self
        return Scan(
            self.position + by, self.size, self.batch_position + by, *self[3:9], stop=self.stop + by, fault=self.fault
        )


class Checked(NamedTuple):
    """Entries that are what an index says they are, up to the first that is not. Columns are int64[row]."""

    batch_positions: Int64Array
    batch_sizes: Int64Array
    attributes: Int64Array
    asked: Int64Array
    """deliver_after before the stamping rule; where none was asked for, as stamped; -1 where no prefix says."""
    broker_timestamp: Int64Array
    """When they were appended; -1 where no prefix says."""
    fault: int
    """Of the first entry that fails; OK where none does."""
    row: int
    """Which one that is; else how many there are."""


class Verified(NamedTuple):
    """Records of entries that are what an index says they are, as far as they were read."""

    decoded: Decoded
    """deliver_after: where the record has none, what its batch asked for; -1 where no prefix says."""
    fault: int
    """Of the first entry that fails; OK where none does."""
    row: int
    """How many entries were read; where one fails or is compressed, which one."""
    compressed: bool
    """The next entry is compressed, and so nothing for a kernel."""


class Decoded(NamedTuple):
    """Records of some batches, in the order of the batches."""

    key: Ragged
    key_valid: Bools
    value: Ragged
    value_valid: Bools
    headers: Ragged
    """The encoded section, count first; empty where there are none. See `afterlog.records.batch.decode_headers`."""
    timestamp: Int64Array
    deliver_after: Int64Array
    """From the header `deliver-after`; -1 where the record has none and is due with its batch."""
    broker_timestamp: Int64Array
    """When the log appended its batch; -1 of batches without a prefix."""


def view_of(data: Data) -> memoryview:
    """The bytes, to be read one by one or unpacked."""
    buffer: Any = data  # an array is a buffer too, which its type does not say before Python 3.12
    return memoryview(buffer).cast("B")


def ragged(items: Sequence[bytes | None]) -> tuple[Ragged, Bools]:
    """A column of some items, and which of them are not None."""
    valid = np.fromiter((item is not None for item in items), np.bool_, len(items))
    offsets = np.zeros(len(items) + 1, np.int64)
    np.cumsum(np.fromiter((len(item or b"") for item in items), np.int64, len(items)), out=offsets[1:])
    return (offsets, np.frombuffer(b"".join(item or b"" for item in items), np.uint8)), valid


def check_items(items: Ragged) -> None:
    """ValueError for a column that has not even the offset 0."""
    if not len(items[0]):
        raise ValueError("a column has one offset more than items, and this one none")


def no_item(row: int, held: int) -> IndexError:
    """The error for a row that is not there, or of which the offsets lead out of the data."""
    return IndexError(f"no item {row} in a column of {held}, or not inside its data")


def check_spread(spread_ms: int) -> None:
    if spread_ms < 0:
        raise ValueError(f"no spread: {spread_ms}")


def check_ragged(column: Ragged, items: int, name: str) -> None:
    """ValueError where the offsets do not cut `items` slices out of the data."""
    offsets, data = column
    if len(offsets) != items + 1:
        raise ValueError(f"{name}: {len(offsets)} offsets for {items} items")
    check_rising(offsets, len(data), 0, f"{name}: offsets")


def check_rising(positions: Int64Array, end: int, least: int, name: str) -> None:
    """ValueError where positions do not rise by at least `least`, from 0 or more up to `end` or less."""
    inside = len(positions) > 0 and positions[0] >= 0 and positions[-1] <= end
    # Compared before they are subtracted: a difference of what does not rise may overflow.
    rising = inside and not (positions[1:] < positions[:-1]).any()
    if not rising or (least > 0 and (positions[1:] - positions[:-1] < least).any()):
        raise ValueError(f"{name} must rise by at least {least} within 0 and {end}")


def check_places(buffers: Sequence[Bytes], which: Int32Array, columns: Sequence[Int64Array]) -> None:
    """ValueError where `which` names no buffer, or columns differ in length. Positions are the kernels' to check."""
    if any(len(column) != len(which) for column in columns):
        raise ValueError("columns differ in length")
    if len(which) and not 0 <= int(which.min()) <= int(which.max()) < len(buffers):
        raise ValueError(f"`which` must name one of {len(buffers)} buffers")


def check_entry_places(
    buffers: Sequence[Bytes],
    which: Int32Array,
    positions: Int64Array,
    offsets: Int64Array,
    records: Int64Array,
    deliver_after: Int64Array | None,
) -> None:
    """ValueError where the arguments of `check_entries` or `read_records` do not fit together."""
    check_places(buffers, which, (positions, offsets, records, *(() if deliver_after is None else (deliver_after,))))


def check_batch_columns(
    values: Ragged,
    value_valid: Bools | None,
    keys: Ragged | None,
    key_valid: Bools | None,
    headers: Ragged | None,
    timestamps: Int64Array,
    deliver_after: Int64Array | None,
    bounds: Int64Array,
) -> None:
    """ValueError where the arguments of `encode_batches` do not fit together."""
    records = len(timestamps)
    for name, column in (("values", values), ("keys", keys), ("headers", headers)):
        if column is not None:
            check_ragged(column, records, name)
    for name, flat in (("value_valid", value_valid), ("key_valid", key_valid), ("deliver_after", deliver_after)):
        if flat is not None and len(flat) != records:
            raise ValueError(f"{name}: {len(flat)} items for {records} records")
    check_rising(bounds, records, 1, "bounds")


def check_producers(producers: Producers | None, bounds: Int64Array) -> None:
    """ValueError where a batch has none, or there are more than batches."""
    if producers is not None and any(len(column) != len(bounds) - 1 for column in producers):
        raise ValueError(f"producers: columns of another length than the {len(bounds) - 1} batches")


def check_asked(data: Bytes, positions: Int64Array, asked: Int64Array | None) -> None:
    """ValueError where there is not one time for each of the batches, which lie at `positions`."""
    check_rising(positions, len(data), HEADER_BYTES, "positions")
    if asked is not None and len(asked) != len(positions) - 1:
        raise ValueError(f"asked: {len(asked)} items for {len(positions) - 1} batches")


def check_stamp(base_offset: int, broker_timestamp: int, extra: bytes) -> None:
    """ValueError where entries cannot be stamped so."""
    if not (0 <= base_offset < 1 << 62 and 0 <= broker_timestamp <= INT64_MAX):  # room for the offsets behind it
        raise ValueError(f"base offset {base_offset} or broker timestamp {broker_timestamp} is out of range")
    if len(extra) > EXTRA_BYTES_MAX:
        raise ValueError(f"extra metadata of {len(extra)} bytes, more than {EXTRA_BYTES_MAX}")


def scan_end(buffer: Bytes, start: int, end: int) -> int:
    """Where a scan ends: -1 is the end of the buffer. ValueError where [start, end) does not lie in it."""
    end = len(buffer) if end == -1 else end
    if not 0 <= start <= end <= len(buffer):
        raise ValueError(f"[{start}, {end}) does not lie in a buffer of {len(buffer)} bytes")
    return end


def undecodable(reason: int, batch: int) -> InvalidBatch | InvalidDeliverAfter:
    """The error for a batch whose records could not be decoded."""
    kind = InvalidDeliverAfter if reason == DELIVER_AFTER else InvalidBatch
    return kind(f"batch {batch}: {REASONS[reason]}")
