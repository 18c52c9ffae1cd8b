from __future__ import annotations

import struct
from pathlib import Path

import crc32c
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap

from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes
from afterlog.index.bucket_snapshot import MappedSnapshot
from afterlog.index.entries import Key
from afterlog.index.packing import unpack
from afterlog.index.run import Coverage, Run
from afterlog.index.run_format import (
    ALIGNMENT,
    CODEC_PACKED,
    CODEC_RAW,
    HEADER,
    Directory,
    FilePart,
    encode_directory,
    encode_footer,
    parse,
)
from afterlog.index.run_writer import write_run
from tests.fuzzing.index_decoders import mend_run
from tests.index.support import (
    INT64_MAX,
    Row,
    UnsyncedFiles,
    due_counts,
    dues,
    entries_of,
    holds,
    make_run,
    next_due,
    records_up_to,
    rows_in_offset_order,
    rows_of,
)

EXAMPLE: list[Row] = [(9_000, 1_000, 0, 2), (5_000, 1_002, 180, 1), (9_000, 1_003, 290, 3)]
offsets = st.sampled_from([-1, 0, 1, 2, 7, 100_001, 2**32, 2**40, INT64_MAX])


def run_over(path: Path, data: Bytes) -> Run:
    return Run(MappedSnapshot(path, data))


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
        assert holds(rows, probed) == run.contains(probed)


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
    assert data[:9] == data[440:] + b"\2" == b"AFTERRUN\2"
    deliver_after, details = unpack(np.frombuffer(data, np.uint8, 52, 64), 3)
    assert [5_000, 9_000, 9_000] == deliver_after.tolist()
    assert [[2, 0, 3], [180, 0, 290], [1, 2, 3]] == details.tolist()
    assert BitMap(range(6)) == BitMap.deserialize(data[128:143])
    directory = np.frombuffer(data, "<i8", 10, 192).tolist()
    assert [5_000, 1_002, 9_000, 1_003, 0, 0, 64, 52, 1] == directory[:9]
    footer = np.frombuffer(data, "<i8", 13, 320).tolist()
    assert [1_000, 1_006, 1_000, 0, 1_000, 520, 3, 6, 1, 192, 448, 128, 15] == footer
    assert 0x05EE6E24 == crc32c.crc32c(data), "the bytes of version 2 may not change"
    assert (448, int.from_bytes(data[436:440], "little")) == run.identity
    assert [offset for offset in range(2_000) if run.contains(offset)] == list(range(1_000, 1_006))


@pytest.mark.parametrize(("max_entries", "codec"), [(2, CODEC_RAW), (20, CODEC_PACKED)])
def test_no_flipped_bit_goes_unnoticed_unless_it_means_nothing(tmp_path: Path, max_entries: int, codec: int) -> None:
    rows: list[Row] = [(number * 7 % 5, number * 2, number * 100, 1 + number % 2) for number in range(4)]
    run = make_run(tmp_path, rows, max_entries)
    directory, bitmap, path = run.directory, MappedSnapshot.open(UnsyncedFiles(), run.path).metadata().bitmap, run.path
    assert {codec} == set(directory.codec.tolist())
    data = bytearray(path.read_bytes())

    def everything() -> object:
        run = run_over(path, np.frombuffer(bytes(data), np.uint8))
        run.check()
        found = [run.contains(offset) for offset in range(9)]
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
    parts = [*zip(directory.position, directory.size, strict=True), (bitmap.position, bitmap.size)]
    read = {at for start, size in parts for at in range(start, start + size)}
    read |= set(range(64)) | set(range(len(data) - 128, len(data)))
    assert not unnoticed & read


def test_a_run_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path, EXAMPLE).path
    data = np.frombuffer(path.read_bytes(), np.uint8)
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            run_over(path, data[:size])
    with pytest.raises(CorruptFile):
        run_over(path, np.concatenate((data, data)))


def test_says_which_file_and_where(tmp_path: Path) -> None:
    path = make_run(tmp_path, EXAMPLE).path
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    run = run_over(path, np.frombuffer(bytes(data), np.uint8))
    with pytest.raises(CorruptFile, match="chunk 0 fails its checksum") as caught:
        run.entries()
    assert (path, 64) == (caught.value.path, caught.value.position)
    for version in (1, 3):
        data[8] = version
        with pytest.raises(CorruptFile, match=f"version {version} of runs is not known here"):
            run_over(path, np.frombuffer(bytes(data), np.uint8))


