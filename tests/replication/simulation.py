"""Clusters in one thread, with one seed: their own clocks and disks, and a network between that loses, repeats, delays
and reorders what it is given, in one direction or all; any of them may be out, be killed, or lose its power.

    steps: send, cancel, reschedule, move a slice, wait, cut and mend a direction, crash, checkpoint, roll, purge,
           retention, seek, work some off, tell what was acked
    the end: no faults any more, all move and tell until nothing is left; then what everybody has is compared

What was sent and is not lost with its own cluster's power is in all logs once, in its cluster's order; what somebody
cancelled or rescheduled may be hidden where that came in time; what a purge or retention took is gone there, and
elsewhere if it was its own cluster's; nobody has what nobody sent, or what was lost.

Of the subscription that all have (D14): after each step no cluster takes for done what nobody has acked: a reader that
goes on anywhere, at any moment, skips nothing; in the end all that was acked, and not lost with the power, is done
everywhere. Who cannot tell whether an ack was lost, or a seek back took it, takes either for good. What a seek, a purge
or retention passed, or a subscription that began with what came then, is done with in that cluster alone.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice, permutations
from typing import Final

import numpy as np

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.errors import AnswerLost, NotPending, ServerUnavailable
from afterlog.fetch.positions import EARLIEST, LATEST, Position
from afterlog.log.cancel_result import CancelResult
from afterlog.records.origin_slice import OriginSlice
from afterlog.replication.cluster import ReplicatedTopic
from afterlog.replication.link import Link
from afterlog.replication.store_cluster import StoreCluster
from afterlog.subscription.partition_subscription import PartitionSubscription
from tests.campaigns.crash_states import CrashModel, crash_states
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, open_small

TOPIC: Final = "t"
NAME: Final = "worker"
STATES: Final = 40
"""Of those that a power cut may leave, so many are to be chosen from."""


class SteadyClock(ManualClock):
    """What is measured goes on with it, too."""

    def monotonic_s(self) -> float:
        return self.now_ms() / 1_000


class Region:
    """A cluster: its disk, its clock, its store, what was sent there."""

    def __init__(self, number: int, random: random.Random, durability: Durability | None = None) -> None:
        self.number = number
        self.clock = SteadyClock(NOW_MS + random.randrange(20_000))
        self.disk = SimulatedFiles()
        self.durability = durability or random.choice([ALWAYS, OS])
        self.segment_bytes = random.choice([4_096, 65_536])
        self.sent: dict[str, int] = {}
        """In its order, what is not lost: the offsets."""
        self.out = False
        self.acked: set[str] = set()
        """Here."""
        self.gone: set[str] = set()
        """By a purge or retention."""
        self.sought: set[str] = set()
        """What a seek, or the subscription's beginning, passed, ever."""
        self._opened()
        self.store.create_topic(TOPIC)
        self._joined()

    def _opened(self) -> None:
        self.store = open_small(self.disk, self.clock, durability=self.durability, segment_bytes=self.segment_bytes)

    def _joined(self) -> None:
        names = (f"{self.number}-{number}" for number in itertools.count())
        self.cluster = StoreCluster(self.store, f"c{self.number}", names.__next__)

    def subscription(self) -> PartitionSubscription | None:
        """Where it is there."""
        found = [each for each in self.store.open_subscriptions() if each.name == NAME]
        return found[0] if found else None

    def done(self) -> set[str]:
        """What readers would not get here any more."""
        subscription = self.subscription()
        if subscription is None:
            return set()
        position, unacked, *_ = subscription.acks()
        partition, found = self.store.topic(TOPIC).partition(0), set[str]()
        elsewhere = subscription._acked_elsewhere(np.array([*(places := self.everything())], np.int64))
        found |= {value for value, done in zip(places.values(), elsewhere.tolist(), strict=True) if done}
        at = partition.log_start
        while at < min(position, partition.high_watermark()):
            columns, at, *_ = partition.columns(at, 100_000, 1 << 30)
            for message in columns.to_messages():
                if message.delivery_offset < position and message.delivery_offset not in unacked:
                    found.add((message.value or b"").decode())
        return found

    def everything(self) -> dict[int, str]:
        """What readers will ever see, by offset."""
        partition = self.store.topic(TOPIC).partition(0)
        found = {each.offset: each.value for each in self.store.pending(TOPIC, limit=10_000)}
        position = partition.log_start
        while position < partition.high_watermark():
            columns, position, *_ = partition.columns(position, 100_000, 1 << 30)
            found |= {each.offset: each.value for each in columns.to_messages()}
        return {offset: (value or b"").decode() for offset, value in sorted(found.items())}

    def crash(self, random: random.Random, power: bool) -> None:
        """And come back."""
        if power:
            model, count = CrashModel(every_byte_max=8), len(self.disk.operations)
            states = crash_states(self.disk.operations, count, start=self.disk.start, model=model)
            self.disk = random.choice([*islice(states, STATES)]).files()
        else:
            self.disk = SimulatedFiles(self.disk.image())
        self._opened()
        self._joined()
        end = self.store.topic(TOPIC).partition(0).log.written
        assert self.durability is OS or end > max(self.sent.values(), default=-1)
        self.sent = {value: offset for value, offset in self.sent.items() if offset < end}


