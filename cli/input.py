"""What people type and pipe into the command line: durations, instants, lines, JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from afterlog.api.byte_text import bytes_of, headers_of
from afterlog.base.errors import InvalidDeliverAfter, InvalidRecord, RecordTooLarge
from afterlog.base.payload import json as json_value
from afterlog.base.time_text import duration_ms, instant
from afterlog.records.expiry import expiring

if TYPE_CHECKING:
    from afterlog.fetch.record_id import RecordId

CHUNK_BYTES = 8 << 20
_RECORD_KEYS = {
    "value", "json", "key", "headers", "delay", "deliver_after", "unique_key", "expires_after", "priority",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """A record to be sent. deliver_after: ms; None: as soon as possible. expires_after: of a default, for what does not
    say it itself.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    deliver_after: int | datetime | None = None
    unique_key: bytes | None = None
    expires_after: timedelta | None = None
    priority: int | None = None

    def kind(self) -> tuple[tuple[tuple[str, bytes | None], ...], bool, bool, bool, int | None]:
        """Neighbours of one kind can be sent in one call: headers, has key, time and unique key, priority."""
        timed = self.deliver_after is not None
        return self.headers, self.key is not None, timed, self.unique_key is not None, self.priority


class Duration(click.ParamType[int]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else duration_ms(value)
        except InvalidDeliverAfter as error:
            self.fail(str(error), param, ctx)


class InstantType(click.ParamType["int | datetime | str"]):
    """An instant, or one of some words."""

    name = "instant"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | datetime | str:
        try:
            return value if value in self.words or not isinstance(value, str) else instant(value)
        except InvalidDeliverAfter as error:
            self.fail(str(error), param, ctx)


class HostPort(click.ParamType[tuple[str, int]]):
    """HOST:PORT; [::1]:PORT for IPv6."""

    name = "HOST:PORT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        host, colon, port = str(value).rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            self.fail(f"{value} is no HOST:PORT, as 127.0.0.1:7654", param, ctx)
        return host.strip("[]"), int(port)


class RecordIdType(click.ParamType["RecordId"]):
    """A record, as `send` and `pending` name it."""

    name = "record"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> RecordId:
        from afterlog.fetch.record_id import RecordId

        try:
            return RecordId.parse(value) if isinstance(value, str) else value
        except InvalidRecord as error:
            self.fail(str(error), param, ctx)


def encoded(text: str) -> bytes:
    """An argument as the bytes that were given."""
    return text.encode("utf-8", "surrogateescape")


def chunks_of_lines(stream: BinaryIO, line_bytes_max: int) -> Iterator[list[bytes]]:
    """The lines of a stream without their ends, as many at a time as have come."""
    rest = b""
    read = getattr(stream, "read1", stream.read)
    while piece := read(CHUNK_BYTES):
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        if len(rest) > line_bytes_max:
            raise RecordTooLarge(f"a line is longer than {line_bytes_max} bytes")
        if lines:
            yield lines
    if rest:
        yield [rest]


def json_records(lines: list[bytes], first_line: int, now_ms: int, default: InputRecord) -> list[InputRecord]:
    """One record a line, with key and time of `default` where it has none. Raises InvalidRecord: `line 17: …`."""
    return [
        _json_record(line, number, now_ms, default) for number, line in enumerate(lines, first_line) if line.strip()
    ]


def _json_record(line: bytes, number: int, now_ms: int, default: InputRecord) -> InputRecord:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or not row.keys() <= _RECORD_KEYS or ("value" in row) == ("json" in row):
            raise ValueError(f"needs one JSON object with value or json, and of {', '.join(sorted(_RECORD_KEYS))} only")
        due = _deliver_after(row.get("delay"), row.get("deliver_after"), now_ms)
        return InputRecord(
            value=json_value(row["json"]) if "json" in row else bytes_of(row["value"]),
            key=bytes_of(row["key"]) if "key" in row else default.key,
            headers=tuple(
                expiring(headers_of(row.get("headers") or {}), row.get("expires_after", default.expires_after))
            ),
            deliver_after=default.deliver_after if due is None else due,
            unique_key=bytes_of(row.get("unique_key")),
            priority=_whole(row.get("priority", default.priority)),
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRecord(f"line {number}: {error}") from None


def _whole(priority: Any) -> int | None:
    if priority is None or (isinstance(priority, int) and not isinstance(priority, bool)):
        return priority
    raise ValueError(f"a priority is a whole number, not {priority!r:.60}")


def _deliver_after(delay: Any, deliver_after: Any, now_ms: int) -> int | datetime | None:
    match delay, deliver_after:
        case None, None:
            return None
        case None, str():
            return instant(deliver_after)
        case None, int() if not isinstance(deliver_after, bool):
            return deliver_after
        case str(), None:
            return now_ms + duration_ms(delay)
    raise ValueError('give one of "delay": "30s" and "deliver_after": epoch ms or ISO 8601 with a zone')
