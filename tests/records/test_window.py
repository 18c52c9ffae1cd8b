from __future__ import annotations

import re

import numpy as np
import pytest

from afterlog.base.errors import InvalidDeliverAfter, InvalidRecord
from afterlog.records.times import AHEAD_MS, EARLIEST_MS, check_instant, check_instant_column, check_timestamps

NOW_MS = 1_770_000_000_000
YEAR_MS = 31_557_600_000

TAKEN = [0, EARLIEST_MS, NOW_MS - 20 * YEAR_MS, NOW_MS, NOW_MS + 99 * YEAR_MS, NOW_MS + AHEAD_MS]
REFUSED = [
    (1_770_003_600, "looks like seconds", "multiply by 1000"),
    (1_770_003_600_000_000, "looks like microseconds", "divide by 1000"),
    (1_770_003_600_000_000_000, "looks like nanoseconds", "divide by 1000000"),
    (1, "before 2001-09-09", "1970-01-01T00:00:00"),
    (EARLIEST_MS - 1, "before 2001-09-09", "2001-09-09T01:46:39"),
    (NOW_MS + AHEAD_MS + 1, "more than a century ahead", "2126-"),
    (2**63 - 1, "more than a century ahead", "the year 292278994"),
]


@pytest.mark.parametrize("ms", TAKEN)
def test_what_may_be_meant_is_taken(ms: int) -> None:
    check_instant(ms, NOW_MS)
    check_instant_column(np.array([NOW_MS, ms, 0, -1]), NOW_MS)


@pytest.mark.parametrize(("ms", "why", "what"), REFUSED)
def test_what_is_surely_wrong_is_refused_with_the_unit_that_was_meant(ms: int, why: str, what: str) -> None:
    for call, row in (
        (lambda: check_instant(ms, NOW_MS), ""),
        (lambda: check_instant_column(np.array([ms]), NOW_MS), "row 0: "),
        (lambda: check_instant_column(np.array([0, NOW_MS, ms, 5]), NOW_MS), "row 2: "),
    ):
        with pytest.raises(InvalidDeliverAfter) as raised:
            call()
        text = str(raised.value)
        assert text.startswith(f"{row}deliver_after {ms} ")
        assert re.search(f"{why}.*{what}", text) or re.search(f"{what}.*{why}", text)
        assert "check_instants=False" in text


@pytest.mark.parametrize("now_ms", [0, 5, EARLIEST_MS - 1])
def test_by_the_clock_of_a_simulation_nothing_can_be_judged(now_ms: int) -> None:
    for ms in (1, 2**63 - 1):
        check_instant(ms, now_ms)
        check_instant_column(np.array([ms]), now_ms)


def test_no_instants() -> None:
    check_instant_column(np.empty(0, np.int64), NOW_MS)


@pytest.mark.parametrize(("ms", "says"), [(NOW_MS // 1_000, "seconds"), (NOW_MS * 1_000, "microseconds")])
def test_the_time_that_a_record_tells_of_itself(ms: int, says: str) -> None:
    check_timestamps(np.array([NOW_MS, -1, 0, EARLIEST_MS, NOW_MS + AHEAD_MS]), NOW_MS)
    with pytest.raises(InvalidRecord, match=f"row 1: timestamp {ms} looks like {says}.*check_instants=False"):
        check_timestamps(np.array([NOW_MS, ms]), NOW_MS)
