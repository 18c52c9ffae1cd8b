"""Connections: kept, shared by nobody, closed; what is tried on them."""

from __future__ import annotations

import threading

import pytest

from afterlog.api import operations
from afterlog.base import environment
from afterlog.base.errors import AnswerLost, ServerUnavailable, StoreClosed, StoreForked, UnknownTopic
from afterlog.client import pool as pools
from afterlog.client.call import asking, nothing
from afterlog.client.polls import Polls
from tests.client.support import FakeServer, ok, refusing, topic

LOOK = asking(operations.SHOW_STORE, dict)


def test_a_connection_is_kept_for_the_next_call() -> None:
    server = FakeServer(ok())
    with server.pool() as pool:
        for _ in range(3):
            pool.run(LOOK)
    assert (1, 1) == (server.connections, server.closed)


def test_each_thread_has_one_while_it_waits() -> None:
    inside, through = threading.Barrier(3), threading.Event()

    def waits(_: object) -> object:
        inside.wait(10)
        through.wait(10)
        return ok()

    server = FakeServer(waits)  # type: ignore[arg-type]
    pool = server.pool()
    threads = [threading.Thread(target=pool.run, args=(LOOK,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    through.set()
    for thread in threads:
        thread.join()
    assert 2 == server.connections


def test_what_nobody_answers_is_tried_until_it_is() -> None:
    server = FakeServer(ServerUnavailable("down"), AnswerLost("cut"), ok({"topics": 3}))
    assert {"topics": 3} == server.pool().run(LOOK)
    assert 3 == len(server.requests)
    assert 2 == len(server.clock.pauses_s)


def test_it_ends_when_the_time_is_over() -> None:
    server = FakeServer(ServerUnavailable("down"))
    with pytest.raises(ServerUnavailable, match="was tried"):
        server.pool(timeout_s=3.0).run(LOOK)
    assert 2.0 <= server.clock.passed_s <= 3.0
    assert max(server.patience_s) <= 3.0


def test_what_is_no_good_twice_is_not_tried_twice() -> None:
    server = FakeServer(AnswerLost("cut"), ok())
    with pytest.raises(AnswerLost):
        server.pool().run(asking(operations.DELETE_TOPIC, nothing, topic="mail"))
    assert 1 == len(server.requests)


def test_a_refusal_is_raised_as_it_is() -> None:
    server = FakeServer(refusing(UnknownTopic("no mail")))
    with pytest.raises(UnknownTopic, match="no mail"):
        server.pool().run(LOOK)


def test_a_store_that_is_being_closed_there_is_a_server_that_stops() -> None:
    server = FakeServer(refusing(StoreClosed("closed")), ok({}))
    assert {} == server.pool().run(LOOK)


def test_a_wait_that_was_ended_is_not_tried_again() -> None:
    polls = Polls()

    def ended(_: object) -> object:
        polls.end()
        raise AnswerLost("hung up")

    server = FakeServer(ended, ok())  # type: ignore[arg-type]
    with pytest.raises(AnswerLost, match="hung up"):
        server.pool().run(asking(operations.SYNC, nothing, wait_s=20.0, polls=polls))
    assert 1 == len(server.requests)


def test_a_closed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(topic())
    pool = server.pool()
    monkeypatch.setattr(pools, "process_id", lambda: environment.process_id() + 1)
    with pytest.raises(StoreForked, match="connect after the fork"):
        pool.run(LOOK)
    monkeypatch.undo()
    pool.close()
    pool.close()
    with pytest.raises(StoreClosed):
        pool.run(LOOK)
