"""Who does what, in which order: every rival once, then every rival again (A B A B), so that a busy minute hits all.

Of each figure the median of the rounds is kept, with the least and the most. What is not present is skipped by name.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, machine, record
from bench.rivals.limits import run_limits
from bench.rivals.load import SPREADS, Load
from bench.rivals.phases import run_phase
from bench.rivals.registry import OURS, RIVALS, present

TABLES = ("embedded", "growth", "one by one", "served", "lateness")
THREE = ("fill", "reopen", "drain")
Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One workload of one table, for all rivals of a kind."""

    table: str
    load: Load
    fsync: bool
    rounds: int
    served: bool = False
    phases: tuple[str, ...] = THREE
    rate: int = 0
    seconds: float = 0.0
    limits: bool = False
    """The machine's own limits are measured with it."""

    @property
    def name(self) -> str:
        return f"{self.load.name}-{'fsync' if self.fsync else 'relaxed'}" + (f"-{self.rate}" if self.rate else "")

    def given(self, rival: str) -> Load:
        """The load, or a smaller one for who waits for the disk with each record."""
        most = RIVALS[rival].fsync_records_max
        return self.load if most is None or not self.fsync else replace(self.load, records=min(most, self.load.records))

    def fits(self, rival: str) -> bool:
        kind = RIVALS[rival]
        reference = self.table == "served" and rival == OURS
        return (kind.served == self.served or reference) and (kind.live or not self.rate)


