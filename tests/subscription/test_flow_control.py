from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from afterlog.base.errors import InvalidSubscription
from afterlog.subscription.flow_control import FlowControl
from tests.subscription.support import Setting, handling, values
from tests.support import Background, eventually


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.store.check()
    setting.store.close()


@pytest.mark.parametrize("rate", [0.5, 10, 95.5, 10_000])
def test_no_more_than_the_rate_in_any_time(rate: float) -> None:
    chance, now_ms, taken = random.Random(rate), 0, list[tuple[int, int]]()
    flow = FlowControl(rate, None, now_ms=lambda: now_ms, boot_ms=lambda: now_ms, freed=lambda: None)
    for _ in range(2_000):
        now_ms += chance.choice([0, 1, 7, 150, 5_000])
        count = min(flow.room(), chance.choice([1, 10, 1_000]))
        if not count:
            until_ms = flow.until_ms()
            assert until_ms > now_ms
            now_ms = until_ms
            assert flow.room() or rate < 1
            continue
        flow.took([(0, row, 0) for row in range(count)], [0] * count)
        taken.append((now_ms, count))
    burst = max(rate / 10, 1)
    for first in range(0, len(taken), 37):
        total = 0
        for ms, count in taken[first : first + 200]:
            total += count
            assert total <= (ms - taken[first][0]) * rate / 1_000 + burst + 1e-6
    assert sum(count for _, count in taken) > 100


def test_time_is_what_goes_by() -> None:
    """Whatever somebody does to the clock on the wall."""
    now_ms = boot_ms = 10_000_000
    flow = FlowControl(10, 2, now_ms=lambda: now_ms, boot_ms=lambda: boot_ms, freed=lambda: None)
    for step_ms in (-5_000_000, 5_000_000, 1):
        flow.took([(0, 0, step_ms)], [now_ms + 50])
        now_ms += step_ms
        assert (0, 1) == (flow.room(), flow.in_flight())
        assert now_ms + 100 == flow.until_ms()
        now_ms, boot_ms = now_ms + 49, boot_ms + 49
        assert (0, 1) == (flow.room(), flow.in_flight())
        now_ms, boot_ms = now_ms + 51, boot_ms + 51
        assert (1, 0) == (flow.room(), flow.in_flight())


def test_a_reader_takes_so_many_a_second(setting: Setting) -> None:
    setting.send(*[b"x"] * 100)
    with setting.subscribe(rate=100) as sub:
        assert [10, 0] == [len(sub.receive(100)), len(sub.receive(100))]
        setting.clock.advance(50)
        assert [5, 0] == [len(sub.receive(100)), len(sub.receive(1))]
        setting.clock.advance(100_000)
        assert [1, 9, 0] == [len(sub.receive(1)), len(sub.receive(100)), len(sub.receive(100))]


def test_who_waits_waits_for_the_next_token(setting: Setting) -> None:
    setting.send(b"a", b"b")
    clock = setting.clock
    with setting.subscribe(rate=2) as sub:
        messages = iter(sub)
        assert b"a" == next(messages).value
        started_ms = clock.now_ms()
        clock.steps = [lambda: clock.set(clock.waits[-1][0] or 0)]
        assert b"b" == next(messages).value
        assert 500 == clock.now_ms() - started_ms
        assert 1 == len(clock.waits), "nobody looks again and again"


@pytest.mark.parametrize("how", ["ack", "ack_many", "nack", "release", "reject", "block", "another reader"])
def test_so_many_at_a_time(setting: Setting, how: str) -> None:
    setting.send(*[b"%d" % number for number in range(9)])
    with setting.subscribe(max_in_flight=3, dead_letter="dead") as sub, setting.subscribe() as other:
        received = sub.receive()
        assert [3, 0, 0] == [len(received), len(sub.receive()), len(sub.receive(1))]
        waiting = Background(lambda: sub.receive(timeout=None))
        eventually(lambda: sub.receiver.agenda._paused_ms > 0)
        if how == "ack_many":
            sub.ack_many(received)
        elif how == "block":
            with received[0]:
                pass
        else:
            {
                "ack": lambda: sub.ack(received[0]),
                "nack": lambda: sub.nack(received[0], delay=100),
                "release": lambda: sub.release(received[0]),
                "reject": lambda: received[0].reject(),
                "another reader": lambda: other.ack(received[0]),
            }[how]()
        assert 1 <= len(waiting.answer()) <= 3
        assert sub.flow is not None
        assert sub.flow.in_flight() <= 3


