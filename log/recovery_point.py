"""The recovery point, and how it moves: recovery reads the log after it, and trusts the durable indexes before it.

    append lock      begin    what the log, its bucket and its indexes are at this end
    files lock       store    log synced ──> run of the bucket ──> sparse indexes ──> side tables ──> checkpoints
    append lock      finish   swap: the run, and a bucket of what was appended meanwhile

So appends go on while files are written (docs/decisions/0039). What is stored is true already: a kill behind
`store` leaves a log that recovers from the new point, an exception there a bucket that has more than it need have. The
next move stores all of that in a run, and recovery takes the larger one of two that begin at the same offset.

The *files lock* covers everything that the checkpoints tell of the active segment. Whoever changes that with the append
lock held takes it too: a roll, a move in one go, and beginning anew. A move that finds that another came between its
steps is given up.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from afterlog.base.config import Config
from afterlog.base.errors import StorageFull
from afterlog.index.buckets import Buckets, with_sealed
from afterlog.index.run import Run
from afterlog.log.checkpoints import CheckpointFile, Recovery
from afterlog.log.commit import Commit
from afterlog.log.log_clock import LogClock
from afterlog.log.segment import ActiveSegment, Saved, Unsaved
from afterlog.log.side_tables import SideTables
from afterlog.log.version import End, Version, VersionSet

BEHIND = 4
"""An append makes the checkpoint itself once so many times what makes one due has come. Larger: more memory, and longer
recovery, where the thread that should have made it does not keep up."""


class Moment(NamedTuple):
    """What a move is about: the log at one end, with nothing in flight."""

    version: Version
    recovery: Recovery
    unsaved: Unsaved
    tables: tuple[Any, ...]
    """Of the side tables."""


class Stored(NamedTuple):
    """What a move has made durable."""

    saved: Saved
    run: Run | None
    """Of the bucket; None where there was nothing in it, as in every FIFO topic."""


class RecoveryPoint:
    """Of one partition."""

    def __init__(
        self,
        buckets: Buckets,
        checkpoints: CheckpointFile,
        versions: VersionSet,
        commit: Commit,
        clock: LogClock,
        config: Config,
        tables: SideTables,
    ) -> None:
        self.files_lock = threading.RLock()
        """Taken within the append lock, never around it."""
        self._buckets = buckets
        self._checkpoints = checkpoints
        self._versions = versions
        self._commit = commit
        self._clock = clock
        self._config = config
        self._tables = tables

    @property
    def offset(self) -> int:
        """The offset of the first record behind it, as it is durable."""
        return self._checkpoints.current.recovery.offset

    def at(self, active: ActiveSegment, end: End) -> Recovery:
        """The point there, while nothing is in flight."""
        return Recovery(
            segment=active.base_offset, position=end.position, offset=end.offset, stamp_ms=self._clock.last_stamp_ms
        )

    def due(self, times: int = 1) -> bool:
        """Whether the mutable bucket is full, or much was appended, so many times."""
        version = self._versions.current
        fresh_bytes = version.written.position - self._checkpoints.current.recovery.position
        count = version.delayed_index.bucket.count
        if version.unique_keys is not None:
            count = max(count, version.unique_keys.recent.count)
        full = count >= self._config.min_index_count_per_bucket * times
        return full or fresh_bytes >= self._config.recovery_bytes * times

    def begin(self) -> Moment | None:
        """Under the append lock. None: the point is where the log ends."""
        version = self._versions.current
        if self.offset == version.written.offset:
            return None
        active = version.active
        unsaved, tables = active.unsaved(version.written.offset), self._tables.unsaved(version)
        return Moment(version, self.at(active, version.written), unsaved, tables)

    def store(self, moment: Moment) -> Stored | None:
        """After a sync of the log; None where the moment has gone. Raises StorageFull, with nothing stored."""
        with self.files_lock:
            self._commit.usable()
            version, recovery, unsaved, tables = moment
            if self._versions.current.active.saved is not unsaved.since:
                return None
            bucket, run = version.delayed_index.bucket, None
            if bucket.count:
                run = self._buckets.store(bucket, *version.written)
            try:
                mark = version.active.save(unsaved)
                changes = self._tables.saved(tables, recovery.offset, recovery.stamp_ms)
                self._checkpoints.update(recovery=recovery, active=mark, **changes)
            except StorageFull:
                if run is not None:
                    self._buckets.delete(run)
                raise
            return Stored(version.active.saved, run)

    def finish(self, stored: Stored) -> None:
        """Under the append lock: make it true in memory, too. The runs that nobody needs any more go."""
        self._tables.reconcile()
        version, run = self._versions.current, stored.run
        if run is None:
            return
        index = version.delayed_index
        if version.active.saved is stored.saved:
            index = with_sealed(index, run)
            self._versions.swap(version, delayed_index=index)
            self._buckets.delete_replaced(version.delayed_index, index)
        elif run.key not in (*(each.key for each in index.runs), *index.bucket.stale):  # else it was begun anew with it
            self._buckets.delete(run)
