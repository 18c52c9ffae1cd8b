from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from afterlog.base.errors import CorruptFile
from afterlog.base.names import Span, bucket_file, bucket_key, run_key
from afterlog.index.run import Coverage
from afterlog.log.checkpoints import ActiveMark, Checkpoints, LogStart, Recovery, SealedMark
from afterlog.log.facts import NO_FILE
from afterlog.log.run_files import runs_of_active, runs_of_sealed, spans_of

FOLDER = Path("/p")
BOUNDS = [0, 10, 25, 30, 50]
"""Of sealed segments; the active one begins at 60: retention took one in between."""


def mark(base: int, end: int) -> SealedMark:
    return SealedMark(
        base_offset=base,
        end_offset=end,
        log_bytes=end * 10,
        max_deliver_after=base,
        max_timestamp=0,
        index=NO_FILE,
        time_index=NO_FILE,
    )


KNOWN = Checkpoints(
    recovery=Recovery(segment=60, position=90, offset=90),
    active=ActiveMark(base_offset=60),
    sealed=tuple(mark(base, end) for base, end in pairwise(BOUNDS)),
)


def stored(*found: Span | int, **instead: Any) -> Callable[[str], Any]:
    """A storage with buckets, and runs of segments by their base offset; the keys of `instead` answer otherwise."""
    runs = {}
    for each in found:
        first, end = each[:2] if isinstance(each, Span) else (each, BOUNDS[BOUNDS.index(each) + 1])
        last = max((base for base in BOUNDS[:-1] if base < end), default=0)
        key = bucket_key(*each) if isinstance(each, Span) else run_key(each)
        runs[key] = Coverage(first, end, first, 0, last, end * 10)

    def open_run(key: str) -> Any:
        coverage = instead.get(key, runs.get(key))
        if coverage is None:
            raise FileNotFoundError(key)
        if isinstance(coverage, str):
            raise CorruptFile(coverage, path=FOLDER / key)
        return SimpleNamespace(coverage=coverage, key=key, path=FOLDER / key)

    return open_run


def used(
    spans: Iterable[Span], open_run: Callable[[str], Any], known: Checkpoints = KNOWN
) -> tuple[list[str], list[int]]:
    """Keys of the runs in use, and the base offsets of segments without one."""
    runs = runs_of_sealed(open_run, spans, known)
    assert [each.base_offset for group in runs.groups for each in group.segments] == [
        each.base_offset for each in known.sealed
    ]
    keys = [group.run.key for group in runs.groups if group.run]
    return keys, [each.base_offset for each in runs.missing]


def test_spans() -> None:
    assert [Span(3, 9)] == spans_of(["x", bucket_file(3, 9), bucket_file(3, 9) + ".tmp", run_key(3)])


@pytest.mark.parametrize(
    ("found", "expected", "missing"),
    [
        ([0, 10, 25, 30], [run_key(0), run_key(10), run_key(25), run_key(30)], []),
        ([10], [run_key(10)], [0, 25, 30]),
        ([0, (10, 30), 30], [run_key(0), bucket_key(10, 30), run_key(30)], []),
        ([0, 10, 25, 30, (10, 30)], [run_key(0), bucket_key(10, 30), run_key(30)], []),
        ([(0, 50), (10, 30), 0], [bucket_key(0, 50)], []),
        ([(0, 25), (10, 50), 0, 10, 25, 30], [run_key(0), bucket_key(10, 50)], []),
        ([(10, 30), (12, 30), (10, 29), (60, 90), (30, 90)], [bucket_key(10, 30)], [0, 30]),
        ([(0, 55), (55, 58)], [bucket_key(0, 55)], []),
    ],
)
def test_sealed(found: list[tuple[int, int] | int], expected: list[str], missing: list[int]) -> None:
    """The most segments first; a bucket that begins or ends inside of a segment, or reaches the active one, is none."""
    there = [Span(*each) if isinstance(each, tuple) else each for each in found]
    assert (expected, missing) == used([each for each in there if isinstance(each, Span)], stored(*there))


