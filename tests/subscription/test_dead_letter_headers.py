from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.fetch.record_id import RecordId
from afterlog.subscription.dead_letter_headers import REASON_CHARACTERS, Origin, ascii_of, origin_of

ORIGIN = Origin(record=RecordId("mail", 3, 1_042), subscription="sender", reason="ValueError: no", redelivery_count=8)
HEADERS = (
    ("afterlog-dead-letter-topic", b"mail"),
    ("afterlog-dead-letter-partition", b"3"),
    ("afterlog-dead-letter-offset", b"1042"),
    ("afterlog-dead-letter-subscription", b"sender"),
    ("afterlog-dead-letter-reason", b"ValueError: no"),
    ("afterlog-dead-letter-redelivery-count", b"8"),
)


def test_there_and_back() -> None:
    own = (("a", b"1"), ("a", None))
    assert HEADERS == ORIGIN.to_headers()
    assert (own, ORIGIN) == origin_of((*own, *HEADERS))
    assert ((), ORIGIN) == origin_of(HEADERS)


def test_of_two_the_last_counts() -> None:
    again = Origin(record=RecordId("mail.dead", 0, 7), subscription="undertaker", reason="", redelivery_count=1)
    assert (HEADERS, again) == origin_of((*HEADERS, *again.to_headers()))


@pytest.mark.parametrize(
    "headers",
    [
        (),
        HEADERS[:-1],
        HEADERS[::-1],
        (*HEADERS, ("b", b"")),
        (*HEADERS[:2], ("afterlog-dead-letter-offset", b"one"), *HEADERS[3:]),
        (*HEADERS[:2], ("afterlog-dead-letter-offset", None), *HEADERS[3:]),
        (("afterlog-dead-letter-topic", b"m\xff"), *HEADERS[1:]),
    ],
)
def test_somebody_elses(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    assert (headers, None) == origin_of(headers)


@given(st.text(st.characters()))
def test_a_reason_is_one_line_of_ascii(reason: str) -> None:
    line = ascii_of(reason)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= REASON_CHARACTERS


def test_what_a_reason_looks_like() -> None:
    assert "refused: no\\n\\xfc" == ascii_of("refused: no\nü")
    assert "x" * 1_000 == ascii_of("x" * 5_000)
