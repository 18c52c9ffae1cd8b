"""One segment's indexes: the same bytes as the store makes, done again only where needed, never half there."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.errors import StorageError
from afterlog.base.files import Files, OsFiles
from afterlog.base.names import DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX
from afterlog.index.run import Run
from afterlog.log.build import (
    EMPTY,
    IndexedSegment,
    SegmentToIndex,
    abandoned,
    index_segment,
)
from afterlog.records.header import BatchHeader
from afterlog.spark.location import find_segments
from tests.campaigns.crash_states import crash_states
from tests.campaigns.failing_files import FailingFiles, fail_at
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.log.kafka_log import KafkaSegment, entries_of, run_of, some_segment
from tests.support import NOW_MS, PATH, Calls, flipped, open_small, small

INDEXES = (OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX)
ATTEMPT = "0123456789abcdef" * 2
CLOCK = ManualClock(NOW_MS)
LOG_PATH = Path("/kafka/t-0/00000000000000000100.log")


def indexed(
    files: Files, segment: SegmentToIndex, *, config: Config | None = None, attempt: str = ATTEMPT, verify: bool = False
) -> IndexedSegment:
    return index_segment(files, segment, config or small(), CLOCK, attempt=attempt, verify_only=verify)


def kafka(segment: KafkaSegment) -> SegmentToIndex:
    return SegmentToIndex(topic="t", partition=0, base_offset=100, path=LOG_PATH, log_bytes=segment.size)


def disk_with(segment: KafkaSegment) -> SimulatedFiles:
    return SimulatedFiles(Image(("/kafka", "/kafka/t-0"), {str(LOG_PATH): segment.log}))


def indexes(disk: SimulatedFiles) -> dict[str, bytes]:
    return {path: data for path, data in disk.image().contents.items() if Path(path).suffix in INDEXES}


@pytest.fixture(scope="module")
def segment() -> KafkaSegment:
    return some_segment(7, 100, batches=12)


@pytest.fixture(scope="module")
def built(segment: KafkaSegment) -> dict[str, bytes]:
    """What must be there in the end."""
    disk = disk_with(segment)
    assert "built" == indexed(disk, kafka(segment)).action
    return indexes(disk)


class TestKafkaSegments:
    def test_the_run_is_that_of_a_roll(self, segment: KafkaSegment, built: dict[str, bytes], tmp_path: Path) -> None:
        assert 3 == len(built)
        assert run_of(tmp_path, segment, small()) == built[str(LOG_PATH.with_suffix(DELIVER_AFTER_INDEX))]

    def test_the_row(self, segment: KafkaSegment) -> None:
        row = indexed(disk_with(segment), kafka(segment))
        due = entries_of(segment).deliver_after
        assert (12, segment.end_offset - 100, due.min(), due.max(), segment.size) == (
            row.entries, row.records, row.min_due, row.max_due, row.bytes,
        )  # fmt: skip
        assert (None, None, None) == (row.path, row.position, row.reason)

    def test_again(self, segment: KafkaSegment, built: dict[str, bytes]) -> None:
        disk = disk_with(segment)
        first = indexed(disk, kafka(segment))
        done = len(disk.operations)
        again, verified = indexed(disk, kafka(segment)), indexed(disk, kafka(segment), verify=True)
        assert (done, "skipped", "verified") == (len(disk.operations), again.action, verified.action)
        for name in ("entries", "records", "min_due", "max_due", "bytes"):
            assert getattr(first, name) == getattr(again, name) == getattr(verified, name)

    @pytest.mark.parametrize("suffix", INDEXES)
    def test_what_is_missing_is_made(self, segment: KafkaSegment, built: dict[str, bytes], suffix: str) -> None:
        disk = SimulatedFiles(Image(("/kafka", "/kafka/t-0"), {str(LOG_PATH): segment.log, **built}))
        disk.unlink(LOG_PATH.with_suffix(suffix))
        missing = indexed(disk, kafka(segment), verify=True)
        assert ("corrupt", str(LOG_PATH.with_suffix(suffix))) == (missing.action, missing.path)
        written = len(disk.operations)
        assert "built" == indexed(disk, kafka(segment)).action
        assert built == indexes(disk)
        renamed = [operation for operation in disk.operations[written:] if "Rename" in repr(operation)]
        assert len(renamed) <= 1

    def test_a_segment_that_has_grown_is_stale(self, segment: KafkaSegment, built: dict[str, bytes]) -> None:
        grown = some_segment(7, 100, batches=12)
        grown.add(0, [(NOW_MS, b"more", [])], due=0)
        disk = SimulatedFiles(Image(("/kafka", "/kafka/t-0"), {str(LOG_PATH): grown.log, **built}))
        assert "corrupt" == indexed(disk, kafka(grown), verify=True).action
        assert ("built", 13) == (indexed(disk, kafka(grown)).action, indexed(disk, kafka(grown)).entries)

    @pytest.mark.parametrize("suffix", INDEXES)
    def test_verify_sees_rot(self, segment: KafkaSegment, built: dict[str, bytes], suffix: str) -> None:
        path = str(LOG_PATH.with_suffix(suffix))
        rotten = {**built, path: flipped(built[path], 70 if suffix == DELIVER_AFTER_INDEX else 5)}
        disk = SimulatedFiles(Image(("/kafka", "/kafka/t-0"), {str(LOG_PATH): segment.log, **rotten}))
        row = indexed(disk, kafka(segment), verify=True)
        assert ("corrupt", path) == (row.action, row.path)
        assert not disk.operations

    @pytest.mark.parametrize("interval_bytes", [1, 300, 1_000, 1 << 20])
    def test_verify_takes_an_index_of_other_batches(
        self, segment: KafkaSegment, built: dict[str, bytes], interval_bytes: int
    ) -> None:
        """A broker's own, as it chose."""
        disk = disk_with(segment)
        indexed(disk, kafka(segment), config=small(index_interval_bytes=interval_bytes))
        assert "verified" == indexed(disk, kafka(segment), verify=True).action

    @pytest.mark.parametrize(
        ("suffix", "entries", "true"),
        [
            (OFFSET_INDEX, [(3, 3)], True),
            (OFFSET_INDEX, [(5, 3)], True),  # batches 3 to 5 came together
            (OFFSET_INDEX, [(3, 3), (4, 4), (0, None)], True),  # zeros that were preallocated
            (OFFSET_INDEX, [(2, 3)], False),  # a scan for it would begin behind it
            (OFFSET_INDEX, [(12, 3)], False),
            (OFFSET_INDEX, [(3, 3.5)], False),
            (OFFSET_INDEX, [(4, 4), (3, 3)], False),
            (TIME_INDEX, [(0, 0)], True),
            (TIME_INDEX, [("latest", "latest")], True),
            (TIME_INDEX, [("latest", "latest"), (0, None)], True),
            (TIME_INDEX, [("latest", 0)], False),
            (TIME_INDEX, [(0, "latest")], False),
        ],
    )
    def test_verify_proves_each_entry(
        self, segment: KafkaSegment, built: dict[str, bytes], suffix: str, entries: list[tuple[Any, Any]], true: bool
    ) -> None:
        ends = [offset + records - 101 for _, offset, _, records in segment.entries] + [segment.end_offset - 100]
        starts = [position for _, _, position, _ in segment.entries]
        times = [BatchHeader.read(memoryview(segment.log), start).max_timestamp for start in starts]
        latest = times.index(max(times))
        assert latest
        data = b""
        for first, second in entries:
            row, of = (latest if each == "latest" else each for each in (first, second))
            if of is None:
                data += bytes(80 if suffix == OFFSET_INDEX else 120)
            elif suffix == OFFSET_INDEX:
                data += struct.pack(">ii", ends[row], starts[int(of)] + (of != int(of)))
            else:
                data += struct.pack(">qi", times[row], ends[of])
        path = str(LOG_PATH.with_suffix(suffix))
        disk = SimulatedFiles(Image(("/kafka", "/kafka/t-0"), {str(LOG_PATH): segment.log, **built, path: data}))
        row = indexed(disk, kafka(segment), verify=True)
        assert (("verified", None) if true else ("corrupt", path)) == (row.action, row.path)

    def test_a_corrupt_log(self, segment: KafkaSegment) -> None:
        disk = SimulatedFiles(Image(("/kafka", "/kafka/t-0"), {str(LOG_PATH): flipped(segment.log, segment.size - 1)}))
        row = indexed(disk, kafka(segment))
        last = segment.entries[-1][2]
        assert ("corrupt", str(LOG_PATH), last, "the body's CRC does not match") == (
            row.action, row.path, row.position, row.reason,
        )  # fmt: skip
        assert not disk.operations

    def test_one_that_is_empty_or_gone(self) -> None:
        empty = SegmentToIndex(topic="t", partition=0, base_offset=100, path=LOG_PATH, log_bytes=0)
        row = indexed(disk_with(KafkaSegment(100)), empty)
        assert ("skipped", EMPTY, None) == (row.action, row.reason, row.entries)
        row = indexed(SimulatedFiles(Image(("/kafka", "/kafka/t-0"), {})), empty)
        assert ("corrupt", "the file is gone") == (row.action, row.reason)


