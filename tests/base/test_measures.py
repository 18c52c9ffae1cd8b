from __future__ import annotations

import contextlib

from afterlog.base.clock import ManualClock
from afterlog.base.measures import LATENCY_EDGES_MS, Histogram, Operation


class PatientClock(ManualClock):
    """Its patience is turned by hand, too."""

    patience_s = 0.0

    def monotonic_s(self) -> float:
        return self.patience_s


def test_a_value_counts_up_to_the_first_edge_that_it_does_not_exceed() -> None:
    histogram = Histogram([1, 10, 100])
    for value in (-1, 1, 1.5, 10, 100, 101, 10**9):
        histogram.add(histogram.row(value))
    assert [2, 4, 5, 7] == histogram.up_to()
    histogram.add(1, 5)
    assert [2, 9, 10, 12] == histogram.up_to()


def test_an_operation_counts_how_it_ended_and_how_long_it_took() -> None:
    clock, operation = PatientClock(), Operation()
    for took_s in (0.0, 0.004, 100.0):
        with operation.measured(clock):
            clock.patience_s += took_s
    with contextlib.suppress(KeyError), operation.measured(clock):
        clock.patience_s += 1
        raise KeyError
    counts = operation.counts()
    assert (3, 1, 100_004.0) == (counts.succeeded, counts.failed, round(counts.latency_sum_ms, 6))
    assert [1 if edge < 5 else 2 for edge in LATENCY_EDGES_MS] + [3] == counts.latency_up_to
