"""Campaigns for hours: `make torture HOURS=2`. Lane by lane, share after share, each of another seed.

    python -m tests.campaigns.torture --hours 2                     every lane, as far towards its goals as the others
    python -m tests.campaigns.torture --hours 0.5 --lane kills      one of them
    python -m tests.campaigns.torture --hours 2 --journal FILE      goes on where that journal ends: a run of many parts
    python -m tests.campaigns.torture --hours 2 --report docs/reliability.md

A round is a run of a lane's tests with a seed of its own (tests/campaigns/__init__.py): `AFTERLOG_SEED` says where they
begin, and what failed names the seed that shows it again. A round that does not end in time, or whose interpreter dies,
has failed. Nothing stops at a failure; the exit status is the number of rounds that failed, if any.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

from tests import campaigns

ROOT = Path(__file__).parent.parent.parent
ROUND_S_MAX = 1_800
BEGIN, END = "<!-- last run: begin -->", "<!-- last run: end -->"


@dataclass(frozen=True)
class Lane:
    name: str
    tests: tuple[str, ...]
    goals: Mapping[str, int]
    """What it is to go through, as it is counted. Beyond that it goes on like the others."""
    depth: int = 1
    """How many times the share of `make test` a round takes: so many that it is worth its start."""
    chosen: str = "not planted"

    def command(self) -> list[str]:
        pytest = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
        pytest += ["-o", "faulthandler_timeout=3600"]
        return [*pytest, "-k", self.chosen, *self.tests]


LANES = (
    Lane(
        "crashes",
        (
            "tests/campaigns/test_crashes.py",
            "tests/campaigns/test_crashed_operations.py",
            "tests/campaigns/test_recorded.py",
            "tests/subscription/test_crashes.py",
            "tests/subscription/test_dead_letters.py",
            "tests/produce/test_adoption.py",
            "tests/tier/test_crashes.py",
        ),
        {"crash states, verified": 500_000, "crash states of recorded system calls, verified": 2_000},
        depth=4,
    ),
    Lane(
        "kills",
        ("tests/campaigns/test_kill.py", "tests/campaigns/test_killed_crowd.py"),
        {"kills of a process of many threads": 2_000},
        depth=6,
    ),
    Lane(
        "shared",
        ("tests/campaigns/test_killed_clients.py",),
        {"kills of processes that share a store": 2_000},
        depth=20,
    ),
    Lane(
        "clusters",
        (
            "tests/replication/test_simulation.py",
            "tests/replication/test_interleavings.py",
            "tests/replication/test_processes.py",
        ),
        {
            "simulated courses of clusters": 20_000,
            "interleavings of small histories": 15_000,
            "kills of clusters and replicators": 400,
        },
        depth=8,
    ),
    Lane(
        "failing calls",
        ("tests/campaigns/test_failing_operations.py", "tests/campaigns/test_full_disk.py"),
        {"failing calls of operations": 6_000, "failing calls to the disk": 6_000},
        depth=4,
    ),
    Lane("damaged files", ("tests/campaigns/test_bit_flips.py",), {"damages to files": 500_000}, depth=32),
    Lane(
        "models",
        (
            "tests/campaigns/test_state_machine.py",
            "tests/campaigns/test_cleanup_machine.py",
            "tests/campaigns/test_deletion_machine.py",
            "tests/subscription/test_machine.py",
            "tests/subscription/test_state.py",
            "tests/subscription/test_partition_subscription.py",
            "tests/index/test_merge.py",
            "tests/index/test_bucket_tracker.py",
            "tests/index/test_memory_tracker.py",
            "tests/index/test_time_bucket_tracker.py",
            "tests/tier/test_machine.py",
        ),
        {"steps of a model": 1_000_000},
        depth=8,
    ),
    Lane("clocks", ("tests/campaigns/test_clock_steps.py",), {"clock steps": 5_000}, depth=40),
    Lane("fuzzing", ("tests/fuzzing",), {"fuzzed executions, with sanitizers": 10_000_000}, depth=10),
    Lane("exceptions", ("tests/campaigns/test_interrupted.py",), {"interrupts": 63_000}, depth=60),
    Lane("planted bugs", ("tests",), {"planted bugs, caught": 40}, chosen="planted and not spark"),
)


@dataclass(frozen=True)
class Round:
    """One run of a lane's tests. commit: of what was run, with a + where it was changed since."""

    lane: str
    seed: int
    commit: str
    seconds: float
    counted: Mapping[str, int]
    failed: str


