"""python -m bench.rivals: see the package."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from bench.rivals.run import TABLES, measured, plan, saved


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rivals", description="afterlog and its rivals, in one run")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--only", default="", help="names of rivals, with commas")
    parser.add_argument("--tables", default="", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--no-save", action="store_true", help="print only, as --size small and --only do")
    given = parser.parse_args()
    only, tables = ([each.strip() for each in text.split(",") if each] for text in (given.only, given.tables))
    jobs = [job for job in plan(given.size == "small") if job.table in (tables or TABLES)]
    if given.rounds is not None:
        jobs = [replace(job, rounds=given.rounds) for job in jobs]

    def keep(figures: dict[str, Any]) -> None:
        if given.size == "full" and not only and not given.no_save:
            saved(figures, given.size)

    measured(jobs, only, lambda line: print(line, flush=True), keep)


if __name__ == "__main__":
    main()
