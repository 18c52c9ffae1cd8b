"""What the threads of `tests/campaigns/killed_crowd.py` said, and what must therefore be true of the folder that a kill
left.

A thread's lines come in its own order; those of several come as they come. So what may be seen elsewhere before a call
returns is believed from the line in front of the call, and what was promised from the line behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from afterlog import EARLIEST, CancelResult
from afterlog.store.store import Store
from afterlog.tier.manifest import Manifest
from tests.campaigns.crowd_freeing import SETTINGS, FreeingOracle, freeing_topic, number_of
from tests.campaigns.crowd_passing import PassingOracle, passing_topic
from tests.campaigns.killed_crowd import RETENTION_MS, TOPICS, row
from tests.tier.support import faults

HOUR_MS = 3_600_000


@dataclass
class Followed:
    """What a consumer got in this life."""

    start: int
    position: int
    ranks: set[int] = field(default_factory=set)


class TopicOracle:
    """One topic: its records by offset, and its consumer group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: dict[str, int] = {}
        """When each value that was tried is due at the earliest."""
        self.named: dict[int, str] = {}
        """What was acknowledged or seen under an offset."""
        self.ranks: dict[int, tuple[int, str]] = {}
        """(offset, value) by delivery offset."""
        self.shown = set[int]()
        self.gone = set[int]()
        """Cancelled or moved."""
        self.perhaps_gone = set[int]()
        self.committed = 0
        self.perhaps_committed: int | None = None
        self.followed: Followed | None = None

    def name_offset(self, offset: int, value: str) -> None:
        assert value == self.named.setdefault(offset, value), f"D8: {self.name}@{offset} is another record"

    def show(self, now_ms: int, rank: int, offset: int, value: str) -> None:
        assert value in self.asked, f"D12: {value!r} was never sent to {self.name}"
        assert self.asked[value] <= now_ms, f"D1: {value} comes {self.asked[value] - now_ms} ms early"
        assert (offset, value) == self.ranks.setdefault(rank, (offset, value)), f"D8: rank {rank} is another record"
        assert offset not in self.gone, f"{self.name}@{offset} was cancelled"
        self.name_offset(offset, value)
        self.shown.add(offset)

    def hide(self, offset: int) -> None:
        assert offset not in self.shown, f"{self.name}@{offset} was delivered, and is cancelled"
        assert offset not in self.gone, f"{self.name}@{offset} is cancelled twice"
        self.gone.add(offset)

    def follow(self, now_ms: int, rows: list[Any], position: int) -> None:
        assert self.followed is not None
        ranks = [rank for rank, *_ in rows]
        assert sorted({*ranks}) == ranks, "D6"
        assert not ranks or self.followed.position <= ranks[0] <= ranks[-1] < position, "D6: after the position"
        for each in rows:
            self.show(now_ms, *each)
        self.followed.ranks |= {*ranks}
        self.followed.position = position


