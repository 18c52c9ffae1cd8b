"""The decoders of what the log consists of: entries, batches, records, headers, control batches, compressed bodies."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
from crc32c import crc32c

from afterlog.base.errors import InvalidBatch, InvalidDeliverAfter, InvalidRecord
from afterlog.index.cancel_index import Cancelled
from afterlog.records import _kernels, pure
from afterlog.records.batch import (
    Record,
    decode_batch,
    decode_compacted,
    decode_headers,
    encode_batch,
    encode_headers,
    validate_batch,
    without_records,
)
from afterlog.records.columns import FAULTS, OK, PREFIX, Decoded, ragged
from afterlog.records.compression import compress, decompress
from afterlog.records.control import KEY, Control, ControlType, read_controls
from afterlog.records.entry import (
    PREFIX_HEAD,
    PREFIX_MAGIC,
    BrokerEntryMetadata,
    decode_entry,
    encode_entry,
    protobuf_field,
    read_compacted,
    read_metadata,
)
from afterlog.records.header import CODEC_BITS, CONTROL, CRC_END, CRC_START, HEADER_BYTES, BatchHeader, with_crc
from afterlog.records.varint import read_varint, read_zigzag, varint, zigzag
from tests.fuzzing.decoder import Decoder, accepted, agreed, array, refused, same
from tests.records.forged import MALFORMED_METADATA, forged_entry

NOW_MS: Final = 1_700_000_000_000
LIMIT_BYTES: Final = 1 << 16
"""What compressed records may hold here."""
_REFUSED: Final = (InvalidBatch, InvalidDeliverAfter)

_RECORDS: Final = (
    [Record(value=b"hello", timestamp=NOW_MS)],
    [Record(value=b"hello", timestamp=NOW_MS, deliver_after=NOW_MS + 500, headers=[("h", b"v"), ("n", None)])],
    [Record(value=None, key=b"k" * row, timestamp=NOW_MS + row, headers=[("e", b"")] * row) for row in range(4)],
    [Record(value=b"v" * 300, key=None, timestamp=-1, deliver_after=row or None) for row in range(3)],
    [Record(value=b"", timestamp=0, headers=[("deliver-after", b"1700000000500")])],
)


def batches() -> list[bytes]:
    """Of every shape and codec."""
    plain = [encode_batch(records) for records in _RECORDS]
    return plain + [encode_batch([Record(value=b"a" * 400, timestamp=1)] * 2, codec) for codec in ("gzip", "lz4")]


def stamped(batch: bytes, base_offset: int, *, extra: bytes = b"") -> bytes:
    """As an entry of the log."""
    asked = np.array([NOW_MS + 900 * (base_offset % 2) - 300], np.int64)
    data = array(batch)
    return _kernels.stamp_entries(data, np.array([0, len(data)]), base_offset, NOW_MS, asked, extra)[0].tobytes()


def controls() -> list[bytes]:
    """Control batches as entries; the last is nobody's."""
    targets = np.array([3, 5, 4], np.int64), np.array([NOW_MS + 9, NOW_MS + 70, NOW_MS + 8], np.int64)
    entries = []
    for kind, rows in ((ControlType.CANCEL, 3), (ControlType.CANCEL, 1), (ControlType.RESCHEDULE, 1)):
        control = Control(kind, targets[0][:rows], targets[1][:rows]).batches(NOW_MS)
        entries.append(stamped(control.encoded(0, 1)[0].tobytes(), 7))
    key, value = KEY.pack(0, ControlType.CANCEL), struct.pack(">qq", 3, NOW_MS + 9)
    batch = encode_batch([Record(key=key, value=value, timestamp=1, headers=[("deliver-after", b"17")])])
    header = BatchHeader.read(memoryview(batch), 0)._replace(attributes=CONTROL)
    return [*entries, stamped(with_crc(header, batch[HEADER_BYTES:]), 7)]


def logs() -> list[bytes]:
    """Stretches of log, their offsets dense; a bare one among them."""
    entries, offset = [], 7
    for number, batch in enumerate(batches()):
        entries.append(stamped(batch, offset, extra=protobuf_field(40, b"extra") if number == 2 else b""))
        offset += BatchHeader.read(memoryview(batch), 0).records
    bare = [start.to_bytes(8, "big") + batch[8:] for start, batch in zip((0, 2**63 - 1), batches()[:2], strict=True)]
    return [b"".join(entries), b"".join(entries[:2]), entries[1], *bare, *controls()]


