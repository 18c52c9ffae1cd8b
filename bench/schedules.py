"""What recurring schedules cost: to make one, and what comes when many are due at one instant.

python -m bench.schedules 10000                 ms for each, as JSON, in a new folder on this machine's disk
python -m bench.schedules 10000 --sync-ms 5     the same where each sync takes so much longer, as on a busy disk

Every one has a value of 100 bytes, comes once an hour, and is in the topic's one partition. `made`: one call after the
other, each durable as it returns. `came`: all of them are due, and one pass appends what comes next. `open`: the store,
with all of them. Wall and CPU time, of one schedule.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import afterlog
from afterlog.base.files import File, Files, OsFiles, temporary_folder
from afterlog.store.store import open_store
from bench.harness import Times, machine
from bench.workloads import HOUR_MS, START_MS, TOPIC

VALUE = b"v" * 100
HOUR = timedelta(hours=1)


class SlowFile:
    """Of SlowFiles."""

    def __init__(self, file: File, files: SlowFiles) -> None:
        self._file = file
        self._files = files

    def sync(self) -> None:
        self._file.sync()
        self._files.synced()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class SlowFiles:
    """The machine's, and each sync takes so much longer. Counts them."""

    def __init__(self, sync_s: float) -> None:
        self._files: Files = OsFiles()
        self._sync_s = sync_s
        self.syncs = 0

    def synced(self) -> None:
        self.syncs += 1
        time.sleep(self._sync_s)

    def create(self, path: Path) -> SlowFile:
        return SlowFile(self._files.create(path), self)

    def open(self, path: Path) -> SlowFile:
        return SlowFile(self._files.open(path), self)

    def sync_folder(self, folder: Path) -> None:
        self._files.sync_folder(folder)
        self.synced()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def measure(folder: Path, count: int, sync_ms: float = 0) -> dict[str, Any]:
    """All figures of so many."""
    clock, files = afterlog.ManualClock(START_MS), SlowFiles(sync_ms / 1_000)

    def opened() -> afterlog.Store:
        config = afterlog.Config(durability=afterlog.OS)
        return open_store(folder, config, clock, files, background=False)  # type: ignore[arg-type]

    figures: dict[str, Any] = {"schedules": count, "sync_ms": sync_ms}
    store = opened()
    store.create_topic(TOPIC)
    seen = files.syncs

    def measured(name: str, times: Times) -> None:
        nonlocal seen
        wall_s, cpu_s = times.wall_s[-1], times.cpu_s[-1]
        figures[name] = {
            "s": round(wall_s, 3),
            "ms": round(wall_s * 1_000 / count, 4),
            "cpu_ms": round(cpu_s * 1_000 / count, 4),
            "syncs": round((files.syncs - seen) / count, 4),
        }
        seen = files.syncs

    times = Times()
    with times.measured():
        for number in range(count):
            store.schedule(TOPIC, name=f"schedule-{number}", every=HOUR, value=VALUE)
    measured("made", times)
    clock.advance(HOUR_MS)
    with times.measured():
        came = store.run_schedules()
    assert came == count, f"{came} came"
    measured("came", times)
    store.close()
    with times.measured():
        store = opened()
    measured("open", times)
    assert count == len(store.schedules())
    store.close()
    return figures


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--sync-ms", type=float, default=0)
    asked = parser.parse_args(arguments)
    with temporary_folder() as folder:
        figures = {"machine": machine(), **measure(folder / "store", asked.count, asked.sync_ms)}
    print(json.dumps(figures, indent=2))
    return figures


if __name__ == "__main__":
    main()
