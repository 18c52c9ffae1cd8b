"""The kernels in plain Python: what runs where there is no compiled module, and what that one is tested against.

Written to be read: one function per kernel, record by record. See `kernels.py` for what each promises, and `header.py`,
`batch.py` and `entry.py` for the formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from afterlog.base.errors import InvalidBatch, InvalidDeliverAfter, InvalidRecord, RecordTooLarge
from afterlog.base.files import Bytes
from afterlog.records.columns import (
    BOUNDS,
    COMPRESSED,
    COUNT,
    DELIVER_AFTER,
    INDEX,
    INT32_MAX,
    INT64_MAX,
    LEFT_OVER,
    OFFSET,
    OFFSET_DELTA,
    OK,
    PLACE,
    REASONS,
    Bools,
    Checked,
    Decoded,
    Int32Array,
    Int64Array,
    Producers,
    Ragged,
    Scan,
    Verified,
    check_asked,
    check_batch_columns,
    check_entry_places,
    check_items,
    check_places,
    check_producers,
    check_spread,
    check_stamp,
    no_item,
    ragged,
    scan_end,
    undecodable,
    view_of,
)
from afterlog.records.entry import BrokerEntryMetadata, Entry, encode_entry, read_entry
from afterlog.records.header import (
    CODEC_BITS,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC_2,
    BatchHeader,
    with_crc,
)
from afterlog.records.varint import read_zigzag, zigzag

DELIVER_AFTER_KEY = b"deliver-after"
RECORD_BYTES_MIN = 7
"""Six lengths, deltas and counts of one byte each, and the attributes."""


def encode_batches(
    values: Ragged,
    value_valid: Bools | None,
    keys: Ragged | None,
    key_valid: Bools | None,
    headers: Ragged | None,
    timestamps: Int64Array,
    deliver_after: Int64Array | None,
    bounds: Int64Array,
    producers: Producers | None = None,
) -> tuple[Bytes, Int64Array]:
    check_batch_columns(values, value_valid, keys, key_valid, headers, timestamps, deliver_after, bounds)
    check_producers(producers, bounds)
    batches: list[bytes] = []
    for first, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        times = timestamps[first:stop].tolist()
        batch_deliver_after = -1 if deliver_after is None else int(deliver_after[first:stop].max())
        records = []
        for record in range(first, stop):
            section = b"" if headers is None else _item(headers, record)
            own = -1 if deliver_after is None else int(deliver_after[record])
            body = b"".join(
                (
                    b"\0",
                    zigzag(_wrapped(times[record - first] - times[0])),
                    zigzag(record - first),
                    b"\1" if keys is None or not _is_valid(key_valid, record) else _with_length(_item(keys, record)),
                    b"\1" if not _is_valid(value_valid, record) else _with_length(_item(values, record)),
                    _header_section(section, own if own != batch_deliver_after else -1, record),
                )
            )
            records.append(_with_length(body))
        length = HEADER_BYTES - LENGTH_END + sum(map(len, records))
        if length > INT32_MAX:
            raise RecordTooLarge(f"batch {len(batches)} is longer than 2^31-1 bytes")
        producer = (-1, -1, -1) if producers is None else producers.of(len(batches))
        header = BatchHeader(
            0, length, 0, MAGIC_2, 0, 0, stop - first - 1, times[0], max(times), *producer, stop - first
        )
        batches.append(with_crc(header, b"".join(records)))
    (positions, data), _ = ragged(batches)
    return data, positions


def stamp_entries(
    data: Bytes,
    positions: Int64Array,
    base_offset: int,
    broker_timestamp: int,
    asked: Int64Array | None,
    extra: bytes,
) -> tuple[Bytes, Int64Array]:
    check_asked(data, positions, asked)
    check_stamp(base_offset, broker_timestamp, extra)
    view = view_of(data)
    entries = []
    for batch, (start, end) in enumerate(zip(positions[:-1].tolist(), positions[1:].tolist(), strict=True)):
        header = BatchHeader.read(view, start)._replace(base_offset=base_offset, partition_leader_epoch=0)
        last_offset = base_offset + header.last_offset_delta
        metadata = BrokerEntryMetadata(broker_timestamp=broker_timestamp, index=last_offset, extra=extra)
        if asked is not None:
            wanted = int(asked[batch])
            due = max(wanted, broker_timestamp)
            metadata = BrokerEntryMetadata(
                broker_timestamp=broker_timestamp,
                index=last_offset,
                deliver_after=due,
                deliver_after_asked=wanted if wanted != due else -1,
                extra=extra,
            )
        entries.append(encode_entry(metadata, header.encode() + view[start + HEADER_BYTES : end]))
        base_offset = last_offset + 1
    (entry_positions, entry_data), _ = ragged(entries)
    return entry_data, entry_positions


def encode_entries(
    values: Ragged,
    value_valid: Bools | None,
    keys: Ragged | None,
    key_valid: Bools | None,
    headers: Ragged | None,
    timestamps: Int64Array,
    deliver_after: Int64Array | None,
    bounds: Int64Array,
    base_offset: int,
    broker_timestamp: int,
    extra: bytes,
    producers: Producers | None = None,
) -> tuple[Bytes, Int64Array]:
    check_batch_columns(values, value_valid, keys, key_valid, headers, timestamps, deliver_after, bounds)
    check_stamp(base_offset, broker_timestamp, extra)
    data, positions = encode_batches(
        values, value_valid, keys, key_valid, headers, timestamps, deliver_after, bounds, producers
    )
    asked = None
    if deliver_after is not None:
        asked = _column(int(deliver_after[first:stop].max()) for first, stop in pairwise(bounds.tolist()))
    return stamp_entries(data, positions, base_offset, broker_timestamp, asked, extra)


def encode_single(
    value: bytes | None,
    key: bytes | None,
    headers: bytes,
    timestamp: int,
    deliver_after: int,
    base_offset: int,
    broker_timestamp: int,
    producer: tuple[int, int, int] | None = None,
    attributes: int = 0,
) -> bytes:
    valid = None if value is not None else np.zeros(1, np.bool_)
    keys = None if key is None else _alone(key)
    asked = _column([deliver_after])
    check_stamp(base_offset, broker_timestamp, b"")
    data, positions = encode_batches(
        _alone(value or b""), valid, keys, None, _alone(headers), _column([timestamp]), asked, _column([0, 1]),
        None if producer is None else Producers(*(_column([field]) for field in producer)),
    )  # fmt: skip
    if attributes:
        batch = data.tobytes()
        header = BatchHeader.read(memoryview(batch), 0)._replace(attributes=attributes)
        data = np.frombuffer(with_crc(header, batch[HEADER_BYTES:]), np.uint8)
    entry, _ = stamp_entries(data, positions, base_offset, broker_timestamp, asked, b"")
    return entry.tobytes()


def scan_entries(
    buffer: Bytes,
    start: int,
    end: int,
    next_offset: int,
    check_bodies: bool,
    limit: int = -1,
    any_epoch: bool = False,
) -> Scan:
    end = scan_end(buffer, start, end)
    view = view_of(buffer)
    entries: list[Entry] = []
    fault = OK
    while start < end and len(entries) != limit:
        entry = read_entry(view, start, end, check_bodies, any_epoch)
        if isinstance(entry, int):
            fault = entry
            break
        if next_offset >= 0:
            if entry.header.base_offset != next_offset:
                fault = OFFSET
                break
            next_offset += entry.header.records
        entries.append(entry)
        start += entry.size
    return Scan(
        _column(entry.position for entry in entries),
        _column(entry.size for entry in entries),
        _column(entry.batch_position for entry in entries),
        _column(entry.header.base_offset for entry in entries),
        _column(entry.header.records for entry in entries),
        _column(entry.metadata.deliver_after if entry.metadata else -1 for entry in entries),
        _column(entry.metadata.broker_timestamp if entry.metadata else -1 for entry in entries),
        _column(entry.header.max_timestamp for entry in entries),
        _column(entry.header.attributes for entry in entries),
        start,
        fault,
    )


def check_entries(
    buffers: Sequence[Bytes],
    which: Int32Array,
    positions: Int64Array,
    offsets: Int64Array,
    records: Int64Array,
    deliver_after: Int64Array | None,
) -> Checked:
    check_entry_places(buffers, which, positions, offsets, records, deliver_after)
    views = [view_of(buffer) for buffer in buffers]
    rows = []
    fault = OK
    for place, position in enumerate(positions.tolist()):
        view = views[which[place]]
        entry = read_entry(view, position, len(view)) if 0 <= position < len(view) else INDEX
        if isinstance(entry, int):
            fault = entry
            break
        metadata = entry.metadata or BrokerEntryMetadata()
        header = entry.header
        if (header.base_offset, header.records) != (offsets[place], records[place]) or (
            deliver_after is not None and metadata.deliver_after != deliver_after[place]
        ):
            fault = INDEX
            break
        asked = metadata.deliver_after if metadata.deliver_after_asked < 0 else metadata.deliver_after_asked
        rows.append((entry.batch_position, header.size, header.attributes, asked, metadata.broker_timestamp))
    columns = np.array(rows, np.int64).reshape(-1, 5).T.copy()
    return Checked(columns[0], columns[1], columns[2], columns[3], columns[4], fault, len(rows))


def decode_records(
    buffers: Sequence[Bytes],
    which: Int32Array,
    batch_positions: Int64Array,
    batch_sizes: Int64Array,
    records: Int64Array,
    *,
    lenient: bool = False,
) -> Decoded:
    check_places(buffers, which, (batch_positions, batch_sizes, records))
    views = [view_of(buffer) for buffer in buffers]
    places = list(zip(which.tolist(), batch_positions.tolist(), batch_sizes.tolist(), records.tolist(), strict=True))
    for batch, (buffer, position, size, count) in enumerate(places):
        if position < 0 or size < HEADER_BYTES or size > len(views[buffer]) - position:
            raise undecodable(PLACE, batch)
        if count < 0 or count > (size - HEADER_BYTES) // RECORD_BYTES_MIN:
            raise undecodable(COUNT, batch)
    decoded = []
    for batch, (buffer, position, size, count) in enumerate(places):
        try:
            decoded += _decode_batch(views[buffer][position : position + size], count, lenient)
        except (InvalidBatch, InvalidDeliverAfter) as error:
            raise type(error)(f"batch {batch}: {error}") from None
    return decoded_columns(decoded)


def decoded_columns(decoded: Sequence[DecodedRecord]) -> Decoded:
    """Columns of some records."""
    key, key_valid = ragged([record[0] for record in decoded])
    value, value_valid = ragged([record[1] for record in decoded])
    headers, _ = ragged([record[2] for record in decoded])
    timestamp = _column(record[3] for record in decoded)
    deliver_after = _column(record[4] for record in decoded)
    nowhere = np.full(len(timestamp), -1)
    return Decoded(key, key_valid, value, value_valid, headers, timestamp, deliver_after, nowhere)


def read_records(
    buffers: Sequence[Bytes],
    which: Int32Array,
    positions: Int64Array,
    offsets: Int64Array,
    records: Int64Array,
    deliver_after: Int64Array | None,
    max_bytes: int,
) -> Verified:
    checked = check_entries(buffers, which, positions, offsets, records, deliver_after)
    compressed = checked.attributes & CODEC_BITS != 0
    beyond = np.cumsum(checked.batch_sizes) > max_bytes
    beyond[:1] = False
    ends = np.flatnonzero(compressed | beyond)
    row = int(ends[0]) if len(ends) else checked.row
    holding = records[:row] <= (checked.batch_sizes[:row] - HEADER_BYTES) // RECORD_BYTES_MIN
    sound = row if bool(holding.all()) else int(holding.argmin())
    places = which[:sound], checked.batch_positions[:sound], checked.batch_sizes[:sound], records[:sound]
    decoded = decode_records(buffers, *places)
    if sound < row:
        raise undecodable(COUNT, sound)
    asked = np.repeat(checked.asked[:row], records[:row])
    return Verified(
        decoded._replace(
            deliver_after=np.where(decoded.deliver_after < 0, asked, decoded.deliver_after),
            broker_timestamp=np.repeat(checked.broker_timestamp[:row], records[:row]),
        ),
        OK if len(ends) else checked.fault,
        row,
        bool(compressed[row]) if len(ends) else False,
    )


def read_single(
    data: bytes, offset: int, deliver_after: int, row: int = 0, records: int = 1
) -> tuple[bytes | None, bytes | None, bytes, int, int, int] | None:
    buffers, which = [np.frombuffer(data, np.uint8)], np.zeros(1, np.int32)
    if not 0 <= row < records:
        return None
    checked = check_entries(
        buffers, which, _column([0]), _column([offset]), _column([records]), _column([deliver_after])
    )
    if checked.fault or checked.attributes[0]:
        return None
    try:
        record = decode_records(buffers, which, checked.batch_positions, checked.batch_sizes, _column([records]))
    except (InvalidBatch, InvalidDeliverAfter):
        return None
    if record.deliver_after[row] >= 0:
        return None
    key = _item(record.key, row) if record.key_valid[row] else None
    value = _item(record.value, row) if record.value_valid[row] else None
    headers, timestamp = _item(record.headers, row), int(record.timestamp[row])
    return key, value, headers, timestamp, int(checked.asked[0]), int(checked.broker_timestamp[0])


def take_items(items: Ragged, rows: Int64Array) -> Ragged:
    check_items(items)
    offsets, data = items
    count = len(offsets) - 1
    starts, parts = [0], []
    for row in rows.tolist():
        if not (0 <= row < count and 0 <= int(offsets[row]) <= int(offsets[row + 1]) <= len(data)):
            raise no_item(row, count)
        parts.append(data[int(offsets[row]) : int(offsets[row + 1])])
        starts.append(starts[-1] + len(parts[-1]))
    return _column(starts), np.concatenate([np.empty(0, np.uint8), *parts])


def spread_starts(deliver_after: Int64Array, spread_ms: int) -> Int64Array:
    check_spread(spread_ms)
    starts: list[int] = []
    first = 0
    for row, due in enumerate(deliver_after.tolist()):
        if not starts or (due != -1 if first == -1 else due - first > spread_ms):
            starts.append(row)
            first = due
    return _column(starts)


def _column(numbers: Iterable[int]) -> Int64Array:
    return np.fromiter(numbers, np.int64)


def _alone(item: bytes) -> Ragged:
    return _column([0, len(item)]), np.frombuffer(item, np.uint8)


def _item(column: Ragged, item: int) -> bytes:
    offsets, data = column
    return data[offsets[item] : offsets[item + 1]].tobytes()


def _is_valid(valid: Bools | None, item: int) -> bool:
    return valid is None or bool(valid[item])


def _with_length(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def _wrapped(number: int) -> int:
    """As int64 arithmetic would have it: a delta between far timestamps wraps, and adding it wraps back."""
    return (number + 2**63) % 2**64 - 2**63


def _header_section(section: bytes, deliver_after: int, record: int) -> bytes:
    """The section, with one header more where the record's deliver_after is to travel in it."""
    count, start = 0, 0
    if section:
        view = memoryview(section)
        try:
            _read_headers(view, 0, len(view))
        except InvalidBatch as error:
            raise InvalidRecord(f"record {record}: malformed headers: {error}") from None
        count, start = read_zigzag(view, 0, len(view), 32)
    if deliver_after < 0:
        return section or b"\0"
    own = _with_length(DELIVER_AFTER_KEY) + _with_length(deliver_after.to_bytes(8, "big"))
    return zigzag(count + 1) + section[start:] + own


