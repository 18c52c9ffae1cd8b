"""The thread that merges runs in the background, one for a store.

It begins with the first partition that has too many runs, sleeps until it is woken, and then sees to every partition.
What fails is logged and tried again when it is woken the next time: a merge is never needed, only good to have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from afterlog.errors import AfterlogError, PartitionPoisoned, StorageFull, StoreClosed
from afterlog.log.background import Background
from afterlog.log.partition_log import PartitionLog

logger = logging.getLogger("afterlog.log")


class BucketMerger(Background):
    """Merges when it is woken. The partitions are closed before `stop`, which ends a merge in progress."""

    def __init__(self, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        super().__init__("afterlog-merge", self._merge_all)
        self._logs = logs

    def _merge_all(self) -> None:
        for log in self._logs():
            if log.crowded:
                _merge(log)


def _merge(log: PartitionLog) -> None:
    folder = log.context.folder
    try:
        log.merge_buckets()
    except (StoreClosed, PartitionPoisoned):
        pass  # no time for merges
    except StorageFull as error:
        logger.warning("%s: no room to merge runs: %s", folder, error)
    except (AfterlogError, OSError) as error:
        logger.error("%s: runs not merged: %s", folder, error)
