from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from afterlog.base.errors import InvalidArgument, InvalidRecord, InvalidTopic, StorageFull, UnknownTopic, WrongType
from afterlog.fetch.record_id import RecordId
from afterlog.subscription.answers import RedriveResult
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.redrive import SUBSCRIPTION
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
        assert {b"a", b"b", b"c"} == set(letters), "what somebody sent there is no dead letter"
        origin = letters[b"a"]
        assert (RecordId("mail", 1, 0), "sender", "bad", 1) == (
            origin.record, origin.subscription, origin.reason, origin.redelivery_count,
        )  # fmt: skip
    assert 2 == len(setting.store.dead_letters("dead", limit=2))


def test_dead_letters_are_sent_back(setting: Setting) -> None:
    setting.send(b"mine", topic="dead")
    setting.clock.advance(7_000)
    assert 1 == setting.store.redrive("dead", limit=1).redriven
    assert 2 == len(setting.store.dead_letters("dead"))
    assert [2, 0] == [setting.store.redrive("dead").redriven for _ in range(2)]
    assert RedriveResult(redriven=0, left={}) == setting.store.redrive("dead")
    assert [] == setting.store.dead_letters("dead")
    setting.open(killed(setting.disk))
    assert [] == setting.store.dead_letters("dead")
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
    done = setting.store.redrive("dead")
    assert (
        RedriveResult(redriven=3, left={"there is no topic 'gone' any more": 1, "mail has no partition 9 any more": 1})
        == done
    )
    assert [b"lost", b"lost"] == values(each.message for each in setting.store.dead_letters("dead"))


def test_another_target(setting: Setting) -> None:
    """Of letters whose topic is gone, or which are to be looked at elsewhere; a partition that is not there is none."""
    setting.store.create_topic("other")
    with pytest.raises(InvalidTopic):
        setting.store.redrive("dead", target="dead")
    with pytest.raises(UnknownTopic):
        setting.store.redrive("dead", target="none")
    setting.store.delete_topic("mail", force=True)
    assert {"there is no topic 'mail' any more": 3} == setting.store.redrive("dead").left
    assert RedriveResult(redriven=3, left={}) == setting.store.redrive("dead", target="other")
    with setting.store.subscribe("other", "s") as sub:
        assert {b"a", b"b", b"c"} == {message.value for message in sub.receive()}


def test_what_a_redrive_left_holds_nothing(setting: Setting) -> None:
    setting.store.delete_topic("mail", force=True)
    setting.store.alter_topic("dead", retention_ms=1_000)
    assert 3 == sum(setting.store.redrive("dead").left.values())
    setting.clock.advance(60_000)
    setting.store.topic("dead").partition(0).log.roll()
    setting.store.enforce_retention()
    assert [] == setting.store.dead_letters("dead")
    assert RedriveResult(redriven=0, left={}) == setting.store.redrive("dead")


def test_where_the_disk_is_full_the_rest_stays(setting: Setting) -> None:
    setting.calls.fail("append", ".log", StorageFull("no room", path="log"))
    with pytest.raises(StorageFull):
        setting.store.redrive("dead")
    assert 3 == len(setting.store.dead_letters("dead"))
    assert 3 == setting.store.redrive("dead").redriven


def test_who_looks_leaves_nothing_behind(setting: Setting) -> None:
    """No reader, no journal, nothing that holds disk or counts as a backlog; and what was sent back stays so."""

    def looked() -> set[bytes | None]:
        before = setting.disk.image()
        found = {each.message.value for each in setting.store.dead_letters("dead")}
        assert before == setting.disk.image()
        return found

    assert {b"a", b"b", b"c"} == looked()
    assert [] == setting.store.subscriptions("dead")
    assert 1 == setting.store.redrive("dead", limit=1).redriven
    left = looked()
    assert 2 == len(left)
    with setting.store.subscribe("dead", SUBSCRIPTION):
        assert left == looked()
    setting.store.close()
    setting.open(killed(setting.disk))
    assert left == looked()