DecodedRecord = tuple[bytes | None, bytes | None, bytes, int, int]
"""Key, value, header section, timestamp, deliver_after."""


def _decode_batch(batch: memoryview, count: int, lenient: bool) -> list[DecodedRecord]:
    header = BatchHeader.read(batch, 0)
    if header.attributes & CODEC_BITS:
        raise InvalidBatch(REASONS[COMPRESSED])
    records = []
    position = HEADER_BYTES
    for delta in range(count):
        record, _, position = _read_record(batch, position, range(delta, delta + 1), header, lenient)
        records.append(record)
    if position != len(batch):
        raise InvalidBatch(REASONS[LEFT_OVER])
    return records


def decode_compacted(batch: memoryview) -> list[tuple[int, DecodedRecord]]:
    """The records that compaction left in a batch that is not compressed, each with its offset delta. InvalidBatch.

    As `decode_records` with `lenient`. There is no compiled form: no log of ours has such batches.
    """
    header, behind = BatchHeader.read(batch, 0), BatchHeader.read(batch, 0).last_offset_delta + 1
    records: list[tuple[int, DecodedRecord]] = []
    position, delta = HEADER_BYTES, -1
    for _ in range(header.records):
        record, delta, position = _read_record(batch, position, range(delta + 1, behind), header, True)
        records.append((delta, record))
    if position != len(batch):
        raise InvalidBatch(REASONS[LEFT_OVER])
    return records


