"""The backlog of a partition: up to where all its readers have acked, open or not.

    open subscription  ──> its state, its journal synced ──┐
    any other          ──> its journal, replayed ──────────┼──> the least of them
    consumer group     ──> its position, as committed ─────┘

A subscription has acked all below its mark_delete (what lies beyond and is acked holds nothing up, but is not free
either: delivery order is taken from its beginning). Only what is durable counts: an ack that a power cut takes back
must not have let its record go. So what an open consumer has read and not committed is not acked, and what a process
that was killed has left is synced before it counts. Under durability `os` the log is synced, too: acks of what lies
after its end are given up (`afterlog.subscription.journal`).

A journal that nobody has open does not change: it is read once. One that cannot be read holds everything, and says so.
That nobody opens it meanwhile, or goes back, is seen to by the log's lock of letting go. What a redrive left holds
nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from afterlog.base.errors import CorruptFile, StoreClosed
from afterlog.base.files import FileStamp, opened
from afterlog.base.names import REDRIVE, SUBSCRIPTIONS, journal_file, position_files, subscription_folder
from afterlog.fetch.group import GroupPosition
from afterlog.log.partition_log import PartitionLog
from afterlog.subscription.journal import numbers
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner

logger = logging.getLogger("afterlog.subscription")


class ClosedJournal(NamedTuple):
    """What was found in the newest journal of a subscription that nobody had open."""

    number: int
    stamp: FileStamp
    mark_delete: int
    synced: bool


class Backlogs:
    """Of the partitions of a store. Thread-safe: of each by one thread at a time."""

    def __init__(self, open_subscriptions: Callable[[], Iterable[PartitionSubscription]]) -> None:
        """open_subscriptions: takes no lock behind which another thread might wait for that of letting go."""
        self._open = open_subscriptions
        self._replayed: dict[Path, ClosedJournal] = {}
        self._positions: dict[Path, int] = {}
        """Of groups: those that are durable by our doing."""

    def acked(self, log: PartitionLog, *, durable: bool = True) -> int | None:
        """The delivery offset below which all is acked by all; None of a partition that nobody has ever read.

        durable: whatever crashes; else as it is now, and nothing is synced for it. What goes by it goes under
        `log.letting_go`. Raises CorruptFile where one of them cannot tell, StorageError.
        """
        with log.letting_go:
            mine = {each.name: each for each in self._open() if each.partition.log is log}
            each = (self._acked_by(log, name, mine.get(name), durable) for name in self._names(log))
            floors = [floor for floor in each if floor is not None]
            if durable and floors:
                log.commit.make_delivered_durable()
        return min(floors, default=None)

    def _acked_by(
        self, log: PartitionLog, name: str, subscription: PartitionSubscription | None, durable: bool
    ) -> int | None:
        """None where there is neither a journal nor a position: it is nobody's folder, or was killed when it was first
        made."""
        floor = None if subscription is None else _of_open(subscription, durable)
        if floor is None:
            floor = self._of_closed(log, name, durable)
        return self._of_group(log, name, durable) if floor is None else floor

    def _names(self, log: PartitionLog) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            names = log.context.files.names(log.context.folder / SUBSCRIPTIONS)
            return [name for name in names if name != REDRIVE]
        return []

    def _of_closed(self, log: PartitionLog, name: str, durable: bool) -> int | None:
        files, folder = log.context.files, subscription_folder(log.context.folder, name)
        known = numbers(files, folder)
        if not known:
            return None
        path = folder / journal_file(known[-1])
        with opened(files, path) as file:
            stamp, found = files.stamp(path), self._replayed.get(folder)
            if found is None or (found.number, found.stamp) != (known[-1], stamp):
                replayed = replay(files, folder, Owner(log.context.folder.name, name), log.log_end_offset)
                if replayed is None:
                    raise CorruptFile("its journals went while they were read", path=folder)
                found = ClosedJournal(known[-1], stamp, replayed.state.acks.mark_delete, synced=False)
            if durable and not found.synced:  # who wrote it may have been killed before it was
                file.sync()
                files.sync_folder(folder)
                found = found._replace(synced=True)
        self._replayed[folder] = found
        return found.mark_delete

    def _of_group(self, log: PartitionLog, name: str, durable: bool) -> int | None:
        files, paths = log.context.files, position_files(log.context.folder, name)
        if not any(map(files.exists, paths)):
            return None
        committed = GroupPosition(files, log.context.folder, name).committed
        if durable and committed is not None and self._positions.get(paths[0]) != committed:
            files.sync_folder(paths[0].parent)  # its name may be there, and its commit be under way
            self._positions[paths[0]] = committed
        return committed


def _of_open(subscription: PartitionSubscription, durable: bool) -> int | None:
    """None where it is just being closed: then its journal tells."""
    try:
        return subscription.durable_mark_delete() if durable else subscription.mark_delete()
    except StoreClosed:
        return None
