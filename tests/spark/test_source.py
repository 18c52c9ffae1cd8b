"""The data source in Spark: batch and stream, beside a store that is open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from afterlog.base.clock import ManualClock, SystemClock
from afterlog.base.config import OS, Config
from afterlog.spark.options import COLUMNS
from afterlog.store.store import Store, open_store
from tests.support import eventually

RECORDS = 2_000
LATER_MS = 3_600_000
BACK_MS = 60_000
"""Records were due up to so long ago, and are by now final."""


class Filled:
    """A store on a real disk: half of each partition is due, half is not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = Config(durability=OS, segment_bytes=32_768, batch_bytes_max=16_384)
        self.store: Store = open_store(path, config, _Ago(BACK_MS), None)
        self.store.create_topic("t", 2)
        self.store.create_topic("fifo", delayed=False)
        self.now_ms = self.store.clock.now_ms()
        for _ in range(2):
            self.send(RECORDS)
        self.store.send_many("fifo", [b"%d" % number for number in range(10)])
        for topic in self.store.topics():
            for partition in topic.partitions:
                partition.log.checkpoint()

    def send(self, count: int) -> None:
        half = count // 2
        due = [self.now_ms + number * 7_919 % 1_009 for number in range(half)]
        due += [self.now_ms + LATER_MS + number for number in range(count - half)]
        values = [b"value %d" % number for number in range(count)]
        self.store.send_many("t", values, keys=values, headers=[("h", b"1")], deliver_after=due)

    def frame(self, spark: SparkSession, **options: Any) -> DataFrame:
        reader = spark.read.format("afterlog").option("topic", "t").option("partitionBytes", 60_000)
        return reader.options(**options).load(str(self.path))

    def stream(self, spark: SparkSession, to: Path, **options: Any) -> list[dict[str, Any]]:
        """Everything that is available, into a file sink; the micro-batches' progress."""
        reader = spark.readStream.format("afterlog").option("topic", "t").options(**options)
        writer = reader.load(str(self.path)).writeStream.format("parquet").option("path", str(to / "out"))
        query = writer.option("checkpointLocation", str(to / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]


class _Ago(SystemClock):
    """The store believes that it is earlier, so that what it was sent can be due and final by the real clock."""

    def __init__(self, ms: int) -> None:
        super().__init__()
        self._ms = ms

    def now_ms(self) -> int:
        return super().now_ms() - self._ms


class _Turned(ManualClock):
    """All of its time stands still until it is turned."""

    def __init__(self) -> None:
        super().__init__(SystemClock().now_ms() - BACK_MS)

    def monotonic_s(self) -> float:
        return self.now_ms() / 1_000


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    filled = Filled(tmp_path / "store")
    yield filled
    filled.store.close()


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in frame.collect()]