def timed_records(batch: memoryview, deliver_after: int) -> list[bytes]:
    """The records of a batch that is not compressed, as stored, each that does not say when with a header that does.

    Of a batch out of which compaction took records, too. InvalidBatch. There is no compiled form: who exports asks.
    """
    records, position = list[bytes](), HEADER_BYTES
    for _ in range(BatchHeader.read(batch, 0).records):
        size, start = read_zigzag(batch, position, len(batch), 32)
        if not 1 <= size <= len(batch) - start:
            raise InvalidBatch(REASONS[BOUNDS])
        position = start + size
        _, at = read_zigzag(batch, start + 1, position)
        _, at = read_zigzag(batch, at, position, 32)
        _, at = _read_nullable(batch, at, position)
        _, at = _read_nullable(batch, at, position)
        section = batch[at:position].tobytes()
        if not _read_headers(batch, at, position)[1]:
            section = _header_section(section, deliver_after, len(records))
        records.append(_with_length(batch[start:at].tobytes() + section))
    if position != len(batch):
        raise InvalidBatch(REASONS[LEFT_OVER])
    return records


def _read_record(
    batch: memoryview, position: int, deltas: range, header: BatchHeader, lenient: bool
) -> tuple[DecodedRecord, int, int]:
    """The record at `position`, its offset delta, which must be one of some, and the position behind it."""
    size, position = read_zigzag(batch, position, len(batch), 32)
    if not 1 <= size <= len(batch) - position:
        raise InvalidBatch(REASONS[BOUNDS])
    end = position + size
    timestamp_delta, position = read_zigzag(batch, position + 1, end)
    offset_delta, position = read_zigzag(batch, position, end, 32)
    if offset_delta not in deltas:
        raise InvalidBatch(REASONS[OFFSET_DELTA])
    key, position = _read_nullable(batch, position, end)
    value, position = _read_nullable(batch, position, end)
    count, asked = _read_headers(batch, position, end)
    deliver_after = _parse_deliver_after(asked[-1], lenient) if asked else -1
    if header.attributes & LOG_APPEND_TIME:
        timestamp = header.max_timestamp
    else:
        timestamp = _wrapped(header.base_timestamp + timestamp_delta)
    section = batch[position:end].tobytes() if count else b""
    return (key, value, section, timestamp, deliver_after), offset_delta, end


