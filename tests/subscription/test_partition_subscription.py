"""One partition of one subscription: by hand, and against a plain model, with reopens and kills in between."""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS
from afterlog.base.errors import (
    ClockBehind,
    InvalidSubscription,
    InvalidTopic,
    StorageFull,
    StoreClosed,
    SubscriptionPoisoned,
)
from afterlog.fetch.message import Message
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST, LATEST
from afterlog.subscription import journal as journal_module
from afterlog.subscription.answers import AckResult, Lease, ReceiptResult
from afterlog.subscription.events import DeadLetter
from afterlog.subscription.lease_number import failures
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.timers import Timers, deadline_ms
from tests import campaigns
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles, os_error
from tests.support import NOW_MS, Background, Calls, killed, open_small

LEASE_MS = 1_000
ATTEMPTS = 3
POLICY = RetryPolicy(attempts=ATTEMPTS)


class Given:
    """A store with one topic, and what a test does to it."""

    def __init__(self, disk: Any = None, now_ms: int = NOW_MS, **config: Any) -> None:
        self.disk = SimulatedFiles() if disk is None else disk
        self.clock = ManualClock(now_ms)
        self.store = open_small(self.disk, self.clock, **config)

    def partition(self, **topic: Any) -> Partition:
        return self.store.create_topic("mail", **topic).partition(0)

    def subscribe(self, name: str = "sender", **options: Any) -> PartitionSubscription:
        topic = {"delayed": options.pop("delayed", True)}
        return PartitionSubscription(self.partition(**topic), name, **options)

    def send(self, count: int, delay: float | None = None) -> None:
        self.store.send_many("mail", [b"%d" % number for number in range(count)], delay=delay)


def offsets(received: Lease) -> list[int]:
    return received.columns.delivery_offset.tolist()


def nack(sub: PartitionSubscription, received: Lease, delay_ms: int) -> ReceiptResult:
    columns = received.columns
    return sub.nack(columns.delivery_offset, columns.offset, received.lease_number, delay_ms)


@pytest.fixture
def given() -> Given:
    given = Given()
    given.partition()
    return given


class RunningClock(ManualClock):
    """One that goes on with every look at it."""

    def now_ms(self) -> int:
        self.advance(1)
        return super().now_ms()


@pytest.mark.parametrize("phase", range(12))
def test_what_becomes_due_while_a_reader_decides_to_wait_wakes_it(given: Given, phase: int) -> None:
    """D15: it is no record that an append in flight holds back, which nobody would be woken for."""
    sub = given.subscribe()
    given.store.send("mail", b"soon", deliver_after=NOW_MS + 10)
    given.clock.set(NOW_MS + phase)
    running = RunningClock(NOW_MS + phase)
    with patch.object(given.clock, "now_ms", running.now_ms):
        until_ms = sub.rest_ms()
    assert max(NOW_MS + 10, running.now_ms()) >= until_ms


