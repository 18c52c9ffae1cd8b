"""The simulated disk, and the proof that exploring crashes on it sees what it should: a toy log with planted bugs."""

from __future__ import annotations

import contextlib
import errno
import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from afterlog.base.errors import DiskFailed, StorageFull
from afterlog.base.files import Files, opened, publish, read_file
from tests.campaigns.crash_states import CrashModel, crash_states, kill_state
from tests.campaigns.explorer import Explored, explore
from tests.campaigns.failing_files import FailingFiles, fail_at, lying_syncs
from tests.campaigns.simulated_disk import Append, Create, Image, MakeFolder, Mark, SimulatedFiles, Sync, SyncFolder

FOLDER = Path("/toy")
RECORDS_PER_FILE = 4
RECORDS = [b"record %02d" % number * (number // 2 % 3 + 1) for number in range(18)]


class Toy:
    """An append-only log in files of four records, and a checkpoint of how many there are; `bugs` are planted.

    A record is ``[size u8, never 0][CRC-32 of number and bytes u32][bytes]``; the checkpoint is the count in decimal.
    """

    def __init__(self, files: Files, bugs: frozenset[str] = frozenset()) -> None:
        self.files = files
        self.bugs = bugs
        self.count = 0

    def append(self, record: bytes) -> None:
        path = FOLDER / f"{self.count // RECORDS_PER_FILE}.log"
        new = not self.files.exists(path)
        file = self.files.create(path) if new else self.files.open(path)
        file.append([bytes([len(record)]), self._checksum(record, self.count), record])
        if "no fsync of the file" not in self.bugs:
            file.sync()
        file.close()
        if new and "no fsync of the folder" not in self.bugs:
            self.files.sync_folder(FOLDER)
        self.count += 1

    def checkpoint(self) -> None:
        path, data = FOLDER / "checkpoint", [b"%d" % self.count]
        if "checkpoint in place" in self.bugs and self.files.exists(path):
            with opened(self.files, path) as file:
                file.truncate(0)
                file.append(data)
                file.sync()
        elif "rename before fsync" in self.bugs:
            file = self.files.create(FOLDER / "new")
            file.append(data)
            self.files.rename(FOLDER / "new", path)
            self.files.sync_folder(FOLDER)
            file.sync()
        else:
            publish(self.files, path, data)

    def recover(self) -> list[bytes]:
        """Make the folder or find it, cut the torn tail, make all of it durable, and give the records."""
        if not self.files.exists(FOLDER):
            self.files.make_folder(FOLDER)
        records: list[bytes] = []
        while len(records) % RECORDS_PER_FILE == 0:
            path = FOLDER / f"{len(records) // RECORDS_PER_FILE}.log"
            if not self.files.exists(path):
                break
            with opened(self.files, path) as file:
                found, end = self._scan(file.pread(file.size(), 0), len(records))
                file.truncate(end)
                if "no fsync in recovery" not in self.bugs:
                    file.sync()
            records += found
            if not found:
                break
        if "no fsync in recovery" not in self.bugs:
            self.files.sync_folder(FOLDER)
        self.files.sync_folder(FOLDER.parent)
        self.count = len(records)
        return records

    def _checksum(self, record: bytes, number: int) -> bytes:
        return zlib.crc32(record, 0 if "stale records pass" in self.bugs else number).to_bytes(4, "big")

    def _scan(self, data: bytes, number: int) -> tuple[list[bytes], int]:
        records: list[bytes] = []
        position = 0
        while position + 5 < len(data):
            end = position + 5 + data[position]
            record = data[position + 5 : end]
            whole = self._checksum(record, number + len(records)) == data[position + 1 : position + 5]
            if not record and "zeros are a record" not in self.bugs:
                break
            if (end > len(data) or not whole) and "no CRC" not in self.bugs:
                break
            records.append(record)
            position = end
        return records, position


def run(files: Files, disk: SimulatedFiles, bugs: frozenset[str] = frozenset()) -> None:
    toy = Toy(files, bugs)
    toy.recover()
    for record in RECORDS:
        toy.append(record)
        disk.mark(("appended", toy.count))
        if toy.count % 3 == 0:
            toy.checkpoint()
            disk.mark(("checkpoint", toy.count))


def verify(disk: SimulatedFiles, marks: Sequence[object], bugs: frozenset[str] = frozenset()) -> None:
    toy = Toy(disk, bugs)
    records = toy.recover()
    assert RECORDS[: len(records)] == records
    assert promised(marks, "appended") <= len(records)
    path = FOLDER / "checkpoint"
    checkpoint = int(read_file(disk, path)) if disk.exists(path) else 0
    assert promised(marks, "checkpoint") <= checkpoint <= len(records)
    assert records == toy.recover()
    disk.mark(("appended", len(records)))  # a reader has seen them
    if len(records) < len(RECORDS):
        toy.append(RECORDS[len(records)])
        disk.mark(("appended", toy.count))


def promised(marks: Sequence[object], what: str) -> int:
    return max((mark[1] for mark in marks if isinstance(mark, tuple) and mark[0] == what), default=0)


def explored(*bugs: str, kill: bool = False, again_every: int = 0, only: str | None = None) -> Explored:
    planted = frozenset(bugs)
    return explore(
        lambda files, disk: run(files, disk, planted),
        lambda disk, marks, state: verify(disk, marks, planted),
        kill=kill,
        again_every=again_every,
        only=only,
    )


class TestExplore:
    def test_a_right_log_survives_every_power_cut(self) -> None:
        result = explored()
        print(result)
        assert [] == result.failures
        assert result.points > 100
        assert result.states > result.distinct > 1_000

    def test_a_right_log_survives_power_cuts_during_recovery_from_power_cuts(self) -> None:
        result = explored(again_every=20)
        print(result)
        assert [] == result.failures
        assert result.distinct > 2_000

    def test_a_right_log_survives_kills_and_power_cuts_after_them(self) -> None:
        assert [] == explored(kill=True).failures
        assert [] == explored(kill=True, again_every=10).failures

    @pytest.mark.parametrize(
        "bug",
        [
            "no fsync of the file",
            "no fsync of the folder",
            "rename before fsync",
            "no CRC",
            "zeros are a record",
            "stale records pass",
            "checkpoint in place",
        ],
    )
    def test_a_planted_bug_is_caught(self, bug: str) -> None:
        result = explored(bug)
        print(result)
        assert result.failures

    def test_serving_what_a_kill_left_undurable_is_caught(self) -> None:
        bug = "no fsync in recovery"
        assert [] == explored(bug).failures
        assert [] == explored(bug, kill=True).failures
        assert 3 == len(explored(bug, kill=True, again_every=1).failures)

    def test_a_disk_that_lies_about_syncs_is_caught(self) -> None:
        result = explore(
            run, lambda disk, marks, state: verify(disk, marks), wrap=lambda disk: FailingFiles(disk, lying_syncs)
        )
        assert 3 == len(result.failures)

    @pytest.mark.parametrize("bug", ["checkpoint in place", "no fsync of the file"])
    def test_a_failure_can_be_replayed_by_its_description(self, bug: str) -> None:
        first, *_ = explored(bug).failures
        replayed = explored(bug, only=first.state)
        assert [first] == replayed.failures
        assert 1 == replayed.distinct

    def test_a_failure_in_the_second_life_can_be_replayed(self) -> None:
        bug = "no fsync in recovery"
        first, *_ = explored(bug, kill=True, again_every=1).failures
        assert ", then " in first.state
        assert [first] == explored(bug, kill=True, again_every=1, only=first.state).failures


def states(disk: SimulatedFiles, upto: int | None = None, model: CrashModel | None = None) -> list[Image]:
    upto = len(disk.operations) if upto is None else upto
    return [state.files().image() for state in crash_states(disk.operations, upto, start=disk.start, model=model)]


class TestCrashStates:
    def test_nothing_pending_leaves_one_state(self) -> None:
        disk = SimulatedFiles(Image(["/a"], {"/a/b": b"12"}))
        assert [Image(["/a"], {"/a/b": b"12"})] == states(disk)

    def test_a_name_is_durable_by_sync_of_its_folder_only(self) -> None:
        disk = SimulatedFiles()
        file = disk.create(Path("/a"))
        file.append([b"x"])
        file.sync()
        assert {(), ("/a",)} == {tuple(image.contents) for image in states(disk)}
        disk.sync_folder(Path("/"))
        assert [{"/a": b"x"}] == [image.contents for image in states(disk)]

    def test_a_folder_is_durable_by_sync_of_its_parent(self) -> None:
        disk = SimulatedFiles()
        disk.make_folder(Path("/a"))
        disk.create(Path("/a/b"))
        disk.sync_folder(Path("/a"))
        assert {(), ("/a",)} == {tuple(image.folders) for image in states(disk)}
        disk.sync_folder(Path("/"))
        assert [Image(["/a"], {"/a/b": b""})] == states(disk)

    def test_an_append_is_torn_at_every_byte_with_every_tail(self) -> None:
        disk = SimulatedFiles(Image((), {"/a": b"old"}))
        disk.open(Path("/a")).append([b"n", b"ew"])
        found = {image.contents["/a"] for image in states(disk)}
        assert {b"old", b"oldn", b"oldne", b"oldnew"} <= found
        assert {b"old\0\0\0", b"oldn\0\0", b"oldne\0", b"oldold"} <= found
        others = [data for data in found if len(data) == 6 and data[3:] != b"new" and b"\0" not in data]
        assert {b"old", b"oldn", b"oldne"} <= {data[:cut] for data in others for cut in (3, 4, 5)}

    def test_unsynced_operations_of_a_file_survive_as_prefixes_or_behind_a_hole(self) -> None:
        disk = SimulatedFiles(Image((), {"/a": b"0"}))
        file = disk.open(Path("/a"))
        for data in (b"1", b"2"):
            file.append([data])
        file.truncate(2)
        file.append([b"3"])
        found = {image.contents["/a"] for image in states(disk)}
        assert {b"0", b"01", b"012", b"013", b"0\0" + b"2"} <= found
        assert b"03" not in found
        assert b"023" not in found

    def test_unsynced_names_survive_as_prefixes(self) -> None:
        disk = SimulatedFiles(Image((), {"/a": b"A", "/b": b"B"}))
        disk.rename(Path("/a"), Path("/b"))
        disk.create(Path("/c"))
        disk.unlink(Path("/b"))
        found = {tuple(sorted(image.contents.items())) for image in states(disk)}
        assert {
            (("/a", b"A"), ("/b", b"B")),
            (("/b", b"A"),),
            (("/b", b"A"), ("/c", b"")),
            (("/c", b""),),
        } == found

    def test_files_are_free_to_choose_with_the_others_lost_and_kept(self) -> None:
        disk = SimulatedFiles(Image((), {"/a": b"", "/b": b""}))
        for name in ("/a", "/b"):
            disk.open(Path(name)).append([b"12"])
        found = [(image.contents["/a"], image.contents["/b"]) for image in states(disk)]
        assert {(b"", b""), (b"12", b"12"), (b"1", b""), (b"1", b"12"), (b"", b"1"), (b"12", b"1")} <= set(found)
        assert (b"1", b"1") not in found

    def test_the_states_before_an_operation_do_not_know_it(self) -> None:
        disk = SimulatedFiles()
        disk.create(Path("/a"))
        disk.sync_folder(Path("/"))
        assert [{}] == [image.contents for image in states(disk, 0)]
        assert {(), ("/a",)} == {tuple(image.contents) for image in states(disk, 1)}

    @pytest.mark.parametrize("size", [129, 512, 5_000, 1_000_000])
    def test_larger_appends_are_cut_at_the_ends_and_at_sectors_of_the_file(self, size: int) -> None:
        model = CrashModel()
        cuts = model.cuts(100, size)
        assert {0, 1, size // 2, size - 1} <= set(cuts)
        assert all(cut in (0, 1, size // 2, size - 1) or (100 + cut) % 512 == 0 for cut in cuts)
        assert len(cuts) <= 20
        assert cuts == sorted(set(cuts))
        assert list(range(128)) == model.cuts(100, 128)

    def test_descriptions_are_unique_and_the_same_every_time(self) -> None:
        disks = [SimulatedFiles(), SimulatedFiles()]
        for disk in disks:
            run(disk, disk)
        first, second = (
            [state.describe() for upto in range(0, 40, 3) for state in crash_states(disk.operations, upto)]
            for disk in disks
        )
        assert first == second
        assert len(set(first)) == len(first)

    def test_equal_digests_mean_equal_disks(self) -> None:
        disk = SimulatedFiles()
        run(disk, disk)
        by_digest: dict[bytes, Image] = {}
        for upto in range(0, len(disk.operations), 5):
            for state in crash_states(disk.operations, upto):
                image = state.files().image()
                assert image == by_digest.setdefault(state.digest, image)
        assert len(by_digest) == len({repr(image) for image in by_digest.values()})

    def test_a_state_is_a_fresh_disk_each_time(self) -> None:
        disk = SimulatedFiles(Image((), {"/a": b"1"}))
        (state,) = crash_states(disk.operations, 0, start=disk.start)
        state.files().open(Path("/a")).append([b"2"])
        assert b"1" == read_file(state.files(), Path("/a"))


class TestKill:
    def test_everything_written_survives_and_stays_undurable(self) -> None:
        disk = SimulatedFiles()
        disk.create(Path("/a")).append([b"12"])
        after = kill_state(disk.operations, 2).files()
        assert {"/a": b"12"} == after.image().contents
        after.open(Path("/a")).append([b"3"])
        assert {"/a": b"123"} == after.image().contents
        assert {} in [image.contents for image in states(after)]

    def test_what_is_made_after_the_kill_has_a_number_of_its_own(self) -> None:
        disk = SimulatedFiles(Image(["/f"], {"/f/a": b"A"}))
        disk.create(Path("/b")).append([b"B"])
        after = kill_state(disk.operations, 2, start=disk.start).files()
        after.create(Path("/c")).append([b"C"])
        assert {"/b": b"B", "/c": b"C", "/f/a": b"A"} == dict(after.image().contents)


class TestSimulatedFiles:
    def test_operations_are_written_down_in_order(self) -> None:
        disk = SimulatedFiles()
        disk.make_folder(Path("/a"))
        file = disk.create(Path("/a/b"))
        file.append([b"1", bytearray(b"2"), memoryview(b"3")])
        file.sync()
        disk.sync_folder(Path("/a"))
        disk.mark(("appended", 1))
        assert [
            MakeFolder("/a", 0, "a", 1),
            Create("/a/b", 1, "b", 2),
            Append("/a/b", 2, b"123"),
            Sync("/a/b", 2),
            SyncFolder("/a", 1),
            Mark(("appended", 1)),
        ] == disk.operations

    def test_nothing_is_written_down_for_looking_or_failing(self) -> None:
        disk = SimulatedFiles(Image(["/f"], {"/a": b"1"}))
        disk.names(Path("/"))
        disk.exists(Path("/a"))
        read_file(disk, Path("/a"))
        for call, path in ((disk.create, "/a"), (disk.open, "/b"), (disk.make_folder, "/f"), (disk.unlink, "/f")):
            with pytest.raises(OSError, match="/"):
                call(Path(path))
        assert [] == disk.operations

    def test_a_mapping_is_of_its_time(self) -> None:
        disk = SimulatedFiles(Image((), {"/a": b"123"}))
        file = disk.open(Path("/a"))
        mapped = file.map(3)
        file.truncate(0)
        assert b"123" == mapped.tobytes()
        with pytest.raises(IndexError):
            mapped[3]

    def test_a_rename_between_folders_is_refused(self) -> None:
        disk = SimulatedFiles(Image(["/f"], {"/a": b""}))
        with pytest.raises(OSError, match="cross-device") as caught:
            disk.rename(Path("/a"), Path("/f/a"))
        assert errno.EXDEV == caught.value.errno

    def test_disks_of_one_image_share_no_changes(self) -> None:
        image = Image((), {"/a": b"1"})
        one, two = SimulatedFiles(image), SimulatedFiles(image)
        one.open(Path("/a")).append([b"2"])
        assert (b"12", b"1") == (read_file(one, Path("/a")), read_file(two, Path("/a")))


class TestFailingFiles:
    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    @pytest.mark.parametrize("for_ever", [False, True])
    def test_whichever_call_fails_the_toy_keeps_what_it_promised(self, number: int, for_ever: bool) -> None:
        for call in itertools.count(1):
            disk = SimulatedFiles()
            files = FailingFiles(disk, fail_at(call, number, for_ever=for_ever))
            with contextlib.suppress(OSError):
                run(files, disk)
            if files.calls < call:
                break
            verify(disk, [operation.event for operation in disk.operations if isinstance(operation, Mark)])
        assert call > 50

    def test_a_call_fails_once_or_for_ever(self) -> None:
        disk = SimulatedFiles()
        for for_ever, left in ((False, ["b", "c"]), (True, [])):
            files = FailingFiles(disk, fail_at(1, errno.EIO, for_ever=for_ever))
            for name in ("a", "b", "c"):
                with contextlib.suppress(OSError):
                    files.create(Path("/", name))
            assert left == disk.names(Path("/"))
            for name in left:
                disk.unlink(Path("/", name))

    @pytest.mark.parametrize(("size", "written"), [(0, b""), (2, b"12"), (-1, b"123"), (9, b"1234")])
    def test_a_short_write_leaves_a_part_and_fails(self, size: int, written: bytes) -> None:
        disk = SimulatedFiles()
        file = FailingFiles(disk, lambda operation, path, call: size if operation == "append" else None).create(
            Path("/a")
        )
        with pytest.raises(StorageFull):
            file.append([b"12", b"34"])
        assert written == read_file(disk, Path("/a"))

    def test_a_short_write_may_fail_otherwise(self) -> None:
        files = FailingFiles(
            SimulatedFiles(),
            lambda operation, path, call: 1 if operation == "append" else None,
            short_write_error=errno.EIO,
        )
        with pytest.raises(OSError, match="Input/output") as caught:
            files.create(Path("/a")).append([b"12"])
        assert DiskFailed is type(caught.value)

    def test_a_sync_that_lies_does_nothing(self) -> None:
        disk = SimulatedFiles()
        files = FailingFiles(disk, lying_syncs)
        files.create(Path("/a")).sync()
        files.sync_folder(Path("/"))
        assert [Create("/a", 0, "a", 1)] == disk.operations

    def test_only_appends_and_syncs_can_be_done_in_part(self) -> None:
        with pytest.raises(TypeError, match="create"):
            FailingFiles(SimulatedFiles(), lambda operation, path, call: 1).create(Path("/a"))

    def test_a_full_disk_is_named_as_the_real_one_names_it(self) -> None:
        with pytest.raises(StorageFull) as caught:
            FailingFiles(SimulatedFiles(), fail_at(1, errno.ENOSPC)).create(Path("/a"))
        assert errno.ENOSPC == caught.value.errno
        assert isinstance(caught.value.__cause__, OSError)
