"""One instant or one delay that a user writes, as int64 milliseconds; `time_columns` has the columns.

    number                     an instant: milliseconds since the epoch; a delay: seconds
    datetime, str (ISO 8601)   an instant, with a time zone; a naive one names no instant and is refused
    datetime64, timedelta64    of any unit; UTC, as numpy says
    timedelta                  a delay

*Instants that are surely wrong* are refused: before 2001-09-09, or more than a century ahead of the log's clock. A unit
that was mistaken moves an instant by a factor of a thousand, and so out of this window:

    1_770_000_000          seconds        1970-01-21   would be due at once
    1_770_000_000_000      milliseconds   2026-02-02   what is meant
    10**12                 milliseconds   2001-09-09   where the window begins
    1_770_000_000_000_000  microseconds   year 58059   would never be due

Judged are the instants that a caller states, or a delay leads to: when a record is due, and the time that it tells of
itself, by which a FIFO topic may count how long it stays. 0 is the epoch and nothing else, in any unit: it is taken,
and means at once; so is -1, of a record without a time. A clock that itself stands before the window is a simulation's,
by which nothing can be judged.

No numpy is needed here, so that a program that talks to a server, one record at a time, does without; its scalars are
taken where somebody has them.

Fractions of a millisecond round up, so that nothing is early (promise D1).
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterlog.base.clock import INT64_MAX
from afterlog.base.errors import InvalidDeliverAfter, InvalidRecord

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from afterlog.records.columns import Int64Array

    Instant: TypeAlias = int | float | datetime | str | np.datetime64
else:
    Instant = int | float | datetime | str
Delay: TypeAlias = int | float | timedelta

AS_SOON_AS_POSSIBLE = -1
"""In a column of deliver_after: the record asked for no time."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SURELY_MEANT_S = 10**9
"""Delays of so many seconds, 31 years, are not looked at twice."""
_FINE = ("ms", "us", "ns", "ps", "fs", "as")

_subtract = datetime.__sub__
"""Also of a Timestamp of pandas, whose own subtraction takes ten times as long."""
EARLIEST_MS: Final = 10**12
"""2001-09-09T01:46:40Z. In seconds, an instant of today is below it up to the year 33658."""
AHEAD_MS: Final = 36_525 * 86_400_000
"""A century."""
_UNITS: Final = (("seconds", 1_000, 1), ("microseconds", 1, 1_000), ("nanoseconds", 1, 1_000_000))
"""Each with what makes milliseconds of it: times, and divided by."""


def instant_ms(value: Instant) -> int:
    """Milliseconds since the epoch. InvalidDeliverAfter where it names no instant, or one outside 1970 to int64."""
    if isinstance(value, datetime | str):
        return moment_ms(value)
    if type(value).__name__ == "datetime64":
        import numpy as np

        return checked_ms(int(whole_ms(np.array([value]), "deliver_after")[0]), value)
    return checked_ms(_ceil(value), value)


