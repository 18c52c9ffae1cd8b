"""Kafka RecordBatch v2: what is written, checked, indexed and delivered as one piece.

    0 header, 61 bytes, see `afterlog.records.header`     61 records, or one compressed stream of all of them

A record, all lengths and deltas zig-zag varints (`afterlog.records.varint`), a null key or value with length -1:

    length | attributes i8 = 0 | timestamp_delta | offset_delta | key_length | key | value_length | value
           | headers_count | (key_length | key | value_length | value)*

`length` counts what follows it. Offset deltas are 0, 1, 2 and so on. The part from headers_count on is the *header
section*, which stays encoded in columns: most readers never look into it.

The batch's CRC covers its attributes and everything behind them, compressed as stored.

A record whose deliver_after differs from its batch's carries the header `deliver-after`: eight bytes, big-endian int64
ms, or, from other producers, decimal digits (eight bytes are always the number). The last one counts.

Example: the record `hello` without key or headers, due half a second before its batch, behind the header:

    44                          length 34
    00 00 00                    attributes, timestamp delta 0, offset delta 0
    01                          key length -1: null
    0A 68 65 6C 6C 6F           value length 5, hello
    02                          one header
    1A 64 65 6C 69 76 65 72 2D 61 66 74 65 72    length 13, deliver-after
    10 00 00 01 8B CF E5 68 00  length 8, 1700000000000 ms
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from afterlog.base.checksum import crc32c
from afterlog.base.clock import check_deliver_after
from afterlog.base.config import Codec
from afterlog.base.errors import InvalidBatch, InvalidDeliverAfter, InvalidRecord
from afterlog.base.files import Bytes, Data
from afterlog.records import pure
from afterlog.records.columns import INT64_MAX, Bools, Decoded, Int32Array, Int64Array, Ragged, ragged, view_of
from afterlog.records.compression import codec_id, compress, decompress
from afterlog.records.header import (
    CODEC_BITS,
    CONTROL,
    CRC_END,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC_2,
    TRANSACTIONAL,
    BatchHeader,
    with_crc,
)
from afterlog.records.kernels import decode_records, encode_batches
from afterlog.records.varint import read_zigzag, zigzag

Headers = Sequence[tuple[str, bytes | None]]
DELIVER_AFTER: Final = "deliver-after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record. `deliver_after` None: as soon as possible, or in a decoded batch: due with its batch."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int
    """When it was made, ms since the epoch."""
    deliver_after: int | None = None


class BatchInfo(NamedTuple):
    """What a log wants to know of a batch that a client made."""

    records: int
    deliver_after: int
    """The latest in the records' headers; -1 where none has one."""
    max_timestamp: int
    attributes: int


class BatchColumns(NamedTuple):
    """The same for several batches, one after another. int64 columns, `positions` one longer than the rest."""

    positions: Int64Array
    records: Int64Array
    deliver_after: Int64Array
    max_timestamp: Int64Array
    attributes: Int64Array


def encode_batch(records: Sequence[Record], codec: Codec = "none") -> bytes:
    """One batch, its base offset 0, for `Partition.append`. Every record that asks for a time carries it as a header.

    InvalidRecord, InvalidDeliverAfter, UnsupportedCodec.
    """
    if not isinstance(records, Sequence):
        raise InvalidBatch(f"a batch is made of a list of afterlog.Record, not of {records!r:.100}")
    if not records:
        raise InvalidBatch("a batch needs a record")
    for record in records:
        _check_record(record)
    values, value_valid = ragged([record.value for record in records])
    keys, key_valid = ragged([record.key for record in records])
    headers, _ = ragged([encode_headers([*_pairs(record.headers), *_deliver_after(record)]) for record in records])
    timestamps = np.array([record.timestamp for record in records], np.int64)
    bounds = np.array([0, len(records)], np.int64)
    batch, positions = encode_batches(values, value_valid, keys, key_valid, headers, timestamps, None, bounds)
    return compress_batches(batch, positions, codec)[0].tobytes()


def decode_batch(data: Data, *, limit_bytes: int) -> list[Record]:
    """The records of one batch, of any codec; the first has its base offset. InvalidBatch, UnsupportedCodec."""
    batch = _bytes(data)
    headers = _read_headers(batch)
    if len(headers) != 1:
        raise InvalidBatch(f"{len(headers)} batches where one was expected")
    key, key_valid, value, value_valid, section, timestamp, deliver_after, _ = _decode(batch, headers, limit_bytes)
    return [
        Record(value=value, key=key, headers=decode_own_headers(section), timestamp=timestamp, deliver_after=due)
        for key, value, section, timestamp, due in zip(
            _nullable(key, key_valid),
            _nullable(value, value_valid),
            _items(section),
            timestamp.tolist(),
            (None if due < 0 else due for due in deliver_after.tolist()),
            strict=True,
        )
    ]


