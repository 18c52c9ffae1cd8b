"""What becomes of the batches of transactions: which marker decides, and where it is looked for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from afterlog.base.errors import CorruptFile
from afterlog.base.files import OsFiles
from afterlog.base.names import LOG, segment_file
from afterlog.log import scan
from afterlog.log.kafka_segment import read_segment
from afterlog.log.kafka_transactions import Fate, later_logs
from afterlog.records.columns import FAULTS, SHORT
from afterlog.records.header import CONTROL, BatchHeader, with_crc
from tests.log.kafka_log import batch, compacted, marker, transactional
from tests.support import NOW_MS

ROW = [(NOW_MS, b"v", [])]
SHOWN, ABORTED, UNCOMMITTED = Fate.SHOWN, Fate.ABORTED, Fate.UNCOMMITTED


def written(folder: Path, *logs: tuple[int, list[bytes]]) -> Path:
    """Segments in a folder; the path of the first."""
    for base, batches in logs:
        (folder / segment_file(base, LOG)).write_bytes(b"".join(batches))
    return folder / segment_file(logs[0][0], LOG)


def fates(path: Path, base_offset: int = 0) -> list[int]:
    files = OsFiles()
    following = later_logs(files, path, base_offset)
    found = read_segment(files, path, base_offset, limit_bytes=1 << 20, following=following)
    assert [entry.offset for entry, fate in zip(found.entries, found.fates, strict=True) if not fate] == (
        found.shown.offset.tolist()
    )
    return list(found.fates)


@pytest.mark.parametrize("step", [scan.STEP_ENTRIES, 1, 2])
def test_the_first_marker_of_its_producer_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(scan, "STEP_ENTRIES", step)
    path = written(
        tmp_path,
        (
            0,
            [
                transactional(ROW, 1, 0), transactional(ROW * 2, 2, 1), batch(2, ROW, 3), transactional(ROW, 1, 4),
                marker(1, commit=False, offset=5), transactional(ROW, 1, 6), marker(2, commit=True, offset=7),
                marker(1, commit=True, offset=8), transactional(ROW, 2, 9),
            ],
        ),
    )  # fmt: skip
    control = Fate.CONTROL
    assert [ABORTED, SHOWN, SHOWN, ABORTED, control, SHOWN, control, control, UNCOMMITTED] == fates(path)


def test_it_may_lie_in_a_later_segment(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        (0, [transactional(ROW, number, number) for number in range(4)]),
        (4, [marker(0, commit=True, offset=4), batch(0, ROW, 5)]),
        (6, [marker(0, commit=False, offset=6), marker(1, commit=False, offset=7), marker(2, commit=True, offset=8)]),
    )
    assert [SHOWN, ABORTED, SHOWN, UNCOMMITTED] == fates(path)


def test_no_more_is_read_than_it_takes(tmp_path: Path) -> None:
    """Of a later segment that is broken the beginning does, where it decides."""
    torn = b"".join([marker(7, commit=True, offset=1), batch(0, ROW, 2)])[:-1]
    path = written(tmp_path, (0, [transactional(ROW, 7, 0)]), (1, [torn]))
    assert [SHOWN] == fates(path)
    path = written(tmp_path, (0, [transactional(ROW, 8, 0)]))
    with pytest.raises(CorruptFile, match=FAULTS[SHORT]) as broken:
        fates(path)
    assert tmp_path / segment_file(1, LOG) == broken.value.path
    with pytest.raises(CorruptFile, match="gone"):
        read_segment(OsFiles(), path, 0, limit_bytes=1 << 20, following=[tmp_path / "nothing"])


def test_control_batches_that_decide_nothing(tmp_path: Path) -> None:
    """A marker that compaction emptied, one of another type, and one that is none: they are control batches all."""
    data = compacted(0, [], 0, 1)
    header = BatchHeader.read(memoryview(data), 0)
    emptied = with_crc(header._replace(attributes=CONTROL | 0x10), b"")
    other = bytearray(marker(7, commit=False, offset=2))
    header = BatchHeader.read(memoryview(other), 0)
    body = bytes(other[61:]).replace(b"\0\0\0\0", b"\0\0\0\5", 1)
    leader = batch(0, ROW, 3)
    plain = BatchHeader.read(memoryview(leader), 0)
    batches = [
        transactional(ROW, 7, 0),
        emptied,
        with_crc(header, body),
        with_crc(plain._replace(attributes=CONTROL), leader[61:]),
    ]
    assert [UNCOMMITTED, *[Fate.CONTROL] * 3] == fates(written(tmp_path, (0, batches)))


@pytest.mark.parametrize("seed", range(20))
def test_against_a_model(tmp_path: Path, seed: int) -> None:
    """A coordinator that ends the transactions of some producers, and what it knows of each."""
    chance = random.Random(seed)
    logs: list[tuple[int, list[bytes]]] = [(0, [])]
    running: dict[int, list[int]] = {}
    expected: dict[int, Fate] = {}
    for offset in range(60):
        if chance.random() < 0.1:
            logs.append((offset, []))
        producer, kind = chance.randrange(4), chance.random()
        if kind < 0.3:
            ended = Fate.SHOWN if chance.random() < 0.5 else Fate.ABORTED
            expected |= dict.fromkeys(running.pop(producer, []), ended) | {offset: Fate.CONTROL}
            logs[-1][1].append(marker(producer, commit=ended == Fate.SHOWN, offset=offset))
        elif kind < 0.8:
            running.setdefault(producer, []).append(offset)
            logs[-1][1].append(transactional(ROW, producer, offset))
        else:
            expected[offset] = Fate.SHOWN
            logs[-1][1].append(batch(0, ROW, offset))
    expected |= {offset: Fate.UNCOMMITTED for offsets in running.values() for offset in offsets}
    logs = [log for log in logs if log[1]]
    written(tmp_path, *logs)
    for base, batches in logs:
        found = fates(tmp_path / segment_file(base, LOG), base)
        assert [expected[base + row] for row in range(len(batches))] == found
