from __future__ import annotations

import pytest

from afterlog.base.errors import RemoteMissing, RemoteUnavailable
from afterlog.base.names import CANCEL_INDEX, LOG, TIME_INDEX
from afterlog.log.topic_settings import TopicSettings
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_topics import tell_topic
from afterlog.tier.remove import remove, remove_extra, start_removal
from afterlog.tier.restore import mark_of
from afterlog.tier.scrub import FindingKind, scrub, survey, unlisted
from tests.support import Background, Gate, flipped
from tests.tier.faulty_remote_store import Fault, FaultyRemoteStore, fault_at, hold
from tests.tier.support import PARTITION, attempt, disk, row, simulated_manifest
from tests.tier.test_remove import uploaded


def kinds(manifest: Manifest, *, deep: bool = False) -> list[tuple[str, str]]:
    return [(finding.kind.value, finding.key) for finding in scrub(manifest, deep=deep)]


def test_nothing_and_all_well() -> None:
    manifest = simulated_manifest(disk())
    assert [] == scrub(manifest, deep=True)
    uploaded(manifest)
    assert [] == scrub(manifest, deep=True)


def test_each_kind_of_fault() -> None:
    manifest = simulated_manifest(disk())
    segment, second = uploaded(manifest), uploaded(manifest, 2, 100)
    log, times, cancelled = (manifest.object_key(segment, suffix) for suffix in (LOG, TIME_INDEX, CANCEL_INDEX))
    manifest.remote.put(log, flipped(manifest.remote.get(log, 9_999)[0], 2_999))
    manifest.remote.put(times, b"longer")
    manifest.remote.delete(cancelled)
    extra = f"mail-0/{0:020d}-{attempt(9)}.log"
    manifest.remote.put(extra, b"1")
    start_removal(manifest, second)
    manifest.remote.delete(manifest.object_key(second, LOG))
    expected = [
        ("EXTRA", extra), ("MISSING", cancelled), ("PARTIAL", times),
        ("UNFINISHED", f"mail-0/{100:020d}-{attempt(2)}"),
    ]  # fmt: skip
    assert sorted(expected, key=lambda each: each[1]) == kinds(manifest)
    assert sorted([*expected, ("CORRUPT", log)], key=lambda each: each[1]) == kinds(manifest, deep=True)


@pytest.mark.parametrize(
    "name", ["notes.txt", "-0.log", f"{0:020d}-{attempt(1)}.exe", f"{1:020d}-{attempt(1)}.log", "a/b"]
)
def test_names_that_are_not_ours_are_extra(name: str) -> None:
    manifest = simulated_manifest(disk())
    uploaded(manifest)
    manifest.remote.put(f"mail-0/{name}", b"1")
    assert [("EXTRA", f"mail-0/{name}")] == kinds(manifest)


def test_other_partitions_are_not_looked_at() -> None:
    manifest = simulated_manifest(disk())
    manifest.remote.put("mail-01/a", b"1")
    assert [] == scrub(manifest)


def test_a_manifest_that_is_none() -> None:
    manifest = simulated_manifest(disk())
    manifest.remote.put_if(manifest.key, b"junk", None)
    assert [(FindingKind.CORRUPT, manifest.key)] == [(found.kind, found.key) for found in scrub(manifest)]


def test_without_the_manifest_everything_is_extra_and_stays() -> None:
    manifest = simulated_manifest(disk())
    segment = uploaded(manifest)
    manifest.remote.delete(manifest.key)
    assert ["EXTRA"] * 5 == [kind for kind, _ in kinds(manifest)]
    key = manifest.object_key(segment, LOG)
    with pytest.raises(RemoteMissing):
        remove_extra(manifest, key)
    assert 3_000 == manifest.remote.head(key).size


def test_an_unfinished_attempt_is_told_by_its_row() -> None:
    manifest = simulated_manifest(disk())
    manifest.update(lambda rows: (row(1, state="COPY_STARTED"),))
    [finding] = scrub(manifest)
    assert "COPY_STARTED since 1700000000000" == finding.reason


@pytest.mark.parametrize("operation", ["list_objects", "get", "head"])
def test_an_upload_that_runs_meanwhile_is_no_fault(operation: str) -> None:
    manifest = simulated_manifest(disk())
    uploaded(manifest)
    gate = Gate()
    plan = hold(operation, gate)
    slow = Manifest(FaultyRemoteStore(manifest.remote, plan), PARTITION)
    scrubbing = Background(lambda: scrub(slow, deep=True))
    gate.came()
    uploaded(manifest, 2, 100)
    gate.open()
    assert [] == scrubbing.answer()


@pytest.mark.parametrize("operation", ["list_objects", "get", "head", "get_ranges"])
def test_a_removal_that_runs_meanwhile_is_no_fault(operation: str) -> None:
    manifest = simulated_manifest(disk())
    segment = uploaded(manifest)
    gate = Gate()
    slow = Manifest(FaultyRemoteStore(manifest.remote, hold(operation, gate)), PARTITION)
    scrubbing = Background(lambda: scrub(slow, deep=True))
    gate.came()
    remove(manifest, segment)
    gate.open()
    assert [] == scrubbing.answer()


def test_an_outage_is_no_finding() -> None:
    manifest = simulated_manifest(disk())
    uploaded(manifest)
    for call in range(1, 5):
        with pytest.raises(RemoteUnavailable):
            scrub(Manifest(FaultyRemoteStore(manifest.remote, fault_at(call, Fault.BEFORE)), PARTITION), deep=True)


class TestSurvey:
    def test_by_keys_and_by_the_document(self) -> None:
        manifest = simulated_manifest(disk())
        uploaded(manifest)
        manifest.remote.put("ticks-3/1.log", b"1")
        manifest.remote.put("notes.txt", b"1")
        manifest.remote.put("no-partition/x", b"1")
        tell_topic(manifest.remote, "post", TopicSettings(partitions=5, remote_storage_enable=True))
        partitions, beside = survey(manifest.remote)
        assert {PARTITION, "ticks-3", "post-0"} == partitions
        assert [("EXTRA", "no-partition/x"), ("EXTRA", "notes.txt")] == [(each.kind, each.key) for each in beside]

    def test_a_document_that_is_none(self) -> None:
        manifest = simulated_manifest(disk())
        manifest.remote.put_if("topics", b"rot", None)
        partitions, [finding] = survey(manifest.remote)
        assert (set(), FindingKind.CORRUPT, "topics") == (partitions, finding.kind, finding.key)


class TestUnlisted:
    def test_what_a_store_takes_for_uploaded(self) -> None:
        manifest = simulated_manifest(disk())
        marks = [mark_of(uploaded(manifest)), mark_of(row(5, 100))]
        [finding] = unlisted(manifest, lambda: marks)
        assert (FindingKind.MISSING, manifest.object_key(row(5, 100), LOG)) == (finding.kind, finding.key)

    def test_what_retention_takes_meanwhile_is_none(self) -> None:
        """It leaves the checkpoints first, and then the manifest."""
        manifest = simulated_manifest(disk())
        looks = iter([[mark_of(row(5, 100))], []])
        assert [] == unlisted(manifest, lambda: next(looks))
