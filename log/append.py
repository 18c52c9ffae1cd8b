"""Appending to one partition, under its append lock: stamped, written, indexed, and true by one swap of the version.

    batches ──> those that the active segment has room for ──> stamp, in flight ──> file ──> sparse indexes, bucket
                     └── none: roll                                                                    └──> swap

A record that comes alone has a shorter way (`append_one`): the same stamp, file, indexes and swap, without columns.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import StorageFull
from afterlog.base.files import Bytes
from afterlog.index.cancel_index import Cancelled
from afterlog.index.entries import Entries
from afterlog.index.origin_rows import OriginRows
from afterlog.index.unique_keys import UniqueKeyIndex
from afterlog.log.commit import Commit
from afterlog.log.context import DueCheckpoint, LogContext
from afterlog.log.dirty_flag import DirtyFlag
from afterlog.log.maintenance import Maintenance
from afterlog.log.producer_files import note
from afterlog.log.recovery_point import BEHIND
from afterlog.log.segment import ActiveSegment
from afterlog.log.version import End, VersionSet
from afterlog.records.awaited import Awaited
from afterlog.records.columns import EXTRA_BYTES_MAX, Int64Array
from afterlog.records.control import Control, ControlType
from afterlog.records.encode import Batches, encode, stamp_batches
from afterlog.records.entry import extra_fields
from afterlog.records.entry_origin import ORIGIN_FIELDS_BYTES_MAX, origin_fields
from afterlog.records.producer_sequence import ProducerRows, ProducerSequence
from afterlog.records.single import SingleRecord
from afterlog.records.times import AS_SOON_AS_POSSIBLE

logger = logging.getLogger("afterlog.log")

PREFIX_BYTES_MAX = 64
"""An entry's prefix is no longer, but for what interceptors add."""


class OriginStretch(NamedTuple):
    """Where entries come from that follow each other there: offset + shift is the one that each has there."""

    origin: str
    shift: int

    def rows(self, offset: Int64Array, records: Int64Array) -> OriginRows:
        """Of entries that were written."""
        return OriginRows(np.zeros(len(offset), np.int64), offset + self.shift, offset, records).runs()


