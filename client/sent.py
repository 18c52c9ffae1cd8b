"""Records to send to a server: checked as far as that needs no log, and encoded for the wire.

The rest is checked there, as it is in the process that has the store. No numpy here: `sent_columns` is for columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from afterlog.api import operations
from afterlog.api.record_json import SentRecord
from afterlog.base.errors import InvalidRecord, WrongType
from afterlog.client.call import HttpRequest, Numbered, json_bytes
from afterlog.records.times import check_one_time, delay_ms, instant_ms

if TYPE_CHECKING:
    from afterlog.records.batch import Headers
    from afterlog.records.times import Delay, Instant


def sent_record(
    value: Any,
    key: Any = None,
    headers: Headers = (),
    delay: Delay | None = None,
    deliver_after: Instant | None = None,
    unique_key: Any = None,
) -> SentRecord:
    """Raises InvalidRecord, InvalidDeliverAfter."""
    check_one_time(delay, deliver_after)
    return SentRecord(
        value=item(value, "values"),
        key=item(key, "keys"),
        headers=pairs(headers),
        delay=None if delay is None else seconds_of(delay_ms(delay)),
        deliver_after=None if deliver_after is None else instant_ms(deliver_after),
        unique_key=item(unique_key, "unique keys"),
    )


def item(value: Any, name: str) -> bytes | None:
    """A value, or a key. Raises InvalidRecord."""
    if value is None or type(value) is bytes:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidRecord(f"{name} must be bytes or None, not {type(value).__name__}")
    return bytes(value)


def pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Headers. Raises InvalidRecord."""
    try:
        found = tuple((name, item(value, "a header's values")) for name, value in headers)
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"headers are pairs of a name and bytes: {error}") from None
    for name, _ in found:
        if not isinstance(name, str):
            raise InvalidRecord(f"a header's name must be text, not {name!r:.100}")
    return found


def has_arrow() -> bool:
    """Whether columns can be had."""
    from importlib.util import find_spec

    return find_spec("pyarrow") is not None


def seconds_of(ms: int) -> int | float:
    """As JSON has a delay: seconds, of which the same milliseconds are made again."""
    return ms / 1000 if ms % 1000 else ms // 1000


def records_request(
    topic: str, rows: Sequence[dict[str, Any]], sequence: Numbered | None = None, **options: Any
) -> HttpRequest:
    """POST of records, in JSON. options: of the whole call, None where they are left out."""
    body: dict[str, Any] = {"records": rows}
    body |= {name: value for name, value in options.items() if value is not None}
    if sequence is not None:
        body["producer"] = {"id": sequence.producer_id, "epoch": sequence.epoch, "sequence": sequence.sequence}
    try:
        return HttpRequest(operations.SEND.method, operations.SEND.path_of(topic=topic), json_bytes(body))
    except (TypeError, ValueError) as error:
        raise WrongType(f"what is to be sent cannot be written as JSON: {error}") from None
