"""What a seal by age costs: many quiet topics, each with a record now and then, and the pass that looks after them.

    python -m bench.seals [--topics 100] [--folder FOLDER]

For segments of a few records each: CPU and wall time of a roll and of a send, the files that a segment leaves, and the
bytes of its checkpoint row. Then the pass over all of them, where there is nothing to do: topics that go by time, and
topics that go by what a closed subscription, an open one, and a group have acked.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import afterlog
from afterlog.base.names import CHECKPOINTS
from afterlog.store.store import Store, open_store
from bench.harness import Times, machine
from bench.workloads import START_MS

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(machine()))
    for figures in measured(arguments.folder, arguments.topics):
        print(json.dumps(figures))


def measured(folder: Path | None, topics: int) -> list[dict[str, Any]]:
    """A row for each case; times in ms, medians, of one topic."""
    found = []
    for durability in (afterlog.ALWAYS, afterlog.OS):
        found += [_in(folder, rolls, topics, durability, records) for records in (1, 10, 180)]
    found += [_in(folder, passes, topics, readers) for readers in ("none", "closed", "open", "group")]
    return found


def rolls(folder: Path, topics: int, durability: afterlog.Durability, records: int) -> dict[str, Any]:
    """Each topic is sealed three times, after so many records that came a minute apart."""
    clock = afterlog.ManualClock(START_MS)
    store = _opened(folder, clock, durability)
    names = [f"t{number}" for number in range(topics)]
    logs = [topic.partition(0).log for topic in store.create_topics(names, segment_ms=records * MINUTE_MS)]
    sealing, sending = Times(), Times()
    before, rows = _files(folder), (folder / "t0-0" / CHECKPOINTS).stat().st_size
    for _ in range(3):
        for _ in range(records):
            clock.advance(MINUTE_MS)
            for name in names[:10]:
                with sending.measured():
                    store.send(name, b"v" * 100, delay=60)
            for name in names[10:]:
                store.send(name, b"v" * 100, delay=60)
        for log in logs:
            with sealing.measured():
                log.roll()
    files, size = _files(folder) - before, (folder / "t0-0" / CHECKPOINTS).stat().st_size - rows
    store.close()
    return {
        "case": "seal",
        "durability": durability.kind,
        "records": records,
        "seal_cpu_ms": _median_ms(sealing.cpu_s),
        "seal_wall_ms": _median_ms(sealing.wall_s),
        "send_cpu_ms": _median_ms(sending.cpu_s),
        "files": round(files / topics / 3, 2),
        "checkpoint_bytes": round(size / 3),
    }


def passes(folder: Path, topics: int, readers: str) -> dict[str, Any]:
    """What a minute's pass costs of each topic that is open and has nothing to let go: all is pending, or unacked."""
    clock = afterlog.ManualClock(START_MS)
    store = _opened(folder, clock, afterlog.ALWAYS)
    settings: dict[str, Any] = {"retention_by_subscriptions": True} if readers != "none" else {}
    names = [f"t{number}" for number in range(topics)]
    store.create_topics(names, **settings, retention_ms=24 * HOUR_MS)
    kept = []
    for name in names:
        store.send_many(name, [b"v" * 100] * 10)
        store.topic(name).partition(0).log.roll()
        store.send(name, b"v" * 100)
    clock.advance(10)
    for name in names:
        if readers == "group":
            with store.consumer(name, group="g") as consumer:
                consumer.poll(5)
        elif readers != "none":
            subscription = store.subscribe(name, "s")
            subscription.ack_many(subscription.receive(5))
            kept.append(subscription)
            if readers == "closed":
                subscription.close()
    cleaning = Times()
    store.enforce_retention()
    for _ in range(5):
        clock.advance(MINUTE_MS // 10)
        with cleaning.measured():
            assert 0 == store.enforce_retention()
    store.close()
    return {
        "case": "idle pass",
        "readers": readers,
        "topic_cpu_ms": round(_median_ms(cleaning.cpu_s) / topics, 4),
        "topic_wall_ms": round(_median_ms(cleaning.wall_s) / topics, 4),
    }


def _in(folder: Path | None, case: Any, *arguments: Any) -> dict[str, Any]:
    made = Path(tempfile.mkdtemp(dir=folder))
    try:
        found: dict[str, Any] = case(made / "store", *arguments)
        return found
    finally:
        shutil.rmtree(made)


def _opened(folder: Path, clock: afterlog.ManualClock, durability: afterlog.Durability) -> Store:
    return open_store(folder, afterlog.Config(durability=durability), clock, None, background=False)


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def _median_ms(seconds: list[float]) -> float:
    return round(median(seconds) * 1000, 3)


if __name__ == "__main__":
    main()
