from __future__ import annotations

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidBatch
from afterlog.records import kernels
from afterlog.records.batch import decode_batch
from afterlog.records.blank import BLANK_BATCH_BYTES, blank_entries, can_be_blank
from afterlog.records.entry import decode_entry
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, content, open_small


def log(**settings: object) -> bytes:
    """Records of several lengths of prefix, a batch of several, a control batch, a tiny one."""
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS), segment_bytes=1 << 20, **settings) as store:
        partition = store.create_topic("t").partition(0)
        for number in range(300):
            delay = [0, 5, 10**7][number % 3]
            store.send("t", b"v" * number, key=b"k" if number % 2 else None, headers=[("h", b"x")], delay=delay)
        store.send("t", None, delay=5)
        store.send_many("t", [b"v", b"w"], delay=5)
        partition.cancel(np.array([5]))
        return content(disk, partition.log.version.active.path)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_all_but_what_a_record_held_stays(compression: str) -> None:
    data = np.frombuffer(log(compression=compression), np.uint8)
    scan = kernels.scan_entries(data, 0, -1, 0, True)
    rows = np.flatnonzero(can_be_blank(scan))
    assert 300 == len(rows)
    ends, made = blank_entries(data, scan.position[rows], scan.batch_position[rows])
    assert made.size == ends[-1] < len(data)
    again = kernels.scan_entries(made, 0, -1, -1, True)
    assert 0 == again.fault
    for name in ("offset", "records", "deliver_after", "broker_timestamp", "max_timestamp"):
        assert np.array_equal(getattr(again, name), getattr(scan, name)[rows]), name
    assert {BLANK_BATCH_BYTES} == {*(again.size - (again.batch_position - again.position)).tolist()}
    assert not can_be_blank(again).any()
    for row, position in zip(rows.tolist(), again.position.tolist(), strict=True):
        before, entry = decode_entry(data, int(scan.position[row])), decode_entry(made, position)
        assert before.metadata == entry.metadata
        assert before.header._replace(length=0, crc=0, attributes=0) == entry.header._replace(length=0, crc=0)
        [record] = decode_batch(made[entry.batch_position : position + entry.size].tobytes(), limit_bytes=1 << 20)
        assert (None, None, ()) == (record.value, record.key, tuple(record.headers))


def test_bare_batches() -> None:
    data = np.frombuffer(log(), np.uint8)
    scan = kernels.scan_entries(data, 0, -1, 0, True)
    rows = np.flatnonzero(can_be_blank(scan))[:9]
    _, made = blank_entries(data, scan.batch_position[rows], scan.batch_position[rows])
    assert made.size == 9 * BLANK_BATCH_BYTES
    assert 9 == len(kernels.scan_entries(made, 0, -1, -1, True).offset)


def test_every_byte_is_covered() -> None:
    data = np.frombuffer(log(), np.uint8)
    scan = kernels.scan_entries(data, 0, -1, 0, True)
    _, made = blank_entries(data, scan.position[:1], scan.batch_position[:1])
    for byte in range(made.size):
        rotten = made.copy()
        rotten[byte] ^= 1
        with pytest.raises(InvalidBatch):
            decode_entry(rotten, 0)


def test_none_at_all() -> None:
    nothing = np.empty(0, np.int64)
    ends, made = blank_entries(np.empty(0, np.uint8), nothing, nothing)
    assert ([0], 0) == (ends.tolist(), made.size)
