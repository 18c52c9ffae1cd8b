"""What `afterlog stats` tells, asked of indexes and journals alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from afterlog.cli.output import amount, bars, histogram_edges, iso, json_line, relative, table
from afterlog.clock import INT64_MAX
from afterlog.fetch.partition import Partition
from afterlog.log.segment import SealedSegment, Segment
from afterlog.offline.journals import names
from afterlog.produce.topic import Topic
from afterlog.store import Store
from afterlog.subscription.standing import at_rest

_COUNTS = ("pending", "due", "leased", "retrying", "acked", "dead")
_REMOTE = ("both", "only_remote")
_HOLDERS = ("pending", "retention", "backlog", "tier", "removable")
"""Of sealed segments; nobody else reads a store that is open here."""
_WHERE = ("only_local", *_REMOTE)
"""Where a segment is: in the folder, in object storage. The active one is in the folder."""


def show(store: Store, topics: Sequence[Topic], bars_max: int) -> None:
    """A table of the partitions, one of the subscriptions, and for each topic what is due when."""
    now_ms = store.clock.now_ms()
    rows = [partition_stats(store, partition) for topic in topics for partition in topic.partitions]
    headings = ("PARTITION", "PENDING", "DUE", "NEXT DUE", "OFFSETS", "SEGMENTS", "SIZE", "BUCKETS")
    table(headings, [_cells(row, now_ms) for row in rows])
    held = [row for row in rows if any(row[f"held_{holder}_bytes"] for holder in _HOLDERS)]
    if held:
        click.echo()
        table(("SEALED BYTES OF", *(f"{holder.upper()}" for holder in _HOLDERS)), map(_held_cells, held))
    tiered = [row for row in rows if any(row[f"{where}_segments"] for where in _REMOTE)]
    if tiered:
        click.echo()
        table(("SEGMENTS OF", "ONLY HERE", "BOTH", "ONLY IN OBJECT STORAGE"), map(_tiered_cells, tiered))
    rows = [row for topic in topics for row in subscription_stats(topic)]
    if rows:
        click.echo()
        table(("SUBSCRIPTION", *(name.upper() for name in _COUNTS)), _summed(rows))
    for topic in topics:
        counts = due_histogram(topic, now_ms, bars_max)
        if counts:
            click.echo(f"\n{topic.name}: pending records by when they are due, from")
            bars([(iso(start), records) for start, _, records in counts])


def show_json(store: Store, topics: Sequence[Topic], bars_max: int) -> None:
    """The same, a JSON object for each partition, each partition of a subscription, and each bucket."""
    now_ms = store.clock.now_ms()
    for topic in topics:
        for partition in topic.partitions:
            click.echo(json_line(partition_stats(store, partition)))
        for row in subscription_stats(topic):
            click.echo(json_line(row))
        for start, end, records in due_histogram(topic, now_ms, bars_max):
            click.echo(json_line({"topic": topic.name, "from": start, "to": end, "records": records}))


def partition_stats(store: Store, partition: Partition) -> dict[str, Any]:
    """One row; instants in ms. due: records that are due and still in the log. held: as of `HeldBytes`."""
    segments = partition.log.version.segments
    held = asdict(store.held_bytes(partition.topic, partition.number))
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "pending": partition.pending(),
        "due": partition.high_watermark() - partition.log_start,
        "next_due": partition.next_due(),
        "high_watermark": partition.high_watermark(),
        "log_start": partition.log_start,
        "log_start_offset": partition.log_start_offset,
        "log_end_offset": partition.log_end_offset,
        "segments": len(segments),
        "bytes": sum(segment.size for segment in segments),
        "buckets": partition.bucket_total,
        "index_bytes": partition.index_bytes,
        **_by_location(segments),
        **{f"held_{holder}_bytes": size for holder, size in held.items()},
    }


def _by_location(segments: Sequence[Segment]) -> dict[str, int]:
    """Segments, and bytes of their logs, by where they are."""
    sizes: dict[str, list[int]] = {where: [] for where in _WHERE}
    for segment in segments:
        remote = segment.mark.remote if isinstance(segment, SealedSegment) else None
        sizes["only_local" if remote is None else "both" if remote.local else "only_remote"].append(segment.size)
    return {f"{where}_segments": len(found) for where, found in sizes.items()} | {
        f"{where}_bytes": sum(found) for where, found in sizes.items()
    }


def subscription_stats(topic: Topic) -> list[dict[str, Any]]:
    """One row for each partition of each subscription, which nobody has open; see `PartitionStats`."""
    return [
        {"topic": topic.name, "partition": partition.number, "subscription": name, **asdict(at_rest(partition, name))}
        for partition in topic.partitions
        for name in names(partition.log.context)
    ]


def due_histogram(topic: Topic, now_ms: int, bars_max: int) -> list[tuple[int, int, int]]:
    """What is pending in all partitions by when it is due: (from ms, to ms, records). Empty where nothing is."""
    next_dues = [due for partition in topic.partitions if (due := partition.next_due()) is not None]
    if not next_dues:
        return []
    first_ms, last_ms = min(next_dues), max(map(_last_due, topic.partitions))
    edges = np.array(histogram_edges(first_ms, last_ms, bars_max), np.int64)
    counted = np.concatenate(([max(now_ms + 1, int(edges[0]))], edges[1:]))
    counts = sum(partition.due_histogram(counted) for partition in topic.partitions)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), np.asarray(counts).tolist(), strict=True))


def _summed(rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """A subscription a row, over its partitions."""
    sums: dict[str, list[Any]] = {}
    for row in rows:
        label = f"{row['topic']}/{row['subscription']}"
        cells = sums.setdefault(label, [label, *[0] * len(_COUNTS)])
        cells[1:] = [before + row[name] for before, name in zip(cells[1:], _COUNTS, strict=True)]
    return [sums[label] for label in sorted(sums)]


def _cells(row: dict[str, Any], now_ms: int) -> list[Any]:
    due_ms = row["next_due"]
    return [
        f"{row['topic']}-{row['partition']}",
        row["pending"],
        row["due"],
        None if due_ms is None else f"{relative(due_ms, now_ms)}, {iso(due_ms)}",
        f"{row['log_start_offset']} to {row['log_end_offset']}",
        row["segments"],
        amount(row["bytes"]),
        row["buckets"],
    ]


def _held_cells(row: dict[str, Any]) -> list[Any]:
    return [f"{row['topic']}-{row['partition']}", *(amount(row[f"held_{holder}_bytes"]) for holder in _HOLDERS)]


def _tiered_cells(row: dict[str, Any]) -> list[Any]:
    cells = [f"{row[f'{where}_segments']:,}, {amount(row[f'{where}_bytes'])}" for where in _WHERE]
    return [f"{row['topic']}-{row['partition']}", *cells]


def _last_due(partition: Partition) -> int:
    """When the last record is due, ms: a binary search over the counts."""
    total = int(partition.due_histogram(np.array([0, INT64_MAX]))[0])
    return bisect_left(range(INT64_MAX), total, key=lambda ms: int(partition.due_histogram(np.array([0, ms + 1]))[0]))