class CrowdOracle:
    """All of them, and the one subscription. `leased` and `failures`: of its offsets."""

    def __init__(self) -> None:
        self.topics = {name: TopicOracle(name) for name in TOPICS}
        self.trying: dict[str, list[Any]] = {}
        """The call that each thread has begun."""
        self.acked = set[int]()
        self.leased = set[int]()
        self.failures: dict[int, int] = {}
        self.not_before_ms: dict[int, int] = {}
        self.received = self.redelivered = 0
        self.passing: dict[str, PassingOracle] = {}
        """Of topics that come and go."""
        self.freeing: dict[str, FreeingOracle] = {}
        """Of those whose readers say what may go."""

    def hear_change(self, who: str, *said: Any) -> None:
        topic = passing_topic(who)
        self.passing.setdefault(topic, PassingOracle(topic)).hear(*said)

    def hear_free(self, who: str, *said: Any) -> None:
        topic = freeing_topic(who)
        evicts = "backlog_quota_ms" in SETTINGS[number_of(who)]
        self.freeing.setdefault(topic, FreeingOracle(topic, evicts)).hear(*said)

    @property
    def mail(self) -> TopicOracle:
        return self.topics["mail"]

    def hear(self, word: str, who: str, *said: Any) -> None:
        getattr(self, f"hear_{word}")(who, *said)

    def begin(self, word: str, who: str, *said: Any) -> None:
        assert who not in self.trying
        self.trying[who] = [word, *said]

    def hear_send(self, who: str, topic: str, rows: list[tuple[str, int]]) -> None:
        self.begin("send", who, topic, rows)
        self.topics[topic].asked.update((value, at) for value, at in rows)

    def hear_sent(self, who: str, offsets: list[int]) -> None:
        _, topic, rows = self.trying.pop(who)
        assert len(rows) == len({*offsets}), "D8: an offset is given twice"
        for offset, (value, _) in zip(offsets, rows, strict=True):
            self.topics[topic].name_offset(offset, value)

    def hear_cancel(self, who: str, topic: str, offset: int) -> None:
        self.begin("cancel", who, topic, offset)

    def hear_cancelled(self, who: str, answer: int) -> None:
        _, topic, offset = self.trying.pop(who)
        if answer == CancelResult.CANCELLED:
            self.topics[topic].hide(offset)

    def hear_reschedule(self, who: str, topic: str, offset: int, at_ms: int) -> None:
        """From now on it may be due at either time."""
        self.begin("reschedule", who, topic, offset)
        oracle = self.topics[topic]
        value = oracle.named[offset]
        oracle.asked[value] = min(oracle.asked[value], at_ms)

    def hear_rescheduled(self, who: str, again: int | None) -> None:
        _, topic, offset = self.trying.pop(who)
        if again is not None:
            self.topics[topic].hide(offset)
            self.topics[topic].name_offset(again, self.topics[topic].named[offset])

    def hear_begins(self, who: str, topic: str, position: int) -> None:
        oracle = self.topics[topic]
        assert position >= oracle.committed, "D9: a commit is undone"
        assert position == oracle.committed or topic == "old", "D2: it begins after what was committed"
        oracle.followed = Followed(position, position)

    def hear_polled(self, who: str, now_ms: int, rows: list[Any], position: int) -> None:
        self.topics[who.split()[-1]].follow(now_ms, rows, position)

    def hear_commit(self, who: str, position: int) -> None:
        self.begin("commit", who, position)
        self.topics[who.split()[-1]].perhaps_committed = position

    def hear_committed(self, who: str) -> None:
        [_, position] = self.trying.pop(who)
        self.topics[who.split()[-1]].committed = position

    def hear_receive(self, who: str) -> None:
        self.begin("receive", who)

    def hear_received(self, who: str, now_ms: int, rows: list[Any]) -> None:
        self.trying.pop(who)
        for rank, offset, value, count in rows:
            self.mail.show(now_ms, rank, offset, value)
            assert offset not in self.acked, f"D9: {offset} comes again"
            assert offset not in self.leased, f"D5: {offset} is leased already"
            assert now_ms >= self.not_before_ms.pop(offset, 0), f"D10: {offset} comes too early"
            self.failed(offset, count)
            self.leased.add(offset)
            self.received += 1
            self.redelivered += count > 0

    def failed(self, offset: int, count: int, *, unsure: bool = False) -> None:
        """It is said to have failed so often. unsure: perhaps once more, in a call that did not return."""
        known = self.failures.get(offset, 0)
        assert known <= count <= known + unsure, f"D5, D10: {offset} failed {known} times, not {count}"
        self.failures[offset] = count

    def hear_ack(self, who: str, offsets: list[int]) -> None:
        self.begin("ack", who, offsets)

    def hear_acked(self, who: str, count: int) -> None:
        [_, offsets] = self.trying.pop(who)
        assert len(offsets) == count, "D9: an ack in time was refused"
        self.acked.update(offsets)
        self.leased.difference_update(offsets)

    def hear_nack(self, who: str, offset: int, not_before_ms: int) -> None:
        """From now on it may come again, to another thread."""
        self.begin("nack", who, offset)
        self.leased.remove(offset)
        self.failures[offset] = self.failures.get(offset, 0) + 1
        self.not_before_ms[offset] = not_before_ms

    def hear_nacked(self, who: str, done: int) -> None:
        self.trying.pop(who)
        assert 1 == done

    def hear_release(self, who: str, offset: int) -> None:
        self.begin("release", who, offset)
        self.leased.remove(offset)

    def hear_released(self, who: str, done: int) -> None:
        self.trying.pop(who)
        assert 1 == done

    # The kill, and what it left.

    def killed(self) -> None:
        """What was leased has failed. A nack that was interrupted has failed, but perhaps without a delay."""
        for offset in self.leased:
            self.failures[offset] = self.failures.get(offset, 0) + 1
        for word, *said in self.trying.values():
            match word:
                case "nack":
                    self.not_before_ms.pop(said[0], None)
                case "cancel" | "reschedule":
                    self.topics[said[0]].perhaps_gone.add(said[1])
        self.leased.clear()

    def verify(self, store: Store, manifest: Manifest, killed_ms: int) -> None:
        """A copy of the folder, opened when everything is due."""
        for topic in self.topics.values():
            self.verify_topic(store, topic, killed_ms)
        for passing in self.passing.values():
            passing.verify(store)
        for freeing in self.freeing.values():
            freeing.verify(store, killed_ms)
        self.verify_subscription(store)
        store.check()
        assert [] == faults(manifest), "D13"
        self.trying.clear()

    def verify_topic(self, store: Store, topic: TopicOracle, killed_ms: int) -> None:
        with store.consumer(topic.name, group="another", start=EARLIEST, auto_commit=False) as consumer:
            messages = [message for messages in iter(consumer.poll, []) for message in messages]
        rows = [row(message) for message in messages]
        found = {offset: value for _, offset, value in rows}
        keys = [(message.due, message.offset) for message in messages]
        assert sorted(keys) == keys, "D6"
        assert len({*found.values()}) == len(rows), "a record is there twice"
        for rank, offset, value in rows:
            assert value in topic.asked, f"D12: {value!r} was never sent, or was not there after a kill before"
            assert (offset, value) == topic.ranks.get(rank, (offset, value)), f"D8: rank {rank} is another record"
            assert value == topic.named.get(offset, value), f"D8: {topic.name}@{offset} is another record"
        assert not topic.gone & {*found}, "cancelled, and there"
        for offset in {*topic.named} - {*found} - topic.gone:
            is_old = topic.name == "old" and topic.asked[topic.named[offset]] + RETENTION_MS <= killed_ms
            moved = offset in topic.perhaps_gone
            assert is_old or moved, f"D3: {topic.name}@{offset} is lost, {topic.named[offset]}"
        self.verify_group(store, topic, {rank for rank, *_ in rows})
        self.resolve(topic, found)

    def verify_group(self, store: Store, topic: TopicOracle, ranks: set[int]) -> None:
        if topic.followed is not None:
            missed = {rank for rank in ranks if topic.followed.start <= rank < topic.followed.position}
            assert missed <= topic.followed.ranks, f"D2: a consumer of {topic.name} missed {missed}"
        with store.consumer(topic.name, group="group", auto_commit=False) as consumer:
            committed = consumer.committed()[0] or 0
        assert committed in (topic.committed, topic.perhaps_committed), f"D9: {committed}, not {topic.committed}"
        topic.committed, topic.perhaps_committed, topic.followed = committed, None, None

    def resolve(self, topic: TopicOracle, found: dict[int, str]) -> None:
        """What the interrupted calls left is so from now on; what they did not leave never comes."""
        tried = [said for said in self.trying.values() if said[0] == "send" and said[1] == topic.name]
        open_values = {value for said in tried for value, _ in said[2]} - {*topic.named.values()}
        moved = {topic.named[offset] for offset in topic.perhaps_gone}
        for offset, value in found.items():
            assert topic.named.get(offset) == value or value in open_values | moved, f"{value} has two offsets"
        topic.gone |= topic.perhaps_gone - {*found}
        topic.perhaps_gone.clear()
        topic.named |= found
        for value in open_values - {*found.values()}:
            if topic.name != "old":
                del topic.asked[value]

    def verify_subscription(self, store: Store) -> None:
        with store.subscribe("mail", "readers", lease_ms=HOUR_MS) as subscription:
            came = [message for messages in iter(lambda: [*subscription.receive(1_000)], []) for message in messages]
        offsets = {message.offset for message in came}
        assert len(came) == len(offsets), "D5: twice in one drain"
        acking = {offset for said in self.trying.values() if said[0] == "ack" for offset in said[1]}
        assert not offsets & self.acked, f"D9: {offsets & self.acked} come again"
        live = {*self.mail.named} - self.mail.gone - self.acked
        assert offsets <= live
        assert live - offsets <= acking, f"D4: {live - offsets - acking} are lost"
        self.acked |= live - offsets
        receiving = any(said[0] == "receive" for said in self.trying.values())
        released = {said[1] for said in self.trying.values() if said[0] == "release"}
        for message in came:
            unsure = receiving or message.offset in released
            self.failed(message.offset, message.redelivery_count, unsure=unsure)
