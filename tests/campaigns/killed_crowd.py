"""A process of many threads that `tests/campaigns/test_killed_crowd.py` kills: producers, readers, consumers and
keepers.

    python -m tests.campaigns.killed_crowd        a line `folder seed bug` comes in: a worker is forked, and waited for

As `tests/campaigns/killed_worker.py`, but that each line names its thread: what a thread says comes in its own order.
Of a call whose effect another thread may see, a line goes before it.
"""

from __future__ import annotations

import os
import random
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import afterlog
from afterlog.fetch.consumer import Consumer
from afterlog.fetch.group import GroupPosition
from afterlog.fetch.message import Message
from afterlog.store.store import Store
from afterlog.subscription import journal
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.subscription import Subscription
from tests.campaigns import killed_worker
from tests.campaigns.killed_worker import (
    DELAYS,
    DURABILITIES,
    JOURNAL_BYTES,
    LONG_MS,
    ack_stays_in_memory,
    say,
    wall_ms,
)

CONFIG = replace(killed_worker.CONFIG, linger_ms=1, remote_log_manager_task_interval_ms=20)
RETENTION_MS = 300
TOPICS: dict[str, dict[str, Any]] = {
    "mail": {},
    "old": {"retention_ms": RETENTION_MS},
    "far": {"remote_storage_enable": True, "local_retention_ms": 0},
}
RETRY = afterlog.RetryPolicy(first_ms=1, max_ms=20, attempts=None)
STORE, REMOTE = "store", "remote"
PADDING = 300
"""Bytes behind a value: segments are full after some dozens of records."""


class Hand:
    """One thread: its chance, and what it is called."""

    def __init__(self, store: Store, seed: str, name: str) -> None:
        self.store = store
        self.chance = random.Random(f"{seed} {name}")
        self.name = name
        self.prefix = f"{seed}-{name}"

    def say(self, word: str, *arguments: object) -> None:
        say(word, self.name, *arguments)

    def steps(self) -> dict[Callable[[], None], int]:
        """What it does, each so often."""
        raise NotImplementedError

    def work(self) -> None:
        try:
            steps = self.steps()
            while True:
                self.chance.choices([*steps], [*steps.values()])[0]()
        except BaseException:
            traceback.print_exc()
            os._exit(1)


class Sender(Hand):
    """Records one by one, in columns and through a producer; some of its own it cancels or moves."""

    sent = 0
    recent: tuple[afterlog.RecordId, ...] = ()

    def steps(self) -> dict[Callable[[], None], int]:
        return {self.send: 4, self.send_many: 3, self.flush: 2, self.cancel: 1, self.reschedule: 1}

    def records(self, count: int) -> tuple[str, list[str], list[float]]:
        """Values, each the only one of its kind, and delays."""
        values = [f"{self.prefix}-{self.sent + row}" for row in range(count)]
        self.sent += count
        return self.chance.choice([*TOPICS]), values, [self.chance.choice(DELAYS) for _ in values]

    def trying(self, count: int) -> tuple[str, list[bytes], list[float]]:
        topic, values, delays = self.records(count)
        now_ms = wall_ms()
        rows = [(value, now_ms + int(delay * 1_000)) for value, delay in zip(values, delays, strict=True)]
        self.say("send", topic, rows)
        return topic, [value.encode().ljust(PADDING) for value in values], delays

    def send(self) -> None:
        topic, [value], [delay] = self.trying(1)
        record = self.store.send(topic, value, delay=delay)
        self.recent = (*self.recent[-9:], record)
        self.say("sent", [record.offset])

    def send_many(self) -> None:
        topic, values, delays = self.trying(self.chance.choice([2, 5, 9]))
        self.say("sent", self.store.send_many(topic, values, delay=delays).tolist())

    def flush(self) -> None:
        topic, values, delays = self.trying(self.chance.choice([2, 5]))
        with self.store.producer(topic) as producer:
            futures = [producer.send(value, delay=delay) for value, delay in zip(values, delays, strict=True)]
        self.say("sent", [future.result().offset for future in futures])

    def cancel(self) -> None:
        if self.recent:
            record = self.chance.choice(self.recent)
            self.say("cancel", record.topic, record.offset)
            self.say("cancelled", int(self.store.cancel(record)))

    def reschedule(self) -> None:
        if self.recent:
            record = self.chance.choice(self.recent)
            delay = self.chance.choice(DELAYS)
            self.say("reschedule", record.topic, record.offset, wall_ms() + int(delay * 1_000))
            try:
                again = self.store.reschedule(record, delay=delay)
            except afterlog.NotPending:
                self.say("rescheduled", None)
            else:
                self.say("rescheduled", again.offset)


