"""Topics that come and go, in lockstep with a model: nothing of a deleted one is seen in what is made of its name.

The model knows of each topic what was sent to it, which keys are held, what was acked and committed, and which
schedules it has. Behind a deletion it knows nothing any more, and the store must not either: no record, subscription,
group, unique key or schedule, whatever was reopened, killed or cut off; amid the deletion too, which is all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from afterlog import (
    ALWAYS,
    EARLIEST,
    OS,
    AfterlogError,
    Durability,
    ManualClock,
    Message,
    Record,
    StoreClosed,
    UnknownTopic,
    encode_batch,
)
from afterlog.log.tombstones import Tombstones
from afterlog.log.topic_settings import TopicSettings
from afterlog.produce.topic import Topic
from afterlog.store import deletions, schedule_journal
from afterlog.store.deletions import Deletions
from afterlog.store.store import Store, open_store
from tests import campaigns
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, power_cut, small

pytestmark = pytest.mark.usefixtures("quiet")

TOPICS, SUBSCRIBERS, GROUPS, KEYS = ("mail", "post"), ("s", "t"), ("g", "h"), (b"a", b"b")
HELD, GROUP_HELD = "held", "held-group"
"""A subscription and a group that are open while their topic goes."""
FAR_S = 100_000
FRONTIER_LEASE_MS = 10
names = st.sampled_from(TOPICS)
ends = st.sampled_from(["", "", "kill", "cut"])


@dataclass
class Known:
    """What the model knows of one topic. Records of its readers by append offset."""

    tag: bytes
    """In each of its values."""
    sent: list[bytes] = field(default_factory=list)
    claimed: dict[bytes, bytes] = field(default_factory=dict)
    acked: dict[str, set[int]] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    schedules: set[str] = field(default_factory=set)


class DeletionMachine(RuleBasedStateMachine):
    store: Store

    @initialize(durability=st.sampled_from([ALWAYS, OS]))
    def begin(self, durability: Durability) -> None:
        self.config = small(durability=durability, frontier_lease_ms=FRONTIER_LEASE_MS)
        self.clock, self.numbers = ManualClock(NOW_MS), 0
        self.known: dict[str, Known] = {}
        self.open(SimulatedFiles())
        for name in TOPICS:
            self.make(name)

    def open(self, disk: SimulatedFiles) -> None:
        self.disk = disk
        self.store = open_store(PATH, self.config, self.clock, disk, background=False)
        self.held: list[tuple[str, Callable[[], object]]] = []
        """(topic, what somebody does with it who had it before)"""

    def tagged(self, what: bytes) -> bytes:
        self.numbers += 1
        return b"%s %d" % (what, self.numbers)

    @rule(name=names)
    def make(self, name: str) -> None:
        self.store.create_topic(name)
        self.known.setdefault(name, Known(self.tagged(name.encode())))

    @rule(name=names, then=ends, at=st.integers(0, 100))
    def delete(self, name: str, then: str, at: int) -> None:
        """`then`: a crash, when so much per cent of it was done."""
        if name not in self.known:
            with pytest.raises(UnknownTopic):
                self.store.delete_topic(name)
            return
        before = len(self.disk.operations)
        self.store.delete_topic(name, force=True)
        for of, use in self.held:
            if of == name:
                with pytest.raises(StoreClosed):
                    use()
        self.held = [row for row in self.held if row[0] != name]
        if then:
            done = before + (len(self.disk.operations) - before) * at // 100
            self.crash(then, SimulatedFiles(self.disk.start, self.disk.operations[:done]))
        if not then or name not in self.there():
            del self.known[name]

    def crash(self, how: str, disk: SimulatedFiles) -> None:
        self.clock.advance(FRONTIER_LEASE_MS)  # else what is sent next is not due yet
        self.open(power_cut(disk) if how == "cut" and self.config.durability.kind == "always" else disk)

    @rule(how=st.sampled_from(["close", "kill", "cut"]))
    def reopen(self, how: str) -> None:
        if how == "close":
            self.store.close()
        self.crash(how, SimulatedFiles(self.disk.start, self.disk.operations))

    @rule(ms=st.sampled_from([1, 100, 1_500]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    # What people do with a topic.

    @precondition(lambda self: self.known)
    @rule(data=st.data(), count=st.integers(1, 9), roll=st.booleans())
    def send(self, data: st.DataObject, count: int, roll: bool) -> None:
        self.send_to(data.draw(st.sampled_from([*self.known])), count, roll)

    def send_to(self, name: str, count: int, roll: bool) -> None:
        known = self.known[name]
        values = [self.tagged(known.tag) for _ in range(count)]
        self.store.send_many(name, values)
        known.sent += values
        if roll:
            self.store.topic(name).partition(0).log.roll()

    @precondition(lambda self: self.known)
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def claim(self, data: st.DataObject, key: bytes) -> None:
        self.claim_in(data.draw(st.sampled_from([*self.known])), key)

    def claim_in(self, name: str, key: bytes) -> None:
        known = self.known[name]
        value = self.tagged(known.tag)
        record = self.store.send(name, value, delay=FAR_S, unique_key=key, on_conflict="keep")
        pending = {each.offset: each.value for each in self.store.pending(name, limit=1_000)}
        known.claimed.setdefault(key, value)
        assert known.claimed[key] == pending[record.offset], "an earlier topic holds it"

    @precondition(lambda self: self.known)
    @rule(data=st.data(), who=st.sampled_from(SUBSCRIBERS), count=st.integers(0, 5))
    def work(self, data: st.DataObject, who: str, count: int) -> None:
        self.work_off(data.draw(st.sampled_from([*self.known])), who, count)

    def work_off(self, name: str, who: str, count: int) -> None:
        acked = self.known[name].acked.setdefault(who, set())
        with self.store.subscribe(name, who) as subscription:
            received = [*subscription.receive(1_000)]
            assert {message.offset for message in self.due(name)} - acked == {each.offset for each in received}
            assert not any(message.redelivery_count for message in received)
            subscription.ack_many(received[:count])
        acked |= {message.offset for message in received[:count]}

    @precondition(lambda self: self.known)
    @rule(data=st.data(), who=st.sampled_from(GROUPS), count=st.integers(1, 5))
    def follow(self, data: st.DataObject, who: str, count: int) -> None:
        self.poll(data.draw(st.sampled_from([*self.known])), who, count)

    def poll(self, name: str, who: str, count: int) -> None:
        known = self.known[name]
        with self.store.consumer(name, group=who, start=EARLIEST, auto_commit=False) as consumer:
            assert known.committed.get(who) == consumer.committed()[0]
            consumer.poll(count)
            consumer.commit()
            known.committed[who] = consumer.positions()[0]

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def schedule(self, data: st.DataObject) -> None:
        self.schedule_in(data.draw(st.sampled_from([*self.known])))

    def schedule_in(self, name: str) -> None:
        known = self.known[name]
        if not known.schedules:
            known.schedules.add(f"{name}-ticks")
            self.store.schedule(name, name=f"{name}-ticks", every=timedelta(seconds=1), value=known.tag)

    @rule()
    def tick(self) -> None:
        self.store.run_schedules()

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """Readers and a topic that somebody goes on using when it is deleted."""
        name = data.draw(st.sampled_from([*self.known]))
        if name not in [of for of, _ in self.held]:
            self.hold_on(name)

    def hold_on(self, name: str) -> None:
        topic, subscription = self.store.topic(name), self.store.subscribe(name, HELD)
        consumer = self.store.consumer(name, group=GROUP_HELD, auto_commit=False)
        self.known[name].acked.setdefault(HELD, set())
        self.held += [
            (name, lambda: subscription.receive(timeout=0)),
            (name, consumer.poll),
            (name, lambda: topic.partition(0).append(encode_batch([Record(value=b"late", timestamp=NOW_MS)]))),
        ]

    # After every step.

    def there(self) -> list[str]:
        return [topic.name for topic in self.store.topics()]

    def due(self, name: str) -> list[Message]:
        partition, position, found = self.store.topic(name).partition(0), 0, list[Message]()
        while True:
            columns, position = partition.columns(position, 1_000, 1 << 20)
            if not len(columns):
                return found
            found += columns.to_messages()

    @invariant()
    def promises(self) -> None:
        campaigns.count("steps of a model")
        if not hasattr(self, "store"):
            return
        self.store.check()
        assert sorted(self.known) == sorted(self.there())
        assert {each.name for each in self.store.schedules()} == set().union(
            *(known.schedules for known in self.known.values())
        )
        for name, known in self.known.items():
            due = self.due(name)
            sent = [message.value for message in due if not is_scheduled(message.headers)]
            assert known.sent == sent, "an earlier topic's, or lost"
            pending = self.store.pending(name, limit=1_000)
            coming = [each for each in pending if is_scheduled(each.headers)]
            assert {known.tag} >= {each.value for each in [*due, *coming] if is_scheduled(each.headers)}
            assert sorted(known.claimed.values()) == sorted(each.value for each in pending if each not in coming)
            assert sorted(known.acked) == sorted(self.store.subscriptions(name))
            assert sorted(known.committed) == sorted(self.store.groups(name))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def is_scheduled(headers: Any) -> bool:
    return "afterlog-schedule" in dict(headers)


TestDeletions = DeletionMachine.TestCase
TestDeletions.settings = settings(max_examples=campaigns.examples(12), stateful_step_count=25)


def a_day() -> None:
    """A topic with something of everything is deleted, half of it before a kill, and made again."""
    machine = DeletionMachine()
    machine.begin(durability=OS)
    steps: list[Callable[[], object]] = [
        lambda: machine.send_to("mail", 5, True),
        lambda: machine.claim_in("mail", b"a"),
        lambda: machine.work_off("mail", "s", 2),
        lambda: machine.poll("mail", "g", 2),
        lambda: machine.schedule_in("mail"),
        lambda: machine.hold_on("mail"),
        lambda: machine.delete("mail", "", 0),
        lambda: machine.make("mail"),
        lambda: machine.send_to("mail", 5, False),
        lambda: machine.work_off("mail", "s", 0),
        lambda: machine.poll("mail", "g", 2),
        lambda: machine.claim_in("mail", b"a"),
        lambda: machine.reopen("kill"),
        *[lambda at=at: (machine.delete("mail", "kill", at), machine.promises(), machine.make("mail"),
                         machine.send_to("mail", 2, True)) for at in range(0, 101, 5)],
        lambda: machine.advance(1_500),
        machine.tick,
    ]  # fmt: skip
    try:
        for step in steps:
            step()
            machine.promises()
    finally:
        machine.teardown()


def in_memory(of_store: Deletions, name: str, topic: TopicSettings) -> None:
    """No tombstone."""
    of_store._known = Tombstones(topics={**of_store._known.topics, name: topic})


@pytest.mark.parametrize(
    "planted",
    [
        lambda: patch.object(schedule_journal, "forget_schedules", lambda *_: None),
        lambda: patch.object(Deletions, "begin_topic", in_memory),
        lambda: patch.object(deletions, "forget_topic", lambda *_: None),
        lambda: patch.object(Topic, "delete", lambda _: None),
    ],
    ids=["schedules stay", "no tombstone", "the document keeps its name", "its logs stay open"],
)
def test_planted_bug_is_caught(planted: Callable[[], Any]) -> None:
    a_day()
    with planted(), pytest.raises((AssertionError, AfterlogError, pytest.fail.Exception)):
        a_day()
