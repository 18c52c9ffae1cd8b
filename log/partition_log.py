"""The log of one partition: append, roll, checkpoint, retention.

    append ──> stamp ──> write ──> index ──> sync (shared) ──> visible
               in flight ·······························┘

Locks, always taken in this order: the merge lock (one merge of runs at a time), the append lock (one writer: offsets,
clock, write, indexes, roll, checkpoint), the sync lock (one fdatasync at a time), the state lock (a few integers, no
I/O; the only one that readers take). The last two live in `LogState`. A merge does its work without the append lock.

Invariants (`check`):

1. log start <= recovery point <= log end; segments are dense in offsets, but for what retention removed whole.
2. The runs together with the mutable bucket hold every entry behind the log start exactly once (delayed topics).
3. A run, a sparse index or a checkpoint is made durable only after the bytes of log that it speaks of.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from afterlog.errors import (
    ClockBehind,
    InvalidDeliverAfter,
    InvalidTopic,
    NotPending,
    RecordTooLarge,
    StoreClosed,
)
from afterlog.files import Bytes
from afterlog.index.entries import Entries, Key
from afterlog.log.cancellation import Cancellations, CancelResult, Int8Array
from afterlog.log.checkpoints import LogStart, RemoteMark
from afterlog.log.context import LogContext
from afterlog.log.log_clock import LogClock
from afterlog.log.log_state import End, LogState
from afterlog.log.lookup import find_written
from afterlog.log.segment import ActiveSegment, SealedSegment
from afterlog.log.upkeep import RecoveredLog, Upkeep
from afterlog.records.columns import EXTRA_BYTES_MAX, Int64Array
from afterlog.records.control import OVERHEAD_BYTES, TARGET_BYTES, Control, ControlType
from afterlog.records.deliver_after import AS_SOON_AS_POSSIBLE
from afterlog.records.encode import Batches, stamp_batches
from afterlog.records.entry import extra_fields

logger = logging.getLogger("afterlog.log")

PREFIX_BYTES_MAX = 64
"""An entry's prefix is no longer, but for what interceptors add."""


