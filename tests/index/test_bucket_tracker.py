from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from afterlog.base.errors import CorruptFile, OffsetOutOfRange, StorageFull
from afterlog.base.files import Files
from afterlog.base.names import BUCKETS, DELIVER_AFTER_INDEX
from afterlog.index.bucket_storage import LocalBucketSnapshotStorage
from afterlog.index.bucket_tracker import BucketTracker
from afterlog.index.entries import Key
from tests import campaigns
from tests.campaigns.failing_files import FailingFiles, fail_at
from tests.index.support import INT64_MAX, UnsyncedFiles, int64
from tests.index.tracker_suite import START_MS, DelayedDeliveryTrackerTests, Held, offsets, pairs
from tests.support import Calls


def storage_of(folder: Path, max_entries: int = 4, files: Files | None = None) -> LocalBucketSnapshotStorage:
    return LocalBucketSnapshotStorage(files or UnsyncedFiles(), folder, max_entries=max_entries, max_step_ms=300_000)


def stored_keys(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(f"*{DELIVER_AFTER_INDEX}"))


def new_folder() -> Path:
    folder = Path(tempfile.mkdtemp())
    (folder / BUCKETS).mkdir()
    return folder


class TestBucketTracker(DelayedDeliveryTrackerTests):
    """Buckets of a few entries and never more than three runs, so that hardly a case does without seals and merges."""

    limits: ClassVar = {"min_index_count": 12, "max_num_buckets": 3}
    examples = 8

    def make(self) -> BucketTracker:
        self.folder = new_folder()
        return BucketTracker(storage_of(self.folder), **self.limits)

    def reopen(self, tracker: BucketTracker, held: dict[int, Held]) -> BucketTracker:  # type: ignore[override]
        again = BucketTracker(storage_of(self.folder), stored_keys(self.folder), tracker.after, **self.limits)
        for offset, entry in sorted(held.items()):
            assert (offset >= again.end_offset) == again.add(entry.time, offset)
        return again

    def time_of(self, deliver_after: int, last_taken: int) -> int:
        return max(deliver_after, last_taken)

    def close(self, tracker: BucketTracker) -> None:  # type: ignore[override]
        assert len(tracker.index.runs) <= self.limits["max_num_buckets"]
        assert sorted(run.key for run in tracker.index.runs) == stored_keys(self.folder)
        shutil.rmtree(self.folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = new_folder()
    yield folder
    shutil.rmtree(folder)


def times(count: int) -> np.ndarray:
    return START_MS + np.arange(count) * 7_919 % 5_003


@pytest.mark.parametrize("max_num_buckets", [1, 2, 3, -1])
def test_any_limit_of_runs(folder: Path, max_num_buckets: int) -> None:
    tracker = BucketTracker(storage_of(folder), min_index_count=10, max_num_buckets=max_num_buckets)
    for start in range(0, 200, 25):
        tracker.add_many(times(200)[start : start + 25], np.arange(start, start + 25))
        assert len(tracker.index.runs) <= (20 if max_num_buckets < 0 else max_num_buckets)
    tracker.check()
    expected = sorted((time, offset) for offset, time in enumerate(times(200).tolist()))
    assert expected[:150] == pairs(tracker.due(INT64_MAX, 150))
    again = BucketTracker(storage_of(folder), stored_keys(folder), tracker.after, min_index_count=10)
    assert [row for row in expected[150:] if row[1] < again.end_offset] == pairs(again.due(INT64_MAX, 200))
    assert again.index.runs == tracker.index.runs or len(again) == 0


def test_a_run_goes_when_all_of_it_was_given_out(folder: Path) -> None:
    tracker = BucketTracker(storage_of(folder), min_index_count=10)
    tracker.add_many(START_MS + np.arange(40), np.arange(40))
    assert 3 == len(stored_keys(folder))
    for taken, left in ((13, 2), (23, 1), (33, 0), (40, 0)):
        assert tracker.contains(taken - 1)
        assert len(tracker) - 40 + taken == len(tracker.due(START_MS + taken - 1, 100))
        assert [] == pairs(tracker.due(0, 1))
        assert left == len(stored_keys(folder))
        assert [offset >= taken for offset in range(40)] == [tracker.contains(offset) for offset in range(40)]
    tracker.check()


def test_offsets_that_do_not_follow_are_refused_and_never_lost(folder: Path) -> None:
    tracker = BucketTracker(storage_of(folder))
    tracker.add_many(int64(START_MS, START_MS, START_MS + 9), int64(3, 5, 7))
    for offset in (4, 2):
        with pytest.raises(ValueError, match=f"offset {offset} is not held and does not follow 7"):
            tracker.add(START_MS, offset)
    with pytest.raises(ValueError, match="offset 6"):
        tracker.add_many(int64(5, 5, 5), int64(7, 8, 6))
    assert [(START_MS, 3), (START_MS, 5)] == pairs(tracker.due(START_MS, 10))
    with pytest.raises(ValueError, match="offset 5"):
        tracker.add(START_MS, 5)
    with pytest.raises(OffsetOutOfRange):
        tracker.add(START_MS, INT64_MAX)
    assert [(START_MS + 9, 7)] == pairs(tracker.due(INT64_MAX, 10))


def test_what_was_given_out_is_not_fed_again(folder: Path) -> None:
    tracker = BucketTracker(storage_of(folder), after=Key(START_MS, 8))
    with pytest.raises(ValueError, match="were given out before"):
        tracker.add_many(int64(START_MS, START_MS + 1), int64(8, 10))
    assert 2 == tracker.add_many(int64(START_MS + 1, START_MS), int64(8, 10))
    assert [(START_MS, 10), (START_MS + 1, 8)] == pairs(tracker.due(INT64_MAX, 10))


def test_a_run_ends_before_its_offsets_span_too_much(folder: Path) -> None:
    tracker = BucketTracker(storage_of(folder), max_num_buckets=1)
    given = [0, 2**32 - 1, 2**32, 2**33 + 5, 2**62]
    assert 5 == tracker.add_many(np.full(5, START_MS), int64(*given))
    assert [(0, 2**32), (2**32, 2**32 + 1), (2**33 + 5, 2**33 + 6)] == [
        (run.coverage.first_offset, run.coverage.end_offset) for run in tracker.index.runs
    ]
    assert given == offsets(tracker.due(INT64_MAX, 10))


@pytest.mark.parametrize("max_num_buckets", [1, 30])
def test_a_full_disk_loses_nothing_and_the_same_call_goes_on(folder: Path, max_num_buckets: int) -> None:
    calls = Calls()
    storage = storage_of(folder, files=FailingFiles(UnsyncedFiles(), calls))
    tracker = BucketTracker(storage, min_index_count=10, max_num_buckets=max_num_buckets)
    entries, failures = (times(100), np.arange(100)), 0
    for full in itertools.cycle((True, False)):
        calls.fail("append", ".tmp", StorageFull("no room", path=folder), times=full)
        try:
            tracker.add_many(*(column[: len(tracker) + 15] for column in entries))
        except StorageFull:
            failures += 1
        tracker.check()
        assert tracker.contains(len(tracker) - 1)
        if len(tracker) == 100:
            break
    assert failures > 3
    expected = sorted((time, offset) for offset, time in enumerate(times(100).tolist()))
    assert expected == pairs(tracker.due(INT64_MAX, 1_000))


@pytest.mark.parametrize("max_num_buckets", [1, 3])
def test_killed_at_any_call_it_goes_on_with_what_is_stored(max_num_buckets: int) -> None:
    """Of a merge that was cut short before its sources went, too."""
    due, offset = START_MS + np.arange(90) * 7_919 % 40 + np.arange(90) // 45 * 20, np.arange(90)
    expected = sorted(zip(due.tolist(), offset.tolist(), strict=True))
    limits = {"min_index_count": 10, "max_num_buckets": max_num_buckets}
    left_over = 0
    for call in campaigns.share(itertools.count(1), 6):
        folder = new_folder()
        files = FailingFiles(UnsyncedFiles(), fail_at(call, errno.EIO, for_ever=True))
        tracker, taken = BucketTracker(storage_of(folder, files=files), **limits), list[tuple[int, int]]()
        with contextlib.suppress(OSError):
            tracker.add_many(due[:45], offset[:45])
            taken = pairs(tracker.due(START_MS + 20, 15))
            tracker.add_many(due[45:], offset[45:])
        left_over += len(stored_keys(folder)) > len(tracker.index.runs)
        again = BucketTracker(storage_of(folder), stored_keys(folder), tracker.after, **limits)
        assert stored_keys(folder) == sorted(run.key for run in again.index.runs)
        for row in range(again.end_offset, 90):
            if (due[row], row) > again.after:
                assert again.add(int(due[row]), row)
        again.check()
        assert expected == taken + pairs(again.due(INT64_MAX, 100))
        shutil.rmtree(folder)
        if files.calls < call:
            break
        campaigns.count("failing calls to the disk")
    assert left_over > (1 if campaigns.WHOLE else 0)


def test_a_chunk_that_cannot_be_read_loses_nothing(folder: Path) -> None:
    tracker = BucketTracker(storage_of(folder, max_entries=200), min_index_count=2_000)
    tracker.add_many(times(6_001), np.arange(6_001))
    expected = sorted((time, offset) for offset, time in enumerate(times(6_001).tolist()))
    path = folder / stored_keys(folder)[1]
    sound = path.read_bytes()
    position = int(tracker.index.runs[1].directory.position[-2])
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([sound[position] ^ 1]))
    taken: list[tuple[int, int]] = []
    with pytest.raises(CorruptFile, match="chunk 8"):
        taken.extend(row for _ in range(9) for row in pairs(tracker.due(INT64_MAX, 700)))
    with pytest.raises(CorruptFile, match="chunk 8"):
        tracker.due(INT64_MAX, 6_001)
    assert len(tracker) == 6_001 - len(taken) < 6_001
    with path.open("r+b") as file:
        file.write(sound)
    assert expected == taken + pairs(tracker.due(INT64_MAX, 6_001))


def test_memory_does_not_grow_with_what_is_held(folder: Path) -> None:
    tracker = BucketTracker(storage_of(folder, 500), min_index_count=1_000, max_num_buckets=4)
    for start in range(0, 40_000, 4_000):
        tracker.add_many(START_MS + np.arange(4_000) * 7_919 % 86_400_000, np.arange(start, start + 4_000))
    assert tracker.memory_bytes() < 70_000
    tracker.due(INT64_MAX, 1)
    assert tracker.memory_bytes() < 250_000


@pytest.mark.parametrize("min_index_count", [0, -1])
def test_a_count_that_is_none(folder: Path, min_index_count: int) -> None:
    with pytest.raises(ValueError, match="min_index_count"):
        BucketTracker(storage_of(folder), min_index_count=min_index_count)
