from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile, CorruptRemote, InvalidOption, UnknownTopic
from afterlog.base.files import ReadOnlyFiles
from afterlog.base.names import CHECKPOINTS, LOG, segment_file
from afterlog.log.build import SegmentToIndex
from afterlog.log.checkpoints import CheckpointFile, RemoteMark
from afterlog.spark.index_job import index_group
from afterlog.spark.location import check_shared, find_remote_segments, find_segments, is_url, sweep
from afterlog.spark.upload_job import upload_group
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.manifest import Manifest
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.support import NOW_MS, PATH, open_small
from tests.tier.support import row

KAFKA = Path("/kafka")


def kafka(*paths: str) -> SimulatedFiles:
    """A disk with these files, each of as many bytes as its place in the list."""
    folders = {str(KAFKA), *(str(parent) for path in paths for parent in (KAFKA / path).parents[:-2])}
    return SimulatedFiles(
        Image(tuple(sorted(folders)), {str(KAFKA / path): b"x" * size for size, path in enumerate(paths)})
    )


def found(
    disk: SimulatedFiles, location: Path = KAFKA, topics: list[str] | None = None
) -> list[tuple[str, int, int, int]]:
    return [
        (each.topic, each.partition, each.base_offset, each.log_bytes) for each in find_segments(disk, location, topics)
    ]


def test_a_directory_of_partitions() -> None:
    disk = kafka(
        "b-0/00000000000000000000.log", "a-10/00000000000000000007.log", "a-2/00000000000000000900.log",
        "a-2/00000000000000000000.log", "a-2/00000000000000000000.index", "a-2/leader-epoch-checkpoint",
        "meta.properties", "no-partition/00000000000000000000.log",
    )  # fmt: skip
    assert [("a", 2, 0, 3), ("a", 2, 900, 2), ("a", 10, 7, 1), ("b", 0, 0, 0)] == found(disk)
    assert [("b", 0, 0, 0)] == found(disk, topics=["b"])
    with pytest.raises(UnknownTopic, match="'c'"):
        found(disk, topics=["a", "c"])
    assert [("a", 2, 0, 3), ("a", 2, 900, 2)] == found(disk, KAFKA / "a-2")


def test_one_folder() -> None:
    assert [("kafka", 0, 5, 0), ("kafka", 0, 9, 1)] == found(
        kafka("00000000000000000005.log", "00000000000000000009.log")
    )
    assert [] == found(SimulatedFiles(Image((str(KAFKA),), {})))
    with pytest.raises(FileNotFoundError):
        found(SimulatedFiles(Image((), {})))


def test_a_store() -> None:
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS)) as store:
        for topic, delayed in (("b", True), ("a", False)):
            store.create_topic(topic, delayed=delayed)
            store.send_many(topic, [b"v" * 100] * 100)
        active = store.topic("b").partition(0).log.version.active.base_offset
    segments = find_segments(disk, PATH)
    assert {("a", False), ("b", True)} == {(each.topic, each.has_run) for each in segments}
    assert all(each.mark is not None and each.mark.log_bytes == each.log_bytes for each in segments)
    bases = [each.base_offset for each in segments if each.topic == "b"]
    assert len(bases) > 2
    assert bases == sorted(bases)
    assert max(bases) < active
    assert {"a"} == {each.topic for each in find_segments(disk, PATH, ["a"])}
    with pytest.raises(UnknownTopic):
        find_segments(disk, PATH, ["c"])
    disk.unlink(PATH / "a-0" / CHECKPOINTS)
    with pytest.raises(CorruptFile):
        find_segments(disk, PATH)


def test_a_sweep_takes_what_jobs_left_and_nothing_else() -> None:
    left = f"a-0/00000000000000000000.index.{'a' * 32}.tmp"
    kept = ["a-0/00000000000000000000.log", "a-0/checkpoints.tmp", f"b-0/00000000000000000000.index.{'a' * 32}.tmp"]
    disk = kafka(*kept, left)
    sweep(disk, find_segments(disk, KAFKA))
    assert sorted(str(KAFKA / path) for path in kept) == sorted(disk.image().contents)


def test_object_storage() -> None:
    """A partition has a manifest, or a broker's segments; whatever else is there is passed over."""
    disk = kafka(
        "b-0/00000000000000000000.log", "b-0/00000000000000000000.index", "b-0/00000000000000000007.log",
        "b-0/00000000000000000007.deliverafterindex", "b-0/99999999999999999999.log", "x/00000000000000000000.log",
        "b-0/deep/00000000000000000000.log", "00000000000000000000.log", "a-0/00000000000000000900.log",
    )  # fmt: skip
    remote = DirectoryStore(disk, KAFKA)
    listed, started = row(1), row(2, 100, "COPY_STARTED")
    Manifest(remote, "a-0").update(lambda rows: (listed, started))
    found = find_remote_segments(remote)
    assert [("a-0", 0, listed), ("b-0", 0, None), ("b-0", 7, None)] == [
        (each.folder, each.base_offset, each.row) for each in found
    ]
    assert [(10, set()), (0, {".index"}), (2, {".deliverafterindex"})] == [
        (each.log_bytes, set(each.indexes)) for each in found
    ]
    assert {"b"} == {each.topic for each in find_remote_segments(remote, ["b"])}
    with pytest.raises(UnknownTopic, match="'c'"):
        find_remote_segments(remote, ["a", "c"])
    remote.put_if("b-0/manifest", b"junk", None)
    with pytest.raises(CorruptRemote):
        find_remote_segments(remote)


def test_what_a_store_has_only_in_object_storage_is_not_found_in_the_folder() -> None:
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS)) as store:
        store.create_topic("a", delayed=False)
        store.send_many("a", [b"v" * 100] * 100)
    before = find_segments(disk, PATH)
    checkpoints = CheckpointFile.open(disk, PATH / "a-0" / CHECKPOINTS)
    first, *others = checkpoints.current.sealed
    gone = replace(first, remote=RemoteMark(attempt="0" * 32, local=False))
    checkpoints.update(sealed=(gone, *others))
    assert before[1:] == find_segments(disk, PATH)


@pytest.mark.parametrize(
    ("location", "expected"), [("s3://bucket/logs", True), ("file:///logs", True), ("/logs", False), (KAFKA, False)]
)
def test_urls(location: Path | str, expected: bool) -> None:
    assert expected == is_url(location)


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    """It called healthy segments corrupt, since their files were not there."""
    segments = [
        SegmentToIndex(topic="t", partition=0, base_offset=0, path=tmp_path / name / segment_file(0, LOG), log_bytes=1)
        for name in ("t-0", "t-1")
    ]
    (tmp_path / "t-0").mkdir()
    with pytest.raises(InvalidOption, match="t-1 is not on this worker"):
        list(index_group(segments, Config(), verify_only=True))
    with pytest.raises(InvalidOption, match="t-1 is not on this worker"):
        list(upload_group(segments, f"file://{tmp_path}", {}, Config()))
    check_shared(ReadOnlyFiles(), [tmp_path / "t-0"])
