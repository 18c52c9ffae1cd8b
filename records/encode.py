"""Record batches on their way into the log: many records as columns, cut into batches and encoded.

A batch is due with its last record, so records share a batch only where their times lie no further apart than
`deliver_after_spread_ms` (KIP-1277 takes the maximum for the batch; the spread bounds what that costs in lateness).
Such a batch has one time, that of its last record, and none of its records another (docs/decisions/0042).
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from afterlog.base.clock import INT64_MAX
from afterlog.base.config import Config
from afterlog.base.errors import InvalidRecord, RecordTooLarge
from afterlog.base.files import Bytes
from afterlog.index.entries import sort_by_due
from afterlog.records import kernels
from afterlog.records.batch import Headers, compress_batches, encode_headers, own_headers, validate_batches
from afterlog.records.columns import Bools, Int64Array, Producers, Ragged
from afterlog.records.header import HEADER_BYTES, LENGTH_END
from afterlog.records.producer_sequence import ProducerSequence, producers_of

RECORD_OVERHEAD_BYTES = 57
"""At most this much of a record is neither key, value nor header: varints, attributes, the deliver-after header."""
PART_RECORDS = 1 << 20
"""Many records are appended so many at a time: others get the append lock in between, and columns stay small."""
PIECE_BYTES = 1 << 20
"""Batches are encoded, stamped and written so many bytes at a time, which stay in the processor's cache meanwhile."""


@dataclass(frozen=True, slots=True)
class Batches(ABC):
    """Record batches, to be written one after another, and what the log must know of each.

    positions: int64[n+1], where each begins and the last one ends, at most; records, deliver_after (as asked, the
    largest of the batch, or AS_SOON_AS_POSSIBLE), max_timestamp: int64[n]. producers: what their headers say of who
    sent them; None where none says anything.
    """

    positions: Int64Array
    records: Int64Array
    deliver_after: Int64Array
    max_timestamp: Int64Array
    producers: Producers | None = field(default=None, kw_only=True)

    @abstractmethod
    def encoded(self, row: int, last: int) -> tuple[Bytes, Int64Array]:
        """The batches from `row` to `last` with base offset 0, and their positions, int64[last - row + 1]."""

    def entries(
        self, row: int, last: int, base_offset: int, stamp_ms: int, *, delayed: bool, extra: bytes
    ) -> tuple[Bytes, Int64Array]:
        """The same as entries of the log: the first has `base_offset`, all are appended at `stamp_ms`."""
        asked = self.deliver_after[row:last] if delayed else None
        return kernels.stamp_entries(*self.encoded(row, last), base_offset, stamp_ms, asked, extra)

    @property
    def has_headers(self) -> bool:
        """Whether a record may have any."""
        return True

    def __len__(self) -> int:
        return len(self.records)

    def pieces(self, row: int, last: int) -> Iterator[tuple[int, int]]:
        """The batches from `row` to `last` in ranges of about PIECE_BYTES, each of at least one."""
        if int(self.positions[last] - self.positions[row]) <= PIECE_BYTES:
            yield row, last
            return
        while row < last:
            full = int(self.positions.searchsorted(self.positions[row] + PIECE_BYTES, side="right")) - 1
            stop = min(max(full, row + 1), last)
            yield row, stop
            row = stop


