from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from afterlog.base.errors import RemoteConflict, RemoteMissing, RemoteRefused, RemoteUnavailable, StorageFull
from afterlog.base.files import OsFiles
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.remote_store import RemoteStore
from tests.campaigns.crash_states import CrashModel, crash_states
from tests.campaigns.failing_files import FailingFiles, fail_at
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.support import Background, Calls, HeldFiles, power_cut
from tests.tier.remote_store_suite import RemoteStoreTests, SharedStoreTests

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path("/remote")
VERSIONS = FOLDER / "m.versions"
KEPT = 16

COUNTING = """
import sys
from pathlib import Path
from afterlog.base.errors import RemoteConflict, RemoteMissing
from afterlog.base.files import OsFiles
from afterlog.tier.directory_store import DirectoryStore
remote, won = DirectoryStore(OsFiles(), Path(sys.argv[1])), 0
print("ready", flush=True)
sys.stdin.readline()
while won < int(sys.argv[2]):
    try:
        data, version = remote.get("mail-0/counter", 20)
    except RemoteMissing:
        data, version = b"0", None
    try:
        remote.put_if("mail-0/counter", b"%d" % (int(data) + 1), version)
        won += 1
    except RemoteConflict:
        pass
"""


def simulated() -> SimulatedFiles:
    return SimulatedFiles(Image([str(FOLDER)]))


def written(remote: RemoteStore, count: int) -> str:
    """Write `count` more versions of "m"; the last."""
    try:
        version: str | None = remote.get("m", 10)[1]
    except RemoteMissing:
        version = None
    for number in range(count):
        version = remote.put_if("m", b"%d" % number, version)
    assert version is not None
    return version


class TestOnOsFiles(SharedStoreTests):
    @pytest.fixture
    def remote(self, tmp_path: Path) -> RemoteStore:
        return DirectoryStore(OsFiles(), tmp_path)


class TestOnSimulatedFiles(RemoteStoreTests):
    @pytest.fixture
    def remote(self) -> RemoteStore:
        return DirectoryStore(simulated(), FOLDER)


