"""python -m bench.served: see the package."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bench.served.once import PARTS
from bench.served.run import Row, measured, plan, saved, target


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.served", description="a served store, the same in process, and servers of others"
    )
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--only", default="", help=f"parts, with commas, of {', '.join(PARTS)}")
    parser.add_argument("--who", default="", help="names of contestants, with semicolons; nothing is written then")
    parser.add_argument("--rounds", type=int, help="of each part but the soak")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the soak")
    parser.add_argument("--out", type=Path, help="a file for the results, and not bench/results/served")
    parser.add_argument("--no-save", action="store_true", help="print only, as --size small and --who do")
    given = parser.parse_args(arguments)
    parts = _list(given.only, ",") or [*PARTS]
    if unknown := set(parts) - {*PARTS}:
        parser.error(f"no part {', '.join(sorted(unknown))}")
    jobs = [job for job in plan(given.size == "small", given.minutes) if job.part in parts]
    if given.rounds is not None:
        jobs = [job if job.part == "soak" else replace(job, rounds=given.rounds) for job in jobs]
    who = _list(given.who, ";")
    writes = given.out is not None or not (given.size == "small" or who or given.no_save)

    def keep(figures: Row) -> None:
        if writes:
            saved(figures, given.size, target(given.out))

    measured(jobs, who, lambda line: print(line, flush=True), keep)


def _list(text: str, between: str) -> list[str]:
    return [each.strip() for each in text.split(between) if each.strip()]


if __name__ == "__main__":
    main()
