from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import ClockBehind
from afterlog.log.checkpoints import FrontierLease
from afterlog.log.log_clock import BEHIND_MS_MAX, LogClock


class Wall:
    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def log_clock(wall: Wall, used_ms: int = 0, lease_ms: int = 0, last_stamp_ms: int = 0) -> LogClock:
    return LogClock(wall, FrontierLease(used_ms=used_ms, lease_ms=lease_ms), last_stamp_ms)


def test_stamps_follow_the_wall_clock_but_never_back() -> None:
    wall = Wall(100)
    clock = log_clock(wall)
    assert 100 == clock.stamp(1)
    wall.ms = 90
    assert 100 == clock.stamp(2)
    wall.ms = 120
    assert 120 == clock.stamp(3)
    assert 120 == clock.last_stamp_ms
    clock.check()


@pytest.mark.parametrize(("lease_ms", "last_stamp_ms"), [(500, 0), (0, 500), (500, 400), (300, 500)])
def test_stamps_go_on_behind_the_lease_and_the_last_stamp_of_the_life_before(lease_ms: int, last_stamp_ms: int) -> None:
    wall = Wall(100)
    clock = log_clock(wall, used_ms=200, lease_ms=lease_ms, last_stamp_ms=last_stamp_ms)
    assert 500 == clock.stamp(1)
    wall.ms = 501
    assert 501 == clock.stamp(2)


def test_due_readings_go_on_at_the_wall_clock_after_a_crash_but_not_below_used() -> None:
    wall = Wall(100)
    clock = log_clock(wall, used_ms=200, lease_ms=500)
    assert 200 == clock.due()
    wall.ms = 300
    assert 300 == clock.due() == clock.used_ms
    wall.ms = 250
    assert 300 == clock.due()


def test_a_stamp_is_never_below_a_due_reading_before_it() -> None:
    wall = Wall(100)
    clock = log_clock(wall)
    assert 100 == clock.due()
    wall.ms = 50
    assert 100 == clock.stamp(1)


def test_an_append_in_flight_holds_due_back() -> None:
    wall = Wall(100)
    clock = log_clock(wall)
    clock.stamp(1)
    wall.ms = 150
    clock.stamp(2)
    wall.ms = 200
    assert 100 == clock.due()
    clock.landed(0)
    assert 100 == clock.due()
    assert [False, True, True] == [clock.holds_back(ms) for ms in (99, 100, 150)]
    clock.landed(1)
    assert 150 == clock.due()
    clock.check()
    clock.landed(2)
    assert 200 == clock.due()
    assert not clock.holds_back(1_000)


def test_what_comes_is_stamped_from_settled_on() -> None:
    wall = Wall(100)
    clock = log_clock(wall, used_ms=50, lease_ms=120)
    assert 120 == clock.settled_ms
    wall.ms = 150
    assert 150 == clock.due() == clock.settled_ms
    clock.stamp(1)
    wall.ms = 200
    clock.stamp(2)
    assert 150 == clock.settled_ms  # the first is not visible yet
    clock.landed(1)
    assert 200 == clock.settled_ms
    clock.landed(2)
    assert 200 == clock.settled_ms == clock.stamp(3)


def test_a_withdrawn_append_holds_nothing_back() -> None:
    wall = Wall(100)
    clock = log_clock(wall)
    clock.stamp(1)
    wall.ms = 150
    clock.stamp(2)
    clock.withdrawn()
    clock.landed(1)
    wall.ms = 200
    assert 200 == clock.due()
    assert 200 == clock.stamp(2)


def test_a_clean_close_keeps_the_lease_of_a_life_that_crashed() -> None:
    wall = Wall(1_000)
    assert FrontierLease(used_ms=1_000, lease_ms=1_000) == after_due(log_clock(wall, 200, 500)).frontier()
    wall.ms = 300
    assert FrontierLease(used_ms=300, lease_ms=500) == after_due(log_clock(wall, 200, 500)).frontier()


def after_due(clock: LogClock) -> LogClock:
    clock.due()
    return clock


def test_a_wall_clock_far_behind_delivers_nothing_until_it_has_caught_up() -> None:
    wall = Wall(0)
    clock = log_clock(wall, used_ms=BEHIND_MS_MAX, lease_ms=BEHIND_MS_MAX + 1)
    with pytest.raises(ClockBehind, match="over an hour behind") as raised:
        clock.due()
    assert raised.value.retriable
    assert BEHIND_MS_MAX + 1 == clock.stamp(1)
    clock.landed(1)
    wall.ms = 1
    assert BEHIND_MS_MAX == clock.due()


def test_check_sees_a_reading_above_an_append_in_flight() -> None:
    wall = Wall(100)
    clock = log_clock(wall)
    clock.stamp(1)
    clock.used_ms = 101
    with pytest.raises(AssertionError):
        clock.check()


@given(st.lists(st.tuples(st.sampled_from(["stamp", "due", "land", "withdraw", "crash", "close"]), st.integers(0, 50))))
def test_the_four_invariants_hold_in_any_life(steps: list[tuple[str, int]]) -> None:
    """With the lease renewed before a reading is used, as the timeline does it, and every stamp durable."""
    wall, durable, stamps, readings, end = Wall(0), FrontierLease(), [0], [0], 0
    in_flight: list[int] = []
    clock = log_clock(wall)
    for step, ms in steps:
        wall.ms = ms
        if step == "stamp":
            end += 1
            stamps.append(clock.stamp(end))
            in_flight.append(stamps[-1])
            assert stamps[-1] >= stamps[-2]
            assert stamps[-1] >= max(readings)
        elif step == "due":
            reading = clock.due()
            assert reading >= readings[-1]
            assert all(reading <= stamp for stamp in in_flight)
            if reading > durable.lease_ms:
                durable = FrontierLease(used_ms=reading, lease_ms=reading + 5)
            readings.append(reading)
        elif step == "land":
            clock.landed(end)
            in_flight = []
        elif step == "withdraw" and in_flight:
            clock.withdrawn()
            in_flight.pop()
        elif step in ("crash", "close"):
            if step == "close":
                durable = clock.frontier()
            clock = LogClock(wall, durable, stamps[-1])
            in_flight, readings = [], [*readings, 0] if step == "crash" else readings
        clock.check()
