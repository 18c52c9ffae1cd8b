"""python -m bench.rivals: see the package."""

from __future__ import annotations

import argparse

from bench.rivals.run import measured, saved


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rivals", description="afterlog and its rivals, in one run")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--only", default="", help="names of rivals, with commas")
    parser.add_argument("--tables", default="", help="embedded, growth, one by one, lateness, served")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--no-save", action="store_true", help="print only")
    given = parser.parse_args()
    only, tables = ([each.strip() for each in text.split(",") if each] for text in (given.only, given.tables))
    figures = measured(given.size, only, tables, given.rounds, say=lambda line: print(line, flush=True))
    print(f"load of the machine: {figures['load']}")
    if not given.no_save:
        print("written:", saved(figures, given.size)["name"])


if __name__ == "__main__":
    main()
