"""The data source `afterlog`: what is due, in delivery order, as a DataFrame or a stream; and rows into the log.

    spark.read.format("afterlog").option("topic", "mail").load("/data/store")
    spark.readStream.format("afterlog").option("topic", "mail").load("/data/store")
    frame.write.format("afterlog").option("topic", "mail").mode("append").save("/data/store")

Writing is in `afterlog.spark.writer`.

Rows come in delivery order within each Spark partition, and the Spark partitions of a topic's partition follow each
other in delivery order. Options: `afterlog.spark.options`. What is in view of a store that is open elsewhere:
`afterlog.log.snapshot`. Installed, the source registers itself (`pyspark_afterlog`); otherwise `register(spark)`.

A stream's offset is a delivery offset for each partition, with what it saw there (`afterlog.spark.stream_offset`).
Ranges of these name the same records whenever they are read (`afterlog.spark.ranges`), so a micro-batch that is read
again after a crash is the same, and a sink that is idempotent sees every record once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from afterlog.base.clock import SystemClock
from afterlog.base.errors import InvalidOption, SparkUnavailable
from afterlog.base.files import ReadOnlyFiles
from afterlog.spark.arrow import record_batch
from afterlog.spark.options import NO_OPTIONS, ReadOptions, WriteOptions
from afterlog.spark.ranges import DeliveryRange, RangePlanner, read_range
from afterlog.spark.readable import readable
from afterlog.spark.session import warn_of_plain_kernels
from afterlog.spark.stream_offset import StreamOffset
from afterlog.spark.writer import AfterlogStreamWriter, AfterlogWriter, checked

NAME = "afterlog"


def register(session: SparkSession) -> None:
    """Register the data source with a session, and see that the Python in which Spark plans can import it.

    Needed where it does not register itself: in an editable installation, or one that workers have by other means.
    Raises SparkUnavailable where that Python has no afterlog: Spark starts `python3` of the path unless PYSPARK_PYTHON
    was set before the session was made, also where a program runs in a virtual environment that is not activated.
    """
    session.dataSource.register(AfterlogDataSource)
    try:
        session.read.format(NAME).load()
    except PySparkException as error:
        if NO_OPTIONS in str(error):  # it was imported, and asked for its schema
            return
        if "ModuleNotFoundError" not in str(error):
            raise
        name = str(error).partition("No module named ")[2].split("\n")[0]
        raise SparkUnavailable(
            f"the Python in which Spark plans has no {name}: set PYSPARK_PYTHON={sys.executable} before the session is "
            "made, or activate the virtual environment"
        ) from error


class AfterlogDataSource(DataSource):
    """What Spark asks first: schema, readers and writers."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ReadOptions.parse(self.options).ddl

    def reader(self, schema: StructType) -> AfterlogReader:
        options = ReadOptions.parse(self.options)
        _check_schema(schema, options)
        return AfterlogReader(options)

    def streamReader(self, schema: StructType) -> AfterlogStreamReader:  # noqa: N802
        options = ReadOptions.parse_stream(self.options)
        _check_schema(schema, options)
        return AfterlogStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> AfterlogWriter:
        return AfterlogWriter(*checked(WriteOptions.parse(self.options), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> AfterlogStreamWriter:  # noqa: N802
        return AfterlogStreamWriter(*checked(WriteOptions.parse_stream(self.options), schema, overwrite))


class RangePartition(InputPartition):
    """A Spark partition: one range."""

    def __init__(self, piece: DeliveryRange) -> None:
        super().__init__(piece)
        self.piece = piece


class AfterlogReader(DataSourceReader):
    """One batch read. Pickled to the workers: it holds nothing open."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        with _planner(self._options) as planner:
            return [RangePartition(piece) for piece in planner.batch()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, partition)


class AfterlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Offsets belong to Spark: nothing is committed in the store."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._until: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with _planner(self._options) as planner:
            return planner.initial().to_row()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_records) if self._options.max_records else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with _planner(self._options) as planner:
            self._until = planner.latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with _planner(self._options) as planner:
            return planner.advanced(StreamOffset.of_row(start), self._until, most).to_row()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        with _planner(self._options) as planner:
            return planner.at(planner.latest()).to_row()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with _planner(self._options) as planner:
            ranges = planner.between(StreamOffset.of_row(start), StreamOffset.of_row(end))
            return [RangePartition(piece) for piece in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, partition)


@contextlib.contextmanager
def _planner(options: ReadOptions) -> Iterator[RangePlanner]:
    with readable(ReadOnlyFiles(), SystemClock(), options) as source:
        yield RangePlanner(source, options)


def _rows(options: ReadOptions, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Of a range; nothing for the partition without a value that Spark makes where there are none."""
    if isinstance(partition, RangePartition):
        warn_of_plain_kernels()
        with readable(ReadOnlyFiles(), SystemClock(), options) as source:
            found = read_range(
                source, options.topic, partition.piece, columns=options.columns, fails=options.fail_on_data_loss
            )
            for columns in found:
                yield record_batch(columns, options.columns)


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    if schema.fieldNames() != list(options.columns):
        raise InvalidOption(f"the schema is fixed by the option columns: leave it out, or give {options.ddl}")
