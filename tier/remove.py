"""Removal of segments from object storage: manifest first, then the objects, then the rows.

    1  the row becomes DELETE_STARTED     nobody begins to read it; who is reading may get RemoteMissing, and reads the
                                          manifest again
    2  the objects are deleted            again and again, if need be: that one is missing is no error
    3  the row goes (DELETE_FINISHED)

Each step may be repeated, by anybody, and by several at a time; of several segments 1 and 3 are one change of the
manifest each. Between 1 and 2 a caller may leave readers the time that they need. An attempt that was never listed goes
the same way, from COPY_STARTED; one that is listed goes by `start_removal` alone.
"""

from __future__ import annotations

from afterlog.base.names import parse_remote_segment_file
from afterlog.tier.manifest import Manifest, Segments, find
from afterlog.tier.remote_segment import RemoteSegment, SegmentState


def remove(manifest: Manifest, *segments: RemoteSegment) -> None:
    """All three steps, for segments that are listed."""
    start_removal(manifest, *segments)
    end_attempts(manifest, *segments)


def start_removal(manifest: Manifest, *segments: RemoteSegment) -> None:
    """Step 1 for segments that are listed."""
    attempts = {segment.attempt for segment in segments}
    manifest.move(attempts, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED)


def end_attempts(manifest: Manifest, *segments: RemoteSegment) -> list[RemoteSegment]:
    """What is left to do for attempts that are not listed; those that went. To one that is listed nothing is done."""
    attempts = {segment.attempt for segment in segments}
    if any(segment.state != SegmentState.DELETE_STARTED for segment in segments):  # from there no way leads back
        rows = manifest.move(attempts, SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED)
        attempts -= {row.attempt for row in rows if row.state == SegmentState.COPY_FINISHED}
    over = [segment for segment in segments if segment.attempt in attempts]
    for segment in over:
        for suffix in segment.files:
            manifest.remote.delete(manifest.object_key(segment, suffix))
    if over:
        manifest.move(attempts, SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED)
    return over


def leftovers(segments: Segments, *, started_before_ms: int) -> list[RemoteSegment]:
    """Attempts that began before that and are not listed, and removals that broke off."""
    return [
        row
        for row in segments
        if (row.state == SegmentState.COPY_STARTED and row.started_ms < started_before_ms)
        or row.state == SegmentState.DELETE_STARTED
    ]


def remove_leftovers(manifest: Manifest, *, started_before_ms: int) -> list[RemoteSegment]:
    """End what is left over, as the manifest is now. The rows that went.

    An uploader that was only slow loses its work, never a record: it is told, and tries again.
    """
    return end_attempts(manifest, *leftovers(manifest.read(), started_before_ms=started_before_ms))


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
