"""Counts and histograms of what a store holds, from its indexes: no record is read, and no task runs.

    counts(spark, "/data/store")                                     a row for each partition of each topic
    due_histogram(spark, "/data/store", "mail", timedelta(hours=1))  how many records are due when

What is seen is what a read sees (docs/spark.md): a folder up to its last checkpoints, also while another process has it
open, or object storage up to the last upload. An index tells by bisection how many entries lie before a time: four
million pending records are counted in 8 ms, and by the hour over a month in 0.24 s (on a busy machine).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from afterlog.api.statistics import last_due
from afterlog.base.clock import INT64_MAX, SystemClock
from afterlog.base.errors import InvalidOption, UnknownTopic
from afterlog.base.files import ReadOnlyFiles
from afterlog.fetch.partition import Partition
from afterlog.index.growing_columns import Int64Array
from afterlog.records.times import instant_ms
from afterlog.spark.location import is_url
from afterlog.spark.options import ReadOptions
from afterlog.spark.readable import Readable, readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNTS = (
    "topic STRING, partition INT, log_start_offset BIGINT, log_end_offset BIGINT, pending BIGINT, due BIGINT, "
    "next_due BIGINT, segments BIGINT, bytes BIGINT"
)
HISTOGRAM = "from_ms BIGINT, to_ms BIGINT, records BIGINT"
BUCKETS_MAX = 1_000_000
"""Rows of a histogram, at most. Larger: more of a mistake in the bucket's size is carried out."""


def counts(
    spark: SparkSession,
    location: Path | str,
    topics: Collection[str] | None = None,
    *,
    remote: str | None = None,
    remote_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """What each partition holds: a row each, by topic and partition; of all topics, or of some.

    `location`: a store's folder, or the URL of object storage; `remote`: object storage beside a folder. `due`: records
    that are due and in the log; `next_due`: when the next pending one is, ms since the epoch, null where none is;
    `bytes`: of the segments. Raises UnknownTopic, FileNotFoundError, CorruptFile, RemoteRefused, RemoteUnavailable.
    """
    rows = []
    with _opened(location, "", remote, remote_options) as source:
        there = source.topics()
        missing = set(topics or ()) - there.keys()
        if missing:
            raise UnknownTopic(f"no topic {min(missing)!r} in {location}")
        for name in sorted(there.keys() if topics is None else set(topics)):
            for partition in _partitions(source.of(name)):
                found, sizes = partition.counts(), [segment.size for segment in partition.log.version.segments]
                place = name, partition.number, partition.log_start_offset, found.log_end_offset
                rows.append((*place, found.pending, found.due, found.next_due, len(sizes), sum(sizes)))
    return _frame(spark, rows, COUNTS)


def due_histogram(
    spark: SparkSession,
    location: Path | str,
    topic: str,
    bucket: timedelta = timedelta(hours=1),
    *,
    start: datetime | str | int | None = None,
    end: datetime | str | int | None = None,
    remote: str | None = None,
    remote_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """How many records of a topic are due in each bucket of time, pending ones and those that are due and in the log.

    Cancelled ones do not count. `bucket`: its length, whole milliseconds; buckets begin at multiples of it since the
    epoch. `start`, `end`: only what is due from the one on, and before the other; by default from the next pending
    record to the last. A row for each bucket, empty ones, too.
    Raises InvalidOption of more than BUCKETS_MAX buckets, InvalidDeliverAfter, UnknownTopic, FileNotFoundError,
    CorruptFile, RemoteRefused, RemoteUnavailable.
    """
    bucket_ms = bucket // timedelta(milliseconds=1)
    if bucket_ms < 1 or bucket_ms * timedelta(milliseconds=1) != bucket:
        raise InvalidOption(f"a bucket has whole milliseconds, one at least, not {bucket}")
    rows = []
    with _opened(location, topic, remote, remote_options) as source:
        partitions = _partitions(source)
        span = _span(partitions, start, end)
        if span is not None:
            edges = _edges(*span, bucket_ms)
            counted = np.clip(edges, *span)
            found = sum((each.due_histogram(counted) for each in partitions), np.zeros(len(edges) - 1, np.int64))
            rows = list(zip(edges[:-1].tolist(), edges[1:].tolist(), found.tolist(), strict=True))
    return _frame(spark, rows, HISTOGRAM)


def _span(
    partitions: list[Partition], start: datetime | str | int | None, end: datetime | str | int | None
) -> tuple[int, int] | None:
    """[start, end), ms; None where nothing is asked for."""
    next_dues = [due for each in partitions if (due := each.next_due()) is not None]
    first = instant_ms(start) if start is not None else min(next_dues, default=None)
    last = instant_ms(end) if end is not None else min(max(map(last_due, partitions)) + 1, INT64_MAX)
    return None if first is None or first >= last else (first, last)


def _edges(first: int, last: int, bucket_ms: int) -> Int64Array:
    begin = first // bucket_ms
    count = -(-last // bucket_ms) - begin
    if count > BUCKETS_MAX:
        raise InvalidOption(f"{count:,} buckets, of {BUCKETS_MAX:,} at most: make them larger, or give start and end")
    starts = np.arange(begin, begin + count, dtype=np.int64) * bucket_ms
    return np.append(starts, min((begin + count) * bucket_ms, INT64_MAX))


def _partitions(source: Readable) -> list[Partition]:
    settings = source.settings()
    return [source.partition(number, settings, at_ms=None, settle_ms=0) for number in range(settings.partitions)]


@contextmanager
def _opened(
    location: Path | str, topic: str, remote: str | None, remote_options: Mapping[str, Any] | None
) -> Iterator[Readable]:
    is_remote = is_url(location)
    if is_remote and remote is not None:
        raise InvalidOption("the location is object storage: leave remote out")
    options = ReadOptions(
        location=None if is_remote else Path(location).absolute(),
        topic=topic,
        remote=str(location) if is_remote else remote,
        remote_options=dict(remote_options or {}),
    )
    with readable(ReadOnlyFiles(), SystemClock(), options) as source:
        yield source


def _frame(spark: SparkSession, rows: list[tuple[Any, ...]], ddl: str) -> DataFrame:
    import pyarrow as pa

    from afterlog.spark.arrow import schema_of

    schema = schema_of(ddl)
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    table = pa.table([pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)], schema=schema)
    return spark.createDataFrame(table, ddl)
