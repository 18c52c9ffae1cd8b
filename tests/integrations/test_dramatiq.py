"""The broker for Dramatiq, on a store whose clock is turned: what a worker is given, when, and what becomes of it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq import Message, MessageProxy, Worker
from dramatiq.errors import ConnectionClosed, ConnectionFailed, QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Middleware, Retries

import afterlog
from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidArgument, WrongType
from afterlog.integrations.dramatiq import RECORD_ID, AfterlogBroker
from afterlog.store.store import Store
from tests import campaigns
from tests.support import NOW_MS

QUEUE = "default"
TOPIC = "dramatiq.default"


class Apart:
    """A store, a broker, and an actor that notes what it was called with."""

    def __init__(self, store: Store, clock: ManualClock, middleware: list[Middleware] | None = None) -> None:
        self.store, self.clock = store, clock
        self.broker = AfterlogBroker(store, middleware=middleware)
        dramatiq.set_broker(self.broker)
        self.calls: list[Any] = []

        @dramatiq.actor
        def note(value: object) -> None:
            self.calls.append(value)

        self.note = note

    def consumer(self, prefetch: int = 10) -> Any:
        return self.broker.consume(QUEUE, prefetch, timeout=0)

    def given(self, consumer: Any) -> list[MessageProxy]:
        """All that a worker would get now."""
        return [*iter(consumer.__next__, None)]

    def dead(self) -> list[tuple[bytes | None, str]]:
        letters = self.store.dead_letters(f"{TOPIC}.XQ")
        return [(letter.message.value, letter.origin.reason if letter.origin else "") for letter in letters]


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    clock = ManualClock(NOW_MS)
    with afterlog.open(tmp_path, clock=clock) as store:
        made = Apart(store, clock)
        yield made
        made.broker.close()


def values(messages: list[MessageProxy]) -> list[Any]:
    return [message.args[0] for message in messages]


def test_what_is_due_later_is_in_no_worker(apart: Apart) -> None:
    apart.note.send_with_options(args=("later",), delay=60_000)
    apart.note.send("now")
    consumer = apart.consumer()
    [first] = apart.given(consumer)
    assert ("now", 1) == (first.args[0], len(apart.store.pending(TOPIC)))
    consumer.ack(first)
    apart.clock.advance(59_999)
    assert [] == apart.given(consumer)
    apart.clock.advance(1)
    assert ["later"] == values(apart.given(consumer))


def test_no_more_than_it_prefetches(apart: Apart) -> None:
    for number in range(5):
        apart.note.send(number)
    consumer = apart.consumer(prefetch=2)
    first = apart.given(consumer)
    assert [0, 1] == values(first)
    consumer.ack(first[1])
    assert [2] == values(apart.given(consumer))
    consumer.ack(first[0])
    assert [3] == values(apart.given(consumer))


def test_what_is_given_up_goes_to_the_dead_letters(apart: Apart) -> None:
    apart.note.send("a")
    consumer = apart.consumer()
    [message] = apart.given(consumer)
    message.stuff_exception(ValueError("no"))
    consumer.nack(message)
    [(value, reason)] = apart.dead()
    assert (b'"a"' in (value or b""), "ValueError: no") == (True, reason)
    apart.clock.advance(86_400_000)
    assert [] == apart.given(consumer)
    apart.store.redrive(f"{TOPIC}.XQ")
    assert ["a"] == values(apart.given(consumer))


def test_what_cannot_be_read_stops_nobody(apart: Apart) -> None:
    apart.note.send("a")
    apart.store.send(TOPIC, b"{")
    apart.note.send("b")
    assert ["a", "b"] == values(apart.given(apart.consumer()))
    [(value, reason)] = apart.dead()
    assert value == b"{"
    assert reason.startswith("DecodeError")


def test_what_was_not_begun_goes_back(apart: Apart) -> None:
    for number in range(4):
        apart.note.send(number)
    consumer = apart.consumer()
    first, second = next(consumer), next(consumer)
    consumer.requeue([second])
    consumer.close()
    other = apart.consumer()
    again = apart.given(other)
    assert [1, 2, 3] == sorted(values(again))
    assert not any(message.leased.redelivery_count for message in again), "no failure"
    other.ack(first)


def test_a_message_outlives_the_consumer_that_gave_it(apart: Apart) -> None:
    """Dramatiq makes another one where it met an error, and settles by that what the first gave."""
    apart.note.send("a")
    first = apart.consumer(prefetch=1)
    message = next(first)
    first.close()
    second = apart.consumer(prefetch=1)
    second.ack(message)
    apart.note.send("b")
    assert ["b"] == values(apart.given(second))
    apart.clock.advance(86_400_000)
    assert ["b"] == values(apart.given(apart.consumer())), "whose lease has ended"


def test_a_message_outlives_its_reader(apart: Apart) -> None:
    """A purge closes all that read, wherever they are."""
    for value in "abc":
        apart.note.send(value)
    consumer = apart.consumer()
    messages = apart.given(consumer)
    apart.store.purge(TOPIC, force=True)
    with pytest.raises(ConnectionClosed):
        next(consumer)
    second = apart.consumer()
    second.ack(messages[0])
    second.nack(messages[1])
    second.requeue([messages[2]])
    apart.broker.join(QUEUE, timeout=0)
    apart.broker.flush(QUEUE)
    apart.note.send("d")
    assert ["d"] == values(apart.given(apart.consumer()))


def test_a_lease_is_renewed_until_the_message_is_settled(apart: Apart) -> None:
    for number in range(3):
        apart.note.send(number)
    consumer = apart.consumer()
    first = next(consumer)
    blocks = first.leased.subscription.blocks
    assert 3 == len(blocks), "of those that wait for a thread, too"
    consumer.ack(first)
    consumer.nack(next(consumer))
    consumer.requeue([next(consumer)])
    assert not blocks


def test_cancel(apart: Apart) -> None:
    sent = apart.note.send_with_options(args=("never",), delay=60_000)
    assert apart.broker.cancel(sent)
    assert not apart.broker.cancel(sent)
    apart.clock.advance(60_000)
    assert [] == apart.given(apart.consumer())
    with pytest.raises(ValueError, match="was not enqueued by this broker"):
        apart.broker.cancel(apart.note.message("b"))


def test_a_message_names_its_record(apart: Apart) -> None:
    sent = apart.note.send("a")
    consumer = apart.consumer()
    [message] = apart.given(consumer)
    assert sent == message._message
    assert f"{TOPIC}-0@0" == message.options[RECORD_ID]
    again = apart.broker.enqueue(message._message, delay=5)
    assert f"{TOPIC}-0@1" == again.options[RECORD_ID]
    assert RECORD_ID.encode() not in (apart.store.pending(TOPIC)[0].value or b"")


def test_what_another_broker_had_delayed(apart: Apart) -> None:
    """Its delay queue's name, and a time for the worker: of Redis, say, moved here."""
    message = apart.note.message("a")
    apart.broker.enqueue(message.copy(queue_name=f"{QUEUE}.DQ"))
    assert ["a"] == values(apart.given(apart.consumer()))
    assert {QUEUE} == apart.broker.get_declared_queues()
    assert set() == apart.broker.get_declared_delay_queues()


