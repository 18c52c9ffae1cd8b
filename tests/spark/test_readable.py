"""Reading what is in object storage: beside a folder, and alone. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from afterlog.base.clock import ManualClock
from afterlog.base.errors import RemoteRefused, UnknownTopic
from afterlog.base.files import ReadOnlyFiles
from afterlog.log.snapshot import ALL_MS
from afterlog.spark.options import ReadOptions
from afterlog.spark.ranges import RangePlanner, read_range
from afterlog.spark.readable import readable
from afterlog.spark.source import AfterlogDataSource
from afterlog.store.store import Store, open_store
from tests.support import NOW_MS, small

Rows = list[tuple[int, int, int]]


class Setting:
    """Two partitions of segments in a storage, of which the last is not; what is due has gone from the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.storage = folder / "store", folder / "storage"
        self.storage.mkdir()
        self.clock = ManualClock(NOW_MS)
        self.store = open_store(
            self.folder, small(segment_bytes=4_096), self.clock, None, str(self.storage), background=False
        )
        self.store.create_topic("t", 2, remote_storage_enable=True, local_retention_ms=0)
        for _ in range(10):
            for number in range(2):
                due = [self.clock.now_ms() + 1 + row * 7_919 % 97 for row in range(30)]
                offsets = self.store.send_many("t", [b"v%d" % ms for ms in due], deliver_after=due, partition=number)
                self.store.cancel_many("t", number, offsets[::10])
            self.clock.advance(10)
        self.store.offload()
        self.clock.advance(40)
        self.store.offload()
        for partition in self.store.topic("t").partitions:
            assert {True, False} == {segment.is_local() for segment in partition.log.sealed}
            partition.log.checkpoint()

    def read(self, *, location: bool, remote: bool, **options: object) -> Rows:
        asked = ReadOptions(
            location=self.folder if location else None,
            remote=f"file://{self.storage}" if remote else None,
            topic="t",
            partition_bytes=2_000,
            settle_ms=0,
            **options,  # type: ignore[arg-type]
        )
        rows: Rows = []
        with readable(ReadOnlyFiles(), self.clock, asked) as source:
            for piece in RangePlanner(source, asked).batch():
                for columns in read_range(source, "t", piece, rows=11):
                    rows += zip(
                        columns.partition.tolist(), columns.delivery_offset.tolist(), columns.offset.tolist(),
                        strict=True,
                    )  # fmt: skip
        return rows

    def delivered(self) -> Rows:
        rows: Rows = []
        for partition in self.store.topic("t").partitions:
            position, end = partition.log_start, partition.high_watermark()
            while position < end:
                columns, position = partition.columns(position, 1_000, 1 << 20)
                numbers = [partition.number] * len(columns)
                rows += zip(numbers, columns.delivery_offset.tolist(), columns.offset.tolist(), strict=True)
        return rows


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("readable"))


def test_a_folder_with_its_object_storage(setting: Setting) -> None:
    assert setting.delivered() == setting.read(location=True, remote=True)


def test_a_folder_without_it_names_what_is_missing(setting: Setting) -> None:
    with pytest.raises(RemoteRefused, match="remote="):
        setting.read(location=True, remote=False)


def test_object_storage_alone_has_a_prefix_of_what_is_delivered(setting: Setting) -> None:
    delivered, found = setting.delivered(), setting.read(location=False, remote=True)
    for number in range(2):
        whole = [row for row in delivered if row[0] == number]
        part = [row for row in found if row[0] == number]
        assert 100 < len(part) < len(whole)
        assert whole[: len(part)] == part


def test_what_is_due_and_not_in_view_is_told(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """The tail of a bucket that is read alone: a fresh machine's consumer would get it, by the wall clock."""
    found = setting.read(location=False, remote=True)
    uploaded = [partition.log.sealed[-1].end_offset for partition in setting.store.topic("t").partitions]
    due = {row for row in setting.delivered() if row[2] < uploaded[row[0]]}
    [record] = [record for record in caplog.records if record.name == "afterlog.spark"]
    told = int(record.getMessage().split()[1])
    cancelled = (len(due) - len(found)) // 9 + 2  # of ten one is, and counts
    assert 0 < len(due) - len(found) <= told <= len(due) - len(found) + 2 * cancelled
    caplog.clear()
    setting.read(location=True, remote=True)
    assert not [record for record in caplog.records if record.name == "afterlog.spark"]


def test_all_of_an_object_storage_in_due_order(setting: Setting) -> None:
    found = setting.read(location=False, remote=True, due_only=False)
    uploaded = [partition.log.sealed[-1].end_offset for partition in setting.store.topic("t").partitions]
    for number, end_offset in enumerate(uploaded):
        offsets = [offset for partition, _, offset in found if partition == number]
        assert sorted(set(offsets)) == sorted(offsets)
        assert 200 < len(offsets) < end_offset
        assert max(offsets) < end_offset


def test_what_is_appended_to_object_storage_comes_behind(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    before = setting.read(location=False, remote=True)
    send_more(setting.store, setting.clock)
    setting.store.offload()
    after = setting.read(location=False, remote=True)
    for number in range(2):
        was = [row for row in before if row[0] == number]
        now = [row for row in after if row[0] == number]
        assert len(now) > len(was)
        assert now[: len(was)] == was


def test_what_is_not_in_object_storage(setting: Setting, tmp_path: Path) -> None:
    asked = ReadOptions(location=None, remote=f"file://{setting.storage}", topic="u")
    with readable(ReadOnlyFiles(), setting.clock, asked) as source, pytest.raises(UnknownTopic):
        source.settings()
    asked = ReadOptions(location=None, remote=f"file://{tmp_path}", topic="t")
    with readable(ReadOnlyFiles(), setting.clock, asked) as source, pytest.raises(UnknownTopic):
        source.settings()


def test_an_empty_partition_in_object_storage(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", small(), ManualClock(NOW_MS), None, str(tmp_path), background=False) as store:
        store.create_topic("t", remote_storage_enable=True)
        store.send("t", b"not sealed")
        store.offload()
    asked = ReadOptions(location=None, remote=f"file://{tmp_path}", topic="t")
    with readable(ReadOnlyFiles(), ManualClock(NOW_MS), asked) as source:
        assert 0 == source.partition(0, source.settings(), at_ms=ALL_MS).high_watermark()
        assert 0 == source.partition(0, source.settings(), at_ms=None).high_watermark()


def send_more(store: Store, clock: ManualClock) -> None:
    for number in range(2):
        store.send_many("t", [b"more"] * 100, deliver_after=clock.now_ms(), partition=number)
        store.topic("t").partition(number).log.roll()


def test_on_spark(spark: SparkSession, setting: Setting) -> None:
    spark.dataSource.register(AfterlogDataSource)
    source = spark.read.format("afterlog").option("topic", "t").option("columns", "partition,delivery_offset,offset")
    storage = f"file://{setting.storage}"
    alone = {tuple(row) for row in source.load(storage).collect()}
    assert alone == set(setting.read(location=False, remote=True))
    both = {tuple(row) for row in source.option("remote", storage).load(str(setting.folder)).collect()}
    assert set(setting.delivered()) <= both  # by the wall clock all is due