@dataclass
class Result:
    """What a lane went through."""

    lane: Lane
    rounds: list[Round] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.rounds)

    @property
    def failed(self) -> list[str]:
        return [each.failed for each in self.rounds if each.failed]

    @property
    def counted(self) -> Counter[str]:
        return sum((Counter(each.counted) for each in self.rounds), Counter[str]())

    @property
    def progress(self) -> float:
        """How much of its goals it has reached: of that of which it is least. A lane that counts nothing moves, too."""
        counted = self.counted
        reached = min(counted[what] / number for what, number in self.lane.goals.items())
        return reached or self.seconds / 1_000_000

    def round(self, seed: int, commit: str, logs: Path) -> Round:
        """Run it. A log is kept of what failed."""
        counts, log = logs / "counts.json", logs / f"{self.lane.name.replace(' ', '-')}-{seed}.log"
        counts.write_text("{}")
        seeded = {campaigns.SEED_VARIABLE: str(seed), "AFTERLOG_DEPTH": str(self.lane.depth)}
        started = monotonic()
        with log.open("w") as out:
            said = {**os.environ, **seeded, campaigns.COUNTS_VARIABLE: str(counts)}
            try:
                run = subprocess.run(
                    self.lane.command(), cwd=ROOT, env=said, stdout=out, stderr=subprocess.STDOUT, timeout=ROUND_S_MAX
                )
                how = f"exit status {run.returncode}" if run.returncode else ""
            except subprocess.TimeoutExpired:
                how = f"did not end within {ROUND_S_MAX} s"
        if how:
            how = f"{how}: {' '.join(f'{name}={value}' for name, value in seeded.items())}"
            print(f"what it said: {log}", flush=True)
        else:
            log.unlink()
        seconds = round(monotonic() - started, 1)
        self.rounds.append(Round(self.lane.name, seed, commit, seconds, json.loads(counts.read_text()), how))
        return self.rounds[-1]

    def __str__(self) -> str:
        counted = self.counted
        words = ", ".join(f"{number:,} {what}" for what, number in sorted(counted.items()))
        rate = f"{sum(counted.values()) / self.seconds:,.0f}/s" if self.seconds else ""
        rounds = f"{len(self.rounds)} rounds, {self.seconds:.0f} s, {self.progress:.0%} of its goals"
        return f"{self.lane.name}: {rounds}, {words or 'nothing counted'}, {rate}"


def torture(results: Sequence[Result], hours: float, seed: int, commit: str, logs: Path) -> Iterator[Result]:
    """Round after round, always of the lane that is least far on its way; the lane, behind each."""
    started = monotonic()
    while monotonic() < started + hours * 3_600:
        result = min(results, key=lambda each: each.progress)
        result.round(seed + len(result.rounds), commit, logs)
        yield result


def report(results: Sequence[Result]) -> str:
    """The table for docs/reliability.md."""
    head = ["| lane | seeds | minutes | gone through | failed |", "|---|---|--:|---|--:|"]
    for result in results:
        counted = ", ".join(f"{number:,} {what}" for what, number in sorted(result.counted.items()))
        seeds = f"{result.rounds[0].seed} to {result.rounds[-1].seed}" if result.rounds else "none"
        failed = len(result.failed)
        head.append(f"| {result.lane.name} | {seeds} | {result.seconds / 60:.0f} | {counted} | {failed} |")
    commits = ", ".join(dict.fromkeys(each.commit for result in results for each in result.rounds))
    return "\n".join([*head, "", f"Of {commits or 'nothing'}."])


def write(page: Path, results: Sequence[Result]) -> None:
    """The table, in the place of that of the run before."""
    text = page.read_text()
    page.write_text(f"{text.split(BEGIN)[0]}{BEGIN}\n{report(results)}\n{END}{text.split(END)[1]}")


def read(journal: Path | None) -> list[Round]:
    """The rounds of a run that goes on."""
    if journal is None or not journal.exists():
        return []
    return [Round(**json.loads(line)) for line in journal.read_text().splitlines()]


def commit_here() -> str:
    """Of the checkout; empty where there is none."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        said = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(said, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--lane", action="append", choices=[lane.name for lane in LANES], help="these; or all")
    parser.add_argument("--journal", type=Path, help="gets a line for each round; what is in it belongs to this run")
    parser.add_argument("--report", type=Path, help="the page whose table of the last run is to be replaced")
    said = parser.parse_args(arguments)
    before = read(said.journal)
    seed = min((each.seed for each in before), default=campaigns.SEED)
    results = [Result(lane, [each for each in before if each.lane == lane.name]) for lane in LANES]
    running = [result for result in results if said.lane is None or result.lane.name in said.lane]
    logs, started = Path(tempfile.mkdtemp(prefix="torture-")), monotonic()
    print(f"{campaigns.SEED_VARIABLE}={seed}, {said.hours} hours, logs of what fails in {logs}", flush=True)
    for result in torture(running, said.hours, seed, commit_here(), logs):
        last = result.rounds[-1]
        failed = f"\nFAILED, {last.failed}" if last.failed else ""
        print(f"{(monotonic() - started) / 60:6.1f} min  {result}{failed}", flush=True)
        if said.journal is not None:
            with said.journal.open("a") as journal:
                journal.write(json.dumps(asdict(last)) + "\n")
    print(report(results))
    if said.report is not None:
        write(said.report, results)
    return min(sum(len(result.failed) for result in results), 100)


if __name__ == "__main__":
    sys.exit(main())
