"""Measuring: a workload and its floor in turn (A B A B), CPU and wall time, medians and 99th percentiles, no means.

The floor of a workload is what it cannot do without: the same bytes written with write and fdatasync, or read back with
a bare copy. Both run in the same process within the same second, so that a busy machine slows down both; figures are
told as ratios of medians. CPU time is `process_time`: user and system, of all threads.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
MIB = 1 << 20


@dataclass
class Times:
    """Seconds of CPU and wall, one for each time that something ran."""

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)

    @contextmanager
    def measured(self) -> Iterator[None]:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        self.cpu_s.append(time.process_time() - cpu_s)
        self.wall_s.append(time.perf_counter() - wall_s)

    def summary(self, count: int) -> dict[str, float]:
        """Median and 99th percentile of one operation, in ns, where each run had `count` of them."""
        return {
            f"{kind}_{name}_ns": round(float(np.percentile(times, percent)) * 1e9 / count, 1)
            for kind, times in (("cpu", self.cpu_s), ("wall", self.wall_s))
            for name, percent in (("p50", 50), ("p99", 99))
        }


@dataclass
class Pair:
    """A workload and its floor, run in turn."""

    count: int
    """Operations in each run: what times are divided by."""
    ours: Times = field(default_factory=Times)
    floor: Times = field(default_factory=Times)

    def figures(self) -> dict[str, Any]:
        ours, floor = self.ours.summary(self.count), self.floor.summary(self.count)
        return {
            "ours": ours,
            "floor": floor,
            "cpu_ratio": round(ours["cpu_p50_ns"] / max(floor["cpu_p50_ns"], 0.1), 2),
            "wall_ratio": round(ours["wall_p50_ns"] / max(floor["wall_p50_ns"], 0.1), 2),
        }


def machine() -> dict[str, str]:
    """What the figures depend on."""
    cpu = next((line for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ": unknown")
    memory = next((line for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), ": unknown")
    return {
        "cpu": f"{os.cpu_count()} x {cpu.split(':')[1].strip()}",
        "memory": memory.split(":")[1].strip(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("numpy", "crc32c", "pyroaring", "sortedcontainers")},
    }


def record(name: str, sizes: dict[str, Any], figures: dict[str, Any], folder: Path = RESULTS) -> dict[str, Any]:
    """Write a result to `folder`, and return it."""
    result = {"name": name, "sizes": sizes, **figures, "machine": machine()}
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def resident_bytes() -> dict[str, int]:
    """Of this process: memory in RAM now, the part of it that is no file mapping, and the most it ever was."""
    wanted = {"VmRSS": "resident", "RssAnon": "anonymous", "VmHWM": "peak"}
    fields = (line.split(":") for line in _lines("/proc/self/status"))
    return {wanted[name]: int(number.split()[0]) * 1024 for name, number in fields if name in wanted}


@contextmanager
def watched_bytes(every_s: float = 0.005) -> Iterator[list[int]]:
    """Looks while the block runs: the most memory that was no file mapping, as the last of a list."""
    seen, done = [resident_bytes()["anonymous"]], threading.Event()

    def look() -> None:
        while not done.wait(every_s):
            seen.append(max(seen[-1], resident_bytes()["anonymous"]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


# Floors.


def write_bytes(path: Path, data: memoryview, sync: bool = True) -> None:
    """Write `data` to a new file, a MiB at a time, and fdatasync once."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    for start in range(0, len(data), MIB):
        os.write(descriptor, data[start : start + MIB])
    if sync:
        os.fdatasync(descriptor)
    os.close(descriptor)


def read_bytes(path: Path) -> int:
    """Read a file, a MiB at a time; its size."""
    descriptor = os.open(path, os.O_RDONLY)
    size = 0
    while part := os.pread(descriptor, MIB, size):
        size += len(part)
    os.close(descriptor)
    return size


def write_each(path: Path, data: bytes, count: int, sync: bool) -> Times:
    """`count` writes of `data`, each with an fdatasync if `sync`; the times of each."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    times = Times()
    for _ in range(count):
        with times.measured():
            os.write(descriptor, data)
            if sync:
                os.fdatasync(descriptor)
    os.close(descriptor)
    return times


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
