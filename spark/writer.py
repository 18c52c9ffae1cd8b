"""The writing side of the data source: tasks prepare files, the commit has them adopted, all or nothing, and once.

    task    rows ── by partition and due time ── encoded ──> a prepared file (`afterlog.produce.prepared`)
    driver  commit ──> store opened under its lock ──> adoption (`afterlog.produce.adoption`)
                  └──> adopt=false: handed over to the process that has the store open

What the store remembers a job by: of a stream its query's id and the number of the micro-batch, which are Spark's and
the same after a restart; of a batch write `writeId`, or else a random id that the driver makes once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from afterlog.base.clock import SystemClock
from afterlog.base.errors import InvalidOption, UnknownTopic
from afterlog.base.files import OsFiles, ReadOnlyFiles, unused_name
from afterlog.base.names import TOPICS, prepared_file
from afterlog.log.topic_settings import TopicSettings
from afterlog.log.topics_document import read_topics
from afterlog.produce.adoption import give_up, hand_over
from afterlog.produce.prepared import Prepared, PreparedFile, preparing
from afterlog.records.partitioner import Partitioner
from afterlog.spark.location import check_shared, open_when_free
from afterlog.spark.options import WriteOptions
from afterlog.spark.rows import check_columns, routed
from afterlog.spark.session import warn_of_plain_kernels

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Under these a task of a stream finds out which it is."""


@dataclass(frozen=True)
class PreparedMessage(WriterCommitMessage):
    """What a task tells the driver. file: None where there were no rows."""

    job: str
    file: PreparedFile | None


CommitMessages = Sequence[WriterCommitMessage | None]


def checked(options: WriteOptions, schema: StructType, overwrite: bool) -> tuple[WriteOptions, TopicSettings]:
    """What a writer needs. Raises InvalidOption, UnknownTopic, CorruptFile."""
    if overwrite:
        raise InvalidOption("a log is appended to: use mode('append'), or outputMode('append')")
    check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields])
    files = ReadOnlyFiles()
    if not files.exists(options.location / TOPICS):
        raise InvalidOption(f"there is no store in {options.location}: make it, and the topic, with afterlog.open(…)")
    topics = read_topics(files, options.location)
    if options.topic not in topics:
        raise UnknownTopic(f"no topic {options.topic!r} in {options.location}")
    return options, topics[options.topic]


class AfterlogWriter(DataSourceArrowWriter):
    """One batch write. Pickled to the workers, and to the driver's commit."""

    def __init__(self, options: WriteOptions, settings: TopicSettings) -> None:
        self._options = options
        self._settings = settings
        self._job = unused_name() if options.write_id is None else job_of(options.write_id, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _prepare(self._options, self._settings, self._job, 0, iterator)

    def commit(self, messages: CommitMessages) -> None:
        """What has a name is remembered, with rows or without."""
        files = _files(messages)
        if files or self._options.write_id is not None:
            _commit(self._options, self._job, 0, files)

    def abort(self, messages: CommitMessages) -> None:
        _abort(self._options, messages)


class AfterlogStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream: made anew for each micro-batch, and again for its commit."""

    def __init__(self, options: WriteOptions, settings: TopicSettings) -> None:
        self._options = options
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        job, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert job, "Spark tells a task its query"
        assert batch, "Spark tells a task its micro-batch"
        return _prepare(self._options, self._settings, job, int(batch), iterator)

    def commit(self, messages: CommitMessages, batchId: int) -> None:  # noqa: N803
        files = _files(messages)
        if files:
            [job] = {message.job for message in messages if isinstance(message, PreparedMessage)}
            _commit(self._options, job, batchId, files)

    def abort(self, messages: CommitMessages, batchId: int) -> None:  # noqa: N803
        _abort(self._options, messages)


def job_of(write_id: str, topic: str) -> str:
    """The job of a write: of another topic it is another one, though its user calls it the same."""
    return f"{write_id}-{blake2b(topic.encode(), digest_size=8).hexdigest()}"


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _prepare(
    options: WriteOptions, settings: TopicSettings, job: str, batch: int, rows: Iterable[pa.RecordBatch]
) -> PreparedMessage:
    warn_of_plain_kernels()
    now_ms = SystemClock().now_ms()
    partitioner = Partitioner(options.topic, settings.partitions, settings.priorities)
    parts = routed(rows, partitioner, _task().partitionId(), now_ms, check_instants=settings.check_instants)
    first = next(parts, None)
    if first is None:
        return PreparedMessage(job, None)
    name = prepared_file(job, batch, now_ms, unused_name())
    check_shared(OsFiles(), [options.location / TOPICS])
    with preparing(OsFiles(), options.location, name, options.config) as writer:
        for part in chain([first], parts):
            writer.add(part.partition, part.columns)
    return PreparedMessage(job, PreparedFile(name=name, sections=tuple(writer.sections)))


def _commit(options: WriteOptions, job: str, batch: int, files: tuple[PreparedFile, ...]) -> None:
    prepared = Prepared(job=job, batch=batch, topic=options.topic, files=files)
    clock = SystemClock()
    if not options.adopt:
        hand_over(OsFiles(), options.location, prepared, clock.now_ms(), unused_name())
        return
    with open_when_free(
        options.location, options.remote, options.remote_options, options.lock_timeout_ms, clock
    ) as store:
        store.adopt(prepared)


def _abort(options: WriteOptions, messages: CommitMessages) -> None:
    give_up(OsFiles(), options.location, [file.name for file in _files(messages)])


def _files(messages: CommitMessages) -> tuple[PreparedFile, ...]:
    """Of the tasks that had rows, and did not fail."""
    return tuple(each.file for each in messages if isinstance(each, PreparedMessage) and each.file is not None)
