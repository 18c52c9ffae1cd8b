"""Verification of a closed partition: every checksum, and every document against the files. Nothing here writes.

`verify` reads every byte that counts and gives a `Finding` for each thing that is wrong:

    checkpoints    intact, and in agreement with the logs
    .log           every checksum of every entry, offsets dense, sizes as sealed
    .index, .timeindex, .cancelindex    as durable (CRC in the checkpoints), and every entry true of the log
    .uniquekeys, producers, origins    the very file that the checkpoints name, and its checksum
    .deliverafterindex, buckets    `Run.check`, and the very entries of the log

Of segments that are in object storage only the checkpoints tell, and the cancel index is here: that much is verified,
and that what is in the folder leaves just their offsets out. The rest is `afterlog scrub --deep`'s.

What recovery removes or cuts by itself after a crash (temporary files, an index longer than the checkpoints say, runs
after the recovery point) is no finding, but for a torn tail: nobody can tell it from rot in what was just written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from afterlog.base.errors import CorruptFile, StorageError
from afterlog.base.files import Files, map_file
from afterlog.base.names import (
    BUCKETS,
    CANCEL_INDEX,
    CHECKPOINTS,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    Span,
    origin_file,
    producer_file,
    segment_file,
    unique_key_file,
)
from afterlog.index.entries import Entries, Key
from afterlog.index.origin_file import read_origins
from afterlog.index.producer_file import read_producers
from afterlog.index.run import Run
from afterlog.index.unique_key_file import UniqueKeyFile
from afterlog.log.checkpoints import (
    BEFORE_ALL,
    ActiveMark,
    CheckpointFile,
    Checkpoints,
    OriginsMark,
    ProducersMark,
    SealedMark,
    UniqueKeysMark,
)
from afterlog.log.facts import UNKNOWN, FileMark
from afterlog.log.log_clock import BEHIND_MS_MAX
from afterlog.log.run_files import Group, OpenRun, SealedRuns, runs_of_active, runs_of_sealed, spans_of
from afterlog.log.scan import GONE, Advance, Intact, logs_in, more_faults, read_log, unheard
from afterlog.log.segment import load_cancelled
from afterlog.records.columns import Int64Array

OPEN = "opening the store mends it"
OPEN_REMOTE = "opening the store with its object storage mends it"
SEND = "opening the store mends it, or the first send with a unique key"
REPAIR = "see `afterlog repair`"
CLOCK = "set the clock right, wait, or see `afterlog repair --clock`"

OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
"""As drawn in `afterlog.index.offset_index`."""
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
"""As drawn in `afterlog.index.time_index`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it was written."""

    path: Path
    position: int | None = None
    message: str
    remedy: str

    @staticmethod
    def of(error: StorageError, remedy: str) -> Finding:
        return Finding(path=error.path, position=error.position, message=error.message, remedy=remedy)


def verify(files: Files, folder: Path, delayed: bool, now_ms: int, advance: Advance = unheard) -> Iterator[Finding]:
    """Everything that is wrong in a partition's folder, which nobody has open."""
    path = folder / CHECKPOINTS
    try:
        known = CheckpointFile.open(files, path).current
    except CorruptFile as error:
        yield Finding.of(error, REPAIR)
        for base, log_path in logs_in(files, folder).items():
            log = read_log(files, log_path, base, advance=advance)
            yield from _log_faults(files, log)
        return
    fault = checkpoint_fault(files, folder, known)
    if fault:
        yield Finding(path=path, message=fault, remedy=REPAIR)
        return
    if known.frontier.lease_ms - now_ms > BEHIND_MS_MAX:
        message = f"the frontier, {known.frontier.lease_ms} ms, lies over an hour ahead of the wall clock, {now_ms} ms"
        yield Finding(path=path, message=message, remedy=CLOCK)
    yield from _verify_sealed(files, folder, known, delayed, advance)
    base_offset = known.active.base_offset
    active = read_log(files, folder / segment_file(base_offset, LOG), base_offset, advance=advance)
    yield from _verify_active(files, active, known, delayed)
    if known.unique_keys is not None:
        yield from (Finding.of(error, SEND) for error in unique_key_faults(files, folder, known.unique_keys))
    if known.producers is not None:
        yield from (Finding.of(error, OPEN) for error in producer_faults(files, folder, known.producers))
    if known.origins is not None:
        yield from (Finding.of(error, OPEN) for error in origin_faults(files, folder, known.origins))
    held = known.recovery.offset - base_offset + sum(mark.records for mark in known.sealed)
    if delayed and known.removed_records + held != known.recovery.offset:
        message = (
            f"{known.removed_records} records removed and {held} held do not make the {known.recovery.offset} appended"
        )
        yield Finding(path=path, message=message, remedy=REPAIR)


