"""The application: a broker that `afterlog serve` has, and one task."""

from __future__ import annotations

import os
import time

from celery import Celery

import afterlog.integrations.celery  # noqa: F401 (which makes the URL known)

app = Celery("tasks", broker=f"afterlog+unix://{os.environ.get('TASKS_DATA', '/tmp/tasks')}/server.sock")
app.conf.task_acks_late = True
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_transport_options = {"lease_ms": 3_000}


@app.task  # type: ignore[untyped-decorator]
def remind(number: int, due: float) -> None:
    """A line for each run: which task, when it was due and when it ran."""
    with open(os.environ["TASKS_DONE"], "a", encoding="ascii") as file:
        file.write(f"{number} {due} {time.time()}\n")
