"""The pass that lets disk go: segments of limited age, what all subscriptions have acked, quotas of a backlog."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import BacklogQuotaExceeded, CorruptFile, InvalidTopic, StoreClosed, TopicDeleted
from afterlog.base.locks import Condition
from afterlog.base.names import SUBSCRIPTIONS
from afterlog.fetch.positions import EARLIEST
from afterlog.log.checkpoints import Checkpoints, SealedMark
from afterlog.log.cleaning_plan import SLACK_BYTES_MIN
from afterlog.log.facts import NO_FILE
from afterlog.log.partition_log import PartitionLog
from afterlog.log.topic_settings import TopicSettings
from afterlog.store.cleanup import CLEANED_BYTES_PER_S, RESTS_MS_MAX, rests_until_ms
from afterlog.store.store import open_store
from afterlog.store.store_image import StoreImage
from afterlog.subscription import backlog, journal
from afterlog.subscription.policy import RetryPolicy
from afterlog.subscription.subscription import Subscription
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import (
    NOW_MS,
    PATH,
    Background,
    Gate,
    content,
    drained,
    eventually,
    flipped,
    killed,
    open_small,
    power_cut,
    restored,
    small,
    with_file,
)


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

    def marked(self, name: str) -> int:
        """Where the acks of an open subscription begin."""
        [shared] = [each for each in self.store.open_subscriptions() if each.name == name]
        return shared.mark_delete()

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


# Races: what a reader was promised while a pass is under way.


def meanwhile(scene: Scene, call: Callable[[], object]) -> None:
    """A pass, and the call in another thread behind what the pass has asked, before anything goes."""
    enforce, threads = PartitionLog.enforce_retention, list[Background[object]]()

    def late(log: PartitionLog, *floor: Any) -> int:
        threads.append(Background(call))
        threads[0].join(0.1)  # it waits for the pass, or has returned by now
        return enforce(log, *floor)

    with patch.object(PartitionLog, "enforce_retention", late):
        scene.store.enforce_retention()
    threads[0].answer()


@pytest.mark.parametrize("delayed", [True, False])
def test_a_subscription_that_is_new_during_a_pass_loses_nothing(delayed: bool) -> None:
    scene = Scene(retention_by_subscriptions=True, delayed=delayed)
    scene.send()
    scene.ack("s", 10)
    found: list[Subscription] = []
    meanwhile(scene, lambda: found.append(scene.store.subscribe("t", "new")))
    [new] = found
    assert scene.marked("new") == scene.partition.log_start
    assert 10 - scene.partition.log_start == len(new.receive(100))


def test_what_a_reader_goes_back_to_during_a_pass_stays() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    with scene.store.subscribe("t", "s") as subscription:
        subscription.ack_many(subscription.receive(10))
        meanwhile(scene, lambda: subscription.seek(EARLIEST))
        assert scene.marked("s") == scene.partition.log_start
        assert 10 - scene.partition.log_start == len(subscription.receive(100))


def test_what_a_group_goes_back_to_during_a_pass_stays() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    with scene.store.consumer("t", group="g", auto_commit=False) as consumer:
        assert 10 == len(consumer.poll(10))
        consumer.commit()

        started: list[int] = []

        def back() -> None:
            consumer.seek(EARLIEST)
            consumer.commit()
            started.append(scene.partition.log_start)

        meanwhile(scene, back)
        assert [scene.partition.log_start] == started, "nothing goes behind its commit"


def test_who_appends_is_told_nothing_strange_while_the_refusal_is_taken_back() -> None:
    scene = Scene(retention_by_subscriptions=True)
    answers = [None, None, lambda: None]

    def asked(log: PartitionLog) -> Any:
        return answers.pop()

    with patch.object(PartitionLog, "refused", property(asked, lambda *_: None), create=True):
        scene.send(1)


def test_a_pass_goes_over_a_subscription_that_is_just_being_opened() -> None:
    """Its journals are replaced: a journal that was there when they were listed is gone when it is read."""
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    scene.ack("s", 10)
    numbers_of, opened = journal.numbers, list[Background[Subscription]]()

    def listed(*arguments: Any) -> list[int]:
        found = numbers_of(*arguments)
        if not opened:
            opened.append(Background(lambda: scene.store.subscribe("t", "s")))
            opened[0].join(0.1)
        return found

    with patch.object(backlog, "numbers", listed):
        assert 1 == scene.store.enforce_retention()
    opened[0].answer().close()


def test_a_backup_has_what_its_readers_have_not_acked() -> None:
    """They are taken before the log is, and nothing goes in between that they tell of."""
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    scene.read("g", 2)
    take, threads = StoreImage._take_still_files, list[Background[object]]()

    def late(image: StoreImage, *arguments: Any) -> Any:
        threads.append(Background(lambda: (scene.read("g", 8), scene.store.enforce_retention())))
        threads[0].join(0.1)
        return take(image, *arguments)

    with patch.object(StoreImage, "_take_still_files", late):
        made = scene.store.backup("/backups")
    threads[0].answer()
    assert 10 == scene.partition.log_start
    again = Scene(restored(scene.disk, made))
    again.read("g", 8)


# Only what is durable counts.


def test_a_position_that_a_kill_left_undurable_lets_nothing_go() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    scene.read("g", 5)
    scene.store.close()
    disk = SimulatedFiles(scene.disk.image())  # as the first life left it, all durable
    again = Scene(disk)
    with again.store.consumer("t", group="g", auto_commit=False) as consumer:
        consumer.poll(5)
        with patch.object(SimulatedFiles, "sync_folder", lambda *_: None):  # killed in the middle of its commit
            consumer.commit()
    after = Scene(SimulatedFiles(disk.start, disk.operations))
    assert 1 == after.store.enforce_retention()
    cut = Scene(power_cut(after.disk))
    with cut.store.consumer("t", group="g") as consumer:
        committed = consumer.committed()[0]
        assert committed is not None
        assert committed >= cut.partition.log_start


def test_an_ack_that_a_kill_left_undurable_lets_nothing_go() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    scene.store.close()
    disk = SimulatedFiles(scene.disk.image())
    killed_life = Scene(disk)
    subscription = killed_life.store.subscribe("t", "s")
    subscription.ack_many(subscription.receive(10))  # durability os: nothing is synced
    after = Scene(SimulatedFiles(disk.start, disk.operations))
    assert 1 == after.store.enforce_retention()
    cut = Scene(power_cut(after.disk))
    with cut.store.subscribe("t", "s"):
        assert 10 == cut.partition.log_start
        assert 10 == cut.marked("s")


def test_an_ack_that_is_given_up_with_the_end_of_the_log_lets_nothing_go() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    scene.partition.log.roll()
    scene.store.close()
    disk = SimulatedFiles(scene.disk.image())
    life = Scene(disk)
    with life.store.subscribe("t", "s") as subscription:
        received = subscription.receive(10)
        life.send(1)  # durability os: a power cut may take it, and all acks behind it
        life.store.send("t", b"far", delay=3_600_000)
        subscription.ack_many(received)
        life.store.enforce_retention()
        cut = Scene(power_cut(disk))
        with cut.store.subscribe("t", "s") as again:
            assert cut.marked("s") >= cut.partition.log_start
            again.receive(1)


# Kinds of topics, and of readers.


def test_eviction_from_a_fifo_topic_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(
        delayed=False,
        retention_by_subscriptions=True,
        backlog_quota_ms=1_000,
        backlog_quota_policy="consumer_backlog_eviction",
    )
    scene.send()
    scene.ack("s", 4)
    assert (1, 10) == scene.cleaned(5_000)
    assert 6 == scene.partition.log.evicted_records


@pytest.mark.parametrize("policy", ["consumer_backlog_eviction", "producer_exception"])
def test_a_record_of_a_time_to_come_is_as_old_as_its_segment(policy: str) -> None:
    scene = Scene(
        delayed=False,
        retention_by_subscriptions=True,
        backlog_quota_ms=1_000,
        backlog_quota_policy=policy,
        check_instants=False,
    )
    scene.store.send_many("t", [b"v"], timestamps=np.array([NOW_MS * 1_000]))
    scene.send()
    scene.partition.log.roll()
    scene.store.subscribe("t", "s").close()
    scene.send()
    assert (0, 0) == scene.cleaned(900)
    scene.clock.advance(200)
    if policy == "producer_exception":
        scene.cleaned()
        with pytest.raises(BacklogQuotaExceeded):
            scene.send(1)
    else:
        assert 11 <= scene.cleaned()[1]


def test_eviction_takes_nothing_that_is_pending() -> None:
    scene = Scene(
        retention_by_subscriptions=True, backlog_quota_bytes=0, backlog_quota_policy="consumer_backlog_eviction"
    )
    scene.send()
    scene.store.send("t", b"far", delay=3_600_000)
    scene.partition.log.roll()
    scene.send()
    scene.ack("s", 1)
    scene.cleaned(5_000)
    assert (1, 10) == (scene.partition.pending(), scene.partition.log_start_offset)
    scene.clock.advance(3_600_000_000)
    assert b"far" in drained(scene.partition)


def test_a_subscription_with_a_delay_holds_what_it_has_not_seen() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    with scene.store.subscribe("t", "late", delay_ms=60_000) as late:
        scene.ack("s", 10)
        assert (0, 0) == scene.cleaned(1_000)
        scene.clock.advance(60_000)
        late.ack_many(late.receive(10))
    assert (1, 10) == scene.cleaned()


def test_a_dead_letter_counts_as_acked() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    with scene.store.subscribe("t", "s", retry=RetryPolicy(attempts=1), dead_letter="dead") as subscription:
        subscription.nack(subscription.receive(10))
    assert (1, 10) == scene.cleaned()


def test_a_cancelled_record_holds_nothing() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    record = scene.store.send("t", b"far", delay=60_000)
    scene.store.cancel(record)
    scene.ack("s", 10)
    assert (0, 0) == scene.cleaned(), "its control record is due with it"
    scene.clock.advance(60_000_000)
    scene.ack("s", 10)
    with scene.store.subscribe("t", "s") as subscription:
        assert not len(subscription.receive(1))
    assert (1, 12) == scene.cleaned()


def test_a_journal_that_rots_holds_all_and_says_so() -> None:
    scene = Scene(retention_by_subscriptions=True)
    scene.send()
    scene.ack("s", 10)
    scene.store.close()
    path = PATH / "t-0" / SUBSCRIPTIONS / "s"
    [name] = [name for name in scene.disk.names(path) if name.startswith("journal-")]
    disk = with_file(killed(scene.disk), path / name, flipped(content(scene.disk, path / name), 20))
    again = Scene(disk)
    with pytest.raises(CorruptFile):
        again.store.enforce_retention()
    assert 0 == again.partition.log_start


class WatchedLock:
    """Tells who has asked for it."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.asked: set[int | None] = set()

    def __enter__(self) -> None:
        self.asked.add(threading.get_ident())
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_a_subscription_is_not_deleted_while_a_pass_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_small(SimulatedFiles(), ManualClock(NOW_MS)) as store:
        log = store.create_topic("t", retention_by_subscriptions=True).partition(0).log
        store.send("t", b"a")
        store.subscribe("t", "s").close()
        watched = WatchedLock(log.letting_go)
        monkeypatch.setattr(log, "letting_go", watched)
        gate, replay = Gate(), backlog.replay

        def slowly(*arguments: Any) -> Any:
            gate.passing()
            return replay(*arguments)

        monkeypatch.setattr(backlog, "replay", slowly)
        cleaning = Background(store.enforce_retention)
        gate.came()
        deleting = Background(lambda: store.delete_subscription("t", "s"))
        eventually(lambda: not deleting.is_alive() or deleting.ident in watched.asked)
        gate.open()
        cleaning.answer()
        deleting.answer()
        assert [] == store.subscriptions("t")


