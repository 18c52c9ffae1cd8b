"""Bytes in JSON: whatever they are, they come back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.api.byte_text import bytes_of, headers_of, text_or_base64


class TestBytes:
    @given(st.none() | st.binary())
    def test_they_come_back(self, data: bytes | None) -> None:
        assert data == bytes_of(json.loads(json.dumps(text_or_base64(data))))

    @pytest.mark.parametrize("data", [b"hello", "Zürich 日本".encode()])
    def test_text_stays_text(self, data: bytes) -> None:
        assert data.decode() == text_or_base64(data)

    @pytest.mark.parametrize(
        "value", [1, 1.5, True, [], ["a"], {}, {"base64": 1}, {"base64": "a"}, {"base64": "é"}, {"base64": "", "a": ""}]
    )
    def test_nothing_else_is_taken(self, value: object) -> None:
        with pytest.raises(ValueError, match=r"write a string|no base64"):
            bytes_of(value)


class TestHeaders:
    def test_an_object_or_pairs(self) -> None:
        expected = (("a", b"1"), ("b", None))
        assert expected == headers_of({"a": "1", "b": None})
        assert expected == headers_of([["a", "1"], ["b", None]])

    def test_a_name_may_be_there_twice(self) -> None:
        assert (("a", b"1"), ("a", b"2")) == headers_of([["a", "1"], ["a", "2"]])

    @pytest.mark.parametrize("value", [1, "a", [1], [["a"]], [[1, "a"]], [["a", 1]], {"a": 1}, [["a", "b", "c"]]])
    def test_nothing_else_is_taken(self, value: object) -> None:
        with pytest.raises(ValueError, match=r"header|write a string"):
            headers_of(value)
