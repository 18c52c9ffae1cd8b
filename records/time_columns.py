"""Columns of due times as callers give them, as int64 milliseconds: instants, and delays from the clock's now.

A column is a sequence of what `afterlog.records.times` takes, an array, or what can be made one (`__array__`): a
Series of pandas or polars, an Index, an Arrow array, with zones or without. Columns of datetime64, which those of
pandas, polars and Arrow are inside, are converted as a whole, zones included. A sequence of Python objects is taken one
by one.

Fractions of a millisecond round up, so that nothing is early (promise D1). `check_instants`: an instant that is surely
wrong is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidDeliverAfter
from afterlog.records.columns import Int64Array
from afterlog.records.times import Delay, Instant, asked_ms, check_delayed, check_instant_column, moment_ms, whole_ms

InstantColumn: TypeAlias = Instant | Sequence[Instant] | npt.NDArray[np.generic]

DelayColumn: TypeAlias = Delay | Sequence[float] | npt.NDArray[np.generic]
_ROUNDED_MS = 2.0**33
"""Up to here a float64 has room for the six decimals that `np.round` needs; beyond it noise may cost a millisecond."""


def instant_column(column: object, count: int) -> Int64Array:
    """The milliseconds of `count` instants. InvalidDeliverAfter."""
    values = column_array(column, "deliver_after")
    if values.dtype.kind in "OUT" and values.ndim == 1:
        values = np.fromiter(map(moment_ms, values.tolist()), np.int64, len(values))
    return int64_column(values, count, "deliver_after")


def is_column(value: object) -> bool:
    """Many values, and not one."""
    return hasattr(value, "__len__") and not isinstance(value, str | bytes)


def column_array(column: Any, name: str) -> npt.NDArray[Any]:
    """A column as what numpy makes of it: times with a zone as datetime64, which is UTC. InvalidDeliverAfter."""
    dtype = getattr(column, "dtype", None)
    try:
        for plain in (getattr(dtype, "numpy_dtype", None), getattr(dtype, "base", None)):
            if isinstance(plain, np.dtype) and plain.kind == "M":  # pandas would make a Timestamp of each
                return np.asarray(column, plain)
        return np.asarray(column)
    except MemoryError:
        raise
    except Exception as error:  # what others' columns raise may be anything
        raise InvalidDeliverAfter(f"{name} must be one value or a column: {error}") from error


def int64_column(values: npt.NDArray[Any], count: int, name: str) -> Int64Array:
    """Milliseconds, datetime64 or timedelta64 as int64 milliseconds, rounded up and checked. InvalidDeliverAfter."""
    if values.shape != (count,):
        raise InvalidDeliverAfter(f"{name} must be one value or a column of {count}, not of shape {values.shape}")
    kind = values.dtype.kind
    if kind in "Mm":
        values = whole_ms(values, name)
    elif kind == "f":
        if not bool(np.isfinite(values).all()):
            raise InvalidDeliverAfter(f"{name} has a value that is not a number")
        values = np.ceil(values)
        if count and float(values.max()) >= 2.0**63:
            raise InvalidDeliverAfter(f"{name} has a value beyond int64 milliseconds")
    elif kind == "u":
        if count and int(values.max()) > INT64_MAX:
            raise InvalidDeliverAfter(f"{name} has a value beyond int64 milliseconds")
    elif kind != "i":
        raise InvalidDeliverAfter(f"{name} must be numbers, datetimes or ISO 8601 strings, not {values.dtype}")
    if count and values.min() < 0:
        raise InvalidDeliverAfter(f"{name} has a negative value")
    return np.ascontiguousarray(values, np.int64)


def asked_column(
    count: int,
    now_ms: int,
    delay: DelayColumn | None,
    deliver_after: InstantColumn | None,
    *,
    check_instants: bool = False,
) -> Int64Array:
    """The instants that `count` records ask for, int64[count].

    A scalar serves all records. Columns: instants; delays in seconds or timedelta64.
    """
    if deliver_after is not None and delay is None and is_column(deliver_after):
        column = instant_column(deliver_after, count)
        if check_instants:
            check_instant_column(column, now_ms)
        return column
    if delay is None or deliver_after is not None or not is_column(delay):
        return np.full(count, asked_ms(now_ms, delay, deliver_after, check_instants=check_instants), np.int64)  # type: ignore[arg-type]
    late = int64_column(_milliseconds(column_array(delay, "delay")), count, "delay")
    if count and int(late.max()) > INT64_MAX - now_ms:
        raise InvalidDeliverAfter("delay reaches beyond the last instant that int64 milliseconds can name")
    if check_instants and count:
        check_delayed(int(late.max()) + now_ms, now_ms)
    return late + now_ms


def _milliseconds(seconds: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of a column of seconds or timedelta64. InvalidDeliverAfter for others, and beyond int64."""
    if seconds.dtype.kind == "m":
        return seconds
    if seconds.dtype.kind not in "iuf":
        raise InvalidDeliverAfter(f"delay must be seconds, not {seconds.dtype}")
    if seconds.size and not seconds.max() <= INT64_MAX // 1000:
        raise InvalidDeliverAfter("delay has a value that is not a number, or beyond int64 milliseconds")
    if seconds.dtype.kind in "iu":
        return seconds.astype(np.int64) * 1000
    milliseconds = seconds * 1000.0
    return np.where(milliseconds < _ROUNDED_MS, np.round(milliseconds, 6), milliseconds)
