"""`afterlog schedules add | list | next | change | pause | resume | send | remove | run`: recurring schedules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from afterlog.cli.base import JSON, Failure, FolderOrAddress, StoreCommand, opened, store_arguments
from afterlog.cli.input import Duration, encoded

if TYPE_CHECKING:
    from afterlog.store.schedule_document import Schedule

CRON = click.option("--cron", metavar="EXPRESSION", help='Minute, hour, day, month, weekday: "0 8 * * 1".')
TIMEZONE = click.option("--timezone", metavar="NAME", help="Of --cron: Europe/Zurich. UTC by default.")
EVERY = click.option("--every", type=Duration(), help="In place of --cron: how long from one to the next.")
KEY = click.option("--key", help="The records' key.")
HEADERS = click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of each record.")
MISSED = click.option(
    "--missed",
    type=click.Choice(["skip", "one", "all"]),
    help="What becomes of what came while nobody had the store open: nothing, the first of it (default), or all.",
)


@click.group()
def schedules() -> None:
    """Records that come again and again, by cron or at intervals. Needs the extra `schedules` for cron.

    The process that has the store open appends them; where none has, they wait, and --missed says what becomes of them.
    """


@schedules.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.argument("name")
@click.argument("value", required=False)
@CRON
@TIMEZONE
@EVERY
@KEY
@HEADERS
@click.option("--partition", type=click.IntRange(0), help="Where to; by the key, if left out.")
@MISSED
@JSON
def add(
    data: FolderOrAddress,
    topic: str,
    name: str,
    value: str | None,
    cron: str | None,
    timezone: str | None,
    every: int | None,
    key: str | None,
    headers: Sequence[str],
    partition: int | None,
    missed: Any,
    as_json: bool,
) -> None:
    """Send VALUE to TOPIC again and again, from now on, as the schedule NAME."""
    with opened(data) as store, _imports_told():
        made = store.schedule(
            topic,
            name=name,
            cron=cron,
            timezone=timezone or "UTC",
            every=None if every is None else timedelta(milliseconds=every),
            value=None if value is None else encoded(value),
            key=None if key is None else encoded(key),
            headers=_pairs(headers),
            partition=partition,
            missed=missed or "one",
        )
        _show([made], store.clock.now_ms(), as_json)


@schedules.command(name="list", cls=StoreCommand)
@store_arguments
@click.argument("topic", required=False)
@JSON
def list_(data: FolderOrAddress, topic: str | None, as_json: bool) -> None:
    """Show the schedules, or those of TOPIC."""
    with opened(data) as store:
        _show(store.schedules(topic), store.clock.now_ms(), as_json)


@schedules.command(cls=StoreCommand)
@store_arguments
@click.argument("name")
@click.option("--value", help="The records' value.")
@CRON
@TIMEZONE
@EVERY
@KEY
@HEADERS
@MISSED
@JSON
def change(data: FolderOrAddress, name: str, headers: Sequence[str], as_json: bool, **given: Any) -> None:
    """Give the schedule NAME other settings. What is left out stays."""
    changes = {option: value for option, value in given.items() if value is not None}
    for option in {"value", "key"} & set(changes):
        changes[option] = encoded(changes[option])
    if "every" in changes:
        changes["every"] = timedelta(milliseconds=changes["every"])
    if headers:
        changes["headers"] = _pairs(headers)
    if not changes:
        raise click.UsageError("nothing to change: give an option")
    with opened(data) as store, _imports_told():
        _show([store.change_schedule(name, **changes)], store.clock.now_ms(), as_json)


@schedules.command(cls=StoreCommand)
@store_arguments
@click.argument("name")
@JSON
def pause(data: FolderOrAddress, name: str, as_json: bool) -> None:
    """Let nothing of the schedule NAME come until it is resumed. What is pending is cancelled."""
    with opened(data) as store:
        _show([store.pause_schedule(name)], store.clock.now_ms(), as_json)


@schedules.command(cls=StoreCommand)
@store_arguments
@click.argument("name")
@JSON
def resume(data: FolderOrAddress, name: str, as_json: bool) -> None:
    """Let the schedule NAME go on with what comes after now."""
    with opened(data) as store, _imports_told():
        _show([store.resume_schedule(name)], store.clock.now_ms(), as_json)


@schedules.command(cls=StoreCommand)
@store_arguments
@click.argument("name")
def remove(data: FolderOrAddress, name: str) -> None:
    """Remove the schedule NAME, and cancel what is pending of it."""
    with opened(data) as store:
        store.remove_schedule(name)
    click.echo(f"{name} removed")


@schedules.command(cls=StoreCommand)
@store_arguments
@click.argument("name")
def send(data: FolderOrAddress, name: str) -> None:
    """Send a record of the schedule NAME now, beside those that come, and print its id."""
    with opened(data) as store:
        click.echo(str(store.send_schedule(name)))


@schedules.command(name="next", cls=StoreCommand)
@store_arguments
@click.argument("name")
@click.option("--count", type=click.IntRange(1, 1_000), default=10, show_default=True, help="How many.")
def next_(data: FolderOrAddress, name: str, count: int) -> None:
    """Show when the next records of the schedule NAME come."""
    from afterlog.base.errors import UnknownSchedule
    from afterlog.cli.output import iso

    with opened(data) as store, _imports_told():
        found = [each for each in store.schedules() if each.name == name]
        if not found:
            raise UnknownSchedule(f"no schedule {name!r} here; afterlog schedules list shows those that are")
        for due_ms in found[0].upcoming(count):
            click.echo(iso(due_ms))


@schedules.command(cls=StoreCommand)
@store_arguments
def run(data: FolderOrAddress) -> None:
    """Append now what is due to be appended: for a store that no process has open for long."""
    with opened(data) as store, _imports_told():
        count = store.run_schedules()
    click.echo(f"{count:,} records appended")


@contextlib.contextmanager
def _imports_told() -> Iterator[None]:
    """What is not installed is told as any other failure."""
    try:
        yield
    except ImportError as error:
        raise Failure(str(error), click.UsageError.exit_code) from error


def _pairs(headers: Sequence[str]) -> tuple[tuple[str, bytes | None], ...]:
    pairs = [header.partition("=") for header in headers]
    if any(not equals for _, equals, _ in pairs):
        raise click.UsageError("--header takes NAME=VALUE")
    return tuple((name, encoded(value)) for name, _, value in pairs)


def _show(found: Sequence[Schedule], now_ms: int, as_json: bool) -> None:
    from afterlog.api.byte_text import text_or_base64
    from afterlog.cli.output import clipped, iso, json_line, relative, span, table

    if as_json:
        for each in found:
            row = {
                "name": each.name, "topic": each.topic, "partition": each.partition, "cron": each.cron,
                "timezone": each.timezone, "every_ms": each.every and round(each.every.total_seconds() * 1_000),
                "value": text_or_base64(each.value), "key": text_or_base64(each.key),
                "headers": [[name, text_or_base64(value)] for name, value in each.headers], "missed": each.missed,
                "paused": each.paused, "next_due": each.next_due, "record": each.record and str(each.record),
                "fault": each.fault,
            }  # fmt: skip
            click.echo(json_line(row))
        return
    rows: list[tuple[object, ...]] = []
    for each in found:
        comes = f"{each.cron} {each.timezone}"
        if each.every is not None:
            comes = f"every {span(round(each.every.total_seconds() * 1_000))}"
        due = "paused" if each.paused else None
        if each.next_due is not None:
            due = f"{relative(each.next_due, now_ms)}, {iso(each.next_due)}"
        rows.append((each.name, each.topic, comes, each.missed, due, clipped(each.value)))
    table(("SCHEDULE", "TOPIC", "COMES", "MISSED", "NEXT", "VALUE"), rows)
