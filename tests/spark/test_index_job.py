"""The index job on Spark: what it makes of segments that another client library wrote, and of those of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from afterlog.base.clock import ManualClock
from afterlog.base.config import OS, Config
from afterlog.base.errors import UnknownTopic
from afterlog.base.names import DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX, segment_file
from afterlog.log.build import SegmentToIndex
from afterlog.records.encode import parse
from afterlog.records.times import AS_SOON_AS_POSSIBLE
from afterlog.spark.bucket_job import merge_buckets
from afterlog.spark.index_job import build_indexes, index_group
from afterlog.spark.upload_job import upload_segments
from afterlog.store.store import open_store
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_url import open_remote
from tests.log.kafka_log import KafkaSegment, run_of, some_segment, stamped
from tests.support import NOW_MS, flipped

LEFT_OUT = ("control_batches", "aborted_batches", "uncommitted_batches")
SEGMENTS = 64
INDEXES = (OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX)
CONFIG = Config(
    durability=OS, index_interval_bytes=256, max_indexes_per_bucket_snapshot_segment=4, segment_bytes=1 << 20,
    batch_bytes_max=1 << 18,
)  # fmt: skip


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def indexes(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.suffix in INDEXES)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def written() -> list[KafkaSegment]:
    """64 segments of one partition, each after the one before it."""
    segments, offset = [], 0
    for number in range(SEGMENTS):
        segments.append(some_segment(number, offset))
        offset = segments[-1].end_offset
    return segments


@pytest.fixture
def kafka(tmp_path: Path, written: list[KafkaSegment]) -> Path:
    folder = tmp_path / "kafka" / "orders-3"
    folder.mkdir(parents=True)
    for segment in written:
        (folder / segment_file(segment.base_offset, LOG)).write_bytes(segment.log)
    return folder.parent


def embedded(folder: Path, written: list[KafkaSegment]) -> dict[str, bytes]:
    """The same batches through a store: a FIFO topic's log is a Kafka log. Runs come out of a mutable bucket."""
    found = {}
    with open_store(folder / "store", CONFIG, ManualClock(NOW_MS), None) as store:
        partition = store.create_topic("orders", delayed=False).partition(0)
        for segment in written:
            for batch in segment.batches:
                partition.log.append(parse(stamped(batch, 0), AS_SOON_AS_POSSIBLE, CONFIG))
            partition.log.roll()
    for segment in written:
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            name = segment_file(segment.base_offset, suffix)
            found[f"orders-3/{name}"] = (folder / "store" / "orders-0" / name).read_bytes()
        run = run_of(folder, segment, CONFIG)
        found[f"orders-3/{segment_file(segment.base_offset, DELIVER_AFTER_INDEX)}"] = run
    return found


def test_64_segments_of_another_encoder(
    spark: SparkSession, kafka: Path, tmp_path: Path, written: list[KafkaSegment]
) -> None:
    done = rows_of(build_indexes(spark, kafka, config=CONFIG, tasks=5))
    assert embedded(tmp_path, written) == indexes(kafka)
    assert [segment.base_offset for segment in written] == [row["base_offset"] for row in done]
    for segment, row in zip(written, done, strict=True):
        dues = [entry[0] for entry in segment.entries]
        expected = ("orders", 3, "built", 5, segment.end_offset - segment.base_offset, min(dues), max(dues))
        names = ("topic", "partition", "action", "entries", "records", "min_due", "max_due")
        assert expected == tuple(row[name] for name in names)
        assert (segment.size, None) == (row["bytes"], row["reason"])
    again = rows_of(build_indexes(spark, kafka, ["orders"], config=CONFIG))
    assert ["skipped"] * SEGMENTS == [row["action"] for row in again]
    for row in done:
        assert (0, 0, 0) == tuple(row.pop(name) for name in LEFT_OUT)
    for row in again:  # the log was not read
        assert (None, None, None) == tuple(row.pop(name) for name in LEFT_OUT)
    assert [{**row, "action": "", "seconds": 0} for row in done] == [
        {**row, "action": "", "seconds": 0} for row in again
    ]


def test_what_is_rotten_is_told_and_the_rest_is_done(
    spark: SparkSession, kafka: Path, written: list[KafkaSegment]
) -> None:
    bad = written[7]
    path = kafka / "orders-3" / segment_file(bad.base_offset, LOG)
    path.write_bytes(flipped(bad.log, bad.size - 1))
    abandoned = path.with_name(f"{path.stem}.index.{'0' * 32}.tmp")
    abandoned.write_bytes(b"what a killed job left")
    done = rows_of(build_indexes(spark, kafka, config=CONFIG))
    assert {"built": SEGMENTS - 1, "corrupt": 1} == {
        action: sum(row["action"] == action for row in done) for action in ("built", "corrupt")
    }
    assert (str(path), bad.entries[-1][2]) == (done[7]["path"], done[7]["position"])
    assert 3 * (SEGMENTS - 1) == len(indexes(kafka))
    assert not abandoned.exists()
    first = kafka / "orders-3" / segment_file(written[0].base_offset, TIME_INDEX)
    first.write_bytes(flipped(first.read_bytes(), 3))
    verified = rows_of(build_indexes(spark, kafka, verify_only=True, config=CONFIG))
    assert ["corrupt", "verified"] == [row["action"] for row in verified[:2]]
    assert str(first) == verified[0]["path"]


