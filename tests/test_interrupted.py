"""An exception at every place of every public operation, Ctrl-C or a failed allocation: nothing acknowledged is lost,
nothing is made up or comes twice, and the store goes on. What a user's program catches must not cost it its records.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.clock import ManualClock
from afterlog.config import ALWAYS, OS, Durability
from afterlog.errors import AfterlogError
from afterlog.fetch.consumer import Consumer
from afterlog.fetch.message import RecordId
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST
from afterlog.log.commit import Commit
from afterlog.log.partition_log import PartitionLog
from afterlog.produce.prepared import Prepared
from afterlog.store import Store, open_store
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.subscription import Subscription
from tests import campaigns, strikes
from tests.apart import Apart, apart
from tests.produce.prepare import prepare
from tests.simulated_disk import Image, SimulatedFiles
from tests.support import NOW_MS, PATH, drained, killed, small
from tests.tier.memory_store import MemoryStore

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # it strikes in finalizers, too
]

RETRY = RetryPolicy(attempts=2, first_ms=100, max_ms=1_000, jitter=0)
TOPICS: dict[str, dict[str, Any]] = {
    "t": {},
    "old": {"retention_ms": 1_000},
    "far": {"remote_storage_enable": True, "local_retention_ms": 0},
    "dead": {},
}


@dataclass
class Told:
    """What the store has said, and what it was asked: the oracle."""

    asked: dict[str, set[bytes]] = field(default_factory=lambda: {name: set() for name in TOPICS})
    acknowledged: dict[tuple[str, int], bytes] = field(default_factory=dict)
    moving: set[bytes] = field(default_factory=set)
    """Cancelled or rescheduled, or on the way to that."""
    acked: set[bytes] = field(default_factory=set)
    perhaps: set[bytes] = field(default_factory=set)
    """Under way to be acked or dead when it struck: acked, or not, or among the dead letters."""
    handed: set[bytes] = field(default_factory=set)
    """Out by the group's consumer."""
    job: Prepared | None = None

    def copy(self) -> Told:
        return Told(
            {name: {*values} for name, values in self.asked.items()},
            dict(self.acknowledged),
            {*self.moving},
            {*self.acked},
            {*self.perhaps},
            {*self.handed},
            self.job,
        )


