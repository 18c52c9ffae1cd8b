from __future__ import annotations

import contextlib
import random
from unittest.mock import patch

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile
from afterlog.fetch.partition import Partition
from afterlog.log import lookup
from afterlog.log.lookup import find_entries
from afterlog.records.batch import Record, encode_batch
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, content, flipped, killed, open_small, with_file

RECORDS = 400


class Setting:
    """A log of some segments, and the entry of each offset: (due, offset, records)."""

    def __init__(self, delayed: bool = True) -> None:
        draw = random.Random(8)
        self.disk = SimulatedFiles()
        self.store = open_small(self.disk, ManualClock(NOW_MS), segment_bytes=16_384, index_interval_bytes=512)
        self.partition: Partition = self.store.create_topic("t", delayed=delayed).partition(0)
        self.entries: list[tuple[int, int, int]] = []
        while len(self.entries) < RECORDS:
            count, due = draw.choice([1, 1, 1, 2, 9]), NOW_MS + draw.randrange(1_000)
            batch = encode_batch([Record(value=bytes(draw.choice([0, 50, 300])), timestamp=NOW_MS)] * count)
            if len(batch) < 2_048:
                offset = self.partition.append(batch, deliver_after=due if delayed else None)
                self.entries += [(due if delayed else 0, offset, count)] * count

    def found(self, offsets: list[int]) -> list[tuple[int, int, int]]:
        found = find_entries(self.partition.log.version.all_written(), np.array(offsets, np.int64))
        return [(entry.deliver_after, entry.offset, entry.records) for entry in found]


@pytest.mark.parametrize("delayed", [True, False])
@pytest.mark.parametrize("walk_bytes", [1, 2_000, 1 << 20])
def test_every_offset_in_any_order(delayed: bool, walk_bytes: int) -> None:
    setting = Setting(delayed)
    assert len(setting.partition.log.version.segments) > 2
    offsets = [*range(len(setting.entries)), *range(0, len(setting.entries), 7)]
    random.Random(1).shuffle(offsets)
    with patch.object(lookup, "WALK_BYTES", walk_bytes):
        assert [setting.entries[offset] for offset in offsets] == setting.found(offsets)
        for offset in range(0, len(setting.entries), 11):
            assert [setting.entries[offset]] == setting.found([offset])


def test_what_is_not_there_has_no_records() -> None:
    setting = Setting()
    end = len(setting.entries)
    assert [(0, 0, 0), setting.entries[5], (0, 0, 0), (0, 0, 0)] == setting.found([-1, 5, end, 2**63 - 1])
    assert [] == setting.found([])
    for offset in (-1, end, 2**63 - 1):
        assert [(0, 0, 0)] == setting.found([offset])
    store = open_small(SimulatedFiles(), ManualClock(NOW_MS))
    empty = store.create_topic("t").partition(0)
    assert 0 == find_entries(empty.log.version.readable(), np.array([0])).entry(0).records


def test_written_and_visible() -> None:
    setting = Setting()
    visible = setting.partition.log.version.readable()
    offset = setting.store.send("t", b"more").offset
    assert 0 == find_entries(visible, np.array([offset])).entry(0).records
    assert 1 == setting.found([offset])[0][2]


def test_rot_is_seen() -> None:
    """In a header: an offset that is there is found as it was, or not at all."""
    setting = Setting()
    setting.store.close()
    segment = setting.partition.log.version.segments[0]
    data = content(setting.disk, segment.path)
    for position in range(0, 700, 3):
        rotten = with_file(killed(setting.disk), segment.path, flipped(data, position))
        store = open_small(rotten, ManualClock(NOW_MS))
        with contextlib.suppress(CorruptFile):
            found = find_entries(store.topic("t").partition(0).log.version.readable(), np.arange(8))
            assert [(one.deliver_after, one.offset, one.records) for one in found] == setting.entries[:8]


def test_an_index_that_lies_is_seen() -> None:
    setting, seen = Setting(), 0
    columns = setting.partition.log.version.segments[0].sparse.offsets._columns
    for number, change in ((0, 1), (0, -1), (1, 1), (1, 300)):
        columns.column(number)[2] += change
        for offset in range(60):
            try:
                assert [setting.entries[offset]] == setting.found([offset])
            except CorruptFile:
                seen += 1
        columns.column(number)[2] -= change
    assert seen > 20
    assert setting.entries[:60] == setting.found([*range(60)])


def test_a_segment_that_retention_takes_meanwhile() -> None:
    store = open_small(SimulatedFiles(), clock := ManualClock(NOW_MS))
    partition = store.create_topic("t", retention_ms=1).partition(0)
    store.send("t", b"a")
    partition.log.roll()
    store.send("t", b"b")
    clock.advance(10)
    pinned = partition.log.pin()
    assert 1 == partition.log.enforce_retention()
    assert [1, 1] == find_entries(pinned.all_written(), np.array([0, 1])).records.tolist()
    assert [0, 1] == find_entries(partition.log.pin().all_written(), np.array([0, 1])).records.tolist()
    store.close()
