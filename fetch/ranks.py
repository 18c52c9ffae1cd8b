"""From delivery offsets back to records: which entry holds a rank, and how many of given ranks are cancelled.

For subscriptions, which keep delivery offsets. What is asked for has been delivered, so it lies near the high
watermark, in blocks that are cached as a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from afterlog.fetch.append_order import AppendOrder
from afterlog.fetch.timeline import Reading, Timeline
from afterlog.index.acked_ranges import RANGE_RECORDS_MIN, AckedRange
from afterlog.index.entries import Entries, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.merge import Block
from afterlog.records.columns import Bools

NOT_FOUND = -1
FEW = 32
SPARSE = 64
"""Where fewer are asked for, or less than one in so many ranks, looking each up in the log is cheaper than reading."""


class _Found(NamedTuple):
    """Some of the ranks asked for, in one block: `rows` of them, the entry of each, which record of it, if any."""

    rows: slice
    block: Block
    entry: Int64Array
    within: Int64Array
    inside: Bools


def offsets_at(order: Timeline | AppendOrder, delivery_offset: Int64Array, reading: Reading) -> Int64Array:
    """The append offsets of these records, ascending; NOT_FOUND where one is not due by the reading, or cancelled."""
    found = np.full(len(delivery_offset), NOT_FOUND)
    for rows, block, entry, within, inside in _blocks(order, delivery_offset, reading):
        offset = block.offset[entry] + within
        inside &= ~np.isin(offset, reading.hidden.within(block))  # a batch may be shown in part
        found[rows][inside] = offset[inside]
    return found


def entries_at(
    order: Timeline | AppendOrder, delivery_offset: Int64Array, offset: Int64Array, reading: Reading
) -> Entries | None:
    """The entries that hold these records, of which both offsets are given, in any order, as the indexes know them.

    None where the log is to be asked: they are few, lie far apart, or one is not due by the reading or lies elsewhere.
    """
    if len(delivery_offset) < FEW:
        return None
    rows = np.argsort(delivery_offset)
    ascending = delivery_offset[rows]
    if int(ascending[0]) < reading.log_start or ascending[-1] - ascending[0] >= SPARSE * len(rows):
        return None
    found = np.zeros((4, len(rows)), np.int64)
    for part, block, entry, within, inside in _blocks(order, ascending, reading):
        if not bool(inside.all()) or bool((block.offset[entry] + within != offset[rows[part]]).any()):
            return None
        columns = (block.deliver_after, block.offset, block.position, block.records)
        found[:, rows[part]] = [column[entry] for column in columns]
    entries = Entries(*found)
    return entries if bool(entries.records.all()) else None


def _blocks(order: Timeline | AppendOrder, delivery_offset: Int64Array, reading: Reading) -> Iterator[_Found]:
    """The blocks that hold these ranks, ascending, as far as they are due."""
    row, behind = 0, -SPARSE
    while row < len(delivery_offset):
        first = int(delivery_offset[row])
        near = 0 <= first - behind < SPARSE  # to go on where the last block ended costs less than to begin anew
        block = order.read(behind if near else first, reading)
        if not len(block):
            break
        behind = block.end_delivery_offset
        if near and behind <= first:
            continue
        stop = max(int(delivery_offset.searchsorted(behind)), row + 1)
        wanted = delivery_offset[row:stop]
        entry = np.maximum(block.delivery_offset.searchsorted(wanted, side="right") - 1, 0)
        within = wanted - block.delivery_offset[entry]
        yield _Found(slice(row, stop), block, entry, within, (within >= 0) & (within < block.records[entry]))
        row = stop


def hidden_between(order: Timeline | AppendOrder, position: int, upto: Key, reading: Reading) -> int:
    """How many of the delivery offsets from `position` on, up to the key, are hidden."""
    if not reading.hidden.count or isinstance(order, AppendOrder):
        return 0
    hidden = reading.hidden
    count = hidden.rank(upto) - hidden.rank(order.key_before(position, reading)) - hidden.acked.passed(position)
    return max(count, 0)


def acked_ranges(order: Timeline, stretches: Iterable[range], reading: Reading) -> list[AckedRange]:
    """Stretches of delivery order, as far as they are due: whole entries, where they have enough records."""
    due = (range(max(each.start, reading.log_start), min(each.stop, reading.high_watermark)) for each in stretches)
    ends = [end for each in due if len(each) >= RANGE_RECORDS_MIN for end in (each.start, each.stop)]
    batches = [each.batch_around for each in order.entries_before(ends, reading)]
    whole = [range(first.stop, end.start) for first, end in zip(batches[::2], batches[1::2], strict=True)]
    ends = [end for each in whole if len(each) >= RANGE_RECORDS_MIN for end in (each.start, each.stop)]
    keys = order.entries_before(ends, reading)
    return [
        AckedRange(*before.key, *last.key, before.position, last.position)
        for before, last in zip(keys[::2], keys[1::2], strict=True)
    ]
