"""The report of `afterlog stats`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from afterlog.api.statistics import REMOTE, WHERE
from afterlog.cli.output import amount, bars, iso, json_line, relative, table
from afterlog.cli.status import TopicStatus

_COUNTS = ("pending", "due", "leased", "retrying", "acked", "dead")
_HOLDERS = ("pending", "worn", "retention", "backlog", "tier", "removable")
"""Of sealed segments."""


def show(topics: Sequence[TopicStatus]) -> None:
    """A table of the partitions, one of the subscriptions, and for each topic what is due when."""
    rows = [(row, topic.now_ms) for topic in topics for row in topic.partitions]
    headings = ("PARTITION", "PENDING", "DUE", "NEXT DUE", "OFFSETS", "SEGMENTS", "SIZE", "BUCKETS")
    table(headings, [_cells(row, now_ms) for row, now_ms in rows])
    held = [row for row, _ in rows if any(row[f"held_{holder}_bytes"] for holder in _HOLDERS)]
    if held:
        click.echo()
        table(("SEALED BYTES OF", *(f"{holder.upper()}" for holder in _HOLDERS)), map(_held_cells, held))
    tiered = [row for row, _ in rows if any(row[f"{where}_segments"] for where in REMOTE)]
    if tiered:
        click.echo()
        table(("SEGMENTS OF", "ONLY HERE", "BOTH", "ONLY IN OBJECT STORAGE"), map(_tiered_cells, tiered))
    read = [row for topic in topics for row in topic.subscriptions]
    if read:
        click.echo()
        shown = _summed(read)
        notes = ["PAUSED"] if any(cells[-1] for cells in shown) else []
        table(
            ("SUBSCRIPTION", *(name.upper() for name in _COUNTS), *notes),
            [cells[: len(cells) - (not notes)] for cells in shown],
        )
    for topic in topics:
        if topic.bars:
            click.echo(f"\n{topic.topic}: pending records by when they are due, from")
            bars([(iso(start), records) for start, _, records in topic.bars])


def show_json(topics: Sequence[TopicStatus]) -> None:
    """The same, a JSON object for each partition, each partition of a subscription, and each bucket."""
    for topic in topics:
        for row in (*topic.partitions, *topic.subscriptions):
            click.echo(json_line(row))
        for start, end, records in topic.bars:
            click.echo(json_line({"topic": topic.topic, "from": start, "to": end, "records": records}))


def show_replication(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """How far it is behind other clusters; nothing where nobody replicates it."""
    if as_json:
        for row in rows:
            click.echo(json_line(row))
    elif rows:
        click.echo()
        cells = [
            (f"{row['topic']}-{row['partition']}", row["origin"], row["records"], f"{row['seconds']:.1f}",
             f"{row['heard_seconds']:.1f} s ago")
            for row in rows
        ]  # fmt: skip
        table(("REPLICATED", "FROM", "RECORDS BEHIND", "SECONDS", "HEARD"), cells)


def _summed(rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """A subscription a row, over its partitions."""
    sums: dict[str, list[Any]] = {}
    for row in rows:
        label = f"{row['topic']}/{row['subscription']}"
        cells = sums.setdefault(label, [label, *[0] * len(_COUNTS), None])
        cells[1:-1] = [before + row[name] for before, name in zip(cells[1:-1], _COUNTS, strict=True)]
        cells[-1] = "paused" if row["paused"] else cells[-1]
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
