"""Deciding what would make a partition whole; nothing here writes. `afterlog.offline.repair` tells what the plans mean.

Delivery offsets stay what they are: `removed_records` is what makes the number of offsets and of records agree, and a
rank counts it, so a record that is left never gets a smaller rank by the loss of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from afterlog.errors import CorruptFile
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries, Key
from afterlog.index.run import Run
from afterlog.index.sparse import SparseIndexes
from afterlog.log.checkpoints import (
    BEFORE_ALL,
    ActiveMark,
    Checkpoints,
    FrontierLease,
    LogStart,
    Recovery,
    SealedMark,
)
from afterlog.log.context import LogContext
from afterlog.log.facts import FileMark
from afterlog.log.scan import CUT, GONE, Intact, log_bases, read_log
from afterlog.names import (
    BUCKETS,
    CANCEL_INDEX,
    CHECKPOINTS,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    bucket_key,
    segment_file,
)
from afterlog.offline.verify import (
    active_fault,
    active_runs,
    bucket_spans,
    cancel_index_fault,
    entries_of,
    index_faults,
    log_end,
    run_fault,
    sealed_runs,
)

ListedMarks = Callable[[], Sequence[SealedMark]]
"""Asks object storage for the segments of the partition that it lists, as segments that are only there."""
WITH_REMOTE = "give --remote"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What goes of a log: the bytes from `position` on, and with them the offsets [first_offset, end_offset)."""

    path: Path
    position: int
    lost_bytes: int
    first_offset: int
    end_offset: int
    reason: str

    @property
    def lost_records(self) -> int:
        return self.end_offset - self.first_offset

    @property
    def copy(self) -> Path:
        """Where the bytes are kept."""
        return self.path.with_name(f"{self.path.name}{CUT}{self.position}")

    def __str__(self) -> str:
        lost = f"{self.lost_bytes} bytes are lost" + (f", saved as {self.copy.name}" if self.lost_bytes else "")
        offsets = f"; offsets {self.first_offset} to {self.end_offset - 1} are lost" if self.lost_records else ""
        return f"{self.path}: {self.reason} at byte {self.position}: cut there; {lost}{offsets}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What would be done to a partition. `steps` say it, and what it gives up; none: there is nothing to do."""

    context: LogContext
    steps: tuple[str, ...]
    cuts: tuple[Cut, ...]
    contents: tuple[tuple[Path, bytes], ...]
    """Indexes to write."""
    stale: tuple[Path, ...]
    """Runs to remove; recovery makes them anew."""
    checkpoints: Checkpoints
    clock_ms: int | None
    """What the frontier is put back to."""
    end_offset: int

    @property
    def log_start(self) -> int:
        """The first delivery offset that can be read afterwards."""
        if self.context.settings.delayed:
            return self.checkpoints.log_start.delivery_offset
        return min((mark.base_offset for mark in self.checkpoints.sealed), default=self.checkpoints.active.base_offset)