def decode_compacted(data: Data, *, limit_bytes: int) -> list[tuple[int, Record]]:
    """What compaction left of one batch, as `read_compacted` has found it: (offset delta, record). InvalidBatch."""
    return [
        (
            delta,
            Record(
                value=value,
                key=key,
                headers=decode_own_headers(section),
                timestamp=timestamp,
                deliver_after=None if due < 0 else due,
            ),
        )
        for delta, (key, value, section, timestamp, due) in pure.decode_compacted(_plain(data, limit_bytes))
    ]


def compacted_columns(data: Data, *, limit_bytes: int) -> tuple[Int64Array, Decoded]:
    """The same as columns: the offset deltas, int64[n], and the records. InvalidBatch, InvalidDeliverAfter."""
    deltas, records = list[int](), list[pure.DecodedRecord]()
    for delta, record in pure.decode_compacted(_plain(data, limit_bytes)):
        deltas.append(delta)
        records.append(record)
    return np.array(deltas, np.int64), pure.decoded_columns(records)


def without_records(data: Data, left_out: Collection[int], *, limit_bytes: int) -> bytes:
    """An intact batch as compaction would leave it: some records, by their place, are gone; offsets stay. InvalidBatch.

    What is left is byte for byte as it was; the codec is the same. All gone: a batch of none.
    """
    header, view = BatchHeader.read(view_of(data), 0), _plain(data, limit_bytes)
    kept, position = list[bytes](), HEADER_BYTES
    for place in range(header.records):
        size, behind = read_zigzag(view, position, len(view), 32)
        if place not in left_out:
            kept.append(view[position : behind + size].tobytes())
        position = behind + size
    if position != len(view):
        raise InvalidBatch("the records do not fill the batch")
    return _remade(header, kept)


def with_times(data: Data, deliver_after: int, *, limit_bytes: int) -> bytes:
    """An intact batch in which each record says when it is due: what does not gets this time as a header. InvalidBatch.

    All else of a record is byte for byte as it was; the codec is the same.
    """
    return _remade(BatchHeader.read(view_of(data), 0), pure.timed_records(_plain(data, limit_bytes), deliver_after))


def _plain(data: Data, limit_bytes: int) -> memoryview:
    """A batch as it is when it is not compressed."""
    view = view_of(data)
    if BatchHeader.read(view, 0).attributes & CODEC_BITS:
        return view_of(_image(np.frombuffer(view, np.uint8), limit_bytes))
    return view


def _remade(header: BatchHeader, records: Sequence[bytes]) -> bytes:
    """A batch of such a header with other records, of which each has its length in front."""
    body, codec = b"".join(records), header.attributes & CODEC_BITS
    if codec and records:
        body = compress(codec, memoryview(body))
    else:
        header = header._replace(attributes=header.attributes & ~CODEC_BITS)
    return with_crc(header._replace(records=len(records), length=HEADER_BYTES - LENGTH_END + len(body)), body)


def validate_batch(data: Data, *, limit_bytes: int) -> BatchInfo:
    """Check one batch as Kafka's broker does on produce, down to the records. InvalidBatch, UnsupportedCodec."""
    columns = validate_batches(data, limit_bytes=limit_bytes)
    if len(columns.records) != 1:
        raise InvalidBatch(f"{len(columns.records)} batches where one was expected")
    return BatchInfo(
        records=int(columns.records[0]),
        deliver_after=int(columns.deliver_after[0]),
        max_timestamp=int(columns.max_timestamp[0]),
        attributes=int(columns.attributes[0]),
    )


def validate_batches(data: Data, *, limit_bytes: int) -> BatchColumns:
    """The same for one or more batches that fill `data`; the limit is for each. InvalidBatch, UnsupportedCodec."""
    batches = _bytes(data)
    headers = _read_headers(batches)
    for batch, header in enumerate(headers):
        _check_from_client(header, batch)
    decoded = _decode(batches, headers, limit_bytes)
    records = np.array([header.records for header in headers], np.int64)
    first = np.cumsum(records) - records
    return BatchColumns(
        positions=_positions([header.size for header in headers]),
        records=records,
        deliver_after=np.maximum.reduceat(decoded.deliver_after, first),
        max_timestamp=np.array([header.max_timestamp for header in headers], np.int64),
        attributes=np.array([header.attributes for header in headers], np.int64),
    )


