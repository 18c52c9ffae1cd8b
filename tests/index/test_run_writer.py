from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import CorruptFile
from afterlog.base.files import publishing
from afterlog.index.entries import Entries
from afterlog.index.run import Coverage, Run
from afterlog.index.run_writer import RunWriter, write_run
from tests.index.support import (
    INT64_MAX,
    Row,
    UnsyncedFiles,
    coverage_of,
    entries_of,
    make_run,
    rows_in_offset_order,
    rows_of,
)
from tests.support import flipped


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@given(
    rows=rows_in_offset_order(min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    max_entries=st.integers(1, 40),
    max_step_ms=st.sampled_from([1, 5, 300_000, INT64_MAX]),
)
def test_the_file_is_the_same_however_the_entries_are_cut(
    folder: Path, rows: list[Row], cuts: list[int], max_entries: int, max_step_ms: int
) -> None:
    whole, path = make_run(folder, rows, max_entries, max_step_ms), folder / "cut"
    entries, bounds = entries_of(sorted(rows)), [0, *sorted(cuts), len(rows)]
    blocks = [entries[start:end] for start, end in pairwise(bounds)]
    write_run(UnsyncedFiles(), path, blocks, coverage_of(rows), max_entries=max_entries, max_step_ms=max_step_ms)
    assert whole.path.read_bytes() == path.read_bytes()
    Run.open(UnsyncedFiles(), path).check()


@given(
    rows=rows_in_offset_order(min_size=1, max_size=60),
    cuts=st.sets(st.integers(1, 59), max_size=5),
    max_entries=st.integers(1, 40),
)
def test_runs_that_follow_each_other_become_one(
    folder: Path, rows: list[Row], cuts: set[int], max_entries: int
) -> None:
    entries, coverage, files = entries_of(sorted(rows)), coverage_of(rows), UnsyncedFiles()
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    with publishing(files, folder / "whole") as file:
        writer = RunWriter(file, coverage, max_entries=max_entries, max_step_ms=5)
        for number, (start, end) in enumerate(pairwise(bounds)):
            if number % 3 == 2:  # blocks in between are as good
                writer.add(entries[start:end])
                continue
            path, block = folder / "part", [entries[start:end]]
            write_run(files, path, block, coverage, max_entries=max_entries, max_step_ms=5)
            writer.add_run(Run.open(files, path))
        writer.finish()
    whole = Run.open(files, folder / "whole")
    whole.check()
    assert (sorted(rows), coverage) == (rows_of(whole.entries()), whole.coverage)


def test_a_run_that_cannot_follow_is_refused(tmp_path: Path) -> None:
    files, coverage = UnsyncedFiles(), Coverage(0, 10, 0, 0, 0, 0)

    def joined(rows: list[Row], ours: Coverage, flip: int | None = None) -> None:
        write_run(files, tmp_path / "part", [entries_of(rows)], coverage, max_entries=5, max_step_ms=5)
        if flip is not None:
            (tmp_path / "part").write_bytes(flipped((tmp_path / "part").read_bytes(), flip))
        with publishing(files, tmp_path / "whole") as file:
            writer = RunWriter(file, ours, max_entries=5, max_step_ms=5)
            writer.add(entries_of([(3, 4, 0, 1)]))
            writer.add_run(Run.open(files, tmp_path / "part"))
            writer.finish()

    for rows, ours, reason in (
        ([(3, 4, 0, 1)], coverage, "delivery order"),
        ([(2, 5, 0, 1)], coverage, "delivery order"),
        ([(4, 4, 0, 1)], coverage, "share an offset"),
        ([(4, 5, 0, 1)], replace(coverage, first_offset=1), "another offset"),
        ([(4, 5, 0, 1)], replace(coverage, end_offset=9), "covers more"),
    ):
        with pytest.raises(ValueError, match=reason):
            joined(rows, ours)
    for place, reason in ((70, "chunk 0 fails"), (130, "bitmap fails")):
        with pytest.raises(CorruptFile, match=reason):
            joined([(4, 5, 0, 1)], coverage, place)
    assert ["part"] == [path.name for path in tmp_path.iterdir()]


def test_chunks_end_at_their_size_or_at_the_time_step_once_a_tenth_full(tmp_path: Path) -> None:
    def sizes(run: Run) -> list[int]:
        return [len(run.chunk(chunk)) for chunk in range(run.chunks)]

    dense = [(number, number, 0, 1) for number in range(95)]
    assert [40, 40, 15] == sizes(make_run(tmp_path, dense, 40, 1_000))
    assert [11] * 8 + [7] == sizes(make_run(tmp_path, dense, 40, 10))
    sparse = [(number * 1_000_000, number, 0, 1) for number in range(10)]
    assert [4, 4, 2] == sizes(make_run(tmp_path, sparse, 40, 10))
    late = [(INT64_MAX - 1, 0, 0, 1), (INT64_MAX, 1, 0, 1)]
    assert [2] == sizes(make_run(tmp_path, late, 40, 10))


def test_without_a_limit_chunks_end_at_the_time_step(tmp_path: Path) -> None:
    due = [*[0] * 100_000, *range(10_000, 10_499), 20_000, 30_000]
    rows = [(each, offset, offset, 1) for offset, each in enumerate(due)]
    run = make_run(tmp_path, rows, -1, 5_000)
    assert [100_000, 500, 1] == [len(run.chunk(chunk)) for chunk in range(run.chunks)]
    assert rows == [tuple(entry) for entry in run.entries()]
    run.check()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "at least one entry"),
        ([(2, 0, 0, 1), (1, 1, 0, 1)], "delivery order"),
        ([(1, 0, 0, 0)], "no records"),
        ([(1, 0, 0, 11)], "does not cover"),
        ([(1, 0, 2**32, 1)], "32 bits"),
        ([(1, -1, 0, 1)], "32 bits"),
    ],
)
def test_refuses_to_write_what_a_run_cannot_hold(tmp_path: Path, rows: list[Row], reason: str) -> None:
    path, coverage = tmp_path / "run", Coverage(0, 10, 0, 0, 0, 0)
    blocks = [entries_of(rows)] if rows else []
    with pytest.raises(ValueError, match=reason):
        write_run(UnsyncedFiles(), path, blocks, coverage, max_entries=5, max_step_ms=5)
    assert not list(tmp_path.iterdir())


