"""How many syncs a record costs that is sent, or acked, durably, by 1, 16 and 64 threads that wait for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import commits
from bench.conftest import note, told
from bench.harness import Pair, record

ROUNDS = 5
RECORDS = 1_920
"""In each round, of all threads."""


@pytest.mark.parametrize("threads", [1, 16, 64])
@pytest.mark.parametrize("what", ["send", "send-16-partitions", "ack"])
def test_threads_that_wait(benchmark: Any, tmp_path: Path, what: str, threads: int) -> None:
    each, pair = RECORDS // threads, Pair(RECORDS)
    with commits.counted_store(tmp_path / "store", 16 if what == "send-16-partitions" else 1) as (store, files):
        syncs = 0

        def ours() -> None:
            nonlocal syncs
            calls = (commits.acks if what == "ack" else commits.sends)(store, threads, each)
            before = len(files.synced)
            with pair.ours.measured():
                commits.at_once(calls)
            syncs += len(files.synced) - before

        def floor() -> None:
            with pair.floor.measured():
                commits.write_in_groups(tmp_path / "floor", threads, each)

        benchmark.pedantic(ours, setup=floor, rounds=ROUNDS)
    figures = {"syncs_per_record": round(syncs / (RECORDS * ROUNDS), 4)} | pair.figures()
    sizes = {"threads": threads, "operations": RECORDS, "rounds": ROUNDS}
    told(record(f"commit-{what}-{threads:02}-threads", sizes, figures))
    note(f"{'':38} {figures['syncs_per_record']} syncs a record; one for each round of all threads: {1 / threads:.4f}")
