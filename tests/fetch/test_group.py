from __future__ import annotations

import errno
from pathlib import Path

import pytest

from afterlog import document
from afterlog.errors import CorruptFile, InvalidTopic, StorageFull
from afterlog.fetch.group import FORMAT, VERSION, GroupPosition
from afterlog.names import SUBSCRIPTIONS
from tests.crash_states import kill_state
from tests.failing_files import FailingFiles
from tests.simulated_disk import Rename, SimulatedFiles
from tests.support import Calls, content, flipped, power_cut, with_file

FOLDER = Path("/mail-0")


@pytest.fixture
def files() -> SimulatedFiles:
    files = SimulatedFiles()
    for folder in (FOLDER, FOLDER / SUBSCRIPTIONS):
        files.make_folder(folder)
        files.sync_folder(folder.parent)
    return files


def test_a_group_that_never_committed(files: SimulatedFiles) -> None:
    before = files.image()
    assert GroupPosition(files, FOLDER, "g").committed is None
    assert before == files.image()


def test_a_commit_is_durable(files: SimulatedFiles) -> None:
    position = GroupPosition(files, FOLDER, "g")
    for number in (0, 7, 3, 2**62):
        position.commit(number)
        assert number == position.committed == GroupPosition(power_cut(files), FOLDER, "g").committed
    assert GroupPosition(files, FOLDER, "h").committed is None


def test_committing_the_same_again_writes_nothing(files: SimulatedFiles) -> None:
    position = GroupPosition(files, FOLDER, "g")
    position.commit(7)
    before = len(files.operations)
    position.commit(7)
    assert before == len(files.operations)


def test_what_a_killed_process_committed_is_durable_once_it_is_committed_again(files: SimulatedFiles) -> None:
    """It was killed between the rename and the sync of the folder."""
    GroupPosition(files, FOLDER, "g").commit(1)
    GroupPosition(files, FOLDER, "g").commit(7)
    renamed = max(number for number, each in enumerate(files.operations, 1) if isinstance(each, Rename))
    disk = kill_state(files.operations, renamed).files()
    position = GroupPosition(disk, FOLDER, "g")
    assert (7, 1) == (position.committed, GroupPosition(power_cut(disk), FOLDER, "g").committed)
    position.commit(7)
    assert 7 == GroupPosition(power_cut(disk), FOLDER, "g").committed


def test_every_failing_call_leaves_the_old_position_or_the_new_one(files: SimulatedFiles) -> None:
    GroupPosition(files, FOLDER, "g").commit(1)
    calls = Calls()
    for operation in ("create", "append", "rename"):
        position = GroupPosition(FailingFiles(files, calls), FOLDER, "g")
        calls.fail(operation, "", OSError(errno.ENOSPC, "full"))
        with pytest.raises(StorageFull):
            position.commit(2)
        assert 1 == position.committed == GroupPosition(files, FOLDER, "g").committed
    position.commit(2)
    assert 2 == GroupPosition(files, FOLDER, "g").committed


def test_every_rotten_byte_is_seen(files: SimulatedFiles) -> None:
    position = GroupPosition(files, FOLDER, "g")
    position.commit(1_024)
    data = content(files, position.path)
    for at in range(len(data)):
        with pytest.raises(CorruptFile) as raised:
            GroupPosition(with_file(files, position.path, flipped(data, at)), FOLDER, "g")
        assert position.path == raised.value.path


@pytest.mark.parametrize("body", [{}, {"position": "7"}, {"position": None}, {"position": 1.5}])
def test_an_intact_document_without_a_position(files: SimulatedFiles, body: dict[str, object]) -> None:
    position = GroupPosition(files, FOLDER, "g")
    position.commit(1)
    owner = {"partition": FOLDER.name, "group": "g"}
    document.write(files, position.path, FORMAT, VERSION, owner | body)
    with pytest.raises(CorruptFile, match="no position"):
        GroupPosition(files, FOLDER, "g")


def test_a_position_in_the_wrong_place_is_seen(files: SimulatedFiles) -> None:
    position = GroupPosition(files, FOLDER, "g")
    position.commit(1)
    other = GroupPosition(files, FOLDER, "h")
    other.commit(2)
    with pytest.raises(CorruptFile, match="no position"):
        GroupPosition(with_file(files, position.path, content(files, other.path)), FOLDER, "g")


@pytest.mark.parametrize("group", ["", "..", "a/b", "a" * 250])
def test_names(files: SimulatedFiles, group: str) -> None:
    with pytest.raises(InvalidTopic, match="group"):
        GroupPosition(files, FOLDER, group)
