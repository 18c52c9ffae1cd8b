"""A store with something of everything, the public operations on it, and the oracle of what an interruption may cost.

`tests/campaigns/test_interrupted.py` strikes them by exceptions, `tests/campaigns/test_crashed_operations.py` by power
cuts and kills.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from pyroaring import BitMap64

from afterlog.base.clock import ManualClock
from afterlog.base.config import Durability
from afterlog.base.errors import AfterlogError
from afterlog.base.names import UNFINISHED
from afterlog.fetch.message import Message, ScheduledRecord
from afterlog.fetch.origin_slices import read_slice
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST
from afterlog.fetch.record_id import RecordId
from afterlog.fetch.timeline import FEW
from afterlog.produce.numbered import AppendRequest
from afterlog.produce.prepared import Prepared
from afterlog.produce.received_slices import receive_slice
from afterlog.records.origin_slice import OriginSlice
from afterlog.records.producer_sequence import ProducerSequence
from afterlog.records.single import SingleRecord
from afterlog.records.times import AS_SOON_AS_POSSIBLE
from afterlog.store.store import Store, open_store
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.received import Receipts
from afterlog.subscription.subscription import Subscription
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.produce.prepare import prepare
from tests.support import NOW_MS, PATH, ranges_of_one, small
from tests.tier.memory_store import MemoryStore

DEST = Path("/backups")
RETRY = RetryPolicy(attempts=2, first_ms=100, max_ms=1_000, jitter=0)
TOPICS: dict[str, dict[str, Any]] = {
    "t": {},
    "old": {"retention_ms": 1_000},
    "far": {"remote_storage_enable": True, "local_retention_ms": 0},
    "rest": {},
    "dead": {},
    "going": {},
    "acked": {"retention_by_subscriptions": True},
    "late": {
        "retention_by_subscriptions": True,
        "backlog_quota_ms": 1_000,
        "backlog_quota_policy": "consumer_backlog_eviction",
    },
    "keys": {},
    "numbered": {},
    "copied": {},
}
CANCELLED = 2
"""Of what is copied."""
LEFT = b"left"
"""Records of the last two begin so that nothing lets go: not acked, or pending."""


@dataclass
class Told:
    """What the store has said, and what it was asked: the oracle."""

    asked: dict[str, set[bytes]] = field(default_factory=lambda: {name: set() for name in TOPICS})
    acknowledged: dict[tuple[str, int], bytes] = field(default_factory=dict)
    moving: set[tuple[str, int]] = field(default_factory=set)
    """Cancelled or rescheduled, or on the way to that."""
    gone: set[tuple[str, int]] = field(default_factory=set)
    """Of these, what the store has said to be."""
    acked: set[bytes] = field(default_factory=set)
    perhaps: set[bytes] = field(default_factory=set)
    """Under way to be acked or dead when it struck: acked, or not, or among the dead letters."""
    buried: set[bytes] = field(default_factory=set)
    """Has no attempts left: among the dead letters, or there to be received."""
    handed: set[bytes] = field(default_factory=set)
    """Out by the group's consumer."""
    job: Prepared | None = None
    leaving: set[str] = field(default_factory=set)
    """Topics that are deleted, or on the way to that."""
    numbered: list[tuple[bytes, ...]] = field(default_factory=list)
    """What a producer has numbered, call by call; the last may have failed."""

    def acknowledge(self, topic: str, offset: int, value: bytes) -> None:
        """An offset that was acknowledged never names another record."""
        assert value == self.acknowledged.setdefault((topic, offset), value), (topic, offset)

    def copy(self) -> Told:
        return Told(
            {name: {*values} for name, values in self.asked.items()},
            dict(self.acknowledged),
            {*self.moving},
            {*self.gone},
            {*self.acked},
            {*self.perhaps},
            {*self.buried},
            {*self.handed},
            self.job,
            {*self.leaving},
            [*self.numbered],
        )


