"""Writes the figures into docs/benchmarks.md and docs/benchmarks-served.md, and the pictures:  python -m bench.report

What stands between `<!-- made by `make bench`: … -->` and `<!-- end -->` is made; all else is written by hand. Three
kinds of results lie in bench/results: one file for each named workload, one for each run of the comparison with
rivals, whose name begins with its date, and in served/ one for each run of what is served. The newest of those count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.harness import RESULTS
from bench.rivals import page as rivals
from bench.served import page as served
from bench.served.run import FOLDER as SERVED

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
SERVED_PAGE = PAGE.with_name("benchmarks-served.md")
IMAGES = PAGE.parent / "images"
WORKLOADS, RUNS = "[!0-9]*.json", "[0-9]*.json"


def table(folder: Path = RESULTS) -> str:
    """One row for each workload of the folder, by name. Medians of CPU and wall time, and p99, per operation."""
    rows = ["| workload | CPU | floor | ratio | wall p50 | wall p99 |", "|---|--:|--:|--:|--:|--:|"]
    for path in sorted(folder.glob(WORKLOADS)):
        result = json.loads(path.read_text())
        ours, floor = result["ours"], result["floor"]
        times = (ours["cpu_p50_ns"], floor["cpu_p50_ns"], ours["wall_p50_ns"], ours["wall_p99_ns"])
        cpu, least, wall, worst = map(_time, times)
        rows.append(f"| {result['name']} | {cpu} | {least} | {result['cpu_ratio']:.1f} | {wall} | {worst} |")
    return "\n".join(rows)


def newest_run(folder: Path = RESULTS, table: str | None = None) -> dict[str, Any] | None:
    """The last run of a comparison, or the last that took a table; None: there is none."""
    for path in sorted(folder.glob(RUNS), reverse=True):
        run: dict[str, Any] = json.loads(path.read_text())
        if table is None or any(row["table"] == table for row in run["rows"]):
            return run
    return None


def _phases(folder: Path, table: str, whole: dict[str, Any]) -> str:
    """Of the last run that took this table: it may have taken no other."""
    run = newest_run(folder, table) or whole
    made = rivals.phases_tables(rivals.Found(run), table)
    return made if run == whole else f"{made}\n\nOf a run of this table alone: {run['name']}."


def parts(folder: Path = RESULTS) -> dict[str, str]:
    """What is made of the results, by the name in its mark."""
    made = {"workloads": table(folder)}
    run = newest_run(folder, "embedded")
    if run is not None:
        found = rivals.Found(run)
        made |= {
            "surroundings": rivals.surroundings(found),
            "aims": rivals.aims(found),
            "embedded": _phases(folder, "embedded", run),
            "served": _phases(folder, "served", run),
            "one by one": _phases(folder, "one by one", run),
            "growth": rivals.growth_table(found),
            "lateness": rivals.lateness_table(found),
            "limits": rivals.limits_table(found),
            "settings": rivals.settings_list(found),
        }
    return made


def served_parts(folder: Path = SERVED) -> dict[str, str]:
    """The same for the page of what is served."""
    run = newest_run(folder)
    return {} if run is None else served.made(served.Found(run))


def page(text: str, made: dict[str, str]) -> str:
    """The page with what is made put in anew."""
    for name, part in made.items():
        begin, end = f"<!-- made by `make bench`: {name} -->\n", "<!-- end -->"
        before, mark, rest = text.partition(begin)
        if mark:
            text = f"{before}{begin}\n{part}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    for path, made in ((PAGE, parts()), (SERVED_PAGE, served_parts())):
        path.write_text(page(path.read_text("utf-8"), made), "utf-8")
    run = newest_run()
    for name, picture in ({} if run is None else rivals.pictures(rivals.Found(run))).items():
        (IMAGES / name).write_text(picture, "utf-8")


def _time(ns: float) -> str:
    for unit, size in (("ms", 1e6), ("us", 1e3)):
        if ns >= 10 * size:
            return f"{ns / size:,.0f} {unit}"
    return f"{ns:,.0f} ns"


if __name__ == "__main__":
    main()
