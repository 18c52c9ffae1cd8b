"""Which of the stored runs of a partition are in use: told by their names, and by what each says that it covers.

    sealed segments   0 ──────── 900 ──────── 2000 ─────── 2800 ────── 3500 active
    stored runs       buckets/0-2000 ────────────┤                              in use: the largest
                      0 ──────────┤                                             covered: a merge was cut short
                                               2000 ─────────┤                  in use
                                                              2800 missing: made anew from the log

A segment that was just sealed may have several runs still, those of when it was active: they are merged behind the
roll (docs/decisions/0045), and after a crash then, too.

A bucket whose segments a later cleaning wrote anew than the one in its name holds places where their entries were
before: it is not in use.

A crash between the end of a merge and the removal of its sources leaves both, and either is right: the larger one is
taken, the others go. Some of the segments that a bucket covers may be gone: retention took them, and what the bucket
still holds of them lies before the log start.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from afterlog.base.errors import CorruptFile
from afterlog.base.names import DELIVER_AFTER_INDEX, Span, bucket_key, parse_bucket_file
from afterlog.index.run import Coverage, Run
from afterlog.log.checkpoints import Checkpoints, SealedMark

OpenRun = Callable[[str], Run]
"""A run by its key. FileNotFoundError, CorruptFile."""


class Reach(NamedTuple):
    """A place between two entries of a segment."""

    offset: int
    position: int


class Group(NamedTuple):
    """Adjacent sealed segments and the run that holds them; None: there is none, or none is needed."""

    run: Run | None
    segments: tuple[SealedMark, ...]


class SealedRuns(NamedTuple):
    """What holds the sealed segments, all of them, in offset order."""

    groups: tuple[Group, ...]
    missing: tuple[SealedMark, ...]
    """Segments that need a run and have none; those that are in object storage only have theirs there."""
    faults: tuple[CorruptFile, ...]
    """What is wrong with runs that would be in use otherwise."""
    parts: Mapping[SealedMark, tuple[Run, ...]] = MappingProxyType({})
    """Of the missing those whose runs of when they were active are there, all of them, in offset order: they were not
    merged yet when the segment was sealed."""

    def faults_in(self, folder: Path) -> list[CorruptFile]:
        """The same, and those runs that are not there at all and should be."""
        rotten = {fault.path for fault in self.faults}
        missing = (mark for mark in self.missing if mark.local and mark not in self.parts)
        gone = (folder / mark.file(DELIVER_AFTER_INDEX) for mark in missing)
        return [*self.faults, *(CorruptFile("the file is gone", path=path) for path in gone if path not in rotten)]


def spans_of(names: Iterable[str]) -> list[Span]:
    """The spans of the buckets among the names in their folder."""
    return [span for name in names if (span := parse_bucket_file(name)) is not None]


def runs_of_sealed(open_run: OpenRun, spans: Collection[Span], known: Checkpoints) -> SealedRuns:
    """The runs of the sealed segments, told by their metadata alone."""
    needed = {mark for mark in known.sealed if mark.last_key > known.log_start.key}
    candidates = [(bucket_key(*span), span, _segments_in(span, known)) for span in spans]
    candidates.sort(key=lambda candidate: -len(candidate[2]))
    candidates += [
        (mark.file(DELIVER_AFTER_INDEX), Span(mark.base_offset, mark.end_offset, mark.generation), (mark,))
        for mark in known.sealed
    ]
    groups, faults, left = list[Group](), list[CorruptFile](), set(known.sealed)
    for key, span, segments in candidates:
        if left.issuperset(segments) and not needed.isdisjoint(segments):
            run = _intact(open_run, key, span, segments[-1], faults)
            if run is not None:
                groups.append(Group(run, segments))
                left.difference_update(segments)
    groups += [Group(None, (mark,)) for mark in left]
    groups.sort(key=lambda group: group.segments[0].base_offset)
    missing = tuple(mark for mark in known.sealed if mark in left & needed)
    tiles = (
        (mark, _tiling(open_run, spans, Reach(mark.end_offset, mark.log_bytes), mark.base_offset)) for mark in missing
    )
    return SealedRuns(tuple(groups), missing, tuple(faults), {mark: tuple(runs) for mark, runs in tiles if runs})


def runs_of_active(open_run: OpenRun, spans: Iterable[Span], known: Checkpoints) -> list[Run]:
    """The runs of the active segment that are in use, in offset order; none where none reach the recovery point."""
    return _tiling(open_run, spans, Reach(known.recovery.offset, known.recovery.position), known.recovery.segment)


def _tiling(open_run: OpenRun, spans: Iterable[Span], upto: Reach, segment: int) -> list[Run]:
    """Runs that follow each other from the beginning of a segment to a place in it; none where none reach it."""
    offset, position, runs = segment, 0, list[Run]()
    for first, end, _ in sorted(spans, key=lambda span: (span.first, -span.end)):
        if first != offset or end > upto.offset:
            continue
        with contextlib.suppress(CorruptFile, FileNotFoundError):
            run = open_run(bucket_key(first, end))
            behind = run.coverage.end_position
            if run.coverage == Coverage(first, end, segment, position, segment, behind):
                runs.append(run)
                offset, position = end, behind
    return runs if Reach(offset, position) == upto else []


def _segments_in(span: Span, known: Checkpoints) -> tuple[SealedMark, ...]:
    """The sealed segments that lie in a span; none where it begins or ends inside of one, or one was cleaned since."""
    first, end, generation = span
    row = bisect_left(known.sealed, first, key=lambda mark: mark.base_offset)
    behind = bisect_left(known.sealed, end, key=lambda mark: mark.base_offset)
    cut = row and known.sealed[row - 1].end_offset > first
    if cut or row == behind or known.sealed[behind - 1].end_offset > end or end > known.active.base_offset:
        return ()
    segments = known.sealed[row:behind]
    return () if any(mark.generation > generation for mark in segments) else segments


def _intact(open_run: OpenRun, key: str, span: Span, last: SealedMark, faults: list[CorruptFile]) -> Run | None:
    """The run under `key`, if there is one that covers its span; `last` is the last segment in it that is there."""
    try:
        run = open_run(key)
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        faults.append(error)
        return None
    first, end, _ = span
    end_place = run.coverage.end_segment, run.coverage.end_position
    if last.end_offset == end:
        end_place = last.base_offset, last.log_bytes
    if run.coverage != Coverage(first, end, first, 0, *end_place):
        faults.append(CorruptFile("covers another part of the log than it should", path=run.path))
        return None
    return run
