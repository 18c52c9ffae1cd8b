"""`afterlog metrics`: what a scrape would find, of a store that no process has open."""

from __future__ import annotations

import click

from afterlog.cli.base import Failure, FolderOrAddress, StoreCommand, opened, store_arguments


@click.command(cls=StoreCommand)
@store_arguments
def metrics(data: FolderOrAddress) -> None:
    """Print metrics in Prometheus' text format.

    For stores that no process has open, through the textfile collector of the node exporter: counters are those of this
    look, near zero. A program registers its store instead (docs/metrics.md). Needs the extra `metrics`.
    """
    from afterlog.cli.how_it_stands import exposition

    with opened(data) as store:
        try:
            click.echo(exposition(store), nl=False)
        except ImportError as error:
            raise Failure(str(error), click.UsageError.exit_code) from error
