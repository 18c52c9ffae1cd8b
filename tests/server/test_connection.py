"""Connections that a browser or a library would never make: slow, endless, malformed, too many."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import afterlog
from afterlog.base.names import SERVER_SOCKET
from afterlog.server.connection import Connections, Patience
from afterlog.server.exchange import Peer
from afterlog.server.limits import Limits
from afterlog.server.running import FINISH_S, Options, Serving
from afterlog.store.store import Store
from tests import campaigns
from tests.support import PATIENCE_S, Background, eventually

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

    def say(self, data: bytes) -> bool:
        """Whether the server had not hung up before: what it said then is still `heard`."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

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
        """Pipelined, and as large as it likes: nothing of it is kept, and the one before it gets its own answer."""
        serve(Limits(head_bytes=1_000))
        raw = Raw(store)
        body = b'{"wait_ms":100}'
        raw.say(
            b"POST /v1/topics/mail/subscriptions/s/receive HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        raw.say(b"GET /" + b"x" * 4_000)
        assert raw.piece().startswith(b"HTTP/1.1 200 ")
        raw.say(b"x" * 4_000)
        assert raw.heard().count(b"HTTP/1.1 ") <= 1
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

    def test_a_body_of_which_nothing_comes(self, store: Store, serve: Serve) -> None:
        """Nor the rest of one; and a request behind it is not read."""
        serving = serve(Limits(body_s=0.05))
        for part in (b"", b'{"records":['):
            raw = Raw(store)
            head, _, _ = send_request(b"a").partition(b"\r\n\r\n")
            raw.say(head + b"\r\n\r\n" + part)
            said = raw.heard()
            raw.close()
            assert said.startswith(b"HTTP/1.1 400 ")
            assert b"the body did not come within 0.05 s" in said
        assert serving.app is not None
        eventually(lambda: serving.app is not None and 0 == serving.app.served.under_way())
        raw = Raw(store)
        raw.say(LIVE)
        assert b"200 OK" in raw.answer()
        raw.close()

    def test_who_never_sends_a_body_does_not_keep_a_server_from_stopping(
        self, store: Store, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("afterlog.server.running.BODY_FINISH_S", 0.05)
        serving = serve(Limits())
        raw = Raw(store)
        raw.say(send_request(b"a")[:-5])
        app = serving.app
        assert app is not None
        eventually(lambda: 1 == app.served.under_way())
        begun_s = store.clock.monotonic_s()
        serving.stop()
        assert serving.join(PATIENCE_S)
        assert store.clock.monotonic_s() - begun_s < FINISH_S
        assert b"" == raw.heard()
        raw.close()

    def test_a_body_that_comes_behind_its_answer(self, store: Store, serve: Serve) -> None:
        """The connection goes on, and is closed when nobody uses it."""
        serve(Limits(idle_s=0.3, json_bytes=100))
        raw = Raw(store)
        raw.say(send_request(b"x" * 200)[:-100])
        raw.say(send_request(b"x" * 200)[-100:])
        assert b" 413 " in raw.heard().split(b"\r\n")[0]
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
    def test_no_more_than_the_process_may_open(self, caplog: pytest.LogCaptureFixture) -> None:
        """Whoever comes without a token leaves room for the store's files, and for somebody else."""
        caplog.set_level("INFO")
        connections, peer = Connections(Limits(), 100), Peer("anybody", trusted=False, tcp=True)
        assert "75 connections at most, of the 100 files" in caplog.text
        assert 60 == sum(connections.add(peer) for _ in range(100))
        assert 15 == sum(connections.add(Peer("other", trusted=False, tcp=True)) for _ in range(100))
        assert "peer=anybody refused: it has 60 of 60 connections" in caplog.text

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
                return raw.say(LIVE) and b"200 OK" in raw.answer()
            except ConnectionResetError:
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
        eventually(lambda: not raw.say(LIVE))
        raw.close()


OFFERS = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    b"Upgrade: h2c\r\n",
    b"Connection: keep-alive, Upgrade\r\nUpgrade: TLS/1.0, HTTP/1.1\r\n",
]
"""Of another protocol, as Java's client, curl and browsers make them."""


def offering(value: bytes, offer: bytes, *, chunked: bool = False) -> bytes:
    """A send that offers to change the protocol, or has other headers."""
    body = b'{"records":[{"value":"%s"}]}' % value
    framing = b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: %d\r\n" % len(body)
    if chunked:
        body = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (5, body[:5], len(body) - 5, body[5:])
    head = b"POST /v1/topics/mail/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + offer + framing + b"\r\n" + body


def sent(store: Store) -> list[bytes | None]:
    with store.consumer("mail", group="looks", auto_commit=False) as consumer:
        return [message.value for message in consumer.poll(10_000)]


class TestHopByHop:
    """What concerns the connection alone, and what may be read wrong: RFC 9110 and 9112."""

    @pytest.mark.parametrize("chunked", [False, True])
    @pytest.mark.parametrize("offer", OFFERS)
    def test_an_upgrade_is_ignored_and_its_body_is_its_own(
        self, store: Store, serve: Serve, offer: bytes, chunked: bool
    ) -> None:
        """In any pieces, with another request right behind it, and one that looks like one in its body."""
        serve(Limits())
        smuggled = b"POST /v1/topics/mail/purge HTTP/1.1"
        data = b"".join(
            offering(b"%s %d" % (smuggled, number), offer if number % 2 == 0 else b"", chunked=chunked)
            for number in range(4)
        )
        expected = [b"%s %d" % (smuggled, number) for number in range(4)]
        for cut in campaigns.share(range(1, len(data)), 40):
            raw = Raw(store)
            raw.say(data[:cut])
            raw.say(data[cut:])
            answers = b""
            while answers.count(b"HTTP/1.1 200 OK") < 4:
                answers += (piece := raw.piece())
                assert piece, answers
            assert b"HTTP/1.1 101" not in answers
            raw.close()
        assert {*expected} == {*sent(store)}
        assert len(sent(store)) % 4 == 0

    @pytest.mark.parametrize("offer", OFFERS)
    def test_one_without_a_body(self, store: Store, serve: Serve, offer: bytes) -> None:
        serve(Limits())
        raw = Raw(store)
        raw.say(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % offer)
        assert raw.piece().startswith(b"HTTP/1.1 200 ")
        raw.say(send_request(b"behind it"))
        assert raw.piece().startswith(b"HTTP/1.1 200 ")
        raw.close()
        assert [b"behind it"] == sent(store)

    def test_what_comes_behind_a_body_is_not_of_the_head(self, store: Store, serve: Serve) -> None:
        serve(Limits(head_bytes=1_000))
        raw = Raw(store)
        request = offering(b"a", b"", chunked=True)
        assert request.endswith(b"0\r\n\r\n")
        raw.say(request[:-2] + b"Content-Type: text/plain\r\n\r\n")
        assert raw.piece().startswith(b"HTTP/1.1 200 ")
        raw.say(send_request(b"b"))
        assert raw.piece().startswith(b"HTTP/1.1 200 ")
        raw.say(request[:-2] + b"x: " + b"x" * 4_000 + b"\r\n\r\n")
        assert b"400 Bad Request" in raw.heard()
        raw.close()
        for field in (b"Connection: close", b"Connection: upgrade\r\nUpgrade: h2c", b"Content-Length: 5"):
            raw = Raw(store)
            raw.say(request[:-2] + field + b"\r\n\r\n")
            assert raw.heard().startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 "))
            raw.close()

    def test_a_body_that_is_not_wanted_is_not_waited_for(self, store: Store, serve: Serve) -> None:
        """Who asks first may send it or not: what comes next would be taken for it, or it for a request."""
        serve(Limits())
        raw = Raw(store)
        head, _, body = offering(b"a", b"Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        raw.say(head + b"\r\n\r\n")
        assert b"HTTP/1.1 100 Continue\r\n\r\n" == raw.piece()
        raw.say(body)
        assert raw.piece().startswith(b"HTTP/1.1 200 ")
        raw.say(head.replace(b"/v1/topics/mail/records", b"/nowhere") + b"\r\n\r\n")
        said = raw.heard()
        assert said.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close" in said
        raw.close()
        assert [b"a"] == sent(store)

    def test_what_follows_a_connect_is_no_request(self, store: Store, serve: Serve) -> None:
        serve(Limits())
        raw = Raw(store)
        raw.say(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + send_request(b"a"))
        assert b"HTTP/1.1 20" not in raw.heard()
        raw.close()
        assert [] == sent(store)

    def test_what_is_no_request_says_so_of_no_other(self, store: Store, serve: Serve) -> None:
        """Behind requests that are done: each of them is told that it was."""
        serve(Limits())
        raw = Raw(store)
        raw.say(b"".join(send_request(b"%d" % number) for number in range(9)) + b"NONSENSE\r\n\r\n")
        said = raw.heard()
        assert said.count(b"HTTP/1.1 200 OK") == said.count(b"HTTP/1.1 ") == len(sent(store)) == 9
        raw.close()

    def test_three_thousand_at_once(self, store: Store, serve: Serve) -> None:
        """Pipelined: each is answered as it was done, in order."""
        serve(Limits())
        raw = Raw(store)
        values = [b"%d" % number for number in range(campaigns.examples(500, whole=3_000))]
        sending = Background(lambda: raw.say(b"".join(map(send_request, values))))
        answers = b""
        while answers.count(b"HTTP/1.1 ") < len(values) or not answers.endswith(b"}"):
            answers += (piece := raw.piece())
            assert piece, answers[-1_000:]
        sending.answer()
        raw.close()
        assert len(values) == answers.count(b"HTTP/1.1 200 OK")
        assert values == sent(store)
