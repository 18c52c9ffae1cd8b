"""The thread behind ``Durability.interval(ms)``: every `ms`, a sync of each log and journal with something new."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from afterlog.clock import Clock
from afterlog.errors import AfterlogError

logger = logging.getLogger("afterlog.log")


class Synced(Protocol):
    """What is written now and synced later: the state of a log, the journal of a subscription. Thread-safe."""

    @property
    def path(self) -> Path: ...

    def sync_if_behind(self) -> None:
        """Make durable what is not yet."""


class IntervalSync:
    """Runs from its making until `stop`. What fails is poisoned by itself; the others go on."""

    def __init__(self, clock: Clock, interval_ms: int, states: Callable[[], Iterable[Synced]]) -> None:
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
