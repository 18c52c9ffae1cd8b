"""Locks, waits and threads that stay consistent when an exception strikes anywhere (docs/decisions/0024). No other
module makes a condition, an event or a thread of the standard library's.

`with lock:` is one instruction at either end where the lock is C, and between it and the block nothing strikes. What
`threading` has in Python is entered by a call: struck in it, once the lock is taken, it keeps it for good, and whoever
comes next waits for ever. So

    Condition   is a lock itself, entered in C; a wait that is struck has its lock again
    Switch      `threading.Event`, over one of these
    Thread      whose start waits for one of these: a struck `start` does not keep the thread from running
    within      several locks at once; an `ExitStack` is Python, too
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

Done = TypeVar("Done")
_NO_LOCK: Final = nullcontext()
_AT_ONCE: Final = 16
"""Locks of one frame: of 10,000, those of a topic of so many partitions, 8 would be too many frames for Python, which
nests no more than 20 blocks in one."""
_LONGEST_S: Final = 5.0
"""Who waits without a timeout looks again after this long: what should have woken it may have been struck."""


def within(locks: Sequence[AbstractContextManager[Any]], do: Callable[[], Done]) -> Done:
    """What `do` gives, while these are held, which are taken in this order. Raises as it does."""
    if not locks:
        return do()
    frame: list[AbstractContextManager[Any]] = [*locks[:_AT_ONCE], *[_NO_LOCK] * (_AT_ONCE - len(locks))]
    a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q = frame
    with a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q:
        return within(locks[_AT_ONCE:], do)


class Condition(_thread.RLock):  # type: ignore[misc]
    """`threading.Condition` over a lock of its own, which who has it may take again.

    It may wake for no reason, and a notification that is struck may reach nobody: callers loop, none waits for ever.
    """

    def __init__(self) -> None:
        self._waiters = deque[_thread.LockType]()

    def wait(self, timeout: float | None = None) -> bool:
        """Within the block, once: let go of the lock until notified or for `timeout` seconds, 5 at most without one.

        False where nobody notified. The lock is held again when it returns, or raises.
        """
        waiter = _thread.allocate_lock()
        waiter.acquire()
        notified = False
        try:
            try:
                self._waiters.append(waiter)
                self.release()
                notified = waiter.acquire(True, _LONGEST_S if timeout is None else max(timeout, 0.0))
            finally:
                self._held_again()
        except BaseException:
            self._held_again()  # it struck in the line before
            raise
        if not notified:
            try:
                self._waiters.remove(waiter)
            except ValueError:  # notified meanwhile
                notified = True
        return notified

    def notify_all(self) -> None:
        """Within the block: wake all that wait."""
        while self._waiters:
            self._waiters.popleft().release()

    def notify(self, n: int = 1) -> None:
        """Within the block: wake as many of those that wait."""
        while n > 0 and self._waiters:
            self._waiters.popleft().release()
            n -= 1

    def _held_again(self) -> None:
        lock: Any = self
        if not lock._is_owned():
            lock._acquire_restore((1, threading.get_ident()))  # which no signal interrupts


class Switch:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        with self._changed:
            self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is set, or for `timeout` seconds, or less for no reason; whether it is set."""
        with self._changed:
            while not self._is_set:
                self._changed.wait(timeout)
                if timeout is not None:
                    break
        return self._is_set

    def _at_fork_reinit(self) -> None:
        """`threading` asks it of the events of its threads, in a forked child."""
        self._changed = Condition()


class Thread(threading.Thread):
    """`threading.Thread`, whose `start` may be struck: the thread runs all the same, and can be joined."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if hasattr(self, "_started"):  # by which a start waits for the thread to run
            self._started: Any = Switch()
