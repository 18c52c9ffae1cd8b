"""Retention by subscriptions in lockstep with a model: readers that come, ack, go back, close, and passes in between.

The model knows a record by its delivery offset: when it is due, and who has acked it. After every step nothing has gone
that is pending, or that some reader has not acked, whatever crashed, also where what all have acked goes from behind
what one of them has not; behind every pass all has gone that may, where the whole of it may. A quota evicts, or
refuses, exactly what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyroaring import BitMap64

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.errors import BacklogQuotaExceeded
from afterlog.fetch.group import GroupPosition
from afterlog.fetch.positions import EARLIEST
from afterlog.store.store import Store, open_store
from afterlog.subscription.backlog import Backlogs
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.subscription import Subscription
from tests import campaigns
from tests.campaigns.planted_bugs import evicting_anything
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, drained, due_of, power_cut, ranges_of_one, small

pytestmark = pytest.mark.usefixtures("quiet", "ranges_of_one")


@pytest.fixture(name="ranges_of_one")
def small_ranges() -> Iterator[None]:
    with ranges_of_one():
        yield


NAMES = ("one", "two")
GROUP = "group"
QUOTA_MS = 500
delays = st.sampled_from([0, 0, 0, 20, 400, 10**6])
QUOTAS: list[dict[str, Any]] = [
    {},
    {},
    {"backlog_quota_ms": QUOTA_MS},
    {"backlog_quota_ms": QUOTA_MS, "backlog_quota_policy": "consumer_backlog_eviction"},
]


class LetsGoMachine(RuleBasedStateMachine):
    store: Store

    @initialize(
        durability=st.sampled_from([ALWAYS, OS, Durability.interval(3_600_000)]),
        delayed=st.sampled_from([True, True, False]),
        quota=st.sampled_from(QUOTAS),
    )
    def begin(self, durability: Durability, delayed: bool, quota: dict[str, Any]) -> None:
        self.config = small(durability=durability, frontier_lease_ms=10)
        self.clock, self.delayed, self.quota = ManualClock(NOW_MS), delayed, quota
        self.evicts = quota.get("backlog_quota_policy") == "consumer_backlog_eviction"
        self.dues: list[int] = []
        """By append offset."""
        self.acked: dict[str, set[int]] = {}
        """Of each reader that there is: delivery offsets, the group's up to its position."""
        self.evicted = 0
        """What lies below may have gone whoever has not acked it."""
        self.may_go: set[int] = set()
        """Delivery offsets that all readers had acked when a cleaning began."""
        self.passed: set[int] = set()
        """Those of them that a reader who came later stepped over."""
        self.open(SimulatedFiles())

    def open(self, disk: SimulatedFiles) -> None:
        self.disk = disk
        self.store = open_store(PATH, self.config, self.clock, disk, background=False)
        self.store.create_topic("t", delayed=self.delayed, retention_by_subscriptions=True, **self.quota)
        self.partition = self.store.topic("t").partition(0)
        self.readers: dict[str, Subscription] = {}

    # What the model knows.

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def order(self) -> list[int]:
        """Offsets in delivery order."""
        offsets = range(len(self.dues))
        return sorted(offsets, key=lambda offset: (self.dues[offset], offset)) if self.delayed else [*offsets]

    def due_by(self, ms: int) -> int:
        """Records that are."""
        return sum(due <= ms for due in self.dues)

    def mark(self, name: str) -> int:
        return first_without(self.acked[name])

    def gone(self) -> set[int]:
        """What went from behind what is not acked."""
        return {rank for row in self.partition.log.index.acked.rows for rank in range(row.first, row.end)}

    def floor(self) -> int | None:
        return min(map(self.mark, self.acked), default=None)

    def waits_since_ms(self) -> int | None:
        """When the oldest that is due and not acked became so."""
        floor = self.floor()
        if floor is None:
            return None
        floor = max(floor, self.partition.log_start)
        return self.dues[self.order()[floor]] if floor < self.due_by(self.now_ms) else None

    def exceeds(self) -> bool:
        since_ms = self.waits_since_ms()
        return bool(self.quota) and since_ms is not None and self.now_ms - since_ms > QUOTA_MS

    # The log.

    @rule(after=st.lists(delays, min_size=1, max_size=6), roll=st.booleans())
    def send(self, after: list[int], roll: bool) -> None:
        first = len(self.dues)
        column = [self.now_ms + ms for ms in after] if self.delayed else None
        values = [b"%d" % number * 20 for number in range(first, first + len(after))]
        try:
            self.store.send_many("t", values, deliver_after=column)
        except BacklogQuotaExceeded:
            assert self.exceeds()
            assert not self.evicts
            return
        assert not self.refuses or not self.exceeds()
        self.refuses = False
        self.store.sync()
        for offset in range(first, first + len(after)):
            due = due_of(self.partition, offset) if self.delayed else self.now_ms
            assert due is not None
            self.dues.append(due)
        if roll:
            self.partition.log.roll()

    refuses = False
    """Whether the last pass saw that too much waits."""

    @rule(ms=st.sampled_from([1, 20, 400, 1_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def roll(self) -> None:
        self.partition.log.roll()

    @rule(then=st.sampled_from(["", "", "kill", "cut_power"]))
    def clean(self, then: str) -> None:
        floor, total, now_ms = self.floor(), len(self.dues), self.now_ms
        if self.evicts and floor is not None:
            self.evicted = max(self.evicted, sum(due < now_ms - QUOTA_MS for due in self.dues))
        self.store.enforce_retention()
        self.refuses = self.exceeds() and not self.evicts
        if floor == total == self.due_by(now_ms):
            assert total == self.partition.log_start, "all of it may go"
            assert 0 == self.store.held_bytes("t").total
        if then:
            getattr(self, then)()

    @rule(then=st.sampled_from(["", "", "kill", "cut_power"]))
    def clean_thoroughly(self, then: str) -> None:
        """What all have acked goes, whatever lies before it."""
        self.partition.log.roll()
        if self.acked:
            self.may_go |= set.intersection(*self.acked.values()) & {*range(self.due_by(self.now_ms))}
        known = self.gone()
        self.clean("")
        self.store.clean("t")
        assert self.gone() <= self.may_go | known, "somebody has not acked it"
        campaigns.count("ranges that all have acked", len(self.gone() - known) > 0)
        if then:
            getattr(self, then)()

    # Readers.

    @rule(
        name=st.sampled_from(NAMES),
        count=st.integers(0, 9),
        done=st.sampled_from(["all", "all", "first", "last", "but the first", "but the first"]),
    )
    def work(self, name: str, count: int, done: str) -> None:
        """A new one begins where the log does."""
        reader = self.readers.get(name)
        if reader is None:
            reader = self.readers[name] = self.store.subscribe("t", name)
        self.acked.setdefault(name, {*range(self.partition.log_start)})
        if count:
            received = [*reader.receive(count)]
            self.acked[name] |= {*range(self.partition.log_start)}  # what was evicted is stepped over
            last = max([message.delivery_offset for message in received], default=0)
            passed = {rank for rank in self.gone() if rank < last}
            self.passed |= passed - self.acked[name]
            self.acked[name] |= passed
            some = {"all": received, "first": received[:1], "last": received[-1:], "but the first": received[1:]}
            chosen = some[done]
            reader.ack_many(chosen)
            self.acked[name] |= {message.delivery_offset for message in chosen}
            reader.release([message for message in received if message not in chosen])
            self.clock.advance(10)

    @rule(name=st.sampled_from(NAMES), count=st.integers(2, 9))
    def leave_one(self, name: str, count: int) -> None:
        """Of some that come one by one all are acked but the first that is received."""
        for number in range(count):
            self.send(after=[number % 3], roll=number == count // 2)
        self.advance(ms=20)
        self.work(name=name, count=9, done="but the first")

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        if name in self.readers:
            self.readers.pop(name).close()

    @rule(name=st.sampled_from(NAMES))
    def go_back(self, name: str) -> None:
        if name in self.readers:
            self.readers[name].seek(EARLIEST)
            self.acked[name] = {*range(self.partition.log_start)}

    @rule(count=st.integers(0, 9), back=st.booleans())
    def poll(self, count: int, back: bool) -> None:
        """By a group, which counts from its first commit."""
        with self.store.consumer("t", group=GROUP, auto_commit=False) as consumer:
            if back or consumer.positions()[0] < self.partition.log_start:
                consumer.seek(EARLIEST)
            if count:
                consumer.poll(count)
            consumer.commit()
            self.acked[GROUP] = {*range(consumer.positions()[0])}

    # Life and death.

    @rule()
    def reopen(self) -> None:
        self.refuses = False
        self.store.close()
        self.open(SimulatedFiles(self.disk.start, self.disk.operations))

    @rule()
    def kill(self) -> None:
        self.abandon()
        self.open(SimulatedFiles(self.disk.start, self.disk.operations))

    @rule()
    def cut_power(self) -> None:
        """Whatever was not synced goes: acks too, where the durability does not cover them, and then no record."""
        self.abandon()
        self.open(power_cut(self.disk))
        covered = self.config.durability.kind == "always"
        for name in NAMES:
            if name in self.acked:
                self.readers[name] = self.store.subscribe("t", name)
                [shared] = [each for each in self.store.open_subscriptions() if each.name == name]
                mark, gone = shared.mark_delete(), self.gone()
                assert mark >= self.partition.log_start or self.evicts, "what it has not acked has gone"
                rest = shared.acked(np.arange(len(self.dues)))
                acked = {rank for rank, is_acked in enumerate(rest.tolist()) if is_acked}
                assert not gone & (self.acked[name] - acked - self.passed), "what it has not acked has gone"
                assert first_without(acked | gone) == first_without(self.acked[name] | gone) or not covered
                self.acked[name] = acked
        if GROUP in self.acked:
            committed = GroupPosition(self.disk, self.partition.log.path, GROUP).committed
            assert committed == self.mark(GROUP)

    def abandon(self) -> None:
        self.refuses = False
        if self.store._sync is not None:
            self.store._sync.stop()

    # After every step.

    @invariant()
    def promises(self) -> None:
        campaigns.count("steps of a model")
        if not hasattr(self, "store"):
            return
        self.store.check()
        log_start, order = self.partition.log_start, self.order()
        due = self.due_by(self.now_ms) if self.delayed else len(self.dues)
        assert log_start <= due, "a pending record has gone"
        for name in self.acked:
            assert log_start <= max(self.mark(name), self.evicted), f"{name} has not acked it"
        gone = self.gone()
        expected = [b"%d" % order[rank] * 20 for rank in range(log_start, due) if rank not in gone]
        assert expected == drained(self.partition)
        assert due == self.partition.high_watermark()
        held = self.store.held_bytes("t")
        assert sum(segment.size for segment in self.partition.log.version.segments) == held.total - held.pinned
        assert not held.pinned, "nobody reads"

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


TestLetsGo = LetsGoMachine.TestCase
TestLetsGo.settings = settings(max_examples=campaigns.examples(20), stateful_step_count=25)


def first_without(known: Collection[int]) -> int:
    """The first delivery offset that is not among these."""
    rank = 0
    while rank in known:
        rank += 1
    return rank


def unsynced(subscription: PartitionSubscription) -> tuple[int, BitMap64]:
    return subscription.known_acks()


def a_day(quota: dict[str, Any], behind: str) -> None:
    """With one reader that is open, one that is closed, and a group; of these one has not acked all."""
    machine = LetsGoMachine()
    machine.begin(durability=OS, delayed=True, quota=quota)
    steps: list[Callable[[], object]] = [
        lambda: machine.send(after=[0, 0, 20], roll=True),
        lambda: machine.send(after=[10**6, 20], roll=True),
        lambda: machine.advance(ms=400),
        lambda: machine.work(name="two", count=1 if behind == "two" else 9, done="all"),
        lambda: machine.leave(name="two"),
        *[lambda: machine.poll(count=1 if behind == GROUP else 9, back=False)] * (1 if behind == GROUP else 4),
        lambda: machine.work(name="one", count=9, done="all"),
        lambda: machine.advance(ms=1_000),
        lambda: machine.clean(then=""),
        lambda: machine.cut_power(),
    ]
    try:
        for step in steps:
            step()
            machine.promises()
    finally:
        machine.teardown()


@pytest.mark.parametrize(
    ("planted", "behind", "quota"),
    [
        (lambda: patch.object(Backlogs, "_of_closed", lambda *_: None), "two", {}),
        (lambda: patch.object(Backlogs, "_of_group", lambda *_: None), GROUP, {}),
        (lambda: patch.object(PartitionSubscription, "durable_acks", unsynced), "nobody", {}),
        (evicting_anything, "nobody", QUOTAS[-1]),
    ],
    ids=["closed ones do not count", "groups do not count", "acks count before they are durable", "pending goes"],
)
def test_planted_bug_is_caught(planted: Callable[[], Any], behind: str, quota: dict[str, Any]) -> None:
    a_day(quota, behind)
    with planted(), pytest.raises(AssertionError):
        a_day(quota, behind)
