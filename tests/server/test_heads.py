"""Heads that came before: what is read of them is what the parser reads of the same bytes, or nothing is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.server.connection import Connection, Connections
from afterlog.server.exchange import ClientGone, HttpExchange, RequestHead
from afterlog.server.heads import KNOWN_HEAD_BYTES, KNOWN_HEADS, KnownHeads
from afterlog.server.limits import Limits

SEND = b"POST /v1/topics/mail/records?a=1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Transport(asyncio.Transport):
    """What is written to it, and that it was closed."""

    def __init__(self) -> None:
        super().__init__({"socket": Socket()})
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Socket:
    family = 2

    def fileno(self) -> int:
        return -1


Told = tuple[str, str, bytes, dict[bytes, bytes], bytes]


async def told(connections: Connections, *pieces: bytes) -> tuple[list[Told], bytes, bool]:
    """The requests in these pieces, with their bodies; what was answered; whether the connection was closed."""
    found = list[Told]()

    async def application(asked: HttpExchange) -> None:
        body, head = b"", asked.head
        try:
            while not asked.is_whole:
                body += await asked.body()
            body += await asked.body()
        except ClientGone:
            return
        found.append((head.method, head.path, head.query_string, dict(head.headers), body))
        await asked.answer(200, b"content-length: 2\r\n", b"ok", closes=False)

    connection, transport = Connection(application, connections, asyncio.get_running_loop()), Transport()
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
        for _ in range(8):
            await asyncio.sleep(0)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    return found, transport.written, transport.is_closed


class TestOnAConnection:
    def test_the_second_is_known_and_the_same(self) -> None:
        async def main() -> None:
            connections = Connections(Limits())
            requests = [SEND + b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in (b"{}", b"[]", b"")]
            found, written, closed = await told(connections, *requests)
            assert 2 == len(connections.heads)
            again, *_ = await told(connections, *requests)
            assert found == again
            assert [b"{}", b"[]", b""] == [body for *_, body in found]
            assert (3, False) == (written.count(b"HTTP/1.1 200 OK"), closed)

        asyncio.run(main())

    def test_it_may_come_in_pieces_or_with_others(self) -> None:
        async def main() -> None:
            connections = Connections(Limits())
            request = SEND + b"Content-Length: 4\r\n\r\nbody"
            await told(connections, request)
            assert 1 == len(connections.heads)
            whole, *_ = await told(connections, request, request)
            for cut in range(1, 2 * len(request)):
                data = request + request
                assert whole == (await told(connections, data[:cut], data[cut:]))[0], cut

        asyncio.run(main())

    def test_a_request_that_nobody_will_answer_ends_the_connection(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            async def application(exchange: HttpExchange) -> None:
                raise ArithmeticError("of ours")

            connections, transport = Connections(Limits()), Transport()
            connection = Connection(application, connections, asyncio.get_running_loop())
            connection.connection_made(transport)
            connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
            while connections.tasks:
                await asyncio.sleep(0)
            assert transport.is_closed
            connection.connection_lost(None)
            assert "ArithmeticError: of ours" in caplog.text

        asyncio.run(main())

    @pytest.mark.parametrize(
        "head",
        [
            b"POST / HTTP/1.0\r\nContent-Length: 2\r\n",
            b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 2\r\n",
            b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n",
            b"POST / HTTP/1.1\r\nUpgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 2\r\n",
            b"POST / HTTP/1.1\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 2\r\n",
            b"POST / HTTP/1.1\r\nX-A: %s\r\nContent-Length: 2\r\n" % (b"x" * KNOWN_HEAD_BYTES),
        ],
    )
    def test_what_leaves_a_doubt_is_for_the_parser(self, head: bytes) -> None:
        async def main() -> None:
            connections = Connections(Limits())
            found, written, _ = await told(connections, head + b"\r\n{}")
            assert (1, 0) == (len(found), len(connections.heads))
            assert b"HTTP/1.1 200 OK" in written

        asyncio.run(main())

    def test_a_body_in_chunks_is_for_the_parser(self) -> None:
        async def main() -> None:
            connections = Connections(Limits())
            request = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
            found, *_ = await told(connections, request, request)
            assert [b"{}", b"{}"] == [body for *_, body in found]
            assert 0 == len(connections.heads)

        asyncio.run(main())

    @given(
        st.lists(
            st.sampled_from([b"\r\n", b"\n", b"\r", b" ", b":", b"a", b"Content-Length: 3", b"X: y", b"\r\n\r\n"])
        ),
        st.binary(max_size=8),
    )
    def test_whatever_comes_is_read_as_if_nothing_were_known(self, parts: list[bytes], body: bytes) -> None:
        """What is odd in a head never makes another request of the same bytes."""

        async def main() -> None:
            data = b"POST /v1/x HTTP/1.1\r\nHost: a" + b"".join(parts) + b"\r\n\r\n" + body
            connections = Connections(Limits())
            alone = [await told(Connections(Limits()), data) for _ in range(2)]
            for _ in range(3):
                assert alone[0] == await told(connections, data)
            assert alone[0] == alone[1]

        asyncio.run(main())


class TestKnownHeads:
    def test_so_many_are_kept(self) -> None:
        heads = KnownHeads()
        for number in range(KNOWN_HEADS + 1):
            heads.keep(b"GET /%d HTTP/1.1\r\n\r\n" % number, RequestHead("GET", f"/{number}", b"", {}), 0)
        assert 1 == len(heads)
        assert None is heads.read(b"GET /0 HTTP/1.1\r\n\r\n")
        found = heads.read(b"GET /%d HTTP/1.1\r\n\r\n" % KNOWN_HEADS)
        assert found is not None
        assert (f"/{KNOWN_HEADS}", b"") == (found[0].path, found[1])

    def test_another_length_of_the_body_is_another_request(self) -> None:
        heads = KnownHeads()
        head = RequestHead("POST", "/", b"", {b"content-length": b"2"})
        heads.keep(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", head, 1)
        assert heads.read(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{") is None
        assert heads.read(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}{") is None
        assert (head, b"[]") == heads.read(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n[]")
