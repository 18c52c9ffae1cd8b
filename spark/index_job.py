"""The index job: the indexes of many segments, built or verified by the cores of a cluster. Map only, no shuffle.

    location ── find_segments ──> groups of about equal bytes ── one task each ──> index_segment ──> a row a segment

The workers see the location under the same path as the driver. A rerun skips what is there and valid, so a job that was
killed is simply run again. What `index_segment` promises of attempts that race holds for Spark's, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from afterlog.clock import SystemClock
from afterlog.config import Config
from afterlog.files import OsFiles, ReadOnlyFiles, unused_name
from afterlog.log.segment_indexing import IndexedSegment, SegmentToIndex, index_segment
from afterlog.spark.location import find_segments, sweep

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 256 << 20
"""Log to a task, about, where the job is not told how many tasks. Larger: less to start, coarser balance."""
TASKS_MIN = 8
SCHEMA = (
    "topic STRING, partition INT, base_offset BIGINT, action STRING, entries BIGINT, records BIGINT, min_due BIGINT, "
    "max_due BIGINT, bytes BIGINT, seconds DOUBLE, path STRING, position BIGINT, reason STRING"
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
) -> DataFrame:
    """Build the indexes that are missing or not valid, or verify all of them; when it returns, it is done.

    `location`: a store, a directory of plain Kafka partitions, or one folder of segments (`afterlog.spark.location`).
    `config`: the store's. `tasks`: how many at most; by default one for TASK_BYTES of log, but no less than TASKS_MIN.
    One row a segment (`IndexedSegment`), by topic, partition and base offset.
    Raises FileNotFoundError, UnknownTopic, CorruptFile where the documents of a store are; Spark's own errors where a
    task failed for good, which leaves what the others did.
    """
    segments = find_segments(ReadOnlyFiles(), Path(location).absolute(), topics)
    if not verify_only:
        sweep(OsFiles(), segments)
    if tasks is None:
        tasks = max(sum(segment.log_bytes for segment in segments) // TASK_BYTES, TASKS_MIN)
    groups = balanced(segments, tasks)
    work = _work(groups, config or Config(), verify_only)
    done = spark.range(0, len(groups), 1, max(len(groups), 1)).mapInArrow(work, SCHEMA).toArrow()
    order = [(name, "ascending") for name in ("topic", "partition", "base_offset")]
    return spark.createDataFrame(done.sort_by(order), SCHEMA)


def balanced(segments: Sequence[SegmentToIndex], count: int) -> list[list[SegmentToIndex]]:
    """The segments in at most `count` groups of about equal bytes, the largest group first.

    The largest segment left goes into the group that is smallest so far: none is a third larger than it need be.
    """
    heap = [(0, number) for number in range(min(count, len(segments)))]
    groups: list[list[SegmentToIndex]] = [[] for _ in heap]
    for segment in sorted(segments, key=lambda each: -each.log_bytes):
        size, number = heap[0]
        groups[number].append(segment)
        heapq.heapreplace(heap, (size + segment.log_bytes, number))
    return sorted(groups, key=lambda group: -sum(each.log_bytes for each in group))


def index_group(group: Sequence[SegmentToIndex], config: Config, verify_only: bool) -> Iterator[IndexedSegment]:
    """What one task does."""
    files = ReadOnlyFiles() if verify_only else OsFiles()
    clock, attempt = SystemClock(), unused_name()
    for segment in group:
        yield index_segment(files, segment, config, clock, attempt=attempt, verify_only=verify_only)


def _work(
    groups: list[list[SegmentToIndex]], config: Config, verify_only: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: numbers of groups come in, rows of segments go out."""

    def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from afterlog.spark.arrow import TYPES

        schema = pa.schema([(name, TYPES[kind]) for name, kind in map(str.split, SCHEMA.split(", "))])
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                rows = [asdict(done) for done in index_group(groups[number], config, verify_only)]
                yield pa.RecordBatch.from_pylist(rows, schema)

    return work
