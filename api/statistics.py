"""Figures of an open store: of partitions, of subscriptions, and what is due when. Asked of indexes and journals alone,
no record is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from afterlog.base.clock import INT64_MAX
from afterlog.fetch.partition import Partition
from afterlog.log.segment import SealedSegment, Segment
from afterlog.produce.topic import Topic
from afterlog.store.store import Store
from afterlog.subscription.stats import Standings

REMOTE = ("both", "only_remote")
WHERE = ("only_local", *REMOTE)
"""Where a segment is: in the folder, in object storage. The active one is in the folder."""
_STEPS_MS = (
    (86_400_000, (1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 500)),
    (3_600_000, (1, 2, 3, 6, 12)),
    *((size, (1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 500)) for size in (60_000, 1_000, 1)),
)
"""Units, and how many of them make a round step."""


def partition_stats(store: Store, partition: Partition) -> dict[str, Any]:
    """One row; instants in ms. due: records that are due, still in the log and not hidden. held: as of `HeldBytes`."""
    counts, segments = partition.counts(), partition.log.version.segments
    held = asdict(store.held_bytes(partition.topic, partition.number))
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "pending": counts.pending,
        "due": counts.due,
        "next_due": counts.next_due,
        "high_watermark": counts.high_watermark,
        "log_start": partition.log_start,
        "log_start_offset": partition.log_start_offset,
        "log_end_offset": counts.log_end_offset,
        "segments": len(segments),
        "bytes": sum(segment.size for segment in segments),
        "buckets": partition.bucket_total,
        "index_bytes": partition.index_bytes,
        **_by_location(segments),
        **{f"held_{holder}_bytes": size for holder, size in held.items()},
    }


def subscription_stats(store: Store, topic: Topic) -> list[dict[str, Any]]:
    """One row for each partition of each subscription, whether somebody reads it or not; see `PartitionStats`."""
    standings = Standings()
    standings.look(store.open_subscriptions())
    return [
        {"topic": topic.name, "partition": partition.number, "subscription": name, **asdict(stats)}
        for partition in topic.partitions
        for name, stats in standings.of(partition)
    ]


def due_histogram(
    topic: Topic, now_ms: int, bars_max: int, from_ms: int | None = None, to_ms: int | None = None
) -> list[tuple[int, int, int]]:
    """What is pending in all partitions by when it is due: (from ms, to ms, records). Empty where nothing is.

    from_ms, to_ms: only what is due from the one on, and before the other.
    """
    next_dues = [due for partition in topic.partitions if (due := partition.next_due()) is not None]
    if not next_dues:
        return []
    first_ms = max(min(next_dues), from_ms or 0)
    last_ms = max(map(last_due, topic.partitions)) if to_ms is None else to_ms - 1
    if last_ms < first_ms:
        return []
    edges = np.array([min(edge, INT64_MAX) for edge in histogram_edges(first_ms, last_ms, bars_max)], np.int64)
    counted = np.concatenate(([max(now_ms + 1, int(edges[0]))], edges[1:]))
    counted = np.clip(counted, from_ms or 0, INT64_MAX if to_ms is None else to_ms)
    counts = sum(partition.due_histogram(np.maximum.accumulate(counted)) for partition in topic.partitions)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), np.asarray(counts).tolist(), strict=True))


def histogram_edges(first_ms: int, last_ms: int, bars_max: int) -> list[int]:
    """Edges of at most `bars_max` equal steps that hold both instants: round ones, where a round step does."""
    for size, round_times in reversed(_STEPS_MS):
        for times in round_times:
            step = times * size
            start = first_ms // step * step
            if (last_ms - start) // step < bars_max:
                return [*range(start, last_ms + 1, step), start + ((last_ms - start) // step + 1) * step]
    step = -(-(last_ms + 1 - first_ms) // bars_max)
    return [first_ms + step * number for number in range(bars_max + 1)]


def _by_location(segments: Sequence[Segment]) -> dict[str, int]:
    """Segments, and bytes of their logs, by where they are."""
    sizes: dict[str, list[int]] = {where: [] for where in WHERE}
    for segment in segments:
        remote = segment.mark.remote if isinstance(segment, SealedSegment) else None
        sizes["only_local" if remote is None else "both" if remote.local else "only_remote"].append(segment.size)
    return {f"{where}_segments": len(found) for where, found in sizes.items()} | {
        f"{where}_bytes": sum(found) for where, found in sizes.items()
    }


def last_due(partition: Partition) -> int:
    """When the last record is due, ms: a binary search over the counts."""
    total = int(partition.due_histogram(np.array([0, INT64_MAX]))[0])
    return bisect_left(range(INT64_MAX), total, key=lambda ms: int(partition.due_histogram(np.array([0, ms + 1]))[0]))
