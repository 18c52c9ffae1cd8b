"""Upload of one sealed segment, so that whatever breaks it is listed whole or not at all, and by one uploader only.

    1  measure the files on disk: size, CRC-32C; they are as they were sealed
    2  manifest: a row COPY_STARTED                           the attempt is known, and so is what it may leave behind
    3  put each file under a key of this attempt              data first
    4  verify each object: size, and CRC-32C read back
    5  manifest: the row becomes COPY_FINISHED                the segment is listed
    6  read the manifest back                                 only now may the local copy go

    where another attempt is listed by then: the row becomes DELETE_STARTED, the objects go, the row goes

A crash or an error between any two steps leaves a row that is not COPY_FINISHED: nobody reads it, `scrub` names it, and
`remove_leftovers` ends it. To go on, call again with a new attempt: an attempt is never used twice, so that whoever
deletes what is left of one can hit no other. A segment that is listed already is not uploaded again.

The manifest decides every race, because it changes by conditional put only. An uploader that was taken for dead finds
its row moved to DELETE_STARTED and cannot finish. What it puts after its objects were deleted belongs to no row, which
`scrub` names; a row always comes before its objects, so objects without one are nobody's.

That a listed segment is this one is told by its log: bounds, size and CRC-32C. Where they differ the bucket belongs to
another log, and the upload is refused: else the local copy would go for a listing of other people's records.
"""

from __future__ import annotations

import contextlib

from afterlog.errors import CorruptRemote, RemoteConflict, RemoteError, RemoteMissing
from afterlog.files import map_file
from afterlog.tier.manifest import Manifest, Segments, find
from afterlog.tier.remote_segment import RemoteSegment, SegmentFiles, SegmentState
from afterlog.tier.remove import end_attempt
from afterlog.tier.verify import verify_segment


def upload(manifest: Manifest, segment: SegmentFiles, *, attempt: str, now_ms: int) -> RemoteSegment:
    """Upload the segment, unless it is there; the row that lists it, which may be another attempt's.

    `attempt`: `files.unused_name()`. CorruptFile: the local files are not as they were sealed. CorruptRemote: the
    storage holds other bytes than it was given; they are removed. RemoteConflict: the bucket lists another log's
    records at these offsets, or somebody gave this attempt up. RemoteUnavailable, RemoteRefused, StorageFull: call
    again later.
    """
    ours = RemoteSegment(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        attempt=attempt,
        state=SegmentState.COPY_STARTED,
        started_ms=now_ms,
        max_deliver_after=segment.max_deliver_after,
        max_timestamp=segment.max_timestamp,
        files=segment.measured(),
    )
    listed = _listed(manifest, manifest.update(lambda rows: _started(manifest, rows, ours)), ours)
    if listed is not None:
        return listed
    for suffix, path in segment.paths.items():
        manifest.remote.put(manifest.object_key(ours, suffix), map_file(segment.files, path))
    try:
        verify_segment(manifest, ours)
    except (CorruptRemote, RemoteMissing):
        with contextlib.suppress(RemoteError):  # what is left is found by a scrub
            end_attempt(manifest, ours)
        raise
    return _finish(manifest, ours)


def _finish(manifest: Manifest, ours: RemoteSegment) -> RemoteSegment:
    manifest.update(lambda rows: _finished(manifest, rows, ours))
    listed = _listed(manifest, manifest.read(), ours)
    if listed is None or listed.attempt != ours.attempt:
        end_attempt(manifest, ours)
    if listed is None:
        raise RemoteConflict("somebody gave this attempt up: try again", path=manifest.key)
    return listed


def _started(manifest: Manifest, rows: Segments, ours: RemoteSegment) -> Segments:
    if _listed(manifest, rows, ours) is not None or find(rows, ours.attempt) is not None:
        return rows
    return (*rows, ours)


def _finished(manifest: Manifest, rows: Segments, ours: RemoteSegment) -> Segments:
    row = find(rows, ours.attempt)
    if row is None or row.state != SegmentState.COPY_STARTED:
        return rows
    lost = _listed(manifest, rows, ours) is not None
    moved = row.moved_to(SegmentState.DELETE_STARTED if lost else SegmentState.COPY_FINISHED)
    return (*(other for other in rows if other is not row), moved)


def _listed(manifest: Manifest, rows: Segments, ours: RemoteSegment) -> RemoteSegment | None:
    """The row that lists our segment. RemoteConflict where one lists other bytes at its offsets."""
    for row in rows:
        if row.state == SegmentState.COPY_FINISHED and row.overlaps(ours):
            if not row.has_the_log_of(ours):
                raise RemoteConflict(
                    f"offsets {row.base_offset} to {row.end_offset} hold other bytes: is this another log's bucket?",
                    path=manifest.key,
                )
            return row
    return None
