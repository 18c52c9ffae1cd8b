"""A page of Django's admin: what waits, what runs and what became of it; cancel, and run again.

Of each backend the next tasks of its queues, and the latest results: a result is a record that is due when it expires,
so those that were written last are due last, and are looked for from the end.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template import engines

from afterlog.base.errors import AfterlogError, InvalidRecord
from afterlog.integrations.django.backend import MILLISECOND, AfterlogBackend
from afterlog.integrations.django.framework import TaskResultDoesNotExist, task_backends
from afterlog.integrations.django.models import AfterlogTask
from afterlog.integrations.django.results import of_bytes, time_of

SHOWN: Final = 100
"""Of each kind."""
LOOKED_AT: Final = 10_000
"""Results of a span."""
SPANS_MS: Final = (60_000, 600_000, 3_600_000, 86_400_000)
"""So far back results are looked for, one after the other, until there are enough; then all."""
PAGE: Final = """{% extends "admin/base_site.html" %}
{% block content %}<form method="post">{% csrf_token %}
{% for each in backends %}<div class="module"><h2>{{ each.alias }}</h2>
{% if each.error %}<p class="errornote">{{ each.error }}</p>{% endif %}
<table><caption>Waiting: the next {{ each.waiting|length }}</caption>
<thead><tr><th>Task</th><th>Arguments</th><th>Queue</th><th>Priority</th><th>Due</th><th></th></tr></thead><tbody>
{% for task in each.waiting %}<tr><td>{{ task.name }}</td><td>{{ task.arguments }}</td><td>{{ task.queue }}</td>
<td>{{ task.priority }}</td><td>{{ task.at|date:"Y-m-d H:i:s" }}</td>
<td>{% if may_change %}<button class="button" name="cancel" value="{{ each.alias }} {{ task.id }}">Cancel</button>
{% endif %}</td></tr>{% empty %}<tr><td colspan="6">None.</td></tr>{% endfor %}</tbody></table>
<table><caption>Run: the latest {{ each.results|length }}</caption>
<thead><tr><th>Task</th><th>Arguments</th><th>Queue</th><th>Status</th><th>At</th><th>Error</th><th></th></tr></thead>
<tbody>{% for task in each.results %}<tr><td>{{ task.name }}</td><td>{{ task.arguments }}</td><td>{{ task.queue }}</td>
<td>{{ task.status }}</td><td>{{ task.at|date:"Y-m-d H:i:s" }}</td>
<td>{% if task.error %}<details><summary>{{ task.error }}</summary><pre>{{ task.traceback }}</pre></details>{% endif %}
</td><td>{% if may_change and task.ended %}
<button class="button" name="again" value="{{ each.alias }} {{ task.id }}">Run again</button>{% endif %}</td></tr>
{% empty %}<tr><td colspan="7">None.</td></tr>{% endfor %}</tbody></table></div>
{% endfor %}</form>{% endblock %}"""


class TaskLine(NamedTuple):
    """A task on the page."""

    id: str
    name: str
    arguments: str
    queue: str
    priority: int
    at: Any
    status: str = ""
    error: str = ""
    traceback: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ("SUCCESSFUL", "FAILED")


@admin.register(AfterlogTask)
class AfterlogTaskAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """One page, in the place of a list; there is nothing to add or to delete."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Look (GET), cancel or run again (POST)."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            if not self.has_change_permission(request):
                raise PermissionDenied
            self._do(request)
            return HttpResponseRedirect(request.get_full_path())
        context = {
            **self.admin_site.each_context(request), "title": "Tasks",
            "may_change": self.has_change_permission(request), "backends": [shown(each) for each in our_backends()],
        }  # fmt: skip
        return HttpResponse(engines["django"].from_string(PAGE).render(context, request))

    def _do(self, request: HttpRequest) -> None:
        for name, do in (("cancel", cancel), ("again", run_again)):
            alias, _, result_id = request.POST.get(name, "").partition(" ")
            backend = next((each for each in our_backends() if each.alias == alias), None)
            if backend is not None:
                try:
                    level, told = do(backend, result_id)
                except (TaskResultDoesNotExist, ImportError, AfterlogError) as error:
                    level, told = messages.ERROR, f"Not there: {result_id} ({type(error).__name__}: {error})"
                self.message_user(request, told, level)


def our_backends() -> list[AfterlogBackend]:
    """Those of the settings that are ours."""
    found = [task_backends[alias] for alias in task_backends]
    return [each for each in found if isinstance(each, AfterlogBackend)]


def cancel(backend: AfterlogBackend, result_id: str) -> tuple[int, str]:
    """What to tell."""
    if backend.cancel(result_id):
        return messages.SUCCESS, f"Cancelled: {result_id}"
    return messages.WARNING, f"Too late: {result_id} is due, or was cancelled before"


def run_again(backend: AfterlogBackend, result_id: str) -> tuple[int, str]:
    """The same task and arguments, enqueued anew, at once."""
    result = backend.get_result(result_id)
    again = backend.enqueue(result.task.using(run_after=None), result.args, result.kwargs)
    return messages.SUCCESS, f"Enqueued again: {result.task.name}, as {again.id}"


def shown(backend: AfterlogBackend) -> dict[str, Any]:
    """Of one backend. What its store says where it cannot be asked is shown, too."""
    lines: dict[str, Any] = {"alias": backend.alias, "waiting": [], "results": [], "error": ""}
    try:
        lines["waiting"] = _waiting(backend)
        lines["results"] = _results(backend)
    except AfterlogError as error:
        lines["error"] = str(error)
    return lines


def _waiting(backend: AfterlogBackend) -> list[TaskLine]:
    store, found = backend.store(), list[TaskLine]()
    for queue in backend.queues:
        for record in store.pending(backend.topic(queue), limit=SHOWN):
            found += _line(str(record.id), record.value, record.due)
    return sorted(found, key=lambda each: each.at)[:SHOWN]


def _results(backend: AfterlogBackend) -> list[TaskLine]:
    """The latest first."""
    store, topic = backend.store(), backend.results_topic()
    last_ms, found = store.clock.now_ms() + backend.result_ttl // MILLISECOND, list[TaskLine]()
    for span_ms in (*SPANS_MS, None):
        after = None if span_ms is None else max(last_ms - span_ms, 0)
        records = store.pending(topic, limit=LOOKED_AT, after=after)
        if len(records) >= SHOWN or span_ms is None:
            break
    for record in records[-SHOWN:]:
        key = dict(record.headers).get("unique-key") or b""
        found += _line(key.decode(), record.value, record.due - backend.result_ttl // MILLISECOND)
    return found[::-1]


def _line(result_id: str, value: bytes | None, at_ms: int) -> list[TaskLine]:
    """Of a record; none of one that is no task."""
    try:
        said = of_bytes(value)
        task = said if "status" not in said else said["task"]
        [*_, error] = said.get("errors") or [["", ""]]
        arguments = [*map(repr, task["args"]), *(f"{name}={each!r}" for name, each in task["kwargs"].items())]
        return [
            TaskLine(
                result_id, task["task"], ", ".join(arguments)[:200], task["queue"], task["priority"], time_of(at_ms),
                said.get("status", ""), *error,
            )
        ]  # fmt: skip
    except (InvalidRecord, KeyError, TypeError, AttributeError):
        return []