class TestReceive:
    def test_who_waits_is_told_of_the_end_of_a_lease(self, given: Given) -> None:
        """Once for all that end then; again where somebody has looked since, and nothing did."""
        sub, told = given.subscribe(), list[int]()
        given.send(5)

        class Told:
            def come(self, ms: int) -> None:
                told.append(ms)

        listener, until_ms = Told(), deadline_ms(NOW_MS, LEASE_MS)
        assert [0] == offsets(sub.receive(1, LEASE_MS))
        sub.notifier.listen(listener)
        sub.ack_one(0)
        assert [1, 2] == [one[0].delivery_offset for _ in "12" if (one := sub.receive_one(2 * LEASE_MS, Message))]
        assert [deadline_ms(NOW_MS, 2 * LEASE_MS)] == told
        assert sub.receive_one(LEASE_MS, Message)
        assert 1 == len(told), "the first lease was to end then"
        assert [1, 1, 1] == [sub.ack_one(offset).acked for offset in (1, 2, 3)]
        assert NOW_MS == sub.rest_ms()
        assert sub.receive_one(LEASE_MS, Message)
        assert [until_ms] == told[1:], "who looked meanwhile saw no lease"
        sub.check()

    @pytest.mark.parametrize("together", [True, False])
    @pytest.mark.parametrize("sealed", [True, False])
    def test_what_comes_back_is_taken_one_at_a_time(self, given: Given, together: bool, sealed: bool) -> None:
        sub, sent = given.subscribe(), [b"%d" % number for number in range(5)]
        if together:
            given.store.send_many("mail", sent, headers=[("h", b"x")])
        else:
            for value in sent:
                given.store.send("mail", value, headers=[("h", b"x")])
        if sealed:
            given.store.topic("mail").log(0).roll()
        received = sub.receive(5, LEASE_MS)
        assert 5 == nack(sub, received, 20).done
        assert None is sub.receive_one(LEASE_MS, Message)
        given.clock.advance(20)
        again = [sub.receive_one(LEASE_MS, Message, policy=POLICY) for _ in sent]
        assert received.columns.to_messages() == [one[0] for one in again if one]
        assert [1] * 5 == [failures(one[1]) for one in again if one]
        assert None is sub.receive_one(LEASE_MS, Message)
        sub.check()
        given.clock.advance(2 * LEASE_MS)
        assert None is sub.receive_one(LEASE_MS, Message), "leases have ended"
        assert 5 == len(sub.receive(9, LEASE_MS))

    def test_one_that_comes_back_waits_for_what_is_due_before(self, given: Given) -> None:
        sub = given.subscribe()
        given.send(1)
        assert 1 == nack(sub, sub.receive(1, LEASE_MS), 20).done
        given.send(1, delay=0.01)
        given.clock.advance(20)
        for expected in (1, 0):
            found = sub.receive_one(LEASE_MS, Message)
            assert [expected] == ([found[0].delivery_offset] if found else offsets(sub.receive(1, LEASE_MS)))
        sub.check()

    def test_one_is_not_lost_where_it_is_struck_on_its_way_out(self, given: Given) -> None:
        """It has left the timers, and nobody has it yet."""
        sub = given.subscribe()
        given.send(1)
        assert 1 == nack(sub, sub.receive(1, LEASE_MS), 0).done
        due = Timers.due

        def struck(timers: Timers, now_ms: int, limit: int) -> Any:
            due(timers, now_ms, limit)
            raise KeyboardInterrupt

        with patch.object(Timers, "due", struck), pytest.raises(KeyboardInterrupt):
            sub.receive_one(LEASE_MS, Message)
        found = sub.receive_one(LEASE_MS, Message)
        assert [0] == ([found[0].delivery_offset] if found else offsets(sub.receive(1, LEASE_MS)))
        sub.check()

    def test_one_that_is_exhausted_is_not_taken_alone(self, given: Given) -> None:
        sub = given.subscribe()
        given.send(1)
        for _ in range(ATTEMPTS):
            nack(sub, sub.receive(1, LEASE_MS), 0)
        assert None is sub.receive_one(LEASE_MS, Message, policy=POLICY)
        assert 1 == len(sub.receive(1, LEASE_MS, policy=POLICY).exhausted)

    def test_one_that_is_held_stays_held(self, given: Given) -> None:
        sub = given.subscribe()
        given.send(1)
        nack(sub, sub.receive(1, LEASE_MS), 0)
        found = sub.receive_one(LEASE_MS, Message, held=True)
        assert found
        assert found[2] == sub.rest_ms()
        sub.check()

    def test_due_order_and_leases(self, given: Given) -> None:
        sub = given.subscribe()
        given.send(2, delay=2)
        given.send(3, delay=1)
        assert [] == offsets(sub.receive(10, LEASE_MS))
        assert NOW_MS + 1_000 == sub.rest_ms()
        given.clock.advance(1_000)
        first = sub.receive(2, LEASE_MS)
        assert [2, 3] == first.columns.offset.tolist()
        assert [4] == sub.receive(10, LEASE_MS).columns.offset.tolist()
        assert [b"0", b"1"] == [message.value for message in first.columns.to_messages()]
        assert first.deadline_ms == deadline_ms(NOW_MS + 1_000, LEASE_MS) == sub.rest_ms()
        stats = sub.stats()
        assert (2, 0, 3, 0) == (stats.pending, stats.due, stats.leased, stats.retrying)

    def test_an_expired_lease(self, given: Given) -> None:
        """D4, D5: it comes again, once, with the reason counted; and an ack of the first reader counts still."""
        given.send(3)
        sub = given.subscribe()
        first = sub.receive(3, LEASE_MS)
        sub.ack([1])
        given.clock.set(first.deadline_ms - 1)
        assert [] == offsets(sub.receive(3, LEASE_MS))
        given.clock.set(first.deadline_ms)
        again = sub.receive(3, LEASE_MS)
        assert ([0, 2], [1, 1]) == (offsets(again), again.redelivery_count.tolist())
        assert (2, 1) == (sub.stats().expired, sub.stats().acked)
        assert ReceiptResult(done=0, stale=3) == nack(sub, first, 0)
        assert AckResult(acked=2, already=1) == sub.ack(first.columns.delivery_offset)
        assert 3 == sub.stats().mark_delete
        sub.check()

    def test_extend(self, given: Given) -> None:
        given.send(2)
        sub = given.subscribe()
        first = sub.receive(2, LEASE_MS)
        given.clock.advance(500)
        extended = sub.extend([1, 7], [0, 0], 5_000)
        assert ReceiptResult(done=1, stale=1, deadline_ms=deadline_ms(NOW_MS + 500, 5_000)) == extended
        given.clock.set(first.deadline_ms)
        assert [0] == offsets(sub.receive(2, LEASE_MS))
        sub.check()

    def test_release(self, given: Given) -> None:
        given.send(2)
        sub = given.subscribe()
        first = sub.receive(2, LEASE_MS)
        assert ReceiptResult(done=2) == sub.release([1, 0], first.columns.offset[::-1], [0, 0])
        again = sub.receive(2, LEASE_MS)
        assert ([0, 1], [0, 0]) == (offsets(again), again.redelivery_count.tolist())

    def test_retries_among_the_due(self, given: Given) -> None:
        """By time; at equal times by delivery offset; and no retry overtakes what is older."""
        given.send(3)
        sub = given.subscribe()
        nack(sub, sub.receive(2, LEASE_MS), 2_000)
        given.send(1, delay=1)
        given.send(1, delay=2)
        given.send(1, delay=3)
        given.clock.advance(5_000)
        assert [[2], [3], [0], [1], [4], [5], []] == [offsets(sub.receive(1, LEASE_MS)) for _ in range(7)]

    def test_no_retry_overtakes_what_did_not_fit(self, given: Given) -> None:
        given.send(1)
        sub = given.subscribe()
        nack(sub, sub.receive(1, LEASE_MS), 1_000)
        for _ in range(3):
            given.store.send("mail", bytes(1_000))
        given.clock.advance(1_000)
        assert [[1], [2], [3, 0]] == [offsets(sub.receive(9, LEASE_MS, max_bytes=10)) for _ in range(3)]

    def test_an_old_deadline_does_not_end_a_new_lease(self, given: Given) -> None:
        given.send(1)
        sub = given.subscribe()
        first = sub.receive(1, LEASE_MS)
        nack(sub, first, 0)
        given.clock.advance(500)
        assert [0] == offsets(sub.receive(1, LEASE_MS))
        sub.check()
        given.clock.set(first.deadline_ms)
        assert [] == offsets(sub.receive(1, LEASE_MS))

    def test_who_comes_late_gets_what_is_left(self, given: Given) -> None:
        given.send(10)
        sub, other = given.subscribe(), given.subscribe("other")
        assert [*range(4)] == offsets(sub.receive(4, LEASE_MS))
        assert [*range(4, 10)] == offsets(sub.receive(100, LEASE_MS))
        assert [*range(10)] == offsets(other.receive(100, LEASE_MS))

    def test_cancelled_ones_are_stepped_over(self, given: Given) -> None:
        given.send(6, delay=1)
        sub = given.subscribe()
        given.store.cancel_many("mail", 0, np.array([0, 2, 5]))
        assert 3 == sub.stats().pending
        given.clock.advance(1_000)
        assert (0, 3) == (sub.stats().pending, sub.stats().due)
        assert [1] == offsets(sub.receive(1, LEASE_MS))
        assert 2 == sub.stats().due
        assert [3, 4] == offsets(sub.receive(5, LEASE_MS))
        assert [] == offsets(sub.receive(5, LEASE_MS))
        sub.ack([1, 3, 4])
        stats = sub.stats()
        assert (4, 3, 0, 0) == (stats.stepped_over, stats.acked, stats.due, stats.pending)
        assert stats.position == stats.mark_delete == stats.high_watermark == 7
        sub.check()

    def test_delay_of_a_subscription(self, given: Given) -> None:
        sub, other = given.subscribe("later", delay_ms=5_000), given.subscribe()
        given.send(3)
        given.send(2, delay=1)
        assert [0, 1, 2] == offsets(other.receive(9, LEASE_MS))
        assert ([], 5, 0) == (offsets(sub.receive(9, LEASE_MS)), sub.stats().pending, sub.stats().due)
        assert NOW_MS + 5_000 == sub.rest_ms()
        given.clock.advance(5_000)
        assert ([0, 1, 2], NOW_MS + 6_000) == (offsets(sub.receive(9, 60_000)), sub.rest_ms())
        given.clock.advance(1_000)
        assert [3, 4] == offsets(sub.receive(2, LEASE_MS))

    def test_a_fifo_topic(self) -> None:
        given = Given()
        sub = given.subscribe(delayed=False)
        given.send(3)
        first = sub.receive(2, LEASE_MS)
        assert [0, 1] == offsets(first)
        nack(sub, first, 10)
        given.clock.advance(10)
        assert [2, 0, 1] == offsets(sub.receive(5, LEASE_MS))
        with pytest.raises(InvalidTopic):
            given.subscribe("later", delayed=False, delay_ms=1)

    def test_a_clock_far_behind(self, given: Given) -> None:
        given.send(1)
        sub = given.subscribe()
        nack(sub, sub.receive(1, LEASE_MS), 0)
        given.store.close()
        given = Given(killed(given.disk), NOW_MS - 2 * 3_600_000)
        sub = given.subscribe()
        with pytest.raises(ClockBehind):
            sub.receive(1, LEASE_MS)
        assert AckResult(acked=1) == sub.ack([0])