class Wire:
    """One cluster as another sees it through the network."""

    def __init__(self, region: Region, random: random.Random) -> None:
        self.region = region
        self.name = region.cluster.name
        self.cut = False
        self.faults = True
        self.loses = ""
        """What is lost next: the `request` to receive, or its `answer`."""
        self._random = random
        self._late: list[tuple[int, OriginSlice]] = []
        """What was received by nobody yet."""

    def _asked(self) -> None:
        if self.cut or self.region.out or (self.faults and self._random.random() < 0.1):
            raise ServerUnavailable("lost on the way")

    def _answered(self) -> None:
        if self.faults and self._random.random() < 0.1:
            raise AnswerLost("lost on the way back")

    def topics(self) -> Mapping[str, ReplicatedTopic]:
        self._asked()
        return self.region.cluster.topics()

    def prepare(self, topic: str, like: ReplicatedTopic) -> ReplicatedTopic:
        self._asked()
        found = self.region.cluster.prepare(topic, like)
        self._answered()
        return found

    def upcoming(self, topic: str, origin: str) -> tuple[int, ...]:
        self._asked()
        return self.region.cluster.upcoming(topic, origin)

    def slice(self, topic: str, partition: int, first: int, max_bytes: int) -> OriginSlice:
        self._asked()
        given = self.region.cluster.slice(topic, partition, first, max_bytes)
        return OriginSlice.of_bytes(np.frombuffer(b"".join(given.to_bytes()), np.uint8))

    def receive(self, topic: str, partition: int, given: OriginSlice) -> int:
        self._asked()
        loses, self.loses = self.loses, ""
        if loses == "request":
            raise ServerUnavailable("lost on the way")
        if self.faults and self._random.random() < 0.1:
            self._late.append((partition, given))
            raise AnswerLost("it comes later")
        found = self.region.cluster.receive(topic, partition, given)
        for late in self._random.sample(self._late, self._random.randint(0, len(self._late)) if self.faults else 0):
            self.region.cluster.receive(topic, *late)
        if loses == "answer":
            raise AnswerLost("lost on the way back")
        self._answered()
        return found


class _WiredLink(Link):
    """wires: its source, its target."""

    def __init__(self, source: Wire, target: Wire, slice_bytes: int) -> None:
        super().__init__(source, target, source.region.clock, slice_bytes=slice_bytes)
        self.wires = source, target


