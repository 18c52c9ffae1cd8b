"""What the tests of the tier share: segments of a few bytes, attempts, storages, and a scrub that must find nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from afterlog.base.files import Files, publish, read_file
from afterlog.base.names import CANCEL_INDEX, DELIVER_AFTER_INDEX, LOG, OFFSET_INDEX, TIME_INDEX, segment_file
from afterlog.log.facts import FileMark, SegmentFacts
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_segment import RemoteSegment, SegmentFiles, SegmentState
from afterlog.tier.remove import remove_extra, remove_leftovers
from afterlog.tier.scrub import FindingKind, scrub
from tests.campaigns.simulated_disk import Image, SimulatedFiles

PARTITION = "mail-0"
NOW_MS = 1_700_000_000_000
LOCAL = Path("/store/mail-0")
REMOTE = Path("/remote")
SIZES = {LOG: 3_000, OFFSET_INDEX: 96, TIME_INDEX: 0, DELIVER_AFTER_INDEX: 448, CANCEL_INDEX: 24}
FAULTS = {FindingKind.MISSING, FindingKind.PARTIAL, FindingKind.CORRUPT}


def disk() -> SimulatedFiles:
    """A machine's folder and a remote one."""
    return SimulatedFiles(Image(["/store", str(LOCAL), str(REMOTE)]))


def attempt(number: int) -> str:
    return f"{number:032x}"


def segment_files(files: Files, folder: Path = LOCAL, base_offset: int = 0, seed: int = 0) -> SegmentFiles:
    """A sealed segment of 100 offsets; its bytes depend on offset and seed."""
    generator = random.Random(1_000 * seed + base_offset)
    paths = {}
    for suffix, size in SIZES.items():
        paths[suffix] = folder / segment_file(base_offset, suffix)
        publish(files, paths[suffix], [generator.randbytes(size)])
    marks = {suffix: FileMark.of(read_file(files, path)) for suffix, path in paths.items()}
    facts = SegmentFacts(
        base_offset=base_offset,
        end_offset=base_offset + 100,
        log_bytes=marks[LOG].size,
        max_deliver_after=NOW_MS + 60_000,
        max_timestamp=NOW_MS,
        index=marks[OFFSET_INDEX],
        time_index=marks[TIME_INDEX],
        cancel_index=marks[CANCEL_INDEX],
    )
    return SegmentFiles(files=files, facts=facts, paths=paths)


def with_facts(segment: SegmentFiles, **facts: Any) -> SegmentFiles:
    """The same files, of which something else is known."""
    return replace(segment, facts=replace(segment.facts, **facts))


def row(number: int, base_offset: int = 0, state: str = "COPY_FINISHED") -> RemoteSegment:
    """A row of a manifest, of 100 offsets."""
    return RemoteSegment(
        base_offset=base_offset,
        end_offset=base_offset + 100,
        attempt=attempt(number),
        state=SegmentState(state),
        started_ms=NOW_MS,
        max_deliver_after=-1,
        max_timestamp=NOW_MS,
        log_bytes=10,
        log_crc=number,
        index=FileMark(8, 1),
        time_index=FileMark(12, 2),
    )


def simulated_manifest(files: SimulatedFiles) -> Manifest:
    return Manifest(DirectoryStore(files, REMOTE), PARTITION)


def faults(manifest: Manifest) -> list[object]:
    """What a deep scrub has against listed segments: nothing, ever."""
    return [finding for finding in scrub(manifest, deep=True) if finding.kind in FAULTS]


def swept(manifest: Manifest) -> list[object]:
    """What a deep scrub still finds when leftovers and extra objects were removed: nothing."""
    remove_leftovers(manifest, started_before_ms=NOW_MS + 1)
    for finding in scrub(manifest):
        if finding.kind == FindingKind.EXTRA:
            assert remove_extra(manifest, finding.key)
    return [*scrub(manifest, deep=True)]
