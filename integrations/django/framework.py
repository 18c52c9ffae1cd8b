"""What is used of Django's tasks: of `django_tasks` where that is an installed app, else of Django, 6 or later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from django.conf import settings

if TYPE_CHECKING or "django_tasks" in settings.INSTALLED_APPS:
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json
else:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

AnyTask: TypeAlias = "Task[Any, Any]"
AnyResult: TypeAlias = "TaskResult[Any]"

__all__ = [
    "AnyResult", "AnyTask", "BaseTaskBackend", "TaskContext", "TaskError", "TaskResult", "TaskResultDoesNotExist",
    "TaskResultStatus", "normalize_json", "task_backends", "task_enqueued", "task_finished", "task_started",
]  # fmt: skip
