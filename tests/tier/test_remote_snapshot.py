from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.errors import CorruptFile, CorruptRemote
from afterlog.index.bucket_snapshot import MappedSnapshot
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.page_cache import PageCache
from afterlog.tier.tiered_segment import RemoteSnapshot
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.index.support import Row, make_run
from tests.support import flipped
from tests.tier.faulty_remote_store import FaultyRemoteStore

KEY = "mail-0/run"
ROWS: list[Row] = [(number * 7_919 % 2_000, number, number * 100, 1) for number in range(2_000)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A run of 100 chunks."""
    return make_run(tmp_path_factory.mktemp("run"), ROWS, max_entries=20).path.read_bytes()


def snapshot_of(data: bytes, page_bytes: int = 1_000, length: int | None = None) -> RemoteSnapshot:
    files = SimulatedFiles(Image(["/remote"]))
    store = DirectoryStore(files, Path("/remote"))
    store.put(KEY, data)
    remote = FaultyRemoteStore(store, lambda operation, at: None)
    cache = PageCache(files, Path("/cache"), 1 << 20, page_bytes)
    return RemoteSnapshot(remote, cache, KEY, len(data) if length is None else length, "run")


def calls(snapshot: RemoteSnapshot) -> int:
    assert isinstance(snapshot._remote, FaultyRemoteStore)
    return snapshot._remote.calls


@pytest.mark.parametrize("page_bytes", [64, 1_000, 1 << 18])
def test_it_is_as_the_file_is(data: bytes, page_bytes: int) -> None:
    far = snapshot_of(data, page_bytes)
    near = MappedSnapshot(Path("run"), np.frombuffer(data, np.uint8))
    assert 0 == calls(far)
    assert (near.metadata().coverage, near.metadata().identity) == (far.metadata().coverage, far.metadata().identity)
    assert calls(far) <= 2
    for ours, theirs in zip(astuple(near.metadata().directory), astuple(far.metadata().directory), strict=True):
        assert ours.tolist() == theirs.tolist()
        assert theirs.flags.aligned
    assert near.bitmap().tobytes() == far.bitmap().tobytes()
    for first, last in ((0, 0), (3, 5), (0, 99)):
        assert [part.tobytes() for part in near.segments(first, last)] == [
            part.tobytes() for part in far.segments(first, last)
        ]
    assert ("run", Path(KEY), len(data)) == (far.key, far.path, far.length)


def test_no_more_is_fetched_than_is_needed(data: bytes) -> None:
    far = snapshot_of(data, 64)
    directory = far.metadata().directory
    before = far._cache.counts().fetched_bytes
    assert before <= 64 + len(data) - int(directory.position[-1])
    far.segments(50, 50)
    assert far._cache.counts().fetched_bytes - before <= int(directory.size[50]) + 64


@pytest.mark.parametrize("part", ["metadata", "segments", "bitmap"])
def test_what_rotted_in_the_cache_is_fetched_once_more(data: bytes, part: str) -> None:
    far = snapshot_of(data)
    whole = far.metadata()
    positions = {"metadata": len(data) - 100, "segments": int(whole.directory.position[40]), "bitmap": whole.bitmap[0]}
    rotten = snapshot_of(flipped(data, positions[part]))
    rotten._cache.read(rotten._remote, KEY, len(data), np.array([0]), np.array([len(data)]))
    rotten._remote = far._remote
    assert whole.identity == rotten.metadata().identity
    assert far.segments(40, 40)[0].tobytes() == rotten.segments(40, 40)[0].tobytes()
    assert far.bitmap().tobytes() == rotten.bitmap().tobytes()


@pytest.mark.parametrize("position", [0, 8, -1, -100, -128])
def test_metadata_that_are_not_as_they_were_written(data: bytes, position: int) -> None:
    with pytest.raises(CorruptFile, match=KEY):
        snapshot_of(flipped(data, position)).metadata()


@pytest.mark.parametrize("length", [0, 1, 191, 192, 1 << 40])
def test_another_length_than_was_put(data: bytes, length: int) -> None:
    with pytest.raises((CorruptFile, CorruptRemote), match=KEY):
        snapshot_of(data, length=length).metadata()
