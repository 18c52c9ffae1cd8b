"""verify sees every kind of damage, names file and position, and says nothing of a store that is whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.names import CANCEL_INDEX, CHECKPOINTS, segment_file
from afterlog.index.run import Run
from afterlog.log.checkpoints import CheckpointFile, FrontierLease
from afterlog.offline.locked_store import OfflineStore
from afterlog.offline.verify import OPEN_REMOTE, REPAIR, Finding, verify
from afterlog.store.store import open_store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.offline.broken import (
    CONFIG,
    DELAYED,
    FIFO,
    LATER_MS,
    NOW_MS,
    STORE,
    findings,
    flip,
    marks,
    merged_bucket,
    paths,
    prune,
    remote_of,
    reopened,
    rewrite,
    small_store,
    tiered_store,
)


def run_of(log: Path) -> Path:
    return log.with_suffix(".deliverafterindex")


def found(files: SimulatedFiles, folder: Path) -> list[Finding]:
    return list(verify(files, folder, folder == DELAYED, LATER_MS))


class TestWhole:
    def test_after_a_close(self) -> None:
        assert [] == findings(small_store())

    def test_after_a_kill(self) -> None:
        assert [] == findings(small_store(closed=False))

    def test_after_recovery_with_another_config(self) -> None:
        files = small_store(closed=False)
        open_store(STORE, Config(), ManualClock(LATER_MS), files).close()
        assert [] == findings(files)

    def test_after_retention(self) -> None:
        files = SimulatedFiles()
        with open_store(STORE, CONFIG, ManualClock(NOW_MS), files) as store:
            store.create_topic("mail", retention_bytes=10_000)
            for first in range(0, 600, 10):
                store.send_many("mail", [b"%d" % (first + n) + b"." * 60 for n in range(10)])
                store.topic("mail").partitions[0].high_watermark()
            assert store.enforce_retention() + store.topic("mail").partitions[0].log_start_offset > 0
        assert [] == findings(files)

    def test_it_holds_what_it_should(self) -> None:
        files = small_store()
        assert len(paths(files, DELAYED, ".log")) > 3
        assert len(paths(files, FIFO, ".log")) > 2
        assert len(paths(files, DELAYED / "buckets")) > 0


class TestLogs:
    @pytest.mark.parametrize("folder", [DELAYED, FIFO])
    @pytest.mark.parametrize("number", [0, 1, -1])
    def test_rot_in_a_body(self, folder: Path, number: int) -> None:
        files = small_store()
        path = paths(files, folder, ".log")[number]
        flip(files, path, -1)
        [finding] = found(files, folder)
        assert path == finding.path
        assert "the body's CRC does not match" == finding.message
        assert REPAIR == finding.remedy
        assert finding.position is not None
        with pytest.raises(Exception, match="CRC does not match"):
            self.read_all(files, folder)

    @staticmethod
    def read_all(files: SimulatedFiles, folder: Path) -> None:
        topic = folder.name.partition("-")[0]
        with reopened(files) as store, store.consumer(topic, group="all") as consumer:
            while consumer.poll(1_000):
                pass

    def test_every_broken_entry_is_named(self) -> None:
        files = small_store()
        path = paths(files, DELAYED, ".log")[0]
        for position in (500, 3_000, 3_001, 6_000):
            flip(files, path, position)
        positions = [finding.position for finding in found(files, DELAYED)]
        assert 3 == len(positions)
        assert sorted(positions) == positions  # type: ignore[type-var]

    @pytest.mark.parametrize("number", [0, -1])
    def test_a_log_that_is_too_short(self, number: int) -> None:
        files = small_store()
        path = paths(files, DELAYED, ".log")[number]
        rewrite(files, path, lambda data: data[:-100])
        [finding] = found(files, DELAYED)
        assert path == finding.path

    def test_a_sealed_log_that_is_too_long(self) -> None:
        files = small_store()
        rewrite(files, paths(files, DELAYED, ".log")[0], lambda data: data + b"more")
        assert 1 == len(found(files, DELAYED))

    @pytest.mark.parametrize("number", [0, -1])
    def test_a_log_that_is_gone(self, number: int) -> None:
        files = small_store()
        path = paths(files, DELAYED, ".log")[number]
        files.unlink(path)
        assert [(path, "the file is gone")] == [(one.path, one.message) for one in found(files, DELAYED)]

    def test_a_torn_tail(self) -> None:
        files = small_store(closed=False)
        rewrite(files, paths(files, DELAYED, ".log")[-1], lambda data: data[:-5])
        [finding] = found(files, DELAYED)
        assert "a torn tail of" in finding.message
        assert "opening the store cuts it" == finding.remedy
        reopened(files).close()
        assert [] == findings(files)


class TestIndexes:
    @pytest.mark.parametrize("suffix", [".index", ".timeindex", ".deliverafterindex"])
    @pytest.mark.parametrize("folder", [DELAYED, FIFO])
    def test_rot_and_loss(self, folder: Path, suffix: str) -> None:
        for path in paths(small_store(), folder, suffix):
            files = small_store()
            expected = path.parent if path.parent.name == "buckets" else path
            if files.open(path).size():
                flip(files, path, 3)
                assert [expected] == [finding.path for finding in found(files, folder)]
            files = small_store()
            files.unlink(path)
            assert [expected] == [finding.path for finding in found(files, folder)]

    def test_rot_inside_a_run_that_opens(self) -> None:
        """A run's chunks are checked when they are touched: the store may open, and verify must see it."""
        files = small_store()
        for path in paths(files, DELAYED, ".deliverafterindex"):
            flip(files, path, 64)
            Run.open(files, path)
        assert paths(files, DELAYED, ".deliverafterindex") == [finding.path for finding in found(files, DELAYED)]

    def test_a_sound_index_of_another_log(self) -> None:
        files = small_store()
        first, second, *_ = paths(files, DELAYED, ".deliverafterindex")
        content = files.open(second).pread(1 << 20, 0)
        rewrite(files, first, lambda data: content)
        [finding] = found(files, DELAYED)
        assert (first, "covers another part of the log than it should") == (finding.path, finding.message)