class TestSomeOfThem:
    def letters(self, setting: Setting, **which: Any) -> set[bytes | None]:
        return {each.message.value for each in setting.store.dead_letters("dead", **which)}

    def named(self, setting: Setting, value: bytes) -> RecordId:
        [found] = [each.message.id for each in setting.store.dead_letters("dead") if each.message.value == value]
        return found

    def test_by_their_ids(self, setting: Setting) -> None:
        store = setting.store
        assert RedriveResult(redriven=1, left={}) == store.redrive("dead", records=[self.named(setting, b"c")])
        assert {b"a", b"b"} == self.letters(setting)
        assert RedriveResult(redriven=0, left={}) == store.redrive("dead", records=["dead-0@99"])
        assert 1 == store.redrive("dead", records=[str(self.named(setting, b"a"))], value=b"better").redriven
        with setting.subscribe() as sub:
            assert {b"c", b"better"} == set(values(sub.receive()))
        assert 1 == store.discard_dead_letters("dead", records=[self.named(setting, b"b")])
        assert set() == self.letters(setting)
        assert 0 == store.redrive("dead").redriven, "what was let go is not sent back"

    def test_by_reason_and_subscription(self, setting: Setting) -> None:
        store = setting.store
        setting.send(b"d")
        with setting.subscribe(retry=ONCE, dead_letter="dead") as sub:
            sub.nack(sub.receive(), reason="worse than bad")
        assert {b"a", b"b", b"c", b"d"} == self.letters(setting, reason="bad")
        assert {b"d"} == self.letters(setting, reason="worse", subscription="sender")
        assert set() == self.letters(setting, subscription="other")
        assert 0 == store.discard_dead_letters("dead", subscription="other")
        assert 1 == store.discard_dead_letters("dead", reason="worse")
        assert 2 == store.discard_dead_letters("dead", limit=2)
        assert 1 == store.redrive("dead", reason="bad", limit=5).redriven
        setting.open(killed(setting.disk))
        assert set() == self.letters(setting)

    def test_a_limit_takes_the_oldest_of_the_chosen(self, setting: Setting) -> None:
        store = setting.store
        before = [each.message.id for each in store.dead_letters("dead")]
        assert 1 == store.discard_dead_letters("dead", records=before[1:], limit=1)
        assert 2 == len(store.dead_letters("dead"))
        assert before[0] in [each.message.id for each in store.dead_letters("dead")]

    def test_a_limit_counts_those_that_are_sent_back(self, setting: Setting) -> None:
        """Behind those that cannot be, too."""
        store = setting.store
        headers = [*store.dead_letters("dead")[0].message.headers]
        headers[-6] = ("afterlog-dead-letter-topic", b"gone")
        for partition in range(store.topic("dead").partition_count):
            store.purge("dead", partition=partition)
        for value in (b"lost", b"lost", b"back"):
            given = (
                headers if value == b"lost" else [*headers[:-6], ("afterlog-dead-letter-topic", b"mail"), *headers[-5:]]
            )
            store.send("dead", value, headers=given, partition=0)
        assert RedriveResult(redriven=1, left={"there is no topic 'gone' any more": 2}) == store.redrive(
            "dead", limit=1
        )

    def test_at_a_rate(self, setting: Setting) -> None:
        assert 3 == setting.store.redrive("dead", rate=0.5).redriven
        with setting.subscribe() as sub:
            assert 1 == len(sub.receive())
            for _ in range(2):
                setting.clock.advance(1_999)
                assert not sub.receive()
                setting.clock.advance(1)
                assert 1 == len(sub.receive())

    def test_of_a_paused_topic_none(self, setting: Setting) -> None:
        store = setting.store
        store.pause("dead")
        assert (0, 0) == (store.redrive("dead").redriven, store.discard_dead_letters("dead"))
        assert 3 == len(store.dead_letters("dead")), "a look goes on"
        store.resume("dead")
        assert 3 == store.redrive("dead").redriven

    def test_what_cannot_be(self, setting: Setting) -> None:
        store = setting.store
        for wrong in (0, -1, True, "1"):
            with pytest.raises(InvalidArgument, match="records a second"):
                store.redrive("dead", rate=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="name it"):
            store.redrive("dead", value=b"x")
        with pytest.raises(InvalidRecord, match="no record of dead"):
            store.redrive("dead", records=["mail-0@0"])
        with pytest.raises(WrongType, match="a list of ids"):
            store.discard_dead_letters("dead", records="dead-0@0")
        with pytest.raises(WrongType, match="reason is text"):
            store.dead_letters("dead", reason=b"bad")  # type: ignore[arg-type]
        store.create_topic("fifo", delayed=False)
        with pytest.raises(InvalidTopic, match="delayed=False"):
            store.redrive("dead", target="fifo", rate=1)
        assert 3 == len(store.dead_letters("dead"))
