"""What goes up of a sealed segment: its own files where they are intact, a run made anew where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, read_file
from afterlog.base.names import (
    CANCEL_INDEX,
    CHECKPOINTS,
    DELIVER_AFTER_INDEX,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    segment_file,
)
from afterlog.index.run import Run
from afterlog.log.build import SegmentToIndex, abandoned, index_segment
from afterlog.log.checkpoints import CheckpointFile, SealedMark
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_segment import SegmentFiles
from afterlog.tier.segment_files import kafka_segment_files, segment_files
from afterlog.tier.upload import upload
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.log.kafka_log import some_segment
from tests.support import NOW_MS, PATH, content, flipped, open_small, small, with_file

ATTEMPT = "0123456789abcdef" * 2
FOLDER = PATH / "t-0"
KAFKA = Path("/kafka/t-0") / segment_file(100, LOG)
LATER_MS = NOW_MS + 1_000


def filled(*, delayed: bool = True, max_num_buckets: int = -1) -> SimulatedFiles:
    """A store that was closed: some segments, cancels in the first ones."""
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS), max_num_buckets=max_num_buckets) as store:
        partition = store.create_topic("t", delayed=delayed).partition(0)
        times = [LATER_MS + number * 7_919 % 1_000 for number in range(100)]
        for _ in range(4):
            store.send_many("t", [b"v" * 50] * 100, deliver_after=times if delayed else None)
            if delayed:
                partition.log.cancel(np.array([partition.log.written - 1]))
        partition.log.roll()
        partition.log.merge_buckets()
    return disk


def sealed(disk: Files) -> tuple[SealedMark, ...]:
    return CheckpointFile.open(disk, FOLDER / CHECKPOINTS).current.sealed


@contextmanager
def taken(disk: Files, mark: SealedMark, *, delayed: bool = True) -> Iterator[SegmentFiles]:
    with segment_files(disk, FOLDER, mark, config=small(), delayed=delayed, attempt=ATTEMPT) as found:
        yield found


def contents(found: SegmentFiles) -> dict[str, bytes]:
    return {suffix: read_file(found.files, path) for suffix, path in found.paths.items()}


def test_a_segment_with_a_run_of_its_own() -> None:
    disk, suffixes = filled(), set()
    written = len(disk.operations)
    for mark in sealed(disk):
        with taken(disk, mark) as found:
            own = {suffix: FOLDER / segment_file(mark.base_offset, suffix) for suffix in found.paths}
            measured = found.measured()
        assert own == found.paths
        assert mark == found.facts
        assert (mark.index, mark.time_index) == (measured[OFFSET_INDEX], measured[TIME_INDEX])
        suffixes.add(frozenset(own))
    every = {LOG, OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX, CANCEL_INDEX}
    assert {frozenset(every), frozenset(every - {CANCEL_INDEX})} == suffixes
    assert written == len(disk.operations)


def test_where_a_bucket_holds_it_the_run_is_made_anew_and_goes() -> None:
    """The very bytes that the roll made."""
    rolled, merged = filled(), filled(max_num_buckets=2)
    names, made = merged.names(FOLDER), 0
    for mark in sealed(rolled):
        with taken(rolled, mark) as own, taken(merged, mark) as found:
            assert contents(own) == contents(found)
            aside = found.paths[DELIVER_AFTER_INDEX].name
            if aside not in names:
                assert [aside] == abandoned(merged.names(FOLDER))
                made += 1
        assert names == merged.names(FOLDER)
    assert made > 2


def test_a_fifo_topic_has_no_runs() -> None:
    disk = filled(delayed=False)
    for mark in sealed(disk):
        with taken(disk, mark, delayed=False) as found:
            assert {LOG, OFFSET_INDEX, TIME_INDEX} == set(found.paths)


def test_indexes_that_rotted_or_are_gone_are_made_from_the_log() -> None:
    """The run aside, since the store may have the rotten one open; the sparse ones in their place."""
    whole = filled()
    [first, *_] = sealed(whole)
    with taken(whole, first) as found:
        expected, paths = contents(found), dict(found.paths)
    for suffix in (OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX):
        for data in (None, flipped(expected[suffix], 70 if suffix == DELIVER_AFTER_INDEX else 3)):
            disk = with_file(whole, paths[suffix], data)
            with taken(disk, first) as found:
                assert expected == contents(found)
            assert (suffix == DELIVER_AFTER_INDEX) == (disk.image().contents.get(str(paths[suffix])) == data)
            assert [] == abandoned(disk.names(FOLDER))


@pytest.mark.parametrize("suffix", [LOG, CANCEL_INDEX])
def test_what_cannot_be_made_anew_does_not_go_up(suffix: str) -> None:
    whole = filled()
    mark = next(mark for mark in sealed(whole) if mark.cancel_index[0])
    path = FOLDER / segment_file(mark.base_offset, suffix)
    data = content(whole, path)
    for rotten in (flipped(data, len(data) - 1), data[:-1], data + b"more" if suffix == LOG else b""):
        with pytest.raises(CorruptFile) as told, taken(with_file(whole, path, rotten), mark):
            raise AssertionError("it was handed out")
        assert path == told.value.path
    with (
        pytest.raises(FileNotFoundError if suffix == LOG else CorruptFile),
        taken(with_file(whole, path, None), mark),
    ):
        raise AssertionError("it was handed out")


def test_what_a_crash_leaves_goes_when_the_store_is_opened() -> None:
    disk = filled(max_num_buckets=2)
    mark = sealed(disk)[0]
    with taken(disk, mark) as found:
        left = SimulatedFiles(disk.image())
        assert [found.paths[DELIVER_AFTER_INDEX].name] == abandoned(left.names(FOLDER))
    with open_small(left, ManualClock(NOW_MS)) as store:
        store.check()
    assert [] == abandoned(left.names(FOLDER))


def test_a_kafka_segment() -> None:
    segment = some_segment(7, 100, batches=12)
    disk = SimulatedFiles(Image(("/kafka", "/kafka/t-0", "/remote"), {str(KAFKA): segment.log}))
    with pytest.raises(FileNotFoundError):
        kafka_segment_files(disk, KAFKA, 100, config=small())
    to_index = SegmentToIndex(topic="t", partition=0, base_offset=100, path=KAFKA, log_bytes=segment.size)
    index_segment(disk, to_index, small(), ManualClock(NOW_MS), attempt=ATTEMPT)
    found = kafka_segment_files(disk, KAFKA, 100, config=small())
    last_key = Run.open(disk, found.paths[DELIVER_AFTER_INDEX]).last_key
    assert (segment.end_offset, max(entry[0] for entry in segment.entries)) == (
        found.facts.end_offset, last_key.deliver_after,
    )  # fmt: skip
    assert NOW_MS < found.facts.max_timestamp < NOW_MS + 500
    listed = upload(Manifest(DirectoryStore(disk, Path("/remote")), "t-0"), found, attempt=ATTEMPT, now_ms=NOW_MS)
    assert found.measured() == listed.files
    for path in found.paths.values():
        data = content(disk, path)
        with pytest.raises(CorruptFile):
            kafka_segment_files(with_file(disk, path, data[:-5]), KAFKA, 100, config=small())
    with pytest.raises(CorruptFile, match="another part"):
        kafka_segment_files(disk, KAFKA, 99, config=small())
