"""One input partition in a world of its own: every order of what can happen, over a small history of records.

    send the next record │ the worker reads one │ a turn is committed │ a turn is lost │ committed, and the worker dies
    the worker dies, or stops cleanly and leaves its cache │ a millisecond goes by

States that were seen are not gone into again, so all orders of them are covered. Where nothing more can happen, each
record was delivered once, or was ended by a cancel or a record of its id, and never early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TypeAlias

from afterlog.relay.instruction import Cancellation, Instruction, Refusal, ScheduledDelivery
from afterlog.relay.rectangle import Rectangle
from afterlog.relay.relay_partition import DeliveryTurn, RelayPartition

END_MS = 4
"""Until then time goes by; all is due before."""
CARRY_OFFSET = 1_000
"""What was carried is another partition's from then on: it counts as delivered there."""


class PendingList:
    """What waits, in a list: the oracle of `PendingRecords`. Like a log it gives a record no time before its clock."""

    def __init__(self) -> None:
        self.records: list[ScheduledDelivery] = []
        self.clock_ms = 0
        self.stamps: dict[int, int] = {}
        """By offset."""

    def add(self, record: ScheduledDelivery) -> None:
        assert all(each.offset < record.offset for each in self.records)
        self.records.append(record)
        self.stamps[record.offset] = max(record.due_ms, self.clock_ms)

    def cancel(self, schedule_id: bytes, order: int) -> bool | None:
        for row in reversed(range(len(self.records))):
            if self.records[row].id == schedule_id:
                is_older = self.records[row].order < order
                if is_older:
                    del self.records[row]
                return is_older
        return None

    def take(self, upto_ms: int, most: int) -> list[ScheduledDelivery]:
        self.clock_ms = max(self.clock_ms, upto_ms)
        due = [each for each in self.records if self.stamps[each.offset] <= upto_ms]
        due = sorted(due, key=lambda each: (self.stamps[each.offset], each.offset))[:most]
        self.records = [each for each in self.records if each not in due]
        return due

    def take_oldest(self, before: int, most: int) -> list[ScheduledDelivery]:
        taken = [each for each in self.records if each.offset < before][:most]
        self.records = [each for each in self.records if each not in taken]
        return taken

    def lowest(self) -> int | None:
        return min((each.offset for each in self.records), default=None)

    def next_due_ms(self) -> int | None:
        return min((each.due_ms for each in self.records), default=None)

    def __len__(self) -> int:
        return len(self.records)


def scheduled(offset: int, due_ms: int, schedule_id: bytes = b"") -> ScheduledDelivery:
    return ScheduledDelivery(offset, due_ms, "out", None, b"%d" % offset, (), 0, schedule_id)


Making: TypeAlias = Callable[[Rectangle, PendingList, bool, int], RelayPartition]


def as_it_is(committed: Rectangle, pending: PendingList, is_cached: bool, end: int) -> RelayPartition:
    return RelayPartition(committed, pending, is_cached=is_cached, end=end)


