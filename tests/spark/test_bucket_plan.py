"""The bucket job without Spark: the same runs, parts and buckets, on a simulated disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from afterlog.base.errors import CorruptFile, StorageFull, UnknownTopic
from afterlog.base.files import Files
from afterlog.base.names import BUCKETS, CHECKPOINTS
from afterlog.index.entries import Entries, Key
from afterlog.index.merge import END, merged
from afterlog.index.run import Run
from afterlog.log.checkpoints import CheckpointFile
from afterlog.spark.bucket_plan import (
    NO_RUN,
    SourceRun,
    coverage_of,
    cut_keys,
    find_runs,
    plan,
    publish,
    sweep_parts,
    write_part,
)
from tests.campaigns.crash_states import CrashModel, crash_states
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.index.support import entries_of, make_run, rows_of
from tests.spark.backlog import CONFIG, TOPICS, delivered, write_backlog
from tests.support import PATH, Calls, content, flipped, with_file

FOLDER = PATH / "t-0"


def written() -> SimulatedFiles:
    disk = SimulatedFiles()
    write_backlog(disk, PATH)
    return disk


def runs_to_merge(files: Files, topic: str = "t") -> list[SourceRun]:
    [group] = plan(find_runs(files, PATH, [topic]))
    return group


def make_bucket(files: Files, group: list[SourceRun], slices: int = 3) -> Run:
    """What the job makes of a group, each slice a part."""
    runs, after = [Run.open(files, source.path) for source in group], group[0].after
    bounds = [after, *(key for key in cut_keys(runs, slices) if key > after), END]
    parts = [
        write_part(files, group[0].folder, coverage_of(group), merged(runs, after=start, upto=end), CONFIG)
        for start, end in pairwise(bounds)
    ]
    records = sum(run.records - run.records_up_to(after) for run in runs)
    return publish(files, group[0].folder, coverage_of(group), [part for part in parts if part], records, CONFIG)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_bucket_is_what_the_engine_would_have_merged(topic: str) -> None:
    disk = written()
    before, group = delivered(SimulatedFiles(disk.image()), PATH), runs_to_merge(disk, topic)
    after = CheckpointFile.open(disk, PATH / f"{topic}-0" / CHECKPOINTS).current.log_start.key
    own = Entries.concatenate(list(merged([Run.open(disk, source.path) for source in group], after=after)))
    assert (topic == "u") == (len(own) < sum(source.entries for source in group))
    bucket = make_bucket(disk, group)
    bucket.check()
    assert rows_of(own) == rows_of(bucket.entries())
    assert [(bucket.path, coverage_of(group))] == [(each.path, each.coverage) for each in runs_to_merge(disk, topic)]
    assert before == delivered(disk, PATH)
    assert disk.exists(bucket.path)
    assert not [source.path for source in group if disk.exists(source.path)]


def test_wherever_the_power_is_cut_there_is_all_of_the_bucket_or_none() -> None:
    disk = written()
    before = delivered(SimulatedFiles(disk.image()), PATH)
    group = runs_to_merge(disk)
    start = SimulatedFiles(disk.image())
    bucket = make_bucket(start, group)
    whole, seen = content(start, bucket.path), set[bool]()
    for done in range(len(start.operations) + 1):
        for state in crash_states(start.operations, done, start=start.start, model=CrashModel(every_byte_max=0)):
            contents = state.files().image().contents
            assert contents.get(str(bucket.path), whole) == whole, state.describe()
            assert all(str(source.path) in contents for source in group)
        there = str(bucket.path) in contents
        if there not in seen or done % 8 == 0:
            assert before == delivered(state.files(), PATH)
        seen.add(there)
    assert {False, True} == seen


def test_what_is_left_of_an_attempt_is_swept() -> None:
    disk = written()
    group = runs_to_merge(disk)
    part = write_part(disk, FOLDER, coverage_of(group), [entries_of([(1, 0, 0, 1)])], CONFIG)
    assert part is not None
    opened = SimulatedFiles(disk.image())
    delivered(opened, PATH)
    sweep_parts(disk, [FOLDER, FOLDER, PATH / "fifo-0"])
    for after in (disk, opened):
        assert not [name for name in after.names(FOLDER / BUCKETS) if name.endswith(".tmp")]
    assert write_part(disk, FOLDER, coverage_of(group), [entries_of([])], CONFIG) is None


def test_a_part_that_does_not_fit_leaves_nothing() -> None:
    disk = written()
    group = runs_to_merge(disk)
    names, calls = disk.names(FOLDER / BUCKETS), Calls()
    calls.fail("append", ".tmp", OSError(errno.ENOSPC, "full"))
    with pytest.raises(StorageFull):
        make_bucket(FailingFiles(disk, calls), group, slices=1)
    assert names == disk.names(FOLDER / BUCKETS)


def test_parts_that_are_not_all_of_it_are_refused() -> None:
    disk = written()
    group = runs_to_merge(disk)
    rows = [(1, 0, 0, 1), (2, 1, 0, 1)]
    first, second = (write_part(disk, FOLDER, coverage_of(group), [entries_of([row])], CONFIG) for row in rows)
    assert first is not None
    assert second is not None
    with pytest.raises(CorruptFile, match="2 records, its sources 3"):
        publish(disk, FOLDER, coverage_of(group), [second, first], 3, CONFIG)
    rotten = with_file(disk, second, flipped(content(disk, second), 70))
    with pytest.raises(CorruptFile, match="chunk 0"):
        publish(rotten, FOLDER, coverage_of(group), [second, first], 2, CONFIG)
    assert len(plan(find_runs(rotten, PATH, ["t"]))) == 1
    assert rows == rows_of(publish(disk, FOLDER, coverage_of(group), [second, first], 2, CONFIG).entries())


def test_what_cannot_be_merged_parts_the_rest() -> None:
    disk = written()
    paths = [source.path for source in find_runs(disk, PATH, ["t"])]
    gone = with_file(disk, paths[2], None)
    groups = plan(find_runs(gone, PATH, ["t"]))
    assert [paths[:2], paths[2:3], paths[3:]] == [[source.path for source in group] for group in groups]
    assert NO_RUN == groups[1][0].obstacle
    rotten = with_file(disk, paths[2], flipped(content(disk, paths[2]), -1))
    [[fault]] = [group for group in plan(find_runs(rotten, PATH, ["t"])) if group[0].obstacle]
    assert isinstance(fault.obstacle, CorruptFile)
    assert paths[2] == fault.obstacle.path
    assert [("t", 0), ("u", 0)] == sorted({(source.topic, source.partition) for source in find_runs(disk, PATH)})
    with pytest.raises(UnknownTopic):
        find_runs(disk, PATH, ["v"])


def test_a_rotten_bucket_is_what_its_segments_lack() -> None:
    disk = written()
    group = runs_to_merge(disk)
    bucket = make_bucket(disk, group)
    delivered(disk, PATH)  # the sources go
    rotten = with_file(disk, bucket.path, flipped(content(disk, bucket.path), -1))
    obstacles = [source.obstacle for source in find_runs(rotten, PATH, ["t"])]
    assert [bucket.path] * len(group) == [each.path for each in obstacles if isinstance(each, CorruptFile)][
        : len(group)
    ]


def test_a_bucket_covers_no_more_offsets_than_it_may() -> None:
    disk = written()
    sources = find_runs(disk, PATH, ["t"])
    sizes = [source.coverage.end_offset - source.coverage.first_offset for source in sources]
    groups = plan(sources, offsets_max=sizes[0] + sizes[1])
    assert sources == [source for group in groups for source in group]
    assert 2 == len(groups[0])
    for group in groups:
        coverage = coverage_of(group)
        assert coverage.end_offset - coverage.first_offset <= sizes[0] + sizes[1]
    assert len(sources) == len(plan(sources, offsets_max=1))
    elsewhere = [replace(source, folder=PATH / "u-0") for source in sources]
    assert [sources, elsewhere] == plan([*sources, *elsewhere])


@pytest.mark.parametrize("due", [lambda number: number * 7 % 101, lambda number: 5])
def test_slices_are_of_about_equal_size(tmp_path: Path, due: Callable[[int], int]) -> None:
    rows = [(due(number), number, number, 1) for number in range(400)]
    runs = [make_run(tmp_path, rows[first : first + 100], max_entries=10) for first in range(0, 400, 100)]
    for count in (1, 2, 7):
        keys = cut_keys(runs, count)
        assert keys == sorted(set(keys))
        assert count - 1 == len(keys)
        bounds = [Key(-1, -1), *keys, END]
        sizes = [sum(start < row[:2] <= end for row in rows) for start, end in pairwise(bounds)]
        assert 400 == sum(sizes)
        assert max(sizes) <= 400 / count + 10 * len(runs)
    assert len(cut_keys(runs, 1_000)) <= 40
