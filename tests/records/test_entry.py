import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import InvalidBatch, InvalidRecord
from afterlog.records.batch import Record, encode_batch
from afterlog.records.columns import EXTRA_BYTES_MAX
from afterlog.records.entry import (
    METADATA_BYTES_MAX,
    AppendBrokerTimestamp,
    AppendIndex,
    BrokerEntryMetadata,
    decode_entry,
    encode_entry,
    extra_fields,
    protobuf_field,
)
from afterlog.records.pure import stamp_entries
from tests.records.forged import MALFORMED_METADATA, forged_entry

T = 1_700_000_000_000
BATCH = encode_batch([Record(value=b"hello", timestamp=T)])
BATCH_AT_7 = struct.pack(">q", 7) + BATCH[8:]
METADATA = BrokerEntryMetadata(broker_timestamp=T, index=7, deliver_after=T + 60_000)


def test_example_of_the_head() -> None:
    entry = bytes.fromhex(
        "0E 02   00 00 00 17"
        "08 80 D0 95 FF BC 31"
        "10 07"
        "80 01 E0 A4 99 FF BC 31"
        "8D 01 2D C5 CF D3"
    )  # fmt: skip
    assert entry + BATCH_AT_7 == encode_entry(METADATA, BATCH_AT_7)
    stamped, positions = stamp_entries(
        np.frombuffer(BATCH, np.uint8), np.array([0, len(BATCH)]), 7, T, np.array([T + 60_000]), b""
    )
    assert entry + BATCH_AT_7 == stamped.tobytes()
    assert [0, len(stamped)] == positions.tolist()


def test_decode() -> None:
    data = b"junk" + encode_entry(METADATA, BATCH_AT_7) + b"more"
    entry = decode_entry(data, 4)
    assert METADATA == entry.metadata
    assert (4, len(data) - 8, 4 + 29) == (entry.position, entry.size, entry.batch_position)
    assert (7, 1) == (entry.header.base_offset, entry.header.records)


def test_a_bare_batch_is_an_entry() -> None:
    entry = decode_entry(BATCH_AT_7, 0)
    assert entry.metadata is None
    assert BATCH_AT_7 == encode_entry(None, BATCH_AT_7)
    assert (0, len(BATCH_AT_7)) == (entry.batch_position, entry.size)


NUMBERS = st.integers(-1, 2**63 - 1)


@given(NUMBERS, NUMBERS, NUMBERS, st.lists(st.tuples(st.integers(32, 2**29 - 1), st.binary(max_size=9)), max_size=3))
def test_metadata_round_trip(
    broker_timestamp: int, deliver_after: int, asked: int, extra: list[tuple[int, bytes]]
) -> None:
    metadata = BrokerEntryMetadata(
        broker_timestamp=broker_timestamp,
        index=7,
        deliver_after=deliver_after,
        deliver_after_asked=asked,
        extra=b"".join(protobuf_field(number, value) for number, value in extra),
    )
    assert metadata == decode_entry(encode_entry(metadata, BATCH_AT_7), 0).metadata


def test_any_order_and_unknown_fields() -> None:
    fields = (
        protobuf_field(16, T)
        + protobuf_field(9, b"unknown")
        + b"\x29" + bytes(8)  # 5, fixed64
        + b"\x35" + bytes(4)  # 6, fixed32
        + protobuf_field(2, 7)
        + protobuf_field(40, 3)
        + protobuf_field(1, T)
    )  # fmt: skip
    expected = BrokerEntryMetadata(broker_timestamp=T, index=7, deliver_after=T, extra=protobuf_field(40, 3))
    assert expected == decode_entry(forged_entry(fields, BATCH_AT_7), 0).metadata


@pytest.mark.parametrize("fields", MALFORMED_METADATA)
def test_malformed_metadata(fields: bytes) -> None:
    with pytest.raises(InvalidBatch, match="metadata is malformed"):
        decode_entry(forged_entry(fields, BATCH_AT_7), 0)


