"""Unique keys as the log itself holds them: read from the headers of its records.

    entries ──> header sections decoded ──> keys in them ──> rows of hashes     to index what was written, or to recover
    offset ──> its entry ──> its header ──> the key itself                      to tell a hash from a key

A record whose first header is `unique-key` holds that key while it is pending, however it came into the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes
from afterlog.index.entries import IndexEntry
from afterlog.index.growing_columns import Int64Array
from afterlog.index.key_rows import KeyRows
from afterlog.log.lookup import find_entries
from afterlog.log.scan import Step, intact_steps, steps
from afterlog.log.segment import ActiveSegment, SealedSegment, Segment
from afterlog.log.version import Version
from afterlog.records import kernels
from afterlog.records.batch import decompressed
from afterlog.records.columns import Ragged
from afterlog.records.header import CONTROL
from afterlog.records.unique_key import hashes_in, key_of, keys_in


def rows_written(data: Bytes, base_offset: int, limit_bytes: int, after_ms: int) -> KeyRows:
    """Of entries that were just made: the records with a unique key that are due after `after_ms`, in offset order."""
    taken = steps([(0, data)], 0, len(data), base_offset, bodies=False)
    return KeyRows.concatenate([_rows(step, limit_bytes, after_ms) for step in taken])


def rows_of_log(
    segments: Iterable[Segment], first: int, end: int, active_end: int, limit_bytes: int, after_ms: int
) -> KeyRows:
    """The same of the offsets from `first` to `end`, sorted. active_end: the byte up to which the active one is read.

    Segments of which all is due by then are not read. Raises CorruptFile.
    """
    parts = []
    for segment in segments:
        stop = active_end
        if isinstance(segment, SealedSegment):
            if segment.end_offset <= first or segment.mark.max_deliver_after <= after_ms or not segment.is_local():
                continue
            stop = segment.size
        if segment.base_offset < end:
            parts += [_rows(step, limit_bytes, after_ms) for step in intact_steps(segment, stop)]
    rows = KeyRows.concatenate(parts)
    return rows.where((rows.offset >= first) & (rows.offset < end)).sorted()


def rows_of_tail(active: ActiveSegment, position: int, offset: int, limit_bytes: int, after_ms: int) -> KeyRows:
    """The same of what lies after the recovery point, which was just read and cut, in offset order."""
    if active.size == position:
        return KeyRows.empty()
    taken = steps([(position, active.tail(position))], position, active.size, offset, bodies=False)
    return KeyRows.concatenate([_rows(step, limit_bytes, after_ms) for step in taken])


def keys_at(version: Version, offsets: Int64Array, limit_bytes: int) -> list[bytes | None]:
    """The unique key of each of some records, visible or not; None where it has none, or is gone. Raises CorruptFile.

    The records are pending, so they are in the folder. Each entry is read once.
    """
    found = find_entries(version.all_written(), offsets)
    if len(offsets) == 1:
        entry, offset = found.entry(0), int(offsets[0])
        if not entry.records:
            return [None]
        segment = next(each for each in reversed(version.segments) if each.base_offset <= offset)
        return [_keys_of_entry(version, segment, entry, limit_bytes)(offset - entry.offset)]
    _, first, which_entry = np.unique(found.offset, return_index=True, return_inverse=True)
    rows_of = np.split(np.argsort(which_entry, kind="stable"), np.cumsum(np.bincount(which_entry))[:-1])
    bases = np.array([segment.base_offset for segment in version.segments])
    which = bases.searchsorted(found.offset[first], "right") - 1
    keys: list[bytes | None] = [None] * len(offsets)
    for row, number, rows in zip(first.tolist(), which.tolist(), rows_of, strict=True):
        held = found.entry(row)
        if held.records:
            of_entry = _keys_of_entry(version, version.segments[number], held, limit_bytes)
            for each in rows.tolist():
                keys[each] = of_entry(int(offsets[each]) - held.offset)
    return keys


def _keys_of_entry(
    version: Version, segment: Segment, entry: IndexEntry, limit_bytes: int
) -> Callable[[int], bytes | None]:
    """What tells the key of a record of an entry, by its place there."""
    end = segment.size if isinstance(segment, SealedSegment) else version.written.position
    if entry.records == 1:
        data = segment.pread(entry.position, end)
        single = kernels.read_single(data, entry.offset, entry.deliver_after)
        if single is not None:
            key = key_of(single[2])
            return lambda place: key
    taken = steps(segment.view(entry.position, end), entry.position, end, entry.offset, limit=1)
    step = next(iter(taken))
    if step.fault or not len(step.found.offset):
        raise CorruptFile(step.fault, path=segment.path, position=step.found.stop)
    offsets, data_of_headers = _headers(step, np.zeros(1, np.int64), limit_bytes)
    return lambda place: key_of(data_of_headers[int(offsets[place]) : int(offsets[place + 1])].tobytes())


def _rows(step: Step, limit_bytes: int, after_ms: int) -> KeyRows:
    """Of the entries of a step."""
    found = step.found
    rows = np.flatnonzero((found.deliver_after > after_ms) & (found.attributes & CONTROL == 0))
    if not len(rows):
        return KeyRows.empty()
    headers = _headers(step, rows, limit_bytes)
    records = found.records[rows]
    row, start, end = keys_in(headers)
    entry = np.repeat(np.arange(len(rows)), records)[row]
    within = row - (np.cumsum(records) - records)[entry]
    hashed = hashes_in(headers[1], start, end)
    return KeyRows(hashed, found.offset[rows][entry] + within, found.deliver_after[rows][entry])


def _headers(step: Step, rows: Int64Array, limit_bytes: int) -> Ragged:
    """The header sections of the records of some entries of a step."""
    found = step.found
    position = found.batch_position[rows] - step.start
    size = (found.size - (found.batch_position - found.position))[rows]
    which = np.zeros(len(rows), np.int32)
    places = decompressed([step.piece], which, position, size, found.attributes[rows], limit_bytes)
    headers: Ragged = kernels.decode_records(*places, found.records[rows]).headers
    return headers
