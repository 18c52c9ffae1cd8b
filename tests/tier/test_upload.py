from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from afterlog.base.errors import (
    CorruptFile,
    CorruptRemote,
    FileMissing,
    RemoteConflict,
    RemoteError,
    RemoteMissing,
    RemoteUnavailable,
)
from afterlog.base.files import OsFiles, publish, read_file
from afterlog.base.names import LOG, OFFSET_INDEX
from afterlog.log.facts import FileMark
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_segment import RemoteSegment, SegmentFiles, SegmentState
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remote_url import open_remote
from afterlog.tier.remove import remove, remove_leftovers
from afterlog.tier.scrub import scrub
from afterlog.tier.upload import upload, upload_instead, upload_together
from tests.support import Background, Gate, flipped
from tests.tier.faulty_remote_store import Crashed, Fault, FaultyRemoteStore, Plan, fault_at, hold
from tests.tier.support import (
    NOW_MS,
    PARTITION,
    attempt,
    disk,
    faults,
    segment_files,
    simulated_manifest,
    swept,
    with_facts,
)

ROOT = Path(__file__).parent.parent.parent

UPLOADING = """
import sys
from pathlib import Path
from afterlog.base.errors import RemoteConflict
from afterlog.base.files import OsFiles, unused_name
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_url import open_remote
from afterlog.tier.upload import upload, upload_instead, upload_together
from tests.tier.support import segment_files
files = [segment_files(OsFiles(), Path(sys.argv[2]), 100 * number) for number in range(5)]
manifest = Manifest(open_remote(sys.argv[1]), "mail-0")
print("ready", flush=True)
sys.stdin.readline()
for each in files:
    print(upload(manifest, each, attempt=unused_name(), now_ms=0).attempt, flush=True)
"""


def started(manifest: Manifest, segment: SegmentFiles, number: int) -> RemoteSegment:
    return upload(manifest, segment, attempt=attempt(number), now_ms=NOW_MS)


def faulty(manifest: Manifest, plan: Plan) -> Manifest:
    return Manifest(FaultyRemoteStore(manifest.remote, plan), manifest.partition)


def assert_there(manifest: Manifest, segment: SegmentFiles) -> None:
    """Listed once, and every byte of every file can be read."""
    [listed] = manifest.listed()
    assert segment.measured() == listed.files
    for suffix, path in segment.paths.items():
        key = manifest.object_key(listed, suffix)
        assert read_file(segment.files, path) == manifest.remote.get(key, 1 << 20)[0]


class UploadTests:
    """On any storage."""

    @pytest.fixture
    def remote(self) -> RemoteStore:
        raise NotImplementedError

    def test_a_segment_is_uploaded_once(self, remote: RemoteStore) -> None:
        manifest, segment = Manifest(remote, PARTITION), segment_files(disk())
        listed = started(manifest, segment, 1)
        assert (SegmentState.COPY_FINISHED, attempt(1)) == (listed.state, listed.attempt)
        assert_there(manifest, segment)
        assert listed == started(manifest, segment, 2)
        assert [] == scrub(manifest, deep=True)

    def test_racing_threads_list_it_once_and_leave_nothing(self, remote: RemoteStore) -> None:
        manifest, segment = Manifest(remote, PARTITION), segment_files(disk())
        barrier = threading.Barrier(3)

        def run(number: int) -> RemoteSegment:
            barrier.wait()
            return started(manifest, segment, number)

        racing = [Background(lambda number=number: run(number)) for number in range(3)]  # type: ignore[misc]
        assert 1 == len({each.answer().attempt for each in racing})
        assert_there(manifest, segment)
        assert [] == scrub(manifest, deep=True)


class TestOnMemory(UploadTests):
    @pytest.fixture
    def remote(self) -> RemoteStore:
        return open_remote("memory://")


class TestOnDirectory(UploadTests):
    @pytest.fixture
    def remote(self, tmp_path: Path) -> RemoteStore:
        return DirectoryStore(OsFiles(), tmp_path)


class TestOnS3(UploadTests):
    @pytest.fixture
    def remote(self, new_s3: Callable[[], RemoteStore]) -> RemoteStore:
        return new_s3()


