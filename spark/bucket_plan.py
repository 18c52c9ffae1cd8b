"""The part of the bucket job that needs no Spark: which runs make which bucket, where to cut, how parts are joined.

    checkpoints, runs ── find_runs ──> runs, in offset order ── plan ──> groups of adjacent ones, a bucket each
    parts, each a run of a stretch of delivery order ── publish ──> buckets/<first>-<end>.deliverafterindex

A bucket is what the store's own merge would make of the same runs, the same file but for the ends of some chunks: all
that looks for runs finds it by its name, takes it as the largest, and leaves those that it covers.

A part is a run file, too, under a temporary name beside the bucket: it covers what the bucket will cover, and holds
what one task was given. Its own checksums tell that it came whole from another machine. Whatever is left of an attempt
has a temporary name, and goes with the next job or when the store is opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile, UnknownTopic
from afterlog.base.files import TEMPORARY_SUFFIX, File, Files, publishing, unused_name
from afterlog.base.names import (
    BUCKETS,
    CHECKPOINTS,
    DELIVER_AFTER_INDEX,
    bucket_key,
    parse_bucket_file,
    partition_folder,
)
from afterlog.index.entries import Entries, Key
from afterlog.index.run import Coverage, Run
from afterlog.index.run_writer import RunWriter
from afterlog.log.checkpoints import CheckpointFile, SealedMark
from afterlog.log.run_files import runs_of_sealed, spans_of
from afterlog.log.topics_document import read_topics

OFFSETS_MAX = 2**32
"""A run has its offsets relative to its first one, in 32 bits."""
NO_RUN = "it has no run: open the store, or run the index job"
REMOTE = "it is in object storage, with a run of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRun:
    """A stored run of sealed segments, by its metadata; or a segment that has none here but needs one."""

    topic: str
    partition: int
    folder: Path
    """Of the partition."""
    path: Path
    coverage: Coverage
    after: Key
    """The log start: entries up to this key are left out."""
    cleanings: int = 0
    """Of the partition, so far: the bucket's name says of which it knows."""
    entries: int = 0
    records: int = 0
    """After the log start: known once it was read through."""
    obstacle: CorruptFile | str | None = None
    """Why it cannot be merged. Runs on both sides of it are not adjacent."""


def find_runs(files: Files, store: Path, topics: Collection[str] | None = None) -> list[SourceRun]:
    """The runs of the sealed segments of a store's delayed topics, by topic, partition and offset.

    UnknownTopic, CorruptFile where a document is.
    """
    known = read_topics(files, store)
    found: list[SourceRun] = []
    for topic in sorted(known if topics is None else topics):
        if topic not in known:
            raise UnknownTopic(f"no topic {topic!r} in {store}")
        for partition in range(known[topic].partitions if known[topic].delayed else 0):
            found += _runs_of(files, store / partition_folder(topic, partition), topic, partition)
    return found


def _runs_of(files: Files, folder: Path, topic: str, partition: int) -> Iterator[SourceRun]:
    known = CheckpointFile.open(files, folder / CHECKPOINTS).current
    spans = spans_of(_bucket_names(files, folder))
    sealed = runs_of_sealed(lambda key: Run.open(files, folder / key), spans, known)
    for run, segments in sealed.groups:
        mark, obstacle = segments[0], None
        path = folder / mark.file(DELIVER_AFTER_INDEX) if run is None else run.path
        if run is None:
            if mark not in sealed.missing:  # all that it holds is out of reach
                continue
            obstacle = _fault_at(mark, path, sealed.faults) or (NO_RUN if mark.local else REMOTE)
        yield SourceRun(
            topic=topic,
            partition=partition,
            folder=folder,
            path=path,
            coverage=run.coverage if run else mark.coverage,
            after=known.log_start.key,
            cleanings=known.cleanings,
            entries=run.count if run else 0,
            obstacle=obstacle,
        )


def _fault_at(mark: SealedMark, path: Path, faults: Iterable[CorruptFile]) -> CorruptFile | None:
    """What is wrong with the run of a segment at `path`, or with a bucket that should hold it."""
    for fault in faults:
        first, end, _ = parse_bucket_file(fault.path.name) or (-1, -1, 0)
        if fault.path == path or first <= mark.base_offset < end:
            return fault
    return None


