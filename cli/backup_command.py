"""`afterlog backup`: a copy of a store that opens, made here, or by the server of who has the store open."""

from __future__ import annotations

from pathlib import Path

import click

from afterlog.cli.base import JSON, FolderOrAddress, StoreCommand, opened, store_arguments


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("dest", type=click.Path(path_type=Path))
@JSON
def backup(data: FolderOrAddress, dest: Path, as_json: bool) -> None:
    """Make a backup in the folder DEST, beside those that are there; print where the store in it is.

    Sealed files are linked where DEST is in the same file system; else only what is new since the last one is copied.
    To restore, copy what was printed, and open the copy. Where another process has the store open and serves it, that
    one makes the backup. Of a server at http(s)://… DEST is the name of a folder in that of its --backups. A process
    that serves nobody makes backups by store.backup(DEST): then this exits with 4.
    """
    from afterlog.base.errors import StoreLocked
    from afterlog.cli.output import amount, json_line

    try:
        store = opened(data, background=False)
    except StoreLocked as error:
        message = f"{error.message}, or call store.backup({str(dest)!r}) in that process"
        raise StoreLocked(message, path=error.path) from error
    with store:
        made = store.backup(dest if is_far(data) else dest.absolute())
    if as_json:
        row = {"path": str(made.path), "number": made.number, "at_ms": made.at_ms, "files": made.files}
        click.echo(json_line(row | {"copied_bytes": made.copied_bytes}))
        return
    click.echo(made.path)
    click.echo(f"{made.files:,} files, {amount(made.copied_bytes)} copied, the rest linked", err=True)


def is_far(data: FolderOrAddress) -> bool:
    """Whether its files may be on another machine."""
    return isinstance(data, str) and not data.startswith("unix:")