def delay_ms(value: Delay) -> int:
    """Milliseconds of a delay in seconds or as timedelta, rounded up. InvalidDeliverAfter if negative or no number."""
    if type(value) is int:  # what people mostly give
        ms = value * 1000
    elif isinstance(value, timedelta):  # the largest one cannot be negated to round up
        ms = (value.days * 86_400 + value.seconds) * 1_000 - (-value.microseconds // 1_000)
        if getattr(value, "nanoseconds", 0) and not value.microseconds % 1_000:  # of pandas
            ms += 1
    elif type(value).__name__ == "timedelta64":  # numpy calls it an integral number, of its own unit
        import numpy as np

        ms = int(whole_ms(np.array([value]), "delay")[0])
    else:
        ms = _ceil_seconds(value)
    return checked_ms(ms, value)


def asked_ms(now_ms: int, delay: Delay | None, deliver_after: Instant | None, *, check_instants: bool = False) -> int:
    """The instant that one record asks for, or AS_SOON_AS_POSSIBLE where it asks for none."""
    if type(delay) is int and deliver_after is None and 0 <= delay < _SURELY_MEANT_S:  # what people mostly give
        return now_ms + delay * 1_000
    check_one_time(delay, deliver_after)
    if deliver_after is not None:
        ms = instant_ms(deliver_after)
        if check_instants:
            check_instant(ms, now_ms)
        return ms
    if delay is not None:
        ms = checked_ms(now_ms + delay_ms(delay), delay)
        if check_instants:
            check_delayed(ms, now_ms)
        return ms
    return AS_SOON_AS_POSSIBLE


def check_one_time(delay: object, deliver_after: object) -> None:
    """Raises InvalidDeliverAfter where both are given."""
    if delay is not None and deliver_after is not None:
        raise InvalidDeliverAfter("give delay (how long from now) or deliver_after (an instant), not both")


def checked_ms(ms: int, value: object) -> int:
    """`ms` itself, which `value` stands for. Raises InvalidDeliverAfter where no int64 since the epoch is."""
    if not 0 <= ms <= INT64_MAX:
        raise InvalidDeliverAfter(f"{value!r} is negative, or beyond what int64 milliseconds since the epoch can name")
    return ms


def whole_ms(values: npt.NDArray[Any], name: str) -> Int64Array:
    """Of a column of datetime64 or timedelta64, rounded up. InvalidDeliverAfter."""
    import numpy as np

    if np.datetime_data(values.dtype)[0] == "generic":
        raise InvalidDeliverAfter(f"{name} has no unit: np.timedelta64(5, 's')")
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


def moment_ms(value: datetime | str) -> int:
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


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidDeliverAfter(
            f"{text!r} is no instant: write ISO 8601 with a zone, 2030-01-31T08:00:00Z, or give a datetime"
        ) from None


def _ceil(value: object) -> int:
    number = _number(value)
    if number is None:
        raise InvalidDeliverAfter(
            f"deliver_after must be milliseconds since the epoch, an aware datetime or ISO 8601, not {value!r:.100}"
        )
    if isinstance(number, int):
        return number
    if not math.isfinite(number):
        raise InvalidDeliverAfter(f"deliver_after is not a number: {value!r}")
    return math.ceil(number)


def _ceil_seconds(value: object) -> int:
    number = _number(value)
    if number is None:
        raise InvalidDeliverAfter(f"delay must be seconds or a timedelta, not {value!r:.100}")
    if isinstance(number, int):
        return number * 1000
    if not math.isfinite(number * 1000):
        raise InvalidDeliverAfter(f"delay is not a number, or beyond what int64 milliseconds can name: {value!r}")
    # 0.03 s is 30 ms, although 0.03 * 1000 is a little more in binary: nanoseconds are exact enough to tell.
    return math.ceil(round(number * 1000, 6))


def _number(value: Any) -> int | float | None:
    """An int or a float, of numpy's too; None: it is neither."""
    if isinstance(value, int | float):
        return None if isinstance(value, bool) else value
    if getattr(getattr(value, "dtype", None), "kind", "") not in tuple("iuf") or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def check_instant(ms: int, now_ms: int) -> None:
    """Raises InvalidDeliverAfter where an instant that was asked for is surely wrong. What is not positive passes."""
    if ms > 0 and now_ms >= EARLIEST_MS and not EARLIEST_MS <= ms <= now_ms + AHEAD_MS:
        raise InvalidDeliverAfter(_why("deliver_after", ms, now_ms))


def check_delayed(ms: int, now_ms: int) -> None:
    """Raises InvalidDeliverAfter where a delay leads to an instant that would be refused: it takes seconds."""
    if now_ms >= EARLIEST_MS and ms > now_ms + AHEAD_MS:
        years = (ms - now_ms) // 31_557_600_000
        raise InvalidDeliverAfter(
            f"delay leads {years} years ahead ({_when(ms)}): it takes seconds, so divide what is in milliseconds by "
            "1000; if it is meant: check_instants=False"
        )


def check_instant_column(column: Int64Array, now_ms: int, *, before: int = 0, of: str = "row") -> None:
    """The same for a column of them. before: how many came before them; of: what they are of."""
    row = _first_wrong(column, now_ms)
    if row is not None:
        raise InvalidDeliverAfter(_why(f"{of} {before + row}: deliver_after", int(column[row]), now_ms))


def check_timestamps(column: Int64Array, now_ms: int, *, of: str = "row") -> None:
    """Raises InvalidRecord where a time that a record tells of itself is surely wrong. of: what they are of."""
    row = _first_wrong(column, now_ms)
    if row is not None:
        raise InvalidRecord(_why(f"{of} {row}: timestamp", int(column[row]), now_ms))


def _first_wrong(column: Int64Array, now_ms: int) -> int | None:
    if now_ms < EARLIEST_MS or not len(column):
        return None
    latest_ms = now_ms + AHEAD_MS
    if EARLIEST_MS <= int(column.min()) and int(column.max()) <= latest_ms:
        return None
    wrong = ((column > 0) & (column < EARLIEST_MS)) | (column > latest_ms)
    return int(wrong.argmax()) if bool(wrong.any()) else None


def _why(name: str, ms: int, now_ms: int) -> str:
    mean = "if it is meant: check_instants=False"
    otherwise = ", or give an aware datetime" if name.endswith("deliver_after") else ""
    for unit, times, divisor in _UNITS:
        if EARLIEST_MS <= ms * times // divisor <= now_ms + AHEAD_MS:
            change = "multiply by 1000" if times > 1 else f"divide by {divisor}"
            return (
                f"{name} {ms} looks like {unit}, and is taken as milliseconds since the epoch "
                f"({_when(ms)}): {change}{otherwise}; {mean}"
            )
    which = "before 2001-09-09" if ms < EARLIEST_MS else "more than a century ahead"
    return f"{name} {ms} ms since the epoch ({_when(ms)}) is {which}: mend it, or {mean}"


def _when(ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="seconds")
    except OverflowError:
        return f"the year {1970 + ms // 31_556_952_000}"