class TestAckAndNack:
    def test_answers(self, given: Given) -> None:
        given.send(5)
        sub = given.subscribe()
        sub.receive(3, LEASE_MS)
        assert AckResult(acked=2) == sub.ack([2, 0])
        assert AckResult(acked=1, already=2, unknown=3) == sub.ack(np.array([1, 0, 2, 2, 3, -5, 2**62]))
        assert AckResult(acked=0) == sub.ack([])

    def test_nack_delays(self, given: Given) -> None:
        """D10: not before its delay, then again with the count; the other subscription sees nothing of it."""
        given.send(3)
        sub, other = given.subscribe(), given.subscribe("other")
        first = sub.receive(3, LEASE_MS)
        result = sub.nack([2, 0], [2, 0], [0, 0], [100, 200])
        assert (2, 0) == (result.done, result.stale)
        assert (1, 2) == (sub.stats().leased, sub.stats().retrying)
        for after, expected in [(99, []), (100, [2]), (199, []), (200, [0])]:
            given.clock.set(NOW_MS + after)
            received = sub.receive(3, LEASE_MS)
            assert expected == offsets(received)
            assert [1] * len(expected) == received.redelivery_count.tolist()
        assert ReceiptResult(done=1, stale=2) == nack(sub, first, 0)
        assert [0, 0, 0] == other.receive(3, LEASE_MS).redelivery_count.tolist()

    def test_the_same_receipt_twice_in_a_call(self, given: Given) -> None:
        given.send(1)
        sub = given.subscribe()
        sub.receive(1, LEASE_MS)
        assert ReceiptResult(done=1, stale=1) == sub.nack([0, 0], [0, 0], [0, 0], 0)
        assert 1 == sub.stats().nacked

    def test_bad_arguments(self, given: Given) -> None:
        given.send(1)
        sub = given.subscribe()
        for call in (
            lambda: sub.receive(0, LEASE_MS),
            lambda: sub.receive(1, 0),
            lambda: sub.receive(1, 2**63),
            lambda: sub.extend([0], [0], -1),
            lambda: sub.nack([0], [0], [0], -1),
            lambda: sub.nack([0], [0], [0], [2**62]),
            lambda: given.subscribe("x", delay_ms=-1),
        ):
            with pytest.raises(InvalidSubscription):
                call()

    def test_a_full_disk_changes_nothing(self) -> None:
        calls = Calls()
        given = Given(FailingFiles(SimulatedFiles(), calls))
        given.partition()
        given.send(4)
        sub = given.subscribe()
        first = sub.receive(2, LEASE_MS)
        before = sub.stats()
        for call in (
            lambda: sub.receive(2, LEASE_MS),
            lambda: sub.ack([0]),
            lambda: nack(sub, first, 10),
            lambda: sub.seek(EARLIEST),
        ):
            calls.fail("append", "journal-00000000000000000000", os_error(errno.ENOSPC, given.store.path))
            with pytest.raises(StorageFull):
                call()
            assert before == sub.stats()
            sub.check()
        nack(sub, first, 0)
        calls.fail("append", "journal-00000000000000000000", os_error(errno.ENOSPC, given.store.path))
        with pytest.raises(StorageFull):
            sub.receive(9, LEASE_MS)
        sub.check()
        assert [0, 1, 2, 3] == offsets(sub.receive(9, LEASE_MS))

    def test_a_failed_sync_poisons_the_subscription_and_nothing_else(self) -> None:
        calls = Calls()
        given = Given(FailingFiles(SimulatedFiles(), calls), durability=ALWAYS)
        given.partition()
        given.send(2)
        sub, other = given.subscribe(), given.subscribe("other")
        sub.receive(1, LEASE_MS)
        calls.fail("sync", "journal-00000000000000000000", os_error(errno.EIO, given.store.path))
        with pytest.raises(SubscriptionPoisoned):
            sub.ack([0])
        with pytest.raises(SubscriptionPoisoned):
            sub.receive(1, LEASE_MS)
        sub.close()
        other.receive(1, LEASE_MS)
        assert AckResult(acked=1) == other.ack([0])
        given.send(1)


