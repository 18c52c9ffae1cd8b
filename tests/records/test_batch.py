import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from afterlog.base.config import Codec
from afterlog.base.errors import InvalidBatch, InvalidDeliverAfter, InvalidRecord, UnsupportedCodec
from afterlog.records.batch import (
    BatchInfo,
    Headers,
    Record,
    compress_batches,
    decode_batch,
    decode_headers,
    decode_own_headers,
    decompressed,
    encode_batch,
    encode_headers,
    own_headers,
    validate_batch,
    validate_batches,
    with_times,
)
from afterlog.records.compression import CODECS
from afterlog.records.header import BatchHeader, with_crc
from afterlog.records.kernels import decode_records
from tests.log import kafka_python

T = 1_700_000_000_000
LIMIT = 1 << 20
every_codec = pytest.mark.parametrize("codec", CODECS)

NULLABLE = st.none() | st.binary(max_size=30) | st.just(b"all work and no play " * 20)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
RECORD = st.builds(
    Record,
    value=NULLABLE,
    key=NULLABLE,
    headers=HEADERS,
    timestamp=st.integers(-1, 2**63 - 1),
    deliver_after=st.none(),
)


def changed(batch: bytes, **fields: int) -> bytes:
    """The batch with other header fields, and its CRC right unless that is changed."""
    header = BatchHeader.read(memoryview(batch), 0)
    data = with_crc(header._replace(**{name: value for name, value in fields.items() if name != "crc"}), batch[61:])
    if "crc" in fields:
        data = BatchHeader.read(memoryview(data), 0)._replace(crc=fields["crc"]).encode() + data[61:]
    return data


def test_example_of_the_heads() -> None:
    header = bytes.fromhex(
        "00 00 00 00 00 00 00 00   00 00 00 3D   00 00 00 00   02   E6 41 A4 4B"
        "00 00   00 00 00 00   00 00 01 8B CF E5 68 00   00 00 01 8B CF E5 68 00"
        "FF FF FF FF FF FF FF FF   FF FF   FF FF FF FF   00 00 00 01"
    )
    batch = encode_batch([Record(value=b"hello", timestamp=T)])
    assert (73, header) == (len(batch), batch[:61])
    record = bytes.fromhex(
        "44  00 00 00  01  0A 68 65 6C 6C 6F  021A 64 65 6C 69 76 65 72 2D 61 66 74 65 7210 00 00 01 8B CF E5 68 00"
    )
    mixed = encode_batch(
        [
            Record(value=b"hello", timestamp=T, deliver_after=T),
            Record(value=b"x", timestamp=T, deliver_after=T + 500),
        ]
    )
    assert record == mixed[61 : 61 + len(record)]


@every_codec
@given(records=st.lists(RECORD, min_size=1, max_size=5))
def test_round_trip(codec: Codec, records: list[Record]) -> None:
    assert records == decode_batch(encode_batch(records, codec), limit_bytes=LIMIT)


def test_every_record_carries_its_time_so_that_a_batch_speaks_for_itself() -> None:
    records = [Record(value=b"a", timestamp=T, deliver_after=T), Record(value=b"b", timestamp=T, deliver_after=T)]
    assert [T, T] == [record.deliver_after for record in decode_batch(encode_batch(records), limit_bytes=LIMIT)]
    assert T == validate_batch(encode_batch(records), limit_bytes=LIMIT).deliver_after


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (Record(value=b"a", timestamp=-2), InvalidRecord),
        (Record(value=b"a", timestamp=2**63), InvalidRecord),
        (Record(value=b"a", timestamp=T, deliver_after=-1), InvalidDeliverAfter),
        (Record(value=b"a", timestamp=T, deliver_after=2**63), InvalidDeliverAfter),
        (Record(value=b"a", timestamp=T, headers=[("\ud800", b"")]), InvalidRecord),
    ],
)
def test_records_that_cannot_be_encoded(record: Record, error: type[InvalidRecord]) -> None:
    with pytest.raises(error):
        encode_batch([record])


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(InvalidBatch):
        encode_batch([])


