"""Cancels by a DataFrame, in a folder and through a server."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import afterlog
from afterlog.base.clock import SystemClock
from afterlog.base.config import OS, Config
from afterlog.base.errors import InvalidOption, InvalidRecord, StoreLocked, UnknownPartition, UnknownTopic
from afterlog.spark import cancel_job
from afterlog.spark.cancel_job import cancel
from afterlog.store.store import Store, open_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """500 pending records in each of two partitions, and some that are due."""
    with open_store(tmp_path / "store", Config(durability=OS), SystemClock(), None, background=False) as store:
        store.create_topic("mail", 2)
        store.create_topic("a-b", 1)
        for number in range(2):
            store.send_many("mail", [b"later"] * 500, delay=3_600, partition=number)
        store.send_many("mail", [b"now"] * 10, partition=1)
        store.send_many("a-b", [b"later"] * 5, delay=3_600)
    return tmp_path / "store"


def opened(folder: Path) -> Store:
    return open_store(folder, Config(durability=OS), SystemClock(), None, background=False)


def test_by_id(spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel_job, "CALL_RECORDS", 7)
    ids = [f"mail-{number}@{offset}" for number in range(2) for offset in range(0, 520, 5)] + ["a-b-0@3", "a-b-0@3"]
    frame = spark.createDataFrame([(each, "more") for each in ids], "id STRING, more STRING")
    rows = cancel(spark, folder, frame).collect()
    assert len(set(ids)) == len(rows)
    assert sorted((row.topic, row.partition, row.offset) for row in rows) == [
        (row.topic, row.partition, row.offset) for row in rows
    ]
    found = Counter((row.topic, row.result) for row in rows)
    assert {
        ("mail", "cancelled"): 200, ("mail", "already_delivered"): 2, ("mail", "unknown"): 6, ("a-b", "cancelled"): 1,
    } == found  # fmt: skip
    with opened(folder) as store:
        assert [400, 400] == [each.pending() for each in store.topic("mail").partitions]
        assert [0, 1, 2, 4] == [each.offset for each in store.pending("a-b")]
        store.check()
    again = Counter(row.result for row in cancel(spark, folder, frame).collect())
    assert {"already_cancelled": 201, "already_delivered": 2, "unknown": 6} == again


def test_of_a_read_through_a_server(spark: SparkSession, folder: Path) -> None:
    pending = spark.read.format("afterlog").options(topic="mail", dueOnly="false").load(str(folder))
    some = pending.where("partition = 1 AND offset % 2 = 0").select("topic", "partition", "offset", "value")
    rows = some.toArrow()
    with afterlog.open(folder, serve=True) as store:
        done = cancel(spark, f"unix:{folder / 'server.sock'}", spark.createDataFrame(rows))
        assert Counter({"cancelled": 250, "already_delivered": 5}) == Counter(row.result for row in done.collect())
        assert [500, 250] == [each.pending() for each in store.topic("mail").partitions]
        with pytest.raises(StoreLocked):
            cancel(spark, folder, some, lock_timeout_ms=1)


def test_nothing_is_cancelled_where_something_is_wrong(spark: SparkSession, folder: Path) -> None:
    def refused(error: type[Exception], told: str, rows: list[tuple[object, ...]], ddl: str) -> None:
        with pytest.raises(error, match=told):
            cancel(spark, folder, spark.createDataFrame(rows, ddl))

    place = "topic STRING, partition INT, offset BIGINT"
    refused(UnknownTopic, "'none'", [("mail", 0, 1), ("none", 0, 1)], place)
    refused(UnknownPartition, "7", [("mail", 0, 1), ("mail", 7, 1)], place)
    refused(InvalidRecord, "is null", [("mail", 0, 1), ("mail", None, 1)], place)
    refused(InvalidRecord, "'mail@3' names no record", [("mail-0@1",), ("mail@3",)], "id STRING")
    refused(InvalidRecord, "None names no record", [("mail-0@1",), (None,)], "id STRING")
    refused(InvalidOption, "a column id, or by topic, partition, offset", [("mail", 1)], "topic STRING, offset BIGINT")
    frame = spark.createDataFrame([("mail-0@1",)], "id STRING")
    for location, told in (("s3://bucket/x", "not in s3"), (folder / "none", "there is no store")):
        with pytest.raises(InvalidOption, match=told):
            cancel(spark, location, frame)
    assert [] == cancel(spark, folder, frame.where("1 = 0")).collect()
    with opened(folder) as store:
        assert [500, 500] == [each.pending() for each in store.topic("mail").partitions]
