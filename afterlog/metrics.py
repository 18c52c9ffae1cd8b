"""Metrics of a store for Prometheus (extra `metrics`), asked of the store when they are scraped and never before.

    afterlog.metrics.register(store)                # in the registry of the process
    prometheus_client.start_http_server(8000)       # or whatever serves that

The names are those of PIP-195 and ours, with the prefix `afterlog_`; docs/metrics.md says what each means. The engine
counts a little all the time (`afterlog.measures`) and knows nothing of Prometheus.

A gauge has no sample while what it asks cannot answer: the disk has failed, or a subscription is just being closed. Nor
has any metric once the store is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from afterlog.errors import AfterlogError, StoreClosed, StoreForked
from afterlog.fetch.lateness import EDGES_MS
from afterlog.fetch.partition import Partition
from afterlog.measures import LATENCY_EDGES_MS, Operation
from afterlog.store import Store
from afterlog.subscription.answers import PartitionStats
from afterlog.subscription.inspect import names
from afterlog.subscription.standing import at_rest

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


class Gauge(NamedTuple):
    """A metric that goes up and down, and how it is asked; None where there is nothing to tell."""

    name: str
    text: str
    ask: Callable[[Any], int | None]


_INDEX: Final = "afterlog_delayed_message_index_"
_PARTITION: Final = ("topic", "partition")

INDEX_GAUGES: Final = (
    Gauge(_INDEX + "bucket_total", "Buckets: the runs, and the mutable one", attrgetter("bucket_total")),
    Gauge(_INDEX + "bucket_snapshot_size_bytes", "Bytes of the stored runs", attrgetter("index_bytes")),
    Gauge(_INDEX + "loaded", "Index entries in memory", Partition.loaded_entries),
)
"""Asked of the partitions of delayed topics."""
PARTITION_GAUGES: Final = (
    Gauge("afterlog_pending", "Records not due yet, and not cancelled", Partition.pending),
    Gauge("afterlog_due", "Records due, and in the log", lambda each: each.high_watermark() - each.log_start),
    Gauge("afterlog_high_watermark", "Delivery offset behind the last record that is due", Partition.high_watermark),
    Gauge("afterlog_next_due_ms", "When the next pending record is due, ms since the epoch", Partition.next_due),
    Gauge("afterlog_log_end_offset", "Offset of the next record to be appended", attrgetter("log_end_offset")),
)
"""Asked of every partition."""
SUBSCRIPTION_GAUGES: Final = (
    Gauge("afterlog_subscription_pending", "Records not due to the subscription yet", attrgetter("pending")),
    Gauge("afterlog_subscription_due", "Records due to it, and never delivered", attrgetter("due")),
    Gauge("afterlog_subscription_leased", "Records that a reader has", attrgetter("leased")),
    Gauge("afterlog_subscription_retrying", "Records that came back, to go out again", attrgetter("retrying")),
    Gauge("afterlog_subscription_dead", "Records that went to the dead letters, ever", attrgetter("dead")),
)
"""Asked of the stats of every partition of a subscription."""


class StoreCollector:
    """A collector for prometheus_client. Any thread may collect."""

    def __init__(self, store: Store, *, idle: bool = False) -> None:
        """idle: tell of subscriptions without a reader, too, whose journals are read anew for every scrape.

        ImportError where prometheus-client is not installed.
        """
        _check_installed()
        self._store = store
        self._idle = idle

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples: whoever registers them asks the store nothing."""
        return _Families()

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        families = _Families()
        with contextlib.suppress(StoreClosed, StoreForked):
            for topic in self._store.topics():
                for partition in topic.partitions:
                    families.add_partition(partition)
                    for name, stats in self._subscriptions(partition).items():
                        families.add_subscription(partition, name, stats)
        return families

    def _subscriptions(self, partition: Partition) -> dict[str, Callable[[], PartitionStats]]:
        """How to ask each subscription how it stands."""
        found: dict[str, Callable[[], PartitionStats]] = {}
        if self._idle:
            with contextlib.suppress(OSError):
                found |= {name: partial(at_rest, partition, name) for name in names(partition.log.place)}
        mine = (each for each in self._store.open_subscriptions() if each.partition is partition)
        return found | {each.name: each.stats for each in mine}


