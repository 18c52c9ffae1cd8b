"""Durations are elapsed time (D18), whatever somebody does to the wall clock: leases, retries, delays, limits.

    boot-time clock   goes on, always: the judge
    wall clock        steps by a millisecond or a year, forward and back, between any two calls
    subscription      gives nothing back before its time by the judge, and not much later either

A delay counts from the log's clock, so a step forward shortens it, as it brings an instant nearer; a step back does
not. What is set by two milliseconds at most cannot be told from the rounding of two clocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest

from afterlog.base.clock import JumpGuard
from afterlog.base.errors import UniqueKeyConflict
from afterlog.subscription.redeliveries import Redeliveries
from afterlog.subscription.timers import Timers
from tests import campaigns
from tests.subscription.support import Setting, values

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
LEASE_MS = 10_000
STEPS_MS = (1, 2, 3, 50, 1_000, 60_000, HOUR_MS, DAY_MS, 365 * DAY_MS)
WALKS = 400 if campaigns.WHOLE else 24
LATE_MS = 100
"""Leases end on a grid of 1/128 of their length, retries on that of the ticks."""


@pytest.mark.parametrize("held", [False, True], ids=["leases of the process", "held"])
@pytest.mark.parametrize("ms", [-365 * DAY_MS, -HOUR_MS, -5_000, 5_000, HOUR_MS, 365 * DAY_MS])
def test_a_step_of_the_clock(ms: int, held: bool) -> None:
    setting = Setting()
    setting.send(b"leased", b"retried")
    sub = setting.subscribe(lease_ms=LEASE_MS, durable_leases=held)
    _, retried = sub.receive()
    sub.nack(retried, delay=2)
    setting.clock.step(ms)
    assert [] == values(sub.receive())
    setting.clock.advance(1_999)
    assert [] == values(sub.receive())
    setting.clock.advance(1 + 2_000 // 7 + 20)
    [retried] = sub.receive()
    assert b"retried" == retried.value
    sub.ack(retried)
    setting.clock.step(ms)
    setting.clock.advance(LEASE_MS - 2_306 - 1)
    assert [] == values(sub.receive())
    setting.clock.advance(LEASE_MS // 7 + LATE_MS)
    assert [b"leased"] == values(sub.receive())
    setting.store.check()
    setting.store.close()


@pytest.mark.parametrize("ms", [5_000, HOUR_MS])
def test_the_next_life_goes_on_with_what_is_left(ms: int) -> None:
    """A step forward, and then a restart: deadlines and retry times on disk have moved along."""
    setting = Setting()
    setting.send(b"leased", b"retried")
    sub = setting.subscribe(lease_ms=LEASE_MS, durable_leases=True)
    leased, retried = sub.receive()
    sub.nack(retried, delay=8)
    setting.clock.step(ms)
    assert 1 == sub.extend(leased).done
    sub.close()
    setting.store.close()
    setting.open(setting.disk)
    sub = setting.subscribe(lease_ms=LEASE_MS, durable_leases=True)
    setting.clock.advance(7_900)
    assert [] == values(sub.receive())
    setting.clock.advance(200)
    assert [b"retried"] == values(sub.receive())
    setting.clock.advance(LEASE_MS - 8_100 + LATE_MS)
    assert [b"leased"] == values(sub.receive())
    setting.store.close()


def test_a_message_at_work_stays_with_its_reader() -> None:
    setting = Setting()
    setting.send(b"a")
    with setting.subscribe(max_in_flight=1) as sub, setting.subscribe() as other, setting.subscribe("limited") as third:
        [message] = sub.receive()
        third.receive()
        setting.clock.step(HOUR_MS)
        setting.send(b"b")
        assert [b"b"] == values(other.receive())
        assert [] == values(sub.receive())
        assert 1 == sub.ack(message).acked
        assert 0 == sub.stats().expired
    setting.store.close()


@dataclass
class Asked:
    """Not before `least_ms` by the judge's clock; surely by `most_ms`. is_delay: of one never received."""

    least_ms: int
    most_ms: int
    message: Any = None
    is_delay: bool = False

    def leap(self, ms: int) -> None:
        """The log's clock did: a delay is over that much earlier."""
        if self.is_delay:
            self.least_ms -= ms


