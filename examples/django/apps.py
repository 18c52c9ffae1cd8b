"""The site's application, under a label of its own: `django` is taken."""

from __future__ import annotations

from django.apps import AppConfig


class Reminders(AppConfig):
    name = "examples.django"
    label = "reminders"
