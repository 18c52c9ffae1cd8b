"""The clock of one partition, and what is in flight under it: the stamping rule lives here.

    effective deliver_after = max(deliver_after asked for, `stamp`)

Invariants (`check`):

1. Stamps never decrease, also not across restarts.
2. Readings that decide "due" never decrease while the log is open.
3. A stamp is never below a "due" reading handed out before it, in this life or an earlier one.
4. A "due" reading is never above the stamp of an append that is still in flight, nor above the durable lease when
   something is delivered by it.

So nothing can ever sort in front of what has been delivered. After a crash, the readings between `used` and `lease`
may have been used or not: stamps start above the lease, "due" readings follow the wall clock (docs/decisions/0003).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from afterlog.base.errors import ClockBehind
from afterlog.log.checkpoints import FrontierLease

BEHIND_MS_MAX = 3_600_000
"""A durable frontier further ahead of the wall clock than this is taken for a clock that was wrong."""


class LogClock:
    """Readings of one partition's clock. Not thread-safe: the log calls it under its state lock."""

    def __init__(self, now_ms: Callable[[], int], frontier: FrontierLease, last_stamp_ms: int) -> None:
        self._now_ms = now_ms
        self.used_ms = frontier.used_ms
        """The frontier: the largest reading that decided "due"."""
        self._stamp_ms = max(frontier.lease_ms, last_stamp_ms)
        self.opened_lease_ms = frontier.lease_ms
        """No fetch of an earlier life used a larger reading."""
        self._in_flight: deque[tuple[int, int]] = deque()

    @property
    def last_stamp_ms(self) -> int:
        """The largest stamp so far."""
        return self._stamp_ms

    def stamp(self, end_offset: int) -> int:
        """The reading of an append up to `end_offset`, which is in flight from now on until `landed` or `withdrawn`."""
        self._in_flight.append((self.reading(), end_offset))
        return self._stamp_ms

    def reading(self) -> int:
        """What the next stamp would be, and no stamp is below from now on: to decide by, with nothing in flight."""
        self._stamp_ms = max(self._now_ms(), self._stamp_ms, self.used_ms)
        return self._stamp_ms

    @property
    def settled_ms(self) -> int:
        """Whatever becomes visible from now on has its stamp from here on."""
        return self._in_flight[0][0] if self._in_flight else max(self._stamp_ms, self.used_ms)

    def holds_back(self, ms: int) -> bool:
        """Whether what is due at `ms` waits for an append in flight, whatever the wall clock says."""
        return bool(self._in_flight) and self._in_flight[0][0] <= ms

    def withdrawn(self) -> None:
        """The newest append in flight failed and left nothing behind."""
        self._in_flight.pop()

    def cleared(self) -> None:
        """Nothing is in flight: what was is visible, or was rolled back."""
        self._in_flight.clear()

    def landed(self, end_offset: int) -> None:
        """Appends up to `end_offset` may be seen."""
        while self._in_flight and self._in_flight[0][1] <= end_offset:
            self._in_flight.popleft()

    def due(self) -> int:
        """The reading of a fetch. Raises ClockBehind where the wall clock cannot be right."""
        now_ms = self._now_ms()
        if self.opened_lease_ms - now_ms > BEHIND_MS_MAX:
            raise ClockBehind(
                f"the log's frontier is {self.opened_lease_ms} ms, the wall clock {now_ms} ms, over an hour behind: "
                "set the clock right, wait, or see `afterlog repair --clock`"
            )
        reading_ms = max(now_ms, self.used_ms)
        if self._in_flight:
            reading_ms = min(reading_ms, self._in_flight[0][0])
        self.used_ms = max(self.used_ms, reading_ms)
        return self.used_ms

    def frontier(self) -> FrontierLease:
        """What a clean close makes durable: only a life that crashed may have used anything above `used`."""
        return FrontierLease(used_ms=self.used_ms, lease_ms=max(self.used_ms, self.opened_lease_ms))

    def check(self) -> None:
        """Prove the invariants that can be seen from here."""
        stamps = [stamp for stamp, _ in self._in_flight]
        assert stamps == sorted(stamps)
        assert all(self.used_ms <= stamp for stamp in stamps)
        assert not stamps or stamps[-1] <= self._stamp_ms
