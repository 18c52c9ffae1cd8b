"""What producers appended last, against a list of everything that they ever appended."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from afterlog.base.errors import OutOfOrderSequence, ProducerFenced
from afterlog.index import producer_states
from afterlog.index.producer_file import RANGES_MAX, RECORDS_MAX
from afterlog.index.producer_states import SEQUENCES, Piece, ProducerStates, facts, last_ms

LAST = SEQUENCES - 1


class Everything:
    """The model: of one producer under its epoch, the offset of each record, by how many came before it."""

    def __init__(self, epoch: int, first: int = 0) -> None:
        self.epoch = epoch
        self.first = first
        self.offsets = list[int]()
        self.calls = list[int]()

    @property
    def upcoming(self) -> int:
        return (self.first + len(self.offsets)) % SEQUENCES


class ProducersMachine(RuleBasedStateMachine):
    """Two producers, who send again, skip, and are fenced; sequences wrap soon."""

    @initialize(first=st.sampled_from([0, LAST - 20, LAST]))
    def begin(self, first: int) -> None:
        self.states = ProducerStates()
        self.known = dict[int, Everything]()
        self.end, self.now_ms = 0, 0
        if first:  # as recovery notes it, of a log whose beginning has gone
            for producer_id in (1, 2):
                self.known[producer_id] = Everything(0, first)
                self.append(producer_id, 0, first, 1)

    def append(self, producer_id: int, epoch: int, sequence: int, records: int) -> None:
        self.now_ms += 1
        self.states.appended(producer_id, epoch, sequence, records, self.end, self.now_ms)
        known = self.known[producer_id]
        known.calls.append(len(known.offsets))
        known.offsets += range(self.end, self.end + records)
        self.end += records

    @rule(producer_id=st.integers(1, 2), back=st.integers(-2, 30), records=st.integers(1, 12), others=st.integers(0, 1))
    def send(self, producer_id: int, back: int, records: int, others: int) -> None:
        """From so many records before the next on. others: what comes between, so that offsets do not follow."""
        known = self.known.setdefault(producer_id, Everything(0))
        self.end += others
        sequence = (known.upcoming - back) % SEQUENCES
        start = len(known.offsets) - back
        refused: OutOfOrderSequence | None = None
        try:
            pieces = self.states.judge(producer_id, known.epoch, sequence, records)
        except OutOfOrderSequence as error:
            refused = error
        if refused is not None:
            assert refused.expected == (known.upcoming if known.offsets else None)
            forgotten = known.calls[max(len(known.calls) - RANGES_MAX, 0)] if known.offsets else 0
            assert back < 0 or start < forgotten
            return
        assert start >= 0
        assert back >= 0
        found = [offset for piece in pieces for offset in range(piece.offset, piece.offset + piece.records)]
        assert known.offsets[start : start + records] == found
        if len(found) < records:
            fresh = records - len(found)
            self.append(producer_id, known.epoch, known.upcoming, fresh)

    @rule(producer_id=st.integers(1, 2), sequence=st.integers(0, 1))
    def take_over(self, producer_id: int, sequence: int) -> None:
        """Under a higher epoch, which begins with 0; the one before is fenced."""
        if producer_id not in self.known or not self.known[producer_id].offsets:
            return
        epoch = self.known[producer_id].epoch + 1
        if sequence:
            with pytest.raises(OutOfOrderSequence, match="begin with sequence 0"):
                self.states.judge(producer_id, epoch, sequence, 1)
            return
        assert 0 == self.states.next_sequence(producer_id, epoch)
        assert () == self.states.judge(producer_id, epoch, 0, 3)
        self.known[producer_id] = Everything(epoch)
        self.append(producer_id, epoch, 0, 3)
        for call in (lambda: self.states.judge(producer_id, epoch - 1, 0, 1),
                     lambda: self.states.next_sequence(producer_id, epoch - 1)):  # fmt: skip
            with pytest.raises(ProducerFenced) as fenced:
                call()
            assert epoch == fenced.value.epoch

    @rule()
    def judged_beside(self) -> None:
        """What is noted beside is seen beside, and nowhere else."""
        before, beside = self.states.copy(), self.states.beside()
        for producer_id, known in self.known.items():
            if known.offsets:
                assert () == beside.judge(producer_id, known.epoch, known.upcoming, 2)
                beside.appended(producer_id, known.epoch, known.upcoming, 2, self.end, 0)
                assert (Piece(self.end, 2),) == beside.judge(producer_id, known.epoch, known.upcoming, 2)
        assert before == self.states.copy()

    @invariant()
    def holds(self) -> None:
        self.states.check(self.end)
        for producer_id, known in self.known.items():
            if known.offsets:
                state = self.states.state(producer_id)
                assert state is not None
                assert (known.epoch, known.upcoming, known.offsets[-1] + 1) == facts(state)
                assert known.upcoming == self.states.next_sequence(producer_id, known.epoch)


TestProducers = ProducersMachine.TestCase


def test_the_last_five_appends_are_remembered() -> None:
    """Of a producer among others, whose offsets do not follow each other."""
    states = ProducerStates()
    for sequence in range(8):
        states.appended(7, 0, sequence, 1, 10 * sequence, sequence)
    assert [(Piece(10 * sequence, 1),) for sequence in range(3, 8)] == [
        states.judge(7, 0, sequence, 1) for sequence in range(3, 8)
    ]
    assert (Piece(60, 1), Piece(70, 1)) == states.judge(7, 0, 6, 5)
    with pytest.raises(OutOfOrderSequence, match="begins at 3"):
        states.judge(7, 0, 2, 1)
    assert 7 == last_ms(states.state(7) or b"")


def test_a_range_grows_as_long_as_nobody_comes_between() -> None:
    states = ProducerStates()
    for row in range(1_000):
        states.appended(7, 0, 3 * row, 3, 3 * row, 0)
    assert (Piece(0, 3_000),) == states.judge(7, 0, 0, 4_000)
    assert 28 == len(states.state(7) or b"")


@given(st.lists(st.integers(1, RECORDS_MAX - 1), min_size=1, max_size=9), st.booleans())
def test_half_of_the_sequence_numbers_are_remembered(calls: list[int], apart: bool) -> None:
    """However long they are: what a sequence means is never in doubt."""
    states, sequence, offset = ProducerStates(), 0, 0
    for records in calls:
        states.appended(7, 0, sequence, records, offset, 0)
        sequence, offset = (sequence + records) % SEQUENCES, offset + records + apart
        states.check(offset)
    first = (sequence - min(sum(calls[-RANGES_MAX:] if apart else calls), RECORDS_MAX)) % SEQUENCES
    pieces = states.judge(7, 0, (sequence - 1) % SEQUENCES, 1)
    assert (Piece(offset - 1 - apart, 1),) == pieces
    if sum(calls) <= RECORDS_MAX and (not apart or len(calls) <= RANGES_MAX):
        assert 0 == first == states.judge(7, 0, 0, 1)[0].offset


def test_forgets_what_is_still_what_it_was() -> None:
    states = ProducerStates()
    for producer_id in (1, 2):
        states.appended(producer_id, 0, 0, 1, producer_id, 0)
    before = states.copy()
    states.appended(2, 0, 1, 1, 9, 0)
    states.forget(before)
    assert [2] == [*states.ids()]
    with pytest.raises(OutOfOrderSequence, match="not known here"):
        states.judge(1, 0, 1, 1)
    assert () == states.judge(1, 0, 0, 1)


def test_check_sees_what_is_wrong() -> None:
    states = ProducerStates()
    states.appended(7, 0, 0, 2, 5, 0)
    states.check(7)
    with pytest.raises(AssertionError, match="lie behind"):
        states.check(6)


def test_the_docstring_says_how_large_they_are() -> None:
    """250 bytes a producer, roughly: a dict's slot, an id, and the bytes of five ranges at most."""
    states: Any = ProducerStates()
    for producer_id, sequence in ((each, sequence) for each in range(3) for sequence in range(6)):
        states.appended(producer_id + 2**40, 0, sequence, 1, 100 * sequence + producer_id, 0)
    assert {16 + 12 * RANGES_MAX} == {len(state) for state in states.copy().values()}
    assert "250 bytes" in (producer_states.__doc__ or "")
    assert all(one < other for one, other in pairwise(sorted(states.ids())))
