from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterlog.base.errors import StorageFull
from afterlog.base.files import Files
from afterlog.base.names import BUCKETS, bucket_key, run_key
from afterlog.index.bucket_storage import LocalBucketSnapshotStorage
from afterlog.index.buckets import Buckets, cheapest, check, with_sealed, without
from afterlog.index.delayed_index import DelayedIndex, DueCounter
from afterlog.index.entries import Entries, Key
from afterlog.index.merge import MergeIterator
from afterlog.index.mutable_bucket import MutableBucket
from afterlog.index.run import Run
from tests import campaigns
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.index.support import INT64_MAX, Row, entries_of, rows_of
from tests.support import Calls

FOLDER = Path("/p")
BEFORE_ALL = Key(-1, -1)
END = Key(INT64_MAX, INT64_MAX)


class Setting:
    """Buckets over a simulated disk, and all the rows that were ever added."""

    def __init__(self, limit: int = -1) -> None:
        self.calls = Calls()
        self.disk = SimulatedFiles()
        for folder in (FOLDER, FOLDER / BUCKETS):
            self.disk.make_folder(folder)
        self.index = DelayedIndex()
        self.buckets = Buckets(self.storage(FailingFiles(self.disk, self.calls)), max_num_buckets=limit)
        self.rows: list[Row] = []

    def storage(self, files: Files) -> LocalBucketSnapshotStorage:
        return LocalBucketSnapshotStorage(files, FOLDER, max_entries=4, max_step_ms=1_000)

    @property
    def end(self) -> int:
        return self.rows[-1][1] + self.rows[-1][3] if self.rows else 0

    def add(self, *dues: int) -> None:
        for due in dues:
            self.rows.append((due, self.end, len(self.rows) * 10, 1 + due % 3))
            self.index.bucket.add(*self.rows[-1])

    def seal(self, *dues: int) -> None:
        self.add(*dues)
        self.turn_to(self.buckets.seal(self.index, self.end, len(self.rows) * 10))

    def roll(self) -> None:
        self.turn_to(self.buckets.seal_segment(self.index, self.end, len(self.rows) * 10))

    def forget(self, upto: Key) -> None:
        self.turn_to(without(self.index, upto))

    def merge(self, first: int, last: int, **settings: Any) -> bool:
        return self.merge_runs(self.index.runs[first:last], **settings)

    def merge_runs(self, sources: Sequence[Run], **settings: Any) -> bool:
        """As a log does it; whether the sources were there still."""
        run = self.buckets.merge(sources, **settings)
        if not set(sources) <= set(self.index.runs):
            self.buckets.delete(run)
            return False
        self.turn_to(self.index.replacing(sources, [run]))
        return True

    def turn_to(self, index: DelayedIndex) -> None:
        before, self.index = self.index, index
        self.buckets.delete_replaced(before, index)

    def stored(self) -> list[str]:
        """Keys."""
        buckets = [f"{BUCKETS}/{name}" for name in self.disk.names(FOLDER / BUCKETS)]
        return [*(name for name in self.disk.names(FOLDER) if name != BUCKETS), *buckets]

    def check(self, after: Key = BEFORE_ALL) -> None:
        """What is stored is what the index holds, and a merge of it gives every row behind `after` once, in order."""
        check(self.index)
        assert sorted(run.key for run in self.index.runs) == sorted(self.stored())
        block = MergeIterator(after).next_block(self.index, END, len(self.rows) + 1)
        found = rows_of(Entries(block.deliver_after, block.offset, block.position, block.records))
        assert sorted(row for row in self.rows if row[:2] > after) == found
        assert sum(row[3] for row in self.rows) == self.index.records + self.index.removed_records


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_entries_may_come_while_a_bucket_is_stored(setting: Setting) -> None:
    setting.add(5, 1, 3)
    end, bucket = setting.end, setting.index.bucket
    setting.add(4, 2)
    run = setting.buckets.store(bucket, end, 30)
    setting.add(0)
    setting.turn_to(with_sealed(setting.index, run))
    assert (3, 3, end) == (run.count, setting.index.bucket.count, setting.index.bucket.start.offset)
    setting.check()
    setting.seal()
    setting.check()