# ---- against kafka-python


def as_int64(number: int) -> int:
    """As Java's clients add a delta: kafka-python's sum of two times that lie 2^63 ms apart does not wrap."""
    return (number + 2**63) % 2**64 - 2**63


@every_codec
@given(records=st.lists(RECORD, min_size=1, max_size=5))
def test_kafka_python_reads_ours(codec: Codec, records: list[Record]) -> None:
    batch = kafka_python.records.DefaultRecordBatch(encode_batch(records, codec))
    assert batch.validate_crc()
    assert (0, len(records) - 1, len(records)) == (batch.base_offset, batch.last_offset, batch.records_count)
    assert max(record.timestamp for record in records) == batch.max_timestamp
    theirs = [(record.offset, as_int64(record.timestamp), record.key, record.value, record.headers) for record in batch]
    ours = [
        (offset, record.timestamp, record.key, record.value, list(record.headers))
        for offset, record in enumerate(records)
    ]
    assert ours == theirs


@every_codec
@given(records=st.lists(RECORD, min_size=1, max_size=5))
def test_we_read_kafka_pythons(codec: Codec, records: list[Record]) -> None:
    timestamps = [record.timestamp for record in records]
    assume(max(timestamps) - timestamps[0] < 2**63)  # beyond it kafka-python writes a delta that no int64 holds
    builder = kafka_python.records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODECS.index(codec),
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=LIMIT,
    )
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    assert records == decode_batch(batch, limit_bytes=LIMIT)
    assert len(records) == validate_batch(batch, limit_bytes=LIMIT).records


# ---- validate


@every_codec
def test_validate(codec: Codec) -> None:
    records = [
        Record(value=b"a" * 99, timestamp=T + 5, headers=[("deliver-after", b"1700000000900")]),
        Record(value=b"a" * 99, timestamp=T, headers=[("deliver-after", b"1700000000100")]),
    ]
    info = validate_batch(encode_batch(records, codec), limit_bytes=LIMIT)
    assert BatchInfo(records=2, deliver_after=T + 900, max_timestamp=T + 5, attributes=CODECS.index(codec)) == info


def test_validate_several() -> None:
    batches = [
        encode_batch([Record(value=b"a", timestamp=T), Record(value=b"b", timestamp=T)]),
        encode_batch([Record(value=b"c" * 99, timestamp=T + 1, headers=[("deliver-after", b"7")])], "zstd"),
    ]
    columns = validate_batches(b"".join(batches), limit_bytes=LIMIT)
    assert [0, len(batches[0]), len(batches[0] + batches[1])] == columns.positions.tolist()
    assert ([2, 1], [-1, 7], [T, T + 1], [0, 4]) == tuple(column.tolist() for column in columns[1:])
    with pytest.raises(InvalidBatch, match="2 batches"):
        validate_batch(b"".join(batches), limit_bytes=LIMIT)
    with pytest.raises(InvalidBatch, match="2 batches"):
        decode_batch(b"".join(batches), limit_bytes=LIMIT)


