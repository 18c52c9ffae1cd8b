"""Merging runs: what it costs to keep to a number of them, what it saves a reader, and what an append sees of it.

Ten million entries are sealed 50,000 at a time. The floor seals them and merges nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.conftest import note, told
from bench.harness import Pair, Times, record
from bench.workloads import in_new_process

ENTRIES = 10_000_000
RECORDS = 5_000_000
ROUNDS = 3


def alternating(benchmark: Any, workload: str, tmp_path: Path, count: int, limit: int) -> tuple[Pair, list[Any]]:
    """The workload with a limit and without, in turn, each in a process of its own; the results with it."""
    pair, found, folders = Pair(count), list[Any](), iter(map(tmp_path.joinpath, map(str, range(2 * ROUNDS))))

    def run(limit: int, times: Times) -> None:
        folder = next(folders)
        found.append({"folder": folder} | in_new_process(workload, folder, count, limit))
        times.cpu_s.append(found[-1]["cpu_s"])
        times.wall_s.append(found[-1]["wall_s"])

    benchmark.pedantic(lambda: run(limit, pair.ours), setup=lambda: run(-1, pair.floor), rounds=ROUNDS)
    return pair, found[1::2]


@pytest.mark.parametrize("limit", [4, 8, 16, 32, 64])
def test_seal_and_merge(benchmark: Any, tmp_path: Path, limit: int) -> None:
    pair, found = alternating(benchmark, "seal_and_merge", tmp_path, ENTRIES, limit)
    result = found[-1]
    drained = in_new_process("drain_runs", result["folder"])
    assert ENTRIES == drained["entries"]
    merged = result["merged_entries"]
    figures: dict[str, float] = {
        "merged_entries_an_entry": round(merged / ENTRIES, 2),
        "merge_ns": round(result["merge_cpu_s"] / merged * 1e9),
        "drain_ns": round(drained["cpu_s"] / ENTRIES * 1e9),
        "drain_peak_bytes": drained["peak_bytes"],
        "runs": result["runs"],
    }
    name = f"merge-limit-{limit:02d}"
    note(f"{name}: {figures}")
    told(record(name, {"entries": ENTRIES, "limit": limit, "rounds": ROUNDS}, pair.figures() | {"buckets": figures}))


def test_append_while_merging(benchmark: Any, tmp_path: Path) -> None:
    """Two threads then share what one had; none waits for a merge."""
    pair, found = alternating(benchmark, "append_crowded", tmp_path, RECORDS, 16)
    slowest_ms = round(max(result["slowest_ms"] for result in found), 1)
    note(f"append-while-merging: the slowest call took {slowest_ms} ms")
    sizes = {"records": RECORDS, "limit": 16, "rounds": ROUNDS}
    told(record("append-while-merging", sizes, pair.figures() | {"slowest_ms": slowest_ms}))
