"""Which of many records have expired, by the last header of each: `expiry.py` says what that is."""

from __future__ import annotations

from typing import Final

import numpy as np

from afterlog.base.clock import INT64_MAX
from afterlog.base.files import Bytes
from afterlog.records.batch import DELIVER_AFTER
from afterlog.records.columns import Bools, Int64Array, Ragged
from afterlog.records.expiry import EXPIRES_AFTER, SPAN_BYTES
from afterlog.records.varint import zigzag

_FRONT: Final = np.frombuffer(zigzag(len(EXPIRES_AFTER)) + EXPIRES_AFTER.encode() + zigzag(SPAN_BYTES), np.uint8)
_TIME: Final = np.frombuffer(zigzag(len(DELIVER_AFTER)) + DELIVER_AFTER.encode() + zigzag(SPAN_BYTES), np.uint8)
_HEADER_BYTES: Final = len(_FRONT) + SPAN_BYTES
_TIME_BYTES: Final = len(_TIME) + SPAN_BYTES
_NO_ROWS: Final = np.empty(0, np.int64)


def lapsed_rows(due: Int64Array, headers: Ragged, topics_ms: int | None, now_ms: int) -> Bools | None:
    """Which records are of no use any more by now, bool[n]; None: none of them."""
    rows, span = _spans_in(headers)
    if topics_ms is None and not len(rows):
        return None
    lapsed = np.zeros(len(due), np.bool_) if topics_ms is None else due <= now_ms - topics_ms
    lapsed[rows] |= due[rows] <= now_ms - span
    return lapsed if lapsed.any() else None


def first_lapse_ms(due: Int64Array, headers: Ragged, topics_ms: int | None) -> int:
    """When the first of some records is of no use any more; INT64_MAX: none ever is."""
    rows, span = _spans_in(headers)
    first_ms = INT64_MAX if topics_ms is None or not len(due) else int(due.min()) + topics_ms
    if len(rows):
        first_ms = min(first_ms, int((due[rows] + np.minimum(span, INT64_MAX - due[rows])).min()))
    return min(first_ms, INT64_MAX)


def _spans_in(headers: Ragged) -> tuple[Int64Array, Int64Array]:
    """The rows of header sections that end with a span, and the spans, ms."""
    offsets, data = headers
    if len(offsets) < 2 or offsets[-1] - offsets[0] <= _HEADER_BYTES:
        return _NO_ROWS, _NO_ROWS
    start, end = offsets[:-1], offsets[1:]
    rows = np.flatnonzero(end - start > _HEADER_BYTES)
    rows = rows[data[end[rows] - SPAN_BYTES - 1] == _FRONT[-1]]  # which as a rule leaves none
    if not len(rows):
        return rows, _NO_ROWS
    start, end = start[rows], end[rows]
    at = end - _HEADER_BYTES - np.where(_named(data, start, end - _TIME_BYTES, _TIME), _TIME_BYTES, 0)
    named = _named(data, start, at, _FRONT)
    rows, at = rows[named], at[named] + len(_FRONT)
    span = np.ascontiguousarray(data[at[:, None] + np.arange(SPAN_BYTES)]).view(">i8").ravel().astype(np.int64)
    whole = span >= 0
    return rows[whole], span[whole]


def _named(data: Bytes, start: Int64Array, at: Int64Array, front: Bytes) -> Bools:
    """Which sections have these bytes there, behind their count."""
    found = at > start
    for place, byte in enumerate(front.tolist()):
        found &= data[np.where(found, at + place, 0)] == byte
    return found
