"""Whole topics and readers, and the store as a whole.

`afterlog alter | delete-topic | delete-subscription | delete-group | purge | clean | reset | export | backup | metrics`
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import click

from afterlog.cli.base import JSON, YES, Failure, FolderOrAddress, StoreCommand, opened, opened_here, store_arguments
from afterlog.cli.input import Duration, InstantType

NONE = "none"
"""Takes a setting away."""


class OrNone(click.ParamType[Any]):
    """A value of another type, or `none`."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self._kind = kind
        self.name = f"{kind.name}|{NONE}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return NONE if value == NONE else self._kind.convert(value, param, ctx)


DURATION, WHOLE = OrNone(Duration()), OrNone(click.IntRange(0))


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), help="More of them; keys may belong to others from then on.")
@click.option("--max-delay", "max_delay_ms", type=DURATION, help="How far ahead a record may be due.")
@click.option("--retention", "retention_ms", type=DURATION, help="How long records stay once they are due.")
@click.option("--retention-bytes", type=WHOLE, help="How large a partition may grow.")
@click.option("--segment-age", "segment_ms", type=DURATION, help="The age at which a segment is sealed.")
@click.option("--by-subscriptions/--not-by-subscriptions", "retention_by_subscriptions", default=None,
              help="Whether what all subscriptions have acked goes, and the rest stays.")  # fmt: skip
@click.option("--backlog-quota", "backlog_quota_ms", type=DURATION, help="How old what is not acked may grow.")
@click.option("--backlog-quota-bytes", type=WHOLE, help="How large what is not acked may grow.")
@click.option("--backlog-quota-policy", type=click.Choice(["producer_exception", "consumer_backlog_eviction"]),
              help="Beyond its quota: nothing is taken, or the oldest goes.")  # fmt: skip
@click.option("--max-pending", type=WHOLE, help="How many records of a partition may not be due yet.")
@click.option("--max-bytes", type=WHOLE, help="How large a partition's logs may grow here before sends are refused.")
@click.option("--priorities", type=click.IntRange(1), help="Of so many, from 0 on, a record has one.")
@click.option("--subscription-expiration", "subscription_expiration_ms", type=DURATION,
              help="Unread for so long, a subscription is deleted.")  # fmt: skip
@click.option("--expires-after", "expires_after_ms", type=DURATION,
              help="How long after they are due records are of use.")  # fmt: skip
@click.option("--on-expiry", type=click.Choice(["drop", "dead_letter"]), help="What becomes of them then.")
@click.option("--interceptor", "interceptors", multiple=True, type=OrNone(click.STRING),
              help="Adds to the metadata of entries; by its name. All that there are to be, or none.")  # fmt: skip
@click.option("--any-instant/--sure-instants", default=None, help="Whether times before 2001 and far ahead are taken.")
@click.option("--remote-storage", "remote_storage_enable", is_flag=True, default=None,
              help="Sealed segments go to the object storage that --remote names. Cannot be taken back.")  # fmt: skip
@click.option("--local-retention", "local_retention_ms", type=DURATION, help="How long they stay here, too.")
@click.option("--local-retention-bytes", type=WHOLE, help="How much of a partition stays here, about.")
def alter(
    data: FolderOrAddress, topic: str, any_instant: bool | None, interceptors: tuple[str, ...], **given: Any
) -> None:
    """Give TOPIC other settings. What is left out stays; `none` takes a limit away."""
    changes: dict[str, Any] = {
        name: None if value == NONE else value for name, value in given.items() if value is not None
    }
    if interceptors:
        changes["interceptors"] = [name for name in interceptors if name != NONE]
    if any_instant is not None:
        changes["check_instants"] = not any_instant
    if not changes:
        raise click.UsageError("nothing to alter: give an option")
    with opened(data) as store:
        store.alter_topic(topic, **changes)
    click.echo(f"{topic} altered")


@click.command(name="delete-topic", cls=StoreCommand)
@store_arguments
@click.argument("topic")
@YES
def delete_topic(data: FolderOrAddress, topic: str, agreed: bool) -> None:
    """Delete TOPIC and all that is of it: records, subscriptions, groups, schedules, what is in object storage."""
    from afterlog.cli.status import held

    with opened(data) as store:
        pending, due = held(store, topic)
        readers = len(store.subscriptions(topic)) + len(store.groups(topic))
        _ask(f"Delete {topic} with {pending:,} pending records, {due:,} due ones and {readers} readers?", agreed)
        store.delete_topic(topic)
    click.echo(f"{topic} deleted")


