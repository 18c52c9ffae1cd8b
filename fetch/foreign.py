"""Entries of a Kafka broker's log, verified and decoded where they lie: what `verified` does for entries of ours.

    block of delivery order ── headers, CRCs ──> batches ── decompress, decode ──> due as the index says? ──> columns

What differs (`afterlog.log.kafka_segment`):

- No prefix says when a batch is due: its records do. So nothing is handed out undecoded. A batch that asks for another
  time than the index says is CorruptFile, as any other entry that is not the one that the index names.
- Any leader epoch is taken. A batch may hold fewer records than offsets, where compaction took some: then the others
  keep their delivery offsets, which readers step over.
- Control batches are stepped over, should an index name any.

A Python statement for each batch, none for a record, but where compaction took some.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from afterlog.base.errors import OffsetOutOfRange
from afterlog.fetch import verified
from afterlog.fetch.verified import Fetched, Located
from afterlog.index.merge import Block
from afterlog.log.version import Visible
from afterlog.records import kernels
from afterlog.records.batch import compacted_columns, decompressed
from afterlog.records.columns import INDEX, LENGTH, OK, Decoded, Int64Array, view_of
from afterlog.records.entry import Entry, read_compacted, read_entry
from afterlog.records.header import CONTROL

Part = tuple[Block, Decoded]
"""Entries, and their records, all of them: `records` says how many."""


def batches(located: Located, visible: Visible, max_bytes: int, limit_bytes: int) -> Fetched:
    """Entries that pass every check, up to `max_bytes` but for the first."""
    return _read(located, visible, max_bytes, limit_bytes)[0]


def records(located: Located, visible: Visible, max_bytes: int, limit_bytes: int) -> tuple[Block, list[Part]]:
    """The same, and their records in delivery order. `limit_bytes` bounds a decompressed batch."""
    fetched, parts = _read(located, visible, max_bytes, limit_bytes)
    return fetched.block, parts


def rows_of(delivery_offset: Int64Array, wanted: Int64Array, offsets: Int64Array, visible: Visible) -> Int64Array:
    """Where the wanted are among ascending delivery offsets. OffsetOutOfRange: compaction took one."""
    rows = np.minimum(delivery_offset.searchsorted(wanted), len(delivery_offset) - 1)
    gone = np.flatnonzero(delivery_offset[rows] != wanted) if len(delivery_offset) else np.arange(len(wanted))
    if len(gone):
        offset = int(offsets[gone[0]])
        raise OffsetOutOfRange(
            f"no record of offset {offset} is in the log: compaction took it, or it is a control record",
            position=offset, log_start=visible.segments[0].base_offset, log_end=visible.end.offset,
        )  # fmt: skip
    return rows


def _read(located: Located, visible: Visible, max_bytes: int, limit_bytes: int) -> tuple[Fetched, list[Part]]:
    found, left, fault = _headers(located, max_bytes)
    verified.check_there(located, visible)
    if fault != OK:
        raise verified.corrupt_entry(fault, located.block[len(left) :], visible)
    batch_positions, sizes, attributes, stamped, broker_timestamp = found
    block = located.block[: len(left)]
    places = located.buffers, located.which[: len(left)], batch_positions, sizes
    fetched = Fetched(block, *places, attributes, np.maximum(stamped, 0), broker_timestamp)
    parts = list[Part]()
    whole = (left == block.records) & (attributes & CONTROL == 0)
    bounds = np.flatnonzero(np.append(True, ~(whole[1:] & whole[:-1]))).tolist() if len(left) else []
    for first, stop in pairwise([*bounds, len(left)]):
        part, latest = _decoded(fetched, slice(first, stop), bool(whole[first]), limit_bytes)
        due = np.where(stamped[first:stop] < 0, np.maximum(latest, 0), stamped[first:stop])
        wrong = np.flatnonzero(due != block.deliver_after[first:stop])
        verified.check_there(located, visible)
        if len(wrong):
            raise verified.corrupt_entry(INDEX, block[first + int(wrong[0]) :], visible)
        if not attributes[first] & CONTROL:
            parts.append(part)
    return fetched, parts


def _headers(located: Located, max_bytes: int) -> tuple[Int64Array, Int64Array, int]:
    """Of the entries that pass their checks, up to `max_bytes` but for the first, and why the next one does not:

    int64[5, n] of batch position, size, attributes, and by its prefix when the entry is due and was appended, both -1
    without one; int64[n] of the records that are left.
    """
    block, views = located.block, [view_of(buffer) for buffer in located.buffers]
    rows: list[tuple[int, ...]] = []
    size, fault = 0, OK
    columns = (located.which, located.positions, block.offset, block.records)
    for which, position, offset, count in zip(*(column.tolist() for column in columns), strict=True):
        entry = _entry(views[which], position)
        if isinstance(entry, int):
            fault = entry
            break
        header, stamped, appended = entry.header, -1, -1
        if entry.metadata is not None:
            stamped, appended = entry.metadata.deliver_after, entry.metadata.broker_timestamp
        if (header.base_offset, header.last_offset_delta + 1) != (offset, count):
            fault = INDEX
            break
        size += header.size
        if rows and size > max_bytes:
            break
        rows.append((entry.batch_position, header.size, header.attributes, stamped, appended, header.records))
    found = np.array(rows, np.int64).reshape(-1, 6).T.copy()
    return found[:5], found[5], fault


def _entry(view: memoryview, position: int) -> Entry | int:
    """The entry at a position that an index names, or why there is none."""
    if not 0 <= position < len(view):
        return INDEX
    entry = read_entry(view, position, len(view), any_epoch=True)
    if entry == LENGTH:
        return read_compacted(view, position, len(view)) or LENGTH
    return entry


def _decoded(fetched: Fetched, rows: slice, whole: bool, limit_bytes: int) -> tuple[Part, Int64Array]:
    """Some entries, and for each the latest time that a record in it asks for. Not whole: one, with what is left."""
    block = fetched.block[rows]
    places = fetched.which[rows], fetched.batch_positions[rows], fetched.batch_sizes[rows]
    if whole:
        images = decompressed(fetched.buffers, *places, fetched.attributes[rows], limit_bytes)
        decoded = kernels.decode_records(*images, block.records, lenient=True)
        latest = np.maximum.reduceat(decoded.deliver_after, np.cumsum(block.records) - block.records)
        counts = block.records
    else:
        which, position, size = (int(column[0]) for column in places)
        deltas, decoded = compacted_columns(fetched.buffers[which][position : position + size], limit_bytes=limit_bytes)
        latest, counts = decoded.deliver_after.max(initial=-1, keepdims=True), np.array([len(deltas)])
        due, ones = np.full_like(deltas, block.deliver_after[0]), np.ones_like(deltas)
        where = np.full_like(deltas, block.position[0])
        block = Block(
            block.delivery_offset[0] + deltas, due, block.offset[0] + deltas, where, ones, block.end_delivery_offset
        )
    asked, broker_timestamp = (np.repeat(column[rows], counts) for column in (fetched.asked, fetched.broker_timestamp))
    deliver_after = np.where(decoded.deliver_after < 0, asked, decoded.deliver_after)
    return (block, decoded._replace(deliver_after=deliver_after, broker_timestamp=broker_timestamp)), latest
