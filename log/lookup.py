"""Looking records up by append offset: the log itself answers, through its offset indexes.

    offset ── segment by base offset ── page by offset index ── walk over the headers of that page ──> entry

A look-up reads a few KiB, whatever is pending; offsets that lie close share a walk. Nothing is decoded: what an entry's
two headers say is covered by header_crc32c (`records/entry.py`), and bodies are left to who reads them.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.index.entries import Entries, IndexEntry, sort_by_due
from afterlog.index.growing_columns import Int64Array
from afterlog.log.kafka_segment import with_times
from afterlog.log.scan import checked, steps, walk
from afterlog.log.segment import SealedSegment, Segment
from afterlog.log.version import Visible

_NOWHERE = Entries(*np.zeros((4, 1), np.int64))
WALK_BYTES = 1 << 20
"""One walk goes over about so much. Larger: fewer calls where offsets lie close, more memory."""


def find_entries(visible: Visible, offsets: Int64Array) -> Entries:
    """The entries that hold `offsets`, one row for each in the order given; `records` is 0 where there is none.

    Offsets may come in any order and more than once. Raises CorruptFile.
    """
    if len(offsets) == 1:
        return _find_one(visible, int(offsets[0]))
    ordered, rows = sort_by_due(offsets)
    found = np.zeros((4, len(offsets)), np.int64)
    bases = [segment.base_offset for segment in visible.segments]
    bounds = [*ordered.searchsorted(bases).tolist(), len(ordered)]
    for segment, first, last in zip(visible.segments, bounds[:-1], bounds[1:], strict=True):
        end, end_offset = visible.end.position, visible.end.offset
        if isinstance(segment, SealedSegment):
            end, end_offset = segment.size, segment.end_offset
        last = min(last, int(ordered.searchsorted(end_offset)))
        if first < last:
            _find(segment, end, ordered[first:last], found[:, first:last])
    placed = np.empty_like(found)
    placed[:, rows] = found
    return Entries(*placed)


class EntryPlace(NamedTuple):
    """Where an entry lies."""

    segment: Segment
    entry: IndexEntry
    stop: int
    """The byte behind it."""

    def entries(self) -> Entries:
        """The entry, as `find_entries` gives it."""
        return Entries(*np.array([self.entry], np.int64).T.copy())


def _find_one(visible: Visible, offset: int) -> Entries:
    """`find_entries` of one."""
    found = find_one(visible, offset)
    return _NOWHERE if found is None else found.entries()


def find_one(visible: Visible, offset: int) -> EntryPlace | None:
    """Where the entry lies that holds an offset; None: nowhere. Raises CorruptFile."""
    row = bisect_right(visible.segments, offset, key=lambda segment: segment.base_offset) - 1
    if row < 0:
        return None
    segment, (end_offset, end) = visible.segments[row], visible.end
    if isinstance(segment, SealedSegment):
        end, end_offset = segment.size, segment.end_offset
    if offset >= end_offset:
        return None
    start, stop = segment.sparse.offsets.span(offset, end)
    entries = _walk(segment, start, stop)
    row = int(entries.offset.searchsorted(offset, "right")) - 1
    if row < 0 or offset >= int(entries.offset[row]) + int(entries.records[row]):
        if not (segment.foreign or segment.has_gaps):
            raise CorruptFile(f"no batch holds offset {offset}", path=segment.path, position=start)
        return None
    if row + 1 < len(entries):
        stop = int(entries.position[row + 1])
    entry = entries.entry(row)
    return EntryPlace(segment, entry if entry.deliver_after >= 0 else entry._replace(deliver_after=0), stop)


def _find(segment: Segment, end: int, offsets: Int64Array, found: Int64Array) -> None:
    """Fill `found`, int64[4, n], with the entries that hold `offsets`, which ascend and are in the segment."""
    start, stop = segment.sparse.offsets.spans(offsets, end)
    apart = (start[1:] > stop[:-1]) | (start[1:] // WALK_BYTES != start[:-1] // WALK_BYTES)
    bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(offsets)]
    for first, last in pairwise(bounds):
        entries = _walk(segment, int(start[first]), int(stop[last - 1]))
        row = entries.offset.searchsorted(offsets[first:last], "right") - 1
        there = (row >= 0) & (offsets[first:last] < (entries.offset + entries.records)[row])
        if not (segment.foreign or segment.has_gaps or bool(there.all())):
            raise CorruptFile(
                f"no batch holds offset {int(offsets[first])}", path=segment.path, position=int(start[first])
            )
        found[0, first:last] = np.maximum(entries.deliver_after[row], 0)
        found[1, first:last] = entries.offset[row]
        found[2, first:last] = entries.position[row]
        found[3, first:last] = entries.records[row]
        found[:, first:last][:, ~there] = 0


def _walk(segment: Segment, start: int, stop: int) -> Entries:
    """The entries between two bytes at which, by the offset index, entries begin."""
    if segment.foreign_bytes_max is None:
        found = walk(segment, start, stop, bodies=False)
    else:
        taken = with_times(steps(segment.view(start, stop), start, stop, foreign=True), segment.foreign_bytes_max)
        found = (step.found for step in checked(segment, taken, start, segment.base_offset if start == 0 else -1))
    return Entries.concatenate([Entries(one.deliver_after, one.offset, one.position, one.records) for one in found])
