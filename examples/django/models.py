"""What the site knows."""

from __future__ import annotations

from django.db import models


class Reminder(models.Model):
    """One that somebody has asked for."""

    text = models.CharField(max_length=200)
    due = models.DateTimeField()
    task = models.CharField(max_length=200, default="")
    """The id of its task; none where the process ended between the commit and the enqueue."""
    reminded = models.DateTimeField(null=True)
