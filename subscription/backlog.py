"""What the readers of a partition have not acked: up to where all of them have, whether they are open or not.

    open subscription  ──> its state, its journal synced ──┐
    any other          ──> its journal, replayed ──────────┼──> the least of them
    consumer group     ──> its position, as committed ─────┘

A subscription has acked all below its mark_delete (what lies beyond and is acked holds nothing up, but is not free
either: delivery order is taken from its beginning). Only what is durable counts: an ack that a power cut takes back
must not have let its record go. So what an open consumer has read and not committed is not acked.

A journal that nobody has open does not change: it is read once. One that cannot be read holds everything, and says so.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from afterlog.errors import CorruptFile, StoreClosed
from afterlog.fetch.group import GroupPosition
from afterlog.files import FileStamp
from afterlog.log.partition_log import PartitionLog
from afterlog.names import SUBSCRIPTIONS, journal_file, position_files, subscription_folder
from afterlog.subscription.journal import numbers
from afterlog.subscription.partition_subscription import PartitionSubscription
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner

logger = logging.getLogger("afterlog.subscription")


class Backlogs:
    """Of the partitions of a store. One thread at a time."""

    def __init__(self, open_subscriptions: Callable[[], Iterable[PartitionSubscription]]) -> None:
        self._open = open_subscriptions
        self._replayed: dict[Path, tuple[FileStamp, int]] = {}
        """Of journals that nobody had open: their stamp, and the mark_delete that they tell."""

    def acked(self, log: PartitionLog) -> int | None:
        """The delivery offset below which all is acked by all; None of a partition that nobody has ever read.

        Raises CorruptFile where one of them cannot tell, StorageError.
        """
        context = log.context
        mine = {each.name: each for each in self._open() if each.partition.log is log}
        floors = []
        for name in self._names(log):
            subscription = mine.get(name)
            floor = None if subscription is None else _of_open(subscription)
            if floor is None:
                floor = self._of_closed(log, name)
            if floor is None and any(map(context.files.exists, position_files(context.folder, name))):
                floor = GroupPosition(context.files, context.folder, name).committed
            if floor is not None:
                floors.append(floor)
        return min(floors, default=None)

    def _names(self, log: PartitionLog) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return log.context.files.names(log.context.folder / SUBSCRIPTIONS)
        return []

    def _of_closed(self, log: PartitionLog, name: str) -> int | None:
        """None where there is no journal: it is no subscription's folder, or was killed when it was first made."""
        files, folder = log.context.files, subscription_folder(log.context.folder, name)
        known = numbers(files, folder)
        if not known:
            return None
        path = folder / journal_file(known[-1])
        stamp = files.stamp(path)
        remembered = self._replayed.get(path)
        if remembered is None or remembered[0] != stamp:
            replayed = replay(files, folder, Owner(log.context.folder.name, name), log.log_end_offset)
            if replayed is None:
                raise CorruptFile("its journals went while they were read", path=folder)
            remembered = self._replayed[path] = stamp, replayed.state.acks.mark_delete
        return remembered[1]


def _of_open(subscription: PartitionSubscription) -> int | None:
    """None where it is just being closed: then its journal tells."""
    try:
        return subscription.durable_mark_delete()
    except StoreClosed:
        return None
