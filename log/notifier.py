"""Wakes those who wait for one partition, or for one of its subscriptions, and nobody else.

    append, nack, … ──> notify(ms) ──> every listener: there may be something from `ms` on

Nothing is decided by it: who is not told looks a little later. So it needs no lock while it tells, and an exception in
the middle costs promptness and nothing else.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from afterlog.base.clock import INT64_MAX

NEVER_MS = INT64_MAX
"""No time is known."""


class Listener(Protocol):
    """Who wants to be told. Held weakly: who is gone need not leave."""

    def come(self, ms: int) -> None:
        """There may be something from the instant `ms` on; 0: now. Called by any thread; must not block, nor raise."""


class Notifier:
    """Thread-safe."""

    def __init__(self) -> None:
        self._listeners: tuple[weakref.ref[Listener], ...] = ()
        self._lock = threading.Lock()
        """Held over changes of the tuple, and not while anybody is told."""

    def listen(self, listener: Listener) -> None:
        """Tell this one too, from now on. O(listeners)."""
        with self._lock:
            self._listeners = (*self._others(listener), weakref.ref(listener))

    def leave(self, listener: Listener) -> None:
        """Tell it no longer."""
        with self._lock:
            self._listeners = self._others(listener)

    def notify(self, ms: int = 0) -> None:
        """Something may be there from `ms` on."""
        for each in self._listeners:
            listener = each()
            if listener is not None:
                listener.come(ms)

    def _others(self, listener: Listener) -> tuple[weakref.ref[Listener], ...]:
        """All that are still there, but for this one."""
        return tuple(each for each in self._listeners if each() not in (None, listener))
