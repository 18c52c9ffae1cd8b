"""One life of a store with object storage, from end to end, on any implementation of the seam."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from afterlog import OS, Config
from afterlog.base.clock import ManualClock
from afterlog.store.store import Store, open_store
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.scrub import scrub
from tests.support import NOW_MS, drained

CONFIG = Config(
    durability=OS, segment_bytes=16_384, batch_bytes_max=4_096, remote_page_bytes=2_048, remote_cache_bytes=8_192
)


class LifeTests:
    """Inherit, with a fixture `new_remote` that makes empty storages."""

    def test_a_life(self, new_remote: Callable[[], RemoteStore], tmp_path: Path) -> None:
        remote, clock = new_remote(), ManualClock(NOW_MS)

        def opened(name: str) -> Store:
            return open_store(tmp_path / name, CONFIG, clock, None, remote, background=False)

        with opened("store") as store:
            store.create_topic("t", remote_storage_enable=True, local_retention_ms=0, retention_ms=100_000)
            due = NOW_MS + np.random.default_rng(5).permutation(600)
            store.send_many("t", [b"%d" % ms for ms in due.tolist()], deliver_after=due)
            store.cancel_many("t", 0, np.arange(0, 600, 50))
            partition = store.topic("t").partition(0)
            partition.log.roll()
            count = len(partition.log.sealed)
            assert (count, 0) == ((done := store.offload()["t-0"]).uploaded, done.freed)
            clock.advance(1_000)
            assert (0, count) == ((done := store.offload()["t-0"]).uploaded, done.freed)
            assert count > 3
            expected = [b"%d" % ms for ms in np.sort(np.delete(due, np.arange(0, 600, 50))).tolist()]
            assert expected == drained(partition)
            store.check()
        for name in ("store", "fresh"):  # again, and where nothing but the storage is
            with opened(name) as store:
                assert expected == drained(store.topic("t").partition(0))
                store.check()
        manifest = Manifest(remote, "t-0")
        assert (count, []) == (len(manifest.listed()), scrub(manifest, deep=True))
        clock.advance(200_000)
        with opened("store") as store:
            done = store.offload()["t-0"]
            assert (count, count) == (done.expired, done.removed)
            assert [] == drained(store.topic("t").partition(0))
        assert ((), []) == (manifest.read(), scrub(manifest, deep=True))
