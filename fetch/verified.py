"""Entries where they lie in the segments: located, verified, decoded.

    block of delivery order ── locate ──> buffers and places ──┬── batches ──> bytes that stay where they are
                                                               └── records ──> columns

Every check on the way to a reader is here: what is returned equals what was appended and what the index says of it, or
CorruptFile names file and position (promise D12).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes, lost
from afterlog.index.merge import Block
from afterlog.log.scan import corrupt
from afterlog.log.segment import SealedSegment
from afterlog.log.version import Visible
from afterlog.records import kernels
from afterlog.records.batch import decompressed
from afterlog.records.columns import FAULTS, LOST, Decoded, Int32Array, Int64Array

FIRST_ENTRIES = 64
"""Entries verified in the first step of a fetch; each step doubles, so that large batches are not read for nothing."""

GATHER_BYTES = 32 << 20
"""Bytes of object storage that are in memory at a time, about. Larger: fewer, larger reads where records lie apart."""


@dataclass(frozen=True, slots=True)
class Located:
    """Entries in delivery order: rows of a block, the buffers that they lie in, which of these and where."""

    block: Block
    buffers: list[Bytes]
    which: Int32Array
    positions: Int64Array

    def __getitem__(self, rows: slice) -> Located:
        """A view of the rows from one to another."""
        return Located(self.block[rows], self.buffers, self.which[rows], self.positions[rows])


@dataclass(frozen=True, slots=True)
class Fetched:
    """Verified entries in delivery order: rows of a block and where their batches lie."""

    block: Block
    buffers: list[Bytes]
    which: Int32Array
    batch_positions: Int64Array
    batch_sizes: Int64Array
    attributes: Int64Array
    asked: Int64Array
    broker_timestamp: Int64Array


def locate(block: Block, visible: Visible, max_bytes: int) -> Located:
    """Where the entries of a block lie; of what is in object storage, where they were read to.

    There, only so many of the first entries are located as `max_bytes` may hold, about, but for the first.
    """
    segments, positions = visible.segments, block.position
    buffers = [_NOTHING] * len(segments)
    if not len(block):
        return Located(block, buffers, np.empty(0, np.int32), positions)
    if int(block.offset.min()) >= segments[-1].base_offset:  # as what becomes due soon after it came
        numbers = [len(segments) - 1]
        which = np.full(len(block), numbers[0], np.int32)
    else:
        bases = np.array([segment.base_offset for segment in segments], np.int64)
        which = bases[1:].searchsorted(block.offset, side="right").astype(np.int32)
        numbers = np.flatnonzero(np.bincount(which)).tolist()
    remote: dict[int, SealedSegment] = {}
    for number in numbers:
        segment = segments[number]
        if isinstance(segment, SealedSegment):
            data = segment.mapped()
            if data is None:
                remote[number] = segment
            else:
                buffers[number] = data
            continue
        in_active = which == number
        pieces = segment.view(int(positions[in_active].min()), visible.end.position)
        buffers[number] = pieces[0][1]
        tail_start, tail = pieces[-1]
        if tail_start:
            in_tail = in_active & (positions >= tail_start)
            positions = positions - in_tail * tail_start
            which = np.where(in_tail, np.int32(len(segments)), which)
            buffers.append(tail)
    located = Located(block, buffers, which, positions)
    return _gathered(located, remote, max_bytes) if remote else located


def _gathered(located: Located, remote: Mapping[int, SealedSegment], max_bytes: int) -> Located:
    """The same with what lies in object storage read, as far as that goes."""
    block, which = located.block, located.which
    entry_bytes = np.zeros(len(block))
    for number, segment in remote.items():
        record_bytes = segment.size / segment.mark.records
        entry_bytes[which == number] = record_bytes
    entry_bytes *= block.records
    fit = max(int(entry_bytes.cumsum().searchsorted(2 * max_bytes, side="right")), 1)
    buffers, positions = located.buffers.copy(), located.positions.copy()
    for number, segment in remote.items():
        rows = np.flatnonzero(which[:fit] == number)
        if len(rows):
            size_max = GATHER_BYTES * len(rows) // fit
            buffers[number], at = segment.remote_copy().gather(block.offset[rows], block.position[rows], size_max)
            positions[rows[: len(at)]] = at
            fit = fit if len(at) == len(rows) else int(rows[len(at)])
    return Located(block, buffers, which, positions)[:fit]


def batches(located: Located, visible: Visible, delayed: bool, max_bytes: int) -> Fetched:
    """Entries that pass every check, up to `max_bytes` but for the first."""
    block = located.block
    steps: list[kernels.Checked] = []
    row, size, step = 0, 0, FIRST_ENTRIES
    while row < len(block) and (row == 0 or size < max_bytes):
        part = located[row : row + step]
        due = part.block.deliver_after if delayed else None
        checked = kernels.check_entries(
            part.buffers, part.which, part.positions, part.block.offset, part.block.records, due
        )
        check_there(part, visible)
        if checked.fault:
            raise corrupt_entry(checked.fault, part.block[checked.row :], visible)
        steps.append(checked)
        size += int(checked.batch_sizes.sum())
        row = min(row + step, len(block))
        step = max((max_bytes - size) * row // size, FIRST_ENTRIES)
    if not steps:
        return Fetched(block, [], located.which, *(located.positions,) * 5)
    batch_positions, sizes, attributes, asked, broker_timestamp = (
        np.concatenate(column) for column in zip(*(step[:5] for step in steps), strict=True)
    )
    fit = max(int(np.cumsum(sizes).searchsorted(max_bytes, side="right")), 1)
    return Fetched(
        block[:fit],
        located.buffers,
        located.which[:fit],
        batch_positions[:fit],
        sizes[:fit],
        attributes[:fit],
        asked[:fit],
        broker_timestamp[:fit],
    )


def records(
    located: Located, visible: Visible, delayed: bool, max_bytes: int, limit_bytes: int
) -> tuple[Block, Decoded]:
    """The same, decoded; the records' deliver_after is as asked. `limit_bytes` bounds a decompressed batch."""
    block = located.block
    due = block.deliver_after if delayed else None
    read = kernels.read_records(
        located.buffers, located.which, located.positions, block.offset, block.records, due, max_bytes
    )
    check_there(located, visible)
    if read.fault:
        raise corrupt_entry(read.fault, block[read.row :], visible)
    if not read.compressed:
        return block[: read.row], read.decoded
    fetched = batches(located, visible, delayed, max_bytes)
    places = decompressed(
        fetched.buffers,
        fetched.which,
        fetched.batch_positions,
        fetched.batch_sizes,
        fetched.attributes,
        limit_bytes,
    )
    decoded = kernels.decode_records(*places, fetched.block.records)
    check_there(located, visible)
    asked, broker_timestamp = (
        np.repeat(column, fetched.block.records) for column in (fetched.asked, fetched.broker_timestamp)
    )
    deliver_after = np.where(decoded.deliver_after >= 0, decoded.deliver_after, asked)
    return fetched.block, decoded._replace(deliver_after=deliver_after, broker_timestamp=broker_timestamp)


def check_there(located: Located, visible: Visible) -> None:
    """CorruptFile where the disk did not give some of what was read: zeros may have come in behind the checks, too.

    A mapping that has lost something is made anew for the next fetch.
    """
    for data, segment in zip(located.buffers, visible.segments, strict=False):  # behind them lies a tail, not mapped
        if data is not _NOTHING and (missing := lost(data)).pages:
            raise CorruptFile(FAULTS[LOST], path=segment.path, position=missing.first)


def corrupt_entry(fault: int | str, entries: Block, visible: Visible) -> CorruptFile:
    """The error for the first of the entries; by its number, or in words."""
    offset = int(entries.offset[0])
    bases = [segment.base_offset for segment in visible.segments]
    segment = visible.segments[int(np.searchsorted(bases, offset, side="right")) - 1]
    where = f", in the entry of offset {offset}"
    if isinstance(segment, SealedSegment) and not segment.is_local():
        segment.remote_copy().forget()
        where += ", read from object storage"
    if isinstance(fault, str):
        return CorruptFile(fault + where, path=segment.path, position=int(entries.position[0]))
    return corrupt(segment.path, int(entries.position[0]), fault, where)


_NOTHING = np.empty(0, np.uint8)
