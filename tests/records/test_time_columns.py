from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidDeliverAfter
from afterlog.records.batch import Record, encode_batch
from afterlog.records.encode import parse
from afterlog.records.time_columns import asked_column
from afterlog.records.times import AS_SOON_AS_POSSIBLE, asked_ms, delay_ms, instant_ms
from tests.support import small

NOW_MS = 1_700_000_000_000
MOMENT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
NAIVE = datetime(2030, 1, 1)
BEFORE_1970 = datetime(1969, 12, 31, tzinfo=UTC)
TOO_FAR = 2**63


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (INT64_MAX, INT64_MAX),
        (1.0, 1),
        (1.001, 2),
        (np.int64(7), 7),
        (np.float64(7.5), 8),
        (MOMENT, NOW_MS),
        (MOMENT + timedelta(microseconds=1), NOW_MS + 1),
        (MOMENT + timedelta(microseconds=1_000), NOW_MS + 1),
        (MOMENT.astimezone(timezone(timedelta(hours=-7))), NOW_MS),
    ],
)
def test_an_instant(value: float, expected: int) -> None:
    assert expected == instant_ms(value)
    assert [expected, expected] == asked_column(2, NOW_MS, None, value).tolist()
    assert [expected, expected] == asked_column(2, NOW_MS, None, [value, value]).tolist()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (60, 60_000),
        (0.03, 30),
        (0.1, 100),
        (0.0301, 31),
        (1e-10, 0),
        (1e-9, 1),
        (np.int64(2), 2_000),
        (np.float64(0.5), 500),
        (np.float32(0.5), 500),
        (timedelta(microseconds=1), 1),
        (timedelta(seconds=1, microseconds=1_000), 1_001),
    ],
)
def test_a_delay(value: float, expected: int) -> None:
    assert expected == delay_ms(value)
    assert NOW_MS + expected == asked_ms(NOW_MS, value, None)
    assert [NOW_MS + expected] * 2 == asked_column(2, NOW_MS, value, None).tolist()


def test_neither_is_as_soon_as_possible() -> None:
    assert AS_SOON_AS_POSSIBLE == asked_ms(NOW_MS, None, None)
    assert [AS_SOON_AS_POSSIBLE] * 3 == asked_column(3, NOW_MS, None, None).tolist()


def test_columns_of_instants() -> None:
    milliseconds = [0, 5, NOW_MS, 10]
    for column in (
        milliseconds,
        tuple(milliseconds),
        np.array(milliseconds),
        np.array(milliseconds, np.uint64),
        np.array(milliseconds, ">i8"),
        np.array(milliseconds, "datetime64[ms]"),
        np.array(milliseconds, "datetime64[ms]").astype("datetime64[ns]"),
        np.repeat(np.array(milliseconds), 2)[::2],
        np.array(milliseconds, np.float64) - 0.5 + np.array([0.5, 0, 0, 0]),
    ):
        found = asked_column(4, NOW_MS, None, column)
        assert milliseconds == found.tolist()
        assert np.dtype("<i8") == found.dtype
        assert found.flags.c_contiguous
    moments = [MOMENT, MOMENT + timedelta(microseconds=1)]
    assert [NOW_MS, NOW_MS + 1] == asked_column(2, NOW_MS, None, moments).tolist()
    micros = np.array([NOW_MS * 1000, NOW_MS * 1000 + 1], "datetime64[us]")
    assert [NOW_MS, NOW_MS + 1] == asked_column(2, NOW_MS, None, micros).tolist()


def test_columns_of_delays() -> None:
    expected = [NOW_MS, NOW_MS + 30, NOW_MS + 2_000]
    for column in ([0, 0.03, 2], np.array([0, 0.03, 2]), np.array([0, 30, 2_000], "timedelta64[ms]")):
        assert expected == asked_column(3, NOW_MS, column, None).tolist()
    assert [NOW_MS + 1_000, NOW_MS + 2_000] == asked_column(2, NOW_MS, np.array([1, 2], np.uint8), None).tolist()
    nanoseconds = np.array([1], "timedelta64[ns]")
    assert [NOW_MS + 1] == asked_column(1, NOW_MS, nanoseconds, None).tolist()


