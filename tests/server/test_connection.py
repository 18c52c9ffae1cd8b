"""Connections that a browser or a library would never make: slow, endless, malformed, too many."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import afterlog
from afterlog.names import SERVER_SOCKET
from afterlog.server.connection import Patience
from afterlog.server.limits import Limits
from afterlog.server.running import Options, Serving
from afterlog.store import Store
from tests.support import PATIENCE_S, eventually

Serve = Callable[[Limits], Serving]
LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with afterlog.open(tmp_path / "data", config=afterlog.Config(durability=afterlog.OS)) as opened:
        opened.create_topic("mail")
        yield opened


@pytest.fixture
def serve(store: Store) -> Iterator[Serve]:
    made: list[Serving] = []

    def served(limits: Limits) -> Serving:
        made.append(Serving(store, Options(limits=limits)))
        made[0].start()
        return made[0]

    yield served
    for each in made:
        each.stop()
        assert each.join(PATIENCE_S)


class Raw:
    """A connection, byte by byte."""

    def __init__(self, store: Store) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(str(store.path / SERVER_SOCKET))

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def heard(self) -> bytes:
        """All until the server hangs up."""
        data = b""
        try:
            while part := self._socket.recv(1 << 16):
                data += part
        except ConnectionResetError:
            pass
        return data

    def piece(self) -> bytes:
        """What has come, once anything has."""
        return self._socket.recv(1 << 16)

    def answer(self) -> bytes:
        """The head and body of one answer, which comes in one piece or two."""
        data = b""
        while b"\r\n\r\n" not in data or not data.endswith(b"}"):
            part = self._socket.recv(1 << 16)
            if not part:
                break
            data += part
        return data

    def close(self) -> None:
        self._socket.close()


def send_request(value: bytes) -> bytes:
    body = b'{"records":[{"value":"%s"}]}' % value
    return (
        b"POST /v1/topics/mail/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


class TestHeads:
    def test_one_that_is_never_ended(self, store: Store, serve: Serve) -> None:
        serve(Limits(body_s=0.05))
        for beginning in (b"", b"GET /livez HTTP/1.1\r\nHost: loc"):
            raw = Raw(store)
            raw.say(beginning)
            assert b"" == raw.heard()
            raw.close()

    def test_one_that_is_too_large(self, store: Store, serve: Serve) -> None:
        serve(Limits(head_bytes=1_000))
        for head in (
            b"GET /livez HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (row, b"x" * 90) for row in range(40)),
            b"GET /livez HTTP/1.1\r\nx: " + b"x" * 4_000,
            b"GET /" + b"x" * 4_000,
        ):
            raw = Raw(store)
            raw.say(head)
            said = raw.heard()
            assert said.startswith(b"HTTP/1.1 400 ")
            assert b'"title": "InvalidRequest"' in said
            raw.close()

    def test_one_behind_a_request_that_waits(self, store: Store, serve: Serve) -> None:
        """Pipelined, and as large as it likes: nothing of it is kept beyond the limit."""
        serve(Limits(head_bytes=1_000))
        raw = Raw(store)
        body = b'{"wait_ms":600000}'
        raw.say(
            b"POST /v1/topics/mail/subscriptions/s/receive HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        raw.say(b"GET /" + b"x" * 4_000)
        assert b"400 Bad Request" in raw.heard()
        raw.close()

    @pytest.mark.parametrize(
        "data",
        [
            b"\0\0\0\0\r\n\r\n",
            b"NONSENSE\r\n\r\n",
            b"GET /livez HTTP/9.9\r\n\r\n",
            b"POST /v1/sync HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            b"POST /v1/sync HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            b"POST /v1/sync HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /v1/sync HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /livez HTTP/1.1\r\nbad header: x\r\n\r\n",
        ],
    )
    def test_what_is_no_request(self, store: Store, serve: Serve, data: bytes) -> None:
        serving = serve(Limits())
        raw = Raw(store)
        raw.say(data)
        said = raw.heard()
        assert b" 400 " in said.split(b"\r\n")[0]
        raw.close()
        raw = Raw(store)
        raw.say(LIVE)
        assert b"200 OK" in raw.answer()
        raw.close()
        assert serving.app is not None
        assert 0 == serving.app.served.under_way()

    def test_one_connection_many_requests(self, store: Store, serve: Serve) -> None:
        serve(Limits(head_bytes=1_000))
        raw = Raw(store)
        for _ in range(50):
            raw.say(LIVE)
            assert b'{"live":true}' in raw.answer()
        raw.close()


class TestAnswers:
    def test_a_small_one_is_one_piece(self, store: Store, serve: Serve) -> None:
        serve(Limits())
        raw = Raw(store)
        raw.say(LIVE)
        said = raw.piece()
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert said.endswith(b'{"live":true}')
        raw.close()

    def test_requests_behind_each_other_are_answered_in_order(self, store: Store, serve: Serve) -> None:
        """Also where the first one takes longer, and bodies come in pieces behind it."""
        serve(Limits())
        raw = Raw(store)
        raw.say(send_request(b"a") + LIVE + send_request(b"b")[:-9])
        raw.say(send_request(b"b")[-9:] + b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        said = raw.heard()
        raw.close()
        found = [said.find(part) for part in (b"mail-0@0", b'{"live":true}', b"mail-0@1", b" 404 ")]
        assert -1 not in found
        assert sorted(found) == found

    def test_who_asks_whether_a_body_is_wanted_is_told(self, store: Store, serve: Serve) -> None:
        serve(Limits())
        raw = Raw(store)
        head, _, body = send_request(b"a").partition(b"\r\n\r\n")
        raw.say(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert b"HTTP/1.1 100 Continue\r\n\r\n" == raw.piece()
        raw.say(body)
        assert b'{"ids":["mail-0@0"]}' in raw.answer()
        raw.close()

    def test_nothing_behind_the_head_where_only_that_is_asked_for(self, store: Store, serve: Serve) -> None:
        serve(Limits())
        raw = Raw(store)
        raw.say(b"HEAD /livez HTTP/1.0\r\nHost: localhost\r\n\r\n")
        said = raw.heard()
        raw.close()
        assert b"connection: close\r\n" in said
        assert said.endswith(b"\r\n\r\n")

    def test_a_connection_that_nobody_uses_is_closed(self, store: Store, serve: Serve) -> None:
        """Not before: what is asked in between counts from then."""
        serve(Limits(idle_s=1.0, body_s=0.05))
        raw = Raw(store)
        for _ in range(3):
            raw.say(LIVE)
            assert b"200 OK" in raw.answer()
        assert b"" == raw.heard()
        raw.close()


class TestPatience:
    def test_one_timer_for_many_waits(self) -> None:
        loop = asyncio.new_event_loop()
        rung, set_at = list[str](), list[float]()
        call_at = loop.call_at

        def counted(when: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
            set_at.append(when)
            return call_at(when, *rest, **more)

        loop.call_at = counted  # type: ignore[method-assign]
        try:
            patience = Patience(loop)
            for _ in range(1_000):
                patience.begin(60.0, lambda: rung.append("head"))
                patience.end()
                patience.begin(300.0, lambda: rung.append("idle"))
            assert 1 == len(set_at)
            patience.begin(0.0, lambda: rung.append("now"))
            loop.run_until_complete(asyncio.sleep(0.01))
            assert ["now"] == rung
            patience.begin(60.0, lambda: rung.append("head"))
            patience.close()
            assert not [each for each in loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        finally:
            loop.close()


class TestHowMany:
    def test_connections_of_one_client(self, store: Store, serve: Serve) -> None:
        serve(Limits(client_connections=2))
        held = [Raw(store) for _ in range(2)]
        for raw in held:
            raw.say(LIVE)
            assert b"200 OK" in raw.answer()
        third = Raw(store)
        assert b"" == third.heard()
        third.close()
        held[0].close()

        def let_in() -> bool:
            raw = Raw(store)
            try:
                raw.say(LIVE)
                return b"200 OK" in raw.answer()
            except (ConnectionResetError, BrokenPipeError):
                return False
            finally:
                raw.close()

        eventually(let_in)
        held[1].close()

    def test_a_client_that_is_gone_while_it_waits_takes_nothing(self, store: Store, serve: Serve) -> None:
        serving = serve(Limits())
        app = serving.app
        assert app is not None
        body = b'{"wait_ms":600000}'
        raw = Raw(store)
        raw.say(
            b"POST /v1/topics/mail/subscriptions/s/receive HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        eventually(lambda: len(app.served.waits) == 1)
        raw.close()
        eventually(lambda: len(app.served.waits) == 0)
        store.send("mail", b"a")
        with store.subscribe("mail", "s") as subscription:
            [message] = subscription.receive()
            assert 0 == message.redelivery_count
            subscription.ack(message)

    def test_an_answer_that_nobody_takes_is_not_kept_for_ever(self, store: Store, serve: Serve) -> None:
        serve(Limits(answer_s=0.1))
        store.send_many("mail", [b"x" * 100_000] * 100)
        raw = Raw(store)
        raw.say(b"GET /v1/topics/mail/records HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        eventually(lambda: _is_hung_up(raw))
        raw.close()


def _is_hung_up(raw: Raw) -> bool:
    try:
        raw.say(LIVE)
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False
