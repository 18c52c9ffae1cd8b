"""Making the indexes of one segment that nobody appends to, from its log alone: .index, .timeindex, .deliverafterindex.

    .log ── scan, every check on ──> entries ──┬── sparse indexes ──> .index, .timeindex
                                               └── sorted by due time ──> .deliverafterindex, last

One function, which a process calls for one segment and Spark for thousands: `index_segment`. It does again only what
has to be done again, so any number of attempts may run, also at the same time:

    built       an index was missing or not valid, and is made anew
    skipped     all are there and valid by what can be told without reading the log; or `reason` says why there are none
    verified    with `verify_only`: the log was read, and every index says what it says, be it a Kafka broker's own,
                which has entries for other batches. Nothing is written
    corrupt     the log, or with `verify_only` an index, is not as it was written: `path`, `position`, `reason`

Each file is published by rename, from a temporary name that no other attempt has, the run last; their names become
durable together, with one sync of the folder. So after a power cut any of them may be there, each of them whole, and
what is not is made by the next attempt. A sealed segment of a store is held against the store's checkpoints,
where the CRCs of its indexes are; a Kafka broker's segment against its size.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from afterlog.base.clock import Clock
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile
from afterlog.base.files import File, Files, publishing, read_file, temporary_path
from afterlog.base.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, OFFSET_INDEX, TIME_INDEX
from afterlog.index.entries import Entries
from afterlog.index.offset_index import OffsetIndex
from afterlog.index.run import Coverage, Run
from afterlog.index.run_writer import RunWriter
from afterlog.index.sparse import SparseIndexes
from afterlog.index.time_index import TimeIndex
from afterlog.log.facts import NO_FILE, FileMark, SegmentFacts
from afterlog.log.kafka_segment import read_segment
from afterlog.log.kafka_transactions import Fate, later_logs
from afterlog.log.scan import GONE, Intact, read_log

Action = Literal["built", "verified", "skipped", "corrupt"]
EMPTY = "it has no batches"
UNSEEN = "nothing in it is for readers: markers, and transactions that were aborted or never ended"
_SPARSE = (OFFSET_INDEX, TIME_INDEX)
_ABANDONED = re.compile(r"[0-9]{20}\.[a-z]+\.[0-9a-f]{32}\.tmp\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToIndex:
    """A segment, and what is known of it without reading its log."""

    topic: str
    partition: int
    base_offset: int
    path: Path
    """Of its .log."""
    log_bytes: int
    mark: SegmentFacts | None = None
    """What a store's checkpoints say; None: the segment is a Kafka broker's."""
    delayed: bool = True
    """Of the topic: a FIFO topic has no runs."""
    has_run: bool = True
    """It has, or should have, a run of its own: not in a FIFO topic, nor where a bucket of several holds it."""
    tiered: bool = False
    """The store itself has the topic in object storage (`remote_storage_enable`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSegment:
    """What came of a segment."""

    topic: str
    partition: int
    base_offset: int
    action: Action
    entries: int | None = None
    records: int | None = None
    min_due: int | None = None
    """Of the entries' effective deliver_after, ms. None where the log was not read and no run of its own tells."""
    max_due: int | None = None
    bytes: int
    seconds: float
    path: str | None = None
    position: int | None = None
    reason: str | None = None
    control_batches: int | None = None
    """Of a Kafka broker's log, what the index leaves out: control batches, and those of transactions that were aborted,
    or had not ended when the log did. None where the log was not read."""
    aborted_batches: int | None = None
    uncommitted_batches: int | None = None


def index_segment(
    files: Files,
    segment: SegmentToIndex,
    config: Config,
    clock: Clock,
    *,
    attempt: str,
    verify_only: bool = False,
    following: Iterable[Path] | None = None,
) -> IndexedSegment:
    """Build the indexes that are missing or not valid, or verify them all.

    following: of a Kafka broker's segment the logs behind it, in order, read as far as transactions reach that are open
    at its end; those in its folder, by default.
    `config`: of the store, for chunk sizes and `index_interval_bytes`. `attempt`: an `unused_name`. What is corrupt is
    told, not raised. StorageFull, and OSError; FileNotFoundError where somebody swept the attempt away.
    """
    start_s = clock.monotonic_s()
    if following is None:
        following = later_logs(files, segment.path, segment.base_offset)
    try:
        if verify_only:
            outcome = _verified(files, segment, config, following)
        else:
            outcome = _built(files, segment, config, attempt, following)
    except CorruptFile as found:
        outcome = _Indexed("corrupt", error=found)
    summary, error = outcome.summary, outcome.error
    return IndexedSegment(
        topic=segment.topic,
        partition=segment.partition,
        base_offset=segment.base_offset,
        action=outcome.action,
        entries=summary.entries if summary else None,
        records=summary.records if summary else None,
        min_due=summary.min_due if summary else None,
        max_due=summary.max_due if summary else None,
        bytes=segment.log_bytes,
        seconds=clock.monotonic_s() - start_s,
        path=str(error.path) if error else None,
        position=error.position if error else None,
        reason=error.message if error else outcome.reason,
        control_batches=outcome.left_out.get(Fate.CONTROL),
        aborted_batches=outcome.left_out.get(Fate.ABORTED),
        uncommitted_batches=outcome.left_out.get(Fate.UNCOMMITTED),
    )


def is_indexed(files: Files, segment: SegmentToIndex, config: Config) -> bool:
    """Whether all indexes are there and valid by what can be told without the log, which need not be there."""
    return (not segment.has_run or _valid_run(files, segment) is not None) and _sparse_valid(files, segment, config)


@contextlib.contextmanager
def whole_run(files: Files, segment: SegmentToIndex, config: Config, *, attempt: str) -> Iterator[Path]:
    """A file with the run of just this segment, every byte of it checked: for who takes it elsewhere.

    Its own, where that is there and intact. Else, as where a bucket of several segments holds it, one is made from the
    log, under a temporary name and for the time of the block. CorruptFile: the log is not as it was written.
    """
    run = _valid_run(files, segment)
    if run is not None and _passes(run):
        yield run.path
        return
    path = temporary_path(segment.path.with_suffix(DELIVER_AFTER_INDEX), attempt)
    found = _read(files, segment, config)
    file = files.create(path)
    try:
        with contextlib.closing(file):
            _write_run(file, segment, found, config)
        del found  # what is done in the block may take long
        yield path
    finally:
        with contextlib.suppress(OSError):  # it may have been swept, and is if it is left
            files.unlink(path)


def mend_sparse(files: Files, segment: SegmentToIndex, config: Config, *, attempt: str) -> None:
    """Make .index and .timeindex anew where they are not valid. CorruptFile: the log is not as it was written."""
    _built(files, replace(segment, has_run=False), config, attempt)


def index_cleaned(
    files: Files, path: Path, base_offset: int, generation: int, config: Config
) -> tuple[SegmentFacts, Entries]:
    """The indexes beside a log that a cleaning wrote, but for the run: what is known of the segment, and its entries.

    The log is read back with every check, and the entries are in its order. CorruptFile, StorageFull.
    """
    log = read_log(files, path, base_offset).whole()
    sparse = log.index(SparseIndexes(base_offset, config.index_interval_bytes))
    sparse.finish()
    marks = list[FileMark]()
    contents = (*sparse.to_bytes(), log.cancelled.to_bytes())
    for suffix, content in zip((OFFSET_INDEX, TIME_INDEX, CANCEL_INDEX), contents, strict=True):
        if suffix == CANCEL_INDEX and not content:
            marks.append(NO_FILE)
            continue
        with publishing(files, path.with_suffix(suffix), sync_name=False) as file:
            file.append([content])
        marks.append(FileMark.of(content))
    index, time_index, cancel_index = marks
    facts = SegmentFacts(
        base_offset=base_offset,
        end_offset=log.end_offset,
        log_bytes=log.size,
        max_deliver_after=int(log.entries.deliver_after.max()),
        max_timestamp=int(log.max_timestamp.max()),
        index=index,
        time_index=time_index,
        cancel_index=cancel_index,
        generation=generation,
        held_records=int(log.entries.records.sum()),
    )
    return facts, log.entries


def abandoned(names: Iterable[str]) -> list[str]:
    """Temporary files that killed attempts left, among the names in a folder."""
    return [name for name in names if _ABANDONED.match(name)]


class _Summary(NamedTuple):
    entries: int
    records: int
    min_due: int
    max_due: int

    @staticmethod
    def of_run(run: Run) -> _Summary:
        return _Summary(run.count, run.records, run.first_key.deliver_after, run.last_key.deliver_after)

    @staticmethod
    def of_entries(entries: Entries) -> _Summary | None:
        due = entries.deliver_after
        return _Summary(len(due), int(entries.records.sum()), int(due.min()), int(due.max())) if len(due) else None


class _Indexed(NamedTuple):
    action: Action
    summary: _Summary | None = None
    error: CorruptFile | None = None
    reason: str | None = None
    left_out: Mapping[Fate, int] = {}
    """Of a Kafka broker's log that was read: how many batches, by their fates."""


def _left_out(found: Intact) -> Mapping[Fate, int]:
    fates = found.fates
    return {} if fates is None else {fate: int((fates == fate).sum()) for fate in Fate}


def _built(
    files: Files, segment: SegmentToIndex, config: Config, attempt: str, following: Iterable[Path] = ()
) -> _Indexed:
    run = _valid_run(files, segment) if segment.has_run else None
    if (run or not segment.has_run) and _sparse_valid(files, segment, config):
        return _Indexed("skipped", _Summary.of_run(run) if run else None)
    found = _read(files, segment, config, following)
    if not len(found.shown):
        return _nothing(found)
    for suffix, content in zip(_SPARSE, _sparse(found, config), strict=True):
        _publish_sparse(files, segment, suffix, content, attempt)
    if segment.has_run and not run:
        _publish_run(files, segment, found, config, attempt)
    files.sync_folder(segment.path.parent)
    return _Indexed("built", _Summary.of_entries(found.shown), left_out=_left_out(found))


def _nothing(found: Intact) -> _Indexed:
    """There is nothing to index: a run holds at least one entry."""
    return _Indexed("skipped", reason=UNSEEN if len(found.entries) else EMPTY, left_out=_left_out(found))


def _verified(files: Files, segment: SegmentToIndex, config: Config, following: Iterable[Path]) -> _Indexed:
    found = _read(files, segment, config, following)
    if not len(found.shown):
        return _nothing(found)
    if segment.mark is None:
        _verify_sparse(files, segment, found)
    else:
        for suffix, content in zip(_SPARSE, _sparse(found, config), strict=True):
            path = segment.path.with_suffix(suffix)
            if _content(files, path) != content:
                raise CorruptFile("not what the log says", path=path)
    if segment.has_run:
        _verify_run(files, segment, found)
    return _Indexed("verified", _Summary.of_entries(found.shown), left_out=_left_out(found))


def _read(files: Files, segment: SegmentToIndex, config: Config, following: Iterable[Path] = ()) -> Intact:
    """The segment's entries, all of them. CorruptFile."""
    mark, path, base_offset = segment.mark, segment.path, segment.base_offset
    try:
        if mark is not None:
            found = read_log(files, path, base_offset, end=mark.log_bytes)
        else:
            limit_bytes = config.decompressed_bytes_max
            found = read_segment(files, path, base_offset, limit_bytes=limit_bytes, following=following)
    except FileNotFoundError:
        raise CorruptFile(GONE, path=path) from None
    found.whole()
    if mark is not None and (found.size, found.end_offset) != (mark.log_bytes, mark.end_offset):
        raise CorruptFile(
            f"sealed at {mark.log_bytes} bytes and offset {mark.end_offset}, now {found.size} and {found.end_offset}",
            path=path,
        )
    return found


def _sparse(found: Intact, config: Config) -> tuple[bytes, bytes]:
    """The contents of .index and .timeindex."""
    try:
        sparse = found.index(SparseIndexes(found.base_offset, config.index_interval_bytes))
    except ValueError as error:  # offsets of a foreign log may leave any gap
        raise CorruptFile(f"no index holds its offsets: {error}", path=found.path) from error
    sparse.finish()
    return sparse.to_bytes()


def _sparse_valid(files: Files, segment: SegmentToIndex, config: Config) -> bool:
    """Whether both are as the checkpoints say; without these, whether both are there and can be what they should."""
    contents = [_content(files, segment.path.with_suffix(suffix)) for suffix in _SPARSE]
    offsets, times = contents
    if offsets is None or times is None:
        return False
    if segment.mark is not None:
        return (FileMark.of(offsets), FileMark.of(times)) == (segment.mark.index, segment.mark.time_index)
    try:
        SparseIndexes.from_bytes(offsets, times, segment.base_offset, config.index_interval_bytes)
    except ValueError:
        return False
    return True


def _publish_sparse(files: Files, segment: SegmentToIndex, suffix: str, content: bytes, attempt: str) -> None:
    path = segment.path.with_suffix(suffix)
    mark = segment.mark
    if mark is not None and FileMark.of(content) != mark.indexes[suffix]:
        raise CorruptFile("the log does not give the index of the checkpoints: other index_interval_bytes?", path=path)
    if _content(files, path) != content:
        with publishing(files, path, attempt, sync_name=False) as file:
            file.append([content])


def _coverage(segment: SegmentToIndex, end_offset: int) -> Coverage:
    base = segment.base_offset
    return Coverage(base, end_offset, base, 0, base, segment.log_bytes)


def _valid_run(files: Files, segment: SegmentToIndex) -> Run | None:
    """The run, if there is one of the whole log, by its metadata alone."""
    with contextlib.suppress(FileNotFoundError, CorruptFile):
        run = Run.open(files, segment.path.with_suffix(DELIVER_AFTER_INDEX))
        end_offset = run.coverage.end_offset if segment.mark is None else segment.mark.end_offset
        if run.coverage == _coverage(segment, end_offset):
            return run
    return None


def _publish_run(files: Files, segment: SegmentToIndex, found: Intact, config: Config, attempt: str) -> None:
    with publishing(files, segment.path.with_suffix(DELIVER_AFTER_INDEX), attempt, sync_name=False) as file:
        _write_run(file, segment, found, config)


def _write_run(file: File, segment: SegmentToIndex, found: Intact, config: Config) -> None:
    writer = RunWriter(
        file,
        _coverage(segment, found.end_offset),
        max_entries=config.max_indexes_per_bucket_snapshot_segment,
        max_step_ms=config.max_time_step_per_bucket_snapshot_segment_s * 1000,
    )
    writer.add(found.shown.sorted())
    writer.finish()


def _passes(run: Run) -> bool:
    try:
        run.check()
    except CorruptFile:
        return False
    return True


def _verify_sparse(files: Files, segment: SegmentToIndex, found: Intact) -> None:
    """Of a Kafka broker, which indexes other batches than we would: each entry must be true. CorruptFile."""
    entries = found.entries
    last_offsets = entries.offset + entries.records - 1
    for suffix in _SPARSE:
        path = segment.path.with_suffix(suffix)
        content = _content(files, path)
        if content is None:
            raise CorruptFile(GONE, path=path)
        try:
            if suffix == OFFSET_INDEX:
                index = OffsetIndex.from_bytes(_written(content, 8), found.base_offset, 1)
                index.check_against(entries.position, entries.offset, last_offsets)
            else:
                times = TimeIndex.from_bytes(_written(content, 12), found.base_offset)
                times.check_against(found.max_timestamp, entries.offset, last_offsets)
        except ValueError as error:
            raise CorruptFile(f"not what the log says: {error}", path=path) from None


def _written(content: bytes, entry_bytes: int) -> bytes:
    """Without the zeros that a broker preallocates: it cuts them off when it rolls, and not when it is killed."""
    kept = len(content.rstrip(b"\0"))
    return content[: -(-kept // entry_bytes) * entry_bytes] if content.endswith(bytes(entry_bytes)) else content


def _verify_run(files: Files, segment: SegmentToIndex, found: Intact) -> None:
    path = segment.path.with_suffix(DELIVER_AFTER_INDEX)
    try:
        run = Run.open(files, path)
    except FileNotFoundError:
        raise CorruptFile(GONE, path=path) from None
    if run.coverage != _coverage(segment, found.end_offset):
        raise CorruptFile("covers another part of the log than it should", path=path)
    run.check()
    stored, expected = run.entries(), found.shown.sorted()
    for name in ("deliver_after", "offset", "position", "records"):
        if not np.array_equal(getattr(stored, name), getattr(expected, name)):
            raise CorruptFile(f"an entry's {name} is not what the log says", path=path)


def _content(files: Files, path: Path) -> bytes | None:
    try:
        return read_file(files, path)
    except FileNotFoundError:
        return None
