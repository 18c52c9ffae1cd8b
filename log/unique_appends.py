"""Appends with unique keys: the holder of a key is looked up and replaced under one append lock.

    key ──> hash ──> rows of that hash ──> pending? ──> the very key in the log? ──> its holder
                     UniqueKeyIndex        the clock, cancellations    claims

A holder is pending by the reading that the look-up took: no stamp is below it from then on. What replaces it is a
RESCHEDULE with one batch behind it, in one write: recovery keeps both or neither. Where a holder falls due between the
reading and the stamp, it is delivered, and what should have replaced it is appended all the same: the key is free.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.index.growing_columns import Int64Array
from afterlog.log.append import Appender
from afterlog.log.context import LogContext
from afterlog.log.unique_key_files import UniqueKeyFiles
from afterlog.log.unique_key_scan import keys_at
from afterlog.log.version import VersionSet
from afterlog.records.control import Control, ControlType
from afterlog.records.encode import Batches
from afterlog.records.single import SingleRecord
from afterlog.records.unique_key import hash_of, hashes_of


class Holders(NamedTuple):
    """Who holds some keys: int64 columns of one length. As a rule one record a key."""

    which: Int64Array
    """The row of the key that was asked for."""
    offset: Int64Array
    due: Int64Array


class UniqueAppends:
    """Of one log, which makes it within its append lock, for one call."""

    def __init__(
        self,
        context: LogContext,
        versions: VersionSet,
        appender: Appender,
        files: UniqueKeyFiles,
        edit: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """edit: a block that changes files of which the checkpoints tell."""
        self._limit_bytes = context.config.decompressed_bytes_max
        self._versions = versions
        self._appender = appender
        self._files = files
        self._edit = edit
        if versions.current.unique_keys is None:
            with edit():
                files.begin()
        self.reading_ms = versions.stamp_reading()
        """By which a record is pending: it is due later."""

    def holders_of_one(self, key: bytes) -> Holders:
        """Who holds a key. Raises CorruptFile."""
        version, hashed = self._versions.current, hash_of(key)
        keys = version.unique_keys
        assert keys is not None
        try:
            found = keys.find_one(hashed)
        except CorruptFile as error:
            self._mend(error)
            return self.holders_of_one(key)
        if not found:
            return _NOBODY
        offset, due = np.array(found, np.int64).T.copy()
        holders = self._pending(Holders(np.zeros(len(offset), np.int64), offset, due))
        keys.recent.forget(hashed, {*offset.tolist()} - {*holders.offset.tolist()})
        return self._confirmed(holders, [key])

    def holders(self, keys: list[bytes]) -> Holders:
        """Who holds keys that differ. Raises CorruptFile."""
        index = self._versions.current.unique_keys
        assert index is not None
        try:
            found = index.find(hashes_of(keys))
        except CorruptFile as error:
            self._mend(error)
            return self.holders(keys)
        return self._confirmed(self._pending(Holders(*found)), keys)

    def append_one(self, record: SingleRecord) -> int:
        """Append a record for which `takes_one` is true; its offset."""
        return self._appender.append_one(record)

    def append(self, batches: Batches) -> int:
        """Append batches; the offset of the first record."""
        first = self._versions.current.written.offset
        self._appender.append(batches)
        return first

    def replace(self, offset: Int64Array, due: Int64Array, sent: Batches | SingleRecord) -> int:
        """Cancel what is pending of some holders, and append one batch in their place; the offset of its first record.

        Or a record for which `takes_one` is true. Both, or neither.
        """
        before = self._versions.current.written.offset
        self._appender.append_control(Control(ControlType.RESCHEDULE, offset, due, sent))
        have_fallen_due = self._versions.current.written.offset == before
        if isinstance(sent, SingleRecord):
            return self._appender.append_one(sent) if have_fallen_due else self._versions.current.written.offset - 1
        if have_fallen_due:
            self._appender.append(sent)
        return self._versions.current.written.offset - int(sent.records.sum())

    def _pending(self, found: Holders) -> Holders:
        cancelled = self._versions.current.cancellations.targets
        is_pending = found.due > self.reading_ms
        if cancelled.count and len(is_pending):
            is_pending &= ~cancelled.holds(found.due, found.offset)
        return found if bool(is_pending.all()) else Holders(*(column[is_pending] for column in found))

    def _confirmed(self, found: Holders, keys: list[bytes]) -> Holders:
        """Those of which the log says that it is the very key, each once, in offset order."""
        if not len(found.offset):
            return _NOBODY
        if len(found.offset) == 1:
            [held] = keys_at(self._versions.current, found.offset, self._limit_bytes)
            return found if held == keys[int(found.which[0])] else _NOBODY
        offset, row = np.unique(found.offset, return_inverse=True)
        there = keys_at(self._versions.current, offset, self._limit_bytes)
        pairs = zip(found.which.tolist(), row.tolist(), strict=True)  # a hash may be that of several keys
        same = np.flatnonzero(np.fromiter((keys[key] == there[at] for key, at in pairs), np.bool_, len(row)))
        _, first = np.unique(row[same], return_index=True)  # a record holds one key, and may be in two places
        return Holders(*(column[same[first]] for column in found))

    def _mend(self, rotten: CorruptFile) -> None:
        with self._edit():
            self._files.mend(rotten)


_NONE = np.empty(0, np.int64)
_NOBODY = Holders(_NONE, _NONE, _NONE)
