"""The clients over TCP: TLS, tokens and their scopes, and who is not trusted."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import afterlog
from afterlog import aio
from afterlog.api.operation import Scope
from afterlog.base.errors import NotAllowed, NotAuthenticated, ServerNotTrusted, ServerUnavailable
from afterlog.base.files import OsFiles
from afterlog.client.http_connection import HttpConnection
from afterlog.server.running import Options, Serving
from afterlog.server.tokens import TokenFile
from tests.support import PATIENCE_S

EVERY_SCOPE = [*Scope]


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """The files of one that is its own authority, and of its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    asked = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=afterlog", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*asked.split(), *names, *files], check=True, capture_output=True)
    return certificate, key


class Tcp:
    """A store that is served over TLS, and what its clients need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate, key = make_certificate(folder)
        self.tokens = TokenFile(OsFiles(), folder / "tokens.json")
        self.token = self.tokens.add("all", EVERY_SCOPE, [""])
        self.sender = self.tokens.add("sender", [Scope.SEND, Scope.LOOK], ["mail"])
        self.reader = self.tokens.add("reader", [Scope.RECEIVE, Scope.LOOK], ["mail"])
        self.blind = self.tokens.add("blind", [Scope.SEND], ["mail"])
        self.store = afterlog.open(folder / "data")
        self.store.create_topic("mail", partitions=2)
        self.server = Serving(
            self.store,
            Options(
                socket=False,
                listen=("127.0.0.1", 0),
                certificate=self.certificate,
                key=key,
                tokens=self.tokens.path,
            ),
        )
        self.server.start()
        [self.address] = self.server.addresses

    def connect(self, **options: Any) -> Any:
        return afterlog.connect(
            self.address, **{"token": self.token, "ca": self.certificate, "timeout": PATIENCE_S} | options
        )

    def connect_asyncio(self, **options: Any) -> Any:
        return aio.connect(
            self.address, **{"token": self.token, "ca": self.certificate, "timeout": PATIENCE_S} | options
        )

    def close(self) -> None:
        self.server.stop()
        assert self.server.join(PATIENCE_S)
        self.store.close()


@pytest.fixture(scope="module")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tcp]:
    made = Tcp(tmp_path_factory.mktemp("tls"))
    yield made
    made.close()


def test_a_server_is_used_over_tls(tcp: Tcp) -> None:
    assert tcp.address.startswith("https://127.0.0.1:")
    with tcp.connect() as store:
        topic = "blocking"
        store.create_topic(topic)
        sent = [store.send(topic, b"one").offset, *store.send_many(topic, [b"x"] * 500).tolist()]
        with store.producer(topic) as producer:
            sent.append(producer.send(b"last").result(PATIENCE_S).offset)
        assert [*range(502)] == sent
        with store.subscribe(topic, "s") as subscription:
            received = subscription.receive(1_000, timeout=PATIENCE_S)
            assert 502 == len(received) == subscription.ack_many(received).acked
            assert 0 == len(subscription.receive(1, timeout=0.01))
        with store.consumer(topic, group="g") as consumer:
            assert 502 == len(consumer.poll_columns(timeout=PATIENCE_S))
            consumer.commit()
            assert {0: 502} == consumer.committed()


def test_a_server_is_used_over_tls_in_asyncio(tcp: Tcp) -> None:
    async def work() -> None:
        async with tcp.connect_asyncio() as store:
            await store.create_topic("awaited")
            await asyncio.gather(*(store.send("awaited", b"%d" % number) for number in range(20)))
            await store.send_many("awaited", [b"x"] * 500)
            async with store.subscribe("awaited", "s") as subscription:
                received = await subscription.receive(1_000, timeout=PATIENCE_S)
                assert 520 == len(received) == (await subscription.ack_many(received)).acked
            async with store.consumer("awaited", group="g") as consumer:
                assert 520 == len(await consumer.poll(1_000, timeout=PATIENCE_S))

    asyncio.run(work())


def test_who_waits_is_told(tcp: Tcp) -> None:
    """A wait over TLS ends as its reader is closed, and what comes meanwhile is not lost."""
    with tcp.connect() as store:
        store.create_topic("waited")
        subscription = store.subscribe("waited", "s")
        with subscription:
            assert 0 == len(subscription.receive(1, timeout=0.05))
            store.send("waited", b"x", delay=0.05)
            [message] = subscription.receive(1, timeout=PATIENCE_S)
            assert b"x" == message.value
        with store.subscribe("waited", "s") as again:
            assert [b"x"] == [each.value for each in again.receive(10, timeout=PATIENCE_S)]


def test_a_connection_is_kept(tcp: Tcp, monkeypatch: pytest.MonkeyPatch) -> None:
    """What TLS says of its own behind an answer is not taken for an end."""
    made: list[HttpConnection] = []
    connect = HttpConnection.connect

    def counted(self: HttpConnection, timeout_s: float) -> None:
        before = self._wire
        connect(self, timeout_s)
        if self._wire is not before:
            made.append(self)

    monkeypatch.setattr(HttpConnection, "connect", counted)
    with tcp.connect() as store:
        for _ in range(5):
            store.topics()
    assert 1 == len(made)


class TestTrust:
    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        """The certificate of somebody else."""
        return make_certificate(tmp_path)[0]

    def test_another_authority_is_not_trusted(self, tcp: Tcp, other: Path) -> None:
        """At once, however patient the client is, and no token goes to who cannot say who it is."""
        with tcp.connect(ca=other, timeout=3_600) as store, pytest.raises(ServerNotTrusted, match="self-signed"):
            store.topics()

    def test_nor_in_asyncio(self, tcp: Tcp, other: Path) -> None:
        async def work() -> None:
            async with tcp.connect_asyncio(ca=other, timeout=3_600) as store:
                await store.topics()

        with pytest.raises(ServerNotTrusted, match="self-signed"):
            asyncio.run(work())

    def test_nor_one_that_the_system_does_not_know(self, tcp: Tcp) -> None:
        with tcp.connect(ca=None, timeout=3_600) as store, pytest.raises(ServerNotTrusted):
            store.topics()

    def test_nor_is_one_of_another_name(self, tcp: Tcp) -> None:
        address = tcp.address.replace("127.0.0.1", "localhost")
        with (
            afterlog.connect(address, token=tcp.token, ca=tcp.certificate, timeout=3_600) as store,
            pytest.raises(ServerNotTrusted, match="localhost"),
        ):
            store.topics()

    def test_plain_http_to_it_is_no_answer(self, tcp: Tcp) -> None:
        address = tcp.address.replace("https", "http")
        with afterlog.connect(address, token=tcp.token, timeout=0.2) as store, pytest.raises(ServerUnavailable):
            store.topics()


class TestTokens:
    @pytest.mark.parametrize("token", [None, "afterlog_" + "x" * 43])
    def test_who_has_none_that_is_known_does_nothing(self, tcp: Tcp, token: str | None) -> None:
        with tcp.connect(token=token) as store:
            with pytest.raises(NotAuthenticated):
                store.topics()
            with pytest.raises(NotAuthenticated):
                store.send("mail", b"x", partition=0)
            with pytest.raises(NotAuthenticated):
                store.subscribe("mail", "s")

    def test_nor_in_asyncio(self, tcp: Tcp) -> None:
        async def work() -> None:
            async with tcp.connect_asyncio(token=None) as store:
                await store.topics()

        with pytest.raises(NotAuthenticated):
            asyncio.run(work())

    def test_a_scope_is_all_that_its_token_may(self, tcp: Tcp) -> None:
        with tcp.connect(token=tcp.sender) as sending, tcp.connect(token=tcp.reader) as reading:
            sent = sending.send("mail", b"x", partition=0)
            for refused in (
                lambda: sending.subscribe("mail", "s"),
                lambda: sending.create_topic("mail-2"),
                lambda: sending.delete_topic("mail"),
                lambda: sending.send("other", b"x", partition=0),
                lambda: reading.send("mail", b"x", partition=0),
                lambda: reading.cancel(sent),
            ):
                with pytest.raises(NotAllowed, match="scope"):
                    refused()
            with reading.subscribe("mail", "scoped") as subscription:
                [message] = subscription.receive(timeout=PATIENCE_S)
                assert 1 == subscription.ack(message).acked

    def test_who_sends_looks_at_the_topic_first(self, tcp: Tcp) -> None:
        """How many partitions there are: the docs say that a token to send wants both."""
        with tcp.connect(token=tcp.blind) as store, pytest.raises(NotAllowed, match="scope look"):
            store.send("mail", b"x", partition=0)
