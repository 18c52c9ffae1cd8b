"""The thread behind ``Durability.interval(ms)``: one sync of every partition that has something new, every `ms`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from afterlog.clock import Clock
from afterlog.errors import AfterlogError
from afterlog.log.log_state import LogState

logger = logging.getLogger("afterlog.log")


class IntervalSync:
    """Runs from its making until `stop`. A partition that fails is poisoned by its own state; the others go on."""

    def __init__(self, clock: Clock, interval_ms: int, states: Callable[[], Iterable[LogState]]) -> None:
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._states = states
        self._stopped = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="afterlog-sync", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._waited():
            for state in self._states():
                try:
                    state.sync_if_behind()
                except AfterlogError as error:
                    logger.error("%s: not synced: %s", state.path, error)

    def _waited(self) -> bool:
        """Wait for the next turn; False when there is none."""
        deadline_s = self._clock.monotonic_s() + self._interval_s
        with self._condition:
            while not self._stopped and (left_s := deadline_s - self._clock.monotonic_s()) > 0:
                self._clock.wait(self._condition, None, left_s)  # may return early for no reason
            return not self._stopped