def test_flush(apart: Apart) -> None:
    apart.note.send("now")
    apart.note.send_with_options(args=("later",), delay=60_000)
    apart.broker.flush_all()
    apart.clock.advance(60_000)
    assert [] == apart.given(apart.consumer())
    apart.broker.join(QUEUE, timeout=0)
    with pytest.raises(QueueNotFound):
        apart.broker.flush("other")


def test_join_waits_for_what_is_due_later_and_what_is_under_way(apart: Apart) -> None:
    apart.note.send_with_options(args=("later",), delay=60_000)
    with pytest.raises(QueueJoinTimeout):
        apart.broker.join(QUEUE, timeout=0)
    apart.clock.advance(60_000)
    consumer = apart.consumer()
    [message] = apart.given(consumer)
    with pytest.raises(QueueJoinTimeout):
        apart.broker.join(QUEUE, timeout=0)
    consumer.ack(message)
    apart.broker.join(QUEUE, timeout=0)
    for call in (apart.broker.join, apart.broker.consume):
        with pytest.raises(QueueNotFound):
            call("other")


def test_what_all_have_acked_is_freed(apart: Apart) -> None:
    """Also where it was enqueued before there ever was a worker."""
    apart.note.send("a")
    settings = apart.store.topic(TOPIC).settings
    assert settings.retention_by_subscriptions
    assert 7 * 86_400_000 == apart.store.topic(f"{TOPIC}.XQ").settings.retention_ms
    apart.store.topic(TOPIC).partition(0).log.roll()
    apart.store.enforce_retention()
    assert ["a"] == values(apart.given(apart.consumer()))


