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
from afterlog.base.files import OsFiles
from afterlog.base.names import BUCKETS
from afterlog.index.bucket_storage import LocalBucketSnapshotStorage
from afterlog.index.buckets import Buckets
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


def new_store(folder: Path, durability: afterlog.Durability = afterlog.ALWAYS, *, spread_ms: int = 0) -> afterlog.Store:
    """A store with one topic, on a clock that stands still an hour before the last record is due."""
    config = afterlog.Config(durability=durability, deliver_after_spread_ms=spread_ms)
    store = afterlog.open(folder, config=config, clock=afterlog.ManualClock(START_MS))
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
        consumer.commit()  # the next time begins where this one ends
    return times


# Many pending.


def fill(folder: Path, pending: int) -> dict[str, float]:
    """Make a store with so many records pending, with the largest tail after the recovery point, and leave it open."""
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


def in_new_process(workload: str, folder: Path, *numbers: int, module: str = "bench.workloads") -> dict[str, float]:
    """Run a workload in a new process, which ends without closing anything, as in a crash; what it returned."""
    command = [sys.executable, "-m", module, workload, str(folder), *map(str, numbers)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    if run.returncode:
        raise RuntimeError(run.stderr)
    result: dict[str, float] = json.loads(run.stdout)
    return result


# The merge.


def runs(folder: Path, count: int, entries: int) -> DelayedIndex:
    """An index of `entries` entries, due uniformly over an hour, in `count` runs of one size."""
    opened, files = list[Run](), OsFiles()
    due = dues("uniform", entries)
    size = entries // count
    for number in range(count):
        first = number * size
        offset = np.arange(first, first + size, dtype=np.int64)
        part = Entries(due[first : first + size], offset, offset * 200, np.ones(size, np.int64)).sorted()
        path = folder / f"{number:04d}.deliverafterindex"
        coverage = Coverage(first, first + size, 0, first * 200, 0, (first + size) * 200)
        write_run(files, path, [part], coverage, max_entries=5_000, max_step_ms=300_000)
        opened.append(Run.open(files, path))
    return DelayedIndex.of(opened)


def merge_all(index: DelayedIndex) -> int:
    """Merge everything; the number of entries."""
    merge = MergeIterator()
    count = 0
    while block := merge.next_block(index, Key(_INT64_MAX, _INT64_MAX), 8_192):
        count += len(block)
    return count


# Runs.

Schedule = Literal["consecutive", "uniform", "exponential"]
BATCH_BYTES = {"equal": (100, 100), "80-120": (80, 120), "100-1000": (100, 1000)}
"""Bytes of a batch in the log, all the same or uniform: they make the positions in an index."""


def scheduled(schedule: Schedule, count: int, precision_ms: int, batch_bytes: str) -> Entries:
    """Entries of one record, appended one a millisecond, in delivery order: due one after another, uniformly over a
    day, or after delays with a mean of one minute; the times rounded up to the precision."""
    random = np.random.default_rng(SEED)
    offset = np.arange(count, dtype=np.int64)
    if schedule == "consecutive":
        due = START_MS + offset
    elif schedule == "uniform":
        due = START_MS + random.integers(0, 24 * HOUR_MS, count)
    else:
        due = START_MS + offset + random.exponential(60_000, count).astype(np.int64)
    due = -(-due // precision_ms) * precision_ms
    smallest, largest = BATCH_BYTES[batch_bytes]
    position = np.cumsum(random.integers(smallest, largest + 1, count)) % 2**31
    return Entries(due, offset, position, np.ones(count, np.int64)).sorted()


def write_scheduled(path: Path, entries: Entries) -> Run:
    """One run of all the entries, written in blocks as a merge gives them."""
    blocks = (entries[start : start + 16_384] for start in range(0, len(entries), 16_384))
    coverage = Coverage(0, len(entries), 0, 0, 0, int(entries.position.max()) + 1)
    write_run(OsFiles(), path, blocks, coverage, max_entries=5_000, max_step_ms=300_000)
    return Run.open(OsFiles(), path)


def decode_all(run: Run) -> int:
    """Load every chunk; the number of entries."""
    return sum(len(run.columns(chunk)[0]) for chunk in range(run.chunks))


# Buckets.

SEAL_ENTRIES = 50_000


def seal_and_merge(folder: Path, entries: int, limit: int, seal_entries: int = SEAL_ENTRIES) -> dict[str, float]:
    """Seal a bucket again and again, and merge as soon as there are more than `limit` runs; -1: never."""
    folder.mkdir()
    (folder / BUCKETS).mkdir()
    storage = LocalBucketSnapshotStorage(OsFiles(), folder, max_entries=5_000, max_step_ms=300_000)
    index = DelayedIndex()
    buckets = Buckets(storage, max_num_buckets=limit)
    due, records = dues("uniform", entries), np.ones(seal_entries, np.int64)
    sealing, merging, merged_entries = Times(), Times(), 0
    for first in range(0, entries, seal_entries):
        offset = np.arange(first, first + seal_entries)
        with sealing.measured():
            index.bucket.add_many(Entries(due[offset], offset, offset * 200, records))
            index = buckets.seal(index, first + seal_entries, (first + seal_entries) * 200)
        while sources := buckets.to_merge(index.active_runs):
            merged_entries += sum(run.count for run in sources)
            with merging.measured():
                before, index = index, index.replacing(sources, [buckets.merge(sources)])
                buckets.delete_replaced(before, index)
    return {
        "runs": len(index.runs),
        "merged_entries": merged_entries,
        "cpu_s": sum(sealing.cpu_s) + sum(merging.cpu_s),
        "wall_s": sum(sealing.wall_s) + sum(merging.wall_s),
        "merge_cpu_s": sum(merging.cpu_s),
    }


def drain_runs(folder: Path) -> dict[str, float]:
    """Merge all the runs of `seal_and_merge` once more, to read them; the most memory that takes."""
    base = resident_bytes()["anonymous"]
    index = DelayedIndex.of([Run.open(OsFiles(), path) for path in folder.glob(f"{BUCKETS}/*")])
    times = Times()
    with watched_bytes() as seen, times.measured():
        entries = merge_all(index)
    return {"entries": entries, "cpu_s": times.cpu_s[0], "wall_s": times.wall_s[0], "peak_bytes": seen[-1] - base}


def append_crowded(folder: Path, records: int, limit: int, seal_entries: int = SEAL_ENTRIES) -> dict[str, float]:
    """Append so many records of 100 B, 50,000 in a call, while the runs that they become are merged by the thread."""
    config = afterlog.Config(
        durability=afterlog.OS, max_num_buckets=limit, min_index_count_per_bucket=seal_entries, segment_bytes=2**31 - 1
    )
    store = afterlog.open(folder, config=config, clock=afterlog.ManualClock(START_MS))
    store.create_topic(TOPIC)
    due, value_columns, times = dues("uniform", records), values(seal_entries, 100), Times()
    for first in range(0, records, seal_entries):
        with times.measured():
            store.send_many(TOPIC, value_columns, deliver_after=due[first : first + seal_entries])
    runs = len(store.topic(TOPIC).partition(0).log.index.runs)
    closing = Times()
    with closing.measured():
        store.close()
    slowest_ms = max(times.wall_s) * 1000
    return {"cpu_s": sum(times.cpu_s), "wall_s": sum(times.wall_s), "slowest_ms": slowest_ms, "runs": runs}


def seek(folder: Path) -> dict[str, float]:
    """Open a store and look into the middle of it, by time and by offset, and fetch there; milliseconds each."""
    store = afterlog.open(folder, clock=afterlog.ManualClock(START_MS))
    partition = store.topic(TOPIC).partition(0)
    make_due(store)
    by_time, by_offset, fetched = Times(), Times(), Times()
    with by_time.measured():
        position = partition.position(afterlog.AtTime(START_MS + HOUR_MS // 2))
    with by_offset.measured():
        partition.position(afterlog.AfterOffset(partition.log_end_offset // 2))
    with fetched.measured():
        assert partition.fetch(position, max_bytes=1_000).batches
    return {
        f"{name}_ms": times.wall_s[0] * 1000
        for name, times in (("by_time", by_time), ("by_offset", by_offset), ("fetch", fetched))
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))), flush=True)
    os._exit(0)
