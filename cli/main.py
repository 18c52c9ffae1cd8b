"""The command line: `afterlog create | send | receive | topics | stats | dump | verify | repair …`.

What schedules and queues need beside is in `cli_queue.py`, object storage in `cli_tier.py`, and so on.

Importing it costs click and no more; numpy and the engine come with the command that needs them.
"""

from __future__ import annotations

import errno
import gc
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from afterlog._version import __version__
from afterlog.base.environment import set_variable, variable
from afterlog.base.errors import AfterlogError
from afterlog.cli.base import (
    DATA,
    EXIT_CODES,
    FINDINGS,
    JSON,
    REMOTE,
    Cli,
    Failure,
    FolderOrAddress,
    StoreCommand,
    opened,
    remote_store,
    store_arguments,
)
from afterlog.cli.input import Duration, InputRecord, InstantType, chunks_of_lines, encoded, json_records

if TYPE_CHECKING:
    from afterlog.base.clock import Clock
    from afterlog.cli.status import OpenStore
    from afterlog.fetch.message import Message
    from afterlog.fetch.positions import Position
    from afterlog.log.topic_settings import BacklogQuotaPolicy, OnExpiry
    from afterlog.records.unique_key import OnConflict
    from afterlog.subscription.received import Received
    from afterlog.surface import TopicSurface


BLAS_THREADS = "OPENBLAS_NUM_THREADS"
COLLECTED_AFTER = 100_000
"""Objects made and not freed again; imports make fewer."""

Polled = TypeVar("Polled", bound="Sequence[Message]")


_ELSEWHERE = {
    "admin_commands": (
        "alter",
        "backup",
        "clean",
        "delete-group",
        "delete-subscription",
        "delete-topic",
        "export",
        "metrics",
        "purge",
        "reset",
        "pause",
        "resume",
    ),
    "relay_command": ("relay",),
    "replicate_command": ("replicate",),
    "queue_commands": ("cancel", "dead-letters", "leased", "pending", "reschedule"),
    "schedule_commands": ("schedules",),
    "serve_command": ("serve", "tokens"),
    "spark_commands": ("spark",),
    "tier_commands": ("offload", "restore", "scrub"),
    "top_command": ("top",),
    "work_command": ("work",),
}
"""Modules that are imported when one of their commands is asked for, or all of them."""


def _show_version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from afterlog.base.compiled import kernels

        click.echo(f"afterlog {__version__} ({kernels()})")
        ctx.exit()


@click.group(cls=Cli, elsewhere=_ELSEWHERE, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show it, and exit."
)
def cli() -> None:
    """A delayed-message log in a plain folder: records are delivered when they are due, in due order.

    DATA is the folder of a store. Set AFTERLOG_DATA and leave it out (a path with a / in it still counts as DATA).
    One process has a store open at a time; `dump` needs no lock.

    Durations: 250ms 30s 5m 2h 1d 1w 1h30m. Instants: epoch ms, or ISO 8601 with a zone, 2030-01-31T08:00:00Z.
    """


@cli.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True)
@click.option("--fifo", is_flag=True, help="An ordinary log: no delays.")
@click.option("--max-delay", type=Duration(), help="How far ahead a record may be due.")
@click.option("--retention", type=Duration(), help="How long records stay once they are due.")
@click.option("--retention-bytes", type=click.IntRange(0), help="How large a partition may grow.")
@click.option("--any-instant", is_flag=True, help="Take times before 2001 or over a century ahead, too.")
@click.option("--interceptor", "interceptors", multiple=True, help="Adds to the metadata of entries; by its name.")
@click.option("--remote-storage", is_flag=True, help="Sealed segments go to the object storage that --remote names.")
@click.option("--local-retention", type=Duration(), help="How long they stay here, too, once they are there and due.")
@click.option("--local-retention-bytes", type=click.IntRange(0), help="How much of a partition stays here, about.")
@click.option("--segment-age", type=Duration(), help="At which a segment is sealed; else as its retention needs it.")
@click.option("--retention-by-subscriptions", is_flag=True, help="What all have acked may go, and nothing else.")
@click.option("--backlog-quota", type=Duration(), help="How long what is due may wait for its acks.")
@click.option("--backlog-quota-bytes", type=click.IntRange(0), help="How much of a partition may wait for them, about.")
@click.option(
    "--backlog-quota-policy",
    type=click.Choice(["producer_exception", "consumer_backlog_eviction"]),
    default="producer_exception",
    show_default=True,
    help="Beyond that, sends are refused, or what has waited longest goes.",
)
@click.option("--max-pending", type=click.IntRange(0), help="So many may not be due; then none is taken.")
@click.option("--max-bytes", type=click.IntRange(0), help="So large a partition's logs may be; then none is taken.")
@click.option("--priorities", type=click.IntRange(1), default=1, show_default=True,
              help="Of so many, from 0 on, a record has one; each has as many partitions.")  # fmt: skip
