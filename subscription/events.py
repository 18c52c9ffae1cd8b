"""The events of a subscription, as values: each is written to the journal, and then applied to the state.

    kind               body                                                   said by
    1 SNAPSHOT         the whole state, see `state.py`                        a new journal
    2 LEASED           position i64 | delivery offsets, Roaring               receive: read up to there, leased these
    3 ACKED            delivery offsets, Roaring                              ack
    4 RETURNED         reason i64 | rows: delivery offset i64[n],             nack, release, an expired lease, a restart
                       append offset i64[n], retry_ms i64[n]
    5 INTENDED         JSON list of dead letters                              before the append to the dead letters
    6 DEAD             delivery offsets, Roaring                              after it was
    7 SKIPPED          position i64                                           retention removed all below
    8 SOUGHT           position i64                                           seek
    9 CLOSED           nothing                                                close
    10 LEASED_UNTIL    until_ms i64 | as LEASED                               receive, where leases outlive the process
    11 EXTENDED        until_ms i64 | delivery offsets, Roaring               extend, of LEASED_UNTIL; by itself, too
    12 REPLICATED      nothing; where it is not to be any more, a byte of 0   subscribe, with replicated
    13 ACKED_ELSEWHERE bytes u16 | origin, ASCII | offsets there, Roaring     the same subscription in another cluster
    14 LEAPT           ms i64                                                 the first call behind a clock set forward
    15 LAPSED          delivery offsets, Roaring                              receive: of no use any more, and dropped
    16 PAUSED          nothing; where it goes on again, a byte of 0           pause, resume
    17 ORDERED         nothing                                                subscribe, with ordered_by
    18 QUEUED          position i64 | delivery offsets, Roaring               receive, where it is ordered: read up to
                                                                              there, and these wait for their turn

Integers are little-endian; Roaring is the portable 64-bit format. LEASED also names records that are leased again; what
it or QUEUED reads and does not name are control records and cancelled ones, which nobody shall get. The deadline of
LEASED is not written: such a lease ends with the life that gave it. That of LEASED_UNTIL is, by the log's clock: it is
held, whatever becomes of the process.

Worked example: two records leased at the start, and the second acked.

    LEASED   02 00 00 00 00 00 00 00 | 01 00 00 00 00 00 00 00 00 00 00 00 3b 30 00 00 01 00 00 01 00 01 00 00 00 01 00
             position 2              | one map, of high bits 0: one run container, one run: 0 and 1 more
    ACKED                              01 00 00 00 00 00 00 00 00 00 00 00 3b 30 00 00 01 00 00 00 00 01 00 01 00 00 00
                                       the same of one run: 1 and none more
    LEASED_UNTIL   e8 03 00 00 00 00 00 00 | 02 00 00 00 00 00 00 00 | 01 00 …
                   until_ms 1000           | as LEASED above

`decode` takes what `encode` made and raises ValueError otherwise; no length is believed that the body does not have.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pyroaring import BitMap64

from afterlog.index.growing_columns import Int64Array

_INT64 = struct.Struct("<q")
_TWO = struct.Struct("<qq")
_BYTES = struct.Struct("<H")


class Kind(enum.IntEnum):
    """The kinds of frames in a journal."""

    SNAPSHOT = 1
    LEASED = 2
    ACKED = 3
    RETURNED = 4
    INTENDED = 5
    DEAD = 6
    SKIPPED = 7
    SOUGHT = 8
    CLOSED = 9
    LEASED_UNTIL = 10
    EXTENDED = 11
    REPLICATED = 12
    ACKED_ELSEWHERE = 13
    LEAPT = 14
    LAPSED = 15
    PAUSED = 16
    ORDERED = 17
    QUEUED = 18


class Reason(enum.IntEnum):
    """Why a leased record came back. All but RELEASED count as a failed delivery."""

    NACKED = 1
    EXPIRED = 2
    CRASHED = 3
    RELEASED = 4


@dataclass(frozen=True, slots=True, eq=False)
class Leased:
    """Everything below `position` is read; `offsets` are leased, of it and of what came back earlier."""

    position: int
    offsets: BitMap64


@dataclass(frozen=True, slots=True, eq=False)
class Acked:
    """Un-acked offsets, now acked."""

    offsets: BitMap64


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """Leased records, ascending, that go out again at `retry_ms`. offset: in append order, -1 if not known."""

    reason: Reason
    delivery_offset: Int64Array
    offset: Int64Array
    retry_ms: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record on its way to the dead letters, after so many failed deliveries.

    topic, partition, log_end_offset: of the dead letters, as they were before the append: if it happened, the record is
    there from that offset on.
    """

    delivery_offset: int
    offset: int
    topic: str
    partition: int
    log_end_offset: int
    failures: int
    reason: str


