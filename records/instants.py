"""What a user writes for an instant, as int64 milliseconds since the epoch: one at a time, or a column.

    number                          milliseconds since the epoch
    datetime, str (ISO 8601)        with a time zone; a naive one names no instant and is refused
    datetime64 of any unit          UTC, as numpy says
    column                          a sequence of these, an array, or what can be made one (`__array__`): a Series
                                    of pandas or polars, an Index, an Arrow array, with zones or without

Columns of datetime64, which those of pandas, polars and Arrow are inside, are converted as a whole, zones included. A
sequence of Python objects is taken one by one. Fractions of a millisecond round up, so that nothing is early (D1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from afterlog.clock import INT64_MAX
from afterlog.errors import InvalidDeliverAfter
from afterlog.records.columns import Int64Array

Instant: TypeAlias = int | float | datetime | str | np.datetime64
InstantColumn: TypeAlias = Instant | Sequence[Instant] | npt.NDArray[np.generic]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FINE = ("ms", "us", "ns", "ps", "fs", "as")


def instant_ms(value: Instant) -> int:
    """Milliseconds since the epoch. InvalidDeliverAfter where it names no instant, or one outside 1970 to int64."""
    if isinstance(value, datetime | str):
        return _moment_ms(value)
    if isinstance(value, np.datetime64):
        return int(int64_column(np.array([value]), 1, "deliver_after")[0])
    return checked_ms(_ceil(value), value)


def instant_column(column: object, count: int) -> Int64Array:
    """The milliseconds of `count` instants. InvalidDeliverAfter."""
    values = column_array(column, "deliver_after")
    if values.dtype.kind in "OUT" and values.ndim == 1:
        values = np.fromiter(map(_moment_ms, values.tolist()), np.int64, len(values))
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
        values = _milliseconds(values, name)
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


def checked_ms(ms: int, value: object) -> int:
    """`ms` itself, which `value` stands for. Raises InvalidDeliverAfter where no int64 since the epoch is."""
    if not 0 <= ms <= INT64_MAX:
        raise InvalidDeliverAfter(f"{value!r} is negative, or beyond what int64 milliseconds since the epoch can name")
    return ms


def _milliseconds(values: npt.NDArray[Any], name: str) -> Int64Array:
    """Of datetime64 or timedelta64."""
    if bool(np.isnat(values).any()):
        raise InvalidDeliverAfter(f"{name} has a missing value (NaT): leave the time out, or send such records apart")
    try:
        floor = values.astype(f"{values.dtype.kind}8[ms]")
        again = floor.astype(values.dtype)
    except TypeError as error:
        raise InvalidDeliverAfter(f"{name} has no unit that milliseconds can be made of: {error}") from None
    if np.datetime_data(values.dtype)[0] not in _FINE and bool((again != values).any()):  # numpy wraps around silently
        raise InvalidDeliverAfter(f"{name} has a value beyond int64 milliseconds")
    return floor.astype(np.int64) + (again < values)


def _moment_ms(value: datetime | str) -> int:
    """Of an aware datetime, or a string that is one."""
    moment = _parsed(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise InvalidDeliverAfter(f"a column of objects must hold aware datetimes or ISO 8601, not {value!r:.100}")
    if moment.tzinfo is None:
        raise InvalidDeliverAfter(f"{value!r} has no time zone: give an aware datetime, as datetime.now(UTC)")
    before_epoch = _subtract(_EPOCH, moment)
    ms = -(before_epoch // _MILLISECOND)
    if type(moment) is not datetime and getattr(moment, "nanosecond", 0) != 0 and not before_epoch % _MILLISECOND:
        ms += 1
    return ms if ms >= 0 else checked_ms(ms, value)


_subtract = datetime.__sub__
"""Also of a Timestamp of pandas, whose own subtraction takes ten times as long."""


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidDeliverAfter(
            f"{text!r} is no instant: write ISO 8601 with a zone, 2030-01-31T08:00:00Z, or give a datetime"
        ) from None


def _ceil(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidDeliverAfter(
            f"deliver_after must be milliseconds since the epoch, an aware datetime or ISO 8601, not {value!r:.100}"
        )
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        raise InvalidDeliverAfter(f"deliver_after is not a number: {value!r}")
    return math.ceil(value)
