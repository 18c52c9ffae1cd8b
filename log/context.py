"""The context of a partition: its folder, settings, clock and collaborators, handed to the modules of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files
from afterlog.index.bucket_snapshot import BucketSnapshot
from afterlog.index.bucket_storage import (
    BucketOperations,
    BucketSnapshotStorage,
    LocalBucketSnapshotStorage,
    MeasuredBucketSnapshotStorage,
)
from afterlog.index.run import Run
from afterlog.log.mended_run import mended
from afterlog.log.remote_copy import NO_REMOTE_LOG, RemoteLog
from afterlog.log.store_frontier import StoreFrontier
from afterlog.log.topic_settings import TopicSettings

DueCheckpoint = Callable[[], Callable[[], None] | None]
"""A weak reference to what makes it."""

logger = logging.getLogger("afterlog.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """One partition's folder, and what is needed to work in it."""

    files: Files
    folder: Path
    config: Config
    settings: TopicSettings
    clock: Clock
    """For waiting."""
    now_ms: Callable[[], int]
    """For deciding: the clock's wall time, with jumps held back where that is set."""
    leapt_ms: Callable[[], int] = lambda: 0
    """By how much `now_ms` has leapt in all, where somebody set the clock forward (`JumpGuard`)."""
    on_merge_needed: Callable[[], None] = lambda: None
    """Called, under the append lock, when the partition has more runs than it should: for who merges them."""
    checkpoint_queue: Callable[[Path, DueCheckpoint], None] | None = None
    """Called, under the append lock, with what makes a checkpoint that is due: for a thread that does it soon. None:
    the append that finds it due makes it."""
    operations: BucketOperations = field(default_factory=BucketOperations)
    """Counts what is done with the runs, from now on."""
    remote: RemoteLog = NO_REMOTE_LOG
    """Where segments lie that are not in the folder any more."""
    sealed: Callable[[], None] = lambda: None
    """Called, under the append lock, when a segment has been sealed or has gone: for who uploads and removes them."""

    interceptors: tuple[object, ...] = ()
    """Of the topic's settings; those of the config come first."""
    room: Callable[[], None] = lambda: None
    """Raises StorageFull where the store takes no records for now."""
    frontier: StoreFrontier | None = None
    """That it shares with the other partitions of an open store. None: it has its own in its checkpoints alone."""

    def alter(self, settings: TopicSettings, interceptors: tuple[object, ...]) -> None:
        """The topic has other settings from now on. Who asks twice may get both."""
        object.__setattr__(self, "settings", settings)  # nothing else changes
        object.__setattr__(self, "interceptors", interceptors)

    @property
    def broker_entry_metadata_interceptors(self) -> tuple[object, ...]:
        """All that add to the metadata of its entries (PIP-70)."""
        return self.config.broker_entry_metadata_interceptors + self.interceptors

    @property
    def foreign_bytes_max(self) -> int | None:
        """As of `SealedSegment`."""
        return self.config.decompressed_bytes_max if self.settings.foreign else None

    def bucket_storage(self, *, mending: bool = False) -> BucketSnapshotStorage:
        """Where the partition's runs are. mending: one that rots is made anew from the log; not for who only looks."""
        storage = LocalBucketSnapshotStorage(
            self.files,
            self.folder,
            max_entries=self.config.max_indexes_per_bucket_snapshot_segment,
            max_step_ms=self.config.max_time_step_per_bucket_snapshot_segment_s * 1000,
            mend=self._mended if mending else None,
        )
        return MeasuredBucketSnapshotStorage(storage, self.operations, self.clock)

    def _mended(self, run: Run) -> BucketSnapshot | None:
        try:
            with self.operations.mend.measured(self.clock):
                return mended(self.files, self.folder, run)
        except (CorruptFile, FileNotFoundError) as error:
            logger.error("%s: rotten, and cannot be made anew from the log: %s", run.path, error)
            return None
