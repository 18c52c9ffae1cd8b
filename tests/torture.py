"""Campaigns for hours: `make torture HOURS=2`. Lane by lane, share after share, each of another seed.

    python -m tests.torture --hours 2                          every lane, each for as long as the others
    python -m tests.torture --hours 0.5 --lane kills           one of them
    python -m tests.torture --hours 2 --report docs/reliability.md

A round is a run of a lane's tests with a seed of its own (tests/campaigns.py): `AFTERLOG_SEED` says where they begin,
and what failed names the seed that shows it again. A round that does not end in time, or whose interpreter dies, has
failed. Nothing stops at a failure; the exit status is the number of rounds that failed, if any.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import campaigns

ROOT = Path(__file__).parent.parent
ROUND_S_MAX = 1_800
BEGIN, END = "<!-- last run: begin -->", "<!-- last run: end -->"


@dataclass(frozen=True)
class Lane:
    name: str
    tests: tuple[str, ...]
    depth: int = 1
    """How many times the share of `make test` a round takes: so many that it is worth its start."""
    chosen: str = "not planted"
    once: bool = False
    """Whether every round is the same."""

    def command(self) -> list[str]:
        pytest = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
        return [*pytest, "-k", self.chosen, *self.tests]


LANES = (
    Lane(
        "crashes",
        (
            "tests/test_crashes.py",
            "tests/test_crashed_operations.py",
            "tests/test_recorded.py",
            "tests/subscription/test_crashes.py",
            "tests/subscription/test_dead_letters.py",
            "tests/produce/test_adoption.py",
            "tests/tier/test_crashes.py",
        ),
        depth=4,
    ),
    Lane("kills", ("tests/test_kill.py", "tests/test_killed_crowd.py"), depth=6),
    Lane("failing calls", ("tests/test_failing_operations.py", "tests/test_full_disk.py"), depth=4),
    Lane("damaged files", ("tests/test_bit_flips.py",), depth=8),
    Lane(
        "models",
        (
            "tests/test_state_machine.py",
            "tests/subscription/test_machine.py",
            "tests/subscription/test_state.py",
            "tests/subscription/test_partition_subscription.py",
            "tests/index/test_merge.py",
            "tests/index/test_bucket_tracker.py",
            "tests/index/test_memory_tracker.py",
            "tests/index/test_time_bucket_tracker.py",
            "tests/tier/test_machine.py",
        ),
        depth=8,
    ),
    Lane("clocks", ("tests/test_clock_steps.py",), depth=40),
    Lane("fuzzing", ("tests/fuzzing",), depth=20),
    Lane("exceptions", ("tests/test_interrupted.py",), depth=20),
    Lane("planted bugs", ("tests",), chosen="planted and not spark", once=True),
)


@dataclass
class Result:
    """What a lane went through."""

    lane: Lane
    seconds: float = 0
    rounds: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        return not (self.lane.once and self.rounds)

    def round(self, seed: int, logs: Path) -> str:
        """Run it. What failed, or nothing."""
        counts, log = logs / "counts.json", logs / f"{self.lane.name.replace(' ', '-')}-{seed}.log"
        seeded = {campaigns.SEED_VARIABLE: str(seed), "AFTERLOG_DEPTH": str(self.lane.depth)}
        started = time.monotonic()
        with log.open("w") as out:
            said = {**os.environ, **seeded, campaigns.COUNTS_VARIABLE: str(counts)}
            try:
                run = subprocess.run(
                    self.lane.command(), cwd=ROOT, env=said, stdout=out, stderr=subprocess.STDOUT, timeout=ROUND_S_MAX
                )
                how = f"exit status {run.returncode}" if run.returncode else ""
            except subprocess.TimeoutExpired:
                how = f"did not end within {ROUND_S_MAX} s"
        self.seconds += time.monotonic() - started
        self.rounds += 1
        if counts.exists():
            self.counted.update(json.loads(counts.read_text()))
            counts.unlink()
        if not how:
            log.unlink()
            return ""
        self.failed.append(f"FAILED, {how}: {' '.join(f'{name}={value}' for name, value in seeded.items())}, see {log}")
        return self.failed[-1]

    def __str__(self) -> str:
        counted = ", ".join(f"{number:,} {what}" for what, number in sorted(self.counted.items()))
        rate = f"{sum(self.counted.values()) / self.seconds:,.0f}/s" if self.seconds else ""
        return f"{self.lane.name}: {self.rounds} rounds, {self.seconds:.0f} s, {counted or 'nothing counted'}, {rate}"


def torture(results: Sequence[Result], hours: float, logs: Path) -> Iterator[str]:
    """Round after round, always of the lane that has had the least time; what to print behind each."""
    started = time.monotonic()
    while time.monotonic() < started + hours * 3_600:
        result = min((each for each in results if each.goes_on), key=lambda each: each.seconds, default=None)
        if result is None:
            return
        failed = result.round(campaigns.SEED + result.rounds, logs)
        yield f"{(time.monotonic() - started) / 60:6.1f} min  {result}{failed and chr(10)}{failed}"


def report(results: Sequence[Result]) -> str:
    """The table for docs/reliability.md."""
    head = ["| lane | seeds | minutes | gone through | failed |", "|---|---|--:|---|--:|"]
    for result in results:
        counted = ", ".join(f"{number:,} {what}" for what, number in sorted(result.counted.items()))
        seeds = f"{campaigns.SEED} to {campaigns.SEED + result.rounds - 1}" if result.rounds else "none"
        failed = len(result.failed)
        head.append(f"| {result.lane.name} | {seeds} | {result.seconds / 60:.0f} | {counted} | {failed} |")
    return "\n".join(head)


def write(page: Path, results: Sequence[Result]) -> None:
    """The table, in the place of that of the run before."""
    text = page.read_text()
    page.write_text(f"{text.split(BEGIN)[0]}{BEGIN}\n{report(results)}\n{END}{text.split(END)[1]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--lane", action="append", choices=[lane.name for lane in LANES], help="these; or all")
    parser.add_argument("--report", type=Path, help="the page whose table of the last run is to be replaced")
    said = parser.parse_args(arguments)
    results = [Result(lane) for lane in LANES if said.lane is None or lane.name in said.lane]
    logs = Path(tempfile.mkdtemp(prefix="torture-"))
    print(f"{campaigns.SEED_VARIABLE}={campaigns.SEED}, {said.hours} hours, logs of what fails in {logs}", flush=True)
    for line in torture(results, said.hours, logs):
        print(line, flush=True)
    print(report(results))
    if said.report is not None:
        write(said.report, results)
    return min(sum(len(result.failed) for result in results), 100)


if __name__ == "__main__":
    sys.exit(main())