def test_the_life_of_runs(setting: Setting) -> None:
    for dues in ((5, 1), (9,), (3, 3, 0)):
        setting.seal(*dues)
    setting.add(7)
    setting.check()
    assert 3 == len(setting.index.active_runs)
    assert setting.merge(0, 2)
    setting.check()
    ends = [run.coverage.end_offset for run in setting.index.active_runs]
    assert [bucket_key(0, ends[0]), bucket_key(*ends)] == setting.stored()
    setting.roll()
    setting.check()
    assert [run_key(0)] == setting.stored()
    assert (1, 0) == (len(setting.index.sealed_runs), len(setting.index.active_runs))
    setting.seal(4)
    setting.roll()
    first, second = setting.index.sealed_runs
    assert setting.merge(0, 2)
    setting.check()
    [run] = setting.index.sealed_runs
    assert bucket_key(0, setting.end) == run.key
    assert first.coverage.start_segment == run.coverage.start_segment == 0
    assert (second.coverage.end_segment, second.coverage.end_position) == (
        run.coverage.end_segment, run.coverage.end_position
    )  # fmt: skip


def test_a_merge_leaves_out_what_nobody_may_read(setting: Setting) -> None:
    setting.seal(1, 8, 2)
    setting.seal(9, 3)
    setting.roll()
    setting.seal(4, 1)
    setting.roll()
    after = Key(3, setting.rows[4][1])
    rank, counter = setting.index.rank(Key(8, INT64_MAX)), DueCounter()
    counter.advance(setting.index, Key(4, INT64_MAX))
    assert setting.merge(0, 2, after=after)
    setting.check(after)
    assert 3 == setting.index.count
    assert rank == setting.index.rank(Key(8, INT64_MAX)) == counter.advance(setting.index, Key(8, INT64_MAX))


def test_runs_that_nobody_may_read_are_forgotten_once_their_segment_is_sealed(setting: Setting) -> None:
    setting.seal(1, 2)
    setting.forget(Key(2, 100))
    setting.check()
    setting.roll()
    setting.seal(1, 3)
    setting.roll()
    setting.forget(Key(2, 1))
    setting.check()
    setting.forget(Key(2, 2))
    setting.check(Key(2, 2))
    assert 1 == len(setting.stored())


def test_a_source_that_went_meanwhile_makes_a_merge_void(setting: Setting) -> None:
    for dues in ((5, 1), (9,)):
        setting.seal(*dues)
    assert not setting.merge(0, 2, proceed=setting.roll)
    setting.check()
    assert [run_key(0)] == setting.stored()


def test_appends_and_seals_go_on_while_runs_are_merged(setting: Setting) -> None:
    for dues in ((5, 1), (9,)):
        setting.seal(*dues)
    assert setting.merge(0, 2, proceed=lambda: setting.seal(2, 7))
    setting.check()
    assert 2 == len(setting.index.runs)


@pytest.mark.parametrize("operation", ["create", "append", "sync", "rename", "sync_folder"])
def test_a_failed_merge_keeps_its_sources(setting: Setting, operation: str) -> None:
    """Pulsar's merge, where the write of the snapshot fails, deletes its sources (apache/pulsar#26239)."""
    for dues in ((5, 1), (9,)):
        setting.seal(*dues)
    before = setting.index
    setting.calls.fail(operation, "", OSError(errno.ENOSPC, "full"))
    with pytest.raises(StorageFull if operation in ("create", "append", "rename") else OSError):
        setting.merge(0, 2)
    assert before is setting.index
    assert set(setting.stored()) >= {run.key for run in before.runs}
    assert setting.merge(0, 2)
    setting.check()


def test_a_merge_that_is_no_longer_wanted_leaves_nothing(setting: Setting) -> None:
    def unwanted() -> None:
        raise KeyboardInterrupt

    for dues in ((5, 1), (9,)):
        setting.seal(*dues)
    with pytest.raises(KeyboardInterrupt):
        setting.merge(0, 2, proceed=unwanted)
    setting.check()


