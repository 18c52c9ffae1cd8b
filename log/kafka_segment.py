"""Reads a segment of a Kafka broker: a `.log` as it writes it, batches v2 one after another, without prefixes.

    scan: headers, CRCs ──> batches ──> decompress, decode ──> deliver_after of each ──> `Intact`, as of our logs

What differs from a log of ours:

- A batch has the leader epoch that the broker stamped, any.
- No prefix says when a batch is due. Its `deliver-after` record headers do, as on produce (`batches.parse`): the batch
  is due with the latest of them, and without any, as soon as possible, which is 0 here.
- Offsets may have gaps where compaction took whole batches, or a transaction was aborted; they never fall. It may have
  taken single records out of a batch, or all: the batch keeps its offsets, which its entry counts as its records.
- A header `deliver-after` that names no time asks for nothing: no broker of Kafka's has refused it.
- Zeros at its end are none of it: the file was made as long before it was filled (`log.preallocate`).
- Control batches, and batches of transactions that were aborted or never ended, are entries like others here; the
  index leaves them out (`kafka_transactions`).

Kafka's CRC does not cover base offset and length. A wrong length breaks the walk; a wrong offset is seen where offsets
fall, and cannot be told from a gap where they rise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from afterlog.base.errors import InvalidBatch
from afterlog.base.files import Bytes, Files, map_file
from afterlog.log.kafka_transactions import Transactions
from afterlog.log.scan import Advance, Intact, Step, read, steps, unheard
from afterlog.records import kernels
from afterlog.records.batch import decode_compacted, decompressed
from afterlog.records.columns import OK, Int64Array, Scan, view_of
from afterlog.records.header import BatchHeader

_STEP_BYTES = 8 << 20
"""Batches decoded at a time, as stored. Larger: fewer calls, more memory."""


def read_segment(
    files: Files,
    path: Path,
    base_offset: int,
    *,
    limit_bytes: int,
    following: Iterable[Path] = (),
    advance: Advance = unheard,
) -> Intact:
    """The entries of the segment up to the first that cannot be taken, and which of them readers may see.

    limit_bytes: bounds a decompressed batch. following: the logs behind it, in order, where a transaction may end that
    is open at its end. FileNotFoundError; CorruptFile where one of those is broken.
    """
    data = map_file(files, path)
    found = steps([(0, data)], 0, len(data), base_offset, foreign=True, advance=advance)
    transactions = Transactions()
    taken = transactions.watch(with_times(found, limit_bytes))
    intact = read(path, base_offset, taken, start=0, size=len(data), foreign=True)
    return replace(intact, fates=transactions.fates(files, following))


def with_times(found: Iterable[Step], limit_bytes: int) -> Iterator[Step]:
    """The steps with the deliver_after of each batch, -1 for none, up to the first that cannot be decoded."""
    for step in found:
        moved = step.found.moved(-step.start)
        due, fault = _deliver_after(step.piece, moved, limit_bytes)
        if fault:
            yield step._replace(found=step.found.first(len(due), OK)._replace(deliver_after=due), fault=fault)
            return
        yield step._replace(found=step.found._replace(deliver_after=due))


def _deliver_after(data: Bytes, scan: Scan, limit_bytes: int) -> tuple[Int64Array, str]:
    """Of each batch the latest time that it asks for, -1 for none; up to the first that cannot be decoded, and why."""
    due = np.empty(len(scan.offset), np.int64)
    row = 0
    while row < len(due):
        last = max(int(scan.position.searchsorted(scan.position[row] + _STEP_BYTES)), row + 1)
        try:
            due[row:last] = _asked(data, scan, slice(row, last), limit_bytes)
        except InvalidBatch:  # which one it is, each for itself tells
            for one in range(row, last):
                try:
                    due[one] = _asked(data, scan, slice(one, one + 1), limit_bytes)[0]
                except InvalidBatch as error:
                    return due[:one], str(error).removeprefix("batch 0: ")
        row = last
    return due, ""


def _asked(data: Bytes, scan: Scan, rows: slice, limit_bytes: int) -> Int64Array:
    if len(scan.offset) == 1 and BatchHeader.read(view_of(data), int(scan.position[0])).records != scan.records[0]:
        left = decode_compacted(data[scan.position[0] :][: scan.size[0]], limit_bytes=limit_bytes)
        return np.array([max((record.deliver_after or -1 for _, record in left), default=-1)])
    records, sizes = scan.records[rows], scan.position[rows] + scan.size[rows] - scan.batch_position[rows]
    which = np.zeros(len(records), np.int32)
    places = decompressed([data], which, scan.batch_position[rows], sizes, scan.attributes[rows], limit_bytes)
    asked = kernels.decode_records(*places, records, lenient=True).deliver_after
    latest: Int64Array = np.maximum.reduceat(asked, np.cumsum(records) - records)
    stamped = scan.deliver_after[rows]
    return np.where(stamped < 0, latest, stamped)
