"""Why a reader waits, and until when: nothing is there for it, until the clock or a notification says otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import NamedTuple

from afterlog.clock import Clock


class Pause(NamedTuple):
    """Nothing is there as long as `seen` answers what it answered before the reader looked: nothing is slept through.

    Equal pauses are over at the same time.
    """

    seen: Callable[[], Hashable]
    """Asked with the store's condition held; what it answers changes with all that is notified."""
    was: Hashable
    until_ms: int | None
    """When by the clock that waits something may have come; None where only a notification can tell."""

    def wait(self, clock: Clock, changed: threading.Condition, timeout_s: float | None) -> None:
        """Block until it may be over, at most `timeout_s`."""
        with changed:
            if self.seen() == self.was:
                clock.wait(changed, self.until_ms, timeout_s)