class TestBuckets:
    """Runs over several sealed segments."""

    @pytest.mark.parametrize("closed", [True, False])
    def test_whole(self, closed: bool) -> None:
        files = small_store(merged=True, closed=closed)
        assert [] == findings(files)
        assert 3 <= len(paths(files, DELAYED, ".deliverafterindex")) < len(paths(files, DELAYED, ".log"))

    def test_gone_and_rotten(self) -> None:
        """Then each of its segments is without a run."""
        files = small_store(merged=True)
        path = merged_bucket(files)
        segments = [path for path in paths(files, DELAYED, ".log") if not files.exists(run_of(path))]
        gone = [run_of(log) for log in segments if int(log.stem) < int(path.stem.partition("-")[2])]
        flip(files, path, 3)
        assert [path, *gone] == [finding.path for finding in found(files, DELAYED)]
        files.unlink(path)
        assert gone == [finding.path for finding in found(files, DELAYED)]
        assert len(gone) > 1

    def test_rot_inside(self) -> None:
        files = small_store(merged=True)
        flip(files, merged_bucket(files), 64)
        assert [merged_bucket(files)] == [finding.path for finding in found(files, DELAYED)]

    def test_entries_are_missing(self) -> None:
        files = small_store(merged=True)
        prune(files)
        [finding] = found(files, DELAYED)
        assert (merged_bucket(files), "an entry's offset is not what the log says") == (finding.path, finding.message)


