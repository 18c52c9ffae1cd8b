"""The log of one partition: append, roll, checkpoint, retention.

    append ──> stamp ──> write ──> index ──> sync (shared) ──> visible
               in flight ·······························┘

Locks, always taken in this order: the append lock (one writer: offsets, clock, write, indexes, roll, checkpoint), the
sync lock (one fdatasync at a time), the state lock (a few integers, no I/O; the only one that readers take). The last
two live in `LogState`.

Invariants (`check`):

1. log start <= recovery point <= log end; segments are dense in offsets, but for what retention removed whole.
2. The runs together with the mutable bucket hold every entry of the log exactly once (delayed topics).
3. A run, a sparse index or a checkpoint is made durable only after the bytes of log that it speaks of.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from afterlog.errors import ClockBehind, InvalidDeliverAfter, InvalidTopic, RecordTooLarge, StorageFull
from afterlog.files import Bytes
from afterlog.index.bucket import MutableBucket
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries
from afterlog.index.merge import merged
from afterlog.index.run import Coverage, Run
from afterlog.index.run_writer import write_run
from afterlog.log import retention
from afterlog.log.batches import Batches, stamp_batches
from afterlog.log.checkpoints import CheckpointFile, FrontierLease, LogStart, Recovery
from afterlog.log.columns import EXTRA_BYTES_MAX, Int64Array
from afterlog.log.deliver_after import AS_SOON_AS_POSSIBLE
from afterlog.log.entry import extra_fields
from afterlog.log.log_clock import LogClock
from afterlog.log.log_state import End, LogState
from afterlog.log.place import Place
from afterlog.log.segment import ActiveSegment, SealedSegment
from afterlog.names import BUCKETS, DELIVER_AFTER_INDEX, bucket_file, segment_file

logger = logging.getLogger("afterlog.log")

PREFIX_BYTES_MAX = 64
"""An entry's prefix is no longer, but for what interceptors add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """What recovery found: everything that a `PartitionLog` starts from."""

    checkpoints: CheckpointFile
    sealed: tuple[SealedSegment, ...]
    active: ActiveSegment
    end_offset: int
    index: DelayedIndex
    bucket_start: tuple[int, int]
    """(offset, position in the active segment) of the first entry that the mutable bucket holds."""
    stale: tuple[Path, ...]
    """Runs whose entries are in the mutable bucket again: they go when it is sealed."""
    last_stamp_ms: int
    cut_bytes: int
    """Length of the torn tail that was cut; 0 for none."""


