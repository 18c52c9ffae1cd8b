"""What is to come: looked at, cancelled, rescheduled; what comes again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from afterlog.base.errors import (
    InvalidDeliverAfter,
    InvalidRecord,
    InvalidSchedule,
    InvalidTopic,
    NotPending,
    ScheduleExists,
    UnknownPartition,
    UnknownSchedule,
    UnknownTopic,
    WrongType,
)
from afterlog.fetch.record_id import RecordId
from afterlog.log.cancel_result import CancelResult
from tests.conformance.ways import Setting
from tests.support import NOW_MS


@pytest.fixture(autouse=True)
def mail(setting: Setting) -> None:
    setting.store.create_topic("mail", partitions=2)


class TestPending:
    def test_it_is_in_due_order_of_all_partitions(self, setting: Setting) -> None:
        for delay, partition in ((30, 0), (10, 1), (20, 0)):
            setting.store.send("mail", b"%d" % delay, key=b"\xff", delay=delay, partition=partition)
        assert [b"10", b"20", b"30"] == [record.value for record in setting.store.pending("mail")]
        [first] = setting.store.pending("mail", limit=1)
        assert (RecordId("mail", 1, 0), NOW_MS + 10_000, b"\xff") == (first.id, first.due, first.key)
        assert [b"20", b"30"] == [record.value for record in setting.store.pending("mail", partition=0)]
        with pytest.raises(UnknownPartition):
            setting.store.pending("mail", partition=2)

    @pytest.mark.parametrize("key", [b"k", b"", b"\xff\x00", b"base64:", "ü".encode()])
    def test_of_one_key(self, setting: Setting, key: bytes) -> None:
        for each in (b"other", key, b"another", key):
            setting.store.send("mail", b"x", key=each, delay=60, partition=0)
        assert [1, 3] == [record.offset for record in setting.store.pending("mail", key=key)]

    def test_of_a_span_of_time(self, setting: Setting) -> None:
        """From the first instant on, and before the second; of batches, of several partitions, of one key."""
        setting.store.alter_topic("mail", partitions=2)
        for partition in (0, 1):
            for first in (0, 600):  # more than a look at a time merges
                setting.store.send_many(
                    "mail", [b"%d" % (first + row) for row in range(600)],
                    keys=[b"%d" % (row % 3) for row in range(600)],
                    deliver_after=[NOW_MS + 1_000 * (1 + first + row) for row in range(600)], partition=partition,
                )  # fmt: skip

        def found(after: int | None, before: int | None, **options: Any) -> list[bytes]:
            span = {"after": after, "before": before}
            given = {name: NOW_MS + 1_000 * (1 + each) for name, each in span.items() if each is not None}
            return [record.value for record in setting.store.pending("mail", limit=5_000, **given, **options)]

        def every(rows: range, times: int = 2) -> list[bytes]:
            return [b"%d" % row for row in rows for _ in range(times)]

        assert every(range(1_200)) == found(None, None)
        for after, before in ((0, 1), (5, 9), (598, 605), (1_190, None), (None, 3), (300, 900), (7, 7), (9, 5)):
            assert every(range(after or 0, 1_200 if before is None else before)) == found(after, before)
        assert every(range(598, 605), 1) == found(598, 605, partition=1)
        assert [b"600", b"603"] == found(598, 605, partition=0, key=b"0")
        later = datetime.fromtimestamp((NOW_MS + 1_001_000) / 1_000, UTC)
        assert [b"1000"] == [each.value for each in setting.store.pending("mail", limit=1, after=later)]
        assert ([b"0"], []) == (found(-(10**9), 1, partition=0), found(None, -(10**9)))
        for wrong in ("soon", -1):
            with pytest.raises((InvalidDeliverAfter, WrongType)):
                setting.store.pending("mail", after=wrong)


class TestLookingUp:
    def test_by_id(self, setting: Setting) -> None:
        store = setting.store
        sent = store.send("mail", b"x", key=b"\xff", headers=[("h", b"v")], delay=60)
        due = store.send("mail", None)
        cancelled = store.send("mail", b"z", delay=60)
        store.cancel(cancelled)
        setting.clock.advance(1)
        found = store.get(sent)
        assert (sent, b"x", b"\xff", (("h", b"v"),)) == (found.id, found.value, found.key, found.headers)
        assert (NOW_MS + 60_000, "pending") == (found.due, found.state)
        assert (None, "due") == ((found := store.get(str(due))).value, found.state)
        assert (b"z", "cancelled") == ((found := store.get(cancelled)).value, found.state)
        setting.clock.advance(60_000)
        assert (b"x", "due") == ((found := store.get(sent)).value, found.state)

    def test_what_is_not_there(self, setting: Setting) -> None:
        store = setting.store
        sent = store.send("mail", b"x", partition=0, delay=60)
        store.cancel(sent)
        assert store.get(RecordId("mail", 0, 1)) is None, "it is the marker that cancelled"
        assert store.get("mail-1@0") is None
        for record, error in (("mail-2@0", UnknownPartition), ("other-0@0", UnknownTopic), ("mail", InvalidRecord)):
            with pytest.raises(error):
                store.get(record)

    def test_it_changes_nothing(self, setting: Setting) -> None:
        sent = setting.store.send("mail", b"x")
        for _ in range(2):
            assert "due" == setting.store.get(sent).state
        with setting.store.subscribe("mail", "reader") as reader:
            assert [b"x"] == [message.value for message in reader.receive()]
            assert "due" == setting.store.get(sent).state

    @pytest.mark.parametrize("key", [b"k", b"\xff\x00", b"base64:", b"u" * 1_024])
    def test_by_unique_key(self, setting: Setting, key: bytes) -> None:
        store = setting.store
        assert store.get_unique("mail", key) is None
        first = store.send("mail", b"first", unique_key=key, delay=30)
        found = store.get_unique("mail", key)
        assert (first, b"first", "pending") == (found.id, found.value, found.state)
        second = store.send("mail", b"second", unique_key=key, delay=60, on_conflict="replace")
        assert (second, b"second") == ((found := store.get_unique("mail", key)).id, found.value)
        assert store.get_unique("mail", b"other") is None
        assert store.get_unique("mail", key, partition=1 - second.partition) is None
        assert second == store.get_unique("mail", key, partition=second.partition).id
        moved = store.reschedule(second, delay=90)
        assert moved == store.get_unique("mail", key).id
        setting.clock.advance(90_000)
        assert store.get_unique("mail", key) is None, "it is due"
        store.send("mail", b"third", unique_key=key, delay=30)
        assert b"third" == store.get_unique("mail", key).value
        assert CancelResult.CANCELLED == store.cancel_unique("mail", key)
        assert CancelResult.UNKNOWN == store.cancel_unique("mail", key)
        assert CancelResult.UNKNOWN == store.cancel_unique("mail", key, partition=0)
        assert store.get_unique("mail", key) is None

    def test_what_is_no_unique_key(self, setting: Setting) -> None:
        setting.store.create_topic("audit", delayed=False)
        with pytest.raises(InvalidTopic):
            setting.store.get_unique("audit", b"k")
        for key, error in (
            (b"", InvalidRecord),
            (b"x" * 1_025, InvalidRecord),
            ("k", InvalidRecord),
            (None, WrongType),
        ):
            with pytest.raises(error):
                setting.store.get_unique("mail", key)
        with pytest.raises(UnknownPartition):
            setting.store.get_unique("mail", b"k", partition=2)
        with pytest.raises(UnknownTopic):
            setting.store.get_unique("other", b"k")


class TestCancelling:
    def test_it_is_not_delivered(self, setting: Setting) -> None:
        sent = setting.store.send("mail", b"x", delay=60)
        due = setting.store.send("mail", b"x", partition=sent.partition)
        setting.clock.advance(1)
        assert CancelResult.CANCELLED == setting.store.cancel(sent)
        assert CancelResult.ALREADY_CANCELLED == setting.store.cancel(sent)
        assert CancelResult.ALREADY_DELIVERED == setting.store.cancel(due)
        assert CancelResult.UNKNOWN == setting.store.cancel(RecordId("mail", 0, 99))
        assert [] == setting.store.pending("mail")

    def test_many(self, setting: Setting) -> None:
        offsets = setting.store.send_many("mail", [b"x"] * 3, delay=60, partition=1)
        results = setting.store.cancel_many("mail", 1, np.append(offsets[1:], [77]))
        assert [CancelResult.CANCELLED, CancelResult.CANCELLED, CancelResult.UNKNOWN] == results.tolist()
        assert np.int8 == results.dtype

    def test_what_names_no_record(self, setting: Setting) -> None:
        for wrong in (7, None, b"mail-0@0"):
            with pytest.raises(WrongType):
                setting.store.cancel(wrong)
        with pytest.raises(InvalidRecord):
            setting.store.cancel("mail")
        with pytest.raises(UnknownTopic):
            setting.store.cancel(RecordId("other", 0, 0))
        with pytest.raises(UnknownPartition):
            setting.store.cancel(RecordId("mail", 2, 0))


class TestRescheduling:
    def test_it_moves(self, setting: Setting) -> None:
        sent = setting.store.send("mail", b"x", key=b"k", headers=[("a", b"b")], delay=60)
        moved = setting.store.reschedule(sent, delay=30)
        [record] = setting.store.pending("mail")
        assert (moved, NOW_MS + 30_000, b"x", b"k", (("a", b"b"),)) == (
            record.id, record.due, record.value, record.key, tuple(record.headers)
        )  # fmt: skip
        again = setting.store.reschedule(moved, deliver_after=NOW_MS + 90_000)
        assert [(again, NOW_MS + 90_000)] == [(each.id, each.due) for each in setting.store.pending("mail")]

    def test_what_is_not_pending(self, setting: Setting) -> None:
        sent = setting.store.send("mail", b"x", delay=60)
        setting.store.cancel(sent)
        with pytest.raises(NotPending) as raised:
            setting.store.reschedule(sent, delay=1)
        assert CancelResult.ALREADY_CANCELLED == raised.value.answer


class TestSchedules:
    def test_one_record_is_pending_at_a_time(self, setting: Setting) -> None:
        made = setting.store.schedule(
            "mail", name="hourly", every=timedelta(hours=1), value=b"x", key=b"\xff", headers=[("a", None)], partition=1
        )
        assert ("hourly", "mail", 1, None, timedelta(hours=1), b"x", b"\xff", (("a", None),), "one", False) == (
            made.name, made.topic, made.partition, made.cron, made.every, made.value, made.key, tuple(made.headers),
            made.missed, made.paused,
        )  # fmt: skip
        assert NOW_MS + 3_600_000 == made.next_due
        [record] = setting.store.pending("mail")
        assert (made.record, b"x", NOW_MS + 3_600_000) == (record.id, record.value, record.due)
        setting.clock.advance(3_600_000)
        assert 1 == setting.store.run_schedules()
        assert [NOW_MS + 7_200_000] == [each.due for each in setting.store.pending("mail")]

    def test_they_are_listed(self, setting: Setting) -> None:
        setting.store.create_topic("other")
        for name, topic in (("b", "mail"), ("a", "other"), ("c", "mail")):
            setting.store.schedule(topic, name=name, cron="0 8 * * *", timezone="Europe/Zurich")
        assert ["a", "b", "c"] == [each.name for each in setting.store.schedules()]
        assert ["b", "c"] == [each.name for each in setting.store.schedules("mail")]
        assert ["Europe/Zurich"] == sorted({each.timezone for each in setting.store.schedules()})
        with pytest.raises(UnknownTopic):
            setting.store.schedules("nothing")

    def test_they_are_changed_paused_and_removed(self, setting: Setting) -> None:
        setting.store.schedule("mail", name="hourly", every=timedelta(hours=1), value=b"x")
        changed = setting.store.change_schedule("hourly", every=timedelta(minutes=1), key=b"k")
        assert (timedelta(minutes=1), b"x", b"k") == (changed.every, changed.value, changed.key)
        assert setting.store.pause_schedule("hourly").paused
        assert [] == setting.store.pending("mail")
        assert not setting.store.resume_schedule("hourly").paused
        assert 1 == len(setting.store.pending("mail"))
        sent = setting.store.send_schedule("hourly")
        assert 1 == len(setting.store.pending("mail")), "what comes stays as it is"
        found = setting.store.get(sent)
        assert ("due", b"x", b"k", ()) == (found.state, found.value, found.key, found.headers)
        [stands] = setting.store.schedules()
        minute_ms = 60_000
        assert [stands.next_due, stands.next_due + minute_ms, stands.next_due + 2 * minute_ms] == stands.upcoming(3)
        setting.store.remove_schedule("hourly")
        assert ([], []) == (setting.store.pending("mail"), setting.store.schedules())

    def test_what_cannot_be(self, setting: Setting) -> None:
        setting.store.schedule("mail", name="hourly", every=timedelta(hours=1))
        setting.store.schedule("mail", name="hourly", every=timedelta(hours=1))
        with pytest.raises(ScheduleExists):
            setting.store.schedule("mail", name="hourly", every=timedelta(hours=2))
        for given in ({}, {"cron": "no"}, {"cron": "0 8 * * *", "every": timedelta(hours=1)},
                      {"every": timedelta(0)}, {"cron": "0 8 * * *", "timezone": "Nowhere"}):  # fmt: skip
            with pytest.raises(InvalidSchedule):
                setting.store.schedule("mail", name="other", **given)
        with pytest.raises(UnknownTopic):
            setting.store.schedule("nothing", name="other", every=timedelta(hours=1))
        store = setting.store
        for call in (store.pause_schedule, store.resume_schedule, store.remove_schedule, store.send_schedule):
            with pytest.raises(UnknownSchedule):
                call("nothing")


def test_a_record_is_named_by_its_text_too(setting: Setting) -> None:
    setting.store.create_topic("named")
    first, second = (setting.store.send("named", b"x", delay=60) for _ in range(2))
    again = setting.store.reschedule(str(first), delay=90)
    assert CancelResult.CANCELLED == setting.store.cancel(str(again))
    assert CancelResult.CANCELLED == setting.store.cancel(second)
