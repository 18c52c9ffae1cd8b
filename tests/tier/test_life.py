"""A store's life with object storage in a directory, in memory, and on a server that speaks S3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from afterlog.base.files import OsFiles
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remote_url import open_remote
from tests.tier.life_suite import LifeTests


class TestDirectory(LifeTests):
    @pytest.fixture
    def new_remote(self, tmp_path: Path) -> Callable[[], RemoteStore]:
        (tmp_path / "storage").mkdir()
        return lambda: DirectoryStore(OsFiles(), tmp_path / "storage")


class TestMemory(LifeTests):
    @pytest.fixture
    def new_remote(self) -> Callable[[], RemoteStore]:
        return lambda: open_remote("memory://")


class TestS3(LifeTests):
    @pytest.fixture
    def new_remote(self, new_s3: Callable[[], RemoteStore]) -> Callable[[], RemoteStore]:
        return new_s3
