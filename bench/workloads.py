"""The workloads, as plain functions of a folder and sizes. `tests/test_bench.py` runs all of them, tiny.

python -m bench.workloads fill FOLDER 1000000      runs one of those that want a process of their own
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

import afterlog
from afterlog.files import OsFiles
from afterlog.index.delayed_index import DelayedIndex
from afterlog.index.entries import Entries, Key
from afterlog.index.merge import MergeIterator
from afterlog.index.run import Coverage, Run
from afterlog.index.run_writer import write_run
from bench.harness import Times, resident_bytes, watched_bytes

Int64Array = npt.NDArray[np.int64]
Dues = Literal["equal", "uniform", "exponential"]

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TOPIC = "bench"
SEED = 1
_INT64_MAX = 2**63 - 1


def dues(kind: Dues, count: int) -> Int64Array:
    """Due times: all an hour ahead, uniform over that hour, or exponential with a mean of one minute."""
    random = np.random.default_rng(SEED)
    if kind == "equal":
        return np.full(count, START_MS + HOUR_MS)
    if kind == "uniform":
        return START_MS + random.integers(1, HOUR_MS, count)
    return START_MS + 1 + random.exponential(60_000, count).astype(np.int64)


def values(count: int, size: int) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
    """Random byte strings of one size, as columns."""
    data = np.random.default_rng(SEED).integers(0, 256, count * size, np.uint8)
    return np.arange(count + 1, dtype=np.int64) * size, data


def new_store(folder: Path, durability: afterlog.Durability = afterlog.ALWAYS) -> afterlog.Store:
    """A store with one topic, on a clock that stands still an hour before the last record is due."""
    store = afterlog.open(folder, config=afterlog.Config(durability=durability), clock=afterlog.ManualClock(START_MS))
    store.create_topic(TOPIC)
    return store


def logs(folder: Path) -> list[Path]:
    """The segments of the topic, oldest first."""
    return sorted(folder.glob(f"{TOPIC}-0/*.log"))


def log_bytes(folder: Path) -> bytes:
    """Everything that the appends wrote to the log."""
    return b"".join(path.read_bytes() for path in logs(folder))


def make_due(store: afterlog.Store) -> None:
    """Turn the clock until everything is due."""
    clock = store.clock
    assert isinstance(clock, afterlog.ManualClock)
    clock.set(START_MS + 48 * HOUR_MS)


def drain(store: afterlog.Store, group: str) -> int:
    """Read all that is due as columns; the number of records."""
    count = 0
    with store.consumer(TOPIC, group=group, auto_commit=False) as consumer:
        while columns := consumer.poll_columns():
            count += len(columns)
    return count


# One record at a time.


def send_each(store: afterlog.Store, value: bytes, count: int) -> Times:
    """`count` sends; the times of each."""
    times = Times()
    for _ in range(count):
        with times.measured():
            store.send(TOPIC, value, delay=3600)
    return times


def send_and_poll_each(store: afterlog.Store, value: bytes, count: int) -> Times:
    """`count` records sent, due at once, each polled before the next is sent; the times of the polls."""
    times = Times()
    with store.consumer(TOPIC, group="loop", auto_commit=False) as consumer:
        for _ in range(count):
            store.send(TOPIC, value)
            with times.measured():
                messages = consumer.poll()
            assert [value] == [message.value for message in messages]
    return times


# Many pending.


def fill(folder: Path, pending: int) -> dict[str, float]:
    """Make a store with so many records pending, with the largest tail behind the recovery point, and leave it open."""
    store = new_store(folder, afterlog.OS)
    tail = min(pending // 2, store.config.min_index_count_per_bucket - 1)
    for count in (pending - tail, tail):
        for start in range(0, count, 1_000_000):
            part = min(count - start, 1_000_000)
            store.send_many(TOPIC, values(part, 100), deliver_after=dues("uniform", part))
    return {"tail": tail}


def open_crashed(folder: Path) -> dict[str, float]:
    """Open a store whose process died, and leave it as it was: how long that takes."""
    clock, _ = afterlog.ManualClock(START_MS), afterlog.Store  # imported now: it is no part of opening
    times = Times()
    with times.measured():
        store = afterlog.open(folder, clock=clock)
    pending = store.topic(TOPIC).partition(0).pending()
    return {"cpu_s": times.cpu_s[0], "wall_s": times.wall_s[0], "pending": pending}


def memory(folder: Path) -> dict[str, float]:
    """Memory that is no file mapping, beyond the interpreter's: of the open store, after a poll, after a drain."""
    base = resident_bytes()["anonymous"]
    store = afterlog.open(folder, clock=afterlog.ManualClock(START_MS))
    result: dict[str, float] = {"open_bytes": resident_bytes()["anonymous"] - base}
    make_due(store)
    with store.consumer(TOPIC, group="first", auto_commit=False) as consumer:
        consumer.poll_columns()
    result["polled_bytes"] = resident_bytes()["anonymous"] - base
    result["drained"] = drain(store, "all")
    return result | {"drained_bytes": resident_bytes()["anonymous"] - base}


def roll(folder: Path) -> dict[str, float]:
    """Open a store and seal its segment; how long that takes, and the most memory, without file mappings and with."""
    store = afterlog.open(folder, clock=afterlog.ManualClock(START_MS))
    log = store.topic(TOPIC).partition(0).log
    before = resident_bytes()
    times = Times()
    with watched_bytes() as seen, times.measured():
        log.roll()
    return {
        "wall_s": times.wall_s[0],
        "cpu_s": times.cpu_s[0],
        "entries": log.index.count,
        "peak_bytes": seen[-1] - before["anonymous"],
        "peak_mapped_bytes": resident_bytes()["peak"] - before["anonymous"],
    }


def in_new_process(workload: str, folder: Path, *numbers: int) -> dict[str, float]:
    """Run a workload in a new process, which ends without closing anything, as in a crash; what it returned."""
    command = [sys.executable, "-m", "bench.workloads", workload, str(folder), *map(str, numbers)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    if run.returncode:
        raise RuntimeError(run.stderr)
    result: dict[str, float] = json.loads(run.stdout)
    return result


# The merge.


def runs(folder: Path, count: int, entries: int) -> DelayedIndex:
    """An index of `entries` entries, due uniformly over an hour, in `count` runs of one size."""
    index, files = DelayedIndex(), OsFiles()
    due = dues("uniform", entries)
    size = entries // count
    for number in range(count):
        first = number * size
        offset = np.arange(first, first + size, dtype=np.int64)
        part = Entries(due[first : first + size], offset, offset * 200, np.ones(size, np.int64)).sorted()
        path = folder / f"{number:04d}.deliverafterindex"
        coverage = Coverage(first, first + size, 0, first * 200, 0, (first + size) * 200)
        write_run(files, path, [part], coverage, max_entries=5_000, max_step_ms=300_000)
        index.replace(remove=(), add=Run.open(files, path))
    return index


def merge_all(index: DelayedIndex) -> int:
    """Merge everything; the number of entries."""
    merge = MergeIterator(index)
    count = 0
    while block := merge.next_block(Key(_INT64_MAX, _INT64_MAX), 8_192):
        count += len(block)
    return count


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))), flush=True)
    os._exit(0)
