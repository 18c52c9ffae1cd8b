"""Recurring schedules: one record is pending, the next one comes once, whatever happens in between."""

from __future__ import annotations

import dataclasses
import itertools
import random
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS, Durability
from afterlog.base.errors import (
    CorruptFile,
    InvalidArgument,
    InvalidDeliverAfter,
    InvalidSchedule,
    InvalidTopic,
    RecordTooLarge,
    ScheduleExists,
    StorageFull,
    UnknownSchedule,
    UnknownTopic,
    WrongType,
)
from afterlog.base.files import OsFiles
from afterlog.base.names import SCHEDULE_JOURNALS, SCHEDULES
from afterlog.base.recurrence import Every
from afterlog.fetch.message import Message
from afterlog.log.partition_log import PartitionLog
from afterlog.offline.locked_store import OfflineStore
from afterlog.produce.topic import Topic
from afterlog.store import schedule_journal
from afterlog.store.schedule_document import Schedule
from afterlog.store.schedule_journal import ScheduleJournal, journal_damages
from afterlog.store.schedules import Schedules, appended_occurrences, next_of, occurrence_of
from afterlog.store.store import Store, open_store
from tests import campaigns
from tests.campaigns import killed_scheduler
from tests.campaigns.crash_states import CrashModel, CrashState
from tests.campaigns.explorer import Explored, explore
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.campaigns.workers import Workers
from tests.support import (
    NOW_MS,
    PATH,
    Calls,
    content,
    eventually,
    flipped,
    killed,
    open_small,
    power_cut,
    restored,
    small,
)

MINUTE = timedelta(minutes=1)
MINUTE_MS = 60_000
GOLDEN = Path(__file__).parent / "golden" / "schedules-v1" / "store"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles()


@pytest.fixture
def store(disk: SimulatedFiles, clock: ManualClock) -> Iterator[Store]:
    with open_small(disk, clock) as store:
        store.create_topic("t")
        yield store


def messages(store: Store, topic: str = "t") -> list[Message]:
    """All that is due."""
    with store.consumer(topic, group="all", auto_commit=False) as consumer:
        consumer.seek(0)
        return [message for messages in iter(consumer.poll, []) for message in messages]


