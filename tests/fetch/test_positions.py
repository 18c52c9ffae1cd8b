from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidDeliverAfter, InvalidTopic
from afterlog.fetch.partition import Partition
from afterlog.fetch.positions import EARLIEST, LATEST, AfterOffset, AtBrokerTime, AtTime, Edge
from afterlog.records.entry import AppendBrokerTimestamp
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, open_small


def test_the_edges_are_themselves() -> None:
    assert (EARLIEST, LATEST) == (Edge("earliest"), Edge("latest"))
    assert EARLIEST is not LATEST


@pytest.mark.parametrize("position", [AtTime(5), AtBrokerTime(5), AfterOffset(5)])
def test_positions_are_values(position: AtTime | AtBrokerTime | AfterOffset) -> None:
    assert position == dataclasses.replace(position)
    assert 1 == len({position, dataclasses.replace(position)})
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(position, dataclasses.fields(position)[0].name, 6)


def test_a_time_is_no_offset() -> None:
    assert AtTime(5) != AfterOffset(5)
    assert AtTime(5) != AtBrokerTime(5)


# --- By broker time

steps = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 12), max_size=4), st.integers(-1, 20), st.booleans()),
    max_size=12,
)


class Told:
    """A topic, and when each of its records was appended."""

    def __init__(self, steps: Sequence[tuple[int, list[int], int, bool]] = (), **settings: object) -> None:
        self.clock = ManualClock(NOW_MS)
        self.store = open_small(SimulatedFiles(), self.clock, index_interval_bytes=200, segment_bytes=4_096)
        self.partition: Partition = self.store.create_topic("t", **settings).partition(0)  # type: ignore[arg-type]
        self.stamps: list[int] = []
        self.cancelled: set[int] = set()
        self.go(steps)

    def go(self, steps: Sequence[tuple[int, list[int], int, bool]]) -> None:
        """Of each: how far the clock goes on, after how long records are due, which one is cancelled, a roll."""
        for step_ms, delays_ms, cancel, roll in steps:
            self.clock.advance(step_ms)
            if delays_ms:
                times = [self.clock.now_ms() + delay_ms for delay_ms in delays_ms]
                self.store.send_many("t", [bytes(60)] * len(delays_ms), deliver_after=times)
                self._stamped()
            if 0 <= cancel < len(self.stamps) and not self.partition.cancel([cancel])[0]:  # type: ignore[arg-type]
                self.cancelled.add(cancel)
                self._stamped()
                self.cancelled.add(len(self.stamps) - 1)  # the control record
            if roll:
                self.partition.log.roll()

    def _stamped(self) -> None:
        self.stamps += [self.clock.now_ms()] * (self.partition.log_end_offset - len(self.stamps))

    def drained(self, position: int = 0) -> list[tuple[int, int]]:
        """(delivery offset, offset) of what a reader gets from a position on."""
        found: list[tuple[int, int]] = []
        while True:
            columns, position = self.partition.columns(position, 100, 1 << 20)
            if not len(columns):
                return found
            found += zip(columns.delivery_offset.tolist(), columns.offset.tolist(), strict=True)


@example([(0, [1, 1], 0, False), (1, [], 0, False)], [], 0)
@given(steps, steps, st.integers(-2, 40))
def test_by_broker_time_as_by_force(before: list, after: list, ms: int) -> None:  # type: ignore[type-arg]
    told, ms = Told(before), NOW_MS + ms
    position = told.partition.beginning(AtBrokerTime(ms))
    first = (rank for rank, offset in told.drained() if told.stamps[offset] >= ms)
    if ms <= told.clock.now_ms():
        expected = next(first, told.partition.high_watermark())  # a position may be that of a record that is hidden
        assert position <= expected
        assert told.drained(expected) == told.drained(position)
    else:
        assert told.partition.position(AtTime(ms)) == position
    told.go(after)
    told.clock.advance(100)
    wanted = {offset for offset, stamp in enumerate(told.stamps) if stamp >= ms} - told.cancelled
    assert wanted <= {offset for _, offset in told.drained(position)}, "appended from then on, and missed"
    told.store.close()


def test_by_broker_time_what_was_due_later_and_appended_before_is_left_out() -> None:
    told = Told([(0, [5, 9], -1, False), (5, [0, 2, 4], -1, False)])
    told.clock.advance(20)
    assert [0, 2, 3, 1, 4] == [offset for _, offset in told.drained()]
    assert (1, 0, 5) == tuple(told.partition.position(AtBrokerTime(NOW_MS + at)) for at in (5, 0, 6))
    assert 1 == told.partition.position(AtBrokerTime(datetime.fromtimestamp((NOW_MS + 5) / 1000, UTC)))


def test_by_broker_time_never_among_what_is_pending() -> None:
    told = Told([(0, [0, 30], -1, False), (10, [50], -1, False)])
    position = told.partition.beginning(AtBrokerTime(NOW_MS + 5))
    assert 1 == position, "behind the pending record of before, one that is due earlier may still come"
    told.go([(0, [1], -1, False)])
    told.clock.advance(100)
    assert [3, 1, 2] == [offset for _, offset in told.drained(position)]


def test_by_broker_time_behind_the_log_start() -> None:
    told = Told([(0, [0, 0], -1, True), (10, [0], -1, False)], retention_bytes=0)
    assert 2 == told.partition.log_start, "the roll has removed them"
    assert [2, 2, 2, 3] == [told.partition.position(AtBrokerTime(NOW_MS + after_ms)) for after_ms in (-9, 0, 10, 11)]


def test_by_broker_time_in_append_order() -> None:
    store = open_small(
        SimulatedFiles(), clock := ManualClock(NOW_MS), broker_entry_metadata_interceptors=(AppendBrokerTimestamp(),),
        segment_bytes=1 << 20,
    )  # fmt: skip
    partition = store.create_topic("t", delayed=False).partition(0)
    for _ in range(3):
        store.send("t", b"")
        clock.advance(5)
    assert [0, 1, 2, 3, 3] == [partition.beginning(AtBrokerTime(NOW_MS + ms)) for ms in (0, 5, 6, 11, 99)]


def test_by_broker_time_where_there_is_none() -> None:
    told = Told(delayed=False)
    assert 0 == told.partition.position(AtBrokerTime(NOW_MS))
    told.store.send("t", b"")
    with pytest.raises(InvalidTopic, match="or give it, or the store, the interceptor AppendBrokerTimestamp"):
        told.partition.position(AtBrokerTime(NOW_MS))


@pytest.mark.parametrize("wrong", [-1, None, "soon", datetime(2026, 1, 1)])
def test_by_broker_time_of_no_instant(wrong: object) -> None:
    with pytest.raises(InvalidDeliverAfter):
        Told().partition.position(AtBrokerTime(wrong))  # type: ignore[arg-type]