@click.option("--subscription-expiration", type=Duration(), help="Unread for so long, a subscription is deleted.")
@click.option("--expires-after", type=Duration(), help="How long after they are due records are of use.")
@click.option("--on-expiry", type=click.Choice(["drop", "dead_letter"]), default="drop", show_default=True,
              help="What becomes of them then.")  # fmt: skip
def create(
    data: FolderOrAddress,
    topic: str,
    partitions: int,
    fifo: bool,
    max_delay: int | None,
    retention: int | None,
    retention_bytes: int | None,
    any_instant: bool,
    interceptors: tuple[str, ...],
    remote_storage: bool,
    local_retention: int | None,
    local_retention_bytes: int | None,
    segment_age: int | None,
    retention_by_subscriptions: bool,
    backlog_quota: int | None,
    backlog_quota_bytes: int | None,
    backlog_quota_policy: BacklogQuotaPolicy,
    max_pending: int | None,
    max_bytes: int | None,
    priorities: int,
    subscription_expiration: int | None,
    expires_after: int | None,
    on_expiry: OnExpiry,
) -> None:
    """Make a topic, and the store."""
    with opened(data, create=True) as store:
        store.create_topic(
            topic,
            partitions,
            not fifo,
            max_delay_ms=max_delay,
            retention_ms=retention,
            retention_bytes=retention_bytes,
            check_instants=not any_instant,
            interceptors=interceptors,
            remote_storage_enable=remote_storage,
            local_retention_ms=local_retention,
            local_retention_bytes=local_retention_bytes,
            segment_ms=segment_age,
            retention_by_subscriptions=retention_by_subscriptions,
            backlog_quota_ms=backlog_quota,
            backlog_quota_bytes=backlog_quota_bytes,
            backlog_quota_policy=backlog_quota_policy,
            max_pending=max_pending,
            max_bytes=max_bytes,
            priorities=priorities,
            subscription_expiration_ms=subscription_expiration,
            expires_after_ms=expires_after,
            on_expiry=on_expiry,
        )


