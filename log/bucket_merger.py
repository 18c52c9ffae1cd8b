"""The thread that merges runs in the background, one for a store.

It begins with the first partition that has too many runs, sleeps until it is woken, and then sees to every partition.
What fails is logged and tried again when it is woken the next time: a merge is never needed, only good to have.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from afterlog.errors import AfterlogError, PartitionPoisoned, StorageFull, StoreClosed
from afterlog.log.partition_log import PartitionLog

logger = logging.getLogger("afterlog.log")


class BucketMerger:
    """Idle until `wake`, over after `stop`. Thread-safe."""

    def __init__(self, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        self._logs = logs
        self._woken = False
        self._stopped = False
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Some partition has too many runs. Returns at once: a partition calls it under its append lock."""
        with self._condition:
            if self._stopped:
                return
            self._woken = True
            self._condition.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="afterlog-merge", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Return when nothing is merged any more. The partitions are closed first, which ends a merge in progress."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._waited():
            for log in self._logs():
                if log.crowded:
                    _merge(log)

    def _waited(self) -> bool:
        """Wait to be woken; False when there is nothing more to do."""
        with self._condition:
            self._condition.wait_for(lambda: self._woken or self._stopped)
            self._woken = False
            return not self._stopped


def _merge(log: PartitionLog) -> None:
    folder = log.place.folder
    try:
        log.merge_buckets()
    except (StoreClosed, PartitionPoisoned):
        pass  # no time for merges
    except StorageFull as error:
        logger.warning("%s: no room to merge runs: %s", folder, error)
    except (AfterlogError, OSError) as error:
        logger.error("%s: runs not merged: %s", folder, error)
