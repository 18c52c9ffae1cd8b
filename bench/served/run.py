"""Who does what, in which order: every contestant once, then every contestant again (A B A B), as in `bench.rivals`.

Of each figure the median of the rounds is kept, of times also the least and the most. Who is not present is named.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, record
from bench.rivals.run import medians, result_name
from bench.served.contestants import CONTESTANTS, EMBEDDED, OURS, present
from bench.served.once import PARTS, once

FOLDER = RESULTS / "served"
Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One workload of one part."""

    part: str
    workload: str
    sizes: Row
    rounds: int
    who: tuple[str, ...] = field(default=tuple(CONTESTANTS))

    def given(self, who: str) -> Row:
        """The sizes, or smaller ones for who waits for the disk with each record."""
        most = CONTESTANTS[who].fsync_records_max
        few = most is not None and self.part in ("bulk", "drain")
        return self.sizes | ({"records": min(most or 0, self.sizes["records"])} if few else {})

    def fits(self, who: str) -> bool:
        """Whether it takes part: not with batches larger than all that it is given."""
        return who in self.who and self.sizes.get("batch", 0) <= self.given(who).get("records", 0)


def plan(small: bool = False, minutes: float = 10.0) -> list[Job]:
    """All of it: half an hour with two idle processors, of which the soak is ten minutes. Small: whether it runs."""
    served = tuple(name for name, each in CONTESTANTS.items() if each.served)
    clients = ((1, 20), (2, 40)) if small else ((1, 2_000), (16, 8_000), (64, 16_000))
    batches = ((50, 200), (100, 200)) if small else ((1_000, 200_000), (65_536, 524_288))
    limits = ((1, 20), (50, 200)) if small else ((1, 2_000), (1_000, 100_000))
    many, rates, seconds = (20, (50,), 1.0) if small else (1_000, (100, 1_000), 10.0)
    waits = 50 if small else 10_000
    jobs = [
        Job("sends", f"{count} client{'s' if count > 1 else ''}", {"clients": count, "records": n}, 3)
        for count, n in clients
    ]
    jobs += [Job("bulk", f"{batch:,} at a time", {"batch": batch, "records": n}, 3) for batch, n in batches]
    jobs += [Job("drain", f"{limit:,} at a time", {"limit": limit, "records": n}, 3) for limit, n in limits]
    for rate in rates:
        sizes = {"clients": many, "rate": rate, "seconds": seconds}
        jobs.append(Job("lateness", f"{many:,} clients, {rate:,}/s", sizes, 2, (OURS, EMBEDDED)))
    return [
        *jobs,
        Job("idle", "nobody", {"seconds": seconds}, 2, served),
        Job("waiting", f"{waits:,} clients", {"clients": waits, "seconds": seconds}, 2, (OURS,)),
        Job("soak", f"{minutes:g} minutes", {"minutes": minutes, "rate": 50 if small else 200}, 1, (OURS,)),
    ]  # fmt: skip


def measured(jobs: Sequence[Job], only: Sequence[str], say: Say, keep: Callable[[Row], object]) -> None:
    """Run jobs, by all who can run here or some of them; `keep` gets the figures of each job when it is done."""
    here, skipped = present()
    for name, why in skipped.items():
        say(f"skipped: {name}: {why}")
    taken = [name for name in here if not only or name in only]
    head = {"versions": {name: CONTESTANTS[name].version() for name in taken}, "skipped": skipped}
    started_s = time.monotonic()
    for number, job in enumerate(jobs):
        say(f"{number + 1}/{len(jobs)} {job.part}: {job.workload}"
            f"  [{(time.monotonic() - started_s) / 60:.1f} min, load {os.getloadavg()[0]:.1f}]")  # fmt: skip
        keep(run_job(job, taken, say) | head)


def run_job(job: Job, taken: Sequence[str], say: Say) -> Row:
    """Its rows, and the load of the machine meanwhile. Who fails is told of, and has no row."""
    loads, found = [os.getloadavg()[0]], dict[str, list[Row]]()
    for _ in range(job.rounds):
        for who in (who for who in taken if job.fits(who)):
            try:
                figures = once(job.part, who, **job.given(who))
                found.setdefault(who, []).append(figures)
            except RuntimeError as error:
                say(f"    {who} failed: {str(error).strip()}")
            loads.append(os.getloadavg()[0])
    head = {"part": job.part, "workload": job.workload}
    rows = [
        head | {"who": who, **job.given(who), "rounds": len(rounds)} | medians(rounds) for who, rounds in found.items()
    ]
    for row in rows:
        say("    " + told(row))
    load = {"least": round(min(loads), 1), "most": round(max(loads), 1)}
    return {"rows": rows, "load": {f"{job.part} {job.workload}": load}}


def told(row: Row) -> str:
    """A line of progress."""
    parts = []
    if "records" in row and "wall_s" in row:
        client_us, server_us = (row[f"{side}_cpu_s"] * 1e6 / row["records"] for side in ("client", "server"))
        rate = row["records"] / row["wall_s"]
        parts.append(f"{rate:10,.0f}/s  CPU us client {client_us:8.2f} server {server_us:8.2f}")
    for name in ("records_per_sync", "p50_ms", "p99_ms", "max_ms", "core_percent", "bytes_each", "threads",
                 "private_first_bytes", "private_last_bytes", "private_bytes_a_minute"):  # fmt: skip
        if name in row:
            parts.append(f"{name} {row[name]:,.2f}")
    return f"{row['who']:21} {'  '.join(parts)}"


def target(out: Path | None) -> Path:
    """Where results go: a file that was named, or that of today and this machine."""
    return out or FOLDER / f"{result_name(date.today())}.json"


def saved(figures: Row, size: str, path: Path) -> Row:
    """Write figures; what they do not tell of is kept as the file has it."""
    before = json.loads(path.read_text()) if path.exists() else {"rows": [], "load": {}}
    told_of = {(row["part"], row["workload"]) for row in figures["rows"]}
    kept = [row for row in before["rows"] if (row["part"], row["workload"]) not in told_of]
    order = list(PARTS)
    rows = sorted([*kept, *figures["rows"]], key=lambda row: order.index(row["part"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    merged = {"rows": rows, "load": before["load"] | figures["load"]}
    return record(path.stem, {"size": size}, figures | merged, path.parent)
