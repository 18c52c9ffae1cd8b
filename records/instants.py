"""What a user writes for an instant, as int64 milliseconds since the epoch: one at a time, or a column.

    number                          milliseconds since the epoch
    datetime, str (ISO 8601)        with a time zone; a naive one names no instant and is refused
    datetime64 of any unit          UTC, as numpy says; and so a column of pandas, polars or Arrow without a zone,
                                    which is one inside
    column                          a sequence of these, an array, or what can be made one (`__array__`): a Series
                                    of pandas or polars, an Index, an Arrow array, with zones or without

Columns of datetime64, which those of pandas, polars and Arrow are inside, are converted as a whole, zones included. A
sequence of Python objects is taken one by one. Fractions of a millisecond round up, so that nothing is early (D1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidDeliverAfter
from afterlog.records.columns import Int64Array
from afterlog.records.moments import Instant as Instant
from afterlog.records.moments import instant_ms as instant_ms
from afterlog.records.moments import moment_ms, whole_ms

InstantColumn: TypeAlias = Instant | Sequence[Instant] | npt.NDArray[np.generic]


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
