"""Subscriptions: leases, acks, retries, dead letters, limits, and how they end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from afterlog.base.errors import (
    InvalidArgument,
    InvalidReceipt,
    InvalidRecord,
    InvalidRequest,
    InvalidSubscription,
    InvalidTopic,
    NameTaken,
    NoDeadLetterTopic,
    OffsetOutOfRange,
    StoreClosed,
    TopicBusy,
    UnknownPartition,
    UnknownSubscription,
    UnknownTopic,
)
from afterlog.fetch.positions import EARLIEST, LATEST
from afterlog.fetch.record_id import RecordId
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.received import Receipts
from tests.conformance.ways import Setting
from tests.subscription.support import RETRY
from tests.support import NOW_MS, PATIENCE_S, eventually

LEASE_MS = 10_000
STEP_MS = 1_000
"""Leases end a little later than they say, by the step of the timers."""


@pytest.fixture(autouse=True)
def mail(setting: Setting) -> None:
    setting.store.create_topic("mail")


def subscribe(setting: Setting, name: str = "s", topic: str = "mail", **options: Any) -> Any:
    return setting.store.subscribe(topic, name, **{"retry": RETRY, "lease_ms": LEASE_MS, **options})


def send(setting: Setting, *values: bytes, **options: Any) -> None:
    for value in values:
        setting.store.send("mail", value, **options)


def received(subscription: Any, *args: Any, **options: Any) -> list[bytes]:
    return [message.value for message in subscription.receive(*args, **options)]


def dead(setting: Setting, topic: str = "dead") -> list[tuple[bytes, str, int]]:
    found = setting.store.dead_letters(topic)
    return [(each.message.value, each.origin.reason, each.origin.redelivery_count) for each in found]


class TestReceiving:
    def test_what_is_due_is_leased_in_due_order(self, setting: Setting) -> None:
        for delay in (2, 1, 3):
            send(setting, b"%d" % delay, key=b"k", headers=[("a", None)], delay=delay)
        with subscribe(setting) as subscription:
            assert [] == received(subscription)
            setting.clock.advance(2_000)
            messages = subscription.receive()
            assert [b"1", b"2"] == [message.value for message in messages]
            first = messages[0]
            assert (RecordId("mail", 0, 1), b"k", (("a", None),), 0) == (
                first.id, first.key, tuple(first.headers), first.redelivery_count
            )  # fmt: skip
            assert 0 <= first.deadline_ms - (NOW_MS + 2_000 + LEASE_MS) <= STEP_MS
            assert [] == received(subscription)
            assert [0, 0] == messages.redelivery_count.tolist()
            assert [1, 0] == messages.columns.offset.tolist()

    def test_readers_share(self, setting: Setting) -> None:
        send(setting, b"0", b"1", b"2")
        with subscribe(setting) as one, subscribe(setting) as two:
            assert [b"0", b"1"] == received(one, 2)
            assert [b"2"] == received(two)
            with subscribe(setting, "other") as other:
                assert [b"0", b"1", b"2"] == received(other)

    def test_as_many_as_are_asked_for(self, setting: Setting) -> None:
        setting.store.send_many("mail", [b"%d" % number for number in range(1_000)])
        with subscribe(setting) as subscription:
            assert [b"0"] == received(subscription, 1)
            rest = subscription.receive(5_000)
            while len(rest) and len(rest) < 999:
                rest = [*rest, *subscription.receive(5_000)]
            assert [b"%d" % number for number in range(1, 1_000)] == [message.value for message in rest]
            for count in (0, -1):
                with pytest.raises(InvalidSubscription):
                    subscription.receive(count)

    def test_it_waits(self, setting: Setting) -> None:
        send(setting, b"later", delay=10)
        turned = threading.Timer(0.2, lambda: setting.clock.advance(10_000))
        turned.start()
        with subscribe(setting) as subscription:
            assert [b"later"] == received(subscription, timeout=PATIENCE_S)
            assert [] == received(subscription, timeout=0.05)
        turned.join()

    def test_a_close_wakes_who_waits(self, setting: Setting) -> None:
        subscription = subscribe(setting)
        closing = threading.Timer(0.2, subscription.close)
        closing.start()
        assert [] == received(subscription, timeout=None)
        closing.join()

    def test_it_begins_where_it_is_told(self, setting: Setting) -> None:
        send(setting, b"before")
        with subscribe(setting, "new", start=LATEST) as new, subscribe(setting, "old", start=EARLIEST) as old:
            send(setting, b"behind")
            assert [b"behind"] == received(new)
            assert [b"before", b"behind"] == received(old)
        assert ["new", "old"] == setting.store.subscriptions("mail")

    def test_some_partitions(self, setting: Setting) -> None:
        setting.store.create_topic("two", partitions=2)
        for partition in (0, 1):
            setting.store.send("two", b"%d" % partition, partition=partition)
        with subscribe(setting, topic="two", partitions=[1]) as subscription:
            assert [b"1"] == received(subscription)
            assert {1} == set(subscription.stats().partitions)
        with pytest.raises(UnknownPartition):
            subscribe(setting, topic="two", partitions=[2])

    def test_a_delay_of_its_own(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting, delay_ms=5_000) as subscription:
            setting.clock.advance(4_999)
            assert [] == received(subscription)
            setting.clock.advance(1)
            [message] = subscription.receive()
            assert 1 == subscription.ack(message).acked


class TestSettling:
    def test_acks(self, setting: Setting) -> None:
        send(setting, b"0", b"1", b"2", b"3")
        with subscribe(setting) as subscription:
            messages = subscription.receive()
            answer = subscription.ack(messages[0])
            assert (1, 0, 0) == (answer.acked, answer.already, answer.unknown)
            answer = subscription.ack_many([messages[0], messages[1]])
            assert (1, 1) == (answer.acked, answer.already)
            answer = subscription.ack_many(messages)
            assert (2, 2) == (answer.acked, answer.already)
            assert 0 == subscription.ack_many([]).acked
            setting.clock.advance(LEASE_MS + STEP_MS)
            assert [] == received(subscription)
            stats = subscription.stats()
            assert (4, 0, 0) == (stats.acked, stats.leased, stats.due)

    def test_an_ack_counts_behind_its_lease(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription:
            [message] = subscription.receive()
            setting.clock.advance(LEASE_MS + STEP_MS)
            assert 1 == subscription.ack(message).acked

    def test_a_nack_comes_again_after_its_delay(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription:
            [message] = subscription.receive()
            assert (1, 0) == (subscription.nack(message).done, subscription.nack(message).stale - 1)
            setting.clock.advance(999)
            assert [] == received(subscription)
            setting.clock.advance(1)
            [message] = subscription.receive()
            assert 1 == message.redelivery_count
            subscription.nack([message], delay=7)
            setting.clock.advance(6_999)
            assert [] == received(subscription)
            setting.clock.advance(1)
            assert [b"x"] == received(subscription)
            with pytest.raises(InvalidSubscription):
                subscription.nack(message, delay=10**9)

    def test_a_release_goes_out_at_once_and_counts_for_nothing(self, setting: Setting) -> None:
        send(setting, b"0", b"1")
        with subscribe(setting) as subscription:
            assert 2 == subscription.release(subscription.receive()).done
            assert [(b"0", 0), (b"1", 0)] == [(each.value, each.redelivery_count) for each in subscription.receive()]

    def test_a_receipt_is_of_one_lease(self, setting: Setting) -> None:
        """So who says it again, because an answer was lost, takes nothing from who has the record now."""
        send(setting, b"x")
        with subscribe(setting) as mine, subscribe(setting) as other:
            [message] = mine.receive()
            kept = Receipts.of([message])
            assert 1 == mine.release(message).done
            [theirs] = other.receive()
            assert 0 == theirs.redelivery_count
            for again in (mine.release, mine.nack, mine.extend):
                assert (0, 1) == (again(kept).done, again(message).stale)
            assert [] == received(mine)
            assert 1 == other.release(theirs).done
            [message] = mine.receive()
            mine.seek(0)
            [anew] = other.receive()
            for settle in (mine.release, mine.nack, mine.extend):
                assert (0, 1) == (settle(message).done, settle(kept).stale)
            assert 1 == other.extend(anew).done
            assert 1 == other.nack(anew).done
            setting.clock.advance(1_000)
            assert [1] == [each.redelivery_count for each in mine.receive()]

    def test_receipts_that_somebody_kept(self, setting: Setting) -> None:
        send(setting, *(b"%d" % number for number in range(5)))
        with subscribe(setting, max_in_flight=5, dead_letter="dead") as subscription:
            messages = [*subscription.receive()]
            one, two, three, *rest = (
                Receipts.of_columns([each.partition], [each.delivery_offset], [each.lease_number]) for each in messages
            )
            assert (1, 1) == (subscription.extend(one).done, subscription.nack(two, delay=7).done)
            assert (1, 1) == (subscription.reject(three).done, subscription.release(rest[0]).done)
            assert [b"3"] == received(subscription), "there is room for what was settled"
            assert (1, 0) == (subscription.ack_many(one).acked, subscription.ack_many(one).acked)
            with pytest.raises(InvalidReceipt):
                subscription.ack_many(Receipts.of_columns([0], [0], [0])._replace(lease_number=["x"]))
            with pytest.raises(UnknownPartition):
                subscription.ack_many(Receipts.of_columns([7], [0], [0]))

    def test_a_lease_ends(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription:
            [message] = subscription.receive()
            setting.clock.advance(LEASE_MS + STEP_MS)
            [again] = subscription.receive()
            assert 1 == again.redelivery_count
            assert (0, 1) == (subscription.nack(message).done, subscription.release(message).stale)
            assert 1 == subscription.stats().expired

    def test_a_lease_is_extended(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription:
            [message] = subscription.receive()
            until_ms = subscription.extend(message, lease_ms=30_000).deadline_ms
            assert 0 <= until_ms - (NOW_MS + 30_000) <= STEP_MS
            setting.clock.advance(29_000)
            assert [] == received(subscription)
            until_ms = subscription.extend([message]).deadline_ms
            assert 0 <= until_ms - (NOW_MS + 39_000) <= STEP_MS
            setting.clock.advance(9_000)
            assert [] == received(subscription)
            setting.clock.advance(1_000 + STEP_MS)
            assert [b"x"] == received(subscription)
            late = subscription.extend(message)
            assert (0, 1) == (late.done, late.stale)
            with pytest.raises(InvalidSubscription):
                subscription.extend(message, lease_ms=0)

    def test_many_by_their_columns(self, setting: Setting) -> None:
        setting.store.send_many("mail", [b"x"] * 600)
        with subscribe(setting) as subscription:
            acked = 0
            while len(messages := subscription.receive(600)):
                acked += subscription.ack_many(messages).acked
            assert 600 == acked

    def test_what_is_no_message_of_it(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription, subscribe(setting, "other") as other:
            [message] = other.receive()
            for call in (subscription.ack, subscription.nack, subscription.release, subscription.extend):
                with pytest.raises(InvalidReceipt):
                    call(message)
                with pytest.raises(InvalidReceipt):
                    call(object())


class TestDeadLetters:
    def test_who_fails_too_often_goes_there(self, setting: Setting) -> None:
        send(setting, b"x", key=b"k")
        with subscribe(setting, dead_letter="dead") as subscription:
            for _ in range(3):
                subscription.nack(subscription.receive(), delay=0, reason="no luck")
            assert [] == received(subscription)
            assert [(b"x", "no luck", 3)] == dead(setting)
            assert 1 == subscription.stats().dead

    def test_whose_lease_ended_too_often_does_too(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting, dead_letter="dead") as subscription:
            for _ in range(3):
                assert [b"x"] == received(subscription)
                setting.clock.advance(LEASE_MS + STEP_MS)
            assert [] == received(subscription)
            assert [b"x"] == [value for value, _, _ in dead(setting)]

    def test_a_reject_goes_there_at_once(self, setting: Setting) -> None:
        send(setting, b"0", b"1")
        with subscribe(setting, dead_letter="dead") as subscription:
            assert 2 == subscription.reject(subscription.receive(), "broken " * 1_000).done
            assert [1, 1] == [count for _, _, count in dead(setting)]
        with subscribe(setting, "without") as subscription:
            [message, _] = subscription.receive()
            with pytest.raises(NoDeadLetterTopic):
                subscription.reject(message)

    def test_they_are_sent_back(self, setting: Setting) -> None:
        send(setting, b"0", b"1", headers=[("a", b"b")])
        with subscribe(setting, dead_letter="dead") as subscription:
            subscription.reject(subscription.receive(), "broken")
            letters = setting.store.dead_letters("dead", subscription="s")
            assert [] == setting.store.dead_letters("dead", reason="no such reason")
            assert len(letters) == len(setting.store.dead_letters("dead"))
            assert 0 == setting.store.discard_dead_letters("dead", reason="no such reason")
            with pytest.raises(InvalidArgument):
                setting.store.redrive("dead", value=b"x")
            assert 1 == setting.store.redrive("dead", limit=1).redriven
            assert 1 == setting.store.redrive("dead").redriven
            again = subscription.receive()
            assert [(b"0", (("a", b"b"),)), (b"1", (("a", b"b"),))] == [
                (each.value, tuple(each.headers)) for each in again
            ]
        assert [] == dead(setting)

    def test_one_by_one(self, setting: Setting) -> None:
        """Edited and sent back, let go, and the rest at a rate."""
        store = setting.store
        send(setting, b"0", b"1", b"2", b"3")
        with subscribe(setting, dead_letter="dead") as subscription:
            subscription.reject(subscription.receive(), "broken")
            ids = [letter.message.id for letter in store.dead_letters("dead")]
            assert 1 == store.redrive("dead", records=[ids[1]], value=b"\xff edited").redriven
            assert 1 == store.discard_dead_letters("dead", records=[str(ids[0]), ids[1]])
            assert [b"2", b"3"] == [value for value, _, _ in dead(setting)]
            assert [b"\xff edited"] == received(subscription)
            assert 2 == store.redrive("dead", rate=1, reason="broken").redriven
            assert [b"2"] == received(subscription)
            setting.clock.advance(1_100)
            assert [b"3"] == received(subscription)
        for wrong in ("dead", "mail-0@0"):
            with pytest.raises(InvalidRecord):
                store.redrive("dead", records=[wrong])

    def test_where_they_cannot_go(self, setting: Setting) -> None:
        with pytest.raises(InvalidSubscription):
            subscribe(setting, dead_letter="mail")
        with pytest.raises(InvalidTopic):
            subscribe(setting, dead_letter="a/b")


class TestBlocks:
    def test_a_block_acks_where_it_ends_well(self, setting: Setting) -> None:
        send(setting, b"0", b"1")
        with subscribe(setting) as subscription:
            for message in subscription:
                with setting.handling(message):
                    pass
                if message.value == b"1":
                    break
            assert 2 == subscription.stats().acked

    def test_acks_that_go_together(self, setting: Setting) -> None:
        """What is asked of the reader, and its end, come behind them."""
        send(setting, *(b"%d" % number for number in range(6)))
        with subscribe(setting, ack_group_ms=2_500) as subscription:
            for taken in (1, 3):
                for message in subscription.receive(taken):
                    with setting.handling(message):
                        pass
            assert (4, 0) == ((told := subscription.stats()).acked, told.leased)
            [message] = subscription.receive(1)
            with setting.handling(message):
                pass
            assert subscription.drain(PATIENCE_S)
        with subscribe(setting, ack_group_ms=2_500) as subscription:
            assert 5 == subscription.stats().acked
            [message] = subscription.receive()
            with setting.handling(message):
                pass
        with subscribe(setting) as subscription:
            assert 6 == subscription.stats().acked
            assert [] == received(subscription)

    def test_acks_that_go_together_do_not_wait_for_ever(self, setting: Setting) -> None:
        """The thread that sends them is asked nothing: another reader sees them."""
        send(setting, b"0", b"1")
        with subscribe(setting, ack_group_ms=1) as subscription, subscribe(setting) as other:
            for message in subscription.receive():
                with setting.handling(message):
                    pass
            setting.clock.advance(1_000)
            eventually(lambda: other.stats().acked == 2)

    def test_a_block_that_raises_nacks(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting, dead_letter="dead") as subscription:
            for attempt in range(3):
                [message] = subscription.receive()
                assert attempt == message.redelivery_count
                assert setting.failing(message, ZeroDivisionError("by zero"))
                setting.clock.advance(4_000)
            assert [(b"x", "ZeroDivisionError: by zero", 3)] == dead(setting)

    def test_an_interrupt_gives_back(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription:
            [message] = subscription.receive()
            assert not setting.failing(message, KeyboardInterrupt())
            assert [(b"x", 0)] == [(each.value, each.redelivery_count) for each in subscription.receive()]

    def test_who_has_settled_it_has(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription:
            [message] = subscription.receive()
            with setting.handling(message):
                subscription.release(message)
            assert [b"x"] == received(subscription)

    def test_what_was_leased_ahead_goes_back(self, setting: Setting) -> None:
        send(setting, *(b"%d" % number for number in range(10)))
        with subscribe(setting) as subscription:
            for message in subscription:
                with setting.handling(message):
                    pass
                if message.offset == 4:
                    break
        with subscribe(setting) as subscription:
            assert [(b"%d" % number, 0) for number in range(5, 10)] == [
                (each.value, each.redelivery_count) for each in subscription.receive()
            ]

    def test_a_block_that_is_open_outlives_the_close(self, setting: Setting) -> None:
        send(setting, b"x")
        subscription = subscribe(setting)
        [message] = subscription.receive()
        with setting.handling(message):
            subscription.close()
        with subscribe(setting) as subscription:
            assert 1 == subscription.stats().acked


class TestLimits:
    def test_no_more_in_flight(self, setting: Setting) -> None:
        send(setting, *(b"%d" % number for number in range(5)))
        with subscribe(setting, max_in_flight=2) as subscription:
            first = subscription.receive()
            assert 2 == len(first)
            assert [] == received(subscription)
            subscription.ack(first[0])
            assert [b"2"] == received(subscription)
            setting.clock.advance(LEASE_MS + STEP_MS)
            assert 2 == len(subscription.receive())

    def test_settling_makes_room_for_who_waits(self, setting: Setting) -> None:
        send(setting, b"0", b"1")
        with subscribe(setting, max_in_flight=1) as subscription:
            [message] = subscription.receive()
            acking = threading.Timer(0.2, lambda: subscription.ack(message))
            acking.start()
            assert [b"1"] == received(subscription, timeout=PATIENCE_S)
            acking.join()

    def test_so_many_a_second(self, setting: Setting) -> None:
        send(setting, *(b"%d" % number for number in range(30)))
        with subscribe(setting, rate=100) as subscription:
            taken = len(subscription.receive())
            assert 10 == taken
            assert [] == received(subscription)
            setting.clock.advance(50)
            assert 5 == len(subscription.receive())

    def test_what_cannot_be(self, setting: Setting) -> None:
        for options in ({"rate": 0}, {"max_in_flight": 0}, {"lease_ms": 0}, {"delay_ms": -1}, {"max_lease_ms": 0},
                        {"retry": 3}, {"ack_group_ms": -1}, {"ack_group_ms": LEASE_MS}):  # fmt: skip
            with pytest.raises(InvalidSubscription):
                subscribe(setting, **options)


class TestStopping:
    def test_a_drain_takes_no_more(self, setting: Setting) -> None:
        send(setting, b"0", b"1")
        with subscribe(setting) as subscription:
            [message] = subscription.receive(1)
            assert subscription.drain(0)
            assert [] == received(subscription)
            assert [] == list(subscription)
            assert 1 == subscription.ack(message).acked

    def test_a_drain_waits_for_handlers(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription:
            [message] = subscription.receive()
            with setting.handling(message):
                assert not subscription.drain(0.05)
            assert subscription.drain(PATIENCE_S)

    def test_a_closed_one(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription:
            [message] = subscription.receive()
        subscription.close()
        for call in (
            subscription.receive,
            subscription.stats,
            lambda: subscription.ack(message),
            lambda: subscription.nack(message),
            lambda: subscription.seek(0),
        ):
            with pytest.raises(StoreClosed):
                call()
        assert [] == list(subscription)

    def test_a_closed_one_has_given_back(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting) as subscription:
            subscription.receive()
        with subscribe(setting) as subscription:
            assert [(b"x", 0)] == [(each.value, each.redelivery_count) for each in subscription.receive()]


class TestTheWhole:
    def test_it_is_sought(self, setting: Setting) -> None:
        send(setting, b"0", b"1", b"2")
        with subscribe(setting) as subscription:
            subscription.ack_many(subscription.receive())
            subscription.seek(1)
            assert [b"1", b"2"] == received(subscription)
            subscription.seek(LATEST)
            assert [] == received(subscription)
            with pytest.raises(OffsetOutOfRange):
                subscription.seek(9)
            with pytest.raises(UnknownPartition):
                subscription.seek(0, partition=1)

    def test_it_is_reset_and_deleted(self, setting: Setting) -> None:
        send(setting, b"0", b"1")
        with subscribe(setting) as subscription:
            messages = subscription.receive()
            with pytest.raises(TopicBusy):
                setting.store.delete_subscription("mail", "s")
            subscription.ack_many(messages)
        setting.store.reset_subscription("mail", "s", 1)
        with subscribe(setting) as subscription:
            assert [b"1"] == received(subscription)
        setting.store.delete_subscription("mail", "s")
        assert [] == setting.store.subscriptions("mail")
        for call in (
            lambda: setting.store.delete_subscription("mail", "s"),
            lambda: setting.store.reset_subscription("mail", "s", 0),
        ):
            with pytest.raises(UnknownSubscription):
                call()

    def test_what_readers_have(self, setting: Setting) -> None:
        store = setting.store
        send(setting, b"0", b"1", b"2", key=b"k")
        with subscribe(setting) as subscription, subscribe(setting, "other"):
            assert [] == store.leased("mail", "s")
            first, second = subscription.receive(2)
            subscription.nack(first, delay=0)
            [again] = subscription.receive(1)
            subscription.extend(second, lease_ms=LEASE_MS * 3)
            found = store.leased("mail", "s")
            assert [again.id, second.id] == [each.id for each in found]
            assert [again.deadline_ms, True] == [found[0].deadline_ms, found[1].deadline_ms > again.deadline_ms]
            assert [(b"0", b"k", 1, 2), (b"1", b"k", 0, 1)] == [
                (each.value, each.key, each.redelivery_count, each.delivery_count) for each in found
            ]
            assert [again.id] == [each.id for each in store.leased("mail", "s", limit=1)]
            kept = Receipts.of_columns([0], [found[0].delivery_offset], [found[0].lease_number])
            assert 1 == subscription.release(kept).done, "an operator takes it back"
            subscription.ack(second)
            assert [] == store.leased("mail", "s") == store.leased("mail", "other")
        with pytest.raises(UnknownSubscription):
            store.leased("mail", "nobody")

    def test_it_is_paused(self, setting: Setting) -> None:
        """By itself, and with its topic; what is sent is taken, and what is leased is settled."""
        store = setting.store
        send(setting, b"0", b"1")
        with subscribe(setting) as subscription, subscribe(setting, "other") as other:
            [message] = subscription.receive(1)
            store.pause("mail", "s")
            store.pause("mail", "s")
            send(setting, b"2")
            assert [] == received(subscription)
            assert (True, False) == (subscription.stats().paused, other.stats().paused)
            assert [b"0", b"1", b"2"] == received(other)
            assert 1 == subscription.ack(message).acked
            store.pause("mail")
            store.resume("mail", "s")
            assert [] == received(subscription), "its topic is paused"
            assert subscription.stats().paused
            assert store.topic("mail").settings.paused
            store.resume("mail")
            assert [b"1", b"2"] == received(subscription)
            assert not subscription.stats().paused
        store.pause("mail", "s")
        with subscribe(setting) as subscription:
            assert [] == received(subscription), "it outlives its readers"
        with pytest.raises(UnknownSubscription):
            store.pause("mail", "nobody")
        with pytest.raises(UnknownTopic):
            store.resume("nothing")

    def test_an_iteration_goes_on_where_it_was_paused(self, setting: Setting) -> None:
        send(setting, *(b"%d" % number for number in range(5)))
        with subscribe(setting) as subscription:
            seen = []
            for message in subscription:
                subscription.ack(message)
                seen.append(message.value)
                if len(seen) == 1:
                    setting.store.pause("mail", "s")
                    setting.store.resume("mail", "s")
                if len(seen) == 5:
                    break
            assert [b"%d" % number for number in range(5)] == seen

    def test_it_is_ordered_by_key(self, setting: Setting) -> None:
        for value in (b"a0", b"a1", b"b0", b"a2"):
            setting.store.send("mail", value, key=value[:1])
        with subscribe(setting, ordered_by="key") as subscription, subscribe(setting) as other:
            [a0, b0] = subscription.receive()
            assert (b"a0", b"b0") == (a0.value, b0.value)
            assert [] == received(other)
            assert 2 == subscription.stats().due
            other.nack(a0, delay=1)
            other.ack(b0)
            assert [] == received(other), "it comes back, and the others of its key wait for it"
            setting.clock.advance(1_100)
            for expected in (b"a0", b"a1", b"a2"):
                [message] = other.receive()
                assert expected == message.value
                subscription.ack(message)
        with pytest.raises(InvalidSubscription):
            subscribe(setting, "t", ordered_by="value")

    def test_stats(self, setting: Setting) -> None:
        send(setting, b"0", b"1", b"2")
        send(setting, b"later", delay=60)
        with subscribe(setting) as subscription:
            messages = subscription.receive(2)
            subscription.nack(messages[0])
            stats = subscription.stats()
            assert (1, 1, 1, 1, 1) == (stats.pending, stats.due, stats.leased, stats.retrying, stats.nacked)
            assert (1, 4) == (stats.partitions[0].pending, stats.partitions[0].high_watermark + 1)

    def test_a_name_is_a_groups_or_a_subscriptions(self, setting: Setting) -> None:
        send(setting, b"x")
        with setting.store.consumer("mail", group="g") as consumer:
            consumer.poll()
        with pytest.raises(NameTaken):
            subscribe(setting, "g")
        with pytest.raises(InvalidTopic):
            subscribe(setting, "a/b")

    def test_retries_grow(self, setting: Setting) -> None:
        send(setting, b"x")
        with subscribe(setting, retry=RetryPolicy(first_ms=100, factor=3, jitter=0)) as subscription:
            for pause in (100, 300, 900):
                subscription.nack(subscription.receive())
                setting.clock.advance(pause - 1)
                assert [] == received(subscription)
                setting.clock.advance(1)
            assert [b"x"] == received(subscription)


def test_a_count_of_all_deliveries(setting: Setting) -> None:
    """Those that failed, those that were given back, and this one."""
    send(setting, b"0")
    with subscribe(setting) as subscription:
        counts = []
        for settle in (subscription.nack, subscription.release, subscription.release, subscription.nack):
            received = subscription.receive(2)
            assert received.delivery_count.tolist() == [received[0].delivery_count]
            counts.append((received[0].delivery_count, received[0].redelivery_count))
            settle(received)
            setting.clock.advance(60_000)
        [last] = subscription.receive()
        assert [(1, 0), (2, 1), (3, 1), (4, 1), (5, 2)] == [*counts, (last.delivery_count, last.redelivery_count)]
        subscription.seek(EARLIEST)
        assert [1] == [message.delivery_count for message in subscription.receive()]


class TestExpiry:
    """What is of no use any more is handed out by no subscription, and read by every consumer."""

    def test_a_record_says_how_long(self, setting: Setting) -> None:
        send(setting, b"gone", expires_after=5)
        send(setting, b"later", expires_after=5, delay=10, unique_key=b"k", headers=[("a", b"1")])
        send(setting, b"stays", expires_after=60)
        setting.store.send_many("mail", [b"these", b"too"], expires_after=3)
        with setting.store.producer("mail") as producer:
            producer.send(b"and this", expires_after=1)
        setting.clock.advance(11_000)
        with subscribe(setting) as subscription:
            first = subscription.receive()
            assert [b"stays", b"later"] == [message.value for message in first]
            assert ["unique-key", "a", "expires-after"] == [name for name, _ in first[1].headers]
            assert (4, 0, 2) == ((stats := subscription.stats()).lapsed, stats.acked, stats.leased)
        with setting.store.consumer("mail", group="g") as consumer:
            assert 6 == len(consumer.poll())

    def test_a_topic_says_how_long(self, setting: Setting) -> None:
        setting.store.alter_topic("mail", expires_after_ms=5_000)
        setting.store.send_many("mail", [b"%d" % number for number in range(300)])
        setting.clock.advance(4_000)
        send(setting, b"in time")
        send(setting, b"less", expires_after=1)
        setting.clock.advance(2_000)
        with subscribe(setting) as subscription:
            assert [b"in time"] == received(subscription, 1)
            assert [] == received(subscription, 1)
            assert (301, 1, 0) == ((stats := subscription.stats()).lapsed, stats.leased, stats.due)
            setting.store.alter_topic("mail", expires_after_ms=None)
            send(setting, b"for ever")
            setting.clock.advance(9_000)
            assert [b"for ever"] == received(subscription, 1)

    def test_one_that_comes_back_too_late(self, setting: Setting) -> None:
        send(setting, b"0", b"1", expires_after=20)
        with subscribe(setting) as subscription:
            one, other = subscription.receive()
            subscription.nack(one, delay=5)
            subscription.nack(other, delay=30)
            setting.clock.advance(6_000)
            [again] = subscription.receive()
            assert (b"0", 1) == (again.value, again.redelivery_count)
            subscription.ack(again)
            setting.clock.advance(30_000)
            assert [] == received(subscription)
            assert (1, 1, 0) == ((stats := subscription.stats()).lapsed, stats.acked, stats.retrying)

    def test_dead_letters_where_the_topic_says_so(self, setting: Setting) -> None:
        setting.store.create_topic("dead")
        setting.store.alter_topic("mail", on_expiry="dead_letter")
        send(setting, b"0", expires_after=1)
        setting.clock.advance(2_000)
        with subscribe(setting, dead_letter="dead") as subscription, subscribe(setting, "plain") as plain:
            assert [] == received(subscription) + received(plain)
            assert (0, 1, 1) == (subscription.stats().lapsed, subscription.stats().dead, plain.stats().lapsed)
            assert [(b"0", "expired before anybody got it", 0)] == dead(setting)
        setting.clock.advance(60_000)
        with subscribe(setting, "reads", topic="dead") as letters:
            assert [b"0"] == received(letters), "a dead letter does not expire"

    def test_what_an_iteration_has_leased_ahead(self, setting: Setting) -> None:
        send(setting, b"0", b"1", b"2")
        send(setting, *(b"%d" % number for number in range(3, 8)), expires_after=5)
        send(setting, b"8")
        seen = []
        with subscribe(setting) as subscription:
            for message in subscription:
                seen.append(message.value)
                subscription.ack(message)
                if message.value == b"3":
                    setting.clock.advance(6_000)
                if message.value == b"8":
                    break
            setting.clock.advance(STEP_MS)  # what was given back comes again
            assert [] == received(subscription)
            assert ([b"0", b"1", b"2", b"3", b"8"], 4) == (seen, subscription.stats().lapsed)

    def test_what_cannot_be_said(self, setting: Setting) -> None:
        with pytest.raises(InvalidRecord):
            send(setting, b"0", expires_after=0)
        for wrong in ({"expires_after_ms": 0}, {"on_expiry": "keep"}):
            with pytest.raises((InvalidTopic, InvalidRequest)):
                setting.store.alter_topic("mail", **wrong)


class TestPriorities:
    """Of three, in two partitions each."""

    @pytest.fixture(autouse=True)
    def jobs(self, setting: Setting) -> None:
        setting.store.create_topic("jobs", 5, priorities=3)

    def test_the_highest_first_each_in_due_order(self, setting: Setting) -> None:
        for priority, delay in ((0, 1), (1, 3), (None, 2), (2, 3), (1, 2), (2, 4)):
            value = b"%d of %d" % (delay, priority or 0)
            setting.store.send("jobs", value, key=b"k", delay=delay, priority=priority)
        with subscribe(setting, topic="jobs") as subscription:
            setting.clock.advance(3_000)
            one = [*received(subscription, 1), *received(subscription, 1), *received(subscription, 1)]
            assert [b"3 of 2", b"2 of 1", b"3 of 1"] == one
            assert [b"1 of 0", b"2 of 0"] == received(subscription, 1) + received(subscription, 1)
            setting.clock.advance(1_000)
            assert [b"4 of 2"] == received(subscription)

    def test_many_at_once_and_an_iteration(self, setting: Setting) -> None:
        for priority in (0, 2, 1):
            setting.store.send_many("jobs", [b"%d" % priority] * 6, keys=[b"%d" % key for key in range(6)],
                                    priority=priority)  # fmt: skip
        with subscribe(setting, topic="jobs") as subscription, subscribe(setting, "other", "jobs") as other:
            found = received(subscription, 15)
            while len(found) < 15:
                found += received(subscription, 15 - len(found))
            assert [b"2"] * 6 + [b"1"] * 6 + [b"0"] * 3 == found
            seen = list[bytes]()
            for message in other:
                other.ack(message)
                seen.append(message.value)
                if len(seen) == 18:
                    break
            assert seen.index(b"1") >= 6 - 1
            assert sorted(seen, reverse=True)[:11] == sorted(seen[:12], reverse=True)[:11], "but for one of sixteen"

    def test_none_waits_for_ever(self, setting: Setting) -> None:
        """One of sixteen is of a lower priority, whatever is asked for at a time."""
        for priority, count in ((2, 64), (1, 20), (0, 20)):
            for key in (b"a", bytes(2)):
                setting.store.send_many("jobs", [b"%d" % priority] * count, keys=[key] * count, priority=priority)
        for most in (1, 3, 16, 32):
            with subscribe(setting, f"by-{most}", topic="jobs") as subscription:
                found = list[bytes]()
                while len(found) < 96:
                    found += received(subscription, most)
                high = found[:96].count(b"2")
                assert 96 - 96 // 16 - 1 <= high <= 96 - 96 // 16 + 1
                assert found[:96].count(b"1") - found[:96].count(b"0") in (-2, -1, 0, 1, 2), "in turn"

    def test_what_comes_back_keeps_it(self, setting: Setting) -> None:
        setting.store.create_topic("dead")
        for priority in (2, 0):
            setting.store.send("jobs", b"%d" % priority, priority=priority)
        with subscribe(setting, topic="jobs", dead_letter="dead") as subscription:
            [first] = subscription.receive(1)
            assert b"2" == first.value
            subscription.nack(first, delay=1)
            setting.store.send("jobs", b"1", priority=1)
            setting.clock.advance(2_000)
            [again, *others] = subscription.receive()
            assert (b"2", 1, [b"1", b"0"]) == (again.value, again.redelivery_count, [each.value for each in others])
            assert 1 == subscription.reject(again).done
        assert 1 == setting.store.redrive("dead").redriven
        setting.store.send("jobs", b"another 1", priority=1)
        setting.clock.advance(2 * LEASE_MS)
        with subscribe(setting, topic="jobs") as subscription:
            assert b"2" == received(subscription, 1)[0]

    def test_it_decides_the_partition_with_the_key(self, setting: Setting) -> None:
        topic = setting.store.topic("jobs")
        assert (6, 3) == (topic.partition_count, topic.settings.priorities)
        for priority in (None, 0, 1, 2):
            level = priority or 0
            places = {
                key: setting.store.send("jobs", b"", key=key, priority=priority).partition
                for key in map(bytes, range(6))
            }
            assert {level, level + 3} == set(places.values())
            assert places == {key: topic.partition_of(key, priority) for key in places}
            assert {level} == {topic.priority_of(partition) for partition in places.values()}
            turns = {setting.store.send("jobs", b"", priority=priority).partition for _ in range(4)}
            assert {level, level + 3} == turns

    def test_unique_keys(self, setting: Setting) -> None:
        store = setting.store
        first = store.send("jobs", b"low", unique_key=b"u", delay=60)
        assert first == store.send("jobs", b"other", unique_key=b"u", delay=60, on_conflict="keep")
        assert first.offset == store.get_unique("jobs", b"u").offset
        high = store.send("jobs", b"high", unique_key=b"u", delay=60, priority=2)
        assert first.partition + 2 == high.partition, "one of each priority"
        assert b"high" == store.get_unique("jobs", b"u").value
        store.cancel(high)
        assert b"low" == store.get_unique("jobs", b"u").value
        many = store.send_many("jobs", [b"a", b"b"], unique_keys=[b"v", b"w"], delay=60, priority=1)
        assert 2 == len(many)
        assert {1} == {store.get_unique("jobs", key).partition % 3 for key in (b"v", b"w")}

    def test_a_producer(self, setting: Setting) -> None:
        with setting.store.producer("jobs") as producer:
            sent = [producer.send(b"%d" % priority, priority=priority) for priority in (0, 2, 1)]
        assert [0, 2, 1] == [each.result(PATIENCE_S).partition % 3 for each in sent]

    def test_more_partitions_and_priorities(self, setting: Setting) -> None:
        store = setting.store
        for priority in (0, 2):
            store.send("jobs", b"%d" % priority, key=b"k", priority=priority)
        assert 9 == store.alter_topic("jobs", partitions=7).partition_count
        store.send("jobs", b"1", key=b"k", priority=1)
        store.alter_topic("mail", priorities=2)
        assert (2, 2) == ((mail := store.topic("mail")).partition_count, mail.settings.priorities)
        send(setting, b"low")
        send(setting, b"high", priority=1)
        with subscribe(setting, topic="jobs") as subscription, subscribe(setting) as of_mail:
            assert [b"2", b"1", b"0"] == received(subscription)
            assert [b"high", b"low"] == received(of_mail)

    def test_what_cannot_be_said(self, setting: Setting) -> None:
        store = setting.store
        for wrong in (3, -1, "1", True):
            with pytest.raises((InvalidRecord, InvalidRequest)):
                store.send("jobs", b"", priority=wrong)
        with pytest.raises(InvalidRecord, match="priorities"):
            store.send("mail", b"", priority=0 + 1)
        for send_it in (
            lambda: store.send("jobs", b"", partition=1, priority=1),
            lambda: store.send_many("jobs", [b""], partition=1, priority=1),
        ):
            with pytest.raises((InvalidArgument, InvalidRequest), match="not both"):
                send_it()
        for number in (0, 17, None, "2"):
            with pytest.raises((InvalidTopic, InvalidRequest)):
                store.create_topic("other", priorities=number)
