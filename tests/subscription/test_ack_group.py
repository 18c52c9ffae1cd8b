"""Acks of blocks that go together: when they go, and what becomes of them where they cannot."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS
from afterlog.base.errors import InvalidSubscription, StorageFull
from afterlog.fetch.positions import LATEST
from afterlog.store.store import open_store
from afterlog.subscription.ack_group import MESSAGES_MAX, AckGroup
from afterlog.subscription.subscription import Subscription
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.subscription.support import RETRY
from tests.support import NOW_MS, PATH, Calls, killed, open_small, small

GROUP_MS = 50


class Ended:
    """A message whose block has ended, as far as a group looks at it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.settled = False

    def settle(self) -> None:
        self.settled = True


class Group:
    """A group, its clock, and what it has sent."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.sent = list[list[int]]()
        self.woken = 0
        self.fault: Exception | None = None
        self.group = AckGroup(GROUP_MS, self._send, boot_ms=self.clock.boot_ms)
        self.group.wake = self._wake

    def add(self, *numbers: int) -> list[bool]:
        return [self.group.add(Ended(number)) for number in numbers]

    def _send(self, messages: list[Ended]) -> None:
        if self.fault is not None:
            raise self.fault
        self.sent.append([each.number for each in messages])

    def _wake(self) -> None:
        self.woken += 1


class TestGroups:
    def test_they_go_when_the_first_has_waited(self) -> None:
        setting = Group()
        assert setting.group.keep() is None
        assert [True] == setting.add(1)
        setting.clock.advance(GROUP_MS - 1)
        assert [True] == setting.add(2)
        assert (1, 1) == (setting.group.keep(), setting.woken)
        setting.clock.advance(1)
        assert setting.group.keep() is None
        assert [[1, 2]] == setting.sent
        assert [True] == setting.add(3)
        assert (GROUP_MS, 2) == (setting.group.keep(), setting.woken)

    def test_what_is_added_is_settled(self) -> None:
        setting, message = Group(), Ended(1)
        assert setting.group.add(message)
        assert message.settled

    def test_a_group_has_an_end(self) -> None:
        setting, message = Group(), Ended(-1)
        assert all(setting.add(*range(MESSAGES_MAX)))
        assert not setting.group.add(message)
        assert not message.settled
        setting.group.flush()
        assert [[*range(MESSAGES_MAX)]] == setting.sent
        assert [True] == setting.add(0)

    def test_a_close_sends_what_waits_and_takes_no_more(self) -> None:
        setting = Group()
        setting.add(1)
        setting.group.close()
        assert ([[1]], [False]) == (setting.sent, setting.add(2))

    def test_what_could_not_be_sent_goes_first_the_next_time(self, caplog: pytest.LogCaptureFixture) -> None:
        setting = Group()
        setting.add(1, 2)
        setting.fault = StorageFull("no room", path=PATH)
        with pytest.raises(StorageFull):
            setting.group.flush()
        setting.clock.advance(GROUP_MS)
        with caplog.at_level(logging.ERROR):
            assert setting.group.keep() == 1_000
        assert "2 acks wait: " in caplog.text
        setting.fault = None
        setting.add(3)
        setting.group.flush()
        assert [[1, 2, 3]] == setting.sent


def reader(store: Any, **options: Any) -> Subscription:
    return cast(Subscription, store.subscribe("t", "s", retry=RETRY, lease_ms=10_000, **options))


class TestOfASubscription:
    def filled(self, disk: Any, **options: Any) -> Any:
        store = open_store(PATH, small(**options), ManualClock(NOW_MS), disk)
        store.create_topic("t")
        store.send_many("t", [b"%d" % number for number in range(10)])
        return store

    def test_a_block_leaves_its_ack_to_the_group(self) -> None:
        """Until then it is leased, whoever looks; the reader's own statistics ack it first."""
        with self.filled(SimulatedFiles()) as store:
            grouped, other = reader(store, ack_group_ms=2_500), reader(store)
            for message in grouped.receive(4):
                with message:
                    pass
                assert message.settled
            assert (4, 0) == (other.stats().leased, other.stats().acked)
            assert (0, 4) == (grouped.stats().leased, grouped.stats().acked)

    def test_its_thread_sends_them(self) -> None:
        with self.filled(SimulatedFiles()) as store:
            grouped, other = reader(store, ack_group_ms=2_500), reader(store)
            for message in grouped.receive(4):
                with message:
                    pass
            keeper = store._subscriptions.keeper
            keeper.stop()  # here it looks when it is told to
            keeper.look()
            assert 0 == other.stats().acked
            store.clock.advance(2_500)
            keeper.look()
            assert 4 == other.stats().acked

    @pytest.mark.parametrize("end", ["close", "drain", "seek", "store"])
    def test_whatever_ends_it_sends_them_first(self, end: str) -> None:
        disk = SimulatedFiles()
        with self.filled(disk) as store:
            grouped = reader(store, ack_group_ms=2_500)
            received = grouped.receive(4)
            for message in [*received][:3]:
                with message:
                    pass
            if end == "seek":
                grouped.seek(LATEST)
            elif end != "store":
                getattr(grouped, end)()
        with open_small(disk, ManualClock(NOW_MS)) as store:
            assert reader(store).stats().acked >= 3

    def test_a_block_that_ends_behind_the_close_acks(self) -> None:
        with self.filled(SimulatedFiles()) as store:
            grouped, other = reader(store, ack_group_ms=2_500), reader(store)
            [message] = grouped.receive(1)
            with message:
                grouped.close()
            assert 1 == other.stats().acked

    def test_who_dies_before_has_acked_nothing(self) -> None:
        disk = SimulatedFiles()
        store = self.filled(disk, durability=ALWAYS)
        grouped = reader(store, ack_group_ms=2_500)
        for message in grouped.receive(4):
            with message:
                pass
        with open_small(killed(disk), ManualClock(NOW_MS)) as again:
            assert [b"%d" % number for number in range(4)] == [each.value for each in reader(again).receive(4)]

    def test_a_full_disk_is_told_where_it_is_flushed(self) -> None:
        disk, calls = SimulatedFiles(), Calls()
        with self.filled(FailingFiles(disk, calls)) as store:
            grouped = reader(store, ack_group_ms=2_500)
            for message in grouped.receive(4):
                with message:
                    pass
            calls.fail("append", "", StorageFull("no room", path=PATH))
            with pytest.raises(StorageFull):
                grouped.stats()
            assert 4 == grouped.stats().acked

    def test_without_a_thread_each_acks_by_itself(self) -> None:
        with open_small(SimulatedFiles(), ManualClock(NOW_MS)) as store:
            store.create_topic("t")
            store.send("t", b"x")
            grouped, other = reader(store, ack_group_ms=2_500), reader(store)
            [message] = grouped.receive(1)
            with message:
                pass
            assert (None, 1) == (grouped.group, other.stats().acked)

    def test_no_longer_than_a_quarter_of_the_lease(self) -> None:
        with open_small(SimulatedFiles(), ManualClock(NOW_MS)) as store:
            store.create_topic("t")
            for span in (2_501, -1):
                with pytest.raises(InvalidSubscription):
                    reader(store, ack_group_ms=span)
