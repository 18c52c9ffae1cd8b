"""`afterlog replicate`: keeps clusters in step, from beside one of them or from anywhere between."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any

import click

from afterlog.base.environment import variable
from afterlog.base.locks import Condition
from afterlog.cli.base import FINDINGS, JSON, DataType, FolderOrAddress, is_address, opened
from afterlog.cli.input import Duration

if TYPE_CHECKING:
    from afterlog.base.clock import Clock
    from afterlog.replication.cluster import Cluster
    from afterlog.replication.replicator import Replicator

_LEVELS = ("debug", "info", "warning", "error")
TIMEOUT_S = 10.0
"""For which a request is tried again; the replicator itself goes on for ever."""
_LOOKS_S = 0.5


class ClusterType(click.ParamType):  # type: ignore[type-arg]
    """[NAME=]DATA, as (name, DATA)."""

    name = "cluster"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, FolderOrAddress]:
        name, is_named, data = str(value).partition("=")
        if not is_named or is_address(str(value)) or "/" in name:
            name, data = "", str(value)
        return name, DataType().convert(data, param, ctx)


@click.command()
@click.argument("clusters", type=ClusterType(), nargs=-1, required=True, metavar="[NAME=]DATA [NAME=]DATA …")
@click.option("--topic", "topics", multiple=True, help="Which; can be given more than once.  [all]")
@click.option("--once", is_flag=True, help="Until all of them have what there is now, acks too.")
@click.option("--interval", type=Duration(), default="100ms", show_default=True, help="How often to look for more.")
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
@JSON
def replicate(
    clusters: tuple[tuple[str, FolderOrAddress], ...],
    topics: tuple[str, ...],
    once: bool,
    interval: int,
    log_level: str,
    as_json: bool,
) -> int:
    """Keep two stores or more alike, until SIGTERM: what is sent to one is sent to all.

    DATA is a folder, opened here or asked for over its socket where another process serves it, or the address of a
    server, whose token is in AFTERLOG_TOKEN_NAME (in capitals), else in AFTERLOG_TOKEN, and has the scope replicate.
    A replicator can be stopped, killed, and run twice: nothing is sent twice. Exits with 1 where a topic could not go
    on, and prints with --once how far each direction came.
    """
    import contextlib

    from afterlog.base.clock import SystemClock
    from afterlog.replication.replicator import Replicator
    from afterlog.subscription.draining import Draining

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if len(clusters) < 2:
        raise click.UsageError("give two clusters or more, such as eu=/var/lib/mail us=https://us.example:7654")
    clock = SystemClock()
    with contextlib.ExitStack() as stack:
        opened_clusters = [_opened(name, data, stack) for name, data in clusters]
        replicator = Replicator(opened_clusters, topics=topics or None, interval_ms=interval, clock=clock)
        if once:
            stack.callback(replicator.stop)
            replicator.settle()
        else:
            click.echo(f"replicating: {', '.join(cluster.name for cluster in opened_clusters)}", err=True)
            until = _Until(clock)
            heeded = [stack.enter_context(Draining(until, each, None)) for each in (signal.SIGTERM, signal.SIGINT)]
            assert heeded
            with replicator:
                until.wait()
        return _told(replicator, as_json, silent=not once)


class _Until:
    """Waits for a signal: a `Drainable` that takes nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = Condition()
        self._is_over = False

    def wait(self) -> None:
        with self._condition:
            while not self._is_over:
                self._clock.wait(self._condition, None, _LOOKS_S)

    def halt(self) -> None:
        self._is_over = True

    def stop_taking(self) -> None:
        with self._condition:
            self._is_over = True
            self._condition.notify_all()

    def drain(self, timeout: float | None) -> bool:
        return True


def _opened(name: str, data: FolderOrAddress, stack: Any) -> Cluster:
    from afterlog.client.served_store import ServedStore, connect
    from afterlog.replication.served_cluster import ServedCluster
    from afterlog.replication.store_cluster import StoreCluster

    if isinstance(data, str):
        token = variable(f"AFTERLOG_TOKEN_{name.upper()}") or variable("AFTERLOG_TOKEN")
        served = connect(data, token=token or None, timeout=TIMEOUT_S, ca=None, clock=None)
        return ServedCluster(stack.enter_context(served), name or data)
    store = stack.enter_context(opened(data))
    return ServedCluster(store, name or str(data)) if isinstance(store, ServedStore) else StoreCluster(store, name)


def _told(replicator: Replicator, as_json: bool, silent: bool) -> int:
    """The exit code."""
    from afterlog.cli.output import json_line, table

    rows = list[tuple[str, str, str, str, str]]()
    for link in replicator.links:
        for lag in link.lag():
            row = {"source": link.source.name, "target": link.target.name, **lag._asdict()}
            if as_json and not silent:
                click.echo(json_line(row))
            name = f"{lag.topic}-{lag.partition}"
            rows.append((link.source.name, link.target.name, name, f"{lag.records:,}", f"{lag.seconds:.1f}"))
    if not as_json and not silent:
        table(("FROM", "TO", "PARTITION", "RECORDS BEHIND", "SECONDS"), rows)
    failed = {name: error for link in replicator.links for name, error in link.failed.items()}
    for name, error in failed.items():
        click.echo(f"afterlog: {name} does not go on: {error}", err=True)
    return FINDINGS if failed else 0
