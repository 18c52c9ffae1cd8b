"""The upload job: what it makes of segments, without Spark where that is enough, and on Spark."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from afterlog.base.clock import ManualClock
from afterlog.base.config import OS, Config
from afterlog.base.errors import RemoteConflict, StoreLocked
from afterlog.base.files import Files, OsFiles
from afterlog.base.names import DELIVER_AFTER_INDEX, LOG, segment_file
from afterlog.log.build import EMPTY, UNSEEN, SegmentToIndex, index_segment
from afterlog.log.scan import read_log
from afterlog.spark import upload_job
from afterlog.spark.index_job import build_indexes
from afterlog.spark.location import ACTIVE, find_segments
from afterlog.spark.upload_job import (
    LISTED,
    LISTED_BEFORE,
    NO_INDEXES,
    RETAINED,
    SWEPT,
    UploadedSegment,
    batches,
    upload_batch,
    upload_segments,
)
from afterlog.store.store import open_store
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_segment import RemoteSegment, SegmentState
from afterlog.tier.scrub import scrub
from afterlog.tier.unlisted import rows_over
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.fetch.test_foreign import in_due_order, records_of, seen
from tests.log.kafka_log import marker, some_segment
from tests.support import NOW_MS, PATH, Calls, content, drained, flipped, open_small, small, with_file
from tests.tier.faulty_remote_store import Crashed, Fault, FaultyRemoteStore, fault_at
from tests.tier.support import REMOTE, attempt, row, swept

Row = tuple[str, str | None]


def filled() -> SimulatedFiles:
    """A store whose runs were merged, and a folder for a storage."""
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS), max_num_buckets=2) as store:
        partition = store.create_topic("t", retention_ms=1_000).partition(0)
        store.send_many("t", [b"v" * 50] * 250, deliver_after=[NOW_MS + number % 50 for number in range(250)])
        partition.log.merge_buckets()
    disk.make_folder(REMOTE)
    return disk


def clean(disk: SimulatedFiles, elapsed_ms: int = 1_025) -> int:
    """What was due before the last second is past its retention; how many segments were written anew."""
    clock = ManualClock(NOW_MS)
    with open_small(disk, clock, max_num_buckets=2) as store:
        clock.advance(elapsed_ms)
        store.topic("t").partition(0).fetch(0)
        return store.clean("t")


def sealed_offsets(disk: SimulatedFiles) -> list[int]:
    """The offsets of the entries that are sealed in the folder."""
    segments = find_segments(disk, PATH)
    return [
        offset
        for segment in segments
        for offset in read_log(disk, segment.path, segment.base_offset).whole().entries.offset.tolist()
    ]


def entries_of(manifest: Manifest, row: RemoteSegment) -> list[int]:
    """The same of a segment that is listed."""
    [log] = manifest.remote.get_ranges(manifest.object_key(row, LOG), [(0, row.log_bytes)])
    disk = SimulatedFiles()
    disk.make_folder(PATH)
    path = PATH / segment_file(row.base_offset, LOG)
    return read_log(with_file(disk, path, bytes(log)), path, row.base_offset).whole().entries.offset.tolist()


def manifest_on(disk: Files) -> Manifest:
    return Manifest(DirectoryStore(disk, REMOTE), "t-0")


def uploaded(
    disk: Files, batch: list[SegmentToIndex] | None = None, manifest: Manifest | None = None
) -> list[UploadedSegment]:
    found = find_segments(disk, PATH) if batch is None else batch
    scratch = Path("/scratch")
    if not disk.exists(scratch):
        disk.make_folder(scratch)
    try:
        return upload_batch(disk, manifest or manifest_on(disk), found, small(), ManualClock(NOW_MS), scratch)
    finally:
        for name in disk.names(scratch):
            disk.unlink(scratch / name)


def told(rows: list[UploadedSegment]) -> list[Row]:
    return [(row.action, row.reason) for row in rows]


class TestBatches:
    def test_all_of_a_store_then_none(self) -> None:
        disk = filled()
        first = uploaded(disk)
        listed = manifest_on(disk).listed()
        assert [("uploaded", None)] * len(listed) == told(first)
        assert [(row.base_offset, row.end_offset, row.attempt) for row in listed] == [
            (row.base_offset, row.end_offset, row.attempt) for row in first
        ]
        assert {row.files[LOG].size for row in listed} == {row.bytes for row in first}
        assert all(DELIVER_AFTER_INDEX in row.files for row in listed)
        assert len(listed) > 3
        again = uploaded(disk)
        assert [("skipped", LISTED)] * len(listed) == told(again)
        assert [row.attempt for row in first] == [row.attempt for row in again]
        assert [] == scrub(manifest_on(disk), deep=True)

    def test_what_is_rotten_or_another_logs_is_told_and_the_rest_goes_up(self) -> None:
        disk = filled()
        segments = find_segments(disk, PATH)
        data = content(disk, segments[1].path)
        disk = with_file(disk, segments[1].path, flipped(data, len(data) - 1))
        manifest = manifest_on(disk)
        manifest.update(lambda rows: (replace(row(7), base_offset=0, end_offset=1),))
        rows = uploaded(disk)
        assert ["refused", "corrupt", *["uploaded"] * (len(rows) - 2)] == [row.action for row in rows]
        assert "another log" in (rows[0].reason or "")
        assert (str(segments[1].path), True) == (rows[1].path, 0 < (rows[1].position or 0) < len(data))
        assert len(rows) - 1 == len(manifest.read())

    def test_a_log_that_rotted_since_is_not_what_is_listed(self) -> None:
        disk = filled()
        first = uploaded(disk)
        path = find_segments(disk, PATH)[0].path
        data = content(disk, path)
        again = uploaded(with_file(disk, path, flipped(data, len(data) - 1)))
        assert ["corrupt", *["skipped"] * (len(first) - 1)] == [row.action for row in again]

    def test_what_retention_takes_meanwhile_is_gone(self) -> None:
        disk = filled()
        segments = find_segments(disk, PATH)
        left = with_file(disk, segments[0].path, None)
        assert ["corrupt", "uploaded"] == [row.action for row in uploaded(left, segments[:2])]
        clock = ManualClock(NOW_MS)
        with open_small(disk, clock) as store:
            clock.advance(1_000_000)
            store.topic("t").partition(0).fetch(0)
            assert store.topic("t").partition(0).log.enforce_retention() > 1
        assert [("skipped", RETAINED)] * 2 == told(uploaded(disk, segments[:2]))
        assert () == manifest_on(disk).read()

    def test_a_temporary_run_that_was_swept(self) -> None:
        disk, calls = filled(), Calls()
        merged = next(each for each in find_segments(disk, PATH) if not each.has_run)
        calls.fail("open", ".tmp", FileNotFoundError(2, "swept"))
        rows = uploaded(FailingFiles(disk, calls), [merged])
        assert [("refused", SWEPT)] == told(rows)
        assert ["uploaded"] == [row.action for row in uploaded(disk, [merged])]

    def test_a_storage_that_does_not_answer(self) -> None:
        disk = filled()
        manifest = manifest_on(disk)
        for call in (1, 3, 4):
            breaking = Manifest(FaultyRemoteStore(manifest.remote, fault_at(call, Fault.BEFORE)), "t-0")
            rows = uploaded(disk, manifest=breaking)
            assert {("refused", "nothing was done")} == set(told(rows))
            assert () == manifest.listed()
        assert {"uploaded"} == {row.action for row in uploaded(disk)}
        assert [] == swept(manifest)

    def test_a_job_that_is_killed_is_run_again(self) -> None:
        """Whatever was done: nothing is listed twice, all is listed in the end, and no file is left beside the log."""
        call = 0
        while True:
            call += 12
            disk = filled()
            names, batch = disk.names(PATH / "t-0"), find_segments(disk, PATH)[:3]
            manifest = manifest_on(disk)
            killed = FaultyRemoteStore(manifest.remote, fault_at(call, Fault.CRASH_AFTER))
            with contextlib.suppress(Crashed):
                uploaded(disk, batch, Manifest(killed, "t-0"))
            rows = uploaded(disk, batch)
            assert [(row.base_offset, row.attempt) for row in rows] == [
                (row.base_offset, row.attempt) for row in manifest.listed()
            ]
            assert [] == swept(manifest)
            assert names == disk.names(PATH / "t-0")
            if killed.calls < call:
                assert call > 36
                return

    def test_what_was_cleaned_since_is_listed_already(self) -> None:
        """It was refused: the archive has more of these offsets than the folder."""
        disk = filled()
        uploaded(disk)
        listed = manifest_on(disk).listed()
        assert clean(disk) > 0
        rows = uploaded(disk)
        assert {("skipped", LISTED_BEFORE)} == {(row.action, row.reason) for row in rows if row.reason != LISTED}
        assert listed == manifest_on(disk).listed()

    @pytest.mark.parametrize("elapsed_ms", [1_025, 1_045])
    def test_of_what_was_cleaned_the_rest_goes_up(self, elapsed_ms: int) -> None:
        """Segments were joined of which the archive has some, in front, in between and behind."""
        disk = filled()
        found = find_segments(disk, PATH)
        first = uploaded(disk, found[3:4] + found[6:7])
        assert ["uploaded"] * 2 == [row.action for row in first]
        assert clean(disk, elapsed_ms) > 0
        joined = find_segments(disk, PATH)
        assert len(joined) < len(found)
        rows = uploaded(disk)
        assert {("uploaded", None), ("skipped", LISTED), ("skipped", LISTED_BEFORE)} >= {*told(rows)}
        spans = [(each.base_offset, each.mark.end_offset) for each in joined if each.mark is not None]
        parts = [sum(base <= row.base_offset < end for row in rows) for base, end in spans]
        assert max(parts) == (3 if elapsed_ms > 1_030 else 1)
        manifest = manifest_on(disk)
        assert {row.attempt for row in first} < {row.attempt for row in manifest.listed()}
        assert [] == scrub(manifest, deep=True)
        assert [] == swept(manifest)
        held = [offset for row in manifest.listed() for offset in entries_of(manifest, row)]
        assert held == sorted(set(held))
        assert {*sealed_offsets(disk)} <= {*held}
        assert {("skipped", LISTED_BEFORE), ("skipped", LISTED)} >= {*told(uploaded(disk))}

    def test_a_cleaned_segment_over_another_logs_is_refused(self) -> None:
        disk = filled()
        uploaded(disk)
        assert clean(disk) > 0
        other = SimulatedFiles()
        with open_small(other, ManualClock(NOW_MS), max_num_buckets=2) as store:
            store.create_topic("t", retention_ms=1_000)
            store.send_many("t", [b"v" * 50] * 250, deliver_after=[NOW_MS + 1 + number % 49 for number in range(250)])
        other.make_folder(REMOTE)
        manifest = manifest_on(other)
        uploaded(other)
        rows = uploaded(disk, manifest=manifest)
        assert {"refused"} == {row.action for row in rows}
        assert all("another log" in (row.reason or "") for row in rows)

    def test_a_cleaned_segment_that_cannot_be_told_from_another(self) -> None:
        """A run in object storage that rotted, a log here that did, a storage that breaks off: told, no more."""
        disk = filled()
        uploaded(disk)
        assert clean(disk) > 0
        manifest, segments = manifest_on(disk), find_segments(disk, PATH)
        cleaned = next(each for each in segments if each.mark is not None and each.mark.has_gaps)
        assert cleaned.mark is not None
        [row, *_] = rows_over(cleaned.mark, manifest.listed())
        data = content(disk, cleaned.path)
        [rotten] = uploaded(with_file(disk, cleaned.path, flipped(data, len(data) - 1)), [cleaned])
        assert ("corrupt", str(cleaned.path)) == (rotten.action, rotten.path)
        key = manifest.object_key(row, DELIVER_AFTER_INDEX)
        run = content(disk, REMOTE / key)
        [broken] = uploaded(with_file(disk, REMOTE / key, flipped(run, 9)), [cleaned])
        assert ("corrupt", key) == (broken.action, broken.path)
        failing = Manifest(FaultyRemoteStore(manifest.remote, fault_at(3, Fault.BEFORE)), "t-0")
        assert [("refused", "nothing was done")] == told(uploaded(disk, [cleaned], failing))

    def test_kafka_segments(self) -> None:
        path = PATH / "t-0" / segment_file(100, LOG)
        segment = some_segment(7, 100, batches=12)
        disk = SimulatedFiles(Image((str(PATH), str(path.parent), str(REMOTE)), {str(path): segment.log}))
        [found] = find_segments(disk, PATH)
        assert [("refused", NO_INDEXES)] == told(uploaded(disk))
        index_segment(disk, found, small(), ManualClock(NOW_MS), attempt=attempt(1))
        [done] = uploaded(disk)
        assert ("uploaded", segment.end_offset) == (done.action, done.end_offset)
        assert [("skipped", LISTED)] == told(uploaded(disk))
        end = segment.end_offset
        for base, log in ((end, marker(7, commit=False, offset=end)), (end + 1, b"")):
            disk = with_file(disk, path.with_name(segment_file(base, LOG)), log)
        assert [("skipped", LISTED), ("skipped", UNSEEN), ("skipped", EMPTY)] == told(uploaded(disk))


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def segment(partition: int, size: int) -> SegmentToIndex:
        return SegmentToIndex(topic="t", partition=partition, base_offset=0, path=Path("/"), log_bytes=size)

    monkeypatch.setattr(upload_job, "BATCH_BYTES", 10)
    monkeypatch.setattr(upload_job, "BATCH_SEGMENTS", 3)
    group = [segment(*each) for each in ((0, 4), (0, 6), (0, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 30), (1, 9))]
    sizes = [[(each.partition, each.log_bytes) for each in batch] for batch in batches(group)]
    assert [[(0, 4), (0, 6)], [(0, 1)], [(1, 1)] * 3, [(1, 1)], [(1, 30)], [(1, 9)]] == sizes
    assert [] == [*batches([])]


def test_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """From a store that is open, by two tasks; what a job left that was killed long ago is ended."""
    config = Config(durability=OS, segment_bytes=4_096, batch_bytes_max=2_048)
    storage = tmp_path / "storage"
    storage.mkdir()
    remote = DirectoryStore(OsFiles(), storage)
    left = replace(row(7, state="COPY_STARTED"), started_ms=0)
    Manifest(remote, "b-0").update(lambda rows: (left,))

    def job(**more: Any) -> list[dict[str, Any]]:
        done = upload_segments(spark, tmp_path / "store", f"file://{storage}", config=config, tasks=2, **more)
        return [each.asDict() for each in done.collect()]

    with open_store(tmp_path / "store", config, ManualClock(NOW_MS), None) as store:
        for topic in ("a", "b"):
            store.create_topic(topic, delayed=topic == "a")
            store.send_many(topic, [b"v" * 50] * 200)
        told, again = job(), job(topics=["b"])
        store.check()
    first = [each for each in told if each["reason"] != ACTIVE]
    left = [each for each in told if each["reason"] == ACTIVE]
    assert [("a", "active"), ("b", "active")] == [(each["topic"], each["action"]) for each in left]
    rows = [each for partition in ("a-0", "b-0") for each in Manifest(remote, partition).read()]
    assert {SegmentState.COPY_FINISHED} == {each.state for each in rows}
    assert [each.attempt for each in rows] == [each["attempt"] for each in first]
    assert {"a", "b"} == {each["topic"] for each in first}
    assert ["uploaded"] * len(rows) == [each["action"] for each in first]
    found = {(each["topic"], each["action"], each["reason"]) for each in again}
    assert {("b", "skipped", LISTED), ("b", "active", ACTIVE)} == found
    assert [] == [*scrub(Manifest(remote, "a-0"), deep=True), *scrub(Manifest(remote, "b-0"), deep=True)]
    with open_store(tmp_path / "fresh", config, ManualClock(NOW_MS), None, remote, background=False) as fresh:
        for topic in ("a", "b"):  # the storage is enough to read what was sealed
            ends = [each["end_offset"] for each in first if each["topic"] == topic]
            assert [b"v" * 50] * max(ends) == drained(fresh.topic(topic).partition(0))
        fresh.check()


def test_an_archive_keeps_what_a_store_cleans(spark: SparkSession, tmp_path: Path) -> None:
    """Job, cleaning, job: what was sent before the first job stays; what was sealed since is read there, too."""
    config = Config(durability=OS, segment_bytes=4_096, batch_bytes_max=2_048)
    storage, clock = tmp_path / "storage", ManualClock(NOW_MS)
    storage.mkdir()
    remote = DirectoryStore(OsFiles(), storage)

    def job() -> set[tuple[str, str | None]]:
        done = upload_segments(spark, tmp_path / "store", f"file://{storage}", config=config, tasks=2)
        return {(each.action, each.reason) for each in done.collect()}

    with open_store(tmp_path / "store", config, clock, None, background=False) as store:
        store.create_topic("t", retention_ms=1_000)
        for part in range(2):
            due = [clock.now_ms() + (0 if number % 10 else 1_000_000) for number in range(300)]
            store.send_many("t", [b"%d-%d" % (part, number) for number in range(300)], deliver_after=due)
        store.topic("t").log(0).roll()
        assert {("uploaded", None)} == job()
        first = Manifest(remote, "t-0").content()
        for part in range(2, 4):
            due = [clock.now_ms() + (0 if number % 10 else 1_000_000) for number in range(300)]
            store.send_many("t", [b"%d-%d" % (part, number) for number in range(300)], deliver_after=due)
            store.topic("t").log(0).roll()
        clock.advance(2_000)
        store.topic("t").partition(0).fetch(0)
        assert store.clean("t") > 1
        assert {("uploaded", None), ("skipped", LISTED_BEFORE)} == job()
        assert {("skipped", LISTED), ("skipped", LISTED_BEFORE)} >= job()
    content = Manifest(remote, "t-0").content()
    assert {*first.listed} < {*content.listed}
    assert first.log is not None
    assert content.log is not None
    assert (first.log.log_start, 0) == (content.log.log_start, first.log.removed_records)
    held = content.log.removed_records + sum(row.kept for row in content.listed)
    assert (1_200, content.listed[-1].end_offset) == (content.log.end_offset, held)
    with open_store(tmp_path / "fresh", config, clock, None, remote, background=False) as fresh:
        early = drained(fresh.topic("t").partition(0))
        clock.advance(1_000_000)
        late = drained(fresh.topic("t").partition(0))
        fresh.check()
    assert {b"%d-%d" % (part, number) for part in range(2) for number in range(300) if number % 10} == {*early}
    assert {b"%d-%d" % (part, number) for part in range(4) for number in range(0, 300, 10)} == {*late} - {*early}


def test_what_is_active_is_told_or_sealed(spark: SparkSession, tmp_path: Path) -> None:
    """As of a store that Spark filled, by the default segment_bytes: the job did nothing, without a word."""
    storage = tmp_path / "storage"
    storage.mkdir()

    def job(**more: Any) -> list[tuple[Any, ...]]:
        done = upload_segments(spark, tmp_path / "store", f"file://{storage}", **more)
        return [(each.topic, each.base_offset, each.end_offset, each.action, each.reason) for each in done.collect()]

    with open_store(tmp_path / "store", Config(durability=OS), ManualClock(NOW_MS), None) as store:
        store.create_topic("t")
        store.create_topic("empty")
        store.send_many("t", [b"v"] * 200)
        with pytest.raises(StoreLocked):
            job(roll=True)
    assert [("t", 0, 200, "active", ACTIVE)] == job() == job(topics=["t"])
    assert [] == job(topics=["empty"])
    assert [("t", 0, 200, "uploaded", None)] == job(roll=True)
    assert [("t", 0, 200, "skipped", LISTED)] == job(roll=True)


def test_the_log_of_a_broker_from_its_folder_to_readers(spark: SparkSession, tmp_path: Path) -> None:
    """Indexed, uploaded, opened by a store and read by Spark: what kafka-python reads out of it, in due order."""
    storage, folder = tmp_path / "storage", tmp_path / "kafka"
    storage.mkdir()
    written: dict[int, list[bytes]] = {0: [], 2: []}
    for partition, data in written.items():
        (folder / f"orders-{partition}").mkdir(parents=True)
        for base in (0, 100):
            segment = some_segment(partition + base, base)
            data += segment.batches
            (folder / f"orders-{partition}" / segment_file(base, LOG)).write_bytes(segment.log)
    url = f"file://{storage}"
    assert {"built"} == {each["action"] for each in build_indexes(spark, folder, tasks=2).collect()}
    assert {"uploaded"} == {each["action"] for each in upload_segments(spark, folder, url, tasks=2).collect()}
    assert {"skipped"} == {each["action"] for each in upload_segments(spark, folder, url, tasks=2).collect()}
    assert {"verified"} == {each["action"] for each in build_indexes(spark, url, verify_only=True, tasks=2).collect()}
    remote = DirectoryStore(OsFiles(), storage)
    with open_store(tmp_path / "fresh", Config(), ManualClock(NOW_MS + 10**9), None, remote, background=False) as store:
        assert [3] == [topic.partition_count for topic in store.topics()]
        for partition, data in written.items():
            expected = in_due_order(each for one in data for each in records_of(one))
            assert expected == seen(store.topic("orders").partition(partition))
        assert 0 == store.topic("orders").partition(1).log_end_offset
        store.check()
    rows = spark.read.format("afterlog").option("topic", "orders").load(url).collect()
    assert sum(len(records_of(one)) for data in written.values() for one in data) == len(rows)
    with open_store(tmp_path / "another", Config(), ManualClock(NOW_MS), None, remote, background=False) as store:
        store.create_topic("mine", remote_storage_enable=True)
    (folder / "mine-0").mkdir()
    (folder / "mine-0" / segment_file(0, LOG)).write_bytes(some_segment(1, 0).log)
    with pytest.raises(RemoteConflict, match="a store's topic"):
        upload_segments(spark, folder, url)
