from __future__ import annotations

import errno
from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptFile, StorageFull
from afterlog.base.files import publish
from afterlog.base.names import BUCKETS
from afterlog.index.bucket_storage import BucketOperations, BucketSnapshotStorage, MeasuredBucketSnapshotStorage
from tests.campaigns.failing_files import FailingFiles
from tests.index.bucket_storage_suite import KEY, LATER, OTHER, BucketSnapshotStorageTests
from tests.index.support import UnsyncedFiles, coverage_of, entries_of
from tests.index.test_bucket_storage import local
from tests.support import Calls


def measured(local: BucketSnapshotStorage, operations: BucketOperations) -> MeasuredBucketSnapshotStorage:
    return MeasuredBucketSnapshotStorage(local, operations, ManualClock())


class TestMeasured(BucketSnapshotStorageTests):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> BucketSnapshotStorage:
        (tmp_path / BUCKETS).mkdir()
        self.folder = tmp_path
        return self.reopened(None)

    def reopened(self, storage: BucketSnapshotStorage | None) -> BucketSnapshotStorage:
        return measured(local(UnsyncedFiles(), self.folder), BucketOperations())

    def corrupted(self, storage: BucketSnapshotStorage, key: str, position: int) -> BucketSnapshotStorage:
        flip(self.folder / key, position)
        return self.reopened(storage)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    publish(UnsyncedFiles(), path, [data])


class Setting:
    def __init__(self, folder: Path) -> None:
        (folder / BUCKETS).mkdir()
        self.calls, self.operations = Calls(), BucketOperations()
        files = FailingFiles(UnsyncedFiles(), self.calls)
        self.storage = measured(local(files, folder), self.operations)

    def counted(self) -> list[tuple[int, int]]:
        """(succeeded, failed) of create, load, delete."""
        operations = self.operations
        found = [each.counts() for each in (operations.create, operations.load, operations.delete)]
        return [(each.succeeded, each.failed) for each in found]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_operations_are_counted(setting: Setting) -> None:
    created = setting.storage.create(KEY, [entries_of(LATER)], coverage_of(LATER))
    assert [(1, 0), (0, 0), (0, 0)] == setting.counted()
    created.entries()
    assert [(1, 0), (2, 0), (0, 0)] == setting.counted(), "chunks of 20 and 10 entries"
    setting.storage.open(KEY).chunk(1)
    setting.storage.delete(KEY)
    setting.storage.delete(OTHER)
    assert [(1, 0), (3, 0), (2, 0)] == setting.counted()


def test_failures_are_counted(setting: Setting, tmp_path: Path) -> None:
    setting.calls.fail("append", "", OSError(errno.ENOSPC, "full"))
    with pytest.raises(StorageFull):
        setting.storage.create(KEY, [entries_of(LATER)], coverage_of(LATER))
    run = setting.storage.create(KEY, [entries_of(LATER)], coverage_of(LATER))
    flip(tmp_path / KEY, int(run.directory.position[1]))
    with pytest.raises(CorruptFile, match="chunk 1"):
        setting.storage.open(KEY).entries()
    setting.calls.fail("unlink", "", OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        setting.storage.delete(KEY)
    assert [(1, 1), (1, 1), (0, 1)] == setting.counted()
