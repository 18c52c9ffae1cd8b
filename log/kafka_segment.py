"""Reading the segment of a Kafka broker: a `.log` as it writes it, batches v2 one behind another, and no prefix.

    scan: headers, CRCs ──> batches ──> decompress, decode ──> deliver_after of each ──> the same Stretch as of our logs

What differs from a log of ours:

- A batch has the leader epoch that the broker stamped, any.
- No prefix says when a batch is due. Its `deliver-after` record headers do, as on produce (`batches.parse`): the batch
  is due with the latest of them, and without any, as soon as possible, which is 0 here.
- Offsets may have gaps where compaction took whole batches, or a transaction was aborted; they never fall. What took
  single records out of a batch (compaction again) is refused: entries count records by offsets.
- Control batches (transaction markers) are entries like others, due at once. Who reads them steps over them.

Kafka's CRC does not cover base offset and length. A wrong length breaks the walk; a wrong offset is seen where offsets
fall, and cannot be told from a gap where they rise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from crc32c import crc32c

from afterlog.errors import InvalidBatch, InvalidDeliverAfter
from afterlog.files import Bytes, Files, map_file
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Entries
from afterlog.log.scan import Advance, Stretch, unheard
from afterlog.records import kernels
from afterlog.records.batch import decompressed
from afterlog.records.columns import Int64Array, view_of
from afterlog.records.header import CRC_END, HEADER_BYTES, MAGIC_2, BatchHeader

COMPACTED = "compaction took records out of the batch: give it a copy of the topic that is not compacted"
_STEP_ENTRIES = 1 << 16
_STEP_BYTES = 8 << 20
"""Batches decoded at a time, as stored. Larger: fewer calls, more memory."""


def read_plain(files: Files, path: Path, base_offset: int, *, limit_bytes: int, advance: Advance = unheard) -> Stretch:
    """The entries of the segment up to the first that cannot be taken. `limit_bytes` bounds a decompressed batch.

    FileNotFoundError.
    """
    data = map_file(files, path)
    parts: list[tuple[Int64Array, kernels.Scan]] = []
    position, offset, fault = 0, base_offset, ""
    while position < len(data) and not fault:
        scan = kernels.scan_entries(data, position, len(data), -1, True, _STEP_ENTRIES, True)
        fault = _fault_of(data, scan)
        scan, fault = _rising(scan, offset, fault)
        deliver_after, fault = _deliver_after(data, scan, limit_bytes, fault)
        scan = _first(scan, len(deliver_after))
        parts.append((deliver_after, scan))
        advance(scan.stop - position)
        if len(deliver_after):
            position, offset = scan.stop, int(scan.offset[-1] + scan.records[-1])
    advance(len(data) - position)

    def column(name: str) -> Int64Array:
        return np.concatenate([np.empty(0, np.int64), *(getattr(scan, name) for _, scan in parts)])

    due = np.concatenate([np.empty(0, np.int64), *(deliver_after for deliver_after, _ in parts)])
    return Stretch(
        path=path,
        base_offset=base_offset,
        entries=Entries(np.maximum(due, 0), column("offset"), column("position"), column("records")),
        max_timestamp=column("max_timestamp"),
        size=len(data),
        stop=position,
        end_offset=offset,
        stamp_ms=0,
        fault=fault,
        cancelled=Cancelled.empty(),
    )


def _fault_of(data: Bytes, scan: kernels.Scan) -> str:
    """Why the scan ended; empty where nothing is wrong."""
    if scan.fault == kernels.LENGTH and _is_compacted(data[scan.stop :]):
        return COMPACTED
    return kernels.FAULTS[scan.fault] if scan.fault else ""


def _is_compacted(data: Bytes) -> bool:
    """Whether an intact batch has fewer records than offsets."""
    view = view_of(data)
    header = BatchHeader.read(view, 0)
    return (
        header.magic == MAGIC_2
        and 0 <= header.records <= header.last_offset_delta
        and HEADER_BYTES <= header.size <= len(view)
        and crc32c(view[CRC_END : header.size]) == header.crc
    )


def _rising(scan: kernels.Scan, offset: int, fault: str) -> tuple[kernels.Scan, str]:
    """The rows before the first whose offset lies before the end of the one in front of it."""
    ends = np.concatenate([[offset], scan.offset + scan.records])
    falls = np.flatnonzero(scan.offset < ends[:-1])
    return (_first(scan, int(falls[0])), kernels.FAULTS[kernels.OFFSET]) if len(falls) else (scan, fault)


def _deliver_after(data: Bytes, scan: kernels.Scan, limit_bytes: int, fault: str) -> tuple[Int64Array, str]:
    """Of each batch the latest time that it asks for, -1 for none; up to the first that cannot be decoded."""
    due = np.empty(len(scan.offset), np.int64)
    row = 0
    while row < len(due):
        full = int(scan.position.searchsorted(scan.position[row] + _STEP_BYTES))
        last = max(full, row + 1)
        try:
            due[row:last] = _asked(data, scan, slice(row, last), limit_bytes)
        except (InvalidBatch, InvalidDeliverAfter):
            return _until_invalid(data, scan, slice(row, last), limit_bytes, due)
        row = last
    return due, fault


def _until_invalid(
    data: Bytes, scan: kernels.Scan, rows: slice, limit_bytes: int, due: Int64Array
) -> tuple[Int64Array, str]:
    """Batch by batch, to find the one that is invalid."""
    for row in range(rows.start, rows.stop):
        try:
            due[row] = _asked(data, scan, slice(row, row + 1), limit_bytes)[0]
        except (InvalidBatch, InvalidDeliverAfter) as error:
            return due[:row], str(error).removeprefix("batch 0: ")
    return due[: rows.stop], ""


def _asked(data: Bytes, scan: kernels.Scan, rows: slice, limit_bytes: int) -> Int64Array:
    records, sizes = scan.records[rows], scan.position[rows] + scan.size[rows] - scan.batch_position[rows]
    which = np.zeros(len(records), np.int32)
    places = decompressed([data], which, scan.batch_position[rows], sizes, scan.attributes[rows], limit_bytes)
    asked = kernels.decode_records(*places, records).deliver_after
    latest: Int64Array = np.maximum.reduceat(asked, np.cumsum(records) - records)
    stamped = scan.deliver_after[rows]
    return np.where(stamped < 0, latest, stamped)


def _first(scan: kernels.Scan, count: int) -> kernels.Scan:
    """The first rows of a scan."""
    if count == len(scan.offset):
        return scan
    columns = {name: getattr(scan, name)[:count] for name in kernels.Scan._fields if name not in ("stop", "fault")}
    return scan._replace(stop=int(scan.position[count]), **columns)
