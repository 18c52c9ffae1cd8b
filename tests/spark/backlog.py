"""A store with sealed segments whose runs were never merged, for the bucket job."""

from __future__ import annotations

from pathlib import Path

from afterlog.base.clock import ManualClock
from afterlog.base.config import Config
from afterlog.base.files import Files
from afterlog.store.store import Store, open_store
from tests.support import NOW_MS, drained, small

RECORDS = 400
TOPICS = ["t", "u"]
"""Of one partition. Retention took the first segments of the second, and put some of what is left out of reach."""
CONFIG: Config = small(max_num_buckets=-1, max_indexes_per_bucket_snapshot_segment=8)


def opened(files: Files | None, path: Path, ms: int) -> Store:
    return open_store(path, CONFIG, ManualClock(ms), files)


def write_backlog(files: Files | None, path: Path) -> None:
    """The store in the folder `path`, closed."""
    soon = [number < 150 or number % 4 == 0 for number in range(RECORDS)]
    due = [NOW_MS + number * 7_919 % (101 if soon[number] else 1_009) for number in range(RECORDS)]
    with opened(files, path, NOW_MS) as store:
        store.create_topic("fifo", delayed=False)
        store.send_many("fifo", [b"v" * 100] * 100)
        for topic, retention_bytes in zip(TOPICS, (None, 10_000), strict=True):
            store.create_topic(topic, retention_bytes=retention_bytes)
            for first in range(0, RECORDS, 20):
                values = [b"%d" % number * 10 for number in range(first, first + 20)]
                store.send_many(topic, values, deliver_after=due[first : first + 20])
    with opened(files, path, NOW_MS + 200) as store:
        store.enforce_retention()


def delivered(files: Files | None, path: Path) -> list[list[bytes | None]]:
    """What a store delivers of each topic when all is due; it checks itself."""
    with opened(files, path, NOW_MS + 10_000) as store:
        store.check()
        return [drained(store.topic(topic).partition(0)) for topic in TOPICS]
