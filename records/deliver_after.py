"""What a user asks for, as int64 milliseconds: instants and delays, one at a time or as columns.

    delay           seconds (int, float) or timedelta, counted from the clock's now
    deliver_after   an instant, as `afterlog.records.instants` takes it: epoch ms, aware datetime, ISO 8601, datetime64
    neither         as soon as possible, AS_SOON_AS_POSSIBLE in a column

Fractions of a millisecond round up, so that nothing is early (promise D1). `check_instants`: an instant that is surely
wrong (`afterlog.records.window`) is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from afterlog.clock import INT64_MAX
from afterlog.errors import InvalidDeliverAfter
from afterlog.records import window
from afterlog.records.columns import Int64Array
from afterlog.records.instants import (
    Instant,
    InstantColumn,
    checked_ms,
    column_array,
    instant_column,
    instant_ms,
    int64_column,
    is_column,
)

Delay: TypeAlias = int | float | timedelta
DelayColumn: TypeAlias = Delay | Sequence[float] | npt.NDArray[np.generic]

AS_SOON_AS_POSSIBLE = -1
"""In a column of deliver_after: the record asked for no time."""

_ROUNDED_MS = 2.0**33
"""Up to here a float64 has room for the six decimals that `np.round` needs; beyond it noise may cost a millisecond."""


def delay_ms(value: Delay) -> int:
    """Milliseconds of a delay in seconds or as timedelta, rounded up. InvalidDeliverAfter if negative or no number."""
    if type(value) is int:  # what people mostly give
        ms = value * 1000
    elif isinstance(value, timedelta):  # the largest one cannot be negated to round up
        ms = (value.days * 86_400 + value.seconds) * 1_000 - (-value.microseconds // 1_000)
    else:
        ms = _ceil_seconds(value)
    return checked_ms(ms, value)


def asked_ms(now_ms: int, delay: Delay | None, deliver_after: Instant | None, *, check_instants: bool = False) -> int:
    """The instant that one record asks for, or AS_SOON_AS_POSSIBLE where it asks for none."""
    if delay is not None and deliver_after is not None:
        raise InvalidDeliverAfter("give delay (how long from now) or deliver_after (an instant), not both")
    if deliver_after is not None:
        ms = instant_ms(deliver_after)
        if check_instants:
            window.check_instant(ms, now_ms)
        return ms
    if delay is not None:
        return checked_ms(now_ms + delay_ms(delay), delay)
    return AS_SOON_AS_POSSIBLE


def asked_column(
    count: int,
    now_ms: int,
    delay: DelayColumn | None,
    deliver_after: InstantColumn | None,
    *,
    check_instants: bool = False,
) -> Int64Array:
    """The instants that `count` records ask for, int64[count].

    A scalar serves all records. Columns: instants (`afterlog.records.instants`); delays in seconds or timedelta64.
    """
    if deliver_after is not None and delay is None and is_column(deliver_after):
        column = instant_column(deliver_after, count)
        if check_instants:
            window.check_instants(column, now_ms)
        return column
    if delay is None or deliver_after is not None or not is_column(delay):
        return np.full(count, asked_ms(now_ms, delay, deliver_after, check_instants=check_instants), np.int64)  # type: ignore[arg-type]
    late = int64_column(_milliseconds(column_array(delay, "delay")), count, "delay")
    if count and int(late.max()) > INT64_MAX - now_ms:
        raise InvalidDeliverAfter("delay reaches beyond the last instant that int64 milliseconds can name")
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


def _ceil_seconds(value: float) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidDeliverAfter(f"delay must be seconds or a timedelta, not {value!r:.100}")
    if isinstance(value, int | np.integer):
        return int(value) * 1000
    if not math.isfinite(value):
        raise InvalidDeliverAfter(f"delay is not a number: {value!r}")
    # 0.03 s is 30 ms, although 0.03 * 1000 is a little more in binary: nanoseconds are exact enough to tell.
    return math.ceil(round(float(value) * 1000, 6))