def test_many_readers() -> None:
    """Each record is with one of them, and acked once; one in three fails at first."""
    given = Given(durability=ALWAYS)
    given.partition()
    given.send(400)
    sub = given.subscribe()

    def reader() -> list[int]:
        done = list[int]()
        while len(lease := sub.receive(7, LEASE_MS)):
            rows = (lease.columns.delivery_offset % 3 == 0) & (lease.redelivery_count == 0)
            columns, counts = lease.columns.take(np.flatnonzero(rows)), lease.lease_number[rows]
            assert rows.sum() == sub.nack(columns.delivery_offset, columns.offset, counts, 0).done
            assert (~rows).sum() == sub.ack(lease.columns.delivery_offset[~rows]).acked
            done += lease.columns.delivery_offset[~rows].tolist()
        return done

    found = [offset for each in [Background(reader) for _ in range(4)] for offset in each.answer()]
    found += reader()
    assert [*range(400)] == sorted(found)
    assert (400, 134) == (sub.stats().acked, sub.stats().nacked)
    sub.check()


class TestDeadLetters:
    def letters(self, received: Lease) -> list[DeadLetter]:
        rows = zip(received.exhausted.delivery_offset.tolist(), received.exhausted.offset.tolist(), strict=True)
        return [
            DeadLetter(
                delivery_offset=d, offset=offset, topic="dead", partition=0, log_end_offset=5, failures=3, reason="r"
            )
            for d, offset in rows
        ]

    def exhausted(self, given: Given, sub: PartitionSubscription) -> Lease:
        for attempt in range(ATTEMPTS):
            received = sub.receive(9, LEASE_MS, policy=POLICY)
            assert [attempt] * 2 == received.redelivery_count.tolist()
            nack(sub, received, 60_000)
            given.clock.advance(60_000)
        received = sub.receive(9, LEASE_MS, policy=POLICY)
        assert ([], [0, 1]) == (offsets(received), received.exhausted.delivery_offset.tolist())
        assert [ATTEMPTS] * 2 == received.exhausted_number.tolist()
        return received

    def test_once(self, given: Given) -> None:
        given.send(2)
        sub = given.subscribe()
        letters = self.letters(self.exhausted(given, sub))
        assert () == sub.intend_dead_letters(letters, [0, 0])
        assert tuple(letters) == sub.intend_dead_letters(letters, [ATTEMPTS] * 2)
        assert () == sub.intend_dead_letters(letters, [ATTEMPTS] * 2)
        assert tuple(letters) == sub.unfinished_dead_letters()
        given.clock.advance(600_000)
        assert 0 == len(sub.receive(9, LEASE_MS, policy=POLICY).exhausted)
        assert 1 == sub.finish_dead_letters([0, 0, 5])
        given = Given(killed(given.disk), given.clock.now_ms())
        sub = given.subscribe()
        assert tuple(letters[1:]) == sub.unfinished_dead_letters()
        assert AckResult(acked=0, already=1) == sub.ack([1])
        assert 1 == sub.finish_dead_letters([1])
        assert (2, 0, 2) == (sub.stats().dead, sub.stats().leased, sub.stats().mark_delete)
        sub.check()

    def test_nobody_took_care(self, given: Given) -> None:
        given.send(2)
        sub = given.subscribe()
        given.clock.set(self.exhausted(given, sub).deadline_ms)
        received = sub.receive(9, LEASE_MS, policy=POLICY)
        assert [ATTEMPTS + 1] * 2 == received.exhausted_number.tolist()