def test_a_column_of_nothing() -> None:
    for values in ([], np.empty(0), np.empty(0, np.int64)):
        assert [] == asked_column(0, NOW_MS, None, values).tolist()
        assert [] == asked_column(0, NOW_MS, values, None).tolist()


BAD_INSTANTS = [-1, -1.5, TOO_FAR, math.nan, math.inf, -math.inf, True, "soon", b"1", NAIVE, BEFORE_1970, 1j]


@pytest.mark.parametrize("value", BAD_INSTANTS)
def test_no_instant(value: float) -> None:
    calls: list[Callable[[], object]] = [
        lambda: instant_ms(value),
        lambda: asked_ms(NOW_MS, None, value),
        lambda: asked_column(2, NOW_MS, None, value),
        lambda: asked_column(2, NOW_MS, None, [value, value]),
    ]
    for call in calls:
        with pytest.raises(InvalidDeliverAfter):
            call()


@pytest.mark.parametrize(
    "value",
    [-1, -0.001, timedelta(microseconds=-1_000), math.nan, math.inf, True, "1", MOMENT, 2**60, 1e300, 1.7e308],
)
def test_no_delay(value: float) -> None:
    with pytest.raises(InvalidDeliverAfter):
        asked_ms(NOW_MS, value, None)
    with pytest.raises(InvalidDeliverAfter):
        asked_column(2, NOW_MS, value, None)


@pytest.mark.parametrize(
    "column",
    [
        [1],
        [1, 2, 3],
        [[1, 2]],
        [1, -1],
        [1.0, math.nan],
        [1.0, 2.0**63],
        np.array([1, 2**63], np.uint64),
        np.array(["NaT", "2030-01-01"], "datetime64[ms]"),
        np.array([-1, 1], "datetime64[ms]"),
        ["a", "b"],
        [None, None],
        [[1], [1, 2]],
        [5, MOMENT],
        [MOMENT, NAIVE],
        [2**70, 1],
    ],
)
def test_no_column_of_instants(column: list[int]) -> None:
    with pytest.raises(InvalidDeliverAfter):
        asked_column(2, NOW_MS, None, column)


