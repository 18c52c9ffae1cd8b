"""`afterlog relay`: a worker that delivers delayed records of a Kafka cluster, and how a group of them stands."""

from __future__ import annotations

import logging
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afterlog.cli.base import FINDINGS, JSON, NOT_NOW, Cli, Failure
from afterlog.cli.input import Duration, HostPort

if TYPE_CHECKING:
    from afterlog.relay.relay import Relay
    from afterlog.relay.relay_settings import RelaySettings

_LEVELS = ("debug", "info", "warning", "error")
_BOOTSTRAP = click.option("--bootstrap", metavar="HOST:PORT[,…]", help="Of the cluster.")
_INPUT = click.option("--inputs", multiple=True, metavar="TOPIC", help="Read from; can be given more than once.")
_GROUP = click.option("--group", help="The consumer group; the relay's own topics begin with it.")
_CONFIG = click.option(
    "--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A file of settings, TOML."
)
_KAFKA = click.option("--kafka", "kafka", multiple=True, metavar="NAME=VALUE", help="A setting of librdkafka.")


@click.group(cls=Cli, invoke_without_command=True)
@_BOOTSTRAP
@_INPUT
@_GROUP
@_CONFIG
@_KAFKA
@click.option("--name", "worker", help="Of this worker, its own and kept over restarts.  [the machine's]")
@click.option("--names", help="The headers' names: afterlog, etf1, karafka or timebridge.")
@click.option("--default-target", metavar="TOPIC", help="Of records that do not say.")
@click.option("--allow", "allowed_targets", multiple=True, metavar="PATTERN", help="Topics to deliver to.  [all]")
@click.option("--max-delay", "max_delay_ms", type=Duration(), help="How far ahead a record may be due.")
@click.option("--on-invalid", type=click.Choice(["dead_letter", "drop", "stop"]), help="What cannot be delivered.")
@click.option("--carry-after", "carry_after_ms", type=Duration(), help="What has waited so long is appended anew.")
@click.option("--trim-inputs", is_flag=True, default=None, help="Delete from the inputs what was delivered.")
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), help="Kept over restarts; else temporary.")
@click.option("--metrics", type=HostPort(), metavar="HOST:PORT", help="Serve /metrics there.")
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
@click.pass_context
def relay(
    ctx: click.Context, /, config: Path | None, kafka: tuple[str, ...], metrics: tuple[str, int] | None, log_level: str,
    **given: Any,
) -> None:  # fmt: skip
    """Deliver the records of Kafka topics to the topics that they name, once they are due, until SIGTERM.

    Each exactly once: in one transaction with what says so. Start as many workers as you like; each needs a name. The
    records say when by the header deliver-after (RFC 3339, or ms or s since the epoch) or delay (30s, 5m, 2h, 1d), and
    where to by deliver-to. SIGTERM: what was begun is committed. Needs the extra `kafka`.
    """
    settings = _settings(config, kafka, given) if ctx.invoked_subcommand is None else None
    if settings is None:
        ctx.obj = (config, kafka, given)
        return
    from afterlog.base.clock import SystemClock
    from afterlog.relay.relay import Relay
    from afterlog.subscription.draining import Draining

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("afterlog.store").setLevel(logging.WARNING)
    worker = Relay(settings, clock=SystemClock())
    if metrics is not None:
        from afterlog.relay.relay_metrics import serve

        serve(worker, metrics[1], metrics[0])
    click.echo(f"relaying {', '.join(settings.inputs)} as {worker.settings.worker} of {settings.group}", err=True)
    with Draining(_Stopping(worker), signal.SIGTERM, None), Draining(_Stopping(worker), signal.SIGINT, None):
        worker.run()


@relay.command("status")
@_BOOTSTRAP
@_INPUT
@_GROUP
@_CONFIG
@_KAFKA
@JSON
@click.pass_context
def relay_status(
    ctx: click.Context, /, config: Path | None, kafka: tuple[str, ...], as_json: bool, **given: Any
) -> int:
    """What is committed of each partition: how far it was read, up to when all was delivered, since when records wait.

    Exits with 1 where a partition cannot go on. How many wait, and how late they were, the workers tell (--metrics).
    """
    from confluent_kafka import KafkaException

    from afterlog.base.clock import SystemClock
    from afterlog.cli.output import iso, json_line, table
    from afterlog.relay.relay_group import group_status

    above, above_kafka, above_given = ctx.obj
    merged = {name: value or above_given.get(name) for name, value in given.items()}
    settings = _settings(config or above, (*above_kafka, *kafka), {**above_given, **merged})
    try:
        rows, shown = group_status(settings, SystemClock()), list[tuple[str, ...]]()
    except KafkaException as error:
        raise Failure(f"the cluster does not answer: {error.args[0].str()}", NOT_NOW) from error
    for row in rows:
        if as_json:
            click.echo(json_line(asdict(row)))
        until = "-" if row.frontier_ms is None else iso(row.frontier_ms)
        waits = "-" if row.lowest_ms is None else iso(row.lowest_ms)
        numbers = (f"{each:,}" for each in (row.next_offset, row.intake_lag, row.span))
        shown.append((f"{row.topic}-{row.partition}", *numbers, until, waits, row.error))
    if not as_json:
        table(("PARTITION", "NEXT", "LAG", "SPAN", "DELIVERED UP TO", "WAITS SINCE", ""), shown)
    return FINDINGS if any(row.error for row in rows) else 0


class _Stopping:
    """A relay, as what a signal can stop."""

    def __init__(self, worker: Relay) -> None:
        self._worker = worker

    def halt(self) -> None:
        self._worker.stop()

    def stop_taking(self) -> None:
        self._worker.stop()

    def drain(self, timeout: float | None) -> bool:
        return True


def _settings(config: Path | None, kafka: tuple[str, ...], given: dict[str, Any]) -> RelaySettings:
    from afterlog.relay.relay_settings import read_settings

    more = dict[str, str]()
    for each in kafka:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--kafka is NAME=VALUE, as security.protocol=SSL, not {each!r}")
        more[name] = value
    return read_settings(config, kafka=more or None, **given)
