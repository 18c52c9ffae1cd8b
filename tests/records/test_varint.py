import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import InvalidBatch
from afterlog.records.varint import read_varint, read_zigzag, varint, zigzag

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def test_examples_of_the_head() -> None:
    assert bytes.fromhex("AC02") == varint(300)
    assert [b"\1", b"\2", b"\3"] == [zigzag(number) for number in (-1, 1, -2)]


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varint_round_trip(number: int, rest: bytes) -> None:
    data = varint(number) + rest
    assert (number, len(data) - len(rest)) == read_varint(memoryview(data), 0, len(data))


@given(INT64)
def test_zigzag_round_trip(number: int) -> None:
    data = zigzag(number)
    assert (number, len(data)) == read_zigzag(memoryview(data), 0, len(data))


@given(INT32)
def test_zigzag_of_32_bits_round_trip(number: int) -> None:
    data = zigzag(number)
    assert len(data) <= 5
    assert (number, len(data)) == read_zigzag(memoryview(data), 0, len(data), 32)


@pytest.mark.parametrize(
    ("data", "end", "bits"),
    [
        (b"", 0, 64),
        (b"\x80", 1, 64),
        (b"\xac\x02", 1, 64),
        (b"\xff" * 9 + b"\x02", 10, 64),
        (b"\x80" * 10 + b"\x01", 11, 64),
        (b"\xff\xff\xff\xff\x10", 5, 32),
        (b"\x80\x80\x80\x80\x80\x01", 6, 32),
    ],
)
def test_cut_off_or_too_long(data: bytes, end: int, bits: int) -> None:
    with pytest.raises(InvalidBatch, match="varint"):
        read_varint(memoryview(data), 0, end, bits)


def test_longer_than_need_be_is_read() -> None:
    assert (0, 2) == read_varint(memoryview(b"\x80\x00"), 0, 2)
