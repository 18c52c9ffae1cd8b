"""What is exported is a Kafka log: read by another decoder (kafka-python), its indexes proved true by our verifier."""

from __future__ import annotations

import errno
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile, StorageFull
from afterlog.base.files import Files
from afterlog.base.names import LOG, OFFSET_INDEX, TIME_INDEX, parse_segment_file
from afterlog.fetch.export import Exported, export
from afterlog.fetch.message import Message
from afterlog.fetch.partition import Partition
from afterlog.fetch.record_id import RecordId
from afterlog.log.build import SegmentToIndex, index_segment
from afterlog.log.snapshot import ALL_MS, open_snapshot
from afterlog.records.batch import Record, decode_batch, decode_compacted, encode_batch, without_records
from afterlog.records.header import BatchHeader
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.fetch.test_foreign import Broker, seen
from tests.log import kafka_python
from tests.store.test_store import Setting
from tests.support import NOW_MS, drained, flipped, small

OUT = Path("/out")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def filled(delayed: bool = True) -> Setting:
    """Batches of every codec, over several segments; with delays, records and whole batches of them are cancelled."""
    setting = Setting()
    partition = setting.store.create_topic("t", delayed=delayed).partition(0)
    chance = np.random.default_rng(1)
    for number in range(60):
        due = NOW_MS + int(chance.integers(0, 100_000))
        values = [b"%d-%d" % (number, row) * 20 for row in range(1 + number % 4)]
        records = [Record(value=value, timestamp=NOW_MS + number) for value in values]
        partition.append(encode_batch(records, CODECS[number % 5]), deliver_after=due if delayed else None)  # type: ignore[arg-type]
    if delayed:
        store = setting.store
        assert store.cancel_many("t", 0, np.array([5, 6, 20, 50, 51, 52, 53, 54])).tolist() == [0] * 8
        store.reschedule(RecordId("t", 0, 30), deliver_after=NOW_MS + 1)
    return setting


def exported(
    setting: Setting,
    files: Files | None = None,
    *,
    at_ms: int = ALL_MS,
    delivery: bool = False,
    times: bool = False,
) -> Exported:
    partition = setting.store.topic("t").partition(0)
    partition.log.checkpoint()
    log = open_snapshot(partition.log.context, at_ms=at_ms)
    return export(files or setting.disk, Partition("t", 0, log), OUT, delivery_order=delivery, times=times)


def read_by_another(disk: SimulatedFiles) -> list[tuple[int, bytes]]:
    """(offset, value), in the order of the log."""
    found = []
    for name in disk.names(OUT):
        if name.endswith(LOG):
            data = disk.image().contents[str(OUT / name)]
            records = kafka_python.memory_records.MemoryRecords(data)
            while records.has_next():
                batch = records.next_batch()
                found += [(record.offset, bytes(record.value)) for record in batch]
    return found


def verified(disk: SimulatedFiles) -> int:
    """The segments, of which every check passes, ours without a run."""
    names = [name for name in disk.names(OUT) if name.endswith(LOG)]
    for name in names:
        parsed = parse_segment_file(name)
        assert parsed is not None
        segment = SegmentToIndex(
            topic="t", partition=0, base_offset=parsed[0], path=OUT / name, has_run=False,
            log_bytes=len(disk.image().contents[str(OUT / name)]),
        )  # fmt: skip
        row = index_segment(disk, segment, small(), ManualClock(NOW_MS), attempt="0" * 32, verify_only=True)
        assert ("verified", None) == (row.action, row.reason)
    assert {LOG, OFFSET_INDEX, TIME_INDEX} == {Path(name).suffix for name in disk.names(OUT)}
    return len(names)


def messages(setting: Setting) -> list[Message]:
    """What a reader gets when all is due."""
    setting.clock.set(NOW_MS + 1_000_000)
    partition = setting.store.topic("t").partition(0)
    found, position = list[Message](), partition.log_start
    while len(columns := partition.columns(position, 10_000, 1 << 30)[0]):
        found += columns.to_messages()
        position = found[-1].delivery_offset + 1
    return found


def by_offset(setting: Setting) -> list[tuple[int, bytes | None]]:
    return sorted((message.offset, message.value) for message in messages(setting))


@pytest.mark.parametrize("delayed", [True, False])
def test_append_order(delayed: bool) -> None:
    setting = filled(delayed)
    done = exported(setting)
    found = read_by_another(setting.disk)
    assert by_offset(setting) == found
    assert (len(found), verified(setting.disk), found[-1][0] + 1) == (done.records, done.segments, done.end_offset)
    assert done.segments > 2


@pytest.mark.parametrize("delayed", [True, False])
def test_delivery_order_is_at_delivery_offsets(delayed: bool) -> None:
    setting = filled(delayed)
    done = exported(setting, delivery=True)
    found = read_by_another(setting.disk)
    assert [(message.delivery_offset, message.value) for message in messages(setting)] == found
    assert (len(found), verified(setting.disk)) == (done.records, done.segments)


def test_delivery_order_up_to_what_is_due() -> None:
    setting = filled()
    setting.clock.advance(50_000)
    due = drained(setting.store.topic("t").partition(0))
    done = exported(setting, at_ms=NOW_MS + 50_000, delivery=True)
    assert due == [value for _, value in read_by_another(setting.disk)]
    assert 0 < done.records < 100


