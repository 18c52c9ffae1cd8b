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
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from afterlog._version import __version__
from afterlog.compiled import missing
from afterlog.errors import AfterlogError, StoreClosed, StoreForked
from afterlog.fetch.lateness import EDGES_MS
from afterlog.fetch.partition import Partition
from afterlog.measures import LATENCY_EDGES_MS, Operation
from afterlog.offline.journals import names
from afterlog.produce.topic import Topic
from afterlog.store import Store
from afterlog.subscription.answers import PartitionStats
from afterlog.subscription.standing import at_rest
from afterlog.tier.page_cache import PageCacheCounts
from afterlog.tier.tiering import Tiering

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

logger = logging.getLogger("afterlog.metrics")


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
    Gauge("afterlog_subscription_removed", "Records that retention took unacked, ever", attrgetter("removed")),
)
"""Asked of the stats of every partition of a subscription."""
COPY_LAG_GAUGES: Final = (
    Gauge("afterlog_remote_copy_lag_segments", "Sealed segments not uploaded yet", lambda each: each.lag[0]),
    Gauge("afterlog_remote_copy_lag_bytes", "Bytes of their logs", lambda each: each.lag[1]),
)
"""Asked of what moves segments between a partition and object storage."""
CACHE_GAUGES: Final = (
    Gauge(
        "afterlog_remote_cache_held_bytes", "Bytes of object storage cached on the local disk", attrgetter("held_bytes")
    ),
)
"""Asked of the counts of the store's page cache."""


class Count(NamedTuple):
    """A metric that only grows, and the name of the count that it tells."""

    name: str
    text: str
    field: str


