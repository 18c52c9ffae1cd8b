"""From entries of delivery order to columns of records: verified, decoded, and without what is cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from afterlog.base.arguments import INT64_MAX
from afterlog.base.errors import CorruptFile, InvalidBatch, InvalidDeliverAfter
from afterlog.fetch import foreign, verified
from afterlog.fetch.message_columns import Columns
from afterlog.fetch.timeline import Reading
from afterlog.fetch.verified import Fetched, Located
from afterlog.index.entries import Entries
from afterlog.index.hidden_keys import HiddenKeys
from afterlog.index.merge import Block
from afterlog.log.partition_log import PartitionLog
from afterlog.log.version import Visible
from afterlog.records.columns import Decoded, Int64Array

FromEntries = TypeVar("FromEntries")

PIECE_BYTES = 16 << 20
"""A long stretch is decoded so many bytes at a time, but for the first batch of each."""


class Decoder:
    """Reads the records of one partition."""

    def __init__(self, topic: str, number: int, log: PartitionLog) -> None:
        self._topic = topic
        self._number = number
        self._delayed = log.delayed
        self._foreign = log.read_only
        self._limit_bytes = log.context.config.decompressed_bytes_max

    def batches(self, located: Located, visible: Visible, max_bytes: int) -> Fetched:
        """The first of these entries, at least one and further ones within `max_bytes`, as they lie.

        Raises CorruptFile where the first cannot be read; those before one that cannot come first.
        """

        def read(part: Located) -> Fetched:
            if self._foreign:
                return foreign.batches(part, visible, max_bytes, self._limit_bytes)
            return verified.batches(part, visible, self._delayed, max_bytes)

        return _intact(read, located, visible)

    def some(self, located: Located, visible: Visible, max_bytes: int) -> tuple[Block, Columns]:
        """The same, and their records."""

        def read(part: Located) -> tuple[Block, Columns]:
            if self._foreign:
                block, parts = foreign.records(part, visible, max_bytes, self._limit_bytes)
                columns = [self._columns(*each) for each in parts] or [Columns.empty(self._topic)]
                return block, Columns.concatenate(columns)
            block, decoded = verified.records(part, visible, self._delayed, max_bytes, self._limit_bytes)
            return block, self._columns(block, decoded)

        return _intact(read, located, visible)

    def pieces(self, block: Block, visible: Visible) -> Iterator[tuple[Block, Columns]]:
        """All of these entries, in chunks."""
        while len(block):
            part, columns = self.some(verified.locate(block, visible, PIECE_BYTES), visible, PIECE_BYTES)
            yield part, columns
            block = block[len(part) :]

    def at(self, found: Entries, offsets: Int64Array, visible: Visible) -> Columns:
        """The records of these offsets, of which the entries were found; any order, and more than once."""
        _, first, entry = np.unique(found.offset, return_index=True, return_inverse=True)
        once = found.take(first)
        row = np.cumsum(once.records) - once.records
        block = Block(row, once.deliver_after, once.offset, once.position, once.records, -1)
        parts = [columns for _, columns in self.pieces(block, visible)] or [Columns.empty(self._topic)]
        columns, rows = Columns.concatenate(parts), row[entry] + offsets - found.offset
        return columns.take(foreign.rows_of(columns.delivery_offset, rows, offsets, visible) if self._foreign else rows)

    def first(
        self, blocks: Iterable[Block], limit: int, key: bytes | None, reading: Reading, max_bytes: int = INT64_MAX
    ) -> Columns:
        """The first `limit` records of some blocks, of one key where that is given; no more of them are read.

        None behind those whose values fill `max_bytes`.
        """
        parts, visible = [Columns.empty(self._topic)], reading.visible
        pieces = (piece for block in blocks for piece in self.pieces(block[: limit if key is None else None], visible))
        while limit > 0 and max_bytes > 0 and (piece := next(pieces, None)) is not None:
            block, columns = piece
            columns = without_cancelled(columns, block, reading.hidden)
            columns = columns if key is None else columns.take(columns.rows_of_key(key))
            parts.append(columns[:limit])
            limit -= len(parts[-1])
            max_bytes -= parts[-1].value_bytes
        return Columns.concatenate(parts)

    def _columns(self, block: Block, decoded: Decoded) -> Columns:
        if int(block.records.max(initial=1)) == 1:
            offset, delivery_offset, due = block.offset, block.delivery_offset, block.deliver_after
        else:
            first = np.cumsum(block.records) - block.records
            within = np.arange(int(block.records.sum())) - np.repeat(first, block.records)
            offset = np.repeat(block.offset, block.records) + within
            delivery_offset = np.repeat(block.delivery_offset, block.records) + within
            due = np.repeat(block.deliver_after, block.records)
        return Columns(
            topic=self._topic,
            partition=np.full(len(offset), self._number, np.int64),
            offset=offset,
            delivery_offset=delivery_offset,
            due=due,
            deliver_after=decoded.deliver_after,
            timestamp=decoded.timestamp,
            broker_timestamp=decoded.broker_timestamp,
            key=decoded.key,
            key_valid=decoded.key_valid,
            value=decoded.value,
            value_valid=decoded.value_valid,
            headers=decoded.headers,
        )


def _intact(read: Callable[[Located], FromEntries], located: Located, visible: Visible) -> FromEntries:
    """What `read` gives of the entries, or of as few of the first as can be read. Raises CorruptFile of the first."""
    while True:
        try:
            return read(located)
        except (CorruptFile, InvalidBatch, InvalidDeliverAfter) as error:
            if len(located.block) > 1:
                located = located[: len(located.block) // 2]
            elif isinstance(error, CorruptFile):
                raise
            else:
                reason = f"cannot be decoded: {str(error).removeprefix('batch 0: ')}"
                raise verified.corrupt_entry(reason, located.block, visible) from error


def without_cancelled(columns: Columns, block: Block, hidden: HiddenKeys) -> Columns:
    """The records of a block's entries but for those that are cancelled: its wholly hidden entries are gone already."""
    cancelled = cancelled_within(block, hidden)
    return columns.take(np.flatnonzero(~np.isin(columns.offset, cancelled))) if len(cancelled) else columns


def cancelled_within(block: Block, hidden: HiddenKeys) -> Int64Array:
    """The offsets of the cancelled records in a block's entries, ascending."""
    if not hidden.count or int(block.records.max(initial=1)) == 1:
        return np.empty(0, np.int64)
    cancelled = hidden.within(block)
    order = np.argsort(block.offset)
    row = order[np.maximum(block.offset[order].searchsorted(cancelled, side="right") - 1, 0)]
    return cancelled[(block.offset[row] <= cancelled) & (cancelled < block.offset[row] + block.records[row])]
