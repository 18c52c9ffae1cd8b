"""After a repair the store opens, verify is clean, and what is left is what was appended: nothing new or skipped."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterlog.base.clock import ManualClock
from afterlog.base.errors import AfterlogError, ClockBehind, CorruptFile
from afterlog.base.files import Files
from afterlog.base.names import BUCKETS, CANCEL_INDEX, CHECKPOINTS, segment_file
from afterlog.log.checkpoints import CheckpointFile, FrontierLease, LogStart
from afterlog.log.topics_document import read_topics
from afterlog.offline import repair
from afterlog.offline.dump import dump
from afterlog.offline.locked_store import OfflineStore
from afterlog.store.store import open_store
from afterlog.tier.manifest import Manifest
from afterlog.tier.scrub import scrub
from tests import campaigns
from tests.campaigns.crash_states import CrashModel, crash_states
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.offline.broken import (
    CANCELLED,
    CONFIG,
    DELAYED,
    FIFO,
    LATER_MS,
    NOW_MS,
    RECORDS,
    STORE,
    drained,
    findings,
    flip,
    marks,
    merged_bucket,
    paths,
    prune,
    remote_of,
    reopened,
    repaired,
    rewrite,
    small_store,
    tiered_store,
    value_of,
)
from tests.support import power_cut

TOPIC = {DELAYED: "mail", FIFO: "ticks"}


def lost_offsets(files: Files, folder: Path, group: str = "everything") -> set[int]:
    """What a new group does not get; what it gets is as appended, in order, each once."""
    messages = drained(files, TOPIC[folder], group)
    offsets = [message.offset for message in messages]
    keys = [(message.due, message.offset) for message in messages] if folder == DELAYED else offsets
    assert sorted(set(keys)) == keys
    assert [value_of(offset) for offset in offsets] == [message.value for message in messages]
    assert [*range(messages[0].delivery_offset, messages[-1].delivery_offset + 1)] == [
        message.delivery_offset for message in messages
    ] or folder == FIFO
    return set(range(RECORDS)) - set(offsets)


def test_nothing_to_do() -> None:
    files = small_store()
    before = files.image()
    assert [] == repaired(files)
    assert before.contents == files.image().contents | before.contents


@pytest.mark.parametrize("folder", [DELAYED, FIFO])
@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("position", [0, 8, 2_000, -1])
def test_rot_in_a_log(folder: Path, number: int, position: int) -> None:
    files = small_store()
    path = paths(files, folder, ".log")[number]
    whole = files.open(path).pread(1 << 20, 0)
    flip(files, path, position)
    rotten = files.open(path).pread(1 << 20, 0)
    [step] = [step for step in repaired(files) if "are lost" in step]
    assert [] == findings(files)
    lost = lost_offsets(files, folder)
    assert f"offsets {min(lost)} to {max(lost)} are lost" in step
    assert [*range(min(lost), max(lost) + 1)] == sorted(lost)
    [copy] = [path for path in paths(files, folder) if ".cut-" in path.name]
    cut = int(copy.name.rpartition("-")[2])
    assert rotten[cut:] == files.open(copy).pread(1 << 20, 0)
    kept = files.open(path).pread(1 << 20, 0) if files.exists(path) else b""
    assert whole[:cut] == kept
    assert f"saved as {copy.name}" in step
    if folder == DELAYED:  # a bare batch has its offset outside of its checksum
        assert lost >= {row["offset"] for row in dump(files, copy) if row["crc"] == "ok"}


@pytest.mark.parametrize("folder", [DELAYED, FIFO])
@pytest.mark.parametrize("number", [0, -1])
def test_lost_offsets_are_not_given_again(folder: Path, number: int) -> None:
    files = small_store()
    flip(files, paths(files, folder, ".log")[number], -1)
    repaired(files)
    with reopened(files) as store:
        assert RECORDS == store.send(TOPIC[folder], b"next").offset
        store.check()
    assert [] == findings(files)
    assert b"next" == drained(files, TOPIC[folder], "everything")[-1].value


@pytest.mark.parametrize("folder", [DELAYED, FIFO])
@pytest.mark.parametrize("number", [0, 1, 2, -1])
def test_no_group_skips_anything(folder: Path, number: int) -> None:
    """A group that had received some gets all the others that are left; it may see as many again as were lost."""
    files = small_store()
    with reopened(files, NOW_MS + 100_000) as store, store.consumer(TOPIC[folder], group="reader") as consumer:
        [committed] = consumer.committed().values()
        assert committed
    with (
        open_store(STORE, CONFIG, ManualClock(LATER_MS), small_store()) as store,
        store.consumer(TOPIC[folder], group="first") as consumer,
    ):
        had = {message.offset for message in consumer.poll(committed)}
    flip(files, paths(files, folder, ".log")[number], 100)
    repaired(files)
    got = {message.offset for message in drained(files, TOPIC[folder], "reader")}
    lost = lost_offsets(files, folder)
    assert set(range(RECORDS)) == had | got | lost
    assert len(had & got) <= len(lost)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("folder", [DELAYED, FIFO])
@pytest.mark.parametrize("how", ["rot", "gone", "empty"])
def test_checkpoints(folder: Path, how: str, closed: bool) -> None:
    files = small_store(closed=closed)
    if how == "gone":
        files.unlink(folder / CHECKPOINTS)
    else:
        rewrite(files, folder / CHECKPOINTS, lambda data: b"" if how == "empty" else data.replace(b"1", b"2", 1))
    with pytest.raises(CorruptFile):
        open_store(STORE, CONFIG, ManualClock(LATER_MS), files)
    step, *_ = repaired(files)
    assert "made anew from the logs. Given up" in step
    assert [] == findings(files)
    assert set() == lost_offsets(files, folder)
    assert [] == repaired(files)


@pytest.mark.parametrize("number", [0, -1])
def test_checkpoints_gone_and_rot_in_a_log(number: int) -> None:
    files = small_store()
    files.unlink(DELAYED / CHECKPOINTS)
    flip(files, paths(files, DELAYED, ".log")[number], -1)
    repaired(files)
    assert [] == findings(files)
    assert 0 < len(lost_offsets(files, DELAYED)) < 100


@pytest.mark.parametrize("folder", [DELAYED, FIFO])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".deliverafterindex"])
@pytest.mark.parametrize("how", ["rot", "rot inside", "gone", "short"])
def test_indexes(folder: Path, suffix: str, how: str) -> None:
    files = small_store()
    for path in paths(files, folder, suffix):
        if how == "gone":
            files.unlink(path)
        elif files.open(path).size():
            if how == "short":
                rewrite(files, path, lambda data: data[:-5])
            else:
                flip(files, path, 3 if how == "rot" else -200)
    assert bool(findings(files)) == bool(repaired(files))
    assert [] == findings(files)
    assert set() == lost_offsets(files, folder)


@pytest.mark.parametrize("how", ["rot", "rot inside", "gone", "pruned"])
def test_a_bucket_of_several_segments(how: str) -> None:
    files = small_store(merged=True)
    if how == "gone":
        files.unlink(merged_bucket(files))
    elif how == "pruned":
        prune(files)
    else:
        flip(files, merged_bucket(files), 3 if how == "rot" else 64)
    assert repaired(files)
    assert [] == findings(files)
    assert set() == lost_offsets(files, DELAYED)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_rot_in_a_log_whose_run_is_a_bucket(number: int) -> None:
    files = small_store(merged=True)
    flip(files, paths(files, DELAYED, ".log")[number], 2_000)
    repaired(files)
    assert [] == findings(files)
    assert 0 < len(lost_offsets(files, DELAYED)) < 100


def test_checkpoints_gone_and_a_bucket_without_what_was_before_the_log_start() -> None:
    """The log start is given up: then what the bucket left out is wanted again."""
    files = small_store(merged=True)
    prune(files)
    files.unlink(DELAYED / CHECKPOINTS)
    repaired(files)
    assert [] == findings(files)
    assert set() == lost_offsets(files, DELAYED)


@pytest.mark.parametrize("folder", [DELAYED, FIFO])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_log_that_is_gone(folder: Path, number: int) -> None:
    files = small_store()
    path = paths(files, folder, ".log")[number]
    files.unlink(path)
    repaired(files)
    assert [] == findings(files)
    lost = lost_offsets(files, folder)
    assert int(path.stem) == min(lost)


def test_all_logs_and_checkpoints_gone() -> None:
    files = small_store()
    for path in (*paths(files, DELAYED, ".log"), DELAYED / CHECKPOINTS):
        files.unlink(path)
    with OfflineStore(STORE, files, ManualClock(LATER_MS)) as store:
        [error] = store.plan().beyond_repair
    assert "restore the folder from a copy" in str(error)


def test_a_torn_tail_is_cut_as_opening_cuts_it() -> None:
    files = small_store(closed=False)
    rewrite(files, paths(files, DELAYED, ".log")[-1], lambda data: data[:-5])
    [step] = repaired(files)
    assert "a torn tail after the recovery point" in step
    assert any(".cut-" in path.name for path in paths(files, DELAYED))
    assert [] == findings(files)
    assert 1 == len(lost_offsets(files, DELAYED))


class TestObjectStorage:
    """Segments whose files are not here, or not here alone."""

    @staticmethod
    def values(files: SimulatedFiles, folder: Path) -> list[bytes | None]:
        """All that is read, here and there."""
        return [message.value for message in drained(files, TOPIC[folder], "all", remote=remote_of(files))]

    @staticmethod
    def expected(folder: Path) -> list[bytes]:
        cancelled = CANCELLED if folder == DELAYED else None
        return [value_of(number) for number in range(RECORDS) if number % 50 != cancelled]

    @staticmethod
    def log_of(files: SimulatedFiles, folder: Path, row: int) -> Path:
        """Of one of the segments that are here, too."""
        mark = [mark for mark in marks(files, folder) if mark.local][row]
        return folder / segment_file(mark.base_offset, ".log")

    @pytest.mark.parametrize("merged", [True, False])
    def test_nothing_to_do(self, merged: bool) -> None:
        files = tiered_store(merged=merged)
        before = files.image()
        assert [] == repaired(files) == repaired(files, remote=remote_of(files))
        assert before.contents == files.image().contents
        assert self.expected(DELAYED) == self.values(files, DELAYED)

    @pytest.mark.parametrize("folder", [DELAYED, FIFO])
    def test_a_cut_leaves_them_alone(self, folder: Path) -> None:
        files = tiered_store()
        flip(files, paths(files, folder, ".log")[-1], -1)
        away = [mark for mark in marks(files, folder) if not mark.local]
        assert 1 == sum("offsets" in step for step in repaired(files))
        assert away == [mark for mark in marks(files, folder) if not mark.local]
        assert [] == findings(files)
        left = self.values(files, folder)
        assert self.expected(folder)[: len(left)] == left
        assert RECORDS - 20 < len(left) + RECORDS - len(self.expected(folder)) < RECORDS

    @pytest.mark.parametrize("folder", [DELAYED, FIFO])
    @pytest.mark.parametrize("damage", ["rot", "gone", "short"])
    def test_what_is_broken_here_is_read_there(self, folder: Path, damage: str) -> None:
        files = tiered_store()
        path = self.log_of(files, folder, 0)
        if damage == "gone":
            files.unlink(path)
        elif damage == "short":
            rewrite(files, path, lambda data: data[:-1])
        else:
            flip(files, path, 2_000)
        with OfflineStore(STORE, files, ManualClock(LATER_MS)) as store:
            steps = store.plan().steps
        assert f"{path}: it was uploaded: give --remote, and it is read from there instead" in steps
        assert any("are lost" in step for step in steps)
        [step] = repaired(files, remote=remote_of(files))
        assert "it is read from object storage; nothing is lost" in step
        assert [] == findings(files)
        assert not files.exists(path)
        assert self.expected(folder) == self.values(files, folder)

    def test_what_is_not_listed_any_more_is_cut(self) -> None:
        files = tiered_store()
        path = self.log_of(files, DELAYED, 0)
        flip(files, path, 2_000)
        manifest = Manifest(remote_of(files), DELAYED.name)
        manifest.update(lambda rows: tuple(row for row in rows if row.base_offset != int(path.stem)))
        assert any("are lost" in step for step in repaired(files, remote=remote_of(files)))
        assert [] == findings(files)

    def test_their_cancel_indexes(self) -> None:
        files = tiered_store()
        [first, *_] = [mark for mark in marks(files, DELAYED) if not mark.local and mark.cancel_index[0]]
        files.unlink(DELAYED / segment_file(first.base_offset, CANCEL_INDEX))
        with OfflineStore(STORE, files, ManualClock(LATER_MS)) as store:
            [error] = store.plan().beyond_repair
        assert "there is one in object storage: give --remote" in str(error)
        [step] = repaired(files, remote=remote_of(files))
        assert "fetched from object storage" in step
        assert [] == findings(files)
        assert self.expected(DELAYED) == self.values(files, DELAYED)

    @pytest.mark.parametrize("folder", [DELAYED, FIFO])
    def test_checkpoints_gone(self, folder: Path) -> None:
        files = tiered_store()
        flip(files, self.log_of(files, folder, 0), 2_000)
        flip(files, folder / CHECKPOINTS, 50)
        with OfflineStore(STORE, files, ManualClock(LATER_MS)) as store:
            [error] = store.plan().beyond_repair
        assert "give --remote" in str(error)
        assert not any("are lost" in step for step in repaired(files, remote=remote_of(files)))
        assert [] == findings(files)
        assert self.expected(folder) == self.values(files, folder)

    @pytest.mark.parametrize("all_away", [True, False])
    def test_the_document_of_topics_gone(self, all_away: bool) -> None:
        files = tiered_store()
        if all_away:
            with reopened(files, remote=remote_of(files)) as store:
                store.topic("mail").partition(0).log.roll()
                store.offload()
            assert {False} == {mark.local for mark in marks(files, DELAYED)}
        files.unlink(STORE / "topics")
        repaired(files)
        assert [] == findings(files)
        assert {True} == {settings.remote_storage_enable for settings in read_topics(files, STORE).values()}
        assert [True, False] == [settings.delayed for settings in read_topics(files, STORE).values()]
        assert self.expected(DELAYED) == self.values(files, DELAYED)

    def test_a_bucket_over_some_of_them_and_some_that_are_here(self) -> None:
        files = tiered_store(merged=True)
        flip(files, merged_bucket(files), 64)
        [step] = repaired(files)
        assert "made anew from the log" in step
        assert [] == findings(files)
        assert self.expected(DELAYED) == self.values(files, DELAYED)

    def test_an_index_that_is_made_anew_in_another_way_goes_up_again(self) -> None:
        """What is there must be what the checkpoints say, once the files here are gone."""
        files = tiered_store()
        path = self.log_of(files, DELAYED, 0)
        flip(files, path.with_suffix(".index"), 3)
        repaired(files)
        [mark] = [mark for mark in marks(files, DELAYED) if mark.base_offset == int(path.stem)]
        assert mark.remote is None
        with reopened(files, remote=remote_of(files)) as store:
            assert {1} == {done.uploaded for name, done in store.offload().items() if name == DELAYED.name}
        assert all(not mark.local for mark in marks(files, DELAYED)[:-1])
        assert self.expected(DELAYED) == self.values(files, DELAYED)
        assert [] == scrub(Manifest(remote_of(files), DELAYED.name), deep=True)

    def test_a_cut_behind_the_log_start(self) -> None:
        """Delivery offsets are counted anew, for which a run in object storage is asked."""
        files = tiered_store()
        before = CheckpointFile.open(files, DELAYED / CHECKPOINTS)
        start = LogStart(delivery_offset=10, deliver_after=NOW_MS + 10_000, offset=9)
        before.update(log_start=start)
        path = paths(files, DELAYED, ".log")[-1]
        flip(files, path, -1)
        with OfflineStore(STORE, files, ManualClock(LATER_MS)) as store:
            [error] = store.plan().beyond_repair
        assert "lie in object storage" in str(error)
        repaired(files, remote=remote_of(files))
        assert [] == findings(files)
        left = self.values(files, DELAYED)
        assert len(left) > 300
        assert self.expected(DELAYED)[9 : 9 + len(left)] == left


class TestClock:
    AHEAD_MS = LATER_MS + 30 * 86_400_000

    def ahead(self) -> SimulatedFiles:
        """As after a month in which the wall clock was a month ahead, and something was sent."""
        files = small_store()
        with reopened(files, self.AHEAD_MS) as store:
            store.send("mail", b"ahead")
            assert RECORDS + 1 == store.topic("mail").partitions[0].high_watermark()
        return files

    def test_without_it_nothing_is_delivered(self) -> None:
        files = self.ahead()
        with reopened(files) as store, store.consumer("mail", group="g") as consumer, pytest.raises(ClockBehind):
            consumer.poll()
        assert 2 == len(findings(files)) or all("frontier" in finding for finding in findings(files))

    def test_it_is_put_back_only_where_asked(self) -> None:
        files = self.ahead()
        assert [] == repaired(files)
        steps = repaired(files, put_clock_back=True)
        assert all("promise D2 for positions beyond it" in step for step in steps)
        assert [] == findings(files)
        with reopened(files) as store, store.consumer("mail", group="g") as consumer:
            assert RECORDS == len(consumer.poll(1_000))
            store.send("mail", b"back")
            assert [b"back"] == [message.value for message in consumer.poll()]

    def test_a_clock_that_is_right(self) -> None:
        assert [] == repaired(small_store(), put_clock_back=True)


class TestCrash:
    """Repair that is cut off anywhere can be run again, and ends as one that was not."""

    CHANGES = frozenset(("create", "append", "truncate", "sync", "rename", "unlink", "sync_folder"))

    @pytest.mark.parametrize("folder", [DELAYED, FIFO])
    @pytest.mark.parametrize("number", [0, -1])
    def test_cut_off_at_every_change(self, folder: Path, number: int) -> None:
        lost, changes = self.repair_up_to(folder, number, None)
        assert changes > 15
        for last in campaigns.share(range(changes), 20):
            assert (lost, last) == self.repair_up_to(folder, number, last)

    @pytest.mark.parametrize("folder", [DELAYED, FIFO])
    @pytest.mark.parametrize("damaged", [".log", ".index", ".timeindex"])
    def test_recovery_is_all_that_is_left(self, folder: Path, damaged: str) -> None:
        """Behind the cuts, whoever opens the store makes what is missing: repair is not asked again."""
        files = small_store()
        flip(files, paths(files, folder, damaged)[0], 2_500 if damaged == ".log" else 3)
        with patch.object(repair, "open_log", side_effect=OSError("cut off")), pytest.raises(OSError, match="cut off"):
            repaired(files)
        assert [finding for finding in findings(files) if "a repair that was cut off left it" in finding]
        reopened(files).close()
        assert [] == findings(files)
        assert bool(lost_offsets(files, folder)) == (damaged == ".log")

    def test_a_run_that_a_killed_repair_removed_is_gone_for_good_before_there_are_new_checkpoints(self) -> None:
        """It was killed before that was durable, and the next one does not see the run."""

        def fail(operation: str, path: Path, call: int) -> OSError | None:
            return OSError(errno.EIO, "cut off") if (operation, path.name) == ("sync_folder", BUCKETS) else None

        files = small_store(merged=True)
        stale = merged_bucket(files)
        flip(files, paths(files, DELAYED, ".log")[0], 2_500)
        with pytest.raises(OSError, match="cut off"):
            repaired(FailingFiles(files, fail))
        assert not files.exists(stale)
        assert power_cut(files).exists(stale)
        files = SimulatedFiles(files.start, files.operations)
        begun = len(files.operations)
        repaired(files)
        did = [str(each) for each in files.operations]
        [told, _] = [number for number in range(begun, len(did)) if "target='checkpoints'" in did[number]]
        for state in crash_states(files.operations, told + 2, start=files.start, model=CrashModel(every_byte_max=0)):
            assert not state.files().exists(stale), state.describe()

    def repair_up_to(self, folder: Path, number: int, last: int | None) -> tuple[set[int], int]:
        """Repair on a disk that fails after `last` changes, then again on one that does not; (lost, changes)."""
        changes = 0

        def fail(operation: str, path: Path, call: int) -> OSError | None:
            nonlocal changes
            if operation in self.CHANGES:
                if changes == last:
                    return OSError(errno.EIO, "cut off")
                changes += 1
            return None

        files = small_store()
        flip(files, paths(files, folder, ".log")[number], 2_500)
        try:
            repaired(FailingFiles(files, fail))
        except (OSError, AfterlogError):
            assert last is not None
            files = SimulatedFiles(files.image())
            repaired(files)
        assert [] == findings(files)
        return lost_offsets(files, folder), changes


@settings(max_examples=campaigns.examples(25))
@given(st.data())
def test_any_damage(data: st.DataObject) -> None:
    """Whatever rots or goes: verify sees it or it does no harm, and what repair leaves is whole and true."""
    closed = data.draw(st.booleans(), "closed")
    files = small_store(closed=closed, merged=data.draw(st.booleans(), "merged"))
    everything = [*paths(files, DELAYED), *paths(files, FIFO)]
    for _ in range(data.draw(st.integers(1, 3), "damages")):
        path = data.draw(st.sampled_from([path for path in everything if files.exists(path)]), "file")
        size = files.open(path).size()
        match data.draw(st.sampled_from(["flip", "cut", "unlink"]), "how"):
            case "flip" if size:
                at = data.draw(st.integers(0, size - 1), "position")
                flip(files, path, at, data.draw(st.integers(1, 255), "bits"))
            case "cut":
                left = data.draw(st.integers(0, size), "left")
                rewrite(files, path, lambda content, left=left: content[:left])  # type: ignore[misc]
            case "unlink":
                files.unlink(path)
    seen = findings(files)
    repaired(files)
    assert [] == findings(files)
    for folder in (DELAYED, FIFO):
        lost = lost_offsets(files, folder)
        if any(str(folder) in finding for finding in seen):
            continue
        # What was appended after the recovery point, nobody misses where the log ends between two entries.
        assert not lost if closed else [*range(RECORDS - len(lost), RECORDS)] == sorted(lost)


def test_a_frontier_is_made_anew_from_broker_timestamps() -> None:
    files = small_store()
    files.unlink(DELAYED / CHECKPOINTS)
    repaired(files, NOW_MS - 50_000)
    assert (
        FrontierLease(used_ms=NOW_MS, lease_ms=NOW_MS)
        == CheckpointFile.open(files, DELAYED / CHECKPOINTS).current.frontier
    )
