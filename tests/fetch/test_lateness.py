from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from afterlog.base.measures import LATENESS_EDGES_MS
from afterlog.fetch.lateness import Lateness
from afterlog.fetch.positions import EARLIEST, LATEST
from afterlog.index.merge import Block
from afterlog.records.batch import Record, encode_batch
from afterlog.store.store import Store
from tests import campaigns
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, SteppedClock, killed, open_small

HOUR_MS = 3_600_000


def up_to(late_ms: list[int]) -> list[int]:
    """What a histogram of these should tell."""
    rows = [bisect_left(LATENESS_EDGES_MS, late) for late in late_ms]
    return list(accumulate(rows.count(row) for row in range(len(LATENESS_EDGES_MS) + 1)))


def block_of(due: list[int], records: list[int], gaps: list[int]) -> Block:
    """Entries in delivery order, with hidden records before each."""
    ends = np.cumsum(np.array(records) + np.array(gaps))
    start, nothing = ends - np.array(records), np.zeros(len(due), np.int64)
    return Block(start, np.array(due, np.int64), nothing, nothing, np.array(records, np.int64), int(ends[-1]))


entries = st.lists(
    st.tuples(st.sampled_from([0, 1, 3, 40, 5_000]), st.integers(1, 3), st.sampled_from([0, 0, 0, 2])),
    min_size=1, max_size=40,
)  # fmt: skip
stretches = st.lists(st.tuples(st.integers(0, 39), st.integers(1, 40), st.booleans()), min_size=1, max_size=6)


@given(entries, stretches, st.integers(0, 20))
@settings(max_examples=campaigns.examples(50))
@example([(0, 3, 0), (0, 1, 2)], [(0, 2, False), (1, 1, True), (0, 2, True)], 2)
def test_each_record_counts_once_when_the_reader_furthest_ahead_gets_it(
    rows: list[tuple[int, int, int]], reads: list[tuple[int, int, bool]], start: int
) -> None:
    steps, records, gaps = (list(column) for column in zip(*rows, strict=True))
    due = list(accumulate(steps))
    block, clock_ms = block_of(due, records, gaps), due[-1]
    lateness, counted, late_ms = Lateness(start), start, list[int]()
    for first, count, whole in reads:
        part = block[first : first + count]
        if not len(part):
            continue
        clock_ms += 7
        offset = np.concatenate(
            [np.arange(start, start + n) for start, n in zip(part.delivery_offset, part.records, strict=True)]
        )
        each = np.repeat(part.deliver_after, part.records)
        late_ms += [clock_ms - ms for at, ms in zip(offset.tolist(), each.tolist(), strict=True) if at >= counted]
        counted = max(counted, part.end_delivery_offset)
        if whole:
            lateness.batches(part, clock_ms)
        else:
            lateness.records(offset, each, part.end_delivery_offset, clock_ms)
        assert up_to(late_ms) == lateness.up_to()


def test_nothing_handed_out_counts_nothing() -> None:
    lateness, nothing = Lateness(0), np.empty(0, np.int64)
    lateness.records(nothing, nothing, 5, NOW_MS)
    lateness.batches(Block(*[nothing] * 5, 7), NOW_MS)
    assert up_to([]) == lateness.up_to()


class Setting:
    def __init__(self) -> None:
        self.clock = SteppedClock(NOW_MS)
        self.disk = SimulatedFiles()
        self.store: Store = open_small(self.disk, self.clock)
        self.store.create_topic("t")

    def send(self, *after_ms: int) -> None:
        for ms in after_ms:
            self.store.send("t", b"v", deliver_after=NOW_MS + ms)

    def counted(self) -> list[int]:
        lateness = self.store.topic("t").partition(0).lateness
        assert lateness is not None
        return lateness.up_to()


class TestReaders:
    def test_consumers(self) -> None:
        setting = Setting()
        setting.send(10, 20, 20, 500)
        with setting.store.consumer("t", group="g") as first, setting.store.consumer("t", group="h") as second:
            setting.clock.advance(21)
            assert 2 == len(first.poll_columns(2))
            assert up_to([11, 1]) == setting.counted()
            setting.clock.advance(100)
            assert 3 == len(second.poll())
            assert up_to([11, 1, 101]) == setting.counted()
            first.seek(EARLIEST)
            assert 3 == len(first.poll())
            assert up_to([11, 1, 101]) == setting.counted()
            setting.clock.advance(HOUR_MS * 2)
            assert 1 == len(first.poll())
            assert up_to([11, 1, 101, 2 * HOUR_MS - 379]) == setting.counted()

    def test_an_iterating_consumer(self) -> None:
        setting = Setting()
        setting.send(1, 2, 3)
        setting.clock.advance(5)
        with setting.store.consumer("t", group="g") as consumer:
            next(iter(consumer))
        assert up_to([4, 3, 2]) == setting.counted()

    def test_whole_batches(self) -> None:
        setting = Setting()
        partition = setting.store.topic("t").partition(0)
        for after_ms, count in ((10, 3), (30, 2)):
            batch = encode_batch([Record(value=b"v", timestamp=NOW_MS)] * count)
            partition.append(batch, deliver_after=NOW_MS + after_ms)
        setting.clock.advance(40)
        partition.columns(0, 5, 1 << 20)
        assert up_to([]) == setting.counted(), "reading is not yet handing out"
        assert 2 == len(partition.fetch(EARLIEST).batches)
        partition.fetch(1)
        assert up_to([30] * 3 + [10] * 2) == setting.counted()

    def test_a_fifo_topic_has_none(self) -> None:
        setting = Setting()
        setting.store.create_topic("ticks", delayed=False)
        setting.store.send("ticks", b"v")
        with setting.store.consumer("ticks", group="g") as consumer:
            assert 1 == len(consumer.poll())
        assert setting.store.topic("ticks").partition(0).lateness is None

    def test_a_subscription_by_its_own_times_and_without_retries(self) -> None:
        setting = Setting()
        setting.send(10, 20, 30)
        with setting.store.subscribe("t", "s", delay_ms=1_000) as subscription:
            setting.clock.advance(1_020)
            received = subscription.receive(1)
            assert up_to([10]) == setting.counted(), "what is read ahead is not handed out"
            subscription.nack(received, delay=0.012)
            setting.clock.advance(25)
            assert [1, 2, 0] == [message.delivery_offset for message in subscription.receive()]
            assert up_to([10, 25, 15]) == setting.counted()

    def test_what_an_earlier_life_may_have_handed_out_does_not_count(self) -> None:
        setting = Setting()
        setting.send(10, 20)
        setting.clock.advance(15)
        assert 1 == setting.store.topic("t").partition(0).high_watermark()
        setting.store.close()
        setting.store = open_small(killed(setting.disk), setting.clock)
        setting.clock.advance(100)
        with setting.store.consumer("t", group="g") as consumer:
            assert 2 == len(consumer.poll())
            assert up_to([95]) == setting.counted()

    def test_a_reader_that_starts_at_the_end_is_the_furthest_ahead(self) -> None:
        setting = Setting()
        setting.send(10, 20)
        setting.clock.advance(15)
        with setting.store.consumer("t", group="tail", start=LATEST) as tail:
            setting.clock.advance(15)
            assert 1 == len(tail.poll())
        with setting.store.consumer("t", group="g") as consumer:
            assert 2 == len(consumer.poll())
        assert up_to([10]) == setting.counted()
