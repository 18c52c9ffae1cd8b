"""Topics in `tests/campaigns/killed_crowd.py` whose readers say what may go, and readers that come, go, and come again.

Each topic belongs to one thread of a life; passes of retention are made by others, too. What the oracle knows is told
by lines: an ack counts from the line before it, as far as something may go, and from the line behind it, as far as
nothing may come again. Records are due at once, so delivery offsets are append offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyroaring import BitMap64

import afterlog
from afterlog.base.files import Files
from afterlog.fetch.consumer import Consumer
from afterlog.log.partition_log import PartitionLog
from afterlog.store import deletions
from afterlog.store.cleanup import Cleanup
from afterlog.store.store import Store
from afterlog.subscription.backlog import AckedByAll, Backlogs
from afterlog.subscription.subscription import Subscription
from tests.campaigns.killed_crowd import LONG_MS, PADDING, RETRY, Hand, wall_ms
from tests.support import ranges_of_one

QUOTA_MS = 1_000
SETTINGS: tuple[dict[str, Any], ...] = (
    {"retention_by_subscriptions": True},
    {
        "retention_by_subscriptions": True,
        "backlog_quota_ms": QUOTA_MS,
        "backlog_quota_policy": "consumer_backlog_eviction",
    },
)
"""Of the first such topic, and of the second."""
NAMES = ("one", "two")
GROUP = "group"


def number_of(who: str) -> int:
    return int(who.split()[-1])


def freeing_topic(who: str) -> str:
    return f"freeing-{number_of(who)}"


class Freer(Hand):
    """Of one topic."""

    sent = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.topic = freeing_topic(self.name)
        self.store.create_topic(self.topic, **SETTINGS[number_of(self.name)])
        self.open: dict[str, Subscription] = {}
        self.consumer: Consumer | None = None

    def steps(self) -> dict[Callable[[], None], int]:
        return {self.put: 6, self.read: 6, self.poll: 2, self.keep: 4, self.leave: 2, self.delete: 2}

    def put(self) -> None:
        """Some of which are a segment."""
        values = [f"{self.prefix}-{self.sent + row}" for row in range(self.chance.choice([1, 5, 20]))]
        self.sent += len(values)
        self.say("free", "put", wall_ms(), values)
        offsets = self.store.send_many(self.topic, [value.encode().ljust(PADDING) for value in values])
        self.say("free", "done", offsets.tolist())

    def read(self) -> None:
        """Some of what there is are acked, the rest goes back."""
        name = self.chance.choice(NAMES)
        if name not in self.open:
            self.say("free", "open", name)
            self.open[name] = self.store.subscribe(self.topic, name, retry=RETRY, lease_ms=LONG_MS)
            self.say("free", "done", self.open[name].shared[0].mark_delete())
        received = [*self.open[name].receive(self.chance.choice([1, 10, 40]))]
        rows = [(message.offset, (message.value or b"").decode().rstrip()) for message in received]
        self.say("free", "received", name, [message.delivery_offset for message in received], rows)
        done = received if self.chance.random() < 0.7 else self.chance.sample(received, len(received) // 2)
        self.say("free", "ack", name, [message.offset for message in done])
        self.open[name].ack_many(done)
        self.say("free", "done")
        self.open[name].release([message for message in received if message not in done])

    def poll(self) -> None:
        if self.consumer is None:
            self.consumer = self.store.consumer(self.topic, group=GROUP, start=afterlog.EARLIEST, auto_commit=False)
        try:
            self.consumer.poll(self.chance.choice([5, 40]))
        except afterlog.OffsetOutOfRange:  # retention took what comes next
            self.consumer.seek(afterlog.EARLIEST)
        self.say("free", "commit", self.consumer.positions()[0])
        self.consumer.commit()
        self.say("free", "done")

    def keep(self) -> None:
        if self.chance.random() < 0.5:
            self.store.topic(self.topic).partition(0).log.roll()
        with ranges_of_one():
            self.store.enforce_retention()
            if self.chance.random() < 0.5:
                self.store.clean(self.topic)

    def leave(self) -> None:
        for name in [*self.open]:
            self.open.pop(name).close()

    def delete(self) -> None:
        """A reader, which may be open."""
        there = [*self.store.subscriptions(self.topic), *self.store.groups(self.topic)]
        if not there:
            return
        name = self.chance.choice(there)
        self.say("free", "delete", name)
        if name == GROUP:
            self.store.delete_group(self.topic, name, force=True)
            self.consumer = None
        else:
            self.store.delete_subscription(self.topic, name, force=True)
            self.open.pop(name, None)
        self.say("free", "done")


@dataclass
class Reader:
    """What one subscription, or the group, has acked, in so far as it is known; and what it may have."""

    acked: set[int] = field(default_factory=set)
    perhaps: set[int] = field(default_factory=set)
    begun_most: int = 0
    """It began with no more behind it: what went between that and the telling is counted, though nobody knows of it."""


@dataclass
class FreeingOracle:
    """What must be true of one topic."""

    name: str
    evicts: bool
    values: dict[int, str] = field(default_factory=dict)
    put_ms: dict[int, int] = field(default_factory=dict)
    readers: dict[str, Reader] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)
    """What all readers that there were had acked, perhaps, at some time: it may have gone."""
    trying: tuple[Any, ...] = ()
    freed = evicted = beyond = 0
    """Records that went, as of the last kill: by acks, or not; the most from behind what was not acked."""

    def hear(self, word: str, *said: Any) -> None:
        match word:
            case "done":
                self.happened(*said)
            case "received":
                self.received(*said)
            case _:
                assert not self.trying
                self.trying = (word, *said)
                assert word != "delete" or said[0] in self.readers, f"{said[0]} is an earlier one, which was deleted"
                if word == "ack":
                    self.readers[said[0]].perhaps |= {*said[1]}
                elif word == "commit" and GROUP in self.readers:
                    self.readers[GROUP].perhaps |= {*range(said[0])}
        self.let_go()

    def happened(self, *answer: Any) -> None:
        word, *said = self.trying
        self.trying = ()
        match word:
            case "put":
                self.sent(dict(zip(answer[0], said[1], strict=True)), said[0])
            case "open":
                self.opened(said[0], answer[0])
            case "ack":
                self.readers[said[0]].acked |= {*said[1]}
            case "commit":
                self.readers[GROUP] = Reader({*range(said[0])}, {*range(said[0])})
            case "delete":
                del self.readers[said[0]]

    def sent(self, found: dict[int, str], put_ms: int) -> None:
        assert not self.values.keys() & found.keys(), "D8: an offset is given twice"
        self.values |= found
        self.put_ms |= dict.fromkeys(found, put_ms)

    def opened(self, name: str, mark: int) -> None:
        """A new one begins where the log does, and so behind nothing that had to stay."""
        reader = self.readers.get(name)
        if reader is None:
            assert self.evicts or self.free >= {*range(mark)}, f"a new {name} has acked {mark}: an earlier one's acks"
            self.readers[name] = Reader({*range(mark)}, {*range(mark)}, mark)
        else:
            assert self.evicts or {*range(mark)} <= reader.perhaps, f"D4: {name} has not acked {mark}"

    def received(self, name: str, ranks: list[int], rows: list[Any]) -> None:
        offsets = [offset for offset, _ in rows]
        assert ranks == offsets, "D6"
        assert all(value == self.values.get(offset) for offset, value in rows), "D8"
        again = self.readers[name].acked & {*offsets}
        assert not again, f"D9: {again} of {self.name} come again"

    def let_go(self) -> None:
        """Whoever is being deleted may be gone, whoever is being made may not be there yet."""
        going = self.trying[1] if self.trying[:1] == ("delete",) else None
        sure = [reader.perhaps for name, reader in self.readers.items() if name != going]
        if sure:
            self.free |= set.intersection(*sure)

    def verify(self, store: Store, killed_ms: int) -> None:
        """In a copy of what a kill left. What was begun has happened from now on, or has not."""
        if self.name not in [topic.name for topic in store.topics()]:
            assert not self.values, f"{self.name} is gone"
            return
        with store.consumer(self.name, group="another", start=afterlog.EARLIEST, auto_commit=False) as consumer:
            messages = [message for messages in iter(consumer.poll, []) for message in messages]
        found = {message.offset: (message.value or b"").decode().rstrip() for message in messages}
        partition = store.topic(self.name).partition(0)
        log_start, ranges = partition.log_start, partition.log.index.acked.rows
        beyond = {rank for each in ranges for rank in range(each.first, each.end)}
        assert beyond <= self.free, f"D13: {beyond - self.free} of {self.name} have gone, which somebody has not acked"
        self.beyond = max(self.beyond, len(beyond))
        self.verify_values(found, log_start, beyond, killed_ms)
        self.verify_there(store)
        for name in NAMES:
            if name in self.readers:
                self.verify_reader(store, name, {*found}, log_start)
        self.trying = ()
        self.let_go()

    def verify_values(self, found: dict[int, str], log_start: int, beyond: set[int], killed_ms: int) -> None:
        if self.trying[:1] == ("put",):
            put_ms, values = self.trying[1:]
            fresh = {offset: value for offset, value in found.items() if value in values}
            assert values[: len(fresh)] == [*fresh.values()], "D8"
            self.sent(fresh, put_ms)
        gone = {offset for offset in self.values if offset < log_start or offset in beyond}
        assert {offset: value for offset, value in self.values.items() if offset not in gone} == found, "D3, D8"
        early = {each for each in gone - self.free if not self.evicts or self.put_ms[each] + QUOTA_MS > killed_ms}
        assert not early, f"D13: {early} of {self.name} have gone, which somebody has not acked"
        self.freed, self.evicted = len(gone), len(gone - self.free)

    def verify_there(self, store: Store) -> None:
        """Which readers there are; what was begun of that has happened, or has not."""
        there = {*store.subscriptions(self.name), *store.groups(self.name)}
        word, *said = self.trying or ("",)
        unsure = {"open": said[:1], "delete": said[:1], "commit": [GROUP]}.get(word, [])
        assert there ^ self.readers.keys() <= {*unsure}, f"there are {there}, not {self.readers.keys()}"
        for name in self.readers.keys() - there:
            del self.readers[name]
        for name in there - self.readers.keys():
            self.readers[name] = Reader()
        if GROUP in there:
            with store.consumer(self.name, group=GROUP, auto_commit=False) as consumer:
                committed = {*range(consumer.committed()[0] or 0)}
            begun = [{*range(said[0])}] if word == "commit" else []
            assert committed in [self.readers[GROUP].acked, *begun], "D9: a commit is undone"
            self.readers[GROUP] = Reader(committed, {*committed})

    def verify_reader(self, store: Store, name: str, found: set[int], log_start: int) -> None:
        """All that it has not acked comes, nothing that it has; what went before it had is counted."""
        reader, is_new = self.readers[name], self.trying[:2] == ("open", name) and not self.readers[name].acked
        with store.subscribe(self.name, name) as subscription:
            offsets = {each.offset for batch in iter(lambda: [*subscription.receive(1_000)], []) for each in batch}
            removed = subscription.stats().partitions[0].removed
        if is_new:
            reader.acked |= {*range(log_start)}
            reader.begun_most = log_start
        assert not offsets & reader.acked, f"D9: {offsets & reader.acked} of {self.name} come again to {name}"
        lost = found - offsets - reader.perhaps - reader.acked
        assert not lost, f"D4: {lost} of {self.name} do not come to {name}: it has acked none of them"
        went = {*range(log_start)} - reader.acked
        least, most = len(went - reader.perhaps), len(went) + reader.begun_most
        assert least <= removed <= most, f"{removed} were said to have gone, not {least} to {most}"
        reader.begun_most = max(removed - len(went), 0)
        reader.acked |= found - offsets
        reader.acked |= reader.perhaps & {*range(log_start)} if removed < len(went) else set()
        reader.perhaps = {*reader.acked}


# Bugs, planted in a worker.


def closed_readers_hold_nothing() -> None:
    """They are taken to have acked all."""
    real = Backlogs._of_closed

    def of_closed(backlogs: Backlogs, log: PartitionLog, *more: Any) -> AckedByAll | None:
        return None if real(backlogs, log, *more) is None else AckedByAll(log.log_end_offset, BitMap64())

    patch.object(Backlogs, "_of_closed", of_closed).start()


def acks_of_the_deleted_stay() -> None:
    """Of a subscription nothing goes but the tombstone."""
    real = deletions.remove_tree

    def remove(files: Files, path: Path) -> None:
        if path.name not in NAMES:
            real(files, path)

    patch.object(deletions, "remove_tree", remove).start()


def evicted_at_once() -> None:
    patch.object(Cleanup, "_evicted", lambda *_: 1 << 60).start()
