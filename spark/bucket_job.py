"""The bucket job: the runs of many sealed segments become a few global buckets, merged by the cores of a cluster.

    runs ── cut ──> slices of delivery order ── merge ──> a part each ── publish ──> bucket
            by their directories                by a task                by the driver: a copy

The runs are sorted already, so nothing is sorted again: their directories tell where to cut delivery order into slices
of equal size, and each task merges its slice out of all runs, as the store itself does. What it writes is a run, of its
slice and over all offsets of the bucket. The driver puts these one after another, and decodes nothing
(`afterlog.spark.bucket_plan`).

A task holds one chunk of every run, and reads the chunks at its edges that others read too (docs/decisions/0022).

The store is locked as long as the job runs: a bucket that comes to lie across those which an open store makes of the
same runs would leave some segments without one. The driver alone publishes, one bucket after another. A job that was
killed leaves the buckets that were done, and temporary files; run it again. The runs that went into a bucket are
removed when the store is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from afterlog.base.clock import SystemClock
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile, InvalidOption
from afterlog.base.files import Files, OsFiles, ReadOnlyFiles
from afterlog.base.kept_config import kept_config
from afterlog.base.names import LOCK, TOPICS
from afterlog.index.entries import Key
from afterlog.index.merge import END, merged
from afterlog.index.run import Run
from afterlog.spark.bucket_plan import (
    OFFSETS_MAX,
    SourceRun,
    coverage_of,
    cut_keys,
    find_runs,
    plan,
    publish,
    sweep_parts,
    write_part,
)
from afterlog.spark.location import ACTIVE, LeftActive, find_active, is_url, seal_active
from afterlog.spark.session import warn_of_plain_kernels

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    """For mapInArrow."""

TASK_ENTRIES = 1 << 22
"""Entries to a slice, about, where the job is not told how many. Larger: fewer chunks that two read, fewer cores."""
CHECKS = 8
"""Tasks that read the runs through, at most."""
CHECKED = "number BIGINT, records BIGINT, position BIGINT, reason STRING"
PART = "path STRING"
SCHEMA = (
    "topic STRING, partition INT, first_offset BIGINT, end_offset BIGINT, action STRING, sources INT, entries BIGINT, "
    "records BIGINT, min_due BIGINT, max_due BIGINT, bytes BIGINT, seconds DOUBLE, path STRING, position BIGINT, "
    "reason STRING"
)
ONE_RUN = "one run holds all of it"

MergeAction = Literal["merged", "skipped", "active", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBucket:
    """What came of adjacent runs, or of one that stays as it is."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    action: MergeAction
    sources: int
    """Intact runs of these offsets, before."""
    entries: int | None = None
    """Of the run that holds these offsets now, as those that follow."""
    records: int | None = None
    min_due: int | None = None
    max_due: int | None = None
    bytes: int | None = None
    seconds: float = 0.0
    path: str | None = None
    """Of the same, or of what is corrupt or not there."""
    position: int | None = None
    reason: str | None = None


assert [each.name for each in fields(MergedBucket)] == [column.split()[0] for column in SCHEMA.split(", ")]


def merge_buckets(
    spark: SparkSession,
    location: Path | str,
    topics: Collection[str] | None = None,
    *,
    config: Config | None = None,
    tasks: int | None = None,
    offsets_max: int = OFFSETS_MAX,
    roll: bool = False,
) -> DataFrame:
    """Merge the runs of the sealed segments of a store, into one bucket a partition; when it returns, it is done.

    `config`: the store's. `tasks`: into how many slices a bucket is cut; by default one for TASK_ENTRIES.
    `offsets_max`: a bucket covers no more than that. `roll`: seal what is in the active segments before; else a row
    says what is left there.
    One row a bucket (`MergedBucket`), by topic, partition and offset. `skipped`: one run holds all of it already, or a
    segment has none. `active`: not sealed yet. `corrupt`: a run cannot be read; it stays, and those on either side of
    it are merged.
    Raises StoreLocked, InvalidOption of a URL, FileNotFoundError, UnknownTopic, CorruptFile where the documents of the
    store are, StorageFull; Spark's own errors where a task failed for good. The buckets that were done before stay.
    """
    import pyarrow as pa

    from afterlog.spark.arrow import schema_of

    if is_url(location):
        raise InvalidOption(f"the runs of a store's folder are merged, and not those in {location}")
    files, store = OsFiles(), Path(location).absolute()
    if not files.exists(store / TOPICS):
        raise FileNotFoundError(f"there is no store in {store}")
    if roll:
        seal_active(files, store, topics, config)
    job = _Job(spark, files, config or kept_config(files, store), tasks)
    lock = files.lock(store / LOCK)
    try:
        sources = find_runs(ReadOnlyFiles(), store, topics)
        sweep_parts(files, {source.folder for source in sources})
        found = [done for group in plan(sources, offsets_max) for done in job.merge(group)]
        found += [_active(each) for each in find_active(ReadOnlyFiles(), store, topics) if each.delayed]
        found.sort(key=lambda each: (each.topic, each.partition, each.first_offset))
        rows = [asdict(each) for each in found]
    finally:
        lock.release()
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema_of(SCHEMA)), SCHEMA)


