"""The file of a partition's origins: when it is made, made anew and removed.

    checkpoint, roll:   rows that changed ──> file ──> checkpoints, with the recovery point ──> the one before goes
    recovery:           file ──> and what the tail says
    missing, rotten, stale:   the highest, which the checkpoints say ──> all rows that the log says ──> file

A `SideTable` as that of producers is. The checkpoints name the file, and say the highest offset of each origin by
themselves: what retention took is not in the log any more, and must not be replicated again. A partition to which
nothing was ever replicated has none of this, and nothing is done for it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.names import origin_file
from afterlog.index.origin_file import StoredOrigins, read_origins, write_origins
from afterlog.index.origin_index import OriginIndex
from afterlog.log.checkpoints import CheckpointFile, Checkpoints, OriginsMark
from afterlog.log.context import LogContext
from afterlog.log.scan import intact_steps, origins_of_step
from afterlog.log.segment import ActiveSegment, SealedSegment, Segment
from afterlog.log.version import Version, VersionSet
from afterlog.records.entry_origin import Origins

logger = logging.getLogger("afterlog.log")


class UnsavedOrigins(NamedTuple):
    """What is in memory at one end of the log."""

    of: OriginIndex
    origins: StoredOrigins
    changes: int
    is_stored: bool
    """Whether the file tells of it already."""


class _MadeDurable(NamedTuple):
    """What was made durable, and is not yet true in memory."""

    unsaved: UnsavedOrigins
    mark: OriginsMark


class OriginFiles:
    """Of one partition: a `SideTable`."""

    def __init__(self, context: LogContext, checkpoints: CheckpointFile, versions: VersionSet) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._versions = versions
        self._stored: _MadeDurable | None = None
        self._made = set[int]()
        """The offsets of files that were made since the log was opened, and may still be there."""

    def unsaved(self, version: Version) -> UnsavedOrigins | None:
        index = version.origins
        if index is None:
            return None
        stored = index.stored_from(version.log_start_offset)
        return UnsavedOrigins(index, stored, index.changes, index.changes == index.stored)

    def saved(self, unsaved: UnsavedOrigins | None, end: int, stamp_ms: int) -> dict[str, Any]:
        known = self._checkpoints.current.origins
        self._stored = None
        if unsaved is None:
            return {}
        highest = tuple(unsaved.origins.upcoming.items())
        file = None if known is None else known.file
        if file is None or not unsaved.is_stored:
            self._made.add(end)
            file = write_origins(self._context.files, _path(self._context, end), end, unsaved.origins)
        mark = OriginsMark(highest=highest, upto=end, file=file)
        self._stored = _MadeDurable(unsaved, mark)
        return {"origins": mark}

    def reconcile(self) -> None:
        stored, index = self._stored, self._versions.current.origins
        if stored is None or index is None or stored.mark != self._checkpoints.current.origins:
            return
        if index is stored.unsaved.of:  # else the log began anew meanwhile
            index.stored = max(index.stored, stored.unsaved.changes)
            if index.file is not None:
                self._made.add(index.file.offset)
            index.file = stored.mark.file
        self._stored = None
        self._remove_others()

    def _remove_others(self) -> None:
        mark = self._checkpoints.current.origins
        kept = mark.file.offset if mark is not None and mark.file is not None else -1
        for offset in self._made - {kept}:
            with contextlib.suppress(FileNotFoundError):
                self._context.files.unlink(_path(self._context, offset))
        self._made &= {kept}


def recovered_origins(
    context: LogContext,
    checkpoints: CheckpointFile,
    sealed: tuple[SealedSegment, ...],
    active: ActiveSegment,
    tail: tuple[Origins, ...],
) -> OriginIndex | None:
    """The origins of a log whose torn tail is cut: from the file, made anew where need be, and from the tail.

    None where the checkpoints and the tail say that nothing was ever replicated.
    """
    known = checkpoints.current
    if known.origins is None and not tail:
        return None
    index = OriginIndex()
    if known.origins is not None:
        index = _stored_index(context, known) or _made_anew(context, checkpoints, sealed, active)
    for each in tail:
        note(index, each)
    return index


def _stored_index(context: LogContext, known: Checkpoints) -> OriginIndex | None:
    """That of the file; None where it is not what the checkpoints say, or not of the recovery point."""
    mark = known.origins
    if mark is None or mark.file is None or mark.upto != known.recovery.offset:
        return None
    try:
        return OriginIndex(read_origins(context.files, _path(context, mark.file.offset), mark.file), mark.file)
    except CorruptFile as error:
        logger.warning("%s: %s", error.path, error.message)
        return None


def _made_anew(
    context: LogContext, checkpoints: CheckpointFile, sealed: tuple[SealedSegment, ...], active: ActiveSegment
) -> OriginIndex:
    """The same as the log says, up to the recovery point. Raises CorruptFile of the log."""
    logger.warning("%s: the file of origins is missing or stale; made anew from the log", context.folder)
    known = checkpoints.current
    assert known.origins is not None, "else there is nothing to make anew"
    found = OriginIndex()
    for each in origins_of_log((*sealed, active), known.recovery.position):
        note(found, each)
    # What repair has cut off is replicated again; of what retention took only the checkpoints know.
    highest = {**found.highest(), **dict(known.origins.highest), **found.highest()}
    stored = found.stored_from(0)._replace(upcoming=highest)
    file = write_origins(context.files, _path(context, known.recovery.offset), known.recovery.offset, stored)
    mark = OriginsMark(highest=tuple(stored.upcoming.items()), upto=known.recovery.offset, file=file)
    checkpoints.update(origins=mark)
    return OriginIndex(stored, file)


def origins_of_log(segments: Iterable[Segment], active_end: int) -> Iterable[Origins]:
    """What of the log was replicated, in chunks. Raises CorruptFile.

    active_end: the byte up to which the active segment is read. What is in object storage is read from there.
    """
    for segment in segments:
        stop = segment.size if isinstance(segment, SealedSegment) else active_end
        for step in intact_steps(segment, stop):
            yield origins_of_step(segment.path, step)


def note(index: OriginIndex, origins: Origins) -> None:
    """Note what the log says."""
    rows = origins.rows
    for row in range(len(rows.offset)):
        one = rows.where(slice(row, row + 1))
        index.note(origins.names[int(one.origin[0])], one)
    for awaited in origins.awaited:
        index.note_awaited(*awaited)


def check_origins(version: Version) -> None:
    """AssertionError where what the log says is not what is known of it; reads the log."""
    index = version.origins
    assert index is not None
    index.check(version.written.offset)
    found = OriginIndex()
    for each in origins_of_log(version.segments, version.written.position):
        note(found, each)
    ends = [*(segment.end_offset for segment in version.sealed), version.written.offset]
    spans = zip(version.segments, ends, strict=True)  # what retention took between them is not in the log any more
    whole = [np.arange(segment.base_offset, end) for segment, end in spans if not segment.has_gaps]
    offsets = np.concatenate(whole)
    (number, there), (said, said_there) = index.origins(offsets), found.origins(offsets)
    assert np.array_equal(there, said_there)
    assert np.array_equal(np.array([*index.names, ""])[number], np.array([*found.names, ""])[said])


def _path(context: LogContext, offset: int) -> Path:
    return context.folder / origin_file(offset)