class TestKilled:
    """At every call, and with the power cut at every one: what is there under its name is whole."""

    def test_a_call_that_fails(self, segment: KafkaSegment, built: dict[str, bytes]) -> None:
        call, unfinished = 1, 0
        while True:
            disk = disk_with(segment)
            files = FailingFiles(disk, fail_at(call, errno.EIO))
            try:
                indexed(files, kafka(segment))
                if files.calls < call:
                    break
            except (OSError, StorageError):
                unfinished += 1
            assert indexes(disk).items() <= built.items()
            assert indexed(disk, kafka(segment), attempt="f" * 32).action in ("built", "skipped")
            assert built == indexes(disk)
            call += 1
        assert unfinished > 10

    def test_power_cuts(self, segment: KafkaSegment, built: dict[str, bytes]) -> None:
        disk = disk_with(segment)
        indexed(disk, kafka(segment))
        seen = set()
        for upto in range(len(disk.operations) + 1):
            for state in crash_states(disk.operations, upto, start=disk.start):
                left = state.files()
                assert indexes(left).items() <= built.items()
                seen.add(len(indexes(left)))
        assert {0, 1, 2, 3} == seen

    def test_attempts_that_race_do_not_meet(self, segment: KafkaSegment, built: dict[str, bytes]) -> None:
        """Another attempt does all of the work in the middle of every call of the first."""
        call = 1
        while True:
            disk = disk_with(segment)

            def other(operation: str, path: Path, number: int) -> None:
                if number == call:  # noqa: B023
                    indexed(disk, kafka(segment), attempt="f" * 32)  # noqa: B023

            files = FailingFiles(disk, other)
            row = indexed(files, kafka(segment))
            assert row.action in ("built", "skipped")
            assert built == indexes(disk)
            if files.calls < call:
                break
            call += 1
        assert call > 10

    def test_an_attempt_that_is_swept_away_says_so(self, segment: KafkaSegment) -> None:
        disk = disk_with(segment)

        def sweep_first(operation: str, path: Path, number: int) -> None:
            if operation == "rename":
                disk.unlink(path)

        with pytest.raises(FileNotFoundError):
            indexed(FailingFiles(disk, sweep_first), kafka(segment))

    def test_what_killed_attempts_leave_has_names_of_its_own(self, segment: KafkaSegment) -> None:
        disk, calls = disk_with(segment), Calls()
        calls.fail("rename", ".tmp", OSError(errno.EIO, "Input/output error"))
        with pytest.raises(OSError, match="Input/output"):
            indexed(FailingFiles(disk, calls), kafka(segment))
        names = disk.names(LOG_PATH.parent)
        assert [f"00000000000000000100.index.{ATTEMPT}.tmp"] == abandoned(names)
        assert [] == abandoned(["checkpoints.tmp", "00000000000000000100.index.tmp", "00000000000000000100.index"])


