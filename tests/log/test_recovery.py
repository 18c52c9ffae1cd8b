from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile
from afterlog.base.names import (
    BUCKETS,
    CHECKPOINTS,
    DELIVER_AFTER_INDEX,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    bucket_file,
    segment_file,
)
from afterlog.index.bucket_storage import LocalBucketSnapshotStorage
from afterlog.log.checkpoints import CheckpointFile
from afterlog.log.facts import UNKNOWN
from afterlog.log.recovery import create_log, open_log
from afterlog.store.store import Store
from tests import campaigns
from tests.campaigns.crash_states import crash_states, kill_state
from tests.campaigns.simulated_disk import Image, Rename, SimulatedFiles
from tests.support import (
    NOW_MS,
    PATH,
    content,
    drained,
    flipped,
    killed,
    numbered_ids,
    open_small,
    power_cut,
    with_file,
)

FOLDER = PATH / "t-0"
LATER_MS = NOW_MS + 1_000_000
FIRST_LOG = FOLDER / segment_file(0, LOG)


def value(number: int) -> bytes:
    return b"%020d" % number


def filled(count: int, *, roll_at: int = 0, close: bool = True, **settings: object) -> SimulatedFiles:
    """A disk with `count` records in out-of-order times; a segment of `roll_at` of them is sealed first."""
    disk = SimulatedFiles()
    store = open_small(disk, ManualClock(NOW_MS), **settings)
    with numbered_ids():
        store.create_topic("t")
    for number in range(count):
        if roll_at and number == roll_at:
            store.topic("t").partition(0).log.roll()
        store.send("t", value(number), deliver_after=NOW_MS + due(number))
    if close:
        store.close()
    return killed(disk)


def due(number: int) -> int:
    return number * 7 % 10


def opened(disk: SimulatedFiles, **settings: object) -> Store:
    store = open_small(disk, ManualClock(LATER_MS), **settings)
    store.check()
    return store


def expect(disk: SimulatedFiles, count: int, **settings: object) -> Store:
    """The store opens, with the first `count` records in it; a second opening finds the same, and appends go on."""
    store = opened(disk, **settings)
    partition = store.topic("t").partition(0)
    assert count == partition.log_end_offset
    order = sorted(range(count), key=lambda number: (due(number), number))
    assert [value(number) for number in order] == drained(partition)
    again = opened(killed(disk), **settings).topic("t").partition(0)
    assert count == again.log_end_offset == store.send("t", b"next").offset
    store.check()
    return store


def reopen_and_expect(disk: SimulatedFiles, count: int, **settings: object) -> None:
    expect(disk, count, **settings).close()


# --- Clean, killed, torn


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("count", [0, 1, 8, 11, 40])
def test_all_is_there_after_a_close_and_after_a_kill(count: int, close: bool) -> None:
    store = expect(filled(count, close=close), count)
    assert {} == store.cut_bytes


@pytest.mark.parametrize("left", range(1, 90, 7))
def test_a_torn_tail_is_cut_and_reported(left: int) -> None:
    whole = content(filled(3, close=False), FIRST_LOG)
    disk = filled(4, close=False)
    torn = content(disk, FIRST_LOG)[: len(whole) + left]
    store = expect(with_file(disk, FIRST_LOG, torn), 3)
    assert {("t", 0): left} == store.cut_bytes
    assert left == store.topic("t").partition(0).log.cut_bytes


def test_garbage_behind_the_end_is_cut() -> None:
    disk = filled(3)
    store = expect(with_file(disk, FIRST_LOG, content(disk, FIRST_LOG) + b"\x0e\x02garbage"), 3)
    assert {("t", 0): 9} == store.cut_bytes


def test_a_rotten_entry_above_the_recovery_point_begins_the_tail() -> None:
    disk = filled(4, close=False)
    log = content(disk, FIRST_LOG)
    size = len(log) // 4
    store = expect(with_file(disk, FIRST_LOG, flipped(log, 2 * size + 5)), 2)
    assert {("t", 0): len(log) - 2 * size} == store.cut_bytes


