"""Errors on the wire (RFC 9457, `application/problem+json`): encoded by the server, raised again by the client.

    HTTP/1.1 409 Conflict
    Content-Type: application/problem+json

    {"type": "urn:afterlog:UniqueKeyConflict", "title": "UniqueKeyConflict", "status": 409, "retriable": false,
     "detail": "mail-0@3 is pending, and holds the unique key b'u-1'",
     "next": "Nothing was written. Cancel that one, or send with …", "record": "mail-0@3"}

`title` is the name of the error in this library, and does not change; `detail` is for people, and may; `next` is what
the error's docstring says to do. What an error knows besides stands beside that: position and its bounds, path, record,
answer. A status is of a whole branch of the tree; the first row below that holds decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus as Status
from typing import Any

from afterlog.base import errors
from afterlog.base.errors import (
    AfterlogError,
    NotPending,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    ServerFailed,
    StorageError,
    UniqueKeyConflict,
)
from afterlog.fetch.record_id import RecordId

MEDIA_TYPE = "application/problem+json"

_STATUS: tuple[tuple[type[AfterlogError], Status], ...] = (
    (errors.RecordTooLarge, Status.REQUEST_ENTITY_TOO_LARGE),
    (errors.RequestTooLarge, Status.REQUEST_ENTITY_TOO_LARGE),
    (errors.NotAuthenticated, Status.UNAUTHORIZED),
    (errors.NotAllowed, Status.FORBIDDEN),
    (errors.ServerBusy, Status.TOO_MANY_REQUESTS),
    (errors.BacklogQuotaExceeded, Status.TOO_MANY_REQUESTS),
    (errors.TopicFull, Status.TOO_MANY_REQUESTS),
    (errors.UnknownTopic, Status.NOT_FOUND),
    (errors.UnknownPartition, Status.NOT_FOUND),
    (errors.UnknownSchedule, Status.NOT_FOUND),
    (errors.UnknownSubscription, Status.NOT_FOUND),
    (errors.UnknownGroup, Status.NOT_FOUND),
    (errors.TopicDeleted, Status.GONE),
    (errors.OffsetOutOfRange, Status.REQUESTED_RANGE_NOT_SATISFIABLE),
    (errors.NameTaken, Status.CONFLICT),
    (errors.TopicExists, Status.CONFLICT),
    (errors.ScheduleExists, Status.CONFLICT),
    (errors.UniqueKeyConflict, Status.CONFLICT),
    (errors.ProducerFenced, Status.CONFLICT),
    (errors.OutOfOrderSequence, Status.CONFLICT),
    (errors.ReplicationDiverged, Status.CONFLICT),
    (errors.NotPending, Status.CONFLICT),
    (errors.GroupBusy, Status.CONFLICT),
    (errors.TopicBusy, Status.CONFLICT),
    (errors.ReadOnlyTopic, Status.CONFLICT),
    (errors.RemoteRefused, Status.CONFLICT),
    (errors.StorageFull, Status.INSUFFICIENT_STORAGE),
    (errors.OutOfResources, Status.SERVICE_UNAVAILABLE),
    (errors.RemoteUnavailable, Status.SERVICE_UNAVAILABLE),
    (errors.StoreClosed, Status.SERVICE_UNAVAILABLE),
    (errors.ServerUnavailable, Status.SERVICE_UNAVAILABLE),
    (errors.ClockBehind, Status.SERVICE_UNAVAILABLE),
    (errors.NotServed, Status.NOT_IMPLEMENTED),
    (errors.StorageError, Status.INTERNAL_SERVER_ERROR),
)


def status_of(error: AfterlogError) -> int:
    """The HTTP status of an error: what the caller can mend is below 500."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return Status.BAD_REQUEST if isinstance(error, ValueError) else Status.INTERNAL_SERVER_ERROR


def problem_of(error: AfterlogError) -> dict[str, Any]:
    """The error as JSON has it."""
    name = type(error).__name__
    detail = error.message if isinstance(error, StorageError) else str(error)
    problem: dict[str, Any] = {
        "type": f"urn:afterlog:{name}",
        "title": name,
        "status": int(status_of(error)),
        "detail": detail,
        "retriable": error.retriable,
        "next": _next(type(error)),
    }
    match error:
        case OffsetOutOfRange():
            problem |= {"position": error.position, "log_start": error.log_start, "log_end": error.log_end}
        case UniqueKeyConflict():
            problem |= {"record": None if error.record is None else str(error.record)}
        case ProducerFenced():
            problem |= {"epoch": error.epoch}
        case OutOfOrderSequence():
            problem |= {"expected": error.expected}
        case NotPending():
            problem |= {"answer": error.answer.name}
        case StorageError():
            problem |= {"path": str(error.path), "position": error.position}
    return problem


def error_of(problem: object) -> AfterlogError:
    """The error that a server told; ServerFailed where it is none that this version knows."""
    if not isinstance(problem, Mapping):
        return ServerFailed(f"the server says something else than an error: {problem!r:.200}")
    name, detail = problem.get("title"), str(problem.get("detail", ""))
    kind = getattr(errors, name, None) if isinstance(name, str) else None
    if not isinstance(kind, type) or not issubclass(kind, AfterlogError):
        return ServerFailed(f"{name}: {detail}")
    try:
        return _made(kind, detail, problem)
    except (KeyError, TypeError, ValueError):
        return ServerFailed(f"{name}: {detail}")


def _made(kind: type[AfterlogError], detail: str, problem: Mapping[str, Any]) -> AfterlogError:
    if issubclass(kind, OffsetOutOfRange):
        bounds = {name: int(problem[name]) for name in ("position", "log_start", "log_end")}
        return kind(detail, **bounds)
    if issubclass(kind, UniqueKeyConflict):
        record = problem["record"]
        return kind(detail, record=None if record is None else RecordId.parse(record))
    if issubclass(kind, NotPending):
        from afterlog.log.cancel_result import CancelResult

        return kind(detail, answer=CancelResult[problem["answer"]])
    if issubclass(kind, ProducerFenced):
        return kind(detail, epoch=int(problem["epoch"]))
    if issubclass(kind, OutOfOrderSequence):
        expected = problem["expected"]
        return kind(detail, expected=None if expected is None else int(expected))
    if issubclass(kind, StorageError):
        position = problem["position"]
        return kind(detail, path=str(problem["path"]), position=None if position is None else int(position))
    return kind(detail)


def _next(kind: type[AfterlogError]) -> str:
    return " ".join((kind.__doc__ or "").split())