GOOD = encode_batch([Record(value=b"a", timestamp=T), Record(value=b"b", timestamp=T)])


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (b"", "fewer than a header"),
        (GOOD[:60], "fewer than a header"),
        (GOOD[:-1], "impossible"),
        (GOOD + b"\0", "batch 1: 1 bytes"),
        (changed(GOOD, magic=1), "magic is 1"),
        (changed(GOOD, length=48), "impossible"),
        (changed(GOOD, length=-1), "impossible"),
        (changed(GOOD, length=2**31 - 1), "impossible"),
        (changed(GOOD, crc=7), "CRC"),
        (changed(GOOD, records=0, last_offset_delta=-1), "impossible"),
        (changed(GOOD, records=1), "impossible"),
        (changed(GOOD, records=3, last_offset_delta=2), "cannot hold so many"),
        (changed(GOOD, records=1, last_offset_delta=0), "left over"),
        (changed(GOOD, attributes=0x20), "control"),
        (changed(GOOD, attributes=0x30), "control"),
        (changed(GOOD, attributes=0x10), "transactional"),
        (GOOD + changed(GOOD, attributes=0x10), "batch 1: transactional"),
        (changed(GOOD, attributes=0x08), "log append time"),
        (changed(GOOD, producer_id=1), "producer id"),
        (changed(GOOD, producer_id=1, producer_epoch=0), "producer id"),
        (changed(GOOD, attributes=1), "gzip"),
        (changed(GOOD, attributes=4), "zstd"),
    ],
)
def test_batches_that_are_refused(batch: bytes, words: str) -> None:
    with pytest.raises(InvalidBatch, match=words):
        validate_batch(batch, limit_bytes=LIMIT)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_kafka_has_not(codec: int) -> None:
    with pytest.raises(UnsupportedCodec):
        validate_batch(changed(GOOD, attributes=codec), limit_bytes=LIMIT)


def test_an_idempotent_producer_is_welcome() -> None:
    batch = changed(GOOD, producer_id=1, producer_epoch=0, base_sequence=0)
    assert 2 == validate_batch(batch, limit_bytes=LIMIT).records


def test_a_foreign_leader_epoch_is_none_of_the_producers_business() -> None:
    assert 2 == validate_batch(changed(GOOD, partition_leader_epoch=-1), limit_bytes=LIMIT).records


def test_a_time_that_is_none() -> None:
    batch = encode_batch([Record(value=b"a", timestamp=T, headers=[("deliver-after", b"soon")])])
    with pytest.raises(InvalidDeliverAfter):
        validate_batch(batch, limit_bytes=LIMIT)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_is_refused(codec: Codec) -> None:
    batch = encode_batch([Record(value=bytes(200_000), timestamp=T)], codec)
    with pytest.raises(InvalidBatch, match="100000"):
        validate_batch(batch, limit_bytes=100_000)


@given(st.data())
def test_damaged_batches_are_refused_or_whole(data: st.DataObject) -> None:
    """CRC right again after the damage, so that what is behind it is tested."""
    codec = data.draw(st.sampled_from(CODECS))
    batch = bytearray(encode_batch([Record(value=b"abc" * 40, key=b"k", headers=[("h", b"v")], timestamp=T)], codec))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(8, len(batch) - 1))] = data.draw(st.integers(0, 255))
    mended = changed(bytes(batch))
    try:
        info = validate_batch(mended, limit_bytes=LIMIT)
    except InvalidRecord:
        return
    assert info.records == len(decode_batch(mended, limit_bytes=LIMIT))


# ---- columns of batches


def columns_of(*batches: bytes) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    positions = np.cumsum([0, *(len(batch) for batch in batches)])
    return np.frombuffer(b"".join(batches), np.uint8), positions


@pytest.mark.parametrize("codec", CODECS[1:])
def test_compress_batches(codec: Codec) -> None:
    large = [Record(value=b"la" * 500, timestamp=T)]
    small = [Record(value=b"x", timestamp=T)]
    data, positions = columns_of(encode_batch(large), encode_batch(small))
    packed, packed_positions = compress_batches(data, positions, codec)
    columns = validate_batches(packed, limit_bytes=LIMIT)
    assert packed_positions.tolist() == columns.positions.tolist()
    assert [CODECS.index(codec), 0] == columns.attributes.tolist()
    halves = [packed[start:end] for start, end in pairwise(packed_positions)]
    assert [large, small] == [decode_batch(half, limit_bytes=LIMIT) for half in halves]


