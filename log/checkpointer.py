"""The work of a log's background threads: checkpoints by time and on demand, and merges of runs.

Who looks into an open store from another process (`snapshot`) sees what lies below the recovery point. A partition that
is busy moves that by entries and by bytes; one that is quiet by this. Where nothing was appended two numbers are
compared, and no lock is taken.

What fails is logged and tried again the next time: a checkpoint or a merge is never needed, only good to have.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from afterlog.base.errors import AfterlogError, PartitionPoisoned, StorageFull, StoreClosed
from afterlog.log.background import Background
from afterlog.log.context import DueCheckpoint
from afterlog.log.partition_log import PartitionLog

logger = logging.getLogger("afterlog.log")


def checkpoint_behind(logs: Iterable[PartitionLog]) -> None:
    """Move the recovery points of the logs that were appended to."""
    for log in logs:
        if log.behind:
            _make(log.checkpoint, log.path)


class DueCheckpoints:
    """Makes the checkpoints that are due in a thread, which begins with the first of them. Thread-safe."""

    def __init__(self) -> None:
        self._due: deque[tuple[Path, DueCheckpoint]] = deque()
        self._thread = Background("afterlog-seal", self._make_all)

    def add(self, path: Path, checkpoint: DueCheckpoint) -> None:
        """Make this one soon, in the partition that lives there. Returns at once: it may be called under any lock."""
        self._due.append((path, checkpoint))
        self._thread.wake()

    def stop(self) -> None:
        """Return when none is made any more."""
        self._thread.stop()

    def end(self) -> None:
        """Begin none any more. Returns at once."""
        self._thread.end()

    def _make_all(self) -> None:
        while self._due:
            path, due = self._due.popleft()
            checkpoint = due()
            if checkpoint is not None:
                _make(checkpoint, path)


def _make(checkpoint: Callable[[], None], path: Path) -> None:
    try:
        checkpoint()
    except (StoreClosed, PartitionPoisoned):
        pass  # who closes it writes one; who opens it again makes one
    except StorageFull as error:
        logger.warning("%s: no room for a checkpoint: %s", path, error)
    except (AfterlogError, OSError) as error:
        logger.error("%s: no checkpoint: %s", path, error)


def merge_crowded(logs: Iterable[PartitionLog]) -> None:
    """Merge runs in the logs that have more than they should. A log that is closed meanwhile ends its merge."""
    for log in logs:
        if log.crowded:
            _merge(log)


def _merge(log: PartitionLog) -> None:
    try:
        log.merge_buckets()
    except (StoreClosed, PartitionPoisoned):
        pass  # no time for merges
    except StorageFull as error:
        logger.warning("%s: no room to merge runs: %s", log.path, error)
    except (AfterlogError, OSError) as error:
        logger.error("%s: runs not merged: %s", log.path, error)
