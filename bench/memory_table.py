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
import heapq
import json
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap
from sortedcontainers import SortedDict

from afterlog.config import Config
from afterlog.files import OsFiles
from afterlog.index.bucket_storage import LocalBucketSnapshotStorage
from afterlog.index.bucket_tracker import BucketTracker
from afterlog.index.memory_tracker import MemoryTracker
from afterlog.index.time_bucket_tracker import TimeBucketTracker
from afterlog.index.tracker import DelayedDeliveryTracker
from afterlog.names import BUCKETS
from bench.harness import MIB, RESULTS, machine, resident_bytes, watched_bytes
from bench.memory_picture import picture

Int64Array = npt.NDArray[np.int64]

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
MINUTE_MS = 60_000
LEDGER_ENTRIES = 50_000
DRAINED_AT_ONCE = 10_000
PUBLISHED_ENTRIES = 10_000_000
SEED = 1
FIGURES = RESULTS / "memory" / "table.json"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "memory.svg"
FIELDS = ("entries", "drained", "private_bytes", "file_bytes", "told_bytes", "stored_bytes", "peak_drain_bytes",
          "build_per_s", "drain_per_s")  # fmt: skip
"""Of a cell, besides its structure and workload."""
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Workload:
    """How the times of entries are spread."""

    title: str
    messages_per_ms: int
    truncated_bits: int
    published_mib: float | None = None
    """What the published table says of the published structure, at 10 million entries."""
    delay_ms: Callable[[np.random.Generator, int], Int64Array] | None = None

    def batches(self, entries: int) -> Iterator[tuple[Int64Array, Int64Array]]:
        """(deliver_after, offset), ledger by ledger."""
        random = np.random.default_rng(SEED)
        for first in range(0, entries, LEDGER_ENTRIES):
            offset = np.arange(first, min(first + LEDGER_ENTRIES, entries), dtype=np.int64)
            due = START_MS + offset // self.messages_per_ms
            yield due if self.delay_ms is None else due + self.delay_ms(random, len(offset)), offset


def _uniform(random: np.random.Generator, count: int) -> Int64Array:
    return random.integers(0, DAY_MS, count)


def _exponential(random: np.random.Generator, count: int) -> Int64Array:
    return random.exponential(MINUTE_MS, count).astype(np.int64)


WORKLOADS = {
    "1-10": Workload("consecutive, 1 a ms, 10 bits", 1, 10, 25),
    "4-10": Workload("consecutive, 4 a ms, 10 bits", 4, 10, 20.48),
    "8-10": Workload("consecutive, 8 a ms, 10 bits", 8, 10, 11),
    "8-15": Workload("consecutive, 8 a ms, 15 bits", 8, 15, 2.25),
    "uniform": Workload("uniform over a day, 1 a ms, 10 bits", 1, 10, None, _uniform),
    "exponential": Workload("exponential, mean 1 min, 1 a ms, 10 bits", 1, 10, None, _exponential),
}


class Structure(Protocol):
    """What is measured."""

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> object: ...

    def drain(self, limit: int) -> int:
        """Take out up to `limit` entries, the first; how many they were."""

    def memory_bytes(self) -> int:
        """What it says itself."""


