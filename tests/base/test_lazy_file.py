"""A file that has no descriptor until it is used."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import OutOfResources, StoreClosed
from afterlog.base.files import OsFiles
from afterlog.base.lazy_file import LazyFile
from afterlog.base.names import LOG
from afterlog.store.store import open_store
from tests.store.test_store import Setting
from tests.support import NOW_MS, drained


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_holds_a_descriptor_from_its_first_use_until_it_rests(tmp_path: Path) -> None:
    OsFiles().create(tmp_path / "a").close()
    before = descriptors()
    file = LazyFile(OsFiles(), tmp_path / "a")
    file.sync()
    assert (True, before) == (file.resting, descriptors())
    for _ in range(2):
        file.append([b"a"])
        assert (False, before + 1) == (file.resting, descriptors())
        file.rest()
        assert (True, before) == (file.resting, descriptors())
    assert (b"aa", 2, b"a") == (file.pread(9, 0), file.size(), file.map(1).tobytes())
    file.truncate(1)
    file.sync()
    assert b"a" == file.pread(9, 0)
    for _ in range(2):
        file.close()
    assert before == descriptors()
    for use in (file.size, file.sync, lambda: file.pread(1, 0), lambda: file.append([b"1"]), lambda: file.map(1)):
        with pytest.raises(StoreClosed, match="is closed"):
            use()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_no_descriptor_left_costs_nothing_but_the_call(number: int) -> None:
    setting = Setting()
    setting.store.create_topic("t")
    setting.calls.fail("open", LOG, OSError(number, os.strerror(number)))
    with pytest.raises(OutOfResources):
        setting.store.send("t", b"a")
    assert 0 == setting.store.send("t", b"b").offset
    setting.store.check()
    assert [b"b"] == drained(setting.store.topic("t").partition(0))


def test_a_topic_that_nobody_writes_or_reads_holds_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    with open_store(tmp_path / "store", None, ManualClock(NOW_MS), None) as store:
        of_the_lock = descriptors() - before
        for number in range(5):
            store.create_topic(f"t{number}", partitions=2)
        assert of_the_lock == descriptors() - before
    with open_store(tmp_path / "store", None, ManualClock(NOW_MS), None) as store:
        store.sync()
        assert of_the_lock == descriptors() - before
        store.send("t0", b"a")
        assert of_the_lock + 1 == descriptors() - before
