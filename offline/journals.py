"""Journals that nobody has open, as they lie: what `afterlog dump`, `verify` and `repair` know of subscriptions.

A journal whose end is torn is no fault: the next opening cuts it. One that cannot be replayed is: then all journals of
the subscription can be put aside, and it begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files, read_file
from afterlog.base.names import journal_file, parse_journal_file, subscription_folder
from afterlog.fetch.partition import Partition
from afterlog.index.offset_set import column_of
from afterlog.log.context import LogContext
from afterlog.log.snapshot import ALL_MS, open_snapshot
from afterlog.offline.dump import Row
from afterlog.subscription.events import (
    Acked,
    AckedElsewhere,
    Closed,
    Dead,
    Extended,
    Intended,
    Kind,
    Lapsed,
    Leapt,
    Leased,
    LeasedUntil,
    Ordered,
    Paused,
    Queued,
    Replicated,
    Returned,
    Skipped,
    Sought,
    decode,
)
from afterlog.subscription.frames import Frame, frame_at
from afterlog.subscription.journal import numbers
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner


def journals(context: LogContext, name: str) -> list[Path]:
    """The journals of a subscription, the one that counts last."""
    folder = subscription_folder(context.folder, name)
    return [folder / journal_file(number) for number in numbers(context.files, folder)]


def fault(context: LogContext, name: str, log_end_offset: int) -> CorruptFile | None:
    """Why the journal of a subscription to a log that ends there cannot be replayed; None where it can."""
    try:
        replay(
            context.files, subscription_folder(context.folder, name), Owner(context.folder.name, name), log_end_offset
        )
    except CorruptFile as error:
        return error
    return None


def torn(context: LogContext, name: str, log_end_offset: int) -> int:
    """Bytes at the end of the journal that the next opening cuts or gives up. Raises CorruptFile."""
    replayed = replay(
        context.files, subscription_folder(context.folder, name), Owner(context.folder.name, name), log_end_offset
    )
    return 0 if replayed is None else replayed.cut_bytes + replayed.given_up_bytes


def hidden(context: LogContext, name: str, log_end_offset: int) -> int:
    """Of the records that a subscription has not acked, how many no reader sees: cancelled ones, and markers.

    Raises CorruptFile.
    """
    replayed = replay(
        context.files, subscription_folder(context.folder, name), Owner(context.folder.name, name), log_end_offset
    )
    if replayed is None or not replayed.state.acks.count:
        return 0
    log = open_snapshot(context, at_ms=ALL_MS)
    try:
        partition = Partition("", 0, log)
        unacked, log_start = column_of(replayed.state.acks.unacked), partition.log_start
        if not log.version.hidden.count:
            return 0
        there = unacked[(unacked >= log_start) & (unacked < partition.high_watermark())]
        return int(np.count_nonzero(partition.offsets_at(there) < 0))
    finally:
        log.let_go()


def dump(files: Files, path: Path) -> Iterator[Row]:
    """A row for each frame of a journal, up to the first that is not whole."""
    number, data, position = parse_journal_file(path.name), read_file(files, path), 0
    assert number is not None, "who calls has looked at the name"
    while position < len(data):
        frame = frame_at(memoryview(data), number, position)
        if frame is None:
            yield {"position": position, "size": len(data) - position, "crc": "no whole frame"}
            return
        yield {
            "position": position,
            "kind": _kind(frame),
            "size": frame.end - position,
            "log_end_offset": frame.log_end_offset,
            "durable": frame.durable,
            "crc": "ok",
            **_told(frame),
        }
        position = frame.end


def _kind(frame: Frame) -> str:
    return Kind(frame.kind).name if frame.kind in set(Kind) else str(frame.kind)


def _told(frame: Frame) -> Row:
    """What the body says; of columns and bitmaps how many records they hold."""
    if frame.kind == Kind.SNAPSHOT:
        return {"state": bytes(frame.body).partition(b"\n")[0]}
    try:
        event = decode(Kind(frame.kind), frame.body)
    except ValueError as error:
        return {"body": f"cannot be decoded: {error}"}
    match event:
        case Returned():
            return {"reason": event.reason.name, "records": len(event.delivery_offset)}
        case LeasedUntil():
            return {"upto": event.position, "records": len(event.offsets), "until_ms": event.until_ms}
        case Extended():
            return {"records": len(event.offsets), "until_ms": event.until_ms}
        case Leased() | Queued():
            return {"upto": event.position, "records": len(event.offsets)}
        case Acked() | Dead() | Lapsed():
            return {"records": len(event.offsets)}
        case Intended():
            return {"records": len(event.letters)}
        case Leapt():
            return {"ms": event.ms}
        case Skipped() | Sought():
            return {"upto": event.position}
        case AckedElsewhere():
            return {"origin": event.origin, "records": len(event.offsets)}
        case Paused():
            return {"paused": event.is_paused}
        case Closed() | Replicated() | Ordered():
            return {}
