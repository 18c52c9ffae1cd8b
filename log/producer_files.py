"""The file of a partition's producers: when it is made, made anew and removed, and what expires.

    checkpoint, roll:   states that changed ──> file ──> checkpoints, with the recovery point ──> the one before goes
    recovery:           file ──> and what the tail says
    missing, rotten, stale:   all that the log says ──> file ──> checkpoints

The checkpoints name the file, by its offset and CRC: one that they do not name is a leftover. A partition to which no
producer ever numbered anything has none, and nothing is done for it.

A producer that has appended nothing for `producer_id_expiration_ms`, by the clock of the stamps, is forgotten at the
next checkpoint, and no sooner.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.names import producer_file
from afterlog.index.producer_file import ProducerFileMark, read_producers, write_producers
from afterlog.index.producer_states import ProducerStates, facts, last_ms
from afterlog.log.checkpoints import CheckpointFile, Checkpoints, ProducersMark
from afterlog.log.context import LogContext
from afterlog.log.scan import intact_steps, producers_of_step
from afterlog.log.segment import ActiveSegment, SealedSegment, Segment
from afterlog.log.version import Version, VersionSet
from afterlog.records.producer_sequence import ProducerRows

logger = logging.getLogger("afterlog.log")


class UnsavedProducers(NamedTuple):
    """What is in memory at one end of the log."""

    of: ProducerStates
    states: dict[int, bytes]
    changes: int
    is_stored: bool
    """Whether the file tells of it already."""


class StoredProducers(NamedTuple):
    """What was made durable, and is not yet true in memory."""

    unsaved: UnsavedProducers
    mark: ProducersMark
    expired: dict[int, bytes]


class ProducerFiles:
    """Of one partition: a `SideTable`."""

    def __init__(self, context: LogContext, checkpoints: CheckpointFile, versions: VersionSet) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._versions = versions
        self._stored: StoredProducers | None = None
        self._made = set[int]()
        """The offsets of files that were made since the log was opened, and may still be there."""

    def unsaved(self, version: Version) -> UnsavedProducers | None:
        states = version.producers
        if states is None:
            return None
        return UnsavedProducers(states, states.copy(), states.changes, states.changes == states.stored)

    def saved(self, unsaved: UnsavedProducers | None, end: int, stamp_ms: int) -> dict[str, Any]:
        known = self._checkpoints.current
        self._stored = None
        if unsaved is None or (known.producers is None and unsaved.is_stored):
            return {}
        expired = expired_states(unsaved.states, stamp_ms - self._context.config.producer_id_expiration_ms)
        mark = known.producers or ProducersMark(since=known.recovery.offset, upto=known.recovery.offset)
        mark = replace(mark, upto=end)
        if not unsaved.is_stored:
            left = {each: state for each, state in unsaved.states.items() if each not in expired}
            self._made.add(end)
            mark = replace(mark, file=write(self._context, end, left))
        self._stored = StoredProducers(unsaved, mark, expired)
        return {"producers": mark}

    def reconcile(self) -> None:
        stored, states = self._stored, self._versions.current.producers
        if stored is None or states is None or stored.mark != self._checkpoints.current.producers:
            return
        if states is stored.unsaved.of:  # else the log began anew meanwhile
            states.forget(stored.expired)
            states.stored = max(states.stored, stored.unsaved.changes)
            if states.file is not None:
                self._made.add(states.file.offset)
            states.file = stored.mark.file
        self._stored = None
        self._remove_others()

    def _remove_others(self) -> None:
        mark = self._checkpoints.current.producers
        kept = mark.file.offset if mark is not None and mark.file is not None else -1
        for offset in self._made - {kept}:
            with contextlib.suppress(FileNotFoundError):
                self._context.files.unlink(_path(self._context, offset))
        self._made &= {kept}


def expired_states(states: dict[int, bytes], before_ms: int) -> dict[int, bytes]:
    """Those of producers that appended last before an instant."""
    return {each: state for each, state in states.items() if last_ms(state) < before_ms}


def write(context: LogContext, offset: int, states: dict[int, bytes]) -> ProducerFileMark | None:
    """Make the file of all below an offset; none where there are no producers."""
    return write_producers(context.files, _path(context, offset), offset, states) if states else None


def recovered_producers(
    context: LogContext,
    checkpoints: CheckpointFile,
    sealed: tuple[SealedSegment, ...],
    active: ActiveSegment,
    tail: ProducerRows,
) -> ProducerStates | None:
    """The producers of a log whose torn tail is cut: from the file, made anew where need be, and from the tail.

    None where the checkpoints and the tail say that no producer ever numbered anything.
    """
    known = checkpoints.current
    if known.producers is None and not tail:
        return None
    states = ProducerStates()
    if known.producers is not None:
        states = _stored_states(context, known) or _made_anew(context, checkpoints, sealed, active)
    note(states, tail, context.now_ms())
    return states


def _stored_states(context: LogContext, known: Checkpoints) -> ProducerStates | None:
    """Those of the file; None where it is not what the checkpoints say, or not of the recovery point."""
    mark = known.producers
    if mark is None or mark.upto != known.recovery.offset:
        return None
    if mark.file is None:
        return ProducerStates()
    try:
        path = _path(context, mark.file.offset)
        return ProducerStates(read_producers(context.files, path, mark.file), mark.file)
    except CorruptFile as error:
        logger.warning("%s: %s", error.path, error.message)
        return None


def _made_anew(
    context: LogContext, checkpoints: CheckpointFile, sealed: tuple[SealedSegment, ...], active: ActiveSegment
) -> ProducerStates:
    """The same as the log says, up to the recovery point. Raises CorruptFile of the log."""
    logger.warning("%s: the file of producers is missing or stale; made anew from the log", context.folder)
    known = checkpoints.current
    assert known.producers is not None, "else there is nothing to make anew"
    recovery, found = known.recovery, ProducerStates()
    for rows in rows_of_log((*sealed, active), known.producers.since, recovery.position):
        note(found, rows, context.now_ms())
    states = found.copy()
    for each in expired_states(states, recovery.stamp_ms - context.config.producer_id_expiration_ms):
        del states[each]
    file = write(context, recovery.offset, states)
    checkpoints.update(producers=replace(known.producers, upto=recovery.offset, file=file))
    return ProducerStates(states, file)


def rows_of_log(segments: Iterable[Segment], since: int, active_end: int) -> Iterable[ProducerRows]:
    """What of the log from an offset on a producer has numbered, in chunks. Raises CorruptFile.

    active_end: the byte up to which the active segment is read. What is in object storage alone is not read.
    """
    for segment in segments:
        stop = active_end
        if isinstance(segment, SealedSegment):
            if segment.end_offset <= since or not segment.is_local():
                continue
            stop = segment.size
        for step in intact_steps(segment, stop):
            yield producers_of_step(step)


def note(states: ProducerStates, rows: ProducerRows, now_ms: int) -> None:
    """Note what the log says. now_ms: for what it does not say the time of."""
    stamps = np.where(rows.stamp_ms < 0, now_ms, rows.stamp_ms)
    for row in zip(*(column.tolist() for column in (*rows[:5], stamps)), strict=True):
        states.appended(*row)


def check_producers(version: Version, known: Checkpoints, forgotten_ms: int) -> None:
    """AssertionError where what the log says last of a producer is not what is known of it; reads the log.

    forgotten_ms: who appended nothing since may be forgotten.
    """
    states, mark = version.producers, known.producers
    assert states is not None
    assert mark is not None or states.changes > states.stored or not len(states)
    states.check(version.written.offset)
    since, found = known.recovery.offset if mark is None else mark.since, ProducerStates()
    for rows in rows_of_log(version.segments, since, version.written.position):
        note(found, rows, forgotten_ms)
    ends = [*(segment.end_offset for segment in version.sealed), version.written.offset]
    spans = [
        range(segment.base_offset, end)
        for segment, end in zip(version.segments, ends, strict=True)
        if not segment.has_gaps
    ]
    for producer_id in found.ids():
        expected, state = found.state(producer_id), states.state(producer_id)
        assert expected is not None
        if state is None:
            assert last_ms(expected) <= forgotten_ms, producer_id
        else:
            last = facts(state)[2] - 1
            is_gone = not any(last in span for span in spans)  # retention and cleanings take some from between others
            assert facts(expected) == facts(state) or (last >= facts(expected)[2] and is_gone), producer_id


def _path(context: LogContext, offset: int) -> Path:
    return context.folder / producer_file(offset)