class PartitionLog:
    """One partition, open for appends. `recovery.open_log` makes it. Thread-safe."""

    def __init__(self, place: Place, recovered: RecoveredLog) -> None:
        self.place = place
        self.index = recovered.index
        self.checkpoints = recovered.checkpoints
        self.cut_bytes = recovered.cut_bytes
        self._config = place.config
        self._files = place.files
        self._active = recovered.active
        self._sealed = recovered.sealed
        self._bucket_start = recovered.bucket_start
        self._stale = list(recovered.stale)
        frontier = recovered.checkpoints.current.frontier
        used_ms = max(frontier.used_ms, self.log_start.deliver_after)  # what retention removed stays due
        self._clock = LogClock(place.now_ms, replace(frontier, used_ms=used_ms), recovered.last_stamp_ms)
        end = End(recovered.end_offset, recovered.active.size, recovered.active)
        self.state = LogState(place.folder, place.config.durability, self._clock, recovered.sealed, end, place.changed)
        self._append_lock = threading.Lock()
        interceptors = place.config.broker_entry_metadata_interceptors
        self._prefix_bytes_max = PREFIX_BYTES_MAX + (EXTRA_BYTES_MAX if interceptors else 0)

    @property
    def delayed(self) -> bool:
        return self.place.settings.delayed

    @property
    def log_start(self) -> LogStart:
        """Where delivery order begins, as retention left it."""
        return self.checkpoints.current.log_start

    @property
    def log_start_offset(self) -> int:
        """Offset of the first record that is still in the log."""
        return self.state.visible().segments[0].base_offset

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last visible record: all below it is safe under the durability."""
        return self.state.visible().end.offset

    @property
    def frontier_ms(self) -> int:
        """The largest reading of the log clock that decided "due" so far."""
        return self._clock.used_ms

    def lease(self, reading_ms: int) -> None:
        """Make the frontier durable as far as `reading_ms`, before anything is delivered by that reading."""
        if reading_ms > self.checkpoints.current.frontier.lease_ms:
            lease_ms = reading_ms + self._config.frontier_lease_ms
            with self.state.poisoning():
                self.checkpoints.update(frontier=FrontierLease(used_ms=reading_ms, lease_ms=lease_ms))

    def append(self, batches: Batches) -> int:
        """Append whole batches; the offset of the first record. Returns when they are safe under the durability.

        Raises InvalidDeliverAfter, RecordTooLarge, InvalidTopic with nothing written; StorageFull with nothing written
        of the segment that ran out of room; PartitionPoisoned when only a reopen can tell what is on disk.
        """
        self.check_batches(batches)
        with self._append_lock, self.state.poisoning():
            first_offset = self.state.written.offset
            row = 0
            while row < len(batches):
                row = self._append_to_segment(batches, row)
            end_offset = self.state.written.offset
        self.state.committed(end_offset)
        return first_offset

    def check_batches(self, batches: Batches) -> None:
        """Raises RecordTooLarge, InvalidTopic or InvalidDeliverAfter where the batches cannot be taken."""
        largest = int((batches.positions[1:] - batches.positions[:-1]).max(initial=0))
        if largest > self._config.batch_bytes_max:
            raise RecordTooLarge(
                f"a batch of {largest} bytes is larger than batch_bytes_max ({self._config.batch_bytes_max})"
            )
        self.check_asked(int(batches.deliver_after.max(initial=AS_SOON_AS_POSSIBLE)))

    def check_asked(self, deliver_after: int) -> None:
        """Raises InvalidTopic or InvalidDeliverAfter where a record of this time cannot be taken."""
        if deliver_after == AS_SOON_AS_POSSIBLE:
            return
        if not self.delayed:
            raise InvalidTopic("the topic was made with delayed=False: send without delay or deliver_after")
        limit_ms = self.place.settings.max_delay_ms
        if limit_ms is not None and deliver_after > self.place.now_ms() + limit_ms:
            raise InvalidDeliverAfter(f"deliver_after {deliver_after} lies more than max_delay_ms ({limit_ms}) ahead")

    def roll(self) -> None:
        """Seal the active segment and begin another. An empty one stays."""
        with self._append_lock, self.state.poisoning():
            self.state.usable()
            if self._active.size:
                self._roll()

    def checkpoint(self) -> None:
        """Move the recovery point to the end of the log."""
        with self._append_lock, self.state.poisoning():
            self._checkpoint()

    def enforce_retention(self) -> int:
        """Remove what the topic's retention says, and nothing that is pending; the number of segments removed."""
        with self._append_lock, self.state.poisoning():
            self.state.usable()
            return self._enforce_retention()

    def close(self) -> None:
        """Move the recovery point to the end, and the lease back to what was used. A poisoned log is only let go."""
        with self._append_lock, self.state.poisoning():
            if self.state.closed:
                return
            try:
                if not self.state.poisoned:
                    self._checkpoint()
                    self.checkpoints.update(frontier=self._clock.frontier())
            finally:
                self.state.close()

    def check(self) -> None:
        """Prove the invariants, those of the state and the index too."""
        with self._append_lock:
            self.state.check()
            self.index.check()
            end = self.state.written
            assert self.checkpoints.current.recovery.offset <= end.offset
            assert end.position == self._active.size
            bases = [*(segment.base_offset for segment in self._sealed), self._active.base_offset]
            ends = [*(segment.end_offset for segment in self._sealed), end.offset]
            assert all(base <= behind for base, behind in zip(bases, ends, strict=True))
            assert all(behind <= base for behind, base in zip(ends, bases[1:], strict=False))
            if self.delayed:
                held = sum(behind - base for base, behind in zip(bases, ends, strict=True))
                assert held == self.index.records

    # Append.

    def _append_to_segment(self, batches: Batches, row: int) -> int:
        """Append the batches from `row` on that the active segment has room for; the row behind them."""
        fit = self._fitting(batches, row)
        if fit == 0 and self._active.size:
            self._roll()
            return row
        last = row + max(fit, 1)
        self._write(batches, row, last)
        self._checkpoint_when_due()
        return last

    def _fitting(self, batches: Batches, row: int) -> int:
        """How many batches from `row` on the active segment has room for."""
        room_bytes = self._config.segment_bytes - self._active.size
        room_records = 2**31 - 1 - (self.state.written.offset - self._active.base_offset)
        count = len(batches) - row
        size = int(batches.positions[-1] - batches.positions[row]) + count * self._prefix_bytes_max
        if size <= room_bytes and int(batches.records[row:].sum()) <= room_records:
            return count
        sizes = batches.positions[row + 1 :] - batches.positions[row]
        sizes += np.arange(1, count + 1) * self._prefix_bytes_max
        records = batches.records[row:].cumsum()
        return min(
            int(sizes.searchsorted(room_bytes, side="right")), int(records.searchsorted(room_records, side="right"))
        )

    def _write(self, batches: Batches, row: int, last: int) -> None:
        records = batches.records[row:last]
        end = self.state.written.offset + records.cumsum()
        offset = end - records
        end_offset = int(end[-1])
        start = self._active.size
        stamp_ms = self.state.begin(end_offset)
        position = np.empty(last - row, np.int64)
        try:
            for first, stop in batches.pieces(row, last):
                data, at = self._entries(batches, first, stop, int(offset[first - row]), stamp_ms)
                np.add(at[:-1], self._active.size, out=position[first - row : stop - row])
                self._active.append(data)
        except BaseException:
            self._withdraw(start)
            raise
        effective = np.maximum(batches.deliver_after[row:last], stamp_ms)  # the stamping rule
        entries = Entries(effective, offset, position, records)
        self._active.sparse.add(position, end - 1, batches.max_timestamp[row:last])
        if self.delayed and len(entries) == 1:
            self.index.add(*entries.entry(0))
        elif self.delayed:
            self.index.add_many(entries)
        self.state.wrote(End(end_offset, self._active.size, self._active))

    def _entries(
        self, batches: Batches, row: int, last: int, base_offset: int, stamp_ms: int
    ) -> tuple[Bytes, Int64Array]:
        """The bytes of the batches from `row` to `last` as the log has them, and where each begins in these."""
        interceptors = self._config.broker_entry_metadata_interceptors
        if not self.delayed and not interceptors:
            data, positions = batches.encoded(row, last)
            return stamp_batches(data, positions, batches.records[row:last], base_offset), positions
        extra = extra_fields(interceptors, base_offset, stamp_ms, last - row)
        return batches.entries(row, last, base_offset, stamp_ms, delayed=self.delayed, extra=extra)

    def _withdraw(self, size: int) -> None:
        try:
            self._active.rollback(size)
        except OSError as error:
            self.state.poison(error)
            self.state.usable()
        finally:
            self.state.withdraw()

    # Checkpoints and rolls. All under the append lock.

    def _checkpoint_when_due(self) -> None:
        fresh_bytes = self._active.size - self.checkpoints.current.recovery.position
        if (
            self.index.bucket.count < self._config.min_index_count_per_bucket
            and fresh_bytes < self._config.recovery_bytes
        ):
            return
        try:
            self._checkpoint()
        except StorageFull as error:
            # The append itself succeeded, and the log holds all that the checkpoint would say.
            logger.warning(
                "%s: no room for a checkpoint, recovery would start further back: %s", self.place.folder, error
            )

    def _checkpoint(self) -> None:
        self.state.sync()
        end = self.state.written
        if self.checkpoints.current.recovery.offset == end.offset:
            return
        if self.index.bucket.count:  # empty after a seal whose checkpoint failed, and in a FIFO topic
            self._seal_bucket(end)
        recovery = self._recovery_point(end.offset, end.position, self._active)
        self.checkpoints.update(recovery=recovery, active=self._active.save_sparse())
        self._unlink_stale()

    def _recovery_point(self, offset: int, position: int, active: ActiveSegment) -> Recovery:
        return Recovery(
            segment=active.base_offset, position=position, offset=offset, stamp_ms=self._clock.last_stamp_ms
        )

    def _seal_bucket(self, end: End) -> None:
        first_offset, position = self._bucket_start
        base_offset = self._active.base_offset
        path = self.place.folder / BUCKETS / bucket_file(first_offset, end.offset)
        coverage = Coverage(first_offset, end.offset, base_offset, position, base_offset, end.position)
        run = self._write_run(path, [self.index.bucket.entries()], coverage)
        self.index.replace(remove=(), add=run, bucket=MutableBucket())
        self._bucket_start = (end.offset, end.position)

    def _roll(self) -> None:
        self.state.sync()
        end = self.state.written
        max_deliver_after, add, remove = 0, None, [run for run in self.index.runs if self._in_active(run)]
        if self.delayed:
            blocks = merged(remove, self.index.bucket)
            base_offset = self._active.base_offset
            coverage = Coverage(base_offset, end.offset, base_offset, 0, base_offset, end.position)
            add = self._write_run(self.place.folder / segment_file(base_offset, DELIVER_AFTER_INDEX), blocks, coverage)
            max_deliver_after = add.last_key.deliver_after
        mark = self._active.seal(end.offset, max_deliver_after)
        active = ActiveSegment.create(self._files, self.place.folder, end.offset, self._config.index_interval_bytes)
        self.checkpoints.update(
            sealed=(*self.checkpoints.current.sealed, mark),
            active=active.mark,
            recovery=self._recovery_point(end.offset, 0, active),
        )
        sealed = SealedSegment(self._files, self.place.folder, mark, self._config.index_interval_bytes)
        self._sealed, self._active = (*self._sealed, sealed), active
        if self.delayed:
            self.index.replace(remove=remove, add=add, bucket=MutableBucket())
        self._bucket_start = (end.offset, 0)
        self.state.switch(self._sealed, End(end.offset, 0, active))
        self._stale += [run.path for run in remove]
        self._unlink_stale()
        self._enforce_retention()

    def _write_run(self, path: Path, blocks: Iterable[Entries], coverage: Coverage) -> Run:
        write_run(
            self._files,
            path,
            blocks,
            coverage,
            max_entries=self._config.max_indexes_per_bucket_snapshot_segment,
            max_step_ms=self._config.max_time_step_per_bucket_snapshot_segment_s * 1000,
        )
        return Run.open(self._files, path)

    def _in_active(self, run: Run) -> bool:
        return run.coverage.first_offset >= self._active.base_offset

    def _unlink_stale(self) -> None:
        """Remove runs that another run has replaced. Where it fails, the next open does it."""
        while self._stale:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._stale[-1])
            self._stale.pop()

    # Retention.

    def _enforce_retention(self) -> int:
        settings = self.place.settings
        if settings.retention_ms is None and settings.retention_bytes is None:
            return 0
        try:
            frontier_ms = self.state.due_reading()[0] if self.delayed else self.place.now_ms()
        except ClockBehind:
            return 0
        removed = retention.removable(self._sealed, self._active, settings, frontier_ms)
        if not removed:
            return 0
        gone = {segment.base_offset for segment in removed}
        kept = tuple(segment for segment in self._sealed if segment.base_offset not in gone)
        runs = [run for run in self.index.runs if run.coverage.first_offset in gone]
        self.checkpoints.update(
            log_start=retention.log_start(runs, self.index, self.log_start),
            removed_records=self.index.removed_records + sum(run.records for run in runs),
            sealed=tuple(mark for mark in self.checkpoints.current.sealed if mark.base_offset not in gone),
        )
        self._sealed = kept
        self.index.replace(remove=runs, add=None, bucket=None)
        self.state.retain(kept)
        for segment in removed:
            self._stale += retention.files_of(segment)
        self._unlink_stale()
        self._files.sync_folder(self.place.folder)
        return len(removed)
