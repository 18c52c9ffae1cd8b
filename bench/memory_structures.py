"""What the memory table compares: workloads and structures. What they are stands at the head of `memory_table`."""

from __future__ import annotations

import heapq
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap
from sortedcontainers import SortedDict

from afterlog.base.config import Config
from afterlog.base.files import OsFiles
from afterlog.base.names import BUCKETS
from afterlog.index.bucket_storage import LocalBucketSnapshotStorage
from afterlog.index.bucket_tracker import BucketTracker
from afterlog.index.memory_tracker import MemoryTracker
from afterlog.index.time_bucket_tracker import TimeBucketTracker
from afterlog.index.tracker import DelayedDeliveryTracker
from bench.harness import MIB

Int64Array = npt.NDArray[np.int64]

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
MINUTE_MS = 60_000
LEDGER_ENTRIES = 50_000
SEED = 1
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Workload:
    """How the times of entries are spread."""

    title: str
    messages_per_ms: int
    truncated_bits: int
    published_mib: float | None = None
    """What the published table says of the published structure, at 10 million entries."""
    delay_ms: Callable[[np.random.Generator, int], Int64Array] | None = None

    def batches(self, entries: int) -> Iterator[tuple[Int64Array, Int64Array]]:
        """(deliver_after, offset), ledger by ledger."""
        random = np.random.default_rng(SEED)
        for first in range(0, entries, LEDGER_ENTRIES):
            offset = np.arange(first, min(first + LEDGER_ENTRIES, entries), dtype=np.int64)
            due = START_MS + offset // self.messages_per_ms
            yield due if self.delay_ms is None else due + self.delay_ms(random, len(offset)), offset


def _uniform(random: np.random.Generator, count: int) -> Int64Array:
    return random.integers(0, DAY_MS, count)


def _exponential(random: np.random.Generator, count: int) -> Int64Array:
    return random.exponential(MINUTE_MS, count).astype(np.int64)


WORKLOADS = {
    "1-10": Workload("consecutive, 1 a ms, 10 bits", 1, 10, 25),
    "4-10": Workload("consecutive, 4 a ms, 10 bits", 4, 10, 20.48),
    "8-10": Workload("consecutive, 8 a ms, 10 bits", 8, 10, 11),
    "8-15": Workload("consecutive, 8 a ms, 15 bits", 8, 15, 2.25),
    "uniform": Workload("uniform over a day, 1 a ms, 10 bits", 1, 10, None, _uniform),
    "exponential": Workload("exponential, mean 1 min, 1 a ms, 10 bits", 1, 10, None, _exponential),
}


class Structure(Protocol):
    """What is measured."""

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> object: ...

    def drain(self, limit: int) -> int:
        """Take out up to `limit` entries, the first; how many they were."""

    def memory_bytes(self) -> int:
        """What it says itself."""


