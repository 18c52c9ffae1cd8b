from __future__ import annotations

from collections.abc import Iterator

import pytest

from afterlog.errors import StorageFull
from afterlog.fetch.record_id import RecordId
from afterlog.subscription.policy import RetryPolicy
from tests.subscription.support import Setting, values
from tests.support import NOW_MS, killed

ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting(partitions=2)
    setting.store.send("mail", b"a", key=b"k", headers=[("h", b"1")], partition=1)
    setting.send(b"b", b"c", partition=0)
    with setting.subscribe(retry=ONCE, dead_letter="dead") as sub:
        sub.nack(sub.receive(), reason="bad")
    yield setting
    setting.store.check()
    setting.store.close()


def test_dead_letters_are_listed(setting: Setting) -> None:
    setting.send(b"mine", topic="dead")
    setting.send(b"not yet", topic="dead", after_ms=5)
    for _ in range(2):
        letters = {each.message.value: each.origin for each in setting.store.dead_letters("dead")}
        assert {b"a", b"b", b"c", b"mine"} == set(letters)
        assert letters[b"mine"] is None
        origin = letters[b"a"]
        assert origin is not None
        assert (RecordId("mail", 1, 0), "sender", "bad", 1) == (
            origin.record, origin.subscription, origin.reason, origin.redelivery_count,
        )  # fmt: skip
    assert 2 == len(setting.store.dead_letters("dead", limit=2))


def test_dead_letters_are_sent_back(setting: Setting) -> None:
    setting.send(b"mine", topic="dead")
    setting.clock.advance(7_000)
    assert 1 == setting.store.redrive("dead", limit=1)
    assert 3 == len(setting.store.dead_letters("dead"))
    assert [2, 0] == [setting.store.redrive("dead") for _ in range(2)]
    assert [b"mine"] == values(each.message for each in setting.store.dead_letters("dead"))
    setting.open(killed(setting.disk))
    assert [b"mine"] == values(each.message for each in setting.store.dead_letters("dead"))
    with setting.subscribe() as sub:
        messages = {message.value: message for message in sub.receive()}
    assert {b"a", b"b", b"c"} == set(messages)
    again = messages[b"a"]
    assert (1, b"k", (("h", b"1"),), NOW_MS, NOW_MS + 7_000, 0) == (
        again.partition, again.key, again.headers, again.timestamp, again.due, again.redelivery_count,
    )  # fmt: skip


def test_a_topic_that_is_gone_gets_nothing_back(setting: Setting) -> None:
    setting.send(b"a", topic="dead")
    headers = [*setting.store.dead_letters("dead")[0].message.headers]
    headers[-6] = ("afterlog-dead-letter-topic", b"gone")
    setting.store.send("dead", b"lost", headers=headers)
    headers[-6:-4] = [("afterlog-dead-letter-topic", b"mail"), ("afterlog-dead-letter-partition", b"9")]
    setting.store.send("dead", b"lost", headers=headers)
    assert 3 == setting.store.redrive("dead")
    assert [b"a", b"lost", b"lost"] == values(each.message for each in setting.store.dead_letters("dead"))


def test_where_the_disk_is_full_the_rest_stays(setting: Setting) -> None:
    setting.calls.fail("append", ".log", StorageFull("no room", path="log"))
    with pytest.raises(StorageFull):
        setting.store.redrive("dead")
    assert 3 == len(setting.store.dead_letters("dead"))
    assert 3 == setting.store.redrive("dead")
