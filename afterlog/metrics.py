"""Metrics of a store for Prometheus (extra `metrics`), asked of the store when they are scraped and never before.

    afterlog.metrics.register(store)                # in the registry of the process
    prometheus_client.start_http_server(8000)       # or whatever serves that

The names are those of PIP-195 and ours, with the prefix `afterlog_`; docs/metrics.md says what each means. The engine
counts a little all the time (`afterlog.base.measures`) and knows nothing of Prometheus.

*Detail.* By default a topic has two series, and a subscription three (`OF_TOPICS`); everything else is summed over the
store, of `next_due_ms` the earliest: ten thousand topics are 0.8 MB. With `detail="partition"` each partition has all
of them, a hundred and more.

A gauge has no sample while what it asks cannot answer: the disk has failed, or a subscription is just being closed. Nor
has any metric once the store is closed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from afterlog._version import __version__
from afterlog.base.compiled import missing
from afterlog.base.errors import AfterlogError, InvalidArgument, StoreClosed, StoreForked
from afterlog.base.measures import LATENCY_EDGES_MS, LATENESS_EDGES_MS, Operation
from afterlog.fetch.partition import Partition
from afterlog.index.bucket_storage import BucketOperations
from afterlog.produce.topic import Topic
from afterlog.store.store import Store
from afterlog.subscription.answers import PartitionStats
from afterlog.subscription.stats import Standings
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
_NEXT_DUE: Final = "afterlog_next_due_ms"
_PARTITION: Final = ("topic", "partition")
_PLACE: Final = (*_PARTITION, "subscription")
Detail = Literal["topic", "partition"]

INDEX_GAUGES: Final = (
    Gauge(_INDEX + "bucket_total", "Buckets: the runs, and the mutable one", attrgetter("bucket_total")),
    Gauge(_INDEX + "bucket_snapshot_size_bytes", "Bytes of the stored runs", attrgetter("index_bytes")),
    Gauge(_INDEX + "loaded", "Index entries in memory", Partition.loaded_entries),
)
"""Asked of the partitions of delayed topics."""
PARTITION_GAUGES: Final = (
    Gauge("afterlog_pending", "Records not due yet, and not cancelled", attrgetter("pending")),
    Gauge("afterlog_due", "Records due, and in the log", attrgetter("due")),
    Gauge("afterlog_high_watermark", "Delivery offset after the last record that is due", attrgetter("high_watermark")),
    Gauge("afterlog_next_due_ms", "When the next pending record is due, ms since the epoch", attrgetter("next_due")),
    Gauge("afterlog_log_end_offset", "Offset of the next record to be appended", attrgetter("log_end_offset")),
)
"""Asked of the counts of every partition, which are of one reading."""
SUBSCRIPTION_GAUGES: Final = (
    Gauge("afterlog_subscription_pending", "Records not due to the subscription yet", attrgetter("pending")),
    Gauge("afterlog_subscription_due", "Records due to it, and never delivered", attrgetter("due")),
    Gauge("afterlog_subscription_leased", "Records that a reader has", attrgetter("leased")),
    Gauge("afterlog_subscription_retrying", "Records that came back, to go out again", attrgetter("retrying")),
    Gauge("afterlog_subscription_dead", "Records that went to the dead letters, ever", attrgetter("dead")),
    Gauge("afterlog_subscription_lapsed", "Records that expired before anybody got them, ever", attrgetter("lapsed")),
    Gauge("afterlog_subscription_paused", "1 where nothing is handed out", attrgetter("paused")),
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


OF_TOPICS: Final = {
    "afterlog_pending": ("topic",),
    "afterlog_due": ("topic",),
    "afterlog_subscription_due": ("topic", "subscription"),
    "afterlog_subscription_retrying": ("topic", "subscription"),
    "afterlog_subscription_dead": ("topic", "subscription"),
}
"""What is told of each topic, and by which labels, where no more detail is asked for."""


_NOT_TOLD: Final = (AfterlogError, OSError)
"""A gauge has no sample while what it asks raises one of these."""
_OPERATIONS: Final = tuple(field.name for field in fields(BucketOperations))


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

    def __init__(self, store: Store, *, idle: bool = False, detail: Detail = "topic") -> None:
        """detail: how much is told of each topic. idle: tell of subscriptions without a reader, too, whose journals are
        read once for each change.

        ImportError where prometheus-client is not installed.
        """
        _check_installed()
        self._store = store
        self._idle = idle
        self._detail = _checked(detail)
        self._standings = Standings()

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples: whoever registers them asks the store nothing."""
        return _Families(self._detail)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        families = _Families(self._detail)
        with contextlib.suppress(StoreClosed, StoreForked):
            topics = self._store.topics()
            self._standings.look(self._store.open_subscriptions())
            families.add_build()
            for topic in topics:
                for number in range(topic.partition_count):
                    partition = families.opened(topic, number)
                    if partition is None:
                        continue
                    families.add_partition(partition)
                    families.add_held(partition, self._store)
                    families.add_tiering(partition, self._store.tiering)
                    for name, stats in self._standings.of(partition, closed=self._idle, passed_over=_NOT_TOLD):
                        families.add_subscription(partition, name, stats)
            if self._store.tiering is not None:
                families.add_cache(self._store.tiering.cache.counts())
        families.finish()
        return families