def plan(sources: Iterable[SourceRun], offsets_max: int = OFFSETS_MAX) -> list[list[SourceRun]]:
    """The runs in groups of which each becomes a bucket: adjacent, and of no more than `offsets_max` offsets, if
    there are two. One with an obstacle is a group of its own.
    """
    groups: list[list[SourceRun]] = []
    for source in sources:
        if groups and _goes_with(groups[-1], source, offsets_max):
            groups[-1].append(source)
        else:
            groups.append([source])
    return groups


def _goes_with(group: Sequence[SourceRun], source: SourceRun, offsets_max: int) -> bool:
    return (
        group[0].folder == source.folder
        and group[0].obstacle is source.obstacle is None
        and source.coverage.end_offset - group[0].coverage.first_offset <= offsets_max
    )


def coverage_of(group: Sequence[SourceRun]) -> Coverage:
    """What a bucket of these runs covers."""
    first, last = group[0].coverage, group[-1].coverage
    return Coverage(
        first.first_offset,
        last.end_offset,
        first.start_segment,
        first.start_position,
        last.end_segment,
        last.end_position,
    )


def cut_keys(runs: Iterable[Run], count: int) -> list[Key]:
    """Keys that cut the entries of all runs into `count` ranges of about equal size, by their directories alone.

    A range ends with its key. It is larger than the others by a chunk of each run at most, also where all is due at
    one time.
    """
    directories = [run.directory for run in runs]
    last = [np.concatenate([each.last_deliver_after for each in directories])]
    last.append(np.concatenate([each.last_offset for each in directories]))
    entries = np.concatenate([np.diff(each.entries_before) for each in directories])
    rows = np.lexsort(last[::-1])
    wanted = entries.sum() * np.arange(1, count) // count
    cuts = rows[entries[rows].cumsum().searchsorted(wanted)].tolist()
    return [Key(int(last[0][row]), int(last[1][row])) for row in dict.fromkeys(cuts)]


def write_part(
    files: Files, folder: Path, coverage: Coverage, blocks: Iterable[Entries], config: Config
) -> Path | None:
    """A part of a bucket, of the entries of all blocks, which follow each other in delivery order; None: of none.

    Where it raises, nothing is left. It is not durable: who makes the bucket of it reads all of it.
    """
    blocks = (block for block in blocks if len(block))
    first = next(blocks, None)
    if first is None:
        return None
    key = bucket_key(coverage.first_offset, coverage.end_offset)
    path = folder / f"{key}.{unused_name()}{TEMPORARY_SUFFIX}"
    file = files.create(path)
    try:
        writer = _writer(file, coverage, config)
        writer.add(first)
        for block in blocks:
            writer.add(block)
        writer.finish()
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(path)
        raise
    finally:
        file.close()
    return path


def publish(
    files: Files,
    folder: Path,
    coverage: Coverage,
    parts: Iterable[Path],
    records: int,
    config: Config,
    *,
    cleanings: int = 0,
) -> Run:
    """Make one bucket of its parts, which must have so many records together, durably. The parts stay.

    Nothing is decoded, chunks are copied. CorruptFile where a part is not as it was written, or something is missing.
    """
    path = folder / bucket_key(coverage.first_offset, coverage.end_offset, cleanings)
    in_order = sorted((run.first_key, run.records, run.path) for run in (Run.open(files, part) for part in parts))
    found = sum(count for _, count, _ in in_order)
    if found != records:
        raise CorruptFile(f"its parts hold {found} records, its sources {records}", path=path)
    with publishing(files, path) as file:
        writer = _writer(file, coverage, config)
        for _, _, part in in_order:
            writer.add_run(Run.open(files, part))
        writer.finish()
    return Run.open(files, path)


def _writer(file: File, coverage: Coverage, config: Config) -> RunWriter:
    return RunWriter(
        file,
        coverage,
        max_entries=config.max_indexes_per_bucket_snapshot_segment,
        max_step_ms=config.max_time_step_per_bucket_snapshot_segment_s * 1000,
    )


def sweep_parts(files: Files, folders: Iterable[Path]) -> None:
    """Remove what attempts left among the buckets of partitions. Only who has the store's lock may."""
    for folder in sorted(set(folders)):
        for name in _bucket_names(files, folder):
            if name.endswith(TEMPORARY_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(folder / BUCKETS / name)


def _bucket_names(files: Files, folder: Path) -> list[str]:
    """The names among the buckets of a partition; the folder may be gone."""
    return files.names(folder / BUCKETS) if files.exists(folder / BUCKETS) else []
