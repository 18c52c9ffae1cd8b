from __future__ import annotations

from pathlib import Path

import pytest

from afterlog.base.files import Files, publish, read_file
from afterlog.base.names import BUCKETS
from afterlog.index.bucket_storage import BucketSnapshotStorage, LocalBucketSnapshotStorage
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.index.bucket_storage_suite import KEY, LATER, BucketSnapshotStorageTests
from tests.index.support import UnsyncedFiles, coverage_of, entries_of, rows_of
from tests.support import power_cut

FOLDER = Path("/mail-0")


def local(files: Files, folder: Path) -> LocalBucketSnapshotStorage:
    return LocalBucketSnapshotStorage(files, folder, max_entries=20, max_step_ms=300_000)


class TestLocal(BucketSnapshotStorageTests):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> BucketSnapshotStorage:
        (tmp_path / BUCKETS).mkdir()
        self.folder = tmp_path
        return local(UnsyncedFiles(), tmp_path)

    def reopened(self, storage: BucketSnapshotStorage) -> BucketSnapshotStorage:
        return local(UnsyncedFiles(), self.folder)

    def corrupted(self, storage: BucketSnapshotStorage, key: str, position: int) -> BucketSnapshotStorage:
        data = bytearray((self.folder / key).read_bytes())
        data[position] ^= 1
        publish(UnsyncedFiles(), self.folder / key, [data])
        return self.reopened(storage)


def test_what_was_created_survives_a_power_cut() -> None:
    disk = SimulatedFiles()
    disk.make_folder(FOLDER)
    disk.make_folder(FOLDER / BUCKETS)
    disk.sync_folder(FOLDER.parent)
    disk.sync_folder(FOLDER)
    run = local(disk, FOLDER).create(KEY, [entries_of(LATER)], coverage_of(LATER))
    after = power_cut(disk)
    assert LATER == rows_of(local(after, FOLDER).open(KEY).entries())
    assert read_file(disk, run.path) == read_file(after, run.path)
