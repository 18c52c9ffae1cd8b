"""What processes use, by /proc: CPU time, memory, and the disk under a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_QUIET_S, _QUIET_CPU, _LONGEST_S = 0.1, 0.1, 10.0
"""A process is quiet that has used less than a tenth of a processor for a tenth of a second; waited for so long."""


def cpu_s(processes: list[int]) -> float:
    """User and system time of this process, and of others with the children that they have waited for."""
    return time.process_time() + used_s(processes)


def used_s(processes: list[int]) -> float:
    """User and system time of processes, and of their children that they have waited for."""
    return sum(_used_s(process) for process in processes)


def _used_s(process: int) -> float:
    """Its threads to the nanosecond where the kernel counts like that; its children that have ended to the tick."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        own_ticks, children_ticks = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        threads = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    except OSError:
        return 0.0
    own_s = sum(int(text.split()[0]) for text in threads) / 1e9 or own_ticks / TICKS_PER_S
    return own_s + children_ticks / TICKS_PER_S


def tree(process: int) -> list[int]:
    """A process and all below it."""
    found = [process]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def memory_bytes(processes: list[int]) -> dict[str, int]:
    """Of these processes together: private memory, pages of it that they share counted once; and mapped file pages."""
    total = {"private": 0, "file": 0}
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue
        fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        total["private"] += fields.get("Pss_Anon", 0) + fields.get("Pss_Shmem", 0)
        total["file"] += fields.get("Pss_File", 0)
    return total


def disk_bytes(folder: Path) -> int:
    """Blocks that the files of a folder take. What is only address space (LMDB) or a hole does not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512 if path.is_file() else 0
        except OSError:
            continue
    return total


class Meter:
    """CPU and wall time of the calls into a rival: what the benchmark does between them can be left out.

    CPU time is that of all threads, and of the rival's server, also of what they do in the background meanwhile; of the
    part left out only the calling thread's own time is taken off.
    """

    def __init__(self, processes: list[int]) -> None:
        self._processes = processes
        self._off_cpu_s = self._off_wall_s = 0.0
        self._wall_s, self._cpu_s = time.perf_counter(), cpu_s(processes)

    @contextmanager
    def paused(self) -> Iterator[None]:
        wall_s, own_s = time.perf_counter(), time.thread_time()
        yield
        self._off_cpu_s += time.thread_time() - own_s
        self._off_wall_s += time.perf_counter() - wall_s

    def read(self) -> tuple[float, float]:
        """Seconds of CPU and wall so far."""
        wall_s = time.perf_counter() - self._wall_s - self._off_wall_s
        return cpu_s(self._processes) - self._cpu_s - self._off_cpu_s, wall_s

    def quiet(self) -> None:
        """Wait until nothing works in the background."""
        end_s = time.perf_counter() + _LONGEST_S
        before_s = cpu_s(self._processes)
        while time.perf_counter() < end_s:
            time.sleep(_QUIET_S)
            now_s = cpu_s(self._processes)
            if now_s - before_s < _QUIET_CPU * _QUIET_S:
                return
            before_s = now_s
