from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap64

from afterlog.index.entries import Keys
from afterlog.subscription.ack_set import AckSet
from afterlog.subscription.events import Acked, Leased, Reason, Returned
from afterlog.subscription.state import SubscriptionState
from afterlog.subscription.timers import Timers, at_once_ms, deadline_ms
from tests.subscription.samples import returned


def leased(*offsets: int) -> SubscriptionState:
    state = SubscriptionState(AckSet())
    state.apply(Leased(max(offsets) + 1, BitMap64(offsets)))
    return state


def rows(due: Keys) -> list[tuple[int, int]]:
    return list(zip(due.deliver_after.tolist(), due.offset.tolist(), strict=True))


@pytest.mark.parametrize("lease_ms", [1, 9, 1_280, 30_000, 3_600_000])
def test_deadlines_are_never_early_and_hardly_late(lease_ms: int) -> None:
    times = range(1_000_000, 1_000_000 + lease_ms, lease_ms // 500 + 1)
    deadlines = {deadline_ms(now_ms, lease_ms) for now_ms in times}
    for now_ms in range(1_000_000, 1_001_000, 7):
        late_ms = deadline_ms(now_ms, lease_ms) - now_ms - lease_ms
        assert 0 <= late_ms < max(lease_ms / 128, 10)
    assert len(deadlines) <= 256


def test_leases_end() -> None:
    state = leased(0, 1, 2, 3, 4)
    timers = Timers(state)
    timers.lease(100, BitMap64([0, 1, 2]))
    timers.lease(100, BitMap64([3]))
    timers.lease(200, BitMap64([4]))
    timers.check()
    state.apply(Acked(BitMap64([1])))
    assert 100 == timers.next_ms()
    timers.unlease(BitMap64([2, 4]))
    timers.lease(300, BitMap64([2, 4]))
    timers.check()
    assert [] == list(timers.expired(99))
    assert [(100, [0, 3])] == [(ms, list(offsets)) for ms, offsets in timers.expired(100)]
    state.apply(Acked(BitMap64([2])))
    assert 300 == timers.next_ms()
    state.apply(Acked(BitMap64([4])))
    assert timers.next_ms() is None


def test_an_expired_lease_stays_until_it_was_dealt_with() -> None:
    timers = Timers(leased(0))
    timers.lease(100, BitMap64([0]))
    for _ in range(2):
        ended_ms, offsets = next(timers.expired(100))
        assert (100, [0]) == (ended_ms, list(offsets))


def test_retries() -> None:
    state = leased(0, 1, 2, 3)
    state.apply(returned(Reason.NACKED, 0, 1, 2, retry_ms=101))
    timers = Timers(state)
    timers.lease(500, BitMap64([3]))
    timers.check()
    assert 110 == timers.next_ms()
    assert not timers.has_due(109)
    state.apply(Acked(BitMap64([0])))
    due = timers.due(110, 1)
    assert [(110, 1)] == rows(due)
    timers.put_back(due)
    state.apply(Leased(4, BitMap64([2])))
    assert [(110, 1)] == rows(timers.due(200, 5))
    assert [] == rows(timers.due(200, 5))
    timers.retry(np.array([at_once_ms(119)]), np.array([1]))
    assert not timers.has_due(109)
    assert timers.has_due(110)
    assert timers.memory_bytes() > 0


@pytest.mark.parametrize("precision_ms", [1, 10, 1_000])
def test_retries_are_never_early_and_late_by_less_than_the_precision(precision_ms: int) -> None:
    state = leased(*range(60))
    timers = Timers(state, precision_ms)
    asked = {offset: 5_000 + 37 * offset * (1 + offset % 3) for offset in range(60)}
    for offset, retry_ms in asked.items():
        state.apply(returned(Reason.NACKED, offset, retry_ms=retry_ms))
        timers.retry(np.array([retry_ms]), np.array([offset]))
    for now_ms in range(4_000, 13_000):
        for _, offset in rows(timers.due(now_ms, 100)):
            assert asked[offset] <= now_ms < asked[offset] + precision_ms
            del asked[offset]
    assert {} == asked
    now_ms = at_once_ms(13_999, precision_ms)
    state.apply(Leased(60, BitMap64([0])))
    state.apply(returned(Reason.RELEASED, 0, retry_ms=now_ms))
    timers.retry(np.array([now_ms]), np.array([0]))
    assert timers.has_due(13_999)


def test_retries_come_in_one_order_however_they_came_in() -> None:
    state = leased(*range(60))
    state.apply(Returned(Reason.CRASHED, np.arange(20), np.arange(20), 2_001 - 100 * np.arange(20)))
    timers = Timers(state)
    timers.lease(9_000, BitMap64(range(20, 60)))
    scattered_ms = 7_919 * np.arange(20) % 2_000
    for offset, retry_ms in ((np.arange(20, 40), np.full(20, 1_000)), (np.arange(40, 60), scattered_ms)):
        state.apply(Returned(Reason.NACKED, offset, offset, retry_ms))
        timers.unlease(BitMap64(offset))
        timers.retry(retry_ms, offset)
    timers.check()
    retry_ms = state.redeliveries.rows().retry_ms.tolist()
    expected = sorted((-(-ms // 10) * 10, offset) for offset, ms in enumerate(retry_ms))
    taken = []
    while len(taken) < 60:
        assert expected[len(taken)][0] == timers.next_ms()
        due = timers.due(1_000 if len(taken) < 21 else 3_000, 7)
        state.apply(Leased(60, BitMap64(np.sort(due.offset))))
        timers.lease(9_000, BitMap64(np.sort(due.offset)))
        timers.check()
        taken += rows(due)
    assert expected == taken