def checkpoint_fault(files: Files, folder: Path, known: Checkpoints) -> str:
    """Why the checkpoints do not belong to the logs beside them; empty where they do."""
    bases = [*(mark.base_offset for mark in known.sealed), known.active.base_offset]
    ends = [*(mark.end_offset for mark in known.sealed), known.recovery.offset]
    if known.recovery.segment != known.active.base_offset:
        return "the recovery point is not in the active segment"
    if any(behind <= base for base, behind in zip(bases[:-1], ends[:-1], strict=True)) or ends[-1] < bases[-1]:
        return "a segment ends before it begins"
    if any(behind > base for behind, base in zip(ends, bases[1:], strict=False)):
        return "segments overlap"
    if known.frontier.used_ms > known.frontier.lease_ms:
        return "the frontier lies above its lease"
    for base, path in logs_in(files, folder).items():
        if base > bases[-1] and map_file(files, path).size:
            return f"they were put back to an older copy: the log of {base} is newer"
    return ""


def log_end(files: Files, folder: Path, known: Checkpoints) -> int:
    """The offset after the last intact entry from the recovery point on: to be read where rot lies before it, too."""
    recovery = known.recovery
    path = folder / segment_file(recovery.segment, LOG)
    return read_log(files, path, recovery.offset, start=recovery.position).end_offset


def active_fault(active: Intact, known: Checkpoints) -> str:
    """Why the active segment is not what was durable at the recovery point; empty where it is."""
    position, offset = known.recovery.position, known.recovery.offset
    if active.stop < position or active.fault == GONE:
        return active.fault or f"{position} bytes were durable, {active.size} are left"
    row = int(active.entries.position.searchsorted(position))
    at = int(active.entries.offset[row]) if row < len(active.entries) else active.end_offset
    byte = int(active.entries.position[row]) if row < len(active.entries) else active.stop
    return "" if (byte, at) == (position, offset) else "the recovery point lies inside an entry"


def index_faults(files: Files, log: Intact, mark: SealedMark | ActiveMark, end_offset: int) -> Iterator[CorruptFile]:
    """What is wrong with the indexes of a segment, as far as `end_offset`, where they were durable."""
    if mark.index == UNKNOWN:
        yield CorruptFile("a repair that was cut off left it to be made anew", path=log.path.with_suffix(OFFSET_INDEX))
        return
    for suffix, known, entry, fault_of in (
        (OFFSET_INDEX, mark.index, OFFSET_ENTRY, _offset_index_fault),
        (TIME_INDEX, mark.time_index, TIME_ENTRY, _time_index_fault),
    ):
        path = log.path.with_suffix(suffix)
        try:
            data = map_file(files, path)[: known.size]
        except FileNotFoundError:
            yield CorruptFile(GONE, path=path)
            continue
        if FileMark.of(data) != known or known.size % entry.itemsize:
            yield CorruptFile(f"fails its checksum over {known.size} bytes", path=path)
        elif fault := fault_of(data.view(entry), log):
            yield CorruptFile(fault, path=path)
    fault = cancel_index_fault(files, log.path, mark)
    if not fault and mark.cancel_index != FileMark.of(log.cancelled.before(end_offset).to_bytes()):
        fault = "is not what the control batches of the log say"
    if fault:
        yield CorruptFile(fault, path=log.path.with_suffix(CANCEL_INDEX))


def active_index_faults(files: Files, active: Intact, known: Checkpoints, delayed: bool) -> Iterator[CorruptFile]:
    """What is wrong with the indexes and the runs of the active segment, up to the recovery point."""
    yield from index_faults(files, active, known.active, known.recovery.offset)
    if delayed and known.recovery.position:
        folder = active.path.parent
        runs = runs_of_active(_opener(files, folder), bucket_spans(files, folder), known)
        if not runs:
            offsets = f"{known.active.base_offset} to {known.recovery.offset - 1}"
            yield CorruptFile(f"no intact runs for the offsets {offsets}", path=folder / BUCKETS)
        for run in runs:
            bounds = [run.coverage.start_position, run.coverage.end_position]
            first, last = map(int, active.entries.position.searchsorted(bounds))
            if fault := run_fault(run, active.entries[first:last]):
                yield fault


