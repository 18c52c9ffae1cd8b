"""Batches out of entries of another log: without their prefixes, which are its own, with the time that was asked for.

A slice is checked as recovery checks a log, and its batches as a broker checks those of a producer: what one cluster
took another cannot be made to hold that its readers could not read.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from afterlog.base.errors import InvalidBatch
from afterlog.base.files import Bytes
from afterlog.index.growing_columns import Int64Array
from afterlog.records import kernels
from afterlog.records.batch import decompressed
from afterlog.records.columns import FAULTS, Scan
from afterlog.records.deliver_after import AS_SOON_AS_POSSIBLE
from afterlog.records.encode import EncodedBatches, take_ragged
from afterlog.records.header import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from afterlog.records.producer_sequence import producers_of

NOT_OF_CLIENTS: Final = CONTROL | TRANSACTIONAL | LOG_APPEND_TIME


def entries_of(data: Bytes) -> Scan:
    """The entries that lie one behind another in `data`, all of it; offsets rise, and may leave gaps. InvalidBatch."""
    found = kernels.scan_entries(data, 0, len(data), -1, True)
    if found.fault:
        raise InvalidBatch(f"an entry of a slice, at byte {found.stop}: {FAULTS[found.fault]}")
    if bool((found.offset[1:] < found.offset[:-1] + found.records[:-1]).any()):
        raise InvalidBatch("the entries of a slice are not in the order of their offsets")
    return found


def batches_of(data: Bytes, found: Scan, rows: Int64Array, limit_bytes: int) -> EncodedBatches:
    """The batches of some of the entries in `data`, none of them a control batch, checked down to their records.

    limit_bytes: of each, decompressed. Raises InvalidBatch, UnsupportedCodec.
    """
    if bool((found.attributes[rows] & NOT_OF_CLIENTS).any()):
        raise InvalidBatch("a batch of a slice has attributes that no producer may send")
    start, end = found.batch_position[rows], found.position[rows] + found.size[rows]
    records, attributes = found.records[rows], found.attributes[rows]
    which = np.zeros(len(rows), np.int32)
    kernels.decode_records(*decompressed([data], which, start, end - start, attributes, limit_bytes), records)
    # Prefix, batch, prefix, batch: every second item of what lies there.
    bounds = np.append(np.stack([found.position, found.batch_position], axis=1).ravel(), found.stop)
    positions, batches = take_ragged((bounds, data), 2 * rows + 1)
    return EncodedBatches(
        positions, records, _asked(data, found, rows), found.max_timestamp[rows], batches,
        producers=producers_of(batches, positions[:-1]),
    )  # fmt: skip


def _asked(data: Bytes, found: Scan, rows: Int64Array) -> Int64Array:
    """What their producers asked for: where that log stamped its own time, as soon as possible."""
    which = np.zeros(len(rows), np.int32)
    checked = kernels.check_entries([data], which, found.position[rows], found.offset[rows], found.records[rows], None)
    at_once = (checked.asked == checked.broker_timestamp) | (checked.asked < 0)
    return np.where(at_once, AS_SOON_AS_POSSIBLE, checked.asked)
