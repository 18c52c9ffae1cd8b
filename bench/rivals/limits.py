"""What this machine can do at best, measured between the rivals: our paths are told as multiples of it.

    write     the bytes of our log, a batch at a time: one write and one fdatasync each (relaxed: the write alone)
    copy      one copy of bytes in memory
    crc       one CRC-32C over bytes
    gather    one copy of each record in delivery order, from a log that lies in append order

`python -m bench.rivals.limits FOLDER` prints them for the workload of the aims.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import crc32c
import numpy as np

from bench.harness import Times
from bench.rivals.load import Load

_ROOT = Path(__file__).parent.parent.parent
_COPIED_BYTES = 64 << 20


def limits(folder: Path, records: int, entry_bytes: int, batch: int) -> dict[str, float]:
    """Per record of `entry_bytes` in the log; CPU and wall time in us."""
    figures: dict[str, float] = {"entry_bytes": entry_bytes}
    for name, sync in (("write_fsync", True), ("write", False)):
        figures |= _told(name, _written(folder / name, records, entry_bytes * batch, batch, sync), records)
    data = np.random.default_rng(1).integers(0, 256, _COPIED_BYTES, np.uint8)
    target = np.empty_like(data)
    equivalent = len(data) / entry_bytes
    copied, checked = Times(), Times()
    target[:] = data
    with copied.measured():
        target[:] = data
    with checked.measured():
        crc32c.crc32c(data)
    figures |= _told("copy", copied, equivalent) | _told("crc", checked, equivalent)
    return figures | _told("gather", _gathered(records, entry_bytes, batch), records)


def _written(path: Path, records: int, batch_bytes: int, batch: int, sync: bool) -> Times:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    data, times = bytes(batch_bytes), Times()
    with times.measured():
        for _ in range(0, records, batch):
            os.write(descriptor, data)
            if sync:
                os.fdatasync(descriptor)
    os.close(descriptor)
    path.unlink()
    return times


def _gathered(records: int, entry_bytes: int, batch: int) -> Times:
    """One call of numpy for each `batch` of records: it jumps as a drain of uniform due times jumps."""
    log = np.ones((records, entry_bytes), np.uint8)
    order = np.argsort(Load(records, entry_bytes, "uniform", batch).due, kind="stable")
    out, times = np.empty((batch, entry_bytes), np.uint8), Times()
    with times.measured():
        for start in range(0, records, batch):
            rows = order[start : start + batch]
            np.take(log, rows, axis=0, out=out[: len(rows)], mode="clip")
    return times


def _told(name: str, times: Times, records: float) -> dict[str, float]:
    return {f"{name}_cpu_us": times.cpu_s[0] / records * 1e6, f"{name}_wall_us": times.wall_s[0] / records * 1e6}


def run_limits(records: int, entry_bytes: int, batch: int) -> dict[str, float]:
    """The same in a process of its own, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.rivals.limits", folder, *map(str, (records, entry_bytes, batch))]
        surroundings = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=_ROOT, env=surroundings)
    found: dict[str, float] = json.loads(run.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(limits(Path(sys.argv[1]), *map(int, sys.argv[2:] or ("500000", "205", "1000")))))
