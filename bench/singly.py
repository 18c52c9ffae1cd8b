"""What people do with one record after another, as plain functions; `tests/test_bench.py` runs them, tiny.

Each is a context that gives a function: called with a count, it does the thing so often. A backlog is due throughout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice

import afterlog
import afterlog.aio
from bench.workloads import TOPIC

VALUE = b"v" * 100
DELAY_S = 3_600

Times = Callable[[int], None]


@contextmanager
def send(store: afterlog.Store) -> Iterator[Times]:
    def some(count: int) -> None:
        for _ in range(count):
            store.send(TOPIC, VALUE, delay=DELAY_S)

    yield some


@contextmanager
def producer_send(store: afterlog.Store) -> Iterator[Times]:
    """With the appends that follow, and the futures that they resolve."""
    with store.producer(TOPIC) as producer:

        def some(count: int) -> None:
            for _ in range(count):
                producer.send(VALUE, delay=DELAY_S)
            producer.flush()

        yield some


@contextmanager
def aio_send(store: afterlog.Store) -> Iterator[Times]:
    """One after another, each awaited, in the event loop of one thread."""
    calls = afterlog.aio.AsyncStore(store, afterlog.aio.Calls())

    async def send_all(count: int) -> None:
        for _ in range(count):
            await calls.send(TOPIC, VALUE, delay=DELAY_S)

    with asyncio.Runner() as runner:
        yield lambda count: runner.run(send_all(count))


@contextmanager
def poll(store: afterlog.Store) -> Iterator[Times]:
    with store.consumer(TOPIC, group="poll", auto_commit=False) as consumer:

        def some(count: int) -> None:
            for _ in range(count):
                [_] = consumer.poll(1)

        yield some


@contextmanager
def iterate(store: afterlog.Store) -> Iterator[Times]:
    with store.consumer(TOPIC, group="iterate", auto_commit=False) as consumer:
        messages = iter(consumer)

        def some(count: int) -> None:
            for _ in islice(messages, count):
                pass

        yield some


@contextmanager
def receive_and_ack(store: afterlog.Store) -> Iterator[Times]:
    with store.subscribe(TOPIC, "ack") as subscription:

        def some(count: int) -> None:
            for _ in range(count):
                [message] = subscription.receive(1)
                subscription.ack(message)

        yield some


@contextmanager
def receive_and_nack(store: afterlog.Store) -> Iterator[Times]:
    with store.subscribe(TOPIC, "nack") as subscription:

        def some(count: int) -> None:
            for _ in range(count):
                [message] = subscription.receive(1)
                subscription.nack(message, delay=DELAY_S)

        yield some


@contextmanager
def work_off(store: afterlog.Store) -> Iterator[Times]:
    """`for message in subscription: with message: ...`"""
    with store.subscribe(TOPIC, "work") as subscription:
        messages = iter(subscription)

        def some(count: int) -> None:
            for message in islice(messages, count):
                with message:
                    pass

        yield some


WAYS: dict[str, Callable[[afterlog.Store], AbstractContextManager[Times]]] = {
    "send": send,
    "producer-send": producer_send,
    "aio-send": aio_send,
    "poll": poll,
    "iterate": iterate,
    "receive-ack": receive_and_ack,
    "receive-nack": receive_and_nack,
    "with-message": work_off,
}
