"""The processes that `tests/killed_clients.py` kills: each shares a store, or is served one, sends to it and receives.

    python -m tests.killed_client        a line `folder role name seed bug` comes in: a process is forked for it

Forked of a process that has imported everything and opened nothing, a life begins after milliseconds. Each line is a
JSON list and one write of at most PIPE_BUF bytes to a pipe, so it is there as a whole or not at all, and stays when the
process is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import afterlog
from afterlog.client.lanes import Lane
from afterlog.config import Config
from afterlog.produce.topic import Topic
from afterlog.subscription.leased_message import LeasedMessage

TOPIC, SUBSCRIPTION = "mail", "sender"
LEASE_MS = 1_500
TIMEOUT_S = 20.0
DELAYS_MS = [0, 0, 1, 20, 100]
PARTITIONS = 2
CONFIG = Config(durability=afterlog.OS, segment_bytes=65_536, batch_bytes_max=16_384)
LINE_BYTES = 4_096


def say(word: str, *arguments: object) -> None:
    line = json.dumps([word, time.monotonic(), *arguments]).encode() + b"\n"
    assert len(line) <= LINE_BYTES
    os.write(1, line)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Life:
    """Of one process: one thread sends, one receives."""

    def __init__(self, folder: str, role: str, name: str, chance: random.Random) -> None:
        self.name = name
        self.chance = chance
        self.store: Any
        if role == "shared":
            self.store = afterlog.open(folder, shared=True, config=CONFIG, timeout=TIMEOUT_S)
        else:
            self.store = afterlog.connect(f"unix:{role}", timeout=TIMEOUT_S)
        self.store.create_topic(TOPIC, partitions=PARTITIONS)
        say("joined", name, os.getpid())

    def work(self) -> None:
        receiving = threading.Thread(target=self._said, args=(self._receive,), daemon=True)
        receiving.start()
        self._said(self._send)

    def _send(self) -> None:
        count = 0
        while True:
            many = self.chance.choice((1, 1, 1, 3))
            due_ms = wall_ms() + self.chance.choice(DELAYS_MS)
            values = [f"{self.name}.{count + row}" for row in range(many)]
            count += many
            say("sending", self.name, values, due_ms)
            partition = self.chance.randrange(PARTITIONS)
            if many == 1:
                record = self.store.send(TOPIC, values[0].encode(), deliver_after=due_ms, partition=partition)
                offsets = [record.offset]
            else:
                sent = self.store.send_many(
                    TOPIC, [value.encode() for value in values], deliver_after=due_ms, partition=partition
                )
                offsets = sent.tolist()
            say("sent", self.name, values, partition, offsets)
            time.sleep(self.chance.choice((0, 0.002, 0.01)))

    def _receive(self) -> None:
        with self.store.subscribe(TOPIC, SUBSCRIPTION, lease_ms=LEASE_MS, auto_extend=False) as subscription:
            while True:
                received = subscription.receive(self.chance.choice((1, 5, 50)), timeout=1.0)
                for message in received:
                    leased_ms = message.deadline_ms - LEASE_MS
                    say("got", self.name, _value(message), message.redelivery_count, leased_ms, wall_ms())
                if self.chance.random() < 0.1:
                    time.sleep(0.05)
                if received:
                    values = [_value(message) for message in received]
                    if all(message.deadline_ms > wall_ms() for message in received):
                        subscription.ack_many(received)
                        for value in values:
                            say("acked", self.name, value, wall_ms())

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
            append_one(self, number, record, sequence)

        threading.Thread(target=append, daemon=True).start()
        return end

    with patch.object(Topic, "append_one", later):
        yield


BUGS: Mapping[str, Callable[[], Any]] = {
    "none": nothing,
    "a client that retries with a new sequence": new_sequence,
    "a restart ends leases": leases_end,
    "an answer before the append": early_answer,
}


def live(folder: str, role: str, name: str, seed: int, bug: str) -> None:
    """Until it is killed."""
    with BUGS[bug]():
        try:
            Life(folder, role, name, random.Random(seed)).work()
        except BaseException:
            say("failed", name, traceback.format_exc()[-2_000:])
    os._exit(1)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who was killed is gone
    for line in sys.stdin:
        folder, role, name, seed, bug = json.loads(line)
        if os.fork() == 0:
            live(folder, role, name, seed, bug)


if __name__ == "__main__":
    main()
