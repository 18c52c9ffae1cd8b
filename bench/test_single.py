"""One record at a time: the latency of a send, and of a poll right behind it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import afterlog
from bench import singly
from bench.conftest import Measure, told
from bench.harness import Pair, Times, record, write_each
from bench.subscriptions import filled
from bench.workloads import log_bytes, new_store, send_and_poll_each, send_each

DURABILITIES = {"always": afterlog.ALWAYS, "os": afterlog.OS}
COUNTS = {"always": 100, "os": 2_000}
"""In each round."""
ROUNDS = 7


def _in_turn(benchmark: Any, ours: Callable[[], Times], floor: Callable[[], Times]) -> Pair:
    pair = Pair(1)

    def add(into: Times, times: Times) -> None:
        into.cpu_s += times.cpu_s
        into.wall_s += times.wall_s

    benchmark.pedantic(lambda: add(pair.ours, ours()), setup=lambda: add(pair.floor, floor()), rounds=ROUNDS)
    return pair


@pytest.mark.parametrize("size", [100, 1024])
@pytest.mark.parametrize("durability", ["always", "os"])
def test_send(benchmark: Any, tmp_path: Path, durability: str, size: int) -> None:
    value, count = b"v" * size, COUNTS[durability]
    with new_store(tmp_path / "store", DURABILITIES[durability]) as store:
        send_each(store, value, 1)
        entry = log_bytes(tmp_path / "store")
        pair = _in_turn(
            benchmark,
            lambda: send_each(store, value, count),
            lambda: write_each(tmp_path / "floor", entry, count, sync=durability == "always"),
        )
    sizes = {"value_bytes": size, "log_bytes": len(entry), "durability": durability, "operations": count * ROUNDS}
    told(record(f"send-single-{size}B-{durability}", sizes, pair.figures()))


def test_poll(benchmark: Any, tmp_path: Path) -> None:
    """The floor is the write alone: what is polled is in the page cache, and a read of it costs about the same."""
    value, count = b"v" * 100, COUNTS["os"]
    with new_store(tmp_path / "store", afterlog.OS) as store:
        pair = _in_turn(
            benchmark,
            lambda: send_and_poll_each(store, value, count),
            lambda: write_each(tmp_path / "floor", bytes(200), count, sync=False),
        )
    told(record("poll-single-100B-os", {"value_bytes": 100, "operations": count * ROUNDS}, pair.figures()))


@pytest.mark.parametrize("way", singly.WAYS)
def test_one_at_a_time(measure: Measure, tmp_path: Path, way: str) -> None:
    """What people do with one record after another, of a backlog. The floor writes what a record takes in the log."""
    count = COUNTS["os"]
    with filled(tmp_path / "store", 10 * count) as store, singly.WAYS[way](store) as some:
        some(count)
        sizes = {"value_bytes": 100, "durability": "os"}
        floor = partial(write_each, tmp_path / "floor", bytes(200), count, sync=False)
        measure(f"one-{way}", sizes, count, lambda: some(count), floor)
