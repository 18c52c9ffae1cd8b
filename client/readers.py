"""The readers that a client has open: closed with it, and what they claim and lease is kept by one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from afterlog.base.clock import Clock
from afterlog.client.consumer_steps import ConsumerSteps
from afterlog.client.subscription_steps import SubscriptionSteps
from afterlog.subscription.lease_keeper import Keeping, LeaseKeeper


class Reader(Protocol):
    """What can be closed."""

    def close(self) -> Any: ...


class Readers:
    """Of one client. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._open: dict[int, tuple[Reader, Keeping | None]] = {}
        self._lock = threading.Lock()
        self._keeper = LeaseKeeper(self._kept, clock)

    def add_subscription(self, reader: Reader, steps: SubscriptionSteps) -> None:
        steps.blocks.wake = self._keeper.wake
        with self._lock:
            self._open[id(steps)] = reader, steps.kept

    def add_consumer(self, reader: Reader, steps: ConsumerSteps) -> None:
        with self._lock:
            self._open[id(steps)] = reader, steps
        self._keeper.wake()

    def remover(self, key: Callable[[], object]) -> Callable[[], None]:
        """What forgets the one of which `key` gives the steps."""

        def remove() -> None:
            with self._lock:
                self._open.pop(id(key()), None)

        return remove

    def all(self) -> list[Reader]:
        """Those that are open."""
        with self._lock:
            return [reader for reader, _ in self._open.values()]

    def stop(self) -> None:
        """Nothing is kept any more."""
        self._keeper.stop()

    def _kept(self) -> Iterable[Keeping]:
        with self._lock:
            return [kept for _, kept in self._open.values() if kept is not None]
