"""A task as its record has it, and a result: JSON, the times in ms.

    task    {"task": "shop.tasks.send", "args": […], "kwargs": {…}, "priority": 0, "queue": "default",
             "run_after_ms": null, "enqueued_ms": …}                                in the topic of its queue
    result  {"task": as above, "status": "SUCCESSFUL", "started_ms": …, "attempted_ms": …, "finished_ms": …,
             "workers": […], "errors": [[class, traceback], …], "value": …}         in `PREFIX-results`

The id of a result is that of the task's record, so a task that waits is a result that is ready, and an enqueue is one
append. A result is a record that is due when it expires, with the id as its unique key: each state replaces the one
before, it is found by the index of unique keys, and what has expired is let go of by retention.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils.module_loading import import_string

from afterlog.base.errors import InvalidRecord
from afterlog.integrations.django.framework import AnyResult, AnyTask, TaskError, TaskResult, TaskResultStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def ms_of(time: datetime | None) -> int | None:
    """Rounded up: a task is never early."""
    if time is None:
        return None
    return -(-(time.astimezone(UTC) - _EPOCH) // _MILLISECOND)


def time_of(ms: int | None) -> datetime | None:
    return None if ms is None else _EPOCH + ms * _MILLISECOND


def written_task(result: AnyResult) -> dict[str, Any]:
    """What a record says of the task that waits."""
    task: AnyTask = result.task
    return {
        "task": task.module_path, "args": result.args, "kwargs": result.kwargs, "priority": task.priority,
        "queue": task.queue_name, "run_after_ms": ms_of(task.run_after), "enqueued_ms": ms_of(result.enqueued_at),
    }  # fmt: skip


def to_bytes(said: dict[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def of_bytes(value: bytes | None) -> dict[str, Any]:
    """Raises InvalidRecord where the record is none of ours."""
    try:
        said = json.loads(value or b"")
        if not isinstance(said, dict):
            raise TypeError("no object")
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRecord(f"{value!r:.100} is no task: {error}") from None
    return said


def ready(task: AnyTask, args: Any, kwargs: Any, backend: str, enqueued_ms: int, id: str = "") -> AnyResult:
    """Of a task that nobody has begun. Raises TypeError, ValueError of arguments that JSON does not have."""
    status: Any = TaskResultStatus.READY
    return TaskResult(
        task=task, id=id, status=status, enqueued_at=time_of(enqueued_ms), started_at=None,
        last_attempted_at=None, finished_at=None, args=args, kwargs=kwargs, backend=backend, errors=[], worker_ids=[],
    )  # fmt: skip


def waiting(id: str, said: dict[str, Any], backend: str) -> AnyResult:
    """The same as its record has it. Raises ImportError where there is no such task any more."""
    run_after = time_of(said["run_after_ms"])
    task = import_string(said["task"]).using(
        priority=said["priority"], queue_name=said["queue"], run_after=run_after, backend=backend
    )
    return ready(task, said["args"], said["kwargs"], backend, said["enqueued_ms"], id)


def written_result(result: AnyResult) -> dict[str, Any]:
    """What is known of it so far."""
    finished = result.status == TaskResultStatus.SUCCESSFUL
    return {
        "task": written_task(result), "status": result.status.value, "started_ms": ms_of(result.started_at),
        "attempted_ms": ms_of(result.last_attempted_at), "finished_ms": ms_of(result.finished_at),
        "workers": result.worker_ids, "value": result._return_value if finished else None,
        "errors": [[error.exception_class_path, error.traceback] for error in result.errors],
    }  # fmt: skip


def read_result(id: str, said: dict[str, Any], backend: str) -> AnyResult:
    """What `written_result` gave. Raises ImportError."""
    result = waiting(id, said["task"], backend)
    errors = [TaskError(exception_class_path=path, traceback=text) for path, text in said["errors"]]
    change(
        result, status=TaskResultStatus(said["status"]), started_at=time_of(said["started_ms"]),
        last_attempted_at=time_of(said["attempted_ms"]), finished_at=time_of(said["finished_ms"]),
        worker_ids=said["workers"], errors=errors, _return_value=said["value"],
    )  # fmt: skip
    return result


def change(result: AnyResult, **fields: Any) -> None:
    """They are frozen, and changed in place by whoever runs them, as Django's own backends do."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)