class Heap:
    """Triples in segments; see the head of the module."""

    SEGMENT = 16 * MIB // 24
    SAMPLE = 200_000

    def __init__(self) -> None:
        self._segments: list[Int64Array] = []
        self._row = self.SEGMENT

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> None:
        triples = np.stack([deliver_after, offset // LEDGER_ENTRIES, offset % LEDGER_ENTRIES], axis=1)
        while len(triples):
            if self._row == self.SEGMENT:
                self._segments.append(np.ones((self.SEGMENT, 3), np.int64))
                self._row = 0
            part = triples[: self.SEGMENT - self._row]
            self._segments[-1][self._row : self._row + len(part)] = part
            self._row += len(part)
            triples = triples[len(part) :]

    def drain(self, limit: int) -> int:
        return 0

    def memory_bytes(self) -> int:
        return sum(segment.nbytes for segment in self._segments)

    @classmethod
    def rates(cls, workload: Workload, entries: int) -> tuple[float, float]:
        """Pushes and pops a second, of tuples."""
        heap: list[tuple[int, int, int]] = []
        count = min(entries, cls.SAMPLE)
        triples = [
            triple
            for due, offset in workload.batches(count)
            for triple in zip(
                due.tolist(), (offset // LEDGER_ENTRIES).tolist(), (offset % LEDGER_ENTRIES).tolist(), strict=True
            )
        ]
        started = time.process_time()
        for triple in triples:
            heapq.heappush(heap, triple)
        built = time.process_time()
        while heap:
            heapq.heappop(heap)
        return count / (built - started), count / (time.process_time() - built)


class Published:
    """Time bucket -> ledger -> Roaring bitmap, without run optimisation."""

    def __init__(self, truncated_bits: int) -> None:
        self._bits = truncated_bits
        self._buckets = SortedDict()

    def add_many(self, deliver_after: Int64Array, offset: Int64Array) -> None:
        bucket, ledger, entry = deliver_after >> self._bits, offset // LEDGER_ENTRIES, offset % LEDGER_ENTRIES
        order = np.lexsort((entry, ledger, bucket))
        bucket, ledger, entry = bucket[order], ledger[order], entry[order].astype(np.uint32)
        bounds = np.flatnonzero((bucket[1:] != bucket[:-1]) | (ledger[1:] != ledger[:-1])) + 1
        starts, ends = [0, *bounds.tolist()], [*bounds.tolist(), len(bucket)]
        stored = memoryview(entry.view(np.uint8).data)
        for time_, number, start, end in zip(
            bucket[starts].tolist(), ledger[starts].tolist(), starts, ends, strict=True
        ):
            ledgers = self._buckets.get(time_)
            if ledgers is None:
                ledgers = self._buckets[time_] = {}
            values = array("I")
            values.frombytes(stored[4 * start : 4 * end])
            bitmap = ledgers.get(number)
            if bitmap is None:
                ledgers[number] = BitMap(values, optimize=False)
            else:
                bitmap |= BitMap(values, optimize=False)

    def drain(self, limit: int) -> int:
        count = 0
        while count < limit and self._buckets:
            time_, ledgers = self._buckets.peekitem(0)
            for number in sorted(ledgers):
                entries = ledgers[number][: limit - count]
                ledgers[number] -= entries
                count += len(np.frombuffer(entries.to_array(), np.uint32))
                if not ledgers[number]:
                    del ledgers[number]
                if count == limit:
                    break
            if not ledgers:
                del self._buckets[time_]
        return count

    def memory_bytes(self) -> int:
        """As the published one: serialised bytes."""
        return sum(
            8 + sum(8 + len(bitmap.serialize()) for bitmap in ledgers.values()) for ledgers in self._buckets.values()
        )


class Tracked:
    """One of our trackers."""

    def __init__(self, tracker: DelayedDeliveryTracker) -> None:
        self.add_many = tracker.add_many
        self.memory_bytes = tracker.memory_bytes
        self._tracker = tracker

    def drain(self, limit: int) -> int:
        return len(self._tracker.due(_INT64_MAX, limit))


def new_buckets(folder: Path) -> BucketTracker:
    """With the settings of a store."""
    config = Config()
    (folder / BUCKETS).mkdir(parents=True)
    storage = LocalBucketSnapshotStorage(
        OsFiles(),
        folder,
        max_entries=config.max_indexes_per_bucket_snapshot_segment,
        max_step_ms=1_000 * config.max_time_step_per_bucket_snapshot_segment_s,
    )
    return BucketTracker(
        storage, min_index_count=config.min_index_count_per_bucket, max_num_buckets=config.max_num_buckets
    )


STRUCTURES: dict[str, Callable[[Workload, Path], Structure]] = {
    "heap": lambda workload, folder: Heap(),
    "published": lambda workload, folder: Published(workload.truncated_bits),
    "memory": lambda workload, folder: Tracked(MemoryTracker()),
    "buckets": lambda workload, folder: Tracked(new_buckets(folder)),
    "time-buckets": lambda workload, folder: Tracked(TimeBucketTracker(1 << workload.truncated_bits)),
}
