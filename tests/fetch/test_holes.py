"""Retention takes whole segments out of the middle of a log: who looks through what was appended steps over that."""

from __future__ import annotations

import pytest

from afterlog.base.clock import ManualClock
from afterlog.fetch.record_id import RecordId
from afterlog.store.schedules import appended_occurrences, headers_of_occurrence
from afterlog.store.store import Store
from afterlog.subscription.dead_letter_headers import Origin
from afterlog.subscription.dead_letters import _origins
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, open_small

SCHEDULE = "5" * 32


@pytest.fixture
def store() -> Store:
    """Segments 0 to 2, of three records each, the first of which holds one that is far ahead; the second is gone."""
    clock = ManualClock(NOW_MS)
    store = open_small(SimulatedFiles(), clock)
    topic = store.create_topic("t")
    for number in range(9):
        letter = Origin(
            record=RecordId("orders", 0, number), subscription="worker", reason="attempts", redelivery_count=3
        )
        headers = letter.to_headers() if number % 2 else headers_of_occurrence("weekly", SCHEDULE, NOW_MS + number)
        store.send("t", b"%d" % number, delay=0 if number else 10**6, headers=headers)
        if number % 3 == 2:
            topic.log(0).roll()
    clock.advance(10_000)
    store.alter_topic("t", retention_ms=20_000)
    store.send("t", b"young")
    clock.advance(15_000)
    assert store.enforce_retention()
    return store


def test_what_was_appended(store: Store) -> None:
    partition = store.topic("t").partition(0)
    there = [segment.base_offset for segment in partition.log.version.segments]
    assert [0, 9] == there, "the hole"
    found = [message for columns in partition.appended(0, 10) for message in columns.to_messages()]
    assert [(0, b"0"), (1, b"1"), (2, b"2"), (9, b"young")] == [(each.offset, each.value) for each in found]
    assert [2] == [offset for columns in partition.appended(2, 8) for offset in columns.offset.tolist()]
    assert [] == [offset for columns in partition.appended(3, 9) for offset in columns.offset.tolist()]


def test_dead_letters_and_occurrences(store: Store) -> None:
    topic = store.topic("t")
    assert [(RecordId("orders", 0, 1), "worker")] == [*_origins(topic, 0, 0)]
    assert [] == [*_origins(topic, 0, 3)]
    assert [(SCHEDULE, NOW_MS, 0), (SCHEDULE, NOW_MS + 2, 2)] == [*appended_occurrences(topic.partition(0), 0, 10)]
    assert [] == [*appended_occurrences(topic.partition(0), 4, 10)]
