"""Tasks with countdowns, and workers that are killed while they wait: `python -m examples.celery [--tasks 200]`.

`afterlog serve` has the folder, two workers share its queue. Every two seconds one is killed (-9), and another one
started, until all have run. With Redis as the broker a killed worker's tasks come back after an hour, by default.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

KILL_EACH_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.celery")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--kills", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"TASKS_DATA": str(folder / "data"), "TASKS_DONE": str(folder / "done")}
        server = started("-m", "afterlog", "serve", str(folder / "data"), "--log-level", "warning")
        while not (folder / "data" / "server.sock").exists():
            time.sleep(0.05)
        workers = [worker(), worker()]
        try:
            send(asked.tasks, 2 + KILL_EACH_S * (asked.kills - 1))
            watch(folder / "done", workers, asked.tasks, asked.kills)
        finally:
            for process in (*workers, server):  # the server last: workers give back what they have
                process.terminate()
                process.wait()
        tell(folder / "done", asked.tasks)


def started(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-W", "ignore", *command])


def worker() -> subprocess.Popen[bytes]:
    quiet = ["--without-mingle", "--without-gossip", "--loglevel", "critical"]
    return started("-m", "celery", "--quiet", "-A", "examples.celery.tasks", "worker", "--concurrency", "2", *quiet)


def send(tasks: int, spread_s: float) -> None:
    from examples.celery.tasks import remind

    for number in range(tasks):
        wait_s = random.uniform(2, 2 + spread_s)
        remind.apply_async((number, time.time() + wait_s), countdown=wait_s)
    print(f"{tasks} tasks wait, none of them in a worker", flush=True)


def runs(done: Path) -> list[list[float]]:
    lines = done.read_text("ascii").splitlines() if done.exists() else []
    return [[float(each) for each in line.split()] for line in lines]


def watch(done: Path, workers: list[subprocess.Popen[bytes]], tasks: int, kills: int) -> None:
    """Kill the oldest worker now and then, until all have run."""
    next_s = time.monotonic() + KILL_EACH_S
    while kills or len({number for number, *_ in runs(done)}) < tasks:
        time.sleep(0.1)
        if kills and time.monotonic() >= next_s:
            oldest = workers.pop(0)
            oldest.kill()
            oldest.wait()
            workers.append(worker())
            kills, next_s = kills - 1, time.monotonic() + KILL_EACH_S
            print(f"worker {oldest.pid} killed", flush=True)


def tell(done: Path, tasks: int) -> None:
    found = runs(done)
    counts = Counter(number for number, *_ in found)
    late = sorted(ran - due for _, due, ran in found)
    print(f"{len(counts)} of {tasks} tasks ran")
    print(f"{sum(counts.values()) - len(counts)} again: those that a killed worker had in hand")
    print(f"{sum(each < 0 for each in late)} early; half at most {late[len(late) // 2] * 1e3:.0f} ms late")


if __name__ == "__main__":
    main()
