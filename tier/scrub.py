"""Scrub: does the storage hold what the manifest says, and nothing else?

    MISSING      a listed segment lacks an object
    PARTIAL      an object of a listed segment has another size
    CORRUPT      its bytes have another CRC-32C (looked at only by a deep scrub), or the manifest fails its checks
    EXTRA        an object that belongs to no row, or is none of ours
    UNFINISHED   a row that is COPY_STARTED or DELETE_STARTED: an upload or a removal that runs, or broke off

The storage is listed first and the manifest read afterwards: an upload writes its row before its objects, so that an
object that was there before the manifest was read and has no row in it has none any more. An object that seems to be
extra is told of if a second listing shows it too; what a listed segment seems to lack is asked for by name; and faults
are told of segments only that are still listed when all is done. So an upload or a removal that runs meanwhile is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from afterlog.base.errors import CorruptRemote, RemoteMissing
from afterlog.base.names import LOG, TOPICS, parse_partition_folder, partition_folder, remote_segment_key
from afterlog.log.checkpoints import SealedMark
from afterlog.log.facts import FileMark
from afterlog.tier.manifest import Manifest, Segments
from afterlog.tier.remote_segment import RemoteSegment, SegmentState
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remote_topics import read_remote_topics
from afterlog.tier.verify_upload import verify


class FindingKind(StrEnum):
    MISSING = "MISSING"
    PARTIAL = "PARTIAL"
    CORRUPT = "CORRUPT"
    EXTRA = "EXTRA"
    UNFINISHED = "UNFINISHED"


FAULTS = frozenset((FindingKind.MISSING, FindingKind.PARTIAL, FindingKind.CORRUPT))
"""What is listed cannot be read. The others are litter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """One thing that is not as it should be. `key` of an EXTRA comes from the storage, and may be any text."""

    kind: FindingKind
    key: str
    reason: str


def scrub(manifest: Manifest, *, deep: bool = False) -> list[Discrepancy]:
    """Compare; sorted by key. `deep` reads every byte of every listed segment. RemoteUnavailable, RemoteRefused."""
    sizes = {found.key: found.size for found in manifest.remote.list_objects(manifest.partition)}
    try:
        segments = manifest.read()
    except CorruptRemote as error:
        return [Discrepancy(kind=FindingKind.CORRUPT, key=manifest.key, reason=error.message)]
    findings = [*_extra(manifest, segments, sizes)]
    findings += [unfinished(manifest, row) for row in segments if row.state != SegmentState.COPY_FINISHED]
    faults = [
        (segment, finding)
        for segment in segments
        if segment.state == SegmentState.COPY_FINISHED
        for finding in _faults(manifest, segment, sizes, deep)
    ]
    if faults:
        listed = {segment.attempt for segment in manifest.listed()}
        findings += [finding for segment, finding in faults if segment.attempt in listed]
    return sorted(findings, key=lambda finding: finding.key)


def survey(remote: RemoteStore) -> tuple[set[str], list[Discrepancy]]:
    """The partitions that the storage has anything of; and what is wrong outside of them, sorted by key.

    By the keys of all objects; of a topic that has no segment yet the document of topics tells, by its first partition.
    """
    findings, partitions = [], set[str]()
    try:
        partitions |= {partition_folder(name, 0) for name in read_remote_topics(remote)}
    except CorruptRemote as error:
        findings.append(Discrepancy(kind=FindingKind.CORRUPT, key=TOPICS, reason=error.message))
    for found in remote.list_objects():
        folder, slash, _ = found.key.partition("/")
        if slash and parse_partition_folder(folder) is not None:
            partitions.add(folder)
        elif found.key != TOPICS:
            findings.append(Discrepancy(kind=FindingKind.EXTRA, key=found.key, reason=f"{found.size} bytes, not ours"))
    return partitions, sorted(findings, key=lambda finding: finding.key)


def unlisted(manifest: Manifest, marks: Callable[[], Sequence[SealedMark]]) -> list[Discrepancy]:
    """Segments that a store takes for uploaded, and the manifest does not list. `marks`: those in its checkpoints, now.

    They are asked for once more behind the manifest: what retention takes leaves them first. CorruptFile,
    CorruptRemote.
    """
    uploaded = {mark.remote.attempt: mark for mark in marks() if mark.remote is not None}
    for row in manifest.listed():
        uploaded.pop(row.attempt, None)
    still = {mark.remote.attempt for mark in marks() if mark.remote is not None} if uploaded else set()
    return [
        Discrepancy(
            kind=FindingKind.MISSING,
            key=remote_segment_key(manifest.partition, mark.base_offset, attempt, LOG),
            reason="not listed, and the store takes it for uploaded"
            + ("" if mark.local else ": its records cannot be read"),
        )
        for attempt, mark in uploaded.items()
        if attempt in still
    ]


def unfinished(manifest: Manifest, row: RemoteSegment) -> Discrepancy:
    """Tells of an attempt that is not listed."""
    key = manifest.object_key(row, "")
    return Discrepancy(kind=FindingKind.UNFINISHED, key=key, reason=f"{row.state} since {row.started_ms}")


def _extra(manifest: Manifest, segments: Segments, sizes: dict[str, int]) -> Iterator[Discrepancy]:
    known = {manifest.key} | {manifest.object_key(row, suffix) for row in segments for suffix in row.files}
    extra = sizes.keys() - known
    if extra:
        extra &= {found.key for found in manifest.remote.list_objects(manifest.partition)}
    for key in extra:
        yield Discrepancy(kind=FindingKind.EXTRA, key=key, reason=f"{sizes[key]} bytes that no row names")


def _faults(manifest: Manifest, segment: RemoteSegment, sizes: dict[str, int], deep: bool) -> Iterator[Discrepancy]:
    for suffix, mark in segment.files.items():
        key = manifest.object_key(segment, suffix)
        try:
            fault = _fault(manifest, key, mark, sizes, deep)
        except RemoteMissing:
            fault = FindingKind.MISSING, "listed, and not there"
        if fault is not None:
            kind, reason = fault
            yield Discrepancy(kind=kind, key=key, reason=reason)


def _fault(
    manifest: Manifest, key: str, mark: FileMark, sizes: dict[str, int], deep: bool
) -> tuple[FindingKind, str] | None:
    size = sizes[key] if key in sizes else manifest.remote.head(key).size
    if size != mark.size:
        return FindingKind.PARTIAL, f"{size} bytes of {mark.size}"
    if deep:
        try:
            verify(manifest.remote, key, mark)
        except CorruptRemote as error:
            return FindingKind.CORRUPT, error.message
    return None
