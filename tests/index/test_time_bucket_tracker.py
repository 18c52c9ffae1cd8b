from __future__ import annotations

import numpy as np
import pytest

from afterlog.index.time_bucket_tracker import TimeBucketTracker
from tests.index.support import INT64_MAX, int64
from tests.index.tracker_suite import START_MS, AnyOrderTrackerTests, pairs


class TestTimeBucketTracker(AnyOrderTrackerTests):
    precision_ms = 1_000

    def make(self) -> TimeBucketTracker:
        return TimeBucketTracker(self.precision_ms)

    def time_of(self, deliver_after: int, last_taken: int) -> int:
        return min((deliver_after + self.precision_ms - 1) // self.precision_ms * self.precision_ms, INT64_MAX)


class TestToTheMillisecond(TestTimeBucketTracker):
    precision_ms = 1
    examples = 8


class TestInBucketsOfTwoToTheTenth(TestTimeBucketTracker):
    precision_ms = 1 << 10
    examples = 8


@pytest.mark.parametrize("precision_ms", [1, 7, 1_000, 1_024, 2**40, INT64_MAX])
def test_rounds_up_and_not_beyond_int64(precision_ms: int) -> None:
    dues = [
        0,
        1,
        precision_ms - 1,
        precision_ms,
        min(precision_ms + 1, INT64_MAX),
        START_MS,
        2**62,
        INT64_MAX - 1,
        INT64_MAX,
    ]
    expected = [min(-(-due // precision_ms) * precision_ms, INT64_MAX) for due in dues]
    column, single = TimeBucketTracker(precision_ms), TimeBucketTracker(precision_ms)
    column.add_many(int64(*dues), np.arange(len(dues)))
    for offset, due in enumerate(dues):
        single.add(due, offset)
    for tracker in (column, single):
        tracker.check()
        assert sorted(zip(expected, range(len(dues)), strict=True)) == pairs(tracker.due(INT64_MAX, 100))


@pytest.mark.parametrize("precision_ms", [0, -1, INT64_MAX + 1])
def test_a_precision_that_is_none(precision_ms: int) -> None:
    with pytest.raises(ValueError, match="precision_ms"):
        TimeBucketTracker(precision_ms)


def bytes_per_entry(delays: np.ndarray, precision_ms: int, step: int) -> float:
    """Of entries that come in batches, a message a millisecond."""
    tracker, count = TimeBucketTracker(precision_ms), len(delays)
    for start in range(0, count, step):
        offset = np.arange(start, min(start + step, count))
        tracker.add_many(START_MS + offset + delays[offset], offset)
    tracker.check()
    return tracker.memory_bytes() / count


@pytest.mark.parametrize("step", [1_000, 50_000])
def test_memory_of_consecutive_and_of_random_times(step: int) -> None:
    count, random = 200_000, np.random.default_rng(1)
    assert bytes_per_entry(np.zeros(count, np.int64), 1_024, step) < 2.7  # published: 25 MiB for 10 million
    assert bytes_per_entry(np.zeros(count, np.int64), 262_144, step) < 0.24
    assert bytes_per_entry(random.integers(0, 1_728_000, count), 1_024, step) < 16  # as dense as a day of 10 million
    assert bytes_per_entry(random.exponential(60_000, count).astype(np.int64), 1_024, step) < 8


def test_a_bucket_is_compacted_a_round_after_it_has_grown() -> None:
    tracker = TimeBucketTracker(1_000)
    for offset in (*range(0, 2_000, 2), *range(1, 2_000, 2)):
        tracker.add(0, offset)
    sizes = []
    for later in range(1, 4):
        sizes.append(tracker._buckets[0].memory_bytes())
        tracker.add_many(np.full(65_536, START_MS), later * 100_000 + np.arange(65_536))
        tracker.check()
    assert sizes[0] == sizes[1] > 4_000
    assert sizes[2] < 600