class TestStores:
    """Sealed segments of a store: what the job makes is what the store had made."""

    @pytest.mark.parametrize("delayed", [True, False])
    def test_the_same_bytes(self, delayed: bool) -> None:
        disk = SimulatedFiles()
        with open_small(disk, ManualClock(NOW_MS), max_num_buckets=-1) as store:
            partition = store.create_topic("t", delayed=delayed).partition(0)
            times = [NOW_MS + number * 7_919 % 1_000 for number in range(400)]
            store.send_many("t", [b"v" * 50] * 400, deliver_after=times if delayed else None)
            if delayed:
                partition.log.cancel(np.array([5, 9]))
        segments = find_segments(disk, PATH)
        sealed = {str(each.path.with_suffix(suffix)) for each in segments for suffix in INDEXES}
        before = {path: data for path, data in indexes(disk).items() if path in sealed}
        assert len(segments) > 3
        assert (3 if delayed else 2) * len(segments) == len(before)
        assert {"skipped"} == {indexed(disk, each).action for each in segments}
        assert {"verified"} == {indexed(disk, each, verify=True).action for each in segments}
        for path in before:
            disk.unlink(Path(path))
        segments = find_segments(disk, PATH)
        assert {"built"} == {indexed(disk, each).action for each in segments}
        assert before == {path: data for path, data in indexes(disk).items() if path in sealed}
        with open_small(disk, ManualClock(NOW_MS)) as store:
            store.check()

    def test_what_a_bucket_holds_needs_no_run(self) -> None:
        disk = SimulatedFiles()
        with open_small(disk, ManualClock(NOW_MS), max_num_buckets=2) as store:
            partition = store.create_topic("t").partition(0)
            store.send_many("t", [b"v" * 50] * 400, deliver_after=[NOW_MS + number % 50 for number in range(400)])
            partition.log.merge_buckets()
        segments = find_segments(disk, PATH)
        merged = [each for each in segments if not each.has_run]
        assert len(merged) > 2
        assert {"skipped"} == {indexed(disk, each).action for each in segments}
        assert {"verified"} == {indexed(disk, each, verify=True).action for each in segments}

    def test_another_interval_is_not_published(self) -> None:
        disk = SimulatedFiles()
        with open_small(disk, ManualClock(NOW_MS)) as store:
            store.create_topic("t")
            store.send_many("t", [b"v" * 50] * 400)
        [first, *_] = find_segments(disk, PATH)
        disk.unlink(first.path.with_suffix(OFFSET_INDEX))
        row = indexed(disk, first, config=small(index_interval_bytes=4_096))
        assert ("corrupt", True) == (row.action, "index_interval_bytes" in (row.reason or ""))
        assert not disk.exists(first.path.with_suffix(OFFSET_INDEX))

    def test_a_log_that_is_not_as_it_was_sealed(self) -> None:
        disk = SimulatedFiles()
        with open_small(disk, ManualClock(NOW_MS)) as store:
            store.create_topic("t")
            store.send_many("t", [b"v" * 50] * 400)
        [first, *_] = find_segments(disk, PATH)
        data = disk.image().contents[str(first.path)]
        for log in (flipped(data, 200), data[:-1], data + b"more"):
            changed = SimulatedFiles(Image(disk.image().folders, {**disk.image().contents, str(first.path): log}))
            row = indexed(changed, first, verify=True)
            assert ("corrupt", str(first.path)) == (row.action, row.path)


def test_on_a_real_disk(tmp_path: Path) -> None:
    segment = some_segment(3, 0)
    path = tmp_path / f"00000000000000000000{LOG}"
    path.write_bytes(segment.log)
    row = indexed(OsFiles(), find_segments(OsFiles(), tmp_path)[0])
    assert "built" == row.action
    run = Run.open(OsFiles(), path.with_suffix(DELIVER_AFTER_INDEX))
    run.check()
    assert len(segment.entries) == run.count == row.entries
