"""The longest that an append takes while segments roll: what who sends must be ready for.

    python -m bench.longest [--records 10000000] [--segment-bytes 1073741824] [--rounds 2] [--folder FOLDER]

Calls of `send_many`, of 1,000 records of 100 bytes each, due at times spread over an hour, under `os`, so that no sync
of their own hides what they wait for. A row for each round; times in ms.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import afterlog
from bench.harness import machine

PER_CALL = 1_000
HOUR_MS = 3_600_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--segment-bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(machine()))
    for _ in range(arguments.rounds):
        made = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            print(json.dumps(longest(made / "store", arguments.records, arguments.segment_bytes)))
        finally:
            shutil.rmtree(made)


def longest(folder: Path, records: int, segment_bytes: int) -> dict[str, Any]:
    """What the calls took, and what the close did."""
    random, values, took_ms = np.random.default_rng(1), [b"v" * 100] * PER_CALL, list[float]()
    config = afterlog.Config(durability=afterlog.OS, segment_bytes=segment_bytes)
    with afterlog.open(folder, config=config) as store:
        log = store.create_topic("t").log(0)
        begin_ms = store.now_ms() + HOUR_MS
        for _ in range(records // PER_CALL):
            due = begin_ms + random.integers(0, HOUR_MS, PER_CALL)
            begun_s = time.perf_counter()
            store.send_many("t", values, deliver_after=due)
            took_ms.append((time.perf_counter() - begun_s) * 1_000)
        rolls, late = len(log.sealed), log.late_checkpoints
        begun_s = time.perf_counter()
    close_ms = (time.perf_counter() - begun_s) * 1_000
    p50, p99, p999 = (round(float(each), 2) for each in np.percentile(took_ms, [50, 99, 99.9]))
    worst = [round(each, 1) for each in sorted(took_ms)[-3:]]
    return {
        "p50_ms": p50, "p99_ms": p99, "p999_ms": p999, "longest_ms": worst, "rolls": rolls, "late_checkpoints": late,
        "close_ms": round(close_ms, 1),
    }  # fmt: skip


if __name__ == "__main__":
    main()
