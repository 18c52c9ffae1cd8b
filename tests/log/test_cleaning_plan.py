from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.log import cleaning_plan
from afterlog.log.cleaning_plan import SMALL_MAX, SPAN_MAX, STEP, DueBytes, Weight, plan

MIB = 1 << 20


def weights(*shares: float, held: int = MIB, span: int = 100) -> list[Weight]:
    """Segments one after another, of which these shares are alive."""
    return [
        Weight(row * span, (row + 1) * span, held, round(share * held), round(share * held))
        for row, share in enumerate(shares)
    ]


def planned(segments: list[Weight], **settings: int | bool) -> list[tuple[int, int]]:
    slack = {"segment_bytes": 1 << 30, "slack_bytes": 0, **settings}
    return [(group.start, group.stop) for group in plan(segments, **slack)]  # type: ignore[arg-type]


class TestDueBytes:
    @given(
        st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10_000)), min_size=1, max_size=60), st.integers(-2, 45)
    )
    def test_no_more_are_due_and_hardly_fewer(self, entries: list[tuple[int, int]], ms: int) -> None:
        due, size = np.array(entries, np.int64).T.copy()
        exact = int(size[due > ms].sum())
        told = DueBytes.of(due, size)
        least, most = told.least_after(ms), told.most_after(ms)
        assert least <= exact <= most
        assert most <= least / STEP + 1

    def test_it_is_small_whatever_it_tells_of(self) -> None:
        due = np.arange(100_000)
        assert len(DueBytes.of(due, np.full(100_000, 1_000)).due_ms) < 200


class TestPlan:
    def test_nothing_within_the_budget(self) -> None:
        assert [] == planned([])
        assert [] == planned(weights(1, 1, 0.5))

    def test_the_least_alive_go_until_it_is_within(self) -> None:
        """Of 4 MiB 1.1 are alive: without the second and the first, 2.2 are left."""
        assert [(0, 2)] == planned(weights(0.1, 0.05, 0.55, 0.4))
        assert [(1, 2), (3, 4)] == planned(weights(0.4, 0.1, 0.55, 0.05))

    def test_no_victim_has_more_than_half_alive(self) -> None:
        draw = np.random.default_rng(1)
        for _ in range(300):
            segments = weights(*draw.random(int(draw.integers(1, 30))) ** 2)
            rows = [row for first, stop in planned(segments) for row in range(first, stop)]
            small = cleaning_plan.OUTPUT_BYTES_MAX // 4
            assert all(segments[row].alive < segments[row].held / 2 or segments[row].held < small for row in rows)
            held = sum(each.alive if row in rows else each.held for row, each in enumerate(segments))
            assert held <= 2 * sum(each.alive for each in segments)

    @pytest.mark.parametrize(("slack", "expected"), [(0, [(0, 1)]), (10**9, [])])
    def test_the_slack(self, slack: int, expected: list[tuple[int, int]]) -> None:
        """A sixteenth of what is held, or less."""
        assert expected == planned(weights(0.49, held=32 * MIB), slack_bytes=slack)

    def test_a_small_partition_has_its_slack(self) -> None:
        assert [] == planned(weights(0, held=60_000), slack_bytes=MIB)
        assert [(0, 1)] == planned(weights(0, held=70_000), slack_bytes=MIB)

    def test_what_is_fixed_counts_as_alive_and_parts_others(self) -> None:
        first, middle, last = weights(0.1, 0, 0.1)
        assert [(0, 3)] == planned([first, middle, last])
        assert [] == planned([first, middle._replace(fixed=True, held=9 * MIB), last])
        fixed = middle._replace(fixed=True, held=0)
        assert [(0, 1), (2, 3)] == planned([first, fixed, last])

    def test_neighbours_are_one_as_far_as_they_fit(self) -> None:
        four = weights(*[0.4] * 4, held=10 * MIB)
        assert [(0, 2), (2, 4)] == planned(four, segment_bytes=9 * MIB, thorough=True)
        assert [(0, 4)] == planned(four, thorough=True)
        assert [(row, row + 1) for row in range(3)] == planned(weights(*[0.1] * 3, span=SPAN_MAX))

    def test_small_ones_become_one(self) -> None:
        alive = weights(*[1.0] * (SMALL_MAX + 1), held=1_000)
        assert [] == planned(alive[1:])
        assert [(0, SMALL_MAX + 1)] == planned(alive)
        parted = weights(*[1.0] * (SMALL_MAX + 2), held=1_000)
        parted[3] = parted[3]._replace(held=MIB, alive=MIB, left=MIB)
        assert [(4, SMALL_MAX + 2)] == planned(parted, segment_bytes=2 * MIB)

    def test_the_cheapest_for_the_square_of_how_many_go(self) -> None:
        sizes = [9_000] * 12 + [100] * 5 + [9_000] * 5
        segments = [Weight(row, row + 1, size, size, size) for row, size in enumerate(sizes)]
        [(first, stop)] = planned(segments)
        assert first <= 12 < 17 <= stop

    def test_thoroughly(self) -> None:
        """All that are worn, also within the budget, and small ones with each other."""
        worn = weights(0.7, 1, 0.75, held=100 * MIB)
        assert [] == planned(worn)
        assert [(0, 1), (2, 3)] == planned(worn, thorough=True)
        assert [(0, 3)] == planned(weights(1, 1, 1, held=1_000), thorough=True)
        assert [] == planned(weights(1, held=1_000), thorough=True)
