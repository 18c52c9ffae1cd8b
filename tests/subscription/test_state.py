from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyroaring import BitMap64

from afterlog.subscription.ack_set import AckSet
from afterlog.subscription.events import (
    Acked,
    Dead,
    Event,
    Extended,
    Intended,
    Leapt,
    Leased,
    LeasedUntil,
    Ordered,
    Paused,
    Queued,
    Reason,
    Skipped,
    Sought,
    decode,
    encode,
)
from afterlog.subscription.state import Owner, SubscriptionState
from tests import campaigns
from tests.subscription.samples import HELD, IN_TURN, OWNER, SOUGHT, STORY, Model, facts, letter, returned


def after(*events: Event) -> SubscriptionState:
    state = SubscriptionState(AckSet())
    for event in events:
        state.apply(event)
    return state


@pytest.mark.parametrize("events", [SOUGHT, HELD, IN_TURN], ids=["sought", "held", "in turn"])
def test_a_story(events: tuple[Event, ...]) -> None:
    state, model = SubscriptionState(AckSet()), Model()
    for event in events:
        state.apply(event)
        model.apply(event)
        model.agrees(state)


def test_counts() -> None:
    counts = after(*STORY).counts
    assert (3, 1, 2, 2, 1, 1, 1) == (
        counts.acked, counts.dead, counts.nacked, counts.expired, counts.crashed, counts.released, counts.stepped_over
    )  # fmt: skip
    counts = after(*SOUGHT).counts
    assert 7 == counts.removed


def test_what_is_on_its_way_to_the_dead_letters_is_acked_by_nobody() -> None:
    """A journal that says so is not ours: its state would contradict itself. Found by the fuzzer."""
    state = after(*STORY, Leased(11, BitMap64([10])), Intended((letter(10),)))
    before = facts(state)
    with pytest.raises(ValueError, match="dead letters"):
        state.apply(Acked(BitMap64([10])))
    assert before == facts(state)


@pytest.mark.parametrize(
    "event",
    [
        Leased(8, BitMap64()),
        Leased(12, BitMap64([12])),
        Leased(12, BitMap64([1])),
        returned(Reason.NACKED, 0),
        returned(Reason.NACKED, 99),
        returned(Reason.NACKED, 10, 10),
        Intended((letter(0),)),
        Intended((letter(10), letter(10))),
    ],
)
def test_what_cannot_be(event: Event) -> None:
    state = after(*STORY, Leased(11, BitMap64([10])))
    before = facts(state)
    with pytest.raises(ValueError, match=r"."):
        state.apply(event)
    assert before == facts(state)


@pytest.mark.parametrize(
    "event",
    [
        Ordered(),
        Queued(8, BitMap64()),
        Queued(12, BitMap64([8])),
        Queued(12, BitMap64([12])),
        Leased(9, BitMap64([5, 4])),
        returned(Reason.NACKED, 5),
    ],
    ids=["ordered on its way", "read back", "read already", "not read", "acked", "queued"],
)
def test_what_cannot_be_in_turn(event: Event) -> None:
    state = after(*IN_TURN)
    with pytest.raises(ValueError, match=r"."):
        state.apply(event)
    with pytest.raises(ValueError, match="not ordered"):
        after(*STORY).apply(Queued(20, BitMap64([15])))


@pytest.mark.parametrize(
    "event",
    [
        Extended(20_000, BitMap64([2, 4])),
        Extended(20_000, BitMap64([1])),
        Extended(20_000, BitMap64([3])),
        Extended(20_000, BitMap64([8])),
        LeasedUntil(8, BitMap64([2]), 20_000),
    ],
    ids=["not held", "acked", "dying", "not read", "leased already"],
)
def test_what_cannot_be_held(event: Event) -> None:
    state = after(*HELD)
    before = facts(state)
    with pytest.raises(ValueError, match=r"."):
        state.apply(event)
    assert before == facts(state)


def test_what_has_ended_is_forgotten() -> None:
    """A reader that acks in time leaves nothing behind, however long it goes on."""
    state = SubscriptionState(AckSet())
    for number in range(1_000):
        state.apply(LeasedUntil(number + 1, BitMap64([number]), number * 10))
        state.apply(Acked(BitMap64([number])))
    assert [(9_990, [999])] == [(ms, list(offsets)) for ms, offsets in state.held.items()]