@click.command(name="delete-subscription", cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.argument("name")
@YES
def delete_subscription(data: FolderOrAddress, topic: str, name: str, agreed: bool) -> None:
    """Delete the subscription NAME of TOPIC: what it has acked is forgotten, its records stay."""
    with opened(data) as store:
        _ask(f"Delete the subscription {name} of {topic}?", agreed)
        store.delete_subscription(topic, name)
    click.echo(f"{name} of {topic} deleted")


@click.command(name="delete-group", cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.argument("group")
@YES
def delete_group(data: FolderOrAddress, topic: str, group: str, agreed: bool) -> None:
    """Delete the positions of the consumer group GROUP in TOPIC."""
    with opened(data) as store:
        _ask(f"Delete the group {group} of {topic}?", agreed)
        store.delete_group(topic, group)
    click.echo(f"{group} of {topic} deleted")


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.option("--partition", type=click.IntRange(0), help="Of one partition; of all, if left out.")
def clean(data: FolderOrAddress, topic: str, partition: int | None) -> None:
    """Write the segments of TOPIC anew with what is still to come, and free the rest now.

    A store does so by itself where a partition holds more than twice what is to come. What the topic's retention lets
    go is out of reach behind it; without retention only what was purged goes.
    """
    with opened(data) as store:
        freed = store.clean(topic, partition=partition)
    click.echo(f"{freed:,} bytes freed in {topic}")


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.option("--upto", type=InstantType("latest"), default="latest", show_default=True, help="What became due before.")
@click.option("--pending", is_flag=True, help="All that is not due yet, too.")
@click.option("--partition", type=click.IntRange(0), help="Of one partition; of all, if left out.")
@YES
def purge(
    data: FolderOrAddress, topic: str, upto: int | datetime | str, pending: bool, partition: int | None, agreed: bool
) -> None:
    """Remove what is due from TOPIC, for all who read it. Disk is freed by whole segments, or by `clean`."""
    from afterlog.cli.status import held
    from afterlog.fetch.positions import LATEST, AtTime

    with opened(data) as store:
        waiting, due = held(store, topic, partition)
        what = f" and {waiting:,} pending ones" if pending else f"; {waiting:,} pending ones stay"
        _ask(f"Purge {topic} of up to {due:,} due records{what}?", agreed)
        position = LATEST if isinstance(upto, str) else AtTime(upto)
        count = store.purge(topic, position, pending=pending, partition=partition)
    click.echo(f"{count:,} records purged from {topic}")


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.option("--group", help="A consumer group.")
@click.option("--subscription", help="A subscription.")
@click.option("--to", "start", type=InstantType("earliest", "latest"), required=True, help="earliest, latest, or when.")
def reset(
    data: FolderOrAddress, topic: str, group: str | None, subscription: str | None, start: int | datetime | str
) -> None:
    """Let a group or a subscription go on with what became due at an instant, or from an end of TOPIC."""
    if (group is None) == (subscription is None):
        raise click.UsageError("give --group or --subscription")
    from afterlog.fetch.positions import EARLIEST, LATEST, AtTime

    position = AtTime(start) if not isinstance(start, str) else EARLIEST if start == "earliest" else LATEST
    with opened(data) as store:
        if group is not None:
            store.reset_group(topic, group, position)
        elif subscription is not None:
            store.reset_subscription(topic, subscription, position)
    click.echo(f"{group or subscription} of {topic} goes on at {start}")


_SUBSCRIPTION = click.option("--subscription", help="To this one alone; to all who read TOPIC, if left out.")


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@_SUBSCRIPTION
def pause(data: FolderOrAddress, topic: str, subscription: str | None) -> None:
    """Hand out nothing of TOPIC, or to one subscription, until `resume`.

    What is sent is taken, and what is leased stays so.
    """
    with opened(data) as store:
        store.pause(topic, subscription)
    click.echo(f"{_of(topic, subscription)} is paused")


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@_SUBSCRIPTION
def resume(data: FolderOrAddress, topic: str, subscription: str | None) -> None:
    """Hand out again what was paused: TOPIC, or one subscription."""
    with opened(data) as store:
        store.resume(topic, subscription)
    click.echo(f"{_of(topic, subscription)} goes on")


def _of(topic: str, subscription: str | None) -> str:
    return topic if subscription is None else f"{subscription} of {topic}"


def _ask(question: str, agreed: bool) -> None:
    if not agreed:
        click.confirm(question, abort=True, err=True)


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
    from afterlog.cli.status import exposition

    with opened(data) as store:
        try:
            click.echo(exposition(store, detail), nl=False)
        except ImportError as error:
            raise Failure(str(error), click.UsageError.exit_code) from error
