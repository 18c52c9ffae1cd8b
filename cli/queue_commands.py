"""`afterlog cancel | reschedule | pending | leased | dead-letters`: what is scheduled, with a reader, failed for good.

A record is named as `send` and `pending` print it: mail-0@1042, the 1043rd record of partition 0 of mail.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from afterlog.base.arguments import KEEP
from afterlog.cli.base import FINDINGS, JSON, YES, FolderOrAddress, StoreCommand, opened, store_arguments
from afterlog.cli.input import Duration, InstantType, RecordIdType, encoded

if TYPE_CHECKING:
    from afterlog.fetch.record_id import RecordId

LIMIT = click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many, at most.")


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("records", type=RecordIdType(), nargs=-1)
@click.option("--topic", help="Of the unique key.")
@click.option("--unique-key", help="What is pending under this key.")
@JSON
def cancel(
    data: FolderOrAddress, records: tuple[RecordId, ...], topic: str | None, unique_key: str | None, as_json: bool
) -> int:
    """Cancel pending RECORDS, or what holds a unique key: they are never delivered.

    Says of each what came of it. Exit code 1 where one was too late, or is not there.
    """
    if (topic is None) != (unique_key is None) or bool(records) == (unique_key is not None):
        raise click.UsageError("give RECORDS, or --topic and --unique-key")
    from dataclasses import asdict

    from afterlog.cli.output import json_line
    from afterlog.log.cancel_result import CancelResult

    missed = False
    with opened(data) as store:
        for record in records:
            answer = store.cancel(record)
            missed |= answer in (CancelResult.ALREADY_DELIVERED, CancelResult.UNKNOWN)
            told = answer.name.lower()
            row = asdict(record) | {"answer": told}
            click.echo(json_line(row) if as_json else f"{record} {told.replace('_', ' ')}")
        if topic is not None and unique_key is not None:
            answer = store.cancel_unique(topic, encoded(unique_key))
            missed = answer in (CancelResult.ALREADY_DELIVERED, CancelResult.UNKNOWN)
            row = {"topic": topic, "unique_key": unique_key, "answer": answer.name.lower()}
            click.echo(json_line(row) if as_json else f"{unique_key} of {topic} {row['answer'].replace('_', ' ')}")
    return FINDINGS if missed else 0


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("record", type=RecordIdType())
@click.option("--delay", type=Duration(), help="How long from now.")
@click.option("--at", type=InstantType(), help="When.")
@JSON
def reschedule(
    data: FolderOrAddress, record: RecordId, delay: int | None, at: int | datetime | None, as_json: bool
) -> None:
    """Give a pending RECORD another time, and print its new name."""
    if (delay is None) == (at is None):
        raise click.UsageError("give --delay or --at")
    from dataclasses import asdict

    from afterlog.cli.output import json_line

    with opened(data) as store:
        new = store.reschedule(record, deliver_after=at if delay is None else store.now_ms() + delay)
    click.echo(json_line(asdict(new)) if as_json else str(new))


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@LIMIT
@click.option("--key", help="Only records of this key.")
@click.option("--partition", type=click.IntRange(0), help="Only of this partition.")
@click.option("--after", type=InstantType(), help="Only what is due at or after.")
@click.option("--before", type=InstantType(), help="Only what is due before.")
@JSON
def pending(
    data: FolderOrAddress,
    topic: str,
    limit: int,
    key: str | None,
    partition: int | None,
    after: int | datetime | None,
    before: int | datetime | None,
    as_json: bool,
) -> None:
    """Show what is scheduled, next due first. Nothing is delivered."""
    from afterlog.cli.output import clipped, iso, json_line, message_row, relative, table

    with opened(data) as store:
        records, now_ms = (
            store.pending(
                topic,
                limit=limit,
                key=None if key is None else encoded(key),
                partition=partition,
                after=after,
                before=before,
            ),
            store.clock.now_ms(),
        )
    if as_json:
        for record in records:
            click.echo(json_line(message_row(record)))
        return
    table(
        ("RECORD", "DUE", "KEY", "VALUE"),
        [
            (str(each.id), f"{relative(each.due, now_ms)}, {iso(each.due)}", clipped(each.key), clipped(each.value))
            for each in records
        ],
    )


@click.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.argument("subscription")
@LIMIT
@JSON
def leased(data: FolderOrAddress, topic: str, subscription: str, limit: int, as_json: bool) -> None:
    """Show what readers of SUBSCRIPTION have of TOPIC, and until when; the first to end first."""
    from afterlog.cli.output import clipped, iso, json_line, message_row, relative, table

    with opened(data) as store:
        records, now_ms = store.leased(topic, subscription, limit=limit), store.now_ms()
    if as_json:
        for record in records:
            more = {"deadline_ms": record.deadline_ms, "delivery_count": record.delivery_count}
            click.echo(json_line(message_row(record) | more))
        return
    rows: list[tuple[object, ...]] = []
    for each in records:
        until = f"{relative(each.deadline_ms, now_ms)}, {iso(each.deadline_ms)}"
        rows.append((str(each.id), until, each.delivery_count, clipped(each.key), clipped(each.value)))
    table(("RECORD", "LEASED UNTIL", "DELIVERY", "KEY", "VALUE"), rows)


@click.group(name="dead-letters")
def dead_letters() -> None:
    """Records whose delivery failed for good: look at them, send them back, let them go."""


_FROM = click.option("--subscription", help="Only what this one gave up.")
_REASON = click.option("--reason", help="Only where the reason has this text in it.")
_RECORD = click.option(
    "--record", "records", type=RecordIdType(), multiple=True, help="Only this one; as `list` names it."
)


@dead_letters.command(name="list", cls=StoreCommand)
@store_arguments
@click.argument("topic")
@LIMIT
@_FROM
@_REASON
@click.option("--by-reason", is_flag=True, help="How many there are of each reason, of those.")
@JSON
def list_(
    data: FolderOrAddress,
    topic: str,
    limit: int,
    subscription: str | None,
    reason: str | None,
    by_reason: bool,
    as_json: bool,
) -> None:
    """Show the dead letters in TOPIC that were not sent back, oldest first."""
    from collections import Counter

    from afterlog.cli.output import clipped, json_line, message_row, table

    with opened(data) as store:
        letters = store.dead_letters(topic, limit=limit, subscription=subscription, reason=reason)
    if by_reason:
        counted = Counter(letter.origin.reason for letter in letters).most_common()
        for each, count in counted if as_json else ():
            click.echo(json_line({"topic": topic, "reason": each, "records": count}))
        if not as_json:
            table(("RECORDS", "REASON"), [(count, clipped(each.encode())) for each, count in counted])
        return
    if as_json:
        for letter in letters:
            origin = letter.origin
            row = message_row(letter.message)
            row["origin"] = {
                "record": str(origin.record), "subscription": origin.subscription, "reason": origin.reason,
                "redelivery_count": origin.redelivery_count,
            }  # fmt: skip
            click.echo(json_line(row))
        return
    rows: list[tuple[object, ...]] = []
    for letter in letters:
        record, value, origin = str(letter.message.id), clipped(letter.message.value), letter.origin
        failed, why = origin.redelivery_count, clipped(origin.reason.encode())
        rows.append((record, str(origin.record), origin.subscription, failed, why, value))
    table(("RECORD", "FROM", "SUBSCRIPTION", "FAILED", "REASON", "VALUE"), rows)


@dead_letters.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.option("--limit", type=click.IntRange(1), help="How many, at most; all by default.")
@click.option("--target", metavar="TOPIC", help="Send them to this topic instead.")
@_RECORD
@_FROM
@_REASON
@click.option("--value", help="Of the one --record: instead of its own.")
@click.option("--rate", type=float, help="So many become due a second; all at once by default.")
@JSON
def redrive(
    data: FolderOrAddress,
    topic: str,
    limit: int | None,
    target: str | None,
    records: tuple[RecordId, ...],
    subscription: str | None,
    reason: str | None,
    value: str | None,
    rate: float | None,
    as_json: bool,
) -> int:
    """Send the dead letters in TOPIC back to where they come from, due at once.

    Exits with 1 where some stay because their topic or partition is gone, and says so.
    """
    from afterlog.cli.output import json_line

    with opened(data) as store:
        done = store.redrive(
            topic,
            limit=limit,
            target=target,
            records=records or None,
            subscription=subscription,
            reason=reason,
            value=KEEP if value is None else encoded(value),
            rate=rate,
        )
    if as_json:
        click.echo(json_line({"topic": topic, "records": done.redriven, "left": done.left}))
    else:
        click.echo(f"{done.redriven:,} records sent {'back' if target is None else 'to ' + target} from {topic}")
    for reason, count in done.left.items():
        click.echo(f"{count:,} stay in {topic}: {reason}", err=True)
    if done.left and target is None:
        click.echo("send them to another topic with --target", err=True)
    return FINDINGS if done.left else 0


@dead_letters.command(cls=StoreCommand)
@store_arguments
@click.argument("topic")
@click.option("--limit", type=click.IntRange(1), help="How many, at most; all by default.")
@_RECORD
@_FROM
@_REASON
@YES
@JSON
def discard(
    data: FolderOrAddress,
    topic: str,
    limit: int | None,
    records: tuple[RecordId, ...],
    subscription: str | None,
    reason: str | None,
    agreed: bool,
    as_json: bool,
) -> None:
    """Let dead letters in TOPIC go: they are not listed any more, nor sent back."""
    from afterlog.cli.output import json_line

    which = "all dead letters" if not records and subscription is None and reason is None else "these dead letters"
    if not agreed:
        click.confirm(f"Discard {which} of {topic}?", abort=True, err=True)
    with opened(data) as store:
        count = store.discard_dead_letters(
            topic, limit=limit, records=records or None, subscription=subscription, reason=reason
        )
    click.echo(
        json_line({"topic": topic, "records": count}) if as_json else f"{count:,} dead letters of {topic} let go"
    )
