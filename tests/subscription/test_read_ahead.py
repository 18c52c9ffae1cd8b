from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from afterlog.subscription.read_ahead import RECORDS_MAX, ReadAhead


def worked_off(ahead: ReadAhead, count: int, took_ms: int, now_ms: int = 0) -> int:
    """What is wanted after `count` records that took so long."""
    messages: list[Any] = [SimpleNamespace(deadline_ms=now_ms + 30_000)] * count
    ahead.fill(messages, now_ms)
    while ahead.pop(now_ms):
        pass
    return ahead.wanted(now_ms + took_ms)


def test_one_at_first_then_twice_as_many() -> None:
    ahead = ReadAhead(30_000)
    assert 1 == ahead.wanted(0)
    assert [2, 4, 8, 256, RECORDS_MAX] == [worked_off(ahead, count, 0) for count in (1, 2, 4, 128, 256)]


def test_no_more_than_a_quarter_of_the_lease_is_enough_for() -> None:
    ahead = ReadAhead(30_000)
    assert [75, 1, 1, 100] == [
        worked_off(ahead, count, took_ms, 5) for count, took_ms in ((200, 20_000), (1, 7_501), (3, 60_000), (50, -9))
    ]


def test_what_is_drained_is_not_handed_out() -> None:
    messages: list[Any] = [SimpleNamespace(deadline_ms=30_000), SimpleNamespace(deadline_ms=30_000)]
    ahead = ReadAhead(30_000)
    ahead.fill(messages, 0)
    assert messages[0] is ahead.pop(0)
    assert messages[1:] == ahead.drain()
    assert ahead.pop(0) is None
    assert [] == ahead.drain()
    assert 2 == ahead.wanted(0), "one was worked off"


def test_what_has_waited_for_half_its_lease_is_not_handed_out() -> None:
    message: Any = SimpleNamespace(deadline_ms=30_000)
    ahead = ReadAhead(30_000)
    ahead.fill([message, message], 0)
    assert message is ahead.pop(15_000)
    assert ahead.pop(15_001) is None
    assert [message] == ahead.drain()