class Heap:
    """Triples in segments; see the head of the module."""

    SEGMENT = 16 * MIB // 24
    SAMPLE = 200_000

    def __init__(self) -> None:
        self._segments: list[Int64Array] = []
        self._row = self.SEGMENT

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> None:
        triples = np.stack([deliver_after, offset // LEDGER_ENTRIES, offset % LEDGER_ENTRIES], axis=1)
        while len(triples):
            if self._row == self.SEGMENT:
                self._segments.append(np.ones((self.SEGMENT, 3), np.int64))
                self._row = 0
            part = triples[: self.SEGMENT - self._row]
            self._segments[-1][self._row : self._row + len(part)] = part
            self._row += len(part)
            triples = triples[len(part) :]

    def drain(self, limit: int) -> int:
        return 0

    def memory_bytes(self) -> int:
        return sum(segment.nbytes for segment in self._segments)

    @classmethod
    def rates(cls, workload: Workload, entries: int) -> tuple[float, float]:
        """Pushes and pops a second, of tuples."""
        heap: list[tuple[int, int, int]] = []
        count = min(entries, cls.SAMPLE)
        triples = [
            triple
            for due, offset in workload.batches(count)
            for triple in zip(
                due.tolist(), (offset // LEDGER_ENTRIES).tolist(), (offset % LEDGER_ENTRIES).tolist(), strict=True
            )
        ]
        started = time.process_time()
        for triple in triples:
            heapq.heappush(heap, triple)
        built = time.process_time()
        while heap:
            heapq.heappop(heap)
        return count / (built - started), count / (time.process_time() - built)


class Published:
    """Time bucket -> ledger -> Roaring bitmap, without run optimisation."""

    def __init__(self, truncated_bits: int) -> None:
        self._bits = truncated_bits
        self._buckets = SortedDict()

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> None:
        bucket, ledger, entry = deliver_after >> self._bits, offset // LEDGER_ENTRIES, offset % LEDGER_ENTRIES
        order = np.lexsort((entry, ledger, bucket))
        bucket, ledger, entry = bucket[order], ledger[order], entry[order].astype(np.uint32)
        bounds = np.flatnonzero((bucket[1:] != bucket[:-1]) | (ledger[1:] != ledger[:-1])) + 1
        starts, ends = [0, *bounds.tolist()], [*bounds.tolist(), len(bucket)]
        stored = memoryview(entry.view(np.uint8).data)
        for time_, number, start, end in zip(
            bucket[starts].tolist(), ledger[starts].tolist(), starts, ends, strict=True
        ):
            ledgers = self._buckets.get(time_)
            if ledgers is None:
                ledgers = self._buckets[time_] = {}
            values = array("I")
            values.frombytes(stored[4 * start : 4 * end])
            bitmap = ledgers.get(number)
            if bitmap is None:
                ledgers[number] = BitMap(values, optimize=False)
            else:
                bitmap |= BitMap(values, optimize=False)

    def drain(self, limit: int) -> int:
        count = 0
        while count < limit and self._buckets:
            time_, ledgers = self._buckets.peekitem(0)
            for number in sorted(ledgers):
                entries = ledgers[number][: limit - count]
                ledgers[number] -= entries
                count += len(np.frombuffer(entries.to_array(), np.uint32))
                if not ledgers[number]:
                    del ledgers[number]
                if count == limit:
                    break
            if not ledgers:
                del self._buckets[time_]
        return count

    def memory_bytes(self) -> int:
        """As the published one: serialised bytes."""
        return sum(
            8 + sum(8 + len(bitmap.serialize()) for bitmap in ledgers.values()) for ledgers in self._buckets.values()
        )


class Tracked:
    """One of our trackers."""

    def __init__(self, tracker: DelayedDeliveryTracker) -> None:
        self.add_many = tracker.add_many
        self.memory_bytes = tracker.memory_bytes
        self._tracker = tracker

    def drain(self, limit: int) -> int:
        return len(self._tracker.due(_INT64_MAX, limit))


def new_buckets(folder: Path) -> BucketTracker:
    """With the settings of a store."""
    config = Config()
    (folder / BUCKETS).mkdir(parents=True)
    storage = LocalBucketSnapshotStorage(
        OsFiles(),
        folder,
        max_entries=config.max_indexes_per_bucket_snapshot_segment,
        max_step_ms=1_000 * config.max_time_step_per_bucket_snapshot_segment_s,
    )
    return BucketTracker(
        storage, min_index_count=config.min_index_count_per_bucket, max_num_buckets=config.max_num_buckets
    )


STRUCTURES: dict[str, Callable[[Workload, Path], Structure]] = {
    "heap": lambda workload, folder: Heap(),
    "published": lambda workload, folder: Published(workload.truncated_bits),
    "memory": lambda workload, folder: Tracked(MemoryTracker()),
    "buckets": lambda workload, folder: Tracked(new_buckets(folder)),
    "time-buckets": lambda workload, folder: Tracked(TimeBucketTracker(1 << workload.truncated_bits)),
}


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