@dataclass
class Life:
    """A store with a subscription, some records in each state, a segment for object storage, and a prepared job."""

    durability: Durability
    disk: SimulatedFiles
    clock: ManualClock
    storage: MemoryStore
    told: Told
    futures: dict[tuple[str, bytes], Future[RecordId]] = field(default_factory=dict)
    received: list[list[Message]] = field(default_factory=lambda: [[] for _ in range(9)])
    """Of the group's consumer, poll by poll; the list is there before, since what struck leaves no memory for one."""

    def open(self) -> None:
        config = small(durability=self.durability, max_num_buckets=1, remote_cache_bytes=4_096, remote_page_bytes=512)
        self.store: Store = open_store(PATH, config, self.clock, self.disk, self.storage, background=False)

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def subscribe(self) -> Subscription:
        return self.store.subscribe("t", "s", retry=RETRY, lease_ms=1_000, dead_letter="dead")

    @property
    def partition(self) -> Partition:
        return self.store.topic("t").partition(0)

    def send(self, value: bytes, delay_ms: int = 0, topic: str = "t") -> RecordId:
        self.told.asked[topic].add(value)
        record = self.store.send(topic, value, deliver_after=self.clock.now_ms() + delay_ms)
        self.told.acknowledge(topic, record.offset, value)
        return record

    def send_many(self) -> None:
        values = [b"many %d" % number for number in range(9)]
        self.told.asked["t"].update(values)
        offsets = self.store.send_many("t", values, deliver_after=[self.clock.now_ms() + n % 3 for n in range(9)])
        for offset, value in zip(offsets.tolist(), values, strict=True):
            self.told.acknowledge("t", offset, value)

    def lapse(self) -> None:
        """What has expired is nobody's."""
        self.told.asked["t"].add(b"lapsed")
        self.told.perhaps.add(b"lapsed")
        record = self.store.send("t", b"lapsed", expires_after=0.001)
        self.told.acknowledge("t", record.offset, b"lapsed")
        self.clock.advance(2)
        while len(self.subscription.receive(3)):
            pass
        self.told.acked.add(b"lapsed")

    def unique(self, value: bytes, key: bytes, on_conflict: Any = "raise") -> RecordId:
        """With a unique key, due in a minute."""
        self.told.asked["keys"].add(value)
        at = self.clock.now_ms() + 60_000
        record = self.store.send("keys", value, deliver_after=at, unique_key=key, on_conflict=on_conflict)
        if on_conflict != "keep":
            self.told.acknowledge("keys", record.offset, value)
        return record

    def first_unique_key(self) -> None:
        """In a partition that has had none."""
        self.told.asked["rest"].add(b"struck")
        at = self.clock.now_ms() + 5
        record = self.store.send("rest", b"struck", deliver_after=at, unique_key=b"new")
        self.told.acknowledge("rest", record.offset, b"struck")

    def replace(self) -> None:
        """What holds a key, by one and by many."""
        holders = [self.unique(b"", b"k%d" % number, "keep").offset for number in range(1, 5)]
        self.told.asked["keys"].discard(b"")
        self.told.moving.update(("keys", offset) for offset in holders)
        self.unique(b"instead 1", b"k1", "replace")
        values = [b"instead %d" % number for number in range(2, 5)]
        self.told.asked["keys"].update(values)
        offsets = self.store.send_many(
            "keys", values, delay=[60, 60, 61], unique_keys=[b"k2", b"k3", b"k4"], on_conflict="replace"
        )
        for offset, value in zip(offsets.tolist(), values, strict=True):
            self.told.acknowledge("keys", offset, value)
        self.told.gone.update(("keys", offset) for offset in holders)

    def verify_keys(self) -> None:
        """Every key is held, by one record."""
        pending = self.store.pending("keys", limit=100)
        keys = [dict(record.headers)["unique-key"] for record in pending]
        assert {b"k%d" % number for number in range(6)} <= {*keys}
        assert len(keys) == len({*keys})
        for record, key in zip(pending, keys, strict=True):
            assert record.offset == self.store.send("keys", b"", unique_key=key, on_conflict="keep", delay=1).offset

    def numbered(self, *values: bytes) -> None:
        """What a producer numbers, in one call."""
        self.told.asked["numbered"].update(values)
        self.told.numbered.append(values)
        self.send_again(len(self.told.numbered) - 1)

    def send_again(self, call: int) -> None:
        """A call of those, for the first time or again."""
        values = self.told.numbered[call]
        sent = ProducerSequence(7, 0, sum(map(len, self.told.numbered[:call])))
        if len(values) == 1:
            offsets = [self.store.send("numbered", values[0], partition=0, sequence=sent).offset]
        else:
            offsets = self.store.send_many("numbered", values, partition=0, sequence=sent).tolist()
        for offset, value in zip(offsets, values, strict=True):
            self.told.acknowledge("numbered", offset, value)

    def together(self) -> None:
        """Requests of several callers: one that nobody numbers, and one that is there already."""
        self.told.asked["numbered"].update([b"plain", b"together"])
        self.told.numbered.append((b"together",))
        calls = self.told.numbered
        numbers = [sum(map(len, calls[:row])) for row in range(len(calls))]
        requests = [AppendRequest(SingleRecord(b"plain", None, b"", NOW_MS, AS_SOON_AS_POSSIBLE))]
        for row in (-1, -2):
            record = SingleRecord(calls[row][0], None, b"", NOW_MS, AS_SOON_AS_POSSIBLE)
            requests.append(AppendRequest(record, ProducerSequence(7, 0, numbers[row])))
        plain, fresh, again = self.store.topic("numbered").append_together(0, requests)
        for value, answer in ((b"plain", plain), (b"together", fresh), (calls[-2][0], again)):
            assert isinstance(answer, np.ndarray)
            self.told.acknowledge("numbered", int(answer[0]), value)

    def verify_numbered(self) -> None:
        """Who sends the last calls again has each of their records there once (`verify` sees that none is twice)."""
        for call in range(len(self.told.numbered))[-3:]:
            self.send_again(call)
        end = self.store.topic("numbered").log(0).written
        self.send_again(len(self.told.numbered) - 1)
        assert end == self.store.topic("numbered").log(0).written

    def receive_slice(self, number: int) -> None:
        """What another cluster gives: records, and with the second slice a cancel of one of the first."""
        given, rows = slices()[number]
        self.told.asked["copied"].update(value for value in rows.values() if value)
        if number:
            self.told.moving.add(("copied", CANCELLED))
        receive_slice(self.store.topic("copied").log(0), "here", given)
        for offset, value in rows.items():
            if value:
                self.told.acknowledge("copied", offset, value)
        if number:
            self.told.gone.add(("copied", CANCELLED))

    def verify_copied(self) -> None:
        """Who sends slices again has them here once."""
        for number in range(2):
            self.receive_slice(number)
        log = self.store.topic("copied").log(0)
        assert sum(len(rows) for _, rows in slices()) == log.written
        assert 0 == sum(receive_slice(log, "here", given) for given, _ in slices())

    def ack_elsewhere(self) -> None:
        """Another cluster has acked what is leased here."""
        [part] = self.subscription.parts()
        part.replicate()
        self.told.perhaps.add(self.fresh.value or b"")
        origin = self.store.topic("t").origin
        part.ack_elsewhere({origin: BitMap64([self.fresh.offset])})
        self.told.acked.add(self.fresh.value or b"")

    def flush(self, topic: str = "t", *, idempotent: bool = False) -> None:
        with self.store.producer(topic, idempotent=idempotent) as producer:
            for value in (b"f0", b"f1", b"f2"):
                self.told.asked[topic].add(value)
                self.futures[topic, value] = producer.send(value)
            producer.flush()

    def flushed(self) -> None:
        """What was received is known, and every future is resolved, whatever struck."""
        self.handed()
        for (topic, value), future in self.futures.items():
            with suppress(AfterlogError, MemoryError):
                self.told.acknowledge(topic, future.result(0).offset, value)

    def cancel(self) -> None:
        record = self.moving()
        self.store.cancel(record)
        self.told.gone.add(("t", record.offset))

    def reschedule(self) -> None:
        record = self.moving()
        value = self.told.acknowledged["t", record.offset]
        self.told.acknowledge("t", self.store.reschedule(record, delay=1_000).offset, value)
        self.told.gone.add(("t", record.offset))

    def moving(self) -> RecordId:
        """The next that is pending, not to be counted on from now on."""
        [record] = self.store.pending("t", limit=1)
        self.told.moving.add(("t", record.offset))
        return RecordId("t", 0, record.offset)

    def ack(self, message: LeasedMessage) -> None:
        value = message.value or b""
        self.told.perhaps.add(value)
        message.subscription.ack(message)
        self.told.acked.add(value)

    def roll_in_parts(self) -> None:
        """As where a thread merges runs: the segment keeps those that it has, and one is made of them behind that."""
        log = self.partition.log
        object.__setattr__(log.context, "checkpoint_queue", lambda *_: None)
        for number in range(2):
            self.send(b"part %d" % number, number)
            log.checkpoint()
        self.send(b"part 2")
        log.roll()
        log.merge_buckets()

    def receive_one(self) -> None:
        """By itself, of what was read ahead: they are more than are found by themselves."""
        for message in self.subscription.receive(20):
            self.ack(message)
        for number in range(FEW + 2):
            self.send(b"one %d" % number)
        self.subscription.receive(1)
        [message] = self.subscription.receive(1)
        self.ack(message)

    def receive_few(self) -> None:
        """That became due last, without columns."""
        for message in self.subscription.receive(20):
            self.ack(message)
        for number in range(2):
            self.send(b"few %d" % number)
        one, other = self.subscription.receive(20)
        self.ack(other)
        self.subscription.release(one)

    def receive_one_again(self) -> None:
        """By itself, of what comes back."""
        for message in self.subscription.receive(20):
            self.ack(message)
        self.send(b"again")
        [message] = self.subscription.receive(1)
        self.subscription.nack(message, delay=0.1)
        self.clock.advance(200)
        [message] = self.subscription.receive(1)
        self.ack(message)

    def in_turn(self) -> None:
        """Of each key one at a time, one of which comes back."""
        self.store.create_topic("turns")
        keys = [b"a", b"a", b"b", b"a", b"b"]
        self.store.send_many("turns", [b"0", b"1", b"2", b"3", b"4"], keys=keys)
        with self.store.subscribe("turns", "s", ordered_by="key", lease_ms=1_000) as turns:
            first, other = turns.receive(9)
            turns.nack(first, delay=0)
            turns.ack(other)
            turns.ack(turns.receive(1)[0])
            turns.receive(9)

    def verify_turns(self) -> None:
        """What is left comes in its turn, and to its end; also where nothing was read, or it is not ordered yet."""
        if "turns" not in [topic.name for topic in self.store.topics()]:
            return
        log = self.store.topic("turns").log(0)
        with self.store.subscribe("turns", "s", ordered_by="key", lease_ms=1_000) as turns:
            seen: dict[bytes | None, list[bytes | None]] = {b"a": [], b"b": []}
            for _ in range(2 * log.written + 2):
                messages = turns.receive(9)
                keys = [message.key for message in messages]
                assert len(keys) == len({*keys}), "two of a key at a time"
                for message in messages:
                    seen[message.key].append(message.value)
                turns.ack_many(messages)
            self.store.check()
            stats = turns.stats()
        for key, left in ((b"a", [b"0", b"1", b"3"]), (b"b", [b"2", b"4"])):
            assert seen[key] == left[len(left) - len(seen[key]) :] or log.written < 5, "out of its turn, or lost"
        assert 0 == stats.due + stats.leased + stats.retrying

    def pause(self) -> None:
        """A subscription, and a topic; then both go on."""
        self.store.pause("t", "s")
        assert not self.subscription.receive(3)
        self.store.pause("rest")
        self.store.resume("t", "s")
        self.store.resume("rest")

    def hold(self) -> None:
        """Leases that outlive the process, extended, and settled by their receipts."""
        elsewhere = self.store.subscribe("t", "s", retry=RETRY, lease_ms=1_000, dead_letter="dead", durable_leases=True)
        received = elsewhere.receive(3)
        self.clock.advance(400)
        elsewhere.extend(received)
        first, last = (message.value or b"" for message in (received[0], received[-1]))
        kept = [Receipts.of_columns([0], [each.delivery_offset], [each.lease_number]) for each in received]
        self.told.perhaps |= {first, last}
        elsewhere.ack_many(kept[0])
        self.told.acked.add(first)
        elsewhere.reject(kept[-1])
        elsewhere.close()

    def bury(self) -> None:
        """A nack for good."""
        self.told.perhaps.add(self.exhausted.value or b"")
        self.subscription.nack(self.exhausted)

    def reject(self) -> None:
        """For good, at once."""
        self.told.perhaps.add(self.fresh.value or b"")
        self.fresh.reject("struck")

    def work_off(self) -> None:
        """In a block."""
        value = self.fresh.value or b""
        self.told.perhaps.add(value)
        with self.fresh:
            pass
        self.told.acked.add(value)

    def drain(self) -> None:
        """With a handler at work, and more leased ahead."""
        messages = iter(self.subscription)
        for _ in range(2):
            self.out = next(messages)
        is_drained = True
        with self.out:
            self.told.perhaps.add(self.out.value or b"")
            is_drained = self.subscription.drain(0)  # what strikes in here stays in the block: a nack
        if not is_drained:
            self.told.acked.add(self.out.value or b"")
        assert self.subscription.drain(0)

    def seek(self) -> None:
        self.told.perhaps |= self.told.acked
        self.told.acked.clear()
        self.subscription.seek(EARLIEST)

    def poll(self) -> None:
        self.consumer = self.store.consumer("t", group="g", auto_commit=False)
        self.received[0] = self.consumer.poll(2)
        self.received[1] = self.consumer.poll(2)
        self.consumer.commit()
        self.consumer.close()
        self.handed()

    def handed(self) -> None:
        for messages in self.received:
            self.told.handed |= {message.value or b"" for message in messages}

    def iterate(self) -> None:
        with self.store.consumer("t", group="g") as consumer:
            messages = iter(consumer)
            for _ in range(min(3, consumer.lag())):
                self.told.handed.add(next(messages).value or b"")

    def redrive(self) -> None:
        self.store.redrive("dead")

    def delete_topic(self) -> None:
        self.told.leaving.add("going")
        self.store.delete_topic("going")
        assert "going" not in [topic.name for topic in self.store.topics()]

    def purge(self) -> None:
        """Of a topic from which retention takes, too."""
        self.store.purge("old", pending=True)

    def clean(self) -> None:
        """Of the first segment a part is due for long, and of what a quota evicts all but one is."""
        self.clock.advance(2_000)
        for name in ("old", "late"):
            log = self.store.topic(name).log(0)
            self.store.topic(name).partition(0).high_watermark()
            log.weigh()
            log.begin_cleaning(thorough=True)
            log.clean(thorough=True)

    def clean_beyond(self) -> None:
        """What all have acked behind what they have not."""
        with ranges_of_one():
            self.store.clean("acked")

    def close_subscription(self) -> None:
        self.subscription.close()

    def begin(self) -> None:
        """What the first life holds: made once."""
        self.open()
        for name, settings in TOPICS.items():
            self.store.create_topic(name, **settings)
        self.store.create_topic("timer")
        self.store.schedule("timer", name="tick", every=timedelta(seconds=2))
        for topic in ("t", "old", "far"):
            for number in range(6):
                self.send(b"%s before %d" % (topic.encode(), number), number * 300, topic)
            self.store.topic(topic).partition(0).log.roll()
            for number in range(5):
                self.send(b"%s after %d" % (topic.encode(), number), 1_000 + number * 300, topic)
        self.begin_backlogs()
        self.send(b"rest before", topic="rest")
        self.send(b"going before", topic="going")
        with self.store.subscribe("going", "s") as going:
            going.ack_many(going.receive())
        self.store.topic("rest").partition(0).log.checkpoint()  # nobody opens it again, until somebody asks for it
        for number in range(6):
            self.unique(b"held %d" % number, b"k%d" % number)
            if number % 2:
                self.store.topic("keys").partition(0).log.checkpoint()
        self.numbered(b"n0")
        self.numbered(b"n1", b"n2")
        self.store.topic("numbered").partition(0).log.checkpoint()
        self.numbered(b"n3")
        self.receive_slice(0)
        self.store.topic("copied").partition(0).log.checkpoint()
        self.clock.advance(1_600)
        self.subscription = self.subscribe()
        first, second, *_ = self.subscription.receive(4)
        self.ack(first)
        self.subscription.nack(second)
        self.subscription.close()
        self.clock.advance(1_000)
        for number in range(4):
            self.send(b"pending %d" % number, 60_000 + number)
            self.partition.log.checkpoint()
        rows = [(b"adopted %d" % number, NOW_MS + number) for number in range(3)]
        self.told.asked["t"].update(value for value, _ in rows)
        self.told.job = Prepared(job="job", batch=0, topic="t", files=(prepare(self.disk, PATH, "job", 0, {0: rows}),))

    def begin_backlogs(self) -> None:
        """A segment that all have acked beside one of which they have not the first, and one that a quota evicts beside
        a pending one."""
        for number in range(4):
            self.send(b"done %d" % number, topic="acked")
            self.send(b"late %d" % number, topic="late")
        for name in ("acked", "late"):
            self.store.topic(name).partition(0).log.roll()
        self.send(LEFT, topic="acked")
        self.send(LEFT, 60_000, topic="late")
        for number in range(3):
            self.send(b"done too %d" % number, topic="acked")
        for name in ("acked", "late"):
            self.store.topic(name).partition(0).log.roll()
            with self.store.subscribe(name, "s") as subscription:
                received = subscription.receive(9)
                subscription.ack_many([each for each in received if name == "acked" and each.value != LEFT])

    def ready(self) -> Life:
        """Open, with messages that are leased: one fresh, one that has failed once."""
        self.open()
        self.subscription = self.subscribe()
        received = [*self.subscription.receive(20)]
        [self.exhausted] = [message for message in received if message.redelivery_count]
        self.fresh, self.other, *rest = [message for message in received if not message.redelivery_count]
        self.subscription.release(rest)
        self.told.perhaps -= self.told.acked
        self.told.perhaps.add(self.exhausted.value or b"")
        self.told.buried.add(self.exhausted.value or b"")
        return self

    def goes_on(self) -> None:
        """More work, which must find nothing in its way."""
        for number in range(3):
            self.send(b"more %d" % number, number)
        self.poll()
        self.iterate()
        self.store.create_topic("new", 2)
        self.store.subscribe("t", "another").close()
        self.store.adopt(self.told.job)
        for message in self.subscribe().receive(2):
            self.ack(message)
        self.store.run_schedules()
        self.store.enforce_retention()
        self.store.topic("far").partition(0).log.roll()
        self.store.offload()

    def verify(self) -> None:
        """All is there that was acknowledged, and nothing that nobody asked for, or twice."""
        self.store.check()
        for names in (("t", "s"), ("t",), ("rest",)):
            self.store.resume(*names)
        self.verify_keys()
        self.verify_numbered()
        self.verify_copied()
        self.clock.advance(10_000_000)
        self.verify_turns()
        there = {topic.name for topic in self.store.topics()}
        held = {name: self.values(name) if name in there else {} for name in TOPICS}
        told = self.told
        assert {*TOPICS} - there <= told.leaving
        for name in told.leaving - there:
            self.store.create_topic(name)
            assert ({}, []) == (self.values(name), self.store.subscriptions(name))
        for name, values in held.items():
            found = [*values.values()]
            assert len(found) == len({*found}), name
            assert {*found} <= told.asked[name] | (told.perhaps if name == "dead" else set()), name
        for (name, offset), value in told.acknowledged.items():
            may_go = name == "old" or (name in ("acked", "late") and value != LEFT)
            is_free = (name, offset) in told.moving or may_go or name not in there
            assert value == held[name].get(offset) or is_free, (name, offset, value)
        assert not told.gone & {(name, offset) for name, values in held.items() for offset in values}
        assert sum(value.startswith(b"adopted") for value in held["t"].values()) in (0, 3), "all or nothing"
        self.verify_backlogs()
        self.verify_subscription({*held["t"].values()}, {*held["dead"].values()})
        with self.store.consumer("t", group="g") as consumer:
            handed = {message.value or b"" for message in consumer.poll(1_000)}
        assert {*held["t"].values()} <= handed | told.handed
        self.verify_schedules()
        if self.disk.exists(DEST):
            self.store.backup(DEST)
            assert UNFINISHED not in self.disk.names(DEST)

    def verify_subscription(self, visible: set[bytes], dead: set[bytes]) -> None:
        """Nobody gets what was acked; everybody else's is received, or dead."""
        told, seen = self.told, set[bytes]()
        with self.store.subscribe("t", "s", lease_ms=1_000) as subscription:
            while len(received := subscription.receive(50)):
                seen |= {message.value or b"" for message in received}
                subscription.ack_many(received)
            assert 0 == subscription.stats().pending == subscription.stats().retrying
        assert not seen & told.acked
        assert visible - told.acked - told.perhaps - dead <= seen
        assert not dead & seen
        assert told.buried <= seen | told.acked | {*self.values("dead").values()}

    def verify_backlogs(self) -> None:
        """What its subscription has not acked is there to be received, and all of the rest goes."""
        with self.store.subscribe("acked", "s") as subscription:
            received = subscription.receive(9)
            assert [LEFT] == [message.value for message in received]
            subscription.ack_many(received)
        self.store.enforce_retention()
        for name in ("acked", "late"):
            held = self.store.held_bytes(name)
            assert 0 == held.total - held.pinned, name  # where a run was mended, who saw that holds it for a while

    def verify_schedules(self) -> None:
        """Each occurrence came once, and the next one of each schedule is pending."""
        self.store.run_schedules()
        came = [occurrence(message) for message in self.messages("timer")]
        assert len(came) == len({*came})
        pending = [occurrence(record) for record in self.store.pending("timer")]
        assert sorted(name for name, _ in pending) == [each.name for each in self.store.schedules() if not each.paused]
        assert not {*came} & {*pending}

    def messages(self, topic: str) -> list[Message]:
        with self.store.consumer(topic, group="all", auto_commit=False) as consumer:
            return consumer.poll(10_000)

    def values(self, topic: str) -> dict[int, bytes]:
        partition = self.store.topic(topic).partition(0)
        found, position = dict[int, bytes](), partition.log_start
        while len(columns := partition.columns(position, 10_000, 1 << 20)[0]):
            found |= {message.offset: message.value or b"" for message in columns.to_messages()}
            position = int(columns.delivery_offset[-1]) + 1
        return found


