"""Lateness: how long after its due time a record was first fetched.

    delivery order   0 ……… handed out to somebody ………│……… first of all now ………│
                                                      └ `counted`             └ behind

A record counts once, when the reader that is furthest ahead gets it: who follows, or reads again, tells nothing of how
prompt the log is. What was due by the durable frontier when the log was opened does not count: an earlier life may have
handed it out.

The instants of a stretch ascend. So, as a rule, first and last show that all of it lies between two edges; else one
search finds all edges in it. No record is looked at by itself, and so their sum is not known.
"""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Final

import numpy as np

from afterlog.base.measures import LATENESS_EDGES_MS, Histogram
from afterlog.index.growing_columns import Int64Array
from afterlog.index.merge import Block

_EDGES: Final = np.array(LATENESS_EDGES_MS, np.int64)


class Lateness:
    """Of one delayed partition, over all its readers. Thread-safe."""

    def __init__(self, position: int) -> None:
        """Records from this delivery offset on count."""
        self._histogram = Histogram(LATENESS_EDGES_MS)
        self._counted = position
        self._lock = threading.Lock()

    def up_to(self) -> list[int]:
        """Of each of LATENESS_EDGES_MS, how many records were no later; and last, how many there were."""
        with self._lock:
            return self._histogram.up_to()

    def records(self, delivery_offset: Int64Array, due: Int64Array, behind: int, clock_ms: int) -> None:
        """Records were handed out, in delivery order, a row each; their reader goes on at `behind`."""
        if behind <= self._counted:
            return
        with self._lock:
            start, self._counted = self._counted, max(self._counted, behind)
            if len(due) and delivery_offset[0] < start:
                due = due[int(delivery_offset.searchsorted(start)) :]
            self._count(due, len(due), None, clock_ms)

    def one(self, due_ms: int, behind: int, clock_ms: int) -> None:
        """`records` of one."""
        with self._lock:
            if behind > self._counted:
                self._counted = behind
                self._histogram.add(self._histogram.row(clock_ms - due_ms))

    def batches(self, block: Block, clock_ms: int) -> None:
        """Entries were handed out, whole. Cancelled records in them count with the others."""
        behind = block.end_delivery_offset
        if len(block) and behind - int(block.delivery_offset[0]) == len(block):  # a record each
            self.records(block.delivery_offset, block.deliver_after, behind, clock_ms)
            return
        with self._lock:
            start, self._counted = self._counted, max(self._counted, behind)
            fresh = np.clip(block.delivery_offset + block.records - start, 0, block.records)
            self._count(block.deliver_after, int(fresh.sum()), fresh, clock_ms)

    def _count(self, due: Int64Array, total: int, records: Int64Array | None, clock_ms: int) -> None:
        """So many records in all; of each row so many, or one."""
        if not total:
            return
        histogram = self._histogram
        row = histogram.row(clock_ms - int(due[0]))
        if len(due) == 1 or row == histogram.row(clock_ms - int(due[-1])):
            histogram.add(row, total)
            return
        later = due.searchsorted(clock_ms - _EDGES)
        if records is not None:
            later = np.append(0, np.cumsum(records))[later]
        for row, (more, less) in enumerate(pairwise([total, *later.tolist(), 0])):
            histogram.add(row, more - less)
