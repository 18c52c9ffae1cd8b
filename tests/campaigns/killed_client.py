"""The processes that `tests/campaigns/killed_clients.py` kills: each shares a store, or is served one, sends to it and
receives.

    python -m tests.campaigns.killed_client      a line `folder role name seed bug durability` comes in: one is forked
    for it

Forked of a process that has imported everything and opened nothing, a life begins after milliseconds. Each line is a
JSON list and one write of at most PIPE_BUF bytes to a pipe, so it is there as a whole or not at all, and stays when the
process is killed.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import numpy as np

import afterlog
from afterlog.base.config import Config, Durability
from afterlog.base.errors import AfterlogError, AnswerLost, NotPending
from afterlog.client.lanes import Lane
from afterlog.log.partition_log import PartitionLog
from afterlog.produce.topic import Topic
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.subscription import Subscription

TOPIC, SUBSCRIPTION = "mail", "sender"
LEASE_MS = 1_500
TIMEOUT_S = 20.0
DELAYS_MS = [0, 0, 1, 20, 100]
AHEAD_MS = 400
"""So far ahead is what is to be cancelled, or rescheduled: who serves may have to be another one first."""
NACK_DELAYS_MS = [0, 50, 200]
PARTITIONS = 2
LINE_BYTES = 4_096


def config_of(durability: str) -> Config:
    return Config(durability=Durability(durability), segment_bytes=65_536, batch_bytes_max=16_384)


def say(word: str, *arguments: object) -> None:
    line = json.dumps([word, time.monotonic(), *arguments]).encode() + b"\n"
    assert len(line) <= LINE_BYTES
    os.write(1, line)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Life:
    """Of one process: one thread sends, one receives."""

    def __init__(self, folder: str, role: str, name: str, chance: random.Random, durability: str) -> None:
        self.name = name
        self.chance = chance
        self._count = 0
        self.store: Any
        if role == "shared":
            self.store = afterlog.open(folder, shared=True, config=config_of(durability), timeout=TIMEOUT_S)
        else:
            self.store = afterlog.connect(f"unix:{role}", timeout=TIMEOUT_S)
        self.store.create_topic(TOPIC, partitions=PARTITIONS)
        say("joined", name, os.getpid())

    def work(self) -> None:
        receiving = threading.Thread(target=self._said, args=(self._receive,), daemon=True)
        receiving.start()
        self._said(self._send)

    def _send(self) -> None:
        while True:
            [work] = self.chance.choices((self._send_some, self._send_and_cancel, self._send_and_move), (10, 1, 1))
            work()
            time.sleep(self.chance.choice((0, 0.002, 0.01)))

    def _send_some(self) -> None:
        many = self.chance.choice((1, 1, 1, 3))
        due_ms = wall_ms() + self.chance.choice(DELAYS_MS)
        if many == 1:
            self._send_one(due_ms)
            return
        values = self._values(many)
        say("sending", self.name, values, due_ms)
        partition = self.chance.randrange(PARTITIONS)
        sent = self.store.send_many(
            TOPIC, [value.encode() for value in values], deliver_after=due_ms, partition=partition
        )
        say("sent", self.name, values, partition, sent.tolist())

    def _send_and_cancel(self) -> None:
        value, record = self._send_one(wall_ms() + AHEAD_MS)
        say("cancelling", self.name, value)
        say("cancelled", self.name, value, self.store.cancel(record).name)

    def _send_and_move(self) -> None:
        value, record = self._send_one(wall_ms() + AHEAD_MS)
        due_ms = wall_ms() + self.chance.choice((AHEAD_MS // 2, 2 * AHEAD_MS))
        say("moving", self.name, value, due_ms)
        try:
            moved = self.store.reschedule(record, deliver_after=due_ms)
        except NotPending as refused:
            say("unmoved", self.name, value, refused.answer.name)
        except AnswerLost:  # it is not tried again: nobody knows
            pass
        else:
            say("moved", self.name, value, moved.partition, moved.offset)

    def _send_one(self, due_ms: int) -> tuple[str, Any]:
        [value] = self._values(1)
        say("sending", self.name, [value], due_ms)
        partition = self.chance.randrange(PARTITIONS)
        record = self.store.send(TOPIC, value.encode(), deliver_after=due_ms, partition=partition)
        say("sent", self.name, [value], partition, [record.offset])
        return value, record

    def _values(self, count: int) -> list[str]:
        first, self._count = self._count, self._count + count
        return [f"{self.name}.{number}" for number in range(first, self._count)]

    def _receive(self) -> None:
        with self.store.subscribe(TOPIC, SUBSCRIPTION, lease_ms=LEASE_MS, auto_extend=False) as subscription:
            while True:
                received = subscription.receive(self.chance.choice((1, 5, 50)), timeout=1.0)
                for message in received:
                    leased_ms, place = message.deadline_ms - LEASE_MS, (message.partition, message.offset)
                    say("got", self.name, _value(message), message.redelivery_count, leased_ms, wall_ms(), *place)
                if self.chance.random() < 0.2:
                    time.sleep(0.05)
                if received and all(message.deadline_ms > wall_ms() for message in received):
                    failed = [message for message in received if self.chance.random() < 0.05]
                    self._ack(subscription, [message for message in received if message not in failed])
                    for message in failed:
                        self._nack(subscription, message)

    def _ack(self, subscription: Any, messages: list[LeasedMessage]) -> None:
        if not messages:
            return
        values = [_value(message) for message in messages]
        say("acking", self.name, values, [message.redelivery_count for message in messages])
        subscription.ack_many(messages)
        for value in values:
            say("acked", self.name, value, wall_ms())

    def _nack(self, subscription: Any, message: LeasedMessage) -> None:
        delay_ms = self.chance.choice(NACK_DELAYS_MS)
        say("nacking", self.name, _value(message), message.redelivery_count, delay_ms, wall_ms())
        if subscription.nack(message, delay=delay_ms / 1_000).done:
            say("nacked", self.name, _value(message), wall_ms())

    def _said(self, work: Callable[[], None]) -> None:
        """What ends it is said, and ends the process: no error is expected."""
        try:
            work()
        except BaseException:
            say("failed", self.name, traceback.format_exc()[-2_000:])
            os._exit(1)


def _value(message: LeasedMessage) -> str:
    return (message.value or b"").decode()


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def new_sequence() -> Iterator[None]:
    """A client that sends again as another producer."""
    request = Lane.request

    def other(lane: Lane, asked: Any) -> Any:
        lane._become_another()
        return request(lane, asked)

    with patch.object(Lane, "request", other):
        yield


@contextmanager
def leases_end() -> Iterator[None]:
    """A server whose end is a failure of those that it has leased to."""
    subscribe = afterlog.Store.subscribe

    def undurable(self: Any, *arguments: Any, **options: Any) -> Any:
        return subscribe(self, *arguments, **(options | {"durable_leases": False}))

    with patch.object(afterlog.Store, "subscribe", undurable):
        yield


@contextmanager
def early_answer() -> Iterator[None]:
    """A server that answers a send before it has made it."""
    append_one = Topic.append_one
    ends: dict[tuple[str, int], int] = {}

    def later(self: Topic, number: int, record: Any, sequence: Any = None) -> int:
        end = max(ends.get((self.name, number), 0), self.partition(number).log_end_offset)
        ends[self.name, number] = end + 1

        def append() -> None:
            time.sleep(0.2)
            with suppress(AfterlogError):
                append_one(self, number, record, sequence)

        threading.Thread(target=append, daemon=True).start()
        return end

    with patch.object(Topic, "append_one", later):
        yield


@contextmanager
def unnumbered() -> Iterator[None]:
    """A server that does not look at who sends, and whether it was sent before."""
    with patch("afterlog.server.records_api._sequence", lambda *_: None):
        yield


@contextmanager
def cancelled_and_kept() -> Iterator[None]:
    """A server that cancels nothing, and says that it has."""
    with patch.object(PartitionLog, "cancel", lambda _, offsets: np.zeros(len(offsets), np.int8)):
        yield


@contextmanager
def moved_to_now() -> Iterator[None]:
    """A server that takes a record of another time for one of none."""
    reschedule = afterlog.Store.reschedule

    def at_once(self: Any, record: Any, **_: Any) -> Any:
        return reschedule(self, record, delay=0)

    with patch.object(afterlog.Store, "reschedule", at_once):
        yield


@contextmanager
def nacked_uncounted() -> Iterator[None]:
    """A server that takes a nack for a release."""
    with patch.object(Subscription, "nack", lambda self, messages, **_: self.release(messages)):
        yield


@contextmanager
def nacked_at_once() -> Iterator[None]:
    """A server that does not wait as a nack says."""
    nack = Subscription.nack

    def undelayed(self: Any, messages: Any, *, delay: Any = None, reason: str = "") -> Any:
        return nack(self, messages, delay=0, reason=reason)

    with patch.object(Subscription, "nack", undelayed):
        yield


BUGS: Mapping[str, Callable[[], Any]] = {
    "none": nothing,
    "a client that retries with a new sequence": new_sequence,
    "a restart ends leases": leases_end,
    "an answer before the append": early_answer,
    "a repeat is appended": unnumbered,
    "a cancel that does nothing": cancelled_and_kept,
    "a reschedule to now": moved_to_now,
    "a nack that does not count": nacked_uncounted,
    "a nack without its delay": nacked_at_once,
}


def live(folder: str, role: str, name: str, seed: int, bug: str, durability: str) -> None:
    """Until it is killed."""
    with BUGS[bug]():
        try:
            Life(folder, role, name, random.Random(seed), durability).work()
        except BaseException:
            say("failed", name, traceback.format_exc()[-2_000:])
    os._exit(1)


def main() -> None:
    logging.getLogger("afterlog.sharing.shared").setLevel(logging.ERROR)  # that durabilities differ is meant
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who was killed is gone
    for line in sys.stdin:
        asked = json.loads(line)
        if os.fork() == 0:
            live(*asked)


if __name__ == "__main__":
    main()
