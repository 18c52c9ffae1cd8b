"""What every tracker must do: `DelayedDeliveryTrackerTests`, a class that the tests of an implementation inherit.

    class TestMemoryTracker(AnyOrderTrackerTests):
        def make(self) -> MemoryTracker:
            return MemoryTracker()

Hand cases first; then `TrackerMachine`, which holds any mix of calls against a dict, reopening among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from afterlog.base.errors import InvalidDeliverAfter, OffsetOutOfRange
from afterlog.index.entries import Keys
from afterlog.index.tracker import DelayedDeliveryTracker
from tests import campaigns
from tests.index.support import INT64_MAX, int64

START_MS = 1_700_000_000_000


class Held(NamedTuple):
    """What the model knows of an offset."""

    deliver_after: int
    """As it was given to `add`."""
    time: int
    """The tracker's."""


def pairs(due: Keys) -> list[tuple[int, int]]:
    assert len(due) == len(due.deliver_after) == len(due.offset)
    return list(zip(due.deliver_after.tolist(), due.offset.tolist(), strict=True))


def offsets(due: Keys) -> list[int]:
    return [offset for _, offset in pairs(due)]


class DelayedDeliveryTrackerTests:
    """Offsets come in ascending order here, as from a log."""

    any_order = False
    """Whether offsets may come in any order, and come back after they were taken."""
    examples = 20
    """How many mixes of calls are tried in a short run."""

    def test_clear(self) -> None:
        tracker = self.make()
        for _ in range(2):
            tracker.add_many(int64(START_MS + 20, START_MS + 10, START_MS + 30), int64(0, 1, 2))
            tracker.due(START_MS + 10_000, 1)
            tracker.add(START_MS + 50_000, 3)
            tracker.clear()
            assert (0, None, False) == (len(tracker), tracker.next_due(), tracker.contains(3))
            tracker.check()
        tracker.add(START_MS, 0)
        assert [0] == offsets(tracker.due(START_MS + 60_000, 5))

    def make(self) -> DelayedDeliveryTracker:
        """An empty tracker."""
        raise NotImplementedError

    def reopen(self, tracker: DelayedDeliveryTracker, held: dict[int, Held]) -> DelayedDeliveryTracker:
        """The tracker as it is after a restart. By default the owner's journal adds again what was held."""
        tracker = self.make()
        for offset, entry in sorted(held.items()):
            assert tracker.add(entry.deliver_after, offset)
        return tracker

    def time_of(self, deliver_after: int, last_taken: int) -> int:
        """The tracker's time of an entry that is added when the last one that was taken had this time."""
        return deliver_after

    def close(self, tracker: DelayedDeliveryTracker) -> None:
        """Called with every tracker that `make` or `reopen` returned, but for those that were reopened."""

    @pytest.fixture
    def tracker(self) -> Iterator[DelayedDeliveryTracker]:
        tracker = self.make()
        yield tracker
        tracker.check()
        self.close(tracker)

    def time(self, deliver_after: int) -> int:
        return self.time_of(deliver_after, 0)

    def test_empty(self, tracker: DelayedDeliveryTracker) -> None:
        assert 0 == len(tracker)
        assert tracker.next_due() is None
        assert not tracker.has_due(INT64_MAX)
        assert [] == pairs(tracker.due(INT64_MAX, 10))
        assert not tracker.contains(0)
        assert 0 == tracker.add_many(int64(), int64())
        assert tracker.memory_bytes() > 0

    def test_due_at_its_time_and_not_before(self, tracker: DelayedDeliveryTracker) -> None:
        assert tracker.add(START_MS, 7)
        time = self.time(START_MS)
        assert time == tracker.next_due()
        assert not tracker.has_due(time - 1)
        assert [] == pairs(tracker.due(time - 1, 10))
        assert tracker.has_due(time)
        assert tracker.has_due(time + 1)
        assert [(time, 7)] == pairs(tracker.due(time, 10))
        assert [] == pairs(tracker.due(time + 1, 10))

    def test_never_before_what_was_asked_for(self, tracker: DelayedDeliveryTracker) -> None:
        for offset in range(300):
            tracker.add(START_MS + 10 * offset, offset)
        for now in range(START_MS - 1, START_MS + 3_000, 331):
            assert all(START_MS + 10 * offset <= time <= now for time, offset in pairs(tracker.due(now, 500)))

    def test_equal_times_come_in_offset_order(self, tracker: DelayedDeliveryTracker) -> None:
        for offset in range(5):
            tracker.add(START_MS, offset)
        tracker.add_many(np.full(5, START_MS), int64(5, 6, 7, 8, 9))
        assert [*range(10)] == offsets(tracker.due(INT64_MAX, 100))

    def test_adding_twice_changes_nothing(self, tracker: DelayedDeliveryTracker) -> None:
        assert tracker.add(START_MS, 3)
        assert not tracker.add(START_MS, 3)
        assert not tracker.add(START_MS + 90_000, 3)
        assert 0 == tracker.add_many(int64(START_MS, 0), int64(3, 3))
        assert 1 == tracker.add_many(int64(5, START_MS), int64(3, 4))
        assert 1 == tracker.add_many(int64(START_MS, 5), int64(9, 9))
        assert 3 == len(tracker)
        assert [(self.time(START_MS), offset) for offset in (3, 4, 9)] == pairs(tracker.due(INT64_MAX, 100))
        assert 0 == len(tracker)

    @pytest.mark.parametrize("limit", [1, 2, 3, 170])
    def test_draining_by(self, tracker: DelayedDeliveryTracker, limit: int) -> None:
        due = START_MS + np.arange(200) * 7_919 % 20 * 1_000
        assert 200 == tracker.add_many(due, np.arange(200))
        expected = sorted((self.time(time), offset) for offset, time in enumerate(due.tolist()))
        taken: list[tuple[int, int]] = []
        while part := pairs(tracker.due(INT64_MAX, limit)):
            taken += part
            assert min(limit, 200 - len(taken) + len(part)) == len(part)
            assert 200 - len(taken) == len(tracker)
            assert (expected[len(taken)][0] if len(taken) < 200 else None) == tracker.next_due()
            assert not tracker.contains(part[0][1])
        assert expected == taken

    def test_adding_between_takes(self, tracker: DelayedDeliveryTracker) -> None:
        given, taken = set[int](), list[int]()
        for first, count in enumerate((30, 20, 5, 40, 1, 1, 60, 2)):
            added = 100 * first + np.arange(count)
            tracker.add_many(np.full(count, START_MS), added)
            given.update(added.tolist())
            tracker.check()
            assert {*given} - {*taken} == {offset for offset in given if tracker.contains(offset)}
            taken += offsets(tracker.due(INT64_MAX, 7))
            assert len(given) - len(taken) == len(tracker)
        taken += offsets(tracker.due(INT64_MAX, 1_000))
        assert sorted(given) == taken

    def test_a_time_between_those_that_are_due_comes_in_between(self, tracker: DelayedDeliveryTracker) -> None:
        second, held = 1_000, dict[int, int]()
        for offset in range(60):
            tracker.add(START_MS + offset * second, offset)
            held[offset] = self.time(START_MS + offset * second)
        taken = pairs(tracker.due(INT64_MAX, 10))
        for offset, due in ((60, START_MS + 30 * second), (61, START_MS), (62, START_MS + 90 * second)):
            tracker.add(due, offset)
            held[offset] = self.time_of(due, taken[-1][0])
            taken += pairs(tracker.due(INT64_MAX, 3))
        taken += pairs(tracker.due(INT64_MAX, 100))
        order = [*range(13), 61, *range(13, 31), 60, *range(31, 60), 62]
        assert [(held[offset], offset) for offset in order] == taken

    def test_a_time_in_the_past_is_due_at_once(self, tracker: DelayedDeliveryTracker) -> None:
        tracker.add(START_MS, 0)
        tracker.add(START_MS + 60_000, 1)
        now = self.time(START_MS)
        assert [0] == offsets(tracker.due(now, 10))
        for offset, past in enumerate((0, 1, START_MS - 90_000, START_MS), 2):
            assert tracker.add(past, offset)
            assert self.time_of(past, now) == tracker.next_due()
            assert [(self.time_of(past, now), offset)] == pairs(tracker.due(now, 10))
        assert self.time(START_MS + 60_000) == tracker.next_due()

    def test_the_largest_time(self, tracker: DelayedDeliveryTracker) -> None:
        tracker.add_many(int64(INT64_MAX, INT64_MAX - 1), int64(0, 1))
        tracker.add(INT64_MAX, 2)
        tracker.add(0, 3)
        expected = sorted(
            (self.time(due), offset) for offset, due in enumerate((INT64_MAX, INT64_MAX - 1, INT64_MAX, 0))
        )
        assert [expected[0]] == pairs(tracker.due(INT64_MAX - 2, 10))
        assert expected[1][0] == tracker.next_due()
        assert expected[1:] == pairs(tracker.due(INT64_MAX, 10))

    def test_what_it_contains_it_gives_out(self, tracker: DelayedDeliveryTracker) -> None:
        held = range(0, 90, 3)
        for offset in held:
            tracker.add(START_MS + offset * 7_919 % 50_000, offset)
        middle = START_MS + 25_000
        assert [*held] == [offset for offset in range(-1, 95) if tracker.contains(offset)]
        first = offsets(tracker.due(middle, 100))
        assert sorted({*held} - {*first}) == [offset for offset in range(95) if tracker.contains(offset)]
        assert sorted({*held} - {*first}) == sorted(offsets(tracker.due(INT64_MAX, 100)))

    @pytest.mark.parametrize(
        ("deliver_after", "offset", "error"),
        [(-1, 5, InvalidDeliverAfter), (INT64_MAX + 1, 5, InvalidDeliverAfter), (5, -1, OffsetOutOfRange),
         (5, INT64_MAX + 1, OffsetOutOfRange)],
    )  # fmt: skip
    def test_what_is_no_entry_changes_nothing(
        self, tracker: DelayedDeliveryTracker, deliver_after: int, offset: int, error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            tracker.add(deliver_after, offset)
        if max(deliver_after, offset) <= INT64_MAX:
            with pytest.raises(error):
                tracker.add_many(int64(1, deliver_after), int64(1, offset))
        with pytest.raises(ValueError, match="2 times do not go with 1 offsets"):
            tracker.add_many(int64(1, 2), int64(1))
        assert 0 == len(tracker)
        with pytest.raises(ValueError, match="limit"):
            tracker.due(INT64_MAX, 0)

    def test_any_mix_of_calls_is_like_a_dict(self) -> None:
        run_state_machine_as_test(
            lambda: TrackerMachine(self),
            settings=settings(max_examples=campaigns.examples(self.examples), stateful_step_count=25, deadline=None),
        )


class AnyOrderTrackerTests(DelayedDeliveryTrackerTests):
    """For trackers that take offsets in any order, and take them back after they were taken out."""

    any_order = True

    def test_offsets_in_any_order(self, tracker: DelayedDeliveryTracker) -> None:
        given = [INT64_MAX, 5, 2**33, 0, 70_000, 6, 2**62]
        for offset in given[:4]:
            tracker.add(START_MS, offset)
        assert 3 == tracker.add_many(np.full(6, START_MS), int64(*given[4:], *given[2:5]))
        assert sorted(given) == offsets(tracker.due(INT64_MAX, 10))

    def test_what_was_taken_may_come_again(self, tracker: DelayedDeliveryTracker) -> None:
        for round_ in range(3):
            assert tracker.add(START_MS + round_, 1)
            assert 1 == tracker.add_many(int64(START_MS), int64(0))
            assert {0, 1} == {*offsets(tracker.due(INT64_MAX, 10))}


delays = st.one_of(st.integers(-5, 30), st.sampled_from([-(2**62), 999, 1_000, 5_000, 90_000, 2**62]))


class TrackerMachine(RuleBasedStateMachine):
    """A tracker against a dict of offsets."""

    def __init__(self, suite: DelayedDeliveryTrackerTests) -> None:
        super().__init__()
        self.suite = suite
        self.tracker = suite.make()
        self.held: dict[int, Held] = {}
        self.now = 0
        self.next_offset = 0
        self.last_taken = 0

    @initialize(start=st.sampled_from([0, START_MS, INT64_MAX - 60]), first=st.sampled_from([0, 65_530, 2**32 - 3]))
    def begin(self, start: int, first: int) -> None:
        self.now, self.next_offset = start, first

    def deliver_after(self, delay: int) -> int:
        return min(max(self.now + delay, 0), INT64_MAX)

    def hold(self, deliver_after: int, offset: int) -> bool:
        """What the tracker should answer."""
        if offset in self.held:
            return False
        self.held[offset] = Held(deliver_after, self.suite.time_of(deliver_after, self.last_taken))
        return True

    @rule(delay=delays, gap=st.sampled_from([0, 0, 1, 70_000]))
    def add(self, delay: int, gap: int) -> None:
        offset = self.next_offset + gap
        self.next_offset = offset + 1
        due = self.deliver_after(delay)
        assert self.hold(due, offset) == self.tracker.add(due, offset)

    @rule(some=st.lists(delays, min_size=1, max_size=30), again=st.booleans(), times=st.sampled_from([1, 1, 20]))
    def add_many(self, some: list[int], again: bool, times: int) -> None:
        rows = [(self.deliver_after(delay), self.next_offset + row) for row, delay in enumerate(some * times)]
        self.next_offset += len(rows)
        if again:
            rows = [*((self.deliver_after(3), offset) for offset in sorted(self.held)[-3:]), *rows, rows[-1]]
        new = sum(self.hold(*row) for row in rows)
        assert new == self.tracker.add_many(*(int64(*column) for column in zip(*rows, strict=True)))

    @rule(delay=delays, which=st.integers(0, 100))
    def add_again(self, delay: int, which: int) -> None:
        if self.held:
            offset = sorted(self.held)[which % len(self.held)]
            assert not self.tracker.add(self.deliver_after(delay), offset)

    @rule(some=st.lists(st.tuples(delays, st.integers(0, 100)), max_size=10), singly=st.booleans())
    def add_in_any_order(self, some: list[tuple[int, int]], singly: bool) -> None:
        if not self.suite.any_order or not some:
            return
        rows = [(self.deliver_after(delay), max(self.next_offset - back, 0)) for delay, back in some]
        expected = [self.hold(*row) for row in rows]
        self.next_offset += 1
        if singly:
            assert expected == [self.tracker.add(*row) for row in rows]
        else:
            assert sum(expected) == self.tracker.add_many(*(int64(*column) for column in zip(*rows, strict=True)))

    @rule(milliseconds=st.one_of(st.integers(0, 20), st.integers(0, 5_000)))
    def advance(self, milliseconds: int) -> None:
        self.now = min(self.now + milliseconds, INT64_MAX)

    @rule(limit=st.sampled_from([1, 2, 3, 10, 1_000]))
    def take(self, limit: int) -> None:
        self.taken(self.now, limit)

    def taken(self, now: int, limit: int) -> None:
        waiting = sorted((entry.time, offset) for offset, entry in self.held.items() if entry.time <= now)
        taken = pairs(self.tracker.due(now, limit))
        assert waiting[:limit] == taken
        for time, offset in taken:
            del self.held[offset]
            self.last_taken = time

    @rule()
    def reopen(self) -> None:
        self.tracker = self.suite.reopen(self.tracker, self.held)

    @invariant()
    def answers(self) -> None:
        campaigns.count("steps of a model")
        self.tracker.check()
        assert len(self.held) == len(self.tracker)
        next_due = min((entry.time for entry in self.held.values()), default=None)
        assert next_due == self.tracker.next_due()
        assert (next_due is not None) == self.tracker.has_due(INT64_MAX)
        assert (next_due is not None and next_due <= self.now) == self.tracker.has_due(self.now)
        known = {*sorted(self.held)[:20], *range(max(self.next_offset - 20, 0), self.next_offset + 2)}
        assert {*self.held} & known == {offset for offset in known if self.tracker.contains(offset)}
        assert self.tracker.memory_bytes() > 0

    def teardown(self) -> None:
        while self.held:
            self.taken(INT64_MAX, 500)
        assert [] == pairs(self.tracker.due(INT64_MAX, 1))
        self.suite.close(self.tracker)