class Simulation:
    """Of one seed."""

    def __init__(self, seed: int, clusters: int, durability: Durability | None = None) -> None:
        self.random = random.Random(seed)
        self.regions = [Region(number, self.random, durability) for number in range(clusters)]
        self.touched: set[str] = set()
        """What was cancelled or rescheduled anywhere."""
        self.acked: set[str] = set()
        """Anywhere, ever."""
        self.unsure: set[str] = set()
        """Of these what the power may have taken from who acked it, under `os`; or a purge, retention, a seek back."""
        self.links: list[_WiredLink] = [self._link(source, target) for source, target in permutations(self.regions, 2)]
        self.counts = Counter[str]()
        self._values = 0

    def _link(self, source: Region, target: Region) -> _WiredLink:
        slice_bytes = self.random.choice([1, 300, 4_096])
        return _WiredLink(Wire(source, self.random), Wire(target, self.random), slice_bytes)

    def run(self, steps: int) -> None:
        kinds = {
            self.send: 8, self.move: 12, self.cancel: 3, self.reschedule: 2, self.wait: 3, self.cut: 1, self.outage: 1,
            self.crash: 2, self.checkpoint: 1, self.roll: 1, self.begin_anew: 1, self.work: 4, self.tick: 5,
            self.purge: 1, self.retain: 1, self.seek: 1,
        }  # fmt: skip
        for step in self.random.choices([*kinds], [*kinds.values()], k=steps):
            step()
            self.counts[step.__name__] += 1
            self.check_nothing_is_skipped()
        self.settle()
        self.check()

    # Steps.

    def send(self) -> None:
        region, count = self._region(), self.random.randint(1, 4)
        values = [f"{region.number}:{self._values + row}" for row in range(count)]
        self._values += count
        delay = self.random.choice([None, 1, 5, 30])
        offsets = region.store.send_many(TOPIC, [value.encode() for value in values], delay=delay, partition=0)
        region.sent |= zip(values, offsets.tolist(), strict=True)

    def cancel(self) -> None:
        region = self._region()
        pending = region.store.pending(TOPIC)
        if pending:
            chosen = self.random.sample(pending, self.random.randint(1, min(3, len(pending))))
            answers = region.store.topic(TOPIC).partition(0).cancel(np.array([each.offset for each in chosen]))
            for each, answer in zip(chosen, answers.tolist(), strict=True):
                if answer != CancelResult.ALREADY_DELIVERED:  # by the log's stamps, which may be ahead of the clock
                    assert CancelResult.CANCELLED == answer
                    self.touched.add((each.value or b"").decode())

    def reschedule(self) -> None:
        region = self._region()
        pending = region.store.pending(TOPIC)
        if pending:
            chosen = self.random.choice(pending)
            at_ms = region.clock.now_ms() + self.random.randrange(30_000)
            with contextlib.suppress(NotPending):
                region.store.topic(TOPIC).partition(0).reschedule(chosen.offset, at_ms)
                self.touched.add((chosen.value or b"").decode())

    def move(self) -> None:
        try:
            self.random.choice(self.links).step()
        except (ServerUnavailable, AnswerLost):
            self.counts["lost"] += 1

    def wait(self) -> None:
        for region in self.regions:
            region.clock.advance(self.random.randrange(10_000))

    def cut(self) -> None:
        """One direction, or mend it."""
        wire = self.random.choice(self.random.choice(self.links).wires)
        wire.cut = not wire.cut

    def outage(self) -> None:
        region = self._region()
        region.out = not region.out

    def crash(self) -> None:
        region, power = self._region(), self.random.random() < 0.5
        if power and region.durability is OS:
            self.unsure |= region.acked
        region.crash(self.random, power)

    def work(self) -> None:
        """Receive some, ack some of these, out of order."""
        region = self._region()
        start: Position = EARLIEST
        if NAME not in region.store.subscriptions(TOPIC) and self.random.random() < 0.2:
            start = LATEST
            region.sought |= self._before(region, region.store.topic(TOPIC).partition(0).high_watermark())
        with region.store.subscribe(TOPIC, NAME, replicated=True, start=start) as reader:
            for message in reader.receive(self.random.randint(1, 6), timeout=0) or ():
                if self.random.random() < 0.6:
                    value = (message.value or b"").decode()
                    self.acked.add(value)
                    region.acked.add(value)
                    reader.ack(message)
                else:
                    reader.release(message)

    def tick(self) -> None:
        region = self._region()
        region.clock.advance(1_000)
        region.cluster.tick()

    def checkpoint(self) -> None:
        self._region().store.topic(TOPIC).partition(0).log.checkpoint()

    def roll(self) -> None:
        self._region().store.topic(TOPIC).partition(0).log.roll()

    @contextlib.contextmanager
    def _letting_go(self, region: Region) -> Iterator[None]:
        """Note what the block takes. If it was acked there, that may not have been told yet, and cannot be any more."""
        before = {*region.everything().values()}
        yield
        gone = before - {*region.everything().values()}
        region.gone |= gone
        self.unsure |= gone

    def purge(self) -> None:
        """Some of what is due."""
        region = self._region()
        partition = region.store.topic(TOPIC).partition(0)
        with self._letting_go(region):
            partition.purge(self.random.randint(partition.log_start, partition.high_watermark()))

    def retain(self) -> None:
        self.let_go(self._region())

    def let_go(self, region: Region) -> None:
        """Retention lets go of what is old, and is ended again, for it would act by itself at every roll."""
        with self._letting_go(region):
            region.store.alter_topic(TOPIC, retention_ms=3_000)
            region.store.topic(TOPIC).partition(0).log.roll()
            region.store.enforce_retention()
            region.store.alter_topic(TOPIC, retention_ms=None)

    def seek(self) -> None:
        region = self._region()
        subscription, partition = region.subscription(), region.store.topic(TOPIC).partition(0)
        if subscription is not None:
            position = self.random.randint(partition.log_start, partition.high_watermark())
            region.sought |= self._before(region, position)
            subscription.seek(position)
            self.unsure |= self.acked

    def _before(self, region: Region, position: int) -> set[str]:
        """What is due before a delivery offset."""
        partition, found = region.store.topic(TOPIC).partition(0), set[str]()
        at = partition.log_start
        while at < position:
            columns, at, *_ = partition.columns(at, 100_000, 1 << 30)
            passed = [each for each in columns.to_messages() if each.delivery_offset < position]
            found |= {(each.value or b"").decode() for each in passed}
        return found

    def begin_anew(self) -> None:
        """A replicator is started again, and knows nothing."""
        number = self.random.randrange(len(self.links))
        source, target = self.links[number].wires
        self.links[number] = self._link(source.region, target.region)

    def _region(self) -> Region:
        return self.random.choice(self.regions)

    # The end.

    def settle(self) -> None:
        for region in self.regions:
            region.out = False
        links = [Link(one.cluster, other.cluster, one.clock) for one, other in permutations(self.regions, 2)]
        for _ in range(6):
            for region in self.regions:
                region.clock.advance(1_000)
                region.cluster.tick()
            while sum(link.step() for link in links):
                pass
        assert not any(link.failed for link in links), [link.failed for link in links]

    def check_nothing_is_skipped(self) -> None:
        for region in self.regions:
            # What is cancelled there is done with, too.
            skipped = region.done() - self.acked - self.touched - region.sought
            assert not skipped, f"{sorted(skipped)} were acked by nobody, and are done in {region.number}"

    def check(self) -> None:
        self.check_nothing_is_skipped()
        if self.acked:
            for region in self.regions:
                there = {*region.everything().values()}
                again = (self.acked & there) - region.done() - self.unsure - self.touched
                assert not again, f"{sorted(again)} were acked, and come again in {region.number}"
        sent = {value for region in self.regions for value in region.sent}
        for region in self.regions:
            region.store.topic(TOPIC).partition(0).log.check()
            found = [*region.everything().values()]
            gone = region.gone.union(*(other.gone & other.sent.keys() for other in self.regions))
            assert sent - {*found} <= self.touched | gone, sorted(sent - {*found} - self.touched - gone)
            assert {*found} <= sent, "nobody has what was lost, or never sent"
            counted = Counter(found)
            assert not [value for value, number in counted.items() if number > 1 and value not in self.touched]
            for other in self.regions:
                of_it = [value for value in found if value in other.sent.keys() - self.touched]
                there = [value for value in other.sent if value in {*found} - self.touched]
                assert there == of_it, "an origin's order"
