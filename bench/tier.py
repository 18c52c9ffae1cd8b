"""Catching up from object storage: everything in the storage, nothing on the machine that reads.

    python -m bench.tier [--records 10_000_000] [--segments 100] [--schedule near] [--cache-mib 4096] [--remote URL]

A store fills the storage and goes; then a process of its own opens the storage on an empty folder and drains it in
delivery order, with every record compared. Schedules: `near`, delays up to as long as ten segments take to fill; `far`,
up to as long as all of them take, so that every stretch of delivery order lies in all segments. Records have 100 bytes
and times of their own, so that nearly each is a batch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from afterlog.base.clock import ManualClock
from afterlog.store.store import open_store
from bench.harness import MIB, RESULTS, record, resident_bytes

TOPIC = "mail"
START_MS = 1_700_000_000_000
VALUE_BYTES = 100
APPENDED = 100_000
"""Records to an append."""
ENTRY_BYTES = 205
"""Of a batch of one record in the log, about."""
HOUR_MS = 3_600_000


def fill(folder: Path, remote: str, records: int, segments: int, schedule: str) -> dict[str, Any]:
    """A store with `segments` segments, all of them uploaded; how long it took."""
    config = afterlog.Config(
        durability=afterlog.OS, segment_bytes=max(records * ENTRY_BYTES // segments, 4_096), batch_bytes_max=4_096
    )
    clock, random = ManualClock(START_MS), np.random.default_rng(7)
    span_ms = HOUR_MS if schedule == "far" else 10 * HOUR_MS // segments
    with open_store(folder, config, clock, None, remote, background=False) as store:
        store.create_topic(TOPIC, remote_storage_enable=True, local_retention_ms=0)
        for first in range(0, records, APPENDED):
            count = min(APPENDED, records - first)
            due = clock.now_ms() + random.integers(1, span_ms, count)
            store.send_many(TOPIC, values(first, count), deliver_after=due)
            clock.advance(HOUR_MS * count // records)
        log = store.topic(TOPIC).partition(0).log
        log.roll()
        start_s = time.perf_counter()
        store.offload()
        upload_s = time.perf_counter() - start_s
        sizes = [segment.size for segment in log.sealed]
        return {"segments": len(sizes), "log_bytes": sum(sizes), "upload_s": round(upload_s, 1)}


def values(first: int, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Values that begin with the record's offset, as `send_many` takes them."""
    data = np.full((count, VALUE_BYTES), ord("."), np.uint8)
    data[:, :8] = np.arange(first, first + count).reshape(-1, 1).view(np.uint8)
    return np.arange(0, (count + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int64), data.reshape(-1)


def drain(folder: Path, remote: str, records: int, cache_bytes: int, poll: int) -> dict[str, Any]:
    """Open the storage on an empty folder and read all of it; every record is checked, and that none is missing."""
    idle = resident_bytes()
    clock = ManualClock(START_MS + 3 * HOUR_MS)
    config = afterlog.Config(durability=afterlog.OS, remote_cache_bytes=cache_bytes)
    start_s = time.perf_counter()
    with open_store(folder, config, clock, None, remote, background=False) as store:
        opened_s = time.perf_counter() - start_s
        seen = np.zeros(records, np.bool_)
        count, last = 0, (-1, -1)
        with store.consumer(TOPIC, group="late", auto_commit=False) as consumer:
            first_s = 0.0
            while len(columns := consumer.poll_columns(poll)):
                first_s = first_s or time.perf_counter() - start_s
                due, offset = columns.due, columns.offset
                assert last < (int(due[0]), int(offset[0]))
                assert not bool((np.diff(due) < 0).any())
                assert not bool(((np.diff(due) == 0) & (np.diff(offset) <= 0)).any())
                starts, data = columns.value
                own = data[starts[:-1, None] + np.arange(8)].reshape(-1).view("<i8")
                assert bool((own == offset).all())
                seen[offset] = True
                count, last = count + len(columns), (int(due[-1]), int(offset[-1]))
        assert (count, records) == (records, int(seen.sum()))
        seconds = time.perf_counter() - start_s
        assert store.tiering is not None
        counts = store.tiering.cache.counts()._asdict()
    used = {f"{name}_mib": round(size / MIB) for name, size in resident_bytes().items()}
    return {
        "open_s": round(opened_s, 2), "first_record_s": round(first_s, 2), "seconds": round(seconds, 1),
        "records_per_s": round(records / seconds), "cpu_s": round(time.process_time(), 1), **counts, **used,
        "idle_resident_mib": round(idle["resident"] / MIB),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--segments", type=int, default=100)
    parser.add_argument("--schedule", choices=("near", "far"), default="near")
    parser.add_argument("--cache-mib", type=int, default=4_096)
    parser.add_argument("--poll", type=int, default=65_536, help="records asked for at a time")
    parser.add_argument("--remote", help="a URL; a directory that goes again by default")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--drain", nargs=2, metavar=("FOLDER", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.drain:
        folder, remote = options.drain
        found = drain(Path(folder), remote, options.records, options.cache_mib * MIB, options.poll)
        print(json.dumps(found))
        return found
    folder = Path(tempfile.mkdtemp(prefix="afterlog-tier-"))
    try:
        (folder / "storage").mkdir()
        remote = options.remote or str(folder / "storage")
        filled = fill(folder / "store", remote, options.records, options.segments, options.schedule)
        shutil.rmtree(folder / "store")
        own = ["--records", str(options.records), "--cache-mib", str(options.cache_mib), "--poll", str(options.poll)]
        command = [sys.executable, "-m", "bench.tier", *own, "--drain", str(folder / "fresh"), remote]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
    finally:
        shutil.rmtree(folder)
    found["fetched_per_log_byte"] = round(found["fetched_bytes"] / filled["log_bytes"], 3)
    found["fetched_per_value_byte"] = round(found["fetched_bytes"] / (options.records * VALUE_BYTES), 3)
    sizes = {"records": options.records, "schedule": options.schedule, "cache_mib": options.cache_mib, **filled}
    print(json.dumps(sizes | found, indent=2))
    if options.save:
        record(f"tier_catch_up_{options.schedule}", sizes, found, RESULTS / "tier")
    return sizes | found


if __name__ == "__main__":
    main()
