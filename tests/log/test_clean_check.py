"""A look at a partition that nobody has open: it says "at rest" of nothing that opening would have to see to."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from afterlog.base.clock import ManualClock
from afterlog.base.errors import DiskFailed
from afterlog.base.names import BUCKETS, CHECKPOINTS
from afterlog.log.clean_check import is_at_rest
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, SimulatedFiles, os_error
from tests.support import NOW_MS, PATH, flipped, killed, open_small

FOLDER = PATH / "t-0"
SEALED, ACTIVE = "00000000000000000000", "00000000000000000005"


def written(*, tail: bool = False) -> SimulatedFiles:
    """A sealed segment of five records, an active one of three after a checkpoint; with a tail a fourth. Killed."""
    disk = SimulatedFiles()
    store = open_small(disk, ManualClock(NOW_MS))
    log = store.create_topic("t").partition(0).log
    for number in range(8):
        if number == 5:
            log.roll()
        store.send("t", b"%d" % number, delay=number)
    log.checkpoint()
    if tail:
        store.send("t", b"tail")
    return killed(disk)


def changed(name: str, change: Callable[[bytes], bytes | None]) -> SimulatedFiles:
    """With one file of the folder other than it was, gone, or new."""
    image, path = written().image(), str(FOLDER / name)
    data = change(image.contents.get(path, b""))
    contents = {held: content for held, content in image.contents.items() if held != path}
    return SimulatedFiles(Image(image.folders, contents if data is None else {**contents, path: data}))


def test_all_behind_the_recovery_point_is_at_rest_and_the_look_changes_nothing() -> None:
    disk = written()
    before = disk.image()
    assert is_at_rest(disk, FOLDER)
    assert before == disk.image()
    assert not is_at_rest(written(tail=True), FOLDER)


@pytest.mark.parametrize("delayed", [True, False])
def test_new_and_closed(delayed: bool) -> None:
    disk = SimulatedFiles()
    store = open_small(disk, ManualClock(NOW_MS))
    store.create_topic("t", delayed=delayed)
    assert is_at_rest(disk, FOLDER)
    offset = store.send("t", b"value").offset
    assert not is_at_rest(disk, FOLDER)
    if delayed:
        store.cancel(store.topic("t").record_id(0, offset))
    store.close()
    assert is_at_rest(disk, FOLDER)


GONE = [CHECKPOINTS, f"{SEALED}.log", f"{ACTIVE}.log", f"{ACTIVE}.index", f"{ACTIVE}.timeindex"]
NEW = [f"{CHECKPOINTS}.tmp", "00000000000000000008.log", "00000000000000000003.index", f"{SEALED}.index.tmp"]
SIZED = [CHECKPOINTS, f"{SEALED}.log", f"{ACTIVE}.log"]


@pytest.mark.parametrize("name", GONE)
def test_a_file_too_few(name: str) -> None:
    assert not is_at_rest(changed(name, lambda data: None), FOLDER)


@pytest.mark.parametrize("name", NEW)
def test_a_file_too_many(name: str) -> None:
    assert not is_at_rest(changed(name, lambda data: b"left over"), FOLDER)


@pytest.mark.parametrize("name", SIZED)
def test_a_file_of_another_size(name: str) -> None:
    assert not is_at_rest(changed(name, lambda data: data[:-1]), FOLDER)
    assert not is_at_rest(changed(name, lambda data: data + b"x"), FOLDER)


def test_rotten_checkpoints_and_no_folder() -> None:
    assert not is_at_rest(changed(CHECKPOINTS, lambda data: flipped(data, 60)), FOLDER)
    assert not is_at_rest(written(), PATH / "u-0")
    image, buckets = written().image(), str(FOLDER / BUCKETS)
    contents = {name: data for name, data in image.contents.items() if not name.startswith(buckets)}
    assert not is_at_rest(SimulatedFiles(Image([*{*image.folders} - {buckets}], contents)), FOLDER)


@pytest.mark.parametrize("operation", ["open", "pread", "names"])
def test_a_disk_that_gives_no_answer(operation: str) -> None:
    def fail(called: str, path: Path, number: int) -> OSError | None:
        return os_error(errno.EIO, path) if called == operation else None

    with pytest.raises(DiskFailed):
        is_at_rest(FailingFiles(written(), fail), FOLDER)
