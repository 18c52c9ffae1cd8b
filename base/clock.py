"""Time as an argument: what a log asks of a clock, and the three clocks that answer.

All times are int64 milliseconds since the epoch, UTC. `now_ms` decides what is due; `wait` and `monotonic_s` measure
how long to wait. The two never mix: a wall clock may step, a wait may not.

    SystemClock()                  the wall clock
    ManualClock(ms)                stands still until `set` or `advance`; wakes whoever waits
    ScaledClock(start_ms, speed)   starts at start_ms and runs `speed` times as fast as real time

`JumpGuard` watches a clock against the boot-time clock, which counts sleep too and cannot be set: what it shows never
goes back.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from threading import current_thread
from typing import Protocol, runtime_checkable

from afterlog.base.errors import InvalidDeliverAfter
from afterlog.base.locks import Condition, Thread

logger = logging.getLogger("afterlog.base.clock")

INT64_MAX = 2**63 - 1
_WAIT_S_MAX = 0.5
"""After this long the wall clock is looked at again, so that a step of it is seen by who waits for an instant."""

_IDLE_WAIT_S_MAX = 20.0
"""Any wait ends after this long, so that what was not notified, for an exception in the middle, is seen. Larger: a
thousand who wait cost less, what was lost is found later."""
STEP_MS = 20
"""By how much the wall clock must differ from elapsed time to have been stepped: more than two readings do."""
_ROUNDS_ALONE = 20
"""Looks of a watch at which nobody waits, until its thread ends."""


def _wait_s_max(until_ms: int | None, timeout_s: float | None) -> float:
    longest = _IDLE_WAIT_S_MAX if until_ms is None else _WAIT_S_MAX
    return longest if timeout_s is None else min(timeout_s, longest)


@runtime_checkable
class Clock(Protocol):
    """What a store needs of time. Implementations are thread-safe."""

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch. May step backwards."""

    def monotonic_s(self) -> float:
        """Seconds of patience: never runs backwards, unrelated to the epoch."""

    def boot_ms(self) -> int:
        """Ms since some fixed instant, counting sleep, which nobody can set; `now_ms` is held against it."""

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        """Wait on `condition` (held by the caller) until notified, or `now_ms` may be `until_ms`, or after `timeout_s`.

        May return early for no reason: callers loop.
        """

    def seconds_until(self, ms: int) -> float:
        """How long it takes until `now_ms` is `ms`, whole milliseconds of it, unless somebody sets it; inf: it stands
        still. For who waits by a timer of its own, and looks again then."""

    def watch(self, stepped: Callable[[], object]) -> Callable[[], object]:
        """Call `stepped`, from any thread, when it was set, until what this returns is called."""


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""macOS has only the latter, and counts sleep."""


class StepWatch:
    """Looks whether the wall clock was stepped, for all who wait for an instant: one thread of the process.

    Each would else look for itself, twice a second: a thousand who wait for tomorrow cost a tenth of a core. Also after
    a sleep of the machine, which elapsed time does not count. It begins with the first who waits, and ends when nobody
    has for a while; a forked child has none, and begins its own. No lock: who waits is put into a dict, and taken out.
    """

    def __init__(self, wall_ms: Callable[[], int], elapsed_ms: Callable[[], int], period_s: float) -> None:
        self._wall_ms = wall_ms
        self._elapsed_ms = elapsed_ms
        self._period_s = period_s
        self._waiting: dict[object, Callable[[], object]] = {}
        self._thread: Thread | None = None

    def watch(self, stepped: Callable[[], object]) -> Callable[[], object]:
        """Call `stepped` when it was stepped, until what this returns is called. Where there can be no more threads
        nobody looks, until somebody waits again."""
        name = object()
        self._waiting[name] = stepped
        with contextlib.suppress(RuntimeError):
            self._look()
        return lambda: self._waiting.pop(name, None)

    def wait(self, condition: Condition, until_ms: int, seconds: float) -> None:
        """Wait on `condition`, held by the caller: until notified, for so long, or until it may be that instant.

        How long that is, is asked of the clock once a step of it would be told: so none comes in between.
        """
        name = object()
        self._waiting[name] = functools.partial(_stir, condition)
        try:
            seconds = min(seconds, max(until_ms - self._wall_ms(), 0) / 1000)
            try:
                self._look()
            except RuntimeError:  # no more threads: it looks for itself
                seconds = min(seconds, self._period_s)
            condition.wait(seconds)
        finally:
            self._waiting.pop(name, None)

    def _look(self) -> None:
        """From a thread, which is there from now on. Raises RuntimeError where there can be no more."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._begin()

    def _begin(self) -> None:
        thread = Thread(target=self._run, name="afterlog-clock", daemon=True)
        self._thread = thread
        thread.start()

    def _run(self) -> None:
        lead_ms, alone = self._wall_ms() - self._elapsed_ms(), 0
        for stepped in [*self._waiting.copy().values()]:  # a step before the first look is seen, too
            stepped()
        me, sleep = current_thread(), Condition()
        while self._thread is me and alone < _ROUNDS_ALONE:
            with sleep:
                sleep.wait(self._period_s)
            before_ms, lead_ms = lead_ms, self._wall_ms() - self._elapsed_ms()
            waiting = self._waiting.copy()
            alone = 0 if waiting else alone + 1
            if abs(lead_ms - before_ms) >= STEP_MS:
                for stepped in waiting.values():
                    stepped()
        if self._thread is me:
            self._thread = None  # who comes now begins another
            if self._waiting:  # who came just before saw this one
                with contextlib.suppress(RuntimeError):  # no more threads: whoever waits next tries again
                    self._begin()


