"""`afterlog export`: a topic as a plain Kafka log, which a broker takes over."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from afterlog.cli.base import JSON, StoreCommand, opened_here, store_arguments


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.argument("to", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--order",
    type=click.Choice(["append", "delivery"]),
    default="append",
    show_default=True,
    help="At which offsets: those of the log, or delivery offsets.",
)
@click.option("--due-only", is_flag=True, help="In delivery order: leave out what is pending.")
@click.option("--times", is_flag=True, help="Have each record say when it is due, in its header deliver-after.")
@JSON
def export(data: Path, topic: str, to: Path, order: str, due_only: bool, times: bool, as_json: bool) -> None:
    """Write TOPIC as a plain Kafka log into the folder TO, a folder for each partition.

    For a Kafka broker to take over (docs/kafka.md): never put the folders of a store under one, it cuts them. Cancelled
    records are left out, and leave gaps. A plain broker delivers everything at once: the time of a record is in its
    header deliver-after where it has one of its own, and else lost without --times, which makes batches anew.
    """
    from afterlog.base.files import OsFiles, ReadOnlyFiles
    from afterlog.base.names import partition_folder
    from afterlog.cli.output import json_line
    from afterlog.fetch.export import export as export_partition
    from afterlog.fetch.partition import Partition
    from afterlog.log.snapshot import ALL_MS, open_snapshot

    if due_only and order == "append":
        raise click.UsageError("--due-only is for --order delivery")
    files, folder = OsFiles(), to.absolute()
    with opened_here(data, background=False) as store:
        chosen = store.topic(topic)
        if not files.exists(folder):
            files.make_folder(folder)
            files.sync_folder(folder.parent)
        for partition in chosen.partitions:
            at_ms = partition.look().clock_ms if due_only else ALL_MS
            partition.log.checkpoint()
            log = open_snapshot(replace(partition.log.context, files=ReadOnlyFiles()), at_ms=at_ms)
            target = folder / partition_folder(topic, partition.number)
            done = export_partition(
                files,
                Partition(topic, partition.number, log),
                target,
                delivery_order=order == "delivery",
                times=times,
            )
            row = asdict(done)
            named = f"{done.topic}-{done.partition}: {done.records} records in {done.segments} segments, {target}"
            click.echo(json_line(row) if as_json else named)
