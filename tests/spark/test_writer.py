"""Writing from Spark: all or nothing, and once, whatever Spark tries again."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import afterlog
from afterlog.base.clock import SystemClock
from afterlog.base.errors import InvalidOption, StoreLocked, UnknownTopic
from afterlog.base.files import ReadOnlyFiles
from afterlog.base.locks import Condition
from afterlog.base.names import ADOPTION
from afterlog.produce.adoption import AdoptionLedger
from afterlog.spark import writer as writer_module
from afterlog.spark.options import WriteOptions
from afterlog.spark.writer import AfterlogStreamWriter, AfterlogWriter, checked, job_of

DUE_MS = 4_000_000_000_000
RECORDS = 5_000
"""Of the five millions."""


@pytest.fixture
def location(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with afterlog.open(path) as store:
        store.create_topic("mail", 3)
        store.create_topic("fifo", delayed=False)
    return path


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """Reminders at a hundred instants, with keys, one of them without a time."""
    return spark.range(0, RECORDS, 1, 4).selectExpr(
        "concat('value ', id) AS value",
        "concat('key ', id % 50) AS key",
        f"CASE WHEN id > 0 THEN timestamp_millis({DUE_MS} + id * 7919 % 100 * 1000) END AS deliver_after",
    )


def write(frame: DataFrame, location: Path, **options: Any) -> None:
    frame.write.format("afterlog").option("topic", "mail").options(**options).mode("append").save(str(location))


def stored(location: Path, topic: str = "mail") -> list[tuple[int, bytes | None, bytes | None, int, int]]:
    """(partition, key, value, as asked, effective), in delivery order of each partition."""
    clock = afterlog.ManualClock(DUE_MS + 1_000_000)
    rows = []
    with afterlog.open(location, clock=clock) as store:
        for partition in store.topic(topic).partitions:
            columns, _ = partition.columns(0, 1 << 20, 1 << 30)
            for each in columns.to_messages():
                asked = -1 if each.deliver_after is None else each.deliver_after
                rows.append((partition.number, each.key, each.value, asked, each.due))
        store.check()
    return rows


def values(location: Path) -> Counter[bytes | None]:
    return Counter(row[2] for row in stored(location))


def left(location: Path) -> list[Path]:
    folder = location / ADOPTION
    return sorted(folder.iterdir()) if folder.exists() else []


ALL = Counter(b"value %d" % number for number in range(RECORDS))


def test_millions_of_reminders_are_one_line(frame: DataFrame, location: Path) -> None:
    frame.write.format("afterlog").option("topic", "mail").mode("append").save(str(location))
    rows = stored(location)
    assert ALL == Counter(row[2] for row in rows)
    assert [] == left(location)
    partition_of = {row[1]: row[0] for row in rows}
    assert (50, {0, 1, 2}) == (len(partition_of), set(partition_of.values()))
    with afterlog.open(location) as store:
        topic = store.topic("mail")
        assert all(topic.partition_of(key) == number for key, number in partition_of.items())
    for number, key, value, asked, due in rows:
        assert partition_of[key] == number
        row = int((value or b"").split()[1])
        assert (asked, due) == (DUE_MS + row * 7_919 % 100 * 1_000,) * 2 if row else due < DUE_MS
    assert all(one[4] <= two[4] for one, two in pairwise(rows) if one[0] == two[0])


def test_partitions_headers_and_tombstones(spark: SparkSession, location: Path) -> None:
    frame = spark.sql(
        f"SELECT CAST(NULL AS BINARY) AS value, 2 AS partition, CAST({DUE_MS} AS BIGINT) AS deliver_after, "
        "CAST('k' AS BINARY) AS key, array(named_struct('key', 'h', 'value', CAST('1' AS BINARY))) AS headers"
    )
    write(frame, location, compression="zstd", spreadMs=100)
    assert [(2, b"k", None, DUE_MS, DUE_MS)] == stored(location)
    with afterlog.open(location, clock=afterlog.ManualClock(DUE_MS)) as store:
        columns, _ = store.topic("mail").partition(2).columns(0, 10, 1 << 20)
        assert (("h", b"1"),) == columns.to_messages()[0].headers


def test_a_fifo_topic(frame: DataFrame, location: Path) -> None:
    write(frame.select("value"), location, topic="fifo")
    assert ALL == Counter(row[2] for row in stored(location, "fifo"))
    with pytest.raises(PySparkException, match="InvalidTopic"):
        write(frame, location, topic="fifo")
    assert RECORDS == len(stored(location, "fifo"))
    assert [] == left(location), "Spark aborts what it could not commit"


def test_a_commit_goes_by_the_settings_that_are_kept(frame: DataFrame, tmp_path: Path) -> None:
    """Segments of 16 KiB, that were asked for, were of 1 GiB: nothing was sealed, and nothing uploaded."""
    config = afterlog.Config(segment_bytes=16_384, batch_bytes_max=8_192)
    with afterlog.open(tmp_path / "kept", config=config) as store:
        store.create_topic("mail")
    write(frame, tmp_path / "kept")
    with afterlog.open(tmp_path / "kept") as store:
        sealed = store.topic("mail").log(0).version.sealed
        assert len(sealed) > 5
        assert all(segment.size <= 16_384 for segment in sealed)
        store.check()


def test_a_write_that_is_run_again(frame: DataFrame, location: Path) -> None:
    for _ in range(2):
        write(frame, location, writeId="mail-2096")
    assert ALL == values(location)
    assert {job_of("mail-2096", "mail"): 0} == dict(AdoptionLedger.read(ReadOnlyFiles(), location).adopted)
    write(frame, location)
    assert ALL + ALL == values(location)


def test_a_write_of_nothing_is_remembered_by_its_name(frame: DataFrame, location: Path) -> None:
    for rows in (frame.where("1 = 0"), frame):
        write(rows, location, writeId="mail-2097")
    assert Counter() == values(location), "the name was used, by a write that had no rows"
    write(frame.where("1 = 0"), location)
    assert {job_of("mail-2097", "mail"): 0} == dict(AdoptionLedger.read(ReadOnlyFiles(), location).adopted)


def test_a_write_to_another_topic_is_another_write(frame: DataFrame, location: Path) -> None:
    for topic in ("mail", "fifo"):
        write(frame.select("value"), location, topic=topic, writeId="2096")
    assert ALL == values(location)
    assert ALL == Counter(row[2] for row in stored(location, "fifo"))


def test_a_task_that_fails(spark: SparkSession, frame: DataFrame, location: Path) -> None:
    bad = frame.selectExpr("value", "IF(value = 'value 4999', -5, 5) AS partition")
    with pytest.raises(PySparkException, match="UnknownPartition"):
        write(bad, location)
    assert [] == stored(location)
    assert [] == left(location)


def test_a_store_that_is_open(frame: DataFrame, location: Path) -> None:
    with afterlog.open(location) as store:
        with pytest.raises(PySparkException, match="StoreLocked"):
            write(frame, location, lockTimeoutMs=1)
        assert [] == left(location)
        write(frame, location, adopt="false")
        [done] = store.adopt()
        assert (RECORDS, False) == (done.records, done.again)
    assert ALL == values(location)


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (["value", "key AS due"], {}, "column 'due' of type string"),
        (["value"], {"dueOnly": "true"}, "no option 'dueonly'"),
    ],
)
def test_what_is_wrong_is_told(
    frame: DataFrame, location: Path, columns: list[str], options: dict[str, str], told: str
) -> None:
    with pytest.raises(PySparkException, match=told):
        write(frame.selectExpr(*columns), location, **options)
    assert [] == left(location)


class Stream:
    """Parquet files in, a topic out."""

    def __init__(self, spark: SparkSession, location: Path, folder: Path) -> None:
        self.spark = spark
        self.location = location
        self.folder = folder

    def more(self, first: int, count: int) -> None:
        rows = self.spark.range(first, first + count).selectExpr("concat('value ', id) AS value")
        rows.coalesce(1).write.mode("append").parquet(str(self.folder / "in"))

    def run(self) -> str:
        reader = self.spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1)
        writer = reader.parquet(str(self.folder / "in")).writeStream.format("afterlog").option("topic", "mail")
        writer = writer.option("checkpointLocation", str(self.folder / "c")).option("path", str(self.location))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return str(query.id)

    def forget_the_last_commit(self) -> None:
        """As a driver that died between the sink's commit and Spark's own."""
        for path in (self.folder / "c" / "commits").iterdir():
            if path.name.lstrip(".").startswith("2"):
                path.unlink()


def test_a_stream_that_is_restarted(spark: SparkSession, location: Path, tmp_path: Path) -> None:
    stream = Stream(spark, location, tmp_path)
    for part in range(3):
        stream.more(part * 100, 100)
    query = stream.run()
    assert {query: 2} == dict(AdoptionLedger.read(ReadOnlyFiles(), location).adopted)
    expected = Counter(b"value %d" % number for number in range(300))
    assert expected == values(location)
    stream.forget_the_last_commit()
    stream.more(300, 10)
    assert query == stream.run()
    expected += Counter(b"value %d" % number for number in range(300, 310))
    assert expected == values(location)
    assert {query: 3} == dict(AdoptionLedger.read(ReadOnlyFiles(), location).adopted)
    assert [] == left(location)


class TestCommit:
    """Without Spark's planning: a writer as Spark calls it."""

    @pytest.fixture(autouse=True)
    def _task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Context:
            def partitionId(self) -> int:  # noqa: N802
                return 0

            def getLocalProperty(self, name: str) -> str:  # noqa: N802
                return {writer_module.QUERY_ID: "query", writer_module.BATCH_ID: "7"}[name]

        monkeypatch.setattr(TaskContext, "get", staticmethod(Context))

    @staticmethod
    def rows(frame: DataFrame) -> Any:
        return iter(frame.toArrow().to_batches())

    @staticmethod
    def options(frame: DataFrame, location: Path, **more: str) -> Any:
        return checked(WriteOptions.parse({"path": str(location), "topic": "mail", **more}), frame.schema, False)

    def test_is_tried_again(self, frame: DataFrame, location: Path) -> None:
        writer = AfterlogWriter(*self.options(frame, location))
        messages = [writer.write(self.rows(frame)), writer.write(iter([])), None]
        for _ in range(2):
            writer.commit(messages)
        writer.abort(messages)
        assert ALL == values(location)

    def test_of_a_stream_in_two_parts(self, frame: DataFrame, location: Path) -> None:
        writer = AfterlogStreamWriter(*self.options(frame, location))
        for _ in range(2):
            writer.commit([writer.write(self.rows(frame)), writer.write(self.rows(frame))], 7)
        assert ALL + ALL == values(location)
        assert {"query": 7} == dict(AdoptionLedger.read(ReadOnlyFiles(), location).adopted)
        writer.commit([writer.write(iter([]))], 8)
        assert {"query": 7} == dict(AdoptionLedger.read(ReadOnlyFiles(), location).adopted)

    def test_waits_for_the_store(self, frame: DataFrame, location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        writer = AfterlogWriter(*self.options(frame, location))
        message = writer.write(self.rows(frame))
        holder = afterlog.open(location)
        wait, ours = SystemClock.wait, threading.current_thread()

        def closing(clock: SystemClock, condition: Condition, *times: Any) -> None:
            """Where the writer waits; threads of the holder wait as ever."""
            if threading.current_thread() is ours:
                holder.close()
            else:
                wait(clock, condition, *times)

        monkeypatch.setattr(SystemClock, "wait", closing)
        writer.commit([message])
        assert ALL == values(location)
        options = self.options(frame, location, lockTimeoutMs="0")
        with afterlog.open(location), pytest.raises(StoreLocked):
            AfterlogWriter(*options).commit([message])

    def test_what_a_writer_needs(self, frame: DataFrame, location: Path) -> None:
        with pytest.raises(InvalidOption):
            checked(WriteOptions(location=location, topic="mail"), frame.schema, True)
        with pytest.raises(UnknownTopic):
            checked(WriteOptions(location=location, topic="u"), frame.schema, False)
