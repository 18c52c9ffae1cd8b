"""Where Django finds `afterlog_worker`, under the name that it asks for."""

from __future__ import annotations

from afterlog.integrations.django.worker_command import WorkerCommand as Command

__all__ = ["Command"]
