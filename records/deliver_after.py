"""Due times as callers give them, as int64 milliseconds: instants and delays, one at a time or as columns.

    delay           seconds (int, float) or timedelta, counted from the clock's now
    deliver_after   an instant, as `afterlog.records.instants` takes it: epoch ms, aware datetime, ISO 8601, datetime64
    neither         as soon as possible, AS_SOON_AS_POSSIBLE in a column

Fractions of a millisecond round up, so that nothing is early (promise D1). `check_instants`: an instant that is surely
wrong (`afterlog.records.window`) is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidDeliverAfter
from afterlog.records import window
from afterlog.records.columns import Int64Array
from afterlog.records.instants import InstantColumn, column_array, instant_column, int64_column, is_column
from afterlog.records.moments import AS_SOON_AS_POSSIBLE as AS_SOON_AS_POSSIBLE
from afterlog.records.moments import Delay as Delay
from afterlog.records.moments import asked_ms as asked_ms
from afterlog.records.moments import delay_ms as delay_ms

DelayColumn: TypeAlias = Delay | Sequence[float] | npt.NDArray[np.generic]

_ROUNDED_MS = 2.0**33
"""Up to here a float64 has room for the six decimals that `np.round` needs; beyond it noise may cost a millisecond."""


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
    if check_instants and count:
        window.check_delayed(int(late.max()) + now_ms, now_ms)
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