def test_decompressed_touches_only_what_is_compressed() -> None:
    batches = [
        encode_batch([Record(value=b"%d" % number * 300, timestamp=T)], codec) for number, codec in enumerate(CODECS)
    ]
    data, positions = columns_of(*batches)
    which = np.zeros(5, np.int32)
    attributes = np.arange(5, dtype=np.int64)
    buffers, which_now, places, sizes = decompressed(
        [data], which, positions[:-1], np.diff(positions), attributes, LIMIT
    )
    assert buffers[0] is data
    assert [0, 1, 2, 3, 4] == which_now.tolist()
    assert [0, 0, 0, 0, 0] == which.tolist()
    assert (0, len(batches[0])) == (places[0], sizes[0])
    decoded = decode_records(buffers, which_now, places, sizes, np.ones(5, np.int64))
    assert b"".join(b"%d" % number * 300 for number in range(5)) == decoded.value[1].tobytes()


def test_decompressed_leaves_what_is_not_compressed() -> None:
    data, positions = columns_of(GOOD)
    arguments = ([data], np.zeros(1, np.int32), positions[:-1], np.diff(positions), np.zeros(1, np.int64))
    assert all(
        expected is actual for expected, actual in zip(arguments[1:4], decompressed(*arguments, LIMIT)[1:], strict=True)
    )


# ---- headers


@given(HEADERS)
def test_headers_round_trip(headers: Headers) -> None:
    assert list(headers) == decode_headers(encode_headers(headers))


def test_header_keys_that_are_not_utf8_survive() -> None:
    section = b"\x02\x02\xff\x01"
    assert section == encode_headers(decode_headers(section))


@pytest.mark.parametrize("section", [b"\x02", b"\x02\x01\x01", b"\x02\x04a", b"\x00x", b"\x02\x03", b"\x80", b"\x01"])
def test_malformed_header_sections(section: bytes) -> None:
    with pytest.raises(InvalidBatch):
        decode_headers(section)


def test_the_header_is_the_drawing() -> None:
    header = BatchHeader(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    assert struct.pack(">qiibIhiqqqhii", *range(1, 14)) == header.encode()
    assert header == BatchHeader.read(memoryview(b"x" + header.encode()), 1)


def test_the_name_of_the_time_header_is_the_logs() -> None:
    with pytest.raises(InvalidRecord, match="deliver_after or delay"):
        own_headers([("deliver-after", b"1")])
    assert (("k", b"v"),) == decode_own_headers(encode_headers([("deliver-after", b"1"), ("k", b"v")]))


class TestWithTimes:
    DUE_MS = 1_700_000_000_000

    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_what_says_when_stays_and_the_rest_gets_the_time(self, codec: Codec) -> None:
        rows = [(None, ()), (5, (("a", b"b"), ("n", None))), (None, (("a", b""),))]
        records = [Record(value=b"v" * 9, key=None, headers=own, timestamp=7, deliver_after=due) for due, own in rows]
        batch = encode_batch(records, codec)
        timed = with_times(batch, self.DUE_MS, limit_bytes=1 << 20)
        assert [self.DUE_MS, 5, self.DUE_MS] == [
            each.deliver_after for each in decode_batch(timed, limit_bytes=1 << 20)
        ]
        assert [own for _, own in rows] == [each.headers for each in decode_batch(timed, limit_bytes=1 << 20)]
        before, after = (BatchHeader.read(memoryview(data), 0) for data in (batch, timed))
        assert before._replace(length=after.length, crc=after.crc) == after
        assert timed == with_times(timed, self.DUE_MS + 1, limit_bytes=1 << 20)

    def test_records_that_are_broken_raise(self) -> None:
        batch = encode_batch([Record(value=b"value", timestamp=7)])
        header, body = BatchHeader.read(memoryview(batch), 0), batch[61:]
        for cut in range(len(body)):
            with pytest.raises(InvalidBatch):
                with_times(with_crc(header._replace(length=49 + cut), body[:cut]), self.DUE_MS, limit_bytes=1 << 20)
        with pytest.raises(InvalidBatch):
            with_times(with_crc(header._replace(length=50 + len(body)), body + b"\0"), self.DUE_MS, limit_bytes=1 << 20)
