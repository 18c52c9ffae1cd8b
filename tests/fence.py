"""What a change of the house must leave as it is: signatures, HTTP, durable steps, walks. Recorded, and compared.

    python -m tests.fence       writes tests/fenced/ anew; what `git diff` then shows is what has changed for users

- `surface.json`: each public name, and what can be called on it, with its signature; what an error derives from.
- `openapi.json`: the server's document: paths, scopes, bodies, answers.
- `durable_steps.json`: what operations ask of a disk, in order. `tests/campaigns/test_recorded.py` holds that a
  simulated disk is asked for what system calls are made.
- `walks.json`: how many functions of the package a call of a public one enters (`bench.walks`), without comprehensions,
  which are functions up to Python 3.11 only.

Formats on disk have folders of their own: `tests/golden/`.
"""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from afterlog import aio, metrics, tracing, worker
from afterlog import surface as asked
from afterlog.base.config import ALWAYS
from afterlog.client import async_store, served_store
from afterlog.server.openapi import document
from afterlog.server.table import ENDPOINTS
from afterlog.store.store import open_store
from bench.walks import Step, served_walks, walks
from tests.campaigns.simulated_disk import Mark, SimulatedFiles
from tests.support import NOW_MS, PATH, numbered_ids, small

RECORDED = Path(__file__).with_name("fenced")
MODULES = {
    "aio": aio, "metrics": metrics, "surface": asked, "tracing": tracing, "worker": worker,
    "connected": served_store, "connected for asyncio": async_store,
}  # fmt: skip
"""The public ones, and those of what `afterlog.connect` and its asyncio twin answer."""


# Signatures.


def surface() -> dict[str, Any]:
    """Each public name: a class with all that can be called on it, a function with its signature, a constant."""
    named = {name: getattr(afterlog, name) for name in afterlog.__all__ if name != "__version__"}
    for title, module in MODULES.items():
        own = {name: each for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__}
        named |= {f"{title}: {name}": each for name, each in own.items() if _is_public(title, name, each)}
    return {name: _described(each) for name, each in sorted(named.items())}


def _is_public(title: str, name: str, each: Any) -> bool:
    return not name.startswith("_") and (inspect.isclass(each) or not title.startswith("connected"))


def _described(each: Any) -> Any:
    if not inspect.isclass(each):
        return _signature(each) if callable(each) else type(each).__name__
    described: dict[str, Any] = {"is": [base.__name__ for base in each.__mro__[1:-1]]}
    if issubclass(each, Enum):
        return described | {"members": {member.name: member.value for member in each}}
    if not issubclass(each, BaseException):
        described["()"] = _signature(each)
    for name in dir(each):
        if not name.startswith("_") or name in ("__enter__", "__exit__", "__iter__", "__len__", "__getitem__"):
            found = inspect.getattr_static(each, name)
            described[name] = _member(found)
    return described


def _member(found: Any) -> str:
    if isinstance(found, property):
        return f"-> {inspect.signature(found.fget).return_annotation}" if found.fget else "->"
    kind = {classmethod: "class ", staticmethod: "static "}.get(type(found), "")
    function = getattr(found, "__func__", found)
    return kind + _signature(function) if callable(function) else "value"


def _signature(function: Any) -> str:
    try:
        return re.sub(" at 0x[0-9a-f]+", "", str(inspect.signature(function)))
    except ValueError:
        return "()"  # of a builtin


# HTTP.


def openapi() -> Any:
    """By path: in which order the endpoints come says nothing to a client."""
    described = json.loads(json.dumps(document(ENDPOINTS)))
    return {**described, "paths": dict(sorted(described["paths"].items()))}


# Durable steps.


def durable_steps() -> dict[str, list[str]]:
    """What is asked of a disk by each of some operations, in order, under durability `always`."""
    disk, clock = SimulatedFiles(), afterlog.ManualClock(NOW_MS)
    found: dict[str, list[str]] = {}

    def record(name: str, operation: Callable[[], Any]) -> Any:
        begin = len(disk.operations)
        answer = operation()
        found[name] = [_step(each) for each in disk.operations[begin:] if not isinstance(each, Mark)]
        return answer

    with numbered_ids():
        store = record("open of nothing", lambda: _opened(disk, clock))
        record("create_topic", lambda: store.create_topic("mail"))
        record("send", lambda: store.send("mail", b"value", delay=1))
        record("send_many", lambda: store.send_many("mail", [b"value"] * 20, delay=[1] * 20))
        record("send with a unique key", lambda: store.send("mail", b"value", unique_key=b"key"))
        later = store.send("mail", b"later", delay=60)
        record("cancel", lambda: store.cancel(later))
        clock.advance(2_000)
        subscription = record("subscribe", lambda: _subscription(store))
        first, second, third = subscription.receive(3)
        record("ack", lambda: subscription.ack(first))
        record("nack", lambda: subscription.nack(second))
        record("reject", lambda: subscription.reject(third, "no such address"))
        record("close of a subscription", subscription.close)
        record("roll", store.topic("mail").partition(0).log.roll)
        record("sync", store.sync)
        record("purge", lambda: store.purge("mail"))
        record("close", store.close)
        store = record("open after a close", lambda: _opened(disk, clock))
        record("delete_topic", lambda: store.delete_topic("mail"))
        store.close()
    return found


def _subscription(store: afterlog.Store) -> afterlog.Subscription:
    return store.subscribe("mail", "sender", dead_letter="buried", random=np.random.default_rng(1))


def _opened(disk: SimulatedFiles, clock: afterlog.ManualClock) -> afterlog.Store:
    return open_store(PATH, small(durability=ALWAYS), clock, disk, background=False)


def _step(operation: Any) -> str:
    size = f" {len(operation.data)}" if hasattr(operation, "data") else ""
    target = f" -> {operation.target}" if hasattr(operation, "target") else ""
    return f"{type(operation).__name__} {operation.path}{target}{size}"


# Walks.


def walked() -> dict[str, int]:
    """Calls by walk; of those over the socket the fewest of three times, since a timer may come between."""
    found: dict[str, int] = {}
    for measured in (walks, served_walks, served_walks, served_walks):
        with tempfile.TemporaryDirectory() as folder:
            for name, steps in measured(Path(folder)):
                calls = sum(map(_is_counted, steps))
                found[name] = min(calls, found.get(name, calls))
    return found


def _is_counted(step: Step) -> bool:
    return not step[2].endswith(("<listcomp>", "<dictcomp>", "<setcomp>"))


def fences() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "surface", surface
    yield "openapi", openapi
    yield "durable_steps", durable_steps
    yield "walks", walked


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text("utf-8"))


if __name__ == "__main__":
    for name, now in fences():
        (RECORDED / f"{name}.json").write_text(json.dumps(now(), indent=1) + "\n", "utf-8")