class Appender:
    """What writes to the end of one log. The log calls all but the checks under its append lock."""

    def __init__(
        self,
        context: LogContext,
        versions: VersionSet,
        commit: Commit,
        maintenance: Maintenance,
        dirty: DirtyFlag,
        checkpoint: DueCheckpoint,
    ) -> None:
        """checkpoint: what a thread is asked to do, where there is one."""
        self.late_checkpoints = 0
        """Made by an append, since the thread that should have made them was behind."""
        self.clamped_records = 0
        """Appended since the log was opened with another time than was asked for."""
        self._context = context
        self._config = context.config
        self._delayed = context.settings.delayed
        self._safe_once_written = context.config.durability.kind == "os"
        self._versions = versions
        self._commit = commit
        self._maintenance = maintenance
        self._dirty = dirty
        self._checkpoint = checkpoint
        self._queued_segment = -1
        """Where the log began that a thread was asked to see to."""

    def append(self, batches: Batches, origin: OriginStretch | None = None) -> None:
        """Append whole batches. Where they span segments, and the disk is full, those before stay.

        origin: they were replicated; the version knows origins then.
        """
        row, count = 0, len(batches)
        while row < count:
            row = self._append_to_segment(batches, row, origin)

    @property
    def takes_one(self) -> bool:
        """Whether `append_one` can be used: what it writes would be the same."""
        is_plain = self._config.compression == "none" and not self._context.broker_entry_metadata_interceptors
        return self._delayed and is_plain

    def append_one(self, record: SingleRecord, sent: ProducerSequence | None = None) -> int:
        """`append` of one record; its offset. sent: what its header says of who sent it."""
        room_bytes, room_records = self._room()
        if self._versions.current.written.position and (
            record.batch_bytes_max + PREFIX_BYTES_MAX > room_bytes or room_records < 1
        ):
            self._maintenance.roll()
        self._dirty.is_set = True
        version = self._versions.current
        active, (offset, position) = version.active, version.written
        stamp_ms = self._versions.begin(offset + 1)
        try:
            data = record.entry(offset, stamp_ms) if sent is None else record.entry_of(sent, offset, stamp_ms)
            active.append(data)
        except BaseException:
            self._withdraw(active, position)
            raise
        due_ms = self._index_one(record, offset, position, stamp_ms)
        if sent is not None and version.producers is not None:
            version.producers.appended(sent.producer_id, sent.epoch, sent.sequence, 1, offset, stamp_ms)
        self._wrote(End(offset + 1, active.size), None, due_ms)
        self._count_clamped(record, stamp_ms)
        self._checkpoint_when_due()
        return offset

    def _index_one(self, record: SingleRecord, offset: int, position: int, stamp_ms: int) -> int:
        """Index a record that was written by itself; when it is due."""
        version = self._versions.current
        version.active.sparse.add_one(position, offset, record.timestamp)
        due_ms = max(record.deliver_after, stamp_ms)  # the stamping rule
        version.delayed_index.bucket.add(due_ms, offset, position, 1)
        if version.unique_keys is not None and record.headers and due_ms > stamp_ms:
            self._claim_one(version.unique_keys, record.headers, offset, due_ms)
        return due_ms

    def _count_clamped(self, record: SingleRecord, stamp_ms: int) -> None:
        if AS_SOON_AS_POSSIBLE < record.deliver_after < stamp_ms:
            self.clamped_records += 1

    def _append_to_segment(self, batches: Batches, row: int, origin: OriginStretch | None) -> int:
        """Append the batches from `row` on that the active segment has room for; the row behind them."""
        fit = self._fitting(batches, row, self._prefix_max(origin))
        if fit == 0 and self._versions.current.written.position:
            self._maintenance.roll()
            return row
        last = row + max(fit, 1)
        self._dirty.is_set = True
        stamp_ms = self._versions.begin(self._versions.current.written.offset + int(batches.records[row:last].sum()))
        self._write(batches, row, last, stamp_ms, origin=origin)
        self._checkpoint_when_due()
        return last

    def _prefix_max(self, origin: OriginStretch | None) -> int:
        """No prefix is longer, of entries from there."""
        extra = EXTRA_BYTES_MAX if self._context.broker_entry_metadata_interceptors else 0
        return PREFIX_BYTES_MAX + extra + (0 if origin is None else ORIGIN_FIELDS_BYTES_MAX)

    def _fitting(self, batches: Batches, row: int, prefix_bytes_max: int) -> int:
        """How many batches from `row` on the active segment has room for."""
        room_bytes, room_records = self._room()
        count = len(batches) - row
        size = int(batches.positions[-1] - batches.positions[row]) + count * prefix_bytes_max
        if size <= room_bytes and int(batches.records[row:].sum()) <= room_records:
            return count
        sizes = batches.positions[row + 1 :] - batches.positions[row]
        sizes += np.arange(1, count + 1) * prefix_bytes_max
        records = batches.records[row:].cumsum()
        return min(
            int(sizes.searchsorted(room_bytes, side="right")), int(records.searchsorted(room_records, side="right"))
        )

    def _room(self) -> tuple[int, int]:
        """Bytes and records that the active segment has room for."""
        version = self._versions.current
        room_records = 2**31 - 1 - (version.written.offset - version.active.base_offset)
        return self._config.segment_bytes - version.written.position, room_records

    def _write(
        self,
        batches: Batches,
        row: int,
        last: int,
        stamp_ms: int,
        *,
        control: Control | None = None,
        origin: OriginStretch | None = None,
    ) -> None:
        """Write batches at a stamp that is in flight: all of them, or none. `control`: what the first of them says."""
        version = self._versions.current
        active, start = version.active, version.written.position
        keys = version.unique_keys if batches.has_headers else None
        records = batches.records[row:last]
        end = version.written.offset + records.cumsum()
        offset = end - records
        position = np.empty(last - row, np.int64)
        written: list[tuple[Bytes, int]] = []
        try:
            for first, stop in batches.pieces(row, last):
                data, at = self._entries(batches, first, stop, int(offset[first - row]), stamp_ms, origin)
                np.add(at[:-1], active.size, out=position[first - row : stop - row])
                active.append(data)
                if keys is not None:
                    written.append((data, int(offset[first - row])))
        except BaseException:
            self._withdraw(active, start)
            raise
        asked = batches.deliver_after[row:last]
        active.sparse.add(position, end - 1, batches.max_timestamp[row:last])
        due_ms = 0
        if self._delayed and last - row == 1:
            due_ms = max(int(asked[0]), stamp_ms)  # the stamping rule
            version.delayed_index.bucket.add(due_ms, int(offset[0]), int(position[0]), int(records[0]))
        elif self._delayed:
            due = np.maximum(asked, stamp_ms)
            due_ms = int(due.min())
            version.delayed_index.bucket.add_many(Entries(due, offset, position, records))
        if keys is not None:
            for data, base_offset in written:
                self._claim(keys, data, base_offset, stamp_ms)
        if batches.producers is not None and version.producers is not None:
            sent = batches.producers.rows(slice(row, last))
            rows = ProducerRows(*sent, records, offset, np.full(last - row, stamp_ms))
            note(version.producers, rows.where(sent.producer_id >= 0).runs(), stamp_ms)
        if origin is not None and version.origins is not None:
            version.origins.note(origin.origin, origin.rows(offset, records))
        if control is not None and control.type == ControlType.CANCEL_AWAITED and version.origins is not None:
            version.origins.note_awaited(*Awaited.of_bytes(control.note))
        cancelled = None if control is None else control.rows(int(offset[0]))
        if cancelled is not None:
            active.add_cancelled(cancelled)
        self._wrote(End(int(end[-1]), active.size), cancelled, due_ms)
        self.clamped_records += clamped_records(asked, records, stamp_ms)

    def _claim_one(self, keys: UniqueKeyIndex, headers: bytes, offset: int, due_ms: int) -> None:
        """Note the unique key of a record that was written, where it has one."""
        from afterlog.records.unique_key import hash_of, key_of

        key = key_of(headers)
        if key is not None:
            keys.recent.add_one(hash_of(key), offset, due_ms)

    def _claim(self, keys: UniqueKeyIndex, data: Bytes, base_offset: int, stamp_ms: int) -> None:
        """Note the unique keys of the records in entries that were written."""
        from afterlog.log.unique_key_scan import rows_written

        keys.recent.add(rows_written(data, base_offset, self._config.decompressed_bytes_max, stamp_ms))

    def _wrote(self, written: End, cancelled: Cancelled | None, due_ms: int) -> None:
        """The swap of an append: it reached the operating system."""
        self._versions.wrote(written, cancelled, due_ms, safe=self._safe_once_written)
        self._dirty.is_set = False

    def _entries(
        self, batches: Batches, row: int, last: int, base_offset: int, stamp_ms: int, origin: OriginStretch | None
    ) -> tuple[Bytes, Int64Array]:
        """The bytes of the batches from `row` to `last` as the log has them, and where each begins in these."""
        interceptors = self._context.broker_entry_metadata_interceptors
        if not self._delayed and not interceptors and origin is None:
            data, positions = batches.encoded(row, last)
            return stamp_batches(data, positions, batches.records[row:last], base_offset), positions
        extra = extra_fields(interceptors, base_offset, stamp_ms, last - row) if interceptors else b""
        if origin is not None:
            extra += origin_fields(*origin)
        return batches.entries(row, last, base_offset, stamp_ms, delayed=self._delayed, extra=extra)

    def _withdraw(self, active: ActiveSegment, size: int) -> None:
        """Nothing was appended: cut what may be there of it."""
        try:
            with self._commit.poisoning():
                active.rollback(size)
            self._dirty.is_set = False
        finally:
            self._versions.withdraw()

    def append_control(self, control: Control, origin: OriginStretch | None = None) -> int:
        """Append what is left of a control batch at the stamp that decides what is left: that stamp.

        origin: as of `append`. A follower that is one record is written as such where all else is plain, too; where it
        is not, or not any more (somebody has altered the topic), as a batch.
        """
        is_short = control.is_one and origin is None and self.takes_one
        if isinstance(control.follower, SingleRecord) and not is_short:
            [batch], _ = encode(control.follower.columns(), self._config)
            control = replace(control, follower=batch)
        room_bytes, room_records = self._room()
        if self._versions.current.written.position and (
            control.size_max + control.records * self._prefix_max(origin) > room_bytes or control.records > room_records
        ):
            self._maintenance.roll()
        self._dirty.is_set = True
        stamp_ms = self._versions.begin(self._versions.current.written.offset + control.records)
        control = control.later_than(stamp_ms)
        if control.is_void:
            self._versions.withdraw()
            self._dirty.is_set = False
            return stamp_ms
        if is_short:
            self._write_control(control, stamp_ms)
        else:
            batches = control.batches(stamp_ms)
            self._write(batches, 0, len(batches), stamp_ms, control=control, origin=origin)
        self._checkpoint_when_due()
        return stamp_ms

    def _write_control(self, control: Control, stamp_ms: int) -> None:
        """`_write` of a control batch with one target, and of the record that it may bring, at a stamp in flight."""
        version, follower = self._versions.current, control.follower
        assert follower is None or isinstance(follower, SingleRecord), "it is one"
        active, (offset, position) = version.active, version.written
        try:
            data = control.entry_of_one(offset, stamp_ms)
            size = len(data)
            active.append(data if follower is None else data + follower.entry(offset + 1, stamp_ms))
        except BaseException:
            self._withdraw(active, position)
            raise
        due_ms, cancelled = int(control.deliver_after[0]), control.rows(offset)
        active.sparse.add_one(position, offset, stamp_ms)
        version.delayed_index.bucket.add(due_ms, offset, position, 1)
        end_offset = offset + 1
        if follower is not None:
            due_ms = min(due_ms, self._index_one(follower, end_offset, position + size, stamp_ms))
            end_offset += 1
        active.add_cancelled(cancelled)
        self._wrote(End(end_offset, active.size), cancelled, due_ms)
        if follower is not None:
            self._count_clamped(follower, stamp_ms)

    def _checkpoint_when_due(self) -> None:
        """Move the recovery point where the mutable bucket is full, or much was appended; or see to it."""
        if self._maintenance.recovery_point.due() and not self._queued_in_background():
            try:
                self._maintenance.checkpoint()
            except StorageFull as error:
                # The append itself succeeded, and the log holds all that the checkpoint would say.
                logger.warning(
                    "%s: no room for a checkpoint, recovery would start further back: %s", self._context.folder, error
                )

    def _queued_in_background(self) -> bool:
        """Whether a thread makes the checkpoint that is due, and is not far behind."""
        if self._context.checkpoint_queue is None:
            return False
        if self._maintenance.recovery_point.due(BEHIND):
            self.late_checkpoints += 1
            return False
        bucket = self._versions.current.delayed_index.bucket  # it begins where the one before was sealed
        begun = bucket.start.offset if self._delayed else self._maintenance.recovery_point.offset
        if self._queued_segment != begun:
            self._queued_segment = begun
            self._context.checkpoint_queue(self._context.folder, self._checkpoint)
        return True


def clamped_records(asked: Int64Array, records: Int64Array, stamp_ms: int) -> int:
    """The records of batches whose time the stamping rule moves. Who asked for "as soon as possible" gets that."""
    if len(asked) == 1:
        return int(records[0]) if AS_SOON_AS_POSSIBLE < asked[0] < stamp_ms else 0
    return int(records[(asked > AS_SOON_AS_POSSIBLE) & (asked < stamp_ms)].sum())
