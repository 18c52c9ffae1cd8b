"""The page: what there is, a form for one more, and a button that takes one back."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template import engines
from django.urls import path
from django.utils import timezone
from django.views.decorators.http import require_POST
from django_tasks import default_task_backend

from examples.django.models import Reminder
from examples.django.tasks import wait_for

PAGE = """<!doctype html><title>Reminders</title><meta http-equiv="refresh" content="5">
<form method="post" action="/remind">{% csrf_token %}
  <input name="text" required maxlength="200" placeholder="Remind me of">
  in <input name="seconds" type="number" min="0" value="10" required> s <button>Add</button></form>
<ul>{% for each in reminders %}<li>{{ each.text }}: {% if each.reminded %}sent {{ each.reminded|time:"H:i:s" }}
  {% else %}due {{ each.due|time:"H:i:s" }}
  <form method="post" action="/cancel/{{ each.pk }}">{% csrf_token %}<button>Cancel</button></form>
  {% endif %}</li>{% empty %}<li>None yet.</li>{% endfor %}</ul>"""


def show(request: HttpRequest) -> HttpResponse:
    """The newest first."""
    page = engines["django"].from_string(PAGE)
    return HttpResponse(page.render({"reminders": Reminder.objects.order_by("-pk")[:100]}, request))


@require_POST
def remind_me(request: HttpRequest) -> HttpResponse:
    """The row, and behind its commit the task."""
    due = timezone.now() + timedelta(seconds=float(request.POST["seconds"]))
    with transaction.atomic():
        reminder = Reminder.objects.create(text=request.POST["text"], due=due)
        transaction.on_commit(partial(wait_for, reminder))
    return HttpResponseRedirect("/")


@require_POST
def cancel(request: HttpRequest, number: int) -> HttpResponse:
    """Take the task back: where that was in time the row goes, too."""
    reminder = get_object_or_404(Reminder, pk=number)
    if default_task_backend.cancel(reminder.task):
        reminder.delete()
    return HttpResponseRedirect("/")


urlpatterns = [path("", show), path("remind", remind_me), path("cancel/<int:number>", cancel)]
