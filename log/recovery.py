"""Opening a partition: from what a crash left on disk to a log that can be appended to. Read it from top to bottom.

    checkpoints ──> sealed segments ──> active segment: scan from the recovery point, cut the torn tail, sync
                ──> runs of the sealed segments ──> runs of the active one ──> the rest into the mutable bucket
                ──> unique keys, where anybody ever sent one: their files, and those of the tail
                ──> producers, where any ever numbered what it sent: their file, and those of the tail
                ──> origins, where anything was ever replicated: their file, and those of the tail

The log is the only truth. Below the recovery point a failed check is corruption: a typed error, nothing is cut. Above
it, the first entry that fails its checks begins the torn tail, which is cut and reported. Indexes that are missing,
stale or rotten are made anew from the log. Before the log is handed out everything that it holds is durable.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from afterlog.base.errors import CorruptFile, CorruptRemote, RemoteError
from afterlog.base.files import TEMPORARY_SUFFIX, Files, opened, publish, remove_tree
from afterlog.base.names import (
    BUCKETS,
    CANCEL_INDEX,
    CHECKPOINTS,
    DELIVER_AFTER_INDEX,
    LOG,
    OFFSET_INDEX,
    SUBSCRIPTIONS,
    TIME_INDEX,
    Span,
    bucket_key,
    is_origin_file,
    is_producer_file,
    is_unique_key_file,
    origin_file,
    parse_segment_file,
    producer_file,
    segment_file,
    unique_key_file,
)
from afterlog.index import buckets
from afterlog.index.acked_ranges import NOTHING_ACKED, AckedRanges
from afterlog.index.bucket_storage import BucketSnapshotStorage
from afterlog.index.cancel_index import Cancelled
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries
from afterlog.index.mutable_bucket import MutableBucket, Start
from afterlog.index.run import Coverage, Run
from afterlog.index.sparse import SparseIndexes
from afterlog.log.cancellation import Cancellations
from afterlog.log.checkpoints import CheckpointFile, Checkpoints, LogStart, Recovery, SealedMark
from afterlog.log.context import LogContext
from afterlog.log.facts import UNKNOWN, FileMark
from afterlog.log.origin_files import recovered_origins
from afterlog.log.partition_log import PartitionLog, RecoveredLog
from afterlog.log.producer_files import recovered_producers
from afterlog.log.run_files import runs_of_active, runs_of_sealed, spans_of
from afterlog.log.scan import Intact, read, read_segment, steps
from afterlog.log.segment import ActiveSegment, SealedSegment, Segment, load_cancelled
from afterlog.log.unique_key_files import recovered_keys
from afterlog.log.version import End, Version

logger = logging.getLogger("afterlog.recovery")


def create_log(context: LogContext, content: Checkpoints | None = None, *, sync_name: bool = True) -> None:
    """Make the folder of a new, empty partition, durably. What an unfinished creation left there is removed.

    content: what it begins with that is in object storage, and the offset behind it. Who makes several leaves out
    `sync_name`, and syncs the store's folder once.
    """
    files, folder = context.files, context.folder
    content = replace(content or Checkpoints.of_new_log(), topic_id=context.settings.topic_id)
    with contextlib.suppress(FileExistsError):
        files.make_folder(folder)
    for name in files.names(folder):
        if name in (BUCKETS, SUBSCRIPTIONS):
            remove_tree(files, folder / name)
        else:
            files.unlink(folder / name)
    for name in (BUCKETS, SUBSCRIPTIONS):
        files.make_folder(folder / name)
    for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
        files.create(folder / segment_file(content.active.base_offset, suffix)).close()
    CheckpointFile.create(files, folder / CHECKPOINTS, content)
    if sync_name:
        files.sync_folder(folder.parent)


def holds_records(files: Files, folder: Path) -> bool:
    """Whether anything was ever appended to the partition in `folder`, if it is one."""
    return any(base_offset or size for base_offset, size in _logs(files, folder))


def holds_bytes(files: Files, folder: Path) -> bool:
    """Whether there are records in the folder itself: not only in object storage, of which it knows."""
    return any(size for _, size in _logs(files, folder))


def _logs(files: Files, folder: Path) -> Iterator[tuple[int, int]]:
    """Base offset and size of each log in a folder, if it is one."""
    try:
        names = files.names(folder)
    except NotADirectoryError:
        return
    for name in names:
        segment = parse_segment_file(name)
        if segment is not None and segment.suffix == LOG:
            with opened(files, folder / name) as file:
                yield segment.base_offset, file.size()


def open_log(context: LogContext, *, new: bool = False) -> PartitionLog:
    """Recover the partition in `context.folder` and open it for appends. Raises CorruptFile.

    new: `create_log` has just made it, so that all that is there is durable and needed.
    """
    return PartitionLog(context, recover(context, new=new), recover)


def recover(context: LogContext, checkpoints: CheckpointFile | None = None, *, new: bool = False) -> RecoveredLog:
    """Everything that `PartitionLog` starts from. `checkpoints`: those of a log that begins anew, read again."""
    files, folder = context.files, context.folder
    if checkpoints is None:
        checkpoints = CheckpointFile.open(files, folder / CHECKPOINTS)
    else:
        checkpoints.reload()
    known = checkpoints.current
    if context.settings.topic_id not in (None, known.topic_id):
        raise CorruptFile("these files are an earlier topic's of that name", path=folder / CHECKPOINTS)
    sealed = tuple(_sealed_segment(context, mark) for mark in known.sealed)
    if not new:
        _sync_names(files, folder)
        _unlink_leftovers(files, folder, known)
    sealed = _with_indexes(context, checkpoints, sealed)

    active = _open_active(context, known)
    tail = _read_tail(active, known.recovery)
    cut_bytes = _cut_torn_tail(active, tail)
    end = End(tail.end_offset, active.size)
    tail.index(active.sparse)
    active.add_cancelled(tail.cancelled)
    cancelled = [_cancelled(context, segment, segment.size, segment.mark.cancel_index) for segment in sealed]
    cancelled.append(_cancelled(context, active, known.recovery.position, known.active.cancel_index))

    index = _open_index(context, known, {each.base_offset: each for each in sealed}, active, tail.entries)
    all_cancelled = Cancelled.concatenate([*cancelled, tail.cancelled])

    version = Version(
        sealed=sealed,
        active=active,
        delayed_index=index,
        log_start=known.log_start,
        cancellations=Cancellations.of(all_cancelled, known.log_start.key, index.acked),
        written=end,
        visible=end,
        unique_keys=recovered_keys(context, checkpoints, sealed, active),
        producers=recovered_producers(context, checkpoints, sealed, active, tail.producers),
        origins=recovered_origins(context, checkpoints, sealed, active, tail.origins),
    )
    active.rest()
    return RecoveredLog(
        checkpoints=checkpoints,
        version=version,
        last_stamp_ms=max(known.recovery.stamp_ms, tail.stamp_ms),
        cut_bytes=cut_bytes,
    )


def _sealed_segment(context: LogContext, mark: SealedMark) -> SealedSegment:
    interval_bytes, limit = context.config.index_interval_bytes, context.foreign_bytes_max
    segment = SealedSegment(
        context.files, context.folder, mark, interval_bytes, context.remote, foreign_bytes_max=limit
    )
    if not mark.local:
        return segment
    try:
        with opened(context.files, segment.path) as file:
            size = file.size()
    except FileNotFoundError:
        raise CorruptFile("a sealed segment is gone; restore it from a copy", path=segment.path) from None
    if size != mark.log_bytes:
        raise CorruptFile(f"sealed at {mark.log_bytes} bytes, now {size}", path=segment.path)
    return segment


def _sync_names(files: Files, folder: Path) -> None:
    """Make durable what is found: a process that was killed may have left names behind that are not.

    First of all: what is removed on the word of a name must not be gone where a power cut takes the name back.
    """
    if not files.exists(folder / BUCKETS):
        files.make_folder(folder / BUCKETS)  # that it was gone costs a rebuild, and nothing else
    for names in (folder, folder / BUCKETS):
        files.sync_folder(names)


def _unlink_leftovers(files: Files, folder: Path, known: Checkpoints) -> None:
    """Remove what unfinished writes, rolls, cleanings and retention left behind.

    Nothing acknowledged is only in these files.
    """
    active = known.active.base_offset
    alive = {(mark.base_offset, mark.generation) for mark in known.sealed} | {(active, 0)}
    remote = {(mark.base_offset, mark.generation) for mark in known.sealed if not mark.local}
    tables = {unique_key_file(mark.first, mark.end) for mark in known.unique_keys.files} if known.unique_keys else set()
    if known.producers is not None and known.producers.file is not None:
        tables.add(producer_file(known.producers.file.offset))
    if known.origins is not None and known.origins.file is not None:
        tables.add(origin_file(known.origins.file.offset))
    for name in files.names(folder):
        segment = parse_segment_file(name)
        if segment is not None and segment.base_offset > active and segment.suffix == LOG:
            path = folder / name
            with opened(files, path) as file:
                if file.size():
                    raise CorruptFile("newer than the checkpoints, which were put back to an older copy", path=path)
        held = None if segment is None else (segment.base_offset, segment.generation)
        unneeded = segment is not None and (held not in alive or (held in remote and segment.suffix != CANCEL_INDEX))
        is_table = is_unique_key_file(name) or is_producer_file(name) or is_origin_file(name)
        if unneeded or name.endswith(TEMPORARY_SUFFIX) or (is_table and name not in tables):
            files.unlink(folder / name)
    for name in files.names(folder / BUCKETS):
        if name.endswith(TEMPORARY_SUFFIX):
            files.unlink(folder / BUCKETS / name)


def _with_indexes(
    context: LogContext, checkpoints: CheckpointFile, sealed: tuple[SealedSegment, ...]
) -> tuple[SealedSegment, ...]:
    """The segments with indexes of those whose marks do not know any: repair leaves it to us to make them anew."""
    if all(segment.mark.index != UNKNOWN for segment in sealed):
        return sealed
    sealed = tuple(_indexed(context, segment) if segment.mark.index == UNKNOWN else segment for segment in sealed)
    checkpoints.update(sealed=tuple(segment.mark for segment in sealed))
    return sealed


def _indexed(context: LogContext, segment: SealedSegment) -> SealedSegment:
    log = read_segment(segment, segment.size)
    sparse = log.index(SparseIndexes(segment.base_offset, context.config.index_interval_bytes))
    sparse.finish()
    contents = [*sparse.to_bytes(), log.cancelled.to_bytes()]
    for suffix, content in zip((OFFSET_INDEX, TIME_INDEX, CANCEL_INDEX), contents, strict=True):
        if content or suffix != CANCEL_INDEX:
            publish(context.files, segment.path.with_suffix(suffix), [content])
    index, time_index, cancel_index = map(FileMark.of, contents)
    return segment.marked(replace(segment.mark, index=index, time_index=time_index, cancel_index=cancel_index))


def _open_active(context: LogContext, known: Checkpoints) -> ActiveSegment:
    """The active segment with its sparse indexes as of the recovery point."""
    try:
        active = ActiveSegment(
            context.files, context.folder, known.active.base_offset, context.config.index_interval_bytes
        )
    except FileNotFoundError:
        path = context.folder / segment_file(known.active.base_offset, LOG)
        raise CorruptFile("the active segment is gone; restore it from a copy", path=path) from None
    position = known.recovery.position
    if active.size < position:
        raise CorruptFile(
            f"{position} bytes were durable, {active.size} are left", path=active.path, position=active.size
        )
    if not active.load_sparse(known.active):
        logger.warning("%s: sparse indexes missing or unreadable; made anew from the log", active.path)
        found = read_segment(active, position)
        active.create_sparse()
        found.index(active.sparse)
    return active


def _read_tail(active: ActiveSegment, recovery: Recovery) -> Intact:
    """The entries after the recovery point, up to the first that fails a check."""
    start, data = recovery.position, active.tail(recovery.position)
    taken = steps([(start, data)], start, active.size, recovery.offset)
    return read(active.path, recovery.offset, taken, start=start, size=active.size)


def _cancelled(context: LogContext, segment: Segment, end: int, saved: tuple[int, int]) -> Cancelled:
    """The cancel index of the first `end` bytes of a segment; made anew where it is not as saved."""
    cancelled = load_cancelled(context.files, segment.path, saved)
    if cancelled is None:
        path = segment.path.with_suffix(CANCEL_INDEX)
        if isinstance(segment, SealedSegment) and not segment.mark.local:
            logger.info("%s: fetched from object storage", path)
            cancelled = _fetched_cancelled(segment, path)
        else:
            logger.warning("%s: missing or unreadable; made anew", path)
            cancelled = read_segment(segment, end).cancelled
        publish(context.files, path, [cancelled.to_bytes()])
    return cancelled


def _fetched_cancelled(segment: SealedSegment, path: Path) -> Cancelled:
    """The cancel index of a segment in object storage. CorruptRemote where it cannot be this segment's."""
    try:
        cancelled = Cancelled.from_bytes(segment.remote_copy().cancel_index())
    except ValueError as error:
        raise CorruptRemote(str(error), path=path.name) from error
    if len(cancelled) and not segment.base_offset <= cancelled.control[0] <= cancelled.control[-1] < segment.end_offset:
        raise CorruptRemote("it tells of control batches in other segments", path=path.name)
    return cancelled


