"""The command line: `afterlog create | send | receive | topics | stats | dump | verify | repair`.

Importing it costs click and no more; numpy and the engine come with the command that needs them. Every command says
what went wrong in one line on stderr, and how it went by its exit code (`EXIT_CODES`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.utils import PacifyFlushWrapper

from afterlog._version import __version__
from afterlog.cli_input import Duration, InputRecord, Instant, chunks_of_lines, json_records
from afterlog.errors import (
    AfterlogError,
    ClockBehind,
    CorruptFile,
    GroupBusy,
    OffsetOutOfRange,
    StorageError,
    StoreLocked,
    UnknownPartition,
    UnknownTopic,
)

if TYPE_CHECKING:
    from afterlog.fetch.message import Message
    from afterlog.fetch.positions import Position
    from afterlog.fetch.topic import Topic
    from afterlog.store import Store

EXIT_CODES = """\b
Exit codes:
  0    done; nothing found
  1    verify found something; repair would do something
  2    wrong usage, or input that cannot be taken
  3    no such folder, file, topic or position
  4    not now: open elsewhere, group busy, clock behind
  5    corrupt; see `afterlog verify` and `afterlog repair`
  6    the disk is full, or failed
  130  interrupted
"""
FINDINGS, NOT_FOUND, NOT_NOW, CORRUPT, DISK, INTERRUPTED = 1, 3, 4, 5, 6, 130
POLL_RECORDS = 500


class Failure(click.ClickException):
    """An error that people should see as one line, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    @staticmethod
    def of(error: AfterlogError | OSError) -> Failure:
        match error:
            case UnknownTopic() | UnknownPartition() | OffsetOutOfRange() | FileNotFoundError() | NotADirectoryError():
                code = NOT_FOUND
            case StoreLocked() | GroupBusy() | ClockBehind():
                code = NOT_NOW
            case CorruptFile():
                code = CORRUPT
            case StorageError() | OSError():
                code = DISK
            case _:
                code = 2
        return Failure(str(error), code)


class Cli(click.Group):
    """Errors become one line and an exit code; a command may return its exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            code = super().main(*args, **(extra | {"prog_name": "afterlog", "standalone_mode": False}))
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.ClickException as error:
            click.echo(f"afterlog: {' '.join(error.format_message().split())}", err=True)
            code = error.exit_code
        except click.Abort:
            code = INTERRUPTED
        sys.exit(code or 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except BrokenPipeError:  # whoever read the output has had enough
            sys.stdout = PacifyFlushWrapper(sys.stdout)  # type: ignore[assignment]
            return 0
        except (AfterlogError, OSError) as error:
            raise Failure.of(error) from error


class StoreCommand(click.Command):
    """A command whose first argument is DATA. Where AFTERLOG_DATA is set DATA is left out, or has a / in it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        folder = self.params[0].resolve_envvar_value(ctx)
        if folder:
            first = self.make_parser(ctx).parse_args(list(args))[0].get("data")
            if not isinstance(first, str) or ("/" not in first and first not in (".", "..")):
                args = [folder, *args]
        return super().parse_args(ctx, args)


DATA = click.argument("data", envvar="AFTERLOG_DATA", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@click.group(cls=Cli, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """A delayed-message log in a plain folder: records are delivered when they are due, in due order.

    DATA is the folder of a store. Set AFTERLOG_DATA and leave it out (a path with a / in it still counts as DATA).
    One process has a store open at a time; `dump` needs no lock.

    Durations: 250ms 30s 5m 2h 1d 1h30m. Instants: epoch ms, or ISO 8601 with a zone, 2030-01-31T08:00:00Z.
    """


@cli.command(cls=StoreCommand)
@DATA
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True)
@click.option("--fifo", is_flag=True, help="An ordinary log: no delays.")
@click.option("--max-delay", type=Duration(), help="How far ahead a record may be due.")
@click.option("--retention", type=Duration(), help="How long records stay once they are due.")
@click.option("--retention-bytes", type=click.IntRange(0), help="How large a partition may grow.")
def create(
    data: Path,
    topic: str,
    partitions: int,
    fifo: bool,
    max_delay: int | None,
    retention: int | None,
    retention_bytes: int | None,
) -> None:
    """Make a topic; the store too, where it is not there."""
    with _open(data, create=True) as store:
        store.create_topic(
            topic,
            partitions,
            not fifo,
            max_delay_ms=max_delay,
            retention_ms=retention,
            retention_bytes=retention_bytes,
        )


@cli.command(cls=StoreCommand)
@DATA
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--delay", type=Duration(), help="How long from now.")
@click.option("--at", type=Instant(), help="When.")
@click.option("--key", help="The records' key.")
@click.option("--create", "make", is_flag=True, help="Make store and topic where they are not there.")
@click.option("--json-input", is_flag=True, help="Lines are JSON objects: value, key, headers, delay, deliver_after.")
@JSON
def send(
    data: Path,
    topic: str,
    value: str | None,
    delay: int | None,
    at: int | datetime | None,
    key: str | None,
    make: bool,
    json_input: bool,
    as_json: bool,
) -> None:
    """Append VALUE, or, without it, every line of the standard input.

    A JSON value, key or header is a string, null, or {"base64": "..."} for bytes. What stands in a line goes before
    --delay, --at and --key.
    """
    if delay is not None and at is not None:
        raise click.UsageError("give --delay or --at, not both")
    if json_input and value is not None:
        raise click.UsageError("--json-input reads lines: leave VALUE out")
    from afterlog.cli_output import json_line, progress

    with _open(data, create=make) as store:
        if make and topic not in {there.name for there in store.topics()}:
            store.create_topic(topic)
        store.topic(topic)
        due = at if delay is None else store.clock.now_ms() + delay
        default = InputRecord(value=None, key=None if key is None else _encoded(key), deliver_after=due)
        if value is not None:
            sent = store.send(topic, _encoded(value), key=default.key, deliver_after=default.deliver_after)
            row = {"topic": sent.topic, "partition": sent.partition, "offset": sent.offset}
            click.echo(json_line(row) if as_json else f"{sent.topic}-{sent.partition} offset {sent.offset}")
            return
        count = line = 0
        with progress("sending", None) as advance:
            for lines in chunks_of_lines(click.get_binary_stream("stdin"), 2 * store.config.batch_bytes_max):
                for records in _alike(lines, line + 1, default, json_input, store.clock.now_ms()):
                    _send_alike(store, topic, records)
                    count += len(records)
                    advance(len(records))
                line += len(lines)
        click.echo(json_line({"topic": topic, "records": count}) if as_json else f"{count:,} records sent to {topic}")


def _alike(
    lines: list[bytes], first_line: int, default: InputRecord, json_input: bool, now_ms: int
) -> Iterator[list[InputRecord] | list[bytes]]:
    raise NotImplementedError


def main() -> None:
    """The entry point."""
    cli()
