"""The benchmarks, tiny: that they run, and measure what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import afterlog
from bench import harness, report, workloads
from bench.workloads import START_MS, Dues


@pytest.mark.parametrize("kind", ["equal", "uniform", "exponential"])
def test_a_store_is_filled_and_drained(tmp_path: Path, kind: Dues) -> None:
    due = workloads.dues(kind, 100)
    assert int(due.min()) > START_MS
    with workloads.new_store(tmp_path / "store") as store:
        store.send_many(workloads.TOPIC, workloads.values(100, 10), deliver_after=due)
        assert 0 == workloads.drain(store, "early")
        workloads.make_due(store)
        assert 100 == workloads.drain(store, "late")
    assert len(workloads.log_bytes(tmp_path / "store")) > 1_000


def test_single_records_are_sent_and_polled(tmp_path: Path) -> None:
    with workloads.new_store(tmp_path / "store", afterlog.OS) as store:
        assert 3 == len(workloads.send_each(store, b"value", 3).cpu_s)
        assert 3 == len(workloads.send_and_poll_each(store, b"value", 3).wall_s)


def test_a_crashed_store_is_opened_again_and_again(tmp_path: Path) -> None:
    tail = workloads.in_new_process("fill", tmp_path / "store", 1_000)["tail"]
    assert 500 == tail
    for _ in range(2):
        assert 1_000 == workloads.in_new_process("open_crashed", tmp_path / "store")["pending"]
    assert 1_000 == workloads.in_new_process("roll", tmp_path / "store")["entries"]
    assert 1_000 == workloads.in_new_process("memory", tmp_path / "store")["drained"]


def test_a_workload_that_fails_tells_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no topic"):
        workloads.in_new_process("open_crashed", tmp_path)


@pytest.mark.parametrize("count", [1, 10])
def test_runs_are_merged(tmp_path: Path, count: int) -> None:
    assert 1_000 == workloads.merge_all(workloads.runs(tmp_path, count, 1_000))


def test_floors_write_and_read_the_bytes(tmp_path: Path) -> None:
    data = np.arange(3 * harness.MIB, dtype=np.uint32).astype(np.uint8)[: 2 * harness.MIB + 1]
    harness.write_bytes(tmp_path / "floor", data.data)
    assert data.tobytes() == (tmp_path / "floor").read_bytes()
    assert len(data) == harness.read_bytes(tmp_path / "floor")
    assert 5 == len(harness.write_each(tmp_path / "each", b"xyz", 5, sync=True).cpu_s)
    assert b"xyz" * 5 == (tmp_path / "each").read_bytes()


def test_figures_are_medians_and_percentiles_of_one_operation() -> None:
    times = harness.Times([1e-6, 3e-6, 2e-6], [4e-6, 4e-6, 4e-6])
    summary = times.summary(10)
    assert (200.0, 400.0, 400.0) == (summary["cpu_p50_ns"], summary["wall_p50_ns"], summary["wall_p99_ns"])
    pair = harness.Pair(10, times, harness.Times([1e-6], [1e-6]))
    assert (2.0, 4.0) == (pair.figures()["cpu_ratio"], pair.figures()["wall_ratio"])


def test_a_result_names_machine_and_versions(tmp_path: Path) -> None:
    harness.record("name", {"records": 1}, {"cpu_ratio": 2.0}, tmp_path)
    result = json.loads((tmp_path / "name.json").read_text())
    assert ("name", {"records": 1}, 2.0) == (result["name"], result["sizes"], result["cpu_ratio"])
    assert {"cpu", "memory", "system", "python", "numpy"} <= result["machine"].keys()


def test_resident_memory_is_read() -> None:
    assert {"resident", "anonymous", "peak"} == harness.resident_bytes().keys()


def test_committed_results_name_what_they_measured() -> None:
    for path in harness.RESULTS.glob("*.json"):
        result = json.loads(path.read_text())
        assert path.stem == result["name"]
        assert result["sizes"]
        assert {"ours", "floor", "cpu_ratio", "machine"} <= result.keys()


def test_results_are_told_as_a_table(tmp_path: Path) -> None:
    pair = harness.Pair(1, harness.Times([20e-3], [30e-6]), harness.Times([10e-3], [1e-3]))
    harness.record("name", {"records": 1}, pair.figures(), tmp_path)
    assert "| name | 20 ms | 10 ms | 2.0 | 30 us | 30 us |" == report.table(tmp_path).splitlines()[-1]