class TestRaces:
    def test_processes_that_count_lose_no_count(self, tmp_path: Path) -> None:
        """Each adds one to a number 20 times, by conditional put: two winners of one version would lose a count."""
        command = [sys.executable, "-c", COUNTING, str(tmp_path), "20"]
        others = [
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        for other in others:
            assert other.stdout is not None
            assert "ready\n" == other.stdout.readline()
        for other in others:
            other.communicate("go\n", timeout=60)
        assert [0, 0, 0] == [other.returncode for other in others]
        assert (b"60", "60") == DirectoryStore(OsFiles(), tmp_path).get("mail-0/counter", 20)
        names = os.listdir(tmp_path / "mail-0" / "counter.versions")
        assert [f"{number:020d}" for number in range(60 - KEPT + 1, 61)] == sorted(names)

    @pytest.mark.parametrize("operation", ["create", "link"])
    @pytest.mark.parametrize("more", [1, KEPT - 1, KEPT, KEPT + 1, 3 * KEPT])
    def test_a_writer_that_slept_finds_that_it_is_late(self, operation: str, more: int) -> None:
        """Whether its number is still taken or was swept in between, and its aside with it."""
        disk = simulated()
        awake = DirectoryStore(disk, FOLDER)
        version = written(awake, 3)
        held = HeldFiles(disk, Calls())
        gate = held.hold(operation, ".tmp")
        sleeper = Background(lambda: DirectoryStore(held, FOLDER).put_if("m", b"late", version))
        gate.came()
        newest = written(awake, more)
        gate.open()
        with pytest.raises(RemoteConflict):
            sleeper.answer()
        assert newest == awake.get("m", 10)[1] == str(3 + more)
        written(awake, 1)
        assert [f"{number:020d}" for number in range(max(1, 4 + more - KEPT + 1), 4 + more + 1)] == disk.names(VERSIONS)

    def test_a_reader_that_slept_says_so(self) -> None:
        disk = simulated()
        awake = DirectoryStore(disk, FOLDER)
        written(awake, 1)
        held = HeldFiles(disk, Calls())
        gate = held.hold("open", "")
        sleeper = Background(lambda: DirectoryStore(held, FOLDER).get("m", 10))
        gate.came()
        written(awake, KEPT)
        gate.open()
        with pytest.raises(RemoteUnavailable):
            sleeper.answer()


class TestFaults:
    def test_a_power_cut_leaves_a_whole_version_and_takes_none_that_was_written(self) -> None:
        disk = simulated()
        remote = DirectoryStore(disk, FOLDER)
        version = None
        for text in (b"one", b"two"):
            version = remote.put_if("m", text, version)
            disk.mark(text)
        remote.delete("m")
        disk.mark(None)
        allowed: list[bytes | None] = [None, b"one", b"two", None]
        done = 0
        for point, operation in enumerate(disk.operations):
            done += hasattr(operation, "event")
            for state in crash_states(disk.operations, point + 1, start=disk.start, model=CrashModel(every_byte_max=4)):
                assert content(DirectoryStore(state.files(), FOLDER)) in allowed[done : done + 2], state.describe()
        assert 3 == done

    def test_a_power_cut_takes_no_version_that_was_read(self) -> None:
        """Its writer has not synced it yet; whoever reads it may act on it."""
        disk = simulated()
        written(DirectoryStore(disk, FOLDER), 1)
        held = HeldFiles(disk, Calls())
        gate = held.hold("sync_folder", ".versions")
        slow = Background(lambda: DirectoryStore(held, FOLDER).put_if("m", b"new", "1"))
        gate.came()
        assert b"0" == content(DirectoryStore(power_cut(disk), FOLDER))
        assert b"new" == content(DirectoryStore(disk, FOLDER))
        assert b"new" == content(DirectoryStore(power_cut(disk), FOLDER))
        gate.open()
        assert "2" == slow.answer()

    def test_whatever_call_fails_the_old_version_or_the_new_is_there(self) -> None:
        call = 0
        while True:
            call += 1
            disk = simulated()
            version = written(DirectoryStore(disk, FOLDER), 1)
            files = FailingFiles(disk, fail_at(call, errno.EIO))
            try:
                again = DirectoryStore(files, FOLDER).put_if("m", b"new", version)
            except (RemoteUnavailable, RemoteConflict):
                again = None
            found, newest = DirectoryStore(disk, FOLDER).get("m", 10)
            assert found in ((b"new",) if again else (b"0", b"new"))
            assert DirectoryStore(disk, FOLDER).put_if("m", b"newer", newest)
            assert not [name for name in disk.names(VERSIONS) if name.endswith(".tmp")]
            if files.calls < call:
                return

    def test_a_full_disk_is_named_and_leaves_nothing(self) -> None:
        disk, calls = simulated(), Calls()
        calls.fail("append", ".tmp", OSError(errno.ENOSPC, "full"), times=2)
        remote = DirectoryStore(FailingFiles(disk, calls), FOLDER)
        for write in (lambda: remote.put("a", b"1"), lambda: remote.put_if("m", b"1", None)):
            with pytest.raises(StorageFull):
                write()
        assert [] == [*remote.list_objects()]
        assert ([], ["m.versions"]) == (disk.names(VERSIONS), disk.names(FOLDER))

    @pytest.mark.parametrize(
        ("number", "leaf"),
        [(errno.EACCES, RemoteRefused), (errno.EIO, RemoteUnavailable), (errno.ENOENT, RemoteMissing)],
    )
    def test_errors_of_the_file_system_are_those_of_a_storage(self, number: int, leaf: type[Exception]) -> None:
        disk, calls = simulated(), Calls()
        calls.fail("open", "", OSError(number, os.strerror(number)))
        with pytest.raises(leaf):
            DirectoryStore(FailingFiles(disk, calls), FOLDER).get("a", 9)

    def test_a_folder_that_is_not_there_may_be_a_mount_that_failed(self) -> None:
        with pytest.raises(RemoteRefused, match="mount"):
            DirectoryStore(simulated(), Path("/elsewhere"))


def content(remote: RemoteStore) -> bytes | None:
    try:
        return remote.get("m", 10)[0]
    except RemoteMissing:
        return None