def compress_batches(data: Bytes, positions: Int64Array, codec: Codec) -> tuple[Bytes, Int64Array]:
    """Each batch with its records compressed, where that makes it smaller, and the new positions."""
    number = codec_id(codec)
    if number == 0:
        return data, positions
    view = view_of(data)
    batches = []
    for start, end in zip(positions[:-1].tolist(), positions[1:].tolist(), strict=True):
        body = compress(number, view[start + HEADER_BYTES : end])
        if len(body) < end - start - HEADER_BYTES:
            header = BatchHeader.read(view, start)
            length = len(body) + HEADER_BYTES - LENGTH_END
            batches.append(with_crc(header._replace(length=length, attributes=header.attributes | number), body))
        else:
            batches.append(view[start:end].tobytes())
    return np.frombuffer(b"".join(batches), np.uint8), _positions([len(batch) for batch in batches])


def decompressed(
    buffers: Sequence[Bytes],
    which: Int32Array,
    batch_positions: Int64Array,
    batch_sizes: Int64Array,
    attributes: Int64Array,
    limit_bytes: int,
) -> tuple[list[Bytes], Int32Array, Int64Array, Int64Array]:
    """Places of batches that `decode_records` can read: compressed ones give way to images of their own.

    An image is the batch's header with no codec in it, length and CRC as stored, and the records. What is not
    compressed stays where it is. The places must hold batches (`check_entries`); `limit_bytes` is for each.
    InvalidBatch, UnsupportedCodec.
    """
    compressed = np.flatnonzero(attributes & CODEC_BITS)
    if len(compressed) == 0:
        return list(buffers), which, batch_positions, batch_sizes
    images = [
        _image(buffers[which[batch]][batch_positions[batch] :][: batch_sizes[batch]], limit_bytes)
        for batch in compressed.tolist()
    ]
    which, batch_positions, batch_sizes = which.copy(), batch_positions.copy(), batch_sizes.copy()
    which[compressed] = len(buffers) + np.arange(len(images), dtype=np.int32)
    batch_positions[compressed] = 0
    batch_sizes[compressed] = [len(image) for image in images]
    return [*buffers, *images], which, batch_positions, batch_sizes


def encode_headers(headers: Headers) -> bytes:
    """The header section of a record; empty where there are no headers. InvalidRecord for a key that is no text."""
    if not headers:
        return b""
    parts = [zigzag(len(headers))]
    name: Any
    value: Any
    for row, (name, value) in enumerate(headers):
        if not isinstance(name, str) or not isinstance(value, bytes | bytearray | memoryview | None):
            raise InvalidRecord(f"header {row}: a name is text and a value bytes or None, not {(name, value)!r:.100}")
        if isinstance(value, memoryview):
            value = value.tobytes()
        try:
            key = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"header key {name!r} cannot be written as UTF-8: {error.reason}") from None
        parts += (zigzag(len(key)), key, zigzag(-1 if value is None else len(value)), value or b"")
    return b"".join(parts)


def decode_headers(section: Data) -> list[tuple[str, bytes | None]]:
    """What `encode_headers` encoded. Keys that are not UTF-8 come out surrogate-escaped. InvalidBatch."""
    view = view_of(section)
    if not view:
        return []
    headers = []
    count, position = read_zigzag(view, 0, len(view), 32)
    if count < 0:
        raise InvalidBatch(f"{count} headers")
    for _ in range(count):
        key, position = _read_nullable(view, position)
        value, position = _read_nullable(view, position)
        if key is None:
            raise InvalidBatch("a header has no key")
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    if position != len(view):
        raise InvalidBatch("bytes are left over behind the headers")
    return headers


def own_headers(headers: Headers) -> Headers:
    """`headers` themselves. InvalidRecord where they are no pairs, or one has the name under which the log keeps a
    record's time."""
    if isinstance(headers, tuple | list) and not headers:
        return headers
    headers = _pairs(headers)
    if any(isinstance(name, str) and name == DELIVER_AFTER for name, _ in headers):
        raise InvalidRecord(f"the header {DELIVER_AFTER!r} is the log's: give the time as deliver_after or delay")
    return headers


def _pairs(headers: Headers) -> Headers:
    try:
        if isinstance(headers, Mapping):
            raise TypeError("a mapping")
        return [(name, value) for name, value in headers]
    except (TypeError, ValueError) as error:
        example = '[("name", b"value")]'
        raise InvalidRecord(f"headers must be pairs, {example}; of a dict, list(headers.items()): {error}") from None


