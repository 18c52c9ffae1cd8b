"""Answers as bytes: read whole however they come in pieces, and refused where they are none."""

from __future__ import annotations

import pytest

from afterlog.client import http_connection
from afterlog.client.call import HttpReply
from afterlog.client.http_connection import NoAnswer, Read, head_of, read_answer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: Application/JSON; charset=utf-8\r\n"
BODY = b'{"ids": [1]}'
PLAIN = HEAD + b"content-length: 12\r\n\r\n" + BODY
CHUNKED = HEAD + b"Transfer-Encoding: Chunked\r\n\r\n5;of=any\r\n" + BODY[:5] + b"\r\n7\r\n" + BODY[5:] + b"\r\n0\r\n"
REPLY = HttpReply(200, "Application/JSON", BODY)


def coming(data: bytes, size: int) -> Read:
    """Bytes in pieces of a size, and then an end."""
    left = [data[at : at + size] for at in range(0, len(data), size)]

    def read(most: int) -> bytes:
        if left and len(left[0]) > most:
            first, left[0] = left[0][:most], left[0][most:]
            return first
        return left.pop(0) if left else b""

    return read


def refused(data: bytes) -> str:
    with pytest.raises(NoAnswer) as error:
        read_answer(coming(data, 10_000))
    return str(error.value)


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        CHUNKED + b"\r\n",
        CHUNKED + b"Trailer: any\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN,
    ],
    ids=["length", "chunks", "trailers", "interim"],
)
def test_in_pieces_of_any_size(data: bytes, size: int) -> None:
    assert (REPLY, True) == read_answer(coming(data, size))


@pytest.mark.parametrize("data", [PLAIN, CHUNKED + b"Trailer: any\r\n\r\n"], ids=["length", "chunks"])
def test_cut_off_anywhere(data: bytes) -> None:
    for size in range(len(data)):
        assert "cut off" in refused(data[:size])


def test_nothing_is_no_body() -> None:
    assert (HttpReply(204, "", b""), True) == read_answer(coming(b"HTTP/1.1 204 No Content\r\n\r\n", 100))


def test_who_closes_says_so() -> None:
    assert (REPLY, False) == read_answer(coming(PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n"), 100))
    assert not head_of(b"HTTP/1.0 200 OK\r\ncontent-length: 0").keeps


@pytest.mark.parametrize(
    "head",
    [
        b"", b"200 OK", b"HTTP/2 200 OK", b"HTTP/1.1 2x0 OK", b"HTTP/1.1  200", b"SSH-2.0-OpenSSH_9.2",
        b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\nno colon", b"HTTP/1.1 200 OK\r\n: none",
        b"HTTP/1.1 200 OK\r\ncontent-length : 3", b"HTTP/1.1 200 OK\r\nany: 1\r\n folded: 2\r\ncontent-length: 3",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1", b"HTTP/1.1 200 OK\r\ncontent-length: +1",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2", b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999",
        b"HTTP/1.1 200 OK\r\ncontent-length: 4294967297", b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 1",
    ],
)  # fmt: skip
def test_nonsense(head: bytes) -> None:
    with pytest.raises(NoAnswer):
        head_of(head)


@pytest.mark.parametrize("chunk", [b"\r\n", b"x\r\n", b"-1\r\n", b"123456789\r\n", b"2\r\nabc\r\n", b"ffffffff\r\n"])
def test_chunks_that_are_none(chunk: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "BODY_BYTES_MAX", 1 << 20)
    assert "cut off" not in refused(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"more" * 10)


def test_something_behind_it() -> None:
    assert "behind" in refused(PLAIN + b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "endless", [b"HTTP/1.1 200 OK\r\na: " + b"a" * 100, CHUNKED + b"a" * 100, CHUNKED + b"a: b\r\n"]
)
def test_what_does_not_end_is_read_no_further_than_its_bound(endless: bytes) -> None:
    asked = 0

    def read(most: int) -> bytes:
        nonlocal asked
        asked += 1
        return endless if asked == 1 else endless[-6:] * (most // 6)

    with pytest.raises(NoAnswer):
        read_answer(read)
    assert asked < 10


def test_a_length_that_lies_allocates_nothing() -> None:
    """What is there is kept, no more."""
    assert "cut off" in refused(b"HTTP/1.1 200 OK\r\ncontent-length: 4000000000\r\n\r\nab")