def test_blocks_must_follow_each_other(tmp_path: Path) -> None:
    for later in ((7, 0, 0, 1), (7, 1, 0, 1), (6, 9, 0, 1)):
        blocks = [entries_of([(7, 1, 0, 1)]), entries_of([later])]
        for max_entries in (1, 5):
            with pytest.raises(ValueError, match="delivery order"):
                write_run(
                    UnsyncedFiles(),
                    tmp_path / "run",
                    blocks,
                    Coverage(0, 10, 0, 0, 0, 0),
                    max_entries=max_entries,
                    max_step_ms=5,
                )


def test_where_a_block_cannot_be_had_the_old_file_stays(tmp_path: Path) -> None:
    run = make_run(tmp_path, [(5, 0, 0, 1)])
    before = run.path.read_bytes()

    def blocks() -> Iterator[Entries]:
        yield entries_of([(number, number, 0, 1) for number in range(100)])
        raise CorruptFile("a run fails its checksum", path="elsewhere")

    with pytest.raises(CorruptFile):
        write_run(UnsyncedFiles(), run.path, blocks(), Coverage(0, 100, 0, 0, 0, 0), max_entries=10, max_step_ms=5)
    assert ([run.path], before) == (list(tmp_path.iterdir()), run.path.read_bytes())


def test_memory_is_that_of_a_block_whatever_the_run_holds(tmp_path: Path) -> None:
    count, size = 600_000, 5_000
    ones = np.ones(size, np.int64)

    def blocks() -> Iterator[Entries]:
        for first in range(0, count, size):
            row = np.arange(first, first + size)
            yield Entries(row, row * 7 % count, row, ones)

    path = tmp_path / "run"
    tracemalloc.start()
    try:
        write_run(UnsyncedFiles(), path, blocks(), Coverage(0, count, 0, 0, 0, 0), max_entries=size, max_step_ms=size)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    run = Run.open(UnsyncedFiles(), path)
    assert (count, 120) == (run.count, run.chunks)
    assert peak_bytes < 4 << 20 < 20 * count


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows: list[Row] = [(number * 7_919 % 10_007, number, number * 93, 1) for number in range(60_000)]
    run = make_run(tmp_path, rows)
    run.check()
    assert sorted(rows) == rows_of(run.entries())
