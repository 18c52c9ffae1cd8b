"""`afterlog metrics`: what a scrape would find, of a store that no process has open."""

from __future__ import annotations

from typing import Literal

import click

from afterlog.cli.base import Failure, FolderOrAddress, StoreCommand, opened, store_arguments


@click.command(cls=StoreCommand)
@store_arguments
@click.option(
    "--detail",
    type=click.Choice(["topic", "partition"]),
    default="topic",
    show_default=True,
    help="How much is told of each topic.",
)
def metrics(data: FolderOrAddress, detail: Literal["topic", "partition"]) -> None:
    """Print metrics in Prometheus' text format.

    For stores that no process has open, through the textfile collector of the node exporter: counters are those of this
    look, near zero. A program registers its store instead (docs/metrics.md). Needs the extra `metrics`.
    """
    from afterlog.cli.how_it_stands import exposition

    with opened(data) as store:
        try:
            click.echo(exposition(store, detail), nl=False)
        except ImportError as error:
            raise Failure(str(error), click.UsageError.exit_code) from error