class TestFaults:
    @pytest.mark.parametrize("fault", list(Fault))
    def test_at_every_step(self, fault: Fault) -> None:
        """What is listed is whole, always; the next attempt lists it; what was left is found and goes."""
        call = 0
        while True:
            call += 1
            manifest, segment = simulated_manifest(disk()), segment_files(disk())
            breaking = FaultyRemoteStore(manifest.remote, fault_at(call, fault))
            done = False
            with contextlib.suppress(RemoteError, Crashed):
                done = started(Manifest(breaking, PARTITION), segment, 1) in manifest.listed()
                assert done
            if breaking.calls < call:
                assert call > 15
                return
            try:
                left = manifest.read()
            except CorruptRemote:  # the storage cut the manifest: nobody may believe that the segment is safe
                assert (Fault.TRUNCATED, False) == (fault, done)
                continue
            assert [] == faults(manifest)
            assert done <= (len(left) == 1)
            assert done or fault != Fault.TWICE
            started(manifest, segment, 2)
            assert_there(manifest, segment)
            assert [] == swept(manifest)
            assert_there(manifest, segment)

    def test_nothing_is_listed_before_it_was_verified(self) -> None:
        """At every call: what is listed at that moment is whole."""
        manifest = simulated_manifest(disk())
        seen = []

        def look(operation: str, call: int) -> None:
            assert [] == faults(manifest)
            seen.append((operation, len(manifest.listed())))

        started(faulty(manifest, look), segment_files(disk()), 1)
        steps = ["get", "put_if", *["put"] * 5, *["head", "get_ranges"] * 2, "head", *["head", "get_ranges"] * 2, "get", "put_if"]  # fmt: skip  # noqa: E501
        assert [*((step, 0) for step in steps), ("get", 1)] == seen

    def test_a_storage_that_keeps_other_bytes_is_noticed_and_nothing_stays(self) -> None:
        manifest, segment = simulated_manifest(disk()), segment_files(disk())

        class Rotten(FaultyRemoteStore):
            def put(self, key: str, data: object) -> None:
                super().put(key, flipped(bytes(data), 7) if key.endswith(LOG) else data)  # type: ignore[call-overload,arg-type]

        with pytest.raises(CorruptRemote, match="CRC-32C"):
            started(Manifest(Rotten(manifest.remote, lambda operation, call: None), PARTITION), segment, 1)
        assert ((), []) == (manifest.read(), scrub(manifest))

    def test_an_object_that_vanished_is_noticed_and_nothing_stays(self) -> None:
        manifest = simulated_manifest(disk())

        class Forgetful(FaultyRemoteStore):
            def put(self, key: str, data: object) -> None:
                pass

        with pytest.raises(RemoteMissing):
            started(
                Manifest(Forgetful(manifest.remote, lambda operation, call: None), PARTITION), segment_files(disk()), 1
            )
        assert ((), []) == (manifest.read(), scrub(manifest))

    def test_a_local_file_that_rotted_is_not_uploaded(self) -> None:
        manifest, segment = simulated_manifest(disk()), segment_files(disk())
        segment = with_facts(segment, index=FileMark(96, 7))
        with pytest.raises(CorruptFile, match="not uploaded"):
            started(manifest, segment, 1)
        assert [] == [*manifest.remote.list_objects()]


