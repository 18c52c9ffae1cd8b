"""What `afterlog stats` tells, asked of indexes and journals alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from afterlog.cli.output import amount, bars, iso, json_line, relative, table
from afterlog.produce.topic import Topic
from afterlog.statistics import REMOTE, WHERE, due_histogram, partition_stats, subscription_stats
from afterlog.store import Store

_COUNTS = ("pending", "due", "leased", "retrying", "acked", "dead")
_HOLDERS = ("pending", "retention", "backlog", "tier", "removable")
"""Of sealed segments; nobody else reads a store that is open here."""


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
    tiered = [row for row in rows if any(row[f"{where}_segments"] for where in REMOTE)]
    if tiered:
        click.echo()
        table(("SEGMENTS OF", "ONLY HERE", "BOTH", "ONLY IN OBJECT STORAGE"), map(_tiered_cells, tiered))
    rows = [row for topic in topics for row in subscription_stats(store, topic)]
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
        for row in subscription_stats(store, topic):
            click.echo(json_line(row))
        for start, end, records in due_histogram(topic, now_ms, bars_max):
            click.echo(json_line({"topic": topic.name, "from": start, "to": end, "records": records}))


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
    cells = [f"{row[f'{where}_segments']:,}, {amount(row[f'{where}_bytes'])}" for where in WHERE]
    return [f"{row['topic']}-{row['partition']}", *cells]
