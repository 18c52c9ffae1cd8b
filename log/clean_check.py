"""Whether a partition was closed cleanly, so that it may be opened when it is first used.

    checkpoints ──> intact, and all of the log after the recovery point? ──> no file too many, too few, or of
                    another size? ──> at rest

A clean close leaves a partition so, and most kills leave the partitions so that were not in use. Opening one finds
nothing to cut and nothing to finish, so that nobody misses anything while it is not open. Of one that is not at rest
nothing is said here: opening it tells, as ever, what is wrong, and mends what can be. Nothing is changed, and no log is
read: what rots in a file of the right size is found at the first use.
"""

from __future__ import annotations

from pathlib import Path

from afterlog.base.errors import CorruptFile, FileMissing
from afterlog.base.files import TEMPORARY_SUFFIX, Files, opened
from afterlog.base.names import BUCKETS, CHECKPOINTS, LOG, OFFSET_INDEX, TIME_INDEX, parse_segment_file, segment_file
from afterlog.log.checkpoints import CheckpointFile, Checkpoints
from afterlog.log.facts import UNKNOWN


def is_at_rest(files: Files, folder: Path) -> bool:
    """Whether opening the partition can wait. It costs a listing, a small file and a size for each segment.

    Raises StorageError where the disk gives no answer.
    """
    try:
        known = CheckpointFile.open(files, folder / CHECKPOINTS).current
        return _is_complete(files.names(folder), known) and _has_sizes(files, folder, known)
    except (CorruptFile, FileMissing):
        return False


def _is_complete(names: list[str], known: Checkpoints) -> bool:
    """Whether all files are there of which the checkpoints know, none too many, and none is to be made anew."""
    alive = {(known.active.base_offset, 0), *((mark.base_offset, mark.generation) for mark in known.sealed)}
    parsed = map(parse_segment_file, names)
    found = {(segment.base_offset, segment.generation) for segment in parsed if segment is not None}
    needed = {segment_file(known.active.base_offset, suffix) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX)}
    return (
        found <= alive
        and {BUCKETS, *needed} <= set(names)
        and not any(name.endswith(TEMPORARY_SUFFIX) for name in names)
        and all(mark.index != UNKNOWN and mark.local for mark in known.sealed)
    )


def _has_sizes(files: Files, folder: Path, known: Checkpoints) -> bool:
    """Whether each log ends where the checkpoints say, so that nothing follows the recovery point."""
    if known.recovery.segment != known.active.base_offset:
        return False
    sizes = {mark.file(LOG): mark.log_bytes for mark in known.sealed}
    sizes[segment_file(known.recovery.segment, LOG)] = known.recovery.position
    for name, size in sizes.items():
        with opened(files, folder / name) as file:
            if file.size() != size:
                return False
    return True
