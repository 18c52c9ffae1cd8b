from __future__ import annotations

import contextlib
import errno
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from afterlog.base import document
from afterlog.base.errors import CorruptFile, StorageFull
from afterlog.log.checkpoints import (
    BEFORE_ALL,
    FORMAT,
    VERSION,
    ActiveMark,
    CheckpointFile,
    Checkpoints,
    FrontierLease,
    LogStart,
    Recovery,
    RemoteMark,
    SealedMark,
)
from afterlog.log.facts import NO_FILE, FileMark
from tests.campaigns import strikes
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import Background, Calls, content, flipped, power_cut, with_file

FOLDER = Path("/mail-0")
PATH = FOLDER / "checkpoints"
FULL = Checkpoints(
    recovery=Recovery(segment=40, position=8_120, offset=57, stamp_ms=1_699_999_999_990),
    active=ActiveMark(
        base_offset=40, index=FileMark(16, 305_419_896), time_index=FileMark(24, 2_596_069_104), latest=(7, 39)
    ),
    frontier=FrontierLease(used_ms=1_700_000_000_000, lease_ms=1_700_000_001_000),
    log_start=LogStart(delivery_offset=3, deliver_after=9, offset=2),
    removed_records=3,
    topic_id="0123456789abcdef0123456789abcdef",
    sealed=(
        SealedMark(
            base_offset=10, end_offset=40, log_bytes=999, max_deliver_after=2**62, max_timestamp=-1, index=NO_FILE,
            time_index=FileMark(12, 5),
        ),
    ),
)  # fmt: skip


@pytest.fixture
def files() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder(Path("/"))
    return files


def test_what_is_written_is_read(files: SimulatedFiles) -> None:
    assert FULL == CheckpointFile.create(files, PATH, FULL).current
    assert FULL == CheckpointFile.open(files, PATH).current
    assert FULL == CheckpointFile.open(power_cut(files), PATH).current


def test_a_new_log() -> None:
    new = Checkpoints.of_new_log(40)
    assert Recovery(segment=40, position=0, offset=40) == new.recovery
    assert ActiveMark(base_offset=40) == new.active
    assert BEFORE_ALL == new.log_start.key < (0, 0)


def test_update_replaces_fields_durably(files: SimulatedFiles) -> None:
    file = CheckpointFile.create(files, PATH, FULL)
    file.update(frontier=FrontierLease(used_ms=5, lease_ms=6), sealed=())
    expected = replace(FULL, frontier=FrontierLease(used_ms=5, lease_ms=6), sealed=())
    assert expected == file.current == CheckpointFile.open(power_cut(files), PATH).current


class TestSealedRows:
    """Each is encoded once; what is written is what would be without that."""

    def test_they_are_as_they_are(self, files: SimulatedFiles) -> None:
        rows = [replace(FULL.sealed[0], base_offset=10 * number, end_offset=10 * number + 10) for number in range(6)]
        file = CheckpointFile.create(files, PATH, replace(FULL, sealed=()))
        moved = replace(rows[2], remote=RemoteMark(attempt="a" * 32))
        for sealed in (rows[:1], rows[:4], rows[:4], [*rows[:2], moved, rows[3]], rows[1:], []):
            file.update(sealed=tuple(sealed))
            file.move_frontier(file.current.frontier.used_ms + 1, file.current.frontier.lease_ms + 1)
            assert file.current == CheckpointFile.open(files, PATH).current
            anew = CheckpointFile.create(files, FOLDER / "anew", file.current)
            assert content(files, PATH) == content(files, FOLDER / "anew")
            assert tuple(sealed) == anew.current.sealed

    @pytest.mark.parametrize("rolls", [True, False])
    def test_whatever_strikes(self, rolls: bool) -> None:
        """An update that an exception interrupted anywhere, and what a log does then: it goes by the file again."""
        rows = tuple(replace(FULL.sealed[0], base_offset=number, end_offset=number + 1) for number in range(3))
        changed = rows if rolls else rows[1:2]

        def begun() -> CheckpointFile:
            files = SimulatedFiles()
            files.make_folder(FOLDER)
            return CheckpointFile.create(files, PATH, replace(FULL, sealed=rows[:2]))

        whole = begun()
        for place in strikes.places(lambda: whole.update(sealed=changed)):
            file = begun()
            with contextlib.suppress(KeyboardInterrupt), strikes.strike(place, KeyboardInterrupt):
                file.update(sealed=changed)
            file.reload()
            file.update(sealed=rows)
            file.move_frontier(1_800_000_000_000, 1_800_000_001_000)
            assert rows == file.current.sealed == CheckpointFile.open(file._files, PATH).current.sealed

    def test_once(self, files: SimulatedFiles) -> None:
        rows = [replace(FULL.sealed[0], base_offset=number, end_offset=number + 1) for number in range(300)]
        file = CheckpointFile.create(files, PATH, replace(FULL, sealed=tuple(rows[:-1])))
        with patch.object(document, "json_text", wraps=document.json_text) as encoded:
            file.move_frontier(1_800_000_000_000, 1_800_000_001_000)
            of_a_frontier = encoded.call_count
            file.update(sealed=tuple(rows))
            assert of_a_frontier + 1 == encoded.call_count - of_a_frontier < 20


