"""The plan of a repair: what would make a partition whole; nothing is written here. `afterlog.offline.repair` tells
what the plans mean.

Decided is what is kept of each log. The checkpoints of the plan say so, and of a segment whose indexes are no longer of
use only where its log ends: recovery makes them anew.

Delivery offsets stay what they are: `removed_records` is what makes the number of offsets and of records agree, and a
rank counts it, so a record that is left never gets a smaller rank by the loss of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.files import map_file
from afterlog.base.names import (
    CANCEL_INDEX,
    CHECKPOINTS,
    LOG,
    SegmentFile,
    bucket_key,
    parse_segment_file,
    segment_file,
)
from afterlog.index.acked_ranges import NOTHING_ACKED, AckedRange, AckedRanges
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries, Key
from afterlog.index.origin_index import OriginIndex
from afterlog.index.run import Run
from afterlog.log.checkpoints import (
    BEFORE_ALL,
    ActiveMark,
    CheckpointFile,
    Checkpoints,
    FrontierLease,
    OriginsMark,
    ProducersMark,
    Recovery,
    SealedMark,
    UniqueKeysMark,
)
from afterlog.log.context import LogContext
from afterlog.log.facts import UNKNOWN
from afterlog.log.origin_files import note
from afterlog.log.scan import CUT, GONE, Intact, logs_in, read_log
from afterlog.offline.verify import (
    active_fault,
    active_index_faults,
    bucket_spans,
    cancel_index_fault,
    checkpoint_fault,
    index_faults,
    log_end,
    origin_faults,
    producer_faults,
    run_fault,
    sealed_runs,
    unique_key_faults,
)

ListedMarks = Callable[[], Sequence[SealedMark]]
"""Asks object storage for the segments of the partition that it lists, as segments that are only there."""
WITH_REMOTE = "give --remote"
NO_SEGMENT = SegmentFile(0, "")


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
        self._sealed: list[SealedMark] = []
        self._paths: dict[int, Path] = {}
        """Of the logs, by base offset, where a cleaning wrote them."""
        self._logs: dict[int, Intact] = {}
        """Those that are read from here."""
        self._anew = False
        """The checkpoints tell nothing."""

    def plan(self, put_clock_back: bool) -> RepairPlan:
        """What would make the partition whole. Once; raises CorruptFile where nothing would."""
        known = self._known()
        self._paths.update({mark.base_offset: self._folder / mark.file(LOG) for mark in known.sealed})
        for mark in known.sealed:
            if mark.local:
                self._keep_sealed(mark)
            else:
                self._keep_remote(mark)
        recovery, active, end_offset = self._keep_active(known)
        next_bases = [*(mark.base_offset for mark in self._sealed[1:]), recovery.segment]
        if any(mark.end_offset > base for mark, base in zip(self._sealed, next_bases, strict=False)):
            raise CorruptFile("no checkpoints, and logs that overlap: restore the folder from a copy", path=self._path)
        removed, start, acked = known.removed_records, known.log_start, self._acked(known)
        if self._delayed:
            removed = recovery.segment - sum(mark.records for mark in self._sealed)
            changed = removed != known.removed_records
            if changed and not self._cuts and not self._anew:
                self._steps.append(
                    f"{self._folder}: {removed} records are gone, not {known.removed_records}: counted anew"
                )
            if changed or self._cuts or not self._away:
                in_front = removed - sum(row.removed for row in acked)
                start = replace(start, delivery_offset=in_front + self._records_up_to(start.key))
                acked = self._at_their_ranks(acked, in_front)
        content = replace(
            known,
            recovery=recovery,
            active=active,
            sealed=tuple(self._sealed),
            removed_records=removed,
            log_start=start,
            acked=acked,
            unique_keys=self._unique_keys(known, recovery),
            producers=self._producers(known, recovery),
            origins=self._origins(known, recovery),
        )
        stale = self._remade(self._run_faults(content)) if self._delayed else []
        clock_ms = self._clock_ms(content) if put_clock_back else None
        return RepairPlan(
            context=self._context,
            steps=tuple(self._steps),
            cuts=tuple(self._cuts),
            stale=tuple(stale),
            checkpoints=content,
            clock_ms=clock_ms,
            end_offset=end_offset,
        )

    def _clock_ms(self, content: Checkpoints) -> int | None:
        now_ms = self._context.now_ms()
        ahead_ms = max(content.frontier.lease_ms, content.recovery.stamp_ms) - now_ms
        if ahead_ms <= 0:
            return None
        self._steps.append(
            f"{self._folder}: the frontier, {ahead_ms} ms ahead of the wall clock, is put back to it. Given up: "
            "promise D2 for positions beyond it: records may sort in front of what was delivered, and are then "
            "skipped. What was stamped meanwhile stays due when it is stamped"
        )
        return now_ms

    # What is known.

    @property
    def _path(self) -> Path:
        return self._folder / CHECKPOINTS

    def _known(self) -> Checkpoints:
        """The checkpoints; where they are of no use, what the logs tell."""
        try:
            known = CheckpointFile.open(self._files, self._path).current
            reason = checkpoint_fault(self._files, self._folder, known)
        except CorruptFile as error:
            return self._from_logs(error.message)
        if not reason:
            active = self._read(known.active.base_offset)
            if active.stop >= known.recovery.position and active.fault != GONE:
                reason = active_fault(active, known)
        return self._from_logs(reason) if reason else known

    def _from_logs(self, reason: str) -> Checkpoints:
        bases = self._bases()
        if not bases:
            raise CorruptFile("neither checkpoints nor a log: restore the folder from a copy", path=self._path)
        self._anew = True
        self._steps.append(
            f"{self._path}: {reason}: made anew from the logs. Given up: the exact frontier (it becomes the largest "
            "broker timestamp or the wall clock, whichever is later), and retention's log start: what retention had "
            "put out of reach may be delivered again"
        )
        sealed = self._only_remote(bases)
        for base in bases[:-1]:
            mark, copy = self._mark(self._read(base)), self._copies.get(base)
            sealed[base] = mark if copy is None else replace(mark, end_offset=max(mark.end_offset, copy.end_offset))
        active = self._read(bases[-1])
        stamp_ms = max(log.stamp_ms for log in self._logs.values())
        end_offset, position = self._runs_end(active.base_offset)
        if end_offset <= active.end_offset:
            end_offset, position = active.base_offset, 0
        now_ms = max(stamp_ms, self._context.now_ms())
        return Checkpoints(
            recovery=Recovery(segment=active.base_offset, position=position, offset=end_offset, stamp_ms=stamp_ms),
            active=ActiveMark(base_offset=active.base_offset),
            frontier=FrontierLease(used_ms=now_ms, lease_ms=now_ms),
            sealed=tuple(mark for _, mark in sorted(sealed.items())),
            topic_id=self._context.settings.topic_id,
        )

    def _bases(self) -> list[int]:
        """Of the logs that are here, ascending. What a cleaning wrote counts, and not what it was made of."""
        taken, logs = list[tuple[int, int]](), logs_in(self._files, self._folder)
        generations = {base: (parse_segment_file(path.name) or NO_SEGMENT).generation for base, path in logs.items()}
        for base in sorted(logs, key=lambda base: -generations[base]):
            self._paths[base] = logs[base]
            end_offset = max(self._read(base).end_offset, base + 1) if generations[base] else base + 1
            if all(end_offset <= first or base >= end for first, end in taken):
                taken.append((base, end_offset))
            else:
                self._logs.pop(base, None)
        return sorted(base for base, _ in taken)

    def _runs_end(self, base_offset: int) -> tuple[int, int]:
        """Offset and position after the last run of the active segment; zeros without one."""
        ends = [(0, 0)]
        for span in bucket_spans(self._files, self._folder):
            if span.first >= base_offset:
                with contextlib.suppress(CorruptFile):
                    coverage = Run.open(self._files, self._folder / bucket_key(*span)).coverage
                    ends.append((coverage.end_offset, coverage.end_position))
        return max(ends)

    @cached_property
    def _copies(self) -> dict[int, SealedMark]:
        """What object storage lists, by base offset; asked for when first needed."""
        return {} if self._listed is None else {mark.base_offset: mark for mark in self._listed()}

    def _only_remote(self, bases: Sequence[int]) -> dict[int, SealedMark]:
        """What is listed and has no log in the folder, where the checkpoints do not tell."""
        if self._context.settings.remote_storage_enable and self._listed is None:
            raise CorruptFile(
                f"only they know which segments are in object storage alone: {WITH_REMOTE}", path=self._path
            )
        only_remote = {base: mark for base, mark in self._copies.items() if base not in bases}
        if any(mark.end_offset > bases[-1] for mark in only_remote.values()):
            raise CorruptFile("object storage lists what is newer: restore the folder from a copy", path=self._path)
        return only_remote

    @property
    def _away(self) -> list[SealedMark]:
        return [mark for mark in self._sealed if not mark.local]

    # What is kept.

    def _read(self, base_offset: int, end: int | None = None) -> Intact:
        if base_offset not in self._logs:
            path = self._paths.get(base_offset, self._folder / segment_file(base_offset, LOG))
            self._logs[base_offset] = read_log(self._files, path, base_offset, end=end)
        return self._logs[base_offset]

    def _mark(self, log: Intact) -> SealedMark:
        """Of a segment that ends where the log does; its indexes are recovery's to make."""
        due = log.entries.deliver_after
        named = parse_segment_file(log.path.name) or NO_SEGMENT
        return SealedMark(
            base_offset=log.base_offset,
            end_offset=log.end_offset,
            log_bytes=log.stop,
            max_deliver_after=int(due.max(initial=0)) if self._delayed else 0,
            max_timestamp=int(log.max_timestamp.max(initial=-1)),
            last_stamp_ms=-1 if self._delayed else log.stamp_ms or -1,
            index=UNKNOWN,
            time_index=UNKNOWN,
            cancel_index=UNKNOWN,
            generation=named.generation,
            held_records=int(log.entries.records.sum()) if named.generation else -1,
        )

    def _keep_sealed(self, mark: SealedMark) -> None:
        """Keep what is intact of a segment whose files are here."""
        log, copy = self._read(mark.base_offset, mark.log_bytes), self._copies.get(mark.base_offset)
        end_offset = max(mark.end_offset, log.end_offset)
        whole = self._mark(log)
        if log.fault or log.stop < log.size or end_offset > log.end_offset:
            if copy is not None and copy.end_offset == mark.end_offset:
                fault = log.fault or "it is not as it was sealed"
                self._steps.append(
                    f"{log.path}: {fault}: its files go, and it is read from object storage; nothing is lost"
                )
                del self._logs[mark.base_offset]
                self._sealed.append(copy)
                return
            if mark.remote is not None and self._listed is None:
                self._steps.append(f"{log.path}: it was uploaded: {WITH_REMOTE}, and it is read from there instead")
            self._cut(log, end_offset)
            mark = whole
        elif not self._anew and self._remade(index_faults(self._files, log, mark, mark.end_offset)):
            mark = whole  # those in object storage may be others, and are asked again
        if len(log.entries):
            self._sealed.append(replace(mark, max_deliver_after=whole.max_deliver_after))

    def _keep_remote(self, mark: SealedMark) -> None:
        """Keep the row of a segment that is in object storage only; of its files the cancel index is here."""
        path = self._folder / mark.file(LOG)
        fault = cancel_index_fault(self._files, path, mark)
        if fault and self._listed is None:
            raise CorruptFile(
                f"{fault}; there is one in object storage: {WITH_REMOTE}", path=path.with_suffix(CANCEL_INDEX)
            )
        if fault:
            self._steps.append(f"{path.with_suffix(CANCEL_INDEX)}: {fault}: fetched from object storage")
        self._sealed.append(mark)

    def _keep_active(self, known: Checkpoints) -> tuple[Recovery, ActiveMark, int]:
        """What the checkpoints will say of the active segment, and the end of the log."""
        active, recovery = self._read(known.active.base_offset), known.recovery
        if active_fault(active, known):  # sealed where it is intact: the next one begins after what was lost
            end_offset = max(recovery.offset, log_end(self._files, self._folder, known))
            self._cut(active, end_offset)
            if len(active.entries):
                self._sealed.append(self._mark(active))
            stamp_ms = max(recovery.stamp_ms, *(log.stamp_ms for log in self._logs.values()))
            recovery = Recovery(segment=end_offset, position=0, offset=end_offset, stamp_ms=stamp_ms)
            return recovery, ActiveMark(base_offset=end_offset), end_offset
        if active.stop < active.size and self._anew:
            self._cut(active, active.end_offset)
            self._steps.append(
                f"{active.path}: where it ended is not known: offsets from {active.end_offset} on may be given again"
            )
        elif active.stop < active.size:
            self._cut(active, active.end_offset, f"a torn tail after the recovery point ({active.fault})")
        if self._anew or not self._remade(active_index_faults(self._files, active, known, self._delayed)):
            return recovery, known.active, active.end_offset
        # Nothing but its log is known: recovery takes all of that for the tail.
        recovery = replace(recovery, position=0, offset=active.base_offset)
        return recovery, ActiveMark(base_offset=active.base_offset), active.end_offset

    def _unique_keys(self, known: Checkpoints, recovery: Recovery) -> UniqueKeysMark | None:
        """What the checkpoints will say of unique keys: the files as they are, or recovery reads the log for them."""
        mark = known.unique_keys
        if mark is None:
            return self._unique_keys_of_logs(recovery.stamp_ms) if self._anew and self._delayed else None
        faults = self._remade(unique_key_faults(self._files, self._folder, mark))
        return mark.forgotten() if faults or self._cuts or recovery != known.recovery else mark

    def _unique_keys_of_logs(self, stamp_ms: int) -> UniqueKeysMark | None:
        """The same where only the logs can tell; None where no record that is pending holds one."""
        from afterlog.log.unique_key_scan import rows_written

        limit_bytes = self._context.config.decompressed_bytes_max
        for base, log in sorted(self._logs.items()):
            data = map_file(self._files, log.path)[: log.stop]
            if len(rows_written(data, base, limit_bytes, stamp_ms)):
                return UniqueKeysMark(since=base, upto=base)
        return None

    def _producers(self, known: Checkpoints, recovery: Recovery) -> ProducersMark | None:
        """The same of producers."""
        mark = known.producers
        if mark is None:
            bases = [base for base, log in sorted(self._logs.items()) if log.producers] if self._anew else []
            return ProducersMark(since=bases[0], upto=-1) if bases else None
        faults = self._remade(producer_faults(self._files, self._folder, mark))
        return mark.forgotten() if faults or self._cuts or recovery != known.recovery else mark

    def _origins(self, known: Checkpoints, recovery: Recovery) -> OriginsMark | None:
        """The same of what was replicated."""
        mark = known.origins
        if mark is None:
            found = OriginIndex()
            for log in (self._logs[base] for base in sorted(self._logs)) if self._anew else ():
                for each in log.origins:
                    note(found, each)
            return OriginsMark(highest=tuple(found.highest().items()), upto=-1) if found.names else None
        faults = self._remade(origin_faults(self._files, self._folder, mark))
        return mark.forgotten() if faults or self._cuts or recovery != known.recovery else mark

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

    def _acked(self, known: Checkpoints) -> tuple[AckedRange, ...]:
        """The ranges that all readers have acked, with what is left of each."""
        ranges = AckedRanges(known.acked)
        left = np.zeros(len(ranges), np.int64)
        for log in self._logs.values():
            entries = log.entries
            inside = np.flatnonzero(ranges.holds(entries.deliver_after, entries.offset, entries.records))
            held = entries.take(inside)
            np.add.at(left, ranges.which(held.deliver_after, held.offset), held.records)
        return tuple(
            row._replace(removed=row.records - there) for row, there in zip(ranges.rows, left.tolist(), strict=True)
        )

    def _at_their_ranks(self, acked: Sequence[AckedRange], in_front: int) -> tuple[AckedRange, ...]:
        """Where ranges lie, with so many records removed in front of all: behind the loss of others, further on."""
        found, removed = list[AckedRange](), in_front
        for row in acked:
            removed += row.removed
            end = removed + self._records_up_to(row.upto)
            found.append(row._replace(first=end - row.records, end=end))
        return NOTHING_ACKED.including(found).rows

    def _records_up_to(self, key: Key) -> int:
        """Records that are left with a key <= `key`."""
        count = 0
        for log in self._logs.values():
            entries = log.entries
            earlier = entries.deliver_after < key.deliver_after
            same = (entries.deliver_after == key.deliver_after) & (entries.offset <= key.offset)
            count += int(entries.records[earlier | same].sum())
        if key == BEFORE_ALL:
            return count
        runs = [self._context.remote.copy(mark).run() for mark in self._away]
        return count + DelayedIndex.of(runs).rank(key)

    # What is made anew.

    def _remade(self, faults: Iterable[CorruptFile]) -> list[Path]:
        """The files that are not as they should be; each is told."""
        found = list(faults)
        self._steps += [f"{fault.path}: {fault.message}: made anew from the log" for fault in found]
        return [fault.path for fault in found]

    def _run_faults(self, content: Checkpoints) -> Iterator[CorruptFile]:
        """Of the sealed segments as they will be: runs that do not hold just their entries."""
        runs = sealed_runs(self._files, self._folder, content)
        yield from runs.faults_in(self._folder)
        for run, segments in runs.groups:
            here = Entries.concatenate([self._logs[mark.base_offset].entries for mark in segments if mark.local])
            away = [mark for mark in segments if not mark.local]
            if run is not None and (fault := run_fault(run, here, content.log_start.key, away)):
                yield fault
