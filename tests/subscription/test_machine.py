"""Subscriptions as people use them, against sets and dicts: three readers of one, another beside it, over one store.

After every step: what comes is what was sent and is due, neither acked nor dead nor cancelled, and nobody else's (D4,
D9); it failed as often as the model counts (D5, D10); the dead letters are there once; the counts are exact; a
reader with limits never has more, nor takes more in any time; one that drains takes nothing and gives back; and
`store.check()` proves the invariants. `test_partition_subscription.py` does the same to one partition, order included.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from afterlog import OS, CancelResult, ManualClock, NotPending, RecordId
from afterlog.fetch.positions import EARLIEST, LATEST
from afterlog.subscription import flow_control
from afterlog.subscription.answers import AckResult
from afterlog.subscription.dead_letter_headers import origin_of
from afterlog.subscription.dead_letters import own_headers
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.received import Receipts
from afterlog.subscription.receiver import Receiver
from afterlog.subscription.subscription import Subscription
from afterlog.subscription.timers import at_once_ms
from tests import campaigns
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, due_of, killed, open_small

ATTEMPTS = 2
FRONTIER_LEASE_MS = 50
MAX_LEASES = 4
"""So many leases is a message kept for."""
RETRY = RetryPolicy(attempts=ATTEMPTS, jitter=0)
READERS = [("one", 500, False), ("one", 3_000, True), ("two", 500, True), ("one", 500, False)]
"""(subscription, lease, whether it outlives the process); those that do are settled by receipts."""
LIMITED = 3
"""This reader has limits, the others have none."""
RATE, SAVED, IN_FLIGHT = 20, 2, 3
"""Records a second, of which so many are saved up; and at a time."""
readers = st.integers(0, len(READERS) - 1)
delays = st.sampled_from([None, 0.0, 0.05, 0.3, 5.0])
moves = st.tuples(
    st.sampled_from(["ack", "nack", "release", "extend", "reject", "open", "end"]),
    st.one_of(st.integers(0, 5), st.integers(0, 100)),
    st.sampled_from([None, 0, 300]),
)
"""(how a message is settled, of how long ago, the delay of a nack)"""
turns = st.tuples(st.sampled_from([1, 60, 500, 3_000]), st.lists(moves, max_size=4), st.sampled_from([False, True]))
Move = tuple[str, int, int | None]
Turn = tuple[int, list[Move], bool]


class Side:
    """What the model knows of a subscription: records by their append offsets."""

    def __init__(self) -> None:
        self.received: list[LeasedMessage] = []
        """Ever: receipts good and stale."""
        self.numbers: dict[int, list[int]] = defaultdict(list)
        """Of the leases of each, ever: none has that of another."""
        self.forget()

    def forget(self) -> None:
        self.done: set[int] = set()
        self.leases: dict[int, int] = {}
        self.retries: dict[int, int] = {}
        self.failures: Counter[int] = Counter()
        self.held = set[int]()
        """Of what is leased: what a restart leaves so."""

    def read(self) -> set[int]:
        return self.done | self.leases.keys() | self.retries.keys()

    def back(self, offset: int, retry_ms: int, *, failed: bool) -> None:
        del self.leases[offset]
        self.held.discard(offset)
        self.failures[offset] += failed
        self.retries[offset] = -(-retry_ms // 10) * 10

    def finish(self, offset: int) -> None:
        self.leases.pop(offset, None)
        self.retries.pop(offset, None)
        self.done.add(offset)

    def good(self, message: LeasedMessage) -> bool:
        return message.offset in self.leases and message.lease_number == self.numbers[message.offset][-1]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(NOW_MS)
        self.dues: dict[int, int] = {}
        self.hidden: set[int] = set()
        self.sides = {"one": Side(), "two": Side()}
        self.deaths: Counter[tuple[str, int]] = Counter()
        self.paused = set[str]()
        """Subscriptions, or "mail", the topic."""
        self.extended: dict[int, int] = {}
        """Until when each message was extended, by its identity; `received` holds them all."""

    @initialize()
    def begin(self) -> None:
        self.open(SimulatedFiles())
        self.send([None] * 4 + [0.05, 0.05, 0.3, 5.0])

    def open(self, disk: SimulatedFiles) -> None:
        self.disk = disk
        self.blocks: dict[int, tuple[int, LeasedMessage, int]] = {}
        """(reader, message, until when it is kept) of the blocks that are open."""
        small = {"durability": OS, "segment_bytes": 1 << 16, "frontier_lease_ms": FRONTIER_LEASE_MS}
        self.store = open_small(disk, self.clock, **small)
        self.partition = self.store.create_topic("mail").partition(0)
        self.holders: dict[tuple[str, int], Subscription] = {}
        """Which reader has leased it last."""
        self.takes: list[tuple[int, int]] = []
        """(when, how many) of the limited reader."""
        self.readers = [self.subscribed(number) for number in range(len(READERS))]

    def subscribed(self, number: int) -> Subscription:
        (name, lease_ms, held), limits = READERS[number], dict[str, Any]()
        if number == LIMITED:
            limits, self.takes = {"rate": RATE, "max_in_flight": IN_FLIGHT}, []
        return self.store.subscribe(
            "mail", name, lease_ms=lease_ms, retry=RETRY, dead_letter="dead", max_lease_ms=MAX_LEASES * lease_ms,
            durable_leases=held, **limits,
        )  # fmt: skip

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    # The log.

    @rule(delays=st.lists(delays, min_size=1, max_size=4))
    def send(self, delays: list[float | None]) -> None:
        for delay in delays:
            self.appended(self.store.send("mail", b"x", delay=delay))

    def appended(self, record: RecordId) -> None:
        due = due_of(self.partition, record.offset)
        assert due is not None
        self.dues[record.offset] = due

    @rule(data=st.data(), again=st.booleans(), delay=delays)
    def cancel(self, data: st.DataObject, again: bool, delay: float | None) -> None:
        """Or reschedule."""
        record = RecordId("mail", 0, data.draw(st.integers(0, self.partition.log_end_offset), "offset"))
        answer = CancelResult.CANCELLED
        if again:
            try:
                self.appended(self.store.reschedule(record, delay=delay))
            except NotPending as error:
                answer = CancelResult(error.answer)
        else:
            answer = self.store.cancel(record)
        due = self.dues.get(record.offset)
        if due is None:
            assert CancelResult.UNKNOWN == answer
        elif record.offset in self.hidden:
            assert CancelResult.ALREADY_CANCELLED == answer
        elif due <= self.now_ms:
            assert CancelResult.ALREADY_DELIVERED == answer
        elif due > self.now_ms + FRONTIER_LEASE_MS:
            assert CancelResult.CANCELLED == answer
        if answer == CancelResult.CANCELLED:
            self.hidden.add(record.offset)

    @rule(ms=st.sampled_from([1, 10, 60, 500, 1_000, 3_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    # The readers.

    def due(self, side: Side) -> set[int]:
        """What was never read, and is due."""
        return {each for each, due in self.dues.items() if due <= self.now_ms} - self.hidden - side.read()

    @rule(number=readers, limit=st.sampled_from([1, 3, 100]))
    def receive(self, number: int, limit: int) -> None:
        before = self.before(number)
        self.took(number, limit, [*self.readers[number].receive(limit)], before)

    def before(self, number: int) -> tuple[set[int], set[int], int]:
        """What is ready, what of it is exhausted, and for how many there is room."""
        side = self.sides[READERS[number][0]]
        for offset, deadline_ms in list(side.leases.items()):
            if deadline_ms <= self.now_ms:
                side.back(offset, deadline_ms, failed=True)
        ready = self.due(side) | {offset for offset, ms in side.retries.items() if ms <= self.now_ms}
        if {READERS[number][0], "mail"} & self.paused:
            ready = set()
        exhausted = {offset for offset in ready if side.failures[offset] >= ATTEMPTS}
        return ready, exhausted, self.room() if number == LIMITED else 1 << 30

    def took(
        self, number: int, limit: int, messages: list[LeasedMessage], before: tuple[set[int], set[int], int]
    ) -> None:
        (name, lease_ms, held), (ready, exhausted, room) = READERS[number], before
        side = self.sides[name]
        got = {message.offset for message in messages}
        assert len(got) == len(messages) <= limit
        assert got <= ready - exhausted, "D9"
        assert got or not room or not ready - exhausted, "D4"
        died = {offset for (whose, offset), count in (self.letters() - self.deaths).items() if whose == name}
        assert died <= exhausted
        assert limit < 100 or room < 100 or (ready - exhausted, exhausted) == (got, died), "D4"
        for offset in died:
            self.die(name, offset)
        for message in messages:
            assert self.dues[message.offset] <= self.now_ms
            assert side.failures[message.offset] == message.redelivery_count, "D5, D10"
            assert self.now_ms + lease_ms <= message.deadline_ms
            assert message.lease_number not in side.numbers[message.offset]
            side.numbers[message.offset].append(message.lease_number)
            side.retries.pop(message.offset, None)
            side.leases[message.offset] = message.deadline_ms
            self.holders[name, message.offset] = self.readers[number]
            if held:
                side.held.add(message.offset)
        side.received += messages
        if number == LIMITED:
            self.takes.append((self.now_ms, len(messages)))
            assert self.tokens() >= 0, "more than its rate"

    def tokens(self) -> int:
        """How many the limited reader may take: the least that any window of time leaves."""
        left, taken = SAVED * 1_000, 0
        for ms, count in reversed(self.takes):
            taken += count
            left = min(left, SAVED * 1_000 + RATE * (self.now_ms - ms) - 1_000 * taken)
        return left // 1_000

    def room(self) -> int:
        """The same, with what it has; perhaps more, where others have acked that."""
        reader, side = self.readers[LIMITED], self.sides[READERS[LIMITED][0]]
        unsettled = {
            message.offset
            for message in side.received
            if message.subscription is reader and not message.settled and self.until_ms(message) > self.now_ms
        }
        return max(min(self.tokens(), IN_FLIGHT - len(unsettled)), 0)

    def until_ms(self, message: LeasedMessage) -> int:
        return max(message.deadline_ms, self.extended.get(id(message), 0))

    def in_flight(self) -> set[int]:
        """What the limited reader has."""
        name, reader = READERS[LIMITED][0], self.readers[LIMITED]
        leases = self.sides[name].leases.items()
        return {offset for offset, ms in leases if ms > self.now_ms and self.holders.get((name, offset)) is reader}

    def die(self, name: str, offset: int) -> None:
        self.deaths[name, offset] += 1
        self.sides[name].finish(offset)

    @rule(number=readers, moves=st.lists(moves, min_size=1, max_size=6))
    def settle(self, number: int, moves: list[Move]) -> None:
        """By any reader, of what any reader has received at any time."""
        for how, age, delay_ms in moves:
            received = self.sides[READERS[number][0]].received
            if received:
                self.settle_one(number, received[-1 - age % len(received)], how, delay_ms)

    @rule(number=readers, turns=st.lists(turns, min_size=1, max_size=4))
    def work(self, number: int, turns: list[Turn]) -> None:
        """As a worker does, turn by turn, some of which end with a crash."""
        for ms, moves, crash in turns:
            self.receive(number, 100)
            self.same()
            self.settle(number, moves)
            self.same()
            if crash:
                self.reopen(crash)
            self.advance(ms)

    def settle_one(self, number: int, message: LeasedMessage, how: str, delay_ms: int | None) -> None:
        name, lease_ms, by_receipt = READERS[number]
        side, reader = self.sides[name], self.readers[number]
        offset, good = message.offset, side.good(message)
        given = kept(message) if by_receipt else message
        if how == "ack":
            unknown, already = offset not in side.read(), offset in side.done
            expected = AckResult(acked=not unknown and not already, already=already, unknown=unknown)
            assert expected == (reader.ack_many(given) if by_receipt else reader.ack(message))
            if expected.acked:
                side.finish(offset)
        elif how == "nack":
            answer = reader.nack(given, delay=None if delay_ms is None else delay_ms / 1_000)
            assert (good, not good) == (answer.done, answer.stale)
            if good and side.failures[offset] + 1 >= ATTEMPTS:
                self.die(name, offset)
            elif good:
                delay_ms = RETRY.delay_ms(side.failures[offset] + 1) if delay_ms is None else delay_ms
                side.back(offset, self.now_ms + delay_ms, failed=True)
        elif how == "reject":
            answer = reader.reject(given)
            assert (good, not good) == (answer.done, answer.stale)
            if good:
                side.failures[offset] += 1
                self.die(name, offset)
        elif how == "open":
            if message.subscription in self.readers and id(message) not in self.blocks:
                message.__enter__()
                self.blocks[id(message)] = self.readers.index(message.subscription), message, message.deadline_ms
        elif how == "end":
            if self.blocks:
                _, (_, ending, _) = self.blocks.popitem()
                self.end_block(ending)
        elif how == "release":
            assert good == reader.release(given).done
            if good:
                side.back(offset, at_once_ms(self.now_ms), failed=False)
        else:
            answer = reader.extend(given)
            assert good == answer.done
            self.extended[id(message)] = answer.deadline_ms
            if good:
                assert self.now_ms + lease_ms <= answer.deadline_ms
                side.leases[offset] = answer.deadline_ms

    def end_block(self, message: LeasedMessage) -> None:
        side = side_of(self, message)
        if not message.settled and message.offset in side.read():
            side.finish(message.offset)
        message.__exit__(None, None, None)

    @rule(number=readers, count=st.integers(0, 6))
    def drain(self, number: int, count: int) -> None:
        """Amid an iteration that has handed out some, with more leased ahead, and with what blocks are open."""
        side, reader = self.sides[READERS[number][0]], self.readers[number]
        ahead, handed, message = reader.receiver.begin(), list[LeasedMessage](), None
        for _ in range(count):
            message = reader.receiver.pop(ahead)
            if message is None:
                before = self.before(number)
                reader.receiver.fill(ahead)
                filled = [*ahead._messages]
                self.took(number, max(len(filled), 1), filled, before)
                message = reader.receiver.pop(ahead)
            if message is None:
                break
            handed.append(message)
        waiting = [*ahead._messages]
        inside = [each for of, each, _ in self.blocks.values() if of == number]
        assert (message is None and not inside) == reader.drain(0), "it waits for handlers, and for nothing else"
        for message in waiting:
            side.back(message.offset, at_once_ms(self.now_ms), failed=False)
        assert (0, None) == (len(reader.receive(100)), reader.receiver.pop(ahead)), "it takes more"
        self.same()
        for message in handed:
            self.settle_one(number, message, "ack", None)
        for message in inside:
            del self.blocks[id(message)]
            self.end_block(message)
        assert reader.drain(0)
        reader.receiver.end(ahead)
        reader.close()
        if [name for name, *_ in READERS].count(READERS[number][0]) == 1:  # the last one gives back what it has
            for offset in side.leases.keys() - side.held:
                side.back(offset, at_once_ms(self.now_ms), failed=False)
        self.readers[number] = self.subscribed(number)

    @rule()
    def keep(self) -> None:
        """The thread that keeps leases looks: what has a block and had a third of its lease is extended."""
        keeper = self.store._subscriptions.keeper
        assert keeper is not None
        keeper.look()
        for identity, (number, message, until_ms) in self.blocks.items():
            (name, lease_ms, _), leases = READERS[number], self.readers[number].receiver.kept
            last_ms = message.deadline_ms + (MAX_LEASES - 1) * lease_ms
            third_is_over = until_ms - self.now_ms <= lease_ms - lease_ms // 3
            if message.settled or not third_is_over or self.now_ms + lease_ms > last_ms:
                continue
            assert leases is not None
            _, until_ms = leases._until[identity]
            assert self.now_ms + lease_ms <= until_ms, "it is forgotten"
            self.blocks[identity] = number, message, until_ms
            self.extended[identity] = until_ms
            side = self.sides[name]
            if side.good(message):
                side.leases[message.offset] = max(side.leases[message.offset], until_ms)

    @rule(number=readers, to_end=st.booleans(), seldom=st.integers(0, 3))
    def seek(self, number: int, to_end: bool, seldom: int) -> None:
        if seldom != 3:
            return
        side = self.sides[READERS[number][0]]
        self.readers[number].seek(LATEST if to_end else EARLIEST)
        side.forget()
        if to_end:
            side.done = self.due(side)

    @rule(what=st.sampled_from(["one", "two", "mail"]), is_paused=st.booleans())
    def pause(self, what: str, is_paused: bool) -> None:
        self.paused.add(what) if is_paused else self.paused.discard(what)
        names = ("mail",) if what == "mail" else ("mail", what)
        self.store.pause(*names) if is_paused else self.store.resume(*names)

    @rule(crash=st.booleans())
    def reopen(self, crash: bool) -> None:
        """A power cut may forget leases as well: see `test_crashes.py`."""
        if not crash:
            self.store.close()
        for side in self.sides.values():
            for offset in side.leases.keys() - side.held:
                side.back(offset, at_once_ms(self.now_ms), failed=crash)
        self.open(killed(self.disk))

    # After every step.

    def letters(self) -> Counter[tuple[str, int]]:
        """(subscription, offset) of every dead letter, due or not."""
        partition = self.store.topic("dead").partition(0)
        offsets = np.arange(partition.log_end_offset)
        records = partition.records_at(offsets, np.full(len(offsets), -1))
        origins = [origin_of(headers)[1] for headers in own_headers(records)]
        return Counter((origin.subscription, origin.record.offset) for origin in origins if origin is not None)

    @invariant()
    def same(self) -> None:
        campaigns.count("steps of a model")
        if not hasattr(self, "store"):
            return
        self.store.check()
        assert self.deaths == self.letters()
        assert len(self.in_flight()) <= IN_FLIGHT, "more at a time than it may have"
        pending = len({offset for offset, due in self.dues.items() if due > self.now_ms} - self.hidden)
        for (name, *_), reader in zip(READERS, self.readers, strict=True):
            side, stats = self.sides[name], reader.stats()
            expected = (pending, len(self.due(side)), len(side.leases), len(side.retries))
            assert expected == (stats.pending, stats.due, stats.leased, stats.retrying)
            assert bool({name, "mail"} & self.paused) == stats.paused

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def kept(message: LeasedMessage) -> Receipts:
    """The receipt of a message as somebody elsewhere has it."""
    return Receipts.of_columns([message.partition], [message.delivery_offset], [message.lease_number])


def side_of(machine: Machine, message: LeasedMessage) -> Side:
    return machine.sides[message.subscription.name]


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=campaigns.examples(12), stateful_step_count=20)


def a_day() -> None:
    """Of the limited reader, whose first leases end, and are nacked then; and of one that is drained."""
    machine = Machine()
    machine.begin()  # type: ignore[call-arg]
    take, wait = (lambda: machine.receive(number=LIMITED, limit=100)), (lambda: machine.advance(ms=60))
    steps: list[Callable[[], object]] = [
        take, wait, take,
        lambda: machine.receive(number=1, limit=100),
        lambda: machine.advance(ms=1_000),
        take, wait, take,
        lambda: machine.settle(number=LIMITED, moves=[("nack", 7, None), ("nack", 8, None)]),
        wait, take, wait, take,
        lambda: machine.drain(number=2, count=2),
    ]  # fmt: skip
    try:
        for step in steps:
            step()
            machine.same()
    finally:
        machine.teardown()


@contextlib.contextmanager
def by_record() -> Iterator[None]:
    """A place is the record's, whoever has it: any receipt of it frees it."""

    def places(receipts: Receipts) -> list[flow_control.Place]:
        rows = zip(receipts.partition.tolist(), receipts.delivery_offset.tolist(), strict=True)
        return [(partition, rank, 0) for partition, rank in rows]

    one = patch.object(LeasedMessage, "_place", lambda each: (each.partition, each.delivery_offset, 0))
    with one, patch.object(Receipts, "places", places):
        yield


@pytest.mark.parametrize(
    "planted",
    [
        lambda: patch.object(Receiver, "stop_taking", Receiver.halt),
        lambda: patch.object(Receiver, "halt", lambda _: None),
        lambda: patch.object(Receiver, "is_idle", lambda _: True),
        lambda: patch.object(flow_control, "SAVED_S", 0.3),
        lambda: patch.object(flow_control.FlowControl, "_forget_ended", lambda taken, _: taken._places.clear()),
        by_record,
    ],
    ids=["a drain keeps what waits", "a drain takes more", "a drain waits for nobody", "tokens are saved up",
         "leases that are held are not counted", "earlier receipts free places"],
)  # fmt: skip
def test_planted_bug_is_caught(planted: Callable[[], Any]) -> None:
    a_day()
    with planted(), pytest.raises(AssertionError):
        a_day()