def test_one_record_by_itself() -> None:
    """What it becomes without an event is what it becomes by one."""
    by_event, by_number = after(*STORY), after(*STORY)
    position = by_event.position
    for offset, upto in ((position, position + 1), (position + 3, position + 5)):
        by_event.apply(Leased(upto, BitMap64([offset])))
        by_number.lease_one(upto, offset)
        assert facts(by_event) == facts(by_number)
    retrying = by_event.retrying[0]
    for offset in (position, retrying):
        by_event.apply(Acked(BitMap64([offset])))
        by_number.ack_one(offset)
        by_number.check()
        assert facts(by_event) == facts(by_number)
    for offset, upto in ((position, position + 9), (position + 5, position + 5)):
        with pytest.raises(ValueError, match="is not read between"):
            by_number.lease_one(upto, offset)


class TestSnapshot:
    def test_it_carries_deadlines_where_there_are_any(self) -> None:
        state, model = after(*HELD), Model()
        for event in HELD:
            model.apply(event)
        again = SubscriptionState.of_bytes(memoryview(facts(state)), OWNER)
        model.agrees(again)
        assert facts(state) == facts(again)
        assert {2: 15_000, 5: 12_000, 6: 15_000, 7: 12_000} == model.held()
        state.apply(Acked(BitMap64([2, 5, 6, 7])))
        assert b"held" not in facts(state), "byte for byte what it is without them"

    @pytest.mark.parametrize(
        "held", [[[12_000, 1]], [[12_000, 10**9]], [[-1, 0]], [[1.5, 30], [12_000, 30]], {}, None, [12_000], [[12_000]]]
    )
    def test_deadlines_that_cannot_be(self, held: object) -> None:
        line, _, rest = facts(after(*HELD)).partition(b"\n")
        forged = json.dumps(json.loads(line) | {"held": held}).encode() + b"\n" + rest
        with pytest.raises((ValueError, TypeError, LookupError)):
            SubscriptionState.of_bytes(memoryview(forged), OWNER)

    def test_it_holds_only_what_is_leased(self) -> None:
        line, _, rest = facts(after(*HELD)).partition(b"\n")
        for offset in (1, 3, 8):  # acked, dying, not read
            bitmap = BitMap64([offset]).serialize()
            [*_, last] = json.loads(line)["held"]
            head = json.loads(line) | {"held": [*json.loads(line)["held"][:-1], [last[0], len(bitmap)]]}
            forged = json.dumps(head).encode() + b"\n" + rest[: -last[1]] + bitmap
            with pytest.raises(ValueError, match="holds what is not leased"):
                SubscriptionState.of_bytes(memoryview(forged), OWNER)

    def test_it_carries_the_queue_where_it_is_ordered(self) -> None:
        state, model = after(*IN_TURN), Model()
        for event in IN_TURN:
            model.apply(event)
        body = facts(state)
        again = SubscriptionState.of_bytes(memoryview(body), OWNER)
        model.agrees(again)
        assert body == facts(again)
        assert b"queued" not in facts(after(*STORY))
        assert b"paused" not in facts(after(*STORY)), "byte for byte what it is without them"
        for size in range(len(body)):
            with pytest.raises((ValueError, LookupError)):
                SubscriptionState.of_bytes(memoryview(body)[:size], OWNER)

    def test_of_another(self) -> None:
        body = facts(after(*STORY))
        assert body == facts(SubscriptionState.of_bytes(memoryview(body), OWNER))
        for other in (Owner("mail-1", "sender"), Owner("mail-0", "other")):
            with pytest.raises(ValueError, match="no snapshot of"):
                SubscriptionState.of_bytes(memoryview(body), other)

    @pytest.mark.parametrize(
        ("key", "value"),
        [("position", 4), ("position", -1), ("acked", None), ("redeliveries", 1), ("unacked_bytes", 10**18),
         ("dying", [1]), ("dying", {}), ("position", 9.0), ("dying", [{"offset": 1}])],
    )  # fmt: skip
    def test_that_contradicts_itself(self, key: str, value: object) -> None:
        line, _, rest = facts(after(*STORY)).partition(b"\n")
        forged = json.dumps(json.loads(line) | {key: value}).encode() + b"\n" + rest
        with pytest.raises((ValueError, TypeError, LookupError)):
            SubscriptionState.of_bytes(memoryview(forged), OWNER)

    def test_cut_short(self) -> None:
        body = facts(after(*STORY))
        for size in range(len(body)):
            with pytest.raises((ValueError, LookupError)):
                SubscriptionState.of_bytes(memoryview(body)[:size], OWNER)


