"""The longest that an append takes, where the rest of the work is done beside it. The floor writes as many bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import afterlog
from bench.conftest import note, told
from bench.harness import Pair, record
from bench.workloads import TOPIC, dues, log_bytes, new_store

CALLS = {1: 200_000, 1_000: 1_000}
"""By the records of each; some buckets are filled."""
ROUNDS = 3


@pytest.mark.parametrize("records", CALLS)
def test_appends(benchmark: Any, tmp_path: Path, records: int) -> None:
    """Under `os`, so that no sync of its own hides what an append waits for."""
    calls, value = CALLS[records], b"v" * 100
    due = dues("uniform", calls * records).tolist()
    columns = dues("uniform", records), [value] * records
    pair, took_s = Pair(calls), list[float]()
    with new_store(tmp_path / "store", afterlog.OS) as store:

        def one(number: int) -> object:
            return store.send(TOPIC, value, deliver_after=due[number])

        def many(number: int) -> object:
            return store.send_many(TOPIC, columns[1], deliver_after=columns[0])

        def ours(call: Callable[[int], object]) -> None:
            with pair.ours.measured():
                for number in range(calls):
                    begun_s = time.perf_counter()
                    call(number)
                    took_s.append(time.perf_counter() - begun_s)

        def floor() -> None:
            with pair.floor.measured(), (tmp_path / "floor").open("wb", 0) as file:
                for _ in range(calls):
                    file.write(bytes(200 * records))

        benchmark.pedantic(lambda: ours(one if records == 1 else many), setup=floor, rounds=ROUNDS)
        late = store.topic(TOPIC).partition(0).log.late_checkpoints
        assert len(log_bytes(tmp_path / "store"))
    p50, p99, p999, longest = (float(each) * 1e3 for each in np.percentile(took_s, [50, 99, 99.9, 100]))
    figures = {"p50_ms": p50, "p99_ms": p99, "p999_ms": p999, "longest_ms": longest, "late_checkpoints": late}
    sizes = {"records": records, "operations": calls, "rounds": ROUNDS}
    told(record(f"append-stalls-{records:04}", sizes, figures | pair.figures()))
    note(f"{'':38} p50 {p50:.3f} ms, p99 {p99:.3f}, p99.9 {p999:.2f}, longest {longest:.1f}; {late} late checkpoints")
