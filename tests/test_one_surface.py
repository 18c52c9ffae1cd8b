"""What can be asked of a store stands in one place: a parameter that is added there is everywhere."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import afterlog
from afterlog import aio
from afterlog.client.async_readers import AsyncServedConsumer, AsyncServedSubscription
from afterlog.client.async_store import AsyncServedStore
from afterlog.client.served_consumer import ServedConsumer, ServedSubscription
from afterlog.subscription.reader_settings import ReaderOptions
from afterlog.surface import ConsumerSurface, StoreSurface, SubscriptionSurface

ADDED = '''
import importlib.util
import inspect
import sys
import tempfile


def with_lines(module, *added):
    """The module as it is with these lines more, each above one that is there once."""
    spec = importlib.util.find_spec(module)
    with open(spec.origin) as file:
        source = file.read()
    for line, above in added:
        assert source.count(above) == 1, above
        source = source.replace(above, line + above)
    made = sys.modules[module] = importlib.util.module_from_spec(spec)
    exec(compile(source, spec.origin, "exec"), made.__dict__)


with_lines(
    "afterlog.subscription.reader_settings",
    ("    priority: int\\n", "    replicated: bool | None\\n"),
    ("    priority: int = 7\\n", "    replicated: bool | None = field(\\n"),
)

import afterlog
import afterlog.aio
import afterlog.worker
from afterlog.client.async_store import AsyncServedStore
from afterlog.server.openapi import document
from afterlog.server.table import ENDPOINTS

stores = afterlog.Store, afterlog.ServedStore, afterlog.aio.AsyncStore, AsyncServedStore
for call in (*(each.subscribe for each in stores), afterlog.worker.Worker.handle):
    assert inspect.signature(call).parameters["priority"].default == 7, call

path = document(ENDPOINTS)["paths"]["/v1/topics/{topic}/subscriptions/{subscription}"]["put"]
reader = path["requestBody"]["content"]["application/json"]["schema"]["properties"]["reader"]
assert reader["properties"]["priority"]["default"] == 7, reader

with tempfile.TemporaryDirectory() as folder:
    with afterlog.open(folder, serve=True) as store, afterlog.connect(folder) as client:
        client.create_topic("mail")
        with client.subscribe("mail", "sender", priority=9):
            [opened] = store._subscriptions.readers("mail")
            assert opened._settings.priority == 9
'''


def test_a_keyword_of_subscribe_is_added_in_one_place(tmp_path: Path) -> None:
    script = tmp_path / "added.py"
    script.write_text(ADDED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (0, "") == (done.returncode, done.stderr)


FACADES = [
    (StoreSurface, afterlog.Store, afterlog.ServedStore, aio.AsyncStore, AsyncServedStore),
    (SubscriptionSurface, afterlog.Subscription, ServedSubscription, aio.AsyncSubscription, AsyncServedSubscription),
    (ConsumerSurface, afterlog.Consumer, ServedConsumer, aio.AsyncConsumer, AsyncServedConsumer),
]


@pytest.mark.parametrize(
    ("surface", "facade"), [(surface, facade) for surface, *facades in FACADES for facade in facades]
)
def test_help_reads_alike(surface: type, facade: type) -> None:
    """`help(ServedStore.purge)` showed `-> Steps[int]`, and "As of an embedded store."."""
    for name, said in vars(surface).items():
        if inspect.isfunction(said) and not name.startswith("_"):
            made = getattr(facade, name)
            assert said.__doc__, name
            assert inspect.getdoc(said) == inspect.getdoc(made), name
            there, here = (inspect.signature(each) for each in (said, made))
            if name not in SPELLED_OUT:
                assert there.parameters == here.parameters, name
            assert "Steps" not in str(here), name


SPELLED_OUT = {"subscribe"}
"""Whose keywords `help` shows one by one, where the protocol has a TypedDict."""


@pytest.mark.parametrize(("asked", "is_durable"), [({}, True), ({"durable_leases": False}, False)])
def test_leases_outlive_a_server_unless_somebody_says_no(
    tmp_path: Path, asked: ReaderOptions, is_durable: bool
) -> None:
    """`connect(…).subscribe(durable_leases=False)` was taken, and dropped."""
    with afterlog.open(tmp_path, serve=True) as store, afterlog.connect(tmp_path) as client:
        store.create_topic("mail")
        with client.subscribe("mail", "sender", **asked):
            [opened] = store._subscriptions.readers("mail")
            assert is_durable is opened._settings.durable_leases