def _read_nullable(batch: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_zigzag(batch, position, end, 32)
    if not -1 <= size <= end - position:
        raise InvalidBatch(REASONS[BOUNDS])
    if size < 0:
        return None, position
    return batch[position : position + size].tobytes(), position + size


def _read_headers(section: memoryview, position: int, end: int) -> tuple[int, list[bytes | None]]:
    """(how many headers fill the section, the values of those called `deliver-after`)."""
    count, position = read_zigzag(section, position, end, 32)
    if count < 0:
        raise InvalidBatch(REASONS[BOUNDS])
    deliver_after = []
    for _ in range(count):
        key, position = _read_nullable(section, position, end)
        if key is None:
            raise InvalidBatch(REASONS[BOUNDS])
        value, position = _read_nullable(section, position, end)
        if key == DELIVER_AFTER_KEY:
            deliver_after.append(value)
    if position != end:
        raise InvalidBatch(REASONS[LEFT_OVER])
    return count, deliver_after


def _parse_deliver_after(value: bytes | None, lenient: bool) -> int:
    """Eight bytes are a big-endian int64, anything else decimal digits. lenient: -1 for what is neither."""
    deliver_after = -1
    if value is not None and len(value) == 8:
        deliver_after = int.from_bytes(value, "big", signed=True)
    elif value is not None and len(value) <= 19 and value.isdigit():
        deliver_after = int(value)
    if not 0 <= deliver_after <= INT64_MAX:
        if lenient:
            return -1
        raise InvalidDeliverAfter(REASONS[DELIVER_AFTER])
    return deliver_after
