"""The app, for its command."""

from __future__ import annotations

from django.apps import AppConfig


class AfterlogConfig(AppConfig):  # type: ignore[misc]
    name = "afterlog.integrations.django"
    label = "afterlog"