@cli.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--delay", type=Duration(), help="How long from now.")
@click.option("--at", type=InstantType(), help="When.")
@click.option("--key", help="The records' key.")
@click.option("--unique-key", help="While VALUE is pending, no other record has it; it decides the partition.")
@click.option(
    "--on-conflict",
    type=click.Choice(["raise", "keep", "replace"]),
    default="raise",
    show_default=True,
    help="Where another pending record has the unique key: fail, keep that one, or replace it.",
)
@click.option("--expires-after", type=Duration(), help="How long after it is due it is of use.")
@click.option(
    "--priority", type=click.IntRange(0), help="Of those that the topic has; what is due of a higher goes first."
)
@click.option("--create", "make", is_flag=True, help="Make store and topic where they are not there.")
@click.option(
    "--json-input",
    is_flag=True,
    help="Lines are JSON: value or json, key, headers, delay, deliver_after, unique_key, expires_after, priority.",
)
@JSON
def send(
    data: FolderOrAddress,
    topic: str,
    value: str | None,
    delay: int | None,
    at: int | datetime | None,
    key: str | None,
    unique_key: str | None,
    on_conflict: OnConflict,
    expires_after: int | None,
    priority: int | None,
    make: bool,
    json_input: bool,
    as_json: bool,
) -> None:
    """Append VALUE, or, without it, every line of the standard input.

    With --unique-key the record is appended where no pending one of its partition has that key; --on-conflict keep
    prints the id of the one that has, replace cancels it.

    A JSON value, key, unique key or header is a string, null, or {"base64": "..."} for bytes; with "json" in place of
    "value" the record's value is that JSON. What stands in a line goes before --delay, --at and --key.
    """
    if delay is not None and at is not None:
        raise click.UsageError("give --delay or --at, not both")
    if json_input and value is not None:
        raise click.UsageError("--json-input reads lines: leave VALUE out")
    if unique_key is not None and value is None:
        raise click.UsageError("--unique-key is for one record: give VALUE")
    if unique_key is None and not json_input and on_conflict != "raise":
        raise click.UsageError("--on-conflict goes with --unique-key, or --json-input")
    from afterlog.base.config import Config
    from afterlog.cli.output import json_line, progress

    span = None if expires_after is None else timedelta(milliseconds=expires_after)
    with opened(data, create=make) as store:
        if make and topic not in {there.name for there in store.topics()}:
            store.create_topic(topic)
        store.topic(topic)
        due = at if delay is None else store.now_ms() + delay
        default = InputRecord(
            value=None, key=None if key is None else encoded(key), deliver_after=due, expires_after=span,
            priority=priority,
        )  # fmt: skip
        if value is not None:
            sent = store.send(
                topic, encoded(value), key=default.key, deliver_after=default.deliver_after, expires_after=span,
                priority=priority, unique_key=None if unique_key is None else encoded(unique_key),
                on_conflict=on_conflict,
            )  # fmt: skip
            row = {"topic": sent.topic, "partition": sent.partition, "offset": sent.offset}
            click.echo(json_line(row) if as_json else str(sent))
            return
        count = line = 0
        with progress("sending", None) as advance:
            try:
                for lines in chunks_of_lines(sys.stdin.buffer, 2 * Config().batch_bytes_max):
                    for sent_now in _send_lines(store, topic, lines, line + 1, default, json_input, on_conflict):
                        count += sent_now
                        advance(sent_now)
                    line += len(lines)
            except AfterlogError as error:
                raise Failure(f"{error} ({count} records before it were sent)", Failure.of(error).code) from error
        click.echo(json_line({"topic": topic, "records": count}) if as_json else f"{count:,} records sent to {topic}")


def _send_lines(
    store: OpenStore,
    topic: str,
    lines: list[bytes],
    first_line: int,
    default: InputRecord,
    json_input: bool,
    on_conflict: OnConflict,
) -> Iterator[int]:
    """Send lines as columns; how many records at a time."""
    if not json_input:
        keys = None if default.key is None else [default.key] * len(lines)
        due, span = default.deliver_after, default.expires_after
        sent = store.send_many(
            topic, lines, keys=keys, deliver_after=due, expires_after=span, priority=default.priority
        )
        yield len(sent)
        return
    from afterlog.records.times import instant_ms

    records = json_records(lines, first_line, store.clock.now_ms(), default)
    for (headers, has_key, timed, unique, priority), alike in groupby(records, key=InputRecord.kind):
        group = list(alike)
        offsets = store.send_many(
            topic,
            [record.value for record in group],
            keys=[record.key for record in group] if has_key else None,
            headers=headers,
            deliver_after=[instant_ms(record.deliver_after or 0) for record in group] if timed else None,
            unique_keys=[record.unique_key for record in group] if unique else None,
            on_conflict=on_conflict if unique else "raise",
            priority=priority,
        )
        yield len(offsets)