@dataclass
class World:
    """A state. made: how a partition is made, with a planted bug perhaps."""

    history: Sequence[Instruction]
    made: Making
    most: int
    carries: bool
    now_ms: int = 0
    sent: int = 0
    """Of the history, in Kafka."""
    committed: Rectangle = field(default_factory=lambda: Rectangle.beginning(0))
    delivered: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    cache: tuple[Rectangle, PendingList] | None = None
    failures: int = 0
    """Of which a world has a few at most."""
    begun_at: int = 0
    """What was sent when the worker began."""

    def __post_init__(self) -> None:
        self.worker = self._begun()

    def _begun(self) -> RelayPartition:
        cache, self.cache = self.cache, None
        self.begun_at = self.sent
        if cache is not None and cache[0] == self.committed:
            return self.made(self.committed, cache[1], True, self.sent)
        return self.made(self.committed, PendingList(), False, self.sent)

    def signature(self) -> object:
        worker, gathered = self.worker, self.worker._gathered
        cache = None if self.cache is None else (self.cache[0], tuple(self.cache[1].records))
        pending = worker.pending
        assert isinstance(pending, PendingList)
        return (
            self.now_ms, self.sent, self.committed, tuple(sorted(self.delivered)), tuple(self.refused), cache,
            self.failures, worker.next_offset, worker._known_at, worker._live_at, worker._frontier,
            worker._is_draining, self.begun_at,
            tuple(worker._held), tuple(gathered.late), tuple(gathered.refused), tuple(pending.records),
            pending.clock_ms,
        )  # fmt: skip

    def steps(self, failures_max: int) -> Iterator[World]:
        """The worlds that may come next."""
        if self.sent < len(self.history):
            after = self._copy()
            after.sent += 1
            yield after
        if self.now_ms < END_MS:
            after = self._copy()
            after.now_ms += 1
            yield after
        if self._next() < self.sent:
            after = self._copy()
            after.worker.take(self.history[self._next()])
            yield after
        if self.worker.state != "rebuilding":
            after = self._copy()
            turn = after._turned()
            after.worker.committed(turn)
            after.worker.check()
            yield after
            if self.failures < failures_max:
                yield self._died(lambda world: world._turned())
                yield self._died(lambda world: world.worker.turn(world.now_ms, world.most))
        if self.failures < failures_max:
            yield self._died(lambda world: None)
            yield self._died(World._saved)
            if self.worker.state != "rebuilding":
                yield self._died(World._saved_behind_a_turn)

    def judge(self) -> None:
        """Raises AssertionError where this is wrong, whatever comes."""
        counts = Counter(self.delivered)
        assert max(counts.values(), default=0) <= 1, f"delivered twice: {counts}"
        for offset in self.delivered:
            record = self.history[offset]
            assert isinstance(record, ScheduledDelivery)
            assert record.due_ms <= self.now_ms or self.carries, f"{offset} is early"
        assert len(set(self.refused)) == len(self.refused), "refused twice"

    def judge_end(self) -> None:
        """The same where all has happened: nothing waits, nothing is unread, the time is up."""
        ended = {*_ended(self.history)}
        for record in self.history:
            if isinstance(record, ScheduledDelivery):
                assert record.offset in self.delivered or record.offset in ended, f"{record.offset} is lost"
            if isinstance(record, Refusal):
                assert record.offset in self.refused, f"{record.offset} was not refused"

    @property
    def is_over(self) -> bool:
        worker = self.worker
        is_read = self.sent == len(self.history) == self.committed.next_offset == worker.next_offset
        is_idle = worker.state == "live" and not worker.has_gathered and not len(worker.pending)
        return is_read and is_idle and self.now_ms == END_MS

    def _next(self) -> int:
        """Of the held ones the worker has been given some already."""
        worker = self.worker
        return max(worker.next_offset, max((offset for offset, _ in worker._held), default=-1) + 1)

    def _turned(self) -> DeliveryTurn:
        """A turn that Kafka has committed; what waits when it was to be cancelled must not be in it."""
        turn = self.worker.turn(self.now_ms, self.most, carry_before=CARRY_OFFSET if self.carries else 0, carry_most=1)
        read = self.history[: max(turn.rectangle.next_offset, self.begun_at)]
        for each in (*turn.due, *turn.carried):
            later = {other.id for other in read if not isinstance(other, Refusal) and other.offset > each.offset}
            assert not each.id or each.id not in later, f"{each.offset} was ended, and goes out"
        self.delivered += [each.offset for each in (*turn.late, *turn.due, *turn.carried)]
        self.refused += [each.offset for each in turn.refused]
        self.committed = turn.rectangle
        return turn

    def _saved(self) -> None:
        """The worker ends cleanly, as `relay_session` lets it."""
        worker = self.worker
        assert isinstance(worker.pending, PendingList)
        if worker.is_settled:
            self.cache = worker.rectangle, worker.pending

    def _saved_behind_a_turn(self) -> None:
        """That is lost."""
        self.worker.turn(self.now_ms, self.most)
        self._saved()

    def _died(self, before: Callable[[World], object]) -> World:
        after = self._copy()
        after.failures += 1
        after.cache = None
        before(after)
        after.worker = after._begun()
        return after

    def _copy(self) -> World:
        made = copy(self)
        made.delivered, made.refused, made.worker = [*self.delivered], [*self.refused], _copied(self.worker)
        return made


def _copied(worker: RelayPartition) -> RelayPartition:
    """A deep copy, of what changes: its records do not."""
    made, gathered = copy(worker), copy(worker._gathered)
    gathered.late, gathered.refused, gathered.cancels = [*gathered.late], [*gathered.refused], [*gathered.cancels]
    assert isinstance(worker.pending, PendingList)
    made._pending = pending = copy(worker.pending)
    pending.records, pending.stamps = [*pending.records], {**pending.stamps}
    made._gathered, made._held, made.counts = gathered, copy(worker._held), copy(worker.counts)
    return made


def _ended(history: Sequence[Instruction]) -> Iterator[int]:
    """The records that a later one of their id may have ended."""
    for record in history:
        if isinstance(record, ScheduledDelivery) and record.id:
            later = [other for other in history if isinstance(other, ScheduledDelivery | Cancellation)]
            if any(other.id == record.id and other.offset > record.offset for other in later):
                yield record.offset


def explore(
    history: Sequence[Instruction], *, made: Making = as_it_is, most: int = 2, failures: int = 2, carries: bool = False
) -> int:
    """How many states there are. Raises AssertionError where one of them is wrong, or nothing comes to its end."""
    left = [World(history, made, most, carries)]
    seen = {left[0].signature()}
    ends = 0
    while left:
        world = left.pop()
        world.judge()
        if world.is_over:
            world.judge_end()
            ends += 1
        for after in world.steps(failures):
            name = after.signature()
            if name not in seen:
                seen.add(name)
                left.append(after)
    assert ends, "nothing came to its end"
    return len(seen)
