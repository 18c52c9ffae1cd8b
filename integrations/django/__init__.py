"""Django's tasks over a store: `django_tasks`, and `django.tasks` of Django 6.

    INSTALLED_APPS = [..., "django_tasks", "afterlog.integrations.django"]
    TASKS = {"default": {
        "BACKEND": "afterlog.integrations.django.AfterlogBackend",
        "OPTIONS": {"STORE": "afterlog:///srv/data"},
    }}

`backend` enqueues and finds results, `task_worker` runs what is due, `results` is how both write tasks and results
down, `admin` is a page for both, `framework` is which of the two packages is meant. Begin with `backend`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "AfterlogBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from afterlog.integrations.django.backend import AfterlogBackend

    return AfterlogBackend
