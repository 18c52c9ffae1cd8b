"""A long run with sanitizers: python -m tests.fuzzing.long_run MINUTES [PROCESSES [SEED [keep]]]

Rounds of a minute, each with the next seed, on every decoder of what lies on disk; progress, counts and rates to
standard output, findings as soon as there are any. `keep`: what took new ways goes to the corpus, the shortest of
each, as far as there is room.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests import campaigns
from tests.fuzzing import sanitized
from tests.fuzzing.fuzzer import CORPUS, SANITIZED, corpus_of

ROUND_S: Final = 60.0
KEPT_MAX: Final = 24
KEPT_BYTES_MAX: Final = 8_000
"""Of one decoder."""


def main(minutes: str, processes: str = "2", seed: str = str(campaigns.SEED), keep: str = "") -> int:
    """How many findings there are."""
    executions: Counter[str] = Counter()
    outcomes: dict[str, dict[str, bytes]] = {name: {} for name in SANITIZED}
    findings: dict[str, str] = {}
    started_s, next_seed = time.monotonic(), int(seed)
    with TemporaryDirectory() as folder, ThreadPoolExecutor(int(processes)) as pool:
        homes = [Path(folder) / str(number) for number in range(int(processes))]
        sanitized.build(Path(folder))
        while time.monotonic() - started_s < 60 * float(minutes):
            rounds = [pool.submit(_round, Path(folder), home, next_seed + number) for number, home in enumerate(homes)]
            for done in [each.result() for each in rounds]:
                executions.update(done.executions)
                findings |= {finding.told: str(finding) for finding in done.findings if finding.told not in findings}
                for name, ways in done.outcomes.items():
                    for way, data in ways.items():
                        if way not in outcomes[name] or len(data) < len(outcomes[name][way]):
                            outcomes[name][way] = data
            next_seed += len(homes)
            took_s, total = time.monotonic() - started_s, executions.total()
            minutes_gone, rate = took_s / 60, total / took_s
            ways = sum(map(len, outcomes.values()))
            print(
                f"{minutes_gone:5.1f} min, seeds {seed} to {next_seed - 1}: {total:,} executions, {rate:,.0f}/s", end=""
            )
            print(f", {ways:,} outcomes, {len(findings)} findings", flush=True)
    for name in SANITIZED:
        print(f"{executions[name]:12,} {name}, {len(outcomes[name]):,} outcomes")
        if keep:
            _keep(name, outcomes[name])
    print("\n".join(findings.values()))
    return len(findings)


def _round(modules: Path, home: Path, seed: int) -> sanitized.Fuzzed:
    home.mkdir(exist_ok=True)
    return sanitized.fuzz(modules, seed, ROUND_S, [*SANITIZED], current=home / "current")


def _keep(name: str, outcomes: Mapping[str, bytes]) -> None:
    """Of each way the shortest, the short ones first, until there are enough."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    held = corpus_of(name)
    for _, data in sorted(outcomes.items(), key=lambda each: (len(each[1]), each)):
        if data in held or len(held) >= KEPT_MAX or sum(map(len, held)) + len(data) > KEPT_BYTES_MAX:
            continue
        (folder / f"{zlib.crc32(data):08x}").write_bytes(data)
        held.append(data)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