class TestRestart:
    def test_a_kill_counts_as_a_failure(self, given: Given) -> None:
        given.send(5)
        sub = given.subscribe()
        first = sub.receive(4, LEASE_MS)
        sub.ack([1])
        sub.nack([2], first.columns.offset[2:3], [0], 5_000)
        given = Given(killed(given.disk))
        sub = given.subscribe()
        sub.check()
        again = sub.receive(9, LEASE_MS)
        assert [(0, 1), (3, 1), (4, 0)] == sorted(zip(offsets(again), again.redelivery_count.tolist(), strict=True))
        assert (2, 1) == (sub.stats().crashed, sub.stats().nacked)
        given.clock.advance(5_000)
        assert 2 in offsets(sub.receive(9, LEASE_MS))

    def test_a_close_does_not(self, given: Given) -> None:
        given.send(2)
        sub = given.subscribe()
        sub.receive(1, LEASE_MS)
        sub.close()
        sub.close()
        with pytest.raises(StoreClosed):
            sub.receive(1, LEASE_MS)
        sub = given.subscribe()
        assert sub.replayed is not None
        again = sub.receive(2, LEASE_MS)
        assert ([0, 1], [0, 0]) == (sorted(offsets(again)), again.redelivery_count.tolist())
        given.store.close()
        sub.close()

    def test_a_clock_that_stepped_back(self, given: Given) -> None:
        """What was leased at the crash is not due by the clock as it is now: it waits."""
        given.send(1)
        given.send(1, delay=0.5)
        sub = given.subscribe()
        assert [0] == offsets(sub.receive(2, LEASE_MS))
        given.clock.advance(500)
        assert [1] == offsets(sub.receive(2, LEASE_MS))
        given = Given(killed(given.disk), NOW_MS - 100)
        sub = given.subscribe()
        sub.check()
        for after, expected in [(0, [0]), (499, []), (999, []), (1_000, [1])]:
            given.clock.set(NOW_MS + after)
            again = sub.receive(2, 60_000)
            assert (expected, [1] * len(expected)) == (offsets(again), again.redelivery_count.tolist())

    def test_the_journal_does_not_grow_with_nacks(self, given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journal_module, "LIMIT_BYTES", 4_096)
        given.send(3)
        sub = given.subscribe()
        for turn in range(200):
            received = sub.receive(3, LEASE_MS)
            assert [turn] * 3 == received.redelivery_count.tolist()
            nack(sub, received, 0)
            assert sub.journal.size < 6_000
            given.clock.advance(10)
        assert sub.journal.number > 3
        again = Given(killed(given.disk), given.clock.now_ms()).subscribe()
        assert [200] * 3 == again.receive(3, LEASE_MS).redelivery_count.tolist()

    def test_retention_takes_what_was_not_acked(self, caplog: pytest.LogCaptureFixture) -> None:
        given = Given()
        given.store.create_topic("mail", retention_ms=1_000)
        sub = PartitionSubscription(given.store.topic("mail").partition(0), "sender")
        for _ in range(30):
            given.send(30)
        nack(sub, sub.receive(20, LEASE_MS), 0)
        sub.receive(10, LEASE_MS)
        given.clock.advance(10_000)
        assert given.store.enforce_retention() > 0
        log_start = sub.partition.log_start
        received = sub.receive(2_000, LEASE_MS)
        assert [*range(log_start, 900)] == sorted(offsets(received))
        assert log_start == sub.stats().removed
        told = f"sender: retention took {log_start} records of mail-0, up to delivery offset {log_start}"
        assert [True] == [told in record.message for record in caplog.records]
        sub.receive(1, LEASE_MS)
        assert 1 == len(caplog.records)
        sub.check()