def decode_own_headers(section: Data) -> tuple[tuple[str, bytes | None], ...]:
    """The headers as they were sent, without the one that the log keeps a record's time in."""
    return tuple(header for header in decode_headers(section) if header[0] != DELIVER_AFTER)


def _check_record(record: Any) -> None:
    """Of one that a user made. Raises InvalidRecord."""
    if not isinstance(record, Record):
        raise InvalidRecord(f"a batch is made of afterlog.Record, not of {record!r:.100}")
    for name, part in (("value", record.value), ("key", record.key)):
        if part is not None and not isinstance(part, bytes | bytearray):
            raise InvalidRecord(f"a {name} must be bytes or None, not {part!r:.100}")
    if not isinstance(record.timestamp, int | np.integer) or not -1 <= record.timestamp <= INT64_MAX:
        raise InvalidRecord(f"a timestamp is milliseconds since the epoch, up to 2^63-1, not {record.timestamp!r:.100}")
    if not isinstance(record.deliver_after, int | None):
        raise InvalidDeliverAfter(f"a record's deliver_after is epoch milliseconds, not {record.deliver_after!r:.100}")


def _bytes(data: Data) -> Bytes:
    try:
        return np.frombuffer(data, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidBatch(f"no bytes: {error}") from None


def _deliver_after(record: Record) -> Headers:
    if record.deliver_after is None:
        return ()
    return ((DELIVER_AFTER, check_deliver_after(record.deliver_after).to_bytes(8, "big")),)


def _read_nullable(view: memoryview, position: int) -> tuple[bytes | None, int]:
    size, position = read_zigzag(view, position, len(view), 32)
    if not -1 <= size <= len(view) - position:
        raise InvalidBatch("a header runs past the end of its section")
    return (None, position) if size < 0 else (view[position : position + size].tobytes(), position + size)


def _read_headers(data: Bytes) -> list[BatchHeader]:
    """The headers of the batches that fill `data`, lengths, counts and CRCs checked. At least one."""
    view = view_of(data)
    headers: list[BatchHeader] = []
    position = 0
    while position < len(view) or not headers:
        name = f"batch {len(headers)}"
        if len(view) - position < HEADER_BYTES:
            raise InvalidBatch(f"{name}: {len(view) - position} bytes, fewer than a header has")
        header = BatchHeader.read(view, position)
        if header.magic != MAGIC_2:
            raise InvalidBatch(f"{name}: magic is {header.magic}, not 2")
        if not header.lengths_fit or header.size > len(view) - position:
            raise InvalidBatch(f"{name}: length {header.length} or record count {header.records} is impossible")
        if crc32c(view[position + CRC_END : position + header.size]) != header.crc:
            raise InvalidBatch(f"{name}: the CRC does not match")
        headers.append(header)
        position += header.size
    return headers


def _check_from_client(header: BatchHeader, batch: int) -> None:
    """What a producer may not send, although it is well-formed."""
    if header.attributes & CONTROL:
        raise InvalidBatch(f"batch {batch}: control batches are for the log to write")
    if header.attributes & TRANSACTIONAL:  # KIP-1277 excludes them, and here no marker would ever end one
        raise InvalidBatch(f"batch {batch}: transactional; there are no transactions here, send it without one")
    if header.attributes & LOG_APPEND_TIME:
        raise InvalidBatch(f"batch {batch}: only the log may claim log append time")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidBatch(f"batch {batch}: a producer id without epoch and sequence")


def _decode(data: Bytes, headers: list[BatchHeader], limit_bytes: int) -> Decoded:
    sizes = np.array([header.size for header in headers], np.int64)
    attributes = np.array([header.attributes for header in headers], np.int64)
    which = np.zeros(len(headers), np.int32)
    places = decompressed([data], which, np.cumsum(sizes) - sizes, sizes, attributes, limit_bytes)
    return decode_records(*places, np.array([header.records for header in headers], np.int64))


def _image(batch: Bytes, limit_bytes: int) -> Bytes:
    view = view_of(batch)
    header = BatchHeader.read(view, 0)
    records = decompress(header.attributes & CODEC_BITS, view[HEADER_BYTES:], limit_bytes)
    uncompressed = header._replace(attributes=header.attributes & ~CODEC_BITS)
    return np.frombuffer(uncompressed.encode() + records, np.uint8)


def _positions(sizes: list[int]) -> Int64Array:
    positions = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=positions[1:])
    return positions


def _items(column: Ragged) -> list[bytes]:
    offsets, data = column
    view = view_of(data)
    return [view[start:end].tobytes() for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def _nullable(column: Ragged, valid: Bools) -> list[bytes | None]:
    return [item if there else None for item, there in zip(_items(column), valid, strict=True)]
