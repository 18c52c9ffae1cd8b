from __future__ import annotations

import gc
import threading

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.locks import Condition
from afterlog.log.background import Background
from tests.support import NOW_MS, Gate, eventually
from tests.support import Background as Call


class Work:
    """Counts how often it was done; may be held at a gate."""

    def __init__(self) -> None:
        self.done = 0
        self.gate: Gate | None = None

    def __call__(self) -> None:
        if self.gate is not None:
            self.gate.passing()
        self.done += 1


def test_it_begins_when_it_is_woken_and_not_before() -> None:
    work = Work()
    background = Background("x", work)
    assert "x" not in [thread.name for thread in threading.enumerate()]
    background.wake()
    eventually(lambda: work.done == 1)
    background.wake()
    eventually(lambda: work.done == 2)
    background.stop()
    assert "x" not in [thread.name for thread in threading.enumerate()]


def test_woken_while_it_works_it_works_once_more() -> None:
    work = Work()
    work.gate = Gate()
    background = Background("x", work)
    background.wake()
    work.gate.came()
    background.wake()
    background.wake()
    work.gate.open()
    eventually(lambda: work.done == 2)
    background.stop()
    assert 2 == work.done


def test_what_it_does_not_expect_ends_a_turn_and_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    background = Background("x", lambda: work() or fail(work.done))
    background.wake()
    eventually(lambda: "given up until its next turn" in caplog.text)
    background.wake()
    eventually(lambda: work.done == 2)
    background.stop()
    assert "MemoryError" in caplog.text


def fail(times: int) -> None:
    if times == 1:
        raise MemoryError


def test_stop_waits_for_what_is_being_done() -> None:
    work = Work()
    work.gate = Gate()
    background = Background("x", work)
    background.wake()
    work.gate.came()
    stopping = Call(background.stop)
    eventually(lambda: background._stopped)
    assert (0, True) == (work.done, stopping.is_alive())
    work.gate.open()
    stopping.answer()
    assert 1 == work.done


def test_stopped_it_is_woken_no_more() -> None:
    work = Work()
    background = Background("x", work)
    background.stop()
    background.wake()
    assert (0, None) == (work.done, background._thread)


class TurnedClock(ManualClock):
    """Its monotonic time is turned by hand, too. `waits` counts."""

    waits = 0

    def monotonic_s(self) -> float:
        return self.now_ms() / 1_000

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        self.waits += 1
        super().wait(condition, None, None)


def test_time_wakes_it() -> None:
    """Once it has begun; no sooner than its interval."""
    work, clock = Work(), TurnedClock(NOW_MS)
    background = Background("x", work, clock=clock, interval_ms=500)
    background.wake()
    for number in range(1, 4):
        eventually(lambda: (work.done, clock.waits) == (number, 2 * number - 1))  # noqa: B023
        clock.advance(499)
        eventually(lambda: clock.waits == 2 * number)  # noqa: B023
        assert number == work.done
        clock.advance(1)
    background.stop()


class Owner:
    done = 0


def test_it_keeps_nobody_alive() -> None:
    owners, clock = [Owner()], TurnedClock(NOW_MS)
    background = Background.weakly(
        "x", owners[0], lambda held: setattr(held, "done", held.done + 1), clock=clock, interval_ms=500
    )
    eventually(lambda: clock.waits == 1)
    clock.advance(500)
    eventually(lambda: owners[0].done == 1)
    owners.clear()
    gc.collect()
    thread = background._thread
    assert thread is not None
    eventually(lambda: not thread.is_alive())
    background.stop()


def test_it_works_when_an_instant_has_come_that_may_move() -> None:
    clock, work, due_ms = ManualClock(NOW_MS), Work(), [NOW_MS + 1_000]

    def done() -> None:
        work()
        due_ms[0] += 5_000

    background = Background("x", done, clock=clock, left_ms=lambda: due_ms[0] - clock.now_ms())
    background.begin()
    clock.advance(999)
    assert 0 == work.done
    clock.advance(1)
    eventually(lambda: work.done == 1)
    due_ms[0] = clock.now_ms() + 10
    clock.advance(10)
    eventually(lambda: work.done == 2)
    background.stop()
