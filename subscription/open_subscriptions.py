"""The subscriptions that a store has open: each partition of each once, whoever and how many read it.

    store.subscribe("mail", "sender") ──> Subscription ──┐
    store.subscribe("mail", "sender") ──> Subscription ──┴──> PartitionSubscription of mail-0, of mail-1, …

The last reader that closes closes it, and the store at the latest. Nothing is counted: what no reader names is closed
by whoever comes next, so that an exception in the middle leaves nothing open for good.

Invariant, proved by `check`: what is shared is read by at least one open reader.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from afterlog.base.clock import Clock
from afterlog.base.errors import InvalidSubscription, NameTaken
from afterlog.base.names import position_files, subscription_folder
from afterlog.produce.topic import Topic

# Every store has this, and few have subscriptions: the rest of the folder comes with the first of them.
if TYPE_CHECKING:
    from afterlog.fetch.partition import Partition
    from afterlog.subscription.journal import Journal
    from afterlog.subscription.lease_keeper import Keeping, LeaseKeeper
    from afterlog.subscription.partition_subscription import PartitionSubscription
    from afterlog.subscription.reader_part import ReaderPart
    from afterlog.subscription.reader_settings import ReaderSettings
    from afterlog.subscription.subscription import Subscription

PartName = tuple[str, int, str]
"""(topic, partition, subscription)"""


class OpenSubscriptions:
    """Thread-safe."""

    def __init__(
        self,
        topic_of: Callable[[str], Topic],
        *,
        clock: Clock,
        usable: Callable[[], None],
        background: bool = True,
    ) -> None:
        """topic_of: the topic of a name, made where it is missing. usable: raises where the store is not. background:
        keep leases in a thread; else by the keeper's `look`.
        """
        self._topic_of = topic_of
        self._clock = clock
        self._usable = usable
        self._works_behind = background
        self.keeper: LeaseKeeper | None = None
        """Made with the first reader."""
        self._shared: dict[PartName, ReaderPart] = {}
        self._readers: dict[Subscription, list[PartName]] = {}
        self._lock = threading.RLock()
        self.replicated: set[tuple[str, str]] = set()
        """(topic, name) of those that somebody has said it of, since the store was opened; open or not."""
        self._opened_ms = clock.boot_ms()
        self._left_ms: dict[tuple[str, str], int] = {}
        """When a reader of them was closed last, by the clock of the boot."""

    def subscribe(
        self,
        topic: str,
        name: str,
        partitions: Sequence[Partition],
        settings: ReaderSettings,
    ) -> Subscription:
        """Another reader. Raises InvalidSubscription where others see the topic with another delay."""
        from afterlog.subscription.lease_keeper import LeaseKeeper
        from afterlog.subscription.subscription import Subscription

        names = [(topic, partition.number, name) for partition in partitions]
        with self._lock:
            self._close_unread()
            if self.keeper is None:
                self.keeper = LeaseKeeper(self._kept, self._clock, background=self._works_behind)
            try:
                reader = Subscription(
                    topic,
                    name,
                    [self._acquired(partition, name, settings) for partition in partitions],
                    settings,
                    clock=self._clock,
                    usable=self._usable,
                    on_close=lambda: self.let_go(reader),
                    grouped=self._works_behind and settings.ack_group_ms > 0,
                )
                reader.blocks.wake = self.keeper.wake
                if reader.group is not None:
                    reader.group.wake = self.keeper.wake
                self._readers[reader] = names
                self._order([self._shared[each].subscription for each in names], settings)
                if settings.replicated is not None:
                    for each in names:
                        self._shared[each].subscription.replicate(settings.replicated)
                    (self.replicated.add if settings.replicated else self.replicated.discard)((topic, name))
            except BaseException:
                self._close_unread()
                raise
        return reader

    def __iter__(self) -> Iterator[PartitionSubscription]:
        """All that is open, a partition each."""
        with self._lock:
            return iter([part.subscription for part in self._shared.values()])

    def readers(self, topic: str, name: str | None = None) -> list[Subscription]:
        """Those that are open, of one subscription or of all to a topic."""
        with self._lock:
            return [
                reader
                for reader, names in self._readers.items()
                if any(each[0] == topic and name in (None, each[2]) for each in names)
            ]

    def unread_ms(self, topic: str, name: str) -> int:
        """For how long nobody has read a subscription, since the store was opened; 0 where somebody does."""
        with self._lock:
            if self.readers(topic, name):
                return 0
            return self._clock.boot_ms() - self._left_ms.get((topic, name), self._opened_ms)

    def forget(self, topic: str, name: str | None = None) -> None:
        """A subscription is deleted, or all to a topic."""
        with self._lock:
            self._left_ms = {
                each: ms for each, ms in self._left_ms.items() if each[0] != topic or name not in (None, each[1])
            }

    def shared(self) -> list[PartitionSubscription]:
        """The same without the lock, for who holds `letting_go` of a partition: of that none comes or has just come."""
        return [part.subscription for part in list(self._shared.values())]

    def journals(self) -> list[Journal]:
        """For the thread that syncs under `interval`."""
        return [subscription.journal for subscription in self]

    def close(self) -> None:
        """Close every reader, and so everything, also what a block that is open waits for."""
        if self.keeper is not None:
            self.keeper.stop()
        with self._lock:
            readers = list(self._readers)
        with contextlib.ExitStack() as stack:
            stack.callback(self._close_all)
            for reader in readers:
                stack.callback(reader.close)

    def check(self) -> None:
        """Prove the invariants. AssertionError where one does not hold."""
        with self._lock:
            self._close_unread()
            assert self._shared.keys() == self._read()
        for subscription in self:
            subscription.check()

    def _acquired(self, partition: Partition, name: str, settings: ReaderSettings) -> ReaderPart:
        from afterlog.subscription.dead_letters import DeadLetters
        from afterlog.subscription.partition_subscription import PartitionSubscription
        from afterlog.subscription.reader_part import ReaderPart

        key = (partition.topic, partition.number, name)
        part = self._shared.get(key)
        if part is None:
            with partition.log.letting_go:  # nothing goes of what it begins with, nor is its journal read by another
                subscription = PartitionSubscription(partition, name, start=settings.start, delay_ms=settings.delay_ms)
                part = self._shared[key] = ReaderPart(subscription, DeadLetters(subscription, self._topic_of))
        elif part.subscription.delay_ms != settings.delay_ms:
            open_with = f"{name!r} of {partition.topic} is open with delay_ms={part.subscription.delay_ms}"
            raise InvalidSubscription(f"{open_with}, not {settings.delay_ms}")
        return part

    def _order(self, parts: Sequence[PartitionSubscription], settings: ReaderSettings) -> None:
        """By key, where that is asked for, or some are: of a topic that was given more partitions, these as well."""
        if settings.ordered_by is not None:
            for each in parts:
                each.check_orderable()  # everywhere, before anything is
        if settings.ordered_by is not None or any(each.is_ordered for each in parts):
            for each in parts:
                with contextlib.nullcontext() if settings.ordered_by else contextlib.suppress(InvalidSubscription):
                    each.order_by_key()

    def let_go(self, reader: Subscription) -> None:
        """A reader names nothing any more: it is closed, and no block of its messages is open, or it must not wait."""
        with self._lock:
            self._left_ms[reader.topic, reader.name] = self._clock.boot_ms()  # first: struck here, it is read still
            self._readers.pop(reader, None)
            self._close_unread()

    def _close_all(self) -> None:
        with self._lock:
            self._readers.clear()
            self._close_unread()

    def _kept(self) -> list[Keeping]:
        """Leases that are kept, and acks that wait. No lock: it is held while a subscription is opened."""
        return [
            kept for reader in self._readers.copy() for kept in (reader.group, reader.receiver.kept) if kept is not None
        ]

    def _read(self) -> set[PartName]:
        """What open readers name."""
        return {name for names in self._readers.values() for name in names}

    def _close_unread(self) -> None:
        with contextlib.ExitStack() as stack:
            for name in self._shared.keys() - self._read():
                stack.callback(self._shared.pop, name)
                stack.callback(self._shared[name].subscription.close)


def check_no_group(partitions: Sequence[Partition], name: str) -> None:
    """Raises NameTaken where a consumer group of this name has committed a position."""
    for partition in partitions:
        context = partition.log.context
        if any(map(context.files.exists, position_files(context.folder, name))):
            raise NameTaken(f"{name!r} is a consumer group of {partition.topic}; take another name, or consumer()")


def check_no_subscription(partitions: Sequence[Partition], name: str) -> None:
    """Raises NameTaken where there is a subscription of this name."""
    from afterlog.subscription.journal import numbers

    for partition in partitions:
        context = partition.log.context
        if numbers(context.files, subscription_folder(context.folder, name)):
            raise NameTaken(f"{name!r} is a subscription to {partition.topic}; take another name, or subscribe()")
