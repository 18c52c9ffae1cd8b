from __future__ import annotations

from dataclasses import replace

import pytest

from afterlog.base.errors import InvalidTopic, RemoteRefused, RemoteUnavailable
from afterlog.fetch.partition import Partition
from afterlog.log.remote_copy import NO_REMOTE_LOG
from afterlog.log.snapshot import open_snapshot
from afterlog.tier.offload import Offloader
from afterlog.tier.remote_segment import SegmentState
from tests.support import Background, Gate, drained, eventually
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore, HeldLogs, hold
from tests.tier.memory_store import Unreachable
from tests.tier.small_store import TOPIC, SmallStore, opened
from tests.tier.support import PARTITION


def tiered() -> SmallStore:
    """Three segments in the storage alone, and records behind them."""
    setting = opened()
    setting.segments(3)
    setting.clock.advance(5)
    setting.offload()
    setting.store.send("mail", b"here")
    return setting


class TestThread:
    def test_a_roll_wakes_it(self) -> None:
        setting = SmallStore()
        setting.store = setting.opened(setting.disk, setting.storage, background=True)
        setting.store.create_topic("mail", **TOPIC)
        setting.segment((b"a", 0))
        eventually(lambda: len(setting.manifest.listed()) == 1)
        setting.segment((b"b", 0))
        eventually(lambda: len(setting.manifest.listed()) == 2)
        setting.store.close()

    def test_a_failure_is_logged_and_the_next_time_is_another(self, caplog: pytest.LogCaptureFixture) -> None:
        setting, down = SmallStore(), [True]
        remote = FaultyRemoteStore(setting.storage, lambda operation, call: Fault.BEFORE if down[0] else None)
        down[0] = False
        setting.store = setting.opened(setting.disk, remote, background=True)
        setting.store.create_topic("mail", **TOPIC)
        down[0] = True
        setting.segment((b"a", 0))
        eventually(lambda: "not offloaded" in caplog.text)
        down[0] = False
        setting.segment((b"b", 0))
        eventually(lambda: len(setting.manifest.listed()) == 2)
        setting.store.close()

    def test_close_waits_for_one_request_only(self) -> None:
        setting, gate = SmallStore(), Gate()
        remote = FaultyRemoteStore(setting.storage, hold("put", gate, 2))
        setting.store = setting.opened(setting.disk, remote, background=True)
        setting.store.create_topic("mail", **TOPIC)
        setting.segment((b"a", 0))
        gate.came()
        closing = Background(setting.store.close)
        eventually(lambda: setting.store.tiering is not None and setting.store.tiering._closed)
        gate.open()
        closing.answer()
        assert [SegmentState.COPY_STARTED] == [row.state for row in setting.manifest.read()]
        assert 3 == len([key for key in setting.storage.objects if key.startswith(PARTITION)])


class TestReadersThatWait:
    def test_nobody_else_is_held_up(self) -> None:
        setting = tiered()
        setting.store.close()
        gate = Gate()
        setting.open(HeldLogs(setting.storage, gate))
        slow = Background(lambda: drained(setting.partition, 0))
        gate.came()
        setting.store.send("mail", b"new")
        assert [b"here", b"new"] == drained(setting.partition, 6)
        setting.partition.log.roll()
        setting.store.send("mail", b"newer")
        setting.partition.log.checkpoint()
        assert [b"here", b"new", b"newer"] == drained(setting.partition, 6)
        assert 0 == setting.partition.pending()
        gate.open()
        assert [b"0", b"0'", b"1"] == slow.answer()[:3]

    def test_who_is_far_behind_goes_on_where_it_was(self) -> None:
        setting, down = tiered(), [False]
        setting.store.close()
        setting.open(FaultyRemoteStore(setting.storage, lambda operation, call: Fault.BEFORE if down[0] else None))
        consumer = setting.store.consumer("mail", group="g", auto_commit=False)
        down[0] = True
        for _ in range(2):
            with pytest.raises(RemoteUnavailable) as caught:
                consumer.poll(2)
            assert caught.value.retriable
        assert {0: 0} == consumer.positions()
        assert [b"here"] == drained(setting.partition, 6)
        down[0] = False
        values = [message.value for messages in iter(lambda: consumer.poll(2), []) for message in messages]
        assert [b"0", b"0'", b"1", b"2", b"1'", b"2'", b"here"] == values
        consumer.close()

    def test_a_subscription_in_the_tier(self) -> None:
        setting = tiered()
        with setting.store.subscribe("mail", "s") as subscription:
            first = subscription.receive(3)
            assert [b"0", b"0'", b"1"] == [message.value for message in first]
            subscription.ack(first[0])
            subscription.nack(first[1], delay=1)
        setting.reopened()
        setting.clock.advance(60_000)
        with setting.store.subscribe("mail", "s") as subscription:
            values = {message.value for message in subscription.receive(100)}
        assert {b"0'", b"1", b"1'", b"2", b"2'", b"here"} == values


class TestWithoutTheStorage:
    def test_opened_without_one(self) -> None:
        setting = tiered()
        setting.store.close()
        setting.store = setting.opened(setting.disk, None)
        assert 7 == setting.store.send("mail", b"more").offset
        assert [b"here", b"more"] == drained(setting.partition, 6)
        assert 0 == setting.partition.log_start
        for call in (lambda: setting.partition.fetch(0), lambda: setting.store.offload()):
            with pytest.raises(RemoteRefused, match="remote="):
                call()
        with pytest.raises(InvalidTopic, match="remote="):
            setting.store.create_topic("other", **TOPIC)
        setting.store.create_topic("local").partition(0).log.roll()
        setting.segments(1)
        setting.store.close()
        setting.open()
        assert 1 == setting.offload().uploaded
        assert 10 == len(setting.drained())

    def test_looked_at_from_outside(self) -> None:
        """A snapshot reads through where it is handed the storage, and says what it lacks where it is not."""
        setting = tiered()
        setting.partition.log.checkpoint()
        context, now_ms, written = setting.partition.log.context, setting.clock.now_ms(), len(setting.disk.operations)
        through = Partition("mail", 0, open_snapshot(context, at_ms=now_ms))
        assert setting.drained() == drained(through)
        without = Partition("mail", 0, open_snapshot(replace(context, remote=NO_REMOTE_LOG), at_ms=now_ms))
        assert (7, [b"here"]) == (without.high_watermark(), drained(without, 6))
        with pytest.raises(RemoteRefused):
            drained(without)
        assert written == len(setting.disk.operations)

    def test_opened_while_it_is_down(self) -> None:
        setting = tiered()
        setting.reopened(Unreachable())
        setting.segments(1)
        setting.clock.advance(5)
        assert [b"here", b"0", b"0'"] == drained(setting.partition, 6)
        with pytest.raises(RemoteUnavailable) as caught:
            setting.partition.fetch(0)
        assert caught.value.retriable
        with pytest.raises(RemoteUnavailable):
            setting.store.create_topic("other", **TOPIC)
        assert ["mail"] == [topic.name for topic in setting.store.topics()]


class TestPartsOfIt:
    def test_offloaders_are_those_of_the_topics_that_want_it(self) -> None:
        setting = opened()
        setting.store.create_topic("local").partition(0)
        setting.store.topic("mail").partition(0)
        assert setting.store.tiering is not None
        assert isinstance(setting.store.tiering.offloader("mail", 0), Offloader)
        assert setting.store.tiering.offloader("local", 0) is None
        assert [PARTITION] == [*setting.store.offload()]
