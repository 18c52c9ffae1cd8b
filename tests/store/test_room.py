"""What a store leaves free: sends are refused in time, and what makes room goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import DiskFailed, InvalidArgument, StorageFull
from afterlog.base.files import OsFiles
from afterlog.log.cancel_result import CancelResult
from afterlog.store import room
from afterlog.store.store import Store
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, Calls, open_small, small

CAPACITY = 1 << 18
FREE = 64 << 10


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def disk() -> SimulatedFiles:
    disk = SimulatedFiles()
    disk.capacity_bytes = CAPACITY
    return disk


@pytest.fixture(autouse=True)
def looked_at_each_time() -> Iterator[None]:
    with patch.object(room, "LOOK_S", 0), patch.object(room, "_SHARE", 0):
        yield


def filled(disk: SimulatedFiles, clock: ManualClock, **settings: Any) -> Store:
    """Until no more is taken."""
    store = open_small(disk, clock, **settings)
    store.create_topic("t")
    store.create_topic("other")
    store.send("other", b"kept", delay=60)
    for _ in range(CAPACITY):
        try:
            store.send("t", b"v" * 1_000)
        except StorageFull:
            break
    return store


def refuses(store: Store, topic: str = "t") -> bool:
    """One record, alone and among others, as the store and the producer send it: all or none."""

    def is_refused(send: Any) -> bool:
        try:
            send()
        except StorageFull:
            return True
        return False

    with store.producer(topic) as producer:
        answers = [
            is_refused(lambda: store.send(topic, b"v")),
            is_refused(lambda: store.send_many(topic, [b"v"] * 2, delay=60)),
            is_refused(lambda: producer.send(b"v").result()),
        ]
    assert answers == [answers[0]] * 3
    return answers[0]


def test_what_makes_room_goes_on(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock, min_free_bytes=FREE) as store:
        assert 0 < disk.free_bytes(store.path) < FREE
        with pytest.raises(StorageFull, match=f"bytes are free on the disk, and min_free_bytes is {FREE}: purge"):
            store.send("t", b"v")
        with store.subscribe("t", "s", dead_letter="other") as subscription:
            for message in subscription.receive(10):
                subscription.ack(message)
        [waits] = store.pending("other")
        assert CancelResult.CANCELLED == store.cancel(waits.id)
        assert refuses(store)
        store.delete_topic("t", force=True)
        assert ["other"] == [topic.name for topic in store.topics()]
        assert not refuses(store, "other")
        store.check()


def test_a_purge_makes_room(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock, min_free_bytes=FREE) as store:
        store.purge("t")
        assert not refuses(store)


def test_retention_makes_room(disk: SimulatedFiles, clock: ManualClock) -> None:
    with filled(disk, clock, min_free_bytes=FREE) as store:
        store.alter_topic("t", retention_ms=0)
        clock.advance(1)
        assert store.enforce_retention() > 3
        assert not refuses(store)


def test_to_the_last_byte_nothing_can_be_deleted(disk: SimulatedFiles, clock: ManualClock) -> None:
    """That is what it is for."""
    with filled(disk, clock, min_free_bytes=0) as store:
        disk.capacity_bytes = CAPACITY - disk.free_bytes(store.path)
        with pytest.raises(StorageFull):
            store.delete_topic("t")
        assert {"t", "other"} == {topic.name for topic in store.topics()}
        disk.capacity_bytes = 2 * CAPACITY
        store.delete_topic("t")


def test_the_logs_of_all_topics_count(clock: ManualClock) -> None:
    """Those of partitions that nobody has opened, too."""
    disk = SimulatedFiles()
    with filled(disk, clock, max_bytes=100_000) as store:
        assert 100_000 <= store._topics.held_bytes() < 101_200
        assert refuses(store, "other")
        with pytest.raises(StorageFull, match="and the store's max_bytes is 100000: purge or delete"):
            store.send("other", b"v")
        held = store._topics.held_bytes()
    with open_small(disk, clock, max_bytes=100_000) as store:
        assert [] == [*store._topics.logs()]
        assert held == store._topics.held_bytes()
        assert refuses(store, "other")
        assert held == store._topics.held_bytes()
        store.delete_topic("t")
        assert not refuses(store, "other")


def test_it_is_not_looked_at_for_each_record(clock: ManualClock) -> None:
    calls, seconds = Calls(), 5.0
    with (
        patch.object(room, "LOOK_S", 0.05),
        patch.object(ManualClock, "monotonic_s", lambda _: seconds),
        open_small(FailingFiles(SimulatedFiles(), calls), clock, min_free_bytes=FREE) as store,
    ):
        store.create_topic("t")
        for _ in range(10):
            store.send("t", b"v")
        assert 1 == calls.count("free_bytes")
        seconds += 0.06
        for _ in range(10):
            store.send("t", b"v")
        assert 2 == calls.count("free_bytes")


def test_a_disk_that_does_not_answer_refuses_nothing(clock: ManualClock) -> None:
    calls = Calls()
    with open_small(FailingFiles(SimulatedFiles(), calls), clock, min_free_bytes=FREE) as store:
        store.create_topic("t")
        calls.fail("free_bytes", "", DiskFailed("no answer", path=store.path), times=2)
        assert not refuses(store)


def test_of_the_machine(tmp_path: Any) -> None:
    assert 0 < OsFiles().free_bytes(tmp_path) < 1 << 60


@pytest.mark.parametrize("settings", [{"min_free_bytes": -1}, {"max_bytes": 0}, {"max_bytes": -1}])
def test_refused(settings: Any) -> None:
    with pytest.raises(InvalidArgument, match="must"):
        small(**settings)
