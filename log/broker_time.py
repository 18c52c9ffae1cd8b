"""Broker time (PIP-70, PIP-345): the first offset that was stamped at or after an instant, the last stamp of a segment.

Broker timestamps never decrease in append order, so the place is found by bisection: over the first entries of the
segments, then over the entries that the offset index of one segment names, and then by a walk through one interval of
it. Only prefixes and batch headers are read, under their own checksum; no record is decoded.

The log must have the prefixes: a delayed topic, or one with the interceptor `AppendBrokerTimestamp`. Entries from
before it had the interceptor count by the latest time of their batch, as in PIP-70: producers' clocks may have let
these decrease, and then it is some entry at or after the instant, and not the first.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from afterlog.base.errors import CorruptFile, InvalidTopic
from afterlog.log.scan import walk
from afterlog.log.segment import SealedSegment, Segment
from afterlog.log.version import End, Visible
from afterlog.records.columns import Int64Array, Scan

_BEYOND = "the offset index names a position beyond the end"
WALK_ENTRIES = 256
"""Entries that the walk looks at in one go; an interval of the offset index seldom holds more."""


def offset_at_broker_time(visible: Visible, ms: int) -> int:
    """The first offset whose broker timestamp is at or after `ms`; the end of the log where there is none.

    Raises InvalidTopic where the newest entries have none, CorruptFile. O(log segments + log entries) reads.
    """
    segments = [segment for segment in visible.segments if _end_of(segment, visible.end)[1]]
    if segments and last_stamp_ms(segments[-1], visible.end) < 0:
        raise InvalidTopic(
            f"entries of {segments[-1].path.name} have no broker timestamp: make the topic with delayed=True, "
            "or give it, or the store, the interceptor AppendBrokerTimestamp"
        )
    later = bisect_left(segments, ms, key=lambda segment: _stamp_at(segment, visible.end, 0))
    found = _walk(segments[later - 1], visible.end, ms) if later else None
    if found is not None:
        return found
    return segments[later].base_offset if later < len(segments) else visible.end.offset


def last_stamp_ms(segment: Segment, end: End) -> int:
    """When the last entry of a segment was appended, and so none of its entries later; -1 where that does not say so.

    Raises CorruptFile. O(an interval of the offset index) reads.
    """
    end_offset, stop = _end_of(segment, end)
    start, stamp_ms = segment.sparse.offsets.floor(end_offset - 1), None
    for found in walk(segment, start, stop, bodies=False):
        stamp_ms = int(found.broker_timestamp[-1])
    if stamp_ms is None:
        raise CorruptFile(_BEYOND, path=segment.path, position=start)
    return stamp_ms


def first_appended_ms(segment: Segment, end: End) -> int:
    """When the first entry of a segment was appended, or, where it does not say, the latest time of its records.

    Raises CorruptFile.
    """
    return _stamp_at(segment, end, 0)


def _walk(segment: Segment, end: End, ms: int) -> int | None:
    """The first offset of the segment stamped at or after `ms`, which its first entry is not; None without any."""
    _, stop = _end_of(segment, end)
    position = _last_indexed_before(segment, end, ms)
    for found in walk(segment, position, stop, bodies=False, limit=WALK_ENTRIES):
        rows = np.flatnonzero(_stamps(found) >= ms)
        if len(rows):
            return int(found.offset[rows[0]])
    return None


def _last_indexed_before(segment: Segment, end: End, ms: int) -> int:
    """The position of the last entry named by the offset index that was stamped before `ms`; 0 without any."""
    end_offset, _ = _end_of(segment, end)
    offsets = range(segment.base_offset, end_offset)
    floor = segment.sparse.offsets.floor
    later = bisect_left(offsets, ms, key=lambda offset: _stamp_at(segment, end, floor(offset)))
    return floor(offsets[later - 1]) if later else 0


def _stamp_at(segment: Segment, end: End, position: int) -> int:
    """The broker timestamp of the entry at `position`, or what stands for it."""
    for found in walk(segment, position, _end_of(segment, end)[1], bodies=False, limit=1):
        return int(_stamps(found)[0])
    raise CorruptFile(_BEYOND, path=segment.path, position=position)


def _stamps(found: Scan) -> Int64Array:
    return np.where(found.broker_timestamp < 0, found.max_timestamp, found.broker_timestamp)


def _end_of(segment: Segment, end: End) -> tuple[int, int]:
    """The offset and the byte position after the segment's last visible entry."""
    if isinstance(segment, SealedSegment):
        return segment.end_offset, segment.size
    return end.offset, end.position
