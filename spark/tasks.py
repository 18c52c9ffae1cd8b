"""Shared by the Spark jobs: segments divided among tasks, and rows of tasks as a DataFrame.

segments ── balanced, or contiguous ──> groups ── one task each ──> rows, as dataclasses ──> DataFrame
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from afterlog.spark.session import warn_of_plain_kernels

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 256 << 20
"""Log to a task, about, where a job is not told how many tasks. Larger: less to start, coarser balance."""
TASKS_MIN = 8
_ORDER = ("topic", "partition", "base_offset")


class Sized(Protocol):
    """A segment, wherever it is."""

    @property
    def log_bytes(self) -> int: ...


Item = TypeVar("Item", bound=Sized)


def task_count(segments: Sequence[Sized], asked: int | None) -> int:
    """How many tasks at most."""
    if asked is not None:
        return asked
    return max(sum(segment.log_bytes for segment in segments) // TASK_BYTES, TASKS_MIN)


def balanced(segments: Sequence[Item], count: int) -> list[list[Item]]:
    """The segments in at most `count` groups of about equal bytes, the largest group first.

    The largest segment left goes into the group that is smallest so far: none is a third larger than it need be.
    """
    heap = [(0, number) for number in range(min(count, len(segments)))]
    groups: list[list[Item]] = [[] for _ in heap]
    for segment in sorted(segments, key=lambda each: -each.log_bytes):
        size, number = heap[0]
        groups[number].append(segment)
        heapq.heapreplace(heap, (size + segment.log_bytes, number))
    return sorted(groups, key=lambda group: -sum(each.log_bytes for each in group))


def contiguous(segments: Sequence[Item], count: int) -> list[list[Item]]:
    """The segments as they stand, cut into at most `count` groups of about equal bytes: neighbours share a task."""
    total = sum(segment.log_bytes for segment in segments)
    groups: list[list[Item]] = [[] for _ in range(count)]
    before = 0
    for segment in segments:
        middle = 2 * before + segment.log_bytes
        groups[min(middle * count // max(2 * total, 1), count - 1)].append(segment)
        before += segment.log_bytes
    return [group for group in groups if group]


def run_tasks(
    spark: SparkSession,
    groups: Sequence[Sequence[Item]],
    work: Callable[[Sequence[Item]], Iterator[Any]],
    ddl: str,
    more: Sequence[Any] = (),
) -> DataFrame:
    """Do `work` for each group, a task each; its rows, dataclasses of the columns in `ddl`, in order of the segments.

    more: rows that are known without. When it returns, all is done.
    """

    def rows_of(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from afterlog.spark.arrow import schema_of

        warn_of_plain_kernels()
        schema = schema_of(ddl)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist([asdict(row) for row in work(groups[number])], schema)

    done = spark.range(0, len(groups), 1, max(len(groups), 1)).mapInArrow(rows_of, ddl).toArrow()
    if more:
        import pyarrow as pa

        done = pa.concat_tables([done, pa.Table.from_pylist([asdict(row) for row in more], done.schema)])
    return spark.createDataFrame(done.sort_by([(name, "ascending") for name in _ORDER]), ddl)
