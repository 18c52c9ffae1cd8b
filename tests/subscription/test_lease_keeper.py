from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.clock import ManualClock
from afterlog.store.store import open_store
from afterlog.subscription.lease_keeper import KeptLeases
from afterlog.subscription.leased_message import LeasedMessage
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.subscription.support import Setting, handling, values
from tests.support import NOW_MS, PATH, eventually, small

LEASE_MS = 9_000


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.check()
    setting.store.close()


def look(setting: Setting) -> None:
    """What the thread does, when it does."""
    keeper = setting.store._subscriptions.keeper
    assert keeper is not None
    keeper.look()


def later(setting: Setting, ms: int) -> None:
    setting.clock.advance(ms)
    look(setting)


def slow_handlers_are_not_run_twice(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")
    with setting.subscribe(lease_ms=LEASE_MS) as sub, setting.subscribe() as other:
        first, second, third = sub.receive()
        with handling(first), handling(second):
            for _ in range(20):
                later(setting, LEASE_MS // 3)
                assert [] == [each for each in other.receive() if each.value != b"c"]
            assert second.deadline_ms == first.deadline_ms == third.deadline_ms
        assert 2 == sub.stats().acked
        assert sub.stats().expired, "what is in no block is kept by nobody"


def what_was_released_is_somebody_elses(setting: Setting) -> None:
    """It goes out again with the same receipt: who kept it would keep it for the other."""
    setting.send(b"a")
    with setting.subscribe(lease_ms=LEASE_MS) as sub, setting.subscribe(lease_ms=LEASE_MS) as other:
        [message] = sub.receive()
        with handling(message):
            sub.release(message)
            [again] = other.receive()
            assert 0 == again.redelivery_count
            for _ in range(4):
                later(setting, LEASE_MS // 3)
            assert [1] == [each.redelivery_count for each in other.receive()], "its lease has ended"


SCENARIOS = [slow_handlers_are_not_run_twice, what_was_released_is_somebody_elses]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(setting: Setting, scenario: Callable[[Setting], None]) -> None:
    scenario(setting)


def forgets_one(kept: KeptLeases, message: LeasedMessage, now_ms: int, real: Any = KeptLeases._is_due) -> bool:
    return message.value != b"b" and bool(real(kept, message, now_ms))


def test_planted_bug_is_caught() -> None:
    """That it kept what is settled would not be one: the receipt is of a lease that has ended."""
    caught = 0
    for scenario in SCENARIOS:
        with patch.object(KeptLeases, "_is_due", forgets_one):
            try:
                scenario(Setting())
            except AssertionError:
                caught += 1
    assert caught


def test_no_longer_than_max_lease_ms(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe(lease_ms=LEASE_MS, max_lease_ms=30_000) as sub, setting.subscribe() as other:
        [message] = sub.receive()
        with handling(message):
            for _ in range(9):
                later(setting, 3_000)
                assert not other.receive()
            later(setting, 3_100)
            [again] = other.receive()
            assert 1 == again.redelivery_count
        assert (1, 0) == (sub.stats().acked, sub.stats().leased), "an ack counts, whoever has it"


def test_what_nobody_wants_to_be_kept(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe(lease_ms=LEASE_MS, auto_extend=False) as sub, setting.subscribe() as other:
        [message] = sub.receive()
        with handling(message):
            later(setting, LEASE_MS // 2)
            later(setting, LEASE_MS)
            assert [b"a"] == values(other.receive())


def test_no_lease_is_made_shorter(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe(lease_ms=LEASE_MS, max_lease_ms=20_000) as sub, setting.subscribe() as other:
        [message] = sub.receive()
        with handling(message):
            sub.extend(message, lease_ms=100_000)
            for _ in range(33):
                later(setting, 3_000)
                assert not other.receive()


def test_what_waits_behind_a_slow_handler_goes_to_another_reader(setting: Setting) -> None:
    setting.send(*[b"%d" % number for number in range(7)])
    with setting.subscribe(lease_ms=LEASE_MS) as sub, setting.subscribe() as other:
        messages = iter(sub)
        for _ in range(3):
            with next(messages):
                pass
        with handling(next(messages)):
            later(setting, LEASE_MS // 3)
            assert [] == [*other.receive()]
            later(setting, LEASE_MS // 3)
            assert [0, 0, 0] == [each.redelivery_count for each in other.receive()]


def test_it_sleeps_while_no_block_is_open(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe(lease_ms=LEASE_MS) as sub:
        keeper = setting.store._subscriptions.keeper
        assert keeper is not None
        assert keeper.left_ms() is None
        with handling(sub.receive()[0]):
            assert sub.blocks.asleep, "its thread sets that"
            look(setting)
            assert (False, LEASE_MS // 3) == (sub.blocks.asleep, keeper.left_ms())
        look(setting)
        assert (True, None) == (sub.blocks.asleep, keeper.left_ms())


def test_the_thread() -> None:
    clock = ManualClock(NOW_MS)
    with open_store(PATH, small(), clock, SimulatedFiles()) as store:
        store.create_topic("mail")
        store.send("mail", b"a")
        with store.subscribe("mail", "s", lease_ms=LEASE_MS) as sub, store.subscribe("mail", "s") as other:
            assert "afterlog-leases" not in {thread.name for thread in threading.enumerate()}
            [message] = sub.receive()
            with handling(message):
                keeper = store._subscriptions.keeper
                assert keeper is not None
                for _ in range(7):
                    eventually(lambda: (keeper.left_ms() or 0) > 0)
                    clock.advance(LEASE_MS // 3)
                eventually(lambda: (keeper.left_ms() or 0) > 0)
                assert not other.receive()
            assert (1, 0) == (sub.stats().acked, sub.stats().expired)
    assert "afterlog-leases" not in {thread.name for thread in threading.enumerate()}
