"""The subscriptions that a store has open: each partition of each once, whoever and how many read it.

    store.subscribe("mail", "sender") ──> Subscription ──┐
    store.subscribe("mail", "sender") ──> Subscription ──┴──> PartitionSubscription of mail-0, of mail-1, …

The last reader that closes closes it, and the store at the latest.

Invariant, proved by `check`: what is shared is read by at least one open reader.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from afterlog.clock import Clock
from afterlog.errors import InvalidSubscription, NameTaken
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import Position
from afterlog.names import position_files, subscription_folder
from afterlog.produce.topic import Topic
from afterlog.subscription.dead_letters import DeadLetters
from afterlog.subscription.journal import Journal, numbers
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.subscription import ReaderPart, ReaderSettings, Subscription

PartName = tuple[str, int, str]
"""(topic, partition, subscription)"""


@dataclass(slots=True)
class _Shared:
    part: ReaderPart
    readers: int = 0


class OpenSubscriptions:
    """Thread-safe."""

    def __init__(
        self,
        topic_of: Callable[[str], Topic],
        *,
        clock: Clock,
        changed: threading.Condition,
        usable: Callable[[], None],
    ) -> None:
        """topic_of: the topic of a name, made where it is missing. usable: raises where the store is not."""
        self._topic_of = topic_of
        self._clock = clock
        self._changed = changed
        self._usable = usable
        self._shared: dict[PartName, _Shared] = {}
        self._readers: set[Subscription] = set()
        self._lock = threading.RLock()

    def subscribe(
        self,
        topic: str,
        name: str,
        partitions: Sequence[Partition],
        settings: ReaderSettings,
        *,
        start: Position,
        delay_ms: int,
    ) -> Subscription:
        """Another reader. Raises InvalidSubscription where others see the topic with another delay."""
        held: list[PartName] = []
        with self._lock, contextlib.ExitStack() as undo:
            undo.callback(self._release, held)
            parts = [self._acquired(partition, name, start, delay_ms, held) for partition in partitions]
            reader = Subscription(
                topic,
                name,
                parts,
                settings,
                clock=self._clock,
                changed=self._changed,
                usable=self._usable,
                on_close=lambda: self._closed(reader, held),
            )
            self._readers.add(reader)
            undo.pop_all()
        return reader

    def __iter__(self) -> Iterator[PartitionSubscription]:
        """All that is open, a partition each."""
        with self._lock:
            return iter([shared.part.subscription for shared in self._shared.values()])

    def journals(self) -> list[Journal]:
        """For the thread that syncs under `interval`."""
        return [subscription.journal for subscription in self]

    def close(self) -> None:
        """Close every reader, and so everything."""
        with self._lock:
            readers = list(self._readers)
        with contextlib.ExitStack() as stack:
            for reader in readers:
                stack.callback(reader.close)

    def check(self) -> None:
        """Prove the invariants. AssertionError where one does not hold."""
        with self._lock:
            assert all(shared.readers > 0 for shared in self._shared.values())
            assert bool(self._readers) == bool(self._shared)
        for subscription in self:
            subscription.check()

    def _acquired(
        self, partition: Partition, name: str, start: Position, delay_ms: int, held: list[PartName]
    ) -> ReaderPart:
        key = (partition.topic, partition.number, name)
        shared = self._shared.get(key)
        if shared is None:
            subscription = PartitionSubscription(partition, name, start=start, delay_ms=delay_ms)
            shared = self._shared[key] = _Shared(ReaderPart(subscription, DeadLetters(subscription, self._topic_of)))
        elif shared.part.subscription.delay_ms != delay_ms:
            open_with = f"{name!r} of {partition.topic} is open with delay_ms={shared.part.subscription.delay_ms}"
            raise InvalidSubscription(f"{open_with}, not {delay_ms}")
        shared.readers += 1
        held.append(key)
        return shared.part

    def _closed(self, reader: Subscription, held: list[PartName]) -> None:
        with self._lock:
            self._readers.discard(reader)
            self._release(held)

    def _release(self, held: list[PartName]) -> None:
        with contextlib.ExitStack() as stack:
            for key in held:
                shared = self._shared[key]
                shared.readers -= 1
                if not shared.readers:
                    del self._shared[key]
                    stack.callback(shared.part.subscription.close)


def check_no_group(partitions: Sequence[Partition], name: str) -> None:
    """Raises NameTaken where a consumer group of this name has committed a position."""
    for partition in partitions:
        context = partition.log.context
        if any(map(context.files.exists, position_files(context.folder, name))):
            raise NameTaken(f"{name!r} is a consumer group of {partition.topic}; take another name, or consumer()")


def check_no_subscription(partitions: Sequence[Partition], name: str) -> None:
    """Raises NameTaken where there is a subscription of this name."""
    for partition in partitions:
        context = partition.log.context
        if numbers(context.files, subscription_folder(context.folder, name)):
            raise NameTaken(f"{name!r} is a subscription to {partition.topic}; take another name, or subscribe()")
