"""What every Files keeps to, real or simulated, and what only the real one can show."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import afterlog
from afterlog.base.errors import CorruptFile, DiskFailed, FileMissing, OutOfResources, StorageFull, StoreLocked
from afterlog.base.files import (
    PROCESS,
    Data,
    File,
    Files,
    OsFiles,
    copy_file,
    failed_call,
    map_file,
    opened,
    publish,
    publishing,
    read_file,
    remove_tree,
    unused_name,
)
from tests import campaigns
from tests.campaigns import strikes
from tests.campaigns.failing_files import FailingFiles, fail_at
from tests.campaigns.simulated_disk import Image, SimulatedFiles

ROOT = Path(__file__).parent.parent.parent


class FilesTests:
    """The conformance suite of `Files`: inherit, and give the fixtures `files` and an existing, empty `folder`."""

    @pytest.fixture
    def files(self) -> Files:
        raise NotImplementedError

    @pytest.fixture
    def folder(self) -> Path:
        raise NotImplementedError

    def test_a_new_file_is_empty_and_has_its_name(self, files: Files, folder: Path) -> None:
        file = files.create(folder / "a")
        assert (folder / "a", 0, b"") == (file.path, file.size(), file.pread(10, 0))
        assert ["a"] == files.names(folder)

    @pytest.mark.parametrize(
        "data",
        [
            [],
            [b""],
            [b"abc"],
            [b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], np.frombuffer(b"d", np.uint8), np.empty(0, np.uint8)],
            [b"x"] * 3_000,
            [np.arange(200_000, dtype=np.uint8), b"", b"end"],
        ],
    )
    def test_append_writes_all_parts_at_the_end(self, files: Files, folder: Path, data: Sequence[Data]) -> None:
        whole = b"".join(bytes(part) for part in data)
        file = files.create(folder / "a")
        for times in (1, 2):
            file.append(data)
            assert len(whole) * times == file.size()
            assert whole * times == file.pread(file.size() + 1, 0)

    def test_a_stamp_tells_a_file_that_was_changed_from_one_that_was_not(self, files: Files, folder: Path) -> None:
        file = files.create(folder / "a")
        file.append([b"123"])
        files.create(folder / "b").append([b"123"])
        first = files.stamp(folder / "a")
        assert (3, 1) == (first.size, first.names)
        assert first == files.stamp(folder / "a")
        assert first.number != files.stamp(folder / "b").number
        files.link(folder / "a", folder / "c")
        assert first._replace(names=2) == files.stamp(folder / "a") == files.stamp(folder / "c")
        file.append([b"4"])
        assert 4 == files.stamp(folder / "c").size
        with pytest.raises(FileNotFoundError):
            files.stamp(folder / "none")

    def test_a_file_is_copied_up_to_a_byte(self, files: Files, folder: Path) -> None:
        files.create(folder / "a").append([b"x" * (1 << 20), b"y" * 100])
        assert (1 << 20) + 100 == copy_file(files, folder / "a", folder / "b")
        assert read_file(files, folder / "a") == read_file(files, folder / "b")
        assert 5 == copy_file(files, folder / "a", folder / "c", 5)
        assert b"xxxxx" == read_file(files, folder / "c")
        with pytest.raises(CorruptFile, match="fewer are left"):
            copy_file(files, folder / "c", folder / "d", 6)

    def test_a_folder_goes_with_all_that_is_in_it(self, files: Files, folder: Path) -> None:
        for path in (folder / "a", folder / "a" / "b"):
            files.make_folder(path)
            files.create(path / "file").close()
        remove_tree(files, folder / "a")
        remove_tree(files, folder / "a")
        assert [] == files.names(folder)

    def test_pread_gives_fewer_bytes_only_at_the_end(self, files: Files, folder: Path) -> None:
        file = files.create(folder / "a")
        file.append([b"0123456789"])
        assert (b"345", b"89", b"", b"", b"") == tuple(
            file.pread(size, position) for size, position in ((3, 3), (5, 8), (5, 10), (5, 99), (0, 3))
        )
        with pytest.raises(OSError, match="Invalid argument"):
            file.pread(1, -1)

    def test_an_opened_file_goes_on_where_it_ended(self, files: Files, folder: Path) -> None:
        with opened_new(files, folder / "a") as file:
            file.append([b"12"])
        with opened(files, folder / "a") as file:
            file.append([b"3"])
            file.sync()
        assert b"123" == read_file(files, folder / "a")

    def test_two_handles_see_each_others_writes(self, files: Files, folder: Path) -> None:
        one, two = files.create(folder / "a"), files.open(folder / "a")
        one.append([b"1"])
        two.append([b"2"])
        one.append([b"3"])
        assert b"123" == two.pread(9, 0) == one.pread(9, 0)

    @pytest.mark.parametrize(("size", "left"), [(0, b""), (2, b"12"), (4, b"1234"), (6, b"1234\0\0")])
    def test_truncate_cuts_or_fills_with_zeros(self, files: Files, folder: Path, size: int, left: bytes) -> None:
        file = files.create(folder / "a")
        file.append([b"1234"])
        file.truncate(size)
        assert left == file.pread(9, 0)
        file.append([b"x"])
        assert left + b"x" == file.pread(9, 0)
        with pytest.raises(OSError, match="Invalid argument"):
            file.truncate(-1)

    def test_a_mapping_is_read_only_bytes(self, files: Files, folder: Path) -> None:
        file = files.create(folder / "a")
        file.append([b"123"])
        mapped = file.map(2)
        assert (np.dtype(np.uint8), b"12", True) == (mapped.dtype, mapped.tobytes(), mapped.flags.c_contiguous)
        with pytest.raises(ValueError, match="read-only"):
            mapped[0] = 0
        assert 0 == len(file.map(0))
        with pytest.raises(ValueError, match="greater than file size"):
            file.map(4)

    def test_a_mapping_stays_after_close_and_unlink(self, files: Files, folder: Path) -> None:
        publish(files, folder / "a", [b"123"])
        mapped = map_file(files, folder / "a")
        files.unlink(folder / "a")
        publish(files, folder / "a", [b"456"])
        assert b"123" == mapped.tobytes()

    def test_an_unlinked_file_stays_readable_through_its_handle(self, files: Files, folder: Path) -> None:
        file = files.create(folder / "a")
        file.append([b"1"])
        files.unlink(folder / "a")
        file.append([b"2"])
        assert (b"12", []) == (file.pread(9, 0), files.names(folder))

    def test_rename_replaces_and_keeps_handles(self, files: Files, folder: Path) -> None:
        for name in ("a", "b"):
            files.create(folder / name).append([name.encode()])
        old = files.open(folder / "b")
        files.rename(folder / "a", folder / "b")
        assert (["b"], b"a", b"b") == (files.names(folder), read_file(files, folder / "b"), old.pread(9, 0))
        files.rename(folder / "b", folder / "b")
        assert b"a" == read_file(files, folder / "b")

    def test_a_link_is_a_second_name_and_replaces_nothing(self, files: Files, folder: Path) -> None:
        files.create(folder / "a").append([b"1"])
        files.link(folder / "a", folder / "b")
        with pytest.raises(FileExistsError):
            files.link(folder / "a", folder / "b")
        files.open(folder / "a").append([b"2"])
        files.rename(folder / "a", folder / "b")
        assert ["a", "b"] == files.names(folder)
        files.unlink(folder / "a")
        assert b"12" == read_file(files, folder / "b")

    def test_folders_hold_names_in_order(self, files: Files, folder: Path) -> None:
        for name in ("b", "a", "-"):
            files.make_folder(folder / name)
        files.create(folder / "a" / "x")
        assert (["-", "a", "b"], ["x"], []) == tuple(files.names(folder / name) for name in (".", "a", "b"))
        files.rename(folder / "a", folder / "c")
        assert ["x"] == files.names(folder / "c")
        for each in (folder, folder / "b"):
            files.sync_folder(each)

    def test_exists(self, files: Files, folder: Path) -> None:
        files.create(folder / "a")
        files.make_folder(folder / "f")
        asked = {name: files.exists(folder / name) for name in ("a", "f", "b", "a/x", "b/x", "f/x")}
        assert {"a": True, "f": True, "b": False, "a/x": False, "b/x": False, "f/x": False} == asked

    @pytest.mark.parametrize(
        ("call", "name", "error"),
        [
            ("create", "file", FileExistsError),
            ("create", "folder", FileExistsError),
            ("create", "none/a", FileNotFoundError),
            ("create", "file/a", NotADirectoryError),
            ("open", "none", FileNotFoundError),
            ("open", "folder", IsADirectoryError),
            ("open", "file/a", NotADirectoryError),
            ("names", "none", FileNotFoundError),
            ("names", "file", NotADirectoryError),
            ("make_folder", "folder", FileExistsError),
            ("make_folder", "file", FileExistsError),
            ("make_folder", "none/a", FileNotFoundError),
            ("unlink", "none", FileNotFoundError),
            ("unlink", "folder", IsADirectoryError),
            ("remove_folder", "none", FileNotFoundError),
            ("remove_folder", "file", NotADirectoryError),
            ("sync_folder", "none", FileNotFoundError),
            ("sync_folder", "file", NotADirectoryError),
            ("lock", "folder", IsADirectoryError),
            ("lock", "none/a", FileNotFoundError),
        ],
    )
    def test_what_cannot_be_done_raises_the_builtin_leaf(
        self, files: Files, folder: Path, call: str, name: str, error: type[OSError]
    ) -> None:
        files.create(folder / "file")
        files.make_folder(folder / "folder")
        with pytest.raises(error) as caught:
            getattr(files, call)(folder / name)
        assert str(folder / name) == caught.value.filename
        assert ["file", "folder"] == files.names(folder)

    @pytest.mark.parametrize(
        ("source", "target", "error"),
        [
            ("none", "a", FileNotFoundError),
            ("file", "none/a", FileNotFoundError),
            ("file", "folder", IsADirectoryError),
            ("folder", "file", NotADirectoryError),
            ("folder", "full", OSError),
        ],
    )
    def test_what_cannot_be_renamed(
        self, files: Files, folder: Path, source: str, target: str, error: type[OSError]
    ) -> None:
        files.create(folder / "file")
        for name in ("folder", "full", "full/inner"):
            files.make_folder(folder / name)
        with pytest.raises(error):
            files.rename(folder / source, folder / target)
        assert ["file", "folder", "full"] == files.names(folder)
        files.rename(folder / "full", folder / "folder")
        assert ["inner"] == files.names(folder / "folder")

    def test_names_that_no_file_can_have(self, files: Files, folder: Path) -> None:
        with pytest.raises(ValueError, match="null byte"):
            files.create(folder / "a\0b")
        for name in ("x" * 256, "é" * 128):
            with pytest.raises(OSError, match="name too long") as caught:
                files.create(folder / name)
            assert errno.ENAMETOOLONG == caught.value.errno
        files.create(folder / ("x" * 255))

    def test_a_closed_file_is_of_no_use_and_closes_again(self, files: Files, folder: Path) -> None:
        file = files.create(folder / "a")
        file.close()
        file.close()
        for use in (file.size, file.sync, lambda: file.pread(1, 0), lambda: file.append([b"1"]), lambda: file.map(1)):
            with pytest.raises((OSError, ValueError), match="descriptor"):
                use()

    def test_a_lock_is_refused_to_a_second_handle_until_released(self, files: Files, folder: Path) -> None:
        lock = files.lock(folder / "lock")
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}:") as caught:
            files.lock(folder / "lock")
        assert (folder / "lock", True) == (caught.value.path, caught.value.retriable)
        lock.release()
        lock.release()
        files.lock(folder / "lock").release()
        assert ["lock"] == files.names(folder)

    def test_publish_puts_all_of_it_or_what_was_before(self, files: Files, folder: Path) -> None:
        publish(files, folder / "a", [b"1", b"2"])
        assert b"12" == read_file(files, folder / "a")
        files.create(folder / "a.tmp").append([b"left by a crash"])
        publish(files, folder / "a", [])
        assert (b"", ["a"]) == (read_file(files, folder / "a"), files.names(folder))

    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    def test_publish_that_fails_leaves_the_old_or_the_new_and_keeps_no_room(
        self, files: Files, folder: Path, number: int
    ) -> None:
        publish(files, folder / "a", [b"old"])
        for call in range(1, 99):
            failing = FailingFiles(files, fail_at(call, number))
            try:
                publish(failing, folder / "a", [b"new"])
            except OSError:
                assert read_file(files, folder / "a") in (b"old", b"new")
            else:
                break
        assert 7 == call  # unlink, create, append, sync, rename, sync_folder, and then it worked
        assert (b"new", ["a"]) == (read_file(files, folder / "a"), files.names(folder))

    def test_what_is_published_piece_by_piece_is_there_at_the_end_or_not_at_all(
        self, files: Files, folder: Path
    ) -> None:
        with publishing(files, folder / "a") as file:
            file.append([b"1"])
            assert not files.exists(folder / "a")
            file.append([b"2"])
        with contextlib.suppress(KeyError), publishing(files, folder / "a") as file:
            file.append([b"3"])
            raise KeyError
        assert (b"12", ["a"]) == (read_file(files, folder / "a"), files.names(folder))

    def test_a_scratch_file_has_room_and_no_name(self, files: Files, folder: Path) -> None:
        files.create(folder / "a").append([b"left by a kill"])
        scratch, into = files.scratch(folder / "a"), np.full(6, 255, np.uint8)
        first, last = memoryview(into)[:4], memoryview(into)[4:]
        assert ([], 0) == (files.names(folder), scratch.pread([(first, 0)]))
        scratch.pwrite(b"345", 3)
        scratch.pwrite(np.frombuffer(b"67", np.uint8), 6)
        scratch.pwrite(memoryview(b"xAB")[1:], 3)
        assert (2, b"\0\0AB56") == (scratch.pread([(first, 1), (last, 5)]), into.tobytes())
        assert (1, b"67") == (scratch.pread([(last, 6), (first, 6), (last, 0)]), into[4:].tobytes())
        assert 0 == scratch.pread([])
        with pytest.raises(FileNotFoundError):
            files.scratch(folder / "none" / "a")
        scratch.close()
        scratch.close()
        for use in (lambda: scratch.pread([(first, 0)]), lambda: scratch.pwrite(b"1", 0)):
            with pytest.raises(OSError, match="descriptor"):
                use()

    def test_read_file_and_map_file_name_what_is_not_there(self, files: Files, folder: Path) -> None:
        for read in (read_file, map_file):
            with pytest.raises(FileNotFoundError):
                read(files, folder / "none")


class TestOsFiles(FilesTests):
    @pytest.fixture
    def files(self) -> Files:
        return OsFiles()

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path


class TestSimulatedFiles(FilesTests):
    @pytest.fixture
    def files(self) -> Files:
        return SimulatedFiles(Image(["/store"]))

    @pytest.fixture
    def folder(self) -> Path:
        return Path("/store")


class TestFailingFilesThatDoNotFail(FilesTests):
    @pytest.fixture
    def files(self) -> Files:
        return FailingFiles(SimulatedFiles(Image(["/store"])), lambda operation, path, call: None)

    @pytest.fixture
    def folder(self) -> Path:
        return Path("/store")


NAMES = st.sampled_from(["a", "b", "f", "f/a", "f/b", "g", "a/x", "f/g/a"])
CALLS = st.one_of(
    st.tuples(
        st.sampled_from(["create", "open", "names", "exists", "make_folder", "unlink", "remove_folder", "sync_folder"]),
        NAMES,
    ),
    st.tuples(st.just("rename"), NAMES, NAMES).filter(lambda call: Path(call[1]).parent == Path(call[2]).parent),
    st.tuples(st.just("link"), NAMES, NAMES),
    st.tuples(st.sampled_from(["append", "pread", "truncate", "map"]), NAMES, st.integers(0, 20)),
)


class TestTheSimulationIsTrue:
    @given(st.lists(CALLS, max_size=30))
    def test_the_same_calls_give_the_same_answers(self, calls: list[tuple[Any, ...]]) -> None:
        with tempfile.TemporaryDirectory() as name:
            real, simulated = OsFiles(), SimulatedFiles(Image(["/store"]))
            for call in calls:
                answers = [answer(real, Path(name), *call), answer(simulated, Path("/store"), *call)]
                assert answers[0] == answers[1]


def as_on_another_system(patched: pytest.MonkeyPatch, called: list[str], there: str, answer: int | None) -> None:
    """Which calls for a sync there are (macOS: F_FULLFSYNC), what it answers, and which were `called`."""

    def full_sync(descriptor: int, command: int) -> int:
        called.append("F_FULLFSYNC")
        if answer is not None:
            raise OSError(answer, os.strerror(answer))
        return 0

    patched.setattr("os.fsync", lambda descriptor: called.append("fsync"))
    patched.setattr("os.fdatasync", lambda descriptor: called.append("fdatasync"), raising=False)
    if there not in ("fdatasync", "both"):
        patched.delattr("os.fdatasync")
    if there in ("F_FULLFSYNC", "both"):
        patched.setattr("fcntl.F_FULLFSYNC", 51, raising=False)
        patched.setattr("fcntl.fcntl", full_sync)
    else:
        patched.delattr("fcntl.F_FULLFSYNC", raising=False)


def answer(files: Files, folder: Path, call: str, name: str, *more: Any) -> object:
    """What a call gives or raises, without the place where it happened."""
    try:
        if call in ("append", "pread", "truncate", "map"):
            with opened(files, folder / name) as file:
                if call == "append":
                    file.append([bytes(range(more[0]))])
                elif call == "truncate":
                    file.truncate(more[0])
                else:
                    return bytes(file.pread(9, more[0]) if call == "pread" else file.map(more[0]))
                return file.pread(999, 0)
        result = getattr(files, call)(folder / name, *(folder / other for other in more))
        if call not in ("create", "open"):
            return result
        with contextlib.closing(result):
            return result.size()
    except (OSError, ValueError) as error:
        return type(error), getattr(error, "errno", None)


class TestOnlyReal:
    def test_nobody_else_may_read(self, tmp_path: Path) -> None:
        files = OsFiles()
        files.make_folder(tmp_path / "f")
        files.create(tmp_path / "f" / "a").close()
        files.lock(tmp_path / "lock").release()
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("f", "f/a", "lock")]
        assert [0o700, 0o600, 0o600] == modes

    def test_a_symbolic_link_is_refused(self, tmp_path: Path) -> None:
        files = OsFiles()
        (tmp_path / "target").write_bytes(b"precious")
        for name, target in (("link", "target"), ("dangling", "none")):
            (tmp_path / name).symlink_to(tmp_path / target)
        for call in (files.open, files.lock):
            with pytest.raises(OSError, match="symbolic links") as caught:
                call(tmp_path / "link")
            assert errno.ELOOP == caught.value.errno
        for name in ("link", "dangling"):
            assert files.exists(tmp_path / name)
            with pytest.raises(FileExistsError):
                files.create(tmp_path / name)
        assert b"precious" == (tmp_path / "target").read_bytes()

    def test_not_knowing_whether_a_file_exists_is_not_no(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(path: object) -> os.stat_result:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr("os.lstat", failing)
            with pytest.raises(OSError, match="Input/output"):
                OsFiles().exists(tmp_path / "a")

    @pytest.mark.parametrize(
        ("there", "answer", "calls"),
        [
            ("fdatasync", None, ["fdatasync", "fsync"]),
            ("F_FULLFSYNC", None, ["F_FULLFSYNC", "F_FULLFSYNC"]),
            ("F_FULLFSYNC", errno.ENOTSUP, ["F_FULLFSYNC", "fsync", "F_FULLFSYNC", "fsync"]),
            ("both", None, ["F_FULLFSYNC", "F_FULLFSYNC"]),
            ("neither", None, ["fsync", "fsync"]),
        ],
    )
    def test_a_sync_is_the_strongest_that_the_system_has(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, answer: int | None, calls: list[str]
    ) -> None:
        called: list[str] = []
        with monkeypatch.context() as patched, opened_new(OsFiles(), tmp_path / "a") as file:
            as_on_another_system(patched, called, there, answer)
            file.sync()
            OsFiles().sync_folder(tmp_path)
        assert calls == called

    def test_a_sync_that_failed_is_not_tried_in_another_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        called: list[str] = []
        with monkeypatch.context() as patched, opened_new(OsFiles(), tmp_path / "a") as file:
            as_on_another_system(patched, called, "F_FULLFSYNC", errno.EIO)
            for sync in (file.sync, lambda: OsFiles().sync_folder(tmp_path)):
                with pytest.raises(OSError, match="Input/output"):
                    sync()
        assert ["F_FULLFSYNC"] * 2 == called

    @pytest.mark.parametrize("most", [1, 2, 5, 7, 1_000])
    def test_a_short_write_is_gone_on_with(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        def writes(descriptor: int, views: Sequence[memoryview]) -> int:
            return os.write(descriptor, b"".join(views)[:most])

        parts = [b"01", b"", b"2345678", b"9", bytes(range(100))]
        file = OsFiles().create(tmp_path / "a")
        monkeypatch.setattr("os.writev", writes)
        file.append(parts)
        assert b"".join(parts) == file.pread(999, 0)

    def test_short_reads_and_writes_of_a_scratch_file_are_gone_on_with(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pwrite, preadv = os.pwrite, os.preadv
        monkeypatch.setattr("os.pwrite", lambda descriptor, data, position: pwrite(descriptor, data[:3], position))
        monkeypatch.setattr("os.preadv", lambda descriptor, into, position: preadv(descriptor, [into[0][:2]], position))
        scratch, into = OsFiles().scratch(tmp_path / "a"), np.empty(9, np.uint8)
        scratch.pwrite(b"01234567", 5)
        assert (1, b"01234567") == (scratch.pread([(memoryview(into)[:8], 5)]), into[:8].tobytes())
        assert 0 == scratch.pread([(memoryview(into), 5)])

    def test_a_scratch_file_where_there_is_no_preadv(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """macOS before 11."""
        pread = os.pread
        monkeypatch.delattr("os.preadv")
        scratch, into = OsFiles().scratch(tmp_path / "a"), np.zeros(9, np.uint8)
        scratch.pwrite(b"01234567", 5)
        assert (1, b"01234567") == (scratch.pread([(memoryview(into)[:8], 5)]), into[:8].tobytes())
        assert 0 == scratch.pread([(memoryview(into), 5)])
        monkeypatch.setattr("os.pread", lambda descriptor, size, position: pread(descriptor, min(size, 3), position))
        assert (1, b"1234567") == (scratch.pread([(memoryview(into)[:7], 6)]), into[:7].tobytes())

    def test_a_full_disk_is_named_and_a_part_may_be_written(self, tmp_path: Path) -> None:
        file = OsFiles().create(tmp_path / "a")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
        try:
            with pytest.raises(StorageFull) as caught:
                file.append([bytes(700), bytes(700)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (errno.ENOSPC, tmp_path / "a", True) == (caught.value.errno, caught.value.path, caught.value.retriable)
        cause = caught.value.__cause__
        assert isinstance(cause, OSError)
        assert errno.EFBIG == cause.errno
        assert 1_000 == file.size()

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_whatever_needs_room_names_a_full_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def full(*arguments: object, **more: object) -> int:
            raise OSError(number, os.strerror(number))

        files = OsFiles()
        files.create(tmp_path / "a").close()
        scratch = files.scratch(tmp_path / "s")
        for name in ("open", "mkdir", "rename", "link", "pwrite"):
            monkeypatch.setattr(f"os.{name}", full)
        for call in (
            lambda: files.create(tmp_path / "b"),
            lambda: files.lock(tmp_path / "lock"),
            lambda: files.make_folder(tmp_path / "f"),
            lambda: files.rename(tmp_path / "a", tmp_path / "b"),
            lambda: files.link(tmp_path / "a", tmp_path / "b"),
            lambda: files.scratch(tmp_path / "s"),
            lambda: scratch.pwrite(b"1", 0),
        ):
            with pytest.raises(StorageFull, match="no room"):
                call()

    def test_another_error_has_a_type_and_keeps_what_the_system_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*arguments: object) -> int:
            raise OSError(errno.EIO, "Input/output error")

        file = OsFiles().create(tmp_path / "a")
        monkeypatch.setattr("os.writev", broken)
        with pytest.raises(OSError, match="Input/output") as caught:
            file.append([b"1"])
        cause = caught.value.__cause__
        assert (DiskFailed, OSError) == (type(caught.value), type(cause))
        assert (errno.EIO, str(file.path)) == (caught.value.errno, caught.value.filename)

    def test_whatever_a_sync_or_a_truncate_lacks_nobody_knows_what_it_did(self, tmp_path: Path) -> None:
        for call in ("sync", "truncate"):
            for number in (errno.EMFILE, errno.ENOMEM):
                assert DiskFailed is type(failed_call(call, OSError(number, "no"), tmp_path))
        for call, number, kind in (
            ("sync_folder", errno.EMFILE, OutOfResources),
            ("sync_folder", errno.ENOMEM, DiskFailed),
            ("open", errno.EMFILE, OutOfResources),
            ("map", errno.ENOMEM, OutOfResources),
            ("append", errno.ENOMEM, OutOfResources),
            ("append", errno.EIO, DiskFailed),
            ("open", errno.ENOENT, FileMissing),
        ):
            error = failed_call(call, OSError(number, "no"), tmp_path)
            assert (kind, number, str(tmp_path)) == (type(error), error.errno, error.filename)

    def test_a_full_disk_does_not_keep_the_store_shut(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*arguments: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.pwrite", full)
        lock = OsFiles().lock(tmp_path / "lock")
        with pytest.raises(StoreLocked, match="process unknown"):
            OsFiles().lock(tmp_path / "lock")
        lock.release()

    def test_a_lock_is_refused_to_another_process_and_names_the_holder(self, tmp_path: Path) -> None:
        program = (
            "import sys; from pathlib import Path; from afterlog.base.errors import StoreLocked\n"
            "from afterlog.base.files import OsFiles\n"
            "try: OsFiles().lock(Path(sys.argv[1]))\n"
            "except StoreLocked as error: print(error)\n"
            "else: print('taken')\n"
        )

        def other() -> str:
            command = [sys.executable, "-c", program, str(tmp_path / "lock")]
            return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()

        (tmp_path / "lock").write_bytes(b"4294967296\nleft by a longer pid")
        lock = OsFiles().lock(tmp_path / "lock")
        told = other()
        assert told.startswith(f"the store is open in process {os.getpid()}: close it there, or let several have it")
        assert all(each in told for each in ("shared=True", "serve=True", "afterlog.connect(", str(tmp_path / "lock")))
        lock.release()
        assert "taken" == other()

    def test_names_that_nobody_else_has(self) -> None:
        names = {unused_name() for _ in range(100)}
        assert (100, {32}) == (len(names), {len(name) for name in names})
        assert all(set(name) <= set("0123456789abcdef") for name in names)

    def test_a_process_knows_itself_and_its_children_themselves(self) -> None:
        assert os.getpid() == PROCESS.id
        pid = os.fork()
        if not pid:
            os._exit(int(os.getpid() != PROCESS.id))
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def opened_new(files: Files, path: Path) -> contextlib.AbstractContextManager[File]:
    """A new file, closed at the end of the block."""
    return contextlib.closing(files.create(path))


STRIKES_FINALIZERS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def opened_and_closed(files: OsFiles, folder: Path) -> None:
    file = files.create(folder / "a")
    file.append([b"bytes"])
    file.sync()
    file.close()


def scratched(files: OsFiles, folder: Path) -> None:
    file = files.scratch(folder / "scratch")
    file.pwrite(b"bytes", 0)
    file.close()


def locked_twice(files: OsFiles, folder: Path) -> None:
    with pytest.raises(StoreLocked):
        files.lock(folder / "taken")


HOLDING: dict[str, Callable[[OsFiles, Path], object]] = {
    "create": opened_and_closed,
    "publish": lambda files, folder: publish(files, folder / "a", [b"bytes"]),
    "read": lambda files, folder: read_file(files, folder / "there"),
    "map": lambda files, folder: map_file(files, folder / "there"),
    "copy": lambda files, folder: copy_file(files, folder / "there", folder / "copy"),
    "scratch": scratched,
    "lock": lambda files, folder: files.lock(folder / "lock").release(),
    "a lock that is taken": locked_twice,
    "sync of a folder": lambda files, folder: files.sync_folder(folder),
}


def numbers_left(folder: Path, operation: str, place: int | None) -> int:
    """Descriptors that an operation leaves behind which is struck there; what the program opens next stays its own."""
    folder.mkdir()
    files = OsFiles()
    (folder / "there").write_bytes(b"bytes")
    taken = files.lock(folder / "taken")
    before, struck = len(os.listdir("/proc/self/fd")), None
    try:
        with contextlib.nullcontext() if place is None else strikes.strike(place, KeyboardInterrupt):
            HOLDING[operation](files, folder)
    except KeyboardInterrupt as error:
        struck = error
    mine = [(folder / "there").open("rb") for _ in range(4)]  # they have the numbers that were closed
    del struck
    gc.collect()
    assert [b"bytes"] * 4 == [file.read() for file in mine]
    for file in mine:
        file.close()
    left = len(os.listdir("/proc/self/fd")) - before
    locked_twice(files, folder)
    taken.release()
    files.lock(folder / "taken").release()
    files.lock(folder / "lock").release()
    return left


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted where Linux shows them")
@STRIKES_FINALIZERS
@pytest.mark.parametrize("operation", HOLDING)
@pytest.mark.share(2)
def test_a_number_is_closed_once_whatever_strikes(tmp_path: Path, operation: str) -> None:
    """A signal's handler may raise behind any call: what has the number by then is somebody else's."""
    gc.collect()
    assert 0 == numbers_left(tmp_path / "whole", operation, None)
    (tmp_path / "places").mkdir()
    (tmp_path / "places" / "there").write_bytes(b"bytes")
    taken = OsFiles().lock(tmp_path / "places" / "taken")
    places = strikes.places(lambda: HOLDING[operation](OsFiles(), tmp_path / "places"))
    gc.collect()
    gc.freeze()  # a collection looks at what comes from now on
    try:
        for place in campaigns.share(places, 12):
            assert numbers_left(tmp_path / f"{place}", operation, place) in (0, 1), "one that was just opened"
            campaigns.count("interrupts")
    finally:
        gc.unfreeze()
        taken.release()


@STRIKES_FINALIZERS
def test_a_planted_bug_of_two_steps_is_caught(tmp_path: Path) -> None:
    class TwoSteps:
        """As it was: `os.close`, and a line that forgets the number."""

        def __init__(self, descriptor: int) -> None:
            self._descriptor = descriptor

        def close(self) -> None:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

        __del__ = close

    def planted(files: OsFiles, folder: Path) -> None:
        held = TwoSteps(os.open(folder / "there", os.O_RDONLY))
        held.close()

    code = planted.__code__
    with patch.dict(HOLDING, {"planted": planted}), patch.object(strikes, "ROOTS", (code.co_filename,)):
        (tmp_path / "places").mkdir()
        (tmp_path / "places" / "there").write_bytes(b"bytes")
        found = strikes.places(lambda: planted(OsFiles(), tmp_path / "places"))
        for number in campaigns.known_first(range(len(found))):
            try:
                numbers_left(tmp_path / f"place {number}", "planted", found[number % len(found)])
            except OSError:
                campaigns.shown(number)
                return
    raise AssertionError("nobody saw it")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root leaves files that others cannot open")
def test_root_locks_nobody_out(tmp_path: Path) -> None:
    """Whatever root does with another user's store, all of it stays that user's."""
    path, owner = tmp_path / "data", 12_345
    config = afterlog.Config(segment_bytes=4_096, batch_bytes_max=2_048)
    with afterlog.open(path, config=config) as store:
        store.create_topic("mail")
    for each in (path, *path.rglob("*")):
        os.chown(each, owner, owner)
    (path / "lock").unlink()
    with afterlog.open(path, config=config) as store:
        store.create_topic("news")
        store.send_many("mail", [b"x" * 500] * 50, delay=60)
        store.send_many("mail", [b"x"] * 5)
        with store.subscribe("mail", "s") as reader, store.consumer("mail", group="g") as consumer:
            reader.ack_many(reader.receive())
            consumer.poll()
            consumer.commit()
        store.topic("mail").partition(0).log.roll()
        store.enforce_retention()
    assert {owner} == {each.stat().st_uid for each in (path, *path.rglob("*"))}
