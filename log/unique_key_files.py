"""The files of a partition's unique keys: when they are made, merged, made anew and removed.

    first use:    checkpoints say since when ──> swap
    checkpoint, roll:   rows in memory that are pending ──> file ──> checkpoints, with the recovery point ──> swap
    merge:        files ──> one file, without what is not pending ──> checkpoints ──> swap ──> sources go
    file rotten:  rows made anew from the log ──> file ──> checkpoints ──> swap

The checkpoints name the files: what they do not name is a leftover, and what they name and is not there, or is not what
they say, is made anew. Files tell of all below the recovery point, so recovery reads for keys what it reads anyway, and
where nobody ever sent a unique key nothing at all is done.

*Pending* is decided by the clock that stamps appends, which never falls, over restarts neither. A row may go for good
where its record is due by a stamp that is durable, or cancelled by a control batch that is.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.names import unique_key_file
from afterlog.index.hidden_keys import HiddenKeys
from afterlog.index.key_rows import KeyRows
from afterlog.index.unique_key_file import Chunks, KeyFileMark, UniqueKeyFile, write_keys
from afterlog.index.unique_keys import RecentKeys, UniqueKeyIndex, to_merge
from afterlog.log.checkpoints import CheckpointFile, Checkpoints, UniqueKeysMark
from afterlog.log.context import LogContext
from afterlog.log.segment import ActiveSegment, SealedSegment
from afterlog.log.version import Version, VersionSet

logger = logging.getLogger("afterlog.log")

MERGED_ROWS = 1 << 18
"""Of each file merged at a time, about. Larger: more memory, fewer searches."""
WritingGuard = Callable[[], AbstractContextManager[object]]


class UnsavedKeys(NamedTuple):
    """What is in memory at one end of the log, and which of it is cancelled."""

    levels: tuple[KeyRows, ...]
    cancelled: HiddenKeys


class UniqueKeyFiles:
    """Of one partition. Called as `Maintenance` and `RecoveryPoint` are, of which it is a part."""

    def __init__(self, context: LogContext, checkpoints: CheckpointFile, versions: VersionSet) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._versions = versions

    def begin(self) -> None:
        """From now on there may be unique keys. Under the append lock, and a mark."""
        version = self._versions.current
        if version.unique_keys is None:
            point = self._checkpoints.current.recovery.offset  # what lies behind it is read by recovery anyway
            mark = self._checkpoints.current.unique_keys or UniqueKeysMark(since=point, upto=point)
            self._checkpoints.update(unique_keys=mark)
            self._versions.swap(version, unique_keys=UniqueKeyIndex((), RecentKeys(), mark.upto))

    @property
    def recent_count(self) -> int:
        """Rows in memory."""
        keys = self._versions.current.unique_keys
        return 0 if keys is None else keys.recent.count

    def unsaved(self, version: Version) -> UnsavedKeys | None:
        """Under the append lock; None where nobody ever sent a unique key."""
        keys = version.unique_keys
        return None if keys is None else UnsavedKeys(keys.recent.levels(), version.cancellations.targets)

    def saved(self, unsaved: UnsavedKeys | None, end: int, stamp_ms: int) -> dict[str, Any]:
        """Make a file of what is pending by a stamp; what the checkpoints must say then, with the log up to `end`.

        After a sync of the log, with nothing in flight before `end`. Raises StorageFull.
        """
        mark = self._checkpoints.current.unique_keys
        if unsaved is None or mark is None:
            return {}
        rows = pending(KeyRows.concatenate([*unsaved.levels]), unsaved.cancelled, stamp_ms)
        rows = rows.where((rows.offset >= mark.upto) & (rows.offset < end)).sorted()
        kept = tuple(file for file in mark.files if file.latest_due > stamp_ms)
        made = write(self._context, mark.upto, end, lambda: [rows])
        return {"unique_keys": replace(mark, upto=max(end, mark.upto), files=(*kept, *made))}

    def reconcile(self) -> None:
        """Under the append lock: make true in memory what the checkpoints say. Files that they do not name go."""
        mark, version = self._checkpoints.current.unique_keys, self._versions.current
        keys = version.unique_keys
        if mark is None or keys is None:
            return
        held = {file.mark: file for file in keys.files}
        if mark.upto == keys.upto and tuple(held) == mark.files:
            return
        files = tuple(held.get(each) or opened_file(self._context, each) for each in mark.files)
        recent = keys.recent if mark.upto == keys.upto else keys.recent.behind(mark.upto)
        self._versions.swap(version, unique_keys=UniqueKeyIndex(files, recent, mark.upto))
        self._remove(set(held) - set(mark.files))

    def mend(self, rotten: CorruptFile) -> None:
        """Under the append lock, and a mark: make the files from that one on anew from the log. It itself otherwise."""
        version, mark = self._versions.current, self._checkpoints.current.unique_keys
        broken = [each for each in mark.files if self._path(each) == rotten.path] if mark is not None else []
        if mark is None or not broken:
            raise rotten
        logger.warning("%s: %s; made anew from the log", rotten.path, rotten.message)
        stamp_ms = self._checkpoints.current.recovery.stamp_ms
        anew = made_anew(
            self._context, mark, broken[0].first, mark.upto, version.sealed, version.active, version.written.position,
            stamp_ms,
        )  # fmt: skip
        self._checkpoints.update(unique_keys=anew)
        keys = version.unique_keys
        assert keys is not None, "its file was looked into"
        files = tuple(opened_file(self._context, each) for each in anew.files)
        self._versions.swap(version, unique_keys=UniqueKeyIndex(files, keys.recent, anew.upto))
        self._remove(set(mark.files) - set(anew.files))

    @property
    def crowded(self) -> bool:
        """Whether there is something for `merge` to do."""
        mark = self._checkpoints.current.unique_keys
        return mark is not None and len(to_merge(mark.files)) > 0

    def merge(
        self,
        lock: threading.Lock,
        writing: WritingGuard,
        edit: Callable[[], AbstractContextManager[object]],
        sync: Callable[[], None],
        proceed: Callable[[], object],
    ) -> int:
        """Merge files until there are O(log n) of them; how many merges. lock, writing: of the writer; edit: a block
        that changes files and the checkpoints; sync: of the log; proceed: raises where it should end.
        """
        count = 0
        while self.crowded:
            proceed()
            with lock, writing():
                known = self._checkpoints.current
                cancelled = self._versions.current.cancellations.targets
            sources = () if known.unique_keys is None else to_merge(known.unique_keys.files)
            if not sources:
                break
            sync()  # what is cancelled must be so for good before its row goes
            with lock, writing():
                parts = [opened_file(self._context, each) for each in sources]
            try:
                rows = [file.rows() for file in parts]
                left = partial(_left_of, rows, cancelled, known.recovery.stamp_ms, proceed)
                made = write(self._context, sources[0].first, sources[-1].end, left)
                for file in parts:
                    file.check_there()
            except CorruptFile as error:
                with lock, writing(), edit():
                    self.mend(error)
                continue
            with lock, writing(), edit():
                mark = self._checkpoints.current.unique_keys
                if mark is not None and set(sources) <= set(mark.files):  # else some were all due meanwhile
                    first = mark.files.index(sources[0])
                    files = (*mark.files[:first], *made, *mark.files[first + len(sources) :])
                    self._checkpoints.update(unique_keys=replace(mark, files=files))
                    self.reconcile()
                    count += 1
                else:
                    self._remove(made)
        return count

    def _path(self, mark: KeyFileMark) -> Any:
        return self._context.folder / unique_key_file(mark.first, mark.end)

    def _remove(self, marks: Iterable[KeyFileMark]) -> None:
        """Files that nobody needs. Who has one open reads it to its end."""
        kept = self._checkpoints.current.unique_keys
        names = set() if kept is None else {unique_key_file(each.first, each.end) for each in kept.files}
        for mark in marks:
            if unique_key_file(mark.first, mark.end) not in names:
                with contextlib.suppress(FileNotFoundError):
                    self._context.files.unlink(self._path(mark))


def pending(rows: KeyRows, cancelled: HiddenKeys, stamp_ms: int) -> KeyRows:
    """Those that are due after a stamp, and not cancelled."""
    rows = rows.where(rows.due > stamp_ms)
    return rows.where(~cancelled.holds(rows.due, rows.offset)) if len(rows) and cancelled.count else rows


def opened_file(context: LogContext, mark: KeyFileMark) -> UniqueKeyFile:
    return UniqueKeyFile(context.files, context.folder / unique_key_file(mark.first, mark.end), mark)


def _left_of(
    parts: list[KeyRows], cancelled: HiddenKeys, stamp_ms: int, proceed: Callable[[], object]
) -> Iterator[KeyRows]:
    """What a merge leaves, in chunks."""
    for rows in KeyRows.merged(parts, MERGED_ROWS):
        proceed()
        yield pending(rows, cancelled, stamp_ms)


def write(context: LogContext, first: int, end: int, chunks: Chunks) -> tuple[KeyFileMark, ...]:
    """Make a file of sorted rows, which covers the offsets from `first` to `end`; none where there are none."""
    mark = write_keys(context.files, context.folder / unique_key_file(first, end), first, end, chunks)
    return () if mark is None else (mark,)


def made_anew(
    context: LogContext,
    mark: UniqueKeysMark,
    first: int,
    end: int,
    sealed: tuple[SealedSegment, ...],
    active: ActiveSegment,
    active_end: int,
    stamp_ms: int,
) -> UniqueKeysMark:
    """The mark with one file, made from the log, in place of those from offset `first` on, up to `end`.

    active_end: the byte of the active segment up to which it is intact. Raises CorruptFile of the log.
    """
    from afterlog.log.unique_key_scan import rows_of_log

    first = max(first, mark.since)
    limit_bytes = context.config.decompressed_bytes_max
    rows = rows_of_log((*sealed, active), first, end, active_end, limit_bytes, stamp_ms)
    kept = tuple(file for file in mark.files if file.end <= first)
    return replace(mark, upto=end, files=(*kept, *write(context, first, end, lambda: [rows])))


def recovered_keys(
    context: LogContext,
    checkpoints: CheckpointFile,
    sealed: tuple[SealedSegment, ...],
    active: ActiveSegment,
) -> UniqueKeyIndex | None:
    """The unique keys of a log whose torn tail is cut: files up to the recovery point, made anew where need be.

    None where the checkpoints say that nobody ever sent one: then nothing is read.
    """
    known = checkpoints.current
    mark, recovery = known.unique_keys, known.recovery
    if mark is None:
        return None
    from afterlog.log.unique_key_scan import rows_of_tail

    gone = [each.first for each in mark.files if not _is_there(context, each)]
    first = min([mark.upto, *gone]) if mark.upto <= recovery.offset else mark.since
    if first < recovery.offset or mark.upto > recovery.offset:
        logger.warning("%s: files of unique keys are missing or stale; made anew from the log", context.folder)
        mark = made_anew(context, mark, first, recovery.offset, sealed, active, recovery.position, recovery.stamp_ms)
        checkpoints.update(unique_keys=mark)
    recent = RecentKeys()
    limit_bytes = context.config.decompressed_bytes_max
    recent.add(rows_of_tail(active, recovery.position, recovery.offset, limit_bytes, recovery.stamp_ms))
    return UniqueKeyIndex(tuple(opened_file(context, each) for each in mark.files), recent, mark.upto)


def _is_there(context: LogContext, mark: KeyFileMark) -> bool:
    """Whether the file is. What is in it is checked when somebody looks into it."""
    return context.files.exists(context.folder / unique_key_file(mark.first, mark.end))


def check_unique_keys(version: Version, known: Checkpoints, limit_bytes: int, stamp_ms: int) -> None:
    """AssertionError where a pending record holds a key and has no row; reads the log."""
    from afterlog.log.unique_key_scan import rows_of_log

    keys, mark = version.unique_keys, known.unique_keys
    assert keys is not None
    assert mark is not None
    keys.check(version.written.offset)
    assert mark.upto >= keys.upto
    end = version.written
    stamp_ms = max(stamp_ms, version.log_start.deliver_after)  # of what lies behind, nobody knows what was cancelled
    rows = rows_of_log(version.segments, mark.since, end.offset, end.position, limit_bytes, stamp_ms)
    rows = pending(rows, version.cancellations.targets, stamp_ms)
    _, offset, _ = keys.find(np.unique(rows.hashed))
    assert bool(np.isin(rows.offset, offset).all())
