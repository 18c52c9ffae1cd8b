from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap64

from afterlog.base.clock import INT64_MAX
from afterlog.subscription.events import Acked, Event, Kind, Leased, encode
from afterlog.subscription.frames import (
    HEADER_BYTES,
    Frame,
    encode_acked_one,
    encode_frame,
    encode_leased_one,
    frame_at,
    proof_of_rot,
)

INT64 = st.integers(0, INT64_MAX)


def frame(number: int, position: int, body: bytes, *, durable: int = 0) -> bytes:
    return encode_frame(number, position, Kind.ACKED, body, log_end_offset=40, durable=durable)


def test_as_drawn() -> None:
    data = bytes(180) + frame(0, 180, b"0123", durable=180)
    assert "73 75 62 01" == data[180:184].hex(" ")
    assert "04 00 00 00 03 00 00 00 28 00 00 00 00 00 00 00 b4 00 00 00 00 00 00 00" == data[188:212].hex(" ")
    assert Frame(180, Kind.ACKED, 40, 180, memoryview(b"0123")) == frame_at(memoryview(data), 0, 180)
    assert len(data) == 180 + HEADER_BYTES + 4


def test_it_belongs_to_one_place() -> None:
    data = memoryview(frame(3, 0, b"0123"))
    assert frame_at(data, 3, 0)
    assert not frame_at(data, 4, 0)
    assert not frame_at(memoryview(bytes(8) + bytes(data)), 3, 8)


@pytest.mark.parametrize("body", [b"", b"0123"])
def test_every_bit_and_every_length(body: bytes) -> None:
    data = frame(3, 0, body)
    for position in range(len(data)):
        assert not frame_at(memoryview(data[:position]), 3, 0)
        for bit in range(8):
            rotten = bytearray(data)
            rotten[position] ^= 1 << bit
            assert not frame_at(memoryview(rotten), 3, 0)


def test_proof_of_rot() -> None:
    first, second = frame(3, 0, b"0123"), frame(3, 36, b"sub\x01", durable=36)
    data = first + second
    assert second == data[36:]
    found = proof_of_rot(data, 3, 0)
    assert found
    assert 36 == found.position
    assert not proof_of_rot(data, 3, 36)
    assert not proof_of_rot(first + frame(3, 36, b"", durable=0), 3, 0)
    assert not proof_of_rot(data[:-1], 3, 0)


@given(INT64, INT64, INT64, INT64, INT64, INT64)
@example(7, 180, 1, 0, 40, 0)
@example(7, 180, 65_537, 65_536, 40, 180)
@example(7, 180, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX)
def test_of_one_offset(number: int, position: int, upto: int, offset: int, log_end: int, durable: int) -> None:
    def columnar(event: Event) -> bytes:
        return encode_frame(number, position, *encode(event), log_end_offset=log_end, durable=durable)

    offsets = BitMap64([offset])
    assert columnar(Leased(upto, offsets)) == encode_leased_one(number, position, upto, offset, log_end, durable)
    assert columnar(Acked(offsets)) == encode_acked_one(number, position, offset, log_end, durable)
