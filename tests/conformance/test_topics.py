"""Topics: made, listed, altered, purged, deleted."""

from __future__ import annotations

import pytest

from afterlog.base.errors import (
    InvalidTopic,
    TopicBusy,
    TopicExists,
    TopicFull,
    UnknownPartition,
    UnknownTopic,
    WrongType,
)
from afterlog.fetch.positions import LATEST
from tests.conformance.ways import Setting


class TestCreating:
    def test_a_topic_has_its_settings(self, setting: Setting) -> None:
        made = setting.store.create_topic("mail", partitions=3, retention_ms=60_000, max_delay_ms=1_000)
        there = setting.store.topic("mail")
        for topic in (made, there):
            assert ("mail", 3) == (topic.name, topic.partition_count)
            assert (3, True, 60_000, 1_000) == (
                topic.settings.partitions, topic.settings.delayed, topic.settings.retention_ms,
                topic.settings.max_delay_ms,
            )  # fmt: skip
        assert made.settings == there.settings

    def test_the_same_again_is_the_one_that_is_there(self, setting: Setting) -> None:
        first = setting.store.create_topic("mail", partitions=2)
        assert first.settings == setting.store.create_topic("mail", partitions=2).settings
        with pytest.raises(TopicExists):
            setting.store.create_topic("mail", partitions=3)

    def test_many_are_made_together_or_not_at_all(self, setting: Setting) -> None:
        assert ["b", "a"] == [topic.name for topic in setting.store.create_topics(["b", "a"], delayed=False)]
        with pytest.raises(TopicExists):
            setting.store.create_topics(["c", "a"])
        assert ["a", "b"] == [topic.name for topic in setting.store.topics()]
        assert [False, False] == [topic.settings.delayed for topic in setting.store.topics()]

    @pytest.mark.parametrize("name", ["", "-a", "a/b", "ä", "x" * 250])
    def test_what_is_no_name(self, setting: Setting, name: str) -> None:
        with pytest.raises(InvalidTopic):
            setting.store.create_topic(name)

    def test_what_is_no_setting(self, setting: Setting) -> None:
        for settings in ({"partitions": 0}, {"retention_ms": -1}, {"max_delay_ms": 1, "delayed": False}):
            with pytest.raises(InvalidTopic):
                setting.store.create_topic("mail", **settings)
        with pytest.raises(WrongType):
            setting.store.create_topics("mail")
        assert [] == list(setting.store.topics())


class TestAskingFor:
    def test_one_that_is_not_there(self, setting: Setting) -> None:
        for call in (
            lambda: setting.store.topic("mail"),
            lambda: setting.store.alter_topic("mail", retention_ms=1),
            lambda: setting.store.delete_topic("mail"),
            lambda: setting.store.purge("mail"),
            lambda: setting.store.clean("mail"),
            lambda: setting.store.pending("mail"),
            lambda: setting.store.subscriptions("mail"),
            lambda: setting.store.groups("mail"),
            lambda: setting.store.subscribe("mail", "s"),
            lambda: setting.store.consumer("mail", group="g"),
            lambda: setting.store.held_bytes("mail"),
        ):
            with pytest.raises(UnknownTopic):
                call()

    def test_where_a_key_belongs(self, setting: Setting) -> None:
        topic = setting.store.create_topic("mail", partitions=4)
        for key in (b"", b"a", b"u-1", b"\xff" * 100):
            assert topic.partition_of(key) == setting.store.send("mail", b"x", key=key).partition
        assert 3 == topic.checked_partition(3)
        with pytest.raises(UnknownPartition):
            topic.checked_partition(4)


