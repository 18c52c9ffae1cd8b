from __future__ import annotations

import gc
from pathlib import Path

import pytest

from afterlog.document import encode
from afterlog.errors import CorruptFile, RemoteConflict, RemoteMissing, RemoteUnavailable
from afterlog.files import OsFiles
from afterlog.index.bucket_storage import BucketSnapshotStorage
from afterlog.tier.bucket_storage import FORMAT, VERSION, RemoteBucketSnapshotStorage
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.page_cache import PageCache
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remote_url import open_remote
from tests.index.bucket_storage_suite import KEY, LATER, ROWS, BucketSnapshotStorageTests
from tests.index.support import UnsyncedFiles, coverage_of, entries_of, rows_of
from tests.simulated_disk import Image, SimulatedFiles
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore, fault_at
from tests.tier.support import PARTITION, REMOTE

POINTER = f"{PARTITION}/{KEY}"
SCRATCH = Path("/scratch")


def storage_of(remote: RemoteStore, page_bytes: int = 256) -> RemoteBucketSnapshotStorage:
    files = SimulatedFiles(Image([str(SCRATCH)]))
    cache = PageCache(files, Path("/cache"), 64 << 10, page_bytes)
    return RemoteBucketSnapshotStorage(remote, PARTITION, cache, files, SCRATCH, max_entries=20, max_step_ms=300_000)


def directory() -> DirectoryStore:
    return DirectoryStore(SimulatedFiles(Image([str(REMOTE)])), REMOTE)


def objects(remote: RemoteStore) -> list[str]:
    """Runs that are stored, whatever names them."""
    return sorted(key for key, _ in remote.list_objects() if key != POINTER)


class RemoteTests(BucketSnapshotStorageTests):
    remote: RemoteStore

    def new_remote(self, tmp_path: Path) -> RemoteStore:
        raise NotImplementedError

    @pytest.fixture
    def storage(self, tmp_path: Path) -> BucketSnapshotStorage:
        self.remote = self.new_remote(tmp_path)
        return storage_of(self.remote)

    def reopened(self, storage: BucketSnapshotStorage) -> BucketSnapshotStorage:
        return storage_of(self.remote)

    def corrupted(self, storage: BucketSnapshotStorage, key: str, position: int) -> BucketSnapshotStorage:
        [object_key] = objects(self.remote)
        data = bytearray(self.remote.get(object_key, 1 << 20)[0])
        data[position] ^= 1
        self.remote.put(object_key, data)
        return self.reopened(storage)


class TestInADirectory(RemoteTests):
    def new_remote(self, tmp_path: Path) -> RemoteStore:
        return DirectoryStore(UnsyncedFiles(), tmp_path)


class TestInMemory(RemoteTests):
    def new_remote(self, tmp_path: Path) -> RemoteStore:
        return open_remote("memory://")


def test_nothing_is_left_on_the_local_disk(tmp_path: Path) -> None:
    cache = PageCache(OsFiles(), tmp_path / "cache", 1 << 20, 4_096)
    storage = RemoteBucketSnapshotStorage(
        directory(), PARTITION, cache, UnsyncedFiles(), tmp_path, max_entries=20, max_step_ms=300_000
    )
    run = storage.create(KEY, [entries_of(LATER)], coverage_of(LATER))
    assert LATER == rows_of(run.entries())
    assert [] == [*tmp_path.iterdir()]


def test_what_was_replaced_goes_when_nobody_reads_it() -> None:
    remote = directory()
    storage = storage_of(remote)
    run = storage.create(KEY, [entries_of(sorted(ROWS))], coverage_of(ROWS))
    storage.create(KEY, [entries_of(LATER)], coverage_of(LATER))
    assert 2 == len(objects(remote))
    assert sorted(ROWS) == rows_of(run.entries())
    del run
    gc.collect()
    storage.delete(KEY)
    assert [] == [*remote.list_objects()]


def test_a_reader_elsewhere_is_told_that_it_is_gone() -> None:
    remote = directory()
    storage_of(remote).create(KEY, [entries_of(sorted(ROWS))], coverage_of(ROWS))
    elsewhere = storage_of(remote).open(KEY)
    storage_of(remote).delete(KEY)
    with pytest.raises(RemoteMissing):
        elsewhere.check()


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.TWICE])
def test_whatever_call_fails_the_old_run_or_the_new_is_there(fault: Fault) -> None:
    call = 0
    while True:
        call += 1
        remote = directory()
        storage_of(remote).create(KEY, [entries_of(sorted(ROWS))], coverage_of(ROWS))
        faulty = FaultyRemoteStore(remote, fault_at(call, fault))
        try:
            storage_of(faulty).create(KEY, [entries_of(LATER)], coverage_of(LATER))
        except RemoteUnavailable:
            assert rows_of(storage_of(remote).open(KEY).entries()) in (sorted(ROWS), LATER)
        else:
            assert LATER == rows_of(storage_of(remote).open(KEY).entries())
        if faulty.calls < call:
            return


def test_of_two_writers_one_is_told() -> None:
    remote = directory()

    class Late(FaultyRemoteStore):
        def put_if(self, key: str, data: bytes, version: str | None) -> str:  # type: ignore[override]
            storage_of(remote).create(KEY, [entries_of(LATER)], coverage_of(LATER))
            return super().put_if(key, data, version)

    with pytest.raises(RemoteConflict):
        storage_of(Late(remote, lambda operation, at: None)).create(KEY, [entries_of(ROWS[:1])], coverage_of(ROWS))
    assert LATER == rows_of(storage_of(remote).open(KEY).entries())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a document",
        b'{"attempt":"' + b"0" * 32 + b'","size":448}',
        {"attempt": "../../elsewhere", "size": 448},
        {"attempt": "0" * 32, "size": -1},
        {"attempt": "0" * 32, "size": 2**62},
        {"attempt": "0" * 32, "size": True},
        {"attempt": ["0" * 32], "size": 448},
        {},
    ],
)
def test_a_name_that_leads_nowhere(data: bytes | dict[str, object]) -> None:
    remote = directory()
    if data != b"":
        remote.put_if(POINTER, data if isinstance(data, bytes) else encode(FORMAT, VERSION, data), None)
    for call in (storage_of(remote).open, storage_of(remote).length):
        with pytest.raises((CorruptFile, FileNotFoundError)):
            call(KEY)


def test_a_run_of_another_size_than_was_stored() -> None:
    remote = directory()
    storage_of(remote).create(KEY, [entries_of(sorted(ROWS))], coverage_of(ROWS))
    [key] = objects(remote)
    remote.put(key, remote.get(key, 1 << 20)[0] + b"more")
    assert sorted(ROWS) == rows_of(storage_of(remote).open(KEY).entries())
    remote.put(key, remote.get(key, 1 << 20)[0][:-5])
    with pytest.raises(OSError, match=key):
        storage_of(remote).open(KEY)
