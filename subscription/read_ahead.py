"""Read-ahead of an iterating reader: what it has leased and not handed out yet, and how much it leases at a time.

A record that waits here for its turn is withheld from the other readers, and its lease runs. So the first record comes
alone; then at most twice what came before, at most RECORDS_MAX, and no more than can be worked off within a quarter of
the lease at the speed of the last ones. Where there are priorities, within a tenth of a second: what is leased goes
before a higher one that comes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from afterlog.base.clock import INT64_MAX
from afterlog.subscription.leased_message import LeasedMessage

RECORDS_MAX = 256
"""Leased at a time. Larger: fewer journal frames, more that is withheld from other readers."""
AHEAD_OF_HIGHER_MS = 100


def never_lapses(message: LeasedMessage) -> int:
    """It does not expire."""
    return INT64_MAX


class ReadAhead:
    """Of one iterator. `pop`, `fill` and `wanted` by one thread, `drain` and `drain_late` by any."""

    def __init__(
        self, lease_ms: int, lapse_ms: Callable[[LeasedMessage], int] = never_lapses, priorities: int = 1
    ) -> None:
        """lapse_ms: when a message expires: then it is time to fill, too."""
        self._lease_ms = lease_ms
        self._ahead_ms = lease_ms // 4 if priorities == 1 else min(lease_ms // 4, AHEAD_OF_HIGHER_MS)
        self._lapse_ms = lapse_ms
        self._first_lapse_ms = INT64_MAX
        """No later than that of any."""
        self._messages: deque[LeasedMessage] = deque()
        self._lock = threading.Lock()
        self._filled_ms = 0
        self._handed = 0
        """Since it was filled."""
        self.seeks = 0
        """Of the subscription, when it was filled."""
        self.out: LeasedMessage | None = None
        """What was handed out last, until the iteration comes for the next."""

    def wanted(self, now_ms: int) -> int:
        """How many records to lease, now that all are worked off."""
        if not self._handed:
            return 1
        took_ms = max(now_ms - self._filled_ms, 1)
        return max(min(2 * self._handed, self._handed * self._ahead_ms // took_ms, RECORDS_MAX), 1)

    def fill(
        self, messages: Iterable[LeasedMessage], now_ms: int, seeks: int = 0, first_lapse_ms: int = INT64_MAX
    ) -> None:
        """first_lapse_ms: when the first of them expires."""
        self._first_lapse_ms = first_lapse_ms
        with self._lock:
            self._messages.extend(messages)
        self._filled_ms = now_ms
        self._handed = 0
        self.seeks = seeks

    def pop(self, now_ms: int) -> LeasedMessage | None:
        """The next message to hand out; None where it is time to fill: none is left, half of its lease is over, or it
        has expired."""
        with self._lock:
            next_one = self._messages[0] if self._messages else None
            is_over = next_one is None or next_one.deadline_ms - now_ms < self._lease_ms // 2
            if next_one is None or is_over or (now_ms >= self._first_lapse_ms and now_ms >= self._lapse_ms(next_one)):
                self.out = None
                return None
            self.out = message = self._messages[0]  # before it is taken: a drain sees one of the two
            self._messages.popleft()
        self._handed += 1
        return message

    @property
    def is_empty(self) -> bool:
        """Whether all was handed out."""
        return not self._messages

    @property
    def is_out(self) -> bool:
        """Whether what was handed out is being worked on, as far as is known."""
        out = self.out
        return out is not None and not out.settled

    def drain_late(self, now_ms: int) -> list[LeasedMessage]:
        """`drain`, where half of the lease is over."""
        with self._lock:
            is_late = bool(self._messages) and self._messages[0].deadline_ms - now_ms < self._lease_ms // 2
        return self.drain() if is_late else []

    def drain(self) -> list[LeasedMessage]:
        """Take out what was not handed out."""
        with self._lock:
            messages = [*self._messages]
            self._messages.clear()
        return messages
