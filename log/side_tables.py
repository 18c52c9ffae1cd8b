"""Tables beside the log, saved with the recovery point: who holds which unique key, what producers appended last.

    append lock       unsaved     what a table has in memory at one end of the log
    files lock        saved       made durable; what the checkpoints must say then, beside the recovery point
    append lock       reconcile   made true in memory

So a table on the disk tells of all below the recovery point, and recovery reads for it just the tail that it reads
anyway. Each can be made anew from the log; where nobody ever used it nothing is done.
"""

from __future__ import annotations

from typing import Any, Protocol

from afterlog.log.version import Version


class SideTable(Protocol):
    """One of them."""

    def unsaved(self, version: Version) -> Any:
        """Under the append lock: what is in memory, which does not change any more."""

    def saved(self, unsaved: Any, end: int, stamp_ms: int) -> dict[str, Any]:
        """Make it durable, with the log up to `end`, the last stamp of which this is. Raises StorageFull.

        What the checkpoints must say then; after a sync of the log, with nothing in flight before `end`.
        """

    def reconcile(self) -> None:
        """Under the append lock: make true in memory what the checkpoints say. Files that they do not name go."""


class SideTables:
    """Those of one partition, as one."""

    def __init__(self, *tables: SideTable) -> None:
        self._tables = tables

    def unsaved(self, version: Version) -> tuple[Any, ...]:
        return tuple(table.unsaved(version) for table in self._tables)

    def saved(self, unsaved: tuple[Any, ...], end: int, stamp_ms: int) -> dict[str, Any]:
        changes = dict[str, Any]()
        for table, part in zip(self._tables, unsaved, strict=True):
            changes |= table.saved(part, end, stamp_ms)
        return changes

    def reconcile(self) -> None:
        for table in self._tables:
            table.reconcile()