COPY_COUNTS: Final = (
    Count("afterlog_remote_copy_segments", "Segments uploaded", "copied_segments"),
    Count("afterlog_remote_copy_bytes", "Bytes of all their files", "copied_bytes"),
    Count("afterlog_remote_delete_segments", "Segments removed from object storage", "deleted_segments"),
    Count("afterlog_remote_copy_errors", "Passes over the partition that failed", "errors"),
)
FETCH_COUNTS: Final = (
    Count("afterlog_remote_fetch_requests", "Ranges asked for", "requests"),
    Count("afterlog_remote_fetch_bytes", "Bytes fetched", "fetched_bytes"),
    Count("afterlog_remote_fetch_errors", "Requests that failed", "errors"),
    Count("afterlog_remote_cache_hits", "Pages that were wanted and cached", "hits"),
    Count("afterlog_remote_cache_read_bytes", "Bytes that readers were given", "read_bytes"),
)


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
            topics = self._store.topics()
            families.add_build()
            for topic in topics:
                for number in range(topic.partition_count):
                    partition = families.opened(topic, number)
                    if partition is None:
                        continue
                    families.add_partition(partition)
                    families.add_held(partition, self._store)
                    families.add_tiering(partition, self._store.tiering)
                    for name, stats in self._subscriptions(partition).items():
                        families.add_subscription(partition, name, stats)
            if self._store.tiering is not None:
                families.add_cache(self._store.tiering.cache.counts())
        return families

    def _subscriptions(self, partition: Partition) -> dict[str, Callable[[], PartitionStats]]:
        """How to ask each subscription how it stands."""
        found: dict[str, Callable[[], PartitionStats]] = {}
        if self._idle:
            with contextlib.suppress(OSError):
                found |= {name: partial(at_rest, partition, name) for name in names(partition.log.context)}
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
                (COPY_LAG_GAUGES, _PARTITION),
                (CACHE_GAUGES, ()),
            )
            for gauge in gauges
        }
        self._counters = {
            count.name: CounterMetricFamily(count.name, count.text, labels=labels)
            for counts, labels in ((COPY_COUNTS, _PARTITION), (FETCH_COUNTS, ()))
            for count in counts
        }
        self._build = GaugeMetricFamily("afterlog_build_info", "1, and what serves", labels=("version", "kernels"))
        self._operations = CounterMetricFamily(
            _INDEX + "bucket_op_count", "Operations on runs, by how they ended", labels=(*_PARTITION, "type", "state")
        )
        self._latency = HistogramMetricFamily(
            _INDEX + "bucket_op_latency_ms", "How long those took that succeeded", labels=(*_PARTITION, "type")
        )
        self._lateness = HistogramMetricFamily(
            "afterlog_lateness_ms", "From when a record was due to when a reader first got it", labels=_PARTITION
        )
        self._unreadable = GaugeMetricFamily(
            "afterlog_unreadable", "1 where the partition cannot be opened, else 0", labels=_PARTITION
        )
        self._clamped = CounterMetricFamily(
            "afterlog_clamped_records", "Records whose instant had passed when they were appended", labels=_PARTITION
        )
        self._held = GaugeMetricFamily(
            "afterlog_held_bytes", "Bytes of logs on the local disk, by what holds them", labels=(*_PARTITION, "by")
        )
        self._evicted = CounterMetricFamily(
            "afterlog_evicted_records", "Records that a backlog's quota took unacked", labels=_PARTITION
        )
        self._late_checkpoints = CounterMetricFamily(
            "afterlog_late_checkpoints", "Checkpoints that an append had to make, and wait for", labels=_PARTITION
        )

    def __iter__(self) -> Iterator[Metric]:
        yield from self._gauges.values()
        yield from (self._build, self._unreadable, self._operations, self._latency, self._lateness, self._clamped)
        yield from (self._late_checkpoints, self._held, self._evicted)
        yield from self._counters.values()

    def add_build(self) -> None:
        self._build.add_metric((__version__, "plain" if missing() else "compiled"), 1)

    def opened(self, topic: Topic, number: int) -> Partition | None:
        """The partition; None where it cannot be opened, which is told. Raises StoreClosed, StoreForked."""
        partition = None
        try:
            partition = topic.partition(number)
        except (StoreClosed, StoreForked):
            raise
        except (AfterlogError, OSError) as error:
            logger.error("%s-%d: cannot be opened: %s", topic.name, number, error)
        self._unreadable.add_metric((topic.name, str(number)), partition is None)
        return partition

    def add_partition(self, partition: Partition) -> None:
        labels = (partition.topic, str(partition.number))
        self._ask(PARTITION_GAUGES, partition, labels)
        self._late_checkpoints.add_metric(labels, partition.log.late_checkpoints)
        self._evicted.add_metric(labels, partition.log.evicted_records)
        if partition.lateness is None:
            return
        self._ask(INDEX_GAUGES, partition, labels)
        operations = partition.log.context.operations
        for field in fields(operations):
            self._add_operation(getattr(operations, field.name), (*labels, field.name))
        self._lateness.add_metric(labels, _buckets(EDGES_MS, partition.lateness.up_to()), None)
        self._clamped.add_metric(labels, partition.log.clamped_records)

    def add_held(self, partition: Partition, store: Store) -> None:
        with contextlib.suppress(AfterlogError, OSError):
            for holder, size in asdict(store.held_bytes(partition.topic, partition.number)).items():
                self._held.add_metric((partition.topic, str(partition.number), holder), size)

    def add_tiering(self, partition: Partition, tiering: Tiering | None) -> None:
        offloader = None if tiering is None else tiering.offloader(partition.topic, partition.number)
        if offloader is not None:
            labels = (partition.topic, str(partition.number))
            self._ask(COPY_LAG_GAUGES, offloader, labels)
            self._tell(COPY_COUNTS, offloader.counts, labels)

    def add_cache(self, counts: PageCacheCounts) -> None:
        self._ask(CACHE_GAUGES, counts, ())
        self._tell(FETCH_COUNTS, counts, ())

    def add_subscription(self, partition: Partition, name: str, ask: Callable[[], PartitionStats]) -> None:
        with contextlib.suppress(AfterlogError, OSError):
            self._ask(SUBSCRIPTION_GAUGES, ask(), (partition.topic, str(partition.number), name))

    def _ask(self, gauges: Sequence[Gauge], asked: object, labels: Sequence[str]) -> None:
        for gauge in gauges:
            with contextlib.suppress(AfterlogError, OSError):
                value = gauge.ask(asked)
                if value is not None:
                    self._gauges[gauge.name].add_metric(labels, value)

    def _tell(self, counts: Sequence[Count], told: object, labels: Sequence[str]) -> None:
        for count in counts:
            self._counters[count.name].add_metric(labels, getattr(told, count.field))

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