def cancel_index_fault(files: Files, log_path: Path, mark: SealedMark | ActiveMark) -> str:
    """Why the cancel index of a segment is not as it was made durable; empty where it is."""
    try:
        stored = load_cancelled(files, log_path, mark.cancel_index)
    except ValueError as error:
        return str(error)
    if stored is not None:
        return ""
    there = files.exists(log_path.with_suffix(CANCEL_INDEX))
    return f"fails its checksum over {mark.cancel_index[0]} bytes" if there else GONE


def unique_key_faults(files: Files, folder: Path, mark: UniqueKeysMark) -> Iterator[CorruptFile]:
    """What is wrong with the files of unique keys."""
    for each in mark.files:
        try:
            UniqueKeyFile(files, folder / unique_key_file(each.first, each.end), each).rows()
        except CorruptFile as error:
            yield error


def producer_faults(files: Files, folder: Path, mark: ProducersMark) -> Iterator[CorruptFile]:
    """What is wrong with the file of producers."""
    if mark.file is not None:
        try:
            read_producers(files, folder / producer_file(mark.file.offset), mark.file)
        except CorruptFile as error:
            yield error


def origin_faults(files: Files, folder: Path, mark: OriginsMark) -> Iterator[CorruptFile]:
    """What is wrong with the file of origins."""
    if mark.file is not None:
        try:
            read_origins(files, folder / origin_file(mark.file.offset), mark.file)
        except CorruptFile as error:
            yield error


def sealed_runs(files: Files, folder: Path, known: Checkpoints) -> SealedRuns:
    """What holds the sealed segments."""
    return runs_of_sealed(_opener(files, folder), bucket_spans(files, folder), known)


def _opener(files: Files, folder: Path) -> OpenRun:
    return lambda key: Run.open(files, folder / key)


def run_fault(
    run: Run, expected: Entries, after: Key = BEFORE_ALL, away: Sequence[SealedMark] = ()
) -> CorruptFile | None:
    """What is wrong with a run that should hold, behind `after`, just these entries of the log, in offset order.

    away: segments in object storage, whose entries it holds too, and nobody here can tell.
    """
    try:
        run.check()
        stored = run.entries()
    except CorruptFile as error:
        return error
    stored = stored[stored.rank(after) :]
    stored = stored.take(np.argsort(stored.offset))
    for mark in away:
        first, last = map(int, stored.offset.searchsorted([mark.base_offset, mark.end_offset]))
        held, records = int(stored.records[first:last].sum()), mark.records
        if held > records or (held < records and after == BEFORE_ALL):
            message = f"{held} records of the segment at {mark.base_offset}, which has {records}"
            return CorruptFile(message, path=run.path)
        stored = Entries.concatenate([stored[:first], stored[last:]])
    if after != BEFORE_ALL:
        due, offset = expected.deliver_after, expected.offset
        later = (due > after.deliver_after) | ((due == after.deliver_after) & (offset > after.offset))
        expected = expected.take(np.flatnonzero(later))
    for name in ("offset", "deliver_after", "position", "records"):
        if not np.array_equal(getattr(stored, name), getattr(expected, name)):
            return CorruptFile(f"an entry's {name} is not what the log says", path=run.path)
    return None


def bucket_spans(files: Files, folder: Path) -> list[Span]:
    """The offsets that the buckets have in their names."""
    return spans_of(files.names(folder / BUCKETS)) if files.exists(folder / BUCKETS) else []


