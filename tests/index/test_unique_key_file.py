from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes
from afterlog.index import unique_key_file
from afterlog.index.key_rows import KeyRows
from afterlog.index.unique_key_file import KeyFileMark, UniqueKeyFile, decoded, write_keys
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.index.support import int64

ROWS = KeyRows(int64(-4, 5, 5), int64(8, 2, 7), int64(30, 10, 20))
PATH = Path("/keys")
CANNOT = "shorter|no file|cannot be|checksum|order|negative|header says"


def content(rows: KeyRows = ROWS, first: int = 2, end: int = 9) -> Bytes:
    return np.frombuffer(b"".join(map(bytes, unique_key_file.content(first, end, lambda: [rows]))), np.uint8)


@dataclass
class Stored:
    disk: SimulatedFiles
    mark: KeyFileMark

    def file(self) -> UniqueKeyFile:
        return UniqueKeyFile(self.disk, PATH, self.mark)


@pytest.fixture
def stored() -> Stored:
    disk = SimulatedFiles()
    mark = write_keys(
        disk, PATH, 2, 9, lambda: [ROWS.take(slice(0, 1)), ROWS.take(slice(1, 1)), ROWS.take(slice(1, 3))]
    )
    assert mark is not None
    return Stored(disk, mark)


def test_the_example_of_the_drawing() -> None:
    example = bytes.fromhex(
        "4146554B 0100 0000 0000000000000000 0900000000000000 0100000000000000 6052E6CF8B010000"
        "0500000000000000 0700000000000000 6052E6CF8B010000"
    )
    assert example == content(KeyRows(int64(5), int64(7), int64(1_700_000_060_000)), 0, 9)[:-4].tobytes()


def test_what_is_encoded_is_decoded(stored: Stored) -> None:
    mark, rows = decoded(content())
    assert (2, 9, 3, 30) == mark[:4]
    assert stored.mark == mark
    assert [column.tolist() for column in (ROWS.hashed, ROWS.offset, ROWS.due)] == [
        column.tolist() for column in (rows.hashed, rows.offset, rows.due)
    ]
    file = stored.file()
    assert file.rows() is file.rows()


def test_every_bit_is_seen() -> None:
    for bit in range(8 * len(content())):
        damaged = content().copy()
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=CANNOT):
            decoded(damaged)


def test_every_length_is_seen() -> None:
    for size in range(len(content())):
        with pytest.raises(ValueError, match=CANNOT):
            decoded(content()[:size])


def test_what_its_header_does_not_say() -> None:
    for wrong in (content(first=3), content(end=8), content(KeyRows(*(column[::-1] for column in ROWS)))):
        with pytest.raises(ValueError, match=CANNOT):
            decoded(wrong)


def test_another_file_is_not_the_one_of_the_mark(stored: Stored) -> None:
    write_keys(stored.disk, PATH, 2, 9, lambda: [KeyRows(ROWS.hashed, ROWS.offset, int64(30, 11, 20))])
    with pytest.raises(CorruptFile, match="not the file"):
        stored.file().rows()
    stored.disk.unlink(PATH)
    with pytest.raises(CorruptFile, match="gone"):
        stored.file().rows()


def test_of_no_rows_there_is_no_file() -> None:
    disk = SimulatedFiles()
    assert write_keys(disk, PATH, 2, 9, lambda: [KeyRows.empty()]) is None
    assert not disk.exists(PATH)