def occurrence(record: Message | ScheduledRecord) -> tuple[str, bytes | None]:
    headers = dict(record.headers)
    return (headers["afterlog-schedule"] or b"").decode(), headers["afterlog-occurrence"]


@functools.cache
def slices() -> list[tuple[OriginSlice, dict[int, bytes]]]:
    """Two of another cluster's log, each with what it becomes here, by offset: a cancel is no value."""
    with open_store(PATH, small(), ManualClock(NOW_MS), SimulatedFiles(), background=False) as store:
        store.create_topic("copied")
        log = store.topic("copied").log(0)
        for number in range(3):
            store.send("copied", b"copied %d" % number, delay=60 if number == CANCELLED else 0)
        first = read_slice(log, "there", 0, 1 << 20)
        store.send("copied", b"copied 3", delay=60)
        store.topic("copied").partition(0).cancel(np.array([CANCELLED]))
        store.send("copied", b"copied 4")
        second = read_slice(log, "there", first.upto, 1 << 20)
    return [
        (first._replace(end=second.end), {number: b"copied %d" % number for number in range(3)}),
        (second, {3: b"copied 3", 4: b"", 5: b"copied 4"}),
    ]


@functools.cache
def first_life(durability: Durability) -> tuple[Image, int, MemoryStore, Told]:
    life = Life(durability, SimulatedFiles(), ManualClock(NOW_MS), MemoryStore(), Told())
    life.begin()
    return life.disk.image(), life.clock.now_ms(), life.storage, life.told


