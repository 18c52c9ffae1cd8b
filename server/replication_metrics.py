"""What `/metrics` tells of replication, where somebody replicates the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterlog.server.counts import Label, Sample, one

if TYPE_CHECKING:
    from afterlog.replication.store_cluster import StoreCluster


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
