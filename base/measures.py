"""Counters of the engine, always on and cheap; `afterlog.metrics` reads them when it is scraped.

    edges                1      10     100           the values 0.3, 7, 42 and 9,000
    up to the edge       1       2       3   all 4   as Prometheus counts them

Everything begins at zero when a partition is opened, and nothing is kept on disk.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from afterlog.base.clock import Clock

LATENCY_EDGES_MS = (0.1, 0.5, 1, 5, 10, 50, 100, 500, 1_000, 5_000, 30_000, 60_000)
"""Pulsar's from 50 ms on; ours are local files, and quicker."""
LATENESS_EDGES_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 30_000, 60_000, 600_000, 3_600_000)
"""Of what is handed out, after it was due (`fetch/lateness.py`)."""


class Histogram:
    """How many values lie between ascending edges. Not thread-safe: who holds it has a lock.

    A list and no array: as a rule one count changes at a time, which takes 40 ns.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self._counts = [0] * (len(edges) + 1)

    def row(self, value: float) -> int:
        """Of the first edge that the value does not exceed; after the last where it exceeds all."""
        return bisect_left(self.edges, value)

    def add(self, row: int, count: int = 1) -> None:
        """So many values more at this row."""
        self._counts[row] += count

    def up_to(self) -> list[int]:
        """Of each edge, how many values do not exceed it; and last, how many there are."""
        return list(accumulate(self._counts))


class OperationCounts(NamedTuple):
    """An operation so far: how often it succeeded and failed, and how long the former took."""

    succeeded: int
    failed: int
    latency_up_to: list[int]
    latency_sum_ms: float


class Operation:
    """Counts one kind of operation. Thread-safe."""

    def __init__(self) -> None:
        self._latency = Histogram(LATENCY_EDGES_MS)
        self._latency_sum_ms = 0.0
        self._failed = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def measured(self, clock: Clock) -> Iterator[None]:
        """What happens inside is one operation; it fails where it raises."""
        started_s = clock.monotonic_s()
        try:
            yield
        except BaseException:
            with self._lock:
                self._failed += 1
            raise
        latency_ms = (clock.monotonic_s() - started_s) * 1000
        with self._lock:
            self._latency.add(self._latency.row(latency_ms))
            self._latency_sum_ms += latency_ms

    @property
    def is_unused(self) -> bool:
        """Whether none has ended yet."""
        return not (self._latency_sum_ms or self._failed)

    def counts(self) -> OperationCounts:
        """All of one instant."""
        with self._lock:
            up_to = self._latency.up_to()
            return OperationCounts(up_to[-1], self._failed, up_to, self._latency_sum_ms)