def test_a_lease_that_has_ended_counts_no_more(setting: Setting) -> None:
    setting.send(b"a", b"b", b"c")
    with setting.subscribe(max_in_flight=2, lease_ms=1_000) as sub:
        first = sub.receive()
        sub.extend(first[1], lease_ms=5_000)
        assert 0 == len(sub.receive())
        clock = setting.clock
        clock.steps = [lambda: clock.set(clock.waits[-1][0] or 0)]
        assert 1 == len(sub.receive(timeout=None))
        assert 1 == len(clock.waits)
        assert sub.flow is not None
        assert 2 == sub.flow.in_flight()


@pytest.mark.parametrize("how", ["nack", "nack_many", "release", "extend"])
def test_a_receipt_of_an_earlier_lease_frees_no_place(setting: Setting, how: str) -> None:
    """The record was received again meanwhile, by this very reader."""
    setting.send(b"a", b"b")
    with setting.subscribe(max_in_flight=2, lease_ms=1_000) as sub, setting.subscribe(lease_ms=1_000) as other:
        stale = sub.receive()
        setting.clock.advance(2_000)
        held = sub.receive()
        setting.send(b"c")
        assert [each.offset for each in stale] == [each.offset for each in held]
        other.extend([*held], lease_ms=60_000)
        done = {
            "nack": lambda: sub.nack(stale[0]),
            "nack_many": lambda: sub.nack(stale),
            "release": lambda: sub.release([*stale]),
            "extend": lambda: sub.extend(stale, lease_ms=1),
        }[how]()
        assert 0 == done.done
        setting.clock.advance(20)
        assert [] == [*sub.receive()], "two are leased, and not settled"
        assert 2 == sub.stats().leased


def test_what_another_reader_extends_is_still_in_flight(setting: Setting) -> None:
    setting.send(b"a", b"b")
    with setting.subscribe(max_in_flight=1, lease_ms=1_000) as sub, setting.subscribe() as other:
        other.extend(sub.receive(), lease_ms=60_000)
        setting.clock.advance(2_000)
        assert [] == [*sub.receive()]


def test_iterations_share_what_may_be_in_flight(setting: Setting) -> None:
    """None of them leases so much ahead that another has to wait."""
    setting.send(*[b"%d" % number for number in range(40)])
    with setting.subscribe(max_in_flight=4) as sub:
        left, right = iter(sub), iter(sub)
        for _ in range(8):
            for messages in (left, right):
                with handling(next(messages)):
                    assert sub.flow is not None
                    assert sub.flow.in_flight() <= 4


def test_what_goes_back_is_not_in_flight(setting: Setting) -> None:
    setting.send(*[b"%d" % number for number in range(20)])
    with setting.subscribe(max_in_flight=8) as sub:
        messages: Any = iter(sub)
        for _ in range(4):
            sub.ack(next(messages))
        assert sub.flow is not None
        assert sub.flow.in_flight() > 0
        messages.close()
        assert 0 == sub.flow.in_flight()
        assert 8 == len(sub.receive(100))


@pytest.mark.parametrize(
    "settings",
    [{"rate": 0}, {"rate": -1}, {"rate": True}, {"rate": "5"}, {"rate": float("nan")}, {"rate": float("inf")},
     {"max_in_flight": 0}, {"max_in_flight": 1.5}, {"max_in_flight": True}, {"max_lease_ms": 0}],
)  # fmt: skip
def test_limits_that_cannot_be(setting: Setting, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSubscription):
        setting.subscribe(**settings)
    assert values(setting.subscribe().receive()) == []
