"""The tree drawn in errors.py is the tree of the classes, and errors say what they should."""

from __future__ import annotations

import builtins
import copy
import errno
import inspect
import pickle
import re
from pathlib import Path

import pytest

from afterlog.base import errors
from afterlog.base.errors import (
    AfterlogError,
    CorruptFile,
    NotPending,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionPoisoned,
    ProducerFenced,
    RemoteMissing,
    RemoteRefused,
    StorageError,
    StorageFull,
    StoreLocked,
)
from afterlog.log.cancel_result import CancelResult

CLASSES = {
    name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, AfterlogError)
}
DRAWN = re.compile(
    r"^    (?P<lines>[│├└─ ]*)(?P<name>[A-Z]\w+)(\((?P<builtin>\w+)\))? {2,}(?P<text>\S.*)$", re.MULTILINE
)


def drawn() -> list[tuple[str, str | None, str | None]]:
    """(class, class that it hangs on, builtin in brackets) of each line of the tree, from top to bottom."""
    branch: list[str] = []
    tree = []
    for line in DRAWN.finditer(errors.__doc__ or ""):
        depth = len(line["lines"]) // 4
        branch[depth:] = [line["name"]]
        tree.append((line["name"], branch[depth - 1] if depth else None, line["builtin"]))
    return tree


def real(each: type[AfterlogError]) -> tuple[str, str | None, str | None]:
    ours = [base.__name__ for base in each.__bases__ if issubclass(base, AfterlogError)]
    builtin = [base.__name__ for base in each.__bases__ if base.__module__ == "builtins" and base is not Exception]
    assert len(ours) <= 1
    assert len(builtin) <= 1
    return each.__name__, ours[0] if ours else None, builtin[0] if builtin else None


def made(each: type[AfterlogError]) -> AfterlogError:
    if issubclass(each, StorageError):
        return each("it broke", path=Path("/data/a.log"), position=4_096)
    if issubclass(each, OffsetOutOfRange):
        return each("it broke", position=1, log_start=2, log_end=3)
    if issubclass(each, ProducerFenced):
        return each("message", epoch=5)
    if issubclass(each, OutOfOrderSequence):
        return each("message", expected=5)
    if issubclass(each, NotPending):
        return each("it broke", answer=CancelResult.UNKNOWN)
    return each("it broke")


class TestTree:
    def test_it_is_drawn_as_it_is(self) -> None:
        assert drawn() == [real(each) for each in CLASSES.values()]
        assert len(drawn()) > 15

    def test_every_line_of_the_drawing_was_read(self) -> None:
        lines = [line for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
        assert len(lines) == len(drawn())

    @pytest.mark.parametrize("each", CLASSES.values())
    def test_each_is_what_a_caller_would_catch_and_says_what_to_do(self, each: type[AfterlogError]) -> None:
        *_, builtin = next(line for line in drawn() if line[0] == each.__name__)
        assert builtin is None or issubclass(each, getattr(builtins, builtin))
        assert each.__doc__
        assert isinstance(each.retriable, bool)

    def test_retriable(self) -> None:
        retriable = {name for name, each in CLASSES.items() if each.retriable}
        assert retriable == {
            "BacklogQuotaExceeded", "StorageFull", "OutOfResources", "StoreLocked", "RemoteUnavailable", "ClockBehind",
            "GroupBusy", "TopicBusy", "TopicFull", "ServerBusy", "ServerUnavailable",
        }  # fmt: skip


class TestStorageError:
    @pytest.mark.parametrize(
        ("each", "number"),
        [
            (CorruptFile, errno.EIO),
            (StorageFull, errno.ENOSPC),
            (PartitionPoisoned, errno.EIO),
            (StoreLocked, errno.EWOULDBLOCK),
            (RemoteRefused, errno.EACCES),
            (RemoteMissing, errno.ENOENT),
        ],
    )
    def test_it_names_path_and_position(self, each: type[StorageError], number: int) -> None:
        error = each("it broke", path="/data/a.log", position=0)
        assert "it broke (/data/a.log at byte 0)" == str(error)
        assert (Path("/data/a.log"), 0, number) == (error.path, error.position, error.errno)
        assert str(error) in repr(error)

    def test_a_whole_file_has_no_position(self) -> None:
        error = CorruptFile("it broke", path=Path("a"))
        assert ("it broke (a)", None) == (str(error), error.position)

    def test_the_cause_is_kept(self) -> None:
        cause = OSError(errno.ENOSPC, "No space left on device")
        try:
            raise StorageFull("no room", path="a") from cause
        except OSError as error:
            kept = error.__cause__
        assert cause is kept


class TestOffsetOutOfRange:
    def test_it_says_what_can_be_had(self) -> None:
        error = OffsetOutOfRange("too early", position=1, log_start=2, log_end=3)
        assert ("too early", 1, 2, 3) == (str(error), error.position, error.log_start, error.log_end)


class TestTravel:
    @pytest.mark.parametrize("each", CLASSES.values())
    def test_an_error_can_be_copied_and_sent_to_another_process(self, each: type[AfterlogError]) -> None:
        error = made(each)
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(error) is type(again)
            assert (str(error), vars(error)) == (str(again), vars(again))
