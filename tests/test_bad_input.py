"""What a caller, or a disk, gets wrong: each has its typed error, and nothing is written."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import afterlog
from afterlog import AtTime, Config, ManualClock, Store
from afterlog.base.clock import INT64_MAX
from afterlog.records.header import HEADER_BYTES, BatchHeader, with_crc
from afterlog.store.store import open_store
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, SimulatedFiles

PATH = Path("/store")
NOW_MS = 1_700_000_000_000
NAIVE = datetime(2030, 1, 1)
TOO_EARLY = datetime(1900, 1, 1, tzinfo=UTC)
TOO_LATE_MS = NOW_MS + 60_001

Call = Callable[[Store], object]


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles()


@pytest.fixture
def store(disk: SimulatedFiles) -> Iterator[Store]:
    config = Config(segment_bytes=8_192, batch_bytes_max=4_096)
    with open_store(PATH, config, ManualClock(NOW_MS), disk) as store:
        store.create_topic("mail", max_delay_ms=60_000)
        store.create_topic("plain", delayed=False)
        store.send("mail", b"first")
        yield store


RECORD = afterlog.Record(value=b"v", timestamp=NOW_MS)
BATCH = afterlog.encode_batch([RECORD])
ROTTEN = BATCH[:-1] + bytes([BATCH[-1] ^ 1])
HEADER = BatchHeader.read(memoryview(BATCH), 0)
TRANSACTIONAL, ABORT = (
    with_crc(HEADER._replace(attributes=bits, producer_id=7, producer_epoch=0, base_sequence=0), BATCH[HEADER_BYTES:])
    for bits in (0x10, 0x30)
)
BAD_SENDS: list[tuple[type[Exception], Call]] = [
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after=-1)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after=INT64_MAX + 1)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after=TOO_LATE_MS)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after=math.nan)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after=True)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after="soon")),  # type: ignore[arg-type]
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after=NAIVE)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after=TOO_EARLY)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", delay=-0.001)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", delay=timedelta(milliseconds=-1))),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", delay=math.inf)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", delay=61)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", delay=1, deliver_after=NOW_MS)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send_many("mail", [b"", b""], deliver_after=[NOW_MS, -1])),
    (afterlog.InvalidDeliverAfter, lambda store: store.send_many("mail", [b""], deliver_after=[NOW_MS, NOW_MS])),
    (afterlog.InvalidDeliverAfter, lambda store: store.send_many("mail", [b"", b""], deliver_after=[0, TOO_LATE_MS])),
    (afterlog.InvalidDeliverAfter, lambda store: store.send_many("mail", [b""], deliver_after=[NAIVE])),
    (afterlog.InvalidDeliverAfter, lambda store: store.send_many("mail", [b""], delay=[math.nan])),
    (afterlog.InvalidDeliverAfter, lambda store: store.send_many("mail", [b""], delay=[1], deliver_after=[NOW_MS])),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after=NOW_MS / 1000 + 30)),
    (afterlog.InvalidDeliverAfter, lambda store: store.send("mail", b"", deliver_after="1970-01-20T00:00Z")),
    (afterlog.InvalidDeliverAfter, lambda store: store.send_many("mail", [b"", b""], deliver_after=[NOW_MS, 7])),
    (afterlog.InvalidDeliverAfter, lambda store: store.topic("mail").partition(0).append(BATCH, deliver_after=7)),
    (afterlog.InvalidTopic, lambda store: store.send("plain", b"", delay=1)),
    (afterlog.InvalidTopic, lambda store: store.send("plain", b"", deliver_after=NOW_MS)),
    (afterlog.RecordTooLarge, lambda store: store.send("mail", bytes(4_096))),
    (afterlog.RecordTooLarge, lambda store: store.send("mail", b"", key=bytes(4_096))),
    (afterlog.RecordTooLarge, lambda store: store.send("mail", b"", headers=[("h", bytes(4_096))])),
    (afterlog.RecordTooLarge, lambda store: store.send_many("mail", [b"small", bytes(4_096)])),
    (afterlog.InvalidRecord, lambda store: store.send("mail", "text")),  # type: ignore[arg-type]
    (afterlog.InvalidRecord, lambda store: store.send("mail", 7)),  # type: ignore[arg-type]
    (afterlog.InvalidRecord, lambda store: store.send("mail", b"", key="text")),  # type: ignore[arg-type]
    (afterlog.InvalidRecord, lambda store: store.send_many("mail", [b"", "text"])),
    (afterlog.InvalidRecord, lambda store: store.send_many("mail", b"one string")),
    (afterlog.InvalidRecord, lambda store: store.send_many("mail", [b"", b""], keys=[b""])),
    (afterlog.InvalidRecord, lambda store: store.send_many("mail", (np.array([0, 9]), b"short"))),
    (afterlog.InvalidRecord, lambda store: store.send_many("mail", [b""], timestamps=np.zeros(2, np.int64))),
    (afterlog.UnknownTopic, lambda store: store.send("post", b"")),
    (afterlog.UnknownTopic, lambda store: store.send_many("post", [b""])),
    (afterlog.UnknownTopic, lambda store: store.producer("post")),
    (afterlog.UnknownTopic, lambda store: store.consumer("post", group="g")),
    (afterlog.UnknownPartition, lambda store: store.send("mail", b"", partition=1)),
    (afterlog.UnknownPartition, lambda store: store.send("mail", b"", partition=-1)),
    (afterlog.UnknownPartition, lambda store: store.consumer("mail", group="g", partitions=[3])),
    (afterlog.InvalidBatch, lambda store: store.topic("mail").partition(0).append(b"")),
    (afterlog.InvalidBatch, lambda store: store.topic("mail").partition(0).append(BATCH[:-1])),
    (afterlog.InvalidBatch, lambda store: store.topic("mail").partition(0).append(BATCH + b"\0")),
    (afterlog.InvalidBatch, lambda store: store.topic("mail").partition(0).append(ROTTEN)),
    (afterlog.InvalidBatch, lambda store: store.topic("mail").partition(0).append(TRANSACTIONAL)),
    (afterlog.InvalidBatch, lambda store: store.topic("mail").partition(0).append(ABORT)),
    (afterlog.InvalidBatch, lambda store: store.topic("mail").partition(0).append(BATCH + TRANSACTIONAL)),
    (afterlog.InvalidBatch, lambda store: store.topic("plain").partition(0).append(TRANSACTIONAL)),
    (afterlog.InvalidDeliverAfter, lambda store: store.topic("mail").partition(0).append(BATCH, deliver_after=-1)),
    (afterlog.InvalidTopic, lambda store: store.topic("plain").partition(0).append(BATCH, deliver_after=NOW_MS)),
    (afterlog.OffsetOutOfRange, lambda store: store.topic("mail").partition(0).fetch(-1)),
    (afterlog.OffsetOutOfRange, lambda store: store.topic("mail").partition(0).fetch(2)),
    (afterlog.OffsetOutOfRange, lambda store: store.topic("mail").partition(0).fetch(afterlog.AfterOffset(1))),
    (afterlog.OffsetOutOfRange, lambda store: store.topic("plain").partition(0).fetch(afterlog.AfterOffset(0))),
    (afterlog.InvalidDeliverAfter, lambda store: store.topic("mail").partition(0).fetch(AtTime(NAIVE))),
    (afterlog.TopicExists, lambda store: store.create_topic("mail", partitions=2)),
    (afterlog.InvalidTopic, lambda store: store.create_topic("new", partitions=0)),
    (afterlog.InvalidTopic, lambda store: store.create_topic("new", retention_ms=-1)),
    (afterlog.InvalidTopic, lambda store: store.create_topic("new", retention_bytes=1.5)),  # type: ignore[arg-type]
    (afterlog.InvalidTopic, lambda store: store.create_topic("new", delayed=False, max_delay_ms=1)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "call"), BAD_SENDS)
def test_bad_call_has_its_error_and_writes_nothing(
    store: Store, disk: SimulatedFiles, error: type[Exception], call: Call
) -> None:
    before = disk.image()
    with pytest.raises(error) as raised:
        call(store)
    assert error is raised.type
    assert before == disk.image()
    assert 1 == store.send("mail", b"second").offset


NAMES = ["", ".", "..", "a/b", "../a", "/a", "a\0", "a" * 250, "-a", "a b", "ä", "a\n", 7, None, b"a"]


@pytest.mark.parametrize("name", NAMES)
def test_no_such_name(store: Store, disk: SimulatedFiles, name: str) -> None:
    before = disk.image()
    with pytest.raises(afterlog.InvalidTopic):
        store.create_topic(name)
    with pytest.raises(afterlog.InvalidTopic):
        store.consumer("mail", group=name)
    with pytest.raises(afterlog.UnknownTopic):
        store.send(name, b"")
    assert before == disk.image()


def test_longest_name(store: Store) -> None:
    assert 0 == store.send(store.create_topic("a" * 249).name, b"").offset


def test_producer_refuses_at_the_call(store: Store) -> None:
    with store.producer("mail") as producer:
        for error, arguments in (
            (afterlog.InvalidDeliverAfter, {"deliver_after": -1}),
            (afterlog.InvalidDeliverAfter, {"delay": 61}),
            (afterlog.InvalidDeliverAfter, {"delay": 1, "deliver_after": NOW_MS}),
            (afterlog.RecordTooLarge, {"key": bytes(4_096)}),
            (afterlog.UnknownPartition, {"partition": 1}),
        ):
            with pytest.raises(error):
                producer.send(b"", **arguments)  # type: ignore[arg-type]
        future = producer.send(b"good")
    assert 1 == future.result(0).offset


def test_opened_twice(store: Store, disk: SimulatedFiles) -> None:
    with pytest.raises(afterlog.StoreLocked):
        open_store(PATH, None, None, disk)
    assert 1 == store.send("mail", b"").offset


def test_opened_twice_on_a_real_folder(tmp_path: Path) -> None:
    with afterlog.open(tmp_path), pytest.raises(afterlog.StoreLocked, match="process"):
        afterlog.open(tmp_path)
    afterlog.open(tmp_path).close()


def test_used_after_close(store: Store) -> None:
    partition = store.topic("mail").partition(0)
    consumer = store.consumer("mail", group="g")
    consumer.close()
    store.close()
    for call in (
        lambda: store.send("mail", b""),
        lambda: store.create_topic("new"),
        lambda: store.consumer("mail", group="g"),
        lambda: partition.append(BATCH),
        lambda: partition.fetch(0),
        consumer.poll,
        store.check,
        store.sync,
    ):
        with pytest.raises(afterlog.StoreClosed):
            call()


def test_position_below_the_log_start() -> None:
    clock = ManualClock(NOW_MS)
    config = Config(segment_bytes=4_096, batch_bytes_max=2_048)
    with open_store(PATH, config, clock, SimulatedFiles()) as store:
        partition = store.create_topic("mail", retention_ms=1_000).partition(0)
        with store.consumer("mail", group="g") as consumer:
            store.send("mail", b"gone")
            consumer.poll()
            consumer.seek(0)
        partition.log.roll()
        store.send("mail", b"kept")
        clock.advance(10_000)
        partition.high_watermark()
        assert 1 == partition.log.enforce_retention()
        with pytest.raises(afterlog.OffsetOutOfRange) as raised:
            partition.fetch(0)
        assert (0, 1, 2) == (raised.value.position, raised.value.log_start, raised.value.log_end)
        with store.consumer("mail", group="g") as consumer:
            with pytest.raises(afterlog.OffsetOutOfRange):
                consumer.poll()
            consumer.seek(afterlog.EARLIEST)
            assert [b"kept"] == [message.value for message in consumer.poll()]


def test_corruption_below_the_recovery_point(store: Store, disk: SimulatedFiles) -> None:
    store.close()
    image = disk.image()
    [log] = [path for path, data in image.contents.items() if path.endswith(".log") and data]
    rotten = bytearray(image.contents[log])
    rotten[-1] ^= 1
    again = SimulatedFiles(Image(image.folders, {**image.contents, log: bytes(rotten)}))
    with open_store(PATH, None, ManualClock(NOW_MS), again) as reopened:
        with pytest.raises(afterlog.CorruptFile) as raised:
            reopened.topic("mail").partition(0).fetch(0)
        assert Path(log) == raised.value.path
        assert 1 == reopened.send("mail", b"second").offset
    assert rotten == again.image().contents[log][: len(rotten)], "nothing is cut below the recovery point"


def test_full_disk_in_the_middle_of_an_append() -> None:
    disk = SimulatedFiles()
    full = False

    def fail(operation: str, path: Path, call: int) -> OSError | int | None:
        return 20 if full and operation == "append" else None

    with open_store(PATH, None, ManualClock(NOW_MS), FailingFiles(disk, fail, short_write_error=errno.ENOSPC)) as store:
        partition = store.create_topic("mail").partition(0)
        assert 0 == store.send("mail", b"kept").offset
        before = disk.image()
        full = True
        with pytest.raises(afterlog.StorageFull) as raised:
            store.send("mail", b"lost")
        assert afterlog.StorageFull.retriable
        assert ".log" == raised.value.path.suffix
        assert before == disk.image()
        full = False
        assert 1 == store.send("mail", b"again").offset
        assert 2 == partition.high_watermark()
    reopened = open_store(PATH, None, ManualClock(NOW_MS), SimulatedFiles(disk.image()))
    with reopened as store, store.consumer("mail", group="g") as consumer:
        assert [b"kept", b"again"] == [message.value for message in consumer.poll()]