@dataclass(frozen=True, slots=True)
class Intended:
    """Leased records that are about to be appended to the dead letters."""

    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Dead:
    """Records that are among the dead letters now, and so acked."""

    offsets: BitMap64


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing below `position` is in the log any more."""

    position: int


@dataclass(frozen=True, slots=True)
class Sought:
    """Everything below `position` counts as acked, nothing beyond as read."""

    position: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Changes nothing. With it the end of a journal that was closed is known to be whole."""


@dataclass(frozen=True, slots=True, eq=False)
class LeasedUntil(Leased):
    """The same, and the leases hold until `until_ms` by the log's clock, whatever becomes of the process."""

    until_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class Extended:
    """Held leases that end at `until_ms` now, be it later or earlier."""

    until_ms: int
    offsets: BitMap64


@dataclass(frozen=True, slots=True)
class Replicated:
    """Other clusters have the subscription, too, from now on; or they do not, whatever they say."""

    is_replicated: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class AckedElsewhere:
    """Records that another cluster has acked, by where they were appended first: the topic's id, and offsets there."""

    origin: str
    offsets: BitMap64


@dataclass(frozen=True, slots=True)
class Leapt:
    """The log's clock was set forward by so much, while no time went by: what is held or retrying is so much later."""

    ms: int


@dataclass(frozen=True, slots=True, eq=False)
class Lapsed:
    """Leased records that had expired before anybody got them, now done with."""

    offsets: BitMap64


@dataclass(frozen=True, slots=True)
class Paused:
    """Nothing is handed out from now on; or it goes on."""

    is_paused: bool = True


@dataclass(frozen=True, slots=True)
class Ordered:
    """From now on the records of a key go out one after the other."""


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """Everything below `position` is read; `offsets` are to go out, each once those before it of its key are done."""

    position: int
    offsets: BitMap64


Event = (
    Leased | Acked | Returned | Intended | Dead | Skipped | Sought | Closed | LeasedUntil | Extended | Replicated
    | AckedElsewhere | Leapt | Lapsed | Paused | Ordered | Queued
)  # fmt: skip


def encode(event: Event) -> tuple[Kind, bytes]:
    """The kind and the body of the event's frame."""
    match event:
        case LeasedUntil():
            return Kind.LEASED_UNTIL, _TWO.pack(event.until_ms, event.position) + event.offsets.serialize()
        case Leased():
            return Kind.LEASED, _INT64.pack(event.position) + event.offsets.serialize()
        case Acked():
            return Kind.ACKED, event.offsets.serialize()
        case Returned():
            columns = (event.delivery_offset, event.offset, event.retry_ms)
            return Kind.RETURNED, _INT64.pack(event.reason) + b"".join(column.tobytes() for column in columns)
        case Intended():
            return Kind.INTENDED, json.dumps([asdict(letter) for letter in event.letters]).encode()
        case Dead():
            return Kind.DEAD, event.offsets.serialize()
        case Lapsed():
            return Kind.LAPSED, event.offsets.serialize()
        case Queued():
            return Kind.QUEUED, _INT64.pack(event.position) + event.offsets.serialize()
        case Ordered():
            return Kind.ORDERED, b""
        case Paused():
            return Kind.PAUSED, _yes(event.is_paused)
        case Skipped():
            return Kind.SKIPPED, _INT64.pack(event.position)
        case Sought():
            return Kind.SOUGHT, _INT64.pack(event.position)
        case Closed():
            return Kind.CLOSED, b""
        case Leapt():
            return Kind.LEAPT, _INT64.pack(event.ms)
        case Extended():
            return Kind.EXTENDED, _INT64.pack(event.until_ms) + event.offsets.serialize()
        case Replicated():
            return Kind.REPLICATED, _yes(event.is_replicated)
        case AckedElsewhere():
            name = event.origin.encode("ascii")
            return Kind.ACKED_ELSEWHERE, _BYTES.pack(len(name)) + name + event.offsets.serialize()


