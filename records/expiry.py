"""How long a record is of use: a last header `expires-after`, milliseconds from when it is due, 8 bytes, big-endian.

    02 | 1a expires-after | 10 00 00 00 00 00 00 ea 60      one header; the name's length 13; 8 bytes: 60,000 ms

It travels with the record, also through a reschedule, and is judged where a subscription would hand the record out, as
AMQP's `expiration` is at the head of a queue: nothing scans. It is the last header, and of a fixed size, so that it is
found in a column of header sections without looking through them; behind it can only be the log's own `deliver-after`.
A dead letter has others behind it, and so does not expire; sent back it does again.

No numpy here: `lapsed` is for columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidRecord
from afterlog.records.times import delay_ms

if TYPE_CHECKING:
    from afterlog.records.times import Delay

EXPIRES_AFTER: Final = "expires-after"
SPAN_BYTES: Final = 8
Pairs: TypeAlias = Sequence[tuple[str, bytes | None]]


def expiring(headers: Pairs, expires_after: Delay | None) -> Pairs:
    """The headers of a record that is of use for so long: seconds or timedelta from when it is due; None: for ever.

    Raises InvalidRecord, InvalidDeliverAfter.
    """
    if expires_after is None:
        return headers
    span_ms = delay_ms(expires_after)
    if not span_ms:
        raise InvalidRecord("expires_after must be more than 0: such a record is for nobody")
    if isinstance(headers, Mapping) or not isinstance(headers, Iterable):
        raise InvalidRecord(f'headers must be pairs, [("name", b"value")], not {headers!r:.100}')
    return [*headers, (EXPIRES_AFTER, span_ms.to_bytes(SPAN_BYTES, "big"))]


def span_of(headers: Pairs) -> int | None:
    """For how long a record of these headers is of use, ms from when it is due; None: for ever."""
    if not headers:
        return None
    name, value = headers[-1]
    if name != EXPIRES_AFTER or value is None or len(value) != SPAN_BYTES or value[0] >= 0x80:
        return None
    return int.from_bytes(value, "big")


def lapse_ms(due_ms: int, headers: Pairs, topics_ms: int | None) -> int:
    """From when on a record is of no use; INT64_MAX: it always is. topics_ms: how long those of its topic are; the
    shorter counts."""
    span_ms = span_of(headers)
    spans = [each for each in (topics_ms, span_ms) if each is not None]
    return min(due_ms + min(spans), INT64_MAX) if spans else INT64_MAX