def occurrences(store: Store, topic: str = "t") -> list[int]:
    """Which minutes behind NOW_MS came, in the order in which they did."""
    found = [dict(message.headers)["afterlog-occurrence"] for message in messages(store, topic)]
    return [(int(each or b"") - NOW_MS) // MINUTE_MS for each in found]


def pending(store: Store) -> list[int]:
    return [(each.due - NOW_MS) // MINUTE_MS for each in store.pending("t")]


def late_cancel(clock: ManualClock, real: Any = PartitionLog.cancel) -> Any:
    """What is to be cancelled becomes due just before it is."""

    def cancel(log: PartitionLog, offsets: Any) -> Any:
        clock.advance(5)
        return real(log, offsets)

    return patch.object(PartitionLog, "cancel", cancel)


class TestComing:
    def test_one_is_pending_at_a_time(self, store: Store, clock: ManualClock) -> None:
        made = store.schedule("t", name="s", every=MINUTE, value=b"v", key=b"k", headers=[("h", b"x")])
        assert NOW_MS + MINUTE_MS == made.next_due
        for minute in range(1, 5):
            assert [minute] == pending(store)
            clock.advance(MINUTE_MS)
            assert [] == pending(store)
            assert 1 == store.run_schedules()
            assert 0 == store.run_schedules()
        assert [1, 2, 3, 4] == occurrences(store)
        message = messages(store)[0]
        assert (b"v", b"k", ("h", b"x")) == (message.value, message.key, message.headers[0])
        assert {"afterlog-schedule": b"s"}.items() <= dict(message.headers).items()

    def test_by_cron(self, store: Store, clock: ManualClock) -> None:
        monday_ms = 1_700_463_600_000
        made = store.schedule("t", name="weekly", cron="0 8 * * 1", timezone="Europe/Zurich", value=b"v")
        assert monday_ms == made.next_due
        assert [monday_ms] == [each.due for each in store.pending("t")]
        clock.set(monday_ms)
        store.run_schedules()
        assert monday_ms + 7 * 86_400_000 == store.schedules()[0].next_due

    def test_the_next_ones(self, store: Store, clock: ManualClock) -> None:
        daily = store.schedule("t", name="daily", cron="30 2 * * *", timezone="Europe/Zurich", value=b"x")
        found = daily.upcoming()
        assert daily.next_due == found[0]
        assert 10 == len(found)
        assert {86_400_000} == {later - earlier for earlier, later in itertools.pairwise(found)}
        assert found[:2] == daily.upcoming(2)
        clock.advance(found[0] - clock.now_ms())
        store.run_schedules()
        [stands] = store.schedules()
        assert found[1:] == stands.upcoming(9)
        assert [] == store.pause_schedule("daily").upcoming()
        once = store.schedule("t", name="once", cron="0 0 1 1 *", timezone="UTC", value=b"x")
        assert 3 == len(once.upcoming(3))

    def test_over_a_change_to_summer_time(self, disk: SimulatedFiles) -> None:
        clock = ManualClock(1_711_666_800_000)  # 2024-03-29 00:00 in Zurich, two days before
        with open_small(disk, clock) as store:
            store.create_topic("t")
            store.schedule("t", name="s", cron="30 2 * * *", timezone="Europe/Zurich")
            dues = []
            for _ in range(4):
                [record] = store.pending("t")
                dues.append(record.due)
                clock.set(record.due)
                assert 1 == store.run_schedules()
        hours = [(right - left) / 3_600_000 for left, right in itertools.pairwise(dues)]
        assert [24, 23.5, 23.5] == hours

    def test_a_key_decides_on_the_partition(self, store: Store) -> None:
        store.create_topic("many", 4)
        expected = store.topic("many").partition_of(b"key")
        assert expected == store.schedule("many", name="a", every=MINUTE, key=b"key").partition
        assert 2 == store.schedule("many", name="b", every=MINUTE, partition=2).partition

    def test_the_record_is_named(self, store: Store) -> None:
        made = store.schedule("t", name="s", every=MINUTE)
        assert made.record == store.pending("t")[0].id

    def test_further_ahead_than_a_topic_takes(self, store: Store, clock: ManualClock) -> None:
        store.create_topic("near", max_delay_ms=MINUTE_MS)
        store.schedule("near", name="s", every=10 * MINUTE)
        assert [] == store.pending("near")
        clock.advance(9 * MINUTE_MS - 1)
        assert 0 == store.run_schedules()
        clock.advance(1)
        assert 1 == store.run_schedules()
        clock.advance(MINUTE_MS)
        assert [10] == occurrences(store, "near")


class TestMissed:
    @pytest.mark.parametrize(
        ("missed", "came", "late"), [("skip", [1], []), ("one", [1], [2]), ("all", [1], [2, 3, 4, 5])]
    )
    def test_what_came_while_nobody_had_it_open(
        self, disk: SimulatedFiles, clock: ManualClock, missed: Any, came: list[int], late: list[int]
    ) -> None:
        with open_small(disk, clock) as store:
            store.create_topic("t")
            store.schedule("t", name="s", every=MINUTE, missed=missed)
        clock.advance(5 * MINUTE_MS + 1)
        with open_small(disk, clock) as store:
            assert len(late) + 1 == store.run_schedules()
            assert came + late == occurrences(store)
            assert [6] == pending(store)
            clock.advance(MINUTE_MS)
            store.run_schedules()
            assert [7] == pending(store)

    def test_the_next_of_a_policy(self) -> None:
        every = Every(10, 0)
        assert [(20, 20)] * 3 == [next_of(every, 10, 15, missed) for missed in ("skip", "one", "all")]
        assert (60, 60) == next_of(every, 10, 55, "skip")
        assert (20, 55) == next_of(every, 10, 55, "one")
        assert (20, 20) == next_of(every, 10, 55, "all")

    @pytest.mark.parametrize("recurs", [{"every": MINUTE}, {"cron": "* * * * *"}], ids=["every", "cron"])
    def test_of_very_many_the_latest_come(
        self, store: Store, clock: ManualClock, recurs: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr("afterlog.store.schedules.MISSED_MAX", 5)
        monkeypatch.setattr("afterlog.store.schedules.MISSED_MAX", 5)
        clock.advance(-(NOW_MS % MINUTE_MS))
        store.schedule("t", name="s", value=b"v", missed="all", **recurs)
        clock.advance(90 * MINUTE_MS)
        assert 6 == store.run_schedules()
        assert [0, 85, 86, 87, 88, 89] == occurrences(store)
        assert "89 occurrences were missed, of which the latest 5 are appended" in caplog.text
        clock.advance(3 * MINUTE_MS)
        assert 3 == store.run_schedules()
        assert [90, 91, 92] == occurrences(store)[-3:]


class TestChanges:
    def test_making_it_again_does_nothing(self, store: Store) -> None:
        made = store.schedule("t", name="s", every=MINUTE, value=b"v")
        assert made == store.schedule("t", name="s", every=MINUTE, value=b"v")
        assert [1] == pending(store)
        with pytest.raises(ScheduleExists, match="other settings"):
            store.schedule("t", name="s", every=MINUTE, value=b"w")

    def test_paused_nothing_is_pending(self, store: Store, clock: ManualClock) -> None:
        store.schedule("t", name="s", every=MINUTE)
        paused = store.pause_schedule("s")
        assert (True, None) == (paused.paused, paused.next_due)
        assert [] == pending(store)
        clock.advance(3 * MINUTE_MS + 1)
        assert 0 == store.run_schedules()
        resumed = store.resume_schedule("s")
        assert (False, NOW_MS + 4 * MINUTE_MS) == (resumed.paused, resumed.next_due)
        assert [4] == pending(store)
        assert [] == messages(store)

    def test_pausing_and_resuming_again_does_nothing(self, store: Store) -> None:
        store.schedule("t", name="s", every=MINUTE)
        assert store.pause_schedule("s") == store.pause_schedule("s")
        assert store.resume_schedule("s") == store.resume_schedule("s")
        assert [1] == pending(store)

    def test_changed_what_is_pending_is_made_anew(self, store: Store, clock: ManualClock) -> None:
        store.schedule("t", name="s", every=MINUTE, value=b"old", headers=[("h", b"x")])
        changed = store.change_schedule("s", value=b"new")
        assert (b"new", MINUTE) == (changed.value, changed.every)
        assert [(b"new", NOW_MS + MINUTE_MS)] == [(each.value, each.due) for each in store.pending("t")]
        store.change_schedule("s", every=2 * MINUTE, key=b"k", missed="all")
        assert [2] == pending(store)
        changed = store.change_schedule("s", cron="0 * * * *", headers=())
        assert (None, "0 * * * *", "UTC") == (changed.every, changed.cron, changed.timezone)
        assert "Asia/Tokyo" == store.change_schedule("s", timezone="Asia/Tokyo").timezone
        assert 1 == len(store.pending("t"))

    @pytest.mark.parametrize("missed", ["skip", "one", "all"])
    def test_what_is_due_before_it_is_cancelled_has_come(self, store: Store, clock: ManualClock, missed: Any) -> None:
        """Changed a moment before the pending record is due, or killed and opened behind it."""
        store.schedule("t", name="s", every=MINUTE, value=b"0", missed=missed)
        for minute in range(1, 6):
            clock.set(NOW_MS + minute * MINUTE_MS - 2)
            with late_cancel(clock):
                store.change_schedule("s", value=b"%d" % minute)
            store.run_schedules()
            assert [*range(1, minute + 1)] == occurrences(store)
            assert [minute + 1] == pending(store)
        clock.advance(MINUTE_MS)
        store.run_schedules()
        assert [*range(1, 7)] == occurrences(store)

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageFull("no space", path=PATH)])
    def test_a_pause_that_failed_half_way_is_made_good_by_the_next(
        self, store: Store, clock: ManualClock, error: BaseException
    ) -> None:
        store.schedule("t", name="s", every=MINUTE, value=b"0")
        with patch.object(PartitionLog, "cancel", side_effect=error):
            for _ in range(2):
                with pytest.raises(type(error)):
                    store.pause_schedule("s")
        assert [1] == pending(store)
        assert store.pause_schedule("s").paused
        assert [] == pending(store)
        clock.advance(2 * MINUTE_MS)
        assert 0 == store.run_schedules()
        assert [] == occurrences(store)

    def test_removed_nothing_comes(self, store: Store, disk: SimulatedFiles, clock: ManualClock) -> None:
        store.schedule("t", name="s", every=MINUTE)
        store.remove_schedule("s")
        assert [] == pending(store) == store.schedules()
        assert {} == ScheduleJournal(disk, PATH).documents
        clock.advance(5 * MINUTE_MS)
        assert 0 == store.run_schedules()
        with pytest.raises(UnknownSchedule):
            store.remove_schedule("s")

    def test_made_again_it_is_another(self, store: Store) -> None:
        store.schedule("t", name="s", every=MINUTE)
        store.remove_schedule("s")
        store.schedule("t", name="s", every=2 * MINUTE)
        assert [2] == pending(store)

    def test_listed_by_name_and_topic(self, store: Store) -> None:
        store.create_topic("u")
        for name, topic in (("b", "t"), ("a", "u")):
            store.schedule(topic, name=name, every=MINUTE)
        assert ["a", "b"] == [each.name for each in store.schedules()]
        assert ["b"] == [each.name for each in store.schedules("t")]
        with pytest.raises(UnknownTopic):
            store.schedules("v")

    def test_all_of_it_is_there_after_a_restart(self, disk: SimulatedFiles, clock: ManualClock) -> None:
        with open_small(disk, clock) as store:
            store.create_topic("t")
            made = [
                store.schedule("t", name="s", every=MINUTE, value=b"\xff", key=None, headers=[("n", None)]),
                store.schedule("t", name="u", cron="0 8 * * 1", timezone="Europe/Zurich", missed="all"),
            ]
            made[1] = store.pause_schedule("u")
        with open_small(disk, clock) as store:
            assert made == store.schedules()


class TestRefused:
    @pytest.mark.parametrize(
        ("settings", "error"),
        [
            ({}, InvalidSchedule),
            ({"every": MINUTE, "cron": "* * * * *"}, InvalidSchedule),
            ({"cron": "x"}, InvalidSchedule),
            ({"every": 5}, WrongType),
            ({"every": MINUTE, "missed": "some"}, InvalidArgument),
            ({"every": MINUTE, "name": "-"}, InvalidTopic),
            ({"every": MINUTE, "name": "n" * 241}, InvalidSchedule),
            ({"every": MINUTE, "value": b"x" * 4_096}, RecordTooLarge),
            ({"every": MINUTE, "topic": "fifo"}, InvalidTopic),
            ({"every": MINUTE, "topic": "none"}, UnknownTopic),
        ],
    )
    def test_nothing_is_left_of_it(
        self, store: Store, disk: SimulatedFiles, settings: dict[str, Any], error: type[Exception]
    ) -> None:
        store.create_topic("fifo", delayed=False)
        with pytest.raises(error):
            store.schedule(**{"topic": "t", "name": "s"} | settings)
        assert [] == store.schedules()
        assert not disk.exists(PATH / SCHEDULES)

    def test_a_change_that_cannot_be_changes_nothing(self, store: Store) -> None:
        made = store.schedule("t", name="s", every=MINUTE)
        changes: list[dict[str, Any]] = [{"cron": "x"}, {"every": timedelta(0)}, {"value": b"x" * 4_096}]
        changes += [{"timezone": "UTC"}, {"cron": "* * * * *", "every": MINUTE}, {"missed": "some"}]
        for change in changes:
            with pytest.raises((InvalidArgument, InvalidSchedule, RecordTooLarge)):
                store.change_schedule("s", **change)
        assert [made] == store.schedules()

    def test_without_cronsim_what_is_there_is_listed_and_stands(self, disk: SimulatedFiles, clock: ManualClock) -> None:
        with open_small(disk, clock) as store:
            store.create_topic("t")
            store.schedule("t", name="s", cron="* * * * *")
        with patch.dict(sys.modules, {"cronsim": None}), open_small(disk, clock) as store:
            assert ["s"] == [each.name for each in store.schedules()]
            clock.advance(5 * MINUTE_MS)
            with pytest.raises(ImportError, match=r"afterlog\[schedules\]"):
                store.run_schedules()


class TestThread:
    def test_it_begins_with_the_first_schedule_and_wakes_when_one_is_due(
        self, disk: SimulatedFiles, clock: ManualClock
    ) -> None:
        def threads() -> list[str]:
            return [thread.name for thread in threading.enumerate() if thread.name == "afterlog-schedules"]

        with open_store(PATH, small(), clock, disk) as store:
            store.create_topic("t")
            assert [] == threads()
            store.schedule("t", name="s", every=MINUTE)
            assert ["afterlog-schedules"] == threads()
            for minute in range(1, 4):
                clock.advance(MINUTE_MS)
                eventually(lambda expected=minute + 1: [expected] == pending(store))
        assert [] == threads()
        with open_store(PATH, small(), clock, disk) as store:
            assert ["afterlog-schedules"] == threads()
            clock.advance(MINUTE_MS)
            eventually(lambda: [5] == pending(store))
            assert [1, 2, 3, 4] == occurrences(store)

    def test_what_fails_is_told_and_tried_again(
        self, clock: ManualClock, disk: SimulatedFiles, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls = Calls()
        with open_small(FailingFiles(disk, calls), clock) as store:
            store.create_topic("t")
            store.schedule("t", name="s", every=MINUTE)
            clock.advance(MINUTE_MS)
            schedules = store._scheduling()
            calls.fail("append", "journal", StorageFull("no room", path=PATH))
            assert 0 == schedules.run()
            assert "nothing is appended for now" in caplog.text
            assert "no room" in (store.schedules()[0].fault or "")
            assert 0 == schedules.run()
            clock.advance(10_000)
            assert 1 == schedules.run()
            assert store.schedules()[0].fault is None
            assert [2] == pending(store)

    def test_a_full_disk_in_the_append_is_looked_up(self, clock: ManualClock, disk: SimulatedFiles) -> None:
        calls = Calls()
        with open_small(FailingFiles(disk, calls), clock) as store:
            store.create_topic("t")
            store.schedule("t", name="s", every=MINUTE)
            clock.advance(MINUTE_MS)
            for suffix in (".log", "journal.2"):
                calls.fail("append", suffix, StorageFull("no room", path=PATH))
                with pytest.raises(StorageFull):
                    store.run_schedules()
                store.send("t", b"between", delay=3_600)
            clock.advance(10_000)
            store.run_schedules()
            assert [2] == [(each.due - NOW_MS) // MINUTE_MS for each in store.pending("t") if each.value != b"between"]
            assert [1] == occurrences(store)


JOURNALS = [PATH / SCHEDULES / name for name in SCHEDULE_JOURNALS]


class TestDamage:
    """What one of the two files has lost the other serves."""

    @pytest.fixture
    def made(self, clock: ManualClock, disk: SimulatedFiles) -> Schedule:
        """Of two, after a while: the journals have a frame that begins them, frames, and notes."""
        with open_small(disk, clock) as store:
            store.create_topic("t")
            store.schedule("t", name="s", every=MINUTE)
            store.schedule("t", name="another", every=2 * MINUTE)
            clock.advance(MINUTE_MS)
            store.run_schedules()
            return store.schedules()[1]

    @pytest.mark.parametrize("path", JOURNALS, ids=SCHEDULE_JOURNALS)
    @pytest.mark.parametrize("frame", [0, 1, 2, None])
    def test_one_of_them(
        self, made: Schedule, clock: ManualClock, disk: SimulatedFiles, path: Path, frame: int | None,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        if frame is None:
            disk.unlink(path)
        else:
            rot(disk, path, frame)
        [damage] = journal_damages(disk, PATH)
        assert path == damage.path
        with OfflineStore(PATH, disk, clock) as offline:
            [finding] = offline.verify()
            assert (path, True) == (finding.path, "anew" in finding.remedy)
        with open_small(disk, clock) as store:
            assert [made] == store.schedules()[1:]
            assert "the other one is taken" in caplog.text
            assert [2, 2] == pending(store)
            store.pause_schedule("another")
        assert [] == [*journal_damages(disk, PATH)]
        with open_small(disk, clock) as store:
            assert [made] == store.schedules()[1:]

    def test_each_has_lost_something_else(self, made: Schedule, clock: ManualClock, disk: SimulatedFiles) -> None:
        for path, frame in zip(JOURNALS, (1, 2), strict=True):
            rot(disk, path, frame)
        with open_small(disk, clock) as store:
            assert [made] == store.schedules()[1:]
            assert [2, 2] == pending(store)

    @pytest.mark.parametrize("frame", [0, 2])
    def test_both_have_lost_the_same(
        self, made: Schedule, clock: ManualClock, disk: SimulatedFiles, frame: int
    ) -> None:
        """They stand still, until somebody has removed them."""
        for path in JOURNALS:
            rot(disk, path, frame)
        assert ["lost the same" in str(damage) for damage in journal_damages(disk, PATH)] == [False, False, True]
        clock.advance(10 * MINUTE_MS)
        with open_small(disk, clock) as store:
            for call in (store.schedules, lambda: store.pause_schedule("s"), lambda: store.remove_schedule("s")):
                with pytest.raises(CorruptFile, match="from a backup, or remove both"):
                    call()
            with pytest.raises(CorruptFile):
                store.schedule("t", name="s", every=MINUTE)
            assert 0 == store.run_schedules()
            store.create_topic("u")
            store.delete_topic("u")
        for path in JOURNALS:
            disk.unlink(path)
        with open_small(disk, clock) as store:
            store.schedule("t", name="s", every=MINUTE)

    def test_notes_that_are_lost_are_looked_for(self, made: Schedule, clock: ManualClock, disk: SimulatedFiles) -> None:
        """They are not synced: a power cut may take them."""
        lines = content(disk, JOURNALS[0]).splitlines(keepends=True)
        assert 3 == sum(b"is_note" in line for line in lines)
        for path in JOURNALS:
            for frame in reversed(range(len(lines) // 2)):
                if b"is_note" in lines[2 * frame + 1]:
                    rot(disk, path, frame)
        with open_small(disk, clock) as store:
            assert [made] == store.schedules()[1:]
            assert 0 == store.run_schedules()
            assert [2, 2] == pending(store)

    def test_a_torn_end_is_no_damage(self, made: Schedule, clock: ManualClock, disk: SimulatedFiles) -> None:
        whole = {path: content(disk, path) for path in JOURNALS}
        last = len(whole[JOURNALS[0]].splitlines(keepends=True)[-1])
        for path, data in whole.items():
            for cut in (1, last // 2, last):
                truncated(disk, path, data[:-cut])
                assert [] == [*journal_damages(disk, PATH)]
                with open_small(killed(disk), clock) as store:
                    assert [made] == store.schedules()[1:]
                truncated(disk, path, data)


def truncated(disk: SimulatedFiles, path: Path, data: bytes) -> None:
    file = disk.open(path)
    file.truncate(0)
    file.append([data])


def rot(disk: SimulatedFiles, path: Path, frame: int) -> None:
    """One bit of a frame's second line."""
    lines = content(disk, path).splitlines(keepends=True)
    lines[2 * frame + 1] = flipped(lines[2 * frame + 1], 5)
    truncated(disk, path, b"".join(lines))


class TestJournal:
    def test_it_does_not_grow_without_end(self, disk: SimulatedFiles, clock: ManualClock) -> None:
        with patch.object(schedule_journal, "LIMIT_BYTES", 4_096), open_small(disk, clock) as store:
            store.create_topic("t")
            for number in range(5):
                store.schedule("t", name=f"s{number}", every=MINUTE)
            sizes = set()
            for _ in range(60):
                clock.advance(MINUTE_MS)
                store.run_schedules()
                assert content(disk, JOURNALS[0]) == content(disk, JOURNALS[1])
                sizes.add(len(content(disk, JOURNALS[0])))
                assert store._scheduling()._documents == ScheduleJournal(disk, PATH).documents
            assert max(sizes) < 4_096 + 4 * min(sizes)
            assert min(sizes) < 3_000

    def test_what_many_come_to_is_one_frame(self, disk: SimulatedFiles, clock: ManualClock) -> None:
        """And for each partition one append and one sync."""
        calls = Calls()
        with open_small(FailingFiles(disk, calls), clock, durability=OS, segment_bytes=1 << 20) as store:
            store.create_topic("t", partitions=2)
            for number in range(50):
                store.schedule("t", name=f"s{number}", every=MINUTE, partition=number % 2)
            clock.advance(MINUTE_MS)
            calls.made.clear()
            assert 50 == store.run_schedules()
            assert (1, 0) == (calls.made["sync", "journal"], calls.made["sync", "journal.2"])
            assert 2 == calls.count("sync", ".log")
            assert [2, 2] == [calls.made["append", name] for name in SCHEDULE_JOURNALS]
            assert (50, 50) == (len(messages(store)), len(store.pending("t", limit=100)))

    def test_a_backup_is_of_its_time(self, disk: SimulatedFiles, clock: ManualClock) -> None:
        """The journal grows at its end."""
        with open_small(disk, clock) as store:
            store.create_topic("t")
            store.schedule("t", name="s", every=MINUTE)
            made = store.backup(Path("/backups"))
            clock.advance(MINUTE_MS)
            store.run_schedules()
        with open_small(restored(disk, made), clock) as store:
            assert 1 == store.run_schedules()
            assert ([1], [2]) == (occurrences(store), pending(store))

    def test_one_that_cannot_be_holds_up_no_other(self, disk: SimulatedFiles, clock: ManualClock) -> None:
        with open_small(disk, clock) as store:
            for topic in "tuv":
                store.create_topic(topic)
                store.schedule(topic, name=f"of-{topic}", every=MINUTE)
            store.delete_topic("u")
            store.schedule("t", name="gone", every=MINUTE)
            clock.advance(MINUTE_MS)
            append = Topic.append

            def refused(topic: Topic, *call: Any, **settings: Any) -> Any:
                if topic.name == "t":
                    raise StorageFull("no room", path=PATH)
                return append(topic, *call, **settings)

            with patch.object(Topic, "append", refused):
                assert 1 == store._scheduling().run()
            assert {"of-t": "no room", "gone": "no room", "of-v": None} == {
                each.name: each.fault and "no room" for each in store.schedules()
            }
            clock.advance(10_000)
            assert 2 == store._scheduling().run()
            assert 3 == len([each for topic in "tv" for each in messages(store, topic)])

    def test_documents_of_before_become_one(self, tmp_path: Path, clock: ManualClock) -> None:
        """Of which the golden folder was written by the last version that had them."""
        shutil.copytree(GOLDEN, tmp_path / "store")
        clock.set(NOW_MS + 300_000)
        for _ in range(2):
            with open_store(tmp_path / "store", None, clock, None, background=False) as store:
                report, sweep = store.schedules()
                assert ("report", b"weekly", b"k", "0 8 * * 1", True, None) == (
                    report.name, report.value, report.key, report.cron, report.paused, report.record,
                )  # fmt: skip
                assert ("sweep", b"sweep", timedelta(minutes=5), "all", 2, NOW_MS + 600_000) == (
                    sweep.name, sweep.value, sweep.every, sweep.missed, sweep.record and sweep.record.offset,
                    sweep.next_due,
                )  # fmt: skip
                assert 1 == len(store.pending("t"))
            assert [*SCHEDULE_JOURNALS] == sorted(path.name for path in (tmp_path / "store" / SCHEDULES).iterdir())
        clock.set(NOW_MS + 600_000)
        with open_store(tmp_path / "store", None, clock, None, background=False) as store:
            assert 1 == store.run_schedules()
            store.resume_schedule("report")
            assert 2 == len(store.pending("t"))

    def test_of_documents_of_before_one_rots(self, tmp_path: Path, clock: ManualClock) -> None:
        shutil.copytree(GOLDEN, tmp_path / "store")
        first, copy = (tmp_path / "store" / SCHEDULES / name for name in ("sweep.schedule", "sweep.copy"))
        first.write_bytes(flipped(first.read_bytes(), 60))
        files = OsFiles()
        assert [first] == [damage.path for damage in journal_damages(files, tmp_path / "store")]
        kept = copy.read_bytes()
        copy.write_bytes(flipped(kept, 60))
        with (
            open_store(tmp_path / "store", None, clock, None, background=False) as store,
            pytest.raises(CorruptFile, match="remove both"),
        ):
            store.schedules()
        copy.write_bytes(kept)
        with open_store(tmp_path / "store", None, clock, None, background=False) as store:
            assert ["report", "sweep"] == [each.name for each in store.schedules()]


def test_a_record_that_is_none() -> None:
    assert None is occurrence_of(())
    assert None is occurrence_of((("a", b"b"),))
    ours = (("afterlog-schedule", b"s"), ("afterlog-occurrence", b"5"), ("afterlog-schedule-id", b"id"))
    assert ("id", 5) == occurrence_of((("h", None), *ours))
    assert None is occurrence_of((*ours, ("h", None)))
    assert None is occurrence_of((ours[0], ("afterlog-occurrence", b"x"), ours[2]))
    assert None is occurrence_of((*ours[:2], ("afterlog-schedule-id", None)))


# --- Crashes --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Made:
    """A call returned behind which these occurrences are in the log, in this order, and nothing else of it."""

    minutes: tuple[int, ...]
    pending: int | None


class Recurring:
    """A schedule in a store that a crash ends, and what must be true behind it."""

    def __init__(self, durability: Durability = ALWAYS) -> None:
        self.durability = durability

    def __call__(self, files: Any, disk: SimulatedFiles) -> None:
        clock = ManualClock(NOW_MS)
        store = open_small(files, clock, durability=self.durability)
        store.create_topic("t")
        disk.mark(Made((), None))
        store.schedule("t", name="s", every=MINUTE, missed="all")
        disk.mark(Made((), 1))
        clock.advance(MINUTE_MS)
        store.run_schedules()
        disk.mark(Made((1,), 2))
        store.send("t", b"between", delay=1)
        clock.advance(2 * MINUTE_MS + 1)
        store.run_schedules()
        disk.mark(Made((1, 2, 3), 4))
        store.close()

    def verify(self, disk: SimulatedFiles, marks: Any, state: CrashState) -> None:
        """A long time later: each came once, from the first to the last, and one is pending."""
        made = [mark for mark in marks if isinstance(mark, Made)]
        clock = ManualClock(NOW_MS + 5 * MINUTE_MS + 1)
        if not made:
            return
        for _ in range(2):
            store = open_small(disk, clock, durability=self.durability)
            schedules = store.schedules()
            assert schedules or made[-1] == Made((), None)
            store.run_schedules()
            own = [message for message in messages(store) if message.value != b"between"]
            found = [(int(dict(each.headers)["afterlog-occurrence"] or b"") - NOW_MS) // MINUTE_MS for each in own]
            assert found == ([1, 2, 3, 4, 5] if schedules else [])
            assert ([6] if schedules else []) == pending(store)
            store.close()


def crashed(durability: Durability, **share: Any) -> Explored:
    recurring = Recurring(durability)
    settings: dict[str, Any] = {"model": CrashModel(every_byte_max=4, sector_cuts_max=1), "of": 20}
    return explore(recurring, recurring.verify, **settings | share)


@pytest.mark.parametrize("durability", [ALWAYS, OS], ids=["always", "os"])
def test_power_cut(durability: Durability) -> None:
    found = crashed(durability)
    print(found)
    assert not found.failures, str(found)


def test_kill() -> None:
    found = crashed(OS, kill=True)
    print(found)
    assert not found.failures, str(found)


def believed(schedules: Schedules, documents: Any) -> Any:
    """What was intended is taken for done."""
    return [dataclasses.replace(each, occurrence=dataclasses.replace(each.occurrence, offset=0)) for each in documents]


def appended_blindly(schedules: Schedules, documents: Any) -> Any:
    """Nobody looks whether it is there already."""
    return documents


def no_intent(journal: ScheduleJournal, changed: Any, gone: Any = ()) -> None:
    """The journal is written behind the append alone."""
    kept = [each for each in changed if each.occurrence is None or each.occurrence.offset is not None]
    ORIGINAL_WRITE(journal, kept, gone)


def unsynced_intent(journal: ScheduleJournal, frame: bytes, size: int, *, durable: bool) -> None:
    ORIGINAL_JOURNAL_APPEND(journal, frame, size, durable=False)


def unsynced_append(schedules: Schedules, documents: Any) -> Any:
    """What is in the log is told before it is durable."""
    with patch("afterlog.log.commit.Commit.sync", lambda self: None):
        return ORIGINAL_APPEND(schedules, documents)


ORIGINAL_WRITE = ScheduleJournal.write
ORIGINAL_JOURNAL_APPEND = ScheduleJournal._append
ORIGINAL_APPEND = Schedules._append


@pytest.mark.parametrize(
    ("owner", "method", "planted", "durability", "kill"),
    [
        (Schedules, "_looked_up", appended_blindly, OS, True),
        (Schedules, "_looked_up", believed, OS, True),
        (ScheduleJournal, "write", no_intent, OS, True),
        (ScheduleJournal, "_append", unsynced_intent, OS, False),
        (Schedules, "_append", unsynced_append, OS, False),
    ],
)
def test_planted_bug_is_caught(owner: Any, method: str, planted: Any, durability: Durability, kill: bool) -> None:
    """The next recurrence twice after a crash; an occurrence forgotten."""
    with patch.object(owner, method, planted):
        found = crashed(durability, kill=kill, of=1, failures_max=1)
    assert found.failures, "nobody saw it"


class Striking:
    """What FailingFiles asks: raises at one call to the disk, once it is armed."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.armed = False

    def __call__(self, operation: str, path: Path, number: int) -> None:
        self.left -= self.armed
        if self.armed and self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("quiet")
def test_what_was_struck_is_made_good_by_the_next_call(clock: ManualClock) -> None:
    """At each call to the disk in turn."""
    for at in itertools.count(1):
        disk, striking = SimulatedFiles(), Striking(at)
        clock.set(NOW_MS)
        with open_small(FailingFiles(disk, striking), clock) as store:
            store.create_topic("t")
            store.schedule("t", name="s", every=MINUTE)
            clock.advance(MINUTE_MS)
            striking.armed = True
            with suppress(KeyboardInterrupt):
                store.run_schedules()
                store.pause_schedule("s")
                store.resume_schedule("s")
                store.change_schedule("s", value=b"x")
            striking.armed = False
            store.resume_schedule("s")
            store.run_schedules()
            assert [2] == pending(store)
            assert [1] == occurrences(store)
        with open_small(killed(disk), clock) as store:
            assert [2] == pending(store)
        if striking.left > 0:
            break
    assert at > 50


def test_damaged_documents_are_no_schedules(disk: SimulatedFiles, clock: ManualClock, store: Store) -> None:
    """Bytes that pass their CRC and mean nothing are a CorruptFile."""
    from afterlog.base.document import encode
    from afterlog.store.schedule_journal import FORMAT, VERSION

    def read(body: dict[str, Any]) -> CorruptFile | None:
        for path in JOURNALS:
            truncated(disk, path, encode(FORMAT, VERSION, body))
        return ScheduleJournal(disk, PATH).damage

    store.schedule("t", name="s", every=MINUTE)
    good = store._scheduling()._documents["s"].to_json()
    frame = {"number": 1, "begins": True, "rows": [good]}
    assert None is read(frame)
    for change in (
        {"missed": "some"}, {"every_ms": None}, {"every_ms": "x"}, {"headers": [5]}, {"value": 5}, {"upto_ms": None},
        {"occurrence": {"due_ms": "x"}}, {"stale": "x"}, {"cron": "x"}, {"name": 5}, {"more": 1}, {"paused": 1},
    ):  # fmt: skip
        assert read(frame | {"rows": [good | change]}) is not None, change
    for body in ({"number": "x"}, {"begins": False}, {"rows": 5}, {"rows": [5]}, {"rows": [{"name": "s", "gone": 1}]}):
        assert read(frame | body) is not None, body


def test_an_overdue_time_that_is_far_ahead_is_refused(store: Store) -> None:
    with pytest.raises((InvalidSchedule, InvalidDeliverAfter)):
        store.schedule("t", name="s", every=timedelta(days=365 * 200))


# --- In lockstep with a model ---------------------------------------------------------------------------------------


class ScheduleMachine(RuleBasedStateMachine):
    """One schedule, whatever is done to it, in a store that is closed, killed and cut off; and what came of it."""

    @initialize(
        missed=st.sampled_from(["skip", "one", "all"]),
        durability=st.sampled_from([ALWAYS, OS]),
        minutes=st.integers(1, 3),
    )
    def begin(self, missed: Any, durability: Durability, minutes: int) -> None:
        self.missed, self.durability = missed, durability
        self.clock, self.disk = ManualClock(NOW_MS), SimulatedFiles()
        self.open()
        self.store.create_topic("t")
        self.store.schedule("t", name="s", every=minutes * MINUTE, missed=missed)
        self.every, self.upto = Every(minutes * MINUTE_MS, NOW_MS), NOW_MS
        self.came: list[int] = []
        """What is in the log and not cancelled, by when it came."""
        self.paused = False
        self.expect_run(once=True)

    def open(self) -> None:
        self.store = open_small(self.disk, self.clock, durability=self.durability)

    def expect_run(self, *, once: bool = False) -> None:
        now_ms = self.clock.now_ms()
        while not self.paused and (not self.came or self.came[-1] <= now_ms):
            due_ms, self.upto = next_of(self.every, self.upto, now_ms, self.missed)
            self.came.append(due_ms or 0)
            if once:
                break

    def expect_cancelled(self) -> None:
        now_ms = self.clock.now_ms()
        self.came = [due_ms for due_ms in self.came if due_ms <= now_ms]
        self.upto = now_ms

    @rule()
    def run(self) -> None:
        self.store.run_schedules()
        self.expect_run()

    @rule()
    def pause(self) -> None:
        self.store.pause_schedule("s")
        if not self.paused:
            self.expect_cancelled()
        self.paused = True

    @rule()
    def resume(self) -> None:
        self.store.resume_schedule("s")
        if self.paused:
            self.paused, self.upto = False, self.clock.now_ms()
            self.expect_run(once=True)

    @rule(minutes=st.integers(1, 3))
    def change(self, minutes: int) -> None:
        self.store.change_schedule("s", every=minutes * MINUTE)
        self.expect_cancelled()
        self.every = Every(minutes * MINUTE_MS, self.clock.now_ms())
        self.expect_run(once=True)

    @rule(minutes=st.integers(0, 9), ms=st.integers(0, 2))
    def advance(self, minutes: int, ms: int) -> None:
        self.clock.advance(minutes * MINUTE_MS + ms)

    @rule(delay=st.integers(0, 90))
    def send(self, delay: int) -> None:
        self.store.send("t", b"another", delay=delay)

    @rule()
    def roll(self) -> None:
        self.store.topic("t").partition(0).log.roll()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    @rule()
    def kill(self) -> None:
        self.disk = killed(self.disk)
        self.open()

    @rule()
    def power_cut(self) -> None:
        """Whatever the durability: what was told of a schedule is durable when a call returns."""
        self.disk = power_cut(self.disk)
        self.open()

    @rule()
    def restore(self) -> None:
        """From a backup of now."""
        made = self.store.backup(Path("/backups"))
        self.disk = restored(self.disk, made)
        self.open()

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        campaigns.count("steps of a model")
        own = [*messages(self.store), *self.store.pending("t")]
        found = [dict(each.headers)["afterlog-occurrence"] for each in own if each.value is None]
        assert sorted(self.came) == sorted(int(each or b"") for each in found)
        [schedule] = self.store.schedules()
        assert (self.paused, self.every.every_ms) == (schedule.paused, round(schedule.every / MINUTE * MINUTE_MS))
        if self.came and self.came[-1] > self.clock.now_ms():
            assert self.came[-1] == schedule.next_due

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


ScheduleMachine.TestCase.settings = settings(max_examples=campaigns.examples(15, whole=300), stateful_step_count=25)
TestScheduleMachine = pytest.mark.usefixtures("quiet")(ScheduleMachine.TestCase)


# --- Kills of a process ---------------------------------------------------------------------------------------------


def test_a_process_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """Each occurrence is there once, from the first to the last, whenever it was killed."""
    assert not came_wrong(tmp_path, "nothing_planted", 12)


@pytest.mark.parametrize("bug", ["nobody_looks", "the_intent_is_believed"])
def test_planted_bug_is_seen_from_outside(tmp_path: Path, bug: str) -> None:
    assert came_wrong(tmp_path, bug, 60)


def came_wrong(folder: Path, bug: str, kills: int) -> bool:
    """Whether a schedule of every few milliseconds is not what it should be after any of the kills."""
    chance, came = random.Random(campaigns.SEED), list[int]()
    with Workers("tests.campaigns.killed_scheduler") as workers:
        for kill in range(kills):
            with workers.life(folder / "store", str(kill), chance.randrange(1, 40), bug) as said:
                told = [line[1] for line in said]
            campaigns.count("kills of a process")
            shutil.copytree(folder / "store", folder / "copy")
            with open_store(folder / "copy", None, ManualClock(0), None, background=False) as store:
                log = store.topic("t").partition(0).log
                found = [each.due_ms for each in appended_occurrences(store.topic("t").partition(0), 0, log.written)]
            shutil.rmtree(folder / "copy")
            steps = {right - left for left, right in itertools.pairwise(found)}
            if not steps <= {killed_scheduler.EVERY_MS} or not set(told) <= set(found) or found[: len(came)] != came:
                return True
            came = found
    assert len(came) > kills
    return False
