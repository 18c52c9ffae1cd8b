"""What is measured of the served way, tiny: each part runs, by each contestant that is here, and tells what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import report
from bench.rivals import usage
from bench.rivals.load import Batch
from bench.rivals.rival import Handed
from bench.served import __main__ as program
from bench.served import contestants, handling, one, page, run, soak, waiting, work
from bench.served.clients import at_once
from bench.served.contestants import CONTESTANTS, EMBEDDED, OURS, Contestant
from bench.served.once import once

SIDES = {"client_cpu_s", "server_cpu_s", "wall_s"}


def _present(name: str) -> type[Contestant]:
    contestant = CONTESTANTS[name]
    if why := contestant.missing():
        pytest.skip(f"{name}: {why}")
    return contestant


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process nobody waits until the background is quiet."""
    monkeypatch.setattr(usage.Meter, "quiet", lambda self: None)


@pytest.mark.parametrize("name", CONTESTANTS)
@pytest.mark.share(6)
def test_clients_send_one_by_one(name: str) -> None:
    found = once("sends", name, clients=2, records=6) if _present(name) else {}
    assert found.keys() >= SIDES | {"p50_ms", "p99_ms"}
    assert (6, True) == (found["records"], 0 < found["p50_ms"] <= found["p99_ms"])
    assert found["client_cpu_s"] > 0
    assert CONTESTANTS[name].served == (found["server_cpu_s"] > 0)
    if name in (OURS, "PostgreSQL"):
        assert 0 < found["records_per_sync"] <= 2


@pytest.mark.parametrize("name", CONTESTANTS)
@pytest.mark.share(6)
def test_many_at_a_time(name: str) -> None:
    _present(name)
    bulk, drain = once("bulk", name, batch=3, records=7), once("drain", name, limit=2, records=5)
    assert (7, 5) == (bulk["records"], drain["records"])
    assert SIDES <= bulk.keys() & drain.keys()


@pytest.mark.parametrize("group_ms", [0, 5])
@pytest.mark.share(6)
def test_one_client_that_handles_what_becomes_due(group_ms: int) -> None:
    _present(OURS)
    found = handling.main(["--rate", "50", "--seconds", "0.2", "--threads", "2", "--group-ms", str(group_ms)])
    assert (0, True) == (found["early"], 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"])
    assert 0 < found["acks"] <= 10


@pytest.mark.share(6)
def test_one_request_after_the_other() -> None:
    _present(OURS)
    found = one.main(["--calls", "12"])
    assert {"send", "receive", "ack", "nothing", "waits"} <= found.keys()
    assert all(found[name]["server_us"] > 0 for name in ("send", "receive", "ack", "waits"))


@pytest.mark.parametrize("name", [OURS, EMBEDDED])
@pytest.mark.share(6)
def test_who_waits_is_told(name: str) -> None:
    _present(name)
    found = once("lateness", name, clients=4, rate=40, seconds=0.2)
    assert (8, 4, 0) == (found["records"], found["clients"], found["early"])
    assert 0 <= found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]


@pytest.mark.share(6)
def test_what_it_costs_that_clients_wait() -> None:
    _present(OURS)
    found = once("waiting", OURS, clients=30, seconds=0.1)
    assert (30, True) == (found["clients"], found["bytes_each"] > 0)
    assert found["threads"] < 30
    assert 0 <= once("idle", OURS, seconds=0.1)["core_percent"] < 100


@pytest.mark.share(6)
def test_a_soak() -> None:
    _present(OURS)
    found = once("soak", OURS, minutes=0.04, rate=20, every_s=0.1, first=30)
    assert min(found["sent"], found["cancelled"], found["acked"], found["waits"]) > 0
    assert 0 == found["waits_left"]
    assert found["private_first_bytes"] < found["resident_first_bytes"]


class Listed(Contestant):
    """Records in a list. planted: how it goes wrong."""

    name = "listed"
    planted = ""

    def open(self) -> None:
        self.bodies = list[bytes]()

    def fill(self, batch: Batch) -> None:
        self.bodies += {"loses": batch.bodies[1:], "repeats": [*batch.bodies, batch.bodies[0]]}.get(
            self.planted, batch.bodies
        )

    def send(self, due_ms: int, body: bytes) -> None:
        self.bodies.append(body)

    def lease(self, now_ms: int, limit: int) -> Handed:
        taken, self.bodies = self.bodies[:limit], self.bodies[limit:]
        return Handed(taken, None, len(taken))

    def ack(self, handed: Handed) -> None: ...

    def close(self) -> None: ...


def test_planted_bugs_of_a_drain_are_seen(impatient: None) -> None:
    listed = Listed(Path("nowhere"), True, work.SIZE)
    assert 5 == work.drain(listed, 2, 5)["records"]
    for listed.planted, told in (
        ("loses", "1 records are lost, 0 came twice"),
        ("repeats", "0 records are lost, 1 came twice"),
    ):
        with pytest.raises(AssertionError, match=told):
            work.drain(listed, 2, 5)


def _nothing(client: Contestant, number: int) -> list[float]:
    return []


def _fails(client: Contestant, number: int) -> list[float]:
    raise ValueError(f"client {number} fails")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("part", ["warm", "work"])
def test_a_client_that_fails_tells_why(part: str) -> None:
    warm, at_work = (_fails, _nothing) if part == "warm" else (_nothing, _fails)
    with pytest.raises(RuntimeError, match=r"ValueError: client \d fails"):
        at_once(Listed(Path("nowhere"), True, 1), 2, warm, at_work)