def test_an_update_that_changes_nothing_writes_nothing(files: SimulatedFiles) -> None:
    file = CheckpointFile.create(files, PATH, FULL)
    before = len(files.operations)
    file.update(recovery=FULL.recovery)
    assert before == len(files.operations)


def test_a_failed_update_changes_nothing(files: SimulatedFiles) -> None:
    calls = Calls()
    file = CheckpointFile.create(FailingFiles(files, calls), PATH, FULL)
    calls.fail("append", ".tmp", OSError(errno.ENOSPC, "full"))
    with pytest.raises(StorageFull):
        file.update(removed_records=9)
    assert FULL == file.current == CheckpointFile.open(files, PATH).current
    file.update(removed_records=9)
    assert 9 == CheckpointFile.open(files, PATH).current.removed_records


def test_updates_from_threads_lose_nothing(files: SimulatedFiles) -> None:
    file = CheckpointFile.create(files, PATH, FULL)

    def update(name: str, values: list[object]) -> None:
        for value in values:
            file.update(**{name: value})

    leases: list[object] = [FrontierLease(used_ms=ms, lease_ms=ms) for ms in range(50)]
    threads = [
        Background(lambda: update("frontier", leases)),
        Background(lambda: update("removed_records", list(range(50)))),
    ]
    for thread in threads:
        thread.answer()
    assert (leases[-1], 49) == (file.current.frontier, file.current.removed_records)
    assert file.current == CheckpointFile.open(files, PATH).current


def test_missing(files: SimulatedFiles) -> None:
    with pytest.raises(CorruptFile, match="gone"):
        CheckpointFile.open(files, PATH)


def test_of_another_partition(files: SimulatedFiles) -> None:
    CheckpointFile.create(files, PATH, FULL)
    other = Path("/other")
    files.make_folder(other)
    files.create(other / "checkpoints").append([content(files, PATH)])
    with pytest.raises(CorruptFile, match="mail-0"):
        CheckpointFile.open(files, other / "checkpoints")


def test_every_rotten_byte_is_seen(files: SimulatedFiles) -> None:
    CheckpointFile.create(files, PATH, FULL)
    data = content(files, PATH)
    for position in range(len(data)):
        with pytest.raises(CorruptFile):
            CheckpointFile.open(with_file(files, PATH, flipped(data, position)), PATH)


@pytest.mark.parametrize(
    "harm",
    [
        {"recovery": None},
        {"recovery": {"segment": 0}},
        {"active": []},
        {"active": {"base_offset": 0, "index": [1]}},
        {"active": {"base_offset": 0, "unknown": 1}},
        {"frontier": {"used_ms": 1, "more": 2}},
        {"log_start": 7},
        {"removed_records": "many"},
        {"sealed": [{}]},
        {"sealed": 1},
        {"removed_records": float("inf")},
        {"recovery": {"segment": 0, "position": "8120", "offset": 40, "stamp_ms": 1}},
        {"frontier": {"used_ms": 1.5, "lease_ms": 2}},
        {"log_start": {"delivery_offset": True, "deliver_after": -1, "offset": -1}},
        {"active": {"base_offset": 0, "index": 16, "time_index": [0, 0], "latest": [-1, -1]}},
        {"active": {"base_offset": 0, "index": [float("inf"), 1], "time_index": [0, 0], "latest": [-1, -1]}},
        {"active": {"base_offset": 0, "index": [0, 0], "time_index": [0, 0], "latest": [-1.0, float("inf")]}},
    ],
)
def test_an_intact_document_of_something_else(files: SimulatedFiles, harm: dict[str, object]) -> None:
    CheckpointFile.create(files, PATH, FULL)
    body = document.read(files, PATH, FORMAT, VERSION)
    document.write(files, PATH, FORMAT, VERSION, body | harm)
    with pytest.raises(CorruptFile, match="something unknown"):
        CheckpointFile.open(files, PATH)
    document.write(files, PATH, FORMAT, VERSION, {name: body[name] for name in body if name not in harm})
    with pytest.raises(CorruptFile, match="something unknown"):
        CheckpointFile.open(files, PATH)


def test_the_frontier_moves_on_and_never_back() -> None:
    """Whoever moves it may have looked before another one did."""
    disk = SimulatedFiles()
    disk.make_folder(FOLDER)
    checkpoints = CheckpointFile.create(disk, PATH, FULL)
    used_ms, lease_ms = FULL.frontier.used_ms, FULL.frontier.lease_ms
    checkpoints.move_frontier(used_ms + 5, lease_ms - 9, removed_records=7)
    assert (FrontierLease(used_ms=used_ms + 5, lease_ms=lease_ms), 7) == (
        checkpoints.current.frontier, checkpoints.current.removed_records,
    )  # fmt: skip
    checkpoints.move_frontier(used_ms, lease_ms + 1)
    assert FrontierLease(used_ms=used_ms + 5, lease_ms=lease_ms + 1) == checkpoints.current.frontier
    assert checkpoints.current == CheckpointFile.open(disk, PATH).current
    written = len(disk.operations)
    checkpoints.move_frontier(0, 0)
    assert written == len(disk.operations)
