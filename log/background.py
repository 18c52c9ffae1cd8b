"""A background thread that does one thing at intervals: syncs, merges, uploads. The one loop of them all.

It begins when it is woken for the first time, or told to, sleeps until it is woken again or its time has come, and then
works. What the work may raise it sees to itself: nothing that is done here is needed for an append or a fetch to go on.
What it does not expect, a failed allocation for one, ends its turn and not the thread: the next turn may have memory.

It may hold what it works for weakly (`weakly`): a store that nobody else holds any more is let go of, with its locks,
and the thread ends.

The rules for stopping: `stop` returns when nothing is worked at any more, and nothing is begun behind it. Work that
takes long looks whether it should end (a log that is being closed says so); `stop` comes after that.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TypeVar

from afterlog.base.clock import Clock, SystemClock
from afterlog.base.locks import Condition, Thread

logger = logging.getLogger("afterlog.log")

LOOKS_S = 0.5
"""Who waits for an instant looks at the clock again after this long, so that a step of it is seen."""

Held = TypeVar("Held")


class Background:
    """Idle until `wake` or `begin`, over after `stop`. Thread-safe."""

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        clock: Clock | None = None,
        interval_ms: int | None = None,
        left_ms: Callable[[], int | None] | None = None,
    ) -> None:
        """interval_ms: the longest that it sleeps, once it has begun. None: until it is woken.

        left_ms: how long until there is something to do by a clock on the wall, which may step; None: not by then.
        """
        self._name = name
        self._work = work
        self._clock = clock or SystemClock()
        self._interval_s = None if interval_ms is None else interval_ms / 1000
        self._left_ms = left_ms or _never
        self._woken = False
        self._stopped = False
        self._condition = Condition()
        self._thread: Thread | None = None

    @staticmethod
    def weakly(
        name: str,
        owner: Held,
        work: Callable[[Held], object],
        *,
        clock: Clock,
        interval_ms: int | None = None,
        left_ms: Callable[[Held], int | None] | None = None,
    ) -> Background:
        """Begun, and over when nobody but its thread holds the owner, which the work is given. It may not hold it."""
        held = weakref.ref(owner)

        def now() -> None:
            there = held()
            if there is not None:
                work(there)

        def left() -> int | None:
            there = held()
            return None if there is None or left_ms is None else left_ms(there)

        background = Background(name, now, clock=clock, interval_ms=interval_ms, left_ms=left)
        weakref.finalize(owner, background.end).atexit = False
        background.begin()
        return background

    def wake(self) -> None:
        """There is something to do. Returns at once: it may be called under any lock."""
        with self._condition:
            self._woken = True
            self._condition.notify_all()
            self._begin()

    def begin(self) -> None:
        """Work when the interval is over for the first time, or when woken."""
        with self._condition:
            self._begin()

    def stop(self) -> None:
        """Return when nothing is worked at any more."""
        self.end()
        if self._thread is not None:
            self._thread.join()

    def end(self) -> None:
        """Begin nothing more. Returns at once: it may be called wherever the interpreter finds time to collect."""
        with self._condition:  # its lock is one that its holder may take again
            self._stopped = True
            self._condition.notify_all()

    def _begin(self) -> None:
        if self._thread is None and not self._stopped:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                if not self._waited():
                    return
                self._work()
            except Exception:
                logger.exception("%s: given up until its next turn", self._name)

    def _waited(self) -> bool:
        """Wait for the next turn; False when there is none."""
        deadline_s = None if self._interval_s is None else self._clock.monotonic_s() + self._interval_s
        with self._condition:
            while not (self._woken or self._stopped):
                left_s, until_ms = None if deadline_s is None else deadline_s - self._clock.monotonic_s(), None
                left_ms = self._left_ms()
                if left_ms is not None:
                    if left_ms <= 0:
                        break
                    until_ms = self._clock.now_ms() + left_ms
                    left_s = min(left_ms / 1000, LOOKS_S, LOOKS_S if left_s is None else left_s)
                if left_s is None:
                    self._condition.wait()
                elif left_s > 0:
                    self._clock.wait(self._condition, until_ms, left_s)  # may return early for no reason
                else:
                    break
            self._woken = False
            return not self._stopped


def _never() -> None:
    """Nothing is to be done at an instant."""
