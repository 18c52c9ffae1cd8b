"""Bulk append and bulk drain, as columns: every distribution of due times, 100 B and 1 KiB."""

from __future__ import annotations

import itertools
import shutil
from functools import partial
from pathlib import Path

import pytest

import afterlog
from bench.conftest import Measure
from bench.harness import read_bytes, write_bytes
from bench.workloads import TOPIC, Dues, drain, dues, log_bytes, logs, make_due, new_store, values

RECORDS = {100: 1_000_000, 1024: 200_000}
GRID = list(itertools.product(("equal", "uniform", "exponential"), RECORDS))
DURABILITIES = {"always": afterlog.ALWAYS, "os": afterlog.OS}


@pytest.mark.parametrize(
    ("kind", "size", "durability", "given"),
    [(kind, size, "always", "columns") for kind, size in GRID]
    + [("uniform", 100, "os", "columns"), ("uniform", 100, "always", "list")],
)
def test_append(measure: Measure, tmp_path: Path, kind: Dues, size: int, durability: str, given: str) -> None:
    count = RECORDS[size]
    offsets, data = values(count, size)
    sent: object = (offsets, data)
    if given == "list":
        text = data.tobytes()
        sent = [text[start : start + size] for start in range(0, len(text), size)]
    due = dues(kind, count)
    folder = tmp_path / "store"
    stores: list[afterlog.Store] = []

    def prepare() -> None:
        while stores:
            stores.pop().close()
        shutil.rmtree(folder, ignore_errors=True)
        stores.append(new_store(folder, DURABILITIES[durability]))

    def append() -> None:
        stores[0].send_many(TOPIC, sent, deliver_after=due)

    prepare()
    append()
    written = memoryview(log_bytes(folder))
    sizes = {"value_bytes": size, "log_bytes": len(written), "due": kind, "durability": durability, "given": given}
    measure(
        f"append-bulk-{kind}-{size}B-{durability}-{given}", sizes, count, append,
        lambda: write_bytes(tmp_path / "floor", written, sync=durability == "always"), prepare,
    )  # fmt: skip
    stores.pop().close()


@pytest.mark.parametrize("spread_ms", [0, 10, 100, 1_000])
def test_append_with_a_spread(measure: Measure, tmp_path: Path, spread_ms: int) -> None:
    count, size = RECORDS[100], 100
    sent, due = values(count, size), dues("uniform", count)
    folder = tmp_path / "store"
    stores: list[afterlog.Store] = []

    def prepare() -> None:
        while stores:
            stores.pop().close()
        shutil.rmtree(folder, ignore_errors=True)
        stores.append(new_store(folder, afterlog.OS, spread_ms=spread_ms))

    def append() -> None:
        stores[0].send_many(TOPIC, sent, deliver_after=due)

    prepare()
    append()
    written = memoryview(log_bytes(folder))
    sizes = {"value_bytes": size, "log_bytes": len(written), "due": "uniform", "spread_ms": spread_ms}
    floor = partial(write_bytes, tmp_path / "floor", written, sync=False)
    measure(f"append-bulk-uniform-{size}B-spread-{spread_ms}", sizes, count, append, floor, prepare)
    stores.pop().close()


@pytest.mark.parametrize(("kind", "size"), GRID)
def test_drain(measure: Measure, tmp_path: Path, kind: Dues, size: int) -> None:
    count = RECORDS[size]
    folder = tmp_path / "store"
    groups = itertools.count()
    with new_store(folder) as store:
        store.send_many(TOPIC, values(count, size), deliver_after=dues(kind, count))
        make_due(store)
        sizes = {"value_bytes": size, "log_bytes": len(log_bytes(folder)), "due": kind}
        measure(
            f"drain-bulk-{kind}-{size}B", sizes, count,
            lambda: drain(store, f"group-{next(groups)}"), lambda: [read_bytes(path) for path in logs(folder)],
        )  # fmt: skip
        assert count == drain(store, "last")
