"""The comparison, tiny: each rival hands out what it was given, in due order, also after a kill, and loses nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.rivals import load, phases, registry, run, usage
from bench.rivals.limits import limits
from bench.rivals.load import END_MS, START_MS, Load
from bench.rivals.rival import Rival

NAMES = [*registry.RIVALS]
SERVED = [name for name, rival in registry.RIVALS.items() if rival.served]
EMBEDDED = [name for name, rival in registry.RIVALS.items() if not rival.served]


def _present(name: str) -> type[Rival]:
    rival = registry.RIVALS[name]
    if why := rival.missing():
        pytest.skip(f"{name}: {why}")
    return rival


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process nobody waits until the background is quiet; phases in their own do."""
    monkeypatch.setattr(usage.Meter, "quiet", lambda self: None)


@pytest.mark.parametrize(("spread", "size"), [*itertools.product(load.SPREADS, [32]), ("uniform", 300)])
@pytest.mark.parametrize("name", EMBEDDED)
def test_a_rival_hands_out_all_in_due_order(tmp_path: Path, name: str, spread: load.Spread, size: int) -> None:
    todo = Load(250, size, spread, 100)
    rival = _present(name)(tmp_path / "data", False, todo.size)
    rival.open()
    for batch in todo.batches():
        rival.fill(batch)
    assert 0 == len(rival.lease(START_MS, 100))
    assert todo.due.min() == todo.due[load.numbers_in(rival.first(END_MS), todo.size)[0]]
    rival.close()
    reopened = _present(name)(tmp_path / "data", True, todo.size)
    found = phases.drain(reopened, todo)
    assert (250, 3) == (found["records"], found["leases"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.share(6)
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
    todo = Load(5, 100, "near", 1)
    rival = _present(name)(tmp_path / "data", True, todo.size)
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
        rival = registry.RIVALS[name](tmp_path / name, False, todo.size)
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


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.share(6)
def test_a_server_is_gone_after_an_error(name: str) -> None:
    _present(name)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # it may run as somebody else
        with pytest.raises(RuntimeError, match="are lost"):
            phases.run_phase("drain", name, Path(folder) / "data", Load(1, 20, "equal", 1), fsync=False)
        assert [] == _started_in(folder)


def _started_in(folder: str) -> list[str]:
    """The command lines of processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [each for each in found if folder in each]


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
    checked.see([data[:2], data[2:3]])
    with pytest.raises(AssertionError, match="lost"):
        checked.all_seen()
    with pytest.raises(AssertionError, match="twice"):
        checked.see([data[2:]])
    with pytest.raises(AssertionError, match="due order"):
        load.Checked(todo).see([data[::-1]])
    with pytest.raises(AssertionError, match="later one"):
        checked.see([data[:1]])
    data[3, 0] ^= 1
    with pytest.raises(AssertionError, match="not the one"):
        checked.see([data[3:]])


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


@pytest.mark.share(6)
def test_a_run_is_saved_with_its_load(tmp_path: Path) -> None:
    lines: list[str] = []
    kept: list[dict[str, Any]] = []
    todo = [run.Job("embedded", Load(20, 20, "uniform", 10), fsync=False, rounds=1, limits=True)]
    run.measured(todo, [registry.OURS, "bare floor"], lines.append, kept.append)
    saved = run.saved(kept[0], "small", tmp_path)
    assert run.result_name(date.today()) == saved["name"]
    assert saved == json.loads((tmp_path / f"{saved['name']}.json").read_text())
    assert [*run.THREE] == [row["phase"] for row in saved["rows"] if row["rival"] == registry.OURS]
    assert [{"least", "most"}] == [load.keys() for load in saved["load"].values()]
    assert any("uniform-20B-10-relaxed" in line for line in lines)
    more = kept[0] | {"rows": [{**saved["rows"][0], "table": "growth"}], "limits": {}, "load": {"growth": {}}}
    again = run.saved(more, "small", tmp_path)
    assert (["embedded"] * 6 + ["growth"], saved["limits"]) == (
        [row["table"] for row in again["rows"]],
        again["limits"],
    )
    assert 7 == len(run.saved(kept[0], "small", tmp_path)["rows"])


def test_the_plan_has_every_table() -> None:
    for small in (True, False):
        assert {"embedded", "growth", "one by one", "lateness", "served"} == {job.table for job in run.plan(small)}
