"""The pass that lets disk go: segments of limited age, what all subscriptions have acked, quotas of a backlog."""

from __future__ import annotations

from typing import Any

import pytest

from afterlog.clock import ManualClock
from afterlog.errors import BacklogQuotaExceeded, InvalidTopic
from afterlog.store import open_store
from tests.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, killed, small


class Scene:
    def __init__(self, disk: SimulatedFiles | None = None, **settings: Any) -> None:
        self.disk, self.clock = disk or SimulatedFiles(), ManualClock(NOW_MS)
        self.store = open_store(PATH, small(), self.clock, self.disk, background=False)
        if disk is None:
            self.store.create_topic("t", **settings)
        self.partition = self.store.topic("t").partition(0)

    def send(self, count: int = 10) -> None:
        self.store.send_many("t", [b"v" * 100] * count)
        self.clock.advance(10)

    def read(self, group: str, count: int) -> None:
        with self.store.consumer("t", group=group) as consumer:
            assert count == len(list(consumer.poll(count)))

    def ack(self, name: str, count: int) -> None:
        with self.store.subscribe("t", name) as subscription:
            for message in subscription.receive(count):
                subscription.ack(message)

    def cleaned(self, after_ms: int = 0) -> tuple[int, int]:
        """The segments that a pass takes, and the log start behind it."""
        self.clock.advance(after_ms)
        removed = self.store.enforce_retention()
        self.store.check()
        return removed, self.partition.log_start


def test_a_queue_whose_work_is_done_takes_no_space() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    assert (0, 0) == scene.cleaned(), "nobody has ever read it"
    scene.ack("s", 10)
    assert (1, 10) == scene.cleaned()


def test_what_one_has_not_acked_stays_though_it_is_closed() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    scene.ack("slow", 4)
    scene.ack("fast", 10)
    assert (0, 0) == scene.cleaned(100_000_000)
    scene.ack("slow", 6)
    assert 10 == scene.cleaned()[1]


def test_what_a_group_has_not_committed_stays() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    scene.ack("s", 10)
    scene.read("g", 5)
    assert 0 == scene.cleaned()[1]
    scene.read("g", 5)
    assert 10 == scene.cleaned()[1]


def test_everything_that_is_due_for_long_goes_from_the_active_segment() -> None:
    scene = Scene(retention_ms=500)
    scene.send()
    assert (0, 0) == scene.cleaned()
    assert (1, 10) == scene.cleaned(1_000)


def test_a_pending_record_keeps_its_segment() -> None:
    scene = Scene(retention_ms=500)
    scene.send()
    scene.store.send("t", b"far", delay=3_600_000)
    assert (0, 0) == scene.cleaned(1_000)


def test_a_segment_is_sealed_at_its_age() -> None:
    scene = Scene(segment_ms=1_000)
    scene.send(1)
    scene.cleaned()
    assert not scene.partition.log.sealed
    scene.cleaned(1_000)
    assert 1 == len(scene.partition.log.sealed)
    scene.cleaned(5_000)
    assert 1 == len(scene.partition.log.sealed), "an empty segment has no age"


def test_at_rest_it_is_opened_once_something_may_be_to_do() -> None:
    scene = Scene(retention_ms=500)
    scene.send()
    scene.store.close()
    again = open_store(PATH, small(), scene.clock, scene.disk, background=False)
    assert 0 == again.enforce_retention()
    assert [] == [*again._topics.logs()]
    scene.clock.advance(10_000)
    assert 1 == again.enforce_retention()
    assert 10 == again.topic("t").partition(0).log_start


def test_an_ack_lets_nothing_go_that_a_kill_gives_back() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    scene.ack("s", 10)
    scene.cleaned()
    again = Scene(killed(scene.disk))
    with again.store.subscribe("t", "s") as subscription:
        assert 0 == len(subscription.receive(10))


def test_whoever_appends_is_refused_until_the_backlog_is_within_its_quota() -> None:
    scene = Scene(retention_by_subscriptions=True, backlog_quota_ms=1_000)
    scene.send()
    scene.ack("s", 1)
    scene.cleaned()
    scene.send(1)
    scene.cleaned(5_000)
    with pytest.raises(BacklogQuotaExceeded):
        scene.send(1)
    scene.ack("s", 10)
    scene.send(1)


def test_what_has_waited_longest_is_evicted(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(
        retention_by_subscriptions=True, backlog_quota_ms=1_000, backlog_quota_policy="consumer_backlog_eviction"
    )
    scene.send()
    scene.ack("s", 4)
    assert (1, 10) == scene.cleaned(5_000)
    assert 6 == scene.partition.log.evicted_records
    assert any("6 records went that were not acked" in record.message for record in caplog.records)
    scene.send(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_ms": 0},
        {"backlog_quota_bytes": 1},
        {"retention_by_subscriptions": True, "backlog_quota_ms": -1},
        {"retention_by_subscriptions": True, "backlog_quota_policy": "nobody"},
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidTopic):
        Scene(**wrong)