class TestObjectStorage:
    """Segments whose files are not here."""

    @pytest.mark.parametrize("merged", [True, False])
    def test_whole(self, merged: bool) -> None:
        files = tiered_store(merged=merged)
        assert [] == findings(files)
        for folder in (DELAYED, FIFO):
            assert {True, False} == {mark.local for mark in marks(files, folder)}
        with OfflineStore(STORE, files, ManualClock(LATER_MS)) as store:
            away = [mark.log_bytes for folder in (DELAYED, FIFO) for mark in marks(files, folder) if not mark.local]
            assert (len(away), sum(away)) == store.only_remote()

    def test_a_bucket_over_some_of_them_and_some_that_are_here(self) -> None:
        files = tiered_store(merged=True)
        bucket = merged_bucket(files)
        first, end = map(int, bucket.stem.split("-"))
        assert {True, False} == {mark.local for mark in marks(files, DELAYED) if first <= mark.base_offset < end}
        prune(files)
        [finding] = found(files, DELAYED)
        assert (bucket, "records of the segment at 0, which has") == (
            finding.path,
            finding.message.partition(" ")[2][:38],
        )
        files = tiered_store(merged=True)
        prune(files, slice(-5))
        [finding] = found(files, DELAYED)
        assert (bucket, "an entry's offset is not what the log says") == (finding.path, finding.message)
        files = tiered_store(merged=True)
        flip(files, bucket, 64)
        assert [bucket] == [finding.path for finding in found(files, DELAYED)]

    def test_what_is_here_is_verified_as_ever(self) -> None:
        files = tiered_store()
        for path in paths(files, DELAYED, ".log"):
            files = tiered_store()
            flip(files, path, -1)
            assert [path] == [finding.path for finding in found(files, DELAYED)]

    @pytest.mark.parametrize("gone", [True, False])
    def test_their_cancel_indexes_are_here(self, gone: bool) -> None:
        files = tiered_store()
        [first, *_] = [mark for mark in marks(files, DELAYED) if not mark.local and mark.cancel_index[0]]
        path = DELAYED / segment_file(first.base_offset, CANCEL_INDEX)
        if gone:
            files.unlink(path)
        else:
            flip(files, path, 3)
        assert [(path, OPEN_REMOTE)] == [(finding.path, finding.remedy) for finding in found(files, DELAYED)]
        reopened(files, remote=remote_of(files)).close()
        assert [] == findings(files)

    def test_files_that_a_crash_left(self) -> None:
        files = tiered_store()
        [first, *_] = [mark for mark in marks(files, DELAYED) if not mark.local]
        files.create(DELAYED / segment_file(first.base_offset, ".log")).append([b"rest"])
        assert [] == findings(files)


class TestCheckpoints:
    @pytest.mark.parametrize("folder", [DELAYED, FIFO])
    def test_rot(self, folder: Path) -> None:
        files = small_store()
        flip(files, folder / CHECKPOINTS, 60)
        assert [folder / CHECKPOINTS] == [finding.path for finding in found(files, folder)]

    def test_gone_and_rot_in_a_log(self) -> None:
        files = small_store()
        files.unlink(DELAYED / CHECKPOINTS)
        flip(files, paths(files, DELAYED, ".log")[1], 700)
        assert [CHECKPOINTS, paths(files, DELAYED, ".log")[1].name] == [one.path.name for one in found(files, DELAYED)]

    def test_an_older_copy(self) -> None:
        files = SimulatedFiles()
        with open_store(STORE, CONFIG, ManualClock(NOW_MS), files) as store:
            store.create_topic("mail")
            store.send("mail", b"first")
        older = files.open(DELAYED / CHECKPOINTS).pread(1 << 20, 0)
        with open_store(STORE, CONFIG, ManualClock(NOW_MS), files) as store:
            for _ in range(20):
                store.send("mail", bytes(1_000))
        rewrite(files, DELAYED / CHECKPOINTS, lambda data: older)
        [finding] = found(files, DELAYED)
        assert "put back to an older copy" in finding.message

    def test_a_frontier_far_ahead_of_the_clock(self) -> None:
        files = small_store()
        checkpoints = CheckpointFile.open(files, DELAYED / CHECKPOINTS)
        ahead_ms = LATER_MS + 2 * 3_600_000
        checkpoints.update(frontier=FrontierLease(used_ms=ahead_ms, lease_ms=ahead_ms))
        [finding] = found(files, DELAYED)
        assert "repair --clock" in finding.remedy

    def test_a_wrong_count_of_removed_records(self) -> None:
        files = small_store()
        checkpoints = CheckpointFile.open(files, DELAYED / CHECKPOINTS)
        checkpoints.update(removed_records=5)
        [finding] = found(files, DELAYED)
        assert "5 records removed" in finding.message

    def test_a_recovery_point_inside_an_entry(self) -> None:
        files = small_store()
        checkpoints = CheckpointFile.open(files, DELAYED / CHECKPOINTS)
        recovery = checkpoints.current.recovery
        checkpoints.update(recovery=dataclasses.replace(recovery, position=recovery.position - 7))
        assert any("inside an entry" in finding.message for finding in found(files, DELAYED))


def test_progress_counts_every_byte_of_the_logs() -> None:
    files = small_store()
    read: list[int] = []
    list(verify(files, DELAYED, True, LATER_MS, read.append))
    assert sum(files.open(path).size() for path in paths(files, DELAYED, ".log")) == sum(read)
