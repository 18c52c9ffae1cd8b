"""Opening a partition: from what a crash left on disk to a log that can be appended to. Read it from top to bottom.

    checkpoints ──> sealed segments ──> active segment: scan from the recovery point, cut the torn tail, sync
                ──> runs of the sealed segments ──> runs of the active one ──> the rest into the mutable bucket

The log is the only truth. Below the recovery point a failed check is corruption: a typed error, nothing is cut. Above
it, the first entry that fails its checks begins the torn tail, which is cut and reported. Indexes that are missing,
stale or rotten are made anew from the log. Before the log is handed out everything that it holds is durable.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import numpy as np

from afterlog.errors import CorruptFile
from afterlog.files import TEMPORARY_SUFFIX, Files, opened
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries
from afterlog.index.run import Coverage, Run
from afterlog.index.run_writer import write_run
from afterlog.log import kernels
from afterlog.log.checkpoints import CheckpointFile, Checkpoints, Recovery, SealedMark
from afterlog.log.partition_log import PartitionLog, RecoveredLog
from afterlog.log.place import Place
from afterlog.log.segment import ActiveSegment, SealedSegment
from afterlog.names import (
    BUCKETS,
    CHECKPOINTS,
    DELIVER_AFTER_INDEX,
    LOG,
    SUBSCRIPTIONS,
    bucket_file,
    parse_bucket_file,
    parse_segment_file,
    segment_file,
)

logger = logging.getLogger("afterlog.recovery")


def create_log(place: Place) -> None:
    """Make the folder of a new, empty partition, durably. What an unfinished creation left there is removed."""
    files, folder = place.files, place.folder
    for path in (folder, folder / BUCKETS, folder / SUBSCRIPTIONS):
        with contextlib.suppress(FileExistsError):
            files.make_folder(path)
    for name in files.names(folder):
        if name not in (BUCKETS, SUBSCRIPTIONS):
            files.unlink(folder / name)
    ActiveSegment.create(files, folder, 0, place.config.index_interval_bytes).close()
    CheckpointFile.create(files, folder / CHECKPOINTS, Checkpoints.of_new_log())
    files.sync_folder(folder.parent)


def holds_records(files: Files, folder: Path) -> bool:
    """Whether anything was ever appended to the partition in `folder`, if it is one."""
    try:
        names = files.names(folder)
    except NotADirectoryError:
        return False
    for name in names:
        segment = parse_segment_file(name)
        if segment is not None and segment[1] == LOG:
            with opened(files, folder / name) as file:
                if segment[0] or file.size():
                    return True
    return False


def open_log(place: Place) -> PartitionLog:
    """Recover the partition in `place.folder` and open it for appends. Raises CorruptFile."""
    return PartitionLog(place, recover(place))


def recover(place: Place) -> RecoveredLog:
    """Everything that `PartitionLog` starts from."""
    files, folder, known = place.files, place.folder, _checkpoints(place)
    sealed = tuple(_sealed_segment(place, mark) for mark in known.current.sealed)
    _unlink_leftovers(files, folder, known.current)
    files.sync_folder(folder)  # a process that was killed may have left names behind that are not durable

    recovery = known.current.recovery
    active = _open_active(place, known.current)
    scan = _scan_tail(active, recovery)
    cut_bytes = _cut_torn_tail(active, scan)
    tail = _entries(scan)
    end_offset = int(tail.offset[-1] + tail.records[-1]) if len(tail) else recovery.offset
    active.sparse.add(tail.position, tail.offset + tail.records - 1, scan.max_timestamp)

    index = DelayedIndex(known.current.removed_records)
    bucket_start, stale = (recovery.offset, recovery.position), None
    if place.settings.delayed:
        for segment in sealed:
            index.replace(remove=(), add=_run_of_segment(place, segment), bucket=None)
        runs = _runs_of_active(place, active, recovery)
        if runs and runs[-1].count < place.config.min_index_count_per_bucket:
            stale = runs.pop()
            bucket_start = (stale.coverage.first_offset, stale.coverage.start_position)
        for run in runs:
            index.replace(remove=(), add=run, bucket=None)
        index.add_many(Entries.concatenate([_in_offset_order(stale), tail]))
    return RecoveredLog(
        checkpoints=known,
        sealed=sealed,
        active=active,
        end_offset=end_offset,
        index=index,
        bucket_start=bucket_start,
        stale=(stale.path,) if stale else (),
        last_stamp_ms=max(recovery.stamp_ms, int(scan.broker_timestamp.max(initial=-1))),
        cut_bytes=cut_bytes,
    )


def rebuild_run(place: Place, segment: SealedSegment | ActiveSegment, path: Path, end_offset: int, end: int) -> Run:
    """Write the run of the first `end` bytes of a segment anew from its log, and open it."""
    logger.warning("%s: missing, stale or unreadable; made anew from %s", path, segment.path)
    entries = _entries(scan_all(segment, end)).sorted()
    base_offset = segment.base_offset
    write_run(
        place.files,
        path,
        [entries],
        Coverage(base_offset, end_offset, base_offset, 0, base_offset, end),
        max_entries=place.config.max_indexes_per_bucket_snapshot_segment,
        max_step_ms=place.config.max_time_step_per_bucket_snapshot_segment_s * 1000,
    )
    return Run.open(place.files, path)


def scan_all(segment: SealedSegment | ActiveSegment, end: int) -> kernels.Scan:
    """Every entry of a segment up to the byte `end`, all checks on. Raises CorruptFile at the first that fails."""
    pieces = [piece for _, piece in segment.view(0, end)]
    data = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    scan = kernels.scan_entries(data, 0, end, segment.base_offset, True)
    if scan.fault:
        raise CorruptFile(kernels.FAULTS[scan.fault], path=segment.path, position=scan.stop)
    return scan


def _checkpoints(place: Place) -> CheckpointFile:
    return CheckpointFile.open(place.files, place.folder / CHECKPOINTS)


def _sealed_segment(place: Place, mark: SealedMark) -> SealedSegment:
    segment = SealedSegment(place.files, place.folder, mark, place.config.index_interval_bytes)
    try:
        with opened(place.files, segment.path) as file:
            size = file.size()
    except FileNotFoundError:
        raise CorruptFile("a sealed segment is gone; restore it from a copy", path=segment.path) from None
    if size != mark.log_bytes:
        raise CorruptFile(f"sealed at {mark.log_bytes} bytes, now {size}", path=segment.path)
    return segment


def _unlink_leftovers(files: Files, folder: Path, known: Checkpoints) -> None:
    """Remove what unfinished writes, rolls and retention left behind: nothing acknowledged is in these files."""
    active = known.active.base_offset
    alive = {mark.base_offset for mark in known.sealed} | {active}
    for path in (
        *map(folder.joinpath, files.names(folder)),
        *map((folder / BUCKETS).joinpath, _buckets(files, folder)),
    ):
        segment = parse_segment_file(path.name)
        if segment is not None and segment[0] > active and segment[1] == LOG:
            with opened(files, path) as file:
                if file.size():
                    raise CorruptFile("newer than the checkpoints, which were put back to an older copy", path=path)
        if path.name.endswith(TEMPORARY_SUFFIX) or (segment is not None and segment[0] not in alive):
            files.unlink(path)


def _buckets(files: Files, folder: Path) -> list[str]:
    """Names in the folder of buckets; none where the folder is gone, which costs a rebuild and nothing else."""
    try:
        return files.names(folder / BUCKETS)
    except FileNotFoundError:
        files.make_folder(folder / BUCKETS)
        return []


def _open_active(place: Place, known: Checkpoints) -> ActiveSegment:
    """The active segment with its sparse indexes as of the recovery point."""
    try:
        active = ActiveSegment(place.files, place.folder, known.active.base_offset, place.config.index_interval_bytes)
    except FileNotFoundError:
        path = place.folder / segment_file(known.active.base_offset, LOG)
        raise CorruptFile("the active segment is gone; restore it from a copy", path=path) from None
    position = known.recovery.position
    if active.size < position:
        raise CorruptFile(
            f"{position} bytes were durable, {active.size} are left", path=active.path, position=active.size
        )
    if not active.load_sparse(known.active):
        logger.warning("%s: sparse indexes missing or unreadable; made anew from the log", active.path)
        scan = scan_all(active, position)
        active.create_sparse()
        active.sparse.add(scan.position, scan.offset + scan.records - 1, scan.max_timestamp)
    return active


def _scan_tail(active: ActiveSegment, recovery: Recovery) -> kernels.Scan:
    """The entries behind the recovery point, up to the first that fails a check; positions are those in the file."""
    tail = active.tail(recovery.position)
    scan = kernels.scan_entries(tail, 0, len(tail), recovery.offset, True)
    return scan._replace(
        position=scan.position + recovery.position,
        batch_position=scan.batch_position + recovery.position,
        stop=scan.stop + recovery.position,
    )


def _cut_torn_tail(active: ActiveSegment, scan: kernels.Scan) -> int:
    """Cut what follows the last good entry, and make durable what is kept: it may be read from now on."""
    cut_bytes = active.size - scan.stop
    if cut_bytes:
        logger.warning(
            "%s: torn tail of %d bytes cut at %d (%s)",
            active.path, cut_bytes, scan.stop, kernels.FAULTS[scan.fault],
        )  # fmt: skip
        active.cut(scan.stop)
    active.sync()
    return cut_bytes


def _run_of_segment(place: Place, segment: SealedSegment) -> Run:
    path = segment.path.with_suffix(DELIVER_AFTER_INDEX)
    base_offset, end_offset, size = segment.base_offset, segment.end_offset, segment.size
    with contextlib.suppress(FileNotFoundError, CorruptFile):
        run = Run.open(place.files, path)
        if run.coverage == Coverage(base_offset, end_offset, base_offset, 0, base_offset, size):
            return run
    return rebuild_run(place, segment, path, end_offset, size)


def _runs_of_active(place: Place, active: ActiveSegment, recovery: Recovery) -> list[Run]:
    """The runs that cover the active segment up to the recovery point, in offset order; others are removed."""
    folder = place.folder / BUCKETS
    spans = {span: folder / name for name in _buckets(place.files, place.folder) if (span := parse_bucket_file(name))}
    runs: list[Run] = []
    offset, position = active.base_offset, 0
    for first, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if first == offset and end <= recovery.offset:
            with contextlib.suppress(CorruptFile):
                run = Run.open(place.files, spans[first, end])
                behind = run.coverage.end_position
                if run.coverage == Coverage(first, end, active.base_offset, position, active.base_offset, behind):
                    if run.count < place.config.min_index_count_per_bucket:
                        run.entries()  # it may be loaded: a rotten chunk must be found while it can be made anew
                    runs.append(run)
                    offset, position = end, behind
                    del spans[first, end]
    if (offset, position) != (recovery.offset, recovery.position):
        path = folder / bucket_file(active.base_offset, recovery.offset)
        runs = [rebuild_run(place, active, path, recovery.offset, recovery.position)]
        spans = {span: other for span, other in spans.items() if other != path}
    for path in spans.values():
        place.files.unlink(path)
    return runs


def _entries(scan: kernels.Scan) -> Entries:
    """What the delayed index keeps of scanned entries. One without a prefix was asked for as soon as possible."""
    return Entries(np.maximum(scan.deliver_after, 0), scan.offset, scan.position, scan.records)


def _in_offset_order(run: Run | None) -> Entries:
    if run is None:
        return Entries.empty()
    entries = run.entries()
    order = np.argsort(entries.offset)
    return Entries(
        *(column[order] for column in (entries.deliver_after, entries.offset, entries.position, entries.records))
    )
