"""Bugs that the state machine, the crash explorer and the sweeps found, each as short as it gets."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from afterlog import (
    EARLIEST,
    LATEST,
    OS,
    AfterOffset,
    AtTime,
    Config,
    CorruptFile,
    ManualClock,
    PartitionPoisoned,
    StorageFull,
)
from afterlog.base.locks import Condition
from afterlog.log.background import Background
from afterlog.store.store import open_store
from tests.campaigns.crash_states import crash_states
from tests.campaigns.crashes import INTERVAL, PATH, START_MS, TOPIC, small
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, SimulatedFiles

FOLDER = PATH / "mail-0"


def test_record_due_with_the_last_that_retention_took() -> None:
    """The search for a position began behind the whole instant of the log start, and skipped the record."""
    disk, clock = SimulatedFiles(), ManualClock(START_MS)
    with open_store(PATH, small(), clock, disk) as store:
        partition = store.create_topic(TOPIC, retention_ms=0).partition(0)
        store.send(TOPIC, b"gone")
        partition.high_watermark()
        partition.log.roll()
        assert 1 == partition.log_start
    with open_store(PATH, small(), clock, disk) as store:
        store.send(TOPIC, b"kept")
        with store.consumer(TOPIC, group="g", start=EARLIEST) as consumer:
            assert [b"kept"] == [message.value for message in consumer.poll()]


def test_fetch_ahead_of_the_high_watermark_stays_there() -> None:
    """Its next position was the high watermark: a reader that waited for a later record got earlier ones."""
    with open_store(PATH, small(), ManualClock(START_MS), SimulatedFiles()) as store:
        partition = store.create_topic(TOPIC).partition(0)
        store.send_many(TOPIC, [b"a", b"b"], delay=1)
        assert 2 == partition.fetch(2).next_position
        assert 1 == partition.fetch(1).next_position


def test_checkpoint_after_one_that_failed_behind_its_seal() -> None:
    """The bucket was sealed and empty, the recovery point had not moved: the next one sealed nothing, and raised."""
    disk, full = SimulatedFiles(), False

    def fail(operation: str, path: Path, call: int) -> int | None:
        return 0 if full and operation == "append" and path.name == "checkpoints.tmp" else None

    with open_store(PATH, small(), ManualClock(START_MS), FailingFiles(disk, fail), background=False) as store:
        partition = store.create_topic(TOPIC).partition(0)
        store.send(TOPIC, b"a")
        full = True
        with pytest.raises(StorageFull):
            partition.log.checkpoint()
        full = False
        partition.log.checkpoint()
        assert 1 == partition.log.checkpoints.current.recovery.offset
        store.check()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_roll_after_a_sparse_index_was_lost(suffix: str) -> None:
    """It was made anew in memory, but its file was not, and the roll found none to append to."""
    disk, clock = SimulatedFiles(), ManualClock(START_MS)
    with open_store(PATH, small(), clock, disk) as store:
        store.create_topic(TOPIC)
        store.send(TOPIC, b"a")
    disk.unlink(FOLDER / f"{0:020d}{suffix}")
    with open_store(PATH, small(), clock, disk) as store:
        store.topic(TOPIC).partition(0).log.roll()
        store.send(TOPIC, b"b")
        store.check()


def test_retention_leaves_no_log_start_ahead_of_the_high_watermark() -> None:
    """What it removed was due by a frontier that a crash forgot: afterwards LATEST lay below the log start."""
    disk, clock = SimulatedFiles(), ManualClock(START_MS)
    config = small(frontier_lease_ms=1_000)
    store = open_store(PATH, config, clock, disk)
    partition = store.create_topic(TOPIC, retention_ms=0).partition(0)
    store.send(TOPIC, b"lease")
    partition.high_watermark()
    store.send(TOPIC, b"gone", delay=0.5)
    partition.log.roll()
    clock.advance(500)
    partition.high_watermark()
    assert 1 == store.enforce_retention()
    clock.advance(-500)
    again = SimulatedFiles(disk.image())
    with open_store(PATH, config, clock, again) as store:
        assert [] == store.topic(TOPIC).partition(0).fetch(LATEST).batches
        assert 2 == store.topic(TOPIC).partition(0).high_watermark()


def test_position_under_os_is_no_safer_than_its_records() -> None:
    """It was: a power cut took the records and left the position, which then skipped what came in their place."""
    disk, config = SimulatedFiles(), small(OS)
    store = open_store(PATH, config, ManualClock(START_MS), disk, background=False)
    store.create_topic(TOPIC)
    store.send(TOPIC, b"a")
    with store.consumer(TOPIC, group="g") as consumer:
        assert 1 == len(consumer.poll())
    for state in crash_states(disk.operations, len(disk.operations)):
        with open_store(PATH, config, ManualClock(START_MS), state.files()) as store:
            assert 1 == store.topic(TOPIC).partition(0).log_end_offset


@pytest.mark.parametrize("operation", ["sync", "sync_folder", "rename"])
def test_failing_checkpoint_poisons(operation: str) -> None:
    """It raised the bare OSError and went on, though nobody knew which checkpoints the disk would keep."""
    failing = False

    def fail(asked: str, path: Path, call: int) -> OSError | None:
        return OSError(5, "fails") if failing and asked == operation and path.suffix != ".log" else None

    with open_store(
        PATH, small(), ManualClock(START_MS), FailingFiles(SimulatedFiles(), fail), background=False
    ) as store:
        partition = store.create_topic(TOPIC).partition(0)
        store.send(TOPIC, b"a")
        failing = True
        with pytest.raises(PartitionPoisoned):
            partition.log.roll()
        failing = False
        with pytest.raises(PartitionPoisoned):
            store.send(TOPIC, b"b")
        assert 1 == len(partition.fetch(EARLIEST).batches)


def test_lost_topics_are_seen() -> None:
    """Without its topics document a store opened as an empty one, and making the topic again removed its records."""
    disk, clock = SimulatedFiles(), ManualClock(START_MS)
    with open_store(PATH, small(), clock, disk) as store:
        store.create_topic(TOPIC)
        store.send(TOPIC, b"a")
    disk.unlink(PATH / "topics")
    with pytest.raises(CorruptFile) as raised:
        open_store(PATH, small(), clock, disk)
    assert PATH / "topics" == raised.value.path


def test_checkpoints_of_another_partition_are_seen() -> None:
    """Swapped checkpoints cut the log where the other one ended."""
    disk, clock = SimulatedFiles(), ManualClock(START_MS)
    with open_store(PATH, small(), clock, disk) as store:
        store.create_topic(TOPIC, partitions=2)
        store.send(TOPIC, b"a", partition=0)
        store.send(TOPIC, b"a longer one", partition=1)
    contents = dict(disk.image().contents)
    one, other = f"{PATH}/mail-0/checkpoints", f"{PATH}/mail-1/checkpoints"
    contents[one], contents[other] = contents[other], contents[one]
    with pytest.raises(CorruptFile, match="mail-1"):
        open_store(PATH, small(), clock, SimulatedFiles(Image(disk.image().folders, contents)))


def test_group_folder_that_a_copy_left_out() -> None:
    """Empty folders do not survive git, or an object store: the first commit failed."""
    disk, clock = SimulatedFiles(), ManualClock(START_MS)
    with open_store(PATH, small(), clock, disk) as store:
        store.create_topic(TOPIC)
        store.send(TOPIC, b"a")
    image = disk.image()
    folders = [folder for folder in image.folders if Path(folder).name not in ("subscriptions", "buckets")]
    copied = {path: data for path, data in image.contents.items() if "/buckets/" not in path}
    with open_store(PATH, small(), clock, SimulatedFiles(Image(folders, copied))) as store:
        with store.consumer(TOPIC, group="g") as consumer:
            assert 1 == len(consumer.poll())
        with store.consumer(TOPIC, group="g") as consumer:
            assert {0: 1} == consumer.positions()


@pytest.mark.parametrize("interval_bytes", [64, 4_096])
def test_rotten_base_offset_of_a_bare_batch(interval_bytes: int) -> None:
    """Kafka's CRC does not cover it, and a reader of a FIFO topic believed it."""
    disk, clock, config = SimulatedFiles(), ManualClock(START_MS), Config(index_interval_bytes=interval_bytes)
    with open_store(PATH, config, clock, disk) as store:
        store.create_topic(TOPIC, delayed=False)
        for value in (b"a", b"b", b"c"):
            store.send(TOPIC, value)
    image = disk.image()
    log = f"{FOLDER}/{0:020d}.log"
    size = len(image.contents[log]) // 3
    for batch in range(3):
        rotten = bytearray(image.contents[log])
        rotten[batch * size + 7] ^= 4
        files = SimulatedFiles(Image(image.folders, {**image.contents, log: bytes(rotten)}))
        with open_store(PATH, config, clock, files) as store, pytest.raises(CorruptFile):
            store.topic(TOPIC).partition(0).columns(batch, 1, 1)


