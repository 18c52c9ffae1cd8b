"""Slices of another cluster's log, appended here as far as they are not here yet.

    slice ──> entries, checked ──┬──> batches ────────────────────────────> appended, each once
                                 ├──> CANCEL ──> its targets, found here ──> a CANCEL of what is pending of them
                                 ├──> RESCHEDULE ──> the same, with its follower, in one write
                                 └──> targets that are still on their way from a third log ──> awaited

A target is known by where it was appended first: in the log of the slice, in this one, or in a third (`targets` of
`afterlog.records.origin_slice`). All of it can be done again: what is here is not appended twice, what is cancelled is
not cancelled twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import InvalidBatch, RecordTooLarge, ReplicationDiverged
from afterlog.base.files import Bytes
from afterlog.log.partition_log import PartitionLog
from afterlog.log.replicated_appends import ReplicatedAppends
from afterlog.records.columns import Int64Array, Scan, view_of
from afterlog.records.control import TARGETED, Controls, ControlType, Note, read_controls
from afterlog.records.encode import EncodedBatches
from afterlog.records.entry import decode_entry
from afterlog.records.origin_slice import OriginSlice, batches_of, entries_of
from afterlog.records.part import entries_without


def upcoming_of(log: PartitionLog, origin: str) -> int:
    """The offset of an origin after the highest that was appended here; 0 where nothing was."""
    index = log.version.origins
    return 0 if index is None else index.upcoming(origin)


Heard = Callable[[Note], None]
"""Is told of markers, with all in front of them appended."""


def receive_slice(log: PartitionLog, own: str, given: OriginSlice, heard: Heard | None = None) -> int:
    """Append what is not here of a slice; how many records. Returns when it is durable, whatever the durability.

    Whoever copies goes on behind it: what a power cut took here afterwards would never come again.

    own: what this log calls itself. heard: who is told of markers. Raises InvalidBatch where it
    is no slice, ReplicationDiverged where that log is after what was replicated from it, RecordTooLarge, and as
    `PartitionLog.replicate`: some of it may be there then.
    """
    if given.origin == own:
        raise InvalidBatch("a log takes no slices of itself: give two clusters, and of a copied store only one")
    upcoming = upcoming_of(log, given.origin)
    if upcoming > given.end:
        raise ReplicationDiverged(
            f"{log.context.folder.name} has offsets of {given.origin} up to {upcoming - 1}, and that log ends at"
            f" {given.end}: it was put back to an earlier state; make the topic there anew, under its name"
        )
    return _Receiving(log, own, given, heard).done()


class _FoundTargets(NamedTuple):
    """What a control batch has cancelled, as far as it is here: append offsets, and what is not here yet."""

    here: Int64Array
    awaited: dict[str, Int64Array]


class _Receiving:
    """A slice on its way in."""

    def __init__(self, log: PartitionLog, own: str, given: OriginSlice, heard: Heard | None) -> None:
        self._log = log
        self._own = own
        self._given = given
        self._heard = heard
        self._limit_bytes = log.context.config.decompressed_bytes_max
        self._data: Bytes = given.entries

    def done(self) -> int:
        found = entries_of(self._data)
        awaited = self._awaited()
        if len(awaited) and len(found.offset):
            self._leave_out(found, awaited)
            found = entries_of(self._data)
        records = sum(self._stretches(found)) if len(found.offset) else 0
        self._log.commit.sync()
        return records

    def _stretches(self, found: Scan) -> Iterator[int]:
        """Control batches one by one, and what lies between them; how many records each time."""
        controls = read_controls(self._data, found)
        notes = {note.offset: note for note in controls.notes}
        first = 0
        for row, kind in zip(controls.row.tolist(), controls.type.tolist(), strict=True):
            yield self._append(found, first, row)
            first = row + 1
            is_followed = first < len(found.offset) and found.offset[first] == found.offset[row] + 1
            if kind == ControlType.RESCHEDULE and is_followed:  # else that was cancelled since
                yield self._reschedule(found, controls, row)
                first += 1
            elif kind in TARGETED:
                self._cancel(found, controls, row)
            else:
                self._hear(notes[int(found.offset[row])])
        yield self._append(found, first, len(found.offset))

    def _hear(self, note: Note) -> None:
        """And keep it, so that it is not heard again. Where a crash comes first it is: that does no harm."""
        origin = self._given.origin
        if note.offset >= upcoming_of(self._log, origin):
            if self._heard is not None:
                self._heard(note)
            self._log.replicate(lambda appends: appends.note(note.type, note.value, origin, note.offset))

    def _append(self, found: Scan, first: int, last: int) -> int:
        if first == last:
            return 0
        rows = np.arange(first, last)
        batches = self._batches(found, rows)
        return self._log.replicate(lambda appends: appends.append(batches, self._given.origin, found.offset[rows]))

    def _cancel(self, found: Scan, controls: Controls, row: int) -> None:
        targets, offset = self._targets(found, controls, row), int(found.offset[row])
        entries = self._log.find(targets.here, self._log.pin())

        def cancel(appends: ReplicatedAppends) -> None:
            self._await(appends, targets)
            appends.cancel(entries, targets.here, self._given.origin, offset)

        self._log.replicate(cancel)

    def _reschedule(self, found: Scan, controls: Controls, row: int) -> int:
        """With what follows it."""
        targets, offset = self._targets(found, controls, row), int(found.offset[row])
        entries = self._log.find(targets.here, self._log.pin())
        follower = self._batches(found, np.array([row + 1]))

        def reschedule(appends: ReplicatedAppends) -> int:
            self._await(appends, targets)
            return appends.reschedule(entries, targets.here, follower, self._given.origin, offset)

        return self._log.replicate(reschedule)

    def _await(self, appends: ReplicatedAppends, targets: _FoundTargets) -> None:
        for origin, offsets in targets.awaited.items():
            appends.cancel_awaited(origin, offsets)

    def _batches(self, found: Scan, rows: Int64Array) -> EncodedBatches:
        batches = batches_of(self._data, found, rows, self._limit_bytes)
        largest, most = int(np.diff(batches.positions).max()), self._log.context.config.batch_bytes_max
        if largest > most:
            raise RecordTooLarge(f"a batch of {largest} bytes from another cluster; batch_bytes_max is {most} here")
        return batches

    def _targets(self, found: Scan, controls: Controls, row: int) -> _FoundTargets:
        """Of one control batch."""
        offset = int(found.offset[row])
        cancelled = controls.cancelled
        there = cancelled.target[cancelled.control == offset]
        listed, names = self._given.targets, self._given.names
        order = np.argsort(listed.offset, kind="stable")
        at = listed.offset[order].searchsorted(there)
        known = np.flatnonzero(at < len(order))
        known = known[listed.offset[order[at[known]]] == there[known]]
        name, origin_offset = np.zeros(len(there), np.int64), there.copy()
        name[known], origin_offset[known] = listed.name[order[at[known]]], listed.origin_offset[order[at[known]]]
        here, awaited = list[Int64Array](), dict[str, Int64Array]()
        for number in np.unique(name).tolist():
            of_it = origin_offset[name == number]
            found_here = self._here(names[number], of_it)
            here.append(found_here[found_here >= 0])
            if names[number] not in (self._own, self._given.origin):
                late = of_it[found_here < 0]
                late = late[late >= upcoming_of(self._log, names[number])]
                if len(late):
                    awaited[names[number]] = late
        return _FoundTargets(np.unique(np.concatenate(here)), awaited)

    def _here(self, origin: str, origin_offset: Int64Array) -> Int64Array:
        """The append offsets of records here; -1 where there is none."""
        index = self._log.version.origins
        if origin == self._own:
            there = origin_offset < self._log.written
            if index is not None:
                there &= index.origins(origin_offset)[0] < 0
            return np.where(there, origin_offset, -1)
        return np.full(len(origin_offset), -1) if index is None else index.here(origin, origin_offset)

    def _awaited(self) -> Int64Array:
        """What of it is not to come: offsets there, ascending."""
        index = self._log.version.origins
        return np.empty(0, np.int64) if index is None else index.awaited(self._given.origin)

    def _leave_out(self, found: Scan, awaited: Int64Array) -> None:
        """Go on with the slice without some records."""
        behind = found.offset + found.records
        first, last = awaited.searchsorted(found.offset), awaited.searchsorted(behind)
        view, parts, start = view_of(self._data), list[bytes | memoryview](), 0
        for row in np.flatnonzero(first < last).tolist():
            position = int(found.position[row])
            parts.append(view[start:position])
            left_out = awaited[first[row] : last[row]].tolist()
            parts += entries_without(view, decode_entry(view, position), left_out, self._limit_bytes)
            start = position + int(found.size[row])
        parts.append(view[start:])
        self._data = np.frombuffer(b"".join(parts), np.uint8)