def test_what_is_known_of_acked_records_goes() -> None:
    state = SubscriptionState(AckSet())
    for first in range(0, 40_000, 1_000):
        state.apply(Leased(first + 1_000, BitMap64(range(first, first + 1_000))))
        state.apply(returned(Reason.NACKED, *range(first, first + 1_000)))
        state.apply(Acked(BitMap64(range(first, first + 1_000))))
    assert len(state.redeliveries) < 20_000
    assert (40_000, 0) == (state.counts.acked, state.acks.count)


class Machine(RuleBasedStateMachine):
    """State and model in lockstep; each event as the journal would bring it back, and now and then a snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.model = SubscriptionState(AckSet()), Model()

    def happens(self, event: Event) -> None:
        kind, body = encode(event)
        self.state.apply(decode(kind, memoryview(body)))
        self.model.apply(event)

    def some(self, data: st.DataObject, *states: str) -> set[int]:
        among = sorted(self.model.among(*states))
        return data.draw(st.sets(st.sampled_from(among))) if among else set()

    @rule(data=st.data(), read=st.integers(0, 8))
    def lease(self, data: st.DataObject, read: int) -> None:
        end = self.model.position + read
        fresh = {offset for offset in range(self.model.position, end) if data.draw(st.booleans())}
        self.happens(Leased(end, BitMap64(fresh | self.some(data, "retrying", "queued"))))

    @rule(data=st.data(), read=st.integers(0, 8), until_ms=st.integers(0, 5))
    def hold(self, data: st.DataObject, read: int, until_ms: int) -> None:
        end = self.model.position + read
        fresh = {offset for offset in range(self.model.position, end) if data.draw(st.booleans())}
        self.happens(LeasedUntil(end, BitMap64(fresh | self.some(data, "retrying", "queued")), until_ms))

    @rule(data=st.data(), until_ms=st.integers(0, 5))
    def extend(self, data: st.DataObject, until_ms: int) -> None:
        held = self.some(data, "leased") & self.model.held().keys()
        self.happens(Extended(until_ms, BitMap64(held)))

    @rule(ms=st.integers(0, 2**62))
    def leap(self, ms: int) -> None:
        self.happens(Leapt(ms))

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        asked = self.some(data, "leased", "retrying", "dying", "acked", "queued")
        ackable = set(self.state.ackable(BitMap64(asked | {self.model.position + 3})))
        assert asked & self.model.among("leased", "retrying", "queued") == ackable
        self.happens(Acked(BitMap64(ackable)))

    @rule(data=st.data(), reason=st.sampled_from(Reason), retry_ms=st.integers(0, 2**62))
    def come_back(self, data: st.DataObject, reason: Reason, retry_ms: int) -> None:
        asked = sorted(self.some(data, "leased", "retrying", "acked", "queued"))
        column = np.array(asked, np.int64)
        wrong = st.sampled_from((0, 0, 1, -1, 1 << 32, 1 << 48))
        numbers = np.array([max(self.model.lease_number(each) + data.draw(wrong), 0) for each in asked], np.int64)
        good = self.state.leased_rows(column, numbers)
        leased, told = self.model.among("leased"), zip(asked, numbers.tolist(), strict=True)
        expected = [each in leased and number == self.model.lease_number(each) for each, number in told]
        assert expected == good.tolist()
        self.happens(returned(reason, *column[good].tolist(), retry_ms=retry_ms))

    @rule(data=st.data())
    def intend(self, data: st.DataObject) -> None:
        self.happens(Intended(tuple(letter(offset) for offset in self.some(data, "leased"))))

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.happens(Dead(BitMap64(self.some(data, "dying"))))

    @rule(data=st.data(), read=st.integers(0, 8))
    def queue(self, data: st.DataObject, read: int) -> None:
        if self.model.is_ordered or not self.state.acks.count:
            if not self.model.is_ordered:
                self.happens(Ordered())
            end = self.model.position + read
            queued = {offset for offset in range(self.model.position, end) if data.draw(st.booleans())}
            self.happens(Queued(end, BitMap64(queued)))

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:
        self.happens(Paused(is_paused))

    @rule(position=st.integers(0, 60))
    def skip(self, position: int) -> None:
        self.happens(Skipped(position))

    @rule(position=st.integers(0, 60))
    def seek(self, position: int) -> None:
        self.happens(Sought(position))

    @rule()
    def restart(self) -> None:
        body = facts(self.state)
        self.state = SubscriptionState.of_bytes(memoryview(body), OWNER)
        assert body == facts(self.state)

    @invariant()
    def same(self) -> None:
        campaigns.count("steps of a model")
        self.model.agrees(self.state)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=campaigns.examples(20), stateful_step_count=25)
