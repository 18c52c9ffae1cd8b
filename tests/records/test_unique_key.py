from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import InvalidArgument, InvalidRecord, WrongType
from afterlog.records.batch import decode_headers, encode_headers
from afterlog.records.encode import ragged
from afterlog.records.unique_key import (
    HEADERS_MAX,
    KEY_BYTES_MAX,
    checked_keys,
    hash_of,
    hashes_in,
    hashes_of,
    key_of,
    keys_in,
    numbered,
    on_conflict_of,
    sections,
    with_unique_key,
)

keys = st.binary(min_size=1, max_size=200)
headers = st.lists(
    st.tuples(st.sampled_from(["a", "unique-key", "unique-kez", "deliver-after"]), st.none() | st.binary(max_size=70)),
    max_size=4,
)


def first(section: bytes) -> bytes | None:
    """By the plain way."""
    found = decode_headers(section) if section else []
    name, value = found[0] if found else ("", None)
    return value if name == "unique-key" and value and len(value) <= KEY_BYTES_MAX else None


@given(keys, headers)
def test_the_key_is_the_first_header(key: bytes, others: list[tuple[str, bytes | None]]) -> None:
    section = with_unique_key(encode_headers(others), key)
    assert [("unique-key", key), *others] == decode_headers(section)
    assert key == key_of(section)


@given(st.lists(headers, max_size=20))
def test_a_column_is_read_as_each_section(column: list[list[tuple[str, bytes | None]]]) -> None:
    each = [encode_headers(one) for one in column]
    flat, _ = ragged(each)
    rows, start, end = keys_in(flat)
    expected = {row: key for row, section in enumerate(each) if (key := first(section)) is not None}
    found = [flat[1][low:high].tobytes() for low, high in zip(start.tolist(), end.tolist(), strict=True)]
    assert expected == dict(zip(rows.tolist(), found, strict=True))
    assert [hash_of(key) for key in found] == hashes_in(flat[1], start, end).tolist() == hashes_of(found).tolist()
    assert [first(section) for section in each] == [key_of(section) for section in each]


@given(st.binary(max_size=60))
def test_no_bytes_break_it(section: bytes) -> None:
    for data in (section, b"\x02\x14unique-key" + section, b"\x82\x01\x14unique-key" + section):
        rows, start, end = keys_in((np.array([0, len(data)]), np.frombuffer(data, np.uint8)))
        assert all(0 < low < high <= len(data) for low, high in zip(start.tolist(), end.tolist(), strict=True))
        assert len(rows) <= 1


@pytest.mark.parametrize("size", [1, 63, 64, KEY_BYTES_MAX])
@pytest.mark.parametrize("others", [0, 1, 62, 63, 64, 200])
def test_at_the_bounds_of_varints(size: int, others: int) -> None:
    section = encode_headers([("a", b"b")] * others)
    assert b"k" * size == key_of(with_unique_key(section, b"k" * size))


@given(st.lists(st.none() | keys, min_size=1, max_size=30), headers)
def test_sections_of_many(column: list[bytes | None], others: list[tuple[str, bytes | None]]) -> None:
    section = encode_headers(others)
    offsets, data = sections(section, column)
    found = [data[low:high].tobytes() for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    assert found == [section if key is None else with_unique_key(section, key) for key in column]


@given(st.lists(st.none() | st.sampled_from([b"a", b"b", b"c"]), max_size=20))
def test_equal_keys_have_one_number(column: list[bytes | None]) -> None:
    rows, different, number = numbered(column)
    assert [row for row, key in enumerate(column) if key is not None] == rows.tolist()
    assert [column[row] for row in rows.tolist()] == [different[each] for each in number.tolist()]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize("wrong", [[b""], [b"x" * (KEY_BYTES_MAX + 1)], ["x"], [5], b"x", 5])
def test_keys_that_cannot_be(wrong: Any) -> None:
    with pytest.raises(InvalidRecord):
        checked_keys(wrong)


def test_keys_that_can() -> None:
    assert [b"a", None, b"bc"] == checked_keys([b"a", None, bytearray(b"bc")])
    assert [b"a", b"bc"] == checked_keys((np.array([0, 1, 3]), b"abc"))


def test_too_many_headers() -> None:
    with pytest.raises(InvalidRecord, match="fewer than"):
        with_unique_key(encode_headers([("a", None)] * HEADERS_MAX), b"k")


def test_what_on_conflict_may_be() -> None:
    assert ["raise", "keep", "replace"] == [on_conflict_of(each) for each in ("raise", "keep", "replace")]
    with pytest.raises(InvalidArgument, match="keep"):
        on_conflict_of("ignore")
    with pytest.raises(WrongType):
        on_conflict_of(None)