def mend_log(data: bytearray, at: int = 0) -> int:
    """Entries from `at` on: their CRCs, and the length of one that has none that can be. Where it stopped."""
    while len(data) - at >= HEADER_BYTES:
        batch = at
        if data[at] << 8 | data[at + 1] == PREFIX_MAGIC:
            batch = at + PREFIX_HEAD.size + int.from_bytes(data[at + 2 : at + 6], "big")
            if not at + 12 <= batch <= len(data) - HEADER_BYTES:
                return at
            data[batch - 6 : batch - 4] = b"\x8d\x01"
        end = mend_batch(data, batch)
        if batch > at:
            crc = crc32c(data[batch : batch + HEADER_BYTES], crc32c(data[at : batch - 6]))
            data[batch - 4 : batch] = crc.to_bytes(4, "little")
        at = end
    return at


def mend_batch(data: bytearray, at: int) -> int:
    """A batch's CRC, and its length where that cannot be, or leaves less than a batch behind it. Where it ends."""
    if len(data) - at < HEADER_BYTES:
        return len(data)
    end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    if not at + HEADER_BYTES <= end <= len(data) - HEADER_BYTES:
        end = len(data)
        data[at + 8 : at + 12] = (end - at - 12).to_bytes(4, "big")
    data[at + CRC_START : at + CRC_END] = crc32c(data[at + CRC_END : end]).to_bytes(4, "big")
    return end


# ---- numbers


def read_varints(data: bytes) -> str:
    """Byte 0: 32 or 64 bits."""
    bits = 32 if data[:1] < b"\x80" else 64
    view, outcome = memoryview(data)[1:], []
    for reader, writer in ((read_varint, varint), (read_zigzag, zigzag)):
        try:
            number, end = reader(view, 0, len(view), bits)
        except InvalidBatch as error:
            outcome.append(refused(error))
            continue
        assert -(1 << bits - 1) <= number < 1 << bits
        again = writer(number)
        assert len(again) <= end <= len(view)
        assert (number, len(again)) == reader(memoryview(again), 0, len(again), bits)
        outcome.append(accepted(bits, number, end, len(again)))
    return " ".join(outcome)


def read_header(data: bytes) -> str:
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        return "short"
    header = BatchHeader.read(view, 0)
    assert data[:HEADER_BYTES] == header.encode()
    assert header.size == header.length + 12
    return accepted(header.lengths_fit, header.magic == 2, header.attributes & 0x7F)


# ---- entries


def read_entries(data: bytes) -> str:
    """Byte 0: how to scan; then a log. What one implementation finds the other one does, and so does a look-up."""
    how = data[0] if data else 0
    log = array(data[1:])
    next_offset = -1
    if how & 4 and len(data) > 1 + 87:
        next_offset = 7 if how & 8 else int.from_bytes(data[1:9], "big", signed=True)
    options = 0, len(log), next_offset, bool(how & 1), (-1, 0, 1, 2)[how >> 6], bool(how & 2)
    scan = agreed((), *(lambda kernel=kernel: kernel.scan_entries(log, *options) for kernel in (pure, _kernels)))
    if next_offset >= 0 and len(scan.offset):
        assert next_offset == scan.offset[0]
        assert (scan.offset[1:] == scan.offset[:-1] + scan.records[:-1]).all()
    count = len(scan.position)
    if how & 1 and not how & 2:
        assert OK == _read_places(data[1:], scan, count)
    return accepted(FAULTS[scan.fault], count, how & 0xC7, scan.attributes[-1] if count else "")


def _read_places(log: bytes, scan: _kernels.Scan, count: int) -> int:
    """The entries of a scan by their places: checked, and read as far as that goes."""
    which = np.zeros(count, np.int32)
    places = [array(log)], which, scan.position, scan.offset, scan.records, scan.deliver_after
    checked = agreed((), *(lambda kernel=kernel: kernel.check_entries(*places) for kernel in (pure, _kernels)))
    assert count == checked.row
    if count:
        place = int(scan.position[0])
        single = log[place:], int(scan.offset[0]), int(scan.deliver_after[0])
        agreed((), *(lambda kernel=kernel: kernel.read_single(*single) for kernel in (pure, _kernels)))
    agreed(_REFUSED, *(lambda kernel=kernel: kernel.read_records(*places, 1 << 12) for kernel in (pure, _kernels)))
    return int(checked.fault)


