"""The backlog of a partition: what of it all its readers have acked, open or not.

    open subscription  ──> its state, its journal synced ──┐
    any other          ──> its journal, replayed ──────────┼──> read by all of them, and un-acked by none
    consumer group     ──> its position, as committed ─────┘

Delivery order is taken from its beginning, up to the first that somebody has not acked: the least mark_delete. What
lies beyond and all have acked goes where a cleaning is due (`afterlog.index.acked_ranges`).

Only what is durable counts: an ack that a power cut takes back must not have let its record go. So what an open
consumer has read and not committed is not acked, and what a process that was killed has left is synced before it
counts. Under durability `os` the log is synced, too: acks of what lies after its end are given up
(`afterlog.subscription.journal`).

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

import numpy as np
from pyroaring import BitMap64

from afterlog.base.errors import CorruptFile, StoreClosed
from afterlog.base.files import FileStamp, opened
from afterlog.base.names import REDRIVE, SUBSCRIPTIONS, journal_file, position_files, subscription_folder
from afterlog.fetch.group import GroupPosition
from afterlog.index.offset_set import column_of
from afterlog.log.partition_log import PartitionLog
from afterlog.subscription import bits
from afterlog.subscription.journal import numbers
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner

logger = logging.getLogger("afterlog.subscription")


class AckedByAll(NamedTuple):
    """What readers have acked, all of them: all below the position that is not in `unacked`."""

    position: int
    unacked: BitMap64
    """Delivery offsets, some of them maybe at or beyond the position. To be read, and changed by none."""

    @property
    def mark_delete(self) -> int:
        """All below is acked."""
        first = bits.first(self.unacked)
        return self.position if first is None else min(first, self.position)

    def stretches(self, least: int) -> list[range]:
        """Where so many delivery offsets or more follow each other beyond the first un-acked one, and are acked."""
        unacked = column_of(self.unacked)
        unacked = unacked[unacked < self.position]
        ends = np.append(unacked[1:], self.position)
        rows = np.flatnonzero(ends - unacked > least)
        return [range(int(unacked[row]) + 1, int(ends[row])) for row in rows.tolist()]

    def holds(self, stretch: range) -> bool:
        """Whether all of these are acked."""
        is_read = stretch.stop <= self.position
        return is_read and not self.unacked.range_cardinality(stretch.start, stretch.stop)


class ClosedJournal(NamedTuple):
    """What was found in the newest journal of a subscription that nobody had open."""

    number: int
    stamp: FileStamp
    acks: AckedByAll
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
        """The delivery offset below which all is acked by all. The rest as of `acks`."""
        acks = self.acks(log, durable=durable)
        return None if acks is None else acks.mark_delete

    def acks(self, log: PartitionLog, *, durable: bool = True) -> AckedByAll | None:
        """What is acked by all; None of a partition that nobody has ever read.

        durable: whatever crashes; else as it is now, and nothing is synced for it. What goes by it goes under
        `log.letting_go`. Raises CorruptFile where one of them cannot tell, StorageError.
        """
        with log.letting_go:
            mine = {each.name: each for each in self._open() if each.partition.log is log}
            each = (self._acked_by(log, name, mine.get(name), durable) for name in self._names(log))
            found = [acks for acks in each if acks is not None]
            if durable and found:
                log.commit.make_delivered_durable()
        if len(found) < 2:
            return found[0] if found else None
        return AckedByAll(min(acks.position for acks in found), BitMap64.union(*(acks.unacked for acks in found)))

    def _acked_by(
        self, log: PartitionLog, name: str, subscription: PartitionSubscription | None, durable: bool
    ) -> AckedByAll | None:
        """None where there is neither a journal nor a position: it is nobody's folder, or was killed when it was first
        made."""
        acks = None if subscription is None else _of_open(subscription, durable)
        if acks is None:
            acks = self._of_closed(log, name, durable)
        return self._of_group(log, name, durable) if acks is None else acks

    def _names(self, log: PartitionLog) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            names = log.context.files.names(log.context.folder / SUBSCRIPTIONS)
            return [name for name in names if name != REDRIVE]
        return []

    def _of_closed(self, log: PartitionLog, name: str, durable: bool) -> AckedByAll | None:
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
                acks = replayed.state.acks
                found = ClosedJournal(known[-1], stamp, AckedByAll(acks.position, acks.unacked), synced=False)
            if durable and not found.synced:  # who wrote it may have been killed before it was
                file.sync()
                files.sync_folder(folder)
                found = found._replace(synced=True)
        self._replayed[folder] = found
        return found.acks

    def _of_group(self, log: PartitionLog, name: str, durable: bool) -> AckedByAll | None:
        files, paths = log.context.files, position_files(log.context.folder, name)
        if not any(map(files.exists, paths)):
            return None
        committed = GroupPosition(files, log.context.folder, name).committed
        if durable and committed is not None and self._positions.get(paths[0]) != committed:
            files.sync_folder(paths[0].parent)  # its name may be there, and its commit be under way
            self._positions[paths[0]] = committed
        return None if committed is None else AckedByAll(committed, BitMap64())


def _of_open(subscription: PartitionSubscription, durable: bool) -> AckedByAll | None:
    """None where it is just being closed: then its journal tells."""
    try:
        return AckedByAll(*(subscription.durable_acks() if durable else subscription.known_acks()))
    except StoreClosed:
        return None
