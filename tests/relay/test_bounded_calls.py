from __future__ import annotations

from queue import SimpleQueue

import pytest

from afterlog.relay.bounded_calls import BoundedCalls, CallLost

PLENTY_S = 60.0


def test_what_it_gives_and_raises() -> None:
    calls = BoundedCalls("test")
    assert calls.run(lambda: 5, PLENTY_S) == 5
    with pytest.raises(ZeroDivisionError):
        calls.run(lambda: 1 // 0, PLENTY_S)
    assert calls.run(lambda: None, PLENTY_S) is None
    calls.end()


def test_what_does_not_come_back_is_given_up() -> None:
    calls, held = BoundedCalls("test"), SimpleQueue[int]()
    with pytest.raises(CallLost, match="did not come back"):
        calls.run(held.get, 0.01)
    held.put(1)
    calls.end()