class TestSeek:
    def test_back_and_forth(self, given: Given) -> None:
        given.send(4)
        given.send(2, delay=60)
        sub = given.subscribe()
        nack(sub, sub.receive(3, LEASE_MS), 0)
        sub.seek(2)
        assert [2, 3] == offsets(sub.receive(9, LEASE_MS))
        sub.seek(EARLIEST)
        first = sub.receive(9, LEASE_MS)
        assert ([0, 1, 2, 3], [0, 0, 0, 0]) == (offsets(first), first.redelivery_count.tolist())
        sub.seek(LATEST)
        assert AckResult(acked=0, already=4) == sub.ack(offsets(first))
        given.clock.advance(60_000)
        assert [4, 5] == offsets(sub.receive(9, LEASE_MS))
        sub.check()

    def test_where_it_starts(self, given: Given) -> None:
        given.send(3)
        assert [] == offsets(given.subscribe("latest", start=LATEST).receive(9, LEASE_MS))
        assert [1, 2] == offsets(given.subscribe("second", start=1).receive(9, LEASE_MS))


class TestExpiry:
    @pytest.mark.parametrize("ms", [89, 90])
    @pytest.mark.parametrize("again", [False, True])
    def test_to_the_millisecond(self, given: Given, ms: int, again: bool) -> None:
        """By the way of one, read for the first time and coming back, and by that of many."""
        sub = given.subscribe()
        given.store.send("mail", b"0", expires_after=0.09)
        if again:
            first = sub.receive(1, LEASE_MS)
            assert 1 == nack(sub, first, 0).done
        given.clock.advance(ms)
        one = sub.receive_one(LEASE_MS, Message)
        assert (one is not None) == (ms < 90)
        rest = sub.receive(1, LEASE_MS)
        assert ([], [0] * (ms >= 90)) == (offsets(rest), rest.lapsed.delivery_offset.tolist())

    def test_up_to_the_first_that_has_not(self, given: Given) -> None:
        given.store.send_many("mail", [b"%d" % number for number in range(50)], expires_after=1)
        given.store.send_many("mail", [b"live"] * 5)
        given.store.send_many("mail", [b"late"] * 5, expires_after=1)
        given.clock.advance(1_000)
        found = given.subscribe().receive(3, LEASE_MS)
        assert ([50, 51, 52], 50) == (offsets(found), len(found.lapsed))


