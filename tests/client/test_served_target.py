"""What an idempotent producer does where the answers of its server are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import afterlog
from afterlog.base.errors import AnswerLost
from afterlog.client.call import HttpReply, HttpRequest
from afterlog.client.http_connection import HttpConnection
from afterlog.client.served_store import ServedStore
from tests.client.serving import Served
from tests.support import PATIENCE_S

NEVER_MS = 3_600_000


class Losing:
    """The answers to sends are lost for as long as `lost`: what was asked is done, or held back until `let_go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = False
        self.holds_back = False
        self._held: list[Callable[[], HttpReply]] = []
        exchange = HttpConnection.exchange

        def losing(connection: HttpConnection, request: HttpRequest, timeout_s: float) -> HttpReply:
            if not self.lost or "/records" not in request.path:
                return exchange(connection, request, timeout_s)
            if self.holds_back:
                self._held.append(lambda: exchange(connection, request, timeout_s))
            else:
                exchange(connection, request, timeout_s)
            raise AnswerLost("it was cut")

        monkeypatch.setattr(HttpConnection, "exchange", losing)

    def let_go(self) -> HttpReply:
        """What was held back comes, once."""
        self.lost = False
        reply = self._held[0]()
        self._held.clear()
        return reply


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Losing:
    return Losing(monkeypatch)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedStore]:
    """Of a client that tries once, and as long as it takes."""
    monkeypatch.setattr("afterlog.client.retry._TRY_S_MIN", PATIENCE_S)
    with TemporaryDirectory() as folder:
        served = Served(Path(folder), afterlog.SystemClock())
        served.store.create_topic("mail")
        with afterlog.connect(folder, timeout=0.001) as made:
            yield made
        served.stop()


def values(store: ServedStore) -> list[bytes | None]:
    with store.consumer("mail", group="g") as consumer:
        return [message.value for message in consumer.poll()]


def producer(store: ServedStore) -> Any:
    return store.producer("mail", linger_ms=NEVER_MS, idempotent=True, producer_id=7)


def test_what_was_done_is_found(store: ServedStore, losing: Losing) -> None:
    with producer(store) as sending:
        losing.lost = True
        futures = [sending.send(b"a"), sending.send(b"b")]
        sending.flush()
        losing.lost = False
        assert [0, 1] == [future.result(0).offset for future in futures]
        future = sending.send(b"c")
        sending.flush()
        assert 2 == future.result(0).offset
    assert [b"a", b"b", b"c"] == values(store)


@pytest.mark.parametrize("early", [True, False])
def test_what_comes_late_is_not_taken_for_what_was_sent_behind_it(
    store: ServedStore, losing: Losing, early: bool
) -> None:
    with producer(store) as sending:
        losing.lost = losing.holds_back = True
        lost = sending.send(b"lost")
        sending.flush()
        with pytest.raises(AnswerLost):
            lost.result(0)
        if early:
            assert 200 == losing.let_go().status
        losing.lost = False
        future = sending.send(b"behind it")
        sending.flush()
        if not early:
            assert 409 == losing.let_go().status
        assert int(early) == future.result(0).offset
    assert [b"lost", b"behind it"][not early :] == values(store)


def test_a_long_append_is_found_in_parts(store: ServedStore, losing: Losing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afterlog.client.served_target.HELD_RECORDS", 3)
    with producer(store) as sending:
        losing.lost = True
        futures = [sending.send(b"%d" % number) for number in range(7)]
        sending.flush()
        assert [*range(7)] == [future.result(0).offset for future in futures]
