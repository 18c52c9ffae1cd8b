"""Active handlers of one reader: the messages whose `with` block is open now, in whichever thread or task.

    with message:  ──> there, until the block has ended and its ack, nack or release has returned

It costs every record, so it is a dict by identity and two flags, and nobody takes a lock: `asleep` says that whoever
keeps the leases is to be woken by the next block, `watched` that somebody waits for the last one to end. Both are set
before the dict is looked at, and looked at behind a change of it: so one of two threads sees what the other one did.

A block that was interrupted before its end began, by Ctrl-C between two instructions, stays here. It holds up a drain
for as long as that has patience, and its lease is kept for `max_lease_ms`: late, and not lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from afterlog.base.clock import Clock
from afterlog.base.locks import Condition

Inside = TypeVar("Inside")


def _nothing() -> None:
    """Nobody keeps the leases of this reader."""


class ActiveHandlers(dict[int, Inside]):
    """By the identity of the message. Thread-safe."""

    __slots__ = ("_changed", "_listeners", "asleep", "wake", "watched")

    def __init__(self) -> None:
        super().__init__()
        self.asleep = False
        """Whether the next block that opens calls `wake`. Set by who keeps the leases alone."""
        self.wake: Callable[[], object] = _nothing
        self.watched = False
        """Whether who ends the last block calls `ended`."""
        self._changed = Condition()
        self._listeners: list[Callable[[], object]] = []

    def ended(self) -> None:
        """The last one has ended, or something else that is waited for."""
        for listener in [*self._listeners]:
            listener()
        with self._changed:
            self._changed.notify_all()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call it, from any thread, when the last block has ended; it looks itself whether one has begun since."""
        if listener not in self._listeners:
            self._listeners.append(listener)
        self.watched = True

    def leave(self, listener: Callable[[], object]) -> None:
        self._listeners = [each for each in self._listeners if each != listener]

    def wait(self, is_over: Callable[[], bool], clock: Clock, timeout_s: float | None) -> bool:
        """Block until it is over, which `ended` tells; False where that takes longer."""
        deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        self.watched = True
        with self._changed:
            while not is_over():
                left_s = None if deadline_s is None else deadline_s - clock.monotonic_s()
                if left_s is not None and left_s <= 0:
                    return False
                clock.wait(self._changed, None, left_s)
        return True
