"""`afterlog spark …`: jobs on this machine's cores. On a cluster, call the same functions from a program of yours."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afterlog.cli.base import FINDINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_FINDINGS = ("corrupt", "refused")
"""Actions after which somebody has to look."""
_LEFT = ("active",)
"""Actions that need a word: nothing is wrong, and not all is done."""
_ROLL = click.option("--roll", is_flag=True, help="Seal the active segments before; nobody may have the store open.")


class _Location(click.Path):
    """A folder that is there, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else super().convert(value, param, ctx)


@click.group()
def spark() -> None:
    """Bulk work on Spark. Needs the extra `spark`, and Java 17 or later (docs/spark.md)."""


@spark.command()
@click.argument("location", type=_Location(exists=True, file_okay=False, path_type=Path))
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given more than once.")
@click.option("--verify-only", is_flag=True, help="Read every log and check its indexes; write nothing.")
@click.option("--cores", default="2", show_default=True, help="How many to use; * for all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for every segment.")
def index(location: Path | str, topics: tuple[str, ...], verify_only: bool, cores: str, as_json: bool) -> int:
    """Build the indexes of sealed segments that are missing or not valid.

    LOCATION is a store, a directory of Kafka partitions (<topic>-<partition>/<offset>.log), one folder of
    segments, or the URL of object storage (s3://…) that has partitions of either kind. A store may be open meanwhile.
    Run it again after a failure: what is done is skipped.
    """
    from afterlog.spark.index_job import build_indexes

    with _session(cores) as session:
        rows = _rows(build_indexes(session, location, topics or None, verify_only))
    return _told(rows, "SEGMENTS", as_json)


@spark.command()
@click.argument("location", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("remote")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given more than once.")
@_ROLL
@click.option("--cores", default="2", show_default=True, help="How many to use; * for all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for every segment.")
def upload(location: Path, remote: str, topics: tuple[str, ...], roll: bool, cores: str, as_json: bool) -> int:
    """Upload sealed segments that object storage does not list yet.

    LOCATION is a store, which may be open meanwhile but for --roll, or segments of Kafka brokers that were indexed.
    REMOTE is a URL (s3://bucket/prefix) or a directory; credentials come from the environment. Run it again after a
    failure: what is listed is skipped.
    """
    from afterlog.spark.upload_job import upload_segments

    with _session(cores) as session:
        rows = _rows(upload_segments(session, location, remote, topics or None, roll=roll))
    return _told(rows, "SEGMENTS", as_json)


@spark.command()
@click.argument("location", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given more than once.")
@_ROLL
@click.option("--cores", default="2", show_default=True, help="How many to use; * for all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for every bucket.")
def buckets(location: Path, topics: tuple[str, ...], roll: bool, cores: str, as_json: bool) -> int:
    """Merge the runs of sealed segments into one bucket a partition.

    LOCATION is a store, which must not be open meanwhile. Run it again after a failure: what is done is skipped.
    """
    from afterlog.spark.bucket_job import merge_buckets

    with _session(cores) as session:
        rows = _rows(merge_buckets(session, location, topics or None, roll=roll))
    return _told(rows, "BUCKETS", as_json)


@contextlib.contextmanager
def _session(cores: str) -> Iterator[SparkSession]:
    """A session on so many cores, with a progress bar where somebody looks on."""
    from afterlog.spark.session import spark_session

    settings = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    session = spark_session(f"local[{cores}]", settings=settings)
    try:
        yield session
    finally:
        session.stop()


def _rows(done: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in done.collect()]


def _told(rows: list[dict[str, Any]], what: str, as_json: bool) -> int:
    """Print what came of a job; the exit code."""
    from afterlog.cli.output import json_line

    if as_json:
        for row in rows:
            click.echo(json_line(row))
    else:
        _show(rows, what)
    return FINDINGS if any(row["action"] in _FINDINGS for row in rows) else 0


def _show(rows: list[dict[str, Any]], what: str) -> None:
    """What is corrupt, refused, left or not there in full, of all a line for each topic and what came of it."""
    from afterlog.cli.output import table

    for row in rows:
        if row["action"] in (*_FINDINGS, *_LEFT) or row["bytes"] is None:
            offset = row["base_offset"] if "base_offset" in row else row["first_offset"]
            path = row["path"] or f"{row['topic']}-{row['partition']}, offset {offset}"
            place = "" if row["position"] is None else f" at byte {row['position']}"
            click.echo(f"{path}{place}: {row['reason']}")
    bytes_of: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        bytes_of.setdefault((row["topic"], row["action"]), []).append(row["bytes"] or 0)
    table(
        ("TOPIC", "ACTION", what, "BYTES"),
        [[*key, len(sizes), sum(sizes)] for key, sizes in sorted(bytes_of.items())],
    )
