"""Errors go over the wire and come out the same."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from afterlog.api.problem import error_of, problem_of, status_of
from afterlog.base import errors
from afterlog.base.errors import (
    AfterlogError,
    NotPending,
    OffsetOutOfRange,
    ServerFailed,
    StorageError,
    UniqueKeyConflict,
)
from afterlog.fetch.record_id import RecordId
from afterlog.log.cancel_result import CancelResult

KINDS = sorted(
    (kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, AfterlogError)),
    key=lambda kind: kind.__name__,
)


def made(kind: type[AfterlogError]) -> AfterlogError:
    if issubclass(kind, OffsetOutOfRange):
        return kind("no such position", position=3, log_start=5, log_end=9)
    if issubclass(kind, UniqueKeyConflict):
        return kind("held", record=RecordId("mail", 0, 3))
    if issubclass(kind, NotPending):
        return kind("delivered", answer=CancelResult.ALREADY_DELIVERED)
    if issubclass(kind, errors.ProducerFenced):
        return kind("somebody else", epoch=7)
    if issubclass(kind, errors.OutOfOrderSequence):
        return kind("a gap", expected=None)
    if issubclass(kind, StorageError):
        return kind("rotten", path=Path("/data/mail-0/x.log"), position=17)
    return kind("what happened")


class TestErrors:
    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
    def test_each_comes_out_the_same(self, kind: type[AfterlogError]) -> None:
        error = made(kind)
        told = error_of(json.loads(json.dumps(problem_of(error))))
        assert type(error) is type(told)
        assert str(error) == str(told)
        assert vars(error) == vars(told)

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
    def test_each_has_a_status_and_says_what_to_do(self, kind: type[AfterlogError]) -> None:
        problem = problem_of(made(kind))
        assert 400 <= problem["status"] < 600
        assert kind is AfterlogError or problem["next"]

    def test_who_can_mend_it(self) -> None:
        assert 404 == status_of(errors.UnknownTopic("x"))
        assert 400 == status_of(errors.WrongType("x"))
        assert 413 == status_of(errors.RecordTooLarge("x"))
        assert 409 == status_of(errors.TopicExists("x"))
        assert 401 == status_of(errors.NotAuthenticated("x"))
        assert 507 == status_of(made(errors.StorageFull))
        assert 500 == status_of(made(errors.CorruptFile))

    def test_a_conflict_within_a_call_has_no_record(self) -> None:
        told = error_of(problem_of(UniqueKeyConflict("twice in the call")))
        assert isinstance(told, UniqueKeyConflict)
        assert told.record is None

    @pytest.mark.parametrize(
        "problem",
        [None, [], "no", {}, {"title": 1}, {"title": "Exception"}, {"title": "Path"}, {"title": "OffsetOutOfRange"},
         {"title": "NotPending", "answer": "WHY"}, {"title": "CorruptFile", "path": 1, "position": "x"},
         {"title": "UniqueKeyConflict", "record": "x"}],
    )  # fmt: skip
    def test_what_is_none_of_ours_is_a_failure_of_the_server(self, problem: object) -> None:
        assert type(error_of(problem)) is ServerFailed