def test_a_rotten_entry_below_the_recovery_point_is_corruption() -> None:
    disk = filled(4)
    disk = with_file(disk, FIRST_LOG, flipped(content(disk, FIRST_LOG), -3))
    store = opened(disk)
    with pytest.raises(CorruptFile, match=LOG) as raised:
        drained(store.topic("t").partition(0))
    assert FIRST_LOG == raised.value.path
    for index in (FOLDER / BUCKETS / bucket_file(0, 4), FOLDER / segment_file(0, OFFSET_INDEX)):
        with pytest.raises(CorruptFile, match="does not match"):
            opened(with_file(disk, index, None))


def test_what_recovery_keeps_is_durable_before_it_is_read() -> None:
    disk = filled(3, close=False)
    assert 3 == opened(disk).topic("t").partition(0).log_end_offset
    expect(power_cut(disk), 3)


def test_stamps_go_on_behind_those_of_the_tail() -> None:
    disk = filled(1, close=False)
    store = open_small(disk, ManualClock(NOW_MS - 500))
    store.send("t", b"after a step back")
    [_, last] = sorted(store.topic("t").partition(0).log.index.bucket.entries())
    assert (NOW_MS, 1) == (last.deliver_after, last.offset)


# --- What was durable and is not there


def test_the_log_is_shorter_than_the_recovery_point() -> None:
    disk = filled(4)
    with pytest.raises(CorruptFile, match="were durable") as raised:
        opened(with_file(disk, FIRST_LOG, content(disk, FIRST_LOG)[:-1]))
    assert len(content(disk, FIRST_LOG)) - 1 == raised.value.position


@pytest.mark.parametrize("name", [segment_file(0, LOG), segment_file(5, LOG), CHECKPOINTS])
def test_a_file_that_nothing_can_replace_is_gone(name: str) -> None:
    with pytest.raises(CorruptFile, match="gone") as raised:
        opened(with_file(filled(9, roll_at=5), FOLDER / name, None))
    assert name == raised.value.path.name


@pytest.mark.parametrize("size", [0, 10, 10_000])
def test_a_sealed_segment_has_another_size(size: int) -> None:
    disk = filled(9, roll_at=5)
    data = content(disk, FIRST_LOG)[:size].ljust(size, b"\0")
    with pytest.raises(CorruptFile, match="sealed at"):
        opened(with_file(disk, FIRST_LOG, data))


def test_rotten_checkpoints() -> None:
    disk = filled(9)
    data = content(disk, FOLDER / CHECKPOINTS)
    with pytest.raises(CorruptFile) as raised:
        opened(with_file(disk, FOLDER / CHECKPOINTS, flipped(data, 60)))
    assert CHECKPOINTS == raised.value.path.name


def test_older_checkpoints_put_back_are_seen() -> None:
    disk = filled(3)
    older = content(disk, FOLDER / CHECKPOINTS)
    store = open_small(disk, ManualClock(NOW_MS))
    store.topic("t").partition(0).log.roll()
    for number in range(3, 5):
        store.send("t", value(number), deliver_after=NOW_MS + due(number))
    store.close()
    with pytest.raises(CorruptFile, match="older copy"):
        opened(with_file(disk, FOLDER / CHECKPOINTS, older))


def test_older_checkpoints_of_the_same_segment_cost_a_scan() -> None:
    disk = filled(3)
    older = content(disk, FOLDER / CHECKPOINTS)
    store = open_small(disk, ManualClock(NOW_MS))
    for number in range(3, 12):
        store.send("t", value(number), deliver_after=NOW_MS + due(number))
    store.close()
    expect(with_file(disk, FOLDER / CHECKPOINTS, older), 12)


# --- Indexes: missing, stale, rotten


SETTINGS = {"min_index_count_per_bucket": 3}
INDEXES = [
    FOLDER / segment_file(0, DELIVER_AFTER_INDEX),
    FOLDER / segment_file(0, OFFSET_INDEX),
    FOLDER / segment_file(0, TIME_INDEX),
    FOLDER / segment_file(5, OFFSET_INDEX),
    FOLDER / segment_file(5, TIME_INDEX),
    FOLDER / BUCKETS / bucket_file(5, 8),
    FOLDER / BUCKETS / bucket_file(8, 11),
    FOLDER / BUCKETS / bucket_file(11, 13),
]


def indexed() -> SimulatedFiles:
    """A sealed segment of 5 records, an active one with two full runs and a small one."""
    disk = filled(13, roll_at=5, **SETTINGS)
    assert {str(path) for path in INDEXES} <= set(disk.image().contents)
    return disk


