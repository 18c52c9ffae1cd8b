"""Indexes of segments in a storage: built, verified, made good; always what a folder would hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import CorruptRemote, RemoteConflict, RemoteUnavailable
from afterlog.base.files import publish
from afterlog.base.names import (
    CANCEL_INDEX,
    CHECKPOINTS,
    DELIVER_AFTER_INDEX,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    segment_file,
)
from afterlog.log.build import IndexedSegment, SegmentToIndex, index_segment
from afterlog.log.checkpoints import CheckpointFile
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_indexing import INDEXES, Workshop, fetch, index_kafka, index_listed
from afterlog.tier.remote_segment import RemoteSegment
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remove import remove
from afterlog.tier.scrub import scrub
from afterlog.tier.segment_files import kafka_segment_files, segment_files
from afterlog.tier.upload import upload
from tests.campaigns.simulated_disk import Image, SimulatedFiles
from tests.log.kafka_log import KafkaSegment, some_segment
from tests.support import NOW_MS, PATH, flipped, open_small, small
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore, fault_at
from tests.tier.support import attempt

FOLDER, WORK, REMOTE = PATH / "t-0", Path("/work"), Path("/remote")
EVERY = (LOG, *INDEXES, CANCEL_INDEX)


class Storage:
    """A storage, and an empty folder to work in, on one simulated disk."""

    def __init__(self) -> None:
        self.disk = SimulatedFiles(Image((str(REMOTE), str(WORK))))
        self.remote: RemoteStore = DirectoryStore(self.disk, REMOTE)
        self.attempts = 100

    def shop(self, *, verify: bool = False) -> Workshop:
        self.attempts += 1
        return Workshop(
            files=self.disk,
            folder=WORK,
            config=small(),
            clock=ManualClock(NOW_MS),
            attempt=attempt(self.attempts),
            verify_only=verify,
        )

    def read(self, key: str) -> bytes:
        return self.remote.get(key, 1 << 20)[0]

    def rot(self, key: str, position: int = -1) -> None:
        publish(self.disk, REMOTE / key, [flipped(self.read(key), position)])


class TestKafka:
    """`t-0/<base>.log`, as a broker's copy."""

    @pytest.fixture
    def segment(self) -> KafkaSegment:
        return some_segment(7, 100, batches=12)

    @pytest.fixture
    def storage(self, segment: KafkaSegment) -> Storage:
        storage = Storage()
        storage.remote.put(self.key(LOG), segment.log)
        return storage

    def key(self, suffix: str) -> str:
        return f"t-0/{segment_file(100, suffix)}"

    def indexed(self, storage: Storage, *, verify: bool = False, remote: RemoteStore | None = None) -> IndexedSegment:
        sizes = {found.key: found.size for found in storage.remote.list_objects()}
        there = [suffix for suffix in INDEXES if self.key(suffix) in sizes]
        try:
            return index_kafka(
                remote or storage.remote, "t-0", 100, sizes[self.key(LOG)], there, storage.shop(verify=verify)
            )
        finally:
            assert [] == storage.disk.names(WORK)

    def expected(self, segment: KafkaSegment) -> dict[str, bytes]:
        """What the same log has beside it in a folder."""
        path = FOLDER / segment_file(100, LOG)
        disk = SimulatedFiles(Image((str(PATH), str(FOLDER)), {str(path): segment.log}))
        there = SegmentToIndex(topic="t", partition=0, base_offset=100, path=path, log_bytes=segment.size)
        index_segment(disk, there, small(), ManualClock(NOW_MS), attempt=attempt(1))
        return {self.key(suffix): disk.image().contents[str(path.with_suffix(suffix))] for suffix in INDEXES}

    def indexes(self, storage: Storage) -> dict[str, bytes]:
        keys = [found.key for found in storage.remote.list_objects()]
        return {key: storage.read(key) for key in keys if not key.endswith(LOG)}

    def test_built_then_skipped_then_verified(self, storage: Storage, segment: KafkaSegment) -> None:
        built = self.indexed(storage)
        assert self.expected(segment) == self.indexes(storage)
        assert ("built", "t", 0, 100, 12, segment.size) == (
            built.action, built.topic, built.partition, built.base_offset, built.entries, built.bytes,
        )  # fmt: skip
        calls: list[tuple[str, int]] = []
        watched = FaultyRemoteStore(storage.remote, lambda operation, call: calls.append((operation, call)))
        again = self.indexed(storage, remote=watched)
        assert [*["head", "get_ranges"] * 3] == [operation for operation, _ in calls]
        verified = self.indexed(storage, verify=True)
        assert ("skipped", "verified") == (again.action, verified.action)
        assert built.max_due == again.max_due == verified.max_due

    @pytest.mark.parametrize("suffix", INDEXES)
    def test_what_is_missing_or_rotten_is_made_anew(self, storage: Storage, segment: KafkaSegment, suffix: str) -> None:
        expected = self.expected(segment)
        self.indexed(storage)
        key = self.key(suffix)
        storage.rot(key, 1)
        told = self.indexed(storage, verify=True)
        assert ("corrupt", key) == (told.action, told.path)
        storage.remote.delete(key)
        told = self.indexed(storage, verify=True)
        assert ("corrupt", key) == (told.action, told.path)
        assert "built" == self.indexed(storage).action
        assert expected == self.indexes(storage)

    def test_a_rotten_log_is_told_with_key_and_place(self, storage: Storage, segment: KafkaSegment) -> None:
        storage.rot(self.key(LOG))
        told = self.indexed(storage)
        assert ("corrupt", self.key(LOG), segment.entries[-1][2]) == (told.action, told.path, told.position)
        assert {} == self.indexes(storage)

    @pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.TRUNCATED])
    def test_at_every_step(self, segment: KafkaSegment, fault: Fault) -> None:
        """Wherever it breaks, the next attempt ends with what a folder would hold."""
        expected, call, broken = self.expected(segment), 0, 0
        while True:
            call += 1
            storage = Storage()
            storage.remote.put(self.key(LOG), segment.log)
            breaking = FaultyRemoteStore(storage.remote, fault_at(call, fault))
            done = None
            with contextlib.suppress(RemoteUnavailable):
                done = self.indexed(storage, remote=breaking)
            broken += done is None or done.action == "corrupt"
            if done is not None and done.action == "built":
                assert expected == self.indexes(storage)
            assert self.indexed(storage).action in ("built", "skipped")
            assert expected == self.indexes(storage)
            if breaking.calls < call:
                assert broken > 5
                return

    def test_a_log_that_is_too_large_is_not_fetched(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("afterlog.tier.remote_indexing._SIZE_MAX", 10)
        told = self.indexed(storage)
        assert ("corrupt", self.key(LOG)) == (told.action, told.path)
        with pytest.raises(CorruptRemote, match="more than"):
            fetch(storage.remote, self.key(LOG), storage.disk, WORK / "log")


class TestListed:
    """What a manifest lists."""

    @pytest.fixture
    def storage(self) -> Storage:
        return Storage()

    @pytest.fixture(params=["delayed", "fifo", "kafka"])
    def manifest(self, request: pytest.FixtureRequest, storage: Storage) -> Manifest:
        manifest = Manifest(storage.remote, "t-0")
        for number, found in enumerate(_kafka() if request.param == "kafka" else _sealed(request.param == "delayed")):
            upload(manifest, found, attempt=attempt(number), now_ms=NOW_MS)
        return manifest

    def indexed(
        self, storage: Storage, row: RemoteSegment, *, verify: bool = False, remote: RemoteStore | None = None
    ) -> IndexedSegment:
        try:
            return index_listed(Manifest(remote or storage.remote, "t-0"), row, storage.shop(verify=verify))
        finally:
            assert [] == storage.disk.names(WORK)

    def test_what_is_whole(self, storage: Storage, manifest: Manifest) -> None:
        for row in manifest.listed():
            told = self.indexed(storage, row), self.indexed(storage, row, verify=True)
            assert ["skipped", "verified"] == [each.action for each in told]
            assert row.end_offset - row.base_offset == told[1].records
        assert [] == scrub(manifest, deep=True)

    def test_an_index_that_is_gone_or_rotten_is_made_good(self, storage: Storage, manifest: Manifest) -> None:
        """With the very bytes that it had, under the key that a store's checkpoints know."""
        before = manifest.read()
        for suffix in (OFFSET_INDEX, TIME_INDEX, DELIVER_AFTER_INDEX, CANCEL_INDEX):
            row = next((row for row in before if suffix in row.files), None)
            for harm in (storage.rot, storage.remote.delete) if row else ():
                key = manifest.object_key(row, suffix)
                harm(key)
                told = self.indexed(storage, row, verify=True)
                assert ("corrupt", key) == (told.action, told.path)
                assert "built" == self.indexed(storage, row).action
                assert ([], before) == (scrub(manifest, deep=True), manifest.read())

    def test_at_every_step(self, storage: Storage) -> None:
        """Whatever breaks, what is listed stays listed, and the next attempt makes it good."""
        manifest = Manifest(storage.remote, "t-0")
        [row, *_] = [upload(manifest, found, attempt=attempt(number), now_ms=NOW_MS)
                     for number, found in enumerate(_sealed(True))]  # fmt: skip
        before = manifest.read()
        for fault in (Fault.BEFORE, Fault.AFTER, Fault.TRUNCATED, Fault.TWICE):
            call, breaking = 0, None
            while breaking is None or breaking.calls >= call:
                call += 1
                storage.remote.delete(manifest.object_key(row, DELIVER_AFTER_INDEX))
                breaking = FaultyRemoteStore(storage.remote, fault_at(call, fault))
                with contextlib.suppress(RemoteUnavailable):
                    if self.indexed(storage, row, remote=breaking).action == "built":
                        assert [] == scrub(manifest, deep=True)
                assert "corrupt" != self.indexed(storage, row).action
                assert ([], before) == (scrub(manifest, deep=True), manifest.read())
            assert call > 10

    def test_other_settings_do_not_replace_what_is_listed(self, storage: Storage, manifest: Manifest) -> None:
        row = manifest.listed()[0]
        key = manifest.object_key(row, OFFSET_INDEX)
        storage.remote.delete(key)
        shop = replace(storage.shop(), config=small(index_interval_bytes=1 << 20))
        told = index_listed(manifest, row, shop)
        assert ("corrupt", key, True) == (told.action, told.path, "other" in (told.reason or ""))
        assert "corrupt" == self.indexed(storage, row, verify=True).action

    def test_a_log_that_is_gone_or_rotten_is_told(self, storage: Storage, manifest: Manifest) -> None:
        row = manifest.listed()[0]
        key, before = manifest.object_key(row, LOG), manifest.read()
        storage.rot(key)
        storage.rot(manifest.object_key(row, OFFSET_INDEX), 0)
        for verify in (True, False):
            told = self.indexed(storage, row, verify=verify)
            assert "corrupt" == told.action
        assert (key, "the body's CRC does not match") == (told.path, told.reason)
        assert 0 < (told.position or 0) < row.files[LOG].size
        storage.remote.delete(key)
        assert ("corrupt", key) == (self.indexed(storage, row).action, self.indexed(storage, row).path)
        assert before == manifest.read()

    def test_one_that_was_removed_meanwhile_stays_away(self, storage: Storage, manifest: Manifest) -> None:
        row = manifest.listed()[0]
        storage.remote.delete(manifest.object_key(row, OFFSET_INDEX))

        class Removing(FaultyRemoteStore):
            """While the segment is put anew, another removes it."""

            def put(self, key: str, data: object) -> None:
                remove(manifest, row)
                super().put(key, data)  # type: ignore[arg-type]

        with pytest.raises(RemoteConflict):
            self.indexed(storage, row, remote=Removing(storage.remote, lambda operation, call: None))
        assert [] == [each for each in manifest.read() if each.base_offset == row.base_offset]
        assert [] == scrub(manifest, deep=True)


def _sealed(delayed: bool) -> Iterator[object]:
    """The segments of a store, some with cancels."""
    disk = SimulatedFiles()
    with open_small(disk, ManualClock(NOW_MS), max_num_buckets=2) as store:
        partition = store.create_topic("t", delayed=delayed).partition(0)
        times = [NOW_MS + 1_000 + number * 7_919 % 1_000 for number in range(100)]
        for _ in range(2):
            store.send_many("t", [b"v" * 50] * 100, deliver_after=times if delayed else None)
            if delayed:
                partition.log.cancel(np.array([partition.log.written - 1]))
        partition.log.roll()
        partition.log.merge_buckets()
    for mark in CheckpointFile.open(disk, FOLDER / CHECKPOINTS).current.sealed:
        with segment_files(disk, FOLDER, mark, config=small(), delayed=delayed, attempt="f" * 32) as found:
            yield found


def _kafka() -> Iterator[object]:
    """Segments of a Kafka log, which were indexed."""
    offset = 0
    for number in range(2):
        segment = some_segment(number, offset, batches=12)
        path = FOLDER / segment_file(offset, LOG)
        disk = SimulatedFiles(Image((str(PATH), str(FOLDER)), {str(path): segment.log}))
        there = SegmentToIndex(topic="t", partition=0, base_offset=offset, path=path, log_bytes=segment.size)
        index_segment(disk, there, small(), ManualClock(NOW_MS), attempt=attempt(1))
        yield kafka_segment_files(disk, path, offset, config=small())
        offset = segment.end_offset
