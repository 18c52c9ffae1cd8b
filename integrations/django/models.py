"""What the permissions for the admin's page are of. There is no table of it: tasks are in the log."""

from __future__ import annotations

from django.db import models


class AfterlogTask(models.Model):  # type: ignore[misc]
    """`afterlog.view_afterlogtask`: look at the page; `afterlog.change_afterlogtask`: cancel, and run again."""

    class Meta:
        app_label = "afterlog"
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "task"
        verbose_name_plural = "tasks"
