"""Metrics of a worker for Prometheus (extra `metrics`), asked of it when they are scraped.

afterlog.relay.relay_metrics.register(relay)          # in the registry of the process
afterlog relay … --metrics 9464                 # served on a port
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from afterlog.base.extras import missing
from afterlog.base.measures import LATENESS_EDGES_MS
from afterlog.relay.relay import Relay
from afterlog.relay.relay_measures import TRANSACTION_EDGES_S

try:
    from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing(error, "the metrics of a relay", "metrics") from error

if TYPE_CHECKING:
    from prometheus_client import Metric

STATES: Final = ("assigned", "rebuilding", "live", "draining", "stopped")
_LABELS: Final = ("topic", "partition")
GAUGES: Final = {
    "pending": "Records that wait",
    "next_due_ms": "No later than when the first of them is due, ms since the epoch",
    "intake_lag": "Records of the input that were not read yet, as was heard last",
    "lowest_offset": "The lowest offset that waits: the input has to keep what is behind it",
    "next_offset": "The next offset of the input",
    "goes_soon": "1 where what waits longest is near the end of the retention of its input",
    "rebuilt_s": "Seconds until the partition was live after it was assigned",
}
COUNTERS: Final = {
    "delivered": "Records that went out: to their targets, or, where these refuse them, to the dead letters",
    "late": "Of these, due or behind the frontier when they were read",
    "refused": "Records that could not be read",
    "carried": "Records appended to the carry topic",
    "cancelled": "Cancels that found what they name",
    "replaced": "Records that took the place of one of their id",
    "cancels_missed": "Cancels that found nothing",
}
WORKER_COUNTERS: Final = {
    "transactions": "Transactions committed",
    "aborted": "Transactions that failed",
    "fenced": "Of these, since somebody else has its name, or its partitions",
    "sessions": "Times that the worker has joined the group",
    "lost": "Partitions that were taken away while it was thought to be dead",
    "rebuilds": "Partitions begun anew behind a failed transaction",
    "dead_letters": "Records that could not be read or delivered",
}


class RelayCollector(Collector):
    """Of one relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def collect(self) -> Iterator[Metric]:
        rows = self._relay.status()
        states = GaugeMetricFamily("afterlog_relay_state", "1 for the state it is in", labels=(*_LABELS, "state"))
        for row in rows:
            for state in STATES:
                states.add_metric((row.topic, str(row.partition), state), row.state == state)
        yield states
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"afterlog_relay_{name}", text, labels=_LABELS)
            yield _told(gauge, rows, name)
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"afterlog_relay_{name}", text, labels=_LABELS)
            yield _told(counter, rows, name)
        measures = self._relay.measures
        for name, text in WORKER_COUNTERS.items():
            yield CounterMetricFamily(f"afterlog_relay_worker_{name}", text, value=getattr(measures, name))
        yield _histogram(
            "afterlog_relay_lateness_ms", "From when a record was due, or read, to when it was committed",
            LATENESS_EDGES_MS, measures.lateness, measures.lateness_ms,
        )  # fmt: skip
        yield _histogram(
            "afterlog_relay_transaction_seconds", "How long a transaction took", TRANSACTION_EDGES_S,
            measures.transaction_s, measures.transactions_s,
        )  # fmt: skip


def register(relay: Relay, registry: CollectorRegistry = REGISTRY) -> RelayCollector:
    """Have it scraped with the registry; what it returns can be unregistered."""
    collector = RelayCollector(relay)
    registry.register(collector)
    return collector


def serve(relay: Relay, port: int, host: str = "127.0.0.1") -> None:
    """Serve /metrics of this relay alone, by a thread, until the process ends. Raises OSError."""
    registry = CollectorRegistry()
    register(relay, registry)
    start_http_server(port, host, registry=registry)


def _told(family: Any, rows: Any, name: str) -> Any:
    for row in rows:
        value = getattr(row, name)
        if value is not None:
            family.add_metric((row.topic, str(row.partition)), value)
    return family


def _histogram(name: str, text: str, edges: tuple[float, ...], counts: list[int], total: float) -> Metric:
    up_to = zip((*map(str, map(float, edges)), "+Inf"), accumulate(counts), strict=True)
    return HistogramMetricFamily(name, text, buckets=[*up_to], sum_value=total)