@pytest.mark.parametrize("path", INDEXES, ids=lambda path: path.name)
def test_a_missing_index_is_made_anew(path: Path) -> None:
    expect(with_file(indexed(), path, None), 13, **SETTINGS)


@pytest.mark.parametrize("path", INDEXES, ids=lambda path: path.name)
def test_a_short_index_is_made_anew(path: Path) -> None:
    disk = indexed()
    expect(with_file(disk, path, content(disk, path)[:-1]), 13, **SETTINGS)


@pytest.mark.parametrize("path", [path for path in INDEXES if path.suffix != DELIVER_AFTER_INDEX], ids=lambda p: p.name)
def test_a_rotten_sparse_index_is_made_anew(path: Path) -> None:
    disk = indexed()
    if data := content(disk, path):
        expect(with_file(disk, path, flipped(data, 0)), 13, **SETTINGS)


def test_a_rotten_run_that_is_loaded_is_made_anew() -> None:
    """Its chunks are read when the store is opened; those of larger runs when something in them is due."""
    disk, path = indexed(), INDEXES[-1]
    data = content(disk, path)
    for position in range(0, len(data), 13):
        reopen_and_expect(with_file(disk, path, flipped(data, position)), 13, **SETTINGS)


def test_all_indexes_are_missing() -> None:
    disk = indexed()
    for path in INDEXES:
        disk = with_file(disk, path, None)
    expect(disk, 13, **SETTINGS)


@pytest.mark.parametrize("damage", [lambda data: data, lambda data: b"rot" + data, None])
def test_indexes_that_the_checkpoints_do_not_know_are_made_anew(damage: Callable[[bytes], bytes] | None) -> None:
    """As repair leaves them. What a power cut takes of that, whoever opens the log next does again."""
    disk = SimulatedFiles()
    store = open_small(disk, ManualClock(NOW_MS))
    partition = store.create_topic("t").partition(0)
    for number in range(90):
        store.send("t", value(number), deliver_after=NOW_MS + due(number) + 1)
        if number % 20 == 10:
            store.cancel_many("t", 0, np.array([number]))
    store.close()
    disk = killed(disk)
    first, second, *others = partition.log.checkpoints.current.sealed
    paths = {suffix: FOLDER / segment_file(first.base_offset, suffix) for suffix in first.indexes}
    expected = {path: content(disk, path) for path in paths.values()}
    assert 3 == len(expected)
    for path, data in expected.items():
        disk = with_file(disk, path, None if damage is None else damage(data))
    unknown = dataclasses.replace(first, index=UNKNOWN, time_index=UNKNOWN, cancel_index=UNKNOWN)
    checkpoints = CheckpointFile.open(disk, FOLDER / CHECKPOINTS)
    checkpoints.update(sealed=(unknown, second, *others))
    disk = SimulatedFiles(disk.image())
    opened(disk)
    for upto in campaigns.share(range(len(disk.operations) + 1), 48):
        for state in crash_states(disk.operations, upto, start=disk.start):
            files = state.files()
            opened(files)
            assert (first, second, *others) == CheckpointFile.open(files, FOLDER / CHECKPOINTS).current.sealed
            assert expected == {path: content(files, path) for path in expected}


def test_the_folder_of_buckets_is_missing() -> None:
    disk = indexed()
    for path in INDEXES[-3:]:
        disk = with_file(disk, path, None)
    image = disk.image()
    folders = [folder for folder in image.folders if not folder.endswith(BUCKETS)]
    expect(SimulatedFiles(Image(folders, image.contents)), 13, **SETTINGS)


def test_a_stale_run_is_not_trusted() -> None:
    """Run files of another segment or of other offsets, whole as they are, under the name of ours."""
    disk = indexed()
    for path in (INDEXES[0], *INDEXES[-3:]):
        for other in (INDEXES[0], *INDEXES[-3:]):
            if path != other:
                reopen_and_expect(with_file(disk, path, content(disk, other)), 13, **SETTINGS)