class TestRaces:
    @pytest.mark.parametrize(
        ("operation", "number"), [("put_if", 1), ("put", 1), ("put", 3), ("put_if", 2), ("get", 3)]
    )
    def test_who_comes_second_takes_the_first_ones_row(self, operation: str, number: int) -> None:
        """Held at any step, while another uploads the same segment from beginning to end."""
        manifest, segment = simulated_manifest(disk()), segment_files(disk())
        gate = Gate()
        slow = Background(lambda: started(faulty(manifest, hold(operation, gate, number)), segment, 1))
        gate.came()
        first = started(manifest, segment, 2)
        gate.open()
        assert first == slow.answer()
        assert attempt(1 if (operation, number) == ("get", 3) else 2) == first.attempt
        assert_there(manifest, segment)
        assert [] == scrub(manifest, deep=True)

    @pytest.mark.parametrize(("operation", "number"), [("put", 1), ("put", 5), ("head", 1), ("put_if", 2)])
    def test_who_was_taken_for_dead_cannot_finish(self, operation: str, number: int) -> None:
        manifest, segment = simulated_manifest(disk()), segment_files(disk())
        gate = Gate()
        slow = Background(lambda: started(faulty(manifest, hold(operation, gate, number)), segment, 1))
        gate.came()
        assert [attempt(1)] == [row.attempt for row in remove_leftovers(manifest, started_before_ms=NOW_MS + 1)]
        gate.open()
        with pytest.raises((RemoteConflict, RemoteMissing)):
            slow.answer()
        assert ((), []) == (manifest.read(), scrub(manifest))
        started(manifest, segment, 2)
        assert_there(manifest, segment)

    def test_who_was_given_up_by_a_removal_that_broke_off_cannot_finish(self) -> None:
        manifest, segment = simulated_manifest(disk()), segment_files(disk())
        gate = Gate()
        slow = Background(lambda: started(faulty(manifest, hold("put_if", gate, 2)), segment, 1))
        gate.came()
        manifest.move({attempt(1)}, SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED)
        gate.open()
        with pytest.raises(RemoteConflict, match="gave this attempt up"):
            slow.answer()
        assert ((), []) == (manifest.read(), scrub(manifest))

    def test_who_is_only_slow_is_left_alone(self) -> None:
        manifest, segment = simulated_manifest(disk()), segment_files(disk())
        gate = Gate()
        slow = Background(lambda: started(faulty(manifest, hold("put_if", gate, 2)), segment, 1))
        gate.came()
        assert [] == remove_leftovers(manifest, started_before_ms=NOW_MS)
        gate.open()
        assert attempt(1) == slow.answer().attempt
        assert_there(manifest, segment)

    def test_two_processes(self, tmp_path: Path) -> None:
        folders = [tmp_path / name for name in ("remote", "0", "1")]
        for folder in folders:
            folder.mkdir()
        others = [
            subprocess.Popen(
                [sys.executable, "-c", UPLOADING, str(folders[0]), str(folder)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for folder in folders[1:]
        ]
        for other in others:
            assert other.stdout is not None
            assert "ready\n" == other.stdout.readline()
        for other in others:
            assert other.stdin is not None
            other.stdin.write("go\n")
            other.stdin.flush()
        told = [other.communicate(timeout=60)[0].split() for other in others]
        assert [0, 0] == [other.returncode for other in others]
        manifest = Manifest(DirectoryStore(OsFiles(), folders[0]), PARTITION)
        listed = [segment.attempt for segment in manifest.listed()]
        assert (5, [listed, listed]) == (len(listed), told)
        assert [] == scrub(manifest, deep=True)


class TestOtherLogs:
    def test_another_logs_bucket_is_refused(self) -> None:
        """Else the local copy would go, because other people's records are listed."""
        manifest, segment = simulated_manifest(disk()), segment_files(disk())
        started(manifest, segment, 1)
        for other in (
            segment_files(disk(), seed=1),
            with_facts(segment, end_offset=99),
            with_facts(segment, base_offset=99, end_offset=150),
        ):
            with pytest.raises(RemoteConflict, match="another log"):
                started(manifest, other, 2)
        assert_there(manifest, segment)
        assert [] == scrub(manifest)

    def test_indexes_that_were_made_anew_are_no_other_segment(self) -> None:
        manifest, segment = simulated_manifest(disk()), segment_files(disk())
        started(manifest, segment, 1)
        for suffix, path in segment.paths.items():
            if suffix != LOG:
                publish(segment.files, path, [b"made anew"])
        anew = FileMark.of(b"made anew")
        segment = with_facts(segment, index=anew, time_index=anew, cancel_index=anew)
        assert attempt(1) == started(manifest, segment, 2).attempt


class TestTogether:
    def test_two_changes_for_all_of_them(self) -> None:
        manifest, files = simulated_manifest(disk()), disk()
        seen = []
        plan = faulty(manifest, lambda operation, call: seen.append(operation))
        segments = {attempt(number): segment_files(files, base_offset=100 * number) for number in range(4)}
        outcomes = upload_together(plan, segments, now_ms=NOW_MS)
        assert manifest.listed() == tuple(outcomes.values())
        assert (4, 2) == (len(outcomes), seen.count("put_if"))
        assert [] == scrub(manifest, deep=True)

    def test_none_holds_up_another(self) -> None:
        manifest, files = simulated_manifest(disk()), disk()
        segments = {attempt(number): segment_files(files, base_offset=100 * number) for number in range(5)}
        there = started(manifest, segments[attempt(0)], 7)
        started(manifest, segment_files(disk(), base_offset=100, seed=1), 8)
        segments[attempt(2)] = with_facts(segments[attempt(2)], index=FileMark(96, 7))
        gone = segments[attempt(3)].paths[LOG]

        class Retaining(FaultyRemoteStore):
            """Retention takes a segment while its files are put."""

            def put(self, key: str, data: object) -> None:
                if files.exists(gone):
                    files.unlink(gone)
                super().put(key, data)  # type: ignore[arg-type]

        taking = Manifest(Retaining(manifest.remote, lambda operation, call: None), PARTITION)
        segments = {name: segments[name] for name in sorted(segments, reverse=True)}
        outcomes = upload_together(taking, segments, now_ms=NOW_MS)
        kinds = [type(outcomes[attempt(number)]) for number in range(5)]
        assert [RemoteSegment, RemoteConflict, CorruptFile, FileMissing, RemoteSegment] == kinds
        assert there == outcomes[attempt(0)]
        assert [0, 100, 400] == [row.base_offset for row in manifest.read()]
        assert [] == scrub(manifest, deep=True)

    def test_where_the_storage_breaks_what_is_there_is_listed(self) -> None:
        manifest, files = simulated_manifest(disk()), disk()
        segments = {attempt(number): segment_files(files, base_offset=100 * number) for number in range(3)}
        breaking = faulty(manifest, fault_at(2 + 5 + 9 + 3, Fault.BEFORE))
        first, second, third = upload_together(breaking, segments, now_ms=NOW_MS).values()
        assert (first,) == manifest.listed()
        assert isinstance(second, RemoteUnavailable)
        assert second is third
        assert [] == swept(manifest)

    def test_one_of_them_was_given_up(self) -> None:
        manifest, files = simulated_manifest(disk()), disk()
        segments = {attempt(number): segment_files(files, base_offset=100 * number) for number in range(2)}
        gate = Gate()
        slow = Background(lambda: upload_together(faulty(manifest, hold("put_if", gate, 2)), segments, now_ms=NOW_MS))
        gate.came()
        manifest.move({attempt(1)}, SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED)
        gate.open()
        first, second = slow.answer().values()
        assert (first,) == manifest.read()
        assert isinstance(second, RemoteConflict)
        assert [] == scrub(manifest, deep=True)


class TestInstead:
    """Of a listed segment an object is rotten, or gone."""

    def test_at_every_step(self) -> None:
        """The segment stays listed, always; what is listed is the old attempt or the new one, and that is whole."""
        for fault in (fault for fault in Fault if fault != Fault.TRUNCATED):
            call, breaking = 0, None
            while breaking is None or breaking.calls >= call:
                call += 1
                manifest, segment = simulated_manifest(disk()), segment_files(disk())
                old = started(manifest, segment, 1)
                manifest.remote.delete(manifest.object_key(old, OFFSET_INDEX))
                breaking = FaultyRemoteStore(manifest.remote, fault_at(call, fault))
                with contextlib.suppress(RemoteError, Crashed):
                    upload_instead(Manifest(breaking, PARTITION), segment, old, attempt=attempt(2), now_ms=NOW_MS)
                [listed] = manifest.listed()
                assert listed == old or faults(manifest) == []
                if listed == old:
                    upload_instead(manifest, segment, old, attempt=attempt(3), now_ms=NOW_MS)
                assert_there(manifest, segment)
                assert [] == swept(manifest)
            assert call > 25

    def test_what_is_not_listed_any_more_stays_away(self) -> None:
        manifest, segment = simulated_manifest(disk()), segment_files(disk())
        old = started(manifest, segment, 1)
        gate = Gate()
        slow = Background(
            lambda: upload_instead(
                faulty(manifest, hold("put_if", gate, 2)), segment, old, attempt=attempt(2), now_ms=NOW_MS
            )
        )
        gate.came()
        remove(manifest, old)
        gate.open()
        with pytest.raises(RemoteConflict):
            slow.answer()
        assert ((), []) == (manifest.read(), scrub(manifest))
        with pytest.raises(RemoteConflict, match="not listed any more"):
            upload_instead(manifest, segment, old, attempt=attempt(3), now_ms=NOW_MS)

    def test_another_log_is_not_put_in_its_place(self) -> None:
        manifest = simulated_manifest(disk())
        old = started(manifest, segment_files(disk()), 1)
        with pytest.raises(RemoteConflict, match="other bytes"):
            upload_instead(manifest, segment_files(disk(), seed=1), old, attempt=attempt(2), now_ms=NOW_MS)
        assert ((old,), []) == (manifest.read(), scrub(manifest, deep=True))

    def test_who_is_given_up_has_replaced_nothing(self) -> None:
        manifest, segment = simulated_manifest(disk()), segment_files(disk())
        old = started(manifest, segment, 1)
        gate = Gate()
        slow = Background(
            lambda: upload_instead(
                faulty(manifest, hold("put_if", gate, 2)), segment, old, attempt=attempt(2), now_ms=NOW_MS
            )
        )
        gate.came()
        remove_leftovers(manifest, started_before_ms=NOW_MS + 1)
        gate.open()
        with pytest.raises(RemoteConflict, match="gave this attempt up"):
            slow.answer()
        assert ((old,), []) == (manifest.read(), scrub(manifest, deep=True))