def test_a_run_whose_entries_are_in_the_bucket_again_goes_when_that_is_sealed() -> None:
    setting = Setting()
    setting.seal(3, 1)
    [run] = setting.index.runs
    setting.index = DelayedIndex(bucket=MutableBucket(stale=(run.key,)))
    setting.index.bucket.add_many(entries_of(setting.rows))
    setting.seal(2)
    setting.check()
    assert [bucket_key(0, setting.end)] == setting.stored()


# --- Which runs


def runs_of(counts: list[int], span: int = 10) -> list[Any]:
    return [
        SimpleNamespace(
            count=count,
            remote=False,
            coverage=SimpleNamespace(first_offset=row * span, end_offset=(row + 1) * span),
        )
        for row, count in enumerate(counts)
    ]


@given(st.lists(st.integers(1, 1_000), min_size=2, max_size=9))
def test_the_cheapest_are_merged(counts: list[int]) -> None:
    windows = list(itertools.combinations(range(len(counts) + 1), 2))
    costs = [sum(counts[a:b]) / (b - a - 1) ** 2 for a, b in windows if b - a > 1]
    chosen = [run.count for run in cheapest(runs_of(counts))]
    assert min(costs) == sum(chosen) / (len(chosen) - 1) ** 2


def test_a_run_never_spans_more_offsets_than_32_bits_hold() -> None:
    runs = runs_of([1, 1, 1, 9, 9], 2**31)
    assert 2 == len(cheapest(runs))
    assert () == tuple(cheapest(runs_of([1, 1, 1], 2**32)))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_small_limits(limit: int) -> None:
    """Pulsar fails for 1, 2 and 3 (apache/pulsar#26242)."""
    setting = Setting(limit)
    for number in range(30):
        setting.seal(number * 7 % 10, number)
        while sources := setting.buckets.to_merge(setting.index.active_runs):
            assert setting.merge_runs(sources)
        setting.check()
        assert len(setting.index.runs) <= limit


@pytest.mark.parametrize("limit", [-1, 5])
def test_nothing_is_merged_up_to_the_limit(limit: int) -> None:
    setting = Setting(limit)
    for number in range(5):
        setting.seal(number)
    assert not setting.buckets.crowded(setting.index)
    assert not setting.buckets.to_merge(setting.index.active_runs)


def test_a_thousand_runs() -> None:
    random = np.random.default_rng(3)
    setting, written = Setting(32), 0
    for _ in range(1_000):
        setting.seal(int(random.integers(0, 500)))
    assert 1_000 == len(setting.stored())
    setting.check()
    while sources := setting.buckets.to_merge(setting.index.active_runs):
        written += sum(run.count for run in sources)
        assert setting.merge_runs(sources)
    setting.check()
    assert len(setting.stored()) <= 32
    assert written < 2_000


def histories() -> Iterator[str]:
    yield from ("seal", "roll", "merge", "forget")


@settings(max_examples=campaigns.examples(30))
@given(st.lists(st.tuples(st.sampled_from([*histories(), "seal", "merge"]), st.integers(0, 30)), max_size=25))
def test_any_history(steps: list[tuple[str, int]]) -> None:
    setting, after = Setting(2), BEFORE_ALL
    for step, number in steps:
        match step:
            case "seal":
                setting.seal(after.deliver_after + 1 + number, after.deliver_after + 1 + number // 3)
            case "roll" if setting.index.active_runs:
                setting.roll()
            case "forget" if setting.rows:
                after = max(after, Key(*setting.rows[number % len(setting.rows)][:2]))
                setting.forget(after)
            case "merge":
                setting.forget(after)
                if sources := setting.buckets.to_merge(setting.index.sealed_runs):
                    setting.merge_runs(sources, after=after)
                if sources := setting.buckets.to_merge(setting.index.active_runs):
                    setting.merge_runs(sources)
        setting.check(after)
