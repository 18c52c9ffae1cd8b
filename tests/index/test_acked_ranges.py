"""Ranges that all readers have acked, held against a look at every record."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afterlog.index.acked_ranges import NOTHING_ACKED, RANGES_MAX, AckedRange, AckedRanges
from afterlog.index.entries import Key

rows = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)
"""Records in delivery order: how much later than the one before each is due, and whether all have acked it."""


def made(records: list[tuple[int, bool]]) -> tuple[list[Key], list[bool], AckedRanges]:
    due = np.cumsum([step for step, _ in records])
    keys = [Key(int(ms), 3 * rank) for rank, ms in enumerate(due)]
    acked = [is_acked for _, is_acked in records]
    found = list[AckedRange]()
    for rank, is_acked in enumerate(acked):
        if is_acked and not (rank and acked[rank - 1]):
            before = keys[rank - 1] if rank else Key(-1, -1)
            found.append(AckedRange(*before, *keys[rank], rank, rank + 1))
        elif is_acked:
            found[-1] = found[-1]._replace(
                upto_ms=keys[rank].deliver_after, upto_offset=keys[rank].offset, end=rank + 1
            )
    removed = [min(each.records, each.first % 3) for each in found]
    return keys, acked, AckedRanges(tuple(found)).less(np.array(removed, np.int64))


@given(records=rows)
def test_each_record(records: list[tuple[int, bool]]) -> None:
    keys, acked, ranges = made(records)
    ranges.check()
    due, offset = np.array(keys, np.int64).T
    assert acked == ranges.holds(due, offset).tolist()
    assert sum(acked) == ranges.records
    which = ranges.which(due, offset)
    for rank, key in enumerate(keys):
        ended = [row for row in ranges.rows if row.upto <= key]
        assert sum(row.records for row in ended) == ranges.records_up_to(key)
        assert sum(row.removed for row in ended) == ranges.removed_up_to(key)
        assert (ended[-1] if ended else None) == ranges.last_up_to(key)
        in_front = sum(row.removed for row in ranges.rows if row.upto < key)
        assert in_front == ranges.removed_in_front(due[rank : rank + 1], offset[rank : rank + 1])[0]
        within = [row for row in ranges.rows if row.first <= rank < row.end]
        assert (rank - within[0].first if within else 0) == ranges.passed(rank)
        assert not within or ranges.rows[int(which[rank])] == within[0]
        assert [row for row in ranges.rows if row.upto > key] == [*ranges.behind(key).rows]
        before = [row for row in ranges.rows if row.end <= rank]
        assert (before[-1] if before else None) == ranges.last_before(rank)
    edges = np.arange(int(due[-1]) + 3)
    assert [sum(row.removed for row in ranges.rows if row.upto_ms < edge) for edge in edges] == (
        ranges.removed_before(edges).tolist()
    )


@given(records=rows, more=st.lists(st.booleans(), min_size=40, max_size=40))
def test_more_is_acked(records: list[tuple[int, bool]], more: list[bool]) -> None:
    """Those that touch become one; what was removed of them stays so."""
    _, _, known = made(records)
    later = [(step, acked or also) for (step, acked), also in zip(records, more, strict=False)]
    keys, acked, all_of_it = made(later)
    fresh = [row._replace(removed=0) for row in all_of_it.rows]
    found = known.including(fresh)
    found.check()
    assert [row._replace(removed=0) for row in found.rows] == fresh
    assert known.removed == found.removed
    due, offset = np.array(keys, np.int64).T
    assert acked == found.holds(due, offset).tolist()
    assert all(found.covers(range(row.first, row.end)) for row in known.rows)


def test_the_largest_are_worth_having_and_those_that_grow() -> None:
    stretches = [range(100 * number, 100 * number + 50 + number % 7) for number in range(RANGES_MAX + 9)]
    largest = NOTHING_ACKED.worth_having(stretches)
    assert (RANGES_MAX, 50) == (len(largest), min(map(len, largest)))
    assert sorted(largest, key=lambda each: each.start) == largest
    assert 9 == sum(len(each) == 50 for each in set(stretches) - set(largest))
    full = AckedRanges(tuple(AckedRange(each.start, 0, each.stop, 0, each.start, each.stop) for each in largest))
    assert [] == full.worth_having(each for each in stretches if each not in largest)
    grown = range(largest[0].start, largest[0].stop + 5)
    assert [grown] == full.worth_having([grown])
