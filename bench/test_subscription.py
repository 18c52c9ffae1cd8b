"""Subscriptions: receive and ack in bulk and one by one, nacks over and over, a million retries, a million holes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import afterlog
from bench.conftest import Measure, told
from bench.harness import Pair, Times, record, write_each
from bench.subscriptions import filled, nack_all, names, receive_and_ack, work_off_each
from bench.workloads import TOPIC, drain, in_new_process

DURABILITIES = {"always": afterlog.ALWAYS, "interval": afterlog.Durability.interval(100), "os": afterlog.OS}
RECORDS = 200_000
COUNTS = {"always": 100, "interval": 2_000, "os": 2_000}
ROUNDS = 7
MILLION = 1_000_000


@pytest.mark.parametrize("durability", DURABILITIES)
def test_bulk(measure: Measure, tmp_path: Path, durability: str) -> None:
    """1,000 at a time. The floor drains the same records with a consumer, which acks nothing."""
    with filled(tmp_path / "store", RECORDS, DURABILITIES[durability]) as store:
        store.sync()
        sizes = {"value_bytes": 100, "at_once": 1_000, "durability": durability}
        measure(
            f"receive-ack-bulk-{durability}", sizes, RECORDS,
            lambda: receive_and_ack(store, f"s{next(names)}"), lambda: drain(store, f"g{next(names)}"),
        )  # fmt: skip


@pytest.mark.parametrize("durability", DURABILITIES)
def test_single(benchmark: Any, tmp_path: Path, durability: str) -> None:
    """`for message in subscription: with message: …`. The floor writes what the journal gets for an ack."""
    count, pair = COUNTS[durability], Pair(1)

    def add(into: Times, times: Times) -> None:
        into.cpu_s += times.cpu_s
        into.wall_s += times.wall_s

    with filled(tmp_path / "store", ROUNDS * count, DURABILITIES[durability]) as store:
        store.sync()
        benchmark.pedantic(
            lambda: add(pair.ours, work_off_each(store, "each", count)),
            setup=lambda: add(
                pair.floor, write_each(tmp_path / "floor", bytes(60), count, sync=durability == "always")
            ),
            rounds=ROUNDS,
        )
    sizes = {"value_bytes": 100, "durability": durability, "operations": count * ROUNDS}
    told(record(f"receive-ack-single-{durability}", sizes, pair.figures()))


def test_nacks(measure: Measure, tmp_path: Path) -> None:
    """Received and nacked 1,000 at a time, over and over. The floor drains the same records."""
    with filled(tmp_path / "store", RECORDS) as store, store.subscribe(TOPIC, "nacks") as subscription:
        measure(
            "receive-nack-bulk-os", {"value_bytes": 100, "at_once": 1_000, "durability": "os"}, RECORDS,
            lambda: nack_all(store, subscription), lambda: drain(store, f"g{next(names)}"),
        )  # fmt: skip


@pytest.mark.parametrize("rounds", [5, 50])
def test_the_journal_does_not_grow_with_nacks(benchmark: Any, tmp_path: Path, rounds: int) -> None:
    found = _found(benchmark, "nack_rounds", tmp_path, 20_000, rounds)
    figures = _figures(20_000 * rounds, found, "nack", "drain") | {"journal": _bytes(found)}
    told(record(f"nack-{rounds:02d}-times", {"records": 20_000, "rounds": rounds}, figures))


def test_a_million_retries(benchmark: Any, tmp_path: Path) -> None:
    """Nacked, and received again and acked. The floor drains the same records."""
    found = _found(benchmark, "retries", tmp_path, MILLION)
    assert MILLION == found["retrying"] == found["acked"]
    figures = _figures(MILLION, found, "nack", "drain") | {"memory": _bytes(found)}
    told(record("retries-1000000-nacked", {"records": MILLION}, figures))
    told(record("retries-1000000-again", {"records": MILLION}, _figures(MILLION, found, "again", "drain")))


def test_a_million_holes(benchmark: Any, tmp_path: Path) -> None:
    """Acks between them, and three openings: they were leased at a crash, retrying at one, and at a clean close."""
    found = _found(benchmark, "holes", tmp_path, MILLION)
    assert MILLION == found["leased"]
    names = ("ack_cpu_p50_ns", "ack_cpu_p99_ns", "ack_wall_p50_ns", "ack_wall_p99_ns")
    ack_ns = {name.removesuffix("_ns"): round(found[name] * 1e9) for name in names}
    for name, close in (("leased", 0), ("retrying", 1), ("closed", 0)):
        opened = in_new_process("reopen_holes", tmp_path, close, module="bench.subscriptions")
        assert MILLION == opened["retrying"]
        figures = _figures(1, opened, "open", "floor") | {"ack_ns": ack_ns, "journal": _bytes(found)}
        told(record(f"open-1000000-holes-{name}", {"holes": MILLION}, figures))


def _found(benchmark: Any, workload: str, folder: Path, *numbers: int) -> dict[str, float]:
    found: list[dict[str, float]] = []
    benchmark.pedantic(
        lambda: found.append(in_new_process(workload, folder, *numbers, module="bench.subscriptions")), rounds=1
    )
    return found[0]


def _figures(count: int, found: dict[str, float], ours: str, floor: str) -> dict[str, Any]:
    times = [Times([found[f"{name}_cpu_s"]], [found[f"{name}_wall_s"]]) for name in (ours, floor)]
    return Pair(count, *times).figures()


def _bytes(found: dict[str, float]) -> dict[str, int]:
    return {name: int(value) for name, value in found.items() if name.endswith("_bytes")}
