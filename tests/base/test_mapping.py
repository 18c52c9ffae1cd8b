"""A mapping that its disk cannot kill: a file that is cut under it raises the same signal as a sector that is bad."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from afterlog.base import _mapping
from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Bytes, Lost, OsFile, OsFiles, lost, map_file, publish
from afterlog.base.names import DELIVER_AFTER_INDEX, LOG
from afterlog.fetch.partition import Partition
from afterlog.log import segment
from afterlog.offline.locked_store import OfflineStore
from afterlog.store.store import Store, open_store
from tests.support import NOW_MS

PAGE = mmap.PAGESIZE
FILES = OsFiles()


def mapped(path: Path, pages: int) -> Bytes:
    publish(FILES, path, [b"x" * (pages * PAGE)])
    return map_file(FILES, path)


class TestLostPages:
    def test_read_as_zeros_and_are_told(self, tmp_path: Path) -> None:
        data = mapped(tmp_path / "a", 10)
        assert Lost(0, -1) == lost(data)
        os.truncate(tmp_path / "a", 7 * PAGE)
        assert Lost(0, -1) == lost(data), "they are lost when they are touched"
        assert b"\0" == bytes(data[8 * PAGE : 8 * PAGE + 1])
        assert Lost(1, 8 * PAGE) == lost(data) == lost(data[5:][1:])
        assert 7 * PAGE * ord("x") == int(data.sum(dtype=np.int64))
        assert Lost(3, 7 * PAGE) == lost(data)
        assert zlib.crc32(b"x" * 7 * PAGE + bytes(3 * PAGE)) == zlib.crc32(data)
        assert Lost(0, -1) == lost(np.zeros(3, np.uint8))

    def test_of_each_mapping_for_itself(self, tmp_path: Path) -> None:
        one, other = mapped(tmp_path / "a", 2), mapped(tmp_path / "b", 2)
        os.truncate(tmp_path / "a", 0)
        assert 0 == one.max()
        assert (Lost(2, 0), Lost(0, -1)) == (lost(one), lost(other))
        publish(FILES, tmp_path / "a", [b"y" * PAGE])
        assert b"y" * PAGE == map_file(FILES, tmp_path / "a").tobytes()
        assert 0 == one.max()

    def test_behind_a_thousand_the_rest_is_given_up(self, tmp_path: Path) -> None:
        data = mapped(tmp_path / "a", 3_000)
        os.truncate(tmp_path / "a", PAGE)
        assert PAGE * ord("x") == int(data.sum(dtype=np.int64))
        assert Lost(1_024, PAGE) == lost(data)

    def test_rows_are_used_again(self, tmp_path: Path) -> None:
        for _ in range(50):
            kept = [mapped(tmp_path / "a", 3) for _ in range(3)]
            os.truncate(tmp_path / "a", PAGE)
            assert [Lost(0, -1), Lost(0, -1), Lost(2, PAGE)] == [(each.max(), lost(each))[1] for each in kept]
            del kept[1]
        gc.collect()

    def test_in_any_thread(self, tmp_path: Path) -> None:
        data = mapped(tmp_path / "a", 400)
        os.truncate(tmp_path / "a", 0)
        threads = [threading.Thread(target=data[start::8].max) for start in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert 0 == data.max()
        assert 0 == lost(data).first
        assert 400 <= lost(data).pages <= 3_200

    def test_a_system_call_gets_an_error_instead(self, tmp_path: Path) -> None:
        data = mapped(tmp_path / "a", 2)
        os.truncate(tmp_path / "a", PAGE)
        file = FILES.create(tmp_path / "copy")
        with pytest.raises(CorruptFile, match="cannot be read") as caught:
            file.append([data[PAGE:]])
        assert tmp_path / "copy" == caught.value.path
        file.close()

    def test_what_cannot_be_mapped(self) -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            _mapping.Mapping(9_999, 10)


FAULT = """
import faulthandler, mmap, os, signal, sys, tempfile
from afterlog.base._mapping import Mapping
how = sys.argv[1].split()
file = tempfile.TemporaryFile()
file.write(b"123")
file.flush()
if "before" in how:
    faulthandler.enable()
ours = Mapping(file.fileno(), 3)
theirs = mmap.mmap(file.fileno(), 3)
if "behind" in how:
    faulthandler.enable()
if "again" in how:
    ours = Mapping(file.fileno(), 3)
