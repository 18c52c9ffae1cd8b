from __future__ import annotations

import contextlib

import pytest

from afterlog.base.errors import RemoteError
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_segment import RemoteSegment, SegmentState
from afterlog.tier.remove import end_attempts, remove, remove_extra, remove_leftovers, start_removal
from afterlog.tier.scrub import scrub
from afterlog.tier.upload import upload
from tests.support import Background, Gate
from tests.tier.faulty_remote_store import Crashed, Fault, FaultyRemoteStore, fault_at, hold
from tests.tier.support import NOW_MS, PARTITION, attempt, disk, faults, segment_files, simulated_manifest, swept


def uploaded(manifest: Manifest, number: int = 1, base_offset: int = 0) -> RemoteSegment:
    segment = segment_files(disk(), base_offset=base_offset)
    return upload(manifest, segment, attempt=attempt(number), now_ms=NOW_MS)


def test_a_segment_goes_and_can_come_again() -> None:
    manifest = simulated_manifest(disk())
    first, second = uploaded(manifest), uploaded(manifest, 2, 100)
    remove(manifest, first)
    remove(manifest, first)
    assert ((second,), []) == (manifest.read(), scrub(manifest, deep=True))
    assert attempt(3) == uploaded(manifest, 3).attempt


def test_in_two_steps_readers_are_left_the_objects() -> None:
    manifest = simulated_manifest(disk())
    segment = uploaded(manifest)
    start_removal(manifest, segment)
    assert () == manifest.listed()
    for suffix, mark in segment.files.items():
        assert mark.size == manifest.remote.head(manifest.object_key(segment, suffix)).size
    assert end_attempts(manifest, segment)
    assert [] == [key for key, _ in manifest.remote.list_objects() if key != manifest.key]


def test_what_is_listed_is_no_leftover() -> None:
    manifest = simulated_manifest(disk())
    segment = uploaded(manifest)
    assert not end_attempts(manifest, segment)
    assert [] == remove_leftovers(manifest, started_before_ms=NOW_MS + 1)
    assert ((segment,), []) == (manifest.read(), scrub(manifest, deep=True))


def test_an_attempt_that_finishes_while_leftovers_are_looked_for_stays() -> None:
    """The look is old when the row is to be moved: only the state that the move itself finds counts."""
    manifest = simulated_manifest(disk())
    finishing, cleaning = Gate(), Gate()
    slow = Manifest(FaultyRemoteStore(manifest.remote, hold("put_if", finishing, 2)), PARTITION)
    uploading = Background(lambda: uploaded(slow))
    finishing.came()
    cleaner = Manifest(FaultyRemoteStore(manifest.remote, hold("put_if", cleaning)), PARTITION)
    removing = Background(lambda: remove_leftovers(cleaner, started_before_ms=NOW_MS + 1))
    cleaning.came()
    finishing.open()
    segment = uploading.answer()
    cleaning.open()
    assert [] == removing.answer()
    assert ((segment,), []) == (manifest.read(), scrub(manifest, deep=True))


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault != Fault.TRUNCATED])
def test_faults_at_every_step(fault: Fault) -> None:
    """Nothing that is listed lacks anything; a second call, or the leftovers' removal, ends it."""
    call = 0
    while True:
        call += 1
        manifest = simulated_manifest(disk())
        segment, other = uploaded(manifest), uploaded(manifest, 2, 100)
        breaking = FaultyRemoteStore(manifest.remote, fault_at(call, fault))
        with contextlib.suppress(RemoteError, Crashed):
            remove(Manifest(breaking, PARTITION), segment)
        if breaking.calls < call:
            assert call > 10
            return
        assert [] == faults(manifest)
        if manifest.listed() == (segment, other):
            remove(manifest, segment)
        assert [] == swept(manifest)
        assert (other,) == manifest.read()


def test_only_what_is_extra_and_ours_is_removed_as_extra() -> None:
    manifest = simulated_manifest(disk())
    segment = uploaded(manifest)
    start_removal(manifest, segment)
    manifest.remote.put("mail-0/notes.txt", b"1")
    manifest.remote.put(f"mail-1/{0:020d}-{attempt(9)}.log", b"1")
    manifest.remote.put(f"mail-0/{0:020d}-{attempt(9)}.log", b"1")
    keys = {key for key, _ in manifest.remote.list_objects()}
    removed = {key for key in keys | {"mail-0/../../x", "", "/"} if remove_extra(manifest, key)}
    assert {f"mail-0/{0:020d}-{attempt(9)}.log"} == removed == keys - {key for key, _ in manifest.remote.list_objects()}
    assert SegmentState.DELETE_STARTED == manifest.read()[0].state
