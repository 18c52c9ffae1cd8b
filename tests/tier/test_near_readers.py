"""Readers near the high watermark ask nothing of object storage, also right after a reopen."""

from __future__ import annotations

from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import RemoteRefused
from afterlog.fetch.positions import EARLIEST, LATEST, AtTime
from afterlog.store.store import open_store
from tests.support import NOW_MS, small


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    """Twenty segments in object storage only, and then a hundred records that are not sealed, of which half are due."""
    (tmp_path / "storage").mkdir()
    clock, folder = ManualClock(NOW_MS), tmp_path / "store"
    with open_store(folder, small(), clock, None, str(tmp_path / "storage"), background=False) as store:
        store.create_topic("t", remote_storage_enable=True, local_retention_ms=0)
        log = store.topic("t").partition(0).log
        for _ in range(20):
            store.send_many("t", [b"far"] * 30, deliver_after=[clock.now_ms() + row * 7 % 30 for row in range(30)])
            log.roll()
            clock.advance(10)
        clock.advance(1_000)
        store.offload()
        assert not any(segment.is_local() for segment in log.sealed)
        store.send_many("t", [b"near"] * 100, deliver_after=[clock.now_ms() + 1 + row for row in range(100)])
    return folder


def test_without_object_storage_at_all(store_folder: Path) -> None:
    clock = ManualClock(NOW_MS + 1_250)
    with open_store(store_folder, small(), clock, None, background=False) as store:
        partition = store.topic("t").partition(0)
        assert (650, 50) == (partition.position(LATEST), partition.pending())
        columns, behind = partition.columns(600, 1_000, 1 << 20)
        assert ([*range(600, 650)], 650) == (columns.offset.tolist(), behind)
        clock.advance(25)
        assert [*range(650, 675)] == partition.columns(650, 1_000, 1 << 20)[0].offset.tolist()
        assert 650 == partition.position(AtTime(NOW_MS + 1_251))
        with pytest.raises(RemoteRefused, match="remote="):
            partition.columns(partition.position(EARLIEST), 10, 1 << 20)
        store.send("t", b"new")