def forged(run: Run, chunk: bytes, codec: int) -> Run:
    """A run of one chunk with other bytes in it, and every checksum made right."""
    data = np.frombuffer(run.path.read_bytes(), np.uint8)
    coverage, directory, bitmap, _ = parse(run.path, data)
    row = [int(column[0]) for column in vars_of(directory)]
    parts, at = [HEADER], len(HEADER)
    places = []
    for part in (chunk, data[bitmap.position : bitmap.position + bitmap.size].tobytes()):
        places.append(FilePart(at, len(part), crc32c.crc32c(part)))
        parts.append(part + bytes(-len(part) % ALIGNMENT))
        at += len(parts[-1])
    row[6:] = [places[0].position, places[0].size, codec, places[0].crc32c]
    stored = encode_directory([tuple(row)])
    footer = encode_footer(coverage, run.count, run.records, places[1], stored, at)
    parts += [stored + bytes(-len(stored) % ALIGNMENT), footer]
    return run_over(run.path, np.frombuffer(b"".join(parts), np.uint8))


def vars_of(directory: Directory) -> list[np.ndarray]:
    return [getattr(directory, name) for name in directory.__slots__]


def test_a_forged_chunk_is_corrupt_whatever_is_in_it(tmp_path: Path) -> None:
    rows = [(number * 7 % 5, number, number * 100, 1) for number in range(20)]
    run = make_run(tmp_path, rows)
    chunk = bytearray(run.path.read_bytes()[64 : 64 + int(run.directory.size[0])])
    assert rows_of(run.entries()) == rows_of(forged(run, bytes(chunk), CODEC_PACKED).entries())
    wide = chunk[:]
    wide[44] = 33
    later = chunk[:]
    later[0] ^= 1
    raw = np.zeros(20 * 20, np.uint8).tobytes()
    for bad, codec, reason in (
        (b"short", CODEC_PACKED, "another size"),
        (bytes(wide), CODEC_PACKED, "another size"),
        (bytes(chunk) + b"x", CODEC_PACKED, "another size"),
        (bytes(later), CODEC_PACKED, "other keys"),
        (raw, CODEC_RAW, "other keys"),
    ):
        with pytest.raises(CorruptFile, match=reason):
            forged(run, bad, codec).cursor(Key(2, 4)).records_passed()
    for bad, codec in ((raw + b"x", CODEC_RAW), (raw, 2), (b"", CODEC_PACKED)):
        with pytest.raises(CorruptFile):
            forged(run, bad, codec)


@pytest.mark.parametrize("column", [4, 5], ids=["entries", "records"])
@pytest.mark.parametrize("counted", [-1, -(2**63), 0, 2**63 - 1])
def test_a_directory_that_counts_wrongly(tmp_path: Path, column: int, counted: int) -> None:
    """Also where the difference of two counts is beyond int64."""
    run = make_run(tmp_path, [(number, number, number, 1) for number in range(9)], max_entries=2)
    data = bytearray(run.path.read_bytes())
    [position] = struct.unpack_from("<q", data, len(data) - 128 + 72)
    struct.pack_into("<q", data, position + 8 * (column * run.chunks + 1), counted)
    mend_run(data)
    with pytest.raises(CorruptFile, match="counts wrongly"):
        run_over(run.path, np.frombuffer(bytes(data), np.uint8))


def test_raw_columns_are_not_copied_and_are_aligned(tmp_path: Path) -> None:
    run = make_run(tmp_path, [(number, number, number, 1) for number in range(9)], max_entries=2)
    for chunk in range(run.chunks):
        deliver_after, details = run.columns(chunk)
        assert not deliver_after.flags.owndata
        assert deliver_after.flags.aligned
        assert details.flags.aligned
        assert not details.flags.writeable


def test_contains_loads_no_chunk(tmp_path: Path) -> None:
    rows: list[Row] = [(5, 10, 0, 3), (3, 20, 90, 1), (4, 2**32 + 9, 180, 1)]
    run = make_run(tmp_path, rows)
    data = bytearray(run.path.read_bytes())
    data[64] ^= 1
    rotten = run_over(run.path, np.frombuffer(data, np.uint8))
    assert [10, 11, 12, 20] == [offset for offset in range(30) if rotten.contains(offset)]
    assert rotten.contains(2**32 + 9)
    assert not rotten.contains(2**33)
    data[128] ^= 1
    with pytest.raises(CorruptFile, match="the bitmap fails its checksum"):
        run_over(run.path, np.frombuffer(data, np.uint8)).contains(10)
