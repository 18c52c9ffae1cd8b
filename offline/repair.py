"""Repair of a partition that cannot be opened: a `RepairPlan` says what would be lost, then `apply`.

    a log that fails its checks    the bytes from the fault on are saved as `<name>.log.cut-<position>`, then cut.
       below the recovery point    The segment ends there for good, the next ones stay. Offsets that were lost are not
                                   given to other records: an active segment that is cut is sealed, and the next one
                                   begins after what was lost. Delivery offsets do not shift either: what was lost
                                   counts as removed, so a committed position skips nothing; it may see again as many
                                   records as were lost.
    a torn tail                    cut too, as opening the store would do, but saved
    checkpoints gone or rotten     made anew from the logs. Given up: the exact frontier, retention's log start, and
                                   where the log ended if its end is rotten too
    indexes gone or rotten         recovery makes them anew from the log; nothing is given up
    a segment in object storage    keeps its row. With `listed` (what is listed there): one whose log is broken here is
                                   read from there from now on, and nothing is cut; checkpoints are made anew with what
                                   is only there, for which they cannot do without
    frontier ahead of the clock    with `put_clock_back`: the wall clock. Given up: promise D2 (never skipped) for
                                   positions beyond it, since records may now sort in front of what was delivered

The frontier that the partitions share belongs to the store (`afterlog.offline.locked_store`): it is put back behind
theirs, and becomes the wall clock where it cannot be read.

Repair cuts and marks, and nothing else: the checkpoints that it writes know no indexes of a sealed segment that was
cut, or whose indexes are not true of it, and take all of an active segment for the tail where its indexes are not.
What they do not know recovery makes, as it does after a crash.

Order of `apply`, so that a crash anywhere in between leaves a folder that repair can be run on again: copies, the new
active segment, removal of runs, checkpoints, then the cuts; at last an ordinary recovery.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from afterlog.base.files import Files, map_file, opened, publish
from afterlog.base.names import BUCKETS, CHECKPOINTS, LOG, segment_file
from afterlog.log.checkpoints import CheckpointFile, FrontierLease
from afterlog.log.context import LogContext
from afterlog.log.recovery import open_log
from afterlog.log.segment import ActiveSegment
from afterlog.offline.repair_plan import ListedMarks, RepairPlan, RepairPlanner


def plan(context: LogContext, *, put_clock_back: bool = False, listed: ListedMarks | None = None) -> RepairPlan:
    """What would make the partition whole. Raises CorruptFile where nothing would.

    `listed`: of object storage, where it can be asked. Raises what it raises, and RemoteRefused without it.
    """
    return RepairPlanner(context, listed).plan(put_clock_back)


def apply(plan: RepairPlan) -> None:
    """Do what the plan says. Afterwards the partition opens, and `verify` finds nothing."""
    files, folder = plan.context.files, plan.context.folder
    for cut in plan.cuts:
        if cut.lost_bytes:
            publish(files, cut.copy, [map_file(files, cut.path)[cut.position :]])
    active = plan.checkpoints.active
    if not files.exists(folder / segment_file(active.base_offset, LOG)):
        ActiveSegment.create(files, folder, active.base_offset, plan.context.config.index_interval_bytes).close()
    _unlink(files, folder, plan.stale)
    CheckpointFile.create(files, folder / CHECKPOINTS, plan.checkpoints)
    kept = {mark.file(LOG) for mark in plan.checkpoints.sealed} | {segment_file(active.base_offset, LOG)}
    for cut in plan.cuts:
        if files.exists(cut.path) and cut.path.name in kept:
            _cut(files, cut.path, cut.position)
    files.sync_folder(folder)
    open_log(plan.context).close()
    if plan.clock_ms is not None:
        _put_clock_back(plan.context, plan.clock_ms)


def _cut(files: Files, path: Path, size: int) -> None:
    """A backup may have the same file under another name: that one stays as it is."""
    if files.stamp(path).names > 1:
        publish(files, path, [map_file(files, path)[:size]])
        return
    with opened(files, path) as file:
        file.truncate(size)
        file.sync()


def _unlink(files: Files, folder: Path, runs: Iterable[Path]) -> None:
    """Remove runs durably, also those that a repair removed which was killed: one that fits the old checkpoints may not
    fit the new ones, and nobody would see it."""
    for path in runs:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(path)
    for names in (folder, folder / BUCKETS):
        if files.exists(names):
            files.sync_folder(names)


def _put_clock_back(context: LogContext, clock_ms: int) -> None:
    checkpoints = CheckpointFile.open(context.files, context.folder / CHECKPOINTS)
    recovery, keys = checkpoints.current.recovery, checkpoints.current.unique_keys
    checkpoints.update(
        frontier=FrontierLease(used_ms=clock_ms, lease_ms=clock_ms),
        recovery=replace(recovery, stamp_ms=min(recovery.stamp_ms, clock_ms)),
        unique_keys=keys and keys.forgotten(),  # what was due by the clock of before may be pending again
    )
