"""What another cluster gets of a log: slices of what was appended to this one first (`afterlog.records.origin_slice`).

    offset ──> behind what came from elsewhere ──> a step of entries ──> those of here, but what is cancelled or gone
       ^                                                                    └──> as they lie, one after another
       └──────────────────── until there are bytes enough, or all that is safe was looked at

Records that are cancelled are left out: who gets them late would find them due, and be too late to cancel them. Of a
batch in which some are left the others go as entries of their own (`records/part.py`). What retention or a purge has
put out of reach is not given any more, and the slice says so; what the log says to itself alone is not given. A
RESCHEDULE comes with its follower.
"""

from __future__ import annotations

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes
from afterlog.fetch.append_order import next_base, segment_of
from afterlog.index.cancel_index import Cancelled
from afterlog.index.growing_columns import Int64Array
from afterlog.log.partition_log import PartitionLog
from afterlog.log.scan import Step, steps
from afterlog.log.segment import SealedSegment
from afterlog.records.columns import Bools, Scan, view_of
from afterlog.records.control import OWN, ControlType, read_controls
from afterlog.records.entry import decode_entry
from afterlog.records.origin_slice import NO_TARGETS, OriginSlice, Targets
from afterlog.records.part import entries_without

STEP_ENTRIES = 4_096
"""Entries looked at a time. Larger: fewer calls; more that is looked at and not given."""


def read_slice(log: PartitionLog, origin: str, first: int, max_bytes: int) -> OriginSlice:
    """What the log had first, from an offset on: about so many bytes, or one entry that is larger.

    origin: what the log calls itself. All of it is safe from a power cut: nothing else may take its offsets afterwards.
    Raises CorruptFile, StoreClosed, and as `Commit.usable`.
    """
    making = _Slice(log, first)
    while making.goes_on(max_bytes):
        making.look(max_bytes - making.size)
    return making.made(origin, first)