def _cut_torn_tail(active: ActiveSegment, tail: Intact) -> int:
    """Cut what follows the last good entry, and make durable what is kept: it may be read from now on."""
    cut_bytes = active.size - tail.stop
    if cut_bytes:
        logger.warning("%s: torn tail of %d bytes cut at %d (%s)", active.path, cut_bytes, tail.stop, tail.fault)
        active.cut(tail.stop)
    if active.size or cut_bytes:
        active.sync()
    return cut_bytes


def _open_index(
    context: LogContext,
    known: Checkpoints,
    sealed: Mapping[int, SealedSegment],
    active: ActiveSegment,
    tail: Entries,
) -> DelayedIndex:
    """The runs, made anew where they are missing or wrong, with the tail in the mutable bucket."""
    if not context.settings.delayed:
        return DelayedIndex()
    index = _assembled(context, known, sealed, active, tail)
    if not _complete(index, known.log_start):
        logger.warning("%s: the runs do not hold what the log does; all of them made anew", context.folder)
        _delete_runs(context, kept=())
        index = _assembled(context, known, sealed, active, tail)
    return index


def _assembled(
    context: LogContext,
    known: Checkpoints,
    sealed: Mapping[int, SealedSegment],
    active: ActiveSegment,
    tail: Entries,
) -> DelayedIndex:
    storage, spans = context.bucket_storage(mending=True), spans_of(context.files.names(context.folder / BUCKETS))
    found = runs_of_sealed(storage.open, spans, known)
    runs = [group.run for group in found.groups if group.run is not None]
    runs += [run for parts in found.parts.values() for run in parts]
    for mark in (mark for mark in found.missing if mark not in found.parts):
        segment, key = sealed[mark.base_offset], mark.file(DELIVER_AFTER_INDEX)
        remote = None if mark.local else segment.remote_copy().run()
        runs.append(remote or _rebuilt(storage, key, segment, mark.end_offset, mark.log_bytes))
    runs_of_this = _runs_of_active(context, storage, spans, known, active)
    _delete_runs(context, kept=[run.key for run in (*runs, *runs_of_this)])

    start, stale = Start(known.recovery.segment, known.recovery.position, known.recovery.offset), None
    if runs_of_this and runs_of_this[-1].count < context.config.min_index_count_per_bucket:
        stale = runs_of_this.pop()
        start = Start(start.segment, stale.coverage.start_position, stale.coverage.first_offset)
    runs += runs_of_this
    bucket = MutableBucket(start, stale=() if stale is None else (stale.key,))
    bucket.add_many(Entries.concatenate([_in_offset_order(stale), tail]))
    end_offset = int(tail.offset[-1] + tail.records[-1]) if len(tail) else known.recovery.offset
    removed_records = end_offset - sum(run.records for run in runs) - bucket.records
    acked = AckedRanges(known.acked) if known.acked else NOTHING_ACKED
    index = DelayedIndex.of(runs, bucket, removed_records, known.cleanings, acked)
    needed = buckets.without(index, known.log_start.key)
    for run in index.runs:
        if run not in needed.runs and not run.remote:
            storage.delete(run.key)
    return needed