def test_a_run_that_overlaps_is_removed() -> None:
    disk = indexed()
    store = open_small(with_file(filled(11, roll_at=5, **SETTINGS), PATH / "none", None), ManualClock(NOW_MS))
    store.close()
    whole = open_small(disk, ManualClock(NOW_MS), **SETTINGS)
    whole.close()
    for name in (INDEXES[-3], INDEXES[-2]):
        disk.unlink(name)
    opened(disk, **SETTINGS).close()
    [merged] = [name for name in disk.names(FOLDER / BUCKETS) if name.startswith("0" * 19 + "5-")]
    both = with_file(indexed(), FOLDER / BUCKETS / merged, content(disk, FOLDER / BUCKETS / merged))
    store = expect(both, 13, **SETTINGS)
    assert [merged] == both.names(FOLDER / BUCKETS)
    store.close()


def test_a_run_beyond_the_recovery_point_is_removed() -> None:
    """A crash between a seal and its checkpoint leaves the run; the log behind it is scanned again."""
    before, after = filled(3, **SETTINGS), filled(6, **SETTINGS)
    disk = with_file(after, FOLDER / CHECKPOINTS, content(before, FOLDER / CHECKPOINTS))
    assert [bucket_file(0, 3), bucket_file(3, 6)] == disk.names(FOLDER / BUCKETS)
    reopened = expect(disk, 6, **SETTINGS)
    assert bucket_file(3, 6) not in disk.names(FOLDER / BUCKETS)
    reopened.close()


def test_interval_of_the_sparse_indexes_may_change() -> None:
    disk = filled(30, index_interval_bytes=4_096)
    expect(disk, 30, index_interval_bytes=100)


# --- Leftovers


def test_what_unfinished_work_left_is_removed() -> None:
    disk = indexed()
    leftovers = [
        FOLDER / "checkpoints.tmp",
        FOLDER / (segment_file(5, DELIVER_AFTER_INDEX) + ".tmp"),
        FOLDER / BUCKETS / (bucket_file(13, 16) + ".tmp"),
        *(FOLDER / segment_file(99, suffix) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX)),
        *(FOLDER / segment_file(2, suffix) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX)),
    ]
    for path in leftovers:
        disk = with_file(disk, path, b"" if "99" in path.name else b"half")
    expect(disk, 13, **SETTINGS)
    assert not {str(path) for path in leftovers} & set(disk.image().contents)


def test_files_of_others_are_left_alone() -> None:
    disk = with_file(indexed(), FOLDER / "notes.txt", b"mine")
    expect(disk, 13, **SETTINGS)
    assert b"mine" == content(disk, FOLDER / "notes.txt")


# --- The trailing run


def test_a_small_trailing_run_is_loaded_and_superseded_at_the_next_seal() -> None:
    disk = filled(10)
    assert [bucket_file(0, 8), bucket_file(8, 10)] == disk.names(FOLDER / BUCKETS)
    store = open_small(disk, ManualClock(NOW_MS))
    log = store.topic("t").partition(0).log
    assert (8, 2) == (log.index.runs[0].count, log.index.bucket.count)
    for number in range(10, 16):
        store.send("t", value(number), deliver_after=NOW_MS + due(number))
        store.check()
    assert [bucket_file(0, 8), bucket_file(8, 16)] == disk.names(FOLDER / BUCKETS)
    expect(killed(disk), 16)


def test_many_lives_leave_no_files_behind() -> None:
    disk = filled(1)
    for number in range(1, 30):
        store = open_small(disk, ManualClock(NOW_MS))
        store.send("t", value(number), deliver_after=NOW_MS + due(number))
        store.close()
    assert 4 >= len(disk.names(FOLDER / BUCKETS))
    names = disk.image()
    for _ in range(5):
        open_small(disk, ManualClock(NOW_MS)).close()
    assert names == disk.image()
    expect(disk, 30)


def test_opening_a_clean_log_writes_nothing() -> None:
    disk = indexed()
    before = disk.image()
    opened(disk, **SETTINGS)
    assert before == disk.image()


# --- Creating


def test_create_takes_up_what_an_unfinished_creation_left() -> None:
    disk = SimulatedFiles()
    store = open_small(disk, ManualClock(NOW_MS))
    context = store.create_topic("t").partition(0).log.context
    other = dataclasses.replace(context, folder=PATH / "u-0")
    disk.make_folder(other.folder)
    disk.create(other.folder / segment_file(0, LOG)).append([b"half"])
    create_log(other)
    log = open_log(other)
    assert (0, 0) == (log.log_start_offset, log.log_end_offset)
    log.close()
    assert 0 == open_log(dataclasses.replace(other, folder=PATH / "t-0")).log_end_offset


