"""What is done later."""

from __future__ import annotations

from django.utils import timezone
from django_tasks import task

from examples.django.models import Reminder


@task()
def remind(number: int) -> None:
    """Send the mail. A task whose worker was killed runs again, so it says by the row that it is done, once."""
    Reminder.objects.filter(pk=number, reminded=None).update(reminded=timezone.now())


def wait_for(reminder: Reminder) -> None:
    """Behind the commit: a task that is enqueued in a transaction is there whether it commits or not."""
    result = remind.using(run_after=reminder.due).enqueue(reminder.pk)
    Reminder.objects.filter(pk=reminder.pk).update(task=result.id)
