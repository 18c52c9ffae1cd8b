"""The clocks: who is woken when, and what is taken for a jump."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable

import pytest

from afterlog.base import clock as clock_module
from afterlog.base.clock import (
    INT64_MAX,
    STEP_MS,
    Clock,
    JumpGuard,
    ManualClock,
    ScaledClock,
    StepWatch,
    SystemClock,
    check_deliver_after,
)
from afterlog.base.errors import InvalidDeliverAfter
from afterlog.base.locks import Condition
from tests import campaigns
from tests.support import eventually

PATIENCE_S = 20.0
FAR_MS = INT64_MAX


def waits(clock: Clock, until_ms: int | None, timeout_s: float | None) -> float:
    """Seconds that one wait took."""
    condition = Condition()
    started = time.monotonic()
    with condition:
        clock.wait(condition, until_ms, timeout_s)
    return time.monotonic() - started


def until(clock: Clock, condition: Condition, until_ms: int, entered: threading.Event) -> Callable[[], None]:
    """What a consumer does: wait in a loop until its time has come."""

    def run() -> None:
        with condition:
            entered.set()
            while clock.now_ms() < until_ms:
                clock.wait(condition, until_ms, None)

    return run


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(5), ScaledClock(5, 1.0), ScaledClock(5, 1e6)])
class TestEveryClock:
    def test_a_wait_for_what_has_come_returns_at_once(self, clock: Clock) -> None:
        assert waits(clock, 0, None) < 0.3
        assert waits(clock, clock.now_ms(), None) < 0.3

    def test_a_timeout_ends_a_wait(self, clock: Clock) -> None:
        for timeout_s in (-1.0, 0.0, 0.001):
            assert waits(clock, INT64_MAX, timeout_s) < 0.3
            assert waits(clock, None, timeout_s) < 0.3

    def test_patience_never_runs_backwards(self, clock: Clock) -> None:
        readings = [clock.monotonic_s() for _ in range(100)]
        assert sorted(readings) == readings

    def test_how_long_it_takes_until_an_instant(self, clock: Clock) -> None:
        now_ms = clock.now_ms()
        assert 0.0 == clock.seconds_until(0) == clock.seconds_until(now_ms)
        found_s = clock.seconds_until(clock.now_ms() + 60_000)
        if isinstance(clock, ManualClock):
            assert math.inf == found_s
        else:  # it may run fast, and goes on meanwhile
            speed = getattr(clock, "speed", 1.0)
            assert (0.0 if speed > 1.0 else 50.0) <= found_s <= 60.0 / speed

    def test_who_watches_it_may_leave(self, clock: Clock) -> None:
        leave = clock.watch(lambda: None)
        leave()
        leave()

    def test_readings_are_whole_milliseconds(self, clock: Clock) -> None:
        assert (int, int) == (type(clock.now_ms()), type(clock.boot_ms()))

    def test_a_notified_waiter_wakes(self, clock: Clock) -> None:
        condition, entered, woken = Condition(), threading.Event(), threading.Event()

        def run() -> None:
            with condition:
                entered.set()
                while not woken.is_set():
                    clock.wait(condition, INT64_MAX, None)

        thread = threading.Thread(target=run)
        thread.start()
        assert entered.wait(PATIENCE_S)
        with condition:
            woken.set()
            condition.notify_all()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


class TestSystemClock:
    def test_it_tells_the_time(self) -> None:
        before, now_ms, after = time.time(), SystemClock().now_ms(), time.time()
        assert int(before * 1000) <= now_ms <= after * 1000
        assert SystemClock().boot_ms() >= time.monotonic() * 1000 - 1

    def test_a_wait_ends_when_its_time_has_come(self) -> None:
        clock = SystemClock()
        due_ms = clock.now_ms() + 30
        run = until(clock, Condition(), due_ms, threading.Event())
        run()
        assert due_ms <= clock.now_ms() < due_ms + 1_000


class Stepped:
    """A watch over clocks that are turned by hand; it looks every millisecond."""

    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.elapsed_ms = 500
        self.looks = 0
        self.watch = StepWatch(self._looked, lambda: self.elapsed_ms, 0.001)

    def _looked(self) -> int:
        self.looks += 1
        return self.wall_ms

    def waiting(self, condition: Condition) -> tuple[threading.Thread, list[float]]:
        """Who waits for twenty seconds; how long that took."""
        entered, took = threading.Event(), list[float]()

        def wait() -> None:
            started = time.monotonic()
            with condition:
                entered.set()
                self.watch.wait(condition, FAR_MS, PATIENCE_S)
            took.append(time.monotonic() - started)

        thread = threading.Thread(target=wait)
        thread.start()
        assert entered.wait(PATIENCE_S)
        with condition:  # from here on it waits
            pass
        return thread, took


class TestStepWatch:
    @pytest.mark.parametrize("ms", [STEP_MS, -STEP_MS, 3_600_000])
    def test_a_step_of_the_wall_clock_wakes_all_who_wait(self, ms: int) -> None:
        """The machine slept, too: its wall clock has gone on, and elapsed time has not."""
        setting = Stepped()
        first, *others = [setting.waiting(Condition()) for _ in range(3)]
        first[0].join(0.05)  # it may have been woken by the first look
        others += [setting.waiting(Condition()) for _ in range(2)]
        setting.wall_ms += ms
        for thread, took in (first, *others):
            thread.join(PATIENCE_S)
            assert took[0] < PATIENCE_S / 2
        assert {} == setting.watch._waiting

    def test_a_step_just_before_it_is_watched_is_no_wait(self) -> None:
        """Whoever waits has reckoned by the clock of before."""
        setting, condition = Stepped(), Condition()
        setting.wall_ms += 3_600_000
        started = time.monotonic()
        with condition:
            setting.watch.wait(condition, setting.wall_ms - 1, PATIENCE_S)
        assert time.monotonic() - started < PATIENCE_S / 2

    def test_time_that_goes_by_wakes_nobody(self) -> None:
        setting, condition, over, wakes = Stepped(), Condition(), threading.Event(), list[int]()

        def wait() -> None:
            with condition:
                while not over.is_set():
                    setting.watch.wait(condition, FAR_MS, PATIENCE_S)
                    wakes.append(setting.looks)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: len(wakes) == 1)  # by the first look
        for _ in range(5):
            looks = setting.looks
            setting.elapsed_ms, setting.wall_ms = setting.elapsed_ms + STEP_MS // 4, setting.wall_ms + STEP_MS // 4
            eventually(lambda: setting.looks > looks + 3)  # noqa: B023
        assert 1 == len(wakes)
        with condition:
            over.set()
            condition.notify_all()
        thread.join(PATIENCE_S)
        assert 2 == len(wakes)

    def test_who_has_a_timer_is_called(self) -> None:
        setting, called = Stepped(), threading.Semaphore(0)
        leave = setting.watch.watch(called.release)
        assert called.acquire(timeout=PATIENCE_S), "a step before the first look is seen, too"
        setting.wall_ms += STEP_MS
        assert called.acquire(timeout=PATIENCE_S)
        leave()
        assert {} == setting.watch._waiting

    def test_its_thread_ends_where_nobody_waits_and_begins_again(self) -> None:
        setting = Stepped()
        for _ in range(2):
            thread, took = setting.waiting(Condition())
            setting.wall_ms += STEP_MS
            thread.join(PATIENCE_S)
            assert took[0] < PATIENCE_S / 2
            eventually(lambda: setting.watch._thread is None)

    def test_who_gets_no_thread_looks_for_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        setting = Stepped()

        def refused() -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(setting.watch, "_begin", refused)
        thread, took = setting.waiting(Condition())
        thread.join(PATIENCE_S)
        assert took[0] < PATIENCE_S / 2

    def test_a_system_clock_is_watched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watched = list[float]()
        monkeypatch.setattr(clock_module._WATCH, "wait", lambda condition, until_ms, seconds: watched.append(seconds))
        clock = SystemClock()
        waits(clock, clock.now_ms() + 100, None)
        assert [] == watched
        waits(clock, clock.now_ms() + 3_600_000, None)
        waits(clock, clock.now_ms() + 3_600_000, 5.0)
        assert [20.0, 5.0] == watched


class TestManualClock:
    def test_it_stands_still_until_it_is_turned(self) -> None:
        clock = ManualClock(1_000)
        assert (1_000, 1_000) == (clock.now_ms(), clock.boot_ms())
        clock.advance(500)
        assert 1_500 == clock.now_ms()
        clock.set(20)
        assert 20 == clock.now_ms()
        clock.advance(-5)
        assert 15 == clock.now_ms()

    def test_who_watches_it_is_called_whenever_it_is_turned(self) -> None:
        clock, seen = ManualClock(1_000), list[int]()
        leave = clock.watch(lambda: seen.append(clock.now_ms()))
        clock.advance(5)
        clock.step(-10)
        clock.set(2_000)
        leave()
        clock.advance(1)
        assert [1_005, 995, 2_000] == seen

    @pytest.mark.parametrize("turn", ["advance", "set"])
    def test_it_wakes_those_who_wait_in_other_threads(self, turn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "afterlog.base.clock._WAIT_S_MAX", PATIENCE_S
        )  # so that looking again is not what wakes them
        clock = ManualClock()
        threads = []
        for due_ms in (10, 20, 20):
            entered = threading.Event()
            condition = Condition()
            threads.append(threading.Thread(target=until(clock, condition, due_ms, entered)))
            threads[-1].start()
            assert entered.wait(PATIENCE_S)
            with condition:  # from here on it waits
                pass
        started = time.monotonic()
        clock.advance(10) if turn == "advance" else clock.set(10)
        threads[0].join(PATIENCE_S)
        assert [False, True, True] == [thread.is_alive() for thread in threads]
        clock.advance(10) if turn == "advance" else clock.set(20)
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
        assert time.monotonic() - started < PATIENCE_S / 2

    def test_no_turn_is_lost_between_threads(self) -> None:
        clock = ManualClock()

        def turn() -> None:
            for _ in range(1_000):
                clock.advance(1)

        threads = [threading.Thread(target=turn) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 4_000 == clock.now_ms()

    def test_it_forgets_those_who_are_gone(self) -> None:
        clock = ManualClock()
        for _ in range(10):
            waits(clock, 0, None)
        assert 0 == len(clock._waiting)


class TestScaledClock:
    def test_it_starts_where_told_and_runs_faster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ns = 5_000_000_000
        monkeypatch.setattr("time.monotonic_ns", lambda: ns)
        clock = ScaledClock(1_000, 60.0)
        assert 1_000 == clock.now_ms() == clock.boot_ms()
        ns += 1_000_000_000
        assert 61_000 == clock.now_ms() == clock.boot_ms()

    def test_a_wait_is_shorter_by_as_much(self) -> None:
        clock = ScaledClock(0, 100_000.0)
        assert waits(clock, clock.now_ms() + 1_000, None) < 0.3

    @pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
    def test_a_speed_is_positive_and_finite(self, speed: float) -> None:
        with pytest.raises(ValueError, match="speed"):
            ScaledClock(0, speed)


class SteppedClock(ManualClock):
    """A wall clock over a boot-time clock; both are turned by `pass_by`, the wall clock alone by `step`."""

    def __init__(self) -> None:
        super().__init__(1_000_000)
        self.boot = 5_000
        self.pauses_ms: list[int] = []

    def pass_by(self, ms: int) -> None:
        self.advance(ms)
        self.boot += ms

    def step(self, ms: int) -> None:
        self.advance(ms)

    def boot_ms(self) -> int:
        """As read; behind each reading comes the next of the pauses."""
        boot = self.boot
        self.pass_by(self.pauses_ms.pop(0) if self.pauses_ms else 0)
        return boot


class TestJumpGuard:
    def test_time_that_passes_is_no_jump(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = SteppedClock()
        guard = JumpGuard(clock, 0)
        for ms in (0, 1, 500, 86_400_000):
            clock.pass_by(ms)
            clock.step(900)  # slewed, less than is reported
            assert clock.now_ms() == guard.now_ms()
        assert (0, 0, []) == (guard.jumps, guard.held_ms, caplog.records)

    def test_a_jump_is_reported_once_and_not_held_without_a_limit(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = SteppedClock()
        guard = JumpGuard(clock, None)
        clock.step(3_600_000)
        with caplog.at_level(logging.WARNING, "afterlog.base.clock"):
            assert clock.now_ms() == guard.now_ms() == guard.now_ms()
        assert (1, 0, ["the wall clock jumped forward by 3600000 ms"]) == (guard.jumps, guard.held_ms, caplog.messages)

    def test_a_jump_beyond_the_limit_is_held_until_confirmed(self) -> None:
        clock = SteppedClock()
        guard = JumpGuard(clock, 60_000)
        clock.step(60_000)
        assert (1_060_000, 0) == (guard.now_ms(), guard.held_ms)
        clock.step(60_001)
        clock.pass_by(500)
        assert (1_060_500, 60_001) == (guard.now_ms(), guard.held_ms)
        clock.pass_by(500)
        assert 1_061_000 == guard.now_ms()
        guard.confirm()
        assert (1_121_001, 0, 2) == (guard.now_ms(), guard.held_ms, guard.jumps)

    def test_a_clock_that_is_set_right_again_is_not_held(self) -> None:
        clock = SteppedClock()
        guard = JumpGuard(clock, 0)
        clock.step(100_000)
        assert 1_000_000 == guard.now_ms()
        clock.step(-40_000)
        assert (1_000_000, 60_000) == (guard.now_ms(), guard.held_ms)
        clock.step(-70_000)
        assert (1_000_000, 0, 10_000) == (guard.now_ms(), guard.held_ms, guard.ahead_ms)

    def test_small_steps_do_not_add_up(self) -> None:
        clock = SteppedClock()
        guard = JumpGuard(clock, 0)
        for ms in (1, 2, -1, *[2] * 1_000):
            clock.step(ms)
            assert clock.now_ms() == guard.now_ms()
        before_ms = guard.now_ms()
        clock.step(60_000)
        assert (before_ms, 60_000, 1) == (guard.now_ms(), guard.held_ms, guard.jumps)

    def test_set_back_it_goes_on_until_the_clock_is_there(self, caplog: pytest.LogCaptureFixture) -> None:
        """At seven eighths of its speed: a delay is that much longer, and no shorter."""
        clock = SteppedClock()
        guard = JumpGuard(clock, 0)
        clock.step(-50_000)
        assert (1_000_000, 50_000, 0) == (guard.now_ms(), guard.ahead_ms, guard.jumps)
        assert ["the wall clock was set back by 50000 ms: going on from where it was, more slowly"] == caplog.messages
        for _ in range(80):
            clock.pass_by(1_000)
            guard.now_ms()
        assert (1_070_000, 40_000) == (guard.now_ms(), guard.ahead_ms)
        clock.pass_by(8 * 40_000)
        assert (clock.now_ms(), 0) == (guard.now_ms(), guard.ahead_ms)

    def test_it_never_goes_back(self) -> None:
        """Whatever is done to the wall clock, beyond what two readings differ by anyway."""
        clock, source, highest_ms = SteppedClock(), random.Random(campaigns.SEED), 0
        guard = JumpGuard(clock, None)
        for _ in range(2_000):
            clock.pass_by(source.choice((0, 1, 7, 1_000)))
            clock.step(source.choice((0, 0, -1, -3, -50, -90_000, 2, 40, 80_000, -31_536_000_000, 31_536_000_000)))
            now_ms = guard.now_ms()
            assert now_ms >= highest_ms - JumpGuard.SLACK_MS
            highest_ms = max(highest_ms, now_ms)

    def test_set_forward_again_it_makes_up_for_the_step_back(self) -> None:
        clock = SteppedClock()
        guard = JumpGuard(clock, 0)
        clock.step(-50_000)
        guard.now_ms()
        clock.step(50_000)
        assert (1_000_000, 0, 0, 0) == (guard.now_ms(), guard.ahead_ms, guard.held_ms, guard.jumps)

    @pytest.mark.parametrize("pause_ms", [600, 10_000, 3_600_000])
    @pytest.mark.parametrize("reading", [0, 1, 2])
    def test_a_pause_between_two_readings_is_no_jump(self, pause_ms: int, reading: int) -> None:
        clock = SteppedClock()
        guard = JumpGuard(clock, 0)
        clock.pauses_ms = [0] * reading + [pause_ms]
        clock.step(900)  # slewed: it is looked at closely
        for _ in range(3):
            before_ms = clock.now_ms()
            assert guard.now_ms() in (before_ms, clock.now_ms())
            clock.pass_by(10)
        assert (0, 0) == (guard.jumps, guard.held_ms)

    def test_a_jump_during_a_pause_is_found_at_the_next_reading(self) -> None:
        clock = SteppedClock()
        guard = JumpGuard(clock, 0)
        clock.step(50_000)
        clock.pauses_ms = [0, 10_000]
        guard.now_ms()
        assert (1_010_000, 1, 50_000) == (guard.now_ms(), guard.jumps, guard.held_ms)


class TestDeliverAfter:
    @pytest.mark.parametrize("ms", [0, 1, INT64_MAX])
    def test_an_instant_is_taken(self, ms: int) -> None:
        assert ms == check_deliver_after(ms)

    @pytest.mark.parametrize("ms", [-1, INT64_MAX + 1, -(2**80), 2**80])
    def test_anything_else_is_refused(self, ms: int) -> None:
        with pytest.raises(InvalidDeliverAfter, match=str(ms)):
            check_deliver_after(ms)
