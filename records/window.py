"""Refuses instants that are surely wrong: before 2001-09-09, or more than a century ahead of the log's clock.

A unit that was mistaken moves an instant by a factor of a thousand, and so out of this window:

    1_770_000_000          seconds        1970-01-21   would be due at once
    1_770_000_000_000      milliseconds   2026-02-02   what is meant
    10**12                 milliseconds   2001-09-09   where the window begins
    1_770_000_000_000_000  microseconds   year 58059   would never be due

Judged are the instants that a caller states, or a delay leads to: when a record is due, and the time that it tells of
itself, by which a FIFO topic may count how long it stays. 0 is the epoch and nothing else, in any unit: it is taken,
and means at once; so is -1, of a record without a time. A clock that itself stands before the window is a simulation's,
by which nothing can be judged.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from afterlog.base.errors import InvalidDeliverAfter, InvalidRecord

if TYPE_CHECKING:
    from afterlog.records.columns import Int64Array

EARLIEST_MS: Final = 10**12
"""2001-09-09T01:46:40Z. In seconds, an instant of today is below it up to the year 33658."""
AHEAD_MS: Final = 36_525 * 86_400_000
"""A century."""

_UNITS: Final = (("seconds", 1_000, 1), ("microseconds", 1, 1_000), ("nanoseconds", 1, 1_000_000))
"""Each with what makes milliseconds of it: times, and divided by."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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


def check_instants(column: Int64Array, now_ms: int) -> None:
    """The same for a column of them."""
    row = _first_wrong(column, now_ms)
    if row is not None:
        raise InvalidDeliverAfter(_why(f"row {row}: deliver_after", int(column[row]), now_ms))


def check_timestamps(column: Int64Array, now_ms: int) -> None:
    """Raises InvalidRecord where a time that a record tells of itself is surely wrong."""
    row = _first_wrong(column, now_ms)
    if row is not None:
        raise InvalidRecord(_why(f"row {row}: timestamp", int(column[row]), now_ms))


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
