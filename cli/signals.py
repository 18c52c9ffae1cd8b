"""Signals for commands that keep running: SIGTERM finishes what was begun and takes nothing more.

The exit code is 0 then. A subscription has `draining_on` for it; here is the same for a consumer group, which waits in
slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afterlog.base.clock import Clock
    from afterlog.fetch.message import Message
    from afterlog.surface import ConsumerSurface

SLICE_S = 0.5
"""A signal ends a poll that waits after this long."""


class StoppablePolls:
    """Of a consumer, as what a signal can stop."""

    def __init__(self, consumer: ConsumerSurface, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._stopped = False

    def poll(self, max_records: int, timeout: float | None) -> list[Message]:
        """As a consumer's; nothing where it was stopped."""
        deadline_s = None if timeout is None else self._clock.monotonic_s() + timeout
        while not self._stopped:
            left_s = SLICE_S if deadline_s is None else max(deadline_s - self._clock.monotonic_s(), 0.0)
            messages = self._consumer.poll(max_records, min(left_s, SLICE_S))
            if messages or left_s <= 0:
                return messages
        return []

    def halt(self) -> None:
        """Poll nothing more. Takes no lock."""
        self._stopped = True

    def stop_taking(self) -> None:
        """The same: the poll that waits ends with its slice."""
        self.halt()

    def drain(self, timeout: float | None) -> bool:
        """The same: what was polled is printed by who polls."""
        self.halt()
        return True
