"""Cleaning of a partition: sealed segments are written anew with what is still to come (Kafka's word, of its cleaner).

    A ████░░░░ ─┐                     ┌─ A.7 ██████
    B █░░░░░░░ ─┴─ alive, in order ───┘     offsets with gaps, as in Kafka's compacted logs
    C ████████ ─── left as it is ─────────── C ████████

Without it a record that is due in a year holds the segment that it lies in, and all that was delivered from there long
ago. What may go lies up to the log start in delivery order: whoever cleans moves that first, durably, by retention's
own rule and no further than the readers leave (`PartitionLog.begin_cleaning`). So cleaning takes nothing that anybody
could read; delivery offsets stay, since `removed_records` counts what goes. What all readers have acked beyond what
they have not lies in ranges that are out of reach, too, from the same instant on (`index/acked_ranges.py`): what goes
of those they count themselves. Control batches stay, whatever range they lie in: what they cancelled may lie in none.

    1  which segments, and what lives of them    `cleaning_plan`, by what each weighs: read once from its headers
    2  files under names of the new generation   entries byte for byte, checked before, read back after, no lock held;
                                                 of a record that was cancelled, durably, a blank one (records/blank.py)
    3  runs of them; of what else lay in a bucket with a segment that goes, a run by itself
    4  checkpoints, then one swap of the version, and what it does not name any more is obsolete

A crash before the checkpoints leaves files of a generation that nobody knows, after them some of one that nobody needs:
recovery removes either. Whoever has pinned a version goes on with the files of that. Where an operation has changed one
of the segments meanwhile, or the topic is to be in object storage from now on, the work was for nothing, and is thrown
away.

Of a topic in object storage what is there and here is written anew, and uploaded again, in one change of the manifest
with the end of what it replaces (`afterlog.tier.offload`): an upload that is under way is never overtaken. What is only
there, a foreign segment, and one of several runs still, stays as it is.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import CorruptFile, StorageFull
from afterlog.base.files import Bytes, publishing
from afterlog.base.names import (
    CANCEL_INDEX,
    DELIVER_AFTER_INDEX,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    bucket_key,
    segment_file,
)
from afterlog.index import buckets
from afterlog.index.acked_ranges import AckedRanges
from afterlog.index.buckets import Buckets
from afterlog.index.entries import Entries, Key
from afterlog.index.growing_columns import Int64Array
from afterlog.index.hidden_keys import NOTHING_HIDDEN, HiddenKeys
from afterlog.index.run import Coverage, Run
from afterlog.log.build import index_cleaned
from afterlog.log.checkpoints import CheckpointFile, SealedMark
from afterlog.log.cleaning_plan import OUTPUT_BYTES_MAX, DueBytes, Weight, plan
from afterlog.log.context import LogContext
from afterlog.log.facts import UNKNOWN
from afterlog.log.remote_copy import NO_REMOTE_LOG
from afterlog.log.scan import steps, walk
from afterlog.log.segment import SealedSegment
from afterlog.log.version import Version, VersionSet
from afterlog.records.blank import BLANK_BATCH_BYTES, blank_entries, can_be_blank
from afterlog.records.columns import Ragged, Scan
from afterlog.records.encode import join_ragged, take_ragged
from afterlog.records.header import CONTROL

logger = logging.getLogger("afterlog.log")

Guard = Callable[[], AbstractContextManager[object]]
PIECE_BYTES = 512 << 10
"""Written at a time, and no more in memory. Larger: fewer writes, appends wait longer."""
SCAN_ENTRIES = 2_048
"""Read at a time, while nobody else has the interpreter."""
WEIGHED_SHARE = 8
"""A segment is weighed when one in so many of the records in its run is due: before that it counts as alive."""


class Cleaned(NamedTuple):
    """What cleanings did."""

    segments: int = 0
    """So many were written anew, or went."""
    written_bytes: int = 0
    freed_bytes: int = 0
    """Of logs, once nobody reads the files of before."""

    def plus(self, other: Cleaned) -> Cleaned:
        return Cleaned(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class _Survivors(NamedTuple):
    """Entries that follow each other in a segment that is written."""

    offset: int
    """Of the first of them."""
    data: Bytes


class _CleanedSegment(NamedTuple):
    """A segment that was written, with what its run holds."""

    mark: SealedMark
    entries: Entries
    """In delivery order."""


class _CancelledCounts(NamedTuple):
    """How many offsets were hidden when they were last counted."""

    total: int
    by_name: dict[tuple[int, int], int]
    """Of sealed segments."""


class _AckedShares(NamedTuple):
    """Which part of each sealed segment lay in ranges that all have acked when it was last counted."""

    total: int
    by_name: dict[tuple[int, int], float]


class _Weighed(NamedTuple):
    due_bytes: DueBytes
    """With what was cancelled as it would be left: blank; and without what lies in ranges that all have acked."""
    cancelled: int
    """Offsets of it that were hidden then."""
    acked: float
    """The share of its records in ranges then, about."""


class Cleaner:
    """Of one partition. One thread at a time cleans; `is_due` and `weigh` are for that one, too."""

    def __init__(
        self,
        context: LogContext,
        checkpoints: CheckpointFile,
        versions: VersionSet,
        stored: Buckets,
        edit: Guard,
        let_go: Callable[[SealedSegment], None],
    ) -> None:
        """edit: a block that changes files of which the checkpoints tell, and ends after its swap.

        let_go: called with each segment that no version names any more.
        """
        self.done = Cleaned()
        """Since the log was opened."""
        self._context = context
        self._checkpoints = checkpoints
        self._versions = versions
        self._buckets = stored
        self._edit = edit
        self._let_go = let_go
        self._weights: dict[tuple[int, int], _Weighed] = {}
        """By base offset and generation; of a segment that is not among them all counts as alive."""
        self._cancelled = _CancelledCounts(0, {})
        self._acked = _AckedShares(0, {})
        self._unfit: frozenset[tuple[int, int]] = frozenset()
        """Those that cannot be read as they were written."""

    # What there is to do.

    def weigh(self, acked: AckedRanges, proceed: Callable[[], object]) -> None:
        """Read of segments when their bytes are due, as soon as some are, and again where as many were cancelled, or
        came to lie in ranges that all have acked. Raises what `proceed` does.
        """
        version, frontier = self._versions.current, Key(self._versions.frontier_ms, INT64_MAX)
        left = {_name(segment.mark) for segment in version.sealed}
        self._weights = {name: weight for name, weight in self._weights.items() if name in left}
        due = [
            run.coverage
            for run in version.delayed_index.sealed_runs
            if run.first_key <= frontier and WEIGHED_SHARE * run.records_up_to(frontier) >= run.records
        ]
        hidden = self.blankable(version.hidden)
        self._count_cancelled(version, hidden)
        self._count_acked(version, acked)
        for segment in version.sealed:
            name, records = _name(segment.mark), segment.mark.records
            known, cancelled = self._weights.get(name), self._cancelled.by_name.get(name, 0)
            share = self._acked.by_name.get(name, 0.0)
            is_wanted = WEIGHED_SHARE * (cancelled - (0 if known is None else known.cancelled)) >= records
            is_wanted |= WEIGHED_SHARE * (share - (0 if known is None else known.acked)) >= 1
            if known is None and not is_wanted:
                is_wanted = any(each.first_offset <= segment.base_offset < each.end_offset for each in due)
            if is_wanted and not self._is_fixed(segment):
                try:
                    self._weights[name] = _Weighed(_weight(segment, hidden, acked, proceed), cancelled, share)
                except CorruptFile as error:
                    self._give_up(name, error)

    def blankable(self, hidden: HiddenKeys) -> HiddenKeys:
        """What may become blank of that: object storage may have a record, and its cancel be lost with this machine."""
        return NOTHING_HIDDEN if self._context.settings.remote_storage_enable else hidden

    def _count_cancelled(self, version: Version, hidden: HiddenKeys) -> None:
        """Anew where they are an eighth more or fewer in all: there may be millions, and a pass looks each minute."""
        count = hidden.count
        if abs(count - self._cancelled.total) * WEIGHED_SHARE > self._cancelled.total:
            bases, ends = (
                np.array([getattr(segment, name) for segment in version.sealed], np.int64)
                for name in ("base_offset", "end_offset")
            )
            offsets = hidden.offsets()
            found = (offsets.searchsorted(ends) - offsets.searchsorted(bases)).tolist()
            names = [_name(segment.mark) for segment in version.sealed]
            self._cancelled = _CancelledCounts(count, dict(zip(names, found, strict=True)))

    def _count_acked(self, version: Version, acked: AckedRanges) -> None:
        """Anew where they are an eighth more or fewer in all. What a run has of a segment is taken for what it has."""
        if abs(acked.records - self._acked.total) * WEIGHED_SHARE > self._acked.total:
            by_name = dict[tuple[int, int], float]()
            for run in version.delayed_index.sealed_runs if acked.rows else ():
                inside, covered = _records_within(run, acked), run.coverage
                for segment in version.sealed:
                    if covered.first_offset <= segment.base_offset < covered.end_offset:
                        by_name[_name(segment.mark)] = inside / run.records
            self._acked = _AckedShares(acked.records, by_name)

    def is_due(self, key: Key, *, thorough: bool) -> bool:
        """Whether something would be written anew, were this the log start."""
        return bool(self._plan(self._versions.current, key, thorough))

    def dead_bytes(self, version: Version, key: Key) -> dict[int, int]:
        """By base offset, the bytes of local segments up to a key, or somewhat fewer, as far as they were weighed."""
        return {
            segment.base_offset: segment.size - self._alive(segment, _whole_ms(segment, key))[1]
            for segment in version.sealed
            if segment.is_local()
        }

    def ms_leaving(self, size: int, now_ms: int) -> int:
        """The latest instant, by now, after which so many bytes are due, or more; -1: there are fewer in all."""
        version = self._versions.current

        def left(ms: int) -> int:
            return version.written.position + sum(self._alive(each, ms)[0] for each in version.sealed)

        low, high = -1, now_ms
        if left(low) < size:
            return low
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if left(middle) >= size else (low, middle - 1)
        return low

    def _plan(self, version: Version, key: Key, thorough: bool) -> list[slice]:
        """For what lies after the key; of an instant of which a part lies before it all counts as alive.

        thorough: as of `plan`.
        """
        in_parts = {parts[0].coverage.start_segment for parts in buckets.in_parts(version.delayed_index)}
        weights = [
            Weight(
                segment.base_offset,
                segment.end_offset,
                segment.size if segment.is_local() else 0,
                *self._alive(segment, _whole_ms(segment, key)),
                self._is_fixed(segment) or segment.base_offset in in_parts,
            )
            for segment in version.sealed
        ]
        config = self._context.config
        return plan(
            weights,
            segment_bytes=config.segment_bytes,
            slack_bytes=config.cleaning_slack_bytes,
            thorough=thorough,
        )

    def _alive(self, segment: SealedSegment, ms: int) -> tuple[int, int]:
        """Bytes of it that are due later, between these two."""
        if segment.mark.max_deliver_after <= ms:
            return 0, 0
        weight = self._weights.get(_name(segment.mark))
        size = segment.size if segment.is_local() else 0
        return (size, size) if weight is None else (weight.due_bytes.least_after(ms), weight.due_bytes.most_after(ms))

    def _is_fixed(self, segment: SealedSegment) -> bool:
        mark, context = segment.mark, self._context
        is_tiered = context.settings.remote_storage_enable and context.remote is not NO_REMOTE_LOG
        return (
            (mark.remote is not None) != is_tiered  # it is to be uploaded yet, or nobody would upload it again
            or not mark.local
            or segment.foreign
            or mark.index == UNKNOWN
            or _name(mark) in self._unfit
        )

    def _give_up(self, name: tuple[int, int], error: CorruptFile) -> None:
        self._unfit |= {name}
        logger.error("%s: it stays as it is, and is not cleaned: %s", self._context.folder, error)

    # Doing it.

    def clean(
        self,
        lock: threading.Lock,
        writing: Guard,
        proceed: Callable[[], object],
        pause: Callable[[int], object],
        hidden: HiddenKeys,
        *,
        thorough: bool,
    ) -> Cleaned:
        """Write anew what is planned. hidden: what is cancelled, durably. thorough: as of `plan`.

        `lock`, `writing`: of the writer. `proceed` is called again and again, and raises where it should end; `pause`
        with the bytes that were just written. Raises StorageFull, StorageError with the log as good as before.
        """
        done, version = Cleaned(), self._versions.current
        for group in self._plan(version, version.log_start.key, thorough):
            proceed()
            sources = version.sealed[group]
            now = self._versions.current  # the group before may have had something in the same bucket
            try:
                done = done.plus(self._rewritten(now, sources, lock, writing, proceed, pause, hidden))
            except CorruptFile as error:
                names = {segment.path: _name(segment.mark) for segment in sources}
                if error.path not in names:
                    raise
                self._give_up(names[error.path], error)
        return done

    def _rewritten(
        self,
        version: Version,
        sources: Sequence[SealedSegment],
        lock: threading.Lock,
        writing: Guard,
        proceed: Callable[[], object],
        pause: Callable[[int], object],
        hidden: HiddenKeys,
    ) -> Cleaned:
        known, after, acked = self._checkpoints.current, version.log_start.key, version.delayed_index.acked
        generation, let_go = known.cleanings + 1, np.zeros(len(acked), np.int64)
        made = _CleanedFiles(self._context, self._buckets)
        try:
            survivors = self._survivors(sources, after, acked, let_go, hidden, proceed)
            outputs = [*made.segments(survivors, generation, pause)]
            replaced = _holding(version.delayed_index.sealed_runs, sources)
            runs = [made.run(each, proceed) for each in outputs]
            runs += made.rest_of(replaced, version.sealed, sources, after, known.cleanings, proceed)
        except BaseException:
            made.discard()
            raise
        with lock, writing():
            now = self._versions.current
            is_vain = any(self._is_fixed(segment) for segment in sources) or not _still_there(now, sources, replaced)
            is_vain |= now.delayed_index.acked is not acked
            if is_vain or self._checkpoints.current.cleanings != known.cleanings:
                made.discard()
                return Cleaned()
            try:
                self._swap(now, sources, outputs, replaced, runs, generation, acked.less(let_go))
            except StorageFull:  # nothing has changed; of any other error nobody knows, and whoever comes next mends
                made.discard()
                raise
            written = sum(each.mark.log_bytes for each in outputs)
            freed = sum(segment.size for segment in sources) - written
            done = Cleaned(len(sources), written, freed)
            self.done = self.done.plus(done)
        return done

    def _swap(
        self,
        now: Version,
        sources: Sequence[SealedSegment],
        outputs: Sequence[_CleanedSegment],
        replaced: Sequence[Run],
        runs: Sequence[Run],
        generation: int,
        acked: AckedRanges,
    ) -> None:
        first = next(row for row, segment in enumerate(now.sealed) if segment is sources[0])
        fresh = [self._segment(each.mark) for each in outputs]
        sealed = (*now.sealed[:first], *fresh, *now.sealed[first + len(sources) :])
        gone = sum(segment.mark.records for segment in sources) - sum(each.mark.records for each in outputs)
        with self._edit():
            self._checkpoints.update(
                sealed=tuple(segment.mark for segment in sealed),
                removed_records=self._checkpoints.current.removed_records + gone,
                replaced=(
                    *self._checkpoints.current.replaced,
                    *(segment.mark.remote.attempt for segment in sources if segment.mark.remote is not None),
                ),
                cleanings=generation,
                acked=acked.rows,
            )
            index = now.delayed_index.replacing(replaced, runs, cleanings=generation, acked=acked)
            self._versions.swap(now, sealed=sealed, delayed_index=index)
            self._buckets.delete_replaced(now.delayed_index, index)
            for segment in sources:
                self._let_go(segment)
            self._context.sealed()

    def _segment(self, mark: SealedMark) -> SealedSegment:
        context = self._context
        return SealedSegment(context.files, context.folder, mark, context.config.index_interval_bytes, context.remote)

    def _survivors(
        self,
        sources: Sequence[SealedSegment],
        after: Key,
        acked: AckedRanges,
        let_go: Int64Array,
        hidden: HiddenKeys,
        proceed: Callable[[], object],
    ) -> Iterator[_Survivors]:
        """The entries after the log start and outside of ranges, byte for byte, but for those that are hidden, which
        are blank.

        let_go: int64[ranges], to which the records are added that are left out of each. Raises CorruptFile where an
        entry is not as it was written.
        """
        for segment in sources:
            taken = steps(
                segment.view(0, segment.size),
                0,
                segment.size,
                segment.base_offset,
                limit=SCAN_ENTRIES,
                gaps=segment.has_gaps,
            )
            for step in taken:
                proceed()
                if step.fault:
                    raise CorruptFile(step.fault, path=segment.path, position=step.found.stop)
                found = step.found
                due, offset = found.deliver_after, found.offset
                is_kept = (due > after.deliver_after) | ((due == after.deliver_after) & (offset > after.offset))
                if acked.rows:
                    gone = np.flatnonzero(_is_let_go(found, acked))
                    np.add.at(let_go, acked.which(due[gone], offset[gone]), found.records[gone])
                    is_kept[gone] = False
                rows = np.flatnonzero(is_kept)
                entries = np.append(found.position, found.stop) - step.start, step.piece
                which = rows
                blank = np.flatnonzero(_is_cancelled(found, hidden)[rows])
                if len(blank):
                    entries, which = _with_blank(entries, found.moved(-step.start), rows, blank)
                for part in _in_pieces(np.arange(len(rows)), np.diff(entries[0])[which]):
                    yield _Survivors(int(offset[rows[part[0]]]), take_ragged(entries, which[part])[1])


class _CleanedFiles:
    """The files of one cleaning, as long as nothing names them."""

    def __init__(self, context: LogContext, stored: Buckets) -> None:
        self._context = context
        self._files = context.files
        self._buckets = stored
        self._paths: list[Path] = []
        self._runs: list[Run] = []

    def segments(
        self, pieces: Iterator[_Survivors], generation: int, pause: Callable[[int], object]
    ) -> Iterator[_CleanedSegment]:
        """Write pieces into segments of no more than OUTPUT_BYTES_MAX, durably."""
        piece = next(pieces, None)
        while piece is not None:
            base_offset, size = piece.offset, 0
            path = self._context.folder / segment_file(base_offset, LOG, generation)
            self._paths.append(path)
            with publishing(self._files, path, sync_name=False) as file:
                while piece is not None and (size == 0 or size + len(piece.data) <= OUTPUT_BYTES_MAX):
                    file.append([piece.data])
                    size += len(piece.data)
                    pause(len(piece.data))
                    piece = next(pieces, None)
            self._paths += [path.with_suffix(suffix) for suffix in (OFFSET_INDEX, TIME_INDEX, CANCEL_INDEX)]
            yield self._indexed(path, base_offset, generation)
        if self._paths:
            self._files.sync_folder(self._context.folder)

    def _indexed(self, path: Path, base_offset: int, generation: int) -> _CleanedSegment:
        facts, entries = index_cleaned(self._files, path, base_offset, generation, self._context.config)
        return _CleanedSegment(SealedMark(**facts.facts()), entries.sorted())

    def run(self, output: _CleanedSegment, proceed: Callable[[], object]) -> Run:
        """Store its run."""
        mark = output.mark
        return self._kept(
            self._buckets.create(mark.file(DELIVER_AFTER_INDEX), [output.entries], mark.coverage, proceed)
        )

    def rest_of(
        self,
        replaced: Sequence[Run],
        sealed: Sequence[SealedSegment],
        sources: Sequence[SealedSegment],
        after: Key,
        cleanings: int,
        proceed: Callable[[], object],
    ) -> Iterator[Run]:
        """Store runs of the other segments that these runs hold, neighbours together."""
        going = {id(segment) for segment in sources}
        for run in replaced:
            covered = run.coverage
            held = [each for each in sealed if covered.first_offset <= each.base_offset < covered.end_offset]
            for is_going, stretch in groupby(held, key=lambda segment: id(segment) in going):
                segments = [*stretch]
                if is_going:
                    continue
                first, last = segments[0].mark, segments[-1].mark
                key = bucket_key(first.base_offset, last.end_offset, cleanings)
                coverage = Coverage(
                    first.base_offset, last.end_offset, first.base_offset, 0, last.base_offset, last.log_bytes
                )
                if first is last:
                    key, coverage = first.file(DELIVER_AFTER_INDEX), first.coverage
                part = self._buckets.part(run, key, coverage, after, proceed)
                if part is not None:
                    yield self._kept(part)

    def _kept(self, run: Run) -> Run:
        self._runs.append(run)
        return run

    def discard(self) -> None:
        """Nothing will name them. What cannot be removed now, whoever opens the log next removes."""
        for run in self._runs:
            with contextlib.suppress(OSError):
                self._buckets.delete(run)
        for path in self._paths:
            with contextlib.suppress(OSError):
                self._files.unlink(path)


def _whole_ms(segment: SealedSegment, key: Key) -> int:
    """The last instant of which all that the segment has lies up to the key."""
    return key.deliver_after - (segment.end_offset > key.offset + 1)


def _name(mark: SealedMark) -> tuple[int, int]:
    return mark.base_offset, mark.generation


def _is_cancelled(found: Scan, hidden: HiddenKeys) -> npt.NDArray[np.bool_]:
    """Which entries would be less if they were blank, and are to be: bool[n]."""
    if not hidden.count:
        return np.zeros(len(found.offset), np.bool_)
    return can_be_blank(found) & hidden.holds(found.deliver_after, found.offset)


def _is_let_go(found: Scan, acked: AckedRanges) -> npt.NDArray[np.bool_]:
    """Which entries lie in ranges that all have acked, and go: bool[n]."""
    return np.asarray(acked.holds(found.deliver_after, found.offset, found.records) & (found.attributes & CONTROL == 0))


def _with_blank(entries: Ragged, found: Scan, rows: Int64Array, blank: Int64Array) -> tuple[Ragged, Int64Array]:
    """The entries of a step, blank ones behind them, and which of all these to take for some rows.

    found: by places in the data. blank: of these rows, which.
    """
    bounds, data = entries
    first = int(bounds[0])
    made = blank_entries(data, found.position[rows[blank]], found.batch_position[rows[blank]])
    which = rows.copy()
    which[blank] = len(found.offset) + np.arange(len(blank))
    return join_ragged([(bounds - first, data[first : int(bounds[-1])]), made]), which


def _records_within(run: Run, acked: AckedRanges) -> int:
    """How many records of a run lie in ranges; of those that share an instant with the ends of one, about."""
    long = [row for row in acked.rows if row.upto_ms > row.after_ms]
    edges = np.array([(row.after_ms + 1, row.upto_ms + 1) for row in long], np.int64).reshape(-1, 2)
    count = int((run.due_counts(edges[:, 1]) - run.due_counts(edges[:, 0])).sum())
    short = (row for row in acked.rows if row.upto_ms == row.after_ms)
    return count + sum(run.records_up_to(row.upto) - run.records_up_to(row.after) for row in short)


def _weight(segment: SealedSegment, hidden: HiddenKeys, acked: AckedRanges, proceed: Callable[[], object]) -> DueBytes:
    """By the headers of its entries."""
    due, size = list[Int64Array](), list[Int64Array]()
    for found in walk(segment, 0, segment.size, bodies=False, limit=SCAN_ENTRIES):
        proceed()
        due.append(found.deliver_after)
        blank = found.batch_position - found.position + BLANK_BATCH_BYTES
        left = np.where(_is_cancelled(found, hidden), blank, found.size)
        size.append(np.where(_is_let_go(found, acked), 0, left) if acked.rows else left)
    return DueBytes.of(np.concatenate(due), np.concatenate(size))


def _holding(runs: Sequence[Run], sources: Sequence[SealedSegment]) -> list[Run]:
    """The runs that hold something of neighbours."""
    first, end = sources[0].base_offset, sources[-1].end_offset
    return [run for run in runs if run.coverage.first_offset < end and run.coverage.end_offset > first]


def _still_there(now: Version, sources: Sequence[SealedSegment], replaced: Sequence[Run]) -> bool:
    sealed, runs = {id(segment) for segment in now.sealed}, set(now.delayed_index.runs)
    return all(id(segment) in sealed for segment in sources) and all(run in runs for run in replaced)


def _in_pieces(rows: Int64Array, size: Int64Array) -> Iterator[Int64Array]:
    """Rows of no more than PIECE_BYTES together, but for one that is larger."""
    before = np.append(0, size.cumsum())
    first = 0
    while first < len(rows):
        last = max(int(before.searchsorted(before[first] + PIECE_BYTES, side="right")) - 1, first + 1)
        yield rows[first:last]
        first = last
