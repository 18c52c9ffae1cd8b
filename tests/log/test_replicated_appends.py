"""What is replicated is appended once, in its order, whatever is sent again, killed, cut off, or rots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS, OS
from afterlog.base.errors import InvalidBatch
from afterlog.base.names import is_origin_file
from afterlog.log.checkpoints import OriginsMark
from afterlog.records.batch import Record, encode_batch
from afterlog.records.encode import parse
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, content, flipped, killed, open_small, power_cut, with_file

pytestmark = pytest.mark.usefixtures("quiet")
FOLDER = PATH / "t-0"
EU, US = "eu/1a2b", "us/3c4d"


class Receiving:
    """A partition, and what was replicated to it: the values of each origin, and where they are there."""

    def __init__(self, disk: SimulatedFiles | None = None, clock: ManualClock | None = None, **config: Any) -> None:
        self.disk = disk or SimulatedFiles()
        self.clock = clock or ManualClock(NOW_MS)
        self.config = config
        self.store = open_small(self.disk, self.clock, **config)
        self.partition = (self.store.topic("t") if self.store.topics() else self.store.create_topic("t")).partition(0)
        self.log = self.partition.log

    def receive(self, origin: str, *offsets: int, records: int = 1, due_ms: int = -1) -> int:
        """Batches of so many records each, from these offsets there."""
        data = b"".join(
            encode_batch(
                [Record(value=f"{origin}@{offset + row}".encode(), timestamp=NOW_MS) for row in range(records)]
            )
            for offset in offsets
        )
        batches = parse(data, due_ms, self.log.context.config)
        records = self.log.replicate(lambda appends: appends.append(batches, origin, np.array(offsets)))
        self.log.commit.committed(self.log.written)
        return records

    def send(self) -> int:
        return self.store.send("t", b"own", partition=0).offset

    def values(self) -> list[str]:
        """In append order."""
        self.clock.advance(60_000)
        found, position = list[Any](), 0
        while position < self.partition.high_watermark():
            columns, position, *_ = self.partition.columns(position, 10_000, 1 << 30)
            found += columns.to_messages()
        return [(message.value or b"").decode() for message in sorted(found, key=lambda message: message.offset)]

    @property
    def mark(self) -> OriginsMark:
        mark = self.log.checkpoints.current.origins
        assert mark is not None
        return mark

    def names(self) -> list[str]:
        return [name for name in self.disk.names(FOLDER) if is_origin_file(name)]

    def knows(self, **highest: int) -> None:
        """What lies after the highest of each origin is taken, and nothing else."""
        index = self.log.version.origins
        assert index is not None
        assert {EU if name == "eu" else US: behind for name, behind in highest.items()} == index.highest()
        self.log.check()
        for value, offset in zip(self.values(), range(self.log.written), strict=True):
            name, _, there = value.partition("@")
            numbers, offsets = index.origins(np.array([offset]))
            assert (name, int(there or offset)) == (
                "own" if numbers[0] < 0 else index.names[int(numbers[0])], int(offsets[0])
            )  # fmt: skip
            if there:
                assert [offset] == index.here(name, np.array([int(there)])).tolist()

    def reopened(self, disk: SimulatedFiles | None = None) -> Receiving:
        """As after a kill."""
        return Receiving(disk or killed(self.disk), self.clock, **self.config)


def test_each_is_appended_once() -> None:
    log = Receiving()
    assert 3 == log.receive(EU, 4, 5, 9)
    log.send()
    assert 1 == log.receive(EU, 5, 9, 10)
    assert 0 == log.receive(EU, 9, 10)
    assert 2 == log.receive(US, 4, 5)
    assert [f"{EU}@4", f"{EU}@5", f"{EU}@9", "own", f"{EU}@10", f"{US}@4", f"{US}@5"] == log.values()
    log.knows(eu=11, us=6)


def test_batches_of_many() -> None:
    log = Receiving()
    assert 9 == log.receive(EU, 0, 3, 8, records=3)
    assert 3 == log.receive(EU, 3, 8, 11, records=3)
    log.knows(eu=14)
    index = log.log.version.origins
    assert index is not None
    assert [0, 5, -1, -1, 6, 11, -1] == index.here(EU, np.array([0, 5, 6, 7, 8, 13, 14])).tolist()
    assert [-1] == index.here(US, np.array([0])).tolist()


def test_a_part_of_a_batch_is_refused() -> None:
    log = Receiving()
    log.receive(EU, 0, records=2)
    with pytest.raises(InvalidBatch, match="a part of the batch at offset 1"):
        log.receive(EU, 1, records=2)
    with pytest.raises(InvalidBatch, match="order"):
        log.receive(EU, 5, 4)
    with pytest.raises(InvalidBatch, match="names no origin"):
        log.receive("", 7)
    log.knows(eu=2)


def test_each_log_stamps_its_own_time() -> None:
    log = Receiving()
    log.receive(EU, 0, due_ms=NOW_MS - 60_000)
    log.receive(EU, 1, due_ms=NOW_MS + 60_000)
    log.receive(EU, 2)
    assert (3, 2) == (log.log.written, log.partition.high_watermark())
    assert 1 == log.log.clamped_records


@pytest.mark.parametrize("cut", [killed, power_cut])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_behind_a_crash(cut: Any, checkpoint: bool) -> None:
    log = Receiving(durability=ALWAYS)
    log.receive(EU, 0, 1)
    log.receive(US, 7)
    if checkpoint:
        log.log.checkpoint()
        log.receive(EU, 2)
    again = log.reopened(cut(log.disk))
    again.knows(eu=2 + checkpoint, us=8)
    assert 4 - 2 - checkpoint == again.receive(EU, 0, 1, 2, 3)
    again.knows(eu=4, us=8)


def test_a_closed_store_reads_no_log() -> None:
    log = Receiving()
    log.receive(EU, 0, 1)
    log.store.close()
    again = log.reopened(log.disk)
    again.knows(eu=2)
    assert again.mark.upto == again.log.written


@pytest.mark.parametrize("what", ["gone", "rotten", "other"])
def test_a_file_that_is_not_as_it_was_is_made_anew(what: str) -> None:
    log = Receiving(segment_bytes=4_096)
    for offset in range(40):
        log.receive(EU, 2 * offset)
        log.send()
    log.store.close()
    [name] = log.names()
    data = content(log.disk, FOLDER / name)
    broken = {"gone": None, "rotten": flipped(data, len(data) // 2), "other": data[:-1]}[what]
    again = log.reopened(with_file(log.disk, FOLDER / name, broken))
    again.knows(eu=79)
    assert 0 == again.receive(EU, 78)
    again.store.close()
    again.reopened(again.disk).knows(eu=79)


def test_one_file_at_a_time() -> None:
    log = Receiving(segment_bytes=4_096)
    for offset in range(90):
        log.receive(EU, offset)
        if offset % 4 == 0:
            log.log.checkpoint()
        assert len(log.names()) <= 1
    log.log.checkpoint()
    assert log.names() == [f"origins-{log.log.written:020d}"]
    log.knows(eu=90)


def test_what_retention_took_is_not_taken_again() -> None:
    log = Receiving(segment_bytes=4_096)
    log.store.alter_topic("t", retention_ms=1_000)
    for offset in range(60):
        log.receive(EU, offset)
    log.clock.advance(100_000)
    assert 60 == log.partition.high_watermark()
    log.log.roll()
    assert log.log.enforce_retention() or not log.log.sealed
    for again in (log, log.reopened()):
        assert 0 == again.receive(EU, *range(60))
        assert 1 == again.receive(EU, 60)
        index = again.log.version.origins
        assert index is not None
        assert {EU: 61} == index.highest()
        again.log.check()


def test_a_fifo_topic_too() -> None:
    log = Receiving()
    partition = log.store.create_topic("fifo", delayed=False).partition(0)
    data = encode_batch([Record(value=b"x", timestamp=NOW_MS)])
    batches = parse(data, -1, partition.log.context.config)
    assert 1 == partition.log.replicate(lambda appends: appends.append(batches, EU, np.array([3])))
    assert 0 == partition.log.replicate(lambda appends: appends.append(batches, EU, np.array([3])))
    log.store.send("fifo", b"y", partition=0)
    again = open_small(killed(log.disk), log.clock).create_topic("fifo", delayed=False).partition(0)
    index = again.log.version.origins
    assert index is not None
    assert {EU: 4} == index.highest()
    assert [0] == index.here(EU, np.array([3])).tolist()
    again.log.check()


STEP = st.one_of(
    st.tuples(st.sampled_from([EU, US]), st.integers(0, 2), st.integers(1, 3), st.integers(0, 3)),
    st.sampled_from(["own", "checkpoint", "kill", "roll"]),
)


@settings(deadline=None)
@given(st.lists(STEP, max_size=15), st.sampled_from([4_096, 65_536]))
def test_any_course(steps: list[Any], segment_bytes: int) -> None:
    log = Receiving(segment_bytes=segment_bytes, durability=OS)
    upcoming, expected = {EU: 0, US: 0}, list[str]()
    for step in steps:
        match step:
            case "own":
                log.send()
                expected.append("own")
            case "checkpoint":
                log.log.checkpoint()
            case "kill":
                log = log.reopened()
            case "roll":
                log.log.roll()
            case (origin, gap, records, back):
                first = max(upcoming[origin] + gap - back, 0)
                offsets = range(first, upcoming[origin] + gap + records)
                fresh = [offset for offset in offsets if offset >= upcoming[origin]]
                assert len(fresh) == log.receive(origin, *offsets)
                expected += [f"{origin}@{offset}" for offset in fresh]
                upcoming[origin] = max(upcoming[origin], offsets[-1] + 1)
    assert expected == log.values()
    if any(upcoming.values()):
        log.knows(**{name[:2]: behind for name, behind in upcoming.items() if behind})