@cli.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.option("--group", help="Read on from this group's position.")
@click.option("--subscription", help="Lease from this subscription, which is made where it is not there.")
@click.option("--max", "max_records", type=click.IntRange(1), help="Stop after so many records.")
@click.option("--timeout", type=click.FloatRange(0), help="Seconds to wait for the first; with --follow, for each.")
@click.option("--follow", is_flag=True, help="Go on, waiting for what becomes due.")
@click.option("--from", "start", type=InstantType("earliest", "latest"), help="earliest, latest or an instant.")
@click.option("--from-broker-time", type=InstantType(), help="From the first record appended at or after an instant.")
@click.option("--no-commit", is_flag=True, help="Leave the group's position where it is.")
@click.option("--ack/--no-ack", default=True, help="Whether the subscription is done with what was printed.")
@click.option("--lease", type=Duration(), default="30s", show_default=True, help="Of the subscription's records.")
@JSON
def receive(
    data: FolderOrAddress,
    topic: str,
    group: str | None,
    subscription: str | None,
    max_records: int | None,
    timeout: float | None,
    follow: bool,
    start: int | datetime | str | None,
    from_broker_time: int | datetime | str | None,
    no_commit: bool,
    ack: bool,
    lease: int,
    as_json: bool,
) -> None:
    """Print what is due, in due order, for a group or a subscription.

    Begins where that stands, or with --from or --from-broker-time (which move a subscription for all its readers); ends
    where nothing more is due, with --follow never. A subscription's records are acked once they are printed; with
    --no-ack they go out again as if nobody had seen them.

    Into a pipe they go one by one, each when the one before was taken: where its reader ends, as in `| head -2`, what
    it did not take is neither acked nor committed.

    SIGTERM ends it as if nothing more were due: what was taken is printed first, and acked or committed.
    """
    if (group is None) == (subscription is None):
        raise click.UsageError("give --group or --subscription")
    if no_commit and group is None:
        raise click.UsageError("--no-commit goes with --group; leave records to others with --no-ack")
    if not ack and subscription is None:
        raise click.UsageError("--no-ack goes with --subscription; leave the position with --no-commit")
    beginning = _beginning(start, from_broker_time)
    wait_s = timeout if timeout is not None or follow else 0.0
    from afterlog.cli.signals import StoppablePolls
    from afterlog.subscription.draining import Draining

    with opened(data) as store:
        if group is not None:
            with store.consumer(topic, group=group, auto_commit=not no_commit) as consumer:
                polls = StoppablePolls(consumer, store.clock)
                if beginning is not None:
                    consumer.seek(beginning)

                def processed(messages: Sequence[Message], taken: int) -> None:
                    if taken < len(messages):
                        left = {each.partition: each.delivery_offset for each in reversed(messages[taken:])}
                        for partition, position in left.items():
                            consumer.seek(position, partition)
                        if not no_commit:
                            consumer.commit()

                with Draining(polls, signal.SIGTERM, None):
                    _print_all(polls.poll, processed, store.clock, max_records, wait_s, follow, as_json)
        elif subscription is not None:
            with store.subscribe(topic, subscription, lease_ms=lease) as reader:
                if beginning is not None:
                    reader.seek(beginning)

                def acked(messages: Received, taken: int) -> None:
                    if ack and taken:
                        reader.ack_many(messages[:taken])

                with reader.draining_on(signal.SIGTERM):
                    _print_all(reader.receive, acked, store.clock, max_records, wait_s, follow, as_json)