class RepairPlanner:
    """Looks at one partition and collects what is to be done.

    Rows of segments that are only in object storage stay as they are. `listed`: then a segment whose files here are
    broken is read from its copy there instead of being cut.
    """

    def __init__(self, context: LogContext, listed: ListedMarks | None = None) -> None:
        self._context = context
        self._listed = listed
        self._files = context.files
        self._folder = context.folder
        self._delayed = context.settings.delayed
        self._steps: list[str] = []
        self._cuts: list[Cut] = []
        self._contents: list[tuple[Path, bytes]] = []
        self._stale: list[Path] = []
        self._sealed: list[SealedMark] = []
        self._intact: dict[int, Entries] = {}
        self._stamp_ms = 0

    def plan(self, known: Checkpoints, put_clock_back: bool) -> RepairPlan:
        """By checkpoints that are intact."""
        active = self._read(known.active.base_offset)
        fault = active_fault(active, known)
        if fault and active.stop >= known.recovery.position and active.fault != GONE:
            return self.from_logs(fault, put_clock_back)
        for mark in known.sealed:
            if mark.local:
                self._keep_sealed(self._read(mark.base_offset, mark.log_bytes), mark)
            else:
                self._keep_remote(mark)
        if fault:
            end_offset = max(known.recovery.offset, log_end(self._files, self._folder, known))
            mark_of_active, recovery = self._end_active(active, end_offset, known.recovery.stamp_ms)
        else:
            end_offset = active.end_offset
            mark_of_active, recovery = self._keep_active(active, known), known.recovery
        removed = self._removed(recovery.segment) if self._delayed else known.removed_records
        if removed != known.removed_records and not self._cuts:
            self._steps.append(f"{self._folder}: {removed} records are gone, not {known.removed_records}: counted anew")
        start = known.log_start
        unchanged = removed == known.removed_records and not self._cuts
        if self._delayed and not (unchanged and self._away):
            start = replace(start, delivery_offset=removed + self._records_up_to(start.key))
        content = replace(
            known,
            recovery=recovery,
            active=mark_of_active,
            sealed=tuple(self._sealed),
            removed_records=removed,
            log_start=start,
        )
        return self._plan(content, end_offset, put_clock_back)

    def from_logs(self, reason: str, put_clock_back: bool) -> RepairPlan:
        """Without checkpoints: by what the logs hold."""
        path = self._folder / CHECKPOINTS
        bases = log_bases(self._files, self._folder)
        if not bases:
            raise CorruptFile("neither checkpoints nor a log: restore the folder from a copy", path=path)
        self._steps.append(
            f"{path}: {reason}: made anew from the logs. Given up: the exact frontier (it becomes the largest broker "
            "timestamp or the wall clock, whichever is later), and retention's log start: what retention had put out "
            "of reach may be delivered again"
        )
        only_remote = self._only_remote(bases)
        for base in sorted({*bases[:-1], *only_remote}):
            if base in only_remote:
                self._keep_remote(only_remote[base])
            else:
                self._keep_sealed(self._read(base), None)
        next_bases = [*(mark.base_offset for mark in self._sealed[1:]), bases[-1]]
        if any(mark.end_offset > base for mark, base in zip(self._sealed, next_bases, strict=False)):
            raise CorruptFile("no checkpoints, and logs that overlap: restore the folder from a copy", path=path)
        active = self._read(bases[-1])
        end_offset = max(active.end_offset, self._runs_end(active.base_offset))
        if end_offset > active.end_offset:
            mark_of_active, recovery = self._end_active(active, end_offset, self._stamp_ms)
        else:
            if active.fault:
                self._cut(active, end_offset)
                self._steps.append(
                    f"{active.path}: where it ended is not known: offsets from {end_offset} on may be given again"
                )
            mark_of_active = self._write_active(active, active.stop)
            recovery = Recovery(
                segment=active.base_offset, position=active.stop, offset=end_offset, stamp_ms=self._stamp_ms
            )
        removed = self._removed(recovery.segment) if self._delayed else 0
        now_ms = max(self._stamp_ms, self._context.now_ms())
        content = Checkpoints(
            recovery=recovery,
            active=mark_of_active,
            frontier=FrontierLease(used_ms=now_ms, lease_ms=now_ms),
            log_start=LogStart(delivery_offset=removed),
            removed_records=removed,
            sealed=tuple(self._sealed),
        )
        return self._plan(content, end_offset, put_clock_back)

    def _plan(self, content: Checkpoints, end_offset: int, put_clock_back: bool) -> RepairPlan:
        if self._delayed:
            self._check_runs(content)
        now_ms = self._context.now_ms()
        ahead_ms = max(content.frontier.lease_ms, content.recovery.stamp_ms) - now_ms
        clock_ms = now_ms if put_clock_back and ahead_ms > 0 else None
        if clock_ms is not None:
            self._steps.append(
                f"{self._folder}: the frontier, {ahead_ms} ms ahead of the wall clock, is put back to it. Given up: "
                "promise D2 for positions beyond it: records may sort in front of what was delivered, and are then "
                "skipped. What was stamped meanwhile stays due when it is stamped"
            )
        return RepairPlan(
            context=self._context,
            steps=tuple(self._steps),
            cuts=tuple(self._cuts),
            contents=tuple(self._contents),
            stale=tuple(self._stale),
            checkpoints=content,
            clock_ms=clock_ms,
            end_offset=end_offset,
        )

    # Segments.

    def _read(self, base_offset: int, end: int | None = None) -> Intact:
        path = self._folder / segment_file(base_offset, LOG)
        log = read_log(self._files, path, base_offset, end=end)
        self._stamp_ms = max(self._stamp_ms, log.stamp_ms)
        self._intact[base_offset] = log.entries
        return log

    def _keep_sealed(self, log: Intact, mark: SealedMark | None) -> None:
        """Keep what is intact of a sealed segment; `mark`: what the checkpoints say of it."""
        copy = self._copies.get(log.base_offset)
        known = mark or copy
        end_offset = log.end_offset if known is None else max(known.end_offset, log.end_offset)
        if log.fault or log.stop < log.size or end_offset > log.end_offset:
            if copy is not None and known is not None and copy.end_offset == known.end_offset:
                self._read_remotely(log, copy)
                return
            if mark is not None and mark.remote is not None and self._listed is None:
                self._steps.append(f"{log.path}: it was uploaded: {WITH_REMOTE}, and it is read from there instead")
            self._cut(log, end_offset)
            mark = None
        if not len(log.entries):
            return
        faults = [] if mark is None else [*index_faults(self._files, log, mark, mark.end_offset)]
        self._steps += [f"{path}: {fault}: made anew from the log" for path, fault in faults]
        fresh, contents = self._sealed_mark(log)
        if mark is None or faults or fresh.max_deliver_after != mark.max_deliver_after:
            self._contents += contents
            if mark is None or replace(mark, remote=None) != fresh:  # its indexes there are others
                mark = fresh
        self._sealed.append(mark)

    def _keep_remote(self, mark: SealedMark) -> None:
        """Keep the row of a segment that is in object storage only; of its files the cancel index is here."""
        path = self._folder / segment_file(mark.base_offset, LOG)
        fault = cancel_index_fault(self._files, path, mark)
        if fault and self._listed is None:
            raise CorruptFile(
                f"{fault}; there is one in object storage: {WITH_REMOTE}", path=path.with_suffix(CANCEL_INDEX)
            )
        if fault:
            self._steps.append(f"{path.with_suffix(CANCEL_INDEX)}: {fault}: fetched from object storage")
        self._sealed.append(mark)

    def _read_remotely(self, log: Intact, copy: SealedMark) -> None:
        """Let the files of a segment go, which recovery removes, in favour of what is listed."""
        fault = log.fault or "it is not as it was sealed"
        self._steps.append(f"{log.path}: {fault}: its files go, and it is read from object storage; nothing is lost")
        del self._intact[log.base_offset]
        self._sealed.append(copy)

    @cached_property
    def _copies(self) -> dict[int, SealedMark]:
        """What object storage lists, by base offset; asked for when first needed."""
        return {} if self._listed is None else {mark.base_offset: mark for mark in self._listed()}

    def _only_remote(self, bases: Sequence[int]) -> dict[int, SealedMark]:
        """What is listed and has no log in the folder, where the checkpoints do not tell."""
        path = self._folder / CHECKPOINTS
        if self._context.settings.remote_storage_enable and self._listed is None:
            raise CorruptFile(f"only they know which segments are in object storage alone: {WITH_REMOTE}", path=path)
        only_remote = {base: mark for base, mark in self._copies.items() if base not in bases}
        if any(mark.end_offset > bases[-1] for mark in only_remote.values()):
            raise CorruptFile("object storage lists what is newer: restore the folder from a copy", path=path)
        return only_remote

    @property
    def _away(self) -> list[SealedMark]:
        return [mark for mark in self._sealed if not mark.local]

    def _keep_active(self, active: Intact, known: Checkpoints) -> ActiveMark:
        """The active segment is as durable as the checkpoints say; its indexes may not be."""
        mark, recovery = known.active, known.recovery
        if active.stop < active.size:
            self._cut(active, active.end_offset, f"a torn tail behind the recovery point ({active.fault})")
        if recovery.position and self._delayed:
            runs = active_runs(self._files, self._folder, known)
            for run in runs:
                self._drop_run(run_fault(run, entries_of(run, active)))
            if not runs:
                self._steps.append(f"{self._folder / BUCKETS}: no intact runs: made anew from the log")
        faults = [*index_faults(self._files, active, mark, recovery.offset)]
        self._steps += [f"{path}: {fault}: made anew from the log" for path, fault in faults]
        return self._write_active(active, recovery.position) if faults else mark

    def _end_active(self, active: Intact, end_offset: int, stamp_ms: int) -> tuple[ActiveMark, Recovery]:
        """Seal the active segment where it is intact, and begin the next one behind what was lost."""
        self._cut(active, end_offset)
        if len(active.entries):
            mark, contents = self._sealed_mark(active)
            self._contents += contents
            self._sealed.append(mark)
        recovery = Recovery(segment=end_offset, position=0, offset=end_offset, stamp_ms=max(stamp_ms, self._stamp_ms))
        return ActiveMark(base_offset=end_offset), recovery

    def _cut(self, log: Intact, end_offset: int, reason: str = "") -> None:
        cut = Cut(
            path=log.path,
            position=log.stop,
            lost_bytes=log.size - log.stop,
            first_offset=log.end_offset,
            end_offset=end_offset,
            reason=reason or log.fault or "more bytes than were sealed",
        )
        self._cuts.append(cut)
        self._steps.append(str(cut))

    def _records_up_to(self, key: Key) -> int:
        """Records that are left with a key <= `key`."""
        count = 0
        for entries in self._intact.values():
            earlier = entries.deliver_after < key.deliver_after
            same = (entries.deliver_after == key.deliver_after) & (entries.offset <= key.offset)
            count += int(entries.records[earlier | same].sum())
        if key == BEFORE_ALL:
            return count
        return count + DelayedIndex.of([self._context.remote.copy(mark).run() for mark in self._away]).rank(key)

    def _runs_end(self, base_offset: int) -> int:
        """The offset behind the last run of the active segment; 0 without one."""
        ends = [0]
        for span in bucket_spans(self._files, self._folder):
            if span[0] >= base_offset:
                with contextlib.suppress(CorruptFile):
                    ends.append(Run.open(self._files, self._folder / bucket_key(*span)).coverage.end_offset)
        return max(ends)

    def _removed(self, active_base: int) -> int:
        """Offsets below the active segment that are in no other."""
        return active_base - sum(mark.end_offset - mark.base_offset for mark in self._sealed)

    # Indexes.

    def _sealed_mark(self, log: Intact) -> tuple[SealedMark, list[tuple[Path, bytes]]]:
        """What the checkpoints must say of a segment that ends where the log does, and its indexes."""
        sparse = self._sparse(log, log.stop)
        sparse.finish()
        index, time_index = sparse.to_bytes()
        cancel_index = log.cancelled.to_bytes()
        mark = SealedMark(
            base_offset=log.base_offset,
            end_offset=log.end_offset,
            log_bytes=log.stop,
            max_deliver_after=int(log.entries.deliver_after.max()) if self._delayed else 0,
            max_timestamp=sparse.latest[0],
            index=FileMark.of(index),
            time_index=FileMark.of(time_index),
            cancel_index=FileMark.of(cancel_index),
        )
        return mark, _index_files(log, index, time_index, cancel_index)

    def _write_active(self, log: Intact, end: int) -> ActiveMark:
        """Write the indexes of the active segment anew, as far as the recovery point at byte `end`."""
        sparse = self._sparse(log, end)
        index, time_index = sparse.to_bytes()
        rows = int(log.entries.position.searchsorted(end))
        end_offset = int(log.entries.offset[rows]) if rows < len(log.entries) else log.end_offset
        cancel_index = log.cancelled.before(end_offset).to_bytes()
        self._contents += _index_files(log, index, time_index, cancel_index)
        return ActiveMark(
            base_offset=log.base_offset,
            index=FileMark.of(index),
            time_index=FileMark.of(time_index),
            latest=sparse.latest,
            cancel_index=FileMark.of(cancel_index),
        )

    def _sparse(self, log: Intact, end: int) -> SparseIndexes:
        return log.index(SparseIndexes(log.base_offset, self._context.config.index_interval_bytes), end)

    def _check_runs(self, content: Checkpoints) -> None:
        """Of the sealed segments as they will be: what does not hold just their entries goes."""
        runs = sealed_runs(self._files, self._folder, content)
        for error in runs.faults_in(self._folder):
            self._drop_run(error)
        for run, segments in runs.groups:
            if run is not None:
                expected = Entries.concatenate([self._intact[mark.base_offset] for mark in segments if mark.local])
                away = [mark for mark in segments if not mark.local]
                self._drop_run(run_fault(run, expected, content.log_start.key, away))

    def _drop_run(self, error: CorruptFile | None) -> None:
        if error is not None:
            self._stale.append(error.path)
            self._steps.append(f"{error.path}: {error.message}: made anew from the log")


def _index_files(log: Intact, index: bytes, time_index: bytes, cancel_index: bytes) -> list[tuple[Path, bytes]]:
    contents = {OFFSET_INDEX: index, TIME_INDEX: time_index} | ({CANCEL_INDEX: cancel_index} if cancel_index else {})
    return [(log.path.with_suffix(suffix), content) for suffix, content in contents.items()]
