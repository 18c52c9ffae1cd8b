"""Looking into a partition that another process may be appending to: no lock is taken, and nothing is written.

    .log        sealed │ sealed │ active ──────────┬──────────
                                                   └ recovery point: nothing behind it is looked into
    delivery    ───────────────────┬──────────────────────────
    order                          └ the reading: below it, no record can come in between any more

What lies below the recovery point is durable, indexed and never cut. What lies behind it is the writer's: up to
`min_index_count_per_bucket` entries or `recovery_bytes`, which come into view with the next checkpoint: after
`checkpoint_ms` at the latest, where the store has that set.

Delivery order is final up to a reading only if no record that is not in view is due before it. Such a record

- lies after the recovery point in the file: these entries are scanned for when they are due, and their control batches
  for when they cancelled;
- or is being appended: its stamp is not below the frontier that the store has made durable, because no reading of the
  store passes an append in flight; and not below the wall clock by more than the time that an append takes.

So the reading is the later of that frontier and `settle_ms` ago, but no later than anything found behind the recovery
point. It rests on clocks that agree within `settle_ms`, and on appends that take no longer. Where they may not (the
store's clock is not the machine's, or `clock_jump_limit_ms` holds it back) settle_ms is None: then the reading is the
store's frontier alone, which moves with every append that is checkpointed and while somebody consumes.

A store goes on while one looks: segments go with retention, runs with merges. What was opened stays readable; where a
file is gone before it is opened, the snapshot begins anew from the checkpoints of then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import CorruptFile
from afterlog.base.files import opened
from afterlog.base.names import BUCKETS, CHECKPOINTS, LOG, segment_file
from afterlog.index.acked_ranges import AckedRanges
from afterlog.index.cancel_index import Cancelled
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.run import Run
from afterlog.log.cancellation import Cancellations
from afterlog.log.checkpoints import CheckpointFile, Checkpoints, FrontierLease
from afterlog.log.context import LogContext
from afterlog.log.partition_log import PartitionLog, RecoveredLog
from afterlog.log.run_files import runs_of_active, runs_of_sealed, spans_of
from afterlog.log.scan import steps
from afterlog.log.segment import ActiveSegment, SealedSegment, Segment, load_cancelled
from afterlog.log.store_frontier import read_frontier
from afterlog.log.version import End, Version
from afterlog.records.header import CONTROL

SETTLE_MS = 10_000
"""How long an append may take, and how far apart the clocks of writer and reader may be."""
ALL_MS = INT64_MAX - 1
"""The reading by which everything is due, but for what never is."""
_TRIES = 8


def open_snapshot(context: LogContext, *, at_ms: int | None = None, settle_ms: int | None = SETTLE_MS) -> PartitionLog:
    """The log as far as it is durable, to read from; `context.files` should not be able to write.

    Records are due by one reading: `at_ms`, or the latest by which delivery order is final. By ALL_MS the pending are
    due, too; their delivery offsets may still change. Raises CorruptFile.
    """
    before_ms = context.now_ms()  # first of all: what is appended from now on is stamped later
    for left in reversed(range(_TRIES)):
        try:
            return _open(context, before_ms, at_ms, settle_ms)
        except (CorruptFile, FileNotFoundError) as error:
            if left:
                continue
            if isinstance(error, CorruptFile):
                raise
            raise CorruptFile("the file is gone", path=error.filename) from error
    raise AssertionError("unreachable")


def _open(context: LogContext, before_ms: int, at_ms: int | None, settle_ms: int | None) -> PartitionLog:
    shared = read_frontier(context.files, context.folder.parent)  # before anything that tells how far the log goes
    path = context.folder / CHECKPOINTS
    known = CheckpointFile.open(context.files, path).current
    interval_bytes = context.config.index_interval_bytes
    active = ActiveSegment(
        context.files, context.folder, known.active.base_offset, interval_bytes, size=known.recovery.position
    )
    if not active.load_sparse(known.active):
        raise CorruptFile("an index of the active segment is not as it was saved: open the store", path=active.path)
    files, folder, limit = context.files, context.folder, context.foreign_bytes_max
    sealed = tuple(
        SealedSegment(files, folder, mark, interval_bytes, context.remote, foreign_bytes_max=limit)
        for mark in known.sealed
    )
    if context.settings.delayed and context.settings.has_retention:  # a cleaning takes files of what is alive
        for segment in sealed:
            segment.mapped()
    used_ms = shared.joined(context.folder.name, known.frontier).used_ms
    frontier_ms = max(used_ms, known.recovery.stamp_ms)
    if at_ms is None:
        at_ms = frontier_ms if settle_ms is None else max(frontier_ms, before_ms - settle_ms)
        at_ms = min(at_ms, _earliest_behind(context, known))
    index = _index(context, known, {each.base_offset: each for each in sealed})
    latest_ms = max((run.last_key.deliver_after for run in index.runs), default=0)
    at_ms = min(at_ms, max(latest_ms, frontier_ms))  # all that is needed, and quicker to search
    known = replace(known, frontier=FrontierLease(used_ms=at_ms, lease_ms=at_ms))  # so that none is written
    end = End(known.recovery.offset, known.recovery.position)
    version = Version(
        sealed=sealed,
        active=active,
        delayed_index=index,
        log_start=known.log_start,
        cancellations=Cancellations.of(_cancelled(context, known, (*sealed, active)), known.log_start.key, index.acked),
        written=end,
        visible=end,
    )
    recovered = RecoveredLog(
        checkpoints=CheckpointFile(context.files, path, known),
        version=version,
        last_stamp_ms=known.recovery.stamp_ms,
        cut_bytes=0,
    )
    return PartitionLog(replace(context, now_ms=lambda: at_ms), recovered)


def _earliest_behind(context: LogContext, known: Checkpoints) -> int:
    """The latest reading that nothing written after the recovery point is due before, or has cancelled anything by."""
    recovery = known.recovery
    with opened(context.files, context.folder / segment_file(recovery.segment, LOG)) as file:
        data = np.frombuffer(file.pread(max(file.size() - recovery.position, 0), recovery.position), np.uint8)
    earliest = INT64_MAX
    for found, *_ in steps([(0, data)], 0, len(data), recovery.offset, bodies=False):
        stamp_ms = found.broker_timestamp[found.attributes & CONTROL != 0]
        earliest = int(min(found.deliver_after.min(initial=earliest), stamp_ms.min(initial=earliest)))
    return earliest


def _index(context: LogContext, known: Checkpoints, sealed: Mapping[int, SealedSegment]) -> DelayedIndex:
    """The runs that hold the log up to the recovery point."""
    if not context.settings.delayed:
        return DelayedIndex()
    storage = context.bucket_storage()
    spans = spans_of(context.files.names(context.folder / BUCKETS))
    found = runs_of_sealed(storage.open, spans, known)
    active: list[Run] = runs_of_active(storage.open, spans, known)
    missing = [sealed[mark.base_offset] for mark in found.missing if mark not in found.parts]
    for segment in missing:
        if segment.mark.local:
            raise CorruptFile("no intact run: open the store, or run the index job", path=segment.path)
    if known.recovery.position and not active:
        raise CorruptFile("no intact runs of the active segment: open the store", path=context.folder / BUCKETS)
    runs = [group.run for group in found.groups if group.run is not None]
    runs += [run for parts in found.parts.values() for run in parts]
    runs += [*(segment.remote_copy().run() for segment in missing), *active]
    removed_records = known.recovery.offset - sum(run.records for run in runs)
    acked = AckedRanges(known.acked)
    return DelayedIndex.of(runs, removed_records=removed_records, cleanings=known.cleanings, acked=acked)


def _cancelled(context: LogContext, known: Checkpoints, segments: tuple[Segment, ...]) -> Cancelled:
    """What the control batches below the recovery point have cancelled."""
    marks = [*(mark.cancel_index for mark in known.sealed), known.active.cancel_index]
    parts = []
    for segment, saved in zip(segments, marks, strict=True):
        part = load_cancelled(context.files, segment.path, saved)
        if part is None and isinstance(segment, SealedSegment) and not segment.is_local():
            part = Cancelled.from_bytes(segment.remote_copy().cancel_index())
        if part is None:
            raise CorruptFile("its cancel index is missing or unreadable: open the store", path=segment.path)
        parts.append(part)
    return Cancelled.concatenate(parts)