def decode(kind: Kind, body: memoryview) -> Event:
    """The event of a frame. ValueError where the body is not what `encode` makes."""
    match kind:
        case Kind.LEASED:
            return Leased(_position(body[:8]), bitmap(body[8:]))
        case Kind.ACKED:
            return Acked(bitmap(body))
        case Kind.RETURNED:
            return Returned(Reason(_int64(body[:8])), *columns(body[8:], 3))
        case Kind.INTENDED:
            return Intended(letters(parsed(bytes(body))))
        case Kind.DEAD:
            return Dead(bitmap(body))
        case Kind.LAPSED:
            return Lapsed(bitmap(body))
        case Kind.SKIPPED:
            return Skipped(_position(body))
        case Kind.SOUGHT:
            return Sought(_position(body))
        case Kind.QUEUED:
            return Queued(_position(body[:8]), bitmap(body[8:]))
        case Kind.ORDERED:
            return Ordered()
        case Kind.PAUSED:
            return Paused(_is_yes(body))
        case Kind.CLOSED:
            return Closed()
        case Kind.LEAPT:
            return Leapt(_time(body))
        case Kind.LEASED_UNTIL:
            return LeasedUntil(_position(body[8:16]), bitmap(body[16:]), _time(body[:8]))
        case Kind.EXTENDED:
            return Extended(_time(body[:8]), bitmap(body[8:]))
        case Kind.REPLICATED:
            return Replicated(_is_yes(body))
        case Kind.ACKED_ELSEWHERE:
            if len(body) < _BYTES.size:
                raise ValueError(f"{len(body)} bytes name no origin")
            start = _BYTES.size + _BYTES.unpack_from(body)[0]
            return AckedElsewhere(bytes(body[_BYTES.size : start]).decode("ascii"), bitmap(body[start:]))
    raise ValueError(f"{kind.name} is no event")


def parsed(text: bytes) -> Any:
    """JSON. ValueError where it is none, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def bitmap(body: memoryview) -> BitMap64:
    """A Roaring bitmap. ValueError where the bytes are none."""
    if not body:
        raise ValueError("no bitmap")
    return BitMap64.deserialize(bytes(body))


def columns(body: memoryview, width: int) -> list[Int64Array]:
    """So many int64 columns of one length, copied."""
    if len(body) % (8 * width):
        raise ValueError(f"{len(body)} bytes are not {width} columns")
    return [column.astype(np.int64) for column in np.frombuffer(body, np.dtype("<i8")).reshape(width, -1)]


def letters(rows: object) -> tuple[DeadLetter, ...]:
    """Dead letters from JSON. ValueError where it is of something else."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("not a list of dead letters")
    try:
        return tuple(DeadLetter(**row) for row in rows)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _yes(is_so: bool) -> bytes:
    return b"" if is_so else b"\0"


def _is_yes(body: memoryview) -> bool:
    if bytes(body) not in (b"", b"\0"):
        raise ValueError(f"{len(body)} bytes say neither that it is so nor that it is not")
    return not len(body)


def _int64(body: memoryview) -> int:
    if len(body) != _INT64.size:
        raise ValueError(f"{len(body)} bytes are no int64")
    return int(_INT64.unpack(body)[0])


def _position(body: memoryview) -> int:
    position = _int64(body)
    if position < 0:
        raise ValueError(f"{position} is no delivery offset")
    return position


def _time(body: memoryview) -> int:
    ms = _int64(body)
    if ms < 0:
        raise ValueError(f"{ms} is no time")
    return ms
