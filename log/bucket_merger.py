"""What the background thread that merges runs does: see to every partition of a store that has too many.

What fails is logged and tried again when it is woken the next time: a merge is never needed, only good to have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from afterlog.base.errors import AfterlogError, PartitionPoisoned, StorageFull, StoreClosed
from afterlog.log.partition_log import PartitionLog

logger = logging.getLogger("afterlog.log")


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
