"""Flow control of one reader: records a second (`rate`), and records leased at a time (`max_in_flight`).

    look ──> room: tokens, and leases that are free ──> that many at most are leased ──> taken
      ^                  └── none: the agenda pauses until the next token, or until a lease ends
      └───────────────────── a record was settled: go on at once

A token bucket: `rate` tokens a second, of which a tenth of a second's may be saved up, and one at least. So in any time
of t seconds it takes at most rate * t + max(rate / 10, 1) records, whatever somebody does to the clock on the wall.

In flight is what this reader has leased and nobody has settled (acked, nacked, released, rejected), what it has leased
ahead included; a lease that has ended counts no more, and what was acked by the receipt of an earlier lease until its
own ends. A reader that has no limits has no flow. All of it is elapsed time, by the boot-time clock: what is told as
an instant counts from now.

Invariants: what is in flight is at most `max_in_flight`. Only one call takes at a time: what it finds to be free is
still free when it has leased it, and an exception in the middle leaves no place reserved. Where it strikes between a
lease and its being counted, that lease is not, until it ends.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable

from afterlog.base.errors import InvalidSubscription
from afterlog.log.notifier import NEVER_MS

SAVED_S = 0.1
"""Tokens are saved up for so long. Larger: a reader that was held up catches up faster, and takes more at once."""

WAIT_MS_MAX = 60_000
"""A reader with a very low rate looks at the clock again after this long."""

Place = tuple[int, int, int]
"""(partition, delivery offset, lease number): so that no receipt of an earlier lease frees it."""


class FlowControl:
    """Of one reader. Thread-safe; `room` and `took` within `taking`."""

    def __init__(
        self,
        rate: float | None,
        max_in_flight: int | None,
        *,
        now_ms: Callable[[], int],
        boot_ms: Callable[[], int],
        freed: Callable[[], object],
    ) -> None:
        """now_ms: the clock by which instants are told; boot_ms: that by which time goes by.

        freed: is told when there is room where there was none. None: without this limit.
        """
        check_limits(rate, max_in_flight)
        self.rate = rate
        self.max_in_flight = max_in_flight
        self._now_ms = now_ms
        self._boot_ms = boot_ms
        self._freed = freed
        self.taking = threading.Lock()
        """Held by who takes."""
        self._tokens_max = max(rate * SAVED_S, 1.0) if rate is not None else 0.0
        self._tokens = self._tokens_max
        self._filled_ms = boot_ms()
        self._places: dict[Place, int] = {}
        """When the lease of each ends, in boot time."""
        self._first_end_ms = NEVER_MS
        """No lease ends before, but it may be later."""
        self._is_full = False

    def room(self) -> int:
        """How many records may be taken now."""
        boot_ms, room = self._boot_ms(), 1 << 62
        if self.rate is not None:
            self._fill(boot_ms, self.rate)
            room = int(self._tokens + 1e-9)  # the sum of many parts may fall short of one by a rounding
        if self.max_in_flight is not None:
            self._is_full = True  # first: whoever settles behind this says so
            self._forget_ended(boot_ms)
            free = self.max_in_flight - len(self._places)
            self._is_full = free <= 0
            room = min(room, max(free, 0))
        return room

    def until_ms(self) -> int:
        """When there may be room again, where there is none; `freed` is told where it is earlier."""
        left_ms = 0
        if self.rate is not None and self._tokens < 1:
            left_ms = min(math.ceil((1 - self._tokens) * 1_000 / self.rate), WAIT_MS_MAX)
        if self._is_full:
            left_ms = max(left_ms, self._first_end_ms - self._boot_ms())
        return min(self._now_ms() + left_ms, NEVER_MS) if left_ms > 0 else 0

    def took(self, places: Iterable[Place], deadline_ms: Iterable[int]) -> None:
        """These are leased."""
        lead_ms = self._lead_ms()
        taken = {place: ms - lead_ms for place, ms in zip(places, deadline_ms, strict=True)}
        self._tokens -= len(taken)
        if self.max_in_flight is not None and taken:
            self._first_end_ms = min(self._first_end_ms, *taken.values())
            self._places.update(taken)

    def settled(self, place: Place) -> None:
        """It is not in flight any more. From any thread."""
        if self._places.pop(place, None) is not None and self._is_full:
            self._freed()

    def settled_many(self, places: Iterable[Place]) -> None:
        for place in places:
            self.settled(place)

    def extended(self, places: Iterable[Place], deadline_ms: int) -> None:
        """Their leases end later, or earlier."""
        end_ms = deadline_ms - self._lead_ms()
        self._first_end_ms = min(self._first_end_ms, end_ms)
        for place in places:
            if place in self._places:
                self._places[place] = end_ms

    def in_flight(self) -> int:
        """How many are, by now."""
        boot_ms = self._boot_ms()
        return sum(end_ms > boot_ms for end_ms in self._places.copy().values())

    def share(self, readers: int) -> int | None:
        """How many one of so many iterations may lease ahead, so that it starves no other; None: without a limit."""
        return None if self.max_in_flight is None else max(self.max_in_flight // max(readers, 1), 1)

    def _lead_ms(self) -> int:
        """By how much instants are ahead of boot time."""
        return self._now_ms() - self._boot_ms()

    def _fill(self, boot_ms: int, rate: float) -> None:
        self._tokens = min(self._tokens + (boot_ms - self._filled_ms) * rate / 1_000, self._tokens_max)
        self._filled_ms = boot_ms

    def _forget_ended(self, boot_ms: int) -> None:
        if boot_ms < self._first_end_ms:
            return
        ends = self._places.copy()
        for place, end_ms in ends.items():
            if end_ms <= boot_ms:
                self._places.pop(place, None)
        self._first_end_ms = min((end_ms for end_ms in ends.values() if end_ms > boot_ms), default=NEVER_MS)


def check_limits(rate: float | None, max_in_flight: int | None) -> None:
    """Raises InvalidSubscription where they make no sense."""
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e12):
        raise InvalidSubscription(f"rate must be records per second, more than 0, or None, not {rate!r:.100}")
    is_count = isinstance(max_in_flight, int) and not isinstance(max_in_flight, bool) and max_in_flight > 0
    if max_in_flight is not None and not is_count:
        raise InvalidSubscription(f"max_in_flight must be at least 1, or None, not {max_in_flight!r:.100}")
