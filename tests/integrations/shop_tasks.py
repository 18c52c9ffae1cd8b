"""Tasks of Django, as an application has them."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from django_tasks import task

from afterlog.base.environment import variable


@task()
def add(a: int, b: int) -> int:
    return a + b


@task()
async def add_async(a: int, b: int) -> int:
    return a + b


@task(takes_context=True)
def attempt_of(context: Any) -> int:
    return int(context.attempt)


@task()
def fail(reason: str) -> None:
    raise ValueError(reason)


@task()
def leave() -> None:
    sys.exit(3)


@task()
def answer_with_no_json() -> object:
    return object()


@task(priority=7, queue_name="mail@host")
def urgent() -> str:
    return "urgent"


@task()
def note(number: int, due_us: int) -> None:
    """That it ran, and how late, to a file: outside of all that is tried."""
    descriptor = os.open(variable("DJANGO_RAN"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b"%d %d\n" % (number, time.time_ns() // 1_000 - due_us))
    os.close(descriptor)