def _print_all(
    take: Callable[[int, float | None], Polled],
    done: Callable[[Polled, int], object],
    clock: Clock,
    left: int | None,
    wait_s: float | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print what can be taken; of each lot as many are done with as whoever reads the output has taken."""
    from afterlog.cli.output import Lines, json_message, value_line

    lines = Lines(clock)
    while left is None or left > 0:
        messages = take(lines.lot if left is None else min(left, lines.lot), wait_s)
        if not messages:
            return
        taken = lines.put([*map(json_message if as_json else value_line, messages)])
        done(messages, taken)
        if taken < len(messages):
            raise BrokenPipeError(errno.EPIPE, "the reader of the output has gone")
        left = None if left is None else left - len(messages)
        wait_s = wait_s if follow else 0.0


@cli.command(cls=StoreCommand)
@store_arguments
@JSON
def topics(data: FolderOrAddress, as_json: bool) -> None:
    """List the topics and their settings."""
    from dataclasses import asdict

    from afterlog.cli.output import json_line, table

    with opened(data) as store:
        found: Sequence[TopicSurface] = store.topics()
        if as_json:
            for topic in found:
                click.echo(json_line({"topic": topic.name, **asdict(topic.settings)}))
            return
        headings = ("TOPIC", "PARTITIONS", "ORDER", "MAX DELAY", "RETENTION", "RETENTION BYTES")
        table(headings, map(_topic_row, found))
        tiered = [topic for topic in found if topic.settings.remote_storage_enable]
        if tiered:
            click.echo()
            table(("IN OBJECT STORAGE", "LOCAL RETENTION", "LOCAL BYTES"), map(_tiered_row, tiered))
        acked = [topic for topic in found if topic.settings.retention_by_subscriptions]
        if acked:
            click.echo()
            table(("BY SUBSCRIPTIONS", "BACKLOG QUOTA", "QUOTA BYTES", "POLICY"), map(_acked_row, acked))


@cli.command(cls=StoreCommand)
@store_arguments
@click.argument("topic", required=False)
@click.option(
    "--buckets", "bars_max", type=click.IntRange(1, 1000), default=12, show_default=True, help="Bars, at most."
)
@JSON
def stats(data: FolderOrAddress, topic: str | None, bars_max: int, as_json: bool) -> None:
    """Show what is pending and what is due when, how the subscriptions stand, and what holds the disk.

    Asks indexes and journals: no record is read, nothing is leased.
    """
    from afterlog.cli.stats_report import show, show_json, show_replication
    from afterlog.cli.status import replication, standing

    with opened(data) as store:
        names = [each.name for each in store.topics()] if topic is None else [topic]
        (show_json if as_json else show)([standing(store, name, bars_max) for name in names])
        show_replication([row for row in replication(store) if row["topic"] in names], as_json)


@cli.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--records", is_flag=True, help="Print the records of a .log, too.")
@JSON
def dump(file: Path, records: bool, as_json: bool) -> None:
    """Print what is in a file of a store.

    FILE: .log, .index, .timeindex, .deliverafterindex, checkpoints, topics, position, a journal. Needs no lock, writes
    nothing. Goes on behind broken entries of a .log, and says why they are broken.
    """
    from afterlog.base.files import ReadOnlyFiles
    from afterlog.base.names import parse_journal_file
    from afterlog.cli.output import json_line, text_line
    from afterlog.offline.dump import dump as rows_of
    from afterlog.offline.journals import dump as rows_of_journal

    files = ReadOnlyFiles()
    is_journal = parse_journal_file(file.name) is not None
    for row in rows_of_journal(files, file) if is_journal else rows_of(files, file, records=records):
        click.echo(json_line(row) if as_json else text_line(row))


@cli.command(cls=StoreCommand)
@DATA
@click.argument("topic", required=False)
@JSON
def verify(data: Path, topic: str | None, as_json: bool) -> int:
    """Read and check everything that is on disk.

    Every checksum of every entry, the indexes against the logs, the runs, checkpoints, positions, journals. Changes
    nothing. What is in object storage alone is only counted: `scrub --deep` reads it.
    """
    from afterlog.base.clock import SystemClock
    from afterlog.base.files import OsFiles
    from afterlog.cli.output import amount, json_line, progress
    from afterlog.offline.locked_store import OfflineStore

    found = 0
    with (
        OfflineStore(data.absolute(), OsFiles(), SystemClock()) as store,
        progress("verifying", store.log_bytes(topic)) as advance,
    ):
        for finding in store.verify(topic, advance):
            found += 1
            if as_json:
                row = {name: getattr(finding, name) for name in ("path", "position", "message", "remedy")}
                click.echo(json_line(row))
            else:
                place = "" if finding.position is None else f" at byte {finding.position}"
                click.echo(f"{finding.path}{place}: {finding.message}; {finding.remedy}")
        segments, size = store.only_remote(topic)
    if segments:
        told = f"{amount(size)} in {segments} segment{'s' * (segments != 1)} are only in object storage"
        click.echo(f"{told}: see `afterlog scrub --deep`", err=True)
    click.echo(f"{found or 'no'} finding{'s' * (found != 1)}", err=True)
    return FINDINGS if found else 0


@cli.command(name="config", cls=StoreCommand)
@DATA
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="Keep another value, from the next open on.")
@click.option("--reset", is_flag=True, help="Keep the defaults, but for what --set gives.")
@JSON
def kept(data: Path, given: tuple[str, ...], reset: bool, as_json: bool) -> None:
    """Show the settings that are kept with a store, and change them.

    Whoever opens it and gives no settings goes by them: `afterlog serve`, the other commands, jobs of Spark. To change
    them nobody may have the store open.
    """
    from afterlog.base.files import OsFiles
    from afterlog.base.kept_config import KEPT, change_kept, kept_settings
    from afterlog.base.names import LOCK
    from afterlog.cli.output import json_line
    from afterlog.log.topics_document import is_store

    files, path = OsFiles(), data.absolute()
    if not is_store(files, path):
        raise FileNotFoundError(f"there is no store in {path}")
    if given or reset:
        lock = files.lock(path / LOCK)
        try:
            change_kept(files, path, dict(map(_setting, given)), anew=reset)
        finally:
            lock.release()
    settings = kept_settings(files, path) or {}
    if as_json:
        click.echo(json_line(settings))
    for name, value in settings.items() if not as_json else ():
        click.echo(f"{name}={value} (by default {KEPT[name]})")
    if not settings:
        click.echo("all as by default", err=True)


def _setting(text: str) -> tuple[str, Any]:
    """`name=value`, the value as JSON has it, or text."""
    import json

    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set takes NAME=VALUE, as segment_bytes=16777216, not {text}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@cli.command(cls=StoreCommand)
@DATA
@REMOTE
@click.option("--clock", "put_clock_back", is_flag=True, help="Put a frontier ahead of the wall clock back to it.")
@click.option("--apply", "do_it", is_flag=True, help="Do it.")
@JSON
def repair(data: Path, remote: str | None, put_clock_back: bool, do_it: bool, as_json: bool) -> int:
    """Make a broken store whole, once you agree.

    Says what it would do, and what that gives up; does it with --apply only. Nothing is thrown away: bytes that are cut
    off a log stay beside it, as <name>.log.cut-<position>. With --remote, a segment that is broken here and whole there
    is read from there.
    """
    from afterlog.base.clock import SystemClock
    from afterlog.base.files import OsFiles
    from afterlog.cli.output import json_line
    from afterlog.offline.locked_store import OfflineStore

    storage = remote_store(remote) if remote else None
    with OfflineStore(data.absolute(), OsFiles(), SystemClock(), storage) as store:
        plan = store.plan(put_clock_back=put_clock_back)
        for step in plan.steps:
            click.echo(json_line({"step": step}) if as_json else step)
        if do_it and plan.steps:
            store.apply(plan)
        if plan.beyond_repair:
            raise plan.beyond_repair[0]
    if not plan.steps:
        click.echo("nothing to repair", err=True)
        return 0
    click.echo("done" if do_it else "nothing was done yet: --apply does it", err=True)
    return 0 if do_it else FINDINGS


def _topic_row(topic: TopicSurface) -> list[object]:
    from afterlog.cli.output import span

    settings = topic.settings
    spans = [None if ms is None else span(ms) for ms in (settings.max_delay_ms, settings.retention_ms)]
    order = "read only" if settings.foreign else "delayed" if settings.delayed else "fifo"
    return [topic.name, settings.partitions, order, *spans, settings.retention_bytes]


def _tiered_row(topic: TopicSurface) -> list[object]:
    from afterlog.cli.output import span

    local_ms = topic.settings.local_retention_ms
    return [topic.name, None if local_ms is None else span(local_ms), topic.settings.local_retention_bytes]


def _acked_row(topic: TopicSurface) -> list[object]:
    from afterlog.cli.output import span

    settings = topic.settings
    quota_ms, policy = settings.backlog_quota_ms, settings.backlog_quota_policy
    shown = policy if settings.has_backlog_quota else None
    return [topic.name, None if quota_ms is None else span(quota_ms), settings.backlog_quota_bytes, shown]


def _position(start: int | datetime | str) -> Position:
    from afterlog.fetch.positions import EARLIEST, LATEST, AtTime

    if isinstance(start, str):
        return EARLIEST if start == "earliest" else LATEST
    return AtTime(start)


def _beginning(start: int | datetime | str | None, broker_time: int | datetime | str | None) -> Position | None:
    from afterlog.fetch.positions import AtBrokerTime

    if broker_time is None:
        return None if start is None else _position(start)
    if start is not None:
        raise click.UsageError("give --from or --from-broker-time, not both")
    return AtBrokerTime(broker_time)


def main() -> None:
    """The entry point, of a process of its own."""
    # No command does linear algebra, for which numpy would start a thread for each processor: 100 ms of CPU.
    if not variable(BLAS_THREADS):
        set_variable(BLAS_THREADS, "1")
    # What a command imports is no garbage, but the collector goes through it again and again, and once more at the end:
    # 20 ms of a `send`.
    gc.set_threshold(COLLECTED_AFTER)
    try:
        cli()
    finally:
        gc.freeze()