def test_a_batch_read(spark: SparkSession, filled: Filled) -> None:
    frame = filled.frame(spark)
    assert [*COLUMNS][:-1] == frame.columns
    rows = rows_of(frame)
    assert RECORDS == len(rows)
    assert all(filled.now_ms <= row[7] <= filled.now_ms + BACK_MS for row in rows)
    keys = [(row[1], row[4], row[2]) for row in rows]
    assert keys == sorted(keys)
    assert [(number, rank) for number in (0, 1) for rank in range(RECORDS // 2)] == [(row[1], row[3]) for row in rows]
    assert all(row[0] == "t" and row[4] >= row[5] and row[8] == row[9] for row in rows)
    by_offset = {(row[1], row[2]): row[9] for row in rows}
    assert {b"value %d" % number for number in range(RECORDS // 2)} == set(by_offset.values())


def test_pending_records_and_headers(spark: SparkSession, filled: Filled) -> None:
    frame = filled.frame(spark, dueOnly="false", columns="due,headers,partition", startingTime=filled.now_ms + 2_000)
    rows = rows_of(frame)
    assert RECORDS == len(rows)
    assert {(("h", b"1"),)} == {tuple((header.key, bytes(header.value)) for header in row[1]) for row in rows}
    assert all(row[0] >= filled.now_ms + LATER_MS for row in rows)
    assert 5 == filled.frame(spark, startingPosition=10, endingPosition=15).where("partition = 1").count()


def test_a_store_that_is_open_and_quiet_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    clock = _Turned()
    with open_store(tmp_path / "quiet", Config(checkpoint_ms=10_000), clock, None) as store:
        log = store.create_topic("t").partition(0).log
        store.send_many("t", [b"a", b"b"])
        frame = spark.read.format("afterlog").options(topic="t", columns="value", settleMs=-1)
        assert [] == rows_of(frame.load(str(store.path)))
        clock.advance(10_000)
        eventually(lambda: not log.behind)
        assert [(b"a",), (b"b",)] == rows_of(frame.load(str(store.path)))


def test_a_fifo_topic(spark: SparkSession, filled: Filled) -> None:
    rows = rows_of(filled.frame(spark, topic="fifo", columns="offset,delivery_offset,value,deliver_after"))
    assert [(number, number, b"%d" % number, None) for number in range(10)] == rows


@pytest.mark.parametrize(
    ("options", "told"), [({"topic": "u"}, "UnknownTopic"), ({"colums": "due"}, "InvalidOption: no option 'colums'")]
)
def test_what_is_wrong_is_told(spark: SparkSession, filled: Filled, options: dict[str, str], told: str) -> None:
    with pytest.raises(PySparkException, match=told):
        filled.frame(spark, **options).collect()


def test_a_stream_goes_on_where_it_stopped(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    progress = filled.stream(spark, tmp_path, maxRecordsPerTrigger=1_200, partitionBytes=40_000)
    assert [1_200, 800] == [each["numInputRows"] for each in progress]
    filled.send(300)
    for partition in filled.store.topic("t").partitions:
        partition.log.checkpoint()
    progress = filled.stream(spark, tmp_path)
    assert [150] == [each["numInputRows"] for each in progress]
    assert [] == filled.stream(spark, tmp_path)
    found = rows_of(spark.read.parquet(str(tmp_path / "out")).select("partition", "delivery_offset", "value"))
    assert RECORDS + 150 == len(found) == len(set(found))
    assert sorted(found) == rows_of(filled.frame(spark).select("partition", "delivery_offset", "value"))


def test_a_micro_batch_that_is_read_again_is_the_same(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    """The checkpoint says that a batch was planned, not that it was done: Spark reads it again after a restart."""
    seen: list[list[tuple[Any, ...]]] = []

    def sink(frame: DataFrame, number: int) -> None:
        seen.append(rows_of(frame))
        if len(seen) == 1:
            raise OSError("the sink broke")

    def run() -> None:
        reader = spark.readStream.format("afterlog").option("topic", "t").option("maxRecordsPerTrigger", 1_200)
        writer = reader.load(str(filled.path)).writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination()

    with pytest.raises(PySparkException, match="the sink broke"):
        run()
    for partition in filled.store.topic("t").partitions:
        partition.log.roll()
    run()
    broken, *whole = seen
    assert broken == whole[0]
    assert sorted(rows_of(filled.frame(spark))) == sorted(row for batch in whole for row in batch)
    offset = (tmp_path / "c" / "offsets" / "0").read_text().splitlines()[-1]
    assert {"0": 600, "1": 600} == json.loads(offset)["positions"]


def test_a_topic_that_changes_under_a_stream(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    """More partitions are read from their beginning; another topic of the name is an error, and then it is not."""

    def read() -> int:
        return sum(progress["numInputRows"] for progress in filled.stream(spark, tmp_path, **options))

    options: dict[str, Any] = {}
    assert RECORDS == read()
    filled.store.alter_topic("t", partitions=3)
    filled.store.send_many("t", [b"new"] * 30, partition=2)
    filled.store.topic("t").partition(2).log.checkpoint()
    assert 30 == read()
    filled.store.delete_topic("t")
    filled.store.create_topic("t", 2)
    for _ in range(2):
        filled.send(RECORDS)
    for partition in filled.store.topic("t").partitions:
        partition.log.checkpoint()
    with pytest.raises(PySparkException, match="deleted since the checkpoint"):
        read()
    options["failOnDataLoss"] = "false"
    assert RECORDS == read()
    del options["failOnDataLoss"]
    assert 0 == read()


def test_sql(spark: SparkSession, filled: Filled) -> None:
    """Views are read and written; a table is named with its options, which Spark does not hand on."""

    def values(sql: str) -> list[Any]:
        return [row[0] for row in spark.sql(sql).collect()]

    path, named = filled.path, f"(path '{filled.path}', topic 't')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW due USING afterlog OPTIONS {named}")
    assert [RECORDS] == values("SELECT count(*) FROM due")
    spark.sql("DROP TABLE IF EXISTS mail")
    spark.sql(f"CREATE TABLE mail USING afterlog OPTIONS {named}")
    assert [RECORDS] == values(f"SELECT count(*) FROM mail WITH (path = '{path}', topic = 't')")
    with pytest.raises(PySparkException, match=r"WITH .path"):
        values("SELECT count(*) FROM mail")
    spark.sql("DROP TABLE mail")
    filled.store.close()
    columns = "(value BINARY, deliver_after TIMESTAMP, key STRING, headers MAP<STRING, STRING>)"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW later {columns} USING afterlog OPTIONS {named}")
    spark.sql("INSERT INTO later VALUES (CAST('x' AS BINARY), TIMESTAMP'2100-01-01 00:00:00Z', 'k', map('h', '1'))")
    with open_store(filled.path, Config(durability=OS), SystemClock(), None) as store:
        [record] = [each for each in store.pending("t", limit=10_000, key=b"k") if each.value == b"x"]
        assert (b"k", (("h", b"1"),)) == (record.key, record.headers)