@pytest.mark.parametrize(
    "column",
    [
        [1],
        [-1, 1],
        [1, 2**62],
        [INT64_MAX // 1000, 1],
        [1.0, math.inf],
        [1.0, 1e300],
        ["a", "b"],
        [None, 1],
        [MOMENT, MOMENT],
        [timedelta(1), timedelta(1)],
        [[1], [1, 2]],
        np.array(["NaT", 1], "timedelta64[ms]"),
        np.array([2**63, 1], np.uint64),
        [2**70, 1],
    ],
)
def test_no_column_of_delays(column: list[int]) -> None:
    with pytest.raises(InvalidDeliverAfter):
        asked_column(2, NOW_MS, column, None)


def test_both() -> None:
    for call in (lambda: asked_ms(NOW_MS, 1, 1), lambda: asked_column(1, NOW_MS, [1], [1])):
        with pytest.raises(InvalidDeliverAfter, match="not both"):
            call()


@given(st.floats(0, 1e15))
def test_an_instant_is_never_early(value: float) -> None:
    assert Fraction(value) <= instant_ms(value) == asked_column(1, 0, None, [value])[0]


@given(st.floats(0, 1e6) | st.integers(0, 10**9).map(lambda ms: ms / 1000))
def test_a_delay_is_early_by_less_than_a_nanosecond(value: float) -> None:
    """Which is what decimal seconds lose in binary: 0.03 s are 30 ms, and not 31."""
    assert Fraction(value) * 1000 - delay_ms(value) < Fraction(1, 10**6)
    assert delay_ms(value) == asked_column(1, 0, [value], None)[0]


@given(st.integers(0, 10**12).map(lambda ms: ms / 1000))
def test_a_long_delay_may_be_a_millisecond_late(value: float) -> None:
    assert 0 <= delay_ms(value) - round(value * 1000) <= 1
    assert 0 <= asked_column(1, 0, [value], None)[0] - delay_ms(value) <= 1


@given(st.datetimes(datetime(1970, 1, 2), timezones=st.timezones()))
def test_a_moment_is_never_early_and_late_by_less_than_a_millisecond(moment: datetime) -> None:
    """From the second day on: the first begins ahead of the epoch in the east, and is refused."""
    late = timedelta(milliseconds=instant_ms(moment)) - (moment - datetime(1970, 1, 1, tzinfo=UTC))
    assert timedelta(0) <= late < timedelta(milliseconds=1)


class TestOthersDelays:
    """Numbers and spans of other libraries: by what they mean, or refused."""

    @pytest.mark.parametrize("unit", ["ns", "us", "ms", "s", "m", "h", "D"])
    def test_a_timedelta64_has_its_own_unit(self, unit: str) -> None:
        value = np.timedelta64(86_400_000_000_000, "ns").astype(f"m8[{unit}]")
        assert 86_400_000 == delay_ms(value) == asked_column(1, 0, np.array([value]), None)[0]
        assert 86_400_000 + 5 == asked_ms(5, value, None)

    def test_fractions_round_up(self) -> None:
        assert [1, 2, 1] == [delay_ms(np.timedelta64(ns, "ns")) for ns in (1, 1_000_001, 1_000_000)]
        pandas = pytest.importorskip("pandas")
        assert [1, 2, 1] == [delay_ms(pandas.Timedelta(ns, "ns")) for ns in (1, 1_000_001, 1_000_000)]

    @pytest.mark.parametrize(
        "value",
        [
            np.timedelta64("NaT"),
            np.datetime64(5, "s"),
            np.bool_(True),
            np.timedelta64(5),
            Decimal(1),
            Fraction(1),
            "1",
            b"1",
        ],
    )
    def test_what_names_no_delay_is_refused(self, value: Any) -> None:
        with pytest.raises(InvalidDeliverAfter):
            delay_ms(value)
        with pytest.raises(InvalidDeliverAfter):
            asked_ms(0, value, None)

    @pytest.mark.parametrize("value", [60_000_000_000, 6e10, timedelta(days=40_000), np.timedelta64(40_000, "D")])
    def test_where_it_leads_is_judged_as_an_instant_is(self, value: Any) -> None:
        now_ms = 1_700_000_000_000
        spans = isinstance(value, timedelta | np.timedelta64)
        for column in (value, np.array([value, value], "m8[ms]") if spans else [value, value]):
            with pytest.raises(InvalidDeliverAfter, match=r"years ahead.*takes seconds"):
                asked_column(2, now_ms, column, None, check_instants=True)
            assert now_ms < asked_column(2, now_ms, column, None).min()
        with pytest.raises(InvalidDeliverAfter, match="takes seconds"):
            asked_ms(now_ms, value, None, check_instants=True)
        assert now_ms < asked_ms(now_ms, value, None)


def test_the_time_of_a_batch_satisfies_each_of_its_records() -> None:
    """Whoever states it may state less than a record of the batch says itself (KIP-1277)."""
    batch = encode_batch([Record(value=b"v", timestamp=NOW_MS, deliver_after=NOW_MS + after) for after in (5, 20)])
    asked = [parse(batch, stated, small()).deliver_after.tolist() for stated in (None, NOW_MS, NOW_MS + 30)]
    assert [[NOW_MS + 20], [NOW_MS + 20], [NOW_MS + 30]] == asked
