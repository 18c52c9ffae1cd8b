"""Consumer groups: records in due order, positions, commits, who reads what."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from afterlog.base.errors import (
    GroupBusy,
    InvalidArgument,
    InvalidTopic,
    NameTaken,
    OffsetOutOfRange,
    PositionPending,
    StoreClosed,
    UnknownGroup,
    UnknownPartition,
    WrongType,
)
from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtBrokerTime, AtTime
from tests.conformance.ways import Setting
from tests.support import NOW_MS, PATIENCE_S


@pytest.fixture(autouse=True)
def mail(setting: Setting) -> None:
    setting.store.create_topic("mail")


def send(setting: Setting, *delays: float, topic: str = "mail", **more: Any) -> None:
    for delay in delays:
        setting.store.send(topic, b"%g" % delay, delay=delay, **more)


def polled(consumer: Any, *args: Any, **options: Any) -> list[bytes]:
    return [message.value for message in consumer.poll(*args, **options)]


class TestReading:
    def test_in_due_order_and_never_early(self, setting: Setting) -> None:
        send(setting, 3, 1, 2)
        with setting.store.consumer("mail", group="g") as consumer:
            assert [] == polled(consumer)
            setting.clock.advance(1_999)
            assert [b"1"] == polled(consumer)
            setting.clock.advance(1_001)
            assert [b"2", b"3"] == polled(consumer)
            assert [] == polled(consumer)

    def test_a_poll_gives_no_more_than_is_asked_for(self, setting: Setting) -> None:
        send(setting, *range(1, 6))
        setting.clock.advance(5_000)
        with setting.store.consumer("mail", group="g") as consumer:
            assert [b"1", b"2"] == polled(consumer, 2)
            assert {0: 2} == consumer.positions()
            assert [b"3"] == polled(consumer, 1)
            assert 2 == consumer.lag()
            assert [b"4", b"5"] == polled(consumer)
            assert 0 == consumer.lag()

    def test_columns(self, setting: Setting) -> None:
        send(setting, 1, 2, 3, key=b"k", headers=[("a", b"b")])
        setting.clock.advance(3_000)
        with setting.store.consumer("mail", group="g") as consumer:
            columns = consumer.poll_columns(2)
            assert [b"1", b"2"] == [message.value for message in columns.to_messages()]
            assert [0, 1] == columns.delivery_offset.tolist()
            assert 1 == len(consumer.poll_columns())
            assert 0 == len(consumer.poll_columns())
            assert {0: 3} == consumer.positions()

    def test_all_partitions_or_some(self, setting: Setting) -> None:
        setting.store.create_topic("four", partitions=4)
        for partition in (0, 1, 2, 3):
            send(setting, 0, topic="four", partition=partition)
        with setting.store.consumer("four", group="some", partitions=[2, 0, 2]) as consumer:
            assert {0, 2} == {message.partition for message in consumer.poll()}
            assert {0: 1, 2: 1} == consumer.positions()
        with setting.store.consumer("four", group="all") as consumer:
            assert {0, 1, 2, 3} == {message.partition for message in consumer.poll()}
        for partitions in ([4], [], [-1], ["0"]):
            with pytest.raises(UnknownPartition):
                setting.store.consumer("four", group="g", partitions=partitions)
        with pytest.raises(WrongType):
            setting.store.consumer("four", group="g", partitions=1)

    def test_a_busy_partition_starves_nobody(self, setting: Setting) -> None:
        setting.store.create_topic("two", partitions=2)
        setting.store.send_many("two", [b"x"] * 1_000, partition=0)
        send(setting, 0, topic="two", partition=1)
        with setting.store.consumer("two", group="g") as consumer:
            seen = {message.partition for _ in range(2) for message in consumer.poll()}
        assert {0, 1} == seen

    def test_cancelled_records_are_stepped_over(self, setting: Setting) -> None:
        sent = setting.store.send_many("mail", [b"%d" % number for number in range(5)], delay=1)
        setting.store.cancel_many("mail", 0, sent[[0, 3, 4]])
        setting.clock.advance(1_000)
        with setting.store.consumer("mail", group="g") as consumer:
            assert [b"1", b"2"] == polled(consumer)
            consumer.commit()
            assert 0 == consumer.lag()


class TestWaiting:
    def test_a_poll_waits_for_what_becomes_due(self, setting: Setting) -> None:
        send(setting, 10)
        turned = threading.Timer(0.2, lambda: setting.clock.advance(10_000))
        turned.start()
        with setting.store.consumer("mail", group="g") as consumer:
            assert [b"10"] == polled(consumer, timeout=PATIENCE_S)
        turned.join()

    def test_a_paused_topic_hands_out_nothing(self, setting: Setting) -> None:
        send(setting, 0, 0)
        setting.store.pause("mail")
        with setting.store.consumer("mail", group="g") as consumer:
            assert [] == polled(consumer)
            assert 0 == len(consumer.poll_columns())
            assert 2 == consumer.lag()
            resumed = threading.Timer(0.2, lambda: setting.store.resume("mail"))
            resumed.start()
            assert [b"0", b"0"] == polled(consumer, timeout=PATIENCE_S)
            resumed.join()

    def test_an_iteration_waits_and_is_ended_by_a_close(self, setting: Setting) -> None:
        send(setting, 0, 0)
        consumer = setting.store.consumer("mail", group="g")
        found, closing = [], threading.Timer(0.2, consumer.close)
        for message in consumer:
            found.append(message.value)
            if len(found) == 2:
                closing.start()
        closing.join()
        assert [b"0", b"0"] == found

    def test_no_longer_than_it_is_told(self, setting: Setting) -> None:
        with setting.store.consumer("mail", group="g") as consumer:
            assert [] == polled(consumer, timeout=0.05)
            assert 0 == len(consumer.poll_columns(timeout=0.05))


class TestPositions:
    def test_the_next_consumer_goes_on_behind_what_was_committed(self, setting: Setting) -> None:
        send(setting, *range(4))
        setting.clock.advance(4_000)
        with setting.store.consumer("mail", group="g", auto_commit=False) as consumer:
            assert {0: None} == consumer.committed()
            consumer.poll(2)
            consumer.commit()
            consumer.poll(1)
            assert ({0: 2}, {0: 3}) == (consumer.committed(), consumer.positions())
        with setting.store.consumer("mail", group="g") as consumer:
            assert {0: 2} == consumer.committed()
            assert [b"2", b"3"] == polled(consumer)
        assert ["g"] == setting.store.groups("mail")

    def test_leaving_the_block_commits_what_was_handed_out(self, setting: Setting) -> None:
        send(setting, 0, 0, 0)
        with setting.store.consumer("mail", group="g") as consumer:
            consumer.poll(2)
        with setting.store.consumer("mail", group="g") as consumer:
            assert {0: 2} == consumer.committed()

    def test_what_raised_comes_again(self, setting: Setting) -> None:
        send(setting, 0, 0, 0)
        consumer = setting.store.consumer("mail", group="g")
        consumer.poll(1)
        consumer.poll(1)
        consumer.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        with setting.store.consumer("mail", group="g") as consumer:
            assert {0: 1} == consumer.committed()

    @pytest.mark.parametrize(
        ("position", "expected"),
        [
            (EARLIEST, [0, 1, 2, 3]),
            (LATEST, [3]),
            (2, [2, 3]),
            (AtTime(NOW_MS + 1_000), [1, 2, 3]),
            (AtTime("2023-11-14T22:13:22Z"), [2, 3]),
            (AfterOffset(1), [2, 3]),
            (AtBrokerTime(NOW_MS), [0, 1, 2, 3]),
        ],
    )
    def test_a_group_begins_and_seeks_anywhere(self, setting: Setting, position: Any, expected: list[int]) -> None:
        send(setting, 0, 1, 2, 3)
        setting.clock.advance(2_000)
        with setting.store.consumer("mail", group="new", start=position) as consumer:
            setting.clock.advance(1_000)
            assert expected == [message.offset for message in consumer.poll()]
            consumer.seek(0)
            assert [0, 1, 2, 3] == [message.offset for message in consumer.poll()]
            setting.clock.set(NOW_MS + 2_000)
            if position is not LATEST:
                consumer.seek(position, partition=0)
                assert expected == [message.offset for message in consumer.poll()]

    def test_where_nobody_can_stand(self, setting: Setting) -> None:
        send(setting, 0, 60)
        with setting.store.consumer("mail", group="g") as consumer:
            with pytest.raises(OffsetOutOfRange) as raised:
                consumer.seek(3)
            assert (3, 0) == (raised.value.position, raised.value.log_start)
            with pytest.raises(PositionPending):
                consumer.seek(2)
            with pytest.raises(UnknownPartition):
                consumer.seek(0, partition=1)
            with pytest.raises(InvalidArgument):
                consumer.seek("nowhere")
            assert [b"0"] == polled(consumer)

    def test_a_group_is_reset_and_deleted(self, setting: Setting) -> None:
        send(setting, 0, 0)
        with setting.store.consumer("mail", group="g") as consumer:
            consumer.poll()
            consumer.commit()
            for call in (
                lambda: setting.store.reset_group("mail", "g", 0),
                lambda: setting.store.delete_group("mail", "g"),
            ):
                with pytest.raises(GroupBusy):
                    call()
        setting.store.reset_group("mail", "g", 1)
        with setting.store.consumer("mail", group="g") as consumer:
            assert {0: 1} == consumer.positions()
        setting.store.delete_group("mail", "g")
        assert [] == setting.store.groups("mail")
        with pytest.raises(UnknownGroup):
            setting.store.reset_group("mail", "g", 0)
        with pytest.raises(UnknownGroup):
            setting.store.delete_group("mail", "g")


class TestWhoReads:
    def test_a_partition_is_one_consumers(self, setting: Setting) -> None:
        setting.store.create_topic("two", partitions=2)
        with setting.store.consumer("two", group="g", partitions=[0]):
            with pytest.raises(GroupBusy):
                setting.store.consumer("two", group="g")
            setting.store.consumer("two", group="g", partitions=[1]).close()
            setting.store.consumer("two", group="other").close()
        setting.store.consumer("two", group="g").close()

    def test_a_name_is_a_groups_or_a_subscriptions(self, setting: Setting) -> None:
        setting.store.subscribe("mail", "s").close()
        with pytest.raises(NameTaken):
            setting.store.consumer("mail", group="s")
        with pytest.raises(InvalidTopic):
            setting.store.consumer("mail", group="a/b")

    def test_a_closed_one(self, setting: Setting) -> None:
        send(setting, 0)
        with setting.store.consumer("mail", group="g") as consumer:
            consumer.poll()
        consumer.close()
        for call in (consumer.poll, consumer.poll_columns, consumer.commit):
            with pytest.raises(StoreClosed):
                call()
        assert [] == list(consumer)
