from __future__ import annotations

import errno
from pathlib import Path

import pytest

from afterlog.base import document
from afterlog.base.errors import CorruptFile, InvalidTopic, StorageFull
from afterlog.base.names import SUBSCRIPTIONS, position_files
from afterlog.fetch.group import FORMAT, VERSION, GroupPosition
from tests.campaigns.crash_states import kill_state
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Rename, SimulatedFiles
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


def test_one_file_that_is_gone_or_rotten_loses_nothing(files: SimulatedFiles, caplog: pytest.LogCaptureFixture) -> None:
    position = GroupPosition(files, FOLDER, "g")
    position.commit(1_024)
    for path in position_files(FOLDER, "g"):
        data = content(files, path)
        for broken in [None, b"", *(flipped(data, at) for at in range(len(data)))]:
            caplog.clear()
            disk = with_file(files, path, broken)
            again = GroupPosition(disk, FOLDER, "g")
            assert 1_024 == again.committed
            if path == position.path:
                assert [True] == ["its copy says 1024, and is taken" in each.message for each in caplog.records]
            if path == position.path or broken is not None:
                assert again.damage is not None
                assert path == again.damage.path
            again.commit(1_024)
            assert again.damage is None
            assert [data, data] == [content(power_cut(disk), each) for each in position_files(FOLDER, "g")]


def test_where_neither_file_tells_it_is_said(files: SimulatedFiles, caplog: pytest.LogCaptureFixture) -> None:
    position = GroupPosition(files, FOLDER, "g")
    position.commit(1_024)
    path, copy = position_files(FOLDER, "g")
    for broken in (None, b"x"):
        with pytest.raises(CorruptFile) as raised:
            GroupPosition(with_file(with_file(files, path, broken), copy, b"x"), FOLDER, "g")
        assert (copy if broken is None else path) == raised.value.path
    assert [] == caplog.records
    assert GroupPosition(with_file(with_file(files, path, None), copy, None), FOLDER, "g").committed is None
    assert [True] == ["g: there is no position in it" in each.message for each in caplog.records]


def test_killed_between_the_two_files_the_first_counts(files: SimulatedFiles) -> None:
    GroupPosition(files, FOLDER, "g").commit(1)
    before = len(files.operations)
    GroupPosition(files, FOLDER, "g").commit(7)
    seen = []
    for cut in range(before, len(files.operations) + 1):
        again = GroupPosition(kill_state(files.operations, cut).files(), FOLDER, "g")
        seen.append(again.committed)
        assert again.damage is None
        again.commit(3)
        assert 3 == again.committed
    assert [1, 7] == sorted(set(seen)) == list(dict.fromkeys(seen))


def test_a_store_of_before_the_copy(files: SimulatedFiles) -> None:
    position = GroupPosition(files, FOLDER, "g")
    position.commit(7)
    disk = with_file(files, position_files(FOLDER, "g")[1], None)
    old = GroupPosition(disk, FOLDER, "g")
    assert (7, None) == (old.committed, old.damage)
    old.commit(7)
    assert 7 == GroupPosition(with_file(disk, position.path, None), FOLDER, "g").committed


@pytest.mark.parametrize("told", ["nothing", "7", None, 1.5, True, -1, 1 << 63])
def test_an_intact_document_without_a_position(files: SimulatedFiles, told: object) -> None:
    body = {} if told == "nothing" else {"position": told}
    position = GroupPosition(files, FOLDER, "g")
    position.commit(1)
    owner = {"partition": FOLDER.name, "group": "g"}
    for path in position_files(FOLDER, "g"):
        document.write(files, path, FORMAT, VERSION, owner | body)
    with pytest.raises(CorruptFile, match="no position"):
        GroupPosition(files, FOLDER, "g")


def test_a_position_in_the_wrong_place_is_seen(files: SimulatedFiles) -> None:
    position = GroupPosition(files, FOLDER, "g")
    position.commit(1)
    other = GroupPosition(files, FOLDER, "h")
    other.commit(2)
    disk = files
    for path in position_files(FOLDER, "g"):
        disk = with_file(disk, path, content(files, other.path))
    with pytest.raises(CorruptFile, match="no position"):
        GroupPosition(disk, FOLDER, "g")


@pytest.mark.parametrize("group", ["", "..", "a/b", "a" * 250])
def test_names(files: SimulatedFiles, group: str) -> None:
    with pytest.raises(InvalidTopic, match="group"):
        GroupPosition(files, FOLDER, group)