def test_a_prefix_without_header_crc_is_foreign() -> None:
    with pytest.raises(InvalidBatch, match="metadata is malformed"):
        decode_entry(forged_entry(b"", BATCH_AT_7, tail=protobuf_field(1, 2**28)), 0)


def test_every_flipped_bit_is_noticed() -> None:
    entry = encode_entry(METADATA, BATCH_AT_7)
    for bit in range(8 * len(entry)):
        damaged = bytearray(entry)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidBatch):
            decode_entry(damaged, 0)


def test_every_torn_entry_is_short() -> None:
    entry = encode_entry(METADATA, BATCH_AT_7)
    for size in range(len(entry)):
        with pytest.raises(InvalidBatch, match="end before the entry does"):
            decode_entry(entry[:size], 0)


def test_a_length_that_rotted_is_rot_and_not_the_end_of_the_file() -> None:
    entry = bytearray(encode_entry(METADATA, BATCH_AT_7))
    entry[29 + 9] ^= 0x40
    with pytest.raises(InvalidBatch, match="header's CRC"):
        decode_entry(entry, 0)


@pytest.mark.parametrize(
    ("patch", "position", "reason"),
    [
        (b"\1", 16, "magic 2"),
        (struct.pack(">i", 48), 8, "impossible"),
        (struct.pack(">i", -1), 8, "impossible"),
        (struct.pack(">i", 2), 57, "impossible"),
        (struct.pack(">i", 0), 57, "impossible"),
        (struct.pack(">q", -1), 0, "base offset"),
        (struct.pack(">i", 1 << 30), 8, "end before"),
        (struct.pack(">i", 1), 12, "epoch"),
        (b"\xff", 17, "body's CRC"),
        (b"\xff", 72, "body's CRC"),
    ],
)
def test_faults_of_a_bare_batch(patch: bytes, position: int, reason: str) -> None:
    batch = bytearray(BATCH_AT_7)
    batch[position : position + len(patch)] = patch
    with pytest.raises(InvalidBatch, match=reason):
        decode_entry(batch, 0)


def test_metadata_beyond_any_size_that_is_written() -> None:
    with pytest.raises(InvalidBatch, match="impossible length"):
        decode_entry(struct.pack(">HI", 0x0E02, METADATA_BYTES_MAX + 1) + bytes(100_000), 0)


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_outside(position: int) -> None:
    with pytest.raises(InvalidBatch, match="outside"):
        decode_entry(b"ab", position)


class Answers:
    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[tuple[int, int, int]] = []

    def intercept(self, first_offset: int, broker_timestamp: int, entries: int) -> bytes:
        self.asked.append((first_offset, broker_timestamp, entries))
        return self.answer


def test_interceptors_are_asked_once_an_append_and_joined() -> None:
    one, two = Answers(protobuf_field(32, 1)), Answers(protobuf_field(33, b"rack-7"))
    extra = extra_fields((one, AppendIndex(), two, AppendBrokerTimestamp()), 100, T, 3)
    assert protobuf_field(32, 1) + protobuf_field(33, b"rack-7") == extra
    assert [(100, T, 3)] == one.asked == two.asked


@pytest.mark.parametrize(
    "answer", [b"\xff", protobuf_field(31, 1), protobuf_field(17, 1), protobuf_field(32, b"x" * EXTRA_BYTES_MAX)]
)
def test_interceptors_that_answer_wrongly(answer: bytes) -> None:
    with pytest.raises(InvalidRecord):
        extra_fields((Answers(answer),), 0, T, 1)


def test_an_interceptor_that_is_none() -> None:
    with pytest.raises(InvalidRecord, match="str has no method intercept"):
        extra_fields(("nonsense",), 0, T, 1)


@pytest.mark.parametrize(("number", "value"), [(0, 1), (2**29, 1), (32, -1), (32, 2**64)])
def test_fields_that_protobuf_cannot_hold(number: int, value: int) -> None:
    with pytest.raises(ValueError, match=r"protobuf numbers|a varint holds"):
        protobuf_field(number, value)
