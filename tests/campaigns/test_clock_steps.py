"""Wall clocks that step back and forth, by milliseconds and by weeks, under the whole engine and its model.

    boot-time clock   goes on, always
    wall clock        steps before, between and *during* operations, and between the lives of a store
    log clock         held to its promises: never early, never skipped, in order, dense, a stamp never below a delivery

The machine is that of `tests.campaigns.test_state_machine`, and after each turn all is checked that is checked there;
here turns come from a seeded random walk, since every second one is to be a step of the clock. Besides: a store whose
durable frontier is more than an hour ahead of the wall clock takes appends and answers questions, delivers nothing,
says so, and goes on when the clock has caught up or `repair --clock` has put the frontier back; and a clock that jumped
further than `clock_jump_limit_ms` is held back until it is confirmed.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from afterlog import ALWAYS, EARLIEST, OS, ClockBehind, Durability, ManualClock
from afterlog.base.clock import JumpGuard
from afterlog.log import log_clock
from afterlog.log.checkpoints import FrontierLease
from afterlog.log.log_clock import BEHIND_MS_MAX, LogClock
from afterlog.offline.locked_store import OfflineStore
from tests import campaigns
from tests.campaigns.test_state_machine import PATH, START_MS, LogMachine

pytestmark = pytest.mark.usefixtures("quiet")

WALKS = 60 if campaigns.WHOLE else 4 * campaigns.DEPTH
TURNS = 25
SECOND_MS, HOUR_MS, DAY_MS = 1_000, 3_600_000, 86_400_000
UNITS_MS = (1, 1, 7, 90, 90, SECOND_MS, 60 * SECOND_MS, HOUR_MS, HOUR_MS, DAY_MS)
EARLIEST_MS, LATEST_MS = START_MS - 2_000 * DAY_MS, START_MS + 2_000 * DAY_MS
LIMITS_MS = (None, None, None, 0, 5_000, HOUR_MS)


def refusal(read: Callable[[], object]) -> str:
    """Why nothing is delivered."""
    try:
        read()
    except ClockBehind as error:
        return str(error)
    return "delivered by a clock that cannot be right"


class SteppingClock(ManualClock):
    """A wall clock that is set, beside a boot-time clock that goes on; if armed, in the middle of what reads it."""

    def __init__(self, ms: int) -> None:
        super().__init__(ms)
        self._armed: tuple[int, int] | None = None
        self.shown: list[int] = []
        """Before and behind each step that was taken while somebody read."""

    def arm(self, reading: int, ms: int) -> None:
        """Step before that reading from now on, counted from 0."""
        self._armed = reading, ms

    def disarm(self) -> None:
        self._armed = None

    def now_ms(self) -> int:
        if self._armed is not None:
            reading, ms = self._armed
            self._armed = (reading - 1, ms) if reading else None
            if not reading:
                self.shown.append(self._now_ms)
                self.step(ms)
                self.shown.append(self._now_ms)
        return self._now_ms

    def look_ms(self) -> int:
        """What it shows; no reading."""
        return self._now_ms


class ClockMachine(LogMachine):
    """The same topic, under clocks that cannot be trusted."""

    clock: SteppingClock
    lease_ms = 30_000
    """Long enough for lives that end between what was used and what was leased."""
    limit_ms: int | None
    opened_lease_ms = 0
    """The durable frontier, as the life of now found it."""
    standing = 0
    """The high watermark when it halted."""

    def started(self) -> SteppingClock:
        return SteppingClock(START_MS)

    def open(self) -> None:
        super().open()
        self.opened_lease_ms = self.partition.log.opened_lease_ms if self.delayed else 0
        assert self.opened_lease_ms <= self.model.reading_ms + self.lease_ms, "leased for no reading"
        if self.delayed:
            delivered = (self.model.records[offset].due for offset in self.model.seen.values())
            assert max(delivered, default=0) <= self.opened_lease_ms, "delivered beyond the lease"
        self.stand()

    def recover(self, covered: bool) -> None:
        super().recover(covered)
        self.stand()

    def stand(self) -> None:
        """Where the high watermark begins: what is due by the durable frontier does not become due by a reading."""
        self.standing = self.partition.high_watermark() if self.halted else 0
        self.model.delivered = max(self.model.delivered, self.model.high_watermark(self.opened_lease_ms))

    def now_ms(self) -> int:
        """The wall clock, less what is held back, and on where it was set back."""
        return self.store.now_ms()

    @property
    def halted(self) -> bool:  # type: ignore[override]
        return self.delayed and self.opened_lease_ms - self.now_ms() > BEHIND_MS_MAX

    def within(self, ms: int, least_ms: int = EARLIEST_MS) -> int:
        """A step that leaves the wall clock between two ends."""
        now_ms = self.clock.look_ms()
        return min(max(ms, least_ms - now_ms), LATEST_MS - now_ms)

    # The clock.

    def step(self, ms: int) -> None:
        """What it shows behind the step is what it should."""
        ms = self.within(ms)
        before_ms, reported = self.store.now_ms(), self.store.clock_jumps
        guard = self.store._guard
        drift_ms = self.clock.look_ms() - self.clock.boot_ms() - guard._lead_ms
        assert -JumpGuard.SLACK_MS <= drift_ms <= 0, "of what was taken for rounding so much may have gone back"
        jump_ms, ahead_ms = drift_ms + ms, guard.ahead_ms
        self.clock.step(ms)
        campaigns.count("clock steps")
        forward_ms = max(jump_ms - ahead_ms, 0) if jump_ms > JumpGuard.SLACK_MS else 0
        jumped = forward_ms > JumpGuard.REPORT_MS
        held = jumped and self.limit_ms is not None and forward_ms > self.limit_ms
        if -JumpGuard.SLACK_MS <= jump_ms <= JumpGuard.SLACK_MS:
            expected_ms = before_ms + ms
        else:
            expected_ms = before_ms - drift_ms + (0 if held else forward_ms)
        assert (expected_ms, reported + jumped) == (self.store.now_ms(), self.store.clock_jumps)
        if not self.halted:
            self.model.read(self.partition.fetch(EARLIEST, max_bytes=0).clock_ms, self.now_ms())

    def step_amid(self, operation: Callable[[], None], reading: int, ms: int) -> None:
        """At one of its readings; not so far that it halts: where that begins within it is not for the model to say."""
        if self.limit_ms is not None or self.halted:
            return
        self.clock.arm(
            reading, self.within(ms, max(self.opened_lease_ms, self.model.reading_ms + self.lease_ms) - BEHIND_MS_MAX)
        )
        self.clock.shown = self.model.meanwhile = []
        operation()
        self.clock.disarm()
        campaigns.count("clock steps", len(self.clock.shown) // 2)
        campaigns.count("clock steps amid an operation", len(self.clock.shown) // 2)

    def time_goes_on(self, ms: int) -> None:
        before_ms, ms = self.now_ms(), self.within(abs(ms))
        ahead_ms = self.store._guard.ahead_ms
        self.clock.advance(ms)
        caught_ms = min(ahead_ms, ms // JumpGuard.CATCH_UP)
        assert self.now_ms() - (before_ms + ms) in (-caught_ms, -min(caught_ms + 1, ahead_ms))

    def confirm(self) -> None:
        self.store.confirm_clock()
        assert self.clock.look_ms() == self.store.now_ms() - self.store._guard.ahead_ms

    # Lives. Nobody is there to see a step between two, so no limit holds it.

    def step_between_lives(self, ms: int, killed: bool) -> None:
        ms = self.within(ms)
        campaigns.count("clock steps")
        campaigns.count("clock steps between two lives")
        if killed:
            self.clock.step(ms)
            self.kill()
            return
        self.close()
        self.clock.step(ms)
        self.open()
        self.check_contents()

    def close(self) -> None:
        self.consumer = None
        self.store.close()
        self.model.closed()
        self.model.visible_end = len(self.model.records)

    # Halted.

    def catch_up(self, late_ms: int) -> None:
        """The wall clock comes to within the hour, and deliveries go on by themselves."""
        self.clock.advance(self.opened_lease_ms - BEHIND_MS_MAX - self.now_ms() - 1)
        assert self.halted
        while self.halted:  # where it was set back, the clock is slower
            self.clock.advance(self.opened_lease_ms - BEHIND_MS_MAX - self.now_ms())
        self.clock.advance(late_ms)
        campaigns.count("halted stores that went on")

    def put_the_frontier_back(self) -> None:
        """`afterlog repair --clock`."""
        self.close()
        with OfflineStore(PATH, self.disk, self.clock) as offline:
            plan = offline.plan(put_clock_back=True)
            assert any("promise D2 for positions beyond it" in step for step in plan.steps)
            offline.apply(plan)
        self.model.clock_put_back(self.clock.look_ms())
        self.open()
        assert not self.halted
        campaigns.count("halted stores whose frontier was put back")

    def nothing_is_delivered(self) -> None:
        """Readers are told why; questions are answered as they were before it halted."""
        campaigns.count("turns of a halted store")
        self.store.check()
        self.durable(to_end=False)
        with self.store.consumer("mail", group="another", auto_commit=False) as consumer:
            for read in (lambda: self.partition.fetch(EARLIEST), lambda: consumer.poll(1)):
                assert "over an hour behind" in refusal(read)
        self.observe_retention()
        assert self.partition.log.frontier_ms <= self.model.reading_ms
        assert self.standing == self.partition.high_watermark() <= self.model.high_watermark(self.model.reading_ms)
        assert len(self.model.shown(self.standing, self.model.visible_end)) == self.partition.pending()

    def check_all(self) -> None:
        """Every promise, behind a turn."""
        if self.halted:
            self.nothing_is_delivered()
        else:
            self.promises()
            self.standing = self.partition.high_watermark()
        self.clock.shown = self.model.meanwhile = []


class Walk:
    """A history of so many turns, all of it from one seed."""

    def __init__(self, seed: str) -> None:
        self._random = source = random.Random(seed)
        self.machine = ClockMachine()
        self.machine.limit_ms = limit_ms = source.choice(LIMITS_MS)
        self.machine.begin(  # type: ignore[call-arg]
            durability=source.choice([ALWAYS, ALWAYS, OS, Durability.interval(HOUR_MS)]),
            delayed=source.random() < 0.9,
            compression="none",
            segment_bytes=source.choice([4_096, 20_000]),
            recovery_bytes=source.choice([600, 1 << 20]),
            retention_ms=source.choice([None, None, 0, 300]),
            retention_bytes=None,
            max_num_buckets=source.choice([1, 3, -1]),
            clock_jump_limit_ms=limit_ms,
        )

    def take(self, turns: int) -> None:
        self.machine.check_all()
        for _ in range(turns):
            self.turn()
            self.machine.check_all()
        self.machine.teardown()

    def turn(self) -> None:
        machine, source = self.machine, self._random
        halted = machine.halted
        step = "step", lambda: machine.step(self.jump())
        amid = "amid", lambda: machine.step_amid(self.operation(), source.choice((0, 0, 1, 2)), self.jump())
        between = "between", lambda: machine.step_between_lives(self.jump(), source.random() < 0.5)
        time = "time", lambda: machine.time_goes_on(self.jump())
        cut = "power cut", lambda: machine.cut_power(source.randrange)
        turns: list[tuple[str, Callable[[], Any]]] = [*[step] * 6, *[amid] * 6, *[between] * 2, time, cut]
        turns += [("confirm", machine.confirm)] if machine.limit_ms is not None else []
        if halted:
            turns += [("catch up", lambda: machine.catch_up(source.choice((0, 1, 500, DAY_MS))))] * 3
            if not machine.model.removed and machine.limit_ms is None:  # what is held back is so in one life only
                turns += [("put back", machine.put_the_frontier_back)] * 3
            turns += [("send", lambda: machine.send_many(self.rows()))] * 2
        else:
            turns += [("operation", self.operation())] * 4
        source.choice(turns)[1]()

    def jump(self) -> int:
        return self._random.choice((-1, 1)) * self._random.randrange(1, 40) * self._random.choice(UNITS_MS)

    def rows(self) -> list[tuple[bytes, int | None]]:
        after = (None, 0, 5, 30, -100, SECOND_MS, HOUR_MS, 3 * DAY_MS)
        return [
            (bytes(self._random.randrange(60)), self._random.choice(after)) for _ in range(self._random.randrange(1, 6))
        ]

    def operation(self) -> Callable[[], Any]:
        machine, rows, count = self.machine, self.rows(), self._random.randrange(1, 20)
        return self._random.choice(
            (
                lambda: machine.send(*rows[0]),
                lambda: machine.send_many(rows),
                lambda: machine.append_batch(rows, "none"),
                lambda: machine.consume(count, commit=True),
                machine.roll,
                machine.checkpoint,
                machine.enforce_retention,
                machine.sync,
                machine.reopen,
            )
        )


@pytest.mark.parametrize("part", range(4))
def test_every_promise_holds_whatever_the_wall_clock_does(part: int) -> None:
    """Parts, so that no process is left with all at the end."""
    for number in range(part, WALKS, 4):
        seed = f"{campaigns.SEED} {number}"
        try:
            Walk(seed).take(TURNS)
        except Exception as error:
            raise AssertionError(f"Walk({seed!r}).take({TURNS})") from error


# ---- planted bugs


def lives_that_end_within_the_lease() -> None:
    """Killed after a delivery that needed no new lease; the clock is behind that delivery when the next life begins."""
    machine = ClockMachine()
    machine.limit_ms = None
    machine.begin(  # type: ignore[call-arg]
        durability=ALWAYS, delayed=True, compression="none", segment_bytes=4_096, recovery_bytes=600, retention_ms=None,
        retention_bytes=None, max_num_buckets=-1,
    )  # fmt: skip
    for _ in range(2):
        machine.send(b"", 5)
        machine.time_goes_on(10)
        machine.check_all()
    machine.step_between_lives(-8, killed=True)
    machine.send(b"", None)
    machine.check_all()
    machine.teardown()


def is_told(what: str) -> bool:
    """Whether one of some walks fails and says so: always the same ones, since chance may have walks without."""
    for number in campaigns.known_first(range(60)):
        try:
            Walk(f"planted {number}").take(TURNS)
        except Exception as error:  # of the machine, or of the log
            if what in "".join(traceback.format_exception(error)):
                campaigns.shown(number)
                return True
    return False


def test_planted_bug_is_caught_due_goes_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def due(self: LogClock) -> int:
        self.used_ms = self._now_ms()
        return self.used_ms

    monkeypatch.setattr(LogClock, "due", due)
    assert is_told("")


def test_planted_bug_is_caught_stamps_below_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = LogClock.__init__

    def forgetful(self: LogClock, now_ms: Callable[[], int], frontier: FrontierLease, last_stamp_ms: int) -> None:
        begin(self, now_ms, frontier, last_stamp_ms)
        self._stamp_ms = 0

    lives_that_end_within_the_lease()
    monkeypatch.setattr(LogClock, "__init__", forgetful)
    with pytest.raises(AssertionError):
        lives_that_end_within_the_lease()


def test_planted_bug_is_caught_a_frontier_that_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_clock, "BEHIND_MS_MAX", 1 << 60)
    assert is_told("delivered by a clock that cannot be right")


def test_planted_bug_is_caught_a_jump_that_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JumpGuard, "now_ms", lambda guard: guard.clock.now_ms())
    assert is_told("store.clock_jumps")
