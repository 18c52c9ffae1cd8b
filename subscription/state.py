"""What a subscription knows of one partition, as durable facts: no clock, no I/O, no schedule. Events change it.

    delivery order   0 … acked …│ acked, leased, retrying, dying … │ not read
                                └ mark_delete                      └ position

    not read ──Leased──► leased ──Acked──► acked                      released: the same, but for the count
           └─Queued─► queued ──Leased──► leased                       where it is ordered
                          │  ▲ └──Intended──► dying ──Dead──► acked
                 Returned ▼  │ Leased
                         retrying ──Acked──► acked

Live and in replay the same `apply` runs, so that what a journal brings back is what was there. Leased is what is left:
un-acked, and neither retrying nor dying nor queued.

Invariants, proved by `check`:

1. Each delivery offset below the position is exactly one of acked, leased, retrying, dying, queued; none at or beyond
   it is.
2. Hence counts: un-acked = leased + retrying + dying + queued; read ever since the start or the last seek = un-acked +
   acked.
3. Each retrying record has a row in `redeliveries`, and so has each record of which a delivery failed.
4. A leased record is held until one time, or not at all.

Held is a lease that outlives the process: its deadline is a fact. What was acked stays in `held` until the lease would
have ended; it is leased no more, and comes back to it only by a new lease.

The body of a SNAPSHOT is one line of JSON, and behind it what it gives the lengths of:

    {"partition":"mail-0","subscription":"sender","position":12,"acked":9,…,"dying":[],
     "unacked_bytes":30,"retrying_bytes":30,"redeliveries":1}\\n
    | un-acked offsets, Roaring | retrying offsets, Roaring
    | delivery offset i64[n] | append offset i64[n] | retry_ms i64[n] | attempts i64[n]

Where leases are held, the line also has `"held":[[until_ms, bytes],…]`, ascending, and behind the rest are the offsets
that are held until each, Roaring. Where other clusters have the subscription, too, it has `"replicated":true` and
`"elsewhere":[[origin, bytes],…]`, and behind that are the offsets there that were acked elsewhere, Roaring; where
somebody said that they do not have it, `false`. Where a seek passed something, or it did not begin with the first
record, it has `"sought"`; where something expired, and was dropped, `"lapsed"`; where it is paused, `"paused":true`.
Where it is ordered, it has `"queued":bytes`, and last of all are the queued offsets, Roaring.

*Elsewhere.* What another cluster has acked is known by where it was appended first, for it may not be here yet, or not
be due. It is kept beside the rest: what is read is looked for there, and what is there counts as stepped over.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from pyroaring import BitMap64

from afterlog.index.growing_columns import Int64Array
from afterlog.index.offset_set import column_of
from afterlog.records.columns import Bools
from afterlog.subscription import bits
from afterlog.subscription.ack_set import AckSet
from afterlog.subscription.deadlines import Deadlines
from afterlog.subscription.events import (
    Acked,
    AckedElsewhere,
    Dead,
    DeadLetter,
    Event,
    Extended,
    Intended,
    Lapsed,
    Leapt,
    Leased,
    LeasedUntil,
    Ordered,
    Paused,
    Queued,
    Reason,
    Replicated,
    Returned,
    Skipped,
    Sought,
    bitmap,
    columns,
    letters,
    parsed,
)
from afterlog.subscription.lease_number import FAILED, RELEASED, behind_a_seek
from afterlog.subscription.redeliveries import RECENT, Redeliveries, Rows

_HEAD = re.compile(rb"[^\n]*\n")
_NOT_LEASED = "records came back that were not leased"


class Owner(NamedTuple):
    """Whose state it is: in every snapshot, so that a file in the wrong place is seen."""

    partition: str
    subscription: str


@dataclass(slots=True)
class Counts:
    """Events ever. `dead` are not among the acked; released, nacked, expired, crashed: why records came again."""

    acked: int = 0
    dead: int = 0
    nacked: int = 0
    expired: int = 0
    crashed: int = 0
    released: int = 0
    redelivered: int = 0
    """How often a record was leased again."""
    stepped_over: int = 0
    """Control records and cancelled ones, which nobody gets."""
    removed: int = 0
    """Records that retention took before they were acked."""
    lapsed: int = 0
    """Records that expired before anybody got them, and were dropped."""


_COUNTS = tuple(field.name for field in fields(Counts))


class SubscriptionState:
    """One thread at a time."""

    def __init__(self, acks: AckSet, sought: int = 0) -> None:
        self.acks = acks
        self.retrying = BitMap64()
        self.retrying_count = 0
        self.redeliveries = Redeliveries()
        self.dying: dict[int, DeadLetter] = {}
        self.held = Deadlines()
        """Of those that are leased: until when, whatever becomes of the process."""
        self.counts = Counts()
        self.is_replicated: bool | None = None
        """Whether other clusters have it, too; None: nobody has said."""
        self.elsewhere: dict[str, BitMap64] = {}
        """What other clusters have acked, by origin: offsets there."""
        self.is_paused = False
        """Whether nothing is to be handed out."""
        self.is_ordered = False
        """Whether the records of a key go out one after the other."""
        self.queued = BitMap64()
        """Where it is: read, and to go out in their turn."""
        self.queued_count = 0
        self.sought = sought
        """Before this delivery offset a seek passed something, or it began there: what lies before counts as acked
        here, and nobody has acked it."""

    @property
    def position(self) -> int:
        """The next delivery offset to read."""
        return self.acks.position

    @property
    def leased_count(self) -> int:
        return self.acks.count - self.retrying_count - len(self.dying) - self.queued_count

    def leased(self) -> BitMap64:
        """All leased offsets; its cost grows with their number."""
        held = self.acks.unacked.copy()
        bits.remove(held, self.retrying)
        bits.remove(held, BitMap64(self.dying))
        bits.remove(held, self.queued)
        return held

    def leased_among(self, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that are leased."""
        found = offsets & self.acks.unacked
        if self.retrying_count:
            found -= found & self.retrying
        if self.queued_count:
            found -= found & self.queued
        if self.dying:
            found -= BitMap64(self.dying)
        return found

    def held_among(self, offsets: BitMap64) -> BitMap64:
        """Those of leased offsets whose lease outlives the process."""
        return self.held.among(offsets) if self.held else BitMap64()

    def leased_rows(self, delivery_offset: Int64Array, lease_number: Int64Array) -> Bools:
        """Which rows, ascending, are leased under these numbers: other receipts are stale."""
        rows = bits.rows_in(delivery_offset, self.leased_among(bits.of_column(delivery_offset)))
        rows &= self.redeliveries.lease_numbers(delivery_offset) == lease_number
        return rows

    def is_leased(self, delivery_offset: int, lease_number: int) -> bool:
        """`leased_rows` of one, whatever it is: an offset that was never delivered is not leased."""
        return (
            0 <= delivery_offset < self.position
            and delivery_offset in self.acks.unacked
            and delivery_offset not in self.retrying
            and delivery_offset not in self.dying
            and delivery_offset not in self.queued
            and self.redeliveries.lease_number_of(delivery_offset) == lease_number
        )

    def ackable(self, offsets: BitMap64) -> BitMap64:
        """Those that an ack would ack. What is on its way to the dead letters is done with."""
        found = offsets & self.acks.unacked
        if self.dying:
            found -= BitMap64(self.dying)
        return found

    def apply(self, event: Event) -> None:
        """Make it so. ValueError where the event cannot follow what was: then the journal is not ours."""
        match event:
            case LeasedUntil():
                self._lease(event)
                self._hold(event)
            case Leased():
                self._lease(event)
            case Acked():
                if self.dying and not event.offsets.isdisjoint(BitMap64(self.dying)):
                    raise ValueError("an ack of what is on its way to the dead letters")
                self.counts.acked += self._ack(event.offsets)
            case Lapsed():
                if len(self.leased_among(event.offsets)) != len(event.offsets):
                    raise ValueError("records expired that were not leased")
                self.counts.lapsed += self._ack(event.offsets)
            case Returned():
                self._return(event)
            case Intended():
                self._intend(event)
            case Dead():
                for offset in column_of(event.offsets).tolist():
                    self.dying.pop(offset, None)
                self.counts.dead += self._ack(event.offsets)
            case Skipped():
                self._skip(event.position)
            case Sought():
                self._seek(event.position)
            case Extended():
                self._extend(event)
            case Replicated():
                self.is_replicated = event.is_replicated
            case Paused():
                self.is_paused = event.is_paused
            case Ordered():
                if self.acks.count:
                    raise ValueError("it is ordered while records are on their way")
                self.is_ordered = True
            case Queued():
                self._queue(event)
            case Leapt():
                self.redeliveries.later(event.ms)
                self.held = self.held.later(event.ms)
            case AckedElsewhere():
                self.elsewhere[event.origin] = self.elsewhere.get(event.origin, BitMap64()) | event.offsets

    def behind_retention(self, log_start: int) -> SubscriptionState:
        """As the next receive will find it, once retention has taken all below: for who only looks."""
        if log_start <= self.acks.mark_delete:
            return self
        owner = Owner("", "")
        left = SubscriptionState.of_bytes(memoryview(self.to_bytes(owner)), owner)
        left.apply(Skipped(log_start))
        return left

    # Of one record by itself: what `apply` would do, without an event.

    def lease_one(self, position: int, delivery_offset: int) -> None:
        """`apply` of Leased, of one that was not read before."""
        acks = self.acks
        if not acks.position <= delivery_offset < position:
            raise ValueError(f"offset {delivery_offset} is not read between {acks.position} and {position}")
        self.counts.stepped_over += acks.read_one(position, delivery_offset)

    def ack_one(self, delivery_offset: int) -> None:
        """`apply` of Acked, of one that is un-acked."""
        if self.retrying_count and delivery_offset in self.retrying:
            self.retrying.remove(delivery_offset)
            self.retrying_count -= 1
        elif self.queued_count and delivery_offset in self.queued:
            self.queued.remove(delivery_offset)
            self.queued_count -= 1
        self.acks.ack_one(delivery_offset)
        self.counts.acked += 1

    def _lease(self, event: Leased) -> None:
        position, count = self.position, len(event.offsets)
        low = bits.first(event.offsets)
        if event.position < position or (low is not None and event.offsets.max() >= event.position):
            raise ValueError(f"read up to {event.position} from {position}")
        fresh = event.offsets
        if low is not None and low < position:
            again = event.offsets & self.retrying
            fresh = event.offsets - again
            bits.remove(self.retrying, again)
            self.retrying_count -= count - len(fresh)
            self.counts.redelivered += count - len(fresh)
            if self.queued_count:
                fresh -= self._unqueue(fresh)
            if len(fresh) and fresh.min() < position:
                raise ValueError(f"offset {fresh.min()} was neither unread nor retrying nor queued")
        self.counts.stepped_over += self.acks.read(event.position, fresh)

    def _queue(self, event: Queued) -> None:
        low = bits.first(event.offsets)
        if event.position < self.position or (
            low is not None and not self.position <= low <= event.offsets.max() < event.position
        ):
            raise ValueError(f"queued up to {event.position} from {self.position}")
        if not self.is_ordered:
            raise ValueError("records are queued that are not ordered")
        self.counts.stepped_over += self.acks.read(event.position, event.offsets)
        bits.insert(self.queued, event.offsets)
        self.queued_count += len(event.offsets)

    def _unqueue(self, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that were queued, which they are no longer."""
        found = offsets & self.queued
        bits.remove(self.queued, found)
        self.queued_count -= len(found)
        return found

    def _hold(self, event: LeasedUntil) -> None:
        self.held.first(self.leased_among)  # what has ended goes
        if event.offsets:
            self.held.put(event.until_ms, event.offsets)

    def _extend(self, event: Extended) -> None:
        if self.held_among(self.leased_among(event.offsets)) != event.offsets:
            raise ValueError("leases were extended that nobody holds")
        self.held.move(event.until_ms, event.offsets)

    def _ack(self, offsets: BitMap64) -> int:
        if self.retrying_count:
            again = offsets & self.retrying
            bits.remove(self.retrying, again)
            self.retrying_count -= len(again)
        if self.queued_count:
            self._unqueue(offsets)
        return self.acks.ack(offsets)

    def _return(self, event: Returned) -> None:
        count, step = len(event.delivery_offset), RELEASED if event.reason == Reason.RELEASED else FAILED
        if count == 1:
            self._return_one(int(event.delivery_offset[0]), int(event.offset[0]), int(event.retry_ms[0]), step)
        else:
            offsets = bits.of_column(event.delivery_offset)
            if count != len(offsets) or len(self.leased_among(offsets)) != count:
                raise ValueError(_NOT_LEASED)
            numbers = self.redeliveries.lease_numbers(event.delivery_offset) + step
            self.redeliveries.put(Rows(event.delivery_offset, event.offset, event.retry_ms, numbers))
            bits.insert(self.retrying, offsets)
            self.held.remove(offsets)
        self.retrying_count += count
        name = event.reason.name.lower()
        setattr(self.counts, name, getattr(self.counts, name) + count)
        if len(self.redeliveries) > 2 * self.acks.count + RECENT:
            self.redeliveries.keep(column_of(self.acks.unacked))

    def _return_one(self, delivery_offset: int, offset: int, retry_ms: int, step: int) -> None:
        number = self.redeliveries.lease_number_of(delivery_offset)
        if not self.is_leased(delivery_offset, number):
            raise ValueError(_NOT_LEASED)
        self.redeliveries.put_one(delivery_offset, offset, retry_ms, number + step)
        self.retrying.add(delivery_offset)
        if self.held:
            self.held.remove(bits.of_one(delivery_offset))

    def _intend(self, event: Intended) -> None:
        dying = {letter.delivery_offset: letter for letter in event.letters}
        if len(self.leased_among(BitMap64(dying))) != len(event.letters):
            raise ValueError("dead letters that were not leased")
        self.dying |= dying

    def _skip(self, position: int) -> None:
        removed = BitMap64(self.acks.unacked)
        removed.remove_range(position, 1 << 63)
        for offset in [offset for offset in self.dying if offset < position]:
            del self.dying[offset]
        self.counts.removed += self._ack(removed)
        if position > self.position:
            self.counts.removed += self.acks.read(position, BitMap64())

    def _seek(self, position: int) -> None:
        passes = self.acks.mark_delete < position  # be it after the position, or un-acked before it
        self.sought = position if passes else min(self.sought, position)
        self.acks = AckSet(position)
        self.retrying = BitMap64()
        self.retrying_count = 0
        self.redeliveries = Redeliveries(first=behind_a_seek(self.redeliveries.first))
        self.dying = {}
        self.queued = BitMap64()
        self.queued_count = 0
        self.held = Deadlines()
        self.elsewhere = {}  # who goes back wants them again

    # Snapshots.

    def to_bytes(self, owner: Owner) -> bytes:
        """The body of a snapshot."""
        self.redeliveries.keep(column_of(self.acks.unacked))
        unacked, retrying = self.acks.unacked.serialize(), self.retrying.serialize()
        rows, held = self.redeliveries.rows(), self._held()
        head = owner._asdict() | {"position": self.position} | asdict(self.counts)
        head["dying"] = [asdict(letter) for letter in self.dying.values()]
        head |= {"unacked_bytes": len(unacked), "retrying_bytes": len(retrying), "redeliveries": len(rows[0])}
        if held:
            head["held"] = [(until_ms, len(offsets)) for until_ms, offsets in held]
        elsewhere = [(origin, offsets.serialize()) for origin, offsets in sorted(self.elsewhere.items())]
        if not self.counts.lapsed:  # as it was before anything expired
            del head["lapsed"]
        if self.sought:
            head["sought"] = self.sought
        if self.redeliveries.first:
            head["first_lease"] = self.redeliveries.first
        if self.is_replicated is not None or elsewhere:
            head |= {
                "replicated": self.is_replicated,
                "elsewhere": [(origin, len(offsets)) for origin, offsets in elsewhere],
            }
        if self.is_paused:
            head["paused"] = True
        queued = [self.queued.serialize()] if self.is_ordered else []
        if queued:
            head["queued"] = len(queued[0])
        parts: list[bytes | memoryview] = [json.dumps(head).encode(), b"\n", unacked, retrying]
        parts += (memoryview(column) for column in rows)
        parts += (offsets for _, offsets in held)
        parts += (offsets for _, offsets in elsewhere)
        parts += queued
        return b"".join(parts)

    @staticmethod
    def of_bytes(body: memoryview, owner: Owner) -> SubscriptionState:
        """ValueError where the body is not what `to_bytes` makes of a state, or of another owner's."""
        line = _HEAD.match(body)
        if line is None:
            raise ValueError("no line of JSON")
        head = parsed(line.group())
        if not isinstance(head, dict) or Owner(head["partition"], head["subscription"]) != owner:
            raise ValueError(f"no snapshot of {owner}")
        sizes = [_size(head[name]) for name in ("unacked_bytes", "retrying_bytes", "redeliveries")]
        held = [(_size(until_ms), _size(size)) for until_ms, size in head.get("held", ())]
        elsewhere = [(str(origin), _size(size)) for origin, size in head.get("elsewhere", ())]
        queued = _size(head.get("queued", 0))
        view = body[line.end() :]
        rest = sizes[0] + sizes[1] + 32 * sizes[2]
        if len(view) != rest + sum(size for _, size in held) + sum(size for _, size in elsewhere) + queued:
            raise ValueError("its parts are not as long as it says")
        acks = AckSet(_size(head["position"]), bitmap(view[: sizes[0]]))
        state = SubscriptionState(acks, sought=_size(head.get("sought", 0)))
        state.retrying = bitmap(view[sizes[0] : sizes[0] + sizes[1]])
        state.retrying_count = len(state.retrying)
        state.redeliveries = Redeliveries(
            Rows(*columns(view[sizes[0] + sizes[1] : rest], 4)), _size(head.get("first_lease", 0))
        )
        state.dying = {letter.delivery_offset: letter for letter in letters(head["dying"])}
        state.counts = Counts(**{name: _size(({"lapsed": 0} | head)[name]) for name in _COUNTS})
        state.is_paused = bool(head.get("paused", False))
        state.is_ordered = "queued" in head
        if state.is_ordered:
            state.queued = bitmap(view[len(view) - queued :])
            state.queued_count = len(state.queued)
        for until_ms, size in held:
            offsets = bitmap(view[rest : rest + size])
            if state.leased_among(offsets) != offsets:
                raise ValueError("it holds what is not leased")
            state.held.put(until_ms, offsets)
            rest += size
        replicated = head.get("replicated")
        state.is_replicated = None if replicated is None else bool(replicated)
        for origin, size in elsewhere:
            state.elsewhere[origin] = bitmap(view[rest : rest + size])
            rest += size
        try:
            state.check()
        except AssertionError as error:
            raise ValueError("its parts contradict each other") from error
        return state

    def check(self) -> None:
        """AssertionError where an invariant does not hold."""
        self.acks.check()
        self.redeliveries.check()
        unacked, dying = self.acks.unacked, BitMap64(self.dying)
        assert self.retrying_count == len(self.retrying)
        assert self.retrying <= unacked
        assert dying <= unacked
        assert dying.isdisjoint(self.retrying)
        assert self.queued_count == len(self.queued)
        assert self.queued <= unacked
        assert self.queued.isdisjoint(self.retrying)
        assert self.queued.isdisjoint(dying)
        assert self.is_ordered or not self.queued_count
        known = self.redeliveries.rows().delivery_offset
        assert self.retrying <= bits.of_column(known)
        assert self.leased_count == len(self.leased())
        held = BitMap64()
        for _, offsets in self.held.items():
            leased = self.leased_among(offsets)
            assert held.isdisjoint(leased)
            held |= leased

    def _held(self) -> list[tuple[int, bytes]]:
        """What is held and leased, by time; the bytes tell of the offsets alone, and not of how they came together."""
        leased = sorted((until_ms, self.leased_among(offsets)) for until_ms, offsets in self.held.items())
        return [(until_ms, bits.of_column(column_of(offsets)).serialize()) for until_ms, offsets in leased if offsets]


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number from 0 on")
    return value
