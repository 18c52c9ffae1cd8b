from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterlog.base.clock import ManualClock
from afterlog.fetch import ranks
from afterlog.fetch.partition import Partition
from afterlog.index.entries import Key
from tests import campaigns
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, open_small


def made(
    clock: ManualClock, delays: list[list[float]], cancelled: set[int], **topic: bool
) -> tuple[Partition, dict[int, tuple[int, int]]]:
    """A partition of such sends, all due in the end; and (due, delivery offset) of each append offset shown."""
    store = open_small(SimulatedFiles(), clock, deliver_after_spread_ms=1_000)
    partition = store.create_topic("mail", **topic).partition(0)
    for batch in delays:
        column = np.array(batch) if partition.log.delayed else None
        store.send_many("mail", [b"x"] * len(batch), delay=column)
    if cancelled:
        store.cancel_many("mail", 0, np.array(sorted(cancelled)))
    clock.advance(100_000)
    shown, position = dict[int, tuple[int, int]](), 0
    while len((read := partition.columns(position, 1_000, 1 << 20))[0]):
        columns, position = read
        rows = zip(columns.due.tolist(), columns.delivery_offset.tolist(), strict=True)
        shown |= dict(zip(columns.offset.tolist(), rows, strict=True))
    return partition, shown


BATCHES = st.lists(st.lists(st.sampled_from([0.0, 1.0, 1.5, 30.0]), min_size=1, max_size=4), min_size=1, max_size=12)


@settings(max_examples=campaigns.examples(15))
@given(batches=BATCHES, data=st.data())
def test_there_and_back(batches: list[list[float]], data: st.DataObject) -> None:
    cancelled = data.draw(st.sets(st.integers(0, 30), max_size=4))
    partition, shown = made(ManualClock(NOW_MS), batches, cancelled)
    rank = {delivery_offset: offset for offset, (_, delivery_offset) in shown.items()}
    end = partition.high_watermark()
    asked = sorted(data.draw(st.sets(st.integers(0, end + 2))))
    expected = [rank.get(delivery_offset, -1) for delivery_offset in asked]
    assert expected == partition.offsets_at(np.array(asked, np.int64)).tolist()
    reading = partition.look()
    for position in (0, end // 2, end):
        hidden = end - position - sum(delivery_offset >= position for delivery_offset in rank)
        assert hidden == partition.hidden_between(position, reading.upto, reading)
    for due, delivery_offset in shown.values():
        offset = rank[delivery_offset]
        assert Key(due, offset) == partition._order.key_before(delivery_offset + 1, reading)  # type: ignore[union-attr]


@settings(max_examples=campaigns.examples(15))
@given(batches=BATCHES, data=st.data())
def test_records_are_the_same_by_rank_and_from_the_log(batches: list[list[float]], data: st.DataObject) -> None:
    partition, shown = made(ManualClock(NOW_MS), batches, data.draw(st.sets(st.integers(0, 30), max_size=4)))
    offsets = np.array(data.draw(st.lists(st.sampled_from(sorted(shown)), max_size=9) if shown else st.just([])), int)
    delivery_offsets = np.array([shown[offset][1] for offset in offsets.tolist()], int)
    wrong = data.draw(st.sampled_from([0, 0, 1]))
    with patch.object(ranks, "FEW", 1):
        found = ranks.entries_at(partition._order, delivery_offsets + wrong, offsets, partition.look())
        by_rank = partition.records_at(offsets, delivery_offsets + wrong)
    assert (found is None) == (not len(offsets) or wrong == 1)
    from_log = partition.records_at(offsets, np.full(len(offsets), -1))
    assert offsets.tolist() == by_rank.offset.tolist() == from_log.offset.tolist()
    assert by_rank.due.tolist() == from_log.due.tolist() == [shown[offset][0] for offset in offsets.tolist()]
    assert by_rank.value[1].tobytes() == from_log.value[1].tobytes() == b"x" * len(offsets)


def test_what_is_not_due_has_none() -> None:
    clock = ManualClock(NOW_MS)
    partition, _ = made(clock, [[0.0]], set())
    assert [0, -1, -1] == partition.offsets_at(np.array([0, 1, 2])).tolist()
    assert [] == partition.offsets_at(np.array([], np.int64)).tolist()


@pytest.mark.parametrize("count", [1, 7])
def test_a_fifo_topic(count: int) -> None:
    partition, _ = made(ManualClock(NOW_MS), [[0.0] * count], set(), delayed=False)
    expected = [*range(count), -1]
    assert expected == partition.offsets_at(np.arange(count + 1)).tolist()
    reading = partition.look()
    assert 0 == partition.hidden_between(0, reading.upto, reading)