@dataclass
class Walk:
    """A history of sends, receives, nacks, extensions, restarts and steps of the clock, from one seed."""

    source: random.Random
    setting: Setting = field(default_factory=Setting)
    asked: dict[bytes, Asked] = field(default_factory=dict)
    keys: dict[bytes, Asked] = field(default_factory=dict)
    """Of the record that was taken last under each."""
    unseen_ms: int = 0
    """Steps that nobody can see, in all."""
    number: int = 0

    def take(self, turns: int) -> None:
        self.held = self.source.random() < 0.5
        self.sub = self.subscribed()
        for _ in range(turns):
            self.source.choices(
                (self.send, self.receive, self.nack, self.extend, self.go_on, self.step, self.reopen),
                (3, 5, 3, 1, 5, 5, 1),
            )[0]()
        self.setting.store.check()
        self.setting.store.close()

    def subscribed(self) -> Any:
        return self.setting.subscribe(lease_ms=LEASE_MS, durable_leases=self.held, auto_extend=False)

    @property
    def now_ms(self) -> int:
        return self.setting.clock.boot_ms()

    def until(self, ms: int, message: Any = None) -> Asked:
        """What lasts for so long. A clock that was set back goes at seven eighths."""
        return Asked(self.now_ms + ms - self.unseen_ms, self.now_ms + ms * 8 // 7 + LATE_MS, message)

    def send(self) -> None:
        self.number += 1
        value, delay_ms = b"%d" % self.number, self.source.choice((0, 0, 5, 700, 30_000))
        key = self.source.choice((None, None, b"k", b"l"))
        waiting = None if key is None else self.keys.get(key)
        try:
            self.setting.store.send("mail", value, delay=delay_ms / 1_000, unique_key=key)
        except UniqueKeyConflict:
            assert waiting is not None
            assert waiting.most_ms >= self.now_ms, "it is due, and its key free"
            return
        self.asked[value] = asked = replace(self.until(delay_ms), is_delay=True)
        if key is not None:
            assert waiting is None or waiting.least_ms <= self.now_ms + self.unseen_ms, "two pending records of one key"
            self.keys[key] = asked

    def receive(self) -> None:
        for message in self.sub.receive(1_000):
            asked = self.asked.pop(message.value)
            early_ms = asked.least_ms - self.now_ms - self.unseen_ms
            assert early_ms <= 0, f"{message.value} is {early_ms} ms early"
            if self.source.random() < 0.3:
                assert 1 == self.sub.ack(message).acked
            else:
                self.asked[message.value] = self.until(LEASE_MS, message)
        late = [value for value, asked in self.asked.items() if asked.most_ms < self.now_ms]
        assert not late

    def nack(self) -> None:
        message = self.one()
        if message is not None:
            delay_ms = self.source.choice((0, 10, 900, 60_000))
            if self.sub.nack(message, delay=delay_ms / 1_000).done:
                self.asked[message.value] = self.until(delay_ms)

    def extend(self) -> None:
        message = self.one()
        if message is not None:
            lease_ms = self.source.choice((1_000, 60_000))
            if self.sub.extend(message, lease_ms=lease_ms).done:
                self.asked[message.value] = self.until(lease_ms, message)

    def one(self) -> Any:
        leased = [asked.message for asked in self.asked.values() if asked.message is not None]
        return self.source.choice(leased) if leased else None

    def go_on(self) -> None:
        self.setting.clock.advance(self.source.choice((1, 9, 10, 500, 5_000, LEASE_MS, 70_000)))

    def step(self) -> None:
        ms = self.source.choice((-1, 1)) * self.source.choice(STEPS_MS)
        if not 0 < self.setting.clock.now_ms() + ms < 1 << 44:
            return
        before_ms = self.setting.store.now_ms()
        self.setting.clock.step(ms)
        campaigns.count("clock steps")
        leapt_ms = self.setting.store.now_ms() - before_ms
        if abs(ms) <= JumpGuard.SLACK_MS:
            self.unseen_ms += abs(ms)
        elif leapt_ms > 0:  # what waits for an instant of the log's clock is nearer
            for asked in (*self.asked.values(), *self.keys.values()):
                asked.leap(leapt_ms)

    def reopen(self) -> None:
        """What is held, or retrying, goes on; the rest of what is leased comes at once."""
        if self.setting.store._guard.ahead_ms:  # who opens it goes by the wall clock: an instant may be far away
            return
        self.sub.close()
        self.setting.store.close()
        self.setting.open(self.setting.disk)
        self.sub = self.subscribed()
        if not self.held:
            for value, asked in self.asked.items():
                if asked.message is not None:
                    self.asked[value] = self.until(0)


def walk(numbers: Iterable[int], of: object = campaigns.SEED) -> None:
    for number in numbers:
        seed = f"{of} {number}"
        try:
            Walk(random.Random(seed)).take(60)
        except Exception as error:
            raise AssertionError(f"Walk(random.Random({seed!r})).take(60)") from error


@pytest.mark.parametrize("part", range(4))
def test_durations_are_elapsed_time(part: int) -> None:
    walk(range(part, WALKS, 4))


def not_later(timers: Timers, state: Any, later_ms: int = 0, real: Any = Timers.anew) -> Any:
    return real(timers, state)


@pytest.mark.parametrize("bug", ["leases that leap", "retries that leap", "time of the wall"])
def test_planted_bug_is_caught(bug: str) -> None:
    planted: Callable[[], Any] = {
        "leases that leap": lambda: patch.object(Timers, "anew", not_later),
        "retries that leap": lambda: patch.object(Redeliveries, "later", lambda rows, ms: None),
        "time of the wall": lambda: patch.object(JumpGuard, "now_ms", lambda guard: guard.clock.now_ms()),
    }[bug]
    with planted(), pytest.raises(AssertionError):
        walk(range(40), of=bug)  # of a seed that is known to show it: of any, a walk may have no step that would
    campaigns.count("planted bugs, caught")