class Reader(Hand):
    """Of the one subscription, which all readers share."""

    def __init__(self, subscription: Subscription, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.subscription = subscription
        self.held: list[LeasedMessage] = []

    def steps(self) -> dict[Callable[[], None], int]:
        return {self.receive: 6, self.ack: 3, self.ack_many: 1, self.nack: 3, self.release: 1}

    def receive(self) -> None:
        self.say("receive")
        received = self.subscription.receive(self.chance.choice([1, 10, 70]), timeout=0.002)  # a line takes no more
        self.say("received", wall_ms(), [(*row(message), message.redelivery_count) for message in received])
        self.held += received

    def taken(self) -> LeasedMessage | None:
        return self.held.pop(self.chance.randrange(len(self.held))) if self.held else None

    def ack(self) -> None:
        if (message := self.taken()) is not None:
            self.say("ack", [message.offset])
            self.say("acked", self.subscription.ack(message).acked)

    def ack_many(self) -> None:
        messages, self.held = self.held, []
        self.say("ack", [message.offset for message in messages])
        self.say("acked", self.subscription.ack_many(messages).acked)

    def nack(self) -> None:
        if (message := self.taken()) is not None:
            delay_ms = self.chance.choice([0, 5, 40])
            self.say("nack", message.offset, wall_ms() + delay_ms)
            self.say("nacked", self.subscription.nack(message, delay=delay_ms / 1_000).done)

    def release(self) -> None:
        if (message := self.taken()) is not None:
            self.say("release", message.offset)
            self.say("released", self.subscription.release(message).done)


class Follower(Hand):
    """A consumer group of one topic."""

    def __init__(self, consumer: Consumer, topic: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.consumer = consumer
        self.topic = topic
        self.begins()

    def steps(self) -> dict[Callable[[], None], int]:
        return {self.poll: 3, self.commit: 1}

    def begins(self) -> None:
        self.say("begins", self.topic, self.consumer.positions()[0])

    def poll(self) -> None:
        try:
            messages = self.consumer.poll(20, timeout=0.002)
        except afterlog.OffsetOutOfRange:  # retention took what comes next
            self.consumer.seek(afterlog.EARLIEST)
            self.begins()
            return
        self.say("polled", wall_ms(), [row(message) for message in messages], self.consumer.positions()[0])

    def commit(self) -> None:
        self.say("commit", self.consumer.positions()[0])
        self.consumer.commit()
        self.say("committed")


class Keeper(Hand):
    """What threads in the background do, too, but more often."""

    def steps(self) -> dict[Callable[[], None], int]:
        return {self.roll: 2, self.merge: 2, self.checkpoint: 1, self.keep: 2, self.offload: 2, self.sync: 1}

    def log(self) -> Any:
        return self.store.topic(self.chance.choice([*TOPICS])).partition(0).log

    def roll(self) -> None:
        self.log().roll()

    def merge(self) -> None:
        self.log().merge_buckets()

    def checkpoint(self) -> None:
        self.log().checkpoint()

    def keep(self) -> None:
        self.store.enforce_retention()

    def offload(self) -> None:
        self.store.offload()

    def sync(self) -> None:
        self.store.sync()


def row(message: Message | LeasedMessage) -> tuple[int, int, str]:
    return message.delivery_offset, message.offset, (message.value or b"").decode().rstrip()


def live(folder: Path, seed: str) -> None:
    chance = random.Random(seed)
    config = replace(CONFIG, durability=chance.choice(DURABILITIES))
    patch.object(journal, "LIMIT_BYTES", JOURNAL_BYTES).start()
    for _ in range(chance.choice([0, 0, 1])):  # a clean close, which may be killed, too
        afterlog.open(folder / STORE, config=config, remote=str(folder / REMOTE)).close()
    with afterlog.open(folder / STORE, config=config, remote=str(folder / REMOTE)) as store:
        for name, settings in TOPICS.items():
            store.create_topic(name, **settings)
        hands: list[Hand] = [Sender(store, seed, f"sender {number}") for number in range(chance.choice([1, 2, 4]))]
        for number in range(chance.choice([0, 1, 3])):
            subscription = store.subscribe("mail", "readers", retry=RETRY, lease_ms=LONG_MS)
            hands.append(Reader(subscription, store, seed, f"reader {number}"))
        for topic in chance.sample([*TOPICS], chance.choice([0, 1, 3])):
            consumer = store.consumer(topic, group="group", auto_commit=False)
            hands.append(Follower(consumer, topic, store, seed, f"follower of {topic}"))
        from tests.campaigns.crowd_freeing import Freer
        from tests.campaigns.crowd_passing import Changer

        hands += [Freer(store, seed, f"freer {number}") for number in range(chance.choice([0, 1, 2, 2]))]
        hands += [Changer(store, seed, f"changer {number}") for number in range(chance.choice([0, 1, 2]))]
        hands += [Keeper(store, seed, f"keeper {number}") for number in range(chance.choice([0, 1, 2]))]
        threads = [threading.Thread(target=hand.work, daemon=True) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


# Bugs, planted in a worker to see that they are caught.


def position_stays_in_memory() -> None:
    patch.object(GroupPosition, "commit", lambda *_: None).start()


def nack_has_no_delay() -> None:
    real = Subscription.nack

    def nack(self: Subscription, messages: Any, *, delay: Any = None, reason: str = "") -> Any:
        return real(self, messages, delay=0, reason=reason)

    patch.object(Subscription, "nack", nack).start()


def poll_skips_one() -> None:
    real = Consumer.poll

    def poll(self: Consumer, *arguments: Any, **settings: Any) -> list[Message]:
        messages = real(self, *arguments, **settings)
        return messages[1:] if len(messages) > 3 else messages

    patch.object(Consumer, "poll", poll).start()


def key_is_forgotten() -> None:
    from tests.campaigns import crowd_passing

    crowd_passing.key_is_forgotten()


def closed_readers_hold_nothing() -> None:
    from tests.campaigns import crowd_freeing

    crowd_freeing.closed_readers_hold_nothing()


def acks_of_the_deleted_stay() -> None:
    from tests.campaigns import crowd_freeing

    crowd_freeing.acks_of_the_deleted_stay()


def evicted_at_once() -> None:
    from tests.campaigns import crowd_freeing

    crowd_freeing.evicted_at_once()


BUGS = {
    bug.__name__: bug
    for bug in (
        killed_worker.nothing_planted,
        ack_stays_in_memory,
        position_stays_in_memory,
        nack_has_no_delay,
        poll_skips_one,
        key_is_forgotten,
        closed_readers_hold_nothing,
        acks_of_the_deleted_stay,
        evicted_at_once,
    )
}

if __name__ == "__main__":
    killed_worker.serve(live, BUGS)