@pytest.mark.parametrize(("generation", "is_used"), [(0, False), (2, False), (3, True), (4, True)])
def test_a_bucket_over_a_segment_that_was_cleaned_since_is_none(generation: int, is_used: bool) -> None:
    """Places of before would be read in the log of now."""
    cleaned = [replace(mark, generation=3, held_records=2) if mark.base_offset == 10 else mark for mark in KNOWN.sealed]
    known = replace(KNOWN, sealed=tuple(cleaned), cleanings=5)
    span = Span(0, 30, generation)
    keys, missing = used([span], stored(span, 30), known)
    assert ([bucket_key(*span), run_key(30)], []) == (keys, missing) if is_used else [0, 10, 25] == missing


def test_the_run_of_a_cleaned_segment_is_that_of_its_generation() -> None:
    cleaned = replace(KNOWN.sealed[0], generation=3, held_records=2)
    known = replace(KNOWN, sealed=(cleaned, *KNOWN.sealed[1:]))
    assert [0] == used([], stored(0, 10, 25, 30), known)[1]
    runs = {run_key(0, 3): cleaned.coverage}
    assert [] == used([], stored(10, 25, 30, **runs), known)[1]


def test_where_the_largest_is_rotten_the_smaller_ones_serve() -> None:
    open_run = stored(0, 25, 30, **{bucket_key(0, 30): "rot", run_key(10): "rot too"})
    runs = runs_of_sealed(open_run, [Span(0, 30)], KNOWN)
    assert [10] == [each.base_offset for each in runs.missing]
    assert ["rot", "rot too"] == [fault.message for fault in runs.faults_in(FOLDER)]


def test_what_is_gone_is_named_too() -> None:
    [fault] = runs_of_sealed(stored(Span(0, 30)), [Span(0, 30)], KNOWN).faults_in(FOLDER)
    assert FOLDER / run_key(30) == fault.path


@pytest.mark.parametrize(
    "coverage",
    [
        Coverage(0, 30, 0, 0, 25, 299),
        Coverage(0, 30, 0, 0, 10, 300),
        Coverage(0, 29, 0, 0, 25, 300),
        Coverage(0, 30, 0, 1, 25, 300),
        Coverage(0, 30, 10, 0, 25, 300),
    ],
)
def test_a_run_that_covers_something_else(coverage: Coverage) -> None:
    open_run = stored(0, 10, 25, 30, **{bucket_key(0, 30): coverage})
    assert 4 == len(used([Span(0, 30)], open_run)[0])
    assert 1 == len(runs_of_sealed(open_run, [Span(0, 30)], KNOWN).faults)


def test_a_segment_that_is_out_of_reach_needs_no_run() -> None:
    known = replace(KNOWN, log_start=LogStart(delivery_offset=20, deliver_after=10, offset=24))
    assert ([run_key(25)], [30]) == used([], stored(0, 25), known)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([60, 70, 90], [70, 90]),
        ([60, 90], [90]),
        ([60, 70], []),
        ([70, 90], []),
        ([60, 100], []),
    ],
)
def test_active(ends: list[int], expected: list[int]) -> None:
    spans = [Span(*bounds) for bounds in pairwise(ends)]
    runs = {bucket_key(*span): Coverage(*span[:2], 60, span[0] - 60 and span[0], 60, span[1]) for span in spans}
    assert expected == [run.coverage.end_offset for run in runs_of_active(stored(**runs), spans, KNOWN)]


def test_active_takes_the_larger_where_it_is_intact() -> None:
    runs: dict[str, Any] = {
        bucket_key(60, 70): Coverage(60, 70, 60, 0, 60, 70),
        bucket_key(70, 90): Coverage(70, 90, 60, 70, 60, 90),
        bucket_key(60, 90): Coverage(60, 90, 60, 0, 60, 90),
    }
    spans = [Span(60, 70), Span(60, 90), Span(70, 90)]
    assert [bucket_key(60, 90)] == [run.key for run in runs_of_active(stored(**runs), spans, KNOWN)]
    runs[bucket_key(60, 90)] = "rot"
    assert 2 == len(runs_of_active(stored(**runs), spans, KNOWN))
