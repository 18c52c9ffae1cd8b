"""What the tests of the indexes share: rows as tuples, runs without fsync, strategies."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from afterlog.base.files import OsFile, OsFiles
from afterlog.index.entries import Entries, Key
from afterlog.index.run import Coverage, Run
from afterlog.index.run_writer import write_run

INT64_MAX = 2**63 - 1
Row = tuple[int, int, int, int]
"""deliver_after, offset, position, records"""
_numbers = itertools.count()


class UnsyncedFiles(OsFiles):
    """The file system without its slow part: no test here is about power cuts."""

    def create(self, path: Path) -> OsFile:
        file = super().create(path)
        file.sync = lambda: None  # type: ignore[method-assign]
        return file

    def sync_folder(self, folder: Path) -> None:
        pass


def entries_of(rows: list[Row]) -> Entries:
    columns = np.array(rows, np.int64).reshape(len(rows), 4)
    return Entries(*(np.ascontiguousarray(columns[:, number]) for number in range(4)))


def rows_of(entries: Entries) -> list[Row]:
    return [tuple(entry) for entry in entries]


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def coverage_of(rows: list[Row]) -> Coverage:
    first = min(offset for _, offset, _, _ in rows)
    end = max(offset + records for _, offset, _, records in rows)
    return Coverage(first, end, first, 0, first, end * 100)


def make_run(folder: Path, rows: list[Row], max_entries: int = 5_000, max_step_ms: int = 300_000) -> Run:
    path = folder / f"{next(_numbers)}.deliverafterindex"
    files = UnsyncedFiles()
    write_run(
        files, path, [entries_of(sorted(rows))], coverage_of(rows), max_entries=max_entries, max_step_ms=max_step_ms
    )
    return Run.open(files, path)


def records_up_to(rows: list[Row], key: Key) -> int:
    return sum(row[3] for row in rows if row[:2] <= key)


def next_due(rows: list[Row], after: Key) -> int | None:
    return min((row[0] for row in rows if row[:2] > after), default=None)


def due_counts(rows: list[Row], edges: list[int]) -> list[int]:
    return [sum(row[3] for row in rows if row[0] < edge) for edge in edges]


def holds(rows: list[Row], offset: int) -> bool:
    return any(row[1] <= offset < row[1] + row[3] for row in rows)


dues = st.one_of(
    st.integers(0, 20),
    st.integers(1_700_000_000_000, 1_700_000_600_000),
    st.sampled_from([0, 1, 2**40, 2**62, INT64_MAX - 1, INT64_MAX]),
)


@st.composite
def rows_in_offset_order(draw: st.DrawFn, min_size: int = 0, max_size: int = 40, first_offset: int = 0) -> list[Row]:
    rows, offset, position = [], first_offset, 0
    for due in draw(st.lists(dues, min_size=min_size, max_size=max_size)):
        offset += draw(st.sampled_from([0, 0, 0, 1, 100_000]))
        records = draw(st.integers(1, 4))
        rows.append((due, offset, position, records))
        offset += records
        position += 97
    return rows