@pytest.mark.parametrize("error", [StoreClosed("closed"), CorruptFile("gone", path="x"), FileNotFoundError("gone")])
def test_what_is_just_being_deleted_is_no_fault(error: Exception) -> None:
    """Whatever is found of it meanwhile: the pass goes on to the next topic, and who asks is told."""
    scene = Scene(retention_ms=10)
    scene.store.create_topic("u", retention_ms=10)
    names, ripe, gone = scene.store._topics.by_name, [], True

    def deleted(log: PartitionLog, *_: object) -> Any:
        if log.context.folder.name == "t-0":
            if gone:
                names.pop("t", None)
            raise error
        ripe.append(log)
        return False

    scene.store.send("u", b"x")
    with patch.object(PartitionLog, "is_ripe", deleted), patch.object(PartitionLog, "held", deleted):
        topic = scene.store.topic("t")
        with pytest.raises(TopicDeleted):
            scene.store.held_bytes("t")
        names["t"] = topic
        assert 0 == scene.store.enforce_retention()
        assert ripe
        names["t"], gone = topic, False
        with pytest.raises(type(error)):
            scene.store.enforce_retention()
    scene.store.close()


class TestCleaning:
    def to_clean(self) -> Scene:
        scene = Scene(retention_ms=5, segment_ms=1)
        for number in range(3):
            scene.store.send("t", b"far %d" % number, delay=3_600)
            scene.send()
            scene.partition.log.roll()
        return scene

    def test_the_thread_paces_itself_and_ends_when_the_store_is_closed(self) -> None:
        scene = self.to_clean()
        cleanup, waits = scene.store._cleaning_up(), list[float]()
        with patch.object(ManualClock, "wait", lambda _, condition, until_ms, timeout_s: waits.append(timeout_s)):
            cleanup.run()
        written = scene.partition.log.cleaned.written_bytes
        assert 3 == scene.partition.log.cleaned.segments
        assert written == round(sum(waits) * CLEANED_BYTES_PER_S)
        scene.store.check()
        scene.send()
        scene.partition.log.roll()
        cleanup.end()
        cleanup.run()
        assert 3 == scene.partition.log.cleaned.segments
        scene.store.check()

    def test_a_pass_that_paces_itself_is_in_nobody_s_way(self) -> None:
        scene = self.to_clean()
        scene.store.create_topic("other")
        changes = [
            lambda: scene.store.alter_topic("t", retention_ms=6),
            lambda: scene.store.purge("t"),
            lambda: scene.store.delete_topic("other"),
        ]

        def wait(clock: ManualClock, condition: Condition, until_ms: int | None, timeout_s: float) -> None:
            if changes:
                Background(changes.pop()).answer()

        with patch.object(ManualClock, "wait", wait):
            scene.store._cleaning_up().run()
        assert [] == changes
        assert ["t"] == [each.name for each in scene.store.topics()]
        scene.store.check()

    def test_who_asks_for_a_pass_hurries_the_one_that_runs(self) -> None:
        scene, asked = self.to_clean(), list[Background]()
        cleanup = scene.store._cleaning_up()

        def wait(clock: ManualClock, condition: Condition, until_ms: int | None, timeout_s: float) -> None:
            asked.append(Background(scene.store.enforce_retention))
            while not cleanup._askers:
                condition.wait(1)

        with patch.object(ManualClock, "wait", wait):
            cleanup.run()
            assert [0] == [each.answer() for each in asked]
        assert 3 == scene.partition.log.cleaned.segments
        assert not cleanup._askers
        scene.store.check()

    def test_a_partition_at_rest_is_looked_after(self) -> None:
        """A day behind its last record at the latest, where it holds more than a cleaning would leave it."""
        known = Checkpoints.of_new_log(10)
        sealed = [
            SealedMark(
                base_offset=0, end_offset=10, log_bytes=size, max_deliver_after=NOW_MS * 2, max_timestamp=0,
                index=NO_FILE, time_index=NO_FILE,
            )
            for size in (SLACK_BYTES_MIN, SLACK_BYTES_MIN + 1)
        ]  # fmt: skip
        settings = TopicSettings(retention_ms=7)
        assert [NOW_MS * 2 + 7, RESTS_MS_MAX + 7] == [
            rests_until_ms(replace(known, sealed=(mark,)), settings) for mark in sealed
        ]

    def test_it_is_told(self) -> None:
        scene = Scene(retention_ms=5)
        scene.store.send("t", b"far", delay=3_600)
        scene.send()
        scene.partition.log.roll()
        scene.cleaned(100)
        done = scene.partition.log.cleaned
        assert (1, True) == (done.segments, 0 < done.written_bytes < done.freed_bytes)
