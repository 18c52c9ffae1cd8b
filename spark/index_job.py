"""The index job: the indexes of many segments, built or verified by the cores of a cluster. Map only, no shuffle.

    location ── find_segments ──> groups of about equal bytes ── one task each ──> index_segment ──> a row a segment

The workers see a folder under the same path as the driver. Of object storage a task fetches one segment at a time to
its own disk, and puts back what is new (`afterlog.tier.remote_indexing`). A rerun skips what is there and valid, so a
job that was killed is simply run again. What `index_segment` promises of attempts that race holds for Spark's, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afterlog.base.clock import SystemClock
from afterlog.base.config import Config
from afterlog.base.errors import RemoteConflict
from afterlog.base.files import OsFiles, ReadOnlyFiles, temporary_folder, unused_name
from afterlog.base.kept_config import kept_config
from afterlog.log.build import IndexedSegment, SegmentToIndex, index_segment
from afterlog.spark.location import (
    StoredSegment,
    check_shared,
    find_remote_segments,
    find_segments,
    is_url,
    sweep,
)
from afterlog.spark.tasks import balanced, run_tasks, task_count
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_indexing import Workshop, index_kafka, index_listed
from afterlog.tier.remote_url import open_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic STRING, partition INT, base_offset BIGINT, action STRING, entries BIGINT, records BIGINT, min_due BIGINT, "
    "max_due BIGINT, bytes BIGINT, seconds DOUBLE, path STRING, position BIGINT, reason STRING, "
    "control_batches BIGINT, aborted_batches BIGINT, uncommitted_batches BIGINT"
)
assert [each.name for each in fields(IndexedSegment)] == [column.split()[0] for column in SCHEMA.split(", ")]


def build_indexes(
    spark: SparkSession,
    location: Path | str,
    topics: Collection[str] | None = None,
    verify_only: bool = False,
    *,
    config: Config | None = None,
    tasks: int | None = None,
    remote_options: Mapping[str, Any] | None = None,
    scratch: Path | str | None = None,
) -> DataFrame:
    """Build the indexes that are missing or not valid, or verify all of them; when it returns, it is done.

    `location`: a store, a directory of Kafka partitions, one folder of segments, or the URL of object storage
    (`afterlog.spark.location`), which is opened with `remote_options`. `config`: the store's. `tasks`: how many at
    most; by default one for TASK_BYTES of log, but no less than TASKS_MIN. `scratch`: a folder on the workers with room
    for a segment and its indexes for each core, where the location is a URL; by default as TMPDIR says.
    One row a segment (`IndexedSegment`), by topic, partition and base offset; of one in object storage paths are keys.
    Raises FileNotFoundError, UnknownTopic, CorruptFile where the documents of a store are, CorruptRemote where a
    manifest is; Spark's own errors where a task failed for good, which leaves what the others did.
    """
    config = config or (Config() if is_url(location) else kept_config(OsFiles(), Path(location).absolute()))
    if is_url(location):
        url, options, parent = str(location), dict(remote_options or {}), Path(scratch) if scratch else None
        stored = find_remote_segments(open_remote(url, **options), topics)

        def index_remote(group: Sequence[StoredSegment]) -> Iterator[IndexedSegment]:
            return index_stored_group(group, url, options, config, verify_only, parent)

        return run_tasks(spark, balanced(stored, task_count(stored, tasks)), index_remote, SCHEMA)

    segments = find_segments(ReadOnlyFiles(), Path(location).absolute(), topics)
    if not verify_only:
        sweep(OsFiles(), segments)

    def index(group: Sequence[SegmentToIndex]) -> Iterator[IndexedSegment]:
        return index_group(group, config, verify_only)

    return run_tasks(spark, balanced(segments, task_count(segments, tasks)), index, SCHEMA)


def index_group(group: Sequence[SegmentToIndex], config: Config, verify_only: bool) -> Iterator[IndexedSegment]:
    """What one task does."""
    files = ReadOnlyFiles() if verify_only else OsFiles()
    clock, attempt = SystemClock(), unused_name()
    check_shared(files, {segment.path.parent for segment in group})
    for segment in group:
        yield index_segment(files, segment, config, clock, attempt=attempt, verify_only=verify_only)


def index_stored_group(
    group: Sequence[StoredSegment],
    url: str,
    options: Mapping[str, Any],
    config: Config,
    verify_only: bool,
    scratch: Path | None,
) -> Iterator[IndexedSegment]:
    """What one task does, of object storage."""
    remote, clock = open_remote(url, **options), SystemClock()
    with temporary_folder(scratch) as folder:
        for segment in group:
            shop = Workshop(
                files=OsFiles(),
                folder=folder,
                config=config,
                clock=clock,
                attempt=unused_name(),
                verify_only=verify_only,
            )
            if segment.row is None:
                yield index_kafka(
                    remote,
                    segment.folder,
                    segment.base_offset,
                    segment.log_bytes,
                    segment.indexes,
                    shop,
                    later=[base for base in segment.bases if base > segment.base_offset],
                )
                continue
            try:
                yield index_listed(Manifest(remote, segment.folder), segment.row, shop)
            except RemoteConflict as error:
                yield IndexedSegment(
                    topic=segment.topic,
                    partition=segment.partition,
                    base_offset=segment.base_offset,
                    action="skipped",
                    bytes=segment.log_bytes,
                    seconds=0.0,
                    reason=error.message,
                )
