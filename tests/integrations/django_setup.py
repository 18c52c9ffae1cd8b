"""Django's settings for the tests; `python -m tests.integrations.django_setup COMMAND …` is their manage.py."""

from __future__ import annotations

import sys
from datetime import timedelta

import django
from django.conf import settings

from afterlog.base.environment import variable


def set_up() -> None:
    """Once."""
    if settings.configured:
        return
    settings.configure(
        SECRET_KEY="of tests",
        USE_TZ=True,
        INSTALLED_APPS=[
            "django_tasks",
            "afterlog.integrations.django",
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        ROOT_URLCONF="tests.integrations.shop_urls",
        ALLOWED_HOSTS=["testserver"],
        STATIC_URL="static/",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        TASKS={
            "default": {
                "BACKEND": "afterlog.integrations.django.AfterlogBackend",
                "QUEUES": ["default", "mail@host"],
                "OPTIONS": {
                    "STORE": f"afterlog://{variable('DJANGO_STORE') or '/nowhere'}",
                    "LEASE": timedelta(milliseconds=500),
                },
            }
        },
    )
    django.setup()


if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    set_up()
    execute_from_command_line(["manage.py", *sys.argv[1:]])