class PartitionLog:
    """One partition, open for appends. `recovery.open_log` makes it. Thread-safe."""

    def __init__(self, context: LogContext, recovered: RecoveredLog) -> None:
        self.context = context
        self.index = recovered.buckets.index
        self.checkpoints = recovered.checkpoints
        self.cut_bytes = recovered.cut_bytes
        self._config = context.config
        frontier = recovered.checkpoints.current.frontier
        used_ms = max(frontier.used_ms, self.log_start.deliver_after)  # what retention removed stays due
        self.cancellations = Cancellations(recovered.cancelled, self.log_start.key)
        self._clock = LogClock(context.now_ms, replace(frontier, used_ms=used_ms), recovered.last_stamp_ms)
        end = End(recovered.end_offset, recovered.active.size, recovered.active)
        self.state = LogState(
            context.folder, context.config.durability, self._clock, recovered.sealed, end, context.changed
        )
        self._upkeep = Upkeep(context, recovered, self.state, self._clock, self.cancellations)
        self._append_lock = threading.Lock()
        self._merge_lock = threading.Lock()
        self._closing = False
        self.clamped_records = 0
        """Appended since the log was opened with another time than was asked for."""
        interceptors = context.config.broker_entry_metadata_interceptors
        self._prefix_bytes_max = PREFIX_BYTES_MAX + (EXTRA_BYTES_MAX if interceptors else 0)

    @property
    def delayed(self) -> bool:
        return self.context.settings.delayed

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

    def read_clock(self) -> None:
        """Move the frontier to what is due now, if the clock can be trusted. Nothing is delivered by that."""
        if self.delayed:
            with contextlib.suppress(ClockBehind):
                self.state.due_reading()

    def lease(self, reading_ms: int) -> None:
        """Make the frontier durable as far as `reading_ms`, before anything is delivered by that reading."""
        if reading_ms > self.checkpoints.current.frontier.lease_ms:
            lease_ms = reading_ms + self._config.frontier_lease_ms
            with self.state.poisoning():
                self.checkpoints.move_frontier(reading_ms, lease_ms)

    def append(self, batches: Batches) -> int:
        """Append whole batches; the offset of the first record. Returns when they are safe under the durability.

        Raises InvalidDeliverAfter, RecordTooLarge, InvalidTopic with nothing written; StorageFull with nothing written
        of the segment that ran out of room; PartitionPoisoned when only a reopen can tell what is on disk.
        """
        self.check_batches(batches)
        with self._append_lock, self.state.poisoning():
            first_offset = self.state.written.offset
            self._append(batches)
            end_offset = self.state.written.offset
        self.state.committed(end_offset)
        return first_offset

    @contextlib.contextmanager
    def appending(self) -> Iterator[Callable[[Batches], None]]:
        """For appends that follow each other with nothing in between: all others wait until the block ends.

        The call that it gives appends batches that `check_batches` has passed, and raises as `append` does. They are
        safe after `state.sync`.
        """
        with self._append_lock, self.state.poisoning():
            self.state.usable()
            yield self._append

    def cancel(self, offsets: Int64Array) -> Int8Array:
        """Cancel the pending among the records of these offsets, which differ: a `CancelResult` for each, int8[n].

        Returns when it is safe under the durability. Raises CorruptFile, PartitionPoisoned, and StorageFull, where what
        fitted into the control batches before stays cancelled.
        """
        return self._cancel(ControlType.CANCEL, offsets, None)[0]

    def reschedule(self, offset: int, follower: Batches) -> int:
        """Cancel a pending record and append another in its place, or neither; the offset of the other.

        Raises NotPending with a `CancelResult` that says why, and as `append` and `cancel` do.
        """
        self.check_batches(follower)
        answers, end_offset = self._cancel(ControlType.RESCHEDULE, np.array([offset]), follower)
        answer = CancelResult(int(answers[0]))
        if answer is not CancelResult.CANCELLED:
            raise NotPending(f"the record of offset {offset} cannot be rescheduled: {answer.name}", answer=answer)
        return end_offset - 1

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
        limit_ms = self.context.settings.max_delay_ms
        if limit_ms is not None and deliver_after > self.context.now_ms() + limit_ms:
            raise InvalidDeliverAfter(f"deliver_after {deliver_after} lies more than max_delay_ms ({limit_ms}) ahead")

    def roll(self) -> None:
        """Seal the active segment and begin another. An empty one stays."""
        with self._append_lock, self.state.poisoning():
            self.state.usable()
            if self._active.size:
                self._upkeep.roll()

    def checkpoint(self) -> None:
        """Move the recovery point to the end of the log."""
        with self._append_lock, self.state.poisoning():
            self._upkeep.checkpoint()

    def enforce_retention(self) -> int:
        """Remove what the topic's retention says, and nothing that is pending; the number of segments removed."""
        if self.delayed and any(run.remote for run in self.index.runs):
            for segment in self._upkeep.expired():  # what this needs of runs far away is cached when the lock is held
                self.index.rank(Key(segment.mark.max_deliver_after, segment.end_offset - 1))
        with self._append_lock, self.state.poisoning():
            self.state.usable()
            return self._upkeep.enforce_retention()

    @property
    def sealed(self) -> tuple[SealedSegment, ...]:
        """The sealed segments, in offset order."""
        return self._upkeep.sealed

    def uploaded(self, remote: Mapping[int, RemoteMark | None]) -> None:
        """Note where the sealed segments of these base offsets lie in object storage; None: nowhere any more.

        Their copies there were verified. What is in the folder stays there. A segment that is not is left as it is.
        """
        with self._append_lock, self.state.poisoning():
            self.state.usable()
            self._upkeep.uploaded(remote)

    def removed(self, attempts: Collection[str]) -> None:
        """Note that segments which retention removed are not in object storage any more, under these attempts."""
        with self._append_lock, self.state.poisoning():
            self.state.usable()
            self._upkeep.removed(attempts)

    def enforce_local_retention(self, ask: Callable[[], Collection[str]]) -> int:
        """Remove the local files that the topic's local retention lets go, of segments that are due as a whole.

        `ask`: which attempts to upload object storage lists; what is not among them stays. Called where something would
        go, just before it does. The number of segments that were removed: from now on they are read from there.
        """
        listed = ask() if self._upkeep.expired_here() else ()
        with self._append_lock, self.state.poisoning():
            self.state.usable()
            return self._upkeep.enforce_local_retention(listed)

    @property
    def crowded(self) -> bool:
        """Whether there may be something for `merge_buckets` to do."""
        return self._upkeep.crowded

    def merge_buckets(self) -> int:
        """Merge runs until there are no more than `max_num_buckets` of sealed segments, nor of the active one.

        The number of merges. Appends and fetches go on meanwhile. Where it raises StorageFull, CorruptFile or OSError,
        or StoreClosed because of a `close` meanwhile, the log is as good as before: nothing is gone that has no copy.
        """
        with self._merge_lock:
            return self._upkeep.merge_buckets(self._append_lock, self._going_on)

    def close(self) -> None:
        """Move the recovery point to the end, and the lease back to what was used. A poisoned log is only let go."""
        self._closing = True
        with self._merge_lock, self._append_lock, self.state.poisoning():
            if self.state.closed:
                return
            try:
                if not self.state.poisoned:
                    self._upkeep.checkpoint()
                    self.checkpoints.update(frontier=self._clock.frontier())
            finally:
                self.state.close()

    def check(self) -> None:
        """Prove the invariants, those of the state and the index too."""
        with self._append_lock:
            self.state.check()
            self._upkeep.check()

    def _going_on(self) -> None:
        """For a merge: raises where the log cannot be written or is to be closed."""
        self.state.usable()
        if self._closing:
            raise StoreClosed("the store is being closed; a merge of runs is given up, and begins anew another time")

    @property
    def _active(self) -> ActiveSegment:
        return self._upkeep.active

    # Append.

    def _append(self, batches: Batches) -> None:
        row = 0
        while row < len(batches):
            row = self._append_to_segment(batches, row)

    def _append_to_segment(self, batches: Batches, row: int) -> int:
        """Append the batches from `row` on that the active segment has room for; the row behind them."""
        fit = self._fitting(batches, row)
        if fit == 0 and self._active.size:
            self._upkeep.roll()
            return row
        last = row + max(fit, 1)
        stamp_ms = self.state.begin(self.state.written.offset + int(batches.records[row:last].sum()))
        self._write(batches, row, last, stamp_ms)
        self._upkeep.checkpoint_when_due()
        return last

    def _fitting(self, batches: Batches, row: int) -> int:
        """How many batches from `row` on the active segment has room for."""
        room_bytes, room_records = self._room()
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

    def _room(self) -> tuple[int, int]:
        """Bytes and records that the active segment has room for."""
        room_records = 2**31 - 1 - (self.state.written.offset - self._active.base_offset)
        return self._config.segment_bytes - self._active.size, room_records

    def _write(self, batches: Batches, row: int, last: int, stamp_ms: int, control: Control | None = None) -> None:
        """Write batches at a stamp that is in flight: all of them, or none. `control`: what the first of them says."""
        records = batches.records[row:last]
        end = self.state.written.offset + records.cumsum()
        offset = end - records
        start = self._active.size
        position = np.empty(last - row, np.int64)
        try:
            for first, stop in batches.pieces(row, last):
                data, at = self._entries(batches, first, stop, int(offset[first - row]), stamp_ms)
                np.add(at[:-1], self._active.size, out=position[first - row : stop - row])
                self._active.append(data)
        except BaseException:
            self._withdraw(start)
            raise
        asked = batches.deliver_after[row:last]
        entries = Entries(np.maximum(asked, stamp_ms), offset, position, records)  # the stamping rule
        self._active.sparse.add(position, end - 1, batches.max_timestamp[row:last])
        if self.delayed and len(entries) == 1:
            self.index.add(*entries.entry(0))
        elif self.delayed:
            self.index.add_many(entries)
        self.clamped_records += clamped_records(asked, records, stamp_ms)
        if control is not None:
            cancelled = control.rows(int(offset[0]))
            self._active.add_cancelled(cancelled)
            self.cancellations.wrote(cancelled)
        self.state.wrote(End(int(end[-1]), self._active.size, self._active))

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

    # Cancel.

    def _cancel(self, kind: ControlType, offsets: Int64Array, follower: Batches | None) -> tuple[Int8Array, int]:
        """What came of each, and the end of the log behind it."""
        found = find_written(self.state, offsets)
        targets_max = max((self._config.batch_bytes_max - OVERHEAD_BYTES) // TARGET_BYTES, 1)
        with self._append_lock, self.state.poisoning():
            self.state.usable()
            answers = self.cancellations.answers(found, offsets, self.log_start.key, self.context.now_ms())
            pending = np.flatnonzero(answers == CancelResult.CANCELLED)
            for first in range(0, len(pending), targets_max):
                rows = pending[first : first + targets_max]
                stamp_ms = self._append_control(Control(kind, offsets[rows], found.deliver_after[rows], follower))
                answers[rows[found.deliver_after[rows] <= stamp_ms]] = CancelResult.ALREADY_DELIVERED
            end_offset = self.state.written.offset
        self.state.committed(end_offset)
        return answers, end_offset

    def _append_control(self, control: Control) -> int:
        """Append what is left of a control batch at the stamp that decides what is left: that stamp."""
        room_bytes, room_records = self._room()
        if self._active.size and (
            control.size_max + control.records * self._prefix_bytes_max > room_bytes or control.records > room_records
        ):
            self._upkeep.roll()
        stamp_ms = self.state.begin(self.state.written.offset + control.records)
        control = control.later_than(stamp_ms)
        if not len(control.target):
            self.state.withdraw()
            return stamp_ms
        batches = control.batches(stamp_ms)
        self._write(batches, 0, len(batches), stamp_ms, control)
        self._upkeep.checkpoint_when_due()
        return stamp_ms


def clamped_records(asked: Int64Array, records: Int64Array, stamp_ms: int) -> int:
    """The records of batches whose time the stamping rule moves. Who asked for "as soon as possible" gets that."""
    if len(asked) == 1:
        return int(records[0]) if AS_SOON_AS_POSSIBLE < asked[0] < stamp_ms else 0
    return int(records[(asked > AS_SOON_AS_POSSIBLE) & (asked < stamp_ms)].sum())