def _verify_sealed(
    files: Files, folder: Path, known: Checkpoints, delayed: bool, advance: Advance
) -> Iterator[Finding]:
    """The sealed segments, and the runs that hold them, one or more at a time."""
    runs = SealedRuns(tuple(Group(None, (mark,)) for mark in known.sealed), (), ())
    if delayed:
        runs = sealed_runs(files, folder, known)
        yield from (Finding.of(error, REPAIR) for error in runs.faults_in(folder))
    for run, segments in runs.groups:
        parts, whole, away = list[Entries](), True, [mark for mark in segments if not mark.local]
        for mark in away:
            path = folder / mark.file(LOG)
            if fault := cancel_index_fault(files, path, mark):
                yield Finding(path=path.with_suffix(CANCEL_INDEX), message=fault, remedy=OPEN_REMOTE)
        for mark in (mark for mark in segments if mark.local):
            path = folder / mark.file(LOG)
            log = read_log(files, path, mark.base_offset, end=mark.log_bytes, advance=advance)
            yield from _verify_segment(files, log, mark, delayed)
            parts.append(log.entries)
            whole = whole and not log.fault and log.end_offset == mark.end_offset
        error = run_fault(run, Entries.concatenate(parts), known.log_start.key, away) if run and whole else None
        if error is not None:
            yield Finding.of(error, REPAIR)


def _verify_segment(files: Files, log: Intact, mark: SealedMark, delayed: bool) -> Iterator[Finding]:
    if log.fault:
        yield from _log_faults(files, log)
        return
    if (log.size, log.end_offset) != (mark.log_bytes, mark.end_offset):
        message = (
            f"sealed at {mark.log_bytes} bytes and offset {mark.end_offset}, "
            f"now {log.size} bytes and offset {log.end_offset}"
        )
        yield Finding(path=log.path, position=log.stop, message=message, remedy=REPAIR)
        return
    yield from (Finding.of(error, REPAIR) for error in index_faults(files, log, mark, mark.end_offset))
    if not delayed:
        return
    if int(log.entries.deliver_after.max()) != mark.max_deliver_after:
        message = f"the checkpoints say due by {mark.max_deliver_after}, its entries say another time"
        yield Finding(path=log.path, message=message, remedy=REPAIR)


def _verify_active(files: Files, active: Intact, known: Checkpoints, delayed: bool) -> Iterator[Finding]:
    fault = active_fault(active, known)
    if fault:
        if active.fault and active.size:
            yield from _log_faults(files, active)
        else:
            yield Finding(path=active.path, position=active.stop, message=fault, remedy=REPAIR)
        return
    if active.stop < active.size:
        message = f"a torn tail of {active.size - active.stop} bytes after the recovery point: {active.fault}"
        yield Finding(path=active.path, position=active.stop, message=message, remedy="opening the store cuts it")
    for error in active_index_faults(files, active, known, delayed):
        yield Finding.of(error, OPEN if error.path.name == BUCKETS else REPAIR)


def _log_faults(files: Files, log: Intact) -> Iterator[Finding]:
    """The first fault of a log and those behind it."""
    if not log.fault:
        return
    yield Finding(path=log.path, position=log.stop, message=log.fault, remedy=REPAIR)
    if log.stop >= log.size:
        return
    for position, fault in more_faults(map_file(files, log.path), log.stop):
        yield Finding(path=log.path, position=position, message=fault, remedy=REPAIR)


def _offset_index_fault(stored: np.ndarray[Any, np.dtype[np.void]], log: Intact) -> str:
    last_offset = stored["relative_offset"].astype(np.int64) + log.base_offset
    position = stored["position"].astype(np.int64)
    row = _row_of(log.entries.position, position)
    entries = log.entries
    if bool((row < 0).any()) or not np.array_equal(entries.offset[row] + entries.records[row] - 1, last_offset):
        return "an entry names a batch that is not there"
    return ""


def _time_index_fault(stored: np.ndarray[Any, np.dtype[np.void]], log: Intact) -> str:
    last_offset = stored["relative_offset"].astype(np.int64) + log.base_offset
    row = _row_of(log.entries.offset + log.entries.records - 1, last_offset)
    if bool((row < 0).any()):
        return "an entry names a batch that is not there"
    latest = np.maximum.accumulate(log.max_timestamp)
    return "" if np.array_equal(latest[row], stored["timestamp"].astype(np.int64)) else "an entry tells another time"


def _row_of(column: Int64Array, wanted: Int64Array) -> Int64Array:
    """The row of each wanted value in an ascending column; -1 where it is not there."""
    row = column.searchsorted(wanted)
    found = row < len(column)
    found[found] = column[row[found]] == wanted[found]
    return np.where(found, row, -1)
