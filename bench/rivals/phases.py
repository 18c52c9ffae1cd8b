"""One phase of one rival, in a process of its own: what it holds in memory is its own, and a kill -9 is one.

    fill       append everything, and wait until the background is quiet; then kill -9, also of a server
    reopen     from the kill until the first due record is in hand; then kill -9
    drain      lease, check, ack until nothing is left, with the clock after the last due time
    lateness   fill and drain at once, so many records a second, in real time

A phase is started with one JSON object, and prints another.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.rivals.load import END_MS, Checked, Load, made, numbers_in
from bench.rivals.registry import RIVALS
from bench.rivals.rival import Rival
from bench.rivals.usage import Meter, disk_bytes, memory_bytes, used_s

ROOT = Path(__file__).parent.parent.parent
_LATENESS_BATCHES_PER_S = 100
_LEAST_DELAY_MS, _MOST_DELAY_MS = 300, 1_500

Figures = dict[str, Any]


def fill(rival: Rival, load: Load) -> Figures:
    """CPU time is told until the last append returned, and until the background was quiet."""
    rival.open()
    meter = Meter(rival.processes())
    batches = load.batches()
    while True:
        with meter.paused():
            ready = list(islice(batches, load.at_once))
            if rival.objects:
                _ = [batch.bodies for batch in ready]
        if not ready:
            break
        for batch in ready:
            rival.fill(batch)
    at_return_s, wall_s = meter.read()
    meter.quiet()
    cpu_s, _ = meter.read()
    return {"cpu_s": cpu_s, "cpu_at_return_s": at_return_s, "wall_s": wall_s, "records": load.records}


def reopen(rival: Rival, load: Load) -> Figures:
    """Memory is looked at after the first record."""
    earliest = int(load.due.min())
    before = memory_bytes([os.getpid()])
    meter = Meter([])
    rival.open()
    bodies = rival.first(END_MS)
    own_s, wall_s = meter.read()
    total_s = own_s + used_s(rival.processes())
    assert earliest == int(load.due[numbers_in(bodies, load.size)[0]])
    after = memory_bytes([os.getpid(), *rival.processes()])
    return {"wall_s": wall_s, "cpu_s": total_s, **{f"{kind}_bytes": after[kind] - before[kind] for kind in after}}


def _warm(kind: type[Rival], load: Load) -> None:
    """Fill and drain a small one: modules are loaded, and memory allocated that is allocated once."""
    if kind.served:
        return
    small = Load(100, load.size, load.spread, 50)
    with tempfile.TemporaryDirectory() as name:
        rival = kind(Path(name) / "warm", False, load.size)
        rival.open()
        for batch in small.batches():
            rival.fill(batch)
        rival.first(END_MS)
        rival.ack(rival.lease(END_MS, 10))
        rival.close()


def drain(rival: Rival, load: Load) -> Figures:
    rival.open()
    checked, leases, seen = Checked(load), 0, []
    meter = Meter(rival.processes())
    while handed := rival.lease(END_MS, load.batch):
        seen.append(handed.bodies)
        rival.ack(handed)
        leases += 1
        if len(seen) == load.at_once:
            with meter.paused():
                checked.see(seen)
                seen.clear()
    at_return_s, wall_s = meter.read()
    checked.see(seen)
    meter.quiet()
    cpu_s, _ = meter.read()
    checked.all_seen()
    rival.close()
    return {"cpu_s": cpu_s, "cpu_at_return_s": at_return_s, "wall_s": wall_s, "records": load.records, "leases": leases}


def lateness(rival: Rival, load: Load, rate: int, seconds: float) -> Figures:
    """One thread fills a hundred times a second, another leases and acks; both at the same time."""
    rival.open()
    beside = rival.beside()
    meter = Meter(rival.processes())
    count, random = rate // _LATENESS_BATCHES_PER_S, np.random.default_rng(2)
    total = int(seconds * _LATENESS_BATCHES_PER_S) * count
    due = np.zeros(total, np.int64)
    failed: list[BaseException] = []

    def produce() -> None:
        try:
            start_s = time.monotonic()
            for first in range(0, total, count):
                batch = made(_now_ms() + random.integers(_LEAST_DELAY_MS, _MOST_DELAY_MS, count), first, load.size)
                due[first : first + count] = batch.due
                rival.fill(batch)
                ahead_s = start_s + (first / count + 1) / _LATENESS_BATCHES_PER_S - time.monotonic()
                time.sleep(max(ahead_s, 0))
        except BaseException as error:
            failed.append(error)

    producer = threading.Thread(target=produce)
    producer.start()
    got, late = 0, list[np.ndarray]()
    end_s = time.monotonic() + seconds + 30
    while got < total and not failed and time.monotonic() < end_s:
        handed = beside.lease_soon(1_000)
        if len(handed):
            now_ms = time.time_ns() / 1e6
            late.append(now_ms - due[numbers_in(handed.bodies, load.size)])
            beside.ack(handed)
            got += len(handed)
    producer.join()
    if failed:
        raise failed[0]
    assert got == total, f"{total - got} of {total} records did not come"
    cpu_s, wall_s = meter.read()
    beside.close()
    all_late = np.concatenate(late)
    return {
        "rate": rate, "records": total, "early": int((all_late < 0).sum()),
        "p50_ms": float(np.percentile(all_late, 50)), "p99_ms": float(np.percentile(all_late, 99)),
        "cpu_s": cpu_s, "wall_s": wall_s,
    }  # fmt: skip


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_PHASES: dict[str, Callable[..., Figures]] = {
    "fill": fill, "reopen": reopen, "drain": drain, "lateness": lateness
}  # fmt: skip
_KILLED = ("fill", "reopen")


def run_phase(phase: str, rival: str, folder: Path, load: Load, fsync: bool, **more: Any) -> Figures:
    """Run a phase in a new process. RuntimeError with what it printed where it fails."""
    wanted = {"phase": phase, "rival": rival, "folder": str(folder), "load": load.told(), "fsync": fsync, "more": more}
    # The threads of numpy's linear algebra spin when they start: 20 ms of CPU time that no phase has asked for.
    surroundings = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bench.rivals.phases", json.dumps(wanted)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=surroundings)
    lines = run.stdout.splitlines()
    if not lines or run.returncode != (-signal.SIGKILL if phase in _KILLED else 0):
        raise RuntimeError(f"{phase} of {rival}: {run.stderr or run.returncode}")
    figures: Figures = json.loads(lines[-1])
    return figures | {"disk_bytes": disk_bytes(folder)}


def main(text: str) -> None:
    wanted = json.loads(text)
    phase = wanted["phase"]
    load = Load(**wanted["load"])
    rival = RIVALS[wanted["rival"]](Path(wanted["folder"]), wanted["fsync"], load.size)
    if phase == "lateness":
        rival.real_time = True
    _warm(type(rival), load)
    try:
        figures = _PHASES[phase](rival, load, **wanted["more"])
        print(json.dumps(figures), flush=True)
        if phase in _KILLED:
            rival.kill()
            os.kill(os.getpid(), signal.SIGKILL)
    except BaseException:
        with contextlib.suppress(Exception):
            rival.close()
        raise
    finally:
        with contextlib.suppress(Exception):
            rival.kill()


if __name__ == "__main__":
    main(sys.argv[1])