@dataclass(frozen=True, slots=True)
class EncodedBatches(Batches):
    """Batches that are bytes already: a producer's own, or compressed."""

    data: Bytes

    def encoded(self, row: int, last: int) -> tuple[Bytes, Int64Array]:
        start, end = int(self.positions[row]), int(self.positions[last])
        return self.data[start:end], self.positions[row : last + 1] - start

    @staticmethod
    def of(batches: Batches, row: int, last: int) -> EncodedBatches:
        """The batches from `row` to `last` by themselves."""
        data, positions = batches.encoded(row, last)
        rows = slice(row, last)
        return EncodedBatches(
            positions, batches.records[rows], batches.deliver_after[rows], batches.max_timestamp[rows], data,
            producers=None if batches.producers is None else batches.producers.rows(rows),
        )  # fmt: skip

    @staticmethod
    def joined(parts: Sequence[Batches]) -> EncodedBatches:
        """All of them, to be written as one."""
        encoded = [part.encoded(0, len(part)) for part in parts]
        start = np.cumsum([0, *(len(data) for data, _ in encoded)])
        positions = [positions[:-1] + before for (_, positions), before in zip(encoded, start[:-1], strict=True)]
        producers = None
        if any(part.producers is not None for part in parts):
            producers = Producers(*map(np.concatenate, zip(*map(_named_or_not, parts), strict=True)))
        return EncodedBatches(
            np.concatenate([*positions, start[-1:]]),
            np.concatenate([part.records for part in parts]),
            np.concatenate([part.deliver_after for part in parts]),
            np.concatenate([part.max_timestamp for part in parts]),
            np.concatenate([data for data, _ in encoded]),
            producers=producers,
        )

    def behind(self, row: int) -> EncodedBatches:
        """Without the batches in front of `row`."""
        return EncodedBatches(
            self.positions[row:], self.records[row:], self.deliver_after[row:], self.max_timestamp[row:], self.data,
            producers=None if self.producers is None else self.producers.rows(slice(row, None)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ColumnBatches(Batches):
    """Batches that are cut out of columns at `bounds`, int64[n+1], and become bytes when these are asked for.

    rows: the rows of `columns` that are meant, in this order, each of a batch at the time of the batch; None: all of
    them, as they are. They are gathered piece by piece too: a copy of all would leave the cache and come back.
    """

    columns: RecordColumns
    bounds: Int64Array
    rows: Int64Array | None = None

    def encoded(self, row: int, last: int) -> tuple[Bytes, Int64Array]:
        part, bounds = self._part(row, last)
        return kernels.encode_batches(
            part.values, part.value_valid, part.keys, part.key_valid, part.headers,
            part.timestamps, part.deliver_after, bounds, self._producers(row, last),
        )  # fmt: skip

    def entries(
        self, row: int, last: int, base_offset: int, stamp_ms: int, *, delayed: bool, extra: bytes
    ) -> tuple[Bytes, Int64Array]:
        part, bounds = self._part(row, last)
        return kernels.encode_entries(
            part.values, part.value_valid, part.keys, part.key_valid, part.headers,
            part.timestamps, part.deliver_after if delayed else None, bounds, base_offset, stamp_ms, extra,
            self._producers(row, last),
        )  # fmt: skip

    @property
    def has_headers(self) -> bool:
        return self.columns.headers is not None

    def _producers(self, row: int, last: int) -> Producers | None:
        return None if self.producers is None else self.producers.rows(slice(row, last))

    def _part(self, row: int, last: int) -> tuple[RecordColumns, Int64Array]:
        first, stop = int(self.bounds[row]), int(self.bounds[last])
        bounds = self.bounds[row : last + 1] - first
        if self.rows is None:
            return self.columns[first:stop], bounds
        part = self.columns.take(self.rows[first:stop])
        return replace(part, deliver_after=np.repeat(self.deliver_after[row:last], self.records[row:last])), bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records as columns: what `send_many` takes and the kernels encode. Ragged = (int64 offsets[n+1], uint8 data)."""

    values: Ragged
    value_valid: Bools | None = None
    keys: Ragged | None = None
    key_valid: Bools | None = None
    headers: Ragged | None = None
    timestamps: Int64Array
    deliver_after: Int64Array

    def __len__(self) -> int:
        return len(self.timestamps)

    def __getitem__(self, rows: slice) -> RecordColumns:
        """The records of a slice from one row to another, as views."""
        offsets = slice(rows.start, rows.stop + 1)
        return RecordColumns(
            values=(self.values[0][offsets], self.values[1]),
            value_valid=None if self.value_valid is None else self.value_valid[rows],
            keys=None if self.keys is None else (self.keys[0][offsets], self.keys[1]),
            key_valid=None if self.key_valid is None else self.key_valid[rows],
            headers=None if self.headers is None else (self.headers[0][offsets], self.headers[1]),
            timestamps=self.timestamps[rows],
            deliver_after=self.deliver_after[rows],
        )

    def take(self, rows: Int64Array) -> RecordColumns:
        """The records at `rows`, in that order."""
        return RecordColumns(
            values=take_ragged(self.values, rows),
            value_valid=None if self.value_valid is None else self.value_valid[rows],
            keys=None if self.keys is None else take_ragged(self.keys, rows),
            key_valid=None if self.key_valid is None else self.key_valid[rows],
            headers=None if self.headers is None else take_ragged(self.headers, rows),
            timestamps=self.timestamps[rows],
            deliver_after=self.deliver_after[rows],
        )

    def record_bytes(self, rows: Int64Array | None = None) -> Int64Array:
        """An upper bound of each record's encoded size, int64[n]; of those at `rows`, where these are given."""
        size = _lengths(self.values) + RECORD_OVERHEAD_BYTES
        for column in (self.keys, self.headers):
            if column is not None:
                size += _lengths(column)
        return size if rows is None else size[rows]


def encode(
    columns: RecordColumns, config: Config, *, any_size: bool = False, sequence: ProducerSequence | None = None
) -> tuple[list[Batches], Int64Array | None]:
    """Cut the records into batches, in parts of PART_RECORDS. Second: the rows as written, or None for the order given.

    With a spread of 0 the order is kept and equal neighbours share a batch. With a spread, records are sorted by time
    first (stable), so that neighbours are close. sequence: who sends them, of the first one that is written. Raises
    RecordTooLarge: beyond `batch_bytes_max`, but for `any_size`.
    """
    parts = [slice(start, start + PART_RECORDS) for start in range(0, len(columns), PART_RECORDS)]
    if not config.deliver_after_spread_ms:
        due = columns.deliver_after
        return [
            _encode(columns[part], None, due[part], config, any_size, sequence and sequence.after(part.start))
            for part in parts
        ], None
    due, order = sort_by_due(columns.deliver_after)
    return [
        _encode(columns, order[part], due[part], config, any_size, sequence and sequence.after(part.start))
        for part in parts
    ], order


def encode_each(columns: RecordColumns, config: Config, producers: Producers | None) -> Batches:
    """Each record as a batch of its own, in the order given: what sends of one by one would write."""
    bounds = np.arange(len(columns) + 1)
    return _cut_at(bounds, columns, None, columns.record_bytes(), columns.deliver_after, config, producers)


def _encode(
    columns: RecordColumns,
    rows: Int64Array | None,
    due: Int64Array,
    config: Config,
    any_size: bool,
    sequence: ProducerSequence | None,
) -> Batches:
    """The batches of one part. Compression is done here; others are encoded when written, a piece at a time.

    rows: the part's, of all columns, by time; None: the columns are the part's, in the order given. due: their times.
    """
    size = columns.record_bytes(rows)
    if int(size.max()) + HEADER_BYTES > config.batch_bytes_max and not any_size:
        raise RecordTooLarge(
            f"a record of {int(size.max())} bytes does not fit into batch_bytes_max ({config.batch_bytes_max})"
        )
    batch_bytes = min(config.batch_bytes, (config.batch_bytes_max - HEADER_BYTES) // 2)
    bounds = cut(due, size, batch_bytes, config.deliver_after_spread_ms)
    producers = None if sequence is None else sequence.of_batches(bounds[:-1])
    return _cut_at(bounds, columns, rows, size, due, config, producers)


def _cut_at(
    bounds: Int64Array,
    columns: RecordColumns,
    rows: Int64Array | None,
    size: Int64Array,
    due: Int64Array,
    config: Config,
    producers: Producers | None,
) -> Batches:
    """The batches that begin at `bounds`."""
    timestamps = columns.timestamps if rows is None else columns.timestamps[rows]
    count = len(bounds) - 1
    positions = np.zeros(count + 1, np.int64)
    (_by_batch(np.add, size, bounds) + HEADER_BYTES).cumsum(out=positions[1:])
    records = bounds[1:] - bounds[:-1]
    deliver_after = _by_batch(np.maximum, due, bounds)
    max_timestamp = _by_batch(np.maximum, timestamps, bounds)
    batches = ColumnBatches(
        positions, records, deliver_after, max_timestamp, columns, bounds, rows, producers=producers
    )
    if config.compression == "none":
        return batches
    data, positions = compress_batches(*batches.encoded(0, count), config.compression)
    return EncodedBatches(positions, records, deliver_after, max_timestamp, data, producers=producers)


def cut(deliver_after: Int64Array, size: Int64Array, batch_bytes: int, spread_ms: int) -> Int64Array:
    """Where batches begin, int64[batches + 1], for records in the order given.

    A batch ends where the time changes, or with a spread, before the first record that lies further than `spread_ms`
    after its first; or where `batch_bytes` are full, which is before the last record begins: it is smaller than twice
    that, or one record. With a spread the times ascend.
    """
    count = len(deliver_after)
    if count == 1:
        return np.array([0, 1], np.int64)
    new = np.zeros(count, np.bool_)
    new[:1] = True
    if spread_ms:
        new[kernels.spread_starts(deliver_after, spread_ms)] = True
    else:
        np.not_equal(deliver_after[1:], deliver_after[:-1], out=new[1:])
    bounds = np.append(np.flatnonzero(new), count)
    if len(bounds) <= count:
        end = np.zeros(count + 1, np.int64)
        np.cumsum(size, out=end[1:])
        before = end[bounds]
        if int((before[1:] - before[:-1]).max()) > batch_bytes:
            full = (end[:-1] - np.repeat(before[:-1], np.diff(bounds))) // batch_bytes
            new[1:] |= (full[1:] != full[:-1]) | (size[1:] > batch_bytes)
            bounds = np.append(np.flatnonzero(new), count)
    return bounds.astype(np.int64, copy=False)


def parse(data: bytes | bytearray | memoryview, deliver_after: int | None, config: Config) -> Batches:
    """A producer's own RecordBatches (Kafka v2), checked as Kafka's broker checks them on produce.

    `deliver_after` speaks for every batch; None takes the largest `deliver-after` record header of each. Where a record
    of the batch says a later time itself, that counts: the batch's time satisfies every record in it (KIP-1277).
    Raises InvalidBatch, UnsupportedCodec, InvalidDeliverAfter; RecordTooLarge beyond `batch_bytes_max`.
    """
    columns = validate_batches(data, limit_bytes=config.decompressed_bytes_max)
    asked = columns.deliver_after if deliver_after is None else np.maximum(columns.deliver_after, deliver_after)
    flat = np.frombuffer(data, np.uint8)
    return EncodedBatches(
        columns.positions, columns.records, asked, columns.max_timestamp, flat,
        producers=producers_of(flat, columns.positions[:-1]),
    )  # fmt: skip


def stamp_batches(data: Bytes, positions: Int64Array, records: Int64Array, base_offset: int) -> Bytes:
    """Bare batches with their base offsets, as Kafka's broker leaves them."""
    data = data.copy()
    at = positions[:-1, None] + np.arange(16)
    fields = data[at]
    fields[:, :8] = (base_offset + np.cumsum(records) - records).astype(">i8").view(np.uint8).reshape(-1, 8)
    fields[:, LENGTH_END:] = 0  # partitionLeaderEpoch
    data[at] = fields
    return data


def ragged(values: Any, name: str = "values") -> tuple[Ragged, Bools | None]:
    """A column of byte strings as (offsets, data) and its validity (None: all valid).

    Takes a sequence of bytes-like objects or None, an (offsets, data) pair, or a pyarrow binary or string array.
    Raises InvalidRecord for anything else.
    """
    if isinstance(values, tuple) and len(values) == 2 and isinstance(values[0], np.ndarray):
        return _checked_pair(values[0], values[1], name), None
    if hasattr(values, "type") and (hasattr(values, "buffers") or hasattr(values, "chunks")):
        return _from_arrow(values, name)
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise InvalidRecord(f"{name} must be a sequence of byte strings, not one {type(values).__name__}")
    try:
        values = values if isinstance(values, list | tuple) else list(values)
        try:
            return _joined(values), None
        except TypeError:  # a None among them, or worse
            valid = np.fromiter(map(partial(operator.is_not, None), values), np.bool_, len(values))
            offsets, data = _joined(list(compress(values, valid)))
    except TypeError as error:
        raise InvalidRecord(f"{name} must be byte strings: {error}") from error
    except ValueError as error:
        raise InvalidRecord(f"{name} must be byte strings, one byte an item") from error
    return (offsets[np.append(0, np.cumsum(valid))], data), valid


def same_headers(headers: Headers, count: int) -> Ragged | None:
    """The encoded header section of `headers`, once for each of `count` records. None where there are none."""
    section = encode_headers(own_headers(headers))
    if not section:
        return None
    data = np.tile(np.frombuffer(section, np.uint8), count)
    return np.arange(count + 1, dtype=np.int64) * len(section), data


def timestamp_column(column: Any, count: int) -> Int64Array:
    """`count` record timestamps, ms since the epoch or -1 for none. Raises InvalidRecord."""
    column = _array(column, "timestamps")
    if column.shape != (count,) or (count and column.dtype.kind not in "iu"):
        raise InvalidRecord(f"timestamps must be {count} integers, not {column.dtype} of shape {column.shape}")
    if count and not -1 <= int(column.min()) <= int(column.max()) <= INT64_MAX:
        raise InvalidRecord("timestamps must be milliseconds since the epoch, or -1 for none")
    return np.ascontiguousarray(column, np.int64)


def offset_column(column: Any) -> Int64Array:
    """A column of offsets. Raises InvalidRecord."""
    column = _array(column, "offsets")
    if column.ndim != 1 or (len(column) and column.dtype.kind not in "iu"):
        raise InvalidRecord(f"offsets must be a column of integers, not {column.dtype} of shape {column.shape}")
    return np.ascontiguousarray(column, np.int64)


def _array(column: Any, name: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(column)
    except MemoryError:
        raise
    except Exception as error:  # what others' columns raise may be anything
        raise InvalidRecord(f"{name} must be a column of integers: {error}") from error


def take_ragged(column: Ragged, rows: Int64Array) -> Ragged:
    """The byte strings at `rows`, in that order."""
    return kernels.take_items(column, np.ascontiguousarray(rows, np.int64))


def join_ragged(columns: Sequence[Ragged]) -> Ragged:
    """Columns one after another."""
    lengths = np.concatenate([np.zeros(1, np.int64), *(np.diff(offsets) for offsets, _ in columns)])
    data = [part[int(offsets[0]) : int(offsets[-1])] for offsets, part in columns]
    return np.cumsum(lengths), np.concatenate(data) if data else np.empty(0, np.uint8)


def _joined(values: Sequence[bytes]) -> Ragged:
    data = b"".join(values)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    if int(offsets[-1]) != len(data):
        raise ValueError(f"{int(offsets[-1])} items of {len(data)} bytes")
    return offsets, np.frombuffer(data, np.uint8)


def _named_or_not(batches: Batches) -> Producers:
    """What their headers say of who sent them."""
    return batches.producers or Producers(*(np.full(len(batches), -1),) * 3)


def _lengths(column: Ragged) -> Int64Array:
    offsets, _ = column
    return offsets[1:] - offsets[:-1]


def _by_batch(ufunc: np.ufunc, column: Int64Array, bounds: Int64Array) -> Int64Array:
    """The column reduced over each batch; as it is where every batch has one record."""
    if len(bounds) == len(column) + 1:
        return column
    reduced: Int64Array = ufunc.reduceat(column, bounds[:-1])
    return reduced


def _checked_pair(offsets: npt.NDArray[Any], data: Any, name: str) -> Ragged:
    flat = np.frombuffer(data, np.uint8)
    if offsets.ndim != 1 or len(offsets) < 1 or offsets.dtype.kind not in "iu":
        raise InvalidRecord(f"{name}: offsets must be an int64 column of one more than the values")
    offsets = np.ascontiguousarray(offsets, np.int64)
    if int(offsets[0]) < 0 or int(offsets[-1]) > len(flat) or bool((offsets[1:] < offsets[:-1]).any()):
        raise InvalidRecord(f"{name}: offsets must not decrease, and stay within the data")
    return offsets, flat


def _from_arrow(array: Any, name: str) -> tuple[Ragged, Bools | None]:
    array = array.combine_chunks() if hasattr(array, "combine_chunks") else array
    kind = str(array.type)
    if kind not in ("binary", "string", "large_binary", "large_string"):
        raise InvalidRecord(f"{name}: an Arrow column must be binary or string, not {kind}")
    _, offset_buffer, data = array.buffers()
    dtype = np.dtype(np.int64 if kind.startswith("large") else np.int32)
    count = min(
        array.offset + len(array) + 1, offset_buffer.size // dtype.itemsize
    )  # of others the buffer may end amid one
    offsets = np.frombuffer(offset_buffer, dtype, count)[array.offset :].astype(np.int64)
    valid = np.asarray(array.is_valid()) if array.null_count else None
    return (offsets, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)), valid
