from __future__ import annotations

from pathlib import Path

import crc32c
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterlog.errors import CorruptFile
from afterlog.index.entries import Entry, Key
from afterlog.index.run import Coverage, Run
from afterlog.index.run_writer import write_run
from tests.index.support import (
    INT64_MAX,
    Row,
    UnsyncedFiles,
    due_counts,
    dues,
    entries_of,
    find,
    make_run,
    next_due,
    records_up_to,
    rows_in_offset_order,
    rows_of,
)

EXAMPLE: list[Row] = [(9_000, 1_000, 0, 2), (5_000, 1_002, 180, 1), (9_000, 1_003, 290, 3)]
offsets = st.sampled_from([-1, 0, 1, 2, 7, 100_001, 2**32, 2**40, INT64_MAX])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@given(
    rows=rows_in_offset_order(min_size=1),
    max_entries=st.integers(1, 12),
    max_step_ms=st.sampled_from([1, 5, 300_000, INT64_MAX]),
    due=dues,
    offset=offsets,
)
def test_answers_like_a_list(
    folder: Path, rows: list[Row], max_entries: int, max_step_ms: int, due: int, offset: int
) -> None:
    run, key = make_run(folder, rows, max_entries, max_step_ms), Key(due, offset)
    run.check()
    assert sorted(rows) == rows_of(run.entries())
    assert (len(rows), sum(row[3] for row in rows)) == (run.count, run.records)
    assert (min(rows)[:2], max(rows)[:2]) == (run.first_key, run.last_key)
    for probe in (key, run.first_key, run.last_key, Key(due, rows[len(rows) // 2][1]), Key(rows[0][0], offset)):
        assert records_up_to(rows, probe) == run.records_up_to(probe)
        assert next_due(rows, probe) == run.next_due(probe)
    edges = [0, due, rows[0][0], rows[-1][0], INT64_MAX]
    assert due_counts(rows, edges) == run.due_counts(np.array(edges, np.int64)).tolist()
    for probed in (offset, *range(rows[0][1] - 1, rows[0][1] + 12), rows[-1][1], rows[-1][1] + rows[-1][3]):
        assert find(rows, probed) == run.find(probed)
        assert (find(rows, probed) is not None) == run.contains(probed)


@given(rows=rows_in_offset_order(min_size=1), keys=st.lists(st.tuples(dues, offsets), max_size=6))
def test_a_cursor_skips_as_it_seeks(folder: Path, rows: list[Row], keys: list[tuple[int, int]]) -> None:
    run = make_run(folder, rows, max_entries=7)
    cursor, passed = run.cursor(), 0
    for key in sorted(Key(*key) for key in keys):
        passed += cursor.skip(key)
        assert records_up_to(rows, key) == passed == run.cursor(key).records_passed()
        assert next_due(rows, key) == cursor.next_due


@given(rows=rows_in_offset_order(min_size=1), due=dues)
@example(rows=[(5, number, 0, 1) for number in range(30)], due=5)
def test_a_cursor_counts_entries_or_says_that_they_are_too_many(folder: Path, rows: list[Row], due: int) -> None:
    run = make_run(folder, rows, max_entries=7)
    expected = sum(row[0] <= due for row in rows)
    for limit in (0, 3, 100):
        count = run.cursor().entries_until(due, limit)
        assert expected == count or limit < count <= expected


def test_the_example_of_the_format(tmp_path: Path) -> None:
    files, path = UnsyncedFiles(), tmp_path / "00000000000000001000.deliverafterindex"
    coverage = Coverage(1_000, 1_006, 1_000, 0, 1_000, 520)
    write_run(files, path, [entries_of(sorted(EXAMPLE))], coverage, max_entries=5_000, max_step_ms=300_000)
    run, data = Run.open(files, path), path.read_bytes()
    assert coverage == run.coverage
    assert len(data) == 448
    assert data[:9] == data[440:] + b"\1" == b"AFTERRUN\1"
    assert [5_000, 9_000, 9_000] == np.frombuffer(data, "<i8", 3, 64).tolist()
    assert [2, 0, 3, 180, 0, 290, 1, 2, 3] == np.frombuffer(data, "<u4", 9, 88).tolist()
    directory = np.frombuffer(data, "<i8", 13, 192).tolist()
    assert [5_000, 1_002, 9_000, 1_003, 0, 0, 64, 60, 0] == directory[:9]
    assert [128, 22] == directory[10:12]
    assert [1_000, 1_006, 1_000, 0, 1_000, 520, 3, 6, 1, 192, 448] == np.frombuffer(data, "<i8", 11, 320).tolist()
    assert 0xD5790A82 == crc32c.crc32c(data), "the bytes of version 1 may not change"
    assert (448, int.from_bytes(data[436:440], "little")) == run.identity
    assert Entry(9_000, 1_003, 290, 3) == run.find(1_005)


def test_no_flipped_bit_goes_unnoticed_unless_it_means_nothing(tmp_path: Path) -> None:
    rows: list[Row] = [(number * 7 % 5, number * 2, number * 100, 1 + number % 2) for number in range(10)]
    path = make_run(tmp_path, rows, max_entries=4, max_step_ms=2).path
    data = bytearray(path.read_bytes())

    def everything() -> object:
        run = Run(path, np.frombuffer(bytes(data), np.uint8))
        run.check()
        found = [run.find(offset) for offset in range(21)]
        counts = run.due_counts(np.arange(6)).tolist()
        return rows_of(run.entries()), found, counts, run.coverage, run.identity, run.first_key, run.last_key

    def outcome() -> object:
        try:
            return everything()
        except CorruptFile as error:
            return error

    expected, unnoticed = everything(), set()
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            actual = outcome()
            if not isinstance(actual, CorruptFile):
                assert expected == actual
                unnoticed.add(position)
            elif actual.path != path or not 0 <= (actual.position or 0) < len(data):
                raise AssertionError(f"the error for bit {bit} of byte {position} names another place: {actual}")
            data[position] ^= 1 << bit
    directory = Run.open(UnsyncedFiles(), path).directory
    parts = [
        *zip(directory.position, directory.size, strict=True),
        *zip(directory.bitmap_position, directory.bitmap_size, strict=True),
    ]
    read = {at for start, size in parts for at in range(start, start + size)}
    read |= set(range(64)) | set(range(len(data) - 128, len(data)))
    assert not unnoticed & read


def test_a_run_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path, EXAMPLE).path
    data = np.frombuffer(path.read_bytes(), np.uint8)
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            Run(path, data[:size])
    with pytest.raises(CorruptFile):
        Run(path, np.concatenate((data, data)))


def test_says_which_file_and_where(tmp_path: Path) -> None:
    path = make_run(tmp_path, EXAMPLE).path
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    run = Run(path, np.frombuffer(bytes(data), np.uint8))
    with pytest.raises(CorruptFile, match="chunk 0 fails its checksum") as caught:
        run.entries()
    assert (path, 64) == (caught.value.path, caught.value.position)
    data[8] = 2
    with pytest.raises(CorruptFile, match="version 2 of runs is not known here"):
        Run(path, np.frombuffer(bytes(data), np.uint8))


def test_reading_columns_copies_nothing_and_aligns_them(tmp_path: Path) -> None:
    run = make_run(tmp_path, [(number, number, number, 1) for number in range(100)], max_entries=7)
    for chunk in range(run.chunks):
        deliver_after, details = run.columns(chunk)
        assert not deliver_after.flags.owndata
        assert deliver_after.flags.aligned
        assert details.flags.aligned
        assert not details.flags.writeable
