"""The server's clock as its answers tell it: the boot-time clock here, moved by the difference last seen.

Deadlines of leases are instants of that clock. So a client whose clock is wrong, or is set, keeps its leases all the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from afterlog.base.clock import Clock


class ServerTime:
    """Of one client. Thread-safe: it is one number."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.now_ms() - clock.boot_ms()

    def now_ms(self) -> int:
        """Late by no more than an answer took."""
        return self._clock.boot_ms() + self._ahead_ms

    def saw(self, said: Mapping[str, Any]) -> None:
        """What an answer says of it, that has just come."""
        now_ms = said.get("now_ms")
        if type(now_ms) is int:
            self._ahead_ms = now_ms - self._clock.boot_ms()
