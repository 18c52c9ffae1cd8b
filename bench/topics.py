"""A store of many topics: made together, made one by one, opened, a few of them used, and all. Each in a new process.

python -m bench.topics make_together FOLDER 10000      runs one of them
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import afterlog
from afterlog.log.partition_log import PartitionLog
from bench.harness import Times, resident_bytes
from bench.workloads import START_MS


def topic(number: int) -> str:
    return f"topic{number:05d}"


def make_together(folder: Path, count: int) -> dict[str, float]:
    """In one call."""
    store, times = afterlog.open(folder, clock=afterlog.ManualClock(START_MS)), Times()
    with times.measured():
        store.create_topics(map(topic, range(count)))
    return _figures(times) | {"topics": len(store.topics())}


def make_one_by_one(folder: Path, count: int) -> dict[str, float]:
    """A call each."""
    store, times = afterlog.open(folder, clock=afterlog.ManualClock(START_MS)), Times()
    with times.measured():
        for number in range(count):
            store.create_topic(topic(number))
    return _figures(times) | {"topics": len(store.topics())}


def open_all(folder: Path) -> dict[str, float]:
    """What it takes to open the store, to send to ten of its topics, and to have all of them open."""
    clock, _ = afterlog.ManualClock(START_MS), afterlog.Store  # imported now: it is no part of opening
    base, before, opening, sending, checking = _descriptors(), resident_bytes(), Times(), Times(), Times()
    with opening.measured():
        store = afterlog.open(folder, clock=clock)
    result = {"descriptors": _descriptors() - base, "open_bytes": resident_bytes()["anonymous"] - before["anonymous"]}
    for number in range(min(10, len(store.topics()))):
        with sending.measured():
            store.send(topic(number), b"value")
    with checking.measured():
        assert all(each.partitions for each in store.topics())
    return {
        **_figures(opening),
        **result,
        "first_send_ms": sorted(sending.wall_s)[len(sending.wall_s) // 2] * 1000,
        "all_cpu_s": sum(checking.cpu_s),
        "all_bytes": resident_bytes()["anonymous"] - before["anonymous"],
    }


def deliver_os(folder: Path, count: int) -> dict[str, float]:
    return _deliver(folder, count, afterlog.OS)


def deliver_always(folder: Path, count: int) -> dict[str, float]:
    return _deliver(folder, count, afterlog.ALWAYS)


def _deliver(folder: Path, count: int, durability: afterlog.Durability) -> dict[str, float]:
    """A record in each topic falls due, and is polled by a consumer of the topic's own: seconds, of all together.

    first: the topic's frontier is made durable. again: within its lease. renewed: behind it. forgone: the same as
    `first` without the frontier, which is what is left to be made cheaper elsewhere (it breaks promise D2).
    """
    clock = afterlog.ManualClock(START_MS)
    store = afterlog.open(folder, clock=clock, config=afterlog.Config(durability=durability))
    store.create_topics(map(topic, range(2 * count)))
    readers = [store.consumer(topic(number), group="g", auto_commit=False) for number in range(2 * count)]
    found: dict[str, float] = {}
    lease = PartitionLog.lease
    for name, first, wait_ms in (("first", 0, 1), ("again", 0, 1), ("renewed", 0, 60_000), ("forgone", count, 1)):
        if name == "forgone":
            PartitionLog.lease = _no_lease  # type: ignore[method-assign]
        for number in range(first, first + count):
            store.send(topic(number), bytes(100))
        clock.advance(wait_ms)
        times = Times()
        with times.measured():
            polled = sum(len(reader.poll()) for reader in readers[first : first + count])
        assert count == polled
        found |= {f"{name}_{kind}": value for kind, value in _figures(times).items()}
    PartitionLog.lease = lease  # type: ignore[method-assign]
    return found


def _no_lease(log: PartitionLog, reading_ms: int) -> None:
    """Nothing is made durable."""


def _figures(times: Times) -> dict[str, float]:
    return {"cpu_s": sum(times.cpu_s), "wall_s": sum(times.wall_s)}


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# Floors.


def make_folders(folder: Path, count: int) -> Times:
    """For each topic its folders and files, empty but for one of 400 bytes, which is synced, as its folder is."""
    times = Times()
    folder.mkdir()
    with times.measured():
        for number in range(count):
            path = f"{folder}/{topic(number)}"
            for each in (path, f"{path}/a", f"{path}/b"):
                os.mkdir(each)
            for name in "cde":
                os.close(os.open(f"{path}/{name}", os.O_CREAT | os.O_WRONLY))
            descriptor = os.open(f"{path}/f", os.O_CREAT | os.O_WRONLY)
            os.write(descriptor, bytes(400))
            os.fdatasync(descriptor)
            os.close(descriptor)
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    return times


def look_at_folders(folder: Path) -> Times:
    """The names in each folder, and what its file of 400 bytes holds."""
    times = Times()
    with times.measured():
        for name in os.listdir(folder):
            os.listdir(f"{folder}/{name}")
            descriptor = os.open(f"{folder}/{name}/f", os.O_RDONLY)
            os.read(descriptor, 1_000)
            os.close(descriptor)
    return times


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))), flush=True)
    os._exit(0)