def _complete(index: DelayedIndex, log_start: LogStart) -> bool:
    """Whether the index holds every record after the log start: an intact file may still be a wrong one.

    What of that lies in object storage, and cannot be had, or not as it was put, says so when it is read.
    """
    try:
        return index.rank(log_start.key) == log_start.delivery_offset
    except RemoteError:
        return True
    except CorruptFile:
        return False


def _runs_of_active(
    context: LogContext, storage: BucketSnapshotStorage, spans: list[Span], known: Checkpoints, active: ActiveSegment
) -> list[Run]:
    """The runs that cover the active segment up to the recovery point, in offset order."""
    recovery = known.recovery
    with contextlib.suppress(CorruptFile):
        runs = runs_of_active(storage.open, spans, known)
        if runs and runs[-1].count < context.config.min_index_count_per_bucket:
            runs[-1].entries()  # it will be loaded: a rotten chunk must be found while it can be made anew
        if runs or not recovery.position:
            return runs
    key = bucket_key(active.base_offset, recovery.offset)
    return [_rebuilt(storage, key, active, recovery.offset, recovery.position)]


def _rebuilt(storage: BucketSnapshotStorage, key: str, segment: Segment, end_offset: int, end: int) -> Run:
    """The run of the first `end` bytes of a segment, made anew from its log."""
    logger.warning("%s: its run %s is missing, stale or unreadable; made anew from the log", segment.path, key)
    entries = read_segment(segment, end).entries.sorted()
    base_offset = segment.base_offset
    return storage.create(key, [entries], Coverage(base_offset, end_offset, base_offset, 0, base_offset, end))


def _delete_runs(context: LogContext, kept: Collection[str]) -> None:
    """Delete the stored runs but for some."""
    names = [name for name in context.files.names(context.folder) if name.endswith(DELIVER_AFTER_INDEX)]
    names += [f"{BUCKETS}/{name}" for name in context.files.names(context.folder / BUCKETS)]
    for name in names:
        if name not in kept:
            context.files.unlink(context.folder / name)


def _in_offset_order(run: Run | None) -> Entries:
    if run is None:
        return Entries.empty()
    entries = run.entries()
    return entries.take(np.argsort(entries.offset))