class TestAltering:
    def test_what_is_left_out_stays(self, setting: Setting) -> None:
        setting.store.create_topic("mail", retention_ms=60_000)
        altered = setting.store.alter_topic("mail", max_delay_ms=5, partitions=2)
        assert (60_000, 5, 2) == (
            altered.settings.retention_ms, altered.settings.max_delay_ms, altered.partition_count
        )  # fmt: skip
        assert altered.settings == setting.store.topic("mail").settings
        assert setting.store.alter_topic("mail", max_delay_ms=None).settings.max_delay_ms is None

    def test_partitions_are_not_taken_away(self, setting: Setting) -> None:
        setting.store.create_topic("mail", partitions=2)
        with pytest.raises(InvalidTopic):
            setting.store.alter_topic("mail", partitions=1)
        assert 2 == setting.store.topic("mail").partition_count

    def test_records_go_to_the_partitions_that_came(self, setting: Setting) -> None:
        setting.store.create_topic("mail")
        setting.store.send("mail", b"x")
        setting.store.alter_topic("mail", partitions=3)
        assert {0, 1, 2} == {setting.store.send("mail", b"x").partition for _ in range(6)}


class TestDeleting:
    def test_its_name_is_free_then(self, setting: Setting) -> None:
        setting.store.create_topic("mail", partitions=2)
        setting.store.send("mail", b"x", delay=60, partition=1)
        setting.store.delete_topic("mail")
        with pytest.raises(UnknownTopic):
            setting.store.send("mail", b"x")
        setting.store.create_topic("mail")
        assert [] == setting.store.pending("mail")
        assert 0 == setting.store.send("mail", b"y").offset

    def test_one_that_is_read_only_by_force(self, setting: Setting) -> None:
        setting.store.create_topic("mail")
        consumer = setting.store.consumer("mail", group="g")
        with pytest.raises(TopicBusy):
            setting.store.delete_topic("mail")
        setting.store.delete_topic("mail", force=True)
        assert [] == list(setting.store.topics())
        del consumer


class TestPurging:
    def test_what_is_due_goes(self, setting: Setting) -> None:
        setting.store.create_topic("mail")
        for delay in (0, 0, 60):
            setting.store.send("mail", b"x", delay=delay)
        setting.clock.advance(1)
        assert 1 == setting.store.purge("mail", 1)
        assert 1 == setting.store.purge("mail", LATEST)
        assert 1 == len(setting.store.pending("mail"))
        assert 1 == setting.store.purge("mail", pending=True)
        assert [] == setting.store.pending("mail")

    def test_one_partition(self, setting: Setting) -> None:
        setting.store.create_topic("mail", partitions=2)
        for partition in (0, 1, 1):
            setting.store.send("mail", b"x", partition=partition)
        assert 2 == setting.store.purge("mail", partition=1)
        with pytest.raises(UnknownPartition):
            setting.store.purge("mail", partition=2)


class TestLimits:
    def test_a_full_topic_takes_no_more(self, setting: Setting) -> None:
        setting.store.create_topic("mail", max_pending=2)
        for _ in range(2):
            setting.store.send("mail", b"x", delay=60)
        with pytest.raises(TopicFull, match="max_pending is 2"):
            setting.store.send("mail", b"x", delay=60)
        setting.store.send("mail", b"x")
        setting.store.alter_topic("mail", max_pending=3)
        setting.store.send("mail", b"x", delay=60)
        assert 3 == setting.store.topic("mail").settings.max_pending


class TestCleaning:
    def test_what_is_to_come_stays(self, setting: Setting) -> None:
        setting.store.create_topic("mail", partitions=2, retention_ms=0, segment_ms=1)
        for delay in (0, 0, 60, 0, 0):
            setting.store.send("mail", b"x" * 100, delay=delay, partition=1)
        setting.clock.advance(10)
        assert 0 == setting.store.clean("mail", partition=0)
        assert 400 < setting.store.clean("mail")
        assert 0 == setting.store.clean("mail")
        assert [2] == [each.offset for each in setting.store.pending("mail")]
        with setting.store.consumer("mail", group="g") as consumer:
            assert [] == [*consumer.poll(9)]
            setting.clock.advance(60_000)
            assert [2] == [message.offset for message in consumer.poll(9)]

    def test_no_such_partition(self, setting: Setting) -> None:
        setting.store.create_topic("mail")
        with pytest.raises(UnknownPartition):
            setting.store.clean("mail", partition=1)


def test_a_name_is_found_among_the_topics(setting: Setting) -> None:
    store = setting.store
    store.create_topic("orders")
    found = store.topics()
    assert "orders" in found
    assert found[0] in found
    assert "order" not in found
    assert None not in found
