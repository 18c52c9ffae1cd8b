from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pytest

from afterlog.base.config import Durability
from afterlog.base.errors import (
    CorruptFile,
    InvalidDeliverAfter,
    InvalidReceipt,
    InvalidSubscription,
    OffsetOutOfRange,
    PositionPending,
    StoreClosed,
    UnknownPartition,
)
from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtBrokerTime, AtTime
from afterlog.fetch.timeline import FEW
from afterlog.log.cancel_result import CancelResult
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.subscription import Subscription
from tests.subscription.support import Setting, values
from tests.support import NOW_MS, Background, eventually, killed


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.check()
    setting.store.close()


class Always:
    """A random generator that always says one number."""

    def __init__(self, share: float) -> None:
        self.share = share

    def random(self, size: int) -> Any:
        return np.full(size, self.share)


# --- As people use it


def test_the_example(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    store, sent, deliveries = setting.store, [], []
    store.send("mail", b"later", delay=3)
    setting.send(b"a", b"never", b"b")

    def deliver(value: bytes | None) -> None:
        deliveries.append(value)
        if value == b"never":
            raise ConnectionError("refused")
        sent.append(value)

    retry = RetryPolicy(first_ms=1_000, factor=2, max_ms=600_000, jitter=0.1, attempts=8)
    with store.subscribe("mail", "sender", retry=retry, lease_ms=30_000, dead_letter="mail.dead") as sub:
        setting.clock.steps = [lambda: setting.clock.advance(130_000)] * 7 + [sub.close]
        for message in sub:  # due order per partition, leased to this reader
            with message:
                deliver(message.value)  # ack when the block ends well; nack by the retry policy when it raises
    assert [b"a", b"b", b"later"] == sent
    assert 8 == deliveries.count(b"never")
    assert [(b"never", "ConnectionError: refused", 8)] == setting.dead()
    assert 8 == sum("mail-0@2 failed in sender" in record.message for record in caplog.records)
    assert all(record.exc_info for record in caplog.records)


def test_readers_share_and_never_hold_the_same(setting: Setting) -> None:
    setting.send(*(b"%d" % number for number in range(6)))
    with setting.subscribe() as one, setting.subscribe() as other:
        held = [*one.receive(2), *other.receive(2), *one.receive(1), *other.receive()]
        assert [b"%d" % number for number in range(6)] == values(held)
        assert [] == [*one.receive(), *other.receive()]
        one.ack_many(held)
        assert 6 == other.stats().acked


def test_one_by_one_and_many_at_once_may_be_mixed(setting: Setting) -> None:
    setting.send(*(b"%d" % number for number in range(40)))
    rng, held = Random(11), list[LeasedMessage]()
    with setting.subscribe() as one, setting.subscribe() as other:
        while len(came := rng.choice([one, other]).receive(rng.choice([1, 1, 1, 4]))):
            assert [came[0].delivery_offset] == came.columns.delivery_offset[:1].tolist()
            assert [message.deadline_ms for message in came] == came.deadline_ms.tolist()
            assert [0] * len(came) == came.redelivery_count.tolist()
            held += came
        assert [b"%d" % number for number in range(40)] == values(held)
        one.ack(held[0])
        assert (1, 2, 0) == ((done := one.ack_many(held[:3])).already, done.acked, done.unknown)
        one.seek(EARLIEST)
        again = [message for _ in range(3) for message in one.receive(1)]
        assert values(held[:3]) == values(again)
        assert not {id(message) for message in held} & {id(message) for message in again}


def test_what_comes_back_is_not_overtaken_by_what_was_read_ahead(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c", b"d")
    with setting.subscribe() as sub:
        [first], [second] = sub.receive(1), sub.receive(1)
        sub.release(second)
        assert [b"b", b"c"] == values([*sub.receive(1), *sub.receive(1)])
        setting.clock.set(first.deadline_ms)
        assert {b"a", b"b", b"c", b"d"} == set(values([message for _ in range(4) for message in sub.receive(1)]))


def test_subscriptions_see_everything_independently(setting: Setting) -> None:
    setting.send(b"a", b"b")
    with (
        setting.subscribe("one") as one,
        setting.subscribe("two") as two,
        setting.subscribe("new", start=LATEST) as new,
    ):
        one.ack_many(one.receive())
        two.nack(two.receive(), delay=60)
        setting.send(b"c")
        assert [[b"c"]] * 3 == [values(each.receive()) for each in (one, two, new)]
        assert (2, 0) == (one.stats().acked, one.stats().nacked)
        assert (0, 2) == (two.stats().acked, two.stats().nacked)


def test_a_lease_ends(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe() as one, setting.subscribe(lease_ms=60_000) as other:
        [late] = one.receive()
        assert late.deadline_ms >= NOW_MS + 10_000
        setting.clock.set(late.deadline_ms - 1)
        assert [] == [*other.receive()]
        setting.clock.set(late.deadline_ms)
        [again] = other.receive()
        assert (0, 1) == (late.redelivery_count, again.redelivery_count)
        assert (0, 1) == ((answer := one.nack(late)).done, answer.stale), "somebody else has it"
        assert 1 == one.extend(late).stale
        assert 1 == one.ack(late).acked, "an ack counts whoever has it"
        assert 1 == other.ack(again).already
        assert (1, 1, 0) == ((stats := other.stats()).expired, stats.redelivered, stats.leased)


def test_a_lease_is_extended(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe() as sub:
        [message] = sub.receive()
        setting.clock.advance(9_000)
        assert sub.extend(message).deadline_ms >= NOW_MS + 19_000
        setting.clock.advance(9_000)
        assert [] == [*sub.receive()]
        until_ms = sub.extend(message, lease_ms=1_000).deadline_ms
        setting.clock.set(until_ms)
        assert [b"a"] == values(sub.receive())


def test_retries_come_by_their_time_among_what_is_due(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")
    setting.send(b"d", after_ms=2_000)
    with setting.subscribe() as sub:
        a, b, c = sub.receive()
        sub.nack(a, delay=3)
        sub.nack(b, delay=timedelta(seconds=1), reason="busy")
        sub.nack(c)
        assert 3 == sub.stats().retrying
        setting.clock.advance(999)
        assert [] == [*sub.receive()]
        setting.clock.advance(4_000)
        again = sub.receive()
        assert [b"b", b"c", b"d", b"a"] == values(again)
        assert [1, 1, 0, 1] == [message.redelivery_count for message in again]


def test_the_policy_says_when(setting: Setting) -> None:
    """Without dead letters for ever, at last every `max_ms`."""
    setting.send(b"a")
    with setting.subscribe(retry=RetryPolicy(1_000, 2, 4_000, 0.5, 2), random=Always(0.5)) as sub:
        for failures, delay_ms in enumerate([750, 1_500, 3_000, 3_000]):
            [message] = sub.receive()
            assert failures == message.redelivery_count
            sub.nack(message)
            setting.clock.advance(delay_ms - 1)
            assert 0 == len(sub.receive())
            setting.clock.advance(10)  # the precision of retries
        assert (1, 4) == (len(sub.receive()), sub.stats().redelivered)


def test_a_subscription_with_a_delay_of_its_own(setting: Setting) -> None:
    setting.send(b"a")
    setting.send(b"b", after_ms=500)
    with setting.subscribe("late", delay_ms=2_000) as late, setting.subscribe() as sender:
        setting.clock.advance(500)
        assert [b"a", b"b"] == values(sender.receive())
        assert (2, 0) == ((stats := late.stats()).pending, stats.due)
        setting.clock.set(NOW_MS + 2_000)
        assert [b"a"] == values(late.receive())
        setting.clock.steps = [lambda: setting.clock.advance(500)]
        assert [b"b"] == values(late.receive(timeout=None))
        assert [(NOW_MS + 2_500, None)] == setting.clock.waits
        late.seek(AtTime(NOW_MS + 2_001))
        assert [b"b"] == values(late.receive())
        late.seek(AtBrokerTime(NOW_MS))
        assert [b"a", b"b"] == values(late.receive())
        late.seek(AtBrokerTime(NOW_MS + 1))
        assert [] == values(late.receive())
        with pytest.raises(InvalidSubscription, match="open with delay_ms=2000"):
            setting.subscribe("late")


def test_seek_back_and_forth(setting: Setting) -> None:
    setting.send(b"a", b"b")
    setting.clock.advance(1_000)
    setting.send(b"c", b"d")
    with setting.subscribe() as sub, setting.subscribe() as other:
        held = sub.receive()
        sub.ack(held[0])
        sub.seek(1)
        assert 0 == sub.nack(held[:1]).done
        assert [b"b", b"c", b"d"] == values(other.receive())
        for position in (
            AtTime(NOW_MS + 1),
            AtBrokerTime(NOW_MS + 1),
            datetime.fromtimestamp(NOW_MS / 1000 + 1, UTC),
            2,
        ):
            other.seek(position)
            assert [b"c", b"d"] == values(sub.receive())
        sub.seek(LATEST)
        setting.send(b"e")
        assert [b"e"] == values(sub.receive())
        sub.seek(EARLIEST, partition=0)
        assert 5 == len(sub.receive())
        for wrong in (6, -1):
            with pytest.raises(OffsetOutOfRange):
                sub.seek(wrong)
        with pytest.raises(UnknownPartition):
            sub.seek(0, partition=1)
        with pytest.raises(InvalidDeliverAfter):
            sub.seek(datetime(2026, 1, 1))
        assert 5 == sub.stats().leased


def test_a_seek_to_the_end_of_what_is_pending_is_refused_for_what_may_still_come_before_it(setting: Setting) -> None:
    setting.send(b"later", after_ms=60_000)
    with setting.subscribe() as sub:
        for position in (1, AfterOffset(0)):
            with pytest.raises(PositionPending, match="seek to LATEST"):
                sub.seek(position)
        sub.seek(AtTime(NOW_MS + 30_000))
        setting.send(b"soon", after_ms=1)
        setting.send(b"between", after_ms=40_000)
        setting.clock.advance(60_000)
        assert [b"soon", b"between", b"later"] == values(sub.receive())
    setting.send(b"again", after_ms=90_000)
    with pytest.raises(PositionPending):
        setting.subscribe("other", start=AfterOffset(3))


def test_what_is_cancelled_is_never_received(setting: Setting) -> None:
    gone, kept = (setting.store.send("mail", value, delay=1) for value in (b"gone", b"kept"))
    with setting.subscribe() as sub:
        assert CancelResult.CANCELLED == setting.store.cancel(gone)
        setting.clock.advance(5_000)
        [message] = sub.receive()
        assert (kept, b"kept") == (message.id, message.value)
        assert CancelResult.ALREADY_DELIVERED == setting.store.cancel(message.id)
        sub.ack(message)
        assert CancelResult.ALREADY_DELIVERED == setting.store.cancel(kept)
        assert CancelResult.ALREADY_CANCELLED == setting.store.cancel(gone)
        stats = sub.stats()
        assert (0, 0, 0, 0, 1) == (stats.pending, stats.due, stats.leased, stats.retrying, stats.acked)


# --- What became of them


def test_many_are_acked_as_they_come() -> None:
    setting = Setting(partitions=3)
    for partition in range(3):
        setting.send(*(b"%d" % number for number in range(4)), partition=partition)
    with setting.subscribe() as sub:
        first, second = sub.receive(5), sub.receive(5)
        assert 5 == sub.ack_many(first).acked
        assert 5 == sub.ack_many([*first][::-1]).already
        assert (3, 1) == ((answer := sub.ack_many([*second[:3], first[0]])).acked, answer.already)
        assert (2, 0) == ((answer := sub.nack(second[3:], delay=1)).done, answer.stale)
        assert 5 == sub.nack(second, delay=1).stale, "acked, or nacked already"
        assert 0 == sub.ack_many([]).acked
        stats = sub.stats()
        assert (8, 2, 2) == (stats.acked, stats.retrying, stats.due)
        assert stats.acked == sum(each.acked for each in stats.partitions.values())
        assert {0, 1, 2} == set(stats.partitions)
    setting.store.close()


def test_released_at_once_and_not_counted(setting: Setting) -> None:
    setting.send(b"a", b"b")
    with setting.subscribe() as sub:
        assert 2 == sub.release(sub.receive()).done
        assert [(b"a", 0), (b"b", 0)] == [(each.value, each.redelivery_count) for each in sub.receive()]
        assert (2, 0) == (sub.stats().released, sub.stats().nacked)


def test_no_message_of_this_subscription(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe() as sub, setting.subscribe("other") as other:
        received = other.receive()
        calls = (sub.ack, sub.ack_many, sub.nack, sub.release, sub.extend)
        for call in calls:
            for wrong in (received[0], received, 1, None, "a", [1], [None], object()):
                with pytest.raises(InvalidReceipt):
                    call(wrong)  # type: ignore[operator]
        [message] = sub.receive()
        for delay in (-1, "1", float("nan")):
            with pytest.raises(InvalidDeliverAfter):
                sub.nack(message, delay=delay)  # type: ignore[arg-type]
        with pytest.raises(InvalidSubscription, match="ten years"):
            sub.nack(message, delay=10**9)
        for lease_ms in (0, -1, 1.5, "1"):
            with pytest.raises(InvalidSubscription):
                sub.extend(message, lease_ms=lease_ms)  # type: ignore[arg-type]
        for count in (0, -1):
            with pytest.raises(InvalidSubscription):
                sub.receive(count)
        assert 1 == sub.stats().leased


def test_subscriptions_that_cannot_be(setting: Setting) -> None:
    for wrong in (
        {"lease_ms": 0}, {"lease_ms": "1"}, {"delay_ms": -1}, {"delay_ms": 0.5}, {"retry": 3}, {"dead_letter": "mail"},
    ):  # fmt: skip
        with pytest.raises(InvalidSubscription):
            setting.subscribe(**wrong)
    for partitions in ([], [1], ["0"]):
        with pytest.raises(UnknownPartition):
            setting.subscribe(partitions=partitions)
    with pytest.raises(OffsetOutOfRange):
        setting.subscribe(start=1)
    with setting.subscribe():  # nothing was left behind
        pass


# --- Iterating


def test_little_is_leased_ahead_at_first_then_what_can_be_worked_off(setting: Setting) -> None:
    setting.send(*(b"%d" % number for number in range(40)))
    leased = []
    with setting.subscribe() as sub:
        for message in sub:
            leased.append(sub.stats().leased)
            sub.ack(message)
            if len(leased) > 7:
                setting.clock.advance(625)  # four in a quarter of the lease
            if len(leased) == 31:
                break
    assert [1, 2, 1, 4, 3, 2, 1, 8, 7, 6, 5, 4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1] == leased[:23]


def test_what_was_not_handed_out_goes_back(setting: Setting) -> None:
    setting.send(*(b"%d" % number for number in range(8)))
    with setting.subscribe() as other:
        with setting.subscribe() as sub:
            messages = iter(sub)
            assert [b"0", b"1", b"2", b"3"] == [next(messages).value for _ in range(4)]
            assert 7 == other.stats().leased
            messages.close()  # type: ignore[attr-defined]
            assert (4, 3) == (other.stats().leased, other.stats().released)
            held = iter(sub)
            assert [b"4", b"5"] == [next(held).value, next(held).value]
        stats = other.stats()
        assert (6, 1, 4) == (stats.leased, stats.due, stats.released)
        assert [] == [*held]
        assert [b"6", b"7"] == values(other.receive())


def test_no_lease_that_is_half_over_is_handed_out(setting: Setting) -> None:
    setting.send(*(b"%d" % number for number in range(7)))
    handed = []
    with setting.subscribe() as sub:
        for message in sub:
            handed.append((message.value, message.redelivery_count, message.deadline_ms - setting.clock.now_ms()))
            sub.ack(message)
            if message.value == b"3":
                setting.clock.advance(6_000)
            if len(handed) == 7:
                break
    assert [b"%d" % number for number in range(7)] == [value for value, *_ in handed]
    assert all(count == 0 and left_ms >= 10_000 for _, count, left_ms in handed)


def test_a_seek_takes_back_what_was_leased_ahead(setting: Setting) -> None:
    setting.send(*(b"%d" % number for number in range(7)))
    with setting.subscribe() as sub, setting.subscribe() as other:
        messages = iter(sub)
        assert [b"0", b"1", b"2", b"3"] == [next(messages).value for _ in range(4)]
        other.seek(0)
        assert b"0" == next(messages).value


def test_iterating_ends_when_another_thread_closes(setting: Setting) -> None:
    sub = setting.subscribe()
    thread = Background(lambda: [message.value for message in sub])
    eventually(lambda: bool(sub.receiver.aheads))
    sub.close()
    assert [] == thread.answer()
    with pytest.raises(StoreClosed):
        sub.receive()
    sub.close()


# --- Waiting


@pytest.mark.parametrize("what", ["append", "nack", "release", "lease", "retry", "seek"])
def test_a_receive_that_waits_is_woken(setting: Setting, what: str) -> None:
    clock = setting.clock
    if what != "append":
        setting.send(b"a")
    with setting.subscribe() as sub, setting.subscribe() as other:
        held = other.receive()
        if what == "retry":
            other.nack(held, delay=1)
        clock.steps = [
            {
                "append": lambda: setting.send(b"a"),
                "nack": lambda: other.nack(held, delay=0),
                "release": lambda: other.release(held),
                "seek": lambda: other.seek(0),
            }.get(what, lambda: clock.set(clock.waits[-1][0] or 0))
        ]
        assert [b"a"] == values(sub.receive(timeout=None))
        assert 1 == len(clock.waits)
        until_ms = {"append": None, "retry": NOW_MS + 1_000}.get(what, held and held[0].deadline_ms)
        assert [(until_ms, None)] == clock.waits


def test_a_receive_waits_no_longer_than_its_timeout(setting: Setting) -> None:
    with setting.subscribe() as sub:
        assert 0 == len(sub.receive())
        assert [] == setting.clock.waits
        assert 0 == len(sub.receive(timeout=2.5))
        assert 2.5 == setting.clock.patience_s


def test_what_happens_between_looking_and_waiting_is_not_slept_through(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with setting.subscribe() as sub:
        sweep, sweeps = sub.receiver._sweep, []

        def sweeping(max_records: int, rows: list[int]) -> object:
            sweeps.append(sweep(max_records, rows))
            if len(sweeps) == 1:
                setting.send(b"a")
            return sweeps[-1]

        monkeypatch.setattr(sub.receiver, "_sweep", sweeping)
        assert [b"a"] == values(sub.receive(timeout=5))
        assert [] == setting.clock.waits


# --- Partitions


def test_partitions_take_turns() -> None:
    setting = Setting(partitions=3)
    for partition in range(3):
        setting.send(*[b"%d" % partition] * 10, partition=partition)
    with setting.subscribe() as sub, setting.subscribe(partitions=[1]) as one:
        assert {b"0", b"1", b"2"} == {message.value for _ in range(3) for message in sub.receive(1)}
        assert {1} == {message.partition for message in one.receive()}
        assert [1] == [*one.stats().partitions]
        message = next(message for message in sub.receive() if message.partition == 0)
        with pytest.raises(UnknownPartition):
            one.ack(message)
    setting.store.close()


def test_what_another_partition_gave_comes_where_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(partitions=2)
    setting.send(b"a", partition=0)
    setting.send(b"b", partition=1)

    def failing(*_: object, **__: object) -> object:
        raise CorruptFile("rotten", path="log")

    with setting.subscribe() as sub:
        with monkeypatch.context() as patch:
            patch.setattr(sub.shared[1], "receive", failing)
            patch.setattr(sub.shared[1], "receive_few", failing)
            found = list[bytes | None]()
            for _ in range(4):
                with suppress(CorruptFile):
                    found += values(sub.receive())
            assert [b"a"] == found
            with pytest.raises(CorruptFile):
                sub.receive()
        assert 1 == sub.stats().leased
        assert [b"b"] == values(sub.receive())
    setting.store.close()


# --- Who must not block


def at_once(sub: Subscription, max_records: int) -> Any:
    return sub.receiver.few_at_once(max_records, sub.receiver.agenda.rows())


class TestAtOnce:
    @pytest.fixture
    def setting(self) -> Iterator[Setting]:
        """With a lease of the frontier for the second that comes."""
        setting = Setting(frontier_lease_ms=1_000)
        with setting.subscribe() as sub:
            setting.send(b"before")
            sub.ack_many(sub.receive())
            yield setting
        setting.store.close()

    def test_one_and_not_the_first_of_many(self, setting: Setting) -> None:
        with setting.subscribe() as sub:
            assert None is at_once(sub, 1), "nothing is due"
            setting.send(b"a")
            assert [b"a"] == values(at_once(sub, 10) or ())
            setting.send(b"b", b"c", b"d")
            assert [b"b"] == values(at_once(sub, 1) or ())
            assert [b"c", b"d"] == values(at_once(sub, 10) or ())
            many = [b"%d" % number for number in range(FEW + 1)]
            setting.send(*many)
            assert None is at_once(sub, 10), "by columns"
            assert many[:1] == values(sub.receive(1))
            assert many[1:] == values(sub.receive(10))

    def test_what_comes_meanwhile_is_on_the_agenda(self, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
        with setting.subscribe() as sub:
            shared, found = sub.shared[0], sub.shared[0].receive_few
            setting.send(b"a")

            def and_another(*arguments: Any, **options: Any) -> Any:
                one = found(*arguments, **options)
                setting.send(b"b")
                return one

            with monkeypatch.context() as patch:
                patch.setattr(shared, "receive_few", and_another)
                assert [b"a"] == values(at_once(sub, 10) or ())
            assert sub.receiver.agenda.due()
            assert [b"b"] == values(at_once(sub, 10) or ())
            assert not sub.receiver.agenda.due(), "who waits is not woken for nothing"

    def test_who_took_the_last_rests_until_the_next_is_due(self, setting: Setting) -> None:
        with setting.subscribe() as sub:
            for max_records in (1, 10):
                setting.send(b"a")
                setting.send(b"later", after_ms=70)
                assert [b"a"] == values(at_once(sub, max_records))
                assert setting.clock.now_ms() + 70 == sub.receiver.agenda.first_ms()
                setting.clock.advance(70)
                assert [b"later"] == values(at_once(sub, max_records))

    def test_what_was_leased_goes_back_where_nobody_can_tell_for_how_long_to_rest(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing() -> int:
            raise CorruptFile("rotten", path="log")

        with setting.subscribe() as sub:
            setting.send(b"a")
            for max_records in (1, 10):
                with monkeypatch.context() as patch:
                    patch.setattr(sub.shared[0], "rest_ms", failing)
                    with pytest.raises(CorruptFile):
                        at_once(sub, max_records)
                assert 0 == sub.stats().leased
            assert [(b"a", 0)] == [(each.value, each.redelivery_count) for each in sub.receive()]

    def test_not_where_somebody_holds_a_lock(self, setting: Setting) -> None:
        with setting.subscribe() as sub:
            order: Any = sub.shared[0].partition._order
            setting.send(b"a")
            for lock in (sub.shared[0]._lock, order._lock):
                with lock:
                    assert None is at_once(sub, 1)
            assert [b"a"] == values(at_once(sub, 1) or ())

    def test_not_where_the_frontier_or_the_journal_is_to_be_written(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with setting.subscribe() as sub:
            setting.clock.advance(60_000)
            setting.send(b"a")
            assert None is at_once(sub, 1), "no lease of the frontier is that far"
            assert [b"a"] == values(sub.receive(1))
            setting.send(b"b")
            with monkeypatch.context() as patch:
                patch.setattr(sub.shared[0].journal, "_limit_bytes", sub.shared[0].journal.written.position + 1)
                assert None is at_once(sub, 1)
            assert [b"b"] == values(at_once(sub, 1) or ())


# --- Closing and opening


def test_the_last_reader_gives_back_all(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")
    one, other = setting.subscribe(), setting.subscribe()
    one.receive(1)
    [message] = other.receive(1)
    one.close()
    assert 2 == other.stats().leased
    other.ack(message)
    other.close()
    for call in (other.receive, other.stats, lambda: other.ack(message), lambda: other.seek(0)):
        with pytest.raises(StoreClosed):
            call()  # type: ignore[operator]
    with setting.subscribe() as again:
        assert [(b"a", 0), (b"c", 0)] == [(each.value, each.redelivery_count) for each in again.receive()]


def test_the_store_closes_what_is_open(setting: Setting) -> None:
    setting.send(b"a", b"b")
    sub = setting.subscribe()
    sub.ack(sub.receive(1)[0])
    messages = iter(sub)
    assert b"b" == next(messages).value
    setting.store.close()
    assert [] == [*messages]
    with pytest.raises(StoreClosed):
        sub.receive()
    setting.open(killed(setting.disk))
    with setting.subscribe() as sub:
        assert [(b"b", 0)] == [(each.value, each.redelivery_count) for each in sub.receive()]
        assert 0 == sub.shared[0].replayed.cut_bytes  # type: ignore[union-attr]


def test_a_crash_counts_what_was_leased(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")
    sub = setting.subscribe()
    a, b, _ = sub.receive()
    sub.ack(a)
    sub.nack(b, delay=5)
    setting.open(killed(setting.disk))
    with setting.subscribe() as sub:
        assert [(b"c", 1)] == [(each.value, each.redelivery_count) for each in sub.receive()]
        setting.clock.advance(5_000)
        assert [(b"b", 1)] == [(each.value, each.redelivery_count) for each in sub.receive()]
        assert (1, 1, 1) == ((stats := sub.stats()).acked, stats.nacked, stats.crashed)


def test_interval_syncs_the_journals() -> None:
    setting = Setting(durability=Durability.interval(3_600_000))
    setting.send(b"a")
    setting.store.sync()
    with setting.subscribe() as sub:
        sub.ack_many(sub.receive())
        journal = sub.shared[0].journal
        assert journal.commit in setting.store._commits()
        assert journal.safe < journal.written
        setting.store.sync()
        assert journal.safe == journal.written
    assert journal.commit not in setting.store._commits()
    setting.store.close()


def test_readers_in_threads_share_the_work(setting: Setting) -> None:
    """Each record is worked off once, whoever does it."""
    setting.send(*(b"%d" % number for number in range(300)))
    done: list[bytes | None] = []

    def work(sub: Subscription) -> None:
        for message in sub:
            with message:
                done.append(message.value)

    subs = [setting.subscribe() for _ in range(3)]
    threads = [Background(lambda sub=sub: work(sub)) for sub in subs]  # type: ignore[misc]
    eventually(lambda: subs[0].stats().acked == 300)
    setting.store.close()
    for thread in threads:
        thread.answer()
    assert sorted(b"%d" % number for number in range(300)) == sorted(filter(None, done))
    setting.open(killed(setting.disk))


class TestPaused:
    def test_what_was_leased_ahead_goes_back(self, setting: Setting) -> None:
        for _ in range(20):
            setting.send(b"x")
        sub = setting.subscribe()
        messages = iter(sub)
        for _ in range(6):
            sub.ack(next(messages))
        assert sub.stats().leased, "some were leased ahead"
        setting.store.pause("mail", "sender")
        receiver = sub.receiver
        [ahead] = receiver.aheads
        assert receiver.pop(ahead) is None
        assert not receiver.fill(ahead)
        stats = sub.stats()
        assert (0, 6, True) == (stats.leased, stats.acked, stats.paused)
        assert not receiver.agenda.due(), "it waits, and does not look again and again"
        setting.store.resume("mail", "sender")
        assert receiver.agenda.due()
        assert 14 == len(sub.receive())


def test_what_is_leased_where_nobody_reads(setting: Setting) -> None:
    """What outlives its reader, by the journal; nothing once its time is over, nor what the reader gave back."""
    store, clock = setting.store, setting.clock
    for _ in range(3):
        setting.send(b"x")
    with setting.subscribe(durable_leases=True) as sub:
        [first, *_] = sub.receive(2)
        assert [first.deadline_ms] * 2 == [each.deadline_ms for each in store.leased("mail", "sender")]
        sub.ack(first)
    [left] = store.leased("mail", "sender")
    assert (1, 0, 1, first.deadline_ms) == (
        left.delivery_offset, left.redelivery_count, left.delivery_count, left.deadline_ms
    )  # fmt: skip
    clock.advance(left.deadline_ms - clock.now_ms() - 1)
    assert [left] == store.leased("mail", "sender")
    clock.advance(1)
    assert [] == store.leased("mail", "sender")
    with setting.subscribe() as sub:
        sub.receive()
    assert [] == store.leased("mail", "sender")
