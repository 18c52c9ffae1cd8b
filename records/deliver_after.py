"""What a user asks for, as int64 milliseconds: instants and delays, one at a time or as columns.

    delay           seconds (int, float) or timedelta, counted from the clock's now
    deliver_after   aware datetime or epoch ms
    neither         as soon as possible, AS_SOON_AS_POSSIBLE in a column

Fractions of a millisecond round up, so that nothing is early (promise D1). A naive datetime names no instant: refused.
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

Instant: TypeAlias = int | float | datetime
Delay: TypeAlias = int | float | timedelta
InstantColumn: TypeAlias = Instant | Sequence[Instant] | npt.NDArray[np.generic]
DelayColumn: TypeAlias = Delay | Sequence[float] | npt.NDArray[np.generic]

AS_SOON_AS_POSSIBLE = -1
"""In a column of deliver_after: the record asked for no time."""

_ROUNDED_MS = 2.0**33
"""Up to here a float64 has room for the six decimals that `np.round` needs; beyond it noise may cost a millisecond."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def instant_ms(value: Instant) -> int:
    """Milliseconds since the epoch of an aware datetime, or of a number that is them already.

    Raises InvalidDeliverAfter for a naive datetime, a negative or unreadable number, and what does not fit an int64.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidDeliverAfter(f"{value!r} has no time zone: give an aware datetime, as datetime.now(UTC)")
        ms = -((_EPOCH - value) // _MILLISECOND)
    else:
        ms = _ceil(value, "deliver_after")
    return _checked(ms, value)


def delay_ms(value: Delay) -> int:
    """Milliseconds of a delay in seconds or as timedelta, rounded up. InvalidDeliverAfter if negative or no number."""
    ms = -(-value // _MILLISECOND) if isinstance(value, timedelta) else _ceil_seconds(value)
    return _checked(ms, value)


def asked_ms(now_ms: int, delay: Delay | None, deliver_after: Instant | None) -> int:
    """The instant that one record asks for, or AS_SOON_AS_POSSIBLE where it asks for none."""
    if delay is not None and deliver_after is not None:
        raise InvalidDeliverAfter("give delay (how long from now) or deliver_after (an instant), not both")
    if deliver_after is not None:
        return instant_ms(deliver_after)
    if delay is not None:
        return _checked(now_ms + delay_ms(delay), delay)
    return AS_SOON_AS_POSSIBLE


def asked_column(count: int, now_ms: int, delay: DelayColumn | None, deliver_after: InstantColumn | None) -> Int64Array:
    """The instants that `count` records ask for, int64[count].

    A scalar serves all records. Columns: epoch ms (int or float), datetime64 (UTC), or a sequence of aware datetimes;
    delays in seconds or timedelta64.
    """
    if delay is not None and deliver_after is not None:
        raise InvalidDeliverAfter("give delay (how long from now) or deliver_after (instants), not both")
    if deliver_after is None and delay is None:
        return np.full(count, AS_SOON_AS_POSSIBLE, np.int64)
    if deliver_after is not None:
        if _is_column(deliver_after):
            return _column(_array(_numbers(deliver_after), "deliver_after"), count, "deliver_after")
        return np.full(count, instant_ms(deliver_after), np.int64)  # type: ignore[arg-type]
    if not _is_column(delay):
        return np.full(count, _checked(now_ms + delay_ms(delay), delay), np.int64)  # type: ignore[arg-type]
    late = _column(_milliseconds(_array(delay, "delay")), count, "delay")
    if count and int(late.max()) > INT64_MAX - now_ms:
        raise InvalidDeliverAfter("delay reaches beyond the last instant that int64 milliseconds can name")
    return late + now_ms


def _is_column(value: object) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes)


def _numbers(column: Any) -> Any:
    """Datetimes as numbers; any other column as it is."""
    first = column[0] if len(column) and not isinstance(column, np.ndarray) else None
    return list(map(instant_ms, column)) if isinstance(first, datetime) else column


def _array(column: Any, name: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(column)
    except ValueError as error:
        raise InvalidDeliverAfter(f"{name} must be one value or a column: {error}") from error


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


def _column(values: npt.NDArray[Any], count: int, name: str) -> Int64Array:
    """Milliseconds, or datetime64 or timedelta64, as int64 milliseconds rounded up and checked."""
    if values.shape != (count,):
        raise InvalidDeliverAfter(f"{name} must be one value or a column of {count}, not of shape {values.shape}")
    if values.dtype.kind in "Mm":
        floor = values.astype(f"{values.dtype.kind}8[ms]")
        values = floor.astype(np.int64) + (floor < values)
    if values.dtype.kind == "f":
        if not bool(np.isfinite(values).all()):
            raise InvalidDeliverAfter(f"{name} has a value that is not a number")
        values = np.ceil(values)
        if count and float(values.max()) >= 2.0**63:
            raise InvalidDeliverAfter(f"{name} has a value beyond int64 milliseconds")
    elif values.dtype.kind == "u":
        if count and int(values.max()) > INT64_MAX:
            raise InvalidDeliverAfter(f"{name} has a value beyond int64 milliseconds")
    elif values.dtype.kind != "i":
        raise InvalidDeliverAfter(f"{name} must be numbers or aware datetimes, not {values.dtype}")
    if count and values.min() < 0:
        raise InvalidDeliverAfter(f"{name} has a negative value")
    return np.ascontiguousarray(values, np.int64)


def _ceil(value: float, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidDeliverAfter(f"{name} must be milliseconds since the epoch or an aware datetime, not {value!r}")
    if not math.isfinite(value):
        raise InvalidDeliverAfter(f"{name} is not a number: {value!r}")
    return math.ceil(value)


def _ceil_seconds(value: float) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidDeliverAfter(f"delay must be seconds or a timedelta, not {value!r}")
    if not math.isfinite(value):
        raise InvalidDeliverAfter(f"delay is not a number: {value!r}")
    # 0.03 s is 30 ms, although 0.03 * 1000 is a little more in binary: nanoseconds are exact enough to tell.
    return int(value) * 1000 if isinstance(value, int | np.integer) else math.ceil(round(float(value) * 1000, 6))


def _checked(ms: int, value: object) -> int:
    if not 0 <= ms <= INT64_MAX:
        raise InvalidDeliverAfter(f"{value!r} is negative, or beyond what int64 milliseconds since the epoch can name")
    return ms