@dataclass
class Life:
    """A store with a subscription, some records in each state, a segment for object storage, and a prepared job."""

    durability: Durability
    disk: SimulatedFiles
    clock: ManualClock
    storage: MemoryStore
    told: Told
    futures: dict[bytes, Future[RecordId]] = field(default_factory=dict)

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
        self.told.acknowledged[topic, record.offset] = value
        return record

    def send_many(self) -> None:
        values = [b"many %d" % number for number in range(9)]
        self.told.asked["t"].update(values)
        offsets = self.store.send_many("t", values, deliver_after=[self.clock.now_ms() + n % 3 for n in range(9)])
        self.told.acknowledged.update(zip((("t", offset) for offset in offsets.tolist()), values, strict=True))

    def flush(self) -> None:
        with self.store.producer("t") as producer:
            for value in (b"f0", b"f1", b"f2"):
                self.told.asked["t"].add(value)
                self.futures[value] = producer.send(value)
            producer.flush()

    def flushed(self) -> None:
        """Every future is resolved, whatever struck."""
        for value, future in self.futures.items():
            with suppress(AfterlogError, MemoryError):
                self.told.acknowledged["t", future.result(0).offset] = value

    def cancel(self) -> None:
        [record] = self.store.pending("t", limit=1)
        self.told.moving.add(record.value or b"")
        self.store.cancel(RecordId("t", 0, record.offset))

    def reschedule(self) -> None:
        [record] = self.store.pending("t", limit=1)
        self.told.moving.add(record.value or b"")
        self.store.reschedule(RecordId("t", 0, record.offset), delay=1_000)

    def ack(self, message: LeasedMessage) -> None:
        value = message.value or b""
        self.told.perhaps.add(value)
        message.subscription.ack(message)
        self.told.acked.add(value)

    def bury(self) -> None:
        """A nack for good."""
        self.told.perhaps.add(self.exhausted.value or b"")
        self.subscription.nack(self.exhausted)

    def seek(self) -> None:
        self.told.perhaps |= self.told.acked
        self.told.acked.clear()
        self.subscription.seek(EARLIEST)

    def poll(self) -> None:
        self.consumer = self.store.consumer("t", group="g", auto_commit=False)
        for _ in range(2):
            self.polled()
        self.consumer.commit()
        self.consumer.close()

    def polled(self) -> None:
        self.told.handed |= {message.value or b"" for message in self.consumer.poll(2)}

    def iterate(self) -> None:
        with self.store.consumer("t", group="g") as consumer:
            messages = iter(consumer)
            for _ in range(min(3, consumer.lag())):
                self.told.handed.add(next(messages).value or b"")

    def redrive(self) -> None:
        self.store.redrive("dead")

    def close_subscription(self) -> None:
        self.subscription.close()

    def begin(self) -> None:
        """What the first life holds: made once."""
        self.open()
        for name, settings in TOPICS.items():
            self.store.create_topic(name, **settings)
        for topic in ("t", "old", "far"):
            for number in range(6):
                self.send(b"%s before %d" % (topic.encode(), number), number * 300, topic)
            self.store.topic(topic).partition(0).log.roll()
            for number in range(5):
                self.send(b"%s after %d" % (topic.encode(), number), 1_000 + number * 300, topic)
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
        self.store.enforce_retention()
        self.store.topic("far").partition(0).log.roll()
        self.store.offload()

    def verify(self) -> None:
        """All is there that was acknowledged, and nothing that nobody asked for, or twice."""
        self.store.check()
        self.clock.advance(10_000_000)
        held = {name: self.values(name) for name in TOPICS}
        told = self.told
        for name, values in held.items():
            found = [*values.values()]
            assert len(found) == len({*found}), name
            assert {*found} <= told.asked[name] | (told.perhaps if name == "dead" else set()), name
        for (name, offset), value in told.acknowledged.items():
            assert value == held[name].get(offset) or value in told.moving or name == "old", (name, offset, value)
        assert sum(value.startswith(b"adopted") for value in held["t"].values()) in (0, 3), "all or nothing"
        self.verify_subscription({*held["t"].values()}, {*held["dead"].values()})
        with self.store.consumer("t", group="g") as consumer:
            handed = {message.value or b"" for message in consumer.poll(1_000)}
        assert {*held["t"].values()} - told.moving <= handed | told.handed

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

    def values(self, topic: str) -> dict[int, bytes]:
        partition = self.store.topic(topic).partition(0)
        found, position = dict[int, bytes](), partition.log_start
        while len(columns := partition.columns(position, 10_000, 1 << 20)[0]):
            found |= {message.offset: message.value or b"" for message in columns.to_messages()}
            position = int(columns.delivery_offset[-1]) + 1
        return found


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
    "flush": Life.flush,
    "roll": lambda life: life.partition.log.roll(),
    "checkpoint": lambda life: (life.send(b"struck"), life.partition.log.checkpoint()),
    "merge": lambda life: life.partition.log.merge_buckets(),
    "retention": lambda life: life.store.enforce_retention(),
    "cancel": Life.cancel,
    "reschedule": Life.reschedule,
    "poll": Life.poll,
    "iterate": Life.iterate,
    "pending": lambda life: life.store.pending("t"),
    "receive": lambda life: life.subscription.receive(3),
    "ack": lambda life: life.ack(life.fresh),
    "nack": lambda life: life.subscription.nack(life.fresh),
    "dead letter": Life.bury,
    "extend": lambda life: life.subscription.extend([life.fresh, life.other]),
    "release": lambda life: life.subscription.release([life.fresh, life.other]),
    "seek": Life.seek,
    "redrive": Life.redrive,
    "offload": lambda life: life.store.offload(),
    "adopt": lambda life: life.store.adopt(life.told.job),
    "create topic": lambda life: life.store.create_topic("new", 2),
    "subscribe": lambda life: life.store.subscribe("t", "another"),
    "close of a subscription": Life.close_subscription,
    "close": lambda life: life.store.close(),
    "open": Life.reopen,
}


def struck(name: str, place: int, durability: Durability, error: type[BaseException], way: int) -> None:
    """One life in which it strikes there."""
    life, where = life_of(durability).ready(), list[str]()
    try:
        with suppress(error), strikes.strike(place, error) as where:
            OPERATIONS[name](life)
        lives_on(life, name, way)
    except BaseException as failure:
        failure.add_note(f"{error.__name__} at place {place}, {where}; way {way}")
        raise