def test_positions_do_not_count_what_is_not_visible() -> None:
    """They were beyond the log end, and so refused, or refused later on."""
    with open_store(PATH, small(INTERVAL), ManualClock(START_MS), SimulatedFiles()) as store:
        partition = store.create_topic(TOPIC).partition(0)
        store.send(TOPIC, b"pending", delay=1)
        store.sync()
        store.send(TOPIC, b"not visible")
        assert 1 == partition.position(AfterOffset(0))
        assert 1 == partition.position(AtTime(START_MS + 5_000))


def test_interval_waits_for_its_interval() -> None:
    """It synced whenever the clock's wait returned, which may be early and is after half a second at the latest."""
    synced = threading.Event()

    class Hasty(ManualClock):
        """Waits that return at once, for no reason, and patience that runs out after the third."""

        waits = 0

        def monotonic_s(self) -> float:
            return 3_600.0 * (self.waits // 3)

        def wait(self, condition: Condition, until_ms: int | None, timeout_s: float | None) -> None:
            self.waits += 1

    clock, waits = Hasty(START_MS), []

    def work() -> None:
        waits.append(clock.waits)
        synced.set()

    sync = Background("x", work, clock=clock, interval_ms=INTERVAL.interval_ms)
    sync.begin()
    assert synced.wait(10)
    sync.stop()
    assert waits[0] >= 3