def test_what_retention_removed_is_left_out() -> None:
    setting = Setting()
    partition = setting.store.create_topic("t", retention_ms=1_000).partition(0)
    for row in range(40):
        setting.store.send("t", b"%d" % row * 50, deliver_after=NOW_MS + (row * 7 % 40) * 100)
    partition.log.roll()
    setting.clock.advance(4_000)
    partition.high_watermark()
    setting.store.send("t", b"last")
    partition.log.roll()
    setting.store.enforce_retention()
    exported(setting)
    assert by_offset(setting) == read_by_another(setting.disk)


def test_an_empty_one() -> None:
    setting = Setting()
    setting.store.create_topic("t")
    done = exported(setting)
    assert (0, 0, []) == (done.records, done.segments, setting.disk.names(OUT))


def test_a_folder_that_is_there_and_a_disk_that_is_full() -> None:
    setting = filled()
    full = FailingFiles(
        setting.disk,
        lambda operation, path, call: (
            OSError(errno.ENOSPC, "full") if (operation, path.parent) == ("append", OUT) else None
        ),
    )
    with pytest.raises(StorageFull):
        exported(setting, full)
    with pytest.raises(FileExistsError):
        exported(setting)


def test_rot_is_not_handed_on() -> None:
    setting = filled()
    partition = setting.store.topic("t").partition(0)
    partition.log.checkpoint()
    path = partition.log.version.segments[0].path
    image = setting.disk.image()
    disk = SimulatedFiles(
        replace(image, contents={**image.contents, str(path): flipped(image.contents[str(path)], 700)})
    )
    log = open_snapshot(replace(partition.log.context, files=disk), at_ms=ALL_MS)
    with pytest.raises(CorruptFile) as raised:
        export(disk, Partition("t", 0, log), OUT, delivery_order=False)
    assert path == raised.value.path


class TestWithoutRecords:
    @pytest.mark.parametrize("codec", CODECS)
    def test_those_that_are_left_are_as_they_were(self, codec: str) -> None:
        records = [
            Record(value=b"v%d" % row * 30, key=b"k", timestamp=NOW_MS + row, headers=[("h", b"1")]) for row in range(5)
        ]
        data = encode_batch(records, codec)  # type: ignore[arg-type]
        for count in range(6):
            for left_out in itertools.combinations(range(5), count):
                made = without_records(data, left_out, limit_bytes=1 << 20)
                left = [
                    (row, record)
                    for row, record in enumerate(decode_batch(data, limit_bytes=1 << 20))
                    if row not in left_out
                ]
                assert left == decode_compacted(made, limit_bytes=1 << 20)
                header = BatchHeader.read(memoryview(made), 0)
                assert (5 - count, 4, len(made)) == (header.records, header.last_offset_delta, header.size)


def stored_batches(disk: SimulatedFiles) -> list[tuple[int, list[bytes]]]:
    """The segments that were written: base offset, batches."""
    segments = []
    for name in disk.names(OUT):
        if name.endswith(LOG):
            data, batches = disk.image().contents[str(OUT / name)], list[bytes]()
            while data:
                size = BatchHeader.read(memoryview(data), 0).size
                batches.append(data[:size])
                data = data[size:]
            segments.append((int(Path(name).stem), batches))
    return segments


@pytest.mark.parametrize("delivery", [False, True])
def test_with_times_each_record_says_when_it_is_due(delivery: bool) -> None:
    """So whoever reads those headers delivers as we do: here a store that has it as a Kafka broker's log."""
    setting = filled()
    partition = setting.store.topic("t").partition(0)
    headers = (("a", b"b"), ("n", None))
    mixed = [Record(value=b"", headers=headers, timestamp=NOW_MS, deliver_after=due) for due in (NOW_MS + 9, None)]
    partition.append(encode_batch(mixed, "zstd"))
    exported(setting, delivery=delivery, times=True)
    expected = messages(setting)
    broker = Broker(stored_batches(setting.disk))
    stated = [record.headers for _, batches in broker.segments for data in batches for record in batch_of(data)]
    assert len(expected) == len(stated)
    assert all(1 == [name for name, _ in each].count("deliver-after") for each in stated)
    assert 2 == sum(each[:2] == [*headers] for each in stated)
    broker.uploaded()
    with broker.opened() as store:
        copy = store.topic("orders").partition(0)
        while broker.clock.now_ms() < NOW_MS + 110_000:
            broker.clock.advance(11_003)
            due = [each for each in expected if each.due <= broker.clock.now_ms()]
            assert [(each.due, each.timestamp, each.value) for each in due] == [
                (each.due, each.timestamp, each.value) for each in seen(copy)
            ]


def batch_of(data: bytes) -> Any:
    """By kafka-python."""
    return kafka_python.memory_records.MemoryRecords(data).next_batch()


def test_times_are_for_what_has_some() -> None:
    """A FIFO topic is exported byte for byte."""
    setting, other = filled(False), filled(False)
    exported(setting)
    exported(other, times=True)
    assert stored_batches(setting.disk) == stored_batches(other.disk)
