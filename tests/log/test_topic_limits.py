"""Limits of a topic: what is refused, what is taken all the same, and what makes room."""

from __future__ import annotations

from typing import Any

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidTopic, TopicFull
from afterlog.fetch.record_id import RecordId
from afterlog.store.store import Store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, killed, open_small


class Setting:
    def __init__(self, **topic: Any) -> None:
        self.disk, self.clock = SimulatedFiles(), ManualClock(NOW_MS)
        self.store: Store = open_small(self.disk, self.clock)
        self.store.create_topic("t", **topic)
        self.log = self.store.topic("t").log(0)

    def fill(self) -> None:
        for _ in range(1_000):
            self.store.send("t", b"v" * 500)

    def refuses(self, delay: float | None = 60) -> bool:
        """One record of that delay, alone and among others, as the producer and the store send it."""
        answers, before = [], self.log.written
        for send in (
            lambda: self.store.send("t", b"v", delay=delay),
            lambda: self.store.send_many("t", [b"v"], delay=delay),
            lambda: self.store.send("t", b"v", delay=delay, key=b"k"),
        ):
            try:
                send()
            except TopicFull:
                answers.append(True)
            else:
                answers.append(False)
            assert (before == self.log.written) == answers[-1]
            before = self.log.written
        assert answers == [answers[0]] * 3
        return answers[0]


class TestDeadLetters:
    def test_whose_topic_is_full_are_taken(self) -> None:
        """Who reads is not refused for it, and what has failed is not lost."""
        setting = Setting(max_bytes=1)
        setting.store.create_topic("work")
        setting.store.send("t", b"v")
        assert setting.refuses()
        setting.store.send("work", b"failed")
        with setting.store.subscribe("work", "s", dead_letter="t") as subscription:
            [message] = subscription.receive(10)
            subscription.reject(message, "it failed")
        assert 2 == setting.log.written


class TestPending:
    def test_until_some_are_due(self) -> None:
        setting = Setting(max_pending=5)
        setting.store.send_many("t", [b"v"] * 4, delay=[0.01, 60, 60, 60])
        setting.store.send("t", b"v", delay=60)
        assert setting.refuses()
        assert not setting.refuses(None)
        assert not setting.refuses(0)
        setting.clock.advance(10)
        setting.store.send("t", b"v", delay=60)
        with pytest.raises(TopicFull, match="t-0: 5 records are pending, and its topic's max_pending is 5"):
            setting.store.send("t", b"v", delay=60)

    def test_a_call_that_begins_below_is_taken_as_a_whole(self) -> None:
        setting = Setting(max_pending=5)
        setting.store.send_many("t", [b"v"] * 9, delay=60)
        assert setting.refuses()

    def test_a_cancel_makes_room(self) -> None:
        setting = Setting(max_pending=2)
        setting.store.send_many("t", [b"v"] * 2, delay=60)
        assert setting.refuses()
        setting.store.cancel(RecordId("t", 0, 1))
        setting.store.send("t", b"v", delay=60)
        assert setting.refuses()

    def test_it_counts_what_is_there_when_it_is_opened(self) -> None:
        setting = Setting(max_pending=3)
        setting.store.send_many("t", [b"v"] * 3, delay=60)
        with open_small(killed(setting.disk), setting.clock) as again, pytest.raises(TopicFull):
            again.send("t", b"v", delay=60)

    def test_it_is_altered_while_it_is_used(self) -> None:
        setting = Setting()
        setting.store.send_many("t", [b"v"] * 3, delay=60)
        setting.store.alter_topic("t", max_pending=3)
        assert setting.refuses()
        setting.store.alter_topic("t", max_pending=None)
        assert not setting.refuses()

    def test_not_of_a_fifo_topic(self) -> None:
        with pytest.raises(InvalidTopic, match="nothing is pending"):
            Setting(delayed=False, max_pending=3)


class TestBytes:
    @pytest.mark.parametrize("delayed", [True, False])
    def test_until_retention_makes_room(self, delayed: bool) -> None:
        setting = Setting(max_bytes=10_000, retention_ms=5, delayed=delayed)
        with pytest.raises(TopicFull, match="max_bytes is 10000: purge it, give it a retention, or raise it"):
            setting.fill()
        held = setting.store.held_bytes("t").total
        assert 10_000 <= held < 11_000
        setting.clock.advance(1_000_000)
        setting.store.enforce_retention()
        assert 0 == setting.store.held_bytes("t").pinned, "who counts holds no files"
        assert not setting.refuses(None)

    def test_what_is_only_elsewhere_is_not_held(self) -> None:
        setting = Setting(max_bytes=10**9)
        setting.store.send("t", b"v" * 100)
        setting.log.roll()
        assert setting.store.held_bytes("t").total == setting.log._limits.held_bytes()

    def test_none_at_all(self) -> None:
        setting = Setting(max_bytes=0, max_pending=0)
        assert setting.refuses()
        assert setting.refuses(None)
