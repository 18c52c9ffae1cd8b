"""A send that is made again is known again; what nobody knows of is never named again."""

from __future__ import annotations

import pytest

from afterlog.base.errors import AnswerLost, InvalidRecord, ServerFailed, ServerUnavailable, StorageFull
from afterlog.client.lanes import SEQUENCES, Lane
from afterlog.fetch.record_id import RecordId
from tests.client.support import FakeServer, ok, producers, refusing, sent, topic


class OutOfOrderSequence(InvalidRecord):
    """As the log raises it."""


def test_sequences_count_records_by_partition() -> None:
    server = FakeServer(topic(partitions=2), sent("mail-0@0"), sent("mail-1@0"), sent("mail-0@1"))
    store = server.store()
    for partition in (0, 1, 0):
        store.send("mail", b"x", partition=partition)
    (first, _, _), *_ = found = producers(server.bodies())
    assert [(first, 0, 0), (first, 0, 0), (first, 0, 1)] == found
    assert 1 == server.connections


def test_a_lost_answer_is_asked_for_by_the_same_numbers() -> None:
    server = FakeServer(topic(), AnswerLost("cut"), ServerUnavailable("down"), sent("mail-0@7"), sent("mail-0@8"))
    store = server.store()
    assert RecordId("mail", 0, 7) == store.send("mail", b"x")
    store.send("mail", b"y")
    first, second, third, fourth = producers(server.bodies())
    assert first == second == third
    assert (first[0], 0, 1) == fourth


def test_many_are_one_range() -> None:
    server = FakeServer(topic(), sent("mail-0@0", "mail-0@1", "mail-0@2"), sent("mail-0@3"))
    store = server.store()
    assert [0, 1, 2] == store.send_many("mail", [b"a", b"b", b"c"]).tolist()
    store.send("mail", b"d")
    assert [0, 3] == [sequence for _, _, sequence in producers(server.bodies())]


def test_what_was_refused_took_no_number() -> None:
    server = FakeServer(topic(), refusing(InvalidRecord("no")), sent("mail-0@0"))
    store = server.store()
    with pytest.raises(InvalidRecord):
        store.send("mail", b"x")
    store.send("mail", b"y")
    first, second = producers(server.bodies())
    assert first == second


def test_what_nobody_knows_of_leaves_the_lane_another_producer() -> None:
    server = FakeServer(topic(), AnswerLost("cut"), takes_s=10.0)
    store = server.store(timeout_s=25.0)
    with pytest.raises(AnswerLost, match="may have been done"):
        store.send("mail", b"x")
    server.says = [topic(), sent("mail-0@0")]
    store.send("mail", b"y")
    first, *_, last = producers(server.bodies())
    assert first[0] != last[0]
    assert 0 == last[2]


def test_an_interrupt_does_too() -> None:
    def interrupted(_: object) -> object:
        raise KeyboardInterrupt

    server = FakeServer(topic(), interrupted, sent("mail-0@0"))  # type: ignore[arg-type]
    store = server.store()
    with pytest.raises(KeyboardInterrupt):
        store.send("mail", b"x")
    store.send("mail", b"y")
    first, last = producers(server.bodies())
    assert first[0] != last[0]


def test_a_producer_that_was_forgotten_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from afterlog.base import errors

    monkeypatch.setattr(errors, "OutOfOrderSequence", OutOfOrderSequence, raising=False)
    forgotten = refusing(OutOfOrderSequence("expired"))
    server = FakeServer(topic(), forgotten, sent("mail-0@5"), AnswerLost("cut"), forgotten)
    store = server.store()
    assert RecordId("mail", 0, 5) == store.send("mail", b"x")
    with pytest.raises(AnswerLost, match="may have been done"):  # the first try may have been taken
        store.send("mail", b"y")
    first, second, *_ = producers(server.bodies())
    assert first[0] != second[0]
    assert 5 == len(server.requests)


def test_what_fails_behind_a_lost_answer_may_have_been_done() -> None:
    server = FakeServer(topic(), AnswerLost("cut"), refusing(StorageFull("full", path="/x")), sent("mail-0@0"))
    store = server.store()
    with pytest.raises(StorageFull):
        store.send("mail", b"x")
    store.send("mail", b"y")
    first, _, last = producers(server.bodies())
    assert first[0] != last[0]


def test_unique_keys_are_sent_once() -> None:
    server = FakeServer(AnswerLost("cut"), sent("mail-0@0"))
    with pytest.raises(AnswerLost):
        server.store().send("mail", b"x", unique_key=b"u")
    assert 1 == len(server.requests)


def test_sequences_wrap_around() -> None:
    lane = Lane()
    lane._sequences["mail", 0] = SEQUENCES - 1
    server = FakeServer(topic(), sent("mail-0@0"), ok())
    pool = server.store()._pool
    pool._idle = [pool._take()._replace(lane=lane)]
    store = server.store()
    store._pool._idle = pool._idle
    store.send("mail", b"x")
    assert {("mail", 0): 0} == lane._sequences


def test_what_the_server_makes_no_sense_of() -> None:
    server = FakeServer(topic(), ok({"ids": 3}))
    with pytest.raises(ServerFailed, match="POST /v1/topics/mail/records"):
        server.store().send("mail", b"x")
