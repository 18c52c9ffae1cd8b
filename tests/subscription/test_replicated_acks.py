"""What other clusters are told of: what was acked, and nothing that was only passed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from afterlog.fetch.positions import EARLIEST, LATEST
from afterlog.subscription.replicated_acks import ReplicatedAcks
from afterlog.subscription.subscription import Subscription
from tests.subscription.support import Setting
from tests.support import killed


def acks_of(subscription: Subscription) -> ReplicatedAcks:
    [part] = subscription.parts()
    return ReplicatedAcks(part)


def told(acks: ReplicatedAcks) -> set[int]:
    return {offset for offsets in acks.look().values() for offset in offsets}


@pytest.fixture
def setting() -> Setting:
    """Twenty records in segments of ten, all due."""
    setting = Setting()
    for first in (0, 10):
        setting.send(*(b"%d" % number for number in range(first, first + 10)))
        setting.store.topic("mail").log(0).roll()
    setting.clock.advance(10_000)
    return setting


def retained(setting: Setting) -> None:
    setting.store.alter_topic("mail", retention_ms=1)
    assert setting.store.enforce_retention()


PASSING: dict[str, Callable[[Setting, Subscription], object]] = {
    "retention": lambda setting, subscription: retained(setting),
    "purge": lambda setting, subscription: setting.store.topic("mail").partition(0).purge(15),
    "seek": lambda setting, subscription: subscription.seek(15),
}


@pytest.mark.parametrize("way", PASSING)
@pytest.mark.parametrize("reopened", [False, True])
def test_what_is_passed_is_acked_nowhere_else(setting: Setting, way: str, reopened: bool) -> None:
    subscription = setting.subscribe()
    acks = acks_of(subscription)
    subscription.ack_many(subscription.receive(3))
    assert ({0, 1, 2}, 3) == (told(acks), acks.mark_delete())
    leased = subscription.receive(2)
    PASSING[way](setting, subscription)
    assert set() == told(acks)
    assert 3 == acks.mark_delete()
    setting.send(b"behind")
    del leased
    if reopened:
        subscription.close()
        setting.store.close()
        setting.open(killed(setting.disk))
        subscription = setting.subscribe()
        acks = acks_of(subscription)
        assert told(acks) <= {0, 1, 2}
        assert acks.mark_delete() <= 3
    behind = [message for message in subscription.receive(30) if message.value == b"behind"]
    subscription.ack_many(behind)
    assert {message.offset for message in behind} == told(acks) & {20}
    assert acks.mark_delete() <= 3


BEFORE_IT: dict[str, Callable[[Setting], object]] = {
    "retention": retained,
    "purge": lambda setting: setting.store.topic("mail").partition(0).purge(15),
    "latest": lambda setting: None,
}


@pytest.mark.parametrize("way", BEFORE_IT)
@pytest.mark.parametrize("reopened", [False, True])
def test_what_was_before_its_beginning_is_acked_nowhere_else(setting: Setting, way: str, reopened: bool) -> None:
    """Nobody has acked that, and where it is still there readers get it."""
    BEFORE_IT[way](setting)
    start = LATEST if way == "latest" else EARLIEST
    subscription = setting.subscribe(start=start)
    setting.send(b"behind")
    acks = acks_of(subscription)
    if reopened:
        subscription.close()
        setting.store.close()
        setting.open(killed(setting.disk))
        subscription = setting.subscribe(start=start)
        acks = acks_of(subscription)
    assert set() == told(acks)
    messages = subscription.receive(30)
    assert b"behind" == messages[-1].value
    subscription.ack_many(messages)
    assert {message.offset for message in messages} == told(acks)
    assert 0 == acks.mark_delete()


@pytest.mark.parametrize("reopened", [False, True])
def test_the_mark_goes_over_what_is_gone_and_was_acked(setting: Setting, reopened: bool) -> None:
    """Retention leaves holes in append order, and a log start behind some of what is in the segments."""
    setting.send(*(b"later %d" % number for number in range(5)), after_ms=50_000)
    setting.send(b"now")
    subscription = setting.subscribe()
    acks = acks_of(subscription)
    subscription.ack_many(subscription.receive(30))
    assert {*range(20), 25} == told(acks)
    assert 20 == acks.mark_delete()
    setting.store.topic("mail").partition(0).purge(21)
    setting.clock.advance(60_000)
    if reopened:
        subscription.close()
        setting.store.close()
        setting.open(killed(setting.disk))
        subscription = setting.subscribe()
        acks = acks_of(subscription)
        told(acks)
    subscription.ack_many(subscription.receive(30))
    assert {*range(20, 25)} == told(acks)
    assert 26 == acks.mark_delete() == setting.store.topic("mail").log(0).written


def test_seeks_are_remembered(setting: Setting) -> None:
    """Forward they pass something, back to before it nothing is passed any more."""
    subscription = setting.subscribe()
    [part] = subscription.parts()
    subscription.seek(15)
    assert (15, 15) == (part.acks().position, part.acks().sought)
    subscription.seek(4)
    assert (4, 4) == (part.acks().position, part.acks().sought)
    subscription.seek(0)
    assert (0, 0) == (part.acks().position, part.acks().sought)
    assert not part.acks().lost
    assert not np.any(part.acked(np.arange(3)))
