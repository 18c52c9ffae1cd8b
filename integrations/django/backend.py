"""The backend: `enqueue` appends a task to the topic of its queue, `get_result` finds what became of it.

    OPTIONS   STORE        a place (`afterlog.integrations.places`): afterlog:///FOLDER, afterlog+unix:///SOCKET, …
              TOKEN        for a server's port
              PREFIX       of the topics: "django"
              RESULT_TTL   how long a result is kept once the task has finished: a timedelta, seven days
              LEASE        how long after the death of its worker a task is run again: a timedelta, 30 s

    django.QUEUE           its tasks, of five priorities: those of Django above 49, above 0, 0, below 0, below -49
    django.QUEUE.dead      what no worker could read
    django-results         the results, by id

Nothing is opened before a task is enqueued or looked for. A task that is enqueued in a transaction is there whether it
commits or not: `transaction.on_commit(partial(task.enqueue, …))`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from afterlog.base.errors import AfterlogError, AnswerLost, InvalidRecord, UnknownPartition, UnknownTopic
from afterlog.fetch.record_id import RecordId
from afterlog.integrations.django.framework import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    TaskResultDoesNotExist,
    task_enqueued,
)
from afterlog.integrations.django.results import (
    change,
    ms_of,
    of_bytes,
    read_result,
    ready,
    to_bytes,
    waiting,
    written_result,
    written_task,
)
from afterlog.integrations.places import Priorities, StoreHandle, made
from afterlog.integrations.queue_names import NAME_MAX, topic_of
from afterlog.log.cancel_result import CancelResult
from afterlog.surface import StoreSurface

PRIORITIES: Final = 5
"""Of a topic, to Django's 201."""
KNOWN: Final = {"STORE", "TOKEN", "PREFIX", "RESULT_TTL", "LEASE"}
MILLISECOND: Final = timedelta(milliseconds=1)
RETRIES: Final = 3
"""Of a result whose answer was lost; to write it twice is to write it once."""


def priority_of(priority: int) -> int:
    """Of those of a topic, the one of a priority from -100 to 100."""
    return 2 + (priority > 0) + (priority >= 50) - (priority < 0) - (priority <= -50)


class AfterlogBackend(BaseTaskBackend):
    """See the module. ImproperlyConfigured of options that it does not have, or cannot use."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        unknown = options.keys() - KNOWN
        if unknown or "STORE" not in options:
            what = f"has no options {sorted(unknown)}" if unknown else "needs the option STORE"
            raise ImproperlyConfigured(f"TASKS[{alias!r}] {what}; it takes {', '.join(sorted(KNOWN))}")
        try:
            self._handle = StoreHandle(options["STORE"], options.get("TOKEN"))
        except AfterlogError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']['STORE']: {error}") from error
        self.prefix: str = options.get("PREFIX", "django")
        self.result_ttl = _positive(alias, "RESULT_TTL", options.get("RESULT_TTL", timedelta(days=7)))
        self.lease = _positive(alias, "LEASE", options.get("LEASE", timedelta(seconds=30)))
        self._made: set[tuple[int, str]] = set()
        self._priorities = Priorities()

    # What Django asks of a backend.

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:
        """It is durable when this returns, and run when it is due. Raises as `store.send` does."""
        self.validate_task(task)
        store = self.store()
        result = ready(task, args, kwargs, self.alias, store.clock.now_ms())
        topic = self.topic(task.queue_name)
        sent = store.send(
            topic, to_bytes(written_task(result)), deliver_after=ms_of(task.run_after),
            priority=self._priority_in(topic, task.priority),
        )  # fmt: skip
        change(result, id=str(sent))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """Raises TaskResultDoesNotExist of one that was never enqueued, was cancelled, or is not kept any more."""
        store, found = self.store(), None
        try:
            record = RecordId.parse(result_id)
            if self._is_ours(record.topic):
                found = store.get_unique(self.results_topic(), result_id.encode())
                if found is not None:
                    return read_result(result_id, of_bytes(found.value), self.alias)
                found = store.get(record)
        except (InvalidRecord, UnknownTopic, UnknownPartition):
            pass
        expired = found is not None and found.due + self.result_ttl // MILLISECOND <= store.clock.now_ms()
        if found is None or found.state == "cancelled" or expired:
            raise TaskResultDoesNotExist(result_id)
        try:
            return waiting(result_id, of_bytes(found.value), self.alias)
        except (InvalidRecord, KeyError):  # a record that is no task
            raise TaskResultDoesNotExist(result_id) from None

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        yield from super().check(**kwargs)
        try:
            from afterlog.sharing.shared import check_extra

            check_extra()
        except ImportError as error:
            yield checks.Error(str(error), hint="pip install 'afterlog[django]'", id="afterlog.E001")

    # Ours.

    def cancel(self, result_id: str) -> bool:
        """Take back a task that is not due yet; False where it is, or was cancelled. Raises TaskResultDoesNotExist."""
        try:
            record = RecordId.parse(result_id)
            if not self._is_ours(record.topic):
                raise UnknownTopic(record.topic)
            return self.store().cancel(record) is CancelResult.CANCELLED
        except (InvalidRecord, UnknownTopic, UnknownPartition):
            raise TaskResultDoesNotExist(result_id) from None

    def close(self) -> None:
        """Let go of the store; it is opened again where it is asked for."""
        self._handle.close()

    def store(self) -> StoreSurface:
        """Of this process."""
        return self._handle.get()

    def topic(self, queue: str) -> str:
        """Of a queue, made where it is missing."""
        return self._topic(topic_of(f"{self.prefix}.", queue), retention_by_subscriptions=True, priorities=PRIORITIES)

    def dead_letters(self, topic: str) -> str:
        """Where what no worker could read goes: for as long as results are kept."""
        return self._topic(f"{topic[: NAME_MAX - 5]}.dead", retention_ms=self.result_ttl // MILLISECOND)

    @property
    def lease_ms(self) -> int:
        return self.lease // MILLISECOND

    def results_topic(self) -> str:
        return self._topic(f"{self.prefix}-results", retention_ms=3_600_000)

    def keep(self, result: AnyResult) -> None:
        """Write a result down, in place of what was there."""
        store, topic, value = self.store(), self.results_topic(), to_bytes(written_result(result))
        key = result.id.encode()
        for tries_left in range(RETRIES, -1, -1):
            try:
                store.send(topic, value, unique_key=key, on_conflict="replace", delay=self.result_ttl)
                return
            except AnswerLost:
                if not tries_left:
                    raise

    def kept(self, result_id: str) -> AnyResult | None:
        """A result that was written down."""
        found = self.store().get_unique(self.results_topic(), result_id.encode())
        return None if found is None else read_result(result_id, of_bytes(found.value), self.alias)

    def _priority_in(self, topic: str, priority: int) -> int:
        """Of those that the topic has: its owner may have given it others."""
        return priority_of(priority) * self._priorities.of(self.store(), topic) // PRIORITIES

    def _is_ours(self, topic: str) -> bool:
        return topic.startswith(f"{self.prefix}.")

    def _topic(self, name: str, **settings: Any) -> str:
        store = self.store()
        if (id(store), name) not in self._made:
            self._made.add((id(store), made(store, name, **settings)))
        return name


def _positive(alias: str, name: str, value: Any) -> timedelta:
    if not isinstance(value, timedelta) or value < MILLISECOND:
        raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS'][{name!r}] is a timedelta above 0, not {value!r:.100}")
    return value