def test_a_created_partition_survives_a_power_cut() -> None:
    disk = SimulatedFiles()
    open_small(disk, ManualClock(NOW_MS)).create_topic("t")
    expect(power_cut(disk), 0)


# --- Buckets over several segments


def rolled(count: int) -> SimulatedFiles:
    """A disk with a sealed segment for every three records, nothing merged."""
    disk = SimulatedFiles()
    store = open_small(disk, ManualClock(NOW_MS))
    store.create_topic("t")
    for number in range(count):
        store.send("t", value(number), deliver_after=NOW_MS + due(number))
        if number % 3 == 2:
            store.topic("t").partition(0).log.roll()
    store.close()
    return killed(disk)


def merged(disk: SimulatedFiles) -> SimulatedFiles:
    """The same with one bucket over all of them."""
    disk = killed(disk)
    store = open_small(disk, ManualClock(NOW_MS), max_num_buckets=1)
    assert 1 == store.topic("t").partition(0).log.merge_buckets()
    store.close()
    return killed(disk)


BUCKET = FOLDER / BUCKETS / bucket_file(0, 12)


def test_a_bucket_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    disk = merged(rolled(14))
    assert [BUCKET.name, bucket_file(12, 14)] == disk.names(FOLDER / BUCKETS)
    reopen_and_expect(disk, 14)
    assert "made anew" not in caplog.text


def test_sources_that_a_crash_left_beside_a_bucket_go(caplog: pytest.LogCaptureFixture) -> None:
    before = rolled(14)
    disk = merged(before)
    runs = [FOLDER / segment_file(base, DELIVER_AFTER_INDEX) for base in (0, 3, 6, 9)]
    for run in runs[1:]:
        disk = with_file(disk, run, content(before, run))
    reopen_and_expect(disk, 14)
    assert "made anew" not in caplog.text
    assert not any(disk.exists(run) for run in runs)
    assert disk.exists(BUCKET)


def test_a_bucket_is_durable_before_recovery_deletes_its_sources(caplog: pytest.LogCaptureFixture) -> None:
    """A merge is killed between the bucket's rename and the sync of its folder; the power fails after the next open."""
    merging = rolled(14)
    open_small(merging, ManualClock(NOW_MS), max_num_buckets=1).topic("t").partition(0).log.merge_buckets()
    renamed = [isinstance(each, Rename) and each.target == BUCKET.name for each in merging.operations].index(True) + 1
    disk = kill_state(merging.operations, renamed, start=merging.start).files()
    opened(disk)
    assert [BUCKET.name, bucket_file(12, 14)] == disk.names(FOLDER / BUCKETS)
    for state in crash_states(disk.operations, len(disk.operations), start=disk.start):
        reopen_and_expect(state.files(), 14)
        assert "made anew" not in caplog.text, state.describe()


@pytest.mark.parametrize("how", ["gone", "rotten", "rotten, and one source left"])
def test_the_run_of_each_segment_is_made_anew_where_their_bucket_cannot_be_read(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = rolled(14)
    disk = merged(before)
    disk = with_file(disk, BUCKET, None if how == "gone" else flipped(content(disk, BUCKET), -1))
    runs = [FOLDER / segment_file(base, DELIVER_AFTER_INDEX) for base in (0, 3, 6, 9)]
    if how.endswith("left"):
        disk = with_file(disk, runs[0], content(before, runs[0]))
    reopen_and_expect(disk, 14)
    assert 4 - how.endswith("left") == caplog.text.count("made anew from the log")
    assert all(disk.exists(run) for run in runs)
    assert not disk.exists(BUCKET)


def test_an_intact_bucket_that_lacks_entries_is_not_trusted(caplog: pytest.LogCaptureFixture) -> None:
    """As one that was merged with another log start."""
    disk = merged(rolled(14))
    storage = LocalBucketSnapshotStorage(disk, FOLDER, max_entries=4, max_step_ms=1_000)
    run = storage.open(f"{BUCKETS}/{BUCKET.name}")
    storage.create(run.key, [run.entries()[2:]], run.coverage)
    reopen_and_expect(killed(disk), 14)
    assert "the runs do not hold what the log does" in caplog.text
