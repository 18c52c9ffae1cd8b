"""Runs what is due of some queues: `manage.py afterlog_worker`.

    topics of the queues ──> leased, by priority, `concurrency` of each ──> the gate: so many at a time of all ──>
    running: the result is kept ──> run ──> successful, or failed: kept again ──> acked

It is `afterlog.Worker` with a handler for each topic. Leases are renewed while a task waits at the gate, and while it
runs. One that fails is not tried again, as Django has it: its result says so. One whose worker was killed comes again,
and is not run where it had finished. SIGTERM: nothing more begins, what waits at the gate goes back, what runs may end.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final

from django.db import close_old_connections
from django.utils.crypto import get_random_string

from afterlog.base.locks import Condition
from afterlog.integrations.django.backend import AfterlogBackend
from afterlog.integrations.django.framework import (
    AnyResult,
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from afterlog.integrations.django.results import change, of_bytes, time_of, waiting
from afterlog.subscription.policy import RetryPolicy
from afterlog.worker import Worker

if TYPE_CHECKING:
    from afterlog.subscription.leased_message import LeasedMessage

logger = logging.getLogger("afterlog.integrations")

SUBSCRIPTION: Final = "workers"
MAX_LEASE_MS: Final = 7 * 86_400_000


class Gate:
    """So many at a time, of all queues."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._changed = Condition()
        self._is_closed = False

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """A place, for the block; False where the gate was closed before there was one."""
        has_place = self._enter()
        try:
            yield has_place
        finally:
            if has_place:
                with self._changed:
                    self._free += 1
                    self._changed.notify()

    def close(self) -> None:
        """Nobody gets a place any more."""
        self._is_closed = True
        with self._changed:
            self._changed.notify_all()

    def _enter(self) -> bool:
        with self._changed:
            while not self._is_closed:
                if self._free > 0:
                    self._free -= 1
                    return True
                self._changed.wait()
            return False


class TaskWorker(Worker):
    """Of one backend. It runs once."""

    def __init__(self, backend: AfterlogBackend, queues: Iterable[str], concurrency: int = 4) -> None:
        """Raises InvalidArgument, and as the store does."""
        super().__init__(backend.store())
        self.backend = backend
        self.worker_id = get_random_string(32)
        self._gate = Gate(concurrency)
        for queue in queues:
            topic = backend.topic(queue)
            self.handle(
                topic, SUBSCRIPTION, concurrency=concurrency, dead_letter=backend.dead_letters(topic),
                retry=RetryPolicy(attempts=None), lease_ms=backend.lease_ms, max_lease_ms=MAX_LEASE_MS,
                durable_leases=True,
            )(self._handle_one)  # fmt: skip

    def stop_taking(self) -> None:
        """What waits at the gate goes back, too."""
        self._gate.close()
        super().stop_taking()

    def _handle_one(self, message: LeasedMessage) -> None:
        with self._gate.turn() as has_turn:
            if has_turn:
                self.run_task(message)
            else:
                message.subscription.release(message)

    def run_task(self, message: LeasedMessage) -> None:
        """Run the task of a message, and keep what came of it. What cannot be read goes to the dead letters."""
        try:
            result = waiting(str(message.id), of_bytes(message.value), self.backend.alias)
        except Exception as error:  # whatever its module raises, or the backend that takes it no more; it would again
            logger.error("%s is no task that can be run: to the dead letters", message.id, exc_info=error)
            message.reject(f"{type(error).__name__}: {error}")
            return
        if message.redelivery_count:  # a worker had it, and died
            before = self.backend.kept(result.id)
            if before is not None and before.is_finished:
                return
            if before is not None:
                result = before
        close_old_connections()
        try:
            self._run(result)
        finally:
            close_old_connections()

    def _run(self, result: AnyResult) -> None:
        now = time_of(self.store.clock.now_ms())
        result.worker_ids.append(self.worker_id)
        change(result, status=TaskResultStatus.RUNNING, started_at=result.started_at or now, last_attempted_at=now)
        self.backend.keep(result)
        task_started.send(sender=type(self.backend), task_result=result)
        try:
            task = result.task
            context = [TaskContext(task_result=result)] if task.takes_context else []
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
        except BaseException as error:  # an exit, too: no worker ends by a task
            text = "".join(format_exception(error))
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            result.errors.append(TaskError(exception_class_path=path, traceback=text))
            self._finish(result, TaskResultStatus.FAILED)
        else:
            change(result, _return_value=value)
            self._finish(result, TaskResultStatus.SUCCESSFUL)

    def _finish(self, result: AnyResult, status: Any) -> None:
        change(result, status=status, finished_at=time_of(self.store.clock.now_ms()))
        self.backend.keep(result)
        task_finished.send(type(self.backend), task_result=result)
