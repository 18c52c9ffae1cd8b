"""Which of many records have expired, by the last header of each: `expiry.py` says what that is."""

from __future__ import annotations

from typing import Final

import numpy as np

from afterlog.base.files import Bytes
from afterlog.records.batch import DELIVER_AFTER
from afterlog.records.columns import Bools, Int64Array, Ragged
from afterlog.records.expiry import EXPIRES_AFTER, SPAN_BYTES
from afterlog.records.varint import zigzag

_FRONT: Final = np.frombuffer(zigzag(len(EXPIRES_AFTER)) + EXPIRES_AFTER.encode() + zigzag(SPAN_BYTES), np.uint8)
_TIME: Final = np.frombuffer(zigzag(len(DELIVER_AFTER)) + DELIVER_AFTER.encode() + zigzag(SPAN_BYTES), np.uint8)
_HEADER_BYTES: Final = len(_FRONT) + SPAN_BYTES
_TIME_BYTES: Final = len(_TIME) + SPAN_BYTES


def lapsed_rows(due: Int64Array, headers: Ragged, topics_ms: int | None, now_ms: int) -> Bools | None:
    """`expiry.has_lapsed` of each, bool[n]; None: of none."""
    rows, span = _spans_in(headers)
    if topics_ms is None and not len(rows):
        return None
    lapsed = np.zeros(len(due), np.bool_) if topics_ms is None else due <= now_ms - topics_ms
    lapsed[rows] |= due[rows] <= now_ms - span
    return lapsed if lapsed.any() else None


def _spans_in(headers: Ragged) -> tuple[Int64Array, Int64Array]:
    """The rows of header sections that end with a span, and the spans, ms."""
    offsets, data = headers
    if len(offsets) < 2 or offsets[-1] - offsets[0] <= _HEADER_BYTES:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    start, end = offsets[:-1], offsets[1:]
    timed = _named(data, start, end - _TIME_BYTES, _TIME)
    at = end - _HEADER_BYTES - np.where(timed, _TIME_BYTES, 0)
    rows = np.flatnonzero(_named(data, start, at, _FRONT))
    spans = data[(at[rows] + len(_FRONT))[:, None] + np.arange(SPAN_BYTES)]
    span = np.ascontiguousarray(spans).view(">i8").ravel().astype(np.int64)
    whole = span >= 0
    return rows[whole], span[whole]


def _named(data: Bytes, start: Int64Array, at: Int64Array, front: Bytes) -> Bools:
    """Which sections have these bytes there, behind their count."""
    found = at > start
    for place, byte in enumerate(front.tolist()):
        found &= data[np.where(found, at + place, 0)] == byte
    return found