class Machine(RuleBasedStateMachine):
    """D4, D5, D9, D10: what is delivered, and when, to the record and the millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.position = 0
        self.acked = set[int]()
        self.leases: dict[int, int] = {}
        self.held = set[int]()
        """Of what is or was leased: what a restart leaves so."""
        self.retries: dict[int, int] = {}
        self.failures: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        """Of the latest lease of each: its receipt."""
        self.known: dict[int, int] = {}
        self.spans: dict[int, int] = {}
        """How long records are of use, by append offset."""
        self.places: dict[int, tuple[int, int]] = {}
        """Of what was due once, as `due` has it."""
        self.dropped = 0

    @initialize(delay_ms=st.sampled_from([0, 0, 130]))
    def begin(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self.open()

    def open(self) -> None:
        self.store = open_small(self.disk, self.clock, durability=OS, segment_bytes=1 << 16)
        self.partition = self.store.create_topic("mail").partition(0)
        self.sub = PartitionSubscription(self.partition, "sender", delay_ms=self.delay_ms)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def due(self) -> dict[int, tuple[int, int]]:
        """(due here, offset) of the fresh records that are due here, by delivery offset."""
        found, position = dict[int, tuple[int, int]](), min(self.position, self.partition.high_watermark())
        while len((read := self.partition.columns(position, 10_000, 1 << 24))[0]):
            columns, position = read
            rows = zip(columns.delivery_offset.tolist(), columns.due.tolist(), columns.offset.tolist(), strict=True)
            found |= {rank: (ms + self.delay_ms, offset) for rank, ms, offset in rows}
        fresh = {rank: each for rank, each in found.items() if each[0] <= self.now_ms}
        self.places |= fresh
        self.pending = self.partition.pending() + len(found) - len(fresh)
        return fresh

    def back(self, rank: int, retry_ms: int, failed: bool) -> None:
        del self.leases[rank]
        self.held.discard(rank)
        self.failures[rank] = self.failures.get(rank, 0) + failed
        self.retries[rank] = -(-retry_ms // 10) * 10

    @rule(
        delays=st.lists(st.sampled_from([None, 0.0, 0.05, 0.2, 5.0]), min_size=1, max_size=4),
        span=st.sampled_from([None, None, 0.09, 1.0]),
    )
    def send(self, delays: list[float | None], span: float | None) -> None:
        for delay in delays:
            sent = self.store.send("mail", b"x", delay=delay, expires_after=span)
            if span is not None:
                self.spans[sent.offset] = int(span * 1_000)

    def has_lapsed(self, rank: int) -> bool:
        due_ms, offset = self.places[rank]
        return offset in self.spans and due_ms + self.spans[offset] <= self.now_ms

    def taken(self, candidates: list[int], limit: int, is_merged: bool) -> list[int]:
        """As many as are asked for; where all of these have expired and none comes back, all up to the first that has
        not, and so many from it on."""
        if is_merged or not all(map(self.has_lapsed, candidates[:limit])):
            return candidates[:limit]
        before = next((row for row, rank in enumerate(candidates) if not self.has_lapsed(rank)), len(candidates))
        return candidates[: before + limit]

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        end = self.partition.log_end_offset
        self.store.cancel_many(
            "mail", 0, np.array(sorted(data.draw(st.sets(st.integers(0, end), max_size=3))), np.int64)
        )

    @rule(ms=st.sampled_from([1, 10, 90, 1_000, 2_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(limit=st.sampled_from([1, 1, 1, 2, 5, 100]), held=st.booleans(), drops=st.sampled_from([True, True, False]))
    def receive(self, limit: int, held: bool, drops: bool) -> None:
        fresh = self.due()
        for rank, deadline in list(self.leases.items()):
            if deadline <= self.now_ms:
                self.back(rank, deadline, failed=True)
        waiting = {rank: ms for rank, ms in self.retries.items() if ms <= self.now_ms}
        candidates = [(ms, rank) for rank, (ms, _) in fresh.items()] + [(ms, rank) for rank, ms in waiting.items()]
        expected = self.taken([rank for _, rank in sorted(candidates)], limit, bool(waiting))
        received = self.taken_alone(held) if limit == 1 else None
        if received is None:
            received = self.sub.receive(limit, LEASE_MS, policy=POLICY, held=held)
        got = list(zip(offsets(received), received.redelivery_count.tolist(), strict=True))
        exhausted = received.exhausted.delivery_offset.tolist()
        dead = list(zip(exhausted, failures(received.exhausted_number).tolist(), strict=True))
        numbers = zip(offsets(received), received.lease_number.tolist(), strict=True)
        lapsed = list(zip(received.lapsed.delivery_offset.tolist(), received.lapsed_number.tolist(), strict=True))
        assert [rank for rank in expected if self.has_lapsed(rank)] == [rank for rank, _ in lapsed]
        for rank, number in [*numbers, *lapsed, *zip(exhausted, received.exhausted_number.tolist(), strict=True)]:
            assert number != self.numbers.get(rank)
            self.numbers[rank] = number
        counted = [(rank, self.failures.get(rank, 0)) for rank in expected if not self.has_lapsed(rank)]
        assert [each for each in counted if each[1] < ATTEMPTS] == got
        assert [each for each in counted if each[1] >= ATTEMPTS] == dead
        for columns in (received.columns, received.exhausted, received.lapsed):
            self.known |= dict(zip(columns.delivery_offset.tolist(), columns.offset.tolist(), strict=True))
        self.leases |= dict.fromkeys(expected, deadline_ms(self.now_ms, LEASE_MS))
        self.held |= {*expected} if held else set()
        self.retries = {rank: ms for rank, ms in self.retries.items() if rank not in expected}
        position = self.sub.stats().position
        assert position >= max([self.position, *(rank + 1 for rank in expected)])
        assert not [rank for rank in fresh if rank < position and rank not in expected]
        self.position = position
        if drops and lapsed:
            gone = [rank for rank, _ in lapsed]
            assert len(gone) == self.sub.drop_lapsed(received.lapsed.delivery_offset, received.lapsed_number).done
            assert len(gone) == self.sub.drop_lapsed(received.lapsed.delivery_offset, received.lapsed_number).stale
            self.leases = {rank: ms for rank, ms in self.leases.items() if rank not in gone}
            self.acked |= {*gone}
            self.dropped += len(gone)
            campaigns.count("records that expired")

    def taken_alone(self, held: bool) -> Lease | None:
        """The same by the way of who takes one at a time, where that has one: as its columns have it."""
        found = self.sub.receive_one(LEASE_MS, Message, policy=POLICY, held=held)
        if found is None:
            return None
        message, number, until_ms, _ = found
        place = np.array([message.offset]), np.array([message.delivery_offset])
        assert [message] == self.partition.records_at(*place).to_messages()
        campaigns.count("records received alone")
        none = np.empty(0, np.int64)
        return Lease(
            columns=Columns.of(message),
            lease_number=np.array([number]),
            exhausted=Columns.empty("mail"),
            exhausted_number=none,
            lapsed=Columns.empty("mail"),
            lapsed_number=none,
            deadline_ms=until_ms,
        )

    def some(self, data: st.DataObject) -> list[int]:
        return data.draw(st.lists(st.integers(0, self.position + 1), max_size=4, unique=True))

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        asked = self.some(data)
        newly = {rank for rank in asked if rank in self.leases or rank in self.retries}
        unknown = sum(rank >= self.position for rank in asked)
        expected = AckResult(acked=len(newly), already=len(asked) - len(newly) - unknown, unknown=unknown)
        assert expected == self.sub.ack(asked)
        self.acked |= newly
        self.leases = {rank: ms for rank, ms in self.leases.items() if rank not in newly}
        self.retries = {rank: ms for rank, ms in self.retries.items() if rank not in newly}

    @rule(
        data=st.data(),
        how=st.sampled_from(["nack", "release", "extend", "prolong"]),
        delay_ms=st.sampled_from([0, 7, 300]),
    )
    def give_back(self, data: st.DataObject, how: str, delay_ms: int) -> None:
        asked = self.some(data)
        counts = [data.draw(st.sampled_from([self.numbers.get(rank, 0), 0])) for rank in asked]
        rows = zip(asked, counts, strict=True)
        good = [rank for rank, count in rows if rank in self.leases and count == self.numbers[rank]]
        places = [self.known.get(rank, 0) for rank in asked]
        if how == "nack" and len(asked) == 1:
            result = self.sub.nack_one(asked[0], places[0], counts[0], delay_ms)
        elif how == "nack":
            result = self.sub.nack(asked, places, counts, delay_ms)
        elif how == "release":
            result = self.sub.release(asked, places, counts)
        elif how == "prolong":
            until_ms = self.sub.prolong(asked, counts, LEASE_MS)
            self.leases |= {rank: max(self.leases[rank], until_ms) for rank in good}
            return
        else:
            result = self.sub.extend(asked, counts, LEASE_MS)
            self.leases |= dict.fromkeys(good, result.deadline_ms)
        assert (len(good), len(asked) - len(good)) == (result.done, result.stale)
        for rank in good if how != "extend" else ():
            self.back(rank, self.now_ms + delay_ms if how == "nack" else self.now_ms // 10 * 10, failed=how == "nack")

    @precondition(lambda self: self.position)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        self.position = data.draw(st.integers(0, self.position))
        self.sub.seek(self.position)
        self.leases, self.retries, self.failures, self.held = {}, {}, {}, set()

    @rule(crash=st.booleans())
    def reopen(self, crash: bool) -> None:
        if crash:
            self.disk = killed(self.disk)
        else:
            self.sub.close()
            self.store.close()
        for rank in self.leases.keys() - self.held:
            self.back(rank, self.now_ms // 10 * 10, failed=crash)
        self.open()

    @invariant()
    def same(self) -> None:
        campaigns.count("steps of a model")
        if not hasattr(self, "sub"):
            return
        self.sub.check()
        stats, fresh = self.sub.stats(), self.due()
        assert (len(fresh), len(self.leases), len(self.retries)) == (stats.due, stats.leased, stats.retrying)
        assert (self.pending, self.position, self.dropped) == (stats.pending, stats.position, stats.lapsed)
        assert min([*self.leases, *self.retries], default=self.position) == stats.mark_delete


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=campaigns.examples(15), stateful_step_count=25)