def read_one_entry(data: bytes) -> str:
    """A value that encodes to itself again, or InvalidBatch."""
    scan = _kernels.scan_entries(array(data), 0, len(data), -1, True, 1)
    try:
        entry = decode_entry(data, 0)
    except InvalidBatch as error:
        assert len(scan.position) == 0 or not data
        outcome = refused(error)
    else:
        batch = data[entry.batch_position : entry.size]
        again = decode_entry(encode_entry(entry.metadata, batch), 0)
        assert (entry.header, entry.metadata) == (again.header, again.metadata)
        assert [entry.size] == scan.size.tolist()
        told = entry.metadata or BrokerEntryMetadata()
        outcome = accepted(
            entry.header.attributes & 0x7F,
            told.deliver_after,
            told.deliver_after_asked < 0,
            told.index < 0,
            told.extra[:1],
        )
    return f"{outcome} {_read_compacted(data)}"


def _read_compacted(data: bytes) -> str:
    """As a Kafka broker leaves it."""
    entry = read_compacted(memoryview(data), 0, len(data))
    if entry is None:
        return ""
    try:
        records = decode_compacted(data[: entry.size], limit_bytes=LIMIT_BYTES)
    except _REFUSED as error:
        return refused(error)
    deltas = [delta for delta, _ in records]
    assert entry.header.records == len(records)
    assert sorted({*deltas}) == deltas
    return accepted("compacted", len(records))


_BATCH: Final = encode_batch(_RECORDS[0])


def read_broker_metadata(data: bytes) -> str:
    """Protobuf as it may stand in front of a batch of offset 0."""
    data = data[:4096]
    scan = _kernels.scan_entries(array(forged_entry(data, _BATCH)), 0, -1, -1, True, 1)
    try:
        told = read_metadata(memoryview(data), 0, len(data))
    except InvalidBatch as error:
        assert (PREFIX, 0) == (scan.fault, len(scan.offset))
        return refused(error)
    assert (OK if told.index in (-1, 0) else PREFIX) == scan.fault
    if scan.fault == OK:
        assert (told.deliver_after, told.broker_timestamp) == (scan.deliver_after[0], scan.broker_timestamp[0])
    return accepted(
        scan.fault, told.deliver_after, told.broker_timestamp, told.index, told.deliver_after_asked, len(told.extra)
    )


# ---- records


def read_records(data: bytes) -> str:
    """One batch: to columns by both implementations, to records, as a client's, and encoded again."""
    if len(data) < HEADER_BYTES:
        return "short"
    header = BatchHeader.read(memoryview(data), 0)
    places = np.array([0, 0], np.int32)[:1], np.array([0]), np.array([len(data)]), np.array([header.records])
    decoded = agreed(
        _REFUSED, *(lambda kernel=kernel: kernel.decode_records([array(data)], *places) for kernel in (pure, _kernels))
    )
    outcome = refused(decoded) if isinstance(decoded, Exception) else _encoded_again(decoded)
    return f"{outcome} {_read_as_a_clients(data)}"


def _encoded_again(decoded: Decoded) -> str:
    count = len(decoded.timestamp)
    if count == 0:
        return "nothing"
    key, value = (decoded.key, decoded.key_valid), (decoded.value, decoded.value_valid)
    columns = *value, *key, decoded.headers, decoded.timestamp, None, np.array([0, count])
    batch, positions = agreed(
        (), *(lambda kernel=kernel: kernel.encode_batches(*columns) for kernel in (pure, _kernels))
    )
    places = np.zeros(1, np.int32), positions[:1], positions[1:], np.array([count])
    assert same(decoded, _kernels.decode_records([batch], *places)), "other records than were encoded"
    return accepted(
        count, len(decoded.headers[1]), int(decoded.deliver_after.max()) >= 0, bool(decoded.key_valid.all())
    )


def _read_as_a_clients(data: bytes) -> str:
    try:
        info = validate_batch(data, limit_bytes=LIMIT_BYTES)
        records = decode_batch(data, limit_bytes=LIMIT_BYTES)
    except _REFUSED as error:
        return refused(error)
    assert info.records == len(records)
    assert info.deliver_after == max(-1 if record.deliver_after is None else record.deliver_after for record in records)
    if all(record.timestamp >= -1 for record in records):
        again = decode_batch(encode_batch(records), limit_bytes=LIMIT_BYTES)
        assert records == again, f"{records!r:.300} and {again!r:.300}"
    left = without_records(data, {0}, limit_bytes=LIMIT_BYTES)
    assert info.records - 1 == len(decode_compacted(left, limit_bytes=LIMIT_BYTES))
    return accepted(info.records, info.attributes & CODEC_BITS)


