"""Of the site. Its data is a folder: the database, and the store with the tasks."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("REMINDERS_DATA", "reminders-site"))
SECRET_KEY = "only for the example"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["django_tasks", "afterlog.integrations.django", "examples.django.apps.Reminders"]
MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware"]
ROOT_URLCONF = "examples.django.views"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA / "db.sqlite3",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
DEBUG = False
TASKS = {
    "default": {
        "BACKEND": "afterlog.integrations.django.AfterlogBackend",
        "OPTIONS": {"STORE": str(DATA / "tasks")},
    }
}
