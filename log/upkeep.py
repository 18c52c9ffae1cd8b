"""What a partition does with its files besides appending to them: checkpoints, rolls, merges of runs, retention.

    appends ──> active ──┬── checkpoint: bucket sealed into a run, sparse indexes saved, recovery point moved
                         └── roll: sealed, one run for all of it ──> sealed ──> retention: gone
                                                     runs of either ──> merges, in the background

Whatever the checkpoints speak of is durable before they say so, and what they no longer speak of is removed after that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from afterlog.errors import ClockBehind, StorageFull
from afterlog.index.buckets import Buckets
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Key
from afterlog.index.run import Run
from afterlog.log import retention
from afterlog.log.cancellation import Cancellations
from afterlog.log.checkpoints import CheckpointFile, Recovery, RemoteMark, SealedMark
from afterlog.log.context import LogContext
from afterlog.log.log_clock import LogClock
from afterlog.log.log_state import End, LogState
from afterlog.log.segment import ActiveSegment, SealedSegment
from afterlog.names import CANCEL_INDEX

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
        self,
        context: LogContext,
        recovered: RecoveredLog,
        state: LogState,
        clock: LogClock,
        cancellations: Cancellations,
    ) -> None:
        self.active = recovered.active
        self._sealed = recovered.sealed
        self._buckets = recovered.buckets
        self._checkpoints = recovered.checkpoints
        self._cancellations = cancellations
        self._context = context
        self._config = context.config
        self._files = context.files
        self._delayed = context.settings.delayed
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
            folder = self._context.folder
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
        folder, interval_bytes = self._context.folder, self._config.index_interval_bytes
        active = ActiveSegment.create(self._files, folder, end.offset, interval_bytes)
        beginning = End(end.offset, 0, active)
        self._checkpoints.update(
            sealed=(*self._checkpoints.current.sealed, mark),
            active=active.mark,
            recovery=self._recovery_point(beginning),
        )
        self._sealed = (*self._sealed, SealedSegment(self._files, folder, mark, interval_bytes, self._context.remote))
        self.active = active
        replaced = self._buckets.begin_segment(run) if run else ()
        self._state.switch(self._sealed, beginning)
        self._buckets.delete(replaced)
        self._buckets.delete_stale()
        if not self._context.settings.remote_storage_enable:  # there it may have to read what is far away
            self.enforce_retention()
        self._merge_when_crowded()
        self._context.sealed()

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
            with self._context.operations.merge.measured(self._context.clock):
                count += self._buckets.merge(sources, lock, after=after, proceed=proceed)

    def _durable_runs(self) -> Sequence[Run]:
        """The runs of the active segment up to the recovery point, where recovery looks for one that ends."""
        end_offset = self._checkpoints.current.recovery.offset
        return [run for run in self._buckets.active if run.coverage.end_offset <= end_offset]

    def _merge_when_crowded(self) -> None:
        if self.crowded:
            self._context.crowded()

    # Retention.

    def enforce_retention(self) -> int:
        """Remove what the topic's retention says, and nothing that is pending; the number of segments removed."""
        removed = self.expired()
        if not removed:
            return 0
        known = self._checkpoints.current
        self._checkpoints.update(**retention.checkpoints_without(removed, known, self._buckets.index))
        self._sealed = tuple(segment for segment in self._sealed if segment not in removed)
        log_start = self._checkpoints.current.log_start.key
        self._buckets.forget(log_start)
        self._cancellations.forget(log_start, self._state.visible().end.offset)
        self._state.retain(self._sealed)
        retention.remove(self._files, removed)
        self._files.sync_folder(self._context.folder)
        self._context.sealed()
        return len(removed)

    def expired(self) -> list[SealedSegment]:
        """The segments that the topic's retention lets go now."""
        settings = self._context.settings
        return self._removable(self._sealed, retention.Rule(settings.retention_ms, settings.retention_bytes))

    def _removable(self, segments: Sequence[SealedSegment], rule: retention.Rule) -> list[SealedSegment]:
        """Those that a rule lets go, by a reading of the clock; none while the clock cannot be trusted."""
        if rule == retention.Rule(None, None):
            return []
        try:
            frontier_ms = self._state.due_reading()[0] if self._delayed else self._context.now_ms()
        except ClockBehind:
            return []
        return retention.removable(segments, self.active, rule, frontier_ms, delayed=self._delayed)

    # Object storage.

    @property
    def sealed(self) -> tuple[SealedSegment, ...]:
        """The sealed segments, in offset order."""
        return self._sealed

    def uploaded(self, remote: Mapping[int, RemoteMark | None]) -> None:
        """Note where the segments of these base offsets lie in object storage; None: nowhere any more.

        What is in the folder stays there. A segment that is gone meanwhile is left out.
        """
        self._mark({
            segment: replace(segment.mark, remote=remote[segment.base_offset])
            for segment in self._sealed
            if segment.base_offset in remote and segment.is_local()
        })  # fmt: skip

    def removed(self, attempts: Collection[str]) -> None:
        """Note that these are not in object storage any more."""
        left = tuple(attempt for attempt in self._checkpoints.current.removals if attempt not in attempts)
        self._checkpoints.update(removals=left)

    def expired_here(self) -> list[SealedSegment]:
        """The uploaded segments whose local files the topic's local retention lets go now: due as a whole."""
        settings = self._context.settings
        held = [segment for segment in self._sealed if segment.is_local() and segment.mark.remote is not None]
        return self._removable(held, retention.Rule(settings.local_retention_ms, settings.local_retention_bytes))

    def enforce_local_retention(self, listed: Collection[str]) -> int:
        """Remove these local files, of segments whose attempt is among `listed`. The number of segments."""
        gone = [
            segment
            for segment in self.expired_here()
            if segment.mark.remote is not None and segment.mark.remote.attempt in listed
        ]
        if gone:  # what is only in object storage is due for good, whatever crashes
            self._mark({segment: _not_here(segment.mark) for segment in gone}, used_ms=self._clock.used_ms)
        self._let_runs_go()
        retention.remove(self._files, gone, kept=[CANCEL_INDEX])
        if gone:
            self._files.sync_folder(self._context.folder)
        return len(gone)

    def _mark(self, marks: Mapping[SealedSegment, SealedMark], *, used_ms: int = 0) -> None:
        """Change the marks of sealed segments, durably first, and with them the frontier."""
        known = {segment.mark: mark for segment, mark in marks.items()}
        sealed = tuple(known.get(mark, mark) for mark in self._checkpoints.current.sealed)
        self._checkpoints.move_frontier(used_ms, used_ms, sealed=sealed)
        for segment, mark in marks.items():
            segment.moved(mark)

    def _let_runs_go(self) -> None:
        """Read the runs of segments that are not in the folder from object storage, and delete what holds no others."""
        if not self._delayed:
            return
        log_start = self._checkpoints.current.log_start.key
        for run in self._buckets.sealed:
            first, end = run.coverage.first_offset, run.coverage.end_offset
            covered = [segment for segment in self._sealed if first <= segment.base_offset < end]
            if not run.remote and covered and not any(segment.is_local() for segment in covered):
                runs = [segment.remote_copy().run() for segment in covered]
                self._buckets.let_go(run, [each for each in runs if each.last_key > log_start])

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


def _not_here(mark: SealedMark) -> SealedMark:
    """The mark of a segment whose local files go."""
    assert mark.remote is not None, "its copy is listed"
    return replace(mark, remote=replace(mark.remote, local=False))