def mend_records(data: bytearray) -> None:
    """Length, CRC, and as many offsets as records."""
    if len(data) >= HEADER_BYTES:
        records = int.from_bytes(data[57:61], "big")
        data[23:27] = ((records - 1) % (1 << 32)).to_bytes(4, "big")
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
        mend_batch(data, 0)


def read_header_section(data: bytes) -> str:
    """Headers that encode to themselves again; a batch takes just those sections that can be read."""
    values, _ = ragged([b"v"])
    section, _ = ragged([data])
    columns = values, None, None, None, section, np.array([NOW_MS]), np.array([NOW_MS + 1]), np.array([0, 1])
    batch = agreed(
        (InvalidRecord,), *(lambda kernel=kernel: kernel.encode_batches(*columns) for kernel in (pure, _kernels))
    )
    try:
        headers = decode_headers(data)
    except InvalidBatch as error:
        assert isinstance(batch, InvalidRecord)
        return refused(error)
    assert not isinstance(batch, Exception)
    assert headers == decode_headers(encode_headers(headers))
    return accepted(len(headers), any(value is None for _, value in headers), "deliver-after" in dict(headers))


def read_control_batches(data: bytes) -> str:
    """What the log said to itself, or InvalidBatch."""
    log = array(data)
    scan = _kernels.scan_entries(log, 0, len(log), -1, True)
    try:
        found = read_controls(log, scan)
    except InvalidBatch as error:
        return refused(error)
    assert same(Cancelled.from_bytes(found.cancelled.to_bytes()).target, found.cancelled.target)
    found.unfollowed(scan)
    found.cancelled.controls()
    return accepted(FAULTS[scan.fault], len(found.row), len(found.cancelled), *found.type[:1])


def read_compressed(data: bytes) -> str:
    """Byte 0: codec. Not more than the limit comes out, and what came out is compressed to itself again."""
    codec, body = data[0] & 7 if data else 0, data[1:]
    try:
        plain = decompress(codec, body, LIMIT_BYTES)
    except InvalidBatch as error:
        return f"{codec} {refused(error)}"
    assert len(plain) <= LIMIT_BYTES
    assert plain == decompress(codec, compress(codec, plain), LIMIT_BYTES)
    return accepted(str(codec), len(plain), len(body))


def _compressed_seeds() -> Sequence[bytes]:
    contents = (b"", b"a", bytes(range(256)) * 3, bytes(LIMIT_BYTES), bytes(LIMIT_BYTES + 1))
    raw_snappy = struct.pack(">BB", 2, 0x05) + b"\x04ab"
    return [
        raw_snappy,
        *(bytes([codec]) + compress(codec, data) for codec in range(5) for data in contents[: 5 if codec else 3]),
    ]


def _metadata_seeds() -> Sequence[bytes]:
    metadata = encode_entry(
        BrokerEntryMetadata(
            broker_timestamp=1, index=0, deliver_after=NOW_MS, deliver_after_asked=5, extra=protobuf_field(40, 9)
        ),
        b"",
    )
    return [metadata[6:-6], *MALFORMED_METADATA]


def _section_seeds() -> Sequence[bytes]:
    return [
        encode_headers(headers) for headers in ([], [("h", b"v")], [("deliver-after", bytes(8)), ("n\udc80", None)])
    ]


RECORD_DECODERS: Final = (
    Decoder("varint", lambda: [bytes([0x80 * (n % 2)]) + zigzag(n << n) for n in range(0, 63, 3)], read_varints),
    Decoder("batch-header", lambda: [batch[:HEADER_BYTES] for batch in batches()], read_header),
    Decoder(
        "scan",
        lambda: [bytes([how]) + log for how in (1, 5, 3, 13, 0x85) for log in logs()],
        read_entries,
        lambda data: mend_log(data, 1),
    ),
    Decoder(
        "entry",
        lambda: [*(stamped(batch, 7) for batch in batches()), *batches(), *controls()],
        read_one_entry,
        mend_log,
    ),
    Decoder("broker-metadata", _metadata_seeds, read_broker_metadata),
    Decoder("records", batches, read_records, mend_records),
    Decoder("header-section", _section_seeds, read_header_section),
    Decoder(
        "control",
        lambda: [b"".join(controls()), *controls(), logs()[1] + controls()[0]],
        read_control_batches,
        mend_log,
    ),
    Decoder("compression", _compressed_seeds, read_compressed),
)