def plan(small: bool = False) -> list[Job]:
    """All of it: twenty minutes with two idle processors, more with busy ones. Small: a look at whether it runs."""
    n, kib, single, single_fsync, served = (
        (2_000, 500, 50, 20, 500) if small else (500_000, 200_000, 20_000, 3_000, 50_000)
    )
    grow, seconds = ((500, 2_000), 0.5) if small else ((100_000, 1_000_000), 4.0)
    grow_served = (500, 1_000) if small else (20_000, 100_000)
    batch = 100 if small else 1_000
    jobs = [Job("embedded", Load(n, 100, "uniform", batch), fsync, 3, limits=fsync) for fsync in (True, False)]
    jobs += [Job("embedded", Load(n, 100, spread, batch), True, 2) for spread in SPREADS[1:]]
    jobs += [Job("embedded", Load(kib, 1024, "uniform", batch), fsync, 2) for fsync in (True, False)]
    jobs += [Job("embedded", Load(kib, 1024, spread, batch), True, 2) for spread in SPREADS[1:]]
    jobs += [Job("growth", Load(count, 100, "uniform", batch), False, 2, phases=THREE[:2]) for count in grow]
    jobs += [Job("growth", Load(count, 100, "uniform", batch), False, 2, True, THREE[:2]) for count in grow_served]
    for own in (False, True):
        jobs += [Job("one by one", Load(single_fsync, 100, "uniform", 1), True, 2, own),
                 Job("one by one", Load(single, 100, "uniform", 1), False, 2, own)]  # fmt: skip
        for rate in (1_000, 10_000):
            count = Load(int(rate * seconds), 100, "uniform", rate // 100)
            jobs.append(Job("lateness", count, False, 2, own, ("lateness",), rate, seconds))
    jobs += [Job("served", Load(served, 100, "uniform", batch), fsync, 2, True) for fsync in (True, False)]
    jobs += [Job("served", Load(served // 2, 1024, "uniform", batch), True, 2, True)]
    return jobs


def run_job(job: Job, rivals: Sequence[str], say: Say) -> dict[str, Any]:
    """The rows of a job, the load of the machine meanwhile, and its limits where it is the workload of the aims."""
    loads, limits, found = [os.getloadavg()[0]], list[dict[str, float]](), dict[tuple[str, str], list[Row]]()
    for _ in range(job.rounds):
        for rival in (rival for rival in rivals if job.fits(rival)):
            for phase, figures in once(job, rival, say):
                found.setdefault((rival, phase), []).append(figures)
            loads.append(os.getloadavg()[0])
        if job.limits:
            limits.append(_limits(job.load, found))
    rows = [_row(job, *key, rounds) for key, rounds in found.items()]
    for row in rows:
        say("    " + told(row))
    load = {"least": round(min(loads), 1), "most": round(max(loads), 1)}
    return {"rows": rows, "limits": medians(limits), "load": {f"{job.table} {job.name}": load}}


def _limits(load: Load, found: dict[tuple[str, str], list[Row]]) -> dict[str, float]:
    """For entries as large as ours are in the log."""
    filled = found.get((OURS, "fill"))
    entry_bytes = round(filled[-1]["disk_bytes"] / load.records) if filled else 2 * load.size
    return run_limits(load.records, entry_bytes, load.batch)


def once(job: Job, rival: str, say: Say) -> list[tuple[str, Row]]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # a server may run as somebody else
        more = {"rate": job.rate, "seconds": job.seconds} if job.rate else {}
        done: list[tuple[str, Row]] = []
        for phase in job.phases:
            try:
                done.append((phase, run_phase(phase, rival, Path(name) / "data", job.given(rival), job.fsync, **more)))
            except RuntimeError as error:
                say(f"    {rival}: {phase} failed: {str(error).strip().splitlines()[-1]}")
                break
        return done


def _row(job: Job, rival: str, phase: str, rounds: list[Row]) -> Row:
    head = {"table": job.table, "workload": job.name, **job.given(rival).told(), "fsync": job.fsync}
    return head | {"rival": rival, "phase": phase, "rounds": len(rounds)} | medians(rounds)


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each figure; of times also the least and the most."""
    figures: dict[str, float] = {}
    for name in rounds[0] if rounds else ():
        values = [each[name] for each in rounds]
        same = len(set(values)) == 1
        figures[name] = values[0] if same else round(statistics.median(values), 6)
        if name.endswith(("cpu_s", "wall_s")):
            figures |= {f"{name}_least": round(min(values), 6), f"{name}_most": round(max(values), 6)}
    return figures


def told(row: Row) -> str:
    """A line of progress."""
    if row["phase"] == "reopen":
        return f"{row['rival']:18} reopen   {row['wall_s'] * 1e3:9.1f} ms  private {row['private_bytes'] / 1e6:7.2f} MB"
    if row["phase"] == "lateness":
        return f"{row['rival']:18} lateness p50 {row['p50_ms']:7.2f} ms  p99 {row['p99_ms']:7.2f} ms"
    cpu_us, wall_us = (row[name] * 1e6 / row["records"] for name in ("cpu_s", "wall_s"))
    return f"{row['rival']:18} {row['phase']:8} cpu {cpu_us:9.3f} us  wall {wall_us:9.3f} us"


def result_name(today: date) -> str:
    """<date>-<machine>"""
    cpu = re.sub(r"\((r|tm)\)|processor|cpu|@.*", "", machine()["cpu"].lower())
    return f"{today.isoformat()}-{'-'.join(re.findall('[a-z0-9.]+', cpu))}"


def measured(
    jobs: Sequence[Job], only: Sequence[str] = (), say: Say = print, keep: Callable[[Row], object] = lambda _: None
) -> None:
    """Run jobs, by all who can run here or some of them; `keep` gets the figures of each job when it is done."""
    rivals, skipped = present()
    for name, why in skipped.items():
        say(f"skipped: {name}: {why}")
    taken = [name for name in rivals if not only or name in only]
    versions = {name: RIVALS[name].version() for name in taken}
    started_s = time.monotonic()
    for number, job in enumerate(jobs):
        say(f"{number + 1}/{len(jobs)} {job.table}: {job.name}, {job.load.records:,} records"
            f"  [{(time.monotonic() - started_s) / 60:.1f} min, load {os.getloadavg()[0]:.1f}]")  # fmt: skip
        keep(run_job(job, taken, say) | {"versions": versions, "skipped": skipped})


def saved(figures: Row, size: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Write figures; what they do not tell of is kept as an earlier run of the same day had it."""
    name = result_name(date.today())
    path = folder / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {"rows": [], "limits": {}, "load": {}}
    told_of = {_subject(row) for row in figures["rows"]}
    merged = {
        "rows": [row for row in before["rows"] if _subject(row) not in told_of] + figures["rows"],
        "limits": figures["limits"] or before["limits"],
        "load": before["load"] | figures["load"],
    }
    return record(name, {"size": size}, figures | merged, folder)


def _subject(row: Row) -> str:
    """What a row is about, but for who did it and which phase it is."""
    return f"{row['table']} {row['workload']} {int(row['records'])} {RIVALS[row['rival']].served}"
