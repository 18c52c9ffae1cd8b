"""A segment as a Kafka broker writes it, read by us. The batches are those of another encoder (kafka-python)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from afterlog.base.files import OsFiles
from afterlog.log import kafka_segment, scan
from afterlog.log.kafka_segment import read_segment
from afterlog.log.scan import Intact
from afterlog.records.columns import BODY_CRC, FAULTS, LENGTH, MAGIC, OFFSET, SHORT
from afterlog.records.header import HEADER_BYTES, BatchHeader, with_crc
from tests.log.kafka_log import CODECS, batch, compacted, some_segment, stamped
from tests.support import NOW_MS, flipped

VALUE = [(NOW_MS, b"value", [])]
LIMIT = 1 << 20


def read(tmp_path: Path, log: bytes, base_offset: int = 0, limit_bytes: int = LIMIT) -> Intact:
    path = tmp_path / f"{base_offset:020d}.log"
    path.write_bytes(log)
    return read_segment(OsFiles(), path, base_offset, limit_bytes=limit_bytes)


@pytest.mark.parametrize("step", [scan.STEP_ENTRIES, 1, 2])
@pytest.mark.parametrize("bytes_of_step", [kafka_segment._STEP_BYTES, 1, 300])
def test_every_codec_and_every_way_to_say_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, bytes_of_step: int
) -> None:
    monkeypatch.setattr(scan, "STEP_ENTRIES", step)
    monkeypatch.setattr(kafka_segment, "_STEP_BYTES", bytes_of_step)
    segment = some_segment(1, 1_000, batches=12)
    read_bytes: list[int] = []
    (tmp_path / "a.log").write_bytes(segment.log)
    found = read_segment(OsFiles(), tmp_path / "a.log", 1_000, limit_bytes=LIMIT, advance=read_bytes.append)
    assert segment.entries == [tuple(entry) for entry in found.entries]
    assert ("", segment.size, segment.size, segment.end_offset) == (
        found.fault, found.stop, found.size, found.end_offset,
    )  # fmt: skip
    assert segment.size == sum(read_bytes)


def test_an_empty_one(tmp_path: Path) -> None:
    found = read(tmp_path, b"", 7)
    assert (0, "", 0, 7) == (len(found.entries), found.fault, found.stop, found.end_offset)


def test_whole_batches_that_compaction_took(tmp_path: Path) -> None:
    found = read(tmp_path, batch(0, VALUE * 2, 5) + batch(1, VALUE, 40, epoch=9) + batch(0, VALUE, 41), 2)
    assert ("", 42, [5, 40, 41], [2, 1, 1]) == (
        found.fault, found.end_offset, found.entries.offset.tolist(), found.entries.records.tolist(),
    )  # fmt: skip


@pytest.mark.parametrize("first", [4, 5])
def test_offsets_that_fall(tmp_path: Path, first: int) -> None:
    log = batch(0, VALUE * 2, 5) + batch(0, VALUE, first)
    found = read(tmp_path, log, 5)
    assert (FAULTS[OFFSET], [5], len(log) - len(batch(0, VALUE))) == (
        found.fault, found.entries.offset.tolist(), found.stop,
    )  # fmt: skip
    assert FAULTS[OFFSET] == read(tmp_path, batch(0, VALUE, 5), 6).fault


@pytest.mark.parametrize("codec", CODECS)
def test_single_records_that_compaction_took(tmp_path: Path, codec: int) -> None:
    asked = [[("deliver-after", b"%d" % (NOW_MS + ms))] for ms in (50, 90, 10)]
    parts = [
        batch(codec, VALUE, 5),
        compacted(codec, [(1, NOW_MS, b"a", asked[0]), (4, NOW_MS, b"b", asked[1]), (6, NOW_MS, b"c", asked[2])], 9, 6),
        compacted(codec, [], 3, 16),
        compacted(codec, [(0, NOW_MS, b"d", [])], 1, 30),
        batch(codec, VALUE * 2, 32),
    ]
    found = read(tmp_path, b"".join(parts), 5)
    assert ("", 34, sum(map(len, parts))) == (found.fault, found.end_offset, found.stop)
    assert ([5, 6, 16, 30, 32], [1, 10, 4, 2, 2]) == (found.entries.offset.tolist(), found.entries.records.tolist())
    assert [0, NOW_MS + 90, 0, 0, 0] == found.entries.deliver_after.tolist()
    assert [sum(map(len, parts[:row])) for row in range(5)] == found.entries.position.tolist()


@pytest.mark.parametrize("position", [20, 30, 62])
def test_a_compacted_batch_that_rotted(tmp_path: Path, position: int) -> None:
    good, left = batch(0, VALUE), compacted(0, [(1, NOW_MS, b"a", [])], 3, 1)
    found = read(tmp_path, good + flipped(left, position) + batch(0, VALUE, 5))
    assert (FAULTS[LENGTH], len(good)) == (found.fault, found.stop)


@pytest.mark.parametrize("deltas", [(0, 0), (2, 1), (1, 4)])
def test_a_compacted_batch_of_deltas_that_cannot_be(tmp_path: Path, deltas: tuple[int, int]) -> None:
    found = read(tmp_path, compacted(0, [(delta, NOW_MS, b"a", []) for delta in deltas], 3))
    assert (0, 0) == (len(found.entries), found.stop)
    assert "offset delta" in found.fault


def test_offsets_that_fall_into_a_compacted_batch(tmp_path: Path) -> None:
    left = compacted(0, [(0, NOW_MS, b"a", [])], 3, 10)
    assert FAULTS[OFFSET] == read(tmp_path, left + batch(0, VALUE, 13), 10).fault
    assert FAULTS[OFFSET] == read(tmp_path, left, 11).fault


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_cannot_be_decoded_is_found(tmp_path: Path, codec: int) -> None:
    good, bad = batch(codec, VALUE * 3), batch(codec, [(NOW_MS, b"v" * 50, [])], 3)
    bad = with_crc(BatchHeader.read(memoryview(bad), 0), b"\xff" * (len(bad) - HEADER_BYTES))
    found = read(tmp_path, good + stamped(bad, 3) + batch(codec, VALUE, 4))
    assert (len(good), 1, 3) == (found.stop, len(found.entries), found.end_offset)
    assert ("varint" if codec == 0 else "malformed") in found.fault


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("named", [b"soon", b"", b"9" * 20, b"\xff" * 8, None])
def test_a_header_that_names_no_time_asks_for_nothing(tmp_path: Path, codec: int, named: bytes | None) -> None:
    """It is a broker's log: nobody refused it when it was produced."""
    wrong, right = [("deliver-after", named)], [("deliver-after", b"%d" % (NOW_MS + 7))]
    parts = [
        batch(codec, [(NOW_MS, b"a", wrong)]),
        batch(codec, [(NOW_MS, b"b", wrong), (NOW_MS, b"c", right)], 1),
        compacted(codec, [(1, NOW_MS, b"d", wrong)], 2, 3),
    ]
    found = read(tmp_path, b"".join(parts))
    assert ("", [0, NOW_MS + 7, 0], 6) == (found.fault, found.entries.deliver_after.tolist(), found.end_offset)


