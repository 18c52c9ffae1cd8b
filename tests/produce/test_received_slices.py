"""Slices of a log, appended to others: each record once, cancels and reschedules with them, whatever is sent again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterlog.base.clock import ManualClock
from afterlog.base.config import ALWAYS
from afterlog.base.errors import InvalidBatch, NotPending, ReplicationDiverged
from afterlog.fetch.origin_slices import read_slice
from afterlog.log.cancel_result import CancelResult
from afterlog.produce.received_slices import receive_slice, upcoming_of
from afterlog.records.origin_slice import OriginSlice
from tests.campaigns import examples
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, killed, open_small

pytestmark = pytest.mark.usefixtures("quiet")


class Region:
    """A store with one topic, and the clock that all of them have."""

    def __init__(self, clock: ManualClock, disk: SimulatedFiles | None = None, **config: Any) -> None:
        self.clock, self.config = clock, config
        self.disk = disk or SimulatedFiles()
        self.store = open_small(self.disk, clock, durability=ALWAYS, **config)
        topic = self.store.topic("t") if self.store.topics() else self.store.create_topic("t")
        self.partition = topic.partition(0)
        self.log = self.partition.log
        assert topic.settings.topic_id is not None
        self.name = topic.settings.topic_id

    def send(self, *values: str, delay: float | None = None, **options: Any) -> int:
        """In one batch; the offset of the first."""
        return int(self.store.send_many("t", [*map(str.encode, values)], delay=delay, partition=0, **options)[0])

    def at(self, value: str) -> int:
        """The offset of a record that is pending or due."""
        [offset] = [offset for offset, each in self.everything().items() if each == value]
        return offset

    def everything(self) -> dict[int, str]:
        """What is not cancelled, pending or not, by offset."""
        pending = {each.id.offset: each.value for each in self.store.pending("t")}
        found, position = {**pending}, self.partition.log_start
        while position < self.partition.high_watermark():
            columns, position, *_ = self.partition.columns(position, 10_000, 1 << 30)
            found |= {each.offset: each.value for each in columns.to_messages()}
        return {offset: (value or b"").decode() for offset, value in found.items()}

    def pull(self, source: Region, first: int | None = None, max_bytes: int = 1 << 20) -> int:
        """One slice; the records that it brought."""
        first = upcoming_of(self.log, source.name) if first is None else first
        data = b"".join(read_slice(source.log, source.name, first, max_bytes).to_bytes())
        return receive_slice(self.log, self.name, OriginSlice.of_bytes(np.frombuffer(data, np.uint8)))

    def pull_all(self, source: Region, max_bytes: int = 1 << 20) -> None:
        first = upcoming_of(self.log, source.name)
        while True:
            slice = read_slice(source.log, source.name, first, max_bytes)
            receive_slice(self.log, self.name, slice)
            if slice.upto >= slice.end:
                return
            assert slice.upto > first
            first = slice.upto

    def reopened(self) -> Region:
        return Region(self.clock, killed(self.disk), **self.config)

    def check(self) -> None:
        self.log.check()


def regions(count: int = 2, **config: Any) -> list[Region]:
    clock = ManualClock(NOW_MS)
    return [Region(clock, **config) for _ in range(count)]


def values(region: Region) -> list[str]:
    return [value for _, value in sorted(region.everything().items())]


def test_each_record_once() -> None:
    here, there = regions()
    there.send("a", "b", delay=60)
    there.send("c")
    here.send("own")
    assert 3 == here.pull(there)
    assert 0 == here.pull(there)
    assert 0 == here.pull(there, first=0)
    assert ["own", "a", "b", "c"] == values(here)
    assert 1 == there.pull(here)
    assert ["a", "b", "c", "own"] == values(there)
    assert 0 == here.pull(there), "what came from here does not come back"
    there.send("d")
    assert 1 == here.pull(there)
    here.reopened().check()


def test_the_time_that_was_asked_for_travels() -> None:
    here, there = regions()
    there.send("later", delay=60)
    there.send("at once")
    there.send("late", deliver_after=NOW_MS - 5_000, check_instants=False)
    here.clock.advance(10_000)
    here.pull(there)
    due = {each.value: each.deliver_after for each in here.store.pending("t")}
    assert {b"later": NOW_MS + 60_000} == due
    entries = here.log.find(np.arange(3), here.log.pin())
    assert [NOW_MS + 60_000, NOW_MS + 10_000, NOW_MS + 10_000] == entries.deliver_after.tolist()
    assert 1 == here.log.clamped_records, "who asked for at once was not late"


def test_a_cancel_follows_its_record() -> None:
    here, there = regions()
    there.send("a", "b", delay=60)
    here.pull(there)
    there.partition.cancel(np.array([1]))
    there.send("c", delay=60)
    assert 1 == here.pull(there)
    assert ["a", "c"] == values(here)
    here.check()
    here.reopened().check()


def test_a_cancel_of_what_came_from_here() -> None:
    here, there = regions()
    here.send("mine", delay=60)
    there.pull(here)
    there.partition.cancel(np.array([there.at("mine")]))
    here.pull(there)
    assert [] == values(here)
    assert 0 == there.pull(here)
    assert [] == values(there)


def test_what_was_cancelled_before_does_not_come() -> None:
    here, there = regions()
    there.send("a", "b", "c", delay=60)
    there.partition.cancel(np.array([1]))
    assert 2 == here.pull(there)
    assert ["a", "c"] == values(here)


def test_too_late_to_cancel() -> None:
    here, there = regions()
    there.send("a", delay=60)
    here.pull(there)
    there.partition.cancel(np.array([0]))
    here.clock.advance(60_000)
    here.pull(there)
    assert ["a"] == values(here)
    assert [] == values(there)


def test_a_reschedule_moves_it_everywhere() -> None:
    here, there = regions()
    offset = there.send("a", delay=60)
    here.pull(there)
    there.partition.reschedule(offset, NOW_MS + 120_000)
    assert 1 == here.pull(there)
    assert ["a"] == values(here)
    assert [NOW_MS + 120_000] == [each.deliver_after for each in here.store.pending("t")]
    assert 0 == here.pull(there, first=0)


def test_what_replaced_it_was_cancelled_too() -> None:
    here, there = regions()
    offset = there.send("a", delay=60)
    here.pull(there)
    there.partition.cancel(np.array([there.partition.reschedule(offset, NOW_MS + 120_000)]))
    there.send("b")
    here.pull(there)
    assert ["b"] == values(here)


def test_a_cancel_that_overtakes_its_record_waits_for_it() -> None:
    first, second, third = regions(3)
    first.send("a", "b", "c", delay=60)
    second.pull(first)
    second.partition.cancel(np.array([second.at("b")]))
    third.pull(second)
    third = third.reopened()
    third.pull(second, first=0)
    assert 2 == third.pull(first)
    assert ["a", "c"] == values(third)
    assert 0 == third.pull(first)
    third.check()
    again = third.reopened()
    again.check()
    assert 0 == again.pull(first, first=0)


def test_a_log_that_was_put_back() -> None:
    here, there = regions()
    there.send("a")
    there.log.checkpoint()
    earlier = killed(there.disk)
    there.send("b")
    here.pull(there)
    there = Region(there.clock, earlier)
    with pytest.raises(ReplicationDiverged, match="put back"):
        here.pull(there)
    with pytest.raises(InvalidBatch, match="of itself"):
        here.pull(here)


def test_behind_retention() -> None:
    here, there = regions(segment_bytes=4_096)
    for number in range(100):
        there.send(f"{number:03d}" * 20)
        there.clock.advance(1_000)
    there.store.alter_topic("t", retention_ms=50_000)
    there.log.roll()
    there.log.enforce_retention()
    start = there.log.log_start_offset
    assert 0 < start < 100
    here.pull_all(there, max_bytes=1_000)
    assert len(values(here)) == 100 - start
    assert 100 == upcoming_of(here.log, there.name)


@pytest.mark.parametrize("first", [0, 3])
def test_a_slice_says_what_is_gone(first: int) -> None:
    """Also where it is the last that is gone, and not of what was cancelled, or came from elsewhere."""
    here, there = regions()
    there.send("a")
    there.send("b", "c")
    there.send("later", delay=60)
    there.partition.cancel(np.array([there.send("cancelled", delay=60)]))
    here.send("elsewhere")
    there.pull_all(here)
    assert 0 == read_slice(there.log, there.name, first, 1 << 20).gone_upto
    there.partition.purge(3)
    sliced = [read_slice(there.log, there.name, first, max_bytes).gone_upto for max_bytes in (1, 1 << 20)]
    assert [0, 0] == sliced if first else [3, 3] == sliced
    there.clock.advance(60_000)
    there.partition.purge(there.partition.high_watermark())
    given = read_slice(there.log, there.name, first, 1 << 20)
    assert 4 <= given.gone_upto <= given.upto == given.end
    data = np.frombuffer(b"".join(given.to_bytes()), np.uint8)
    assert given.gone_upto == OriginSlice.of_bytes(data).gone_upto


def test_a_slice_says_what_a_cleaning_took() -> None:
    """Far-future records stay in segments of which the rest is gone."""
    here, there = regions(segment_bytes=4_096)
    there.store.alter_topic("t", retention_ms=50_000)
    for number in range(200):
        there.send(f"{number:03d}" * 20, delay=1_000_000 if number % 20 == 0 else None)
    there.clock.advance(60_000)
    there.log.roll()
    there.log.enforce_retention()
    assert there.store.clean("t")
    assert any(segment.has_gaps for segment in there.log.version.segments)
    for first in range(there.log.written):
        for max_bytes in (1, 1 << 20):
            given = read_slice(there.log, there.name, first, max_bytes)
            missing = {*range(first, given.upto)} - there.everything().keys()
            assert max(missing, default=-1) + 1 == given.gone_upto, first
    here.pull_all(there)
    assert values(here) == values(there)


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_in_slices_of_any_size(max_bytes: int, codec: str) -> None:
    here, there = regions(segment_bytes=8_192, compression=codec)
    for number in range(40):
        there.send(*(f"{number}-{each}" for each in range(number % 4 + 1)), delay=number % 3 * 30)
        if number % 5 == 0:
            there.partition.cancel(np.array([there.log.written - 1]))
        if number % 7 == 0:
            here.send(f"own {number}")
            there.pull_all(here, max_bytes)
    here.pull_all(there, max_bytes)
    assert Counter(values(here)) == Counter(values(there))
    here.check()
    there.check()


NUMBER = st.integers(0, 2)
STEP = st.one_of(
    st.tuples(st.just("send"), NUMBER, st.integers(1, 3), st.sampled_from([None, 1, 30, 31])),
    st.tuples(st.just("cancel"), NUMBER, st.integers(0, 20)),
    st.tuples(st.just("reschedule"), NUMBER, st.integers(0, 20), st.integers(0, 50)),
    st.tuples(st.just("pull"), NUMBER, NUMBER, st.sampled_from([1, 200, 1 << 20])),
    st.tuples(st.just("again"), NUMBER, NUMBER),
    st.tuples(st.just("kill"), NUMBER),
    st.tuples(st.just("checkpoint"), NUMBER),
    st.tuples(st.just("wait"), st.integers(1, 20)),
)


def taken_back(region: Region, offset: int, later_s: int | None = None) -> CancelResult:
    """What came of a cancel, or of a reschedule."""
    if later_s is None:
        return CancelResult(int(region.partition.cancel(np.array([offset]))[0]))
    try:
        region.partition.reschedule(offset, region.clock.now_ms() + 1_000 * later_s)
    except NotPending as error:
        return error.answer
    return CancelResult.CANCELLED


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(STEP, max_size=30), st.integers(2, 3))
def test_any_course(steps: list[Any], count: int) -> None:
    """All have the same in the end: what nobody cancelled is everywhere once, and what somebody did at most once."""
    each, sent, touched = regions(count, segment_bytes=4_096), 0, set[str]()
    killed = False
    for step in steps:
        match step:
            case ("send", number, records, delay):
                each[number % count].send(*(f"{sent + row}" for row in range(records)), delay=delay)
                sent += records
            case ("cancel" | "reschedule", number, which, *asked):
                region = each[number % count]
                pending = list(region.store.pending("t"))
                if pending:
                    chosen = pending[which % len(pending)]
                    touched.add((chosen.value or b"").decode())
                    answers = [CancelResult.CANCELLED]
                    if killed:  # behind a kill what is sent is due at a stamp ahead of the clock, which decides
                        answers.append(CancelResult.ALREADY_DELIVERED)
                    assert taken_back(region, chosen.id.offset, *asked) in answers
            case ("pull", number, other, max_bytes):
                if number % count != other % count:
                    each[number % count].pull(each[other % count], max_bytes=max_bytes)
            case ("again", number, other):
                if number % count != other % count:
                    each[number % count].pull(each[other % count], first=0)
            case ("kill", number):
                each[number % count], killed = each[number % count].reopened(), True
            case ("checkpoint", number):
                each[number % count].log.checkpoint()
            case ("wait", seconds):
                each[0].clock.advance(1_000 * seconds)
    for _ in range(2):
        for here in each:
            for there in each:
                if here is not there:
                    here.pull_all(there)
    for region in each:
        region.check()
        found = Counter(values(region))
        assert {str(number) for number in range(sent)} - {*found} <= touched
        assert [value for value, number in found.items() if number > 1 and value not in touched] == []
