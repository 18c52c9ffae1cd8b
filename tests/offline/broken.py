"""Small stores with every kind of file in them, on a simulated disk, and ways to break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.files import Files, read_file
from afterlog.base.names import CHECKPOINTS
from afterlog.fetch.message import Message
from afterlog.index.bucket_storage import LocalBucketSnapshotStorage
from afterlog.log.checkpoints import CheckpointFile, SealedMark
from afterlog.offline.locked_store import OfflineStore
from afterlog.store.store import Store, open_store
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.remote_store import RemoteStore
from tests.campaigns.simulated_disk import Image, SimulatedFiles

STORE, REMOTE = Path("/store"), Path("/remote")
DELAYED, FIFO = STORE / "mail-0", STORE / "ticks-0"
NOW_MS, LATER_MS = 1_700_000_000_000, 1_800_000_000_000
RECORDS = 400
CANCELLED = 5
"""Of each 50 records of the store with object storage."""
CONFIG = Config(
    segment_bytes=8_192,
    batch_bytes_max=4_096,
    index_interval_bytes=300,
    min_index_count_per_bucket=20,
    max_indexes_per_bucket_snapshot_segment=7,
)


def value_of(offset: int) -> bytes:
    return b"record %d " % offset + b"." * (offset % 40)


@cache
def _image(closed: bool, merged: bool) -> Image:
    files = SimulatedFiles()
    config = replace(CONFIG, max_num_buckets=3) if merged else CONFIG
    store = open_store(STORE, config, ManualClock(NOW_MS), files, background=False)
    store.create_topic("mail")
    store.create_topic("ticks", delayed=False)
    rng = np.random.default_rng(7)
    for first in range(0, RECORDS, 10):
        values = [value_of(offset) for offset in range(first, first + 10)]
        due = np.sort(NOW_MS + 1_000 * rng.integers(1, 300, 10))
        store.send_many("mail", values, deliver_after=due)
        store.send_many("ticks", values)
        if merged and first == 300:
            assert store.topic("mail").partition(0).log.merge_buckets()
    with store.consumer("ticks", group="reader") as consumer:
        assert 150 == len(consumer.poll(150))
    with store.consumer("mail", group="reader") as consumer:
        store.clock.advance(100_000)  # type: ignore[attr-defined]
        assert 50 == len(consumer.poll(50))
    killed = files.image()
    store.close()
    return files.image() if closed else killed


def small_store(*, closed: bool = True, merged: bool = False) -> SimulatedFiles:
    """A fresh copy of it. Not closed: as a kill leaves it. Merged: with buckets over several segments."""
    return SimulatedFiles(_image(closed, merged))


@cache
def _tiered_image(merged: bool) -> Image:
    files = SimulatedFiles(Image([str(REMOTE)]))
    config = replace(CONFIG, max_num_buckets=3) if merged else CONFIG
    clock = ManualClock(NOW_MS)
    store = open_store(STORE, config, clock, files, remote_of(files), background=False)
    store.create_topic("mail", remote_storage_enable=True, local_retention_ms=0)
    store.create_topic("ticks", delayed=False, remote_storage_enable=True, local_retention_bytes=10_000)
    for first in range(0, RECORDS, 10):
        values = [value_of(offset) for offset in range(first, first + 10)]
        sent = store.send_many("mail", values, deliver_after=NOW_MS + 1_000 * np.arange(first + 1, first + 11))
        store.send_many("ticks", values)
        if first % 50 == 0:
            store.cancel_many("mail", 0, sent[CANCELLED : CANCELLED + 1])
        if merged and first == 300:
            assert store.topic("mail").partition(0).log.merge_buckets()
    clock.advance(200_000)
    done = store.offload()
    assert all(0 < each.freed < each.uploaded for each in done.values())
    store.close()
    return files.image()


def tiered_store(*, merged: bool = False) -> SimulatedFiles:
    """A fresh copy of one whose segments are in object storage, those that were due first there alone."""
    return SimulatedFiles(_tiered_image(merged))


def remote_of(files: Files) -> DirectoryStore:
    """The object storage of that store."""
    return DirectoryStore(files, REMOTE)


def marks(files: Files, folder: Path) -> tuple[SealedMark, ...]:
    """The sealed segments by the checkpoints."""
    return CheckpointFile.open(files, folder / CHECKPOINTS).current.sealed


def merged_bucket(files: Files) -> Path:
    """The bucket over several segments of a merged store."""
    return paths(files, DELAYED / "buckets", ".deliverafterindex")[0]


def prune(files: Files, left: slice = slice(5, None)) -> None:
    """Make that bucket one of fewer entries, intact in itself."""
    path = merged_bucket(files)
    storage = LocalBucketSnapshotStorage(files, path.parent, max_entries=7, max_step_ms=300_000)
    run = storage.open(path.name)
    storage.create(path.name, [run.entries()[left]], run.coverage)


def paths(files: Files, folder: Path, suffix: str = "") -> list[Path]:
    """The files of a partition whose names end so, those of folders in it too."""
    found = []
    for inner in (folder, folder / "buckets", folder / "subscriptions" / "reader"):
        if files.exists(inner):
            names = files.names(inner)
            found += [
                inner / name for name in names if name.endswith(suffix) and name not in ("buckets", "subscriptions")
            ]
    return found


def rewrite(files: Files, path: Path, change: Callable[[bytes], bytes]) -> None:
    data = change(read_file(files, path))
    file = files.open(path)
    file.truncate(0)
    file.append([data])
    file.sync()
    file.close()


def flip(files: Files, path: Path, position: int, bits: int = 0x10) -> None:
    """Rot: some bits of one byte."""

    def flipped(data: bytes) -> bytes:
        at = position % len(data)
        return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]

    rewrite(files, path, flipped)


def findings(files: Files, now_ms: int = LATER_MS) -> list[str]:
    with OfflineStore(STORE, files, ManualClock(now_ms)) as store:
        return [f"{finding.path}: {finding.message}" for finding in store.verify()]


def repaired(
    files: Files, now_ms: int = LATER_MS, *, put_clock_back: bool = False, remote: RemoteStore | None = None
) -> list[str]:
    """Repair it; what was done."""
    with OfflineStore(STORE, files, ManualClock(now_ms), remote) as store:
        plan = store.plan(put_clock_back=put_clock_back)
        assert not plan.beyond_repair
        store.apply(plan)
        return plan.steps


def reopened(files: Files, now_ms: int = LATER_MS, remote: RemoteStore | None = None) -> Store:
    store = open_store(STORE, CONFIG, ManualClock(now_ms), files, remote, background=remote is None)
    store.check()
    return store


def drained(
    files: Files, topic: str, group: str, now_ms: int = LATER_MS, remote: RemoteStore | None = None
) -> list[Message]:
    """All that the group gets."""
    messages: list[Message] = []
    with reopened(files, now_ms, remote) as store, store.consumer(topic, group=group) as consumer:
        while batch := consumer.poll(1_000):
            messages += batch
    return messages
