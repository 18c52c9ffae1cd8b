"""A store with many pending: opening it after a crash, the memory it wants, and sealing its segment.

Each runs in a process of its own, which dies without closing, so that the next one finds a crash again. The floor reads
the log's tail after the recovery point with a bare copy, which is what recovery has to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.conftest import told
from bench.harness import Pair, Times, read_bytes, record
from bench.workloads import in_new_process, log_bytes

PENDING = [100_000, 250_000, 1_000_000, 4_000_000, 10_000_000]
ROLLED = 4_000_000
ROUNDS = 5


@pytest.mark.parametrize("pending", PENDING)
def test_open(benchmark: Any, tmp_path: Path, pending: int) -> None:
    folder = tmp_path / "store"
    tail = int(in_new_process("fill", folder, pending)["tail"])
    tail_path = tmp_path / "tail"
    written = log_bytes(folder)
    tail_path.write_bytes(written[-len(written) * tail // pending :])
    found: list[dict[str, float]] = []
    times, floor = Times(), Times()

    def read_tail() -> None:
        with floor.measured():
            read_bytes(tail_path)

    benchmark.pedantic(
        lambda: found.append(in_new_process("open_crashed", folder)), setup=read_tail, rounds=ROUNDS, warmup_rounds=1
    )
    assert {pending} == {result["pending"] for result in found}
    times.cpu_s += [result["cpu_s"] for result in found]
    times.wall_s += [result["wall_s"] for result in found]
    more = {workload: in_new_process(workload, folder) for workload in ("seek", "memory")}
    assert pending == more["memory"]["drained"]
    sizes = {"pending": pending, "tail": tail, "log_bytes": len(written), "rounds": ROUNDS}
    told(record(f"open-{pending:07d}-pending", sizes, Pair(1, times, floor).figures() | more))


def test_roll(benchmark: Any, tmp_path: Path) -> None:
    """Sealing a segment of 4 million entries. The floor copies the bytes of the run that it writes."""
    pending = ROLLED
    folder = tmp_path / "store"
    in_new_process("fill", folder, pending)
    found: list[dict[str, float]] = []
    benchmark.pedantic(lambda: found.append(in_new_process("roll", folder)), rounds=1)
    [result] = found
    [run] = [path for path in (folder / "bench-0").glob("*.deliverafterindex") if path.stat().st_size > 1 << 20]
    floor = Times()
    with floor.measured():
        read_bytes(run)
    pair = Pair(pending, Times([result["cpu_s"]], [result["wall_s"]]), floor)
    sizes = {"pending": pending, "run_bytes": run.stat().st_size}
    sizes |= {name: int(result[name]) for name in ("peak_bytes", "peak_mapped_bytes")}
    told(record("roll-4000000-entries", sizes, pair.figures()))