def life_of(durability: Durability) -> Life:
    image, now_ms, storage, told = first_life(durability)
    return Life(durability, SimulatedFiles(image), ManualClock(now_ms), storage.copy(), told.copy())


OPERATIONS: dict[str, Callable[[Life], object]] = {
    "send": lambda life: life.send(b"struck", 5),
    "send many": Life.send_many,
    "send a unique key": lambda life: life.unique(b"struck", b"new"),
    "first unique key": lambda life: life.first_unique_key(),
    "replace": Life.replace,
    "checkpoint unique keys": lambda life: (
        life.unique(b"struck", b"new"),
        life.store.topic("keys").partition(0).log.checkpoint(),
    ),
    "merge unique keys": lambda life: life.store.topic("keys").partition(0).log.merge_buckets(),
    "send numbered": lambda life: life.numbered(b"struck"),
    "send many numbered": lambda life: life.numbered(*(b"struck %d" % number for number in range(9))),
    "append together": Life.together,
    "checkpoint producers": lambda life: (
        life.numbered(b"struck"),
        life.store.topic("numbered").partition(0).log.checkpoint(),
    ),
    "roll producers": lambda life: (life.numbered(b"struck"), life.store.topic("numbered").partition(0).log.roll()),
    "receive slice": lambda life: life.receive_slice(1),
    "checkpoint origins": lambda life: (
        life.receive_slice(1),
        life.store.topic("copied").partition(0).log.checkpoint(),
    ),
    "roll origins": lambda life: (life.receive_slice(1), life.store.topic("copied").partition(0).log.roll()),
    "ack elsewhere": Life.ack_elsewhere,
    "flush numbered": lambda life: life.flush("numbered", idempotent=True),
    "first use": lambda life: life.send(b"struck", 5, "rest"),
    "flush": Life.flush,
    "roll": lambda life: life.partition.log.roll(),
    "roll in parts": Life.roll_in_parts,
    "checkpoint": lambda life: (life.send(b"struck"), life.partition.log.checkpoint()),
    "merge": lambda life: life.partition.log.merge_buckets(),
    "retention": lambda life: life.store.enforce_retention(),
    "clean": lambda life: life.clean(),
    "clean beyond": Life.clean_beyond,
    "cancel": Life.cancel,
    "reschedule": Life.reschedule,
    "poll": Life.poll,
    "iterate": Life.iterate,
    "pending": lambda life: life.store.pending("t"),
    "receive": lambda life: life.subscription.receive(3),
    "receive one": Life.receive_one,
    "receive few": Life.receive_few,
    "receive one again": Life.receive_one_again,
    "receive in turn": Life.in_turn,
    "pause": Life.pause,
    "lapse": Life.lapse,
    "ack": lambda life: life.ack(life.fresh),
    "nack": lambda life: life.subscription.nack(life.fresh),
    "dead letter": Life.bury,
    "reject": Life.reject,
    "retry": lambda life: life.fresh.retry(0.1),
    "with message": Life.work_off,
    "drain": Life.drain,
    "held leases": Life.hold,
    "extend": lambda life: life.subscription.extend([life.fresh, life.other]),
    "release": lambda life: life.subscription.release([life.fresh, life.other]),
    "seek": Life.seek,
    "redrive": Life.redrive,
    "offload": lambda life: life.store.offload(),
    "adopt": lambda life: life.store.adopt(life.told.job),
    "run schedules": lambda life: life.store.run_schedules(),
    "schedule": lambda life: life.store.schedule("timer", name="tock", every=timedelta(seconds=3)),
    "pause a schedule": lambda life: life.store.pause_schedule("tick"),
    "change a schedule": lambda life: life.store.change_schedule("tick", every=timedelta(seconds=5)),
    "remove a schedule": lambda life: life.store.remove_schedule("tick"),
    "backup": lambda life: life.store.backup(DEST),
    "delete topic": Life.delete_topic,
    "alter topic": lambda life: life.store.alter_topic("rest", partitions=3, retention_ms=10**9),
    "purge": Life.purge,
    "delete subscription": lambda life: life.store.delete_subscription("going", "s"),
    "create topic": lambda life: life.store.create_topic("new", 2),
    "subscribe": lambda life: life.store.subscribe("t", "another"),
    "close of a subscription": Life.close_subscription,
    "close": lambda life: life.store.close(),
    "open": Life.reopen,
}
