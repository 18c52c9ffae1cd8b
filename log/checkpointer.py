"""What the background thread that checkpoints by time does: see to every partition that has grown since its last one.

Who looks into an open store from another process (`snapshot`) sees what lies below the recovery point. A partition that
is busy moves that by entries and by bytes; one that is quiet by this. Where nothing was appended two numbers are
compared, and no lock is taken.

What fails is logged and tried again the next time: a checkpoint is never needed, only good to have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from afterlog.errors import AfterlogError, PartitionPoisoned, StorageFull, StoreClosed
from afterlog.log.partition_log import PartitionLog

logger = logging.getLogger("afterlog.log")


def checkpoint_behind(logs: Iterable[PartitionLog]) -> None:
    """Move the recovery points of the logs that were appended to."""
    for log in logs:
        if log.behind:
            _checkpoint(log)


def _checkpoint(log: PartitionLog) -> None:
    try:
        log.checkpoint()
    except (StoreClosed, PartitionPoisoned):
        pass  # who closes it writes one; who opens it again makes one
    except StorageFull as error:
        logger.warning("%s: no room for a checkpoint: %s", log.path, error)
    except (AfterlogError, OSError) as error:
        logger.error("%s: no checkpoint: %s", log.path, error)