class _Slice:
    """One in the making."""

    def __init__(self, log: PartitionLog, first: int) -> None:
        self._version = log.pin()  # before the sync, which then has all of it
        log.commit.make_delivered_durable()
        self._visible = self._version.readable()
        self._end = self._visible.end.offset
        self._limit_bytes = log.context.config.decompressed_bytes_max
        self._parts = list[Bytes]()
        self._cancelled = list[Cancelled]()
        self._position = max(first, self._version.log_start_offset)
        self._gone_upto = self._position if self._position > first else 0
        """Behind the last that is out of reach, and that nobody may have cancelled."""
        self._follows = False
        """Whether a RESCHEDULE came last."""
        self.size = 0

    def goes_on(self, max_bytes: int) -> bool:
        return self._position < self._end and (self.size < max_bytes or self._follows)

    def look(self, room: int) -> None:
        """At a step of entries, of which one is given, or as many as there is room for."""
        origins = self._version.origins
        self._position = self._position if origins is None else min(origins.own_from(self._position), self._end)
        step = self._step()
        if step is None:
            return
        found = step.found.moved(-step.start)
        controls = read_controls(step.piece, found)
        is_gone, begun = self._is_gone(found), self._position
        is_given = self._is_own(found) & ~is_gone
        is_given[controls.row[np.isin(controls.type, OWN)]] = False
        given = np.flatnonzero(is_given)
        kinds = dict(zip(controls.row.tolist(), controls.type.tolist(), strict=True))
        fits = max(int(np.cumsum(found.size[given]).searchsorted(room, side="right")), 1)
        while fits < len(given) and kinds.get(int(given[fits - 1])) == ControlType.RESCHEDULE:
            fits += 1
        if fits < len(given):
            self._position = int(found.offset[given[fits]])
            self._follows = False
        else:
            self._position = found.end_offset
            self._follows = kinds.get(len(found.offset) - 1) == ControlType.RESCHEDULE
        self._note_gone(found, is_gone, begun)
        self._cancelled.append(controls.cancelled.before(self._position))
        self._take(step.piece, found, given[:fits])

    def made(self, origin: str, first: int) -> OriginSlice:
        names, targets = self._named(origin)
        data = np.concatenate(self._parts) if self._parts else np.empty(0, np.uint8)
        upto = max(min(self._position, self._end), min(first, self._end))
        return OriginSlice(names, min(first, self._end), upto, self._end, targets, data, min(self._gone_upto, upto))

    def _step(self) -> Step | None:
        """The entries from the one on that holds the position, some of one segment. None: look again, or at the end."""
        if self._position >= self._end:
            return None
        segment = segment_of(self._visible.segments, self._position)
        stop = segment.size if isinstance(segment, SealedSegment) else self._visible.end.position
        start = segment.sparse.offsets.floor(self._position)
        taken = segment.view(start, stop)
        for step in steps(taken, start, stop, bodies=False, limit=STEP_ENTRIES, gaps=segment.has_gaps):
            if step.fault:
                raise CorruptFile(step.fault, path=segment.path, position=step.found.stop)
            if step.found.end_offset > self._position:
                return step
        # A gap that a repair or a cleaning left after the segment.
        is_last = segment is self._visible.segments[-1]
        self._position = self._end if is_last else next_base(self._visible.segments, self._position)
        self._gone_upto = self._position
        return None

    def _is_own(self, found: Scan) -> Bools:
        """Which entries are from here on, and from here."""
        own = found.offset + found.records > self._position
        if self._version.origins is not None:
            own &= self._version.origins.origins(found.offset)[0] < 0
        return np.asarray(own)

    def _is_gone(self, found: Scan) -> Bools:
        """Which are before the log start in delivery order."""
        gone, due = self._version.log_start.key, found.deliver_after
        later = (due > gone.deliver_after) | ((due == gone.deliver_after) & (found.offset > gone.offset))
        return np.asarray(~later & (due >= 0))  # -1 in a FIFO log, where only whole segments go

    def _note_gone(self, found: Scan, is_gone: Bools, begun: int) -> None:
        """Of the entries from `begun` to the position."""
        behind = found.offset + found.records
        gaps = found.offset > np.maximum(np.append(0, behind[:-1]), begun)  # that a cleaning left in the segment
        upto = np.where(gaps, found.offset, np.where(is_gone, behind, 0))
        looked_at = (behind > begun) & (found.offset <= self._position)  # a gap before the next one is of this slice
        self._gone_upto = max(self._gone_upto, int(upto[looked_at].max(initial=0)))

    def _take(self, piece: Bytes, found: Scan, rows: Int64Array) -> None:
        """Entries as they lie; of those of which records are cancelled what is left."""
        cancelled = self._cancelled_records(found, rows)
        if not len(cancelled):
            self._join(piece, found, rows)
            return
        behind = found.offset[rows] + found.records[rows]
        first, last = cancelled.searchsorted(found.offset[rows]), cancelled.searchsorted(behind)
        start = 0
        for row in np.flatnonzero(first < last).tolist():
            self._join(piece, found, rows[start:row])
            entry = decode_entry(piece, int(found.position[rows[row]]))
            left_out = cancelled[first[row] : last[row]].tolist()
            for part in entries_without(view_of(piece), entry, left_out, self._limit_bytes):
                self._add(np.frombuffer(part, np.uint8))
            start = row + 1
        self._join(piece, found, rows[start:])

    def _join(self, piece: Bytes, found: Scan, rows: Int64Array) -> None:
        """Entries that lie one after another are one slice of the piece."""
        if not len(rows):
            return
        start, end = found.position[rows], found.position[rows] + found.size[rows]
        apart = np.flatnonzero(start[1:] != end[:-1])
        firsts, lasts = start[np.append(0, apart + 1)], end[np.append(apart, len(rows) - 1)]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            self._add(piece[first:last])

    def _add(self, data: Bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def _cancelled_records(self, found: Scan, rows: Int64Array) -> Int64Array:
        """The offsets of records in these entries that are cancelled, ascending."""
        targets = self._version.cancellations.targets
        if not targets.count or not len(rows):
            return np.empty(0, np.int64)
        records = found.records[rows]
        before: Int64Array = records.cumsum() - records
        place = np.repeat(found.offset[rows] - before, records) + np.arange(int(records.sum()))
        return place[targets.holds(np.repeat(found.deliver_after[rows], records), place)]

    def _named(self, origin: str) -> tuple[tuple[str, ...], Targets]:
        """The names of a slice, and where those came from that its control batches have cancelled."""
        target, index = Cancelled.concatenate(self._cancelled).of_records().target, self._version.origins
        if index is None or not len(target):
            return (origin,), NO_TARGETS
        number, there = index.origins(target)
        elsewhere = number >= 0
        used, name = np.unique(number[elsewhere], return_inverse=True)
        names = (origin, *(index.names[each] for each in used.tolist()))
        return names, Targets(target[elsewhere], name + 1, there[elsewhere])
