"""The open readers of a client: opened alike for threads and tasks; one thread renews their claims and leases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from afterlog.base.clock import Clock
from afterlog.client.call import Steps
from afterlog.client.consumer_steps import ConsumerSteps, checked_auto_commit
from afterlog.client.server_time import ServerTime
from afterlog.client.store_steps import StoreSteps, chosen_partitions
from afterlog.client.subscription_steps import SubscriptionSteps, served_settings
from afterlog.fetch.positions import Position
from afterlog.subscription.lease_keeper import Keeping, LeaseKeeper
from afterlog.subscription.reader_settings import ReaderOptions


class Reader(Protocol):
    """What can be closed."""

    def close(self) -> Any: ...


class Readers:
    """Of one client. Thread-safe."""

    def __init__(
        self, clock: Clock, server_time: ServerTime, drive_now: Callable[[Steps[Any]], Any], usable: Callable[[], None]
    ) -> None:
        """drive_now: asks in a thread, also where tasks read. usable: raises where the client is closed."""
        self._clock = clock
        self._server_time = server_time
        self._drive_now = drive_now
        self._usable = usable
        self._open: dict[int, tuple[Reader, list[Keeping]]] = {}
        self._lock = threading.Lock()
        self._keeper = LeaseKeeper(self._kept, clock)

    def consumer(
        self,
        store: StoreSteps,
        topic: str,
        group: str,
        partitions: Sequence[int] | None,
        start: Position,
        auto_commit: bool,
    ) -> Steps[ConsumerSteps]:
        """What opens a consumer, as `store.consumer` says; whoever has one of its kind made adds it."""
        auto_commit = checked_auto_commit(auto_commit)
        chosen = chosen_partitions(partitions)
        target = yield from store.topic(topic)
        numbers = [*range(target.partition_count)] if chosen is None else chosen
        for number in numbers:
            target.checked_partition(number)
        claim, committed, positions = yield from ConsumerSteps.opening(topic, group, numbers, start)
        steps = ConsumerSteps(
            topic,
            group,
            committed,
            positions,
            claim,
            auto_commit=auto_commit,
            clock=self._clock,
            server_time=self._server_time,
            drive_now=self._drive_now,
            usable=self._usable,
            on_close=lambda: self._remove(steps),
        )
        return steps

    def subscription(self, topic: str, name: str, options: ReaderOptions) -> Steps[SubscriptionSteps]:
        """The same of `store.subscribe`."""
        settings = served_settings(options)
        told = yield from SubscriptionSteps.opening(topic, name, settings)
        steps = SubscriptionSteps(
            topic,
            name,
            settings,
            told["partitions"],
            clock=self._clock,
            server_time=self._server_time,
            drive_now=self._drive_now,
            usable=self._usable,
            on_close=lambda: self._remove(steps),
        )
        return steps

    def add_subscription(self, reader: Reader, steps: SubscriptionSteps) -> None:
        steps.blocks.wake = self._keeper.wake
        if steps.group is not None:
            steps.group.wake = self._keeper.wake
        kept: list[Keeping] = [each for each in (steps.group, steps.kept) if each is not None]
        with self._lock:
            self._open[id(steps)] = reader, kept

    def add_consumer(self, reader: Reader, steps: ConsumerSteps) -> None:
        with self._lock:
            self._open[id(steps)] = reader, [steps]
        self._keeper.wake()

    def all(self) -> list[Reader]:
        """Those that are open."""
        with self._lock:
            return [reader for reader, _ in self._open.values()]

    def stop(self) -> None:
        """Nothing is kept any more."""
        self._keeper.stop()

    def _remove(self, steps: object) -> None:
        with self._lock:
            self._open.pop(id(steps), None)

    def _kept(self) -> Iterable[Keeping]:
        with self._lock:
            return [each for _, kept in self._open.values() for each in kept]
