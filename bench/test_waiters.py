"""What those who wait cost the others, and what partitions cost in which nothing is due.

The floor of a send while a thousand readers wait is the same send while nobody does, in the same process, in turn; that
of a poll of a thousand empty partitions is a poll of one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import afterlog
from afterlog.fetch.consumer import Consumer
from afterlog.store.store import Store
from bench.conftest import Measure

READERS = 1_000
SENDS = 500
POLLS = 2_000
PARTITIONS = 1_000
DELAY_S = 3_600


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with afterlog.open(tmp_path / "store", config=afterlog.Config(durability=afterlog.OS)) as store:
        yield store


@contextmanager
def waiting(store: Store, topic: str) -> Iterator[None]:
    """Threads that each wait for the first record of a topic, until the block ends."""

    def wait(consumer: Consumer) -> None:
        assert not list(consumer)

    consumers = [store.consumer(topic, group=f"{topic}-{number}") for number in range(READERS)]
    threads = [threading.Thread(target=wait, args=[consumer]) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.close()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("where", ["others", "same"])
def test_a_send_while_others_wait(store: Store, measure: Measure, where: str) -> None:
    """Where they wait on the same topic, what is sent is due in an hour: nobody is woken for it."""
    for topic in ("with", "without"):
        store.create_topic(topic)
        store.send(topic, b"", delay=DELAY_S)

    def send(topic: str) -> None:
        for _ in range(SENDS):
            store.send(topic, b"x" * 100, delay=DELAY_S)

    store.create_topic("elsewhere")
    with waiting(store, "with" if where == "same" else "elsewhere"):
        measure(
            f"send-{READERS}-wait-{where}", {"readers": READERS}, SENDS, lambda: send("with"), lambda: send("without")
        )


@pytest.mark.parametrize("reader", ["poll", "receive"])
def test_partitions_in_which_nothing_is_due(store: Store, measure: Measure, reader: str) -> None:
    store.create_topic("many", partitions=PARTITIONS)
    store.create_topic("one")
    with ExitStack() as stack:

        def look(topic: str) -> object:
            if reader == "poll":
                consumer = stack.enter_context(store.consumer(topic, group="g"))
                return lambda: [consumer.poll() for _ in range(POLLS)]
            subscription = stack.enter_context(store.subscribe(topic, "s"))
            return lambda: [subscription.receive() for _ in range(POLLS)]

        measure(f"{reader}-empty-{PARTITIONS}", {"partitions": PARTITIONS}, POLLS, look("many"), look("one"))
