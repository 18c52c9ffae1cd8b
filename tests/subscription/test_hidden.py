"""A subscription that was given what nobody may see, by a version that lost what was cancelled: it heals."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from pyroaring import BitMap64

from afterlog.base.clock import ManualClock
from afterlog.offline.locked_store import OfflineStore
from afterlog.records.control import ControlType
from afterlog.subscription.events import Leased, Reason, Returned
from afterlog.subscription.subscription import Subscription
from tests.subscription.support import Setting, values
from tests.support import NOW_MS, PATH, killed

MARKER, CANCELLED, CONTROL = 1, 3, 4
"""Delivery offsets, and offsets, of what nobody may see."""


@pytest.fixture
def setting() -> Setting:
    """a, a marker, b, c that was cancelled, the control batch that says so, d."""
    setting = Setting()
    log = setting.store.topic("mail").log(0)
    setting.send(b"a")
    log.append_note(ControlType.ACKED, b"{}")
    setting.send(b"b")
    setting.send(b"c", after_ms=100)
    assert [0] == setting.store.topic("mail").partition(0).cancel(np.array([CANCELLED])).tolist()
    setting.clock.advance(200)
    setting.send(b"d")
    return setting


def leased(setting: Setting, *, nacked: bool) -> Subscription:
    """A subscription that has leased all of it; nacked: and given it back, knowing where it lies."""
    subscription = setting.subscribe()
    [part] = subscription.parts()
    hidden = np.array([MARKER, CANCELLED, CONTROL])
    part._journaled.record(Leased(6, BitMap64(range(6))))
    part._timers.lease(NOW_MS + 10_000, BitMap64(range(6)))
    if nacked:
        part._journaled.record(Returned(Reason.NACKED, hidden, hidden, np.full(3, NOW_MS)))
        part._timers.unlease(BitMap64(hidden))
        part._timers.retry(np.full(3, NOW_MS), hidden)
    return subscription


def heals(setting: Setting, subscription: Subscription, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        received = subscription.receive(10)
    assert [b"a", b"b", b"d"] == values(received)
    assert "were leased by an older version" in caplog.text
    subscription.ack_many(received)
    stats = subscription.stats()
    assert (0, 0, 0) == (stats.pending, stats.leased, stats.retrying)
    setting.store.check()
    assert not [*told(setting)]


def told(setting: Setting) -> list[str]:
    with OfflineStore(PATH, killed(setting.disk), ManualClock(NOW_MS + 1_000)) as store:
        return [finding.message for finding in store.verify()]


@pytest.mark.parametrize("nacked", [False, True])
def test_what_a_lease_ends_of(setting: Setting, caplog: pytest.LogCaptureFixture, nacked: bool) -> None:
    subscription = leased(setting, nacked=nacked)
    with pytest.raises(AssertionError, match="what is hidden is nobody's"):
        setting.store.check()
    setting.clock.advance(20_000)
    heals(setting, subscription, caplog)


@pytest.mark.parametrize("nacked", [False, True])
def test_what_a_life_left_behind(setting: Setting, caplog: pytest.LogCaptureFixture, nacked: bool) -> None:
    leased(setting, nacked=nacked)
    setting.store.topic("mail").log(0).checkpoint()  # behind which nothing is looked into
    assert any("3 records that it has not acked are cancelled, or markers" in message for message in told(setting))
    setting.open(killed(setting.disk))
    heals(setting, setting.subscribe(), caplog)
