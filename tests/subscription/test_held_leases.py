"""Leases that outlive the process: by hand, and against a model over restarts in which the wall clock steps back.

Before its deadline nobody else gets what is held, whatever ends the life that leased it; its receipt is good meanwhile,
once; and it has failed as often as it was nacked or its lease has ended. Never is anything early (D1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import Phase, core, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from afterlog import (
    EARLIEST,
    LATEST,
    OS,
    CorruptFile,
    InvalidReceipt,
    ManualClock,
    OffsetOutOfRange,
    Receipts,
    RetryPolicy,
    StorageFull,
    StoreClosed,
    UnknownPartition,
)
from afterlog.subscription.answers import AckResult, ReceiptResult
from afterlog.subscription.deadlines import Deadlines
from afterlog.subscription.events import DeadLetter, Reason, Returned
from afterlog.subscription.journaled_state import JournaledState
from afterlog.subscription.lease_number import failures
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.state import SubscriptionState
from afterlog.subscription.subscription import Subscription
from afterlog.subscription.timers import Timers, deadline_ms
from tests import campaigns
from tests.campaigns.simulated_disk import SimulatedFiles, os_error
from tests.subscription.support import RETRY, Setting, values
from tests.support import NOW_MS, killed, open_small

LEASE_MS = 10_000


def receipt(*delivery_offsets: int, failed: int = 0, partition: int = 0) -> Receipts:
    count = len(delivery_offsets)
    return Receipts.of_columns([partition] * count, delivery_offsets, [failed] * count)


def restarted(setting: Setting, *, crash: bool = True, **settings: Any) -> Subscription:
    """The reader in the next life."""
    if not crash:
        setting.store.close()
    setting.open(killed(setting.disk))
    return reader(setting, **settings)


def reader(setting: Setting, name: str = "sender", **settings: Any) -> Subscription:
    return setting.subscribe(name, **{"durable_leases": True, "dead_letter": "mail.dead", **settings})


@pytest.fixture
def setting() -> Setting:
    return Setting(durability=OS)


class TestARestart:
    @pytest.mark.parametrize("crash", [False, True])
    def test_leaves_a_lease_until_its_deadline(self, setting: Setting, crash: bool) -> None:
        setting.send(b"a", b"b")
        until_ms = reader(setting).receive(1)[0].deadline_ms
        setting.clock.advance(5_000)
        sub = restarted(setting, crash=crash)
        assert [b"b"] == values(sub.receive())
        setting.clock.set(until_ms - 1)
        sub = restarted(setting, crash=crash)
        assert [] == values(sub.receive())
        assert until_ms == sub.shared[0].rest_ms()
        setting.clock.set(until_ms)
        assert [(b"a", 1)] == [(each.value, each.redelivery_count) for each in sub.receive()]
        stats = sub.stats()
        assert (1, 0, 0) == (stats.expired, stats.crashed, stats.released)
        setting.store.check()

    @pytest.mark.parametrize("crash", [False, True])
    def test_leaves_its_receipt_good(self, setting: Setting, crash: bool) -> None:
        setting.send(b"a", b"b", b"c", b"d", b"e")
        reader(setting).receive()
        sub = restarted(setting, crash=crash)
        assert AckResult(acked=1) == sub.ack_many(receipt(0))
        assert ReceiptResult(done=1) == sub.nack(receipt(1), delay=0)
        assert ReceiptResult(done=1) == sub.release(receipt(2))
        assert ReceiptResult(done=1) == sub.reject(receipt(3), "no")
        extended = sub.extend(receipt(4), lease_ms=60_000)
        assert ReceiptResult(done=1, deadline_ms=deadline_ms(NOW_MS, 60_000)) == extended
        sub = restarted(setting, crash=crash)
        assert ReceiptResult(done=0, stale=2) == sub.nack(receipt(1, 3), delay=0)
        again = [(each.value, each.redelivery_count) for each in sub.receive()]
        assert [(b"b", 1), (b"c", 0)] == sorted(again)
        setting.clock.advance(1_000)  # what is appended after a crash is stamped at the lease of the frontier
        assert [(b"d", "no", 1)] == setting.dead()
        setting.clock.set(extended.deadline_ms - 1)
        assert [] == [each.value for each in sub.receive() if each.value == b"e"]
        setting.store.check()

    def test_a_nack_that_gives_up(self, setting: Setting) -> None:
        setting.send(b"a")
        sub = reader(setting)
        for count in range(2):
            assert 1 == len(sub.receive())
            sub = restarted(setting)
            assert 1 == sub.nack(receipt(0, failed=count), delay=0).done
        assert [2] == sub.receive().redelivery_count.tolist()
        sub = restarted(setting)
        assert ReceiptResult(done=0, stale=1) == sub.nack(receipt(0, failed=1), delay=0, reason="late")
        assert ReceiptResult(done=1) == sub.nack(receipt(0, failed=2), reason="refused")
        setting.clock.advance(1_000)
        assert [(b"a", "refused", 3)] == setting.dead()
        assert 0 == sub.stats().leased

    def test_of_readers_of_both_kinds(self, setting: Setting) -> None:
        """One by one, and many at once."""
        setting.send(*(b"%d" % number for number in range(8)))
        here, elsewhere = setting.subscribe(), reader(setting, dead_letter=None)
        for turn in range(2):
            assert (turn, 1) == (turn, len(elsewhere.receive(1)))
            assert 1 == len(here.receive(1))
        assert [2, 2] == [len(elsewhere.receive(2)), len(here.receive(2))]
        sub = restarted(setting)
        again = sub.receive()
        assert [b"1", b"3", b"6", b"7"] == sorted(values(again))  # type: ignore[type-var]
        assert ([1] * 4, 4) == (again.redelivery_count.tolist(), sub.stats().crashed)
        assert 8 == sub.ack_many(receipt(*range(8))).acked

    def test_a_close_gives_back_what_was_leased_ahead(self, setting: Setting) -> None:
        """Nobody has had it."""
        setting.send(b"a", b"b", b"c")
        sub = reader(setting)
        assert b"a" == next(iter(sub)).value
        sub = restarted(setting, crash=False)
        assert {b"b", b"c"} == set(values(sub.receive()))


class TestExtensions:
    def test_that_change_nothing_are_not_written(self, setting: Setting) -> None:
        setting.send(b"a", b"b")
        sub, other = reader(setting), reader(setting, "other", durable_leases=False)
        messages, others = sub.receive(), other.receive()
        sizes = [each.shared[0].journal.size for each in (sub, other)]
        sub.extend(messages)
        other.extend(others)
        assert sizes == [each.shared[0].journal.size for each in (sub, other)]
        setting.clock.advance(3_000)
        other.extend(others)
        assert sizes[1] == other.shared[0].journal.size, "a lease ends with the process anyway"
        sub.extend(messages[0])
        one = sub.shared[0].journal.size - sizes[0]
        assert 0 < one < 100
        sub.extend(messages)
        assert one < sub.shared[0].journal.size - sizes[0] < 2 * one + 32, "the one that ends already then is not again"

    def test_of_a_message_whose_block_is_open(self, setting: Setting) -> None:
        """Each third of its lease, over a restart too."""
        setting.store.close()
        setting = Setting(durability=OS)
        setting.send(b"a")
        sub = reader(setting, lease_ms=3_000)
        [message] = sub.receive()
        keeper = setting.store._subscriptions.keeper
        assert keeper is not None
        message.__enter__()
        sizes = set[int]()
        for _ in range(30):
            setting.clock.advance(100)
            keeper.look()
            sizes.add(sub.shared[0].journal.size)
        assert len(sizes) in (3, 4)
        sub = restarted(setting, lease_ms=3_000)
        setting.clock.set(message.deadline_ms + 1_500)
        assert [] == values(sub.receive())
        assert 1 == sub.ack_many(receipt(0)).acked

    def test_that_a_full_disk_refuses_change_nothing(self, setting: Setting) -> None:
        setting.send(b"a")
        sub = reader(setting)
        [message] = sub.receive()
        setting.clock.advance(3_000)
        number = sub.shared[0].journal.path.name
        setting.calls.fail("append", number, os_error(28, setting.store.path))
        with pytest.raises(StorageFull):
            sub.extend(message)
        setting.store.check()
        setting.clock.set(message.deadline_ms)
        assert [b"a"] == values(sub.receive())


class TestWhatEndsThem:
    def test_a_seek(self, setting: Setting) -> None:
        setting.send(b"a", b"b")
        sub = reader(setting)
        sub.receive()
        sub.seek(EARLIEST)
        assert ReceiptResult(done=0, stale=2) == sub.nack(receipt(0, 1))
        assert [b"a", b"b"] == values(sub.receive())
        sub.seek(LATEST)
        sub = restarted(setting)
        assert (0, 2) == (sub.stats().leased, sub.ack_many(receipt(0, 1)).already)

    def test_a_purge(self, setting: Setting) -> None:
        setting.send(b"a", b"b")
        reader(setting).receive()
        setting.store.close()
        setting.open(setting.disk)
        setting.store.purge("mail", pending=True)
        setting.send(b"c")
        sub = reader(setting)
        assert [b"c"] == values(sub.receive())
        assert ReceiptResult(done=0, stale=2) == sub.nack(receipt(0, 1))

    def test_a_deletion(self, setting: Setting) -> None:
        setting.send(b"a")
        reader(setting).receive()
        setting.store.close()
        setting.open(setting.disk)
        setting.store.delete_subscription("mail", "sender")
        assert [(b"a", 0)] == [(each.value, each.redelivery_count) for each in reader(setting).receive()]

    @pytest.mark.parametrize("settle", ["nothing", "nack", "reject"])
    def test_retention(self, settle: str) -> None:
        setting = Setting(durability=OS, segment_bytes=4_096)
        setting.store.create_topic("old", retention_ms=1_000)
        for _ in range(30):
            setting.store.send_many("old", [bytes(40)] * 10)
        sub = setting.store.subscribe("old", "s", durable_leases=True, dead_letter="dead", retry=RETRY)
        first = sub.receive(20)
        setting.clock.advance(5_000)
        setting.store.close()
        setting.open(setting.disk)
        setting.store.enforce_retention()
        sub = setting.store.subscribe("old", "s", durable_leases=True, dead_letter="dead", retry=RETRY)
        if settle == "nack":
            assert 20 == sub.nack(first.receipts, delay=0).stale, "retention has taken them"
        elif settle == "reject":
            sub.reject(first.receipts)
        log_start = sub.shared[0].partition.log_start
        assert log_start > 20
        setting.clock.advance(60_000)
        assert sub.receive(1_000).columns.delivery_offset.min(initial=log_start) >= log_start
        assert ReceiptResult(done=0, stale=20) == sub.nack(receipt(*range(20)))
        setting.store.check()


class TestReceipts:
    def test_what_a_caller_says_of_the_append_offset_is_not_believed(self, setting: Setting) -> None:
        setting.send(b"b", after_ms=10)
        setting.send(b"a")
        setting.clock.advance(10)
        sub = reader(setting)
        kept = sub.receive().receipts
        assert [1, 0] == kept.offset.tolist()
        forged = kept._replace(offset=np.array([7_000, 1]))
        assert 2 == sub.nack(forged, delay=0).done
        assert [(b"a", 1), (b"b", 1)] == sorted((each.value, each.redelivery_count) for each in sub.receive())  # type: ignore[type-var]
        again = Receipts.of_columns([0, 0], [0, 1], [1, 1])._replace(offset=np.array([0, 0]))
        assert 2 == sub.reject(again).done
        assert [b"a", b"b"] == sorted(value for value, *_ in setting.dead())  # type: ignore[type-var]

    def test_of_partitions_that_the_reader_has(self) -> None:
        setting = Setting(partitions=3, durability=OS)
        for partition in range(3):
            setting.send(b"%d" % partition, partition=partition)
        sub = reader(setting, partitions=[0, 2])
        kept = sub.receive().receipts
        assert 2 == len(kept.partition)
        elsewhere = Receipts.of_columns([0, 1, 2], [0, 0, 0], [0, 0, 0])
        for call in (sub.ack_many, sub.nack, sub.reject, sub.release, sub.extend):
            with pytest.raises(UnknownPartition):
                call(elsewhere)
        assert 2 == sub.stats().leased, "nothing was settled"
        assert AckResult(acked=2) == sub.ack_many(kept)

    @pytest.mark.parametrize(
        "columns",
        [
            ([0], [0, 1], [0]),
            ([0.0], [0], [0]),
            (["0"], [0], [0]),
            ([True], [0], [0]),
            ([2**63], [0], [0]),
            ([10**30], [0], [0]),
            (0, [0], [0]),
            ([[0]], [[0]], [[0]]),
            ([None], [0], [0]),
            (object(), [0], [0]),
        ],
    )
    def test_that_are_none(self, setting: Setting, columns: Any) -> None:
        with pytest.raises(InvalidReceipt):
            Receipts.of_columns(*columns)
        with pytest.raises(InvalidReceipt):
            reader(setting).nack(Receipts(columns[0], columns[1], columns[1], columns[2]))

    def test_of_what_was_never_leased(self, setting: Setting) -> None:
        setting.send(b"a")
        sub = reader(setting)
        sub.receive()
        ranks, counts = (-(2**63), -1, 1, 2**62, 2**63 - 1), (-(2**63), -1, 9, 2**62, 2**63 - 1)
        for strange in (*map(receipt, ranks), *(receipt(0, failed=count) for count in counts)):
            for call in (sub.nack, sub.reject, sub.release, sub.extend):
                assert (0, 1) == ((answer := call(strange)).done, answer.stale)
        assert AckResult(acked=0) == sub.ack_many(Receipts.of_columns([], [], []))
        assert AckResult(acked=0, unknown=1) == sub.ack_many(receipt(5))

    def test_a_few_by_their_numbers(self) -> None:
        setting = Setting(partitions=2, durability=OS)
        setting.send(b"a", b"b", partition=0)
        sub = reader(setting, partitions=[0], max_in_flight=2)
        assert 2 == len(sub.receive())
        answers = sub.ack_places([(0, offset, 0) for offset in (0, 0, 2, -1, 2**63 - 1)])
        unknown = AckResult(acked=0, unknown=1)
        assert [AckResult(acked=1), AckResult(acked=0, already=1), unknown, unknown, unknown] == answers
        assert sub.flow is not None
        assert 1 == sub.flow.in_flight()
        assert 1 == sub.stats().leased
        with pytest.raises(UnknownPartition):
            sub.ack_places([(0, 1, 0), (1, 0, 0)])
        sub.close()
        with pytest.raises(StoreClosed):
            sub.ack_places([(0, 1, 0)])

    def test_make_room(self, setting: Setting) -> None:
        """Of a reader with a limit of what is in flight."""
        setting.send(b"a", b"b", b"c")
        sub = reader(setting, max_in_flight=2)
        kept = sub.receive().receipts
        assert (2, 0) == (len(kept.partition), len(sub.receive()))
        sub.ack_many(kept)
        assert [b"c"] == values(sub.receive())


def comes_back_after_the_clock_stepped_back(how: str) -> None:
    """D1: by the clock as it is now it is not due yet, so it waits, though it was delivered once."""
    disk = SimulatedFiles()
    clock = ManualClock(NOW_MS)
    store = open_small(disk, clock)
    store.create_topic("mail")
    store.send("mail", b"first")
    store.send("mail", b"x", deliver_after=NOW_MS + 500)
    sub = PartitionSubscription(store.topic("mail").partition(0), "sender")
    assert 1 == sub.ack(sub.receive(1, 10_000, held=True).columns.delivery_offset).acked, "the last durable reading"
    clock.advance(500)
    assert 1 == len(sub.receive(1, 10_000, held=True))
    clock.set(NOW_MS + 100)
    store = open_small(killed(disk), clock)
    sub = PartitionSubscription(store.topic("mail").partition(0), "sender")
    log = sub.partition.log
    letter = DeadLetter(delivery_offset=1, offset=-1, topic="d", partition=0, log_end_offset=0, failures=1, reason="r")
    assert () == sub.intend_dead_letters([letter], [0]), "it is not known where it lies, and stays leased"
    answers = {
        "nack": lambda: sub.nack([1], [1], [0], 0),
        "nack one": lambda: sub.nack_one(1, 1, 0, 0),
        "release": lambda: sub.release([1], [-1], [0]),
        "lease": lambda: sub.extend([1], [0], 10),
    }
    assert 1 == answers[how]().done
    sub.check()
    for after_ms in (100, 150, 499, 500, log.opened_lease_ms - NOW_MS - 1):
        clock.set(NOW_MS + after_ms)
        assert log.frontier_ms < log.opened_lease_ms
        assert 0 == len(sub.receive(1, 60_000)), "too early"
    clock.set(log.opened_lease_ms)
    again = sub.receive(1, 60_000)
    assert ([b"x"], [how != "release"]) == (values(again.columns.to_messages()), again.redelivery_count.tolist())


WAYS_BACK = pytest.mark.parametrize("how", ["nack", "nack one", "release", "lease"])


@WAYS_BACK
def test_it_comes_back_after_the_clock_stepped_back(how: str) -> None:
    comes_back_after_the_clock_stepped_back(how)


@WAYS_BACK
def test_planted_bug_is_caught_given_back_before_it_is_due_again(how: str) -> None:
    planted = patch.object(JournaledState, "retry_ms", lambda self, delivery_offset, wanted_ms: wanted_ms)
    with planted, pytest.raises((AssertionError, OffsetOutOfRange), match=r"too early|no record of offset"):
        comes_back_after_the_clock_stepped_back(how)


class Machine(RuleBasedStateMachine):
    """One partition; records are named by their values."""

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.clock = SimulatedFiles(), ManualClock(NOW_MS)
        self.leases: dict[int, int] = {}
        """Deadlines, by delivery offset."""
        self.held = set[int]()
        self.failures: dict[int, int] = {}
        self.numbers: dict[int, list[int]] = defaultdict(list)
        """Of the leases of each, ever: none has that of another."""
        self.delayed: dict[int, int] = {}
        """By whom nothing is to be had before."""
        self.acked = set[int]()
        self.names: dict[int, bytes | None] = {}

    @initialize()
    def begin(self) -> None:
        self.open()
        self.send([0, 0, 0, 30, 60])
        self.receive(3, True)

    def open(self) -> None:
        self.store = open_small(self.disk, self.clock, durability=OS, frontier_lease_ms=200)
        self.partition = self.store.create_topic("mail").partition(0)
        self.sub = PartitionSubscription(self.partition, "sender")

    @property
    def now_ms(self) -> int:
        """By the log's clock."""
        return max(self.clock.now_ms(), self.partition.log.frontier_ms)

    @rule(delays=st.lists(st.sampled_from([0, 30, 60, 2_000]), min_size=1, max_size=4))
    def send(self, delays: list[int]) -> None:
        for delay_ms in delays:
            self.store.send("mail", b"%d" % self.partition.log_end_offset, deliver_after=self.clock.now_ms() + delay_ms)

    @rule(ms=st.sampled_from([1, 20, 100, 600, 1_500]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(limit=st.sampled_from([1, 3, 100]), held=st.sampled_from([True, True, False]))
    def receive(self, limit: int, held: bool) -> None:
        lease = self.sub.receive(limit, 1_000, held=held)
        now_ms = self.partition.log.frontier_ms
        for rank, deadline in list(self.leases.items()):
            if deadline <= now_ms:
                self.back(rank, deadline, failed=True)
        columns = lease.columns
        rows = zip(columns.delivery_offset.tolist(), columns.due.tolist(), columns.to_messages(), strict=True)
        for (rank, due, message), number in zip(rows, lease.lease_number.tolist(), strict=True):
            assert due <= now_ms, "D1"
            assert rank not in self.leases, "it is held by another"
            assert rank not in self.acked, "D9"
            assert message.value == self.names.setdefault(rank, message.value)
            assert self.delayed.get(rank, 0) <= now_ms, "D10"
            assert self.failures.get(rank, 0) == failures(number)
            assert number not in self.numbers[rank]
            self.numbers[rank].append(number)
            self.leases[rank] = lease.deadline_ms
            self.held |= {rank} if held else set()
        if len(lease) < limit:
            missed = [rank for rank, ms in self.delayed.items() if ms + 10 <= now_ms and rank not in self.leases]
            high_watermark = self.partition.high_watermark()
            assert [] == [rank for rank in missed if rank < high_watermark and now_ms >= self.lately_ms], "D4"

    @property
    def lately_ms(self) -> int:
        """By then all that was due in an earlier life is due again."""
        return self.partition.log.opened_lease_ms + 10

    def back(self, rank: int, retry_ms: int, *, failed: bool) -> None:
        del self.leases[rank]
        self.held.discard(rank)
        self.failures[rank] = self.failures.get(rank, 0) + failed
        self.delayed[rank] = retry_ms

    @rule(
        data=st.data(),
        how=st.sampled_from(["ack", "nack", "release", "extend", "extend", "prolong"]),
        ms=st.sampled_from([10, 50, 3_000]),
    )
    def settle(self, data: st.DataObject, how: str, ms: int) -> None:
        ranks = sorted({*self.leases, *self.failures})
        if not ranks:
            return
        rank = data.draw(st.sampled_from(ranks))
        count = data.draw(st.sampled_from([self.numbers[rank][-1], *self.numbers[rank]]))
        good = rank in self.leases and count == self.numbers[rank][-1]
        if how == "ack":
            newly = rank not in self.acked
            assert newly == self.sub.ack([rank]).acked
            self.acked.add(rank)
            self.leases.pop(rank, None)
            self.held.discard(rank)
            self.delayed.pop(rank, None)
        elif how == "nack":
            assert good == self.sub.nack([rank], [-1], [count], ms).done
            if good:
                self.back(rank, self.now_ms + ms, failed=True)
        elif how == "release":
            assert good == self.sub.release([rank], [-1], [count]).done
            if good:
                self.back(rank, 0, failed=False)
        elif how == "extend":
            answer = self.sub.extend([rank], [count], ms)
            assert (good, deadline_ms(self.now_ms, ms)) == (answer.done, answer.deadline_ms)
            if good:
                self.leases[rank] = answer.deadline_ms
        else:
            until_ms = self.sub.prolong([rank], [count], ms)
            if good:
                self.leases[rank] = max(self.leases[rank], until_ms)

    @rule(crash=st.booleans(), back_ms=st.sampled_from([0, 0, 40, 150, 5_000]))
    def restart(self, crash: bool, back_ms: int) -> None:
        if not crash:
            self.sub.close()
            self.store.close()
        self.clock.set(self.clock.now_ms() - back_ms)
        self.disk = killed(self.disk)
        for rank in self.leases.keys() - self.held:
            self.back(rank, 0, failed=crash)
        self.open()

    @rule()
    def begin_anew(self) -> None:
        self.sub._journaled._begin_anew(self.partition.log_end_offset)

    @invariant()
    def same(self) -> None:
        campaigns.count("steps of a model")
        if hasattr(self, "sub"):
            self.sub.check()
            assert len(self.leases) == self.sub.stats().leased


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=campaigns.examples(15), stateful_step_count=25)


def returning_all(ledger: JournaledState) -> None:
    with patch.object(SubscriptionState, "held_among", lambda self, offsets: type(offsets)()):
        RETURN_CRASHED(ledger)


def extending_in_memory(sub: PartitionSubscription, until_ms: int, offsets: Any) -> None:
    sub._timers.extend(until_ms, offsets)
    sub._state.held.move(until_ms, sub._state.held_among(offsets))


def released_at_the_close(sub: PartitionSubscription) -> None:
    with patch.object(SubscriptionState, "held_among", lambda self, offsets: type(offsets)()):
        CLOSE(sub)


def returned_and_held(state: SubscriptionState, event: Returned) -> None:
    held = state.held
    state.held = Deadlines()
    RETURN(state, event)
    state.held = held


def counted(state: SubscriptionState, event: Returned) -> None:
    """A restart gives a lease back, uncounted as such, and a failure is counted for it all the same."""
    RETURN(state, Returned(Reason.EXPIRED, event.delivery_offset, event.offset, event.retry_ms))


RETURN_CRASHED, CLOSE, RETURN = JournaledState._return_crashed, PartitionSubscription.close, SubscriptionState._return


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (PartitionSubscription, "_extend", extending_in_memory),
        (JournaledState, "_return_crashed", returning_all),
        (SubscriptionState, "_held", lambda state: []),
        (PartitionSubscription, "close", released_at_the_close),
        (SubscriptionState, "_return", returned_and_held),
        (SubscriptionState, "_return", counted),
    ],
    ids=[
        "an extension that is not journaled",
        "a restart that counts as a failure",
        "a deadline lost in the snapshot",
        "a close that gives back",
        "given back and still held",
        "a release that counts",
    ],
)
def test_planted_bug_is_caught(owner: type, name: str, bug: Callable[..., Any]) -> None:
    """By the model, without what `check` proves at each step."""
    few = settings(max_examples=10, stateful_step_count=25, database=None, phases=[Phase.generate])
    with (
        patch.object(owner, name, bug),
        patch.object(JournaledState, "check", lambda self: None),
        patch.object(Timers, "check", lambda self: None),
    ):
        for seed in campaigns.known_first(range(60)):
            try:
                with patch.object(core, "global_force_seed", seed):
                    run_state_machine_as_test(Machine, settings=few)  # type: ignore[no-untyped-call]
            except (AssertionError, CorruptFile, KeyError):
                campaigns.shown(seed)
                return
    pytest.fail("nobody saw it")


def test_the_policy_is_that_of_the_readers() -> None:
    """What has failed too often by leases that ended over restarts goes to the dead letters."""
    setting = Setting(durability=OS)
    setting.send(b"a")
    policy = RetryPolicy(attempts=2, jitter=0)
    sub = reader(setting, retry=policy)
    for count in range(2):
        [message] = sub.receive()
        assert count == message.redelivery_count
        sub = restarted(setting, retry=policy)
        setting.clock.set(message.deadline_ms)
    assert [] == values(sub.receive())
    assert [(b"a", "given up after 2 deliveries, of which the last ended without an answer", 2)] == setting.dead()
