"""Appends of records from another cluster: each record of an origin once, in its order there.

    batches of one origin ──> at or below the highest that is here? nothing is written
                          └─> stretches whose offsets follow each other there ──> appended, with where they come from
    cancel, reschedule    ──> the same; of its targets what is still pending here, by this log's own stamp
    cancel of a record that did not come yet ──> a note, for when it comes

The highest of each origin is in the log itself: in the metadata of the entries, and from there in the index that the
version has (`index/origin_index.py`). So whoever copies may die at any instant, and copy again from anywhere before.
The lock of appends is held: what is judged is what is appended next.
"""

from __future__ import annotations

import numpy as np

from afterlog.base.errors import InvalidBatch
from afterlog.index.entries import Entries
from afterlog.index.origin_index import OriginIndex
from afterlog.log.append import Appender, OriginStretch
from afterlog.log.cancel_result import CancelResult
from afterlog.log.version import VersionSet
from afterlog.records.awaited import Awaited
from afterlog.records.columns import Int64Array
from afterlog.records.control import Control, ControlType
from afterlog.records.encode import Batches, EncodedBatches
from afterlog.records.entry_origin import ORIGIN_BYTES_MAX


class ReplicatedAppends:
    """Of one log, which calls all of it within its append lock, with nothing interrupted before."""

    def __init__(self, versions: VersionSet, appender: Appender) -> None:
        self._versions = versions
        self._appender = appender

    def append(self, batches: Batches, origin: str, origin_offset: Int64Array) -> int:
        """Append what is not here of batches with these offsets, int64[n]; how many records that was.

        Raises InvalidBatch, and as `Appender.append` does, with some of it appended.
        """
        behind = origin_offset + batches.records
        self._check(origin, origin_offset, behind)
        upcoming = self.upcoming(origin)
        row = int(behind.searchsorted(upcoming, side="right"))
        if row == len(batches):
            return 0
        if origin_offset[row] < upcoming:
            raise InvalidBatch(f"a part of the batch at offset {int(origin_offset[row])} of {origin} is here already")
        starts = [row, *(np.flatnonzero(origin_offset[row + 1 :] != behind[row:-1]) + row + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(batches)], strict=True):
            shift = int(origin_offset[start]) - self._versions.current.written.offset
            self._appender.append(EncodedBatches.of(batches, start, stop), OriginStretch(origin, shift))
        return int(batches.records[row:].sum())

    def upcoming(self, origin: str) -> int:
        """The offset there after the highest that is here."""
        return self._index().upcoming(origin)

    def awaited(self, origin: str) -> Int64Array:
        """The offsets there of what was cancelled elsewhere, and is not to be appended when it comes; ascending."""
        return self._index().awaited(origin)

    def cancel_awaited(self, origin: str, origin_offset: Int64Array) -> None:
        """Note that these records of an origin are cancelled, which did not come yet."""
        index = self._index()
        fresh = np.setdiff1d(origin_offset[origin_offset >= index.upcoming(origin)], index.awaited(origin))
        if len(fresh):
            value = Awaited(origin, fresh).to_bytes()
            self._appender.append_control(Control.of_note(ControlType.CANCEL_AWAITED, value))

    def cancel(self, found: Entries, targets: Int64Array, origin: str, origin_offset: int) -> None:
        """Append a CANCEL of that offset there, of what is pending of its targets here: nothing where nothing is.

        found: what `find` says of the targets, offsets of this log. Raises as `Appender.append_control`.
        """
        if origin_offset >= self.upcoming(origin):
            self._control(ControlType.CANCEL, found, targets, None, origin, origin_offset)

    def note(self, kind: ControlType, value: bytes, origin: str, origin_offset: int) -> None:
        """Append a note of that offset there. Raises as `Appender.append_control`."""
        if origin_offset >= self.upcoming(origin):
            shift = origin_offset - self._versions.current.written.offset
            self._appender.append_control(Control.of_note(kind, value), OriginStretch(origin, shift))

    def reschedule(
        self, found: Entries, targets: Int64Array, follower: Batches, origin: str, origin_offset: int
    ) -> int:
        """The same of a RESCHEDULE, with its follower behind it, in one write; how many records were appended.

        What replaces a record that was delivered here meanwhile comes by itself.
        """
        is_new = origin_offset + 1 >= self.upcoming(origin)
        if origin_offset >= self.upcoming(origin):
            self._control(ControlType.RESCHEDULE, found, targets, follower, origin, origin_offset)
        self.append(follower, origin, np.array([origin_offset + 1]))  # nothing, where it is there by now
        return int(follower.records.sum()) if is_new else 0

    def _control(
        self,
        kind: ControlType,
        found: Entries,
        targets: Int64Array,
        follower: Batches | None,
        origin: str,
        origin_offset: int,
    ) -> None:
        version = self._versions.current
        answers = version.cancellations.answers(found, targets, version.log_start.key, self._versions.stamp_reading())
        pending = answers == CancelResult.CANCELLED
        if bool(pending.any()):
            shift = origin_offset - version.written.offset
            control = Control(kind, targets[pending], found.deliver_after[pending], follower)
            self._appender.append_control(control, OriginStretch(origin, shift))

    def _check(self, origin: str, origin_offset: Int64Array, behind: Int64Array) -> None:
        if not origin.isascii() or not 0 < len(origin) <= ORIGIN_BYTES_MAX:
            raise InvalidBatch(f"{origin!r:.200} names no origin: it takes 1 to {ORIGIN_BYTES_MAX} characters of ASCII")
        if int(origin_offset.min(initial=0)) < 0 or bool((origin_offset[1:] < behind[:-1]).any()):
            raise InvalidBatch(f"batches of {origin} that are not in the order of their offsets")

    def _index(self) -> OriginIndex:
        """Made with the first use."""
        version = self._versions.current
        index = version.origins
        if index is None:
            index = OriginIndex()
            self._versions.swap(version, origins=index)
        return index