file.truncate(0)
if "again" in how or "behind" not in how:
    assert memoryview(ours)[0] == 0
print("survived", flush=True)
os.kill(os.getpid(), signal.SIGBUS) if "sent" in how else theirs[0]
print("and that")
"""


@pytest.mark.parametrize("how", ["", "before", "behind", "behind again", "before behind again", "sent", "sent before"])
def test_somebody_elses_fault_kills_as_ever(how: str) -> None:
    run = subprocess.run([sys.executable, "-c", FAULT, how], capture_output=True, text=True, timeout=60)
    assert (-signal.SIGBUS, "survived\n") == (run.returncode, run.stdout)
    assert ("Fatal Python error: Bus error" in run.stderr) == ("before" in how or "behind" in how)


class TestStore:
    """D12: whoever reads gets a typed error with the file's name, and no signal."""

    def open(self, path: Path) -> Store:
        self.clock = ManualClock(NOW_MS)
        return open_store(path, Config(segment_bytes=100_000, batch_bytes_max=50_000), self.clock, FILES)

    def filled(self, path: Path) -> tuple[Store, Partition]:
        store = self.open(path)
        partition = store.create_topic("t").partition(0)
        for number in range(40):
            store.send_many("t", [b"%d" % number * 40] * 100, deliver_after=NOW_MS + number % 7)
        self.clock.advance(1_000)
        assert len(partition.log.sealed) > 1
        return store, partition

    @staticmethod
    def drain(partition: Partition) -> int:
        position, end = partition.log_start, partition.high_watermark()
        while position < end:
            _, position = partition.columns(position, 500, 1 << 20)
        return position

    def test_a_sealed_segment_that_is_cut(self, tmp_path: Path) -> None:
        store, partition = self.filled(tmp_path / "s")
        whole = self.drain(partition)
        path = partition.log.sealed[0].path
        content, cut = path.read_bytes(), 5 * PAGE
        os.truncate(path, cut)
        with pytest.raises(CorruptFile, match=r"the disk does not give it|sealed at") as caught:
            self.drain(partition)
        assert path == caught.value.path
        assert caught.value.position is None or cut - 2_048 <= caught.value.position < len(content)
        with pytest.raises(CorruptFile) as caught:
            partition.fetch(0)
        assert path == caught.value.path
        with open(path, "r+b") as file:
            file.write(content)
        assert whole == self.drain(partition), "it can be read again, and nobody had to reopen"
        store.close()

    def test_the_active_segment_that_is_cut(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(segment, "REMAP_BYTES", 0)
        store, partition = self.filled(tmp_path / "s")
        self.drain(partition)
        active = partition.log.version.active
        os.truncate(active.path, 100)
        for _ in range(2):
            with pytest.raises(CorruptFile) as caught:
                self.drain(partition)
            assert active.path == caught.value.path
        with pytest.raises(CorruptFile):
            partition.is_pending(partition.log_end_offset - 1)
        store.close()

    def test_a_run_that_is_cut(self, tmp_path: Path) -> None:
        store, partition = self.filled(tmp_path / "s")
        run = partition.log.index.runs[0]
        content = run.path.read_bytes()
        assert DELIVER_AFTER_INDEX == run.path.suffix
        run.columns(0)
        os.truncate(run.path, 0)
        with pytest.raises(CorruptFile, match="fails its checksum") as caught:
            run.check()
        assert run.path == caught.value.path
        with open(run.path, "r+b") as file:
            file.write(content)
        run.check()
        store.close()

    @pytest.mark.parametrize("suffix", [LOG, DELIVER_AFTER_INDEX])
    def test_verify_tells(self, tmp_path: Path, suffix: str) -> None:
        store, partition = self.filled(tmp_path / "s")
        path = partition.log.sealed[0].path.with_suffix(suffix)
        store.close()
        with OfflineStore(tmp_path / "s", CutFiles(path), self.clock) as offline:
            [finding] = [each for each in offline.verify() if each.path == path]
        assert ("the disk does not give it" if suffix == LOG else "the magic is missing") in str(finding)


class CutFile(OsFile):
    """Of which nothing can be read once it is mapped."""

    def map(self, size: int) -> Bytes:
        data = super().map(size)
        os.truncate(self.path, 0)
        return data


class CutFiles(OsFiles):
    """A disk that loses one file whenever it is mapped."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, path: Path) -> OsFile:
        return CutFile(path, os.open(path, self._FLAGS)) if path == self._path else super().open(path)
