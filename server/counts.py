"""Counters of the server: requests by endpoint and status, bytes, sends per append, waiting requests.

The store's own metrics are `afterlog.metrics`; these stand behind them, in the same text format, and those of
replication, where somebody replicates the store.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from afterlog.replication.store_cluster import StoreCluster


Label = tuple[str, str]


class Sample(NamedTuple):
    """A metric and its values, by their labels."""

    name: str
    kind: str
    text: str
    values: Mapping[tuple[Label, ...], float]


class ServerCounts:
    """Of one server."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By method, path as the table has it, and status; 499: the client was gone."""
        self.received_bytes = 0
        """Of bodies."""
        self.sent_bytes = 0
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        """From the first byte of a request to the last of its answer, waits included."""

    def add(self, method: str, path: str, status: int, seconds: float, sent_bytes: int) -> None:
        self.requests[method, path, status] += 1
        self.seconds[method, path] += seconds
        self.sent_bytes += sent_bytes

    def samples(self) -> list[Sample]:
        return [
            Sample(
                "afterlog_server_requests_total",
                "counter",
                "Requests, by endpoint and status",
                {
                    (("method", method), ("path", path), ("status", str(status))): count
                    for (method, path, status), count in self.requests.items()
                },
            ),
            Sample(
                "afterlog_server_request_seconds_total",
                "counter",
                "How long they took, waits included",
                {(("method", method), ("path", path)): total for (method, path), total in self.seconds.items()},
            ),
            one("afterlog_server_received_bytes_total", "counter", "Bytes of bodies", self.received_bytes),
            one("afterlog_server_sent_bytes_total", "counter", "Bytes of answers", self.sent_bytes),
        ]


def one(name: str, kind: str, text: str, value: float) -> Sample:
    """A metric without labels."""
    return Sample(name, kind, text, {(): value})


def exposed(samples: Iterable[Sample]) -> str:
    """In Prometheus' text format. No label of ours has anything to escape."""
    lines = []
    for sample in samples:
        lines += [f"# HELP {sample.name} {sample.text}", f"# TYPE {sample.name} {sample.kind}"]
        for labels, value in sample.values.items():
            told = ",".join(f'{name}="{label}"' for name, label in labels)
            lines.append(f"{sample.name}{{{told}}} {value:.17g}" if told else f"{sample.name} {value:.17g}")
    return "\n".join([*lines, ""])


def replicated(cluster: StoreCluster, now_s: float) -> list[Sample]:
    from afterlog.replication.behind import totals

    behind = {
        (("topic", each.topic), ("partition", str(each.partition)), ("origin", each.origin)): each
        for each in cluster.standing.behind(now_s)
    }
    records: dict[tuple[Label, ...], float] = {labels: each.records for labels, each in behind.items()}
    seconds: dict[tuple[Label, ...], float] = {labels: each.seconds for labels, each in behind.items()}
    counts = totals(cluster.snapshots())
    return [
        Sample("afterlog_replication_behind_records", "gauge", "Offsets of another cluster not here yet", records),
        Sample("afterlog_replication_behind_seconds", "gauge", "Since when there are any", seconds),
        *(
            one(
                f"afterlog_replicated_subscription_snapshots_{name}_total", "counter", f"Snapshots {name}", counts[name]
            )
            for name in ("started", "completed", "timed_out")
        ),
        one("afterlog_replicated_subscription_snapshots_pending", "gauge", "In the making", counts["pending"]),
        one("afterlog_replicated_subscription_updates_total", "counter", "Positions told", counts["updates"]),
    ]
