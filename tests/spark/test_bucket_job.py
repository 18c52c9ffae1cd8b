"""The bucket job on Spark: what a store makes of the buckets, and what is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from afterlog.base.errors import CorruptFile, StoreLocked, UnknownTopic
from afterlog.base.files import OsFiles
from afterlog.base.names import LOCK
from afterlog.index.entries import Entries
from afterlog.index.merge import merged
from afterlog.index.run import Run
from afterlog.spark import bucket_job
from afterlog.spark.bucket_job import ONE_RUN, merge_buckets
from afterlog.spark.bucket_plan import NO_RUN, find_runs
from afterlog.spark.location import ACTIVE
from tests.index.support import rows_of
from tests.spark.backlog import CONFIG, RECORDS, TOPICS, delivered, opened, write_backlog
from tests.support import NOW_MS, flipped


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "store"
    write_backlog(None, folder)
    return folder


@pytest.fixture
def store(tmp_path: Path, written: Path) -> Path:
    """A copy."""
    return shutil.copytree(written, tmp_path / "store")


def rows_of_job(frame: DataFrame) -> list[dict[str, Any]]:
    """But for what it has left in active segments."""
    return [row.asDict() for row in frame.collect() if row.reason != ACTIVE]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_the_engine_would_have_merged(spark: SparkSession, store: Path, written: Path) -> None:
    sources = find_runs(OsFiles(), store)
    of_topic = {topic: [source for source in sources if source.topic == topic] for topic in TOPICS}
    own = [
        Entries.concatenate(list(merged([Run.open(OsFiles(), each.path) for each in group], after=group[0].after)))
        for group in of_topic.values()
    ]
    left_out = [
        sum(each.entries for each in group) - len(kept) for group, kept in zip(of_topic.values(), own, strict=True)
    ]
    assert [False, True] == [count > 0 for count in left_out]
    before = files_of(store)
    done = rows_of_job(merge_buckets(spark, store, config=CONFIG, tasks=3))
    assert [("t", 0, "merged", None), ("u", 0, "merged", None)] == [
        (row["topic"], row["partition"], row["action"], row["reason"]) for row in done
    ]
    for row, entries in zip(done, own, strict=True):
        run = Run.open(OsFiles(), Path(row["path"]))
        run.check()
        assert rows_of(entries) == rows_of(run.entries())
        records, due = int(entries.records.sum()), entries.deliver_after
        group = of_topic[row["topic"]]
        covered = group[0].coverage.first_offset, group[-1].coverage.end_offset
        expected = (*covered, len(entries), records, due[0], due[-1], Path(row["path"]).stat().st_size)
        names = ("first_offset", "end_offset", "entries", "records", "min_due", "max_due", "bytes")
        assert expected == tuple(row[name] for name in names)
        assert len(group) == row["sources"] > 3
    added = {name for name in files_of(store) if name not in before}
    assert {str(Path(row["path"]).relative_to(store)) for row in done} == added
    again = rows_of_job(merge_buckets(spark, store, TOPICS, config=CONFIG))
    same = ("first_offset", "end_offset", "entries", "records", "min_due", "max_due", "bytes", "path")
    assert [[row[name] for name in same] for row in done] == [[row[name] for name in same] for row in again]
    assert {("skipped", 1, ONE_RUN)} == {(row["action"], row["sources"], row["reason"]) for row in again}
    values = delivered(None, store)
    assert not [source.path for source in sources if source.path.exists()]
    assert values == delivered(None, shutil.copytree(written, store.with_name("without")))


def test_what_is_active_is_told_or_sealed(spark: SparkSession, store: Path) -> None:
    def job(**more: Any) -> list[Any]:
        return merge_buckets(spark, store, ["t"], config=CONFIG, **more).collect()

    [*_, left] = told = job()
    assert ("t", 0, "active", 0, ACTIVE) == (left.topic, left.partition, left.action, left.sources, left.reason)
    assert told[-2].end_offset == left.first_offset < left.end_offset
    [bucket] = job(roll=True)
    assert ("merged", 0, left.end_offset) == (bucket.action, bucket.first_offset, bucket.end_offset)


def test_what_is_rotten_is_told_and_the_rest_is_done(spark: SparkSession, store: Path) -> None:
    paths = [source.path for source in find_runs(OsFiles(), store, ["t"])]
    paths[2].write_bytes(flipped(paths[2].read_bytes(), 70))
    paths[-1].unlink()
    done = rows_of_job(merge_buckets(spark, store, ["t"], config=CONFIG))
    assert [("merged", 2), ("corrupt", 0), ("merged", len(paths) - 4), ("skipped", 0)] == [
        (row["action"], row["sources"]) for row in done
    ]
    names = ("path", "position", "reason")
    assert (str(paths[2]), 64, "chunk 0 fails its checksum") == tuple(done[1][name] for name in names)
    assert (str(paths[-1]), None, NO_RUN) == tuple(done[3][name] for name in names)
    paths[2].unlink()
    assert RECORDS == len(delivered(None, store)[0])


def test_a_job_that_fails_publishes_nothing_half(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(store)

    def killed(*args: Any, **settings: Any) -> Run:
        assert any(name.endswith(".tmp") for name in files_of(store))
        raise KeyboardInterrupt

    monkeypatch.setattr(bucket_job, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        merge_buckets(spark, store, ["t"], config=CONFIG, tasks=2)
    assert before == files_of(store)

    monkeypatch.setattr(bucket_job, "cut_keys", lambda runs, count: ["no key"])
    with pytest.raises(PySparkException):
        merge_buckets(spark, store, ["t"], config=CONFIG)
    assert before == files_of(store)


def test_not_while_it_is_open_nor_where_there_is_none(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    with opened(None, store, NOW_MS), pytest.raises(StoreLocked):
        merge_buckets(spark, store)
    with pytest.raises(UnknownTopic):
        merge_buckets(spark, store, ["v"])
    (store / "t-0" / "checkpoints").write_bytes(b"")
    with pytest.raises(CorruptFile):
        merge_buckets(spark, store)
    OsFiles().lock(store / LOCK).release()
    with pytest.raises(FileNotFoundError):
        merge_buckets(spark, tmp_path)
    assert not (tmp_path / LOCK).exists()
