"""The file of producers: what was written is read, whatever else is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import CorruptFile
from afterlog.index import producer_file
from afterlog.index.producer_file import (
    RANGES_MAX,
    RECORDS_MAX,
    ProducerFileMark,
    content,
    decoded,
    mark_of,
    read_producers,
    write_producers,
)
from afterlog.index.producer_states import ProducerStates
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import flipped

FOLDER = Path("/store")
PATH = FOLDER / "producers"
EXAMPLE = bytes.fromhex(
    "41465053 0100 0000 0900000000000000 0100000000000000"
    "0700000000000000 0068E5CF8B010000 02000000 0000 0100 02000000 0300000000000000"
)


def disk() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    return files


def known() -> dict[int, bytes]:
    states = ProducerStates()
    states.appended(7, 0, 0, 2, 3, 1_700_000_000_000)
    return states.copy()


def mended(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", crc32c(data[:-4]))


def test_the_example() -> None:
    data = content(9, known())
    assert EXAMPLE == data[:-4]
    assert (ProducerFileMark(9, 1, crc32c(EXAMPLE)), known()) == decoded(data)
    assert mark_of(data) == decoded(data)[0]


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 3), st.integers(1, 9)), max_size=30))
def test_what_was_written_is_read(sent: list[tuple[int, int, int]]) -> None:
    states, end = ProducerStates(), 0
    for producer_id, gap, records in sent:
        states.appended(producer_id, 0, states.next_sequence(producer_id, 0), records, end + gap, end)
        end += gap + records
    files = disk()
    mark = write_producers(files, PATH, end, states.copy())
    assert (end, len(states)) == mark[:2]
    assert states.copy() == read_producers(files, PATH, mark)


def test_every_bit_and_every_length() -> None:
    data = content(9, known())
    for position in range(len(data)):
        with pytest.raises(ValueError, match=r"version|checksum"):
            decoded(flipped(data, position))
        with pytest.raises(ValueError, match=r"header|checksum"):
            decoded(data[:position])


@pytest.mark.parametrize(
    ("at", "form", "value", "words"),
    [
        (16, "q", 2, "1 rows, and not the 2"),
        (8, "q", 4, "lie behind"),
        (40, "i", -1, "next sequence -1"),
        (44, "h", -1, "epoch -1"),
        (46, "H", 0, "0 ranges"),
        (46, "H", RANGES_MAX + 1, "run past its end"),
        (48, "i", 0, "no records"),
        (48, "i", RECORDS_MAX + 1, "too long"),
        (52, "q", -1, "overlap"),
    ],
)
def test_rows_that_cannot_be(at: int, form: str, value: int, words: str) -> None:
    data = bytearray(content(9, known()))
    struct.pack_into("<" + form, data, at, value)
    with pytest.raises(ValueError, match=words):
        decoded(mended(bytes(data)))


def test_rows_that_do_not_ascend() -> None:
    state = known()[7]
    rows = producer_file.ID.pack(7) + state
    data = producer_file.HEADER.pack(b"AFPS", 1, 0, 9, 2) + rows + rows + bytes(4)
    with pytest.raises(ValueError, match="ascend"):
        decoded(mended(data))


def test_the_file_that_the_checkpoints_name_and_no_other() -> None:
    files = disk()
    mark = write_producers(files, PATH, 9, known())
    with pytest.raises(CorruptFile, match="not the file that the checkpoints name"):
        read_producers(files, PATH, mark._replace(crc=1))
    with pytest.raises(CorruptFile, match="gone"):
        read_producers(files, FOLDER / "other", mark)
