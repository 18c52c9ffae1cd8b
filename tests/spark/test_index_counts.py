"""Counts and histograms from indexes, held against the store's own and against records that were read."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from afterlog.base.clock import SystemClock
from afterlog.base.config import OS, Config
from afterlog.base.errors import InvalidOption, UnknownTopic
from afterlog.spark import index_counts as counts_module
from afterlog.spark.index_counts import counts, due_histogram
from afterlog.store.store import Store, open_store

HOUR_MS = 3_600_000
START_MS = 4_102_444_800_000  # 2100
DUE = [START_MS + number * 7_919_000 % (50 * HOUR_MS) for number in range(2_000)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(tmp_path / "store", Config(durability=OS), SystemClock(), None, background=False)
    store.create_topic("mail", 2)
    store.create_topic("fifo", delayed=False)
    store.send_many("fifo", [b"x"] * 7)
    for number in range(2):
        due = DUE[number::2]
        store.send_many("mail", [b"v"] * len(due), deliver_after=due, partition=number)
    store.send_many("mail", [b"now"] * 5, partition=0)
    store.cancel_many("mail", 0, range(10))
    return store


def test_counts_are_those_of_the_store(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    expected = [
        (each.topic, each.number, *each.counts()) for name in ("fifo", "mail") for each in store.topic(name).partitions
    ]
    store.close()

    def found(*topics: str) -> list[tuple[object, ...]]:
        rows = counts(spark, tmp_path / "store", topics or None).collect()
        assert all(row.bytes > 0 < row.segments for row in rows)
        return [
            (row.topic, row.partition, row.pending, row.due, row.pending + row.due, row.next_due, row.log_end_offset)
            for row in rows
        ]

    told = [(*row[:2], row[2], row[3], row[2] + row[3], row[5], row[6]) for row in expected]
    assert told == found()
    assert told[1:] == found("mail")
    with pytest.raises(UnknownTopic, match="'none'"):
        counts(spark, tmp_path / "store", ["mail", "none"])


def test_a_histogram_is_that_of_the_records(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    cancelled = set(range(10))
    expected = Counter(ms // HOUR_MS * HOUR_MS for row, ms in enumerate(DUE) if row % 2 or row // 2 not in cancelled)
    store.close()
    rows = due_histogram(spark, tmp_path / "store", "mail").collect()
    assert expected == Counter({row.from_ms: row.records for row in rows if row.records})
    assert all(row.to_ms - row.from_ms == HOUR_MS for row in rows)
    assert [row.to_ms for row in rows[:-1]] == [row.from_ms for row in rows[1:]]
    some = due_histogram(
        spark, tmp_path / "store", "mail", timedelta(minutes=20),
        start=datetime(2100, 1, 1, 1, 30, tzinfo=UTC), end=START_MS + 3 * HOUR_MS,
    ).collect()  # fmt: skip
    inside = [
        ms for row, ms in enumerate(DUE) if 1.5 * HOUR_MS <= ms - START_MS < 3 * HOUR_MS and (row % 2 or row > 19)
    ]
    assert (len(inside), START_MS + HOUR_MS * 4 // 3) == (sum(row.records for row in some), some[0].from_ms)
    past = due_histogram(spark, tmp_path / "store", "mail", timedelta(days=36_525), start=0).collect()
    assert 2_000 - 10 + 5 == sum(row.records for row in past)
    assert [] == due_histogram(spark, tmp_path / "store", "mail", end=1, start=1).collect()


def test_what_cannot_be_asked(
    spark: SparkSession, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    for bucket in (timedelta(0), timedelta(microseconds=1), timedelta(hours=-1)):
        with pytest.raises(InvalidOption, match="whole milliseconds"):
            due_histogram(spark, tmp_path / "store", "mail", bucket)
    monkeypatch.setattr(counts_module, "BUCKETS_MAX", 10)
    with pytest.raises(InvalidOption, match="buckets, of 10 at most"):
        due_histogram(spark, tmp_path / "store", "mail")
    with pytest.raises(InvalidOption, match="leave remote out"):
        counts(spark, "s3://bucket/prefix", remote="s3://other")
    with pytest.raises(FileNotFoundError):
        counts(spark, tmp_path / "nowhere")


def test_of_object_storage(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    with open_store(
        tmp_path / "store", Config(durability=OS), SystemClock(), None, str(tmp_path / "storage"), background=False
    ) as store:
        store.create_topic("mail", remote_storage_enable=True)
        store.send_many("mail", [b"v"] * len(DUE), deliver_after=DUE)
        store.offload(roll=True)
    url = f"file://{tmp_path / 'storage'}"
    [row] = counts(spark, url).collect()
    assert ("mail", 0, 2_000, DUE[0]) == (row.topic, row.partition, row.pending, row.next_due)
    rows = due_histogram(spark, url, "mail", timedelta(days=1)).collect()
    assert 2_000 == sum(each.records for each in rows)
