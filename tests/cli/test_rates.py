from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.measures import LATENESS_EDGES_MS
from afterlog.cli.top_command import ALL, Rates, TopicRates
from afterlog.server.overview import Overview
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, open_small


class Watched:
    """A store, and who looks at it."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.rates = Rates()

    def look(self, ms: int = 0) -> dict[str, TopicRates]:
        """So much later, by topic."""
        self.clock.advance(ms)
        overview = Overview(self.store).page(may_look=lambda _: True, limit=500)
        return {each.topic: each for each in self.rates.of(overview)}

    def take(self, topic: str, count: int) -> None:
        with self.store.consumer(topic, group="g") as consumer:
            assert count == len(consumer.poll(1_000))


@pytest.fixture
def watched() -> Iterator[Watched]:
    clock = ManualClock(NOW_MS)
    with open_small(SimulatedFiles(), clock) as store:
        store.create_topics(["mail", "other"])
        yield Watched(store, clock)


class TestOfAStore:
    def test_the_first_look_tells_no_rates(self, watched: Watched) -> None:
        watched.store.send("mail", b"a", delay=60)
        row = watched.look()["mail"]
        assert (None, None, None, None) == (row.sent, row.became_due, row.handed_out, row.late_ms)
        assert (1, NOW_MS + 60_000, None, 0, 0) == (row.pending, row.next_due_ms, row.lag, row.retrying, row.dead)

    def test_then_they_are_differences_by_the_time_between(self, watched: Watched) -> None:
        watched.look()
        watched.store.send_many("mail", [b"x"] * 10)
        watched.store.send_many("mail", [b"y"] * 10, delay=60)
        watched.take("mail", 10)
        row = watched.look(2_000)["mail"]
        assert (10.0, 5.0, 5.0, 10) == (row.sent, row.became_due, row.handed_out, row.pending)
        row = watched.look(4_000)["mail"]
        assert (0.0, 0.0, 0.0, None) == (row.sent, row.became_due, row.handed_out, row.late_ms)

    def test_lateness_is_that_of_what_was_handed_out_between(self, watched: Watched) -> None:
        watched.store.send_many("mail", [b"x"] * 99)
        watched.take("mail", 99)
        watched.look()
        watched.store.send("mail", b"y", delay=1)
        watched.clock.advance(1_300)
        watched.take("mail", 1)
        assert 500 == watched.look(1_000)["mail"].late_ms
        watched.store.send("mail", b"z", delay=1)
        watched.clock.advance(2 * LATENESS_EDGES_MS[-1])
        watched.take("mail", 1)
        assert inf == watched.look(1_000)["mail"].late_ms

    def test_one_of_a_hundred_may_be_later(self, watched: Watched) -> None:
        watched.look()
        watched.store.send("mail", b"late", delay=1)
        watched.clock.advance(10_000)
        watched.store.send_many("mail", [b"x"] * 99)
        watched.take("mail", 100)
        assert 1 == watched.look(1_000)["mail"].late_ms

    def test_all_topics_together_come_first_and_then_the_busiest(self, watched: Watched) -> None:
        assert [ALL, "mail", "other"] == [*watched.look()]
        watched.store.send_many("other", [b"x"] * 4)
        watched.store.send_many("mail", [b"x"] * 2)
        rows = watched.look(1_000)
        assert [ALL, "other", "mail"] == [*rows]
        assert [6.0, 4.0, 2.0] == [each.sent for each in rows.values()]

    def test_one_topic_is_by_itself(self, watched: Watched) -> None:
        overview = Overview(watched.store).page(may_look=lambda _: True, topic="mail")
        assert ["mail"] == [each.topic for each in watched.rates.of(overview)]

    def test_a_topic_that_is_new_or_made_anew_waits_for_the_next_look(self, watched: Watched) -> None:
        watched.store.send_many("mail", [b"x"] * 4)
        watched.look()
        watched.store.delete_topic("mail", force=True)
        watched.store.create_topics(["mail", "new"])
        watched.store.send("mail", b"x")
        rows = watched.look(1_000)
        assert (None, None) == (rows["mail"].sent, rows["new"].sent)
        watched.store.send_many("new", [b"x"] * 3)
        rows = watched.look(1_000)
        assert (0.0, 3.0) == (rows["mail"].sent, rows["new"].sent)


def overview(now_ms: int, **counts: Any) -> dict[str, Any]:
    row = {
        "topic": "mail", "sent": 0, "became_due": 0, "handed_out": 0, "lateness_up_to": [0, 0], "pending": 0,
        "next_due": None, "lag": None, "retrying": 0, "dead": 0, "unreadable": None,
    }  # fmt: skip
    return {"now_ms": now_ms, "lateness_edges_ms": [1], "all": 1, "topics": [row | counts], "totals": {}}


class TestOfAnswers:
    def test_the_same_look_again_tells_the_same(self) -> None:
        rates = Rates()
        rates.of(overview(1_000))
        assert [5.0] == [each.sent for each in rates.of(overview(2_000, sent=5))]
        assert [5.0] == [each.sent for each in rates.of(overview(2_000, sent=5))]
        assert [1.0] == [each.sent for each in rates.of(overview(3_000, sent=6))]

    def test_a_clock_that_was_put_back_tells_nothing_once(self) -> None:
        rates = Rates()
        rates.of(overview(2_000))
        assert [None] == [each.sent for each in rates.of(overview(1_000, sent=1))]
        assert [2.0] == [each.sent for each in rates.of(overview(2_000, sent=3))]

    def test_counters_that_begin_anew(self) -> None:
        rates = Rates()
        rates.of(overview(1_000, sent=7, handed_out=5, lateness_up_to=[4, 5]))
        [row] = rates.of(overview(2_000, sent=8, handed_out=2, lateness_up_to=[2, 2]))
        assert (1.0, None, None) == (row.sent, row.handed_out, row.late_ms)