def register(store: Store, registry: CollectorRegistry | None = None, *, idle: bool = False) -> StoreCollector:
    """Put the store's metrics in a registry, by default that of the process; `registry.unregister` takes them out.

    A registry takes one store, since no label says which it is: ValueError for a second one. idle: see
    `StoreCollector`. ImportError where prometheus-client is not installed.
    """
    collector = StoreCollector(store, idle=idle)
    if registry is None:
        from prometheus_client import REGISTRY

        registry = REGISTRY
    registry.register(collector)
    return collector


def exposition(store: Store) -> str:
    """All metrics as they are now, in Prometheus' text format. ImportError where prometheus-client is not installed."""
    _check_installed()
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    register(store, registry, idle=True)
    return generate_latest(registry).decode()


class _Families:
    """All metrics, to be filled with samples."""

    def __init__(self) -> None:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        self._gauges = {
            gauge.name: GaugeMetricFamily(gauge.name, gauge.text, labels=labels)
            for gauges, labels in (
                (INDEX_GAUGES, _PARTITION),
                (PARTITION_GAUGES, _PARTITION),
                (SUBSCRIPTION_GAUGES, (*_PARTITION, "subscription")),
            )
            for gauge in gauges
        }
        self._operations = CounterMetricFamily(
            _INDEX + "bucket_op_count", "Operations on runs, by how they ended", labels=(*_PARTITION, "type", "state")
        )
        self._latency = HistogramMetricFamily(
            _INDEX + "bucket_op_latency_ms", "How long those took that succeeded", labels=(*_PARTITION, "type")
        )
        self._lateness = HistogramMetricFamily(
            "afterlog_lateness_ms", "From when a record was due to when a reader first got it", labels=_PARTITION
        )
        self._clamped = CounterMetricFamily(
            "afterlog_clamped_records", "Records whose instant had passed when they were appended", labels=_PARTITION
        )

    def __iter__(self) -> Iterator[Metric]:
        yield from self._gauges.values()
        yield from (self._operations, self._latency, self._lateness, self._clamped)

    def add_partition(self, partition: Partition) -> None:
        labels = (partition.topic, str(partition.number))
        self._ask(PARTITION_GAUGES, partition, labels)
        if partition.lateness is None:
            return
        self._ask(INDEX_GAUGES, partition, labels)
        operations = partition.log.place.operations
        for field in fields(operations):
            self._add_operation(getattr(operations, field.name), (*labels, field.name))
        self._lateness.add_metric(labels, _buckets(EDGES_MS, partition.lateness.up_to()), None)
        self._clamped.add_metric(labels, partition.log.clamped_records)

    def add_subscription(self, partition: Partition, name: str, ask: Callable[[], PartitionStats]) -> None:
        with contextlib.suppress(AfterlogError, OSError):
            self._ask(SUBSCRIPTION_GAUGES, ask(), (partition.topic, str(partition.number), name))

    def _ask(self, gauges: Sequence[Gauge], asked: object, labels: Sequence[str]) -> None:
        for gauge in gauges:
            with contextlib.suppress(AfterlogError, OSError):
                value = gauge.ask(asked)
                if value is not None:
                    self._gauges[gauge.name].add_metric(labels, value)

    def _add_operation(self, operation: Operation, labels: Sequence[str]) -> None:
        counts = operation.counts()
        for state, count in (
            ("succeed", counts.succeeded),
            ("failed", counts.failed),
            ("all", counts.succeeded + counts.failed),
        ):
            self._operations.add_metric((*labels, state), count)
        self._latency.add_metric(labels, _buckets(LATENCY_EDGES_MS, counts.latency_up_to), counts.latency_sum_ms)


def _buckets(edges: Sequence[float], up_to: Sequence[int]) -> list[tuple[str, float]]:
    """A histogram as Prometheus has it: the label of each edge, and the values that do not exceed it."""
    from prometheus_client.utils import floatToGoString

    return [*zip(map(floatToGoString, (*edges, float("inf"))), up_to, strict=True)]


def _check_installed() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ImportError("metrics need prometheus-client: pip install 'afterlog[metrics]'") from error
