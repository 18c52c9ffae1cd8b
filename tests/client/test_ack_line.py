"""Acks that share requests: who asks, who waits, and what becomes of it where somebody goes away."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from afterlog.api.receipt import Receipt
from afterlog.base.errors import AnswerLost
from afterlog.client.ack_line import RECEIPTS_MAX, AckLine
from afterlog.client.call import Call, HttpRequest, Pause, Steps
from afterlog.subscription.answers import AckResult
from tests import campaigns

ACKED, ALREADY = AckResult(acked=1), AckResult(acked=0, already=1)


def receipt(number: int) -> Receipt:
    return Receipt(0, number, number, 0)


class Setting:
    """Callers of one line, taken step by step."""

    def __init__(self) -> None:
        self.requests = list[tuple[int, ...]]()
        self.line = AckLine(self._asked)

    def _asked(self, receipts: Sequence[Receipt]) -> Call[list[AckResult]]:
        self.requests.append(tuple(each.offset for each in receipts))
        body = bytes(each % 256 for each in self.requests[-1])
        return Call(request=HttpRequest("POST", "/", body), read=lambda reply: [])

    def caller(self, number: int) -> Caller:
        return Caller(self.line.ack(receipt(number)))


class Caller:
    """Whose ack it is. `waits`: what it yielded last, a Call or a Pause; `answer`, once it has returned."""

    def __init__(self, steps: Steps[AckResult]) -> None:
        self._steps = steps
        self.answer: AckResult | None = None
        self.waits: Any = None
        self._go(lambda: next(steps))

    @property
    def asks(self) -> bool:
        return isinstance(self.waits, Call)

    @property
    def receipts(self) -> list[int]:
        """That it asks about."""
        return [*self.waits.request.body]

    @property
    def is_woken(self) -> bool:
        return isinstance(self.waits, Pause) and self.waits.waking.version != self.waits.version

    def told(self, *answers: AckResult) -> None:
        self._go(lambda: self._steps.send([*answers]))

    def looks(self) -> None:
        self._go(lambda: self._steps.send(None))

    def fails(self, error: BaseException) -> None:
        self._go(lambda: self._steps.throw(error))

    def _go(self, step: Any) -> None:
        try:
            self.waits = step()
        except StopIteration as end:
            self.waits, self.answer = None, end.value


def test_who_is_alone_asks_at_once() -> None:
    setting = Setting()
    for number in range(2):
        caller = setting.caller(number)
        assert caller.asks
        caller.told(ACKED)
        assert ACKED == caller.answer
    assert [(0,), (1,)] == setting.requests


def test_those_who_come_meanwhile_go_together_and_each_hears_of_its_own() -> None:
    setting = Setting()
    first, *others = [setting.caller(number) for number in range(4)]
    assert [True, False, False, False] == [each.asks for each in (first, *others)]
    first.told(ACKED)
    assert [True, False, False] == [each.is_woken for each in others]
    others[0].looks()
    assert others[0].asks
    others[0].told(ACKED, ALREADY, ACKED)
    assert [False, True, True] == [each.is_woken for each in others]
    for each in others[1:]:
        each.looks()
    assert [ACKED, ALREADY, ACKED] == [each.answer for each in others]
    assert [(0,), (1, 2, 3)] == setting.requests


def test_who_has_just_been_answered_may_ask_for_the_others() -> None:
    """It comes again before anybody who was woken does: those are woken when that is answered."""
    setting = Setting()
    first, second, third = (setting.caller(number) for number in range(3))
    first.told(ACKED)
    again = setting.caller(3)
    assert again.asks
    again.told(ACKED, ACKED, ALREADY)
    assert all(each.is_woken for each in (second, third))
    second.looks()
    third.looks()
    assert [ACKED, ACKED, ALREADY] == [each.answer for each in (second, third, again)]


def test_where_who_asks_goes_away_another_asks_the_same() -> None:
    setting = Setting()
    first, second, third, fourth = (setting.caller(number) for number in range(4))
    first.told(ACKED)
    second.looks()
    with pytest.raises(KeyboardInterrupt):
        second.fails(KeyboardInterrupt())
    assert all(each.is_woken for each in (third, fourth))
    third.looks()
    fourth.looks()
    assert [True, False] == [third.asks, fourth.asks]
    third.told(ALREADY, ACKED, ACKED)
    fourth.looks()
    assert [ACKED, ACKED] == [third.answer, fourth.answer]
    assert [(0,), (1, 2, 3), (1, 2, 3)] == setting.requests


def test_where_who_would_ask_next_goes_away_another_is_woken() -> None:
    setting = Setting()
    first, second, third = (setting.caller(number) for number in range(3))
    with pytest.raises(KeyboardInterrupt):
        second.fails(KeyboardInterrupt())
    third.looks()
    assert not third.asks
    first.told(ACKED)
    third.looks()
    assert third.asks
    third.told(ACKED, ACKED)
    assert ACKED == third.answer


def test_where_it_fails_each_asks_for_itself() -> None:
    setting = Setting()
    first, second, third = (setting.caller(number) for number in range(3))
    first.told(ACKED)
    second.looks()
    with pytest.raises(AnswerLost):
        second.fails(AnswerLost("nobody knows"))
    third.looks()
    assert third.asks
    third.told(ACKED)
    assert ACKED == third.answer
    assert [(0,), (1, 2), (2,)] == setting.requests


def test_a_request_has_no_more_than_a_server_tells_apart() -> None:
    setting = Setting()
    first = setting.caller(0)
    others = [setting.caller(number) for number in range(1, RECEIPTS_MAX + 3)]
    first.told(ACKED)
    others[0].looks()
    others[0].told(*[ACKED] * RECEIPTS_MAX)
    others[0].told(ALREADY, ACKED)
    for each in others[1:]:
        each.looks()
    assert [*[ACKED] * RECEIPTS_MAX, ALREADY, ACKED] == [each.answer for each in others]
    assert [1, RECEIPTS_MAX, 2] == [*map(len, setting.requests)]


@pytest.mark.parametrize("seed", range(campaigns.examples(30, whole=1_000)))
def test_nobody_is_left_alone(seed: int) -> None:
    """Whoever goes away, whatever fails, in whatever order they look: who stays hears of its own receipt."""
    chance, setting = random.Random(seed), Setting()
    callers = dict[int, Caller]()
    for number in range(60):
        for _ in range(chance.randrange(4)):
            _one_step(chance, setting, callers)
        callers[number] = setting.caller(number)
    for _ in range(2_000):
        if not callers:
            break
        _one_step(chance, setting, callers)
    assert not callers


def _one_step(chance: random.Random, setting: Setting, callers: dict[int, Caller]) -> None:
    ready = [number for number, each in callers.items() if each.asks or each.is_woken or each.answer is not None]
    for number in [*callers]:
        if callers[number].answer is not None:
            assert AckResult(acked=number) == callers.pop(number).answer
    if not ready:
        assert not callers or not any(each.asks for each in callers.values())
        return
    number = chance.choice(ready)
    caller = callers.get(number)
    if caller is None:
        return
    fate = chance.random()
    if fate < 0.1:
        del callers[number]
        with pytest.raises((KeyboardInterrupt, AnswerLost)):
            caller.fails(KeyboardInterrupt() if fate < 0.05 or not caller.asks else AnswerLost("lost"))
    elif caller.asks:
        caller.told(*[AckResult(acked=each) for each in caller.receipts])
    else:
        caller.looks()
