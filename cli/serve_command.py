"""`afterlog serve` and `afterlog tokens`: a store for other processes, and who may use it from elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from afterlog.base.environment import allow_descriptors
from afterlog.cli.base import JSON, Cli, StoreCommand, opened_here, store_arguments
from afterlog.cli.input import Duration, HostPort

_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
_SCOPES = ("look", "send", "receive", "manage", "replicate")
_LEVELS = ("debug", "info", "warning", "error")


@click.command(cls=StoreCommand)
@store_arguments
@click.option("--listen", type=HostPort(), help="Over TCP, too. Wants --tokens, or --no-auth on 127.0.0.1.")
@click.option("--tls-cert", "certificate", type=click.Path(path_type=Path, exists=True), help="Certificate, PEM.")
@click.option("--tls-key", "key", type=click.Path(path_type=Path, exists=True), help="Its key, PEM.")
@click.option("--tokens", type=click.Path(path_type=Path, dir_okay=False), help="Who may do what: afterlog tokens.")
@click.option("--no-auth", is_flag=True, help="Whoever is on this machine may do everything.")
@click.option("--name", "names", multiple=True, help="By which browsers and proxies call it, besides its address.")
@click.option("--backups", type=click.Path(path_type=Path, file_okay=False), help="Where backups may be made.")
@click.option("--max-body", type=click.IntRange(1), default=64, show_default=True, help="Of a request, MiB.")
@click.option(
    "--max-requests", type=click.IntRange(1), default=20_000, show_default=True, help="Of one client at once."
)
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
def serve(
    data: Path,
    listen: tuple[str, int] | None,
    certificate: Path | None,
    key: Path | None,
    tokens: Path | None,
    no_auth: bool,
    names: tuple[str, ...],
    backups: Path | None,
    max_body: int,
    max_requests: int,
    log_level: str,
) -> None:
    """Serve the store in DATA, made if it is not there, until SIGTERM.

    On the socket DATA/server.sock, for programs of this user, and nothing else unless --listen says so. SIGTERM: what
    is under way is finished; a second one is quicker. Needs the extra `server`.
    """
    from afterlog.server.limits import Limits
    from afterlog.server.running import Options, Serving, check_installed

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    check_installed()
    allow_descriptors()
    options = Options(
        listen=listen,
        certificate=certificate,
        key=key,
        tokens=tokens,
        no_auth=no_auth,
        names=names,
        backups=None if backups is None else backups.absolute(),
        limits=Limits(body_bytes=max_body << 20, requests=max_requests),
    )
    with opened_here(data, create=True, serves=True) as store:
        serving = Serving(store, options)
        addresses = " ".join(serving.addresses)
        serving.run(lambda: click.echo(f"serving {store.path} on {addresses}", err=True))


@click.group(cls=Cli)
def tokens() -> None:
    """Who may use a server over the network: a file of tokens, kept hashed.

    A server that runs sees a change within a second.
    """


_EXPIRES = click.option("--expires-in", "expires_in_ms", type=Duration(), help="Refused from then on. [never]")


@tokens.command("add")
@_FILE
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice(_SCOPES), help="What it may do.")
@click.option("--topic", "prefixes", multiple=True, metavar="PREFIX", help="Of topics whose names begin so. [all]")
@_EXPIRES
def add(file: Path, name: str, scopes: tuple[str, ...], prefixes: tuple[str, ...], expires_in_ms: int | None) -> None:
    """Make a token, and print it: it is shown this once."""
    from afterlog.api.operation import Scope
    from afterlog.base.files import OsFiles
    from afterlog.server.tokens import TokenFile

    made = TokenFile(OsFiles(), file.absolute())
    click.echo(made.add(name, map(Scope, scopes), prefixes, expires_ms=_expiry(expires_in_ms)))


@tokens.command("list")
@_FILE
@JSON
def list_tokens(file: Path, as_json: bool) -> None:
    """Which there are, and what each may do."""
    from afterlog.base.files import OsFiles
    from afterlog.cli.output import iso, json_line, table
    from afterlog.server.tokens import TokenFile

    rows = []
    for token in TokenFile(OsFiles(), file.absolute()).read():
        scopes = {scope.value: list(prefixes) for scope, prefixes in token.scopes.items()}
        if as_json:
            click.echo(json_line({"name": token.name, "scopes": scopes, "expires_ms": token.expires_ms}))
        rows.append((token.name, _scopes(scopes), None if token.expires_ms is None else iso(token.expires_ms)))
    if not as_json:
        table(("TOKEN", "SCOPES", "EXPIRES"), rows)


def _scopes(scopes: dict[str, list[str]]) -> str:
    return " ".join(f"{scope}:{','.join(prefix or '*' for prefix in each)}" for scope, each in scopes.items())


@tokens.command("remove")
@_FILE
@click.argument("name")
def remove(file: Path, name: str) -> None:
    """Take it away; who has it is refused from then on."""
    from afterlog.base.files import OsFiles
    from afterlog.server.tokens import TokenFile

    TokenFile(OsFiles(), file.absolute()).remove(name)


@tokens.command("rotate")
@_FILE
@click.argument("name")
@_EXPIRES
def rotate(file: Path, name: str, expires_in_ms: int | None) -> None:
    """Make another one in its place, for the same, and print it; who has the old one is refused from then on."""
    from afterlog.base.files import OsFiles
    from afterlog.server.tokens import TokenFile

    click.echo(TokenFile(OsFiles(), file.absolute()).rotate(name, expires_ms=_expiry(expires_in_ms)))


def _expiry(expires_in_ms: int | None) -> int | None:
    from afterlog.base.clock import SystemClock

    return None if expires_in_ms is None else SystemClock().now_ms() + expires_in_ms