def register(
    store: Store, registry: CollectorRegistry | None = None, *, idle: bool = False, detail: Detail = "topic"
) -> StoreCollector:
    """Put the store's metrics in a registry, by default that of the process; `registry.unregister` takes them out.

    A registry takes one store, since no label says which it is: ValueError for a second one. idle, detail: see
    `StoreCollector`. ImportError where prometheus-client is not installed.
    """
    collector = StoreCollector(store, idle=idle, detail=detail)
    if registry is None:
        from prometheus_client import REGISTRY

        registry = REGISTRY
    registry.register(collector)
    return collector


def exposition(store: Store, detail: Detail = "topic") -> str:
    """All metrics as they are now, in Prometheus' text format. ImportError where prometheus-client is not installed."""
    _check_installed()
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    register(store, registry, idle=True, detail=detail)
    return generate_latest(registry).decode()


class _Families:
    """All metrics, to be filled with samples; where less than all is told of a partition, they are summed first."""

    def __init__(self, detail: Detail) -> None:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        self._is_summed = detail == "topic"
        self._families: dict[str, Any] = {}
        """Those that have something to tell, where it is summed; and the sums, by name and labels."""
        self._operated: set[str] = set()
        """The operations that are told of: also one that nobody has made yet, once."""
        self._sums: dict[tuple[str, tuple[str, ...]], float] = {}
        self._histograms: dict[tuple[str, tuple[str, ...]], _HistogramSum] = {}

        def told(labels: Sequence[str], name: str = "") -> Sequence[str]:
            if not self._is_summed:
                return labels
            return OF_TOPICS.get(name) or [label for label in labels if label not in _PLACE]

        place = told(_PARTITION)

        self._gauges = {
            gauge.name: GaugeMetricFamily(gauge.name, gauge.text, labels=told(labels, gauge.name))
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
            count.name: CounterMetricFamily(count.name, count.text, labels=told(labels, count.name))
            for counts, labels in ((COPY_COUNTS, _PARTITION), (FETCH_COUNTS, ()))
            for count in counts
        }
        self._build = GaugeMetricFamily("afterlog_build_info", "1, and what serves", labels=("version", "kernels"))
        self._operations = CounterMetricFamily(
            _INDEX + "bucket_op_count",
            "Operations on runs, by how they ended",
            labels=(*place, "type", "state"),
        )
        self._latency = HistogramMetricFamily(
            _INDEX + "bucket_op_latency_ms",
            "How long those took that succeeded",
            labels=(*place, "type"),
        )
        self._lateness = HistogramMetricFamily(
            "afterlog_lateness_ms",
            "From when a record was due to when a reader first got it",
            labels=place,
        )
        self._unreadable = GaugeMetricFamily(
            "afterlog_unreadable", "1 where the partition cannot be opened, else 0", labels=place
        )
        self._clamped = CounterMetricFamily(
            "afterlog_clamped_records",
            "Records whose instant had passed when they were appended",
            labels=place,
        )
        self._held = GaugeMetricFamily(
            "afterlog_held_bytes",
            "Bytes of logs on the local disk, by what holds them",
            labels=(*place, "by"),
        )
        self._evicted = CounterMetricFamily(
            "afterlog_evicted_records", "Records that a backlog's quota took unacked", labels=place
        )
        self._cleaned = [
            CounterMetricFamily(f"afterlog_cleaned_{what}", text, labels=place)
            for what, text in (
                ("segments", "Segments that were written anew with what is still to come, or went"),
                ("written_bytes", "Bytes that were written so"),
                ("freed_bytes", "Bytes of logs that went so"),
            )
        ]
        self._late_checkpoints = CounterMetricFamily(
            "afterlog_late_checkpoints",
            "Checkpoints that an append had to make, and wait for",
            labels=place,
        )

    def __iter__(self) -> Iterator[Metric]:
        yield from self._gauges.values()
        yield from (self._build, self._unreadable, self._operations, self._latency, self._lateness, self._clamped)
        yield from (self._late_checkpoints, self._held, self._evicted, *self._cleaned)
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
        self._put(self._unreadable, (topic.name, str(number)), partition is None)
        return partition

    def add_partition(self, partition: Partition) -> None:
        labels = (partition.topic, str(partition.number))
        with contextlib.suppress(*_NOT_TOLD):
            self._ask(PARTITION_GAUGES, partition.counts(), labels)
        self._put(self._late_checkpoints, labels, partition.log.late_checkpoints)
        self._put(self._evicted, labels, partition.log.evicted_records)
        for family, value in zip(self._cleaned, partition.log.cleaned, strict=True):
            self._put(family, labels, value)
        if partition.lateness is None:
            return
        self._ask(INDEX_GAUGES, partition, labels)
        operations = partition.log.context.operations
        for name in _OPERATIONS:
            operation = getattr(operations, name)
            if not (self._is_summed and operation.is_unused and name in self._operated):
                self._operated.add(name)
                self._add_operation(operation, (*labels, name))
        self._put_histogram(self._lateness, labels, _HistogramSum(LATENESS_EDGES_MS, partition.lateness.up_to(), None))
        self._put(self._clamped, labels, partition.log.clamped_records)

    def add_held(self, partition: Partition, store: Store) -> None:
        """Where all is told: what holds each segment is asked, and so costs more than the rest together."""
        if self._is_summed:
            return
        with contextlib.suppress(*_NOT_TOLD):
            for holder, size in asdict(store.held_bytes(partition.topic, partition.number)).items():
                self._put(self._held, (partition.topic, str(partition.number), holder), size)

    def add_tiering(self, partition: Partition, tiering: Tiering | None) -> None:
        offloader = None if tiering is None else tiering.offloader(partition.topic, partition.number)
        if offloader is not None:
            labels = (partition.topic, str(partition.number))
            self._ask(COPY_LAG_GAUGES, offloader, labels)
            self._tell(COPY_COUNTS, offloader.counts, labels)

    def add_cache(self, counts: PageCacheCounts) -> None:
        self._ask(CACHE_GAUGES, counts, ())
        self._tell(FETCH_COUNTS, counts, ())

    def add_subscription(self, partition: Partition, name: str, stats: PartitionStats) -> None:
        self._ask(SUBSCRIPTION_GAUGES, stats, (partition.topic, str(partition.number), name))

    def _ask(self, gauges: Sequence[Gauge], asked: object, labels: Sequence[str]) -> None:
        for gauge in gauges:
            with contextlib.suppress(*_NOT_TOLD):
                value = gauge.ask(asked)
                if value is not None:
                    self._put(self._gauges[gauge.name], labels, value)

    def _tell(self, counts: Sequence[Count], told: object, labels: Sequence[str]) -> None:
        for count in counts:
            self._put(self._counters[count.name], labels, getattr(told, count.field))

    def _add_operation(self, operation: Operation, labels: Sequence[str]) -> None:
        counts = operation.counts()
        for state, count in (
            ("succeed", counts.succeeded),
            ("failed", counts.failed),
            ("all", counts.succeeded + counts.failed),
        ):
            self._put(self._operations, (*labels, state), count)
        self._put_histogram(
            self._latency, labels, _HistogramSum(LATENCY_EDGES_MS, counts.latency_up_to, counts.latency_sum_ms)
        )

    def _put(self, family: Any, labels: Sequence[str], value: float) -> None:
        if not self._is_summed:
            family.add_metric(labels, value)
            return
        key, sums = (family.name, self._kept(family, labels)), self._sums
        if key not in sums:
            self._families[family.name], sums[key] = family, value
        elif family.name == _NEXT_DUE:
            sums[key] = min(sums[key], value)
        elif value:
            sums[key] += value

    def _put_histogram(self, family: Any, labels: Sequence[str], counted: _HistogramSum) -> None:
        if not self._is_summed:
            family.add_metric(labels, _buckets(counted.edges, counted.up_to), counted.sum)
            return
        key = family.name, self._kept(family, labels)
        before = self._histograms.get(key)
        if before is None:
            self._families[family.name], self._histograms[key] = family, counted
        elif counted.up_to[-1]:
            self._histograms[key] = before.plus(counted)

    def _kept(self, family: Any, labels: Sequence[str]) -> tuple[str, ...]:
        """Of the labels of a partition, those that the family has: the topic, a subscription, and what follows."""
        kept = OF_TOPICS.get(family.name)
        if kept is not None:
            return (labels[0], labels[2]) if len(kept) > 1 else (labels[0],)
        return tuple(labels[len(labels) - len(family._labelnames) :])

    def finish(self) -> None:
        """What was summed is told."""
        for (name, labels), value in self._sums.items():
            self._families[name].add_metric(labels, value)
        for (name, labels), counted in self._histograms.items():
            self._families[name].add_metric(labels, _buckets(counted.edges, counted.up_to), counted.sum)


class _HistogramSum(NamedTuple):
    """How many values do not exceed each edge, the last of which is infinite; and their sum, where that is known."""

    edges: Sequence[float]
    up_to: Sequence[int]
    sum: float | None

    def plus(self, other: _HistogramSum) -> _HistogramSum:
        up_to = [one + another for one, another in zip(self.up_to, other.up_to, strict=True)]
        return _HistogramSum(self.edges, up_to, None if self.sum is None else self.sum + (other.sum or 0))


def _checked(detail: Detail) -> Detail:
    if detail not in get_args(Detail):
        raise InvalidArgument(f"detail is topic or partition, not {detail!r:.60}")
    return detail


def _buckets(edges: Sequence[float], up_to: Sequence[int]) -> list[tuple[str, float]]:
    """A histogram as Prometheus has it: the label of each edge, and the values that do not exceed it."""
    from prometheus_client.utils import floatToGoString

    return [*zip(map(floatToGoString, (*edges, float("inf"))), up_to, strict=True)]


def _check_installed() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ImportError("metrics need prometheus-client: pip install 'afterlog[metrics]'") from error
