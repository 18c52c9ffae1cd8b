"""The comparison, tiny: each rival hands out what it was given, in due order, also behind a kill, and loses nothing."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from bench.rivals import load, phases, registry, run, usage
from bench.rivals.limits import limits
from bench.rivals.load import END_MS, START_MS, Load
from bench.rivals.rival import Rival

NAMES = [*registry.RIVALS]
EMBEDDED = [name for name, rival in registry.RIVALS.items() if not rival.served]


def _present(name: str) -> type[Rival]:
    rival = registry.RIVALS[name]
    if why := rival.missing():
        pytest.skip(f"{name}: {why}")
    return rival


@pytest.mark.parametrize("spread", load.SPREADS)
@pytest.mark.parametrize("name", EMBEDDED)
def test_a_rival_hands_out_all_in_due_order(tmp_path: Path, name: str, spread: load.Spread) -> None:
    todo = Load(250, 32, spread, 100)
    rival = _present(name)(tmp_path / "data", fsync=False)
    rival.open()
    for batch in todo.batches():
        rival.fill(batch)
    assert 0 == len(rival.lease(START_MS, 100))
    assert todo.due.min() == todo.due[load.numbers_in(rival.first(END_MS), todo.size)[0]]
    rival.close()
    reopened = _present(name)(tmp_path / "data", fsync=True)
    found = phases.drain(reopened, todo)
    assert (250, 3) == (found["records"], found["leases"])


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_rival_has_everything(name: str) -> None:
    job = run.Job("any", Load(30, 20, "uniform", 10), fsync=False, rounds=1, served=_present(name).served)
    failures: list[str] = []
    figures = dict(run.once(job, name, failures.append))
    assert not failures
    assert [*run.THREE] == [*figures]
    assert figures["fill"]["disk_bytes"] > 30 * 20
    assert min(figures["fill"]["cpu_s"], figures["reopen"]["wall_s"]) > 0
    assert (30, 3) == (figures["drain"]["records"], figures["drain"]["leases"])


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_batch_of_one(tmp_path: Path, name: str) -> None:
    rival = _present(name)(tmp_path / "data", fsync=True)
    todo = Load(5, 100, "near", 1)
    rival.open()
    for batch in todo.batches():
        rival.fill(batch)
    rival.close()
    assert 5 == phases.drain(rival, todo)["leases"]


def test_what_is_acked_does_not_come_again(tmp_path: Path) -> None:
    todo = Load(30, 20, "equal", 30)
    for name in EMBEDDED:
        if registry.RIVALS[name].missing():
            continue
        rival = registry.RIVALS[name](tmp_path / name, fsync=False)
        rival.open()
        for batch in todo.batches():
            rival.fill(batch)
        rival.ack(rival.lease(END_MS, 20))
        rival.close()
        rival.open()
        assert 10 == len(rival.lease(END_MS, 100)), name
        rival.close()


def test_lateness_is_counted(tmp_path: Path) -> None:
    todo = Load(100, 100, "uniform", 10)
    found = phases.run_phase("lateness", registry.OURS, tmp_path / "data", todo, fsync=False, rate=1_000, seconds=0.1)
    assert (100, 0) == (found["records"], found["early"])
    assert found["p50_ms"] <= found["p99_ms"]


def test_a_phase_that_fails_tells_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="are lost"):
        phases.run_phase("drain", registry.OURS, tmp_path / "data", Load(1, 20, "equal", 1), fsync=False)


def test_a_load_is_what_it_says() -> None:
    near = Load(10_000, 100, "near", 1_000)
    assert 0.88 < float((near.due <= START_MS + load.MINUTE_MS).mean()) < 0.92
    assert int(near.due.max()) < END_MS
    assert 1 == len(set(Load(10, 20, "equal", 5).due.tolist()))
    batches = list(near.batches())
    assert [1_000] * 10 == [len(batch) for batch in batches]
    assert list(range(1_000)) == load.numbers_in(batches[0].bodies, 100).tolist()
    assert batches[1].bodies[0] != batches[0].bodies[0]


def test_planted_bug_a_drain_that_loses_repeats_or_reorders_is_caught() -> None:
    todo = Load(4, 20, "uniform", 4)
    data = next(todo.batches()).data[np.argsort(todo.due, kind="stable")]
    checked = load.Checked(todo)
    checked.see(data[:3])
    with pytest.raises(AssertionError, match="lost"):
        checked.all_seen()
    with pytest.raises(AssertionError, match="twice"):
        checked.see(data[2:])
    with pytest.raises(AssertionError, match="due order"):
        load.Checked(todo).see(data[::-1])
    with pytest.raises(AssertionError, match="later one"):
        checked.see(data[:1])
    data[3, 0] ^= 1
    with pytest.raises(AssertionError, match="not the one"):
        checked.see(data[3:])


def test_a_meter_leaves_out_what_is_between(tmp_path: Path) -> None:
    meter = usage.Meter([])
    with meter.paused():
        sum(range(1_000_000))
    cpu_s, wall_s = meter.read()
    whole_s = usage.cpu_s([])
    assert 0 <= cpu_s < whole_s
    assert 0 <= wall_s
    (tmp_path / "file").write_bytes(bytes(5_000))
    assert 8_192 == usage.disk_bytes(tmp_path)


def test_limits_of_the_machine(tmp_path: Path) -> None:
    found = limits(tmp_path, 100, 50, 10)
    assert {f"{name}_cpu_us" for name in ("write_fsync", "write", "copy", "crc", "gather")} <= found.keys()


def test_a_run_is_saved_with_its_load(tmp_path: Path) -> None:
    lines: list[str] = []
    todo = [run.Job("embedded", Load(20, 20, "uniform", 10), fsync=False, rounds=2)]
    figures = run.run_all(todo, [registry.OURS, "bare floor"], lines.append)
    saved = run.saved(figures, "small", tmp_path)
    assert run.result_name(date.today()) == saved["name"]
    assert saved == json.loads((tmp_path / f"{saved['name']}.json").read_text())
    assert [(registry.OURS, phase) for phase in run.THREE] == [
        (row["rival"], row["phase"]) for row in saved["rows"][:3]
    ]
    assert {"least", "median", "most"} == saved["load"].keys()
    assert any("uniform-20B-10-relaxed" in line for line in lines)


def test_the_plan_has_every_table() -> None:
    for small in (True, False):
        assert {"embedded", "growth", "one by one", "lateness", "served"} == {job.table for job in run.plan(small)}
