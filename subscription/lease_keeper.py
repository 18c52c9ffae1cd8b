"""Automatic renewal of leases: a message stays leased while its `with` block is open, however slow the handler is.

    with message:  ──> open blocks ──a third of the lease later, and then again──> extended, up to max_lease_ms
                                   ──half of the lease later──> what was leased ahead behind it goes back

One thread a store, `afterlog-leases`, which begins with the first block. It sends acks that go together, too
(`ack_group.py`). It sleeps for a third of the shortest lease of
the readers that have a block open, and until the next block opens where none has. So a handler that is quicker costs an
entry in a dict, and nothing else; and it holds in asyncio, too, where a handler may hold up its event loop.

A lease that is kept never ends earlier for it than somebody has asked for (`Subscription.extend`).

Invariants: nothing is extended but what has a block open and is not settled; from its delivery on it is leased for at
most `max_lease_ms`, to the step of the timers. An exception in the middle costs a turn: what was not extended is at
the next one, which comes while a third of its lease is left.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from afterlog.base.clock import Clock
from afterlog.base.errors import AfterlogError
from afterlog.log.background import Background
from afterlog.subscription.active_handlers import ActiveHandlers
from afterlog.subscription.leased_message import LeasedMessage

logger = logging.getLogger("afterlog.subscription")

TURNS = 3
"""Looks within a lease. More: a look that comes late costs less, more looks."""


class Keeping(Protocol):
    """What has to be said again before it is forgotten."""

    def keep(self) -> int | None:
        """Say it, where it is time. How long until the next look, ms; None: when somebody wakes the keeper."""


class KeptLeases:
    """Of one reader. Used by the keeper alone."""

    def __init__(
        self,
        blocks: ActiveHandlers[LeasedMessage],
        lease_ms: int,
        max_lease_ms: int,
        *,
        now_ms: Callable[[], int],
        prolong: Callable[[Sequence[LeasedMessage]], int],
        give_back: Callable[[int], object],
    ) -> None:
        """prolong: lease these for another `lease_ms`; until when. give_back: what waits, leased ahead, for too long
        by now.
        """
        self.blocks = blocks
        self._lease_ms = lease_ms
        self._max_lease_ms = max_lease_ms
        self._now_ms = now_ms
        self._prolong = prolong
        self._give_back = give_back
        self._until: dict[int, tuple[LeasedMessage, int]] = {}
        """What was extended, and until when. The message is held, so that its identity is nobody else's."""

    def keep(self) -> int | None:
        """Extend what has had a third of its lease. How long until the next look, ms; None: when a block opens."""
        self.blocks.asleep = not self.blocks
        if self.blocks.asleep and not self.blocks:  # again: a block that opened in between saw no flag
            self._until = {}
            return None
        self.blocks.asleep = False
        now_ms = self._now_ms()
        held = {each: message for each, message in self.blocks.copy().items() if not message.settled}
        self._until = {each: known for each, known in self._until.items() if held.get(each) is known[0]}
        due = [message for message in held.values() if self._is_due(message, now_ms)]
        with contextlib.suppress(AfterlogError):  # closed, or poisoned: then nobody has a lease
            if due:
                until_ms = self._prolong(due)
                self._until.update((id(message), (message, until_ms)) for message in due)
            self._give_back(now_ms)
        return max(self._lease_ms // TURNS, 1)

    def _is_due(self, message: LeasedMessage, now_ms: int) -> bool:
        _, until_ms = self._until.get(id(message), (message, message.deadline_ms))
        delivered_ms = message.deadline_ms - self._lease_ms
        is_over = until_ms - now_ms <= self._lease_ms - self._lease_ms // TURNS
        return is_over and now_ms + self._lease_ms <= delivered_ms + self._max_lease_ms


class LeaseKeeper:
    """Of a store. Thread-safe."""

    def __init__(self, kept: Callable[[], Iterable[Keeping]], clock: Clock, *, background: bool = True) -> None:
        """kept: of each reader that has its leases kept. background: in a thread; else by `look` alone."""
        self._kept = kept
        self._clock = clock
        self._in_thread = background
        self._background: Background | None = None
        self._next_ms: int | None = None
        """Of the boot-time clock: how long it sleeps is elapsed time."""
        self._lock = threading.Lock()

    def wake(self) -> None:
        """A block has opened, and nobody looks. From any thread."""
        with self._lock:
            if not self._in_thread:
                return
            if self._background is None:
                self._background = Background.weakly(
                    "afterlog-leases", self, LeaseKeeper.look, clock=self._clock, left_ms=LeaseKeeper.left_ms
                )
        self._background.wake()

    def look(self) -> None:
        """Keep what is to be kept by now."""
        lefts = [left for kept in self._kept() if (left := kept.keep()) is not None]
        self._next_ms = self._clock.boot_ms() + min(lefts) if lefts else None

    def left_ms(self) -> int | None:
        """How long until the next look; None: until a block opens."""
        return None if self._next_ms is None else self._next_ms - self._clock.boot_ms()

    def stop(self) -> None:
        """Nothing is extended any more when it returns, and nothing later."""
        with self._lock:
            self._in_thread = False
        if self._background is not None:
            self._background.stop()
