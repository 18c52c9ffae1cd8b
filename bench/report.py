"""The results as a Markdown table, for docs/benchmarks.md:  python -m bench.report"""

from __future__ import annotations

import json
from pathlib import Path

from bench.harness import RESULTS


def table(folder: Path = RESULTS) -> str:
    """One row for each result in the folder, by name. CPU medians, wall medians and 99th percentiles per operation."""
    rows = ["| workload | CPU | floor | ratio | wall p50 | wall p99 |", "|---|--:|--:|--:|--:|--:|"]
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        ours, floor = result["ours"], result["floor"]
        times = (ours["cpu_p50_ns"], floor["cpu_p50_ns"], ours["wall_p50_ns"], ours["wall_p99_ns"])
        cpu, least, wall, worst = map(_time, times)
        rows.append(f"| {result['name']} | {cpu} | {least} | {result['cpu_ratio']:.1f} | {wall} | {worst} |")
    return "\n".join(rows)


def _time(ns: float) -> str:
    for unit, size in (("ms", 1e6), ("us", 1e3)):
        if ns >= 10 * size:
            return f"{ns / size:,.0f} {unit}"
    return f"{ns:,.0f} ns"


if __name__ == "__main__":
    print(table())
