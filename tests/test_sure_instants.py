"""A time that is surely wrong is refused wherever one is stated, and taken where the topic or the call says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import afterlog
import afterlog.aio
from afterlog import InvalidDeliverAfter, InvalidRecord, ManualClock, Record, Store, encode_batch
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, open_small

SECONDS = NOW_MS // 1000 + 3_600
MICROSECONDS = (NOW_MS + 3_600) * 1_000


@pytest.fixture
def store() -> Iterator[Store]:
    with open_small(SimulatedFiles(), ManualClock(NOW_MS)) as store:
        store.create_topic("mail")
        store.create_topic("any", check_instants=False)
        yield store


def produced(store: Store, topic: str, instant: Any, **options: Any) -> int:
    with store.producer(topic) as producer:
        future = producer.send(b"", deliver_after=instant, **options)
    return future.result(0).offset


def sent(store: Store, topic: str, instant: Any, **options: Any) -> int:
    return store.send(topic, b"", deliver_after=instant, **options).offset


def sent_many(store: Store, topic: str, instant: Any, **options: Any) -> int:
    return int(store.send_many(topic, [b""], deliver_after=np.array([instant]), **options)[0])


def rescheduled(store: Store, topic: str, instant: Any) -> int:
    return store.reschedule(store.send(topic, b"", delay=5), deliver_after=instant).offset


def appended(store: Store, topic: str, instant: Any) -> int:
    batch = encode_batch([Record(value=b"", timestamp=NOW_MS)])
    return store.topic(topic).partition(0).append(batch, deliver_after=instant)


def appended_with_header(store: Store, topic: str, instant: Any) -> int:
    batch = encode_batch([Record(value=b"", timestamp=NOW_MS, deliver_after=instant)])
    return store.topic(topic).partition(0).append(batch)


WAYS: list[Callable[[Store, str, Any], int]] = [
    sent, sent_many, produced, rescheduled, appended, appended_with_header
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_refused_but_where_the_topic_takes_any(store: Store, way: Callable[[Store, str, Any], int]) -> None:
    for instant, unit in ((SECONDS, "seconds"), (MICROSECONDS, "microseconds")):
        with pytest.raises(InvalidDeliverAfter, match=f"looks like {unit}"):
            way(store, "mail", instant)
        way(store, "any", instant)
    for instant in (0, NOW_MS - 1, NOW_MS + 1):
        way(store, "mail", instant)


@pytest.mark.parametrize("way", [sent, sent_many, produced])
def test_a_call_says_it_for_itself(store: Store, way: Callable[..., int]) -> None:
    way(store, "mail", SECONDS, check_instants=False)
    with pytest.raises(InvalidDeliverAfter, match="seconds"):
        way(store, "any", SECONDS, check_instants=True)


def test_one_of_many(store: Store) -> None:
    instants = [NOW_MS, 0, NOW_MS + 5, SECONDS]
    with pytest.raises(InvalidDeliverAfter, match="row 3: "):
        store.send_many("mail", [b""] * 4, deliver_after=instants)
    assert 0 == store.send("mail", b"").offset


def told(store: Store, topic: str, ms: int, **options: Any) -> int:
    return int(store.send_many(topic, [b""], timestamps=np.array([ms]), **options)[0])


def told_in_a_batch(store: Store, topic: str, ms: int) -> int:
    return store.topic(topic).partition(0).append(encode_batch([Record(value=b"", timestamp=ms)]))


@pytest.mark.parametrize("way", [told, told_in_a_batch])
def test_what_a_record_tells_of_itself_is_judged_too(store: Store, way: Callable[[Store, str, int], int]) -> None:
    """By it a FIFO topic may count how long a record stays: gone at once in seconds, and never in microseconds."""
    store.create_topic("fifo", delayed=False)
    for topic in ("mail", "fifo"):
        for ms, unit in ((SECONDS, "seconds"), (MICROSECONDS, "microseconds")):
            with pytest.raises(InvalidRecord, match=f"timestamp {ms} looks like {unit}"):
                way(store, topic, ms)
        assert [0, 1, 2] == [way(store, topic, ms) for ms in (-1, 0, NOW_MS + 5)]
    way(store, "any", MICROSECONDS)


def test_a_call_says_it_for_itself_of_timestamps(store: Store) -> None:
    told(store, "mail", SECONDS, check_instants=False)
    with pytest.raises(InvalidRecord, match="seconds"):
        told(store, "any", SECONDS, check_instants=True)


def test_a_delay_leads_to_one(store: Store) -> None:
    """Milliseconds that are taken for seconds reach beyond the century."""
    store.send("mail", b"", delay=99 * 31_557_600)
    for send in (
        lambda **asked: store.send("mail", b"", delay=60_000_000_000, **asked),
        lambda **asked: store.send_many("mail", [b""], delay=[6e10], **asked),
        lambda **asked: store.producer("mail").send(b"", delay=6e10, **asked),
    ):
        with pytest.raises(InvalidDeliverAfter, match="it takes seconds"):
            send()
        send(check_instants=False)


def test_by_a_clock_of_small_numbers() -> None:
    with open_small(SimulatedFiles(), ManualClock(1_000)) as store:
        store.create_topic("mail")
        store.send("mail", b"", deliver_after=1_005)
        store.send("mail", b"", deliver_after=NOW_MS * 1_000)


def test_the_setting_is_the_topics_for_good() -> None:
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS)) as store:
        store.create_topic("any", check_instants=False)
        with pytest.raises(afterlog.TopicExists):
            store.create_topic("any")
    with open_small(disk, ManualClock(NOW_MS)) as store:
        assert not store.topic("any").settings.check_instants
        store.send("any", b"", deliver_after=SECONDS)


def test_from_the_event_loop(tmp_path: Any) -> None:
    async def main() -> None:
        async with afterlog.aio.open(tmp_path, clock=ManualClock(NOW_MS)) as store:
            await store.create_topic("mail")
            with pytest.raises(InvalidDeliverAfter, match="seconds"):
                await store.send("mail", b"", deliver_after=SECONDS)
            await store.send("mail", b"", deliver_after=SECONDS, check_instants=False)

    asyncio.run(main())