class _Job:
    """What the buckets of one job have in common."""

    def __init__(self, spark: SparkSession, files: Files, config: Config, tasks: int | None) -> None:
        self._spark = spark
        self._files = files
        self._config = config
        self._tasks = tasks
        self._clock = SystemClock()

    def merge(self, group: Sequence[SourceRun]) -> Iterator[MergedBucket]:
        """Make one bucket of adjacent runs, or of those between which none is rotten."""
        for part in plan(self._checked(group)) if len(group) > 1 else [group]:
            yield self._merged(part) if len(part) > 1 else self._left(part[0])

    def _checked(self, group: Sequence[SourceRun]) -> list[SourceRun]:
        """The runs, read through."""
        checked = list(group)
        for row in self._numbers(len(group)).mapInArrow(_checks(group), CHECKED).collect():
            source = group[row.number]
            fault = None if row.reason is None else CorruptFile(row.reason, path=source.path, position=row.position)
            checked[row.number] = replace(source, records=row.records, obstacle=fault)
        return checked

    def _merged(self, group: Sequence[SourceRun]) -> MergedBucket:
        start_s = self._clock.monotonic_s()
        coverage, folder = coverage_of(group), group[0].folder
        try:
            records = sum(source.records for source in group)
            bucket = publish(
                self._files,
                folder,
                coverage,
                self._parts(group),
                records,
                self._config,
                cleanings=group[0].cleanings,
            )
        except CorruptFile as fault:
            return _row(group, "corrupt", **_of_fault(fault))
        finally:
            sweep_parts(self._files, [folder])
        return _row(group, "merged", **_of_run(bucket), seconds=self._clock.monotonic_s() - start_s)

    def _left(self, source: SourceRun) -> MergedBucket:
        match source.obstacle:
            case None:
                run = Run.open(self._files, source.path)
                return _row([source], "skipped", **_of_run(run), reason=ONE_RUN)
            case CorruptFile() as fault:
                return _row([source], "corrupt", **_of_fault(fault))
            case reason:
                return _row([source], "skipped", path=str(source.path), reason=reason)

    def _parts(self, group: Sequence[SourceRun]) -> list[Path]:
        """The entries of all runs as parts, each with a slice of their delivery order. In any order."""
        count = self._tasks or max(sum(source.entries for source in group) // TASK_ENTRIES, 1)
        keys = cut_keys([Run.open(self._files, source.path) for source in group], count)
        slices = self._numbers(len(keys) + 1, len(keys) + 1)
        return [Path(row.path) for row in slices.mapInArrow(_part(group, keys, self._config), PART).collect()]

    def _numbers(self, count: int, tasks: int = CHECKS) -> DataFrame:
        """From 0 on, shared out over some tasks."""
        return self._spark.range(0, count, 1, min(count, tasks))


def _active(left: LeftActive) -> MergedBucket:
    end_offset = left.base_offset if left.end_offset is None else left.end_offset
    return MergedBucket(
        topic=left.topic,
        partition=left.partition,
        first_offset=left.base_offset,
        end_offset=end_offset,
        action="active",
        sources=0,
        reason=ACTIVE,
    )


def _row(group: Sequence[SourceRun], action: MergeAction, **found: Any) -> MergedBucket:
    first, coverage = group[0], coverage_of(group)
    return MergedBucket(
        topic=first.topic,
        partition=first.partition,
        first_offset=coverage.first_offset,
        end_offset=coverage.end_offset,
        action=action,
        sources=sum(source.obstacle is None for source in group),
        **found,
    )


def _of_run(run: Run) -> dict[str, Any]:
    return {
        "entries": run.count,
        "records": run.records,
        "min_due": run.first_key.deliver_after,
        "max_due": run.last_key.deliver_after,
        "bytes": run.identity.size,
        "path": str(run.path),
    }


def _of_fault(fault: CorruptFile) -> dict[str, Any]:
    return {"path": str(fault.path), "position": fault.position, "reason": fault.message}


# What the tasks do. Numbers come in, of runs or of slices.


def _checks(group: Sequence[SourceRun]) -> Work:
    """The numbers of runs ──> what reading each through tells (CHECKED)."""

    def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from afterlog.spark.arrow import schema_of

        rows = [{"number": number, **_check(group[number])} for number in _each(numbers)]
        yield pa.RecordBatch.from_pylist(rows, schema_of(CHECKED))

    return work


def _check(source: SourceRun) -> dict[str, Any]:
    """Read a run as those will who merge it."""
    try:
        run = Run.open(ReadOnlyFiles(), source.path)
        for chunk in range(run.chunks):
            run.columns(chunk)
        return {"records": run.records - run.records_up_to(source.after)}
    except CorruptFile as fault:
        return {"records": 0, "position": fault.position, "reason": fault.message}


def _part(group: Sequence[SourceRun], keys: Sequence[Key], config: Config) -> Work:
    """The numbers of slices, which end at `keys` ──> the part with what all runs have of each (PART)."""

    def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warn_of_plain_kernels()
        after, runs = group[0].after, [Run.open(ReadOnlyFiles(), source.path) for source in group]
        for number in _each(numbers):
            start = max(after, keys[number - 1]) if number else after
            end = keys[number] if number < len(keys) else END
            blocks = merged(runs, after=start, upto=end)
            yield _paths([write_part(OsFiles(), group[0].folder, coverage_of(group), blocks, config)])

    return work


def _each(numbers: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in numbers:
        yield from batch.column(0).to_pylist()


def _paths(parts: Sequence[Path | None]) -> pa.RecordBatch:
    import pyarrow as pa

    from afterlog.spark.arrow import schema_of

    return pa.RecordBatch.from_pylist([{"path": str(part)} for part in parts if part], schema_of(PART))
