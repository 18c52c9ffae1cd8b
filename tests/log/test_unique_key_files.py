"""The files of unique keys: made at checkpoints and rolls, merged, made anew where they are not as they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import StorageFull
from afterlog.base.files import read_file
from afterlog.base.names import CHECKPOINTS, LOG, UNIQUE_KEYS, is_unique_key_file, segment_file
from afterlog.index.unique_key_file import UniqueKeyFile, decoded
from afterlog.log import unique_key_files, unique_key_scan
from afterlog.log.checkpoints import CheckpointFile, UniqueKeysMark
from afterlog.offline.locked_store import OfflineStore
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, Calls, HeldFiles, killed, open_small, restored

pytestmark = pytest.mark.usefixtures("quiet")
FOLDER = PATH / "t-0"


class Keyed:
    """A partition with unique keys `k0`, `k1` … due in an hour and later."""

    def __init__(self, disk: SimulatedFiles | None = None, **settings: Any) -> None:
        self.calls = Calls()
        self.disk = disk or SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.files = HeldFiles(self.disk, self.calls)
        self.store = open_small(self.files, self.clock, **settings)
        self.partition = self.store.create_topic("t").partition(0)
        self.log = self.partition.log

    def send(self, number: int, after_ms: int = 3_600_000, way: Any = "raise") -> int:
        key = b"k%d" % number
        at = NOW_MS + after_ms + number
        return self.store.send("t", b"v", deliver_after=at, unique_key=key, on_conflict=way).offset

    def held(self, numbers: range) -> list[int]:
        return [self.send(number, way="keep") for number in numbers]

    def file(self, *numbers: int, after_ms: int = 3_600_000) -> None:
        """One more file."""
        for number in numbers:
            self.send(number, after_ms)
        self.log.checkpoint()

    @property
    def mark(self) -> UniqueKeysMark:
        mark = self.log.checkpoints.current.unique_keys
        assert mark is not None
        return mark

    def names(self) -> list[str]:
        return [name for name in self.disk.names(FOLDER) if is_unique_key_file(name)]

    def rows(self) -> list[int]:
        return [file.rows for file in self.mark.files]

    def again(self, disk: SimulatedFiles | None = None) -> Keyed:
        return Keyed(disk or killed(self.disk))


@pytest.fixture
def keyed() -> Iterator[Keyed]:
    keyed = Keyed()
    yield keyed
    keyed.store.check()
    keyed.store.close()


class TestSaved:
    def test_at_a_checkpoint_and_a_roll(self, keyed: Keyed) -> None:
        keyed.file(0, 1)
        keyed.send(2)
        keyed.log.roll()
        assert ([2, 1], 3) == (keyed.rows(), keyed.mark.upto)
        assert 2 == len(keyed.names())
        assert 0 == keyed.log.version.unique_keys.recent.count  # type: ignore[union-attr]
        again = keyed.again()
        with patch.object(unique_key_scan, "rows_of_log", side_effect=AssertionError("made anew")):
            assert [0, 1, 2] == again.again().held(range(3))

    def test_what_is_not_pending_is_left_out(self, keyed: Keyed) -> None:
        keyed.send(0, 5)
        keyed.store.cancel_many("t", 0, np.array([keyed.send(1)]))
        keyed.clock.advance(10)
        keyed.file(2)
        assert [1] == keyed.rows()
        assert [3] == decoded(np.frombuffer(read_file(keyed.disk, FOLDER / keyed.names()[0]), np.uint8))[
            1
        ].offset.tolist()

    def test_a_file_goes_when_all_of_it_is_due(self, keyed: Keyed) -> None:
        keyed.file(0, 1, after_ms=50)
        before = keyed.names()
        keyed.clock.advance(100)
        keyed.file(2)
        assert before[0] not in keyed.names()
        assert [1] == keyed.rows()
        assert [3, 4] == [keyed.send(0), keyed.send(1)]

    def test_without_rows_there_is_no_file(self, keyed: Keyed) -> None:
        keyed.file(0)
        keyed.store.send("t", b"plain", delay=9)
        keyed.log.checkpoint()
        assert ([1], 2) == (keyed.rows(), keyed.mark.upto)

    def test_what_retention_has_passed_holds_nothing(self) -> None:
        """What was cancelled of it is not known any more; nothing was appended since it fell due."""
        keyed = Keyed()
        keyed.store.create_topic("kept", retention_ms=0)
        partition = keyed.store.topic("kept").partition(0)
        for after_ms, way in ((15, "raise"), (18, "replace")):
            keyed.store.send("kept", b"v", deliver_after=NOW_MS + after_ms, unique_key=b"k", on_conflict=way)  # type: ignore[arg-type]
        keyed.store.send("kept", b"far", delay=3_600)
        partition.log.roll()
        keyed.store.send("kept", b"soon", deliver_after=NOW_MS + 30)
        partition.log.roll()
        keyed.clock.advance(100)
        partition.high_watermark()
        assert 1 == keyed.store.enforce_retention()
        keyed.store.check()
        keyed.store.close()

    def test_while_appends_go_on(self, keyed: Keyed) -> None:
        """What comes between the steps of a checkpoint stays in memory."""
        keyed.send(0)
        point = keyed.log._maintenance.recovery_point
        moment = point.begin()
        assert moment is not None
        keyed.send(1)
        keyed.store.sync()
        stored = point.store(moment)
        assert [0, 1] == keyed.held(range(2))
        keyed.send(2)
        assert stored is not None
        point.finish(stored)
        assert [1] == keyed.rows()
        assert [0, 1, 2] == keyed.held(range(3))

    def test_no_room(self, keyed: Keyed) -> None:
        keyed.send(0)
        keyed.calls.fail("append", f"{UNIQUE_KEYS}.tmp", StorageFull("no room", path=FOLDER))
        with pytest.raises(StorageFull):
            keyed.log.checkpoint()
        assert [] == keyed.names()
        assert [0] == keyed.held(range(1))
        keyed.log.checkpoint()
        assert [1] == keyed.rows()


class TestMerged:
    def test_small_ones_become_one(self, keyed: Keyed) -> None:
        for number in range(6):
            keyed.file(number)
        assert keyed.log.crowded
        keyed.store.cancel_many("t", 0, np.array([3]))
        assert keyed.log.merge_buckets()
        assert ([5], 1) == (keyed.rows(), len(keyed.names()))
        assert [0, 1, 2, 7, 4, 5] == keyed.held(range(6)), "of k3 a new one"
        assert [0, 1, 2, 7, 4, 5] == keyed.again().held(range(6))

    def test_nothing_is_left_of_what_is_due(self, keyed: Keyed) -> None:
        for number in range(3):
            keyed.file(number, after_ms=50)
        keyed.clock.advance(1_000)
        keyed.store.send("t", b"a stamp")
        keyed.log.checkpoint()
        keyed.log.merge_buckets()
        assert ([], []) == (keyed.rows(), keyed.names())

    def test_a_leftover_of_a_merge_goes(self, keyed: Keyed) -> None:
        keyed.file(0)
        path = FOLDER / "00000000000000000000-00000000000000000009.uniquekeys"
        keyed.disk.create(path).close()
        again = keyed.again()
        assert path.name not in again.names()
        assert [0] == again.held(range(1))


class TestMadeAnew:
    def filled(self, keyed: Keyed) -> list[int]:
        keyed.file(0, 1, 2, 3)
        keyed.log.roll()
        keyed.file(4, 5)
        keyed.send(6)
        return keyed.held(range(7))

    @pytest.mark.parametrize("which", [0, 1])
    @pytest.mark.parametrize("damage", ["gone", "rotten", "short", "another"])
    def test_a_file_that_is_not_as_it_was(self, keyed: Keyed, which: int, damage: str) -> None:
        expected = self.filled(keyed)
        disk, names = killed(keyed.disk), keyed.names()
        path = FOLDER / names[which]
        data = bytearray(read_file(disk, path))
        disk.unlink(path)
        if damage != "gone":
            data[50] ^= damage == "rotten"
            content = data[:-9] if damage == "short" else data
            if damage == "another":
                content = bytearray(read_file(disk, FOLDER / names[1 - which]))
            file = disk.create(path)
            file.append([bytes(content)])
            file.sync()
        again = keyed.again(disk)
        assert expected == again.held(range(7))
        again.store.check()
        later = again.again()
        with patch.object(unique_key_scan, "rows_of_log", side_effect=AssertionError("made anew twice")):
            assert expected == later.held(range(7))

    def test_all_of_them(self, keyed: Keyed) -> None:
        expected = self.filled(keyed)
        disk = killed(keyed.disk)
        for name in keyed.names():
            disk.unlink(FOLDER / name)
        assert expected == keyed.again(disk).held(range(7))

    def test_a_merge_mends_what_it_reads(self, keyed: Keyed) -> None:
        for number in range(4):
            keyed.file(number)
        again = keyed.again()
        path = FOLDER / again.names()[1]
        data = bytearray(read_file(again.disk, path))
        again.disk.unlink(path)
        file = again.disk.create(path)
        file.append([bytes(data[:-1]) + b"x"])
        again.log.merge_buckets()
        assert [0, 1, 2, 3] == again.held(range(4))
        assert 1 == len(again.names())

    def test_of_checkpoints_that_say_more_than_the_log(self, keyed: Keyed) -> None:
        expected = self.filled(keyed)
        disk = killed(keyed.disk)
        checkpoints = CheckpointFile.open(disk, FOLDER / CHECKPOINTS)
        mark = checkpoints.current.unique_keys
        assert mark is not None
        checkpoints.update(unique_keys=replace(mark, upto=1_000))
        assert expected == keyed.again(disk).held(range(7))


class TestOffline:
    def test_verify_and_repair(self, keyed: Keyed) -> None:
        keyed.file(0, 1)
        keyed.send(2)
        disk = killed(keyed.disk)
        with OfflineStore(PATH, disk, keyed.clock) as store:
            assert [] == [*store.verify()]
        path = FOLDER / keyed.names()[0]
        disk.unlink(path)
        with OfflineStore(PATH, disk, keyed.clock) as store:
            [finding] = store.verify()
            assert (path, "the file is gone") == (finding.path, finding.message)
        assert [0, 1, 2] == keyed.again(disk).held(range(3))

    def test_repair_of_lost_checkpoints_finds_them_in_the_logs(self, keyed: Keyed) -> None:
        keyed.file(0, 1)
        keyed.log.roll()
        keyed.send(2)
        disk = killed(keyed.disk)
        disk.unlink(FOLDER / CHECKPOINTS)
        with OfflineStore(PATH, disk, keyed.clock) as store:
            store.apply(store.plan())
        again = keyed.again(disk)
        assert [0, 1, 2] == again.held(range(3))
        again.store.check()

    def test_repair_that_cuts_has_them_read_anew(self, keyed: Keyed) -> None:
        keyed.file(0, 1, 2)
        disk = killed(keyed.disk)
        path = FOLDER / segment_file(0, LOG)
        data = bytearray(read_file(disk, path))
        data[-3] ^= 1
        disk.unlink(path)
        disk.create(path).append([bytes(data)])
        with OfflineStore(PATH, disk, keyed.clock) as store:
            store.apply(store.plan())
        again = keyed.again(disk)
        assert [0, 1] == again.held(range(2))
        assert 3 == again.send(2), "its record is lost"
        again.store.check()

    def test_a_backup_has_them(self, keyed: Keyed) -> None:
        keyed.file(0, 1)
        keyed.send(2)
        made = keyed.store.backup("/backups")
        again = keyed.again(restored(keyed.disk, made))
        with patch.object(unique_key_files, "made_anew", side_effect=AssertionError("made anew")):
            assert [0, 1, 2] == again.held(range(3))


def test_what_the_disk_does_not_give_is_no_row(keyed: Keyed) -> None:
    keyed.file(0)
    again = keyed.again()
    with patch.object(UniqueKeyFile, "rows", side_effect=RuntimeError("looked into")):
        again.store.close()  # nobody looks into a file that nobody asks
