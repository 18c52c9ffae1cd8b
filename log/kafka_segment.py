"""Reading the segment of a Kafka broker: a `.log` as it writes it, batches v2 one behind another, and no prefix.

    scan: headers, CRCs ──> batches ──> decompress, decode ──> deliver_after of each ──> `Intact`, as of our logs

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

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from crc32c import crc32c

from afterlog.errors import InvalidBatch, InvalidDeliverAfter
from afterlog.files import Bytes, Files, map_file
from afterlog.log.scan import Advance, Intact, Step, read, steps, unheard
from afterlog.records import kernels
from afterlog.records.batch import decompressed
from afterlog.records.columns import FAULTS, LENGTH, OK, Int64Array, Scan, view_of
from afterlog.records.header import CRC_END, HEADER_BYTES, MAGIC_2, BatchHeader

COMPACTED = "compaction took records out of the batch: give it a copy of the topic that is not compacted"
_STEP_BYTES = 8 << 20
"""Batches decoded at a time, as stored. Larger: fewer calls, more memory."""


def read_segment(files: Files, path: Path, base_offset: int, *, limit_bytes: int, advance: Advance = unheard) -> Intact:
    """The entries of the segment up to the first that cannot be taken. `limit_bytes` bounds a decompressed batch.

    FileNotFoundError.
    """
    data = map_file(files, path)
    found = steps([(0, data)], 0, len(data), base_offset, foreign=True, advance=advance)
    return read(path, base_offset, _taken(found, limit_bytes), start=0, size=len(data), foreign=True)


def _taken(found: Iterable[Step], limit_bytes: int) -> Iterator[Step]:
    """The steps with the deliver_after of each batch, up to the first that cannot be decoded."""
    for step in found:
        due, fault = _deliver_after(step.piece, step.found, limit_bytes)
        if fault:
            yield step._replace(found=step.found.first(len(due), OK)._replace(deliver_after=due), fault=fault)
            return
        compacted = step.fault == FAULTS[LENGTH] and _is_compacted(step.piece[step.found.stop :])
        yield step._replace(found=step.found._replace(deliver_after=due), fault=COMPACTED if compacted else step.fault)


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


def _deliver_after(data: Bytes, scan: Scan, limit_bytes: int) -> tuple[Int64Array, str]:
    """Of each batch the latest time that it asks for, -1 for none; up to the first that cannot be decoded, and why."""
    due = np.empty(len(scan.offset), np.int64)
    row = 0
    while row < len(due):
        last = max(int(scan.position.searchsorted(scan.position[row] + _STEP_BYTES)), row + 1)
        try:
            due[row:last] = _asked(data, scan, slice(row, last), limit_bytes)
        except (InvalidBatch, InvalidDeliverAfter):  # which one it is, each for itself tells
            for one in range(row, last):
                try:
                    due[one] = _asked(data, scan, slice(one, one + 1), limit_bytes)[0]
                except (InvalidBatch, InvalidDeliverAfter) as error:
                    return due[:one], str(error).removeprefix("batch 0: ")
        row = last
    return due, ""


def _asked(data: Bytes, scan: Scan, rows: slice, limit_bytes: int) -> Int64Array:
    records, sizes = scan.records[rows], scan.position[rows] + scan.size[rows] - scan.batch_position[rows]
    which = np.zeros(len(records), np.int32)
    places = decompressed([data], which, scan.batch_position[rows], sizes, scan.attributes[rows], limit_bytes)
    asked = kernels.decode_records(*places, records).deliver_after
    latest: Int64Array = np.maximum.reduceat(asked, np.cumsum(records) - records)
    stamped = scan.deliver_after[rows]
    return np.where(stamped < 0, latest, stamped)
