"""Calls of a library that may not come back: made in a thread of their own, and given up after a time.

librdkafka's `send_offsets_to_transaction` does not heed its timeout where the coordinator of the group is gone
(https://github.com/confluentinc/librdkafka/issues/5456): it waits until some broker changes its state. A worker that
waits in it holds its partitions, and ends on no signal.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from afterlog.base.locks import Thread

CallAnswer = TypeVar("CallAnswer")


class CallLost(Exception):
    """It did not come back in time. Its thread, and what it holds, are given up: they end when it does."""


class BoundedCalls:
    """For one thread, which calls one at a time. Behind a call that was lost it cannot be used any more."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        thread = Thread(target=_make, args=(self._calls, self._answers), name=name, daemon=True)
        thread.start()

    def run(self, call: Callable[[], CallAnswer], seconds: float) -> CallAnswer:
        """What the call gives, or raises. Raises CallLost where that takes longer than `seconds`."""
        self._calls.put(call)
        try:
            answer, error = self._answers.get(timeout=seconds)
        except Empty:
            raise CallLost(f"a call did not come back in {seconds:g} s") from None
        if error is not None:
            raise error
        return answer  # type: ignore[no-any-return]

    def end(self) -> None:
        """No more calls."""
        self._calls.put(None)


def _make(calls: SimpleQueue[Callable[[], Any] | None], answers: SimpleQueue[tuple[Any, BaseException | None]]) -> None:
    while (call := calls.get()) is not None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))
        del call  # and what it holds
