"""What datetimes are written as: of numpy, pandas, polars, Arrow, and as text. What numbers are is in
tests/records/test_time_columns.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidDeliverAfter
from afterlog.records.time_columns import column_array, instant_column
from afterlog.records.times import instant_ms

NOW_MS = 1_770_000_000_000
BERLIN = ZoneInfo("Europe/Berlin")
TIMES_MS = [NOW_MS, NOW_MS + 1, NOW_MS + 15_000_000_000]  # winter and summer
MOMENTS = [datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms) for ms in TIMES_MS]
ZONED = [moment.astimezone(BERLIN) for moment in MOMENTS]
SERIES = pd.Series(pd.DatetimeIndex(MOMENTS)).dt.tz_convert(BERLIN)
NAIVE_SERIES = pd.Series(np.array(TIMES_MS, "datetime64[ms]"))


class LikePolars:
    """What polars shows of a Series: `dtype` that is none of numpy's, and `__array__`, which gives UTC."""

    dtype = SimpleNamespace(time_unit="us", time_zone="Europe/Berlin")

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.values, dtype)


COLUMNS: dict[str, Any] = {
    "datetimes": MOMENTS,
    "zoned datetimes": tuple(ZONED),
    "objects": np.array(ZONED, object),
    "text": [moment.isoformat() for moment in ZONED],
    "text of numpy": np.array([moment.isoformat() for moment in MOMENTS]),
    "text of Arrow": pa.array([moment.isoformat() for moment in ZONED]),
    "Z": [f"{moment.replace(tzinfo=None).isoformat()}Z" for moment in MOMENTS],
    "both": [MOMENTS[0], ZONED[1].isoformat(), ZONED[2]],
    **{unit: np.array(TIMES_MS, "M8[ms]").astype(f"M8[{unit}]") for unit in ("ms", "us", "ns")},
    "big-endian": np.array(TIMES_MS, ">M8[ms]"),
    "timestamps": list(SERIES),
    "pandas": SERIES,
    "pandas, us": SERIES.astype("datetime64[us, Europe/Berlin]"),
    "pandas, other index": SERIES.set_axis([7, 8, 9]),
    "pandas, naive": NAIVE_SERIES,
    "pandas, naive us": NAIVE_SERIES.astype("datetime64[us]"),
    "pandas, index": pd.DatetimeIndex(SERIES),
    "pandas, array": SERIES.array,
    "pandas, objects": SERIES.astype(object),
    "pandas, text": pd.Series([moment.isoformat() for moment in ZONED]),
    "pandas, Arrow": SERIES.astype("timestamp[us, tz=Europe/Berlin][pyarrow]"),
    "pandas, Int64": pd.Series(TIMES_MS, dtype="Int64"),
    "Arrow": pa.array(MOMENTS, pa.timestamp("us", "Europe/Berlin")),
    "Arrow, ns": pa.array(TIMES_MS).cast(pa.timestamp("ms")).cast(pa.timestamp("ns")),
    "Arrow, chunks": pa.chunked_array([pa.array(MOMENTS[:1]), pa.array(MOMENTS[1:])]),
    "like polars": LikePolars(np.array(TIMES_MS, "datetime64[ms]").astype("M8[us]")),
    "like polars, text": LikePolars(np.array([moment.isoformat() for moment in ZONED])),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_taken_as_it_is(name: str) -> None:
    found = instant_column(COLUMNS[name], 3)
    assert TIMES_MS == found.tolist()
    assert np.dtype("<i8") == found.dtype


@pytest.mark.parametrize("name", ["pandas", "pandas, us", "pandas, index", "pandas, array", "pandas, Arrow"])
def test_of_a_zoned_column_no_object_is_made(name: str) -> None:
    """100,000 of them took 1.2 s as objects, 0.002 s as they are."""
    assert "M" == column_array(COLUMNS[name], "deliver_after").dtype.kind


@pytest.mark.parametrize(("unit", "last"), [("s", 10**12), ("m", 10**10), ("h", 10**9), ("D", 10**7), ("M", 10**5)])
def test_coarse_units(unit: str, last: int) -> None:
    column = np.array([0, 5, last], f"M8[{unit}]")
    assert [int((each - np.datetime64(0, "s")) // np.timedelta64(1, "s")) * 1000 for each in column] == (
        instant_column(column, 3).tolist()
    )


@pytest.mark.parametrize("unit", ["s", "m", "h", "D", "W"])
def test_what_milliseconds_cannot_name_does_not_wrap_around(unit: str) -> None:
    for number in (INT64_MAX // 999, INT64_MAX // 2, INT64_MAX, 2**54):
        column = np.array([number], f"M8[{unit}]")
        if unit == "s" and number == 2**54:
            continue
        with pytest.raises(InvalidDeliverAfter, match="beyond int64"):
            instant_column(column, 1)


def test_fractions_round_up_in_every_form() -> None:
    moment = MOMENTS[0] + timedelta(microseconds=1)
    nanosecond = pd.Timestamp(NOW_MS * 10**6 + 1, tz="UTC")
    for value in (moment, moment.isoformat(), nanosecond, np.datetime64(NOW_MS * 10**6 + 1, "ns")):
        assert NOW_MS + 1 == instant_ms(value)
        assert [NOW_MS + 1] == instant_column([value], 1).tolist()
    assert [NOW_MS + 1] == instant_column(pd.Series([nanosecond]), 1).tolist()


@pytest.mark.parametrize(
    "value", [MOMENTS[0], ZONED[0], ZONED[0].isoformat(), "2026-02-02T02:40:00Z", "2026-02-02T02:40Z",
              SERIES[0], np.datetime64(NOW_MS, "ms"), NOW_MS, float(NOW_MS), np.int64(NOW_MS)],
)  # fmt: skip
def test_one(value: Any) -> None:
    assert NOW_MS == instant_ms(value)


@pytest.mark.parametrize(
    "value",
    ["2030-01-01", "2030-01-01T00:00:00", "soon", "", "1770000000000", b"2030-01-01T00:00:00Z", pd.NaT, pd.NA,
     np.datetime64("NaT"), np.datetime64("1969-12-31"), 10**400, object(), {"a": 1}, pd.Timestamp("2030-01-01")],
)  # fmt: skip
def test_none(value: Any) -> None:
    calls: list[Callable[[], object]] = [lambda: instant_ms(value), lambda: instant_column([value], 1)]
    for call in calls:
        with pytest.raises(InvalidDeliverAfter):
            call()


class Broken(LikePolars):
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        raise KeyError("no")


@pytest.mark.parametrize(
    "column",
    [pd.Series([MOMENTS[0], None]), pa.array([MOMENTS[0], None]), [MOMENTS[0], None], [MOMENTS[0], 5],
     pd.Series([1, None], dtype="Int64"), {"a": 1, "b": 2}, {1, 2}, Broken([1, 2]), np.array(5), range(3),
     pd.DataFrame({"a": [1, 2]}), [b"a", b"b"], np.array([True, False]), [10**400, 1]],
)  # fmt: skip
def test_no_column(column: Any) -> None:
    with pytest.raises(InvalidDeliverAfter):
        instant_column(column, 2)
