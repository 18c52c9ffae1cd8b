"""One input partition: what its records ask for, when it goes out, what is committed with it. Nothing here is Kafka.

    assigned ──> rebuilding ──all was read──> live ──a turn was full──> draining
                                               ^────────all is out──────────┘

    take(record), take(record), …      in the order of the offsets
    turn(now) ──> what goes out, and the rectangle to commit with it, in one transaction
        ──it was committed──> committed(turn)        ──else──> throw this away, and begin with what is committed

A turn that is not committed has taken its records out of what is pending: there is no way back but Kafka. So a failure
has one answer, whatever failed, and it is that of a crash.

Invariants, with R, F, L of `rectangle`:
  1. Live, and behind each turn, what is pending has L <= offset < R and a key behind F.
  2. F never moves back. Nothing is taken in while some of what is due has not gone out: what comes meanwhile is held.
  3. What goes out in a turn: what was late or refused since the last one, and the lowest keys of what is pending, at
     most `most` of these, none due later than now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

from afterlog.relay.instruction import Cancellation, Instruction, Refusal, ScheduledDelivery
from afterlog.relay.rectangle import ENDLESS, DueKey, Rectangle

PartitionState: TypeAlias = Literal["rebuilding", "live", "draining"]


class PendingSeam(Protocol):
    """What waits, in order of (due, offset). A seam: `pending_records` has it on disk, the simulation in a list."""

    def add(self, record: ScheduledDelivery) -> None:
        """Its offset is above all that were added."""

    def cancel(self, schedule_id: bytes, order: int) -> bool | None:
        """What waits under this id goes, if its order is below. None where there is none, False where it is newer."""

    def take(self, upto_ms: int, most: int) -> list[ScheduledDelivery]:
        """The first `most` of those due at or before `upto_ms`, in order. They are gone from here."""

    def take_oldest(self, before: int, most: int) -> list[ScheduledDelivery]:
        """The first `most` of those whose offset is below `before`, in order of offsets. They are gone from here."""

    def lowest(self) -> int | None:
        """The lowest offset."""

    def next_due_ms(self) -> int | None:
        """No later than when the first is due; None where there are none."""

    def __len__(self) -> int: ...


@dataclass(slots=True)
class RelayCounts:
    """Since the partition was assigned."""

    delivered: int = 0
    late: int = 0
    """Delivered at once: due, or behind the frontier, when they were read."""
    refused: int = 0
    carried: int = 0
    cancelled: int = 0
    """Cancels that found what they name; `replaced` likewise, of newer records under the same id."""
    replaced: int = 0
    cancels_missed: int = 0
    """Cancels of what was delivered, cancelled, or never there."""


class DeliveryTurn(NamedTuple):
    """What goes out in one transaction, and what is committed with it. is_full: there may be more that is due.

    late and due are delivered, refused is told with its reasons, carried is appended to the carry topic.
    """

    late: Sequence[ScheduledDelivery]
    refused: Sequence[Refusal]
    due: Sequence[ScheduledDelivery]
    carried: Sequence[ScheduledDelivery]
    cancels: Sequence[Cancellation]
    """That found nothing here: what they name may have been carried."""
    rectangle: Rectangle
    is_full: bool


@dataclass(slots=True)
class _Gathered:
    """For the next turn."""

    late: list[ScheduledDelivery] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    cancels: list[Cancellation] = field(default_factory=list)


class RelayPartition:
    """For one thread."""

    def __init__(
        self, committed: Rectangle, pending: PendingSeam, *, end: int = 0, is_cached: bool = False,
        carries: bool = False,
    ) -> None:  # fmt: skip
        """pending: empty, or, where is_cached, what is pending by `committed`. carries: turns have `cancels`.

        end: of what there is now. Nothing goes out before it was read: a cancel may be there, of what was due while
        nobody had the partition.
        """
        self._carries = carries
        self._committed = committed
        self._pending = pending
        self._frontier = committed.frontier
        self.next_offset = committed.next_offset if is_cached else committed.lowest
        """Where reading goes on."""
        self._known_at = committed.next_offset
        """Before it a record is read again."""
        self._live_at = max(committed.next_offset, end)
        self._is_draining = False
        self._held: deque[tuple[int, Instruction | None]] = deque()
        self._gathered = _Gathered()
        self._is_turning = False
        """A turn has taken out what it sends, and it is not known to be committed."""
        self.counts = RelayCounts()

    @property
    def state(self) -> PartitionState:
        if self.next_offset < self._live_at:
            return "rebuilding"
        return "draining" if self._is_draining else "live"

    @property
    def rectangle(self) -> Rectangle:
        """As it was committed last."""
        return self._committed

    @property
    def pending(self) -> PendingSeam:
        return self._pending

    def take(self, instruction: Instruction) -> None:
        """What a record asks for. What was read before is passed over."""
        self._take(instruction.offset, instruction)

    def reached(self, offset: int) -> None:
        """There is nothing more below `offset`, and nothing behind it to be read now: markers of transactions, what
        compaction has left out, and transactions that are open are no records."""
        self._live_at = max(min(self._live_at, offset), self._known_at)
        if offset > self.next_offset:
            self._take(offset - 1, None)

    @property
    def has_gathered(self) -> bool:
        """Whether something that was read waits for the next turn."""
        gathered = self._gathered
        return bool(gathered.late or gathered.refused or gathered.cancels or self._held)

    @property
    def is_settled(self) -> bool:
        """Whether what is pending is that of `rectangle`, so that it can be kept as a cache."""
        is_read = self.next_offset == self._committed.next_offset
        return self.state == "live" and is_read and not self._is_turning and not self.has_gathered

    def turn(self, now_ms: int, most: int, *, carry_before: int = 0, carry_most: int = 0) -> DeliveryTurn:
        """What is to go out now. carry_before: of what is pending below this offset, `carry_most` are to be carried.

        Not while it is rebuilding: a cancel may be among what was not read yet.
        """
        assert self.state != "rebuilding", "what is not known yet cannot go out"
        self._is_turning = True
        gathered, self._gathered = self._gathered, _Gathered()
        upto_ms = max(now_ms, self._frontier.due_ms)
        due = self._pending.take(upto_ms, most)
        is_full = len(due) >= most
        self._frontier = due[-1].due_key if is_full else DueKey(upto_ms, ENDLESS)
        carried = [] if is_full else self._pending.take_oldest(carry_before, carry_most)
        lowest = self._pending.lowest()
        rectangle = Rectangle(self.next_offset, self._frontier, self.next_offset if lowest is None else lowest)
        self._is_draining = is_full
        return DeliveryTurn(gathered.late, gathered.refused, due, carried, gathered.cancels, rectangle, is_full)

    def committed(self, turn: DeliveryTurn) -> None:
        """It was. Then what was held is taken."""
        self._committed = turn.rectangle
        self._is_turning = False
        counts = self.counts
        counts.delivered += len(turn.late) + len(turn.due)
        counts.late += len(turn.late)
        counts.refused += len(turn.refused)
        counts.carried += len(turn.carried)
        while self._held and not self._is_draining:
            self._take(*self._held.popleft())

    def has_something(self, now_ms: int) -> bool:
        """Whether a turn has something to send."""
        if self._is_draining or self.has_gathered:
            return True
        next_ms = self._pending.next_due_ms()
        return next_ms is not None and next_ms <= max(now_ms, self._frontier.due_ms)

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold. For tests; behind a turn that was committed."""
        offset, frontier, lowest = self._committed
        assert 0 <= lowest <= offset <= self.next_offset or self.state == "rebuilding"
        assert frontier <= self._frontier
        first = self._pending.lowest()
        assert first is None or first >= lowest

    def _take(self, offset: int, instruction: Instruction | None) -> None:
        if self._is_draining:
            self._held.append((offset, instruction))
            return
        if offset < self.next_offset:
            return
        is_new = offset >= self._known_at
        self.next_offset = offset + 1
        if isinstance(instruction, ScheduledDelivery):
            self._schedule(instruction, is_new)
        elif isinstance(instruction, Cancellation):
            self._cancel(instruction, is_new)
        elif instruction is not None and is_new:
            self._gathered.refused.append(instruction)

    def _schedule(self, record: ScheduledDelivery, is_new: bool) -> None:
        """Whether it was delivered meanwhile or not, it has taken the place of an earlier one of its id. One that was
        carried may come behind a newer one, and is nothing then."""
        ended = self._pending.cancel(record.id, record.order) if record.id else None
        if ended is not None:
            self.counts.replaced += 1
        elif record.id and is_new and self._carries:
            self._gathered.cancels.append(Cancellation(record.offset, record.id, True, record.order))
        if ended is False:
            return
        if record.due_key > self._frontier:
            self._pending.add(record)
        elif is_new:
            self._gathered.late.append(record)

    def _cancel(self, cancellation: Cancellation, is_new: bool) -> None:
        if self._pending.cancel(cancellation.id, cancellation.order):
            self.counts.cancelled += 1
        elif is_new:
            self.counts.cancels_missed += 1
            if self._carries:
                self._gathered.cancels.append(cancellation)