@pytest.mark.parametrize("zeros", [12, 16, 61, 10_000])
@pytest.mark.parametrize("step", [scan.STEP_ENTRIES, 1])
def test_one_that_was_made_longer_than_it_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zeros: int, step: int
) -> None:
    """`log.preallocate=true`; values may end in zeros, too."""
    monkeypatch.setattr(scan, "STEP_ENTRIES", step)
    log = batch(0, VALUE) + batch(0, [(NOW_MS, b"\0" * 50, [])], 1)
    found = read(tmp_path, log + b"\0" * zeros)
    assert ("", [0, 1], 2) == (found.fault, found.entries.offset.tolist(), found.end_offset)
    torn = read(tmp_path, log + b"\0" * zeros + b"\1")
    assert (len(log), True) == (torn.stop, torn.fault != "")


def test_what_cannot_be_decompressed(tmp_path: Path) -> None:
    good, large = batch(4, VALUE), batch(4, [(NOW_MS, b"v" * 5_000, [])], 1)
    found = read(tmp_path, good + large, limit_bytes=1_000)
    assert (len(good), True) == (found.stop, "more than 1000 bytes" in found.fault)
    header = BatchHeader.read(memoryview(good), 0)
    unknown = with_crc(header._replace(attributes=5, length=49 + 3), b"abc")
    assert "codec 5" in read(tmp_path, good + stamped(unknown, 1)).fault


def test_rot(tmp_path: Path) -> None:
    log = batch(0, VALUE) + batch(0, VALUE * 3, 1, epoch=4)
    second = len(batch(0, VALUE))
    for position, fault in ((second + 16, MAGIC), (second + 60, LENGTH), (len(log) - 1, BODY_CRC)):
        found = read(tmp_path, flipped(log, position))
        assert (FAULTS[fault], second) == (found.fault, found.stop)
    for end in range(second + 1, len(log)):
        assert (FAULTS[SHORT], second) == (read(tmp_path, log[:end]).fault, read(tmp_path, log[:end]).stop)
    assert "" == read(tmp_path, log[:second]).fault


def test_control_batches_are_due_at_once(tmp_path: Path) -> None:
    marker = batch(0, [(NOW_MS, b"\0\0\0\0\0\5", [])], 1)
    header = BatchHeader.read(memoryview(marker), 0)
    marker = with_crc(header._replace(attributes=0x30), marker[61:])
    found = read(tmp_path, batch(2, VALUE) + marker)
    assert ("", [0, 0], [0, 1]) == (found.fault, found.entries.deliver_after.tolist(), found.entries.offset.tolist())


def test_timestamps(tmp_path: Path) -> None:
    found = read(tmp_path, batch(0, [(5, b"", []), (9, b"", []), (7, b"", [])]) + batch(1, [(3, b"", [])], 3))
    assert np.array_equal([9, 3], found.max_timestamp)
    assert struct.pack(">q", 0) == batch(0, VALUE)[:8]
