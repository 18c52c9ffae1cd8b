"""What an entry takes in a run, and what it costs to write and to load. The floors copy the bytes of the file.

Bytes are those of the whole file, with directory, bitmap and all, for batches of one size and of varying sizes: where
sizes vary, the positions are most of it. Times are for batches of 100 to 1,000 bytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.conftest import Measure, note
from bench.harness import Times, read_bytes
from bench.workloads import BATCH_BYTES, Schedule, decode_all, scheduled, write_scheduled

ENTRIES = 10_000_000


@pytest.mark.parametrize("precision_ms", [1, 1_000])
@pytest.mark.parametrize("schedule", ["consecutive", "uniform", "exponential"])
def test_runs(measure: Measure, tmp_path: Path, schedule: Schedule, precision_ms: int) -> None:
    path, written, sizes = tmp_path / "run", Times(), dict[str, float]()
    for batch_bytes in BATCH_BYTES:
        entries = scheduled(schedule, ENTRIES, precision_ms, batch_bytes)
        with written.measured():
            run = write_scheduled(path, entries)
        sizes[batch_bytes] = round(run.identity.size / ENTRIES, 2)
    name = f"run-{schedule}-{precision_ms:04d}-ms"
    write = written.summary(ENTRIES)
    note(f"{name}: {sizes} bytes an entry, written in {write['cpu_p50_ns']:.0f} ns of CPU each")
    assert ENTRIES == decode_all(run)
    measure(
        name, {"entries": ENTRIES, "chunks": run.chunks, "bytes_an_entry": sizes, "write": write}, ENTRIES,
        lambda: decode_all(run), lambda: read_bytes(path), rounds=3,
    )  # fmt: skip
