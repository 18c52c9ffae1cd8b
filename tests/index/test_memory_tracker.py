from __future__ import annotations

import numpy as np

from afterlog.index.memory_tracker import MemoryTracker
from tests.index.support import INT64_MAX
from tests.index.tracker_suite import START_MS, AnyOrderTrackerTests, pairs


class TestMemoryTracker(AnyOrderTrackerTests):
    def make(self) -> MemoryTracker:
        return MemoryTracker()


def test_singles_become_blocks_that_grow_from_the_last_to_the_first() -> None:
    tracker = MemoryTracker()
    for offset in range(5_000):
        tracker.add(START_MS + offset * 7_919 % 3_000, offset)
        if offset % 300 == 0:
            tracker.check()
    sizes = [len(part) for part in tracker._columns.parts()]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) < 6
    expected = sorted((START_MS + offset * 7_919 % 3_000, offset) for offset in range(5_000))
    assert expected == pairs(tracker.due(INT64_MAX, 3_000)) + pairs(tracker.due(INT64_MAX, 3_000))


def test_memory_is_sixteen_bytes_an_entry() -> None:
    tracker = MemoryTracker()
    tracker.add_many(START_MS + np.arange(100_000) * 7_919 % 86_400_000, np.arange(100_000))
    assert 16 <= tracker.memory_bytes() / 100_000 < 17