def test_flatness_is_of_what_is_behind_the_warm_up() -> None:
    seconds = np.arange(0.0, 601.0)
    private = np.where(seconds < 60, 1e9, 5e6 + 1_000 * seconds)
    found = soak._flatness(np.column_stack([seconds, private, private]))
    assert pytest.approx(60_000) == found["private_bytes_a_minute"]
    assert (5_090_000, 5_570_000) == (found["private_first_bytes"], found["private_last_bytes"])


def test_a_server_that_is_not_there_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        contestants.asked(tmp_path, "/readyz")
    assert waiting.descriptors() > 100


# The program, and what becomes of its figures.


def _figures(part: str, **sizes: Any) -> dict[str, Any]:
    """What a part would have found, by who it is that was started."""
    figures = {"client_cpu_s": 2.0, "server_cpu_s": 1.0, "wall_s": 1.5, "p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0,
               "records": sizes.get("records", 100), "records_per_sync": 12.5, "core_percent": 0.25, "early": 0,
               "bytes_each": 2_048.0, "bytes_left": 3e6, "bytes_more": -1e5, "threads": 5, "sent": 9,
               "cancelled": 1, "acked": 8, "nacked": 1, "waits": 4, "waits_left": 0.0}  # fmt: skip
    for name in ("private", "resident"):
        figures |= {f"{name}_first_bytes": 1e8, f"{name}_last_bytes": 1.2e8, f"{name}_bytes_a_minute": 1e5}
    return figures


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is started: all have the same figures, but in process a third of the time is taken."""

    def found(part: str, who: str, **sizes: Any) -> dict[str, Any]:
        if who == "Redis" and part == "bulk":
            raise RuntimeError("Redis is tired")
        figures = _figures(part, **sizes)
        return figures | ({"client_cpu_s": 1.0, "server_cpu_s": 0.0} if who == EMBEDDED else {})

    monkeypatch.setattr(run, "once", found)
    monkeypatch.setattr(run, "present", lambda: ([*CONTESTANTS][:-1], {"PostgreSQL": "no program initdb"}))
    for contestant in CONTESTANTS.values():  # said by a program that need not be here
        monkeypatch.setattr(contestant, "version", lambda: "1.0")


def test_a_run_is_kept_part_by_part_and_told(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    program.main(["--out", str(out), "--rounds", "1"])
    printed = capsys.readouterr().out
    assert "skipped: PostgreSQL: no program initdb" in printed
    assert "Redis failed: Redis is tired" in printed
    result = json.loads(out.read_text())
    assert {"sends", "bulk", "drain", "lateness", "idle", "waiting", "soak"} == {row["part"] for row in result["rows"]}
    count = len(result["rows"])
    program.main(["--out", str(out), "--rounds", "2", "--only", "sends"])
    again = json.loads(out.read_text())
    assert (count, "results") == (len(again["rows"]), again["name"])
    assert {2} == {row["rounds"] for row in again["rows"] if row["part"] == "sends"}
    parts = page.made(page.Found(again))
    assert {"surroundings", "aims", "settings", *run.PARTS} == {*parts}
    assert "| 64 clients: at least 10 records share an fdatasync | 12.5 | met |" in parts["aims"]
    assert "| bulk as Arrow, 1,000 at a time: CPU at most 3 times that in process | 3.0 times | met |" in parts["aims"]
    assert "| an idle server takes less than 0.5 % of a core | 0.250 % | met |" in parts["aims"]
    assert parts["aims"].endswith("at most 5% above the first | +20.0% | **missed** |")
    assert "| Redis | 2,000 | 1.33 k | 1000.00 | 500.00 | 1500.00 | 1.00 | 1.00 ms |" in parts["sends"]
    assert "| afterlog, in process | 200,000 | 133 k | 5.00 | - | 5.00 | 0.33 |" in parts["bulk"]
    assert "| 10,000 clients | 2.0 KiB | 3.0 MB | -0.1 MB | 5 | 0.2 % |" in parts["waiting"]
    assert "- PostgreSQL: skipped, no program initdb." in parts["settings"]


def test_a_look_leaves_the_results_alone(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    for arguments in (["--size", "small"], ["--no-save"], ["--who", f"{OURS}; {EMBEDDED}"]):
        program.main([*arguments, "--only", "idle"])
    assert [] == [*tmp_path.iterdir()]
    program.main(["--only", "idle"])
    assert 1 == len([*tmp_path.iterdir()])
    with pytest.raises(SystemExit):
        program.main(["--only", "idle,nonsense"])


def test_who_waits_for_each_record_is_given_few() -> None:
    jobs = {(job.part, job.workload): job for job in run.plan()}
    assert 5_000 == jobs["bulk", "1,000 at a time"].given("beanstalkd")["records"]
    assert not jobs["bulk", "65,536 at a time"].fits("beanstalkd")
    assert jobs["bulk", "65,536 at a time"].fits("Redis")
    assert {job.part for job in run.plan(small=True)} == {*run.PARTS}


def test_the_page_says_what_the_results_say() -> None:
    text, made = report.SERVED_PAGE.read_text("utf-8"), report.served_parts()
    assert text == report.page(text, made), "python -m bench.report"
    names = ("surroundings", "aims", "settings", *run.PARTS)
    assert all(f"<!-- made by `make bench`: {name} -->\n" in text for name in names)
