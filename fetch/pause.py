"""Why a reader waits, and until when: nothing is there for it, until the clock or a notification says otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from afterlog.clock import Clock


class Pause(NamedTuple):
    """Made before the wait, from what was seen before the reader looked: so nothing is slept through."""

    over: Callable[[], bool]
    """Whether something has changed since that a notification tells of; asked with the store's condition held."""
    until_ms: int | None
    """When by the clock that waits something may have come; None where only a notification can tell."""

    def wait(self, clock: Clock, changed: threading.Condition, timeout_s: float | None) -> None:
        """Block until it may be over, at most `timeout_s`."""
        with changed:
            if not self.over():
                clock.wait(changed, self.until_ms, timeout_s)