def test_sealed_segments_of_a_store_that_is_open(spark: SparkSession, tmp_path: Path) -> None:
    config = Config(durability=OS, segment_bytes=4_096, batch_bytes_max=2_048)
    with open_store(tmp_path, config, ManualClock(NOW_MS), None) as store:
        for topic in ("a", "b"):
            partition = store.create_topic(topic).partition(0)
            store.send_many(topic, [b"v" * 50] * 200, deliver_after=[NOW_MS + number % 7 for number in range(200)])
        before = indexes(tmp_path)
        for name in before:
            if name.startswith("b-0/0") and not name.startswith(f"b-0/{partition.log.version.active.path.stem}"):
                (tmp_path / name).unlink()
        done = rows_of(build_indexes(spark, tmp_path, config=config))
        assert {("a", "skipped"), ("b", "built")} == {(row["topic"], row["action"]) for row in done}
        assert before == indexes(tmp_path)
        store.check()
    with pytest.raises(UnknownTopic):
        build_indexes(spark, tmp_path, ["c"])


def test_object_storage(spark: SparkSession, tmp_path: Path, written: list[KafkaSegment]) -> None:
    """Kafka segments: what a folder would hold is put beside them. Listed ones: an index that is gone is made good."""
    storage = tmp_path / "storage"
    (storage / "orders-3").mkdir(parents=True)
    for segment in written[:4]:
        (storage / "orders-3" / segment_file(segment.base_offset, LOG)).write_bytes(segment.log)
    url = f"file://{storage}"

    def job(**more: Any) -> list[dict[str, Any]]:
        return rows_of(build_indexes(spark, url, config=CONFIG, tasks=2, scratch=tmp_path, **more))

    assert ["built"] * 4 == [row["action"] for row in job()]
    built = indexes(storage)
    copy = tmp_path / "kafka" / "orders-3"
    copy.mkdir(parents=True)
    for segment in written[:4]:
        (copy / segment_file(segment.base_offset, LOG)).write_bytes(segment.log)
    build_indexes(spark, copy.parent, config=CONFIG, tasks=1)
    assert indexes(copy.parent) == built

    upload_segments(spark, copy.parent, url, ["orders"], config=CONFIG, tasks=1)
    manifest = Manifest(open_remote(url), "orders-3")
    first, *_ = manifest.listed()
    gone = manifest.object_key(first, TIME_INDEX)
    (storage / gone).unlink()
    told = job(topics=["orders"], verify_only=True)
    assert [("corrupt", gone), *[("verified", None)] * 3] == [(row["action"], row["path"]) for row in told]
    assert ["built", *["skipped"] * 3] == [row["action"] for row in job()]
    assert ["verified"] * 4 == [row["action"] for row in job(verify_only=True)]
    assert sorted(["storage", "kafka"]) == sorted(path.name for path in tmp_path.iterdir())


def test_nothing_to_do(spark: SparkSession, tmp_path: Path) -> None:
    assert [] == rows_of(build_indexes(spark, tmp_path))
    with pytest.raises(FileNotFoundError):
        build_indexes(spark, tmp_path / "nowhere")


def test_a_task_without_spark(tmp_path: Path) -> None:
    segment = some_segment(1, 0)
    path = tmp_path / segment_file(0, LOG)
    path.write_bytes(segment.log)
    group = [SegmentToIndex(topic="t", partition=0, base_offset=0, path=path, log_bytes=segment.size)]
    assert ["built", "skipped"] == [
        row.action for _ in range(2) for row in index_group(group, CONFIG, verify_only=False)
    ]


def test_segments_that_were_cleaned(spark: SparkSession, tmp_path: Path) -> None:
    """Their logs have gaps, and names of a generation; a bucket over them knows of which."""
    clock = ManualClock(NOW_MS)
    with open_store(tmp_path / "data", CONFIG, clock, None, background=False) as store:
        store.create_topic("mail", retention_ms=0)
        log = store.topic("mail").log(0)
        for _ in range(3):
            due = [NOW_MS + 5] * 9 + [NOW_MS + 10**8]
            store.send_many("mail", [b"v"] * 10, deliver_after=due)
            log.roll()
        clock.advance(100)
        log.clean()  # nothing is worn yet
        store.purge("mail")
        log.weigh()
        assert 3 == log.clean(thorough=True).segments
        store.send_many("mail", [b"w"] * 3, deliver_after=[NOW_MS + 10**8] * 3)
        log.roll()
    files = sorted(path.name for path in (tmp_path / "data" / "mail-0").glob("*.1.*"))
    assert ["00000000000000000009.1.deliverafterindex", "00000000000000000009.1.index"] == files[:2]
    (tmp_path / "data" / "mail-0" / files[0]).unlink()
    built = rows_of(build_indexes(spark, tmp_path / "data", config=CONFIG))
    assert ["built", "skipped"] == [row["action"] for row in built]
    assert [3, 3] == [row["records"] for row in built]
    checked = rows_of(build_indexes(spark, tmp_path / "data", config=CONFIG, verify_only=True))
    assert {"verified"} == {row["action"] for row in checked}
    assert 1 == len(rows_of(merge_buckets(spark, tmp_path / "data")))
    assert ["00000000000000000009-00000000000000000033.1.deliverafterindex"] == [
        path.name for path in (tmp_path / "data" / "mail-0" / "buckets").iterdir()
    ]
    with open_store(tmp_path / "data", CONFIG, clock, None, background=False) as store:
        store.check()
        assert [9, 19, 29, 30, 31, 32] == [record.offset for record in store.pending("mail")]