def lives_on(life: Life, name: str, way: int) -> None:
    """A reader or none, more work or none, and a kill or a clean close; then all is there."""
    if name in ("close", "open") or (name == "adopt" and life.partition.log.commit.poisoned):
        life.reopen()
    life.flushed()
    if name == "poll" and hasattr(life, "consumer"):
        if not life.consumer.closed:
            life.polled()
            life.consumer.commit()
        life.consumer.close()
    if way & 1:
        drained(life.partition, life.partition.log_start)
        life.store.check()
    if way & 2:
        life.goes_on()
    if way & 4:
        life.store.close()
    life.disk = killed(life.disk)
    life.open()
    life.verify()
    life.store.close()


@functools.cache
def places(name: str, durability: Durability) -> list[int]:
    life = life_of(durability).ready()
    return strikes.places(lambda: OPERATIONS[name](life))


def test_a_reader_looks_after_an_append_that_nobody_waits_for() -> None:
    """Interrupted while it waits for its fdatasync: it is written, and holds back what is due behind it."""
    life = life_of(ALWAYS).ready()
    with patch.object(Commit, "committed", interrupted), suppress(KeyboardInterrupt):
        life.send(b"struck")
    life.clock.advance(100_000)
    assert b"struck" in drained(life.partition)


@pytest.mark.parametrize(
    ("owner", "method", "name"),
    [
        (PartitionLog, "_mend", "send"),
        (PartitionSubscription, "_mend", "receive"),
        (PartitionSubscription, "_mend", "nack"),
        (Consumer, "_settle", "poll"),
    ],
)
def test_planted_bug_is_caught(owner: type, method: str, name: str) -> None:
    """What mends is needed: without it some place shows that."""

    def settled(consumer: Any) -> None:
        consumer._processed = list(consumer._handed)

    with patch.object(owner, method, settled if method == "_settle" else lambda self: None):
        for number, place in sorted(enumerate(places(name, ALWAYS)), key=lambda pair: pair[0] * 37 % 101):
            try:
                struck(name, place, ALWAYS, KeyboardInterrupt, number % 8)
            except Exception:
                return
    raise AssertionError("nobody saw it")


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", OPERATIONS)
def test_struck_at_every_place(name: str) -> None:
    """Every other place by Ctrl-C, under always, the rest by failed allocations: a third of them in a whole run."""
    for turn, (error, durability) in enumerate([(KeyboardInterrupt, ALWAYS), (MemoryError, OS)]):
        for number, place in campaigns.share([*enumerate(places(name, durability))][turn::2], 600, whole=3):
            struck(name, place, durability, error, number // 2 % 8)
            campaigns.count("interrupts")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Apart]:
    with apart() as calls:
        yield calls


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "flush"])
def test_a_failed_allocation(name: str, elsewhere: Apart) -> None:
    """Of Python, numpy, the kernels, Roaring bitmaps: one in four of them, one by one; in another process, for what
    the interpreter does not survive.

    Not where a thread is started: CPython's `Thread.start` waits for ever for one that has no memory to say it runs.
    """
    pytest.importorskip("_testcapi", reason="a Python without its test modules cannot fail allocations")
    campaigns.count("failed allocations", elsewhere(fail_allocations, name))


def fail_allocations(name: str) -> int:
    """How many made the operation fail. An operation may do without what it did not get: it has ended where none of
    eight in a row was missed."""
    failed, missed = 0, 0
    with campaigns.quiet(), warnings.catch_warnings(action="ignore"):
        for number in allocations():
            was_missed = fail_allocation(name, number)
            failed += was_missed
            missed = 0 if was_missed else missed + 1
            if missed == 8:
                break
    return failed


def fail_allocation(name: str, number: int) -> bool:
    """One life in which that allocation fails. Whether the operation did."""
    memory = importlib.import_module("_testcapi")
    life, failed = life_of(OS).ready(), True
    try:
        try:
            memory.set_nomemory(number, number + 1)
            try:
                OPERATIONS[name](life)
                failed = False
            finally:
                memory.remove_mem_hooks()
        except (MemoryError, SystemError, RuntimeError, AfterlogError):
            pass
        lives_on(life, name, number // 4 % 8)
    except BaseException as failure:
        failure.add_note(f"allocation {number} of {name!r}")
        raise
    return failed


def allocations() -> Iterator[int]:
    """Every fourth; or numbers from among all that an operation may make."""
    if campaigns.WHOLE:
        return itertools.count(campaigns.SEED % 4, 4)
    chance = random.Random(campaigns.SEED)
    return (chance.randrange(1_000) for _ in range(2 * campaigns.DEPTH))
