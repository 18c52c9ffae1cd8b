"""`afterlog spark …`: jobs on this machine's cores. On a cluster, call the same functions from a program of yours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from afterlog.cli_base import FINDINGS


@click.group()
def spark() -> None:
    """Bulk work on Spark. Needs the extra `spark`, and Java 17 or later (docs/spark.md)."""


@spark.command()
@click.argument("location", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given more than once.")
@click.option("--verify-only", is_flag=True, help="Read every log and check its indexes; write nothing.")
@click.option("--cores", default="2", show_default=True, help="How many to use; * for all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for every segment.")
def index(location: Path, topics: tuple[str, ...], verify_only: bool, cores: str, as_json: bool) -> int:
    """Build the indexes of sealed segments that are missing or not valid.

    LOCATION is a store, a directory of plain Kafka partitions (<topic>-<partition>/<offset>.log), or one folder of
    segments. A store may be open meanwhile. Run it again after a failure: what is done is skipped.
    """
    from afterlog.cli_output import json_line
    from afterlog.spark.index_job import build_indexes
    from afterlog.spark.session import spark_session

    settings = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    session = spark_session(f"local[{cores}]", settings=settings)
    try:
        done = build_indexes(session, location, topics or None, verify_only)
        rows = [row.asDict() for row in done.collect()]
    finally:
        session.stop()
    if as_json:
        for row in rows:
            click.echo(json_line(row))
    else:
        _show(rows)
    return FINDINGS if any(row["action"] == "corrupt" for row in rows) else 0


def _show(rows: list[dict[str, Any]]) -> None:
    """What is corrupt in full, of the rest a line for each topic and what came of it."""
    from afterlog.cli_output import table

    for row in rows:
        if row["action"] == "corrupt":
            place = "" if row["position"] is None else f" at byte {row['position']}"
            click.echo(f"{row['path']}{place}: {row['reason']}")
    bytes_of: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        bytes_of.setdefault((row["topic"], row["action"]), []).append(row["bytes"])
    table(
        ("TOPIC", "ACTION", "SEGMENTS", "BYTES"),
        [[*key, len(sizes), sum(sizes)] for key, sizes in sorted(bytes_of.items())],
    )
