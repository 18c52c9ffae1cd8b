"""Tasks that are due later, over this log and over what frameworks have else; and workers that are killed.

    python -m bench.tasks [--framework dramatiq|celery|django] [--tasks 3000] [--wait 12] [--threads 8] [--spread 60]

The same task and worker each time, over Redis (AOF, `appendfsync everysec` and `always`), over a folder that worker
and sender share (the store is in one of them), and over `afterlog serve` beside them; an fdatasync each send.

    one instant   enqueue so many tasks that are due at one time; memory of the worker before, and while all wait; how
                  fast they run then, and how late they are
    spread        only with --spread: the same tasks, due one after the other over so many seconds
    killed        200 tasks, due in 6 s; the worker is killed with -9 after 2 s, and another one started; of how many it
                  is known at most 10 s after their time that they ran, and how often
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from afterlog.base.files import temporary_folder
from bench.harness import machine
from bench.rivals.server import Server, program
from bench.rivals.usage import memory_bytes

RAN: Final = struct.Struct("<qq")
"""Of each task that ran: its number, and how many us after its time."""
KINDS: Final = ("redis everysec", "redis always", "afterlog shared", "afterlog served")


def noted(path: str) -> Callable[[int, int], None]:
    """What every task does: it appends to a file that it ran, and how late."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def ran(number: int, due_us: int) -> None:
        os.write(descriptor, RAN.pack(number, time.time_ns() // 1_000 - due_us))

    return ran


def is_redis(url: str) -> bool:
    return url.startswith("unix:")


def until_told() -> None:
    """A worker has started; it goes on until its input ends."""
    os.write(1, b"started\n")
    sys.stdin.read()


class DramatiqTasks:
    """With Dramatiq's own middleware; a worker is threads of one process."""

    def __init__(self, url: str, path: str) -> None:
        import dramatiq

        if is_redis(url):
            from dramatiq.brokers.redis import RedisBroker

            self.broker: Any = RedisBroker(url=url)
        else:
            from afterlog.integrations.dramatiq import AfterlogBroker

            self.broker = AfterlogBroker(url)
        dramatiq.set_broker(self.broker)
        self.actor = dramatiq.actor(noted(path), actor_name="ran")

    def send(self, number: int, due_us: int, delay_us: int) -> None:
        self.actor.send_with_options(args=(number, due_us), delay=-(-delay_us // 1_000))

    def work(self, threads: int) -> None:
        import dramatiq

        worker = dramatiq.Worker(self.broker, worker_threads=threads)
        worker.start()
        until_told()
        worker.stop()

    def close(self) -> None:
        self.broker.close()


class CeleryTasks:
    """A worker is threads of one process (`-P threads`), with `acks_late`; no results."""

    def __init__(self, url: str, path: str) -> None:
        from celery import Celery

        import afterlog.integrations.celery  # noqa: F401  (which makes its URLs known)

        self.app = Celery("tasks", broker=url.replace("unix://", "redis+socket://") if is_redis(url) else url)
        self.app.conf.update(
            task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True,
            worker_hijack_root_logger=False,
        )  # fmt: skip
        self.app.task(name="ran")(noted(path))

    def send(self, number: int, due_us: int, delay_us: int) -> None:
        eta = datetime.fromtimestamp(due_us / 1e6, UTC) if delay_us else None
        self.app.send_task("ran", (number, due_us), eta=eta)

    def work(self, threads: int) -> None:
        from celery.signals import worker_ready

        def end() -> None:
            until_told()
            os.kill(os.getpid(), signal.SIGTERM)

        worker_ready.connect(lambda **more: threading.Thread(target=end, daemon=True).start(), weak=False)
        self.app.worker_main(["--quiet", "worker", "-P", "threads", "-c", str(threads), "-l", "error"])

    def close(self) -> None:
        self.app.pool.force_close_all()
        self.app.close()


class DjangoTasks:
    """django-tasks with our backend, whose results are kept; `manage.py afterlog_worker` is one process of threads."""

    def __init__(self, url: str, path: str) -> None:
        import django
        from django.conf import settings

        if not settings.configured:
            backend = {"BACKEND": "afterlog.integrations.django.AfterlogBackend", "OPTIONS": {"STORE": url}}
            settings.configure(INSTALLED_APPS=["django_tasks"], USE_TZ=True, TASKS={"default": backend})
            django.setup()
        from django_tasks import task_backends
        from django_tasks.base import Task

        from afterlog.integrations.django.backend import AfterlogBackend

        self.backend = task_backends["default"] = AfterlogBackend("default", {"OPTIONS": {"STORE": url}})
        here: Any = importlib.import_module("bench.tasks")  # also where this is the program that runs
        here.noting = noted(path)
        here.of_django.__qualname__ = "django_task"
        self.task = here.django_task = Task(func=here.of_django)

    def send(self, number: int, due_us: int, delay_us: int) -> None:
        due = datetime.fromtimestamp(due_us / 1e6, UTC) if delay_us else None
        self.task.using(run_after=due).enqueue(number, due_us)

    def work(self, threads: int) -> None:
        from afterlog.integrations.django.task_worker import TaskWorker

        worker = TaskWorker(self.backend, ["default"], threads)
        told = threading.Thread(target=lambda: (until_told(), worker.stop()), daemon=True)
        told.start()
        worker.run()

    def close(self) -> None:
        self.backend.close()


noting: Callable[[int, int], None] | None = None


def of_django(number: int, due_us: int) -> None:
    """Django finds a task by the name that its function has in a module."""
    assert noting is not None
    noting(number, due_us)


FRAMEWORKS: Final[dict[str, type[Any]]] = {"dramatiq": DramatiqTasks, "celery": CeleryTasks, "django": DjangoTasks}


@contextlib.contextmanager
def worker_process(framework: str, url: str, path: Path, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-W", "ignore", "-m", "bench.tasks", "--framework", framework]
    command += ["--worker", url, str(path), "--threads", str(threads)]
    with (path.parent / "worker.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        if b"started\n" not in iter(process.stdout.readline, b""):
            raise RuntimeError(f"the worker did not start: {(path.parent / 'worker.log').read_text()}")
        yield process
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


@contextlib.contextmanager
def place(kind: str, folder: Path) -> Iterator[tuple[str, Server | None]]:
    """The URL of a broker, and what serves it."""
    if kind == "afterlog shared":
        yield f"afterlog://{folder}/store", None
        return
    if kind == "afterlog served":
        server = Server([sys.executable, "-m", "afterlog", "serve", f"{folder}/store"], folder)
        socket = folder / "store" / "server.sock"
        url = f"afterlog+unix://{socket}"
    else:
        socket = folder / "socket"
        server = Server(
            [
                program("redis-server") or "redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "",
                "--dir", str(folder), "--appendonly", "yes", "--appendfsync", kind.split()[1],
            ],
            folder,
        )  # fmt: skip
        url = f"unix://{socket}"
    try:
        server.ready(lambda: socket.stat())
        yield url, server
    finally:
        server.stop()


def rows(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Number and lateness of each run: int64[n, 2]."""
    return np.frombuffer(path.read_bytes() if path.exists() else b"", np.int64).reshape(-1, 2)


def enqueue(
    framework: str, path: Path, url: str, count: int, wait_s: float, spread_s: float = 0.0
) -> tuple[float, int]:
    """Tasks that are due after `wait_s`, together or one after the other; seconds that it took, and when the first is
    due, in us."""
    tasks = FRAMEWORKS[framework](url, str(path))
    begun_s, due_us = time.perf_counter(), time.time_ns() // 1_000 + int(wait_s * 1e6)
    for number in range(count):
        at_us = due_us + int(number * spread_s / count * 1e6)
        tasks.send(number, at_us, max(at_us - time.time_ns() // 1_000, 0))
    took_s = time.perf_counter() - begun_s
    tasks.close()
    return took_s, due_us


def sleep_until(us: int) -> None:
    time.sleep(max(us / 1e6 - time.time(), 0))


def waited_for(
    framework: str, kind: str, count: int, wait_s: float, threads: int, spread_s: float = 0.0
) -> dict[str, Any]:
    with temporary_folder() as folder, place(kind, folder) as (url, server):
        path = folder / "ran"
        with worker_process(framework, url, path, threads) as worker:
            time.sleep(0.5)
            before = memory_bytes([worker.pid])
            took_s, due_us = enqueue(framework, path, url, count, wait_s, spread_s)
            if time.time_ns() // 1_000 > due_us:
                raise RuntimeError(f"{kind}: {count} took {took_s:.1f} s to enqueue: give a longer --wait")
            sleep_until(due_us - 200_000)
            waiting = memory_bytes([worker.pid])
            served = memory_bytes([] if server is None else server.processes())
            end_s = time.monotonic() + spread_s + 120
            while len(rows(path)) < count and time.monotonic() < end_s:
                time.sleep(0.05)
            late = rows(path)[:, 1] / 1_000
        return {
            "enqueued_per_s": round(count / took_s), "ran": len(late), "ran_once": len({*rows(path)[:, 0].tolist()}),
            "worker_mib": [round(each["private"] / 2**20, 1) for each in (before, waiting)],
            "server_mib": round(served["private"] / 2**20, 1) if server is not None else None,
            "per_s_when_due": None if spread_s else round(len(late) / (late.max() / 1_000)),
            "late_ms_p50": round(float(np.median(late)), 1),
            "late_ms_p99": round(float(np.percentile(late, 99)), 1), "earliest_ms": round(float(late.min()), 2),
        }  # fmt: skip


def killed(
    framework: str, kind: str, threads: int, count: int = 200, wait_s: float = 6.0, watch_s: float = 10.0
) -> dict[str, Any]:
    with temporary_folder() as folder, place(kind, folder) as (url, _):
        path = folder / "ran"
        with worker_process(framework, url, path, threads) as worker:
            _, due_us = enqueue(framework, path, url, count, wait_s)
            sleep_until(due_us - int(wait_s / 1.5 * 1e6))
            worker.send_signal(signal.SIGKILL)
        with worker_process(framework, url, path, threads):
            sleep_until(due_us)
            while len({*rows(path)[:, 0].tolist()}) < count and time.time() < due_us / 1e6 + watch_s:
                time.sleep(0.05)
            runs = Counter(rows(path)[:, 0].tolist())
            late = rows(path)[:, 1] / 1_000
        return {
            "tasks": count, "ran": len(runs), "ran_again": sum(runs.values()) - len(runs),
            "latest_ms": round(float(late.max(initial=0)), 1),
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=3_000)
    parser.add_argument("--wait", type=float, default=12.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--spread", type=float)
    parser.add_argument("--framework", choices=[*FRAMEWORKS], default="dramatiq")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        tasks = FRAMEWORKS[asked.framework](*asked.worker)
        tasks.work(asked.threads)
        tasks.close()
        return {}
    figures: dict[str, Any] = {"machine": machine(), "framework": asked.framework, "tasks": asked.tasks}
    for kind in asked.only.split(","):
        if asked.framework == "django" and "redis" in kind:
            continue  # there is no backend of it
        figures[kind] = {
            "one_instant": waited_for(asked.framework, kind, asked.tasks, asked.wait, asked.threads),
            "killed": killed(asked.framework, kind, asked.threads),
        }
        if asked.spread is not None:
            figures[kind]["spread"] = waited_for(
                asked.framework, kind, asked.tasks, asked.wait, asked.threads, asked.spread
            )
        print(kind, json.dumps(figures[kind]), flush=True)
    return figures


if __name__ == "__main__":
    main()
