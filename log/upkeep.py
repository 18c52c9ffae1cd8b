"""What a partition does with its files besides appending to them: checkpoints, rolls, merges of runs, retention.

    appends ──> active ──┬── checkpoint: bucket sealed into a run, sparse indexes saved, recovery point moved
                         └── roll: sealed, one run for all of it ──> sealed ──> retention: gone
                                                     runs of either ──> merges, in the background

Whatever the checkpoints speak of is durable before they say so, and what they no longer speak of is removed after that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from afterlog.errors import ClockBehind, StorageFull
from afterlog.index.buckets import Buckets
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Key
from afterlog.index.run import Run
from afterlog.log import retention
from afterlog.log.cancellation import Cancellations
from afterlog.log.checkpoints import CheckpointFile, Recovery
from afterlog.log.log_clock import LogClock
from afterlog.log.log_state import End, LogState
from afterlog.log.place import Place
from afterlog.log.segment import ActiveSegment, SealedSegment

logger = logging.getLogger("afterlog.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """What recovery found: everything that a `PartitionLog` starts from."""

    checkpoints: CheckpointFile
    sealed: tuple[SealedSegment, ...]
    active: ActiveSegment
    end_offset: int
    buckets: Buckets
    cancelled: Cancelled
    """All that the control batches in the log say."""
    last_stamp_ms: int
    cut_bytes: int
    """Length of the torn tail that was cut; 0 for none."""


class Upkeep:
    """The segments and runs of one partition. Its log calls all but `merge_buckets` under the append lock."""

    def __init__(
        self, place: Place, recovered: RecoveredLog, state: LogState, clock: LogClock, cancellations: Cancellations
    ) -> None:
        self.active = recovered.active
        self._sealed = recovered.sealed
        self._buckets = recovered.buckets
        self._checkpoints = recovered.checkpoints
        self._cancellations = cancellations
        self._place = place
        self._config = place.config
        self._files = place.files
        self._delayed = place.settings.delayed
        self._state = state
        self._clock = clock

    # Checkpoints and rolls.

    def checkpoint_when_due(self) -> None:
        """Move the recovery point where the mutable bucket is full, or much was appended."""
        fresh_bytes = self.active.size - self._checkpoints.current.recovery.position
        full = self._buckets.index.bucket.count >= self._config.min_index_count_per_bucket
        if not full and fresh_bytes < self._config.recovery_bytes:
            return
        try:
            self.checkpoint()
        except StorageFull as error:
            # The append itself succeeded, and the log holds all that the checkpoint would say.
            folder = self._place.folder
            logger.warning("%s: no room for a checkpoint, recovery would start further back: %s", folder, error)

    def checkpoint(self) -> None:
        """Move the recovery point to the end of the log."""
        self._state.sync()
        end = self._state.written
        if self._checkpoints.current.recovery.offset == end.offset:
            return
        if self._buckets.index.bucket.count:  # empty after a seal whose checkpoint failed, and in a FIFO topic
            self._buckets.seal(end.offset, end.position)
        self._checkpoints.update(recovery=self._recovery_point(end), active=self.active.save_indexes())
        self._buckets.delete_stale()
        self._merge_when_crowded()

    def roll(self) -> None:
        """Seal the active segment, which is not empty, and begin another."""
        self._state.sync()
        end = self._state.written
        run = self._buckets.write_segment(end.offset, end.position) if self._delayed else None
        mark = self.active.seal(end.offset, run.last_key.deliver_after if run else 0)
        folder, interval_bytes = self._place.folder, self._config.index_interval_bytes
        active = ActiveSegment.create(self._files, folder, end.offset, interval_bytes)
        beginning = End(end.offset, 0, active)
        self._checkpoints.update(
            sealed=(*self._checkpoints.current.sealed, mark),
            active=active.mark,
            recovery=self._recovery_point(beginning),
        )
        self._sealed = (*self._sealed, SealedSegment(self._files, folder, mark, interval_bytes))
        self.active = active
        replaced = self._buckets.begin_segment(run) if run else ()
        self._state.switch(self._sealed, beginning)
        self._buckets.delete(replaced)
        self._buckets.delete_stale()
        self.enforce_retention()
        self._merge_when_crowded()

    def _recovery_point(self, end: End) -> Recovery:
        return Recovery(
            segment=end.active.base_offset,
            position=end.position,
            offset=end.offset,
            stamp_ms=self._clock.last_stamp_ms,
        )

    # Merges.

    @property
    def crowded(self) -> bool:
        """Whether there may be something for `merge_buckets` to do."""
        return self._buckets.crowded

    def merge_buckets(self, lock: AbstractContextManager[object], proceed: Callable[[], object]) -> int:
        """Merge runs until no group has more than it should; the number of merges. `lock` is the append lock.

        `proceed` is called again and again, and raises where the merge should end.
        """
        count = 0
        while True:
            proceed()
            with lock:
                log_start = self._checkpoints.current.log_start.key
                self._buckets.forget(log_start)
                sealed, active = self._buckets.sealed, self._durable_runs()
            if sources := self._buckets.to_merge(sealed):
                after: Key | None = log_start
            elif sources := self._buckets.to_merge(active):
                after = None
            else:
                return count
            with self._place.operations.merge.measured(self._place.clock):
                count += self._buckets.merge(sources, lock, after=after, proceed=proceed)

    def _durable_runs(self) -> Sequence[Run]:
        """The runs of the active segment up to the recovery point, where recovery looks for one that ends."""
        end_offset = self._checkpoints.current.recovery.offset
        return [run for run in self._buckets.active if run.coverage.end_offset <= end_offset]

    def _merge_when_crowded(self) -> None:
        if self.crowded:
            self._place.crowded()

    # Retention.

    def enforce_retention(self) -> int:
        """Remove what the topic's retention says, and nothing that is pending; the number of segments removed."""
        settings = self._place.settings
        if settings.retention_ms is None and settings.retention_bytes is None:
            return 0
        try:
            frontier_ms = self._state.due_reading()[0] if self._delayed else self._place.now_ms()
        except ClockBehind:
            return 0
        removed = retention.removable(self._sealed, self.active, settings, frontier_ms)
        if not removed:
            return 0
        known = self._checkpoints.current
        self._checkpoints.update(**retention.checkpoints_without(removed, known, self._buckets.index))
        self._sealed = tuple(segment for segment in self._sealed if segment not in removed)
        log_start = self._checkpoints.current.log_start.key
        self._buckets.forget(log_start)
        self._cancellations.forget(log_start)
        self._state.retain(self._sealed)
        retention.remove(self._files, removed)
        self._files.sync_folder(self._place.folder)
        return len(removed)

    def check(self) -> None:
        """Prove that segments are dense but for what was removed, and that the index holds all behind the log start."""
        self._buckets.check()
        known, end, index = self._checkpoints.current, self._state.written, self._buckets.index
        assert known.recovery.offset <= end.offset
        assert (self.active, self.active.size) == (end.active, end.position)
        bases = [*(segment.base_offset for segment in self._sealed), self.active.base_offset]
        ends = [*(segment.end_offset for segment in self._sealed), end.offset]
        assert all(base <= behind for base, behind in zip(bases, ends, strict=True))
        assert all(behind <= base for behind, base in zip(ends, bases[1:], strict=False))
        if self._delayed:
            held = sum(behind - base for base, behind in zip(bases, ends, strict=True))
            assert end.offset == held + known.removed_records
            assert end.offset == index.records + index.removed_records
            assert known.log_start.delivery_offset == index.rank(known.log_start.key)