def _stir(condition: Condition) -> None:
    with condition:
        condition.notify_all()


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def seconds_until(self, ms: int) -> float:
        return max(ms - self.now_ms(), 0) / 1000

    def watch(self, stepped: Callable[[], object]) -> Callable[[], object]:
        return _WATCH.watch(stepped)

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        wait_s = _IDLE_WAIT_S_MAX if timeout_s is None else min(timeout_s, _IDLE_WAIT_S_MAX)
        if until_ms is None:
            condition.wait(wait_s)
            return
        wait_s = min(wait_s, self.seconds_until(until_ms))
        if wait_s <= _WAIT_S_MAX:
            condition.wait(wait_s)
        else:
            _WATCH.wait(condition, until_ms, wait_s)


_WATCH = StepWatch(SystemClock().now_ms, lambda: time.monotonic_ns() // 1_000_000, _WAIT_S_MAX)


class ManualClock:
    """A clock that tests turn by hand: `set` forward and `advance` let time go by; `step`, and a `set` backward, are
    what a hand at the wall clock does, of which the boot-time clock knows nothing.

    >>> clock = ManualClock(1_000)
    >>> clock.advance(500)
    >>> clock.now_ms()
    1500
    """

    def __init__(self, ms: int = 0) -> None:
        self._now_ms = ms
        self._set_ms = 0
        """By how much the wall clock was stepped, in all."""
        self._waiting: weakref.WeakSet[Condition] = weakref.WeakSet()
        self._watching: dict[object, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def set(self, ms: int) -> None:
        """Make it `ms`, also backwards."""
        with self._lock:
            self._set_ms += min(ms - self._now_ms, 0)
            self._now_ms = ms
        self._wake()

    def step(self, ms: int) -> None:
        """Set the wall clock forward by `ms`, or back, while no time goes by."""
        with self._lock:
            self._set_ms += ms
            self._now_ms += ms
        self._wake()

    def advance(self, ms: int) -> None:
        """Move on by `ms`."""
        with self._lock:
            self._now_ms += ms
        self._wake()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boot_ms(self) -> int:
        return self._now_ms - self._set_ms

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        with self._lock:
            self._waiting.add(condition)
            if until_ms is not None and self._now_ms >= until_ms:
                return
        condition.wait(_wait_s_max(until_ms, timeout_s))

    def seconds_until(self, ms: int) -> float:
        return 0.0 if ms <= self._now_ms else math.inf

    def watch(self, stepped: Callable[[], object]) -> Callable[[], object]:
        name = object()
        with self._lock:
            self._watching[name] = stepped
        return lambda: self._watching.pop(name, None)

    def _wake(self) -> None:
        with self._lock:
            waiting, watching = list(self._waiting), list(self._watching.values())
        for condition in waiting:
            _stir(condition)
        for stepped in watching:
            stepped()


class ScaledClock:
    """A clock for replays: starts at `start_ms` and runs `speed` times as fast as real time."""

    def __init__(self, start_ms: int, speed: float) -> None:
        if not 0 < speed < float("inf"):
            raise ValueError("speed must be positive and finite: 1.0 is real time, 60.0 a minute in a second")
        self.start_ms = start_ms
        self.speed = speed
        self._started_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        return self.start_ms + int((time.monotonic_ns() - self._started_ns) * self.speed / 1_000_000)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boot_ms(self) -> int:
        return self.now_ms()

    def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
        wait_s = _wait_s_max(until_ms, timeout_s)
        if until_ms is not None:
            wait_s = min(wait_s, self.seconds_until(until_ms))
        condition.wait(wait_s)

    def seconds_until(self, ms: int) -> float:
        return max(ms - self.now_ms(), 0) / 1000 / self.speed

    def watch(self, stepped: Callable[[], object]) -> Callable[[], object]:
        return _nothing


def _nothing() -> None:
    """Nobody sets it."""


class JumpGuard:
    """A wall clock that never goes back: what everything is decided by, and every delay counted from.

    The wall clock minus the boot-time clock is constant but for slewing; where that changes by more than two readings
    differ, somebody set the clock.

    *Set back*, it goes on from where it was, at seven eighths of its speed, until the wall clock is there: so a delay
    is never shorter than asked, nor longer by more than a seventh of it, or than the step, whichever is less. It is
    ahead of the wall clock for eight times the step.

    *Set forward* by more than a second is reported; with `limit_ms`, readings beyond a larger jump are held at where
    the clock would be without it, until `confirm`. By how much its readings have leapt is in `leapt_ms`: what is to
    last for a time, and not until an instant, is moved along by that (leases and retries are).
    """

    REPORT_MS = 1_000
    SLACK_MS = 2
    """Two readings that are rounded to milliseconds differ by as much where nothing happened."""
    CATCH_UP = 8
    """Of so many milliseconds one is not shown while it is ahead. Larger: durations truer, longer until it is right."""

    def __init__(self, clock: Clock, limit_ms: int | None) -> None:
        self.clock = clock
        self.limit_ms = limit_ms
        self.jumps = 0
        self.leapt_ms = 0
        """By how much readings went forward, in all, while no time went by. Changed before the first that shows it."""
        self._lead_ms = clock.now_ms() - clock.boot_ms()
        self._held_ms = 0
        self._ahead_ms = 0
        self._ahead_since_ms = 0
        """Boot time at which it was so far ahead."""
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """The wall clock, less what is held back, and on where it was set back."""
        known_ms, now_ms = self._lead_ms, self.clock.now_ms()
        lead_ms = now_ms - self.clock.boot_ms()
        if not -self.SLACK_MS <= lead_ms - known_ms <= self.SLACK_MS or self._held_ms or self._ahead_ms:
            return self._looked_at_closely()
        if lead_ms > known_ms:  # rounded, slewed, or set by as little: no jump, and not to be added up into one
            with self._lock:
                if self._lead_ms == known_ms:
                    self._lead_ms = lead_ms
        return now_ms  # a lead that is less is kept: else it would go back, bit by bit

    def _looked_at_closely(self) -> int:
        with self._lock:
            before_ms = self.clock.boot_ms()
            now_ms = self.clock.now_ms()
            boot_ms = self.clock.boot_ms()
            if boot_ms - before_ms > self.REPORT_MS // 2:  # paused between the readings: leave it to the next one
                return now_ms - self._held_ms + self._ahead_ms
            jump_ms = now_ms - boot_ms - self._lead_ms
            if not -self.SLACK_MS <= jump_ms < 0:
                self._lead_ms += jump_ms
            self._catch_up(boot_ms)
            if jump_ms > self.SLACK_MS:
                made_up_ms = min(jump_ms, self._ahead_ms)
                self._ahead_ms -= made_up_ms
                self._forward(jump_ms - made_up_ms)
            elif jump_ms < -self.SLACK_MS:
                let_go_ms = min(-jump_ms, self._held_ms)
                self._held_ms -= let_go_ms
                self._go_ahead(-jump_ms - let_go_ms, boot_ms)
            return now_ms - self._held_ms + self._ahead_ms

    def _forward(self, jump_ms: int) -> None:
        if jump_ms > self.REPORT_MS:
            self.jumps += 1
            logger.warning("the wall clock jumped forward by %d ms", jump_ms)
            if self.limit_ms is not None and jump_ms > self.limit_ms:
                self._held_ms += jump_ms
                return
        self.leapt_ms += jump_ms

    def _go_ahead(self, ms: int, boot_ms: int) -> None:
        if ms > self.REPORT_MS:
            logger.warning("the wall clock was set back by %d ms: going on from where it was, more slowly", ms)
        if not self._ahead_ms:
            self._ahead_since_ms = boot_ms
        self._ahead_ms += ms

    def _catch_up(self, boot_ms: int) -> None:
        """So much of the lead is made up by now."""
        if self._ahead_ms:
            caught_ms = max(boot_ms - self._ahead_since_ms, 0) // self.CATCH_UP
            self._ahead_ms = max(self._ahead_ms - caught_ms, 0)
            self._ahead_since_ms += caught_ms * self.CATCH_UP

    @property
    def held_ms(self) -> int:
        """How far readings are held behind the wall clock."""
        return self._held_ms

    @property
    def ahead_ms(self) -> int:
        """How far it was ahead of the wall clock when it was read last."""
        return self._ahead_ms

    def confirm(self) -> None:
        """The clock is right as it is: stop holding it back."""
        with self._lock:
            self.leapt_ms += self._held_ms
            self._held_ms = 0


def check_deliver_after(deliver_after: int) -> int:
    """`deliver_after` itself, or `InvalidDeliverAfter` where it is no instant: negative or beyond int64."""
    if not 0 <= deliver_after <= INT64_MAX:
        raise InvalidDeliverAfter(f"deliver_after must be epoch milliseconds, 0 to 2^63-1, not {deliver_after}")
    return deliver_after
