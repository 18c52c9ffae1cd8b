"""`manage.py afterlog_worker`: runs the tasks of a backend until SIGTERM."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import autoreload

from afterlog.integrations.django.backend import AfterlogBackend
from afterlog.integrations.django.framework import task_backends
from afterlog.integrations.django.task_worker import TaskWorker


class WorkerCommand(BaseCommand):  # type: ignore[misc]
    """Its options."""

    help = "Run the tasks that are due, until SIGTERM, which lets those that run end."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--backend", default="default", help="which of TASKS (default)")
        parser.add_argument("--queues", default="", help="a,b: by default all queues that the backend names")
        parser.add_argument("--concurrency", type=int, default=4, help="so many tasks at a time (4)")
        parser.add_argument("--timeout", type=float, default=25.0, help="seconds for those that run at the end (25)")
        parser.add_argument("--reload", action="store_true", help="start again when a source changes: in development")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["reload"]:
            autoreload.run_with_reloader(self.work, **options)
        else:
            self.work(**options)

    def work(self, **options: Any) -> None:
        backend = task_backends[options["backend"]]
        if not isinstance(backend, AfterlogBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is no AfterlogBackend, but {type(backend).__name__}")
        queues = [queue for queue in options["queues"].split(",") if queue] or sorted(backend.queues)
        if not queues:
            raise CommandError("the backend takes any queue: name those to be worked off with --queues")
        worker = TaskWorker(backend, queues, options["concurrency"])
        self.stdout.write(f"{worker.worker_id} works off {', '.join(queues)}")
        worker.run(options["timeout"])
        backend.close()