def test_settings_that_somebody_altered_stay(apart: Apart) -> None:
    apart.note.send("a")
    apart.store.alter_topic(TOPIC, retention_ms=1_000, max_pending=5)
    other = AfterlogBroker(apart.store)
    other.declare_queue(QUEUE)
    other.enqueue(apart.note.message("b"))
    settings = apart.store.topic(TOPIC).settings
    assert (1_000, 5) == (settings.retention_ms, settings.max_pending)
    assert ["a", "b"] == values(apart.given(apart.consumer()))


def test_a_store_that_is_closed(tmp_path: Path) -> None:
    with afterlog.open(tmp_path, clock=ManualClock(NOW_MS)) as store:
        apart = Apart(store, ManualClock(NOW_MS))
        apart.note.send("a")
        consumer = apart.consumer()
        message = next(consumer)
    with pytest.raises(ConnectionFailed):
        apart.note.send("b")
    for call in (consumer.ack, consumer.nack, lambda message: consumer.requeue([message])):
        with pytest.raises(ConnectionClosed):
            call(message)
    with pytest.raises(ConnectionClosed):
        next(consumer)
    with pytest.raises(ConnectionFailed):
        apart.consumer()
    consumer.close()


def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    broker = AfterlogBroker(f"afterlog://{tmp_path}/data")
    broker.declare_queue(QUEUE)
    broker.close()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("store", "error"),
    [("redis://localhost", InvalidArgument), ("afterlog:data", InvalidArgument), (None, WrongType), (7, WrongType)],
)
def test_what_is_no_store(store: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        AfterlogBroker(store)


def test_a_worker_retries(tmp_path: Path) -> None:
    """Dramatiq's own: its counts and backoff, and the last failure's error with the dead letter."""
    with afterlog.open(tmp_path) as store:
        apart = Apart(store, ManualClock(NOW_MS), [Retries(min_backoff=5, max_backoff=10)])

        @dramatiq.actor(max_retries=2)
        def fails(value: str) -> None:
            apart.calls.append(value)
            raise ValueError("no")

        worker = Worker(apart.broker, worker_timeout=20, worker_threads=2)
        worker.start()
        try:
            fails.send("a")
            apart.note.send_with_options(args=("b",), delay=30)
            apart.broker.join(QUEUE, interval=10, timeout=30_000)
        finally:
            worker.stop()
        assert {"a": 3, "b": 1} == Counter(apart.calls)
        [(_, reason)] = apart.dead()
        assert reason == "ValueError: no"
        apart.broker.close()


WORKER = """
import os, sys, time, dramatiq
from afterlog.integrations.dramatiq import AfterlogBroker

folder, ran = sys.argv[1:]
broker = AfterlogBroker(f"afterlog://{folder}", lease_ms=400)
dramatiq.set_broker(broker)

@dramatiq.actor
def note(number, due_us):
    descriptor = os.open(ran, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b"%d %d\\n" % (number, time.time_ns() // 1_000 - due_us))
    os.close(descriptor)

worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=4)
worker.start()
print("started", flush=True)
sys.stdin.read()
worker.stop()
broker.close()
"""


@contextlib.contextmanager
def worker_process(folder: Path, ran: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), str(ran)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == b"started\n"
        yield process
        process.stdin.close()
        process.wait()


def test_workers_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    """Half of them with the store in them: what they had comes again, what waited is where it was, nothing is early."""
    kills = campaigns.examples(2, whole=200)
    folder, ran = tmp_path / "data", tmp_path / "ran"
    ran.touch()
    broker = AfterlogBroker(f"afterlog://{folder}", lease_ms=400)
    broker.declare_queue(QUEUE)
    sent = 0
    for kill in range(kills + 1):
        with worker_process(folder, ran) as process:
            for delay in (0, 0, 20, 100, 200, 400):
                due_us = time.time_ns() // 1_000 + delay * 1_000
                message: Message[Any] = Message(
                    queue_name=QUEUE, actor_name="note", args=(sent, due_us), kwargs={}, options={}
                )
                broker.enqueue(message, delay=delay)
                sent += 1
            if kill < kills:
                process.send_signal(signal.SIGKILL)
                campaigns.count("kills of Dramatiq workers")
                if kill % 2:  # else this process took the store over, and has it when the next one comes
                    broker.close()
            else:
                broker.join(QUEUE, interval=20, timeout=60_000)
    broker.close()
    runs = [tuple(map(int, line.split())) for line in ran.read_text().splitlines()]
    assert {*range(sent)} == {number for number, _ in runs}
    assert 0 <= min(late_us for _, late_us in runs)
    assert process.returncode == 0
