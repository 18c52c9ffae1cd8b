"""Removal of a segment from object storage: manifest first, then the objects, then the row.

    1  the row becomes DELETE_STARTED     nobody begins to read it; who is reading may get RemoteMissing, and reads the
                                          manifest again
    2  the objects are deleted            again and again, if need be: that one is missing is no error
    3  the row goes (DELETE_FINISHED)

Each step may be repeated, by anybody, and by several at a time. Between 1 and 2 a caller may leave readers the time
that they need. An attempt that was never listed goes the same way, from COPY_STARTED; one that is listed goes by
`start_removal` alone.
"""

from __future__ import annotations

from afterlog.names import parse_remote_segment_file
from afterlog.tier.manifest import Manifest, find
from afterlog.tier.remote_segment import OPTIONAL, REQUIRED, RemoteSegment, SegmentState


def remove(manifest: Manifest, segment: RemoteSegment) -> None:
    """All three steps, for a segment that is listed."""
    start_removal(manifest, segment)
    end_attempt(manifest, segment)


def start_removal(manifest: Manifest, segment: RemoteSegment) -> None:
    """Step 1 for a segment that is listed."""
    manifest.move(segment.attempt, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED)


def end_attempt(manifest: Manifest, segment: RemoteSegment) -> bool:
    """What is left to do for an attempt that is not listed. False, and nothing is done, where it is."""
    row = manifest.move(segment.attempt, SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED)
    if row is not None and row.state == SegmentState.COPY_FINISHED:
        return False
    for suffix in (*REQUIRED, *OPTIONAL):
        manifest.remote.delete(manifest.object_key(segment, suffix))
    manifest.move(segment.attempt, SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED)
    return True


def remove_leftovers(manifest: Manifest, *, started_before_ms: int) -> list[RemoteSegment]:
    """End attempts that began before that and are not listed, and removals that broke off. The rows that went.

    An uploader that was only slow loses its work, never a record: it is told, and tries again.
    """
    left = [
        row
        for row in manifest.read()
        if (row.state == SegmentState.COPY_STARTED and row.started_ms < started_before_ms)
        or row.state == SegmentState.DELETE_STARTED
    ]
    return [row for row in left if end_attempt(manifest, row)]


def remove_extra(manifest: Manifest, key: str) -> bool:
    """Delete an object that a scrub found to be extra. False, and nothing is done, where it is not, or is not ours.

    Nothing does this by itself: were an old manifest restored, what it lacks would be extra. RemoteMissing: it is lost.
    """
    manifest.remote.head(manifest.key)
    folder, _, name = key.rpartition("/")
    parsed = parse_remote_segment_file(name)
    if folder != manifest.partition or parsed is None or find(manifest.read(), parsed[1]) is not None:
        return False
    manifest.remote.delete(key)
    return True
