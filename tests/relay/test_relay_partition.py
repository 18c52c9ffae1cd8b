"""The rules by which an input partition is relayed, in every order of what can happen; and bugs that must be seen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from afterlog.relay.instruction import Cancellation, Instruction, KafkaRecord, Refusal, ScheduledDelivery
from afterlog.relay.rectangle import BEGINNING, ENDLESS, DueKey, Rectangle
from afterlog.relay.relay_partition import DeliveryTurn, RelayPartition
from tests import campaigns
from tests.relay.simulation import PendingList, explore, scheduled

KINDS = ("soon", "late", "soon a", "late a", "cancel a", "refused")
HISTORIES = [*itertools.product(KINDS, repeat=3)]
BEGUN = Rectangle.beginning(0)


def history_of(kinds: Sequence[str]) -> list[Instruction]:
    """soon: due at 1; late: at 3."""
    made: list[Instruction] = []
    for offset, kind in enumerate(kinds):
        schedule_id = b"a" if kind.endswith(" a") else b""
        if kind == "cancel a":
            made.append(Cancellation(offset, b"a"))
        elif kind == "refused":
            made.append(Refusal(KafkaRecord(offset, 0, None, None), "no header"))
        else:
            made.append(scheduled(offset, 1 if kind.startswith("soon") else 3, schedule_id))
    return made


def test_each_record_goes_out_once_whatever_comes_in_whatever_order() -> None:
    states = 0
    for number, kinds in enumerate(campaigns.share(HISTORIES, 24)):
        most, carries = 1 + number % 2, number % 3 == 0
        states += explore(history_of(kinds), most=most, carries=carries)
    assert states > 500


def test_longer_histories() -> None:
    chance = random.Random(campaigns.SEED)
    for _ in range(20 if campaigns.WHOLE else 1):
        history: list[Instruction] = []
        for offset in range(4):
            schedule_id = chance.choice((b"", b"a", b"b"))
            if schedule_id and chance.random() < 0.3:
                history.append(Cancellation(offset, schedule_id))
            else:
                history.append(scheduled(offset, chance.randrange(1, 4), schedule_id))
        explore(history, most=chance.randrange(1, 3), failures=1, carries=chance.random() < 0.3)


class TestTurn:
    def test_what_is_late_goes_out_with_the_offset_behind_it(self) -> None:
        partition = RelayPartition(BEGUN, PendingList())
        partition.committed(partition.turn(10, 5))
        partition.take(scheduled(0, 9))
        turn = partition.turn(10, 5)
        assert [each.offset for each in turn.late] == [0]
        assert turn.rectangle == Rectangle(1, DueKey(10, ENDLESS), 1)

    def test_a_full_turn_ends_at_its_last_key_and_nothing_is_taken_in(self) -> None:
        partition = RelayPartition(BEGUN, PendingList())
        for offset in range(3):
            partition.take(scheduled(offset, 5))
        first = partition.turn(6, 2)
        assert first.rectangle == Rectangle(3, DueKey(5, 1), 2)
        partition.committed(first)
        assert partition.state == "draining"
        partition.take(scheduled(3, 5))
        assert partition.next_offset == 3
        second = partition.turn(6, 2)
        partition.committed(second)
        assert second.rectangle == Rectangle(3, DueKey(6, ENDLESS), 3)
        assert partition.next_offset == 4  # what was held
        assert [each.offset for each in partition.turn(6, 2).late] == [3]

    def test_a_clock_that_is_set_back_takes_nothing_back(self) -> None:
        partition = RelayPartition(BEGUN, PendingList())
        partition.committed(partition.turn(10, 5))
        partition.take(scheduled(0, 9))
        turn = partition.turn(3, 5)
        assert turn.rectangle.frontier == DueKey(10, ENDLESS)
        assert len(turn.late) == 1

    def test_nothing_goes_out_before_all_was_read_again(self) -> None:
        partition = RelayPartition(Rectangle(2, DueKey(0, ENDLESS), 0), PendingList())
        partition.take(scheduled(0, 1, b"a"))
        assert partition.state == "rebuilding"
        with pytest.raises(AssertionError):
            partition.turn(5, 5)
        partition.take(Cancellation(1, b"a"))
        assert partition.state == "live"
        assert not partition.turn(5, 5).due

    def test_nor_before_the_end_of_what_there_is(self) -> None:
        """A cancel may be there, which somebody sent while nobody had the partition."""
        partition = RelayPartition(Rectangle(1, DueKey(0, ENDLESS), 0), PendingList(), end=2)
        partition.take(scheduled(0, 1, b"a"))
        assert partition.state == "rebuilding"
        partition.take(Cancellation(1, b"a"))
        assert not partition.turn(5, 5).due

    def test_an_open_transaction_at_the_end_holds_nothing_up(self) -> None:
        partition = RelayPartition(Rectangle(1, DueKey(0, ENDLESS), 0), PendingList(), end=9)
        partition.take(scheduled(0, 1))
        partition.reached(1)
        assert partition.state == "live"

    def test_markers_at_the_end_are_passed_over(self) -> None:
        partition = RelayPartition(Rectangle(3, BEGINNING, 0), PendingList())
        partition.take(scheduled(0, 1))
        partition.reached(3)
        assert partition.state == "live"
        assert partition.next_offset == 3

    def test_counts(self) -> None:
        partition = RelayPartition(BEGUN, PendingList(), carries=True)
        for instruction in history_of(("soon a", "late a", "cancel a", "cancel a", "refused")):
            partition.take(instruction)
        turn = partition.turn(2, 5)
        partition.committed(turn)
        counts = partition.counts
        assert (1, 1, 1, 1) == (counts.replaced, counts.cancelled, counts.cancels_missed, counts.refused)
        assert [each.offset for each in turn.cancels] == [0, 3]


# Bugs that must be seen.


class FrontierBeyondWhatWasSent(RelayPartition):
    def turn(self, now_ms: int, most: int, *, carry_before: int = 0, carry_most: int = 0) -> DeliveryTurn:
        turn = super().turn(now_ms, most, carry_before=carry_before, carry_most=carry_most)
        self._frontier = DueKey(max(now_ms, self._frontier.due_ms), ENDLESS)
        return turn._replace(rectangle=turn.rectangle._replace(frontier=self._frontier))


class IntakeWhileDraining(RelayPartition):
    def _take(self, offset: int, instruction: Instruction | None) -> None:
        is_draining, self._is_draining = self._is_draining, False
        super()._take(offset, instruction)
        self._is_draining = is_draining


class LateInTheIndex(RelayPartition):
    def _schedule(self, record: ScheduledDelivery, is_new: bool) -> None:
        frontier, self._frontier = self._frontier, BEGINNING
        super()._schedule(record, is_new)
        self._frontier = frontier


class LateSentAgain(RelayPartition):
    def _schedule(self, record: ScheduledDelivery, is_new: bool) -> None:
        super()._schedule(record, True)


class CancelForgottenInARebuild(RelayPartition):
    def _cancel(self, cancellation: Cancellation, is_new: bool) -> None:
        if is_new:
            super()._cancel(cancellation, is_new)


class ReplacedByDeliveredStays(RelayPartition):
    def _schedule(self, record: ScheduledDelivery, is_new: bool) -> None:
        if record.due_key <= self._frontier:
            record = record._replace(id=b"")
        super()._schedule(record, is_new)


class LowestTooHigh(RelayPartition):
    def turn(self, now_ms: int, most: int, *, carry_before: int = 0, carry_most: int = 0) -> DeliveryTurn:
        turn = super().turn(now_ms, most, carry_before=carry_before, carry_most=carry_most)
        offset = turn.rectangle.next_offset
        lowest = min(turn.rectangle.lowest + 1, offset)
        return turn._replace(rectangle=turn.rectangle._replace(lowest=lowest))


class LateIsDropped(RelayPartition):
    def turn(self, now_ms: int, most: int, *, carry_before: int = 0, carry_most: int = 0) -> DeliveryTurn:
        turn = super().turn(now_ms, most, carry_before=carry_before, carry_most=carry_most)
        return turn._replace(late=[])


class LateWaitsForTheNextTurn(RelayPartition):
    """It goes out behind the offset that was committed."""

    kept: Sequence[ScheduledDelivery] = ()

    def turn(self, now_ms: int, most: int, *, carry_before: int = 0, carry_most: int = 0) -> DeliveryTurn:
        turn = super().turn(now_ms, most, carry_before=carry_before, carry_most=carry_most)
        kept, self.kept = self.kept, turn.late
        return turn._replace(late=kept)


class OutBeforeAllWasRead(RelayPartition):
    @property
    def state(self):  # type: ignore[no-untyped-def,override]
        return "draining" if self._is_draining else "live"


class OutBeforeTheEndWasRead(RelayPartition):
    """A cancel that was there is not heeded."""

    def __init__(self, *given, end=0, **more):  # type: ignore[no-untyped-def]
        super().__init__(*given, **more)


class CacheBehindALostTurn(RelayPartition):
    @property
    def is_settled(self) -> bool:
        self._is_turning = False
        return super().is_settled


class FrontierFollowsTheClockBack(RelayPartition):
    """It begins anew with that of the clock."""

    def turn(self, now_ms: int, most: int, *, carry_before: int = 0, carry_most: int = 0) -> DeliveryTurn:
        turn = super().turn(now_ms, most, carry_before=carry_before, carry_most=carry_most)
        self._frontier = DueKey(max(now_ms - 1, 0), ENDLESS)
        return turn._replace(rectangle=turn.rectangle._replace(frontier=self._frontier))


class OffsetAheadOfWhatWasTaken(RelayPartition):
    def turn(self, now_ms: int, most: int, *, carry_before: int = 0, carry_most: int = 0) -> DeliveryTurn:
        turn = super().turn(now_ms, most, carry_before=carry_before, carry_most=carry_most)
        ahead = turn.rectangle.next_offset + len(self._held)
        return turn._replace(rectangle=turn.rectangle._replace(next_offset=ahead))


class CarriedStays(RelayPartition):
    def turn(self, now_ms: int, most: int, *, carry_before: int = 0, carry_most: int = 0) -> DeliveryTurn:
        turn = super().turn(now_ms, most, carry_before=carry_before, carry_most=carry_most)
        for each in turn.carried:
            self._pending.add(each)
        return turn


class DueAreTakenByOffset(RelayPartition):
    def turn(self, now_ms: int, most: int, *, carry_before: int = 0, carry_most: int = 0) -> DeliveryTurn:
        pending = self._pending
        assert isinstance(pending, PendingList)
        taken = pending.records
        pending.records = [each for each in taken if each.due_ms <= now_ms][:most]
        chosen = [*pending.records]
        turn = super().turn(now_ms, most)
        pending.records = [each for each in taken if each not in chosen]
        lowest = pending.lowest()
        rectangle = turn.rectangle
        lowest = rectangle.next_offset if lowest is None else lowest
        return turn._replace(rectangle=rectangle._replace(lowest=lowest))


Showing = tuple[tuple[str, ...], int, bool]
"""A history that shows it, records of a turn, and whether it carries."""
PLANTED: dict[type[RelayPartition], Showing] = {
    FrontierBeyondWhatWasSent: (("late", "soon"), 1, False),
    IntakeWhileDraining: (("soon", "late", "soon"), 1, False),
    LateInTheIndex: (("late", "soon"), 1, False),
    LateSentAgain: (("late", "soon"), 1, False),
    CancelForgottenInARebuild: (("late", "late a", "cancel a"), 1, False),
    ReplacedByDeliveredStays: (("late a", "soon a"), 2, False),
    LowestTooHigh: (("late a", "cancel a"), 2, False),
    LateIsDropped: (("late", "soon"), 2, False),
    LateWaitsForTheNextTurn: (("soon", "late", "soon"), 2, False),
    OutBeforeAllWasRead: (("late", "soon"), 2, False),
    OutBeforeTheEndWasRead: (("late a", "cancel a"), 2, False),
    CacheBehindALostTurn: (("late", "soon"), 2, False),
    FrontierFollowsTheClockBack: (("soon", "late", "soon"), 2, True),
    OffsetAheadOfWhatWasTaken: (("late", "late a", "cancel a"), 1, False),
    CarriedStays: (("late a", "cancel a"), 2, True),
    DueAreTakenByOffset: (("late", "soon"), 1, False),
}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: each.__name__)
def test_a_planted_bug_is_seen(planted: type[RelayPartition]) -> None:
    kinds, most, carries = PLANTED[planted]
    explore(history_of(kinds), most=most, carries=carries)  # as it is nothing is wrong

    def making(committed: Rectangle, pending: PendingList, is_cached: bool, end: int) -> RelayPartition:
        return planted(committed, pending, is_cached=is_cached, end=end)

    with pytest.raises(AssertionError):
        explore(history_of(kinds), made=making, most=most, carries=carries)


def test_a_cache_of_something_else_is_seen() -> None:
    """Where a cache is taken whatever was committed, something is lost or doubled."""

    def careless(committed: Rectangle, pending: PendingList, is_cached: bool, end: int) -> RelayPartition:
        return RelayPartition(committed, PendingList(), is_cached=True, end=end)

    with pytest.raises(AssertionError):
        explore(history_of(("late", "soon")), made=careless)
