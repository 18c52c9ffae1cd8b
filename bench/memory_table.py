"""The memory table: what pending entries cost in memory, by structure and by how their times are spread.

    python -m bench.memory_table                          a million entries, printed
    python -m bench.memory_table --entries 10_000_000 --save
                                                          the published size, kept for docs/memory.md with its picture
    python -m bench.memory_table cell time-buckets uniform 1_000_000
                                                          one cell, in this process: what the others are started with

Six workloads. Entry i is published at `i / x` ms and belongs to ledger `i // 50,000`; structures that truncate time
drop y bits of it. Four have consecutive times, as in the published table of Pulsar's in-memory tracker (x and y as
there); in the other two the delays are uniform over a day, and exponential with a mean of one minute.

Five structures:

    heap            Pulsar's first tracker: triples (time, ledger, entry) of 24 bytes in segments of 16 MiB. What is
                    built is an array of such segments, filled in order, and a sorted array is a heap; the rates are
                    those of heapq, a binary heap in C, over the first 200,000 triples as tuples
    published       sorted map: time bucket -> map: ledger -> Roaring bitmap of entries, filled as `add` would, without
                    run optimisation. The outer map is a SortedDict, the inner ones dicts, sorted when they are drained
    memory          our MemoryTracker, exact to the millisecond
    buckets         our BucketTracker, exact, with its files in a temporary folder
    time-buckets    our TimeBucketTracker, rounding to 2^y ms

Each cell has a process of its own. It feeds the structure ledger by ledger, makes it small (gc, malloc_trim), and looks
at its memory: anonymous and file-backed pages apart, against the same process before, which had built and drained a
small one and filled numpy's cache of small blocks. Then it drains by 10,000, looking at the memory every 5 ms. Rates
are entries per second of CPU time (user and system) in the calls into the structure: waiting does not count.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import MIB, RESULTS, machine, resident_bytes, watched_bytes
from bench.memory_picture import picture
from bench.memory_structures import STRUCTURES, WORKLOADS, Heap

DRAINED_AT_ONCE = 10_000
FIGURES = RESULTS / "memory" / "table.json"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "memory.svg"
FIELDS = ("entries", "drained", "private_bytes", "file_bytes", "told_bytes", "stored_bytes", "peak_drain_bytes",
          "build_per_s", "drain_per_s")  # fmt: skip
"""Of a cell, besides its structure and workload."""


def cell(structure: str, workload: str, entries: int) -> dict[str, Any]:
    """Measure one cell in this process."""
    spread = WORKLOADS[workload]
    with tempfile.TemporaryDirectory() as name:
        warm = STRUCTURES[structure](spread, Path(name) / "warm")
        for batch in spread.batches(1_000):
            warm.add_many(*batch)
        warm.memory_bytes()
        while warm.drain(DRAINED_AT_ONCE):
            pass
        del warm
        _fill_block_cache()
        before = _settled()
        built = STRUCTURES[structure](spread, Path(name) / "measured")
        build_s = 0.0
        for batch in spread.batches(entries):
            started = time.process_time()
            built.add_many(*batch)
            build_s += time.process_time() - started
        del batch
        after = _settled()
        told = built.memory_bytes()
        stored = sum(path.stat().st_size for path in Path(name).rglob("measured/**/*") if path.is_file())
        drained, drain_s = 0, 0.0
        with watched_bytes() as seen:
            while True:
                started = time.process_time()
                count = built.drain(DRAINED_AT_ONCE)
                drain_s += time.process_time() - started
                drained += count
                if not count:
                    break
    rates = Heap.rates(spread, entries) if structure == "heap" else (entries / build_s, drained / drain_s)
    return {
        "structure": structure,
        "workload": workload,
        "entries": entries,
        "drained": drained,
        "private_bytes": after["anonymous"] - before["anonymous"],
        "file_bytes": after["file"] - before["file"],
        "told_bytes": told,
        "stored_bytes": stored,
        "peak_drain_bytes": seen[-1] - before["anonymous"],
        "build_per_s": round(rates[0]),
        "drain_per_s": round(rates[1]),
    }


def _fill_block_cache() -> None:
    """numpy keeps freed blocks below 1 KiB, up to seven of each size and 3.7 MB in all, for the life of the process.

    Which sizes come up is chance: it fills up sooner or later whatever is measured, and so before it is measured.
    """
    for size in range(1, 1_025):  # one size at a time: other garbage would be room that the measured finds free
        blocks = [np.empty(size, np.uint8) for _ in range(8)]
        del blocks


def _settled() -> dict[str, int]:
    """Resident memory, once what is not used went back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's
        trim(0)
    resident = resident_bytes()
    return resident | {"file": resident["resident"] - resident["anonymous"]}


def in_new_process(structure: str, workload: str, entries: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.memory_table", "cell", structure, workload, str(entries)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    if run.returncode:
        raise RuntimeError(run.stderr)
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def table(cells: list[dict[str, Any]]) -> str:
    """The cells as Markdown, one table a workload."""
    lines = []
    for name, workload in WORKLOADS.items():
        published = "" if workload.published_mib is None else f"; published: {workload.published_mib} MiB"
        lines += ["", f"**{workload.title}**{published}", "", _HEAD, "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
        lines += [_row(cell) for cell in cells if cell["workload"] == name]
    return "\n".join(lines[1:])


_HEAD = "| structure | MiB | B/entry | says itself | file pages | peak of drain | on disk | build M/s | drain M/s |"


def _row(cell: dict[str, Any]) -> str:
    private = cell["private_bytes"]
    told, file, peak, stored = (
        f"{cell[name] / MIB:,.2f}" for name in ("told_bytes", "file_bytes", "peak_drain_bytes", "stored_bytes")
    )
    return (
        f"| {cell['structure']} | {private / MIB:,.2f} | {private / cell['entries']:,.2f} | {told} | {file} | {peak} "
        f"| {stored} | {cell['build_per_s'] / 1e6:,.2f} | {cell['drain_per_s'] / 1e6:,.2f} |"
    )


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["cell"]:
        print(json.dumps(cell(arguments[1], arguments[2], int(arguments[3]))))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.memory_table")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--save", action="store_true", help="keep the figures and draw the picture for the docs")
    options = parser.parse_args(arguments)
    cells = []
    for workload in WORKLOADS:
        for structure in STRUCTURES:
            cells.append(in_new_process(structure, workload, options.entries))
            print(_row(cells[-1]), workload, file=sys.stderr, flush=True)
    print(table(cells))
    if options.save:
        FIGURES.parent.mkdir(exist_ok=True)
        FIGURES.write_text(json.dumps({"machine": machine(), "cells": cells}, indent=1) + "\n")
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(picture(cells, WORKLOADS))


if __name__ == "__main__":
    main(sys.argv[1:])
