"""The benchmarks, tiny: that they run, and measure what they say."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import afterlog
from bench import (
    cleaning,
    commits,
    disk,
    harness,
    idle,
    longest,
    memory_picture,
    memory_table,
    numbered,
    replication,
    report,
    schedules,
    seals,
    short_ways,
    singly,
    subscriptions,
    tasks,
    tier,
    topics,
    unique_keys,
    walks,
    workloads,
)
from bench.workloads import START_MS, Dues
from tests.support import PATIENCE_S


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


def test_what_unique_keys_cost(tmp_path: Path) -> None:
    figures = unique_keys.measure(tmp_path, 60, times=3, call_records=20)
    assert {"send", "send_new", "send_kept", "send_replacing", "record_new", "record_kept"} <= {*figures}
    assert (60, 1) == (figures["pending"], figures["files"])


def test_what_short_ways_cost(tmp_path: Path) -> None:
    found = short_ways.measured(tmp_path, 1_000)
    names = {
        "cancel", "reschedule", "replace_by_unique_key", "retry_alone", "retry_of_a_thousand", "nack", "nack_received",
        "second_reader", "one_of_up_to_100", "block_acked_in_0_ms", "block_acked_in_5_ms", "iteration_0_headers",
        "iteration_2_headers",
    }  # fmt: skip
    assert all(found[name] > 0 for name in names)


def test_what_those_cost_who_wait() -> None:
    found = idle.main(["--readers", "3", "--seconds", "0.01"])
    assert {"threads_nothing_pending", "tasks_nothing_pending", "threads_in_an_hour", "tasks_in_an_hour"} < found.keys()


@pytest.mark.parametrize("framework", tasks.FRAMEWORKS)
@pytest.mark.share(3)
def test_tasks_of_a_framework(framework: str) -> None:
    found = tasks.waited_for(framework, "afterlog shared", 10, 3.0, threads=2, spread_s=0.5)
    assert (10, 10, None) == (found["ran"], found["ran_once"], found["server_mib"])
    assert found["earliest_ms"] >= 0
    found = tasks.killed(framework, "afterlog served", 2, count=10, wait_s=3.0, watch_s=PATIENCE_S)
    assert (10, 0) == (found["ran"], found["ran_again"])


def test_what_schedules_cost(capsys: pytest.CaptureFixture[str]) -> None:
    figures = schedules.main(["20", "--sync-ms", "0.1"])
    assert figures["came"]["syncs"] * 20 < 4 < figures["made"]["syncs"] * 20 < 60
    assert '"schedules": 20' in capsys.readouterr().out


def test_what_numbered_appends_cost(tmp_path: Path) -> None:
    figures = numbered.measure(tmp_path, 30, turns=1, call_records=20)
    assert {"send", "send_numbered", "send_again", "request_together", "record", "record_numbered"} <= {*figures}
    assert figures["file_bytes"] > 30 * 24


def test_what_replication_costs(tmp_path: Path) -> None:
    figures = replication.measure(tmp_path, replication.TURN, 500)
    assert replication.TURN == figures["copy"]["records"]
    assert {"told_cpu_us", "heard_cpu_us", "marker_bytes"} < {*figures["acks"]}


def test_single_records_are_sent_and_polled(tmp_path: Path) -> None:
    with workloads.new_store(tmp_path / "store", afterlog.OS) as store:
        assert 3 == len(workloads.send_each(store, b"value", 3).cpu_s)
        assert 3 == len(workloads.send_and_poll_each(store, b"value", 3).wall_s)


@pytest.mark.parametrize("way", singly.WAYS)
def test_one_at_a_time(tmp_path: Path, way: str) -> None:
    with subscriptions.filled(tmp_path / "store", 10) as store, singly.WAYS[way](store) as some:
        some(3)
        some(4)


@pytest.mark.share(6)
def test_a_crashed_store_is_opened_again_and_again(tmp_path: Path) -> None:
    tail = workloads.in_new_process("fill", tmp_path / "store", 1_000)["tail"]
    assert 500 == tail
    for _ in range(2):
        assert 1_000 == workloads.in_new_process("open_crashed", tmp_path / "store")["pending"]
    assert 0 < workloads.in_new_process("seek", tmp_path / "store")["by_time_ms"]
    assert 1_000 == workloads.in_new_process("roll", tmp_path / "store")["entries"]
    assert 1_000 == workloads.in_new_process("memory", tmp_path / "store")["drained"]


def test_syncs_of_threads_are_counted(tmp_path: Path) -> None:
    with commits.counted_store(tmp_path / "store", 2) as (store, files):
        for of in (commits.sends, commits.acks):
            calls = of(store, 2, 3)
            files.synced.clear()
            commits.at_once(calls)
            assert 3 <= len(files.synced) <= 6
    commits.write_in_groups(tmp_path / "floor", 2, 3)
    assert 6 * commits.ENTRY_BYTES == len((tmp_path / "floor").read_bytes())


@pytest.mark.share(6)
def test_topics_are_made_and_opened(tmp_path: Path) -> None:
    assert 3 == topics.make_one_by_one(tmp_path / "one by one", 3)["topics"]
    assert 12 == workloads.in_new_process("make_together", tmp_path / "together", 12, module="bench.topics")["topics"]
    found = workloads.in_new_process("open_all", tmp_path / "together", module="bench.topics")
    assert (1, True) == (found["descriptors"], found["open_bytes"] < found["all_bytes"])
    delivered = workloads.in_new_process("deliver_os", tmp_path / "delivered", 3, module="bench.topics")
    assert {"first_cpu_s", "again_cpu_s", "renewed_cpu_s", "forgone_cpu_s"} <= delivered.keys()
    assert len(topics.make_folders(tmp_path / "floor", 3).cpu_s) == len(
        topics.look_at_folders(tmp_path / "floor").cpu_s
    )


def test_a_workload_that_fails_tells_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no topic"):
        workloads.in_new_process("open_crashed", tmp_path)


@pytest.mark.parametrize("count", [1, 10])
def test_runs_are_merged(tmp_path: Path, count: int) -> None:
    assert 1_000 == workloads.merge_all(workloads.runs(tmp_path, count, 1_000))


@pytest.mark.parametrize("schedule", ["consecutive", "uniform", "exponential"])
@pytest.mark.parametrize("batch_bytes", workloads.BATCH_BYTES)
def test_runs_are_written_and_decoded(tmp_path: Path, schedule: workloads.Schedule, batch_bytes: str) -> None:
    entries = workloads.scheduled(schedule, 1_000, 10, batch_bytes)
    run = workloads.write_scheduled(tmp_path / "run", entries)
    run.check()
    assert 1_000 == workloads.decode_all(run) == len(set(entries.offset.tolist()))


@pytest.mark.parametrize(("limit", "runs"), [(-1, 10), (3, 3)])
def test_buckets_are_sealed_and_merged(tmp_path: Path, limit: int, runs: int) -> None:
    result = workloads.seal_and_merge(tmp_path / "runs", 1_000, limit, 100)
    assert (limit > 0) == (result["merged_entries"] > 0)
    assert runs >= result["runs"]
    assert 1_000 == workloads.drain_runs(tmp_path / "runs")["entries"]
    assert workloads.append_crowded(tmp_path / "store", 1_000, limit, 100)["wall_s"] > 0


MEMORY_CELLS = {(structure, "uniform") for structure in memory_table.STRUCTURES} | {
    ("published", "8-15"),
    ("time-buckets", "exponential"),
}


@pytest.mark.parametrize(("structure", "workload"), sorted(MEMORY_CELLS))
@pytest.mark.share(6)
def test_a_cell_of_the_memory_table(structure: str, workload: str) -> None:
    cell = memory_table.cell(structure, workload, 1_000)
    assert (0 if structure == "heap" else 1_000) == cell["drained"]
    assert min(cell["build_per_s"], cell["drain_per_s"], cell["told_bytes"]) > 0


def test_the_memory_table_and_its_picture() -> None:
    cells = [
        {"structure": structure, "workload": workload, **dict.fromkeys(memory_table.FIELDS, 3 << 20)}
        for workload in memory_table.WORKLOADS
        for structure in memory_table.STRUCTURES
    ]
    assert "uniform" == memory_table.in_new_process("memory", "uniform", 100)["workload"]
    table = memory_table.table(cells)
    assert all(len(memory_table.WORKLOADS) == table.count(f"| {name} | 3.00 |") for name in memory_table.STRUCTURES)
    drawn = ElementTree.fromstring(memory_picture.picture(cells, memory_table.WORKLOADS))
    assert len(cells) + 1 == len(drawn.findall("{*}rect"))


def test_the_committed_memory_table_is_the_one_in_the_picture() -> None:
    cells = json.loads(memory_table.FIGURES.read_text())["cells"]
    assert {(cell["structure"], cell["workload"]) for cell in cells} == {
        (structure, workload) for structure in memory_table.STRUCTURES for workload in memory_table.WORKLOADS
    }
    assert memory_picture.picture(cells, memory_table.WORKLOADS) == memory_table.PICTURE.read_text()


def test_subscriptions_are_worked_off(tmp_path: Path) -> None:
    with subscriptions.filled(tmp_path / "store", 100) as store:
        assert 100 == subscriptions.receive_and_ack(store, "bulk", 30)
        assert 7 == len(subscriptions.work_off_each(store, "each", 7).cpu_s)
        with store.subscribe(workloads.TOPIC, "nacks") as subscription:
            assert [100, 100] == [subscriptions.nack_all(store, subscription) for _ in range(2)]
        assert subscriptions.journal_bytes(tmp_path / "store") > 200


def test_retries_and_holes(tmp_path: Path) -> None:
    assert subscriptions.nack_rounds(tmp_path / "rounds", 50, 3)["most_bytes"] > 50
    found = subscriptions.retries(tmp_path / "retries", 1_000)
    assert (1_000, 1_000) == (found["retrying"], found["acked"])
    assert found["held_bytes"] > 1_000
    for workload, numbers, left in (("holes", [100], "leased"), ("reopen_holes", [1], "retrying")):
        folder = tmp_path / "holes"
        assert 100 == workloads.in_new_process(workload, folder, *numbers, module="bench.subscriptions")[left]


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
    for path in harness.RESULTS.glob(report.WORKLOADS):
        result = json.loads(path.read_text())
        assert path.stem == result["name"]
        assert result["sizes"]
        assert {"ours", "floor", "cpu_ratio", "machine"} <= result.keys()


def test_results_are_told_as_a_table(tmp_path: Path) -> None:
    pair = harness.Pair(1, harness.Times([20e-3], [30e-6]), harness.Times([10e-3], [1e-3]))
    harness.record("name", {"records": 1}, pair.figures(), tmp_path)
    assert "| name | 20 ms | 10 ms | 2.0 | 30 us | 30 us |" == report.table(tmp_path).splitlines()[-1]


@pytest.mark.parametrize("schedule", ["near", "far"])
@pytest.mark.share(6)
def test_object_storage_is_caught_up_with(schedule: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = tier.main(["--records", "2000", "--segments", "10", "--schedule", schedule, "--cache-mib", "1"])
    assert json.loads(capsys.readouterr().out) == found
    assert 1 <= found["fetched_per_log_byte"] < 3
    assert (9, True) <= (found["segments"], found["peak_mib"] > 0)


def _inner(count: int) -> list[int]:
    return [number for number in range(count)]  # noqa: C416


def test_a_walk_counts_what_is_called_in_the_package() -> None:
    found = walks.steps(lambda: (_inner(3), json.dumps([])), Path(__file__).parent)
    here = Path(__file__).name
    comprehension = sys.version_info < (3, 12)
    assert (here, f"{test_a_walk_counts_what_is_called_in_the_package.__qualname__}.<locals>.<lambda>") == found[0][1:]
    assert [(1, here, "_inner"), (2, here, "_inner.<locals>.<listcomp>")][: 1 + comprehension] == found[1:]
    assert walks.Walk(calls=2 + comprehension, files=1, switches=0, depth=1 + comprehension) == walks.walk(found)
    there_and_back = [(0, "a", "f"), (1, "b", "g"), (1, "b", "h"), (0, "a", "f")]
    assert walks.Walk(calls=4, files=2, switches=2, depth=1) == walks.walk(there_and_back)


def test_each_walk_is_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = walks.main(["--show", "send"])["walks"]
    told = capsys.readouterr().out
    assert found["send"]["calls"] == told.count(".py)\n")
    assert len(found) == told.count("|\n") - 2
    assert all(each["calls"] > each["switches"] > each["files"] - 2 for each in found.values())
    again = {name: asdict(walks.walk(taken)) for name, taken in walks.walks(tmp_path)}
    assert again == {name: each for name, each in found.items() if not name.startswith("served")}


def test_the_longest_append(tmp_path: Path) -> None:
    found = longest.longest(tmp_path / "store", 60_000, 4 << 20)
    assert found["rolls"] >= 1
    assert found["p50_ms"] <= found["longest_ms"][-1]


def test_what_cleaning_holds(tmp_path: Path) -> None:
    for name, workload in cleaning.WORKLOADS.items():
        found = (cleaning.tiered if name == "mix 1 %" else cleaning.ours)(tmp_path / name, name, 20, 1)
        assert found["most_listed_mb"] >= found["listed_mb"]
        assert found["sent"] > 0 < found["written_per_body_byte"]
        assert found["worst_beyond_slack"] < 2
        assert len(workload.delays(np.random.default_rng(1), 5, 0)) >= 5


def test_what_a_queue_holds_of_which_some_is_acked_late(tmp_path: Path) -> None:
    found = cleaning.late(tmp_path, 0.01, 120, 2)
    assert (5_760, True) == (found["sent"], found["most_ranges"] > 0)
    assert 0 < found["left_mb"] <= found["held_mb"] < 0.3


def test_what_tiny_topics_hold(tmp_path: Path) -> None:
    found = cleaning.tiny(tmp_path, 2, 60, 1)
    assert (2, 2 * 60 * 24) == (found["topics"], found["sent"])
    assert 0 < found["alive_mb"] <= found["held_mb"]


def test_what_a_record_takes_on_disk(tmp_path: Path) -> None:
    for kind in disk.BODIES:
        plain, same, *_, spread, small, _, large = disk.measured(tmp_path / kind, kind, 300)
        assert plain["log"] == same["log"] > spread["log"] > large["log"]
        assert small["frames_kib"] == 16


def test_seals_of_quiet_topics(tmp_path: Path) -> None:
    found = seals.rolls(tmp_path / "seals", 2, afterlog.OS, 3)
    assert found["files"] >= 3
    assert found["seal_cpu_ms"] > 0
    for readers in ("none", "closed", "open", "group"):
        assert seals.passes(tmp_path / readers, 2, readers)["topic_cpu_ms"] >= 0
